"""HeadConfig: the kind of a model's head, and its labels.

bert_config.json describes only the encoder, as in the original. head_config.json is written next to it, unless it would
be empty, with the keys of `HeadConfig`. Hugging Face keeps the same facts in its config.json, and earlier versions of
this project kept them in bert_config.json, under Hugging Face's names.
"""

import dataclasses
import json
import unicodedata
from collections.abc import Mapping, Sequence

import numpy as np
from absl import logging

from bert_tf.families.family import base_name
from bert_tf.store.tensor_files import Weights
from bert_tf.system import removed
from bert_tf.system.checks import list_of_names
from bert_tf.system.messages import abbreviated_list
from bert_tf.system.text_files import naming_file, read_json
from bert_tf.text.characters import plain_name

HEAD_CONFIG, HUGGINGFACE_CONFIG = "head_config.json", "config.json"
SENTENCES_CONFIG = "config_sentence_transformers.json"

# The classifiers of texts, words and choices, whose variables have the same names and shapes.
CLASSIFIERS = ("BertForSequenceClassification", "BertForTokenClassification", "BertForMultipleChoice")

# How the windows of a long text are combined; see `layers.WindowPooling`.
WINDOW_POOLINGS = ("mean", "max", "attention")
MAX_WINDOWS = 8  # of a text, if nothing else is said

# What is larger is surely a mistake, or meant to fill the memory.
_MOST_LABELS, _LARGEST = 1 << 20, 1 << 16


@dataclasses.dataclass(frozen=True)
class HeadConfig:
    """The properties of a head that a model's configuration and weights don't show; None: not known, or no such thing.

    architecture: class of the model. The classifiers of texts, words and choices have the same variables.
    labels: their names in the order of their ids, as they look (`characters.plain_name`).
    problem_type: of a text classifier: single_label_classification, regression or multi_label_classification.
    hidden_act: of a text classifier: the activation of its hidden layer, if its family's original has none.
    window_pooling: of a text classifier: how the windows of a long text are combined (one of WINDOW_POOLINGS).
    window_stride, max_windows: tokens from the start of a window to that of the next, and how many a text has at most.
    pairs: of a text classifier: whether it was trained on pairs of texts.
    activation: what sentence-transformers makes of one output: "sigmoid", "identity" or the whole name of a class.
    untrained: variables whose values are random: the model was saved before it was trained.
    """

    architecture: str | None = None
    labels: Sequence[str] | None = None
    problem_type: str | None = None
    hidden_act: str | None = None
    window_pooling: str | None = None
    window_stride: int | None = None
    max_windows: int | None = None
    pairs: bool | None = None
    activation: str | None = None
    untrained: tuple[str, ...] = ()

    def __post_init__(self):
        object.__setattr__(self, "untrained", tuple(self.untrained))
        for name in ("window_stride", "max_windows"):
            if (value := getattr(self, name)) is not None and not 1 <= value <= _LARGEST:
                raise ValueError(f"{name}={value!r:.80} must be from 1 to {_LARGEST:,}")
        if self.window_pooling not in (None, *WINDOW_POOLINGS):
            raise ValueError(f"window_pooling={self.window_pooling!r:.80} is not one of {', '.join(WINDOW_POOLINGS)}")
        if self.labels is not None:
            plain = tuple(map(plain_name, self.labels))
            alike = len(set(plain)) < len(set(self.labels))
            object.__setattr__(self, "labels", tuple(self.labels) if alike else plain)

    @classmethod
    def read(cls, path: str) -> "HeadConfig":
        values = read_json(path)
        known = [field.name for field in dataclasses.fields(cls)]
        if unknown := sorted(values.keys() - set(known)):
            if advice := next(filter(None, map(removed.HEADS.get, unknown)), None):
                raise ValueError(f"{path}: {advice}.")
            raise ValueError(f"{path}: unknown key {', '.join(unknown)}. Known: {', '.join(known)}.")
        with naming_file(path):
            return cls(**values)

    @classmethod
    def from_config(cls, values: Mapping, source: str = "config") -> "HeadConfig":
        """The head in a configuration with KEYS_IN_CONFIG. source: its name in errors."""
        with naming_file(source):
            names, numbered = values.get("architectures") or [], values.get("id2label") or {}
            by_number = {int(number): str(label) for number, label in numbered.items() if str(number).isdecimal()}
            if len(by_number) < len(numbered) or max(by_number, default=0) >= _MOST_LABELS:
                raise ValueError(f"{source}: id2label must have numbers from 0 to {_MOST_LABELS - 1:,}")
            # A label without a name gets its number as name.
            labels = [by_number.get(number, str(number)) for number in range(max(by_number, default=-1) + 1)] or None
            problem_type = values.get("problem_type")
            # Only text classifiers have a problem type.
            architecture = names[0] if names else CLASSIFIERS[0] if problem_type else None
            if values.get("lstm_on_top"):
                raise ValueError(f"{source}: {removed.HEADS['lstm_on_top']}")
            kept = {name: values[name] for name in ("pairs", "untrained") if values.get(name) is not None}
            described = values.get("sentence_transformers") or {}
            activation = described.get("activation_fn") or values.get("sbert_ce_default_activation_function")
            short = activation.rpartition(".")[2].lower() if isinstance(activation, str) else None
            activation = short if short in (None, "identity", "sigmoid") else activation
            return cls(architecture, labels, problem_type, activation=activation, **kept)

    def to_dict(self) -> dict:
        """The attributes that are not at their defaults."""
        values = {**dataclasses.asdict(self), "labels": self.labels and list(self.labels)}
        return {name: value for name, value in values.items() if value is not None and value != ()}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    @property
    def variant(self) -> str | None:
        """How the head differs from the original's, if it does, which only this project's format can record."""
        pooling = self.window_pooling
        return f"reads long texts in windows (window_pooling={pooling})" if pooling else None

    def gives_probability(self) -> bool:
        """Whether the one output of a model is the logit of a probability, and not a score."""
        if self.activation not in (None, "identity", "sigmoid"):
            raise ValueError(f"its output is meant through {self.activation!r:.80}; known are sigmoid and identity")
        return self.activation == "sigmoid"


NO_HEAD = HeadConfig()  # nothing is known about the head


def labels_of(labels: Sequence[str] | None, config) -> Sequence[str] | None:
    return head_in_argument(config).labels if labels is None else list_of_names(labels, "labels")


def head_in_argument(config) -> HeadConfig:
    """The head in a model's `config` argument: empty, unless that is a dict that an earlier version saved."""
    return HeadConfig.from_config(config) if isinstance(config, dict) else NO_HEAD


# --- the output layer of trained weights ------------------------------------------------------------------------------
# Who uses a model, goes on from it or learns from it may have its labels in another order: the rows of the layer are
# then put into that order. Other labels need a new layer.

OUTPUT_LAYER = "output_weights"  # of classifiers of texts, words and choices


def placeholders(count: int) -> tuple[str, ...]:
    return tuple(f"LABEL_{number}" for number in range(count))


def named_labels(labels: Sequence[str] | None) -> tuple[str, ...] | None:
    """The labels, if there are any but `placeholders`."""
    return None if not labels or tuple(labels) == placeholders(len(labels)) else tuple(labels)


def folded(label: str) -> str:
    """A label without what often differs between two spellings: case, blanks, composition of characters."""
    return " ".join(unicodedata.normalize("NFC", label).split()).casefold()


def spelled_as(labels: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """The labels, each as `others` spell it, if exactly one of them differs only as `folded` allows."""
    spellings = {}
    for other in dict.fromkeys(others):
        spellings.setdefault(folded(other), []).append(other)
    keys = [folded(label) for label in labels]
    choices = [spellings.get(key, []) if keys.count(key) == 1 else [] for key in keys]
    return tuple(label if len(names) != 1 else names[0] for label, names in zip(labels, choices, strict=True))


def order_of(
    known: Sequence[str] | None, wanted: Sequence[str], source: str, advice: str, others: Sequence[str] = ()
) -> list[int] | None:
    """For each wanted label the output that stands for it; None if the layer has this order already.

    known: labels of the outputs; without names they are taken by position, which is logged.
    source, advice: beginning and end of messages: whose layer it is, and what to do if it has other labels.
    others: further names for the wanted labels, in the same order.
    """
    known, named = named_labels(known), named_labels(wanted)
    if known is None or (named is None and len(known) == len(wanted)):
        which = f"{source} does not name its labels" if known is None else f"{abbreviated_list(wanted)} are no names"
        names = [f"{number} is {wanted[number] if known is None else known[number]}" for number in range(len(wanted))]
        logging.warning("%s: the outputs of the model are taken by position: %s.", which, abbreviated_list(names))
        return None
    for names in filter(None, (wanted, others)):
        respelled = spelled_as(known, names)
        if sorted(respelled) == sorted(names):
            break
    else:
        raise ValueError(f"{source} has other labels: {difference(known, wanted)}. {advice}")
    if respelled != known or names is not wanted:
        pairs = zip(known, (wanted[names.index(name)] for name in respelled), strict=True)
        respelt = abbreviated_list([f"{label} is {other}" for label, other in pairs])
        logging.info("%s spells labels otherwise: %s.", source, respelt)
    order = [respelled.index(name) for name in names]
    if order == sorted(order):
        return None
    message = "%s has its labels in another order (%s): its outputs are matched by name."
    logging.info(message, source, abbreviated_list(known))
    return order


def difference(known: Sequence[str], wanted: Sequence[str]) -> str:
    """The labels that only the model has, and those that only the data has, as the end of a message."""
    given, known = known, spelled_as(known, wanted)
    only = [[name for name in labels if name not in other] for labels, other in ((known, wanted), (wanted, known))]
    if all(only):
        return f"only there {abbreviated_list(only[0])}; only here {abbreviated_list(only[1])}"
    if not (names := only[0] or only[1]):
        return f"there they are spelled {abbreviated_list(given)}, as --labels={','.join(given)} would"
    return f"{abbreviated_list(names)} {'is' if len(names) == 1 else 'are'} {'missing' if only[0] else 'new'} here"


# --- the layer's variables --------------------------------------------------------------------------------------------


def _variables(weights: Weights) -> list[str]:
    return [name for name in weights.shapes if base_name(name) in (OUTPUT_LAYER, "output_bias")]


def reordered(weights: Weights, order: Sequence[int]) -> Weights:
    """The weights with the rows of the output layer in this order of their positions."""
    names, rows, read = _variables(weights), list(order), weights.reader
    return dataclasses.replace(weights, reader=lambda name: read(name)[rows] if name in names else read(name))


def without(weights: Weights, reason: str) -> Weights:
    """The weights without the output layer, for a reason that is logged."""
    names = _variables(weights)
    shapes = {name: shape for name, shape in weights.shapes.items() if name not in names}
    return dataclasses.replace(weights, shapes=shapes, unused={**weights.unused, **dict.fromkeys(names, reason)})


def fit_to_class(
    weights: Weights, head: HeadConfig, path: str, model_class: type, new_head: bool, arguments: Mapping
) -> tuple[Weights, HeadConfig]:
    """Weights and their head for a model of a class: outputs in the order of its labels, or without an output layer.

    arguments: for the class: num_labels, labels.
    """
    kind, labels, names = model_class.__name__, arguments.get("labels"), list(arguments.get("labels") or ())
    known = head.labels
    if labels is not None:
        head = dataclasses.replace(head, labels=None)
    if new_head:
        if {base.__name__ for base in model_class.__mro__}.isdisjoint(CLASSIFIERS):
            raise ValueError(f"new_head=True: {kind} has no output layer of classes.")
        head = dataclasses.replace(head, labels=None, problem_type=None, pairs=None, activation=None)
        return without(weights, "new_head=True"), head
    if OUTPUT_LAYER not in weights:
        return weights, head
    others = "new_head=True begins a new output layer."
    if kind in CLASSIFIERS and head.architecture in CLASSIFIERS and head.architecture != kind:
        raise ValueError(f"{path} is a {head.architecture}, whose output layer is for another task. {others}")
    count, outputs = arguments.get("num_labels"), weights.shapes[OUTPUT_LAYER][0]
    if count not in (None, outputs) and not (labels and named_labels(known)):
        raise ValueError(f"{path} has {outputs} outputs, not {count}. {others}")
    if labels is None:
        return weights, head
    order = order_of(known if known and len(known) == outputs else None, names, path, others)
    return (reordered(weights, order) if order else weights), head


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities over the last axis: SciPy's formula, without its import, which takes a third of a second."""
    powers = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
    return powers / np.sum(powers, axis=-1, keepdims=True)

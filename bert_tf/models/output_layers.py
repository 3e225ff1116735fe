"""The output layer of trained weights, whose outputs are matched with labels by name.

A model knows the labels that its outputs stand for. Who uses it, goes on from it or learns from it may have them in
another order: the rows of the layer are then put into that order. Other labels need a new layer.
"""

import dataclasses
import inspect
import unicodedata
from collections.abc import Mapping, Sequence

from absl import logging

from bert_tf.models.head_config import CLASSIFIERS, HeadConfig
from bert_tf.system.checks import whole_number
from bert_tf.system.messages import some
from bert_tf.weights.mapping import Weights, base_name

# That of a classifier without BERT; different from BERT's, so that they can't be confused.
BASELINE_LAYER = "baseline/output_weights"

# The output layers of classifiers of texts, words and choices: on BERT, on features of a frozen one, without BERT.
OUTPUT_LAYERS = ("output_weights", "feature_classifier/output_weights", "tagger/output_weights", BASELINE_LAYER)


def placeholders(count: int) -> tuple[str, ...]:
    """What transformers calls the labels of a model whose labels have no names."""
    return tuple(f"LABEL_{number}" for number in range(count))


def names_in(labels: Sequence[str] | None) -> tuple[str, ...] | None:
    """The labels; None if there are none, or only `placeholders`."""
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
    found = [spellings.get(key, []) if keys.count(key) == 1 else [] for key in keys]
    return tuple(own if len(names) != 1 else names[0] for own, names in zip(labels, found, strict=True))


def order_of(
    known: Sequence[str] | None, wanted: Sequence[str], source: str, advice: str, others: Sequence[str] = ()
) -> list[int] | None:
    """For each wanted label the output that stands for it; None if the layer has this order already.

    Args:
      known: labels of the outputs; None if they have no names: they are then taken by position, which is logged.
      wanted: as many labels, which the outputs shall stand for.
      source, advice: beginning and end of messages: whose layer it is, and what to do if it has other labels.
      others: further names for the wanted labels, in the same order.

    Raises:
      ValueError: the labels are not the same; says which differ.
    """
    known, named = names_in(known), names_in(wanted)
    if known is None or (named is None and len(known) == len(wanted)):
        which = f"{source} does not name its labels" if known is None else f"{some(wanted)} are no names"
        told = [f"{number} is {wanted[number] if known is None else known[number]}" for number in range(len(wanted))]
        logging.warning("%s: the outputs of the model are taken by position: %s.", which, some(told))
        return None
    for names in filter(None, (wanted, others)):
        respelled = spelled_as(known, names)
        if sorted(respelled) == sorted(names):
            break
    else:
        raise ValueError(f"{source} has other labels: {difference(known, wanted)}. {advice}")
    if respelled != known or names is not wanted:
        pairs = zip(known, (wanted[names.index(name)] for name in respelled), strict=True)
        logging.info("%s spells labels otherwise: %s.", source, some([f"{one} is {other}" for one, other in pairs]))
    order = [respelled.index(name) for name in names]
    if order == sorted(order):
        return None
    logging.info("%s has its labels in another order (%s): its outputs are matched by name.", source, some(known))
    return order


def difference(known: Sequence[str], wanted: Sequence[str]) -> str:
    """The labels that only one side has: of a model, and here."""
    known = spelled_as(known, wanted)
    only = [[name for name in one if name not in other] for one, other in ((known, wanted), (wanted, known))]
    if all(only):
        return f"only there {some(only[0])}; only here {some(only[1])}"
    names = only[0] or only[1]
    return f"{some(names)} {'is' if len(names) == 1 else 'are'} {'missing' if only[0] else 'new'} here"


# --- the layer's variables --------------------------------------------------------------------------------------------


def layer_in(weights: Weights) -> str | None:
    """The name of a classifier's output layer in weights; None if they have none."""
    return next((name for name in OUTPUT_LAYERS if name in weights), None)


def _variables(weights: Weights, layer: str) -> list[str]:
    """The layer's variables, and an optimizer's moments of them."""
    names = (layer, layer.replace("output_weights", "output_bias"))
    return [name for name in weights.shapes if base_name(name) in names]


def reordered(weights: Weights, layer: str, order: Sequence[int]) -> Weights:
    """The weights with the rows of the output layer in another order, a list of the present places."""
    names, rows, read = _variables(weights, layer), list(order), weights.reader
    return dataclasses.replace(weights, reader=lambda name: read(name)[rows] if name in names else read(name))


def without(weights: Weights, layer: str, reason: str) -> Weights:
    """The weights without the output layer, which a model then begins anew; the reason goes into the log."""
    names = _variables(weights, layer)
    shapes = {name: shape for name, shape in weights.shapes.items() if name not in names}
    return dataclasses.replace(weights, shapes=shapes, unused={**weights.unused, **dict.fromkeys(names, reason)})


def fitted(
    weights: Weights, head: HeadConfig, path: str, model_class: type, new_head: bool, arguments: Mapping
) -> tuple[Weights, HeadConfig]:
    """Weights and head for a model: the outputs in the order of its labels, or without an output layer.

    Args:
      head: that of the weights. arguments: for the model's class: num_labels, labels.

    Raises:
      ValueError: see `pretrained.from_pretrained`.
    """
    kind, labels, layer = model_class.__name__, arguments.get("labels"), layer_in(weights)
    if arguments.get("num_labels") is not None:
        whole_number(arguments["num_labels"], "num_labels")
    names = list(labels or ())
    if labels is not None:
        given, head = head.labels, dataclasses.replace(head, labels=None)
    if new_head:
        has_classes = "labels" in inspect.signature(model_class.__init__).parameters
        if has_classes and not (names or arguments.get("num_labels")):
            raise ValueError("new_head=True: say which outputs the new layer has, by labels= or num_labels=.")
        if not has_classes and kind not in CLASSIFIERS:
            raise ValueError(f"new_head=True: {kind} has no output layer of classes.")
        head = dataclasses.replace(head, labels=None, problem_type=None)
        return (without(weights, layer, "new_head=True") if layer else weights), head
    if not layer:
        return weights, head
    others = "new_head=True begins a new output layer."
    if kind in CLASSIFIERS and head.architecture in CLASSIFIERS and head.architecture != kind:
        raise ValueError(f"{path} is a {head.architecture}, whose output layer is for another task. {others}")
    count, outputs = arguments.get("num_labels"), weights.shapes[layer][0]
    if count not in (None, outputs) and not (labels and names_in(given)):
        raise ValueError(f"{path} has {outputs} outputs, not {count}. {others}")
    if labels is None:
        return weights, head
    known = given if given and len(given) == outputs else None
    order = order_of(known, names, path, others)
    return (reordered(weights, layer, order) if order else weights), head

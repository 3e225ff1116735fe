"""HeadConfig: the kind of a model's head, and its labels.

bert_config.json describes only the encoder, as in the original. head_config.json is written beside it, unless it would
be empty, with the keys of `HeadConfig`. Hugging Face keeps the same facts in its config.json, and earlier versions of
this project kept them in bert_config.json, under Hugging Face's names.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence

from bert_tf.system.checks import list_of_names
from bert_tf.system.text_files import read_json
from bert_tf.text.characters import plain_name

HEAD_CONFIG = "head_config.json"

# The classifiers of texts, words and choices, whose variables have the same names and shapes.
CLASSIFIERS = ("BertForSequenceClassification", "BertForTokenClassification", "BertForMultipleChoice")

# Those of `baselines`: --model -> class.
BASELINES = {"bilstm": "BilstmClassifier", "cnn": "CnnClassifier"}
WITHOUT_BERT = tuple(BASELINES.values())

# What reads embeddings or features of tokens -> what its number of outputs must be a multiple of.
TOKEN_READERS = {"bilstm": 2, "cnn": 3}

# How the windows of a long text are combined; see `pooling.WindowPooling`.
WINDOW_POOLINGS = ("mean", "max", "attention")
MAX_WINDOWS = 8  # of a text, if nothing else is said

# What is larger is surely a mistake, or meant to fill the memory.
_MOST_LABELS, _LARGEST = 1 << 20, 1 << 16

# The keys about the head in a configuration of Hugging Face, or of an earlier version.
KEYS_IN_CONFIG = ("architectures", "id2label", "label2id", "problem_type", "lstm_on_top")


def kind_of(architecture: str | None) -> str | None:
    """The --model value of an architecture; None for a BERT's."""
    return next((kind for kind, name in BASELINES.items() if name == architecture), None)


@dataclasses.dataclass(frozen=True)
class HeadConfig:
    """What a model's configuration and weights don't show.

    An ordinary head has none of the attributes from lstm_on_top on.

    Attributes:
      architecture: class of the model. The classifiers of texts, words and choices have the same variables, and a model
        without BERT has a configuration of the same form.
      labels: their names in the order of their ids, as they look (`characters.plain_name`); None if they have none.
      problem_type: of a text classifier: single_label_classification, regression or multi_label_classification.
      lstm_on_top: a BiLSTM reads the encoder's outputs (`task_models.BertForSequenceClassification` and
        `BertForQuestionAnswering`).
      features: the outputs of a frozen BERT that a text classifier reads (`baselines.FEATURES`).
      model_on_top, size_on_top: what reads them (`baselines.TOKEN_READERS`), and its number of outputs.
      hidden_act: of a text classifier: the activation of its hidden layer, if its family's original has none.
      window_pooling: of a text classifier: how the windows of a long text are combined (one of WINDOW_POOLINGS).
      window_stride, max_windows: tokens from the start of a window to that of the next, and how many a text has at
        most; None: not known. They say how such a model is used, not what it is.
      starts, ends: of a `question_heads.JointSpanModel`: the best starts, and the best ends of each.
      untrained: variables whose values are random: the model was saved before it was trained.

    Raises:
      ValueError: a value has the wrong type; names the attribute.
    """

    architecture: str | None = None
    labels: tuple[str, ...] | None = None
    problem_type: str | None = None
    lstm_on_top: bool = False
    features: str | None = None
    model_on_top: str | None = None
    size_on_top: int | None = None
    hidden_act: str | None = None
    window_pooling: str | None = None
    window_stride: int | None = None
    max_windows: int | None = None
    starts: int | None = None
    ends: int | None = None
    untrained: tuple[str, ...] = ()

    def __post_init__(self):
        if not isinstance(self.untrained, list | tuple) or not all(isinstance(name, str) for name in self.untrained):
            raise ValueError(f"untrained must be a list of names, not {self.untrained!r:.80}")
        object.__setattr__(self, "untrained", tuple(self.untrained))
        kinds = {str | None: "a string", bool: "true or false", int | None: "a whole number"}
        for field in dataclasses.fields(self):
            name, value = field.name, getattr(self, field.name)
            if field.type not in kinds:
                continue
            if not isinstance(value, field.type) or isinstance(value, bool) != (field.type is bool):
                raise ValueError(f"{name} must be {kinds[field.type]}, not {value!r:.80}")
            if field.type == int | None and value is not None and not 1 <= value <= _LARGEST:
                raise ValueError(f"{name}={value!r:.80} must be from 1 to {_LARGEST:,}")
        if self.lstm_on_top and self.features:
            raise ValueError("lstm_on_top and features are two ways: give one.")
        if self.window_pooling not in (None, *WINDOW_POOLINGS):
            raise ValueError(f"window_pooling={self.window_pooling!r:.80} is not one of {', '.join(WINDOW_POOLINGS)}")
        if self.window_pooling and (self.lstm_on_top or self.features):
            raise ValueError("window_pooling is for the pooled output, which lstm_on_top and features don't use.")
        if (self.window_stride or self.max_windows) and not self.window_pooling:
            raise ValueError("window_stride and max_windows are for models with window_pooling.")
        if (names := self.labels) is not None:
            if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
                raise ValueError(f"labels must be a list of names, not {names!r:.80}")
            plain = tuple(map(plain_name, names))
            object.__setattr__(self, "labels", plain if len(set(plain)) == len(set(names)) else tuple(names))

    @classmethod
    def read(cls, path: str) -> "HeadConfig":
        """Reads a head_config.json.

        Raises:
          ValueError: not a JSON object in UTF-8, an unknown key, or a value of the wrong type; names file and key.
        """
        values = read_json(path)
        known = [field.name for field in dataclasses.fields(cls)]
        if unknown := sorted(values.keys() - set(known)):
            raise ValueError(f"{path}: unknown key {', '.join(unknown)}. Known: {', '.join(known)}.")
        try:
            return cls(**values)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @classmethod
    def from_config(cls, values: Mapping, source: str = "config") -> "HeadConfig":
        """The head in a configuration with KEYS_IN_CONFIG.

        Args:
          values: keys and values. source: the configuration's name in errors, usually its path.

        Raises:
          ValueError: a value can't be understood; names source and key.
        """
        names, numbered = values.get("architectures") or [], values.get("id2label") or {}
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"{source}: architectures must be a list of names, not {names!r:.80}")
        try:
            by_number = {int(number): str(label) for number, label in numbered.items()}
        except (AttributeError, TypeError, ValueError):
            raise ValueError(f"{source}: id2label must give a name for each number, not {numbered!r:.80}") from None
        if by_number and not 0 <= min(by_number) <= max(by_number) < _MOST_LABELS:
            raise ValueError(
                f"{source}: id2label must have numbers from 0 to {_MOST_LABELS - 1:,}, not {numbered!r:.80}"
            )
        # A label without a name gets its number as name.
        labels = [by_number.get(number, str(number)) for number in range(max(by_number, default=-1) + 1)] or None
        problem_type = values.get("problem_type")
        # Only text classifiers have a problem type.
        architecture = names[0] if names else "BertForSequenceClassification" if problem_type else None
        try:
            kept = {name: values[name] for name in ("lstm_on_top", "untrained") if values.get(name)}
            return cls(architecture, labels, problem_type, **kept)
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from None

    def to_dict(self) -> dict:
        """The attributes that are not at their defaults; empty if there are none."""
        values = {**dataclasses.asdict(self), "labels": self.labels and list(self.labels)}
        return {name: value for name, value in values.items() if value not in (None, False, ())}

    def to_json(self) -> str:
        """The content of a head_config.json."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"

    @property
    def lacks_labels(self) -> bool:
        """Whether the model has classes whose labels are not known."""
        is_classifier = self.problem_type not in (None, "regression") or self.architecture == CLASSIFIERS[1]
        return is_classifier and self.labels is None

    @property
    def variant(self) -> str | None:
        """What makes the head another one than the original's, which only this project's format can record."""
        if self.features:
            return f"reads features of a frozen BERT (features={self.features})"
        if self.window_pooling:
            return f"reads long texts in windows (window_pooling={self.window_pooling})"
        return "has a BiLSTM on top (lstm_on_top)" if self.lstm_on_top else None

    def check_num_labels(self, num_labels: int) -> None:
        """Refuses a number of outputs that differs from the number of label names.

        Raises:
          ValueError: names both.
        """
        if self.labels and len(self.labels) != num_labels:
            raise ValueError(f"num_labels={num_labels}, but labels has {len(self.labels)} names.")


NO_HEAD = HeadConfig()  # nothing is known about the head


def labels_of(labels: Sequence[str] | None, config) -> Sequence[str] | None:
    """A model's argument of this name; without one those in `config`, see `head_in`.

    Raises:
      TypeError, ValueError: see `checks.list_of_names`.
    """
    return head_in(config).labels if labels is None else list_of_names(labels, "labels")


def head_in(config) -> HeadConfig:
    """The head in a model's `config` argument: empty, unless that is a dict that an earlier version saved."""
    return HeadConfig.from_config(config) if isinstance(config, dict) else NO_HEAD

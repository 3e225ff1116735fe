"""The settings kept with a trained tagger; no TensorFlow is imported here."""

import dataclasses
import json
import posixpath
from collections.abc import Sequence

from bert_tf.system.removed import HEADS
from bert_tf.system.text_files import read_json_if_there
from bert_tf.tasks.ner.tags import OUTSIDE
from bert_tf.text.characters import SPLITS

SETTINGS_FILE = "token_classification.json"
PIECES = "pieces"
_OF_EARLIER_VERSIONS = ("features", "lstm_size", "lstm_layers")


@dataclasses.dataclass(frozen=True)
class TaggingSettings:
    """The settings of a trained tagger besides weights and labels; kept in token_classification.json beside them.

    Attributes:
      learned_scheme: of the model's tags: iob2, bioes or plain.
      document_context: whether it was trained on whole documents.
      split: what its words are: texts to tag are split likewise. One of `text.characters.SPLITS`, or PIECES: characters
        and spaces, read as the pieces of the text that they are.
    """

    learned_scheme: str = "iob2"
    document_context: bool = False
    split: str = "words"

    def __post_init__(self):
        if self.split not in (*SPLITS, PIECES):
            raise ValueError(f"split={self.split!r:.80} is not one of {', '.join((*SPLITS, PIECES))}")

    @property
    def characters(self) -> str:
        """The split, of `SPLITS`."""
        return "characters_and_spaces" if self.split == PIECES else self.split

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True) + "\n"

    @classmethod
    def read(cls, directory: str) -> "TaggingSettings | None":
        """The settings in a model's directory; None if there are none."""
        path = posixpath.join(directory, SETTINGS_FILE)
        values = read_json_if_there(path)
        if values is None:
            return None
        if values.get("features"):
            raise ValueError(f"{path}: {HEADS['features']}")
        return cls(**{name: value for name, value in values.items() if name not in _OF_EARLIER_VERSIONS})

    @classmethod
    def of_model(cls, directory: str, labels: Sequence[str]) -> "TaggingSettings":
        """The settings in a model's directory, or what its labels (`standard_tags`) say of one that has none."""
        return cls.read(directory) or cls(learned_scheme=scheme_of(labels))


def scheme_of(labels: Sequence[str]) -> str:
    """The scheme that a model learned, inferred from its tags."""
    letters = {label.partition("-")[0] for label in labels if label != OUTSIDE and "-" in label[1:]}
    if OUTSIDE not in labels or not letters <= set("BIES"):
        return "plain"
    return "bioes" if letters & set("ES") else "iob2"

"""Tags of named entities: how a file spells them, and what they mean.

A file has B-PER, or PER_B, b-per and so on, and what is outside of entities as O, o, - or _. Everywhere else tags are
as CoNLL-2003 has them: a capital letter, a hyphen, the type; O outside.

Source: Ramshaw & Marcus 1995 (IOB1).
"""

import dataclasses
import json
import posixpath
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from bert_tf.system.removed import HEADS
from bert_tf.system.text_files import read_json_if_there
from bert_tf.text.characters import SPLITS

OUTSIDE = "O"
LETTERS = "BIESLU"  # of all schemes
# Scheme -> the letters of its tags. plain: tags that do not form entities (parts of speech).
SCHEMES = {"iob2": "BI", "iob1": "BI", "bioes": "BIES", "bilou": "BILU", "plain": ""}
# What BILOU calls last and unit is end and single in BIOES.
_FROM_BILOU = str.maketrans("LU", "ES")
_TO_BILOU = str.maketrans("ES", "LU")
_OUTSIDE = ("O", "o", "-", "_")


@dataclasses.dataclass(frozen=True)
class Notation:
    """The spelling of one file. letter_last: PER-B instead of B-PER. lower: the letters are b, i and so on."""

    letter_last: bool = False
    separator: str = "-"
    lower: bool = False
    outside: str = OUTSIDE

    def parse(self, tag: str) -> tuple[str, str] | None:
        """The letter, as it is spelled, and the type of a tag, if it has this form."""
        letter, separator, type_ = tag.partition(self.separator)
        if self.letter_last:
            type_, separator, letter = tag.rpartition(self.separator)
        fits = separator and type_ and len(letter) == 1 and letter.upper() in LETTERS
        return (letter, type_) if fits else None

    def has(self, tag: str) -> bool:
        return tag in _OUTSIDE or self.parse(tag) is not None

    def read(self, tag: str) -> str:
        """A tag of the file as CoNLL-2003 has it; a tag of another form unchanged."""
        if tag in _OUTSIDE:
            return OUTSIDE
        parts = self.parse(tag)
        return f"{parts[0].upper()}-{parts[1]}" if parts else tag

    def write(self, tag: str) -> str:
        if tag == OUTSIDE:
            return self.outside
        letter, _, type_ = tag.partition("-")
        letter = letter.lower() if self.lower else letter
        return self.separator.join((type_, letter) if self.letter_last else (letter, type_))


STANDARD = Notation()


def notation_of(tags: Iterable[str]) -> Notation:
    """The notation that all tags of a file fit; STANDARD, if they fit none."""
    tags = dict.fromkeys(tags)
    outside = next((tag for tag in tags if tag in _OUTSIDE), OUTSIDE)
    entities = [tag for tag in tags if tag not in _OUTSIDE]
    for letter_last in (False, True):
        for separator in "-_":
            notation = Notation(letter_last, separator, outside=outside)
            parts = [notation.parse(tag) for tag in entities]
            if all(parts):
                lower = bool(parts) and all(letter.islower() for letter, _ in parts)
                return dataclasses.replace(notation, lower=lower)
    return STANDARD


def standard_tags(tags: Sequence[str]) -> list[str]:
    """A model's tags as CoNLL-2003 has them; tags of another form, such as parts of speech, unchanged."""
    notation = notation_of(tags)
    return list(map(notation.read, tags)) if all(map(notation.has, tags)) else list(tags)


# --- schemes -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Entity:
    """Consecutive words: the first, and the one after the last."""

    type: str
    start: int
    end: int


class BrokenTags(ValueError):
    """A tag that is not allowed where it is; `index` is its number in the sentence."""

    def __init__(self, index: int, message: str):
        super().__init__(message)
        self.index = index


def learned_scheme(scheme: str) -> str:
    """The scheme whose tags a model learns from a file in `scheme`: iob2, bioes or plain."""
    return {"iob1": "iob2", "bilou": "bioes"}.get(scheme, scheme)


def tag_set(scheme: str, types: Iterable[str]) -> list[str]:
    """All tags of a learned scheme for some types of entities, "O" first, then by type."""
    return [OUTSIDE, *(f"{letter}-{type_}" for type_ in sorted(types) for letter in SCHEMES[scheme])]


def types_of(tags: Iterable[str]) -> set[str]:
    return {tag.partition("-")[2] for tag in tags if tag != OUTSIDE}


def entities_of(tags: Sequence[str], scheme: str) -> list[Entity]:
    """The entities that tags mean; BrokenTags where the scheme has others for what conlleval reads."""
    entities, letters = lenient_entities(tags), SCHEMES[scheme]
    for index, (tag, valid) in enumerate(zip(tags, tags_of(entities, len(tags), scheme), strict=True)):
        letter, _, type_ = tag.partition("-")
        if tag != OUTSIDE and not (type_ and len(letter) == 1 and letter in letters):
            known = ", ".join(f"{letter}-TYPE" for letter in letters)
            raise BrokenTags(index, f"the tag {tag!r} is not part of the scheme {scheme} (O, {known})")
        if tag != valid:
            before = f"after {tags[index - 1]!r}" if index else "at the start of the sentence"
            raise BrokenTags(index, f"the tag {tag!r} {before} breaks the scheme {scheme}, which has {valid!r} there")
    return entities


def lenient_entities(tags: Sequence[str]) -> list[Entity]:
    """The entities that tags of any scheme mean, where they may break it, by the rules of conlleval.

    An entity continues while its type stays the same and no letter marks an end or a new beginning.
    """
    entities, open_type, start, ended = [], None, 0, True
    for index, tag in enumerate([*tags, OUTSIDE]):
        letter, _, type_ = tag.partition("-")
        letter = letter.translate(_FROM_BILOU)
        type_ = None if letter == OUTSIDE else type_
        if open_type is not None and (ended or type_ != open_type or letter in "BS"):
            entities.append(Entity(open_type, start, index))
            open_type = None
        if type_ is not None and open_type is None:
            open_type, start = type_, index
        ended = letter in "ES"
    return entities


def strict_entities(tags: Sequence[str]) -> list[Entity]:
    """The entities in tags of IOB2, each begun by B-; what else breaks the scheme is none."""
    return [entity for entity in lenient_entities(tags) if tags[entity.start].startswith("B-")]


def tags_of(entities: Iterable[Entity], length: int, scheme: str) -> list[str]:
    tags = [OUTSIDE] * length
    previous = None
    for entity in sorted(entities, key=lambda entity: entity.start):
        size = entity.end - entity.start
        letters = "B" + "I" * (size - 1)
        if learned_scheme(scheme) == "bioes":
            letters = "S" if size == 1 else "B" + "I" * (size - 2) + "E"
            letters = letters.translate(_TO_BILOU) if scheme == "bilou" else letters
        elif scheme == "iob1":
            touches = previous is not None and previous.end == entity.start and previous.type == entity.type
            letters = ("B" if touches else "I") + "I" * (size - 1)
        tags[entity.start : entity.end] = [f"{letter}-{entity.type}" for letter in letters]
        previous = entity
    return tags


def valid_tags(tags: Sequence[str], scheme: str) -> list[str]:
    """Predicted tags of the learned scheme as valid ones of `scheme`; plain ones as they are."""
    return list(tags) if scheme == "plain" else tags_of(lenient_entities(tags), len(tags), scheme)


# --- the settings kept with a trained tagger --------------------------------------------------------------------------


SETTINGS_FILE = "token_classification.json"
PIECES = "pieces"
_OF_EARLIER_VERSIONS = ("features", "lstm_size", "lstm_layers")


@dataclasses.dataclass(frozen=True)
class TaggingSettings:
    """The settings of a trained tagger that token_classification.json has.

    learned_scheme: of the model's tags: iob2, bioes or plain.
    document_context: whether it was trained on whole documents.
    split: what its words are: one of `text.characters.SPLITS`, or PIECES: characters and spaces, read as the pieces
      of their text.
    """

    learned_scheme: str = "iob2"
    document_context: bool = False
    split: str = "words"

    def __post_init__(self):
        if self.split not in (*SPLITS, PIECES):
            raise ValueError(f"split={self.split!r:.80} is not one of {', '.join((*SPLITS, PIECES))}")

    @property
    def characters(self) -> str:
        return "characters_and_spaces" if self.split == PIECES else self.split

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True) + "\n"

    @classmethod
    def read(cls, directory: str) -> "TaggingSettings | None":
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


# --- scores -----------------------------------------------------------------------------------------------------------


Tags = Sequence[Sequence[str]]  # sentences of tags


def evaluate(gold: Tags, predicted: Tags, *, plain: bool = False) -> dict[str, float]:
    """Scores from 0 to 1: precision, recall, f1 of entities (type and both ends right), and accuracy of words.

    The tags are of any scheme, also broken ones. plain: they form no entities; only accuracy is computed.
    """
    right = [tag == other for tags in zip(gold, predicted, strict=True) for tag, other in zip(*tags, strict=True)]
    accuracy = {"accuracy": float(np.mean(right)) if right else 0.0}
    if plain:
        return accuracy
    from sklearn.metrics import precision_recall_fscore_support

    types, *entities = _types_of_entities(gold, predicted, lenient_entities)
    *scores, _ = precision_recall_fscore_support(*entities, labels=types, average="micro", zero_division=0)
    return dict(zip(("precision", "recall", "f1"), map(float, scores), strict=True)) | accuracy


def klue(gold: Tags, predicted: Tags, labels: Sequence[str]) -> dict[str, float]:
    """The scores of KLUE-NER, from 0 to 1: the mean F1 of types of entities, and of tags ("O" included).

    As in KLUE-baseline (klue_baseline/metrics/functional.py), except that [CLS] and [SEP] don't count.

    gold, predicted: of characters without spaces; an entity is what is strictly IOB2.
    labels: all tags; one that neither occurs nor is predicted counts as 1.
    """
    from sklearn.metrics import f1_score

    types, *entities = _types_of_entities(gold, predicted, strict_entities)
    by_type = f1_score(*entities, labels=types, average="macro", zero_division=0) if types else 0.0
    by_tag = f1_score(_flat(gold), _flat(predicted), labels=list(labels), average="macro", zero_division=1)
    return {"entity_macro_f1": float(by_type), "character_macro_f1": float(by_tag)}


def report(gold: Tags, predicted: Tags, *, plain: bool = False) -> str:
    """A table: precision, recall, F1 and number of each type of entities, or of each tag if `plain`."""
    from sklearn.metrics import classification_report

    if plain:
        return classification_report(_flat(gold), _flat(predicted), digits=4, zero_division=0)
    types, *entities = _types_of_entities(gold, predicted, lenient_entities)
    if not types:
        return "No entities, neither gold nor predicted.\n"
    return classification_report(*entities, labels=types, digits=4, zero_division=0)


def _flat(sentences: Tags) -> list[str]:
    return [tag for tags in sentences for tag in tags]


def _types_of_entities(gold: Tags, predicted: Tags, entities_of: Callable[[Sequence[str]], list[Entity]]) -> tuple:
    """The types; and the type of each entity as scikit-learn compares it, gold and predicted, "" where it is not."""
    truth, guesses = (
        {(number, entity) for number, tags in enumerate(sentences) for entity in entities_of(tags)}
        for sentences in (gold, predicted)
    )
    every = truth | guesses
    # The last one is no entity in either: then a report has the micro average even if all are right.
    kinds = ([*(pair[1].type if pair in some else "" for pair in every), ""] for some in (truth, guesses))
    return sorted({entity.type for _, entity in every}), *kinds

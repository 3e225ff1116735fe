"""How a file spells its tags: B-PER, or PER_B, b-per and so on, and what is outside of entities as O, o, - or _.

Everywhere else tags are as CoNLL-2003 has them: a capital letter, a hyphen, the type; O outside.
"""

import dataclasses
from collections.abc import Iterable, Sequence

OUTSIDE = "O"
LETTERS = "BIESLU"  # of all schemes
_OUTSIDE = ("O", "o", "-", "_")


@dataclasses.dataclass(frozen=True)
class Notation:
    """The spelling of one file.

    Attributes:
      letter_last: PER-B instead of B-PER. separator: "-" or "_". lower: the letters are b, i and so on.
      outside: the tag of words outside of entities.
    """

    letter_last: bool = False
    separator: str = "-"
    lower: bool = False
    outside: str = OUTSIDE

    def parse(self, tag: str) -> tuple[str, str] | None:
        """The letter, as it is spelled, and the type of a tag; None if it has no such form."""
        letter, separator, type_ = tag.partition(self.separator)
        if self.letter_last:
            type_, separator, letter = tag.rpartition(self.separator)
        fits = separator and type_ and len(letter) == 1 and letter.upper() in LETTERS
        return (letter, type_) if fits else None

    def read(self, tag: str) -> str:
        """A tag of the file, as CoNLL-2003 has it; one of no such form as it is."""
        if tag in _OUTSIDE:
            return OUTSIDE
        parts = self.parse(tag)
        return f"{parts[0].upper()}-{parts[1]}" if parts else tag

    def write(self, tag: str) -> str:
        """The opposite of `read`."""
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
    """A model's tags as CoNLL-2003 has them; tags of no such form, such as parts of speech, as they are."""
    notation = notation_of(tags)
    fits = [tag in _OUTSIDE or notation.parse(tag) is not None for tag in tags]
    return [notation.read(tag) for tag in tags] if all(fits) else list(tags)

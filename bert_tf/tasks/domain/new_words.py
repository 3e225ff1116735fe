"""The words of a domain that a model's tokenizer cuts into several pieces."""

import dataclasses
from collections.abc import Mapping

from bert_tf.text.wordpiece import FullTokenizer, WordpieceTokenizer

_LEAST_COUNT = 5  # a word that is hardly there can't be learned
_LONGEST_WORD = 60  # characters; what is longer is no word


@dataclasses.dataclass(frozen=True)
class NewWord:
    """A word to add. count: how often it is in the text. pieces: what it has been cut into so far."""

    word: str
    count: int
    pieces: tuple[str, ...]


def find_new_words(counts: Mapping[str, int], tokenizer: FullTokenizer, most: int) -> list[NewWord]:
    """The words whose addition shortens the text most, by count x (pieces - 1), the best first.

    Left out are words that are in the text less than 5 times, and what has no letter in it. A word that is unknown as a
    whole counts as two pieces.

    Args:
      counts: of the tokenizer's basic tokens (`tokenizer.basic_tokenizer.tokenize`). most: as many at most.
    """
    cut, unknown = tokenizer.wordpiece_tokenizer.cut, tokenizer.unk_token
    gains: dict[NewWord, int] = {}
    for word, count in counts.items():
        if count < _LEAST_COUNT or len(word) > _LONGEST_WORD or not any(map(str.isalpha, word)):
            continue
        pieces = tuple(cut(word))
        gain = count if pieces == (unknown,) else count * (len(pieces) - 1)
        # A token that does not come out of the tokenizer as it went in would never be used.
        if gain and tokenizer.basic_tokenizer.tokenize(word) == [word]:
            gains[NewWord(word, count, pieces)] = gain
    return sorted(gains, key=lambda new: (-gains[new], new.word))[:most]


def pieces_per_word(counts: Mapping[str, int], tokenizer: FullTokenizer, added: list[NewWord]) -> float:
    """The mean number of pieces of a word of the text, with some words added to the vocabulary."""
    cut = WordpieceTokenizer({**tokenizer.vocab, **{new.word: -1 for new in added}}).cut
    return sum(count * len(cut(word)) for word, count in counts.items()) / sum(counts.values())

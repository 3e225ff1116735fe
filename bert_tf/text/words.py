"""Words of a text, for models that tag words: as the texts that the model was trained on are split."""

from bert_tf.text.added_tokens import AddedTokens
from bert_tf.text.characters import clean, is_cjk, is_punctuation, is_whitespace

# What a word is. words: what whitespace separates, with each punctuation mark and Chinese character a word of its own,
# as in most files of tagged words. characters: each character but whitespace. characters_and_spaces: each character.
SPLITS = ("words", "characters", "characters_and_spaces")

# What a character is to the words around it.
DROPPED, SPACE, ALONE, INSIDE = range(4)


def kind_of(char: str, split: str = "words") -> int:
    """DROPPED (a control character), SPACE, ALONE (a word of its own), or INSIDE a word. split: one of SPLITS."""
    if clean(char) is None:
        return DROPPED
    if is_whitespace(char):
        return ALONE if split == "characters_and_spaces" else SPACE
    return ALONE if split != "words" or is_cjk(char) or is_punctuation(char) else INSIDE


def split_words(text: str, split: str = "words", added_tokens: AddedTokens | None = None) -> list[tuple[int, int]]:
    """For each word of `text` its first character and the one after the last; control characters make no word.

    Args:
      split: one of SPLITS. added_tokens: each is a word of its own wherever it is written, whatever the split.
    """
    words, done = [], 0
    for place in added_tokens.places(text) if added_tokens else ():
        words += [*_split_between(text, done, place[0], split), place]
        done = place[1]
    return words + _split_between(text, done, len(text), split)


def _split_between(text: str, start: int, end: int, split: str) -> list[tuple[int, int]]:
    words, before = [], SPACE
    for place, char in enumerate(text[start:end], start):
        kind = kind_of(char, split)
        if kind == DROPPED:
            continue
        if kind == INSIDE and before == INSIDE:
            words[-1] = (words[-1][0], place + 1)
        elif kind != SPACE:
            words.append((place, place + 1))
        before = kind
    return words

"""Words of a text, for models that tag words: what whitespace separates, with each punctuation mark and Chinese
character a word of its own, as in most files of tagged words."""

from bert_tf.text.characters import clean, is_cjk, is_punctuation, is_whitespace

# What a character is to the words around it.
DROPPED, SPACE, ALONE, INSIDE = range(4)


def kind_of(char: str) -> int:
    """DROPPED (a control character), SPACE, ALONE (a word of its own), or INSIDE a word."""
    if clean(char) is None:
        return DROPPED
    if is_whitespace(char):
        return SPACE
    return ALONE if is_cjk(char) or is_punctuation(char) else INSIDE


def split_words(text: str) -> list[tuple[int, int]]:
    """For each word of `text` its first character and the one after the last; control characters make no word."""
    words, before = [], SPACE
    for place, kind in enumerate(map(kind_of, text)):
        if kind == DROPPED:
            continue
        if kind == INSIDE and before == INSIDE:
            words[-1] = (words[-1][0], place + 1)
        elif kind != SPACE:
            words.append((place, place + 1))
        before = kind
    return words

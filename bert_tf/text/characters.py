"""Character classes, how the original's basic tokenizer treats them, and the words of a text to tag."""

import functools
import re
import unicodedata
from collections.abc import Iterable

# The blocks that the original calls CJK: each such character becomes a separate token. Hangul, Hiragana and Katakana
# are left out on purpose: their words are separated by spaces or split by the vocabulary.
_CJK_BLOCKS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
_FIRST_CJK = 0x3400

# Without width: byte order mark, zero-width space, word joiner, zero. Joiners (U+200C, U+200D) change how letters look.
_INVISIBLE = "\ufeff\u200b\u2060\0"
_BLANK = "".join(char for char in map(chr, range(0x3001)) if char.isspace()) + _INVISIBLE
_NAME = {**dict.fromkeys(map(ord, _INVISIBLE)), **dict.fromkeys(map(ord, "\u00a0\u2007\u202f"), " ")}
# What the `tokenizers` library's regular expressions call whitespace (White_Space); `str.isspace` has four more.
WHITESPACE = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
WHITESPACE += "\u2028\u2029\u202f\u205f\u3000"
_CIRCLED_LETTERS = ((0x24B6, 0x24E9), (0x1F130, 0x1F149), (0x1F150, 0x1F169), (0x1F170, 0x1F189))
_SURROGATE = re.compile("[\ud800-\udfff]")


def convert_to_unicode(text: str | bytes) -> str:
    """`text` as str; bytes are decoded as UTF-8, without invalid ones. ValueError for other types."""
    if isinstance(text, str):
        return text
    if isinstance(text, bytes):
        return text.decode("utf-8", "ignore")
    line = "; for several write tokenizer.encode_batch(texts)" if isinstance(text, list | tuple) else ""
    raise ValueError(f"text must be str or bytes, not {type(text).__name__}{line}")


def text_of(text: str | bytes) -> str:
    """`text` as str without surrogates, which UTF-8 can't hold: each becomes U+FFFD, so that places stay the same."""
    text = convert_to_unicode(text)
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def trimmed(text: str) -> str:
    """A text without what can't be seen at its ends: whitespace of all kinds, byte order marks."""
    return text.strip(_BLANK)


def plain_name(text: str) -> str:
    """A name of a label or a column as it looks: names that look the same are the same.

    Without what can't be seen, with no-break spaces as spaces, and in NFC: some systems write Hangul in parts.
    """
    return unicodedata.normalize("NFC", trimmed(text.translate(_NAME)))


def is_whitespace(char: str) -> bool:
    """True for space, tab, newline, carriage return and category Zs."""
    return char in (" ", "\t", "\n", "\r") or unicodedata.category(char) == "Zs"


def is_control(char: str) -> bool:
    """True for categories Cc and Cf, except tab, newline and carriage return, which count as whitespace."""
    return char not in ("\t", "\n", "\r") and unicodedata.category(char) in ("Cc", "Cf")


def is_punctuation(char: str) -> bool:
    """True for categories P* and for every ASCII character that is not a letter, digit or space (including $ and ^,
    which Unicode calls symbols)."""
    code = ord(char)
    if 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126:
        return True
    return unicodedata.category(char).startswith("P")


def is_cjk(char: str) -> bool:
    """True for the CJK ideographs that become separate tokens."""
    code = ord(char)
    return code >= _FIRST_CJK and any(first <= code <= last for first, last in _CJK_BLOCKS)


def clean(char: str, drop_unassigned: bool = False, separate_cjk: bool = True) -> str | None:
    """What cleaning makes of a character: None if it is dropped, a space for whitespace, spaces around a CJK one.

    Args:
      drop_unassigned: any category C* counts as control: unassigned, private-use characters and surrogates are dropped
        as well, as ELECTRA does.
      separate_cjk: False leaves CJK characters parts of words (tokenize_chinese_chars: false).
    """
    if is_whitespace(char):
        return " "
    category = unicodedata.category(char)
    if char in "\0\ufffd" or category in ("Cc", "Cf") or (drop_unassigned and category[0] == "C"):
        return None
    return f" {char} " if separate_cjk and is_cjk(char) else char


def separate_whitespace(char: str) -> str:
    """A space for whitespace as `str.split` knows it, without any other cleaning (do_basic_tokenize: false)."""
    return " " if char.isspace() else char


def split_punctuation(char: str) -> str:
    return f" {char} " if is_punctuation(char) else char


def strip_accent(char: str) -> str | None:
    return None if unicodedata.category(char) == "Mn" else char


def strip_accent_and_split_punctuation(char: str) -> str | None:
    return strip_accent(char) and split_punctuation(char)


def is_mark(char: str) -> bool:
    """Whether a character belongs to the one before it (categories M*)."""
    return unicodedata.category(char)[0] == "M"


def is_word_character(char: str) -> bool:
    """Whether the `tokenizers` library's regular expressions take a character for part of a word (\\w)."""
    category = unicodedata.category(char)
    if category[0] in "LM" or category in ("Nd", "Nl", "Pc") or char in "\u200c\u200d":
        return True
    return category == "So" and any(first <= ord(char) <= last for first, last in _CIRCLED_LETTERS)


@functools.cache
def characters_in_use() -> list[str]:
    """All characters that this Python's Unicode assigns, and the CJK ones: the others are all treated alike.

    Beyond plane 3 only plane 14 is in use, and private use, which no rule names. Surrogates are not text.
    """
    chars = [chr(code) for code in (*range(0x40000), *range(0xE0000, 0xF0000)) if not 0xD800 <= code <= 0xDFFF]
    return [char for char in chars if unicodedata.category(char) != "Cn" or is_cjk(char)]


# ---- words of a text, for models that tag words: as the texts that the model was trained on are split ----------------

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


def split_words(text: str, split: str = "words", tokens: Iterable[tuple[int, int]] = ()) -> list[tuple[int, int]]:
    """For each word of `text` its first character and the one after the last; control characters make no word.

    Args:
      split: one of SPLITS. tokens: the places of added tokens, each of which is a word of its own, whatever the split.
    """
    words, done = [], 0
    for start, end in (*tokens, (len(text), len(text))):
        before = SPACE
        for place in range(done, start):
            kind = kind_of(text[place], split)
            if kind == DROPPED:
                continue
            if kind == INSIDE and before == INSIDE:
                words[-1] = (words[-1][0], place + 1)
            elif kind != SPACE:
                words.append((place, place + 1))
            before = kind
        words += [(start, end)] if start < end else []
        done = end
    return words

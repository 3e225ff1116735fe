"""Character classes, and how the original's basic tokenizer treats them."""

import functools
import re
import unicodedata
from collections.abc import Callable

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

# Without width: byte order mark, zero-width space, word joiner. Joiners (U+200C, U+200D) change how letters look.
_INVISIBLE = "\ufeff\u200b\u2060"
_BLANK = "".join(char for char in map(chr, range(0x3001)) if char.isspace()) + _INVISIBLE
_NAME = {**dict.fromkeys(map(ord, _INVISIBLE)), **dict.fromkeys(map(ord, "\u00a0\u2007\u202f"), " ")}


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


def clean(char: str) -> str | None:
    if char in ("\0", "\ufffd") or is_control(char):
        return None
    if is_whitespace(char):
        return " "
    return f" {char} " if is_cjk(char) else char


def clean_of_unassigned(char: str) -> str | None:
    """`clean`, but any category C* counts as control: unassigned, private-use characters and surrogates are dropped as
    well, as ELECTRA does."""
    if char not in ("\t", "\n", "\r") and unicodedata.category(char).startswith("C"):
        return None
    return clean(char)


def clean_beside_cjk(rule: Callable[[str], str | None], char: str) -> str | None:
    """`rule`, but CJK characters stay parts of words (tokenize_chinese_chars: false)."""
    cleaned = rule(char)
    return char if cleaned and is_cjk(char) else cleaned


def separate_whitespace(char: str) -> str:
    """A space for whitespace as `str.split` knows it, without any other cleaning (do_basic_tokenize: false)."""
    return " " if char.isspace() else char


def split_punctuation(char: str) -> str:
    return f" {char} " if is_punctuation(char) else char


def strip_accent(char: str) -> str | None:
    return None if unicodedata.category(char) == "Mn" else char


def strip_accent_and_split_punctuation(char: str) -> str | None:
    return strip_accent(char) and split_punctuation(char)


@functools.cache
def characters_in_use() -> list[str]:
    """All characters that this Python's Unicode assigns, and the CJK ones: the others are all treated alike.

    Beyond plane 3 only plane 14 is in use, and private use, which no rule names. Surrogates are not text.
    """
    chars = [chr(code) for code in (*range(0x40000), *range(0xE0000, 0xF0000)) if not 0xD800 <= code <= 0xDFFF]
    return [char for char in chars if unicodedata.category(char) != "Cn" or is_cjk(char)]

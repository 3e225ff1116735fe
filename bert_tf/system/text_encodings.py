"""Text files in another encoding than UTF-8: their bytes as UTF-8, and which one it may be.

charset-normalizer 3.5 was tried in place of the scores below: of the 17 files of the tests it took the one in EUC-JP
and a short one in CP949 for others.
"""

import codecs
import itertools
import re
from collections.abc import Iterable, Iterator

from absl import logging

from bert_tf.system.messages import is_first

FIRST_BYTES = 1 << 12  # bytes that show whether a file is UTF-16
SAMPLE_BYTES = 1 << 16  # are enough to tell an encoding
_SURE = 2  # a score that texts of another encoding hardly have
_SURELY_UTF_8 = 3  # more characters of three bytes than this are not chance

# The most frequent characters of running text.
_KOREAN = "이다는의에가을를고하지로어은도기나리사한대인자시아그서일정수해스보게라제들부"
_CHINESE = "的一是不了在人有我他这中大来上国个到说们为子和你地出道也时年得就那要下以生会自着去之过家学对可她里后"
_TAIWANESE = "的一是不了在人有我他這中大來上國個到說們為子和你地出道也時年得就那要下以生會自著去之過家學對可她裡後"
_JAPANESE = (
    "".join(map(chr, range(0x3041, 0x3097)))
    + "ーアイウエオカキクコサシスセタチットドナニノバフプマメラリルレロン日本人年大国中出来会者事"
)


_HAN = "\u4e00-\u9fff"
# Encoding -> its name for people, an older one with its usual characters, the frequent ones, and its script.
_CANDIDATES = {
    "cp949": ("CP949 (EUC-KR)", "euc_kr", _KOREAN, "\uac00-\ud7a3"),
    "cp932": ("CP932 (Shift-JIS)", "shift_jis", _JAPANESE, f"\u3041-\u30ff{_HAN}"),
    "euc_jp": ("EUC-JP", "euc_jp", _JAPANESE, f"\u3041-\u30ff{_HAN}"),
    "gb18030": ("GB18030 (GBK)", "gb2312", _CHINESE, _HAN),
    "cp950": ("CP950 (Big5)", "big5", _TAIWANESE, _HAN),
}
_TITLES = {name: title for name, (title, *_) in _CANDIDATES.items()} | {
    "utf-16": "UTF-16", "utf-16-le": "UTF-16 (little-endian)", "utf-16-be": "UTF-16 (big-endian)",
    "cp1252": "Windows-1252 (Latin-1)",
}  # fmt: skip


def converted(path: str, encoding: str, errors: str, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The bytes of a text in UTF-8, without a byte order mark; a text that is UTF-8 all the same stays as it is.

    path: of the file, for messages. errors: "strict", or "replace": what is invalid becomes U+FFFD.
    """
    chunks = iter(chunks)
    first = next(chunks, b"")
    name = codecs.lookup(encoding).name
    wide = name in ("utf-16", "utf-16-le", "utf-16-be")
    chunks = itertools.chain([first], chunks)
    if _is_utf_8_text(first, wide):
        logging.info("%s is UTF-8 and is read so, not as --encoding=%s.", path, encoding)
        yield from chunks
        return
    if not wide and (other := _better(first[:FIRST_BYTES], name)) and is_first(path, other):
        message = "%s: --encoding=%s gives characters that no text has side by side. It is probably %s: --encoding=%s."
        logging.warning(message, path, encoding, _TITLES[other], other)
    if name == "utf-16":  # without a byte order mark, Python would take the machine's order
        name = utf_16_of(first, 0) or name
    decoder = codecs.getincrementaldecoder(name)(errors)
    done = newlines = 0
    for chunk, is_last in itertools.chain(zip(chunks, itertools.repeat(False)), [(b"", True)]):
        done += len(chunk)
        try:
            text = decoder.decode(chunk, is_last)
        except UnicodeDecodeError as error:
            offset = done - len(error.object) + error.start
            line = newlines + error.object[: error.start].decode(name, "replace").count("\n") + 1
            where = f"{offset} of the file (byte 0x{error.object[error.start]:02x}, {error.reason})"
            problem = f"not {encoding} at byte offset {where}, as --encoding={encoding} says."
            raise ValueError(f"{path}, line {line}: {problem}") from None
        newlines += text.count("\n")
        yield (text.removeprefix("\ufeff") if done <= len(first) else text).encode()


def advice(beginning: bytes, block: bytes, offset: int, has_flag: bool) -> str:
    """What to do about a text that is not UTF-8, as a sentence that names the likely encoding, if there is one.

    beginning: of the file. block: a part of the file, with the first invalid byte at `offset`.
    has_flag: whether the file is one that --encoding is for.
    """
    before = block[max(0, offset - SAMPLE_BYTES) : offset].decode(errors="ignore")
    name = utf_16_of(beginning)
    if not name and sum(char >= "\u0800" for char in before) > _SURELY_UTF_8:
        return "What comes before is UTF-8: the file is damaged, or made of files of two encodings."
    line = block.rfind(b"\n", 0, offset) + 1  # where no character of several bytes is cut
    name = name or _likely(block[line : offset + SAMPLE_BYTES])
    if name is None:
        return "Give --encoding, or convert the file to UTF-8." if has_flag else "Convert the file to UTF-8."
    if has_flag:
        return f"It is probably {_TITLES[name]}: --encoding={name} reads it."
    return f"It is probably {_TITLES[name]}; convert it to UTF-8: iconv -f {name.upper()} -t UTF-8."


def _is_utf_8_text(sample: bytes, wide: bool) -> bool:
    """Whether the beginning of a file has a character of UTF-8 that others can't imitate. wide: else it is UTF-16."""
    if sample.startswith(codecs.BOM_UTF8):
        return True
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(sample)
    except UnicodeDecodeError:
        return False
    return (wide and b"\0" not in sample) or any(char >= "\u0800" for char in text)


def utf_16_of(sample: bytes, most_ascii: int = 50) -> str | None:
    """The form of UTF-16 of a file's first bytes, if any: by their mark, or if one byte of `most_ascii` is 0."""
    if sample.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    high, low = sample[::2].count(0), sample[1::2].count(0)
    if max(high, low) * most_ascii < len(sample) * bool(most_ascii) or not high + low:
        return None
    if low > 8 * high:
        return "utf-16-le"
    return "utf-16-be" if high > 8 * low else None


def _likely(sample: bytes) -> str | None:
    scores = {name: _score(sample, name) for name in _CANDIDATES}
    best = max(scores, key=scores.__getitem__)
    few = len(sample) > 5 * sum(byte >= 0x80 for byte in sample)
    if few and scores[best] < _SURE and _is_western(sample, 0.95):
        return "cp1252"
    if scores[best] > 0.6:
        return best
    return "cp1252" if _is_western(sample, 0.8) else None


def _better(sample: bytes, name: str) -> str | None:
    """An encoding in which a text is far more usual than in the one it is read in, if any."""
    best = _likely(sample)
    if best not in _CANDIDATES:
        return None
    texts = {other: codecs.getincrementaldecoder(other)("replace").decode(sample) for other in (*_CANDIDATES, name)}
    score = max((_score(sample, other) for other in _CANDIDATES if texts[other] == texts[name]), default=0.5)
    return best if _score(sample, best) >= score + 1 else None


def _score(sample: bytes, name: str) -> float:
    """How usual the characters are that the bytes would be in an encoding; below 0 where they are not text."""
    _, usual, frequent, script = _CANDIDATES[name]
    text = [char for char in codecs.getincrementaldecoder(name)("replace").decode(sample) if char >= "\x80"]
    if not text or text.count("\ufffd") * 100 > len(text):
        return -1.0
    if name == "euc_jp" and not any("\u3041" <= char <= "\u30ff" for char in text):
        return -1.0  # Chinese and Korean bytes give Chinese characters, too
    total = 0
    for char in text:
        if char in frequent:
            total += 3
        elif not re.match(f"[{script}]", char):
            total -= char not in "，。、「」·…“”‘’！？：；（）《》・〜ー　"
        else:
            # Python's euc_kr spells the syllables that it lacks in 8 bytes.
            total += 1 if len(char.encode(usual, "ignore")) == 2 else -2
    return total / len(text)


def _is_western(sample: bytes, share: float) -> bool:
    """Whether the bytes beyond ASCII stand alone, as accented letters do; at least this share of them."""
    runs = re.findall(rb"[\x80-\xff]+", sample)
    return bool(runs) and sum(len(run) == 1 for run in runs) >= share * len(runs)

"""Strings that tokenizers get wrong: every script, marks, spaces of all kinds, fragments of markup and numbers."""

import random
import unicodedata
from collections.abc import Iterator

_FRAGMENTS = [
    "Hello", " world", "don't", "we'll", "I'VE", "'s", "''", "``quoted''", "2019,", "1,000,", "9,", "3.14", "x2",
    "\u00b2,", "\u0663,", "[CLS]", "[SEP]", "[MASK]", "</", "<", ">", "...", "--", "\u2014", "http://a.b/c?d=e",
    "@user", "#tag", "  ", "   ", "\t", "\n", "\r\n", " \n ", "\u00a0", "\u3000", "\u2028", "\u0085", "\x1c",
    "\u200b", "\u200d", "\ufeff", "caf\u00e9", "cafe\u0301", "\u1ea0\u0308", "\u0130", "\u0131", "\u03a3",
    "\u039f\u0394\u039f\u03a3", "\u00df", "\u1e9e", "\ufb01", "\ufdfa", "\uff21\uff42", "\u00bd", "\u2460", "\u2167",
    "\u4e1c\u4eac", "\u306f\u304c", "\ud55c\uae00", "\u1112\u1161", "\u0e01\u0e33",
    "\u0928\u092e\u0938\u094d\u0924\u0947", "\u0645\u0631\u062d\u0628\u0627", "\U0001f600",
    "\U0001f469\u200d\U0001f4bb", "\U0001f1e9\U0001f1ea", "\U00020000", "\u2581", "\u2581\u2581", "\u0120", "\ufffd",
    "\0",
]  # fmt: skip


def odd_texts(count: int, seed: int = 0) -> Iterator[str]:
    """Yields `count` strings of up to 60 characters or so, the same for each seed."""
    rng = random.Random(seed)
    assigned = [chr(code) for code in range(0x20, 0x20000) if unicodedata.category(chr(code)) not in ("Cn", "Co", "Cs")]
    marks = [char for char in assigned if unicodedata.category(char)[0] == "M"]
    spaces = [char for char in assigned if unicodedata.category(char)[0] == "Z"]
    letters = [chr(code) for code in range(0x21, 0x7F)]
    for _ in range(count):
        parts = []
        for _ in range(rng.randrange(12)):
            kind = rng.random()
            if kind < 0.5:
                parts.append(rng.choice(_FRAGMENTS))
            elif kind < 0.75:
                parts.append("".join(rng.choices(letters, k=rng.randrange(1, 8))))
            else:
                parts.append("".join(rng.choices(rng.choice([assigned, marks, spaces]), k=rng.randrange(1, 4))))
            if rng.random() < 0.4:
                parts.append(" ")
        yield "".join(parts)

"""The tokenizer in its plainest form, pass by pass as in the original, to compare the fast one with, in results and in
speed."""

import unicodedata

from bert_tf.text import characters

MAX_CHARACTERS = 200


def is_chinese(code: int) -> bool:
    """Whether a character is a separate token."""
    return (
        0x4E00 <= code <= 0x9FFF
        or 0x3400 <= code <= 0x4DBF
        or 0x20000 <= code <= 0x2A6DF
        or 0x2A700 <= code <= 0x2B73F
        or 0x2B740 <= code <= 0x2B81F
        or 0x2B820 <= code <= 0x2CEAF
        or 0xF900 <= code <= 0xFAFF
        or 0x2F800 <= code <= 0x2FA1F
    )


class PlainTokenizer:
    """The rules one character at a time, as they are worded: a baseline, and an independent check. Uncased."""

    def __init__(self, vocab):
        self.vocab = vocab

    def encode(self, text: str) -> list[int]:
        """Ids of the pieces."""
        return [self.vocab[piece] for piece in self.tokenize(text)]

    def tokenize(self, text: str) -> list[str]:
        """Word pieces."""
        return [piece for word in self.basic_tokens(text) for piece in self.pieces(word)]

    def basic_tokens(self, text: str) -> list[str]:
        """Words and punctuation marks."""
        parts = []
        for word in self.set_chinese_apart(self.clean(text)).split():
            parts.extend(self.split_punctuation(self.strip_accents(word.lower())))
        return " ".join(parts).split()

    def clean(self, text: str) -> str:
        """Without control characters, and with spaces for all whitespace."""
        output = []
        for char in text:
            if char in ("\0", "\ufffd") or characters.is_control(char):
                continue
            output.append(" " if characters.is_whitespace(char) else char)
        return "".join(output)

    def set_chinese_apart(self, text: str) -> str:
        """With spaces around CJK characters."""
        output = []
        for char in text:
            if is_chinese(ord(char)):
                output.extend((" ", char, " "))
            else:
                output.append(char)
        return "".join(output)

    def strip_accents(self, word: str) -> str:
        """Without combining marks."""
        output = []
        for char in unicodedata.normalize("NFD", word):
            if unicodedata.category(char) == "Mn":
                continue
            output.append(char)
        return "".join(output)

    def split_punctuation(self, word: str) -> list[str]:
        """A word split around its punctuation marks."""
        parts, is_new = [], True
        for char in word:
            if characters.is_punctuation(char):
                parts.append([char])
                is_new = True
            else:
                if is_new:
                    parts.append([])
                is_new = False
                parts[-1].append(char)
        return ["".join(part) for part in parts]

    def pieces(self, word: str) -> list[str]:
        """Longest pieces of the vocabulary from the left, or [UNK]."""
        chars = list(word)
        if len(chars) > MAX_CHARACTERS:
            return ["[UNK]"]
        pieces, start = [], 0
        while start < len(chars):
            end, best = len(chars), None
            while start < end:
                piece = "".join(chars[start:end])
                if start > 0:
                    piece = "##" + piece
                if piece in self.vocab:
                    best = piece
                    break
                end -= 1
            if best is None:
                return ["[UNK]"]
            pieces.append(best)
            start = end
        return pieces

"""The tokenizer in the plainest form: what the fast one is compared with, in results and in speed."""

import unicodedata

from bert_tf import tokenization


class PlainTokenizer:
    """The rules one character at a time, as they are worded: the yardstick, and an independent check."""

    def __init__(self, vocab):
        self.vocab = vocab

    def encode(self, text: str) -> list[int]:
        cleaned = []
        for char in text:
            if char in ("\0", "\ufffd") or tokenization._is_control(char):
                continue
            if tokenization._is_whitespace(char):
                cleaned.append(" ")
            elif tokenization._is_cjk(char):
                cleaned.extend((" ", char, " "))
            else:
                cleaned.append(char)
        ids = []
        for word in "".join(cleaned).split():
            word = unicodedata.normalize("NFD", word.lower())
            parts = [[]]
            for char in word:
                if unicodedata.category(char) == "Mn":
                    continue
                if tokenization._is_punctuation(char):
                    parts.extend(([char], []))
                else:
                    parts[-1].append(char)
            for part in filter(None, parts):
                ids.extend(self.vocab[piece] for piece in self.pieces("".join(part)))
        return ids

    def pieces(self, word: str) -> list[str]:
        if len(word) > 200:
            return ["[UNK]"]
        pieces, start = [], 0
        while start < len(word):
            end = len(word)
            while end > start:
                piece = ("##" if start else "") + word[start:end]
                if piece in self.vocab:
                    break
                end -= 1
            if end == start:
                return ["[UNK]"]
            pieces.append(piece)
            start = end
        return pieces

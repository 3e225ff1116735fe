"""The tokenizer of Japanese BERTs (BertJapaneseTokenizer): MeCab finds the words, which become pieces or characters.

MeCab is the extra `fugashi`. A text is normalized (NFKC) before MeCab sees it, so that an offset may cover several
characters of the text that became one, or one that became several.
"""

import functools
import importlib
import posixpath
import threading
import unicodedata
from collections.abc import Callable
from typing import Any, Literal

from bert_tf.text.characters import TOKENIZER_CONFIG, read_added_tokens
from bert_tf.text.tokenizer import special_tokens_of
from bert_tf.text.tokenizer_files import VOCAB, Casing, read_tokenizer_config
from bert_tf.text.wordpiece import BasicTokenizer, WordCache, WordPieces, WordpieceTokenizer

_DICTIONARIES = ("unidic_lite", "ipadic", "unidic")
# What tokenizer_config.json says, and what is taken without it.
_DEFAULTS = {
    "do_lower_case": False,
    "do_word_tokenize": True,
    "do_subword_tokenize": True,
    "word_tokenizer_type": "basic",
    "subword_tokenizer_type": "wordpiece",
    "mecab_kwargs": None,
    "never_split": None,
}
_CHOICES = {"word_tokenizer_type": ("mecab", "basic"), "subword_tokenizer_type": ("wordpiece", "character")}

_Form = Literal["NFC", "NFKC"]  # of Unicode
Span = tuple[int, int]  # the first character of the text, and the one after the last


class JapaneseTokenizer(WordPieces):
    """Text to words by MeCab or by whitespace and punctuation, and words to word pieces or characters.

        tokenizer = JapaneseTokenizer("vocab.txt", word_tokenizer_type="mecab")
        tokenizer.tokenize("自然言語処理を学ぶ。")  # ['自然', '言語', '処理', 'を', '学ぶ', '。']

    vocab_file: see `load_vocab`.
    settings: those of tokenizer_config.json, by their names there (see _DEFAULTS).
    """

    vocab_kind = "Japanese words and their pieces"
    huggingface_class = "BertJapaneseTokenizer"
    vocab_files = (VOCAB,)

    def __init__(self, vocab_file: str, **settings):
        super().__init__(vocab_file)
        given = {name: value for name, value in settings.items() if value is not None}
        self._settings: dict[str, Any] = {**_DEFAULTS, **given}
        for name, choices in _CHOICES.items():
            if self._settings[name] not in choices:
                raise ValueError(f"{name} is {self._settings[name]!r}: only {' and '.join(choices)} are supported.")
        self._never_split = frozenset(self._settings["never_split"] or ()) - {*special_tokens_of(self)}
        self._basic = BasicTokenizer(False, tokenize_chinese_chars=False)
        # Words that are never split by punctuation are cut into pieces like any other.
        self._split = BasicTokenizer(self._settings["do_lower_case"], tokenize_chinese_chars=False,
                                     never_split=self._never_split)  # fmt: skip
        self._wordpiece = WordpieceTokenizer(self.vocab, self.unk_token, 100)
        self.set_added_tokens(read_added_tokens(vocab_file, self.vocab))
        self.do_lower_case = self._settings["do_lower_case"]
        self._pieces_of_word = WordCache(self._cut)
        self._dictionary: str | None = None
        self._form: _Form | None = None
        if self._settings["do_word_tokenize"] and self._settings["word_tokenizer_type"] == "mecab":
            self._dictionary, self._form = _mecab_settings(**(self._settings["mecab_kwargs"] or {}))

    @classmethod
    def from_file(cls, vocab_file: str, casing: Casing) -> "JapaneseTokenizer":
        """The tokenizer of a vocab.txt, with the tokenizer_config.json next to it; cased unless something says more."""
        directory = posixpath.dirname(vocab_file)
        config = read_tokenizer_config(directory)
        settings = {name: config.get(name) for name in _DEFAULTS}
        settings["do_lower_case"] = bool(casing.do_lower_case)
        try:
            return cls(vocab_file, **settings)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{posixpath.join(directory, TOKENIZER_CONFIG)}: {error}") from None

    # --- text to pieces ----------------------------------------------------------------------------------------------

    def _tokenize(self, text: str) -> list[str]:
        return [piece for word in self._words(text) for piece, *_ in self._pieces_of_word[word]]

    def _encode(self, text: str) -> list[int]:
        return [self._id(piece) for piece in self._tokenize(text)]

    def _encode_with_offsets(self, text: str, split_unknown: bool):
        ids, offsets, kept = [], [], set()
        for word, spans in self._words_with_spans(text):
            for piece, first, last in self._cut(word, split_unknown):
                ids.append(self._id(piece))
                covered = spans[first:last]
                offsets.append((min(begin for begin, _ in covered), max(end for _, end in covered)))
            kept.update(position for span in spans for position in range(*span))
        return ids, offsets, kept

    def _id(self, piece: str) -> int:
        index = self.vocab.get(piece)
        return self.unk_id if index is None else index

    def _words(self, text: str) -> list[str]:
        return [word for word, _ in self._words_with_spans(text)]

    def _words_with_spans(self, text: str) -> list[tuple[str, list[Span]]]:
        """The words of `text`, with the characters of `text` that each of their characters comes from."""
        if not self._settings["do_word_tokenize"]:
            return [normalize_with_spans(None, text)]
        if self._dictionary is None:
            kept = self._basic.clean(text)
            # Composed after cleaning, which may bring a letter and its mark together.
            composed, spans = normalize_with_spans("NFC", "".join(char for char, _ in kept))
            spans = [(kept[begin][1], kept[end - 1][1] + 1) for begin, end in spans]
            words = self._split.tokenize_with_origins(composed)
            return [(word, [spans[position] for position in origins]) for word, origins in words]
        normalized, spans = normalize_with_spans(self._form, text)
        words, position = [], 0
        for word in load_mecab(self._dictionary)(normalized):
            begin = normalized.index(word, position)
            position = begin + len(word)
            word_spans = spans[begin:position]
            if not self.cased and word not in self._never_split:
                word_spans = [span for char, span in zip(word, word_spans, strict=True) for _ in char.lower()]
                word = word.lower()
            words.append((word, word_spans))
        return words

    def _cut(self, word: str, split_unknown: bool = False) -> list[tuple[str, int, int]]:
        """The pieces of a word, and which of its characters each covers."""
        if not self._settings["do_subword_tokenize"]:
            return [(word, 0, len(word))]
        if self._settings["subword_tokenizer_type"] == "character":
            characters = zip(*normalize_with_spans("NFKC", word), strict=True)
            return [(char if char in self.vocab else self.unk_token, *span) for char, span in characters]
        pieces, position = [], 0
        for part in word.split():  # MeCab knows fewer kinds of whitespace
            position = word.index(part, position)
            for piece, size in self._wordpiece.cut_with_sizes(part, split_unknown):
                pieces.append((piece, position, position + size))
                position += size
        return pieces

    def settings(self) -> dict:
        return {**super().settings(), **self._settings}


@functools.cache
def load_mecab(dictionary: str = "unidic_lite") -> Callable[[str], list[str]]:
    """The words that MeCab finds with the dictionary of a Python package."""
    import fugashi

    folder, lock = importlib.import_module(dictionary).DICDIR, threading.Lock()
    # pyrefly: ignore[missing-attribute]  # it is in a compiled module
    tagger = fugashi.GenericTagger(f'-r "{folder}/mecabrc" -d "{folder}"')

    def words(text: str) -> list[str]:
        with lock:  # a tagger holds one text
            return [word.surface for word in tagger(text)]

    return words


def _mecab_settings(
    mecab_dic: str | None = "unidic_lite", normalize_text: bool = True, mecab_option: str = ""
) -> tuple[str, _Form | None]:
    """The dictionary's Python package, and the normal form that a text gets first; options may name any file."""
    if mecab_dic not in _DICTIONARIES:
        raise ValueError(f"mecab_dic is {mecab_dic!r}: only {', '.join(_DICTIONARIES)} are supported.")
    if mecab_option:
        raise ValueError(f"mecab_option is {mecab_option!r}: options of MeCab are not supported.")
    return mecab_dic, "NFKC" if normalize_text else None


def normalize_with_spans(form: _Form | None, text: str) -> tuple[str, list[Span]]:
    """A text in a normal form of Unicode, and the characters of `text` that each of its characters comes from."""
    if form is None or unicodedata.is_normalized(form, text):
        return text, [(position, position + 1) for position in range(len(text))]
    parts, begin = [], 0
    for position in range(1, len(text) + 1):
        before, char = text[begin:position], text[position : position + 1]
        first, alone, both = (unicodedata.normalize(form, part) for part in (before, char, before + char))
        if not char or (not unicodedata.combining(alone[0]) and both == first + alone):
            parts.append((first, (begin, position)))
            begin = position
    return "".join(part for part, _ in parts), [span for part, span in parts for _ in part]

"""SentencePiece with ALBERT's own preprocessing (original: tokenization.py, preprocess_text and encode_pieces).

A text is stripped, runs of whitespace become a space, characters are decomposed (NFKD) and combining marks dropped,
also in cased models; then it is lower-cased, and the `sentencepiece` library finds the pieces of a unigram model (Kudo
2018). `▁` marks the beginning of a word.

The original splits a piece that ends in a digit and a comma, `▁2019,`, into the pieces of `2019` and a comma. As on
Python 3, the split pieces begin a word even inside one: `9,` becomes `▁9` `,`. Hugging Face's tokenizer does neither,
and replaces `` and '' by ": a directory with its tokenizer.json gets its ids (`HuggingFaceSentencePiece`).
"""

import base64
import itertools
import posixpath
import re
import string
import struct
import unicodedata
from collections.abc import Iterable, Mapping

import sentencepiece

from bert_tf.system.example_bytes import field, pack
from bert_tf.system.text_files import exists, list_folder, naming_file, read_bytes, read_json
from bert_tf.text import tokenizer_files
from bert_tf.text.characters import TOKENIZER, TOKENIZER_CONFIG, as_text, is_mark, read_added_tokens
from bert_tf.text.library_tokenizer import LibraryTokenizer, check_kind
from bert_tf.text.tokenizer import PieceTokenizer, Tokenizer, special_tokens_of
from bert_tf.text.tokenizer_files import MODEL, RELEASED_MODEL, VOCAB, WORD_START, Casing, components_of, read_tokens

# Without it, the tokenizer of transformers 5 gives an ALBERT no token types, as if pairs were one text.
INPUTS = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
_TWO_QUOTES = re.compile("``|''")
# What the tokenizer_config.json of a KoBERT may say; nothing else has been published.
_ONLY = {"remove_space": True, "keep_accents": False, "sp_model_kwargs": {}}
_SPECIAL_CHARACTERS = frozenset(string.punctuation) - frozenset("'<=>")
_INSIDE_A_WORD = frozenset(string.ascii_letters) | _SPECIAL_CHARACTERS


class _AlbertRows(Tokenizer):
    cls_token, sep_token, unk_token, mask_token, pad_token = "[CLS]", "[SEP]", "<unk>", "[MASK]", "<pad>"
    begin_tokens, between_tokens, end_tokens, second_segment = ("[CLS]",), ("[SEP]",), ("[SEP]",), 1
    huggingface_class = "AlbertTokenizer"
    vocab_name, vocab_kind = f"{MODEL} (or {RELEASED_MODEL})", "SentencePiece"
    vocab_files = (TOKENIZER, "*.model", VOCAB, f"assets/{VOCAB}")

    def _decode(self, ids):
        special = {*special_tokens_of(self), *(token.content for token in self.added_tokens.tokens)}
        tokens = self.convert_ids_to_tokens(ids)
        text = "".join(f" {token} " if token in special else token for token in tokens)
        return " ".join(text.replace(WORD_START, " ").split())

    @staticmethod
    def is_continuation(token: str) -> bool:
        """Whether a piece continues a word: not if `is_start_piece`, and special tokens don't."""
        return not is_start_piece(token) and token not in ("[CLS]", "[SEP]", "[MASK]")


class SentencePieceTokenizer(_AlbertRows, PieceTokenizer):
    """ALBERT's tokenizer, by the rules of the original.

        tokenizer = SentencePieceTokenizer("30k-clean.model")
        tokenizer.tokenize("Hello world")  # ['▁hello', '▁world']

    model_file: a SentencePiece model with ALBERT's special tokens.
    do_lower_case: as when the model was trained; all released models are uncased.

    pieces: token -> id of the model's own pieces, to which `vocab` adds the added tokens.
    """

    splits_commas = True  # behind digits
    model_name = MODEL
    transformers_differs = (
        f"transformers reads {MODEL} by other rules. Ids differ for a space before a symbol like ( or -, for numbers "
        "before a comma, and for Hangul, which becomes <unk>."
    )

    def __init__(self, model_file: str, do_lower_case: bool = True):
        self.do_lower_case = do_lower_case
        self.model, self.vocab_file = read_bytes(model_file), model_file
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(self.model)
        except RuntimeError:
            raise ValueError(f"{model_file} is not a SentencePiece model, or is damaged.") from None
        self.read_names_and_side(posixpath.dirname(model_file))
        names = list(map(self._processor.id_to_piece, range(self._processor.get_piece_size())))
        self._ids = self._read_vocabulary(names)
        self.set_added_tokens(read_added_tokens(model_file, self.vocab), self.preprocess, self._origins)
        self.pad_id = self.special_id(self.pad_token)
        self._special = frozenset(special_tokens_of(self))
        # The ids of pieces that end in a digit and a comma -> `_parts` of them.
        pieces = self.pieces.items() if self.splits_commas else ()
        self.split = {index: self._parts(piece) for piece, index in pieces if _ends_in_digit_comma(piece)}

    def _read_vocabulary(self, names: list[str]) -> list[int]:
        """Sets `vocab`, `inv_vocab` and `pieces`; returns the id of each piece of the model, here its number."""
        self.inv_vocab = dict(enumerate(names))
        self.vocab = self.pieces = {token: index for index, token in self.inv_vocab.items()}
        return list(self.inv_vocab)

    @classmethod
    def from_file(cls, vocab_file: str, casing: Casing) -> "SentencePieceTokenizer":
        directory = posixpath.dirname(vocab_file)
        if tokenizer_files.read_tokenizer_config(directory).get("keep_accents"):
            raise ValueError(f"{directory}/{TOKENIZER_CONFIG}: keep_accents needs the {TOKENIZER} of the model.")
        return cls(vocab_file, casing.do_lower_case is not False)  # as all released models, if nothing says it

    # --- text to pieces ----------------------------------------------------------------------------------------------

    def preprocess(self, text: str | bytes) -> str:
        return preprocess_text(text, self.do_lower_case)

    def _words(self, text: str) -> list[str]:
        return self._processor.normalize(self.preprocess(text)).replace(WORD_START, " ").split()

    def _tokenize(self, text: str) -> list[str]:
        pieces = self._processor.encode(self.preprocess(text), out_type=str)
        splits = (self.splits_commas and _ends_in_digit_comma(piece) for piece in pieces)
        pairs = zip(pieces, splits, strict=True)
        return [part for piece, is_split in pairs for part in (self._split_comma(piece) if is_split else [piece])]

    def _encode(self, text: str) -> list[int]:
        return self._ids_of(self._processor.encode(self.preprocess(text)))

    def encode_batch(self, texts: Iterable[str | bytes]) -> list[list[int]]:
        """`encode` of each text, on all cores."""
        if self.added_tokens:
            return super().encode_batch(texts)
        return [self._ids_of(numbers) for numbers in self._processor.encode([self.preprocess(text) for text in texts])]

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """Ids of `tokens`; others get the unknown piece's, as in the original."""
        return tokenizer_files.convert_by_vocab(self.vocab, tokens, self.unk_id)

    def _ids_of(self, numbers: list[int]) -> list[int]:
        """Ids of pieces by their numbers in the model, commas behind digits split off."""
        ids = [self._ids[number] for number in numbers]
        if self.split.keys().isdisjoint(ids):
            return ids
        return [part for index in ids for part, _ in self.split.get(index, ((index, 1),))]

    def _split_comma(self, piece: str) -> list[str]:
        return [*self._processor.encode(piece[:-1].replace(WORD_START, ""), out_type=str), ","]

    def _encode_with_offsets(self, text: str, split_unknown: bool):
        prepared, origins = self._preprocess_with_origins(text)
        spans, ids, offsets, position = self._spans(prepared), [], [], 0
        for piece in self._processor.encode(prepared, out_type=str):
            index = self.pieces.get(piece, self.unk_id) if piece not in self._special else self.unk_id
            for part, size in self.split.get(index, ((index, len(piece)),)):
                covered = [span for span in spans[position : position + size] if span]
                position += size
                ids.append(part)
                if covered:
                    offsets.append((origins[covered[0][0]], origins[covered[-1][1] - 1] + 1))
                else:
                    begin = next((origins[span[0]] for span in spans[position:] if span), len(text))
                    offsets.append((begin, begin))
        return ids, offsets, origins

    def _spans(self, prepared: str) -> list[tuple[int, int] | None]:
        """For each character of the pieces those of `prepared` that it stands for, None for the beginning of a word."""
        normalized, starts = self._processor.normalize(prepared, with_offsets=True)
        first = int(normalized.startswith(WORD_START))  # stands for nothing: the model begins each text so
        spans = [(0, 0)] * first
        for start, group in itertools.groupby(range(first, len(normalized)), starts.__getitem__):
            numbers = [*group]
            count, end = len(numbers), starts[numbers[-1] + 1]
            while end > start + 1 and not self._processor.normalize(prepared[end - 1]):
                end -= 1  # dropped by the model
            # A symbol that the model takes as it is has a character for each; others stand for all.
            each = [(start + number, start + number + 1) for number in range(count)]
            spans += each if count == end - start else [(start, max(end, start + 1))] * count
        return [None if char == WORD_START else span for char, span in zip(normalized, spans, strict=True)]

    def _parts(self, piece: str) -> list[tuple[int, int]]:
        """(id, number of characters) of what a piece is split into."""
        parts, left = [], len(piece) - 1
        *tokens, comma = self._split_comma(piece)
        for number, token in enumerate(tokens):
            begins = token.startswith(WORD_START) and not (number == 0 and piece.startswith(WORD_START))
            size = min(len(token) - begins, left) if number < len(tokens) - 1 else left
            parts.append((self.pieces.get(token, self.unk_id), size))
            left -= size
        return [*parts, (self.pieces.get(comma, self.unk_id), 1)]

    def _preprocess_with_origins(self, text: str) -> tuple[str, list[int]]:
        text, chars = as_text(text), []
        for number, word in enumerate(re.finditer(r"\S+", text)):
            chars += [(" ", word.start() - 1)] if number else []
            for position, char in enumerate(word[0], start=word.start()):
                decomposed = unicodedata.normalize("NFKD", char)
                chars += [(part, position) for part in decomposed if not unicodedata.combining(part)]
        prepared = "".join(char for char, _ in chars)
        if not self.do_lower_case:
            return prepared, [position for _, position in chars]
        return prepared.lower(), [position for char, position in chars for _ in char.lower()]

    def _origins(self, text: str) -> list[int]:
        return self._preprocess_with_origins(text)[1]

    def files(self) -> dict[str, bytes]:
        return {self.model_name: self.model}

    def settings(self) -> dict:
        return {**super().settings(), **INPUTS, "do_lower_case": self.do_lower_case, "keep_accents": False}


class KoBertTokenizer(SentencePieceTokenizer):
    """SentencePiece of Korean BERTs (KoBERT): the pieces' ids are lines of a vocab.txt next to the .model.

    The rules are those of KoBertTokenizer (monologg/kobert) and KoBERTTokenizer (skt/kobert-base-v1), which descend
    from Hugging Face's XLNetTokenizer: ALBERT's preprocessing, before it two quotation marks in a row become one, and a
    piece that ends in a digit and a comma is split without beginning a new word.

        tokenizer = KoBertTokenizer("vocab.txt")  # with tokenizer_78b3253a26.model next to it
        tokenizer.tokenize("한국어 모델")  # ['▁한국', '어', '▁모델']

    vocab_file: a vocab.txt with a .model next to it, or a .model whose own numbers are the ids.
    do_lower_case: as when the model was trained; the published ones are cased.
    """

    cls_token, sep_token, unk_token, mask_token, pad_token = "[CLS]", "[SEP]", "[UNK]", "[MASK]", "[PAD]"
    huggingface_class, transformers_differs = "KoBertTokenizer", ""
    vocab_name, vocab_kind = f"{VOCAB} (with its .model)", "SentencePiece"
    vocab_files = (VOCAB, "*.model")

    def __init__(self, vocab_file: str, do_lower_case: bool = False):
        model_file, self._vocab_file = vocab_file, None
        if not vocab_file.endswith(".model"):
            self._vocab_file, model_file = vocab_file, tokenizer_files.find_model(list_folder(vocab_file))
            if model_file is None:
                raise ValueError(f"{vocab_file} has pieces of SentencePiece ({WORD_START}), but no .model next to it.")
        super().__init__(model_file, do_lower_case)
        self.vocab_file = vocab_file

    @classmethod
    def from_file(cls, vocab_file: str, casing: Casing) -> "KoBertTokenizer":
        directory = posixpath.dirname(vocab_file)
        config = tokenizer_files.read_tokenizer_config(directory)
        for name, value in _ONLY.items():
            if config.get(name, value) not in (value, None):
                raise ValueError(f"{directory}/{TOKENIZER_CONFIG}: {name} is {config[name]}; it must be {value}.")
        return cls(vocab_file, bool(casing.do_lower_case))

    def _read_vocabulary(self, names: list[str]) -> list[int]:
        super()._read_vocabulary(names if self._vocab_file is None else read_tokens(self._vocab_file))
        unknown = self.vocab.get(self.unk_token, 0)
        return [self.vocab.get(name, unknown) for name in names]

    def check_vocabulary(self) -> None:
        if self._vocab_file is not None:
            tokenizer_files.check_vocab(self.vocab, self._vocab_file, ())

    def preprocess(self, text: str | bytes) -> str:
        return super().preprocess(_TWO_QUOTES.sub('"', as_text(text)))

    @staticmethod
    def trails(char: str) -> bool:
        """Also the second of two quotation marks belongs to the piece before it."""
        return is_mark(char) or char in "`'"

    def _preprocess_with_origins(self, text: str) -> tuple[str, list[int]]:
        pairs = {quotes.start() for quotes in _TWO_QUOTES.finditer(text)}
        positions = [position for position in range(len(text)) if position - 1 not in pairs]
        prepared, origins = super()._preprocess_with_origins(_TWO_QUOTES.sub('"', text))
        return prepared, [positions[origin] for origin in origins]

    def _split_comma(self, piece: str) -> list[str]:
        first, *others = super()._split_comma(piece)
        if piece.startswith(WORD_START) or not first.startswith(WORD_START):
            return [first, *others]
        return [*([first[1:]] if len(first) > 1 else []), *others]

    @staticmethod
    def is_continuation(token: str) -> bool:
        return not token.startswith((WORD_START, "[CLS]", "[SEP]", "[MASK]", "[PAD]", "[UNK]"))

    def files(self) -> dict[str, bytes]:
        vocabulary = {} if self._vocab_file is None else {VOCAB: tokenizer_files.vocabulary_bytes(self._vocab_file)}
        return {**super().files(), **vocabulary}


def preprocess_text(text: str | bytes, do_lower_case: bool) -> str:
    """What ALBERT's data tools do to a text before it is split (original: preprocess_text)."""
    text = " ".join(as_text(text).split())
    if not text.isascii():
        text = "".join(char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))
    return text.lower() if do_lower_case else text


def is_start_piece(piece: str) -> bool:
    """Whether a piece begins a word for whole-word and n-gram masking (original: _is_start_piece_sp)."""
    # `'`, `=`, `>` and `<` are not among the special characters.
    return piece.startswith((WORD_START, "<")) or piece in _SPECIAL_CHARACTERS or not _INSIDE_A_WORD.issuperset(piece)


def _ends_in_digit_comma(piece: str) -> bool:
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


# --- in Hugging Face's form ------------------------------------------------------------------------------------------


class HuggingFaceSentencePiece(_AlbertRows, LibraryTokenizer):
    """ALBERT's tokenizer by a tokenizer.json; its `files` have the spiece.model next to it, or one made of it."""

    model_name = MODEL

    def __init__(self, vocab_file: str):
        directory = posixpath.dirname(vocab_file)
        self.read_names_and_side(directory)
        check_kind(values := read_json(vocab_file), vocab_file, "Unigram")
        with naming_file(vocab_file):
            pieces = {piece: index for index, (piece, _) in enumerate(values["model"]["vocab"])}
        added = read_added_tokens(vocab_file, pieces)
        super().__init__(values, vocab_file, {TOKENIZER: read_bytes(vocab_file)}, added)
        beside = exists(model_file := posixpath.join(directory, self.model_name))
        if model := read_bytes(model_file) if beside else model_of_tokenizer_json(values, self.pad_id):
            self._files[self.model_name] = model

    def settings(self) -> dict:
        return {**super().settings(), **INPUTS, "do_lower_case": not self.cased}


SentencePieceTokenizer.in_json = HuggingFaceSentencePiece
KoBertTokenizer.in_json = None


# --- a SentencePiece model of a tokenizer.json, whose Unigram model has the same pieces and scores --------------------

# A protocol buffer, encoded by hand since the library's own classes need a newer runtime than TensorFlow has.
# Field numbers (sentencepiece_model.proto): ModelProto pieces 1, trainer_spec 2, normalizer_spec 3; SentencePiece piece
# 1, score 2, type 3; TrainerSpec model_type 3, vocab_size 4, unk_id 40, bos_id 41, eos_id 42, pad_id 43; NormalizerSpec
# precompiled_charsmap 2.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_UNIGRAM, _NONE = 1, -1
_REPLACED = ({"String": "``"}, {"String": "''"}, {"Regex": " {2,}"})


def model_of_tokenizer_json(values: Mapping, pad_id: int) -> bytes | None:
    """The model that a tokenizer.json of an ALBERT was made of; None if it has rules that no SentencePiece model has.

    A piece with the logarithm 0 of a probability, but for special tokens, is a symbol that is taken as it is.
    """
    model = values["model"]
    added = {token["id"]: bool(token.get("special")) for token in values.get("added_tokens") or []}
    words = components_of(values.get("pre_tokenizer"), "pretokenizers")
    begins = {"prepend_scheme": "always", "add_prefix_space": True, "replacement": "\u2581"}
    rules = [rule for rule in components_of(values.get("normalizer"), "normalizers") if rule.get("type") != "Lowercase"]
    kinds = [rule.get("type") for rule in rules if rule.get("pattern") not in _REPLACED]
    finds_words = [part.get("type") for part in words] in (["WhitespaceSplit", "Metaspace"], ["Metaspace"])
    normalizes = kinds in (["NFKD", "StripAccents", "Precompiled"], ["NFKD", "StripAccents"])
    finds_words = finds_words and begins.items() <= {**begins, **words[-1]}.items()
    has_added = not all(added.values()) or max(added, default=0) >= len(model["vocab"])
    if model.get("unk_id") is None or model.get("byte_fallback") or has_added or not (finds_words and normalizes):
        return None
    special = {index for index, is_special in added.items() if is_special} | {pad_id}
    pieces, score_head = [], pack([8 * 2 + 5])
    for index, (piece, score) in enumerate(model["vocab"]):
        kind = _CONTROL if index in special else _NORMAL if score else _USER_DEFINED
        kind = _UNKNOWN if index == model["unk_id"] else kind
        content = field(b"\x0a", piece.encode()) + score_head + struct.pack("<f", score) + _number(3, kind)
        pieces.append(field(b"\x0a", content))
    numbers = {3: _UNIGRAM, 4: len(pieces), 40: model["unk_id"], 41: _NONE, 42: _NONE, 43: pad_id}
    trainer = b"".join(_number(key, number) for key, number in numbers.items())
    # What the model makes of characters, in SentencePiece's own form; empty: it leaves them.
    maps = [rule.get("precompiled_charsmap") or "" for rule in rules if rule.get("type") == "Precompiled"]
    characters = base64.b64decode("".join(maps), validate=True)
    return b"".join(pieces) + field(b"\x12", trainer) + field(b"\x1a", field(b"\x12", characters))


def _number(field: int, value: int) -> bytes:
    return pack([8 * field, value % (1 << 64)])

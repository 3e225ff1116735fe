"""Tokenizers that the `tokenizers` library executes: byte-level BPE, and Hugging Face's form of ALBERT's.

The library's rules are those of Hugging Face's models, whose ids must be met exactly. Here they are put behind the
interface of this project: tokens with a role, written in a text, are text (a text can't end its own row), offsets leave
the space before a word out, and what a file may contain for other uses (truncation, padding, row templates) is ignored.
"""

import base64
import contextlib
import dataclasses
import functools
import json
import math
import posixpath
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence

import tokenizers

from bert_tf.system.example_bytes import pack
from bert_tf.system.text_files import read_bytes, read_json, understood
from bert_tf.text.added_tokens import TOKENIZER, AddedToken, read_added_tokens
from bert_tf.text.characters import text_of
from bert_tf.text.sentence_piece import INPUTS, SentencePieceTokenizer
from bert_tf.text.tokenizer import Tokenizer, special_tokens_of
from bert_tf.text.tokenizer_files import MODEL, Casing, is_there, kind_of_model, parts_of

_POST_PROCESSORS = ("TemplateProcessing", "BertProcessing", "RobertaProcessing")  # that make rows


class LibraryTokenizer(Tokenizer):
    """A tokenizer that wraps one of the `tokenizers` library.

    Args:
      library: what splits text into pieces.
      vocab_file: where it comes from, for messages.
      files: name -> content of the files it was read from. added: by `read_added_tokens`.

    Raises:
      ValueError: the vocabulary lacks a special token; names the file.
    """

    def __init__(
        self,
        library: tokenizers.Tokenizer,
        vocab_file: str,
        files: Mapping[str, bytes],
        added: Sequence[AddedToken] = (),
    ):
        library.no_truncation()
        library.no_padding()
        self._library, self._files, self.vocab_file = library, dict(files), vocab_file
        self._prepare()
        self.vocab = dict(sorted(library.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1]))
        self.inv_vocab = {index: token for token, index in self.vocab.items()}
        self.set_added_tokens(added)
        self.check_special_tokens()

    def _prepare(self) -> None:
        self._library.encode_special_tokens = True  # in a text they are text; the library's JSON has no place for it

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._prepare()

    @functools.cached_property
    def cased(self) -> bool:
        """Whether upper and lower case are distinguished."""
        return self.normalize("A") != self.normalize("a")

    def take_rows(self, post_processor: Mapping | None, path: str) -> None:
        """Makes rows as a tokenizer.json does, for a model whose family has rows of another kind of tokenizer.

        Raises:
          ValueError: it makes rows that `build_inputs` can't make; names the file.
        """
        parts = parts_of(post_processor, "processors")
        part = next((part for part in parts if part.get("type") in _POST_PROCESSORS), None)
        if part is None:
            return
        with understood(path):
            rows = _rows_of(part)
        if rows is None:
            raise ValueError(f"{path}: its post_processor makes other rows than [begin] A [between] B [end].")
        self.begin_tokens, self.between_tokens, self.end_tokens, self.second_segment = rows
        self.huggingface_class = "PreTrainedTokenizerFast"

    def tokenize(self, text: str | bytes) -> list[str]:
        """The pieces of `text`."""
        encoding = self._encoding(text)
        if self.added_tokens.ids.isdisjoint(encoding.ids):
            return encoding.tokens
        # An added token without the whitespace that it takes.
        pairs = zip(encoding.ids, encoding.tokens, strict=True)
        return [self.inv_vocab[index] if index in self.added_tokens.ids else token for index, token in pairs]

    def encode(self, text: str | bytes, add_special_tokens: bool = False) -> list[int]:
        """See `Tokenizer.encode`."""
        ids = self._encoding(text).ids
        return [*self.begin_ids, *ids, *self.end_ids] if add_special_tokens else ids

    def encode_batch(self, texts: Iterable[str | bytes]) -> list[list[int]]:
        """`encode` of each text, on all cores."""
        texts = [text_of(text) for text in texts]
        with _naming(self.vocab_file):
            return [row.ids for row in self._library.encode_batch_fast(texts, add_special_tokens=False)]

    def encode_with_offsets(
        self, text: str, split_unknown: bool = False, dropped_marks: bool = True
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """`encode`, and for each id the first character of `text` that it covers and the one after the last.

        A piece that is only the space before a word covers nothing: both numbers are the place after the space. Pieces
        within one character all cover it.

        Args:
          split_unknown, dropped_marks: make no difference: an unknown character never hides the pieces beside it, and
            pieces of bytes drop nothing.
        """
        encoding = self._encoding(text)
        return encoding.ids, encoding.offsets

    def _decode(self, ids):
        return self._library.decode(list(ids), skip_special_tokens=False)

    def normalize(self, text: str) -> str:
        """See `Tokenizer.normalize`."""
        normalizer, text = self._library.normalizer, text_of(text)
        with _naming(self.vocab_file):
            return text if normalizer is None else normalizer.normalize_str(text)

    def files(self) -> dict[str, bytes]:
        """See `Tokenizer.files`; with a tokenizer.json if there was none."""
        if TOKENIZER in self._files:
            return dict(self._files)
        values = json.loads(self._library.to_str())
        values["added_tokens"] = [dataclasses.asdict(token) for token in self.described_tokens]
        return {TOKENIZER: json.dumps(values, indent=2, ensure_ascii=False).encode(), **self._files}

    def settings(self) -> dict:
        """See `Tokenizer.settings`."""
        return {**super().settings(), "bos_token": self.cls_token, "eos_token": self.sep_token}

    def _encoding(self, text: str | bytes) -> tokenizers.Encoding:
        text = text_of(text)
        with _naming(self.vocab_file):
            return self._library.encode(text, add_special_tokens=False)


# --- rows ------------------------------------------------------------------------------------------------------------


def _rows_of(part: Mapping) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], int] | None:
    """Begin, between and end tokens of a post-processor, and the segment of the second text; None if it adds other
    tokens to a single text than to a pair."""
    if part["type"] != "TemplateProcessing":
        cls, sep, is_roberta = part["cls"][0], part["sep"][0], part["type"] == "RobertaProcessing"
        return (cls,), (sep,) * (2 if is_roberta else 1), (sep,), int(not is_roberta)
    single, pair = ([next(iter(item.items())) for item in part[name]] for name in ("single", "pair"))
    names = [values["id"] for _, values in pair]
    places = [number for number, (kind, _) in enumerate(pair) if kind == "Sequence"]
    if [names[place] for place in places] != ["A", "B"]:
        return None
    a, b = places
    begin, between, end = (tuple(names[part]) for part in (slice(a), slice(a + 1, b), slice(b + 1, None)))
    is_same = tuple(values["id"] for _, values in single) == (*begin, "A", *end)
    return (begin, between, end, pair[b][1]["type_id"]) if is_same else None


# --- files -----------------------------------------------------------------------------------------------------------


def read_tokenizer_json(path: str, kind: str) -> dict:
    """The values of a tokenizer.json whose model is of a kind.

    Raises:
      ValueError: it is truncated, not a tokenizer.json, or of another kind; names the file.
    """
    values = read_json(path)
    model = values.get("model")
    if not isinstance(model, dict) or "vocab" not in model:
        raise ValueError(f"{path} is not a tokenizer.json: it has no model with a vocabulary.")
    found = model["type"] = kind_of_model(model)
    if found != kind:
        raise ValueError(f"{path} is a tokenizer of another kind: its model is {found}, here {kind} is needed.")
    return values


def library_of(values: Mapping, path: str, added: Iterable[AddedToken], tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """What the library makes of the values of a tokenizer.json.

    Args:
      added: instead of its own added tokens. tokenizer: what it will be part of, which names the tokens with a role.
    """
    # Only tokens with a role are special here: in a text they are text.
    special = special_tokens_of(tokenizer)
    tokens = [{**dataclasses.asdict(token), "special": token.content in special} for token in added]
    with understood(path):
        _check_size(values, path)
    unused = dict.fromkeys(("truncation", "padding", "post_processor", "decoder"))
    with _naming(path):
        return tokenizers.Tokenizer.from_str(json.dumps({**values, **unused, "added_tokens": tokens}))


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """An error of the library is a ValueError that names the file.

    It raises nothing more specific than Exception, and where a file makes it fail in Rust ("panic") a BaseException.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"{path}: {error}. Take the file of the model itself.") from None


# Of a character's replacement, bytes; SentencePiece's longest has 33. How many times as long texts may become.
_LONGEST_REPLACEMENT, _MOST_GROWTH = 256, 64
# Regular expressions of one character or class, perhaps repeated, which are found in the time of reading a text.
_PLAIN = re.compile(r"(?:\\[dswDSW]|\[[^\[\]\\]{1,40}\]|[^\\\[\](){}.*+?|^$])(?:\+|\{[1-9]\d{0,2},\d{0,3}\})?")


def _check_size(values: Mapping, path: str) -> None:
    """Refuses rules of a tokenizer.json that would take time or memory without bounds."""
    growth, waiting = 1.0, [values.get("normalizer"), values.get("pre_tokenizer")]
    while waiting:
        part = waiting.pop()
        waiting += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        if not isinstance(part, dict):
            continue
        if pattern := part.get("pattern"):
            expression = pattern.get("Regex")
            if expression is not None and not _PLAIN.fullmatch(expression):
                raise ValueError(f"{path}: the regular expression {expression:.80} is not supported.")
            replaced = 1 if expression is not None else len(pattern["String"])
            growth *= max(1.0, len(part.get("content") or "") / replaced if replaced else math.inf)
        if characters := part.get("precompiled_charsmap"):
            content = base64.b64decode(characters, validate=True)
            longest = max(map(len, content[4 + int.from_bytes(content[:4], "little") :].split(b"\0")))
            growth = math.inf if longest > _LONGEST_REPLACEMENT else growth
    if growth > _MOST_GROWTH:
        raise ValueError(f"{path}: its rules would make texts more than {_MOST_GROWTH} times as long.")


# --- ALBERT's, in Hugging Face's form ---------------------------------------------------------------------------------


class HuggingFaceSentencePiece(LibraryTokenizer):
    """ALBERT's tokenizer by the rules of a Hugging Face tokenizer.json, with the ids that `transformers` gives.

    Its `files` have a spiece.model: the one beside it, or else one made of it.

    Raises:
      ValueError: the file is damaged, of another kind of tokenizer, or lacks a special token; names it.
    """

    cls_token, sep_token, unk_token, mask_token, pad_token = "[CLS]", "[SEP]", "<unk>", "[MASK]", "<pad>"
    begin_tokens, between_tokens, end_tokens, second_segment = ("[CLS]",), ("[SEP]",), ("[SEP]",), 1
    is_continuation = staticmethod(SentencePieceTokenizer.is_continuation)
    decode = SentencePieceTokenizer.decode
    huggingface_class = SentencePieceTokenizer.huggingface_class
    vocab_name, vocab_kind = SentencePieceTokenizer.vocab_name, SentencePieceTokenizer.vocab_kind
    vocab_files = SentencePieceTokenizer.vocab_files

    def __init__(self, vocab_file: str):
        directory = posixpath.dirname(vocab_file)
        self.name_special_tokens(directory)
        values = read_tokenizer_json(vocab_file, "Unigram")
        with understood(vocab_file):
            pieces = {piece: index for index, (piece, _) in enumerate(values["model"]["vocab"])}
        added = read_added_tokens(vocab_file, pieces)
        library = library_of(values, vocab_file, added, self)
        super().__init__(library, vocab_file, {TOKENIZER: read_bytes(vocab_file)}, added)
        beside = is_there(model_file := posixpath.join(directory, MODEL))
        with contextlib.suppress(ValueError):  # it has rules that no SentencePiece model has
            self._files[MODEL] = read_bytes(model_file) if beside else model_of_tokenizer_json(values, self.pad_id)

    def settings(self) -> dict:
        """See `Tokenizer.settings`."""
        return {**super().settings(), **INPUTS, "do_lower_case": not self.cased}

    @classmethod
    def from_file(cls, vocab_file: str, casing: Casing) -> "HuggingFaceSentencePiece":
        """The tokenizer of a tokenizer.json, which says itself whether it lower-cases."""
        with understood(vocab_file):
            return cls(vocab_file)


# --- a SentencePiece model of a tokenizer.json, whose Unigram model has the same pieces and scores --------------------

# A protocol buffer, encoded by hand since the library's own classes need a newer runtime than TensorFlow has.
# Field numbers (sentencepiece_model.proto): ModelProto pieces 1, trainer_spec 2, normalizer_spec 3; SentencePiece piece
# 1, score 2, type 3; TrainerSpec model_type 3, vocab_size 4, unk_id 40, bos_id 41, eos_id 42, pad_id 43; NormalizerSpec
# precompiled_charsmap 2.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_UNIGRAM, _NONE = 1, -1
_REPLACED = ({"String": "``"}, {"String": "''"}, {"Regex": " {2,}"})


def model_of_tokenizer_json(values: Mapping, pad_id: int) -> bytes:
    """The model that a tokenizer.json of an ALBERT was made of.

    A tokenizer.json doesn't say of which kind a piece is: those with the logarithm 0 of a probability, but for special
    tokens, are symbols that SentencePiece takes as they are.

    Args:
      values: the content of the file, whose model is Unigram. pad_id: of its padding token.

    Raises:
      ValueError: the file has rules or tokens that a SentencePiece model or ALBERT's preprocessing doesn't have.
    """
    model = values["model"]
    added = {token["id"]: bool(token.get("special")) for token in values.get("added_tokens") or []}
    words = parts_of(values.get("pre_tokenizer"), "pretokenizers")
    begins = {"prepend_scheme": "always", "add_prefix_space": True, "replacement": "\u2581"}
    rules = [rule for rule in parts_of(values.get("normalizer"), "normalizers") if rule.get("type") != "Lowercase"]
    kinds = [rule.get("type") for rule in rules if rule.get("pattern") not in _REPLACED]
    finds_words = [part.get("type") for part in words] in (["WhitespaceSplit", "Metaspace"], ["Metaspace"])
    normalizes = kinds in (["NFKD", "StripAccents", "Precompiled"], ["NFKD", "StripAccents"])
    for reason, found in {
        "has no unknown token": model.get("unk_id") is None,
        "has byte_fallback": model.get("byte_fallback"),
        "has added tokens": not all(added.values()) or max(added, default=0) >= len(model["vocab"]),
        "finds words in another way": not finds_words or not begins.items() <= {**begins, **words[-1]}.items(),
        "normalizes text in another way": not normalizes,
    }.items():
        if found:
            raise ValueError(f"it {reason}")
    special = {index for index, is_special in added.items() if is_special} | {pad_id}
    pieces = []
    for index, (piece, score) in enumerate(model["vocab"]):
        kind = _CONTROL if index in special else _NORMAL if score else _USER_DEFINED
        kind = _UNKNOWN if index == model["unk_id"] else kind
        pieces.append(_text(1, _text(1, piece.encode()) + _float(2, score) + _number(3, kind)))
    numbers = {3: _UNIGRAM, 4: len(pieces), 40: model["unk_id"], 41: _NONE, 42: _NONE, 43: pad_id}
    trainer = b"".join(_number(field, number) for field, number in numbers.items())
    # What the model makes of characters, in SentencePiece's own form; empty: it leaves them.
    maps = [rule.get("precompiled_charsmap") for rule in rules if rule.get("type") == "Precompiled"]
    characters = base64.b64decode("".join(maps), validate=True)
    return b"".join(pieces) + _text(2, trainer) + _text(3, _text(2, characters))


def _number(field: int, value: int) -> bytes:
    return pack([8 * field, value % (1 << 64)])


def _float(field: int, value: float) -> bytes:
    return pack([8 * field + 5]) + struct.pack("<f", value)


def _text(field: int, value: bytes) -> bytes:
    return pack([8 * field + 2, len(value)]) + value

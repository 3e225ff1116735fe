"""Tokenizers that the `tokenizers` library executes; among them byte-level BPE, RoBERTa's and DistilRoBERTa's.

The ids are those of Hugging Face's models. Tokens with a role, written in a text, are text (a text can't end its own
row), offsets leave the space before a word out, and a file's truncation, padding and row templates are ignored.

Byte-level BPE (GPT-2's, with RoBERTa's special tokens and rows) splits a text into words, each with the space before
it, numbers, and runs of other characters. Each part's UTF-8 bytes, written as 256 printable characters (a space is
`Ġ`), are merged by a list of pairs, the first of the list first. Nothing is lost: no lower-casing, no normalisation, no
unknown token (Radford et al. 2019, section 2.2; fairseq: gpt2_bpe).
"""

import base64
import contextlib
import dataclasses
import functools
import itertools
import json
import math
import posixpath
import re
from collections.abc import Generator, Iterable, Mapping, Sequence

import numpy as np
import tokenizers
from tokenizers import decoders, pre_tokenizers, processors

from bert_tf.system.text_files import exists, naming_file, read_bytes, read_json, read_text_lines
from bert_tf.text import tokenizer_files
from bert_tf.text.characters import TOKENIZER, AddedToken, as_text, read_added_tokens
from bert_tf.text.tokenizer import Tokenizer, WithOffsets, special_tokens_of
from bert_tf.text.tokenizer_files import JSON_VOCAB, MERGES, Casing

WORD_START = "\u0120"  # how a space is written
_POST_PROCESSORS = ("TemplateProcessing", "BertProcessing", "RobertaProcessing")  # that make rows


class LibraryTokenizer(Tokenizer):
    """A tokenizer that wraps one of the `tokenizers` library.

    values: of a tokenizer.json. vocab_file: where they come from, for messages.
    files: name -> content of the files it was read from. added: by `read_added_tokens`, instead of those in `values`.
    """

    def __init__(self, values: Mapping, vocab_file: str, files: Mapping[str, bytes], added: Sequence[AddedToken]):
        # Only tokens with a role are special here: in a text they are text.
        special = special_tokens_of(self)
        tokens = [{**dataclasses.asdict(token), "special": token.content in special} for token in added]
        with naming_file(vocab_file):
            _check_size(values, vocab_file)
        unused = dict.fromkeys(("truncation", "padding", "post_processor", "decoder"))
        with _naming(vocab_file):
            library = tokenizers.Tokenizer.from_str(json.dumps({**values, **unused, "added_tokens": tokens}))
        self._library, self._files, self.vocab_file = library, dict(files), vocab_file
        self._post_processor = values.get("post_processor")
        self._prepare()
        self.vocab = dict(sorted(library.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1]))
        self.inv_vocab = {index: token for token, index in self.vocab.items()}
        self.set_added_tokens(added)
        self.pad_id = self.special_id(self.pad_token)

    @classmethod
    def from_file(cls, vocab_file: str, casing: Casing) -> "LibraryTokenizer":
        with naming_file(vocab_file):
            return cls(vocab_file)  # pyrefly: ignore[bad-argument-type, missing-argument]  # of subclasses

    def _prepare(self) -> None:
        self._library.encode_special_tokens = True  # in a text they are text; the library's JSON has no place for it

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._prepare()

    @functools.cached_property
    def cased(self) -> bool:
        return self.normalize("A") != self.normalize("a")

    def take_rows(self) -> None:
        """Makes rows as its tokenizer.json does, for a model whose family has rows of another kind of tokenizer."""
        parts = tokenizer_files.components_of(self._post_processor, "processors")
        part = next((part for part in parts if part.get("type") in _POST_PROCESSORS), None)
        if part is None:
            return
        if (rows := _rows_of(part)) is None:
            made = "its post_processor makes other rows than [begin] A [between] B [end]"
            raise ValueError(f"{self.vocab_file}: {made}.")
        self.begin_tokens, self.between_tokens, self.end_tokens, self.second_segment = rows
        self.huggingface_class = "PreTrainedTokenizerFast"

    def tokenize(self, text: str | bytes) -> list[str]:
        encoding = self._encoding(text)
        if self.added_tokens.ids.isdisjoint(encoding.ids):
            return encoding.tokens
        # An added token without the whitespace that it takes.
        pairs = zip(encoding.ids, encoding.tokens, strict=True)
        return [self.inv_vocab[index] if index in self.added_tokens.ids else token for index, token in pairs]

    def encode(self, text: str | bytes, add_special_tokens: bool = False) -> list[int]:
        ids = self._encoding(text).ids
        return [*self.begin_ids, *ids, *self.end_ids] if add_special_tokens else ids

    def encode_batch(self, texts: Iterable[str | bytes]) -> list[list[int]]:
        texts = [as_text(text) for text in texts]
        with _naming(self.vocab_file):
            return [row.ids for row in self._library.encode_batch_fast(texts, add_special_tokens=False)]

    def encode_with_offsets(self, text: str, split_unknown: bool = False, dropped_marks: bool = True) -> WithOffsets:
        """split_unknown and dropped_marks make no difference. A piece that is only the space before a word covers
        nothing: both numbers are the place after the space. Pieces within one character all cover it."""
        encoding = self._encoding(text)
        return encoding.ids, encoding.offsets

    def _decode(self, ids):
        return self._library.decode(list(ids), skip_special_tokens=False)

    def normalize(self, text: str) -> str:
        normalizer, text = self._library.normalizer, as_text(text)
        with _naming(self.vocab_file):
            return text if normalizer is None else normalizer.normalize_str(text)

    def files(self) -> dict[str, bytes]:
        if TOKENIZER in self._files:
            return dict(self._files)
        values = json.loads(self._library.to_str())
        values["added_tokens"] = [dataclasses.asdict(token) for token in self.described_tokens]
        return {TOKENIZER: json.dumps(values, indent=2, ensure_ascii=False).encode(), **self._files}

    def settings(self) -> dict:
        return {**super().settings(), "bos_token": self.cls_token, "eos_token": self.sep_token}

    def _encoding(self, text: str | bytes) -> tokenizers.Encoding:
        text = as_text(text)
        with _naming(self.vocab_file):
            return self._library.encode(text, add_special_tokens=False)


def _rows_of(part: Mapping) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], int] | None:
    """Begin, between and end tokens of a post-processor, and the second segment; None if a single text gets others."""
    if part["type"] != "TemplateProcessing":
        cls, sep, is_roberta = part["cls"][0], part["sep"][0], part["type"] == "RobertaProcessing"
        return (cls,), (sep,) * (2 if is_roberta else 1), (sep,), int(not is_roberta)
    single, pair = ([next(iter(item.items())) for item in part[name]] for name in ("single", "pair"))
    names = [values["id"] for _, values in pair]
    positions = [number for number, (kind, _) in enumerate(pair) if kind == "Sequence"]
    if [names[position] for position in positions] != ["A", "B"]:
        return None
    a, b = positions
    begin, between, end = (tuple(names[part]) for part in (slice(a), slice(a + 1, b), slice(b + 1, None)))
    is_same = tuple(values["id"] for _, values in single) == (*begin, "A", *end)
    return (begin, between, end, pair[b][1]["type_id"]) if is_same else None


# --- files -----------------------------------------------------------------------------------------------------------


def check_kind(values: Mapping, path: str, kind: str) -> None:
    """Raises if the model of a tokenizer.json is not of a kind, which old files don't name: these do afterwards."""
    model = values.get("model")
    if not isinstance(model, dict) or "vocab" not in model:
        raise ValueError(f"{path} is not a tokenizer.json: it has no model with a vocabulary.")
    model["type"] = tokenizer_files.kind_of_model(model)
    if model["type"] != kind:
        raise ValueError(f"{path}: its model is {model['type']}, here {kind} is needed.")


@contextlib.contextmanager
def _naming(path: str) -> Generator[None]:
    try:
        yield
    except BaseException as error:  # the library raises nothing more specific; a panic in Rust is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"{path}: {error}. Take the file of the model itself.") from None


# Of a character's replacement, bytes; SentencePiece's longest has 33. How many times as long texts may become.
_LONGEST_REPLACEMENT, _MOST_GROWTH = 256, 64
# Regular expressions of one character or class, perhaps repeated, which are found in the time of reading a text.
_PLAIN = re.compile(r"(?:\\[dswDSW]|\[[^\[\]\\]{1,40}\]|[^\\\[\](){}.*+?|^$])(?:\+|\{[1-9]\d{0,2},\d{0,3}\})?")


def _check_size(values: Mapping, path: str) -> None:
    """Raises if rules of a tokenizer.json would take time or memory without bounds."""
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


class ByteBpeTokenizer(LibraryTokenizer):
    """Byte-level BPE with RoBERTa's rows: `<s> A </s>` and `<s> A </s></s> B </s>`, one segment, padding `<pad>`.

        tokenizer = ByteBpeTokenizer("vocab.json", "merges.txt")  # or ("tokenizer.json")
        tokenizer.tokenize("Hello world")  # ['Hello', 'Ġworld']

    The ids are those of Hugging Face's RobertaTokenizer. A special token written in a text is text, as in fairseq;
    `encode_masked` takes the mask token for a token, which swallows the whitespace before it unless a file says
    otherwise (lstrip). Other added tokens are tokens wherever they are written.

    vocab_file: a tokenizer.json, or a vocab.json.
    merges_file: for a vocab.json; default: merges.txt next to it.
    """

    cls_token, sep_token, unk_token, mask_token, pad_token = "<s>", "</s>", "<unk>", "<mask>", "<pad>"
    begin_tokens, between_tokens, end_tokens, second_segment = ("<s>",), ("</s>", "</s>"), ("</s>",), 0
    huggingface_class = "RobertaTokenizer"
    word_separator = " "
    vocab_name, vocab_kind = f"{JSON_VOCAB} (with {MERGES})", "byte-level BPE"
    vocab_files = (TOKENIZER, JSON_VOCAB)

    def __init__(self, vocab_file: str, merges_file: str | None = None):
        directory = posixpath.dirname(vocab_file)
        config = tokenizer_files.read_tokenizer_config(directory)
        self.read_names_and_side(directory)
        self.add_prefix_space = config.get("add_prefix_space")
        values = vocab = read_json(vocab_file)
        if vocab_file.endswith(TOKENIZER) or isinstance(values.get("model"), dict):
            check_kind(values, vocab_file, "BPE")
            added = read_added_tokens(vocab_file, vocab := values["model"]["vocab"])
            parts = tokenizer_files.components_of(values.get("pre_tokenizer"), "pretokenizers")
            if [part.get("type") for part in parts] != ["ByteLevel"] or parts[0].get("use_regex") is False:
                raise ValueError(f"{vocab_file}: its BPE does not split text as RoBERTa's, which is byte-level BPE.")
            if self.add_prefix_space is None:
                self.add_prefix_space = parts[0].get("add_prefix_space")
            others = (posixpath.join(directory, name) for name in (JSON_VOCAB, MERGES))
            files = {posixpath.basename(path): read_bytes(path) for path in (vocab_file, *others) if exists(path)}
        else:
            merges_file = merges_file or posixpath.join(directory, MERGES)
            lines = enumerate(read_text_lines(merges_file))
            merges = [line.split(" ") for number, line in lines if line and (number or not line.startswith("#version"))]
            added = {token.content: token for token in read_added_tokens(vocab_file, vocab)}
            for token in special_tokens_of(self):  # which no merge makes, either
                if token in vocab and token not in added:
                    added[token] = AddedToken(vocab[token], token, lstrip=token == self.mask_token, special=True)
            added = sorted(added.values(), key=lambda token: token.id)
            values = {"version": "1.0", "model": {"type": "BPE", "vocab": vocab, "merges": merges}}
            files = {JSON_VOCAB: read_bytes(vocab_file), MERGES: read_bytes(merges_file)}
        self.add_prefix_space = bool(self.add_prefix_space)
        if missing := {*pre_tokenizers.ByteLevel.alphabet()} - vocab.keys():
            raise ValueError(f"{vocab_file} lacks {len(missing)} of the 256 bytes: it is not byte-level BPE.")
        super().__init__(values, vocab_file, files, added)
        self._library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=self.add_prefix_space)
        self._library.decoder = decoders.ByteLevel()
        self._library.post_processor = processors.RobertaProcessing(
            (self.sep_token, self.sep_id), (self.cls_token, self.cls_id), True, self.add_prefix_space
        )
        self.mask_takes_spaces = next((token.lstrip for token in added if token.id == self.mask_id), True)
        self._never_continue = [*self.added_tokens.ids, *self.special_ids]

    def encode_with_offsets(self, text: str, split_unknown: bool = False, dropped_marks: bool = True) -> WithOffsets:
        ids, offsets = super().encode_with_offsets(text)
        if self.added_tokens and self.add_prefix_space:
            # The library leaves the first character out for the space that it puts behind an added token itself.
            for number, (before, index) in enumerate(itertools.pairwise(ids), start=1):
                start, end = offsets[number]
                is_first = before in self.added_tokens.ids and index not in self.added_tokens.ids
                if is_first and self.inv_vocab[index].startswith(WORD_START) and text[start - 1] != " ":
                    offsets[number] = start - 1, end if self.inv_vocab[index].strip(WORD_START) else start - 1
        return ids, offsets

    def settings(self) -> dict:
        return {**super().settings(), "add_prefix_space": self.add_prefix_space}

    # --- words -------------------------------------------------------------------------------------------------------

    def spell(self, token: str) -> str:
        """A piece's characters, after the space that it may begin with; \ufffd for a part of a character."""
        special = self.vocab.get(token) in self._never_continue
        return token if special else self._library.decoder.decode([token])

    @staticmethod
    def is_continuation(token: str) -> bool:
        """Whether `token` doesn't begin with a space; `continues_word` knows the first piece of a text."""
        return not token.startswith((WORD_START, "<s>", "</s>", "<unk>", "<mask>", "<pad>"))

    def continues_word(self, ids) -> np.ndarray:
        """bool, in the shape of `ids`: whether each continues the word of the id before it, which the first of a row
        and those after a special token don't."""
        ids = np.asarray(ids, np.int64)
        continues = self.continuations[ids]
        continues[..., 1:] &= ~np.isin(ids[..., :-1], self._never_continue)
        continues[..., :1] = False
        return continues


ByteBpeTokenizer.in_json = ByteBpeTokenizer

"""Tokenizers that the `tokenizers` library executes: byte-level BPE, and Hugging Face's form of ALBERT's.

The library's rules are those of Hugging Face's models, whose ids must be met exactly. Here they are put behind the
interface of this project: tokens with a role, written in a text, are text (a text can't end its own row), offsets leave
the space before a word out, and what a file may contain for other uses (truncation, padding, row templates) is ignored.
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence

import tokenizers

from bert_tf.system.text_files import read_json, understood
from bert_tf.text.added_tokens import AddedToken, read_added_tokens
from bert_tf.text.casing import TOKENIZER
from bert_tf.text.characters import text_of
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_files import kind_of_model, parts_of, special_tokens_of


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
        check_special_tokens(self, vocab_file)

    def _prepare(self) -> None:
        self._library.encode_special_tokens = True  # in a text they are text; the library's JSON has no place for it

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._prepare()

    @functools.cached_property
    def cased(self) -> bool:
        """Whether upper and lower case are distinguished."""
        normalizer = self._library.normalizer
        return normalizer is None or normalizer.normalize_str("A") != normalizer.normalize_str("a")

    def take_rows(self, post_processor: Mapping | None, path: str) -> None:
        """Makes rows as a tokenizer.json does, for a model whose family has rows of another kind of tokenizer.

        Raises:
          ValueError: it makes rows that `build_inputs` can't make; names the file.
        """
        parts = parts_of(post_processor, "processors")
        part = next((part for part in parts if part.get("type") in _ROWS), None)
        if part is None:
            return
        with understood(path):
            rows = _ROWS[part["type"]](part)
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

    def encode(self, text: str | bytes) -> list[int]:
        """The ids of the pieces of `text`, without special tokens."""
        return self._encoding(text).ids

    def encode_batch(self, texts: Iterable[str | bytes]) -> list[list[int]]:
        """`encode` of each text, on all cores."""
        texts = [text_of(text) for text in texts]
        return [row.ids for row in self._library.encode_batch_fast(texts, add_special_tokens=False)]

    def encode_with_offsets(self, text: str, split_unknown: bool = False) -> tuple[list[int], list[tuple[int, int]]]:
        """`encode`, and for each id the first character of `text` that it covers and the one after the last.

        A piece that is only the space before a word covers nothing: both numbers are the place after the space. Pieces
        within one character all cover it.

        Args:
          split_unknown: makes no difference, since an unknown character never hides the pieces beside it.
        """
        encoding = self._encoding(text)
        return encoding.ids, encoding.offsets

    def decode(self, ids: Iterable[int]) -> str:
        """The text that the pieces spell."""
        return self._library.decode(list(ids), skip_special_tokens=False)

    def normalize(self, text: str) -> str:
        """See `Tokenizer.normalize`."""
        normalizer, text = self._library.normalizer, text_of(text)
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
        return self._library.encode(text_of(text), add_special_tokens=False)


# --- rows ------------------------------------------------------------------------------------------------------------

# begin, between and end tokens, and the segment of the second text
_Rows = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], int]


def _rows_of_template(values: Mapping) -> _Rows | None:
    """Those of a TemplateProcessing; None if it adds other tokens to a single text than to a pair."""

    def token_of(item: Mapping) -> str:
        return next(iter(item.values()))["id"]

    pair, single = values["pair"], values["single"]
    places = [number for number, item in enumerate(pair) if "Sequence" in item]
    if [token_of(pair[place]) for place in places] != ["A", "B"]:
        return None
    a, b = places
    begin, between, end = (tuple(map(token_of, pair[part])) for part in (slice(a), slice(a + 1, b), slice(b + 1, None)))
    if tuple(map(token_of, single)) != (*begin, "A", *end):
        return None
    return begin, between, end, pair[b]["Sequence"]["type_id"]


_ROWS: dict[str, Callable[[Mapping], _Rows | None]] = {
    "TemplateProcessing": _rows_of_template,
    "BertProcessing": lambda values: ((values["cls"][0],), (values["sep"][0],), (values["sep"][0],), 1),
    "RobertaProcessing": lambda values: ((values["cls"][0],), (values["sep"][0],) * 2, (values["sep"][0],), 0),
}


# --- files -----------------------------------------------------------------------------------------------------------


def check_special_tokens(tokenizer: Tokenizer, vocab_file: str) -> None:
    """Sets the padding id of a tokenizer that has its vocabulary.

    Raises:
      ValueError: the vocabulary lacks a token with a role; names the file.
    """
    needed = special_tokens_of(tokenizer)
    if missing := [token for token in needed if token not in tokenizer.vocab]:
        raise ValueError(
            f"{vocab_file} lacks {', '.join(missing)}: rows of {tokenizer.vocab_kind} need {' '.join(needed)}. "
            "Take the file of the model itself."
        )
    tokenizer.pad_id = tokenizer.vocab[tokenizer.pad_token]


def read_tokenizer_json(
    path: str, kind: str, tokenizer: Tokenizer, change: Callable[[dict], None]
) -> tuple[tokenizers.Tokenizer, list[AddedToken]]:
    """The tokenizer of a tokenizer.json, and its added tokens.

    Args:
      kind: the type of its model. tokenizer: what it will be part of, which names the tokens with a role.
      change: called with its values before they are used.

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
    change(values)
    with understood(path):
        vocab = model["vocab"]
        pieces = vocab if isinstance(vocab, dict) else {piece: index for index, (piece, _) in enumerate(vocab)}
        added = read_added_tokens(path, pieces)
    values["added_tokens"] = [in_library(token, tokenizer) for token in added]
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(values)), added
    except Exception as error:  # the library raises nothing more specific
        raise ValueError(f"{path}: {error}. Take the file of the model itself.") from None


def in_library(token: AddedToken, tokenizer: Tokenizer) -> dict:
    """An added token as the library takes it here, where only tokens with a role are special: in a text they are
    text."""
    return {**dataclasses.asdict(token), "special": token.content in special_tokens_of(tokenizer)}

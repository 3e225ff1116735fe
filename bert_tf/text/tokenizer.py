"""The tokenizer interface that models, tasks, data tools and exports use, whatever the kind of pieces.

A row is a model's input for one text or a pair: their pieces between special tokens. BERT's are `[CLS] A [SEP]` and
`[CLS] A [SEP] B [SEP]`; how those of other families differ is said by attributes, from which rows are built here, and
inside a graph in `serving.graph_inputs.TextEncoder`.

Shape legend: B batch, S sequence length, V vocabulary.
"""

import abc
import dataclasses
import functools
import json
import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
from absl import logging

from bert_tf.system import hub
from bert_tf.system.checks import check_list, target_directory, true_or_false
from bert_tf.system.released_models import check_there
from bert_tf.system.storage import gfile, write_files
from bert_tf.system.text_files import read_json_if_there
from bert_tf.text import characters, transformers_call
from bert_tf.text.characters import ADDED_TOKENS, SPECIAL_TOKENS_MAP, TOKENIZER, TOKENIZER_CONFIG, AddedTokens
from bert_tf.text.tokenizer_files import Casing, convert_by_vocab

WithOffsets = tuple[list[int], list[tuple[int, int]]]  # ids, and the first character of each and the one after its last
ROLES = ("cls", "sep", "unk", "mask", "pad")  # of special tokens
_VOCABULARIES = {"vocab.txt", "vocab.json", "merges.txt", "spiece.model", TOKENIZER, ADDED_TOKENS, SPECIAL_TOKENS_MAP}


class Tokenizer(abc.ABC):
    """Turns texts into pieces, ids and rows.

    A subclass cuts text into pieces (see `PieceTokenizer`), joins them again, says which ones continue a word, and sets
    these attributes. The ids of the tokens with a role are cls_id, ...; those of the tokens around the texts begin_ids,
    between_ids, end_ids.
    """

    vocab: dict[str, int]  # don't change it
    inv_vocab: dict[int, str]
    cls_token: str
    sep_token: str
    unk_token: str
    mask_token: str
    pad_token: str
    pad_id: int  # pads shorter rows
    begin_tokens: tuple[str, ...]  # special tokens before the first text
    between_tokens: tuple[str, ...]  # between both
    end_tokens: tuple[str, ...]
    second_segment: int  # segment of the second text and of what follows it; everything before it has segment 0
    huggingface_class: str  # the class's name in tokenizer_config.json, of models whose family has another
    vocab_name: str  # the usual name of its vocabulary file, for messages
    vocab_kind: str  # what is in it, for messages
    vocab_files: tuple[str, ...] = ()  # the names that it may have, of which the first counts; "*.model": `find_model`
    vocab_file = ""  # what it was read from, for messages
    in_json: type["Tokenizer"] | None = None  # what reads a tokenizer.json instead, of models with this kind
    by_name: ClassVar[dict[str, type["Tokenizer"]]] = {}  # tokenizer_class -> class; families add theirs
    by_model_type: ClassVar[dict[str, type["Tokenizer"]]] = {}  # model_type of config.json -> class, of all families
    do_lower_case: bool
    takes_strip_accents = False  # whether --strip_accents means anything to it
    answers_by_words = False  # whether the original found answers by words and their pieces (--answer_from)
    # Between the words of a text that is given as words: " " where the space before a word is part of its pieces.
    word_separator = ""
    mask_takes_spaces = False  # whether the mask token in a text includes the whitespace before it
    max_length: int | None = None  # of the rows that its model reads, if it was read with one (`read_tokenizer`)
    transformers_differs = ""  # which other ids transformers gives by its files
    truncation_side = "right"  # where a text that is too long loses tokens, or "left"
    added_tokens = AddedTokens()  # cut out of a text before the rest is tokenized; in `vocab`, too
    described_tokens: Sequence[characters.AddedToken] = ()  # these, and those with a role that files describe like them
    as_text = staticmethod(characters.as_text)  # what a text given as str or bytes is read as
    trails = staticmethod(characters.is_mark)  # whether a character that is dropped belongs to the piece before it

    of_directory: Callable[..., "Tokenizer"]  # for `from_pretrained`; set by the package, which knows all kinds

    @classmethod
    @abc.abstractmethod
    def from_file(cls, vocab_file: str, casing: Casing) -> "Tokenizer":
        """The tokenizer of a vocabulary file, and of what belongs to it next to it.

        casing: of the model. A file that says it itself comes first; where none does, pieces do.
        """

    @property
    def cased(self) -> bool:
        return not self.do_lower_case

    @abc.abstractmethod
    def _decode(self, ids: Sequence[int]) -> str: ...

    def spell(self, token: str) -> str:
        """A piece as people read it."""
        return token

    @staticmethod
    @abc.abstractmethod
    def is_continuation(token: str) -> bool:
        """Whether a token of the vocabulary continues the word of the token before it."""

    @abc.abstractmethod
    def files(self) -> dict[str, bytes]:
        """The vocabulary files of a model's directory: name -> content. `from_pretrained` reads them."""

    def check_vocabulary(self) -> None:  # noqa: B027
        """Raises if a vocabulary would fail later or does not mean what its author thinks."""

    def settings(self) -> dict:
        """The content of tokenizer_config.json next to these files, in Hugging Face's terms."""
        settings = {f"{role}_token": getattr(self, f"{role}_token") for role in ROLES}
        if self.truncation_side != "right":
            settings["truncation_side"] = self.truncation_side
        if self.added_tokens:
            described = map(dataclasses.asdict, self.described_tokens)
            settings[characters.DECODER] = {str(values.pop("id")): values for values in described}
        return settings

    def set_added_tokens(self, added: Sequence[characters.AddedToken], *normalization) -> None:
        """Adds those of `read_added_tokens` to the vocabulary. normalization: see `AddedTokens`."""
        roles = special_tokens_of(self)
        self.described_tokens = added
        self.added_tokens = AddedTokens([token for token in added if token.content not in roles], *normalization)
        self.vocab = {**self.vocab, **{token.content: token.id for token in added}}
        self.inv_vocab = {**self.inv_vocab, **{token.id: token.content for token in added}}

    def read_names_and_side(self, directory: str) -> None:
        """Gives the tokens with a role, and those of rows, the names in the directory's files, if any; and the side."""
        names = (TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP, TOKENIZER)
        files = [read_json_if_there(posixpath.join(directory, name)) or {} for name in names]
        truncation = files[2].get("truncation") or {}
        side = files[0].get("truncation_side") or str(truncation.get("direction", "right")).lower()
        if side not in ("left", "right"):
            raise ValueError(f"{directory}/{TOKENIZER_CONFIG}: truncation_side is {side!r:.80}, not left or right")
        self.truncation_side, named, renamed = side, files[:2], {}
        for role in ROLES:
            name = f"{role}_token"
            tokens = (value.get("content") if isinstance(value := of.get(name), dict) else value for of in named)
            if token := next((token for token in tokens if isinstance(token, str)), None):
                renamed[getattr(self, name)] = token
                setattr(self, name, token)
        for name in ("begin_tokens", "between_tokens", "end_tokens"):
            setattr(self, name, tuple(renamed.get(token, token) for token in getattr(self, name)))

    # --- text to pieces ----------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def tokenize(self, text: str | bytes) -> list[str]: ...

    @abc.abstractmethod
    def encode(self, text: str | bytes, add_special_tokens: bool = False) -> list[int]:
        """The ids of the pieces of `text`. KeyError if the unknown token is needed but not in the vocabulary."""

    @abc.abstractmethod
    def encode_with_offsets(self, text: str, split_unknown: bool = False, dropped_marks: bool = True) -> WithOffsets:
        """`encode`, and for each id the first character of `text` that it covers and the one after the last.
        A mark that is dropped belongs to the character before it. Two pieces may share a character, as a Hangul
        syllable that is taken apart. The beginning of a word as a piece covers nothing: both numbers are there.

        Args:
          dropped_marks: False: a mark that is dropped belongs to nothing, as in transformers.
          split_unknown: split a word that is unknown as a whole into known pieces and an unknown token for each other
            character. Otherwise, in a script without spaces, one unknown character would hide a whole clause.
        """

    @abc.abstractmethod
    def normalize(self, text: str) -> str:
        """`text` as `decode` spells it, if all of it is known."""

    encode_plus, batch_encode_plus = transformers_call.encode_plus, transformers_call.batch_encode_plus

    def batch_decode(self, rows: Iterable[Iterable[int]], skip_special_tokens: bool = False) -> list[str]:
        return [self.decode(ids, skip_special_tokens) for ids in rows]

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """The text that the pieces spell, with single spaces between words; on request without tokens with a role."""
        left_out = self.special_ids if skip_special_tokens else ()
        return self._decode([index for index in map(int, ids) if index not in left_out])

    # --- files -------------------------------------------------------------------------------------------------------

    @classmethod
    def from_pretrained(
        cls, path: str, do_lower_case: bool | None = None, strip_accents: bool | None = None
    ) -> "Tokenizer":
        """The tokenizer of a model's directory: its vocabulary, its casing, and whatever else its files say, which may
        name another class (`tokenizer_class_of`).

        Args:
          path: a directory (or weights in it) of any format.
          do_lower_case, strip_accents: must not contradict the directory; default: the directory's, or by the pieces.

        Raises:
          FileNotFoundError: there is nothing at path.
          ValueError: they contradict the directory, it has no vocabulary, or see `from_file`.
        """
        path = hub.local(path, with_weights=False)
        true_or_false(do_lower_case=do_lower_case, strip_accents=strip_accents)
        check_there(path)
        return cls.of_directory(path, cls, do_lower_case, strip_accents)

    def save_pretrained(self, directory: str) -> None:
        """Writes the vocabulary and tokenizer_config.json, next to a model or alone, for `read_tokenizer` and for
        `transformers`, whose ids are the same but for what docs/from-transformers.md lists."""
        directory, contents = target_directory(directory), self.files()
        existing = set(gfile().listdir(directory)) if gfile().isdir(directory) else set()
        if others := sorted(existing & _VOCABULARIES - contents.keys()):
            raise FileExistsError(f"{directory} has {', '.join(others)} of another tokenizer: remove it.")
        path = posixpath.join(directory, TOKENIZER_CONFIG)
        old = (read_json_if_there(path) or {}).items()
        old_limit = {name: value for name, value in old if name == "model_max_length"}
        config = {"tokenizer_class": self.huggingface_class, **old_limit, **self.settings()}
        contents[TOKENIZER_CONFIG] = (json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()
        gfile().makedirs(directory)
        write_files({posixpath.join(directory, name): content for name, content in reversed(contents.items())})
        if self.transformers_differs:
            logging.warning("%s: %s", directory, self.transformers_differs)

    def check_casing(self, vocab_file: str, do_lower_case: bool | None, strip_accents: bool | None) -> None:
        """Raises if a vocabulary file contradicts flags of these names, or its kind has no use for them."""
        if do_lower_case is not None and do_lower_case == self.cased:
            raise ValueError(f"do_lower_case={do_lower_case} contradicts {vocab_file}. Leave it out.")
        if strip_accents is not None and not self.takes_strip_accents:
            raise ValueError(f"strip_accents is for word pieces, but {vocab_file} has none. Leave it out.")

    # --- ids ---------------------------------------------------------------------------------------------------------

    def special_id(self, token: str) -> int:
        if token not in self.vocab:
            raise ValueError(f"{self.vocab_file or 'the vocabulary'} lacks {token}, which rows of its model need")
        return self.vocab[token]

    cls_id = property(lambda self: self.special_id(self.cls_token))
    sep_id = property(lambda self: self.special_id(self.sep_token))
    unk_id = property(lambda self: self.special_id(self.unk_token))
    mask_id = property(lambda self: self.special_id(self.mask_token))
    cls_token_id, sep_token_id, unk_token_id, mask_token_id = cls_id, sep_id, unk_id, mask_id
    pad_token_id = property(lambda self: self.vocab.get(self.pad_token, self.pad_id))
    model_max_length = property(lambda self: self.max_length or int(1e30))  # transformers' number for "no limit"
    begin_ids = functools.cached_property(lambda self: [*map(self.special_id, self.begin_tokens)])
    between_ids = functools.cached_property(lambda self: [*map(self.special_id, self.between_tokens)])
    end_ids = functools.cached_property(lambda self: [*map(self.special_id, self.end_tokens)])

    @functools.cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of the tokens with a role that the vocabulary has."""
        return frozenset(self.vocab[token] for token in special_tokens_of(self) if token in self.vocab)

    @classmethod
    def continuations_of(cls, vocab: Mapping[str, int]) -> np.ndarray:
        """bool [largest id + 1]: whether an id of a vocabulary continues the word of the id before it."""
        table = np.zeros(max(vocab.values(), default=-1) + 1, bool)
        table[[index for token, index in vocab.items() if cls.is_continuation(token)]] = True
        return table

    @functools.cached_property
    def continuations(self) -> np.ndarray:
        """`continuations_of` the tokenizer's vocabulary; added tokens and those with a role continue nothing."""
        table = self.continuations_of(self.vocab)
        table[[*self.added_tokens.ids, *self.special_ids]] = False
        return table

    def continues_word(self, ids) -> np.ndarray:
        """bool, in the shape of `ids`: whether each continues the word of the id before it."""
        return self.continuations[np.asarray(ids, np.int64)]

    @property
    def vocab_size(self) -> int:
        """One more than the largest id; the tokens may be fewer, as some appear twice."""
        return max(self.inv_vocab, default=-1) + 1

    def __len__(self) -> int:
        return len(self.vocab)

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        return convert_by_vocab(self.vocab, tokens)

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        return convert_by_vocab(self.inv_vocab, ids)

    # --- rows --------------------------------------------------------------------------------------------------------

    def encode_batch(self, texts: Iterable[str | bytes]) -> list[list[int]]:
        return [self.encode(text) for text in check_list(texts, "texts", "strings", "encode(text)")]

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """The ids of each word of a text that is given as its words, as they are in the text."""
        return self.encode_batch(self.words_in_text(words))

    def words_in_text(self, words: Sequence[str]) -> list[str]:
        """The words, each with the space before it in a text if that belongs to its pieces."""
        separator = self.word_separator

        def in_text(number: int, word: str) -> str:
            spans = self.added_tokens.spans(word)
            is_alone = number == 0 or not word or word.startswith(separator) or (spans and spans[0][0] == 0)
            return word if is_alone else separator + word

        return [in_text(*item) for item in enumerate(words)] if separator else list(words)

    def encode_masked(self, text: str) -> list[int]:
        """`encode` of a text in which each literal mask_token becomes that token; `encode` would split it up."""
        *parts, last = text.split(self.mask_token)
        ids = []
        for part in parts:
            ids += [*self.encode(part.rstrip(characters.WHITESPACE) if self.mask_takes_spaces else part), self.mask_id]
        return [*ids, *self.encode(last)]

    def num_special_tokens(self, pair: bool = False) -> int:
        return len(self.begin_tokens) + (len(self.between_tokens) if pair else 0) + len(self.end_tokens)

    def kept(self, pieces: Sequence, size: int) -> Sequence:
        """The pieces of a text, truncated to `size` of them."""
        return pieces[:size] if self.truncation_side == "right" else pieces[max(len(pieces) - size, 0) :]

    @property
    def lost(self) -> str:
        """Which tokens a text loses when it is truncated, for messages."""
        return "last" if self.truncation_side == "right" else "first"

    def build_inputs(
        self, first: Sequence[int], second: Sequence[int] | None = None, max_length: int | None = None
    ) -> tuple[list[int], list[int]]:
        """The row of one text or of a pair, from the ids of their pieces: ids and segment ids, of equal length.

        Args:
          first, second: from `encode`; a second text without pieces counts as none.
          max_length: maximum number of tokens. A single text loses its last tokens; of a pair the longer text (the
            second if both are equally long) loses its last token until both fit (original: _truncate_seq_pair). With
            truncation_side "left" they lose their first ones.
        """
        if max_length is not None:
            room = max_length - self.num_special_tokens(pair=bool(second))
            first_length, second_length = transformers_call.lengths_that_fit(len(first), len(second or ()), room)
            first, second = self.kept(first, first_length), self.kept(second, second_length) if second else None
        ids = [*self.begin_ids, *first, *(self.between_ids if second else self.end_ids)]
        segments = [0] * len(ids)
        if second:
            ids += [*second, *self.end_ids]
        return ids, segments + [self.second_segment] * (len(ids) - len(segments))

    def __call__(
        self,
        texts: str | Sequence,
        pairs: str | Sequence | None = None,
        *,
        max_length: int | None = None,
        padding: str | bool = "longest",
        **others,
    ) -> dict:
        """The inputs of a model for texts or pairs of texts.

            features = tokenizer(["how are you", "fine"])
            features["input_ids"]  # int32 [2, 5]: [CLS] how are you [SEP], and [CLS] fine [SEP] with padding
            model(tokenizer(questions, contexts, max_length=384))

        Args:
          texts: strings: a list, an array, a column of a table. A single string is a batch of one.
          pairs: the second text of each, one per text; "" for none.
          max_length: tokens of a row, special ones included; longer rows are cut as by `build_inputs`. None: no limit.
          padding: "longest" pads to the longest row of the batch; "max_length" pads every row to max_length, so that
            all batches have the same shape.
          others: truncation, return_tensors and so on of transformers. With one of these, or padding=True or False, the
            result is that of its fast tokenizers, names included: see docs/from-transformers.md.

        Returns:
          dict of int32 [B, S]: `input_ids`; `input_mask`, 1 for tokens and 0 for padding; `segment_ids`.

        Raises:
          TypeError: an entry is not a string (such as None or NaN from a table with gaps); names its place.
          ValueError: the numbers of texts and pairs differ; no such padding; no max_length for padding="max_length", or
            one without room for the special tokens and a token of each text.
        """
        if others or padding not in ("longest", "max_length"):
            return transformers_call.as_transformers(self, texts, pairs, max_length, padding, **others)
        is_pair = pairs is not None
        transformers_call.check_lengths(max_length, padding, self.num_special_tokens(is_pair), is_pair)
        first, second = transformers_call.batches_of(texts, pairs)
        encoded = self.encode_batch(first), self.encode_batch(second) if is_pair else second
        rows = [self.build_inputs(a, b, max_length) for a, b in zip(*encoded, strict=True)]
        columns = {
            "input_ids": [ids for ids, _ in rows],
            "input_mask": [[1] * len(ids) for ids, _ in rows],
            "segment_ids": [segments for _, segments in rows],
        }
        width = max_length if padding == "max_length" else None
        return transformers_call.Encoding(transformers_call.padded(columns, {"input_ids": self.pad_id}, width))


def special_tokens_of(tokenizer: Tokenizer | type[Tokenizer]) -> list[str]:
    """The tokens with a role, which stand for no text."""
    return list(dict.fromkeys(getattr(tokenizer, f"{role}_token") for role in ROLES))


class PieceTokenizer(Tokenizer):
    """A tokenizer with rules of its own for text between added tokens."""

    @abc.abstractmethod
    def _tokenize(self, text: str) -> Sequence[str]: ...

    @abc.abstractmethod
    def _encode(self, text: str) -> list[int]: ...

    @abc.abstractmethod
    def _words(self, text: str) -> Sequence[str]: ...

    @abc.abstractmethod
    def _encode_with_offsets(self, text: str, split_unknown: bool) -> tuple[list, list, Collection[int]]:
        """Ids, for each the first character and the one after the last, and the characters that are kept."""

    def tokenize(self, text: str | bytes) -> list[str]:
        return self._map_between_added_tokens(self.as_text(text), self._tokenize, "content")

    def encode(self, text: str | bytes, add_special_tokens: bool = False) -> list[int]:
        text = self.as_text(text)
        ids = self._map_between_added_tokens(text, self._encode, "id") if self.added_tokens else self._encode(text)
        return [*self.begin_ids, *ids, *self.end_ids] if add_special_tokens else ids

    def _map_between_added_tokens(self, text: str, between: Callable[[str], Iterable], of_token: str) -> list:
        values = []
        for part in self.added_tokens.parts(text):
            values += [getattr(part.token, of_token)] if part.token else between(part.text)
        return values

    def encode_with_offsets(self, text: str, split_unknown: bool = False, dropped_marks: bool = True) -> WithOffsets:
        text, ids, offsets = self.as_text(text), [], []
        for part in self.added_tokens.parts(text):
            if part.token:
                ids.append(part.token.id)
                offsets.append((part.origins[0], part.end))
                continue
            piece_ids, spans, kept = self._encode_with_offsets(part.text, split_unknown)
            ids += piece_ids
            offsets += self._offsets_in_text(text, part, spans, kept if dropped_marks else None)
        return ids, offsets

    def _offsets_in_text(self, text: str, part, spans, kept: Iterable[int] | None) -> Iterator[tuple[int, int]]:
        # Moved over what was dropped and belongs to a piece.
        positions = [*part.origins, part.end]
        is_ascii = kept is None or (text.isascii() and self.trails is characters.is_mark)
        kept = () if is_ascii else {positions[position] for position in kept}
        for first, after in spans:
            begin = positions[first]
            end = positions[after - 1] + 1 if after > first else begin
            while not is_ascii and begin < end < part.end and end not in kept and self.trails(text[end]):
                end += 1
            yield begin, end

    def normalize(self, text: str) -> str:
        return " ".join(self._map_between_added_tokens(self.as_text(text), self._words, "content"))

"""Byte-level BPE, the tokenizer of RoBERTa and DistilRoBERTa (GPT-2's, with RoBERTa's special tokens and rows).

A text is split into words, numbers, runs of other characters and of whitespace; a word includes the space before it.
Each part's UTF-8 bytes, written as 256 printable characters (a space is `Ġ`), are merged by a list of pairs, the first
of the list first. Nothing is lost: no lower-casing, no normalisation, no unknown token (Radford et al. 2019, section
2.2; fairseq: gpt2_bpe).
"""

import functools
import itertools
import posixpath
from collections.abc import Mapping

import numpy as np
from tokenizers import decoders, pre_tokenizers, processors

from bert_tf.system.text_files import read_bytes, read_json, read_text_lines, understood
from bert_tf.text.added_tokens import TOKENIZER, AddedToken, read_added_tokens
from bert_tf.text.characters import WHITESPACE
from bert_tf.text.library_tokenizer import LibraryTokenizer, library_of, read_tokenizer_json
from bert_tf.text.tokenizer import special_tokens_of
from bert_tf.text.tokenizer_files import JSON_VOCAB, MERGES, Casing, is_there, parts_of, read_tokenizer_config

_MOST_IDS = 1 << 31
WORD_START = "\u0120"  # how a space is written
_VERSION = "#version"


class ByteBpeTokenizer(LibraryTokenizer):
    """Byte-level BPE with RoBERTa's rows: `<s> A </s>` and `<s> A </s></s> B </s>`, one segment, padding `<pad>`.

        tokenizer = ByteBpeTokenizer("vocab.json", "merges.txt")  # or ("tokenizer.json")
        tokenizer.tokenize("Hello world")  # ['Hello', 'Ġworld']

    The ids are those of Hugging Face's RobertaTokenizer. A special token written in a text is text, as in fairseq;
    `encode_masked` takes the mask token for a token, which swallows the whitespace before it unless a file says
    otherwise (lstrip). Other added tokens are tokens wherever they are written.

    Args:
      vocab_file: a tokenizer.json, or a vocab.json.
      merges_file: for a vocab.json; default: merges.txt beside it.

    Raises:
      ValueError: a file is missing, damaged, or of another kind of tokenizer; names it.
    """

    cls_token, sep_token, unk_token, mask_token, pad_token = "<s>", "</s>", "<unk>", "<mask>", "<pad>"
    begin_tokens, between_tokens, end_tokens, second_segment = ("<s>",), ("</s>", "</s>"), ("</s>",), 0
    huggingface_class = "RobertaTokenizer"
    word_separator = " "
    vocab_name, vocab_kind = f"{JSON_VOCAB} (with {MERGES})", "byte-level BPE"
    vocab_files = (TOKENIZER, JSON_VOCAB)

    def __init__(self, vocab_file: str, merges_file: str | None = None):
        directory = posixpath.dirname(vocab_file)
        config = read_tokenizer_config(directory)
        self.name_special_tokens(directory)
        self.add_prefix_space = config.get("add_prefix_space")
        values = read_json(vocab_file)
        if isinstance(values.get("model"), dict):
            values = read_tokenizer_json(vocab_file, "BPE")
            added = read_added_tokens(vocab_file, values["model"]["vocab"])
            self._check(values, vocab_file)
            others = (posixpath.join(directory, name) for name in (JSON_VOCAB, MERGES))
            files = {posixpath.basename(path): read_bytes(path) for path in (vocab_file, *others) if is_there(path)}
        else:
            merges_file = merges_file or posixpath.join(directory, MERGES)
            merges = _read_merges(merges_file, values, vocab_file)
            added = self._added_tokens(vocab_file, values)
            values = {"version": "1.0", "model": {"type": "BPE", "vocab": values, "merges": merges}}
            files = {JSON_VOCAB: read_bytes(vocab_file), MERGES: read_bytes(merges_file)}
        self.add_prefix_space = bool(self.add_prefix_space)
        library = library_of(values, vocab_file, added, self)
        if missing := [char for char in pre_tokenizers.ByteLevel.alphabet() if library.token_to_id(char) is None]:
            raise ValueError(
                f"{vocab_file} lacks {len(missing)} of the 256 characters that stand for bytes: it is no vocabulary of "
                "byte-level BPE, as RoBERTa needs."
            )
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=self.add_prefix_space)
        super().__init__(library, vocab_file, files, added)
        library.decoder = decoders.ByteLevel()
        library.post_processor = processors.RobertaProcessing(
            (self.sep_token, self.sep_id), (self.cls_token, self.cls_id), True, self.add_prefix_space
        )
        self.mask_takes_spaces = next((token.lstrip for token in added if token.id == self.mask_id), True)
        never = (*(token.content for token in added), *special_tokens_of(self))
        self._never_continue = sorted({self.vocab[token] for token in never})

    @classmethod
    def from_file(cls, vocab_file: str, casing: Casing) -> "ByteBpeTokenizer":
        """The tokenizer of a tokenizer.json, or of a vocab.json with merges.txt beside it; it keeps case anyway."""
        if not vocab_file.endswith(".json"):
            raise ValueError(
                f"{vocab_file} is no vocabulary of byte-level BPE: give the {JSON_VOCAB}, with {MERGES} beside it, or "
                f"the {TOKENIZER}."
            )
        with understood(vocab_file):
            return cls(vocab_file)

    def _check(self, values: dict, path: str) -> None:
        """Refuses the BPE of other models; takes add_prefix_space from the file unless it is known."""
        parts = parts_of(values.get("pre_tokenizer"), "pretokenizers")
        if [part.get("type") for part in parts] != ["ByteLevel"] or parts[0].get("use_regex") is False:
            raise ValueError(f"{path}: its BPE does not split text as RoBERTa's does, which is byte-level BPE.")
        if self.add_prefix_space is None:
            self.add_prefix_space = parts[0].get("add_prefix_space", False)

    def _added_tokens(self, vocab_file: str, vocab: Mapping[str, int]) -> list[AddedToken]:
        """The tokens that no merge makes: those that the files beside a vocab.json name, and those with a role."""
        found = {token.content: token for token in read_added_tokens(vocab_file, vocab)}
        for token in special_tokens_of(self):
            if token in vocab and token not in found:
                found[token] = AddedToken(vocab[token], token, lstrip=token == self.mask_token, special=True)
        return sorted(found.values(), key=lambda token: token.id)

    def encode_with_offsets(
        self, text: str, split_unknown: bool = False, dropped_marks: bool = True
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """See `LibraryTokenizer.encode_with_offsets`."""
        ids, offsets = super().encode_with_offsets(text)
        if self.added_tokens and self.add_prefix_space:
            # The library leaves the first character out for the space that it puts behind an added token itself.
            for number, (before, index) in enumerate(itertools.pairwise(ids), start=1):
                start, end = offsets[number]
                is_first = before in self.added_tokens.ids and index not in self.added_tokens.ids
                if is_first and self.inv_vocab[index].startswith(WORD_START) and text[start - 1] != " ":
                    offsets[number] = start - 1, end if self.inv_vocab[index].strip(WORD_START) else start - 1
        return ids, offsets

    def merge(self, word: str) -> list[int]:
        """The ids of the pieces that the merges make of a word, whose bytes are written as pieces write them."""
        return [piece.id for piece in self._library.model.tokenize(word)]

    def settings(self) -> dict:
        """See `Tokenizer.settings`."""
        return {**super().settings(), "add_prefix_space": self.add_prefix_space}

    # --- words -------------------------------------------------------------------------------------------------------

    def spell(self, token: str) -> str:
        """A piece's characters, after the space that it may begin with; \ufffd for a part of a character."""
        special = self.vocab.get(token) in self._never_continue
        return token if special else self._library.decoder.decode([token])

    @staticmethod
    def is_continuation(token: str) -> bool:
        """Whether `token` doesn't begin with a space; the first piece of a text continues nothing, see
        `continues_word`."""
        return not token.startswith((WORD_START, "<s>", "</s>", "<unk>", "<mask>", "<pad>"))

    @functools.cached_property
    def continuations(self) -> np.ndarray:
        """bool [V]: by `is_continuation`; False for special and added tokens."""
        table = self.continuations_of(self.vocab)
        table[self._never_continue] = False
        return table

    def continues_word(self, ids) -> np.ndarray:
        """bool, in the shape of `ids`: whether each continues the word of the id before it, which the first of a row
        and those after a special token don't."""
        ids = np.asarray(ids, np.int64)
        continues = self.continuations[ids]
        continues[..., 1:] &= ~np.isin(ids[..., :-1], self._never_continue)
        continues[..., :1] = False
        return continues

    def encode_masked(self, text: str) -> list[int]:
        """`encode` of a text in which each literal mask_token becomes that token."""
        *parts, last = text.split(self.mask_token)
        ids = []
        for part in parts:
            ids += [*self.encode(part.rstrip(WHITESPACE) if self.mask_takes_spaces else part), self.mask_id]
        return [*ids, *self.encode(last)]


def _read_merges(merges_file: str, vocab: Mapping, vocab_file: str) -> list[tuple[str, ...]]:
    """The pairs of a merges.txt, all of them pieces of a vocab.json."""
    if not all(type(index) is int and 0 <= index < _MOST_IDS for index in vocab.values()):
        raise ValueError(
            f"{vocab_file} is no vocabulary of byte-level BPE: that is one object of pieces and their ids."
        )
    if not is_there(merges_file):
        raise ValueError(f"{vocab_file} needs its merges: put the {MERGES} of the same model beside it.")
    merges = []
    for number, line in enumerate(read_text_lines(merges_file), start=1):
        if not line or (number == 1 and line.startswith(_VERSION)):
            continue
        pair = tuple(line.split(" "))
        if len(pair) != 2 or not all(piece in vocab for piece in (*pair, "".join(pair))):
            raise ValueError(
                f"{merges_file}, line {number}: {line[:80]!r} is no pair of pieces of {vocab_file}; take both files "
                "from the same model."
            )
        merges.append(pair)
    return merges

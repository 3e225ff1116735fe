"""A tokenized corpus as three flat arrays on disk, so that memory does not limit its size.

    tokens         uint16, or int32 where the vocabulary is larger: ids, one after the other
    sentence_ends  int64  where each sentence ends in tokens
    document_ends  int64  where each document ends in sentences
    continuations  uint8  only with word boundaries: whether each token continues a word (`text.word_boundaries`)

Text is tokenized a megabyte at a time. Word pieces: each word between spaces is looked up, and only a word that was not
seen before is cleaned, cut and encoded (`word_kernels`, by the rules of `FullTokenizer`, which gives the same ids).
Other tokenizers get whole lines, many at once.
"""

import dataclasses
import itertools
import mmap
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from bert_tf.pretraining import word_kernels
from bert_tf.text.sentence_piece import SentencePieceTokenizer
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.word_boundaries import WordBoundaries
from bert_tf.text.wordpiece import CONTINUATION, BasicTokenizer, FullTokenizer

_NAMES = ("tokens", "sentence_ends", "document_ends")
_CONTINUATIONS = "continuations"
_CONTINUES = 1 << 30  # added to the id of a piece that continues a word, while words are looked up
_HASH_SLOTS = 1 << 20  # twice the words held at once
_ARENA_BYTES = 1 << 24  # for these words
_NUMBERS_AT_ONCE = 1 << 20
_MARKS = range(0x20000, 0x2A6D0)  # rare ideographs, each of which is a separate token
_COPY_BYTES = 1 << 24


@dataclasses.dataclass(frozen=True)
class TokenStore:
    """Tokenized documents; each sentence has a token and each document a sentence."""

    tokens: np.ndarray
    sentence_ends: np.ndarray
    document_ends: np.ndarray
    continuations: np.ndarray = dataclasses.field(default_factory=lambda: np.frombuffer(b"", np.uint8))

    @property
    def num_tokens(self) -> int:
        return int(self.sentence_ends[-1]) if len(self.sentence_ends) else 0

    @classmethod
    def open(cls, directory: str) -> "TokenStore":
        """The store in a local directory, mapped into memory and not read."""
        paths = [os.path.join(directory, name) for name in _NAMES]
        sentence_ends, document_ends = (map_file(path, np.int64) for path in paths[1:])
        count = int(sentence_ends[-1]) if len(sentence_ends) else 0
        kind = np.int32 if os.path.getsize(paths[0]) == 4 * count else np.uint16
        store = cls(map_file(paths[0], kind), sentence_ends, document_ends)
        path = os.path.join(directory, _CONTINUATIONS)
        return dataclasses.replace(store, continuations=map_file(path, np.uint8)) if os.path.exists(path) else store


def map_file(path: str, kind: type) -> np.ndarray:
    """A local file as a read-only array that is in memory only where it is read.

    The system is advised not to read ahead: instances come from all over a corpus, and their surroundings would push
    out of memory what others need.
    """
    # Read-only even if it is empty: Numba compiles another version for writable arrays.
    if not os.path.getsize(path):
        return np.frombuffer(b"", kind)
    with open(path, "rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if hasattr(mmap, "MADV_RANDOM"):
        mapping.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(mapping, kind)


class TokenStoreWriter:
    """Tokenizes text into a store.

    Args:
      directory: local, made if missing; what is in it is overwritten.
      boundaries: say which pieces continue a word; None: the pieces themselves do. Word pieces only.
      mark_words: store which pieces continue a word by their characters. SentencePiece only, where that is more than
        the ids say: an unknown piece may continue a word, too.
      separator: an id to put after each sentence and, as a sentence of its own, after each document; None: nothing.
    """

    def __init__(
        self,
        directory: str,
        tokenizer: Tokenizer,
        boundaries: WordBoundaries | None = None,
        separator: int | None = None,
        mark_words: bool = False,
    ):
        os.makedirs(directory, exist_ok=True)
        self.directory = directory
        word_pieces = isinstance(tokenizer, FullTokenizer)
        self._words = _WordTable(tokenizer, boundaries) if word_pieces else _LineTable(tokenizer, mark_words)
        self._separator = -1 if separator is None else separator
        self._marked = boundaries is not None or mark_words
        # Half the size is half the memory, or half the reading where memory is short.
        self._kind = np.uint16 if max(tokenizer.vocab.values()) < 1 << 16 else np.int32
        names = (*_NAMES, *([_CONTINUATIONS] if self._marked else []))
        self._files = [open(os.path.join(directory, name), "wb") for name in names]  # noqa: SIM115
        # Tokens and sentences so far, the tokens at the last sentence's end, the sentences at the last document's end,
        # and whether the open line has anything to see.
        self._carry = np.zeros(5, np.int64)

    def __enter__(self) -> "TokenStoreWriter":
        return self

    def __exit__(self, *_) -> None:
        for file in self._files:
            file.close()

    def add(self, text: str) -> None:
        """Takes more of the text: one sentence per line, a blank line between documents; cut anywhere after a newline,
        or after a space.

        A line without any token (only control characters, say) is left out and ends no document.
        """
        for numbers, pieces, starts, visible in self._words.look_up(text):
            lines = int(np.count_nonzero(numbers == 0))
            kind = np.int32 if self._marked else self._kind
            arrays = [
                np.empty(int((starts[numbers + 1] - starts[numbers]).sum()) + lines, kind),
                np.empty(lines, np.int64),
                np.empty(lines, np.int64),
            ]
            counts = word_kernels.cut_sentences(numbers, pieces, starts, visible, self._separator, self._carry, *arrays)
            arrays = [values[:count] for values, count in zip(arrays, counts, strict=True)]
            if self._marked:
                arrays.append((arrays[0] >= _CONTINUES).astype(np.uint8))
                arrays[0] = (arrays[0] % _CONTINUES).astype(self._kind)
            for file, values in zip(self._files, arrays, strict=True):
                file.write(values.data)

    def end_document(self) -> None:
        """Ends the open document, as a blank line does."""
        self.add("\n\n")


class _LineTable:
    """Lines as the words of a `_WordTable`: word n is the n-th line of a part of the text."""

    def __init__(self, tokenizer: Tokenizer, mark_words: bool):
        self._tokenizer, self._mark_words = tokenizer, mark_words
        # A line of which nothing is left before it is split is blank.
        self._prepare = tokenizer.preprocess if isinstance(tokenizer, SentencePieceTokenizer) else str.strip
        self._open_line: list[str] = []

    def look_up(self, text: str) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """See `_WordTable.look_up`; the beginning of a line is kept until its end comes."""
        *lines, rest = text.split("\n")
        if lines:
            lines[0] = "".join([*self._open_line, lines[0]])
            self._open_line.clear()
        self._open_line.append(rest)
        if not lines:
            return
        lines = [line.strip() for line in lines]
        ids = self._tokenizer.encode_batch(lines)
        visible = [bool(row or self._prepare(line)) for row, line in zip(ids, lines, strict=True)]
        ends = np.cumsum([0, 0, *map(len, ids)])  # word 0 is the newline
        numbers = np.zeros(2 * len(lines), np.int32)
        numbers[::2] = np.arange(1, len(lines) + 1)
        pieces = np.fromiter(itertools.chain.from_iterable(ids), np.int32, int(ends[-1]))
        if self._mark_words:
            pieces += self._continuations(lines, ids) * np.int32(_CONTINUES)
        yield numbers, pieces, ends, np.array([False, *visible]).view(np.uint8)

    def _continuations(self, lines: list[str], ids: list[list[int]]) -> np.ndarray:
        tokenizer = self._tokenizer
        flags = [
            [tokenizer.is_continuation(piece) for piece in tokenizer.tokenize(line)]
            if tokenizer.unk_id in row
            else tokenizer.continuations[row]
            for line, row in zip(lines, ids, strict=True)
        ]
        return np.concatenate([np.empty(0, np.int32), *flags]).astype(np.int32)


class _WordTable:
    """Numbers for words: 0 is a newline; the ids of word n are pieces[starts[n]:starts[n + 1]].

    When it is full it is emptied, and so adapts to a change of text.
    """

    def __init__(self, tokenizer: FullTokenizer, boundaries: WordBoundaries | None = None):
        self._boundaries = boundaries
        self._basic_tokenizer = tokenizer.basic_tokenizer
        self._trie = _trie_of(tokenizer.vocab)
        wordpiece = tokenizer.wordpiece_tokenizer
        self._unknown_token = wordpiece.unk_token
        self._unknown_id = tokenizer.vocab.get(wordpiece.unk_token, -1)
        self._max_characters = wordpiece.max_input_chars_per_word
        self._kinds, self._letters = _ascii_rules(tokenizer.basic_tokenizer)
        self._is_space = np.array([chr(code).isspace() for code in range(128)])
        self._slots = np.zeros(_HASH_SLOTS, np.int32)
        self._arena = np.empty(_ARENA_BYTES, np.uint8)
        self._arena_ends = np.zeros(_HASH_SLOTS // 2, np.int64)
        self._clear()

    def _clear(self) -> None:
        self._slots[:] = 0
        self._count = 1
        self._pieces, self._starts = np.empty(0, np.int32), np.zeros(2, np.int64)
        self._visible = np.zeros(1, np.uint8)

    def look_up(self, text: str) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """(numbers of the words and newlines, pieces, starts, whether word n is more than whitespace), for one part of
        the text after the other."""
        data = np.frombuffer(text.encode(), np.uint8)
        if len(data) > len(self._arena):  # a word may be as long as the text
            self._arena = np.empty(len(data), np.uint8)
            self._clear()
        numbers = np.empty(min(len(data), _NUMBERS_AT_ONCE), np.int32)
        at = 0
        while at < len(data):
            known, begin = self._count, at
            at, found, self._count = word_kernels.find_words(
                data, at, self._slots, self._arena, self._arena_ends, known, numbers
            )
            if self._count > known:
                self._learn(known)
            if found:
                yield numbers[:found], self._pieces, self._starts, self._visible
            if at == begin:
                self._clear()

    def _learn(self, known: int) -> None:
        """Encodes the words from number `known` on."""
        ends = self._arena_ends[known - 1 : self._count]
        is_ascii, visible = np.empty(len(ends) - 1, bool), np.empty(len(ends) - 1, bool)
        word_kernels.describe_words(self._arena, ends, self._is_space, is_ascii, visible)
        others = np.flatnonzero(~is_ascii)
        words = self._texts(ends, others)
        visible[others] = [not word.isspace() for word in words]
        split_text = self._split(words)
        pieces = np.empty(int(ends[-1] - ends[0]) + len(split_text), np.int32)
        starts = np.empty(len(ends) - 1, np.int64)
        count = word_kernels.cut_words(
            self._arena,
            ends,
            is_ascii,
            self._kinds,
            self._letters,
            split_text,
            self._trie,
            self._unknown_id,
            self._max_characters,
            pieces,
            starts,
        )
        if self._unknown_id < 0 and (pieces[:count] < 0).any():
            raise KeyError(self._unknown_token)
        if self._boundaries:
            for word, end in zip(self._texts(ends, np.arange(len(starts))), starts.tolist(), strict=True):
                flags = self._boundaries.continuations(word)
                pieces[end - len(flags) : end] += np.array(flags, np.int32) * _CONTINUES
        before = len(self._pieces)
        self._pieces = np.concatenate([self._pieces, pieces[:count]])
        self._starts = np.concatenate([self._starts, before + starts])
        self._visible = np.concatenate([self._visible, visible.view(np.uint8)])

    def _texts(self, ends: np.ndarray, numbers: np.ndarray) -> list[str]:
        """Words of the arena by their numbers in `ends`."""
        bounds = zip(ends[numbers].tolist(), ends[numbers + 1].tolist(), strict=True)
        return [self._arena[begin:end].tobytes().decode() for begin, end in bounds]

    def _split(self, words: list[str]) -> np.ndarray:
        """UTF-8 of the basic tokens of words: spaces between tokens, a newline after each word."""
        # All at once, with an ideograph between them.
        text = " ".join(words)
        mark = next(chr(code) for code in _MARKS if chr(code) not in text)
        tokens = self._basic_tokenizer.tokenize(f" {mark} ".join([*words, ""]))
        return np.frombuffer(" ".join(tokens).replace(mark, "\n").encode(), np.uint8)


def _ascii_rules(tokenizer: BasicTokenizer) -> tuple[np.ndarray, np.ndarray]:
    """What the tokenizer makes of each ASCII character: its kind and letter, uint8 [128] (see `word_kernels`)."""
    kinds, letters = np.zeros(128, np.uint8), np.zeros(128, np.uint8)
    for code in range(128):
        tokens = tokenizer.tokenize(f"x{chr(code)}x")
        if len(tokens) == 3:
            kinds[code], letters[code] = word_kernels.ALONE, ord(tokens[1])
        elif len(tokens) == 2:
            kinds[code] = word_kernels.SPACE
        elif len(tokens[0]) == 3:
            kinds[code], letters[code] = word_kernels.LETTER, ord(tokens[0][1])
        else:
            kinds[code] = word_kernels.DROPPED
    return kinds, letters


def _trie_of(vocab: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """See `word_kernels.build_trie`."""
    continues = np.array([token.startswith(CONTINUATION) for token in vocab])
    tokens = [token.removeprefix(CONTINUATION).encode() for token in vocab]
    ends = np.cumsum([len(token) for token in tokens])
    slots = 1 << int(2 * ends[-1] + 2).bit_length()
    trie = np.zeros(slots, np.int64), np.zeros(slots, np.int32), np.full(int(ends[-1]) + 2, -1, np.int32)
    ids = np.fromiter(vocab.values(), np.int32, len(tokens))
    word_kernels.build_trie(np.frombuffer(b"".join(tokens), np.uint8), ends, ids, continues, *trie)
    return trie


def merge_stores(sources: Sequence[str], directory: str) -> TokenStore:
    """The stores of several directories, in their order, as one; the sources are removed as they are copied."""
    os.makedirs(directory, exist_ok=True)
    ends = [0, 0]  # tokens, sentences before this source
    marked = os.path.exists(os.path.join(sources[0], _CONTINUATIONS))
    names = (*_NAMES, *([_CONTINUATIONS] if marked else []))
    files = [open(os.path.join(directory, name), "wb") for name in names]  # noqa: SIM115
    try:
        for source in sources:
            for number in (0, 3) if marked else (0,):
                with open(os.path.join(source, names[number]), "rb") as file:
                    shutil.copyfileobj(file, files[number], _COPY_BYTES)
            store = TokenStore.open(source)
            for number, values in ((1, store.sentence_ends), (2, store.document_ends)):
                for begin in range(0, len(values), _COPY_BYTES // 8):
                    files[number].write((values[begin : begin + _COPY_BYTES // 8] + ends[number - 1]).data)
            ends[0] += store.num_tokens
            ends[1] += len(store.sentence_ends)
            del store
            shutil.rmtree(source)
    finally:
        for file in files:
            file.close()
    return TokenStore.open(directory)


def tokenize(
    pieces: Iterable[str],
    tokenizer: Tokenizer,
    directory: str,
    boundaries: WordBoundaries | None = None,
    separator: int | None = None,
    mark_words: bool = False,
) -> TokenStore:
    """Text, in pieces as `TokenStoreWriter.add` takes them, to a store in a local directory."""
    with TokenStoreWriter(directory, tokenizer, boundaries, separator, mark_words) as writer:
        for piece in pieces:
            writer.add(piece)
        writer.end_document()
    return TokenStore.open(directory)

"""A tokenized corpus as three flat arrays on disk, so that memory does not limit its size.

    tokens         uint16, or int32 where the vocabulary is larger: ids, one after the other
    sentence_ends  int64  where each sentence ends in tokens
    document_ends  int64  where each document ends in sentences
    continuations  uint8  only with word boundaries: whether each token continues a word (`text.word_boundaries`)

Each word is looked up; only a new one is encoded. Word pieces: a word between spaces is cleaned, cut and encoded by
compiled code (`word_kernels`), by the rules of `FullTokenizer`. Byte-level BPE: a word with the space before it is
encoded by the tokenizer, whose pieces never reach beyond it. Of other tokenizers each line is encoded as a whole.
"""

import contextlib
import dataclasses
import itertools
import mmap
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from bert_tf.pretraining import word_kernels
from bert_tf.system.numba_compile import is_interpreting
from bert_tf.text.library_tokenizer import ByteBpeTokenizer
from bert_tf.text.sentence_piece import SentencePieceTokenizer
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.word_boundaries import WordBoundaries
from bert_tf.text.wordpiece import CONTINUATION, FullTokenizer

_NAMES = ("tokens", "sentence_ends", "document_ends")
_CONTINUATIONS = "continuations"
_CONTINUES = 1 << 30  # added to the id of a piece that continues a word
_HASH_SLOTS = 1 << 20  # twice the words held at once
_WORDS_AT_ONCE = 1 << 10
_MARKS = range(0x20000, 0x2A6D0)  # rare ideographs, each of which is a separate token
# Code points that no text should have: what follows them comes after a space; a space within a word of the table.
_AFTER_SPACE, _HELD_SPACE = "\ufdd0", "\ufdd1"
_MARKED = re.compile(f"[{_AFTER_SPACE}{_HELD_SPACE}]")
_ODD_SPACE = re.compile(r"[^\S\n ]|  ")

# Numbers of the words and newlines (0) of a part of a text, pieces, starts, whether word n is more than whitespace: the
# ids of word n are pieces[starts[n]:starts[n + 1]].
Encoded = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
# Yields this for one part of the text after the other; the beginning of a line or word may be kept until its end comes.
LookUp = Callable[[str], Iterator[Encoded]]


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
        paths = [os.path.join(directory, name) for name in (*_NAMES, _CONTINUATIONS)]
        sentence_ends, document_ends = (map_file(path, np.int64) for path in paths[1:3])
        count = int(sentence_ends[-1]) if len(sentence_ends) else 0
        kind = np.int32 if os.path.getsize(paths[0]) == 4 * count else np.uint16
        marks = [map_file(paths[3], np.uint8)] if os.path.exists(paths[3]) else []
        return cls(map_file(paths[0], kind), sentence_ends, document_ends, *marks)


def map_file(path: str, kind: type) -> np.ndarray:
    """A local file as a read-only array that is in memory only where it is read, without reading ahead."""
    # Read-only even if it is empty: Numba compiles another version for writable arrays.
    if not os.path.getsize(path):
        return np.frombuffer(b"", kind)
    with open(path, "rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapping.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(mapping, kind)


def tokenize(
    pieces: Iterable[str],
    tokenizer: Tokenizer,
    directory: str,
    boundaries: WordBoundaries | None = None,
    separator: int = -1,
    mark_words: bool = False,
) -> TokenStore:
    """Tokenizes text into a store.

    A line without any token (only control characters, say) is left out and ends no document.

    pieces: of the text: one sentence per line, a blank line between documents; cut after any newline or space.
    directory: local; what is in it is overwritten.
    boundaries: say which pieces continue a word; None: the pieces themselves do. Word pieces only.
    mark_words: store which pieces continue a word by their characters. SentencePiece only, where that is more than
      the ids say: an unknown piece may continue a word, too.
    separator: an id to put after each sentence and, as a sentence of its own, after each document; -1: nothing.
    """
    look_up = words_of(tokenizer, boundaries, mark_words)
    is_marked = boundaries is not None or mark_words
    # Half the size is half the memory, or half the reading where memory is short.
    kind = np.uint16 if max(tokenizer.vocab.values()) < 1 << 16 else np.int32
    carry = np.zeros(5, np.int64)
    words = itertools.chain.from_iterable(map(look_up, itertools.chain(pieces, ["\n\n"])))  # ends the last document
    with _opened(directory, is_marked) as files:
        for numbers, ids, starts, visible in words:
            lines = int(np.count_nonzero(numbers == 0))
            tokens = int((starts[numbers + 1] - starts[numbers]).sum()) + lines
            arrays = [np.empty(tokens, np.int32 if is_marked else kind), *np.empty((2, lines), np.int64)]
            counts = word_kernels.cut_sentences(numbers, ids, starts, visible, separator, carry, *arrays)
            arrays = [values[:count] for values, count in zip(arrays, counts, strict=True)]
            if is_marked:
                arrays.append((arrays[0] >= _CONTINUES).astype(np.uint8))
                arrays[0] = (arrays[0] % _CONTINUES).astype(kind)
            for file, values in zip(files, arrays, strict=True):
                file.write(values.data)
    return TokenStore.open(directory)


@contextlib.contextmanager
def _opened(directory: str, is_marked: bool) -> Iterator[list]:
    os.makedirs(directory, exist_ok=True)
    with contextlib.ExitStack() as stack:
        names = (*_NAMES, _CONTINUATIONS) if is_marked else _NAMES
        yield [stack.enter_context(open(os.path.join(directory, name), "wb")) for name in names]


def merge_stores(sources: Sequence[str], directory: str) -> TokenStore:
    """The stores of several directories, in their order, as one; the sources are removed as they are copied."""
    tokens = sentences = 0  # before this source
    with _opened(directory, os.path.exists(os.path.join(sources[0], _CONTINUATIONS))) as files:
        for source in sources:
            store = TokenStore.open(source)
            arrays = store.tokens, store.sentence_ends + tokens, store.document_ends + sentences, store.continuations
            for file, values in zip(files, arrays, strict=False):
                file.write(values.data)
            tokens, sentences = tokens + store.num_tokens, sentences + len(store.sentence_ends)
            del store, arrays, values
            shutil.rmtree(source)
    return TokenStore.open(directory)


# ---- words -----------------------------------------------------------------------------------------------------------


def words_of(tokenizer: Tokenizer, boundaries: WordBoundaries | None, mark_words: bool) -> LookUp:
    """How the words of a text are looked up; boundaries, mark_words: see `tokenize`."""
    lines = _Lines(tokenizer, mark_words, boundaries)
    if is_interpreting():
        return lines.look_up  # the others are faster, but compiled
    if isinstance(tokenizer, FullTokenizer) and not tokenizer.basic_tokenizer.never_split:
        words = PiecesOfWords(tokenizer, boundaries)
    elif isinstance(tokenizer, ByteBpeTokenizer):
        words = ByteBpeWords(tokenizer)
    else:
        return lines.look_up
    if not tokenizer.added_tokens:
        return words.look_up

    def look_up(text: str) -> Iterator[Encoded]:
        # A line with an added token is encoded as a whole.
        for has_token, group in itertools.groupby(lines.finished(text), key=tokenizer.added_tokens.occur):
            group = list(group)
            if has_token:
                yield lines.encode(group)
            else:
                yield from words.look_up("\n".join([*group, ""]))

    return look_up


class _Lines:
    """Lines as the words: word n is the n-th line of a part of the text."""

    def __init__(self, tokenizer: Tokenizer, mark_words: bool, boundaries: WordBoundaries | None = None):
        self._tokenizer, self._mark_words, self._boundaries = tokenizer, mark_words or boundaries, boundaries
        # A line of which nothing is left before it is split is blank.
        self._prepare = tokenizer.preprocess if isinstance(tokenizer, SentencePieceTokenizer) else str.strip
        self._open_line: list[str] = []

    def look_up(self, text: str) -> Iterator[Encoded]:
        if lines := self.finished(text):
            yield self.encode(lines)

    def finished(self, text: str) -> list[str]:
        """The lines that end in this part of the text, stripped."""
        *lines, rest = text.split("\n")
        if lines:
            lines[0] = "".join([*self._open_line, lines[0]])
            self._open_line.clear()
        self._open_line.append(rest)
        return [line.strip() for line in lines]

    def encode(self, lines: list[str]) -> Encoded:
        ids = self._tokenizer.encode_batch(lines)
        visible = [bool(row or self._prepare(line)) for row, line in zip(ids, lines, strict=True)]
        ends = np.cumsum([0, 0, *map(len, ids)])  # word 0 is the newline
        numbers = np.zeros(2 * len(lines), np.int32)
        numbers[::2] = np.arange(1, len(lines) + 1)
        pieces = np.fromiter(itertools.chain.from_iterable(ids), np.int32, int(ends[-1]))
        if self._mark_words:
            pieces += self._continuations(lines, ids) * np.int32(_CONTINUES)
        return numbers, pieces, ends, np.array([False, *visible]).view(np.uint8)

    def _continuations(self, lines: list[str], ids: list[list[int]]) -> np.ndarray:
        tokenizer = self._tokenizer
        added = {token.content for token in tokenizer.added_tokens.tokens}
        flags = [
            self._boundaries.continuations(line)
            if self._boundaries
            else [tokenizer.is_continuation(piece) and piece not in added for piece in tokenizer.tokenize(line)]
            if tokenizer.unk_id in row
            else tokenizer.continuations[row]
            for line, row in zip(lines, ids, strict=True)
        ]
        return np.concatenate([np.empty(0, np.int32), *flags]).astype(np.int32)


class _Words:
    """Numbers for words; emptied when full.

    A subclass has `_encode(ends)`: ids, int32, where those of each word arena[ends[k]:ends[k + 1]] end, and whether it
    is more than spaces, [n].
    """

    def __init__(self):
        self._slots = np.zeros(_HASH_SLOTS, np.int32)
        self._arena = np.empty(1 << 24, np.uint8)  # the bytes of these words
        self._arena_ends = np.zeros(_HASH_SLOTS // 2, np.int64)
        self._clear()

    def _clear(self) -> None:
        self._slots[:] = 0
        self._count = 1
        self._pieces, self._starts = np.empty(0, np.int32), np.zeros(2, np.int64)
        self._visible = np.zeros(1, np.uint8)

    def look_up(self, text: str) -> Iterator[Encoded]:
        data = np.frombuffer(text.encode(), np.uint8)
        if len(data) > len(self._arena):  # a word may be as long as the text
            self._arena = np.empty(len(data), np.uint8)
            self._clear()
        numbers = np.empty(min(len(data), 1 << 20), np.int32)
        at, tables = 0, (self._slots, self._arena, self._arena_ends)
        while at < len(data):
            known, begin = self._count, at
            at, filled, self._count = word_kernels.find_words(data, at, *tables, known, numbers)
            if self._count > known:
                pieces, starts, visible = self._encode(self._arena_ends[known - 1 : self._count])
                self._starts = np.concatenate([self._starts, len(self._pieces) + starts])
                self._pieces = np.concatenate([self._pieces, pieces])
                self._visible = np.concatenate([self._visible, visible.view(np.uint8)])
            if filled:
                yield numbers[:filled], self._pieces, self._starts, self._visible
            if at == begin:
                self._clear()

    def _texts(self, ends: np.ndarray, numbers: np.ndarray) -> list[str]:
        bounds = zip(ends[numbers].tolist(), ends[numbers + 1].tolist(), strict=True)
        return [self._arena[begin:end].tobytes().decode() for begin, end in bounds]


class PiecesOfWords(_Words):
    """Words of `FullTokenizer`, which are between spaces. boundaries: see `tokenize`."""

    def __init__(self, tokenizer: FullTokenizer, boundaries: WordBoundaries | None = None):
        super().__init__()
        self._boundaries, self._basic_tokenizer = boundaries, tokenizer.basic_tokenizer
        wordpiece = tokenizer.wordpiece_tokenizer
        continues = np.array([token.startswith(CONTINUATION) for token in wordpiece.vocab])
        tokens = [token.removeprefix(CONTINUATION).encode() for token in wordpiece.vocab]
        ends = np.cumsum([len(token) for token in tokens])
        slots = 1 << int(2 * ends[-1] + 2).bit_length()
        self._trie = np.zeros(slots, np.int64), np.zeros(slots, np.int32), np.full(int(ends[-1]) + 2, -1, np.int32)
        ids = np.fromiter(wordpiece.vocab.values(), np.int32, len(tokens))
        word_kernels.build_trie(np.frombuffer(b"".join(tokens), np.uint8), ends, ids, continues, *self._trie)
        self._unknown_id, self._max_characters = tokenizer.unk_id, wordpiece.max_input_chars_per_word
        self._is_space = np.array([chr(code).isspace() for code in range(128)])
        # What becomes of each ASCII character: its kind and letter, see `word_kernels`.
        of_tokens = word_kernels.DROPPED, word_kernels.SPACE, word_kernels.ALONE
        self._kinds, self._letters = np.zeros((2, 128), np.uint8)
        for code in range(128):
            tokens = self._basic_tokenizer.tokenize(f"x{chr(code)}x")
            letter = tokens[1] if len(tokens) == 3 else tokens[0][1:-1]
            self._kinds[code] = word_kernels.LETTER if letter and len(tokens) == 1 else of_tokens[len(tokens) - 1]
            self._letters[code] = ord(letter or "\0")

    def _encode(self, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        data, begins = self._arena[ends[0] : ends[-1]], ends[:-1] - ends[0]
        is_ascii = np.maximum.reduceat(data, begins) < 128
        visible = ~np.logical_and.reduceat(self._is_space[data & 0x7F], begins)
        others = np.flatnonzero(~is_ascii)
        words = self._texts(ends, others)
        visible[others] = [not word.isspace() for word in words]
        # Their basic tokens, all at once, with an ideograph between words: a space between tokens, a newline after each
        # word. Writable, as the words of the other kind are: Numba compiles another version for arrays that are not.
        mark = next(chr(code) for code in _MARKS if chr(code) not in " ".join(words))
        tokens = " ".join(self._basic_tokenizer.tokenize(f" {mark} ".join([*words, ""])))
        split_text = np.frombuffer(bytearray(tokens.replace(mark, "\n").encode()), np.uint8)
        pieces = np.empty(int(ends[-1] - ends[0]) + len(split_text), np.int32)
        starts = np.empty(len(ends) - 1, np.int64)
        count = word_kernels.cut_words(
            self._arena, ends, is_ascii, self._kinds, self._letters, split_text, self._trie, self._unknown_id,
            self._max_characters, pieces, starts,
        )  # fmt: skip
        if self._boundaries:
            for word, end in zip(self._texts(ends, np.arange(len(starts))), starts.tolist(), strict=True):
                flags = self._boundaries.continuations(word)
                pieces[end - len(flags) : end] += np.array(flags, np.int32) * _CONTINUES
        return pieces[:count], starts, visible


class ByteBpeWords(_Words):
    """Words of `ByteBpeTokenizer` with the space before them; a line with more than single spaces is one word."""

    def __init__(self, tokenizer: ByteBpeTokenizer):
        super().__init__()
        self._tokenizer = tokenizer
        self._newline_id = tokenizer.vocab["\u010a"]  # as pieces write it
        self._lines = _Lines(tokenizer, mark_words=False)

    def look_up(self, text: str) -> Iterator[Encoded]:
        lines = self._lines.finished(text)
        text = "\n".join(lines)
        if _MARKED.search(text):
            yield self._lines.encode(lines)
            return
        if _ODD_SPACE.search(text):
            lines = [row.replace(" ", _HELD_SPACE if _ODD_SPACE.search(row) else f" {_AFTER_SPACE}") for row in lines]
            text = "\n".join(lines)
        else:
            text = text.replace(" ", f" {_AFTER_SPACE}")
        yield from super().look_up(text + "\n" if lines else "")

    def _encode(self, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        words = self._texts(ends, np.arange(len(ends) - 1))
        words = [word.replace(_AFTER_SPACE, " ").replace(_HELD_SPACE, " ") for word in words]
        if self._tokenizer.add_prefix_space:
            words = [word if word[0] == " " else f" {word}" for word in words]
        # Many at once: a newline between them is a piece of its own.
        texts = ["\n".join([*words[k : k + _WORDS_AT_ONCE], ""]) for k in range(0, len(words), _WORDS_AT_ONCE)]
        ids = np.concatenate([np.array(row, np.int32) for row in self._tokenizer.encode_batch(texts)])
        is_end = ids == self._newline_id
        return ids[~is_end], np.flatnonzero(is_end) - np.arange(len(words)), np.ones(len(words), bool)

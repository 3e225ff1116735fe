"""A tokenized corpus as three flat arrays on disk, so that memory does not limit its size.

    tokens         uint16, or int32 where the vocabulary is larger: ids, one after the other
    sentence_ends  int64  where each sentence ends in tokens
    document_ends  int64  where each document ends in sentences
    continuations  uint8  only with word boundaries: whether each token continues a word (`text.word_boundaries`)

Text is tokenized a megabyte at a time, each word only once (`word_tables`).
"""

import dataclasses
import mmap
import os
import shutil
from collections.abc import Iterable, Sequence

import numpy as np

from bert_tf.pretraining import word_kernels
from bert_tf.pretraining.word_tables import CONTINUES, word_table_of
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.word_boundaries import WordBoundaries

_NAMES = ("tokens", "sentence_ends", "document_ends")
_CONTINUATIONS = "continuations"
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
        self._words = word_table_of(tokenizer, boundaries, mark_words)
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
                arrays.append((arrays[0] >= CONTINUES).astype(np.uint8))
                arrays[0] = (arrays[0] % CONTINUES).astype(self._kind)
            for file, values in zip(self._files, arrays, strict=True):
                file.write(values.data)

    def end_document(self) -> None:
        """Ends the open document, as a blank line does."""
        self.add("\n\n")


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

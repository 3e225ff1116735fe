"""Unpadded token rows of examples, and batches of them that are as short as the examples allow.

A batch is padded to its longest row, rounded up to one of a few lengths. Which rows form a batch is a function of
(lengths, batch size, seed, step), so that a killed run resumes with exactly the batches it would have had.

Shape legend: B batch, n rows or examples, N rows of an example, W most windows of one, S sequence length.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from bert_tf.system.example_bytes import crc32c
from bert_tf.text import watch_unknown
from bert_tf.text.tokenizer import Tokenizer

_PREFETCHED = 4  # batches


def permutation(length: int, seed: int, epoch: int, stream: int) -> np.ndarray:
    """A permutation of range(length) that depends on nothing but its arguments, in every NumPy version."""
    # The generator increments the first word of the counter, so different epochs and streams never overlap.
    key, counter = (np.array(words, np.uint64) for words in ([seed % 2**64, 0], [0, 0, stream, epoch]))
    return np.argsort(np.random.Philox(key=key, counter=counter).random_raw(length), kind="stable")


@dataclasses.dataclass(frozen=True)
class Share:
    """Consecutive parts of each batch, one for each replica of a worker. By default the whole batch, as one part.

    parts: the equal parts of a batch: the replicas of all workers. first, count: those of the share.
    """

    parts: int = 1
    first: int = 0
    count: int = 1

    def part_size(self, batch_size: int) -> int:
        if batch_size % self.parts:
            raise ValueError(f"a batch of {batch_size} rows can't be divided into {self.parts} equal parts")
        return batch_size // self.parts

    def slices(self, batch_size: int) -> list[slice]:
        size = self.part_size(batch_size)
        return [slice(part * size, (part + 1) * size) for part in range(self.first, self.first + self.count)]

    def rows(self, batch_size: int) -> slice:
        slices = self.slices(batch_size)
        return slice(slices[0].start, slices[-1].stop)


WHOLE = Share()


@dataclasses.dataclass(frozen=True)
class TokenRows:
    """Token ids of rows [CLS] first [SEP] or [CLS] first [SEP] second [SEP].

    ids: int32, all rows one after the other. offsets: int64 [n + 1]: where each begins in `ids`.
    second_starts: int32 [n]: position of the second text in its row; the row's length if there is none.
    labels: feature name -> array [n, ...].
    """

    ids: np.ndarray
    offsets: np.ndarray
    second_starts: np.ndarray
    labels: Mapping[str, np.ndarray]
    pad_id: int = dataclasses.field(kw_only=True)

    def __len__(self) -> int:
        return len(self.second_starts)

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets).astype(np.int32)

    @property
    def checksum(self) -> str:
        """A checksum of all values that a model is trained on."""
        arrays = self.ids, self.offsets, self.second_starts, *(self.labels[name] for name in sorted(self.labels))
        return crc32c(np.ascontiguousarray(array).tobytes() for array in arrays)

    @property
    def row_lengths(self) -> np.ndarray:
        """Tokens of the rows by which the cost of an example is estimated."""
        return self.lengths

    @property
    def rows(self) -> "TokenRows":
        """All token rows, each as an example of its own, without labels."""
        return TokenRows(self.ids, self.offsets, self.second_starts, {}, pad_id=self.pad_id)

    def shape_of(self, length: int | None) -> tuple[int | None, ...]:
        """The dimensions after B of a batch of this padded length; None: of any."""
        return (length,)

    def padded_lengths(self, max_seq_length: int, static_padding: bool = False, programs: int | None = None) -> list:
        """The lengths that batches of these rows are padded to, ascending; static_padding: only the longest.

        programs: at most so many, those with the least padding: the whole step is compiled for each, in a minute.
        """
        if static_padding:
            return [max_seq_length]
        allowed = padded_lengths(max_seq_length, whole_step=programs is not None)
        return self.fewest(allowed, programs) if programs else allowed

    def fewest(self, allowed: Sequence[int], programs: int) -> list[int]:
        """The shortest of the allowed lengths that holds every row, and a second one if two programs are wanted."""
        lengths = self.lengths
        longest = padded_length(int(lengths.max()), allowed)
        padding = {short: np.where(lengths <= short, short, longest).sum() for short in allowed if short <= longest}
        return sorted({min(padding, key=padding.__getitem__), longest}) if programs > 1 else [longest]

    def batch(self, rows: Sequence[int] | np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Padded arrays of some rows: input_ids, input_mask, segment_ids int32 [B, length], and the labels."""
        rows = np.asarray(rows)
        positions = np.arange(length)[None, :]
        mask = positions < (self.offsets[rows + 1] - self.offsets[rows])[:, None]
        where = np.minimum(self.offsets[rows][:, None] + positions, len(self.ids) - 1)
        arrays = {
            "input_ids": np.where(mask, self.ids[where], self.pad_id).astype(np.int32),
            "input_mask": mask.astype(np.int32),
            "segment_ids": (mask & (positions >= self.second_starts[rows][:, None])).astype(np.int32),
        }
        return arrays | {name: values[rows] for name, values in self.labels.items()}


def check_tokenizer(tokenizer) -> None:
    if not isinstance(tokenizer, Tokenizer):
        raise TypeError(f"the tokenizer must be that of the model, bert_tf.read_tokenizer(path), not {tokenizer!r:.80}")


def check_room(tokenizer: Tokenizer, length: int) -> None:
    if length < (special := tokenizer.num_special_tokens(pair=True)):
        raise ValueError(f"the maximum sequence length is {length}, but a pair's special tokens alone are {special}.")


def flatten(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return np.fromiter((index for row in rows for index in row), np.int32, int(offsets[-1])), offsets


def rows_of_pairs(
    pairs: Iterable[tuple[Sequence[int], Sequence[int]]], tokenizer: Tokenizer, max_seq_length: int
) -> tuple[TokenRows, int]:
    """Rows of pairs of texts, given by their token ids, and how many of them lost tokens, as in the original.

    The second text may be empty: [CLS] a [SEP], or [CLS] a [SEP] b [SEP].
    """
    rows, starts, truncated = [], [], 0
    for first, second in pairs:
        ids, segments = tokenizer.build_inputs(first, second, max_seq_length)
        truncated += len(first) + len(second) + tokenizer.num_special_tokens(pair=bool(second)) > max_seq_length
        starts.append(segments.count(0))
        rows.append(ids)
    ids, offsets = flatten(rows)
    watch_unknown(tokenizer, ids)
    return TokenRows(ids, offsets, np.array(starts, np.int32), {}, pad_id=tokenizer.pad_id), truncated


def rows_of_texts(
    texts: Sequence[str], tokenizer: Tokenizer, max_seq_length: int, lower: bool = False
) -> tuple[TokenRows, int]:
    encoded = tokenizer.encode_batch([text.lower() for text in texts] if lower else list(texts))
    return rows_of_pairs(((ids, ()) for ids in encoded), tokenizer, max_seq_length)


def padded_lengths(max_seq_length: int, whole_step: bool = False) -> list[int]:
    """The lengths that batches are padded to: multiples of 4 from 8 to 64, of 8 up to 128, of 16 up to 256, and so on.

    Each is one more shape to compile (benchmarks/padding.py). whole_step: begin with multiples of 32, since compiling
    the whole step takes far longer.
    """
    lengths, length = [], 0 if whole_step else 4
    while length < max_seq_length:
        length += 1 << max(5 if whole_step else 2, length.bit_length() - 4)
        lengths.append(min(length, max_seq_length))
    return lengths or [max_seq_length]


def padded_length(longest: int, allowed: Sequence[int]) -> int:
    return next(length for length in allowed if length >= longest)


def training_rows(
    lengths: np.ndarray, batch_size: int, seed: int, start_step: int, window_batches: int = 50
) -> Iterator[np.ndarray]:
    """Rows of each batch from a step on: a function of (lengths, batch size, seed, step).

    Epochs follow each other without a gap. Within a window of `window_batches` batches, examples of similar length are
    batched together and the batches are then shuffled; 1: no sorting by length.
    """
    count = len(lengths)
    size = window_batches * batch_size
    window, skip = divmod(start_step, window_batches)
    while True:
        positions = np.arange(window * size, (window + 1) * size)
        first, last = positions[[0, -1]] // count
        orders = [permutation(count, seed, epoch, 0) for epoch in range(first, last + 1)]
        rows = np.concatenate(orders)[positions - first * count]
        if window_batches > 1:
            rows = rows[np.argsort(lengths[rows], kind="stable")]
        batches = rows.reshape(window_batches, batch_size)
        order = permutation(window_batches, seed, window, 1)
        for number in order[skip:]:
            yield batches[number]
        window, skip = window + 1, 0


def training_batches(
    rows: TokenRows,
    *,
    batch_size: int,
    seed: int,
    start_step: int,
    max_seq_length: int,
    static_padding: bool = False,
    programs: int | None = None,
    share: Share = WHOLE,
):
    """An endless tf.data.Dataset of a share's parts of each batch from a step on, {name: [B / share.parts, ...]}.

    static_padding: pad every batch to max_seq_length, and don't batch similar lengths together.
    programs: see `TokenRows.padded_lengths`. share: its rows are as long as the whole batch.
    """
    allowed = rows.padded_lengths(max_seq_length, static_padding, programs)
    if programs:
        lengths_named = " or ".join(map(str, allowed))
        logging.info("Batches are padded to %s tokens: XLA compiles the step once for each length.", lengths_named)
    lengths = rows.lengths

    def batches():
        for chosen in training_rows(lengths, batch_size, seed, start_step, 1 if static_padding else 50):
            length = padded_length(int(lengths[chosen].max()), allowed)
            for part in share.slices(batch_size):
                yield rows.batch(chosen[part], length)

    width = allowed[-1] if len(allowed) == 1 else None
    dataset = _dataset(batches, rows, share.part_size(batch_size), width)
    return finished(dataset, None, _PREFETCHED * share.count)


def evaluation_rows(lengths: np.ndarray, batch_size: int) -> list[np.ndarray]:
    """All rows in batches of similar length, longest first; the last batch may be short."""
    order = np.argsort(-lengths, kind="stable")
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def evaluation_batches(rows: TokenRows, *, batch_size: int, max_seq_length: int, static_padding: bool = False):
    """A tf.data.Dataset of all rows in the order of `evaluation_rows`; copies of a row pad the last batch."""
    allowed = rows.padded_lengths(max_seq_length, static_padding)
    lengths = rows.lengths

    def batches():
        for chosen in evaluation_rows(lengths, batch_size):
            full = np.concatenate([chosen, np.repeat(chosen[-1:], batch_size - len(chosen))])
            yield rows.batch(full, padded_length(int(lengths[full].max()), allowed))

    dataset = _dataset(batches, rows, batch_size, allowed[-1] if static_padding else None)
    return finished(dataset, -(-len(rows) // batch_size), _PREFETCHED)


def rows_and_outputs(rows: TokenRows, batch_size: int, outputs: Iterable) -> Iterator[tuple[np.ndarray, Any]]:
    """Yields (row numbers, outputs) of each batch of `evaluation_batches`, without the copies that padded the last."""
    for chosen, output in zip(evaluation_rows(rows.lengths, batch_size), outputs, strict=True):
        if isinstance(output, dict):
            yield chosen, {name: values[: len(chosen)] for name, values in output.items()}
        else:
            yield chosen, output[: len(chosen)]


def in_order(rows: TokenRows, batch_size: int, outputs: Iterable[np.ndarray]) -> np.ndarray:
    """The model's outputs [n, ...] for all rows in order, from its outputs for `evaluation_batches`."""
    chosen, values = zip(*rows_and_outputs(rows, batch_size, outputs), strict=True)
    return np.concatenate(values)[np.argsort(np.concatenate(chosen))].astype(np.float32, copy=False)


def _dataset(batches: Callable[[], Iterator], rows: TokenRows, batch_size: int, width: int | None):
    import tensorflow as tf

    shape = [batch_size, *rows.shape_of(width)]
    specs = {name: tf.TensorSpec(shape, tf.int32) for name in ("input_ids", "input_mask", "segment_ids")}
    for name, values in rows.labels.items():
        specs[name] = tf.TensorSpec([batch_size, *values.shape[1:]], tf.as_dtype(values.dtype))
    return tf.data.Dataset.from_generator(batches, output_signature=specs)


def finished(dataset, count: int | None, prefetched: int):
    """A tf.data.Dataset of `count` batches in their order; None: it is endless."""
    import tensorflow as tf

    options = tf.data.Options()
    options.deterministic = True
    # With autotuning, a dataset's end waits for the tuner's next wake-up, which may take as long as the dataset did.
    options.autotune.enabled = False
    count = tf.data.INFINITE_CARDINALITY if count is None else count
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(count))
    return dataset.with_options(options).prefetch(prefetched)


# Of doc_stride, max_seq_length and the tokens that are left for a text.
GAPS = (
    "doc_stride=%d is more than a window holds: of max_seq_length=%d tokens, %d are left for the text. The windows "
    "follow each other without overlap; a smaller stride makes them overlap."
)


def document_spans(length: int, room: int, stride: int) -> list[tuple[int, int]]:
    """(first piece, number of pieces) of each window of a context of `length` pieces; none for an empty context."""
    step = min(room, stride)
    starts = range(0, max(length - room, 0) + step, step) if length else ()
    return [(start, min(length - start, room)) for start in starts]


def best_spans(spans: Sequence[tuple[int, int]], pieces: np.ndarray, weight: float = 0.0) -> np.ndarray:
    """Of each of some pieces the span whose nearer edge is farthest, the earliest on a tie [len(pieces)].

    pieces: numbers that rise. weight: what a token of a span's length is worth, in tokens from its edge.
    """
    best, score = np.zeros(len(pieces), np.int32), np.full(len(pieces), -np.inf)
    for number, (start, size) in enumerate(spans):
        here = slice(*np.searchsorted(pieces, [start, start + size]))
        distance = np.minimum(pieces[here] - start, start + size - 1 - pieces[here]) + weight * size
        better = distance > score[here]
        best[here] = np.where(better, number, best[here])
        score[here] = np.where(better, distance, score[here])
    return best


@dataclasses.dataclass(frozen=True)
class GroupedRows(TokenRows):
    """Examples of several token rows; length, `lengths`, `labels` and `batch` are of examples, the rest of all rows."""

    rows_per_example: int

    def __len__(self) -> int:
        return len(self.second_starts) // self.rows_per_example

    @property
    def lengths(self) -> np.ndarray:
        return self.rows.lengths.reshape(-1, self.rows_per_example).max(1)

    def shape_of(self, length: int | None) -> tuple[int | None, ...]:
        return (self.rows_per_example, length)

    def batch(self, rows: Sequence[int] | np.ndarray, length: int) -> dict[str, np.ndarray]:
        examples = np.asarray(rows)
        every = (examples[:, None] * self.rows_per_example + np.arange(self.rows_per_example)).reshape(-1)
        arrays = self.rows.batch(every, length)
        arrays = {name: values.reshape(len(examples), -1, length) for name, values in arrays.items()}
        return arrays | {name: values[examples] for name, values in self.labels.items()}


@dataclasses.dataclass(frozen=True)
class WindowRows(TokenRows):
    """Examples of one or more windows of a text; length, `lengths`, `labels` and `batch` are of examples.

    All windows of an example but the last are full; by its tokens examples are sorted, padded and batched.

    first_rows: int64 [n + 1]: with which window each example begins, and the number of all windows.
    """

    first_rows: np.ndarray = dataclasses.field(kw_only=True)
    window_length: int = dataclasses.field(kw_only=True)

    def __len__(self) -> int:
        return len(self.first_rows) - 1

    @property
    def windows(self) -> np.ndarray:
        return np.diff(self.first_rows)

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets[self.first_rows]).astype(np.int32)

    @property
    def row_lengths(self) -> np.ndarray:
        return self.rows.lengths

    @property
    def checksum(self) -> str:
        return crc32c([super().checksum.encode(), np.ascontiguousarray(self.first_rows).tobytes()])

    def shape_of(self, length: int | None) -> tuple[int | None, ...]:
        """(W, S): one window that is as long as needed, or several full ones."""
        return (None, None) if length is None else self._shape(length)

    def _shape(self, length: int) -> tuple[int, int]:
        return -(-length // self.window_length), min(length, self.window_length)

    def padded_lengths(self, max_seq_length: int, static_padding: bool = False, programs: int | None = None) -> list:
        """The lengths of single windows, and numbers of full windows: 2, 3, 4, 6, 8, 12, and so on, up to the most."""
        most = int(self.windows.max())
        if static_padding:
            return [most * self.window_length]
        counts = {most} | {factor << power for factor in (2, 3) for power in range(most.bit_length())}
        several = [count * self.window_length for count in sorted(counts) if 1 < count <= most]
        allowed = padded_lengths(self.window_length, whole_step=programs is not None) + several
        return self.fewest(allowed, programs) if programs else allowed

    def batch(self, rows: Sequence[int] | np.ndarray, length: int) -> dict[str, np.ndarray]:
        """As of `TokenRows`, [B, W, S]; windows that an example does not have are padding with a mask of zeros."""
        examples = np.asarray(rows)
        most, width = self._shape(length)
        numbers = self.first_rows[examples][:, None] + np.arange(most)  # [B, W]
        real = numbers < self.first_rows[examples + 1][:, None]
        arrays = self.rows.batch(np.where(real, numbers, 0).reshape(-1), width)
        empty = {"input_ids": self.pad_id, "input_mask": 0, "segment_ids": 0}
        arrays = {
            name: np.where(real[:, :, None], values.reshape(*real.shape, width), empty[name]).astype(np.int32)
            for name, values in arrays.items()
        }
        return arrays | {name: values[examples] for name, values in self.labels.items()}


def rows_of_windows(
    texts: Sequence, tokenizer: Tokenizer, length: int, stride: int, most: int, warn: Callable
) -> WindowRows:
    """Rows of texts, given as ids: of each its windows, at most so many. warn: as in `rows.encode_examples`."""
    room = length - tokenizer.num_special_tokens(pair=False)
    rows, counts, truncated, lost, total = [], [], 0, 0, 0
    for ids in texts:
        spans = document_spans(len(ids), room, stride)[:most] or [(0, 0)]
        rows += [tokenizer.build_inputs(ids[start : start + size])[0] for start, size in spans]
        counts.append(len(spans))
        beyond = len(ids) - sum(spans[-1])
        truncated, lost, total = truncated + (beyond > 0), lost + beyond, total + len(ids)
    message = "%d of %d texts are longer than --max_seq_length=%d; all texts together make %d windows, at most %d each."
    longer, largest = sum(count > 1 for count in counts), max(counts, default=0)
    logging.info(message, longer, len(counts), length, len(rows), largest)
    if truncated:
        message = "%d of %d texts need more than max_windows=%d windows and lost their ends: %d of %d tokens (%.1f %%)."
        warn(message, truncated, len(counts), most, lost, total, 100 * lost / total)
    ids, offsets = flatten(rows)
    watch_unknown(tokenizer, ids)
    starts, first_rows = np.diff(offsets).astype(np.int32), np.cumsum([0, *counts], dtype=np.int64)
    return WindowRows(ids, offsets, starts, {}, first_rows=first_rows, window_length=length, pad_id=tokenizer.pad_id)

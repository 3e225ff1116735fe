"""TFRecord reading as a pure function of (files, seed, step).

A killed run must resume with exactly the batches it would have had, so no reading position is stored:
`training_batches(..., start_step=k)` computes from k alone where step k begins and reads only from there.

The order: `index_records` divides the files into blocks of up to 1024 consecutive records. Each epoch permutes the
blocks, joins neighbours into windows of about `shuffle_window` records, and permutes the records inside each window
(`token_rows.permutation`).

To users this module is `bert_tf.records`; for them it also has names of `record_files`.

Shape legend: B batch.
"""

import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.data import record_files
from bert_tf.data.record_files import Feature, Features, RecordIndex, index_records, pretraining_features  # noqa: F401
from bert_tf.data.token_rows import WHOLE, Share, finished, permutation
from bert_tf.system.messages import progress_bar

SHUFFLE_WINDOW = 20_000  # records; about 15 MB of serialized examples at sequence length 128

_PARSERS = max(2, min(8, os.cpu_count() or 2))
_PREFETCHED = 8  # batches
_plain = tf.autograph.experimental.do_not_convert  # AutoGraph would take longer than all the rest
_TOO_LONG = "a record has more values than it may have in feature"
_OUT_OF_RANGE = "a record has a value out of range in feature"
_OTHER_TOTAL = "the segment_lengths of a record do not add up to its tokens"


# (rows of a batch as they were read, number of the batch, number in it of the first of them) -> the model's inputs.
Preparation = Callable[[dict[str, tf.Tensor], tf.Tensor, tf.Tensor], dict[str, tf.Tensor]]


def window_reader(index: RecordIndex):
    """A function of (*index.blocks(...)), each [blocks] -> serialized records [sum of the counts], in order."""

    def block(name, offset, count):
        # tf.data.TFRecordDataset has no argument for the offset, but its op has. (As the outermost dataset it fails in
        # TF 2.20, which then can't serialize the op into a graph.)
        variant = tf.raw_ops.TFRecordDatasetV2(
            filenames=name[None], compression_type="", buffer_size=256 * 1024, byte_offsets=offset[None]
        )
        return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string)).take(count)

    def read(number, offset, count):
        names = tf.gather(tf.constant(list(index.files), tf.string), number)
        total = tf.reduce_sum(count)
        records = tf.data.Dataset.from_tensor_slices((names, offset, count)).flat_map(block)
        records = records.batch(total).get_single_element()
        complete = tf.debugging.Assert(tf.equal(tf.size(records, tf.int64), total), [record_files.FEWER, names])
        with tf.control_dependencies([complete]):
            return tf.identity(records)

    return read


def shuffled_windows(index: RecordIndex, seed: int, shuffle_window: int, start_record: int) -> Iterator[tuple]:
    """Yields `index.blocks` of each window and the order of its records, from `start_record` of epoch 0 on."""
    epoch, skip = divmod(start_record, index.total_records)
    pending: list[np.ndarray] = []
    while True:
        order = permutation(len(index.num_records), seed, epoch, 0)
        ends = np.cumsum(index.num_records[order])
        # A block belongs to the window that contains its first record.
        group = (ends - index.num_records[order]) // shuffle_window
        bounds = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(order)]
        for window, (first, last) in enumerate(itertools.pairwise(bounds)):
            count = int(ends[last - 1] - (ends[first - 1] if first else 0))
            if skip >= count:
                skip -= count
                continue
            blocks = np.sort(order[first:last])  # reading goes forward through a file
            pending.append(permutation(count, seed, epoch, 1 + window)[skip:])
            skip = 0
            # Data that fit into one window have the same blocks in each epoch: read them once for many (short) epochs.
            if len(bounds) > 2 or sum(map(len, pending)) >= min(shuffle_window, 4096):
                yield *index.blocks(blocks), np.concatenate(pending)
                pending = []
        epoch += 1


# ---- batches ---------------------------------------------------------------------------------------------------------


def _unreadable_record(error: tf.errors.OpError, index: RecordIndex, features: Features) -> str | None:
    """The record that made a batch unreadable, if one did, and its problem, found by a pass over the files."""
    of_records = ("ParseExample", _TOO_LONG, record_files.OTHER_ROW, record_files.FEWER, _OUT_OF_RANGE, _OTHER_TOTAL)
    if not isinstance(error, tf.errors.DataLossError) and not any(mark in str(error) for mark in of_records):
        return None
    logging.info("a batch could not be read; looking for the record in %d files", len(index.files))
    with progress_bar(total=sum(index.file_sizes), desc="looking for the record", unit="B", delay=2) as progress:
        for name, size in zip(index.files, index.file_sizes, strict=True):
            number = 0
            try:
                for begin, end, payloads in record_files.read_records(name, size):
                    offset = begin
                    for payload in payloads:
                        if problem := record_files.record_problem(payload, features):
                            return f"{name}: record {number} (at byte {offset}) {problem}"
                        number, offset = number + 1, offset + len(payload) + record_files.FRAME_BYTES
                    progress.update(end - begin)
            except record_files.RecordError as damage:
                return f"{damage}; it was intact when indexed"
    return None


@contextlib.contextmanager
def explained_errors(index: RecordIndex, features: Features, flag: str = ""):
    """Turns an error about an unreadable batch into a RecordError that names flag, record and problem."""
    try:
        yield
    except tf.errors.OpError as error:
        explanation = _unreadable_record(error, index, features)
        if explanation is None:
            raise
        raise record_files.RecordError(f"--{flag}: {explanation}" if flag else explanation) from error


def training_batches(
    index: RecordIndex,
    features: Features,
    *,
    batch_size: int,
    seed: int,
    start_step: int = 0,
    shuffle_window: int = SHUFFLE_WINDOW,
    prepare: Preparation | None = None,
    prepares_whole_batches: bool = False,
    share: Share = WHOLE,
) -> tf.data.Dataset:
    """Endless shuffled batches; the batch of step k is the same whatever step reading starts from.

    Every epoch has each record once, and batches span epochs.

    Args:
      index: from `index_records`. features: of every record; int64 ones come out as int32.
      batch_size: records per step, over all replicas. seed: any integer. start_step: the first step wanted, from 0.
      shuffle_window: records that are mixed with each other; they are in memory (serialized) at once.
      prepare: called in the graph with the rows of each part of `share`, their step, and the number of the first of
        them in the step's batch, both int64; its result takes their place.
      prepares_whole_batches: `prepare` gets whole batches, whose rows depend on each other.
      share: the rows of each batch that are wanted. The bytes of the others are read, but not parsed.

    Returns {name: [B / share.parts, ...]}: of the first batch each part of the share, then of the second, ...
    """
    read_share = WHOLE if prepares_whole_batches else share
    part_size, parts = read_share.part_size(batch_size), read_share.count
    rows = tf.TensorSpec([None], tf.int64)
    read = window_reader(index)
    windows = functools.partial(shuffled_windows, index, seed, shuffle_window, start_step * batch_size)
    dataset = tf.data.Dataset.from_generator(
        lambda: _rows_of_windows(windows(), batch_size, read_share.rows(batch_size)), output_signature=(rows,) * 4
    )
    dataset = dataset.map(_plain(lambda *window: tf.gather(read(*window[:3]), window[3])))
    dataset = dataset.prefetch(1).rebatch(part_size, drop_remainder=True)

    def parse(number, serialized):
        rows = _parse(tf.ensure_shape(serialized, [part_size]), features)
        step, part = number // parts, read_share.first + number % parts
        return prepare(rows, step, part * part_size) if prepare else rows

    dataset = dataset.enumerate(start_step * parts).map(_plain(parse), num_parallel_calls=_PARSERS, deterministic=True)
    if read_share != share:
        dataset = parts_of_batches(dataset, share)
    return finished(dataset, None, _PREFETCHED * share.count)


def parts_of_batches(dataset: tf.data.Dataset, share: Share) -> tf.data.Dataset:
    """The parts of a share, from a dataset of whole batches {name: [B, ...]} with static B."""

    def cut(batch):
        return {name: tf.stack([value[rows] for rows in share.slices(value.shape[0])]) for name, value in batch.items()}

    return dataset.map(_plain(cut)).unbatch()


def _rows_of_windows(windows: Iterator[tuple], batch_size: int, rows: slice) -> Iterator[tuple]:
    row = 0  # of the window's first record, in its batch
    for *blocks, order in windows:
        in_batch = (row + np.arange(len(order))) % batch_size
        wanted = (in_batch >= rows.start) & (in_batch < rows.stop)
        if wanted.any():
            yield *blocks, order[wanted]
        row = (row + len(order)) % batch_size


def evaluation_batches(
    index: RecordIndex,
    features: Features,
    *,
    batch_size: int,
    repeat: bool,
    max_steps: int | None,
    prepare: Preparation | None = None,
) -> tf.data.Dataset:
    """Batches in the files' order.

    repeat: True: start over at the end and give exactly `max_steps` batches (as in the original's evaluation: small
      datasets count several times). False: each record at most once, and the last batch is padded with zeros.
    prepare: called in the graph with each padded batch, its number from 0, int64, and 0, the number of its first row;
      its result becomes the batch.

    Returns {name: [B, ...]} with one more entry, "example_weights" float32 [B]: 1 for a record, 0 for padding.
    """
    read = window_reader(index)
    dataset = tf.data.Dataset.from_tensor_slices(index.blocks())
    if repeat:
        dataset = dataset.repeat()
    dataset = dataset.map(_plain(lambda *block: read(*(value[None] for value in block))))
    dataset = dataset.prefetch(1).rebatch(batch_size, drop_remainder=repeat)
    steps = -(-index.total_records // batch_size)
    if max_steps is not None:
        steps = max_steps if repeat else min(steps, max_steps)
        dataset = dataset.take(steps)

    def parse(number, serialized):
        count = tf.size(serialized)
        # Padding is parsed from copies of the last record, which always match, and then set to zero.
        serialized = tf.gather(serialized, tf.minimum(tf.range(batch_size), count - 1))
        real = tf.range(batch_size) < count
        batch = {
            name: tf.where(tf.reshape(real, [batch_size] + [1] * (value.shape.rank - 1)), value, tf.zeros_like(value))
            for name, value in _parse(serialized, features).items()
        }
        batch = prepare(batch, number, 0) if prepare else batch
        return {**batch, "example_weights": tf.cast(real, tf.float32)}

    dataset = dataset.enumerate().map(_plain(parse), num_parallel_calls=_PARSERS, deterministic=True)
    return finished(dataset, steps, _PREFETCHED)


def _parse(serialized: tf.Tensor, features: Features) -> dict[str, tf.Tensor]:
    batch = tf.io.parse_example(serialized, {
        name: tf.io.RaggedFeature(tf.as_dtype(feature.dtype))
        if feature.is_padded
        else tf.io.FixedLenFeature([feature.length], tf.as_dtype(feature.dtype))
        for name, feature in features.items()
    })  # fmt: skip
    checks = []
    if "segment_lengths" in features:
        same = tf.cast(batch["input_ids"].row_lengths(), tf.int64) == tf.reduce_sum(batch["segment_lengths"], axis=1)
        checks.append(tf.debugging.Assert(tf.reduce_all(same), [_OTHER_TOTAL]))
    for name, feature in features.items():
        value = batch[name]
        if feature.is_padded:
            longest = tf.reduce_max(value.row_lengths())
            checks.append(tf.debugging.Assert(longest <= feature.length, [f"{_TOO_LONG} {name}", longest]))
        if feature.limit is not None:
            numbers = value.flat_values if feature.is_padded else value
            if feature.dtype == "int64":  # without a sign, a negative integer is a large one
                fits = tf.bitcast(numbers, tf.uint64) < feature.limit
            else:
                fits = (numbers >= 0) & (numbers <= feature.limit)
            checks.append(tf.debugging.Assert(tf.reduce_all(fits), [f"{_OUT_OF_RANGE} {name}"]))
    with tf.control_dependencies(checks):
        for name, feature in features.items():
            value = batch[name]
            if feature.is_padded:
                value = value.to_tensor(shape=[serialized.shape[0], feature.length])
            batch[name] = tf.cast(value, tf.int32) if value.dtype == tf.int64 else tf.identity(value)
    if {*features} != {*record_files.ELECTRA}:
        return batch
    mask, segments = batch["input_mask"], batch["segment_ids"]
    length = tf.reduce_sum(mask, axis=1)
    first = length - tf.reduce_sum(segments, axis=1)
    size = mask.shape[1]
    row = tf.sequence_mask(length, size), tf.sequence_mask(length, size) & ~tf.sequence_mask(first, size)
    fits = tf.reduce_all((mask == tf.cast(row[0], tf.int32)) & (segments == tf.cast(row[1], tf.int32)))
    with tf.control_dependencies([tf.debugging.Assert(fits, [record_files.OTHER_ROW])]):
        return {"input_ids": batch["input_ids"], "segment_lengths": tf.stack([first, length - first], axis=1)}

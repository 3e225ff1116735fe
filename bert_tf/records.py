"""TFRecord reading as a pure function of (files, seed, step).

A killed run has to go on with the very batches it would have had, so nothing about the position in the data is kept
anywhere: `training_batches(..., start_step=k)` computes from k alone where step k begins and reads only from there.

How the order is made. `index_records` goes once through the files (checking every checksum) and cuts them into blocks
of up to 1024 consecutive records. Each epoch permutes the blocks, joins neighbours into windows of about
`shuffle_window` records, and permutes the records inside each window. The permutations are sorts of the raw output of
a counter-based generator keyed by (seed, epoch, window); raw Philox words and stable sorts are the same in every
NumPy version, which `Generator.permutation` does not promise.

Shapes: B batch.
"""

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import io
import itertools
import json
import os
import struct
import uuid
import zipfile
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.progress import progress_bar

RECORDS_PER_BLOCK = 1024
SHUFFLE_WINDOW = 20_000  # records; about 15 MB of serialized examples at sequence length 128

_FRAME_BYTES = 16  # around each payload: length 8, its checksum 4; after it the payload's checksum 4
_READ_BUFFER_BYTES = 256 * 1024
_INDEX_THREADS = 8
_PARSERS = max(2, min(8, os.cpu_count() or 2))
_PREFETCHED = 8  # batches
_CACHE_VERSION = 1
_LENGTH_FLAGS = {
    "input_ids": "max_seq_length",
    "input_mask": "max_seq_length",
    "segment_ids": "max_seq_length",
    "masked_lm_positions": "max_predictions_per_seq",
    "masked_lm_ids": "max_predictions_per_seq",
    "masked_lm_weights": "max_predictions_per_seq",
}

Features = Mapping[str, tf.io.FixedLenFeature]


class RecordError(ValueError):
    """A record file that cannot be used as it is; the message names file, record, byte offset and flag."""


@dataclasses.dataclass(frozen=True)
class RecordIndex:
    """Where the records lie: one row for each block of at most 1024 consecutive, intact records.

    Attributes:
      files: names, in reading order.
      file_sizes, file_times: bytes and modification time (ns) of each file when it was indexed.
      skipped: corrupt records or unreadable ends left out, for each file.
      file_number, byte_offset, num_records: [blocks] int64; the block's file, where its first frame begins, and how
        many records it holds.
    """

    files: tuple[str, ...]
    file_sizes: tuple[int, ...]
    file_times: tuple[int, ...]
    skipped: tuple[int, ...]
    file_number: np.ndarray
    byte_offset: np.ndarray
    num_records: np.ndarray

    @property
    def total_records(self) -> int:
        """Number of records one epoch holds."""
        return int(self.num_records.sum())

    @property
    def fingerprint(self) -> str:
        """Digest of what the order of batches depends on: two indexes with the same one give the same order.

        Folders are left out, so that data may move between runs.
        """
        digest = hashlib.sha256()
        names = [os.path.basename(name) for name in self.files]
        digest.update(json.dumps([names, list(self.file_sizes)]).encode())
        for rows in (self.file_number, self.byte_offset, self.num_records):
            digest.update(rows.astype("<i8").tobytes())
        return digest.hexdigest()


def pretraining_features(max_seq_length: int, max_predictions_per_seq: int) -> dict[str, tf.io.FixedLenFeature]:
    """The seven features that create_pretraining_data.py writes (run_pretraining.py of the original reads the same)."""
    lengths_and_kinds = {
        "input_ids": (max_seq_length, tf.int64),
        "input_mask": (max_seq_length, tf.int64),
        "segment_ids": (max_seq_length, tf.int64),
        "masked_lm_positions": (max_predictions_per_seq, tf.int64),
        "masked_lm_ids": (max_predictions_per_seq, tf.int64),
        "masked_lm_weights": (max_predictions_per_seq, tf.float32),
        "next_sentence_labels": (1, tf.int64),
    }
    return {name: tf.io.FixedLenFeature([length], kind) for name, (length, kind) in lengths_and_kinds.items()}


# --- Indexing ---------------------------------------------------------------------------------------------------------


def index_records(
    files: Sequence[str],
    features: Features,
    *,
    skip_corrupt_records: bool = False,
    cache_file: str | None = None,
) -> RecordIndex:
    """Finds every record of `files`, verifying all checksums, and compares the first of each file with `features`.

    Args:
      files: TFRecord files, uncompressed.
      features: name -> tf.io.FixedLenFeature that each record must hold.
      skip_corrupt_records: leave out and count what cannot be read, instead of stopping. After a damaged payload
        reading goes on at the next record; after a damaged length, or at a cut-off end, the rest of the file is lost.
      cache_file: where to keep the index for the next start; it is made anew when a name, size or modification time
        of a file differs.

    Raises:
      RecordError: corrupt or truncated record (without `skip_corrupt_records`), no record at all, or a first record
        that does not hold `features`.
    """
    files = [os.fspath(name) for name in files]
    sizes, times = [], []
    for name in files:
        if (stat := tf.io.gfile.stat(name)).is_directory:
            raise RecordError(f"{name} is a directory, not a TFRecord file")
        sizes.append(int(stat.length))
        times.append(int(stat.mtime_nsec))
    key = json.dumps(
        [_CACHE_VERSION, RECORDS_PER_BLOCK, bool(skip_corrupt_records), list(zip(files, sizes, times, strict=True))]
    )
    index = _load_index(cache_file, key, files, sizes, times) if cache_file else None
    if index is None:
        index = _scan_files(files, sizes, times, skip_corrupt_records)
        if cache_file:
            _save_index(cache_file, key, index)
    for name, skipped in zip(files, index.skipped, strict=True):
        if skipped:
            logging.warning("%s: %d corrupt or truncated records left out (--skip_corrupt_records)", name, skipped)
    if not index.total_records:
        shown = ", ".join(files[:5]) + (f" and {len(files) - 5} more" if len(files) > 5 else "")
        raise RecordError(f"no records in {shown}")
    empty = sorted(set(range(len(files))) - set(index.file_number.tolist()))
    if empty:
        logging.warning("%d of %d files hold no records, the first of them %s", len(empty), len(files), files[empty[0]])
    _check_first_records(index, features)
    logging.info("%d records in %d files, %.1f MB", index.total_records, len(files), sum(sizes) / 1e6)
    return index


def _scan_files(
    files: Sequence[str], sizes: Sequence[int], times: Sequence[int], skip_corrupt_records: bool
) -> RecordIndex:
    with (
        # Nothing is drawn unless it takes over two seconds.
        progress_bar(total=sum(sizes), desc="indexing records", unit="B", unit_scale=True, delay=2) as progress,
        concurrent.futures.ThreadPoolExecutor(min(_INDEX_THREADS, len(files) or 1)) as pool,
    ):
        scans = [
            pool.submit(_scan_file, name, size, skip_corrupt_records, progress)
            for name, size in zip(files, sizes, strict=True)
        ]
        try:
            results = [scan.result() for scan in scans]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    rows = [(number, *block) for number, (blocks, _) in enumerate(results) for block in blocks]
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    skipped = tuple(skipped for _, skipped in results)
    return RecordIndex(tuple(files), tuple(sizes), tuple(times), skipped, *columns)


def _scan_file(name: str, size: int, skip_corrupt_records: bool, progress) -> tuple[list[tuple[int, int]], int]:
    """Blocks (byte offset, records) of one file, and how many records were left out."""
    blocks: list[tuple[int, int]] = []
    offset = records = skipped = 0
    while offset < size:
        try:
            for count, payload_bytes in _payload_sizes(name, offset, RECORDS_PER_BLOCK):
                blocks.append((offset, count))
                records += count
                offset += payload_bytes + _FRAME_BYTES * count
                progress.update(payload_bytes + _FRAME_BYTES * count)
            if offset >= size:
                break
        except tf.errors.DataLossError:
            pass
        # Either an error instead of the block with the damage: go through it record by record to find the place. Or
        # less than a record's header is left, which TensorFlow takes for a regular end.
        start, count = offset, 0
        with contextlib.suppress(tf.errors.DataLossError):
            for _, payload_bytes in _payload_sizes(name, offset, 1):
                count += 1
                offset += payload_bytes + _FRAME_BYTES
        following, damage = _damage(name, offset, size)
        if not skip_corrupt_records:
            raise RecordError(
                f"{name}: record {records + skipped + count} (counted from 0) at byte {offset} is {damage}; "
                "write the file again, or leave such records out with --skip_corrupt_records"
            )
        if count:
            blocks.append((start, count))
            records += count
        skipped += 1
        lost = (following or size) - offset
        logging.warning("%s: %d of %d bytes left out; the record at byte %d is %s", name, lost, size, offset, damage)
        if following is None:
            break
        progress.update(following - start)
        offset = following
    return blocks, skipped


def _payload_sizes(name: str, offset: int, batch: int) -> Iterator[tuple[int, int]]:
    """(records, bytes of their payloads) for each batch of consecutive records from `offset` on."""

    def measure(payloads):
        return tf.size(payloads), tf.reduce_sum(tf.cast(tf.strings.length(payloads), tf.int64))

    dataset = tf.data.Dataset.from_tensors(np.int64(offset)).flat_map(lambda start: _open_at(name, start))
    for count, total in dataset.batch(batch).map(measure).as_numpy_iterator():
        yield int(count), int(total)


def _damage(name: str, offset: int, size: int) -> tuple[int | None, str]:
    """Where reading can go on after the bad record at `offset` (None: nowhere), and what is wrong with it, in words."""
    with tf.io.gfile.GFile(name, "rb") as stream:
        stream.seek(offset)
        header = stream.read(12)
    if header[:2] == b"\x1f\x8b" and offset == 0:
        return None, "no TFRecord: the file looks gzip-compressed, which is not supported"
    if len(header) == 12:
        length, checksum = struct.unpack("<QI", header)
        if checksum != _masked_crc32c(header[:8]):
            return None, "corrupt: its length field does not match its checksum, the rest of the file can't be read"
        following = offset + _FRAME_BYTES + length
        if following <= size:
            return following, "corrupt: its bytes do not match their checksum"
    return None, f"truncated: the file ends inside it, at byte {size}"


def _masked_crc32c(data: bytes) -> int:
    """The checksum of TFRecord frames; bit by bit, for the 8 bytes of a length field only."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _load_index(
    cache_file: str, key: str, files: Sequence[str], sizes: Sequence[int], times: Sequence[int]
) -> RecordIndex | None:
    if not tf.io.gfile.exists(cache_file):
        return None
    try:
        with tf.io.gfile.GFile(cache_file, "rb") as stream:
            stored = np.load(io.BytesIO(stream.read()), allow_pickle=False)
        if stored["key"].item() != key:
            logging.info("%s belongs to other files or an older state of them; indexing again", cache_file)
            return None
        skipped = tuple(stored["skipped"].tolist())
        return RecordIndex(tuple(files), tuple(sizes), tuple(times), skipped, *stored["blocks"])
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile, tf.errors.OpError) as error:
        logging.warning("cannot use %s (%s); indexing again", cache_file, error)
        return None


def _save_index(cache_file: str, key: str, index: RecordIndex) -> None:
    content = io.BytesIO()
    blocks = np.stack([index.file_number, index.byte_offset, index.num_records])
    np.savez(content, key=np.array(key), skipped=np.array(index.skipped, np.int64), blocks=blocks)
    # Several workers may write it at once: each has its own temporary name, and the last rename wins.
    temporary = f"{cache_file}.{uuid.uuid4().hex}.tmp"
    try:
        with tf.io.gfile.GFile(temporary, "wb") as stream:
            stream.write(content.getvalue())
        tf.io.gfile.rename(temporary, cache_file, overwrite=True)
    except tf.errors.OpError as error:
        logging.warning("cannot keep the index of the records in %s (%s); going on without", cache_file, error)
        if tf.io.gfile.exists(temporary):
            tf.io.gfile.remove(temporary)


# --- Comparing a record with the flags --------------------------------------------------------------------------------


def _check_first_records(index: RecordIndex, features: Features) -> None:
    first_blocks = np.unique(index.file_number, return_index=True)[1]

    def check(block: int) -> str | None:
        name, offset = index.files[index.file_number[block]], int(index.byte_offset[block])
        problem = record_problem(_read_payload(name, offset), features)
        return problem and f"{name}: the first record (byte {offset}) {problem}"

    with concurrent.futures.ThreadPoolExecutor(_INDEX_THREADS) as pool:
        for problem in pool.map(check, first_blocks):
            if problem:
                raise RecordError(problem)


def _read_payload(name: str, offset: int) -> bytes:
    with tf.io.gfile.GFile(name, "rb") as stream:
        stream.seek(offset)
        length = struct.unpack("<Q", stream.read(12)[:8])[0]
        return stream.read(length)


def record_problem(payload: bytes, features: Features) -> str | None:
    """How a serialized tf.train.Example differs from `features`, as the rest of a sentence; None if it fits."""
    example = tf.train.Example()
    try:
        example.ParseFromString(payload)
    except Exception as error:  # protobuf's DecodeError is not part of its public Python interface
        return f"is not a tf.train.Example ({error})"
    for name, feature in features.items():
        if name not in example.features.feature:
            if feature.default_value is None:
                held = ", ".join(sorted(example.features.feature)) or "nothing"
                return f"has no feature {name!r}; it holds {held}"
            continue
        value = example.features.feature[name]
        kind = {tf.int64: "int64_list", tf.float32: "float_list", tf.string: "bytes_list"}[tf.as_dtype(feature.dtype)]
        found_kind = value.WhichOneof("kind")
        if found_kind is None and feature.default_value is not None:
            continue
        if found_kind not in (kind, None):
            return f"has feature {name!r} as {found_kind}, expected {kind}"
        found, expected = len(getattr(value, kind).value), int(np.prod(feature.shape, dtype=np.int64))
        if found != expected:
            flag = _LENGTH_FLAGS.get(name)
            advice = f"; give --{flag}={found} or write the records again with --{flag}={expected}" if flag else ""
            return f"has {found} values in feature {name!r}, expected {expected}{advice}"
    return None


def explain_record_error(error: Exception, index: RecordIndex, features: Features) -> str | None:
    """What is wrong with which record, after a batch could not be read; None if `error` is not about records.

    The files were whole when they were indexed, so either one changed since, or a record that is not its file's first
    differs from the flags. Finding it takes a pass over the files.
    """
    if not isinstance(error, tf.errors.OpError):
        return None
    for name, size, time in zip(index.files, index.file_sizes, index.file_times, strict=True):
        try:
            stat = tf.io.gfile.stat(name)
        except tf.errors.OpError:
            return f"{name} is gone since it was indexed"
        if (stat.length, stat.mtime_nsec) != (size, time):
            return f"{name} changed since it was indexed ({size} bytes then, {stat.length} now)"
    if not isinstance(error, tf.errors.DataLossError) and "ParseExample" not in str(error):
        return None
    logging.info("a batch could not be read; looking for the record in %d files", len(index.files))
    record_number = np.zeros(len(index.files), np.int64)  # of the next intact record, in each file
    rows = zip(index.file_number, index.byte_offset, index.num_records, strict=True)
    for number, offset, count in progress_bar(list(rows), desc="looking for the record", unit="block", delay=2):
        name, offset = index.files[number], int(offset)
        block = tf.data.Dataset.from_tensors(np.int64(offset)).flat_map(lambda start, name=name: _open_at(name, start))
        try:
            for payload in block.take(int(count)).as_numpy_iterator():
                problem = record_problem(payload, features)
                if problem:
                    return f"{name}: record {record_number[number]} (byte {offset}) {problem}"
                offset += len(payload) + _FRAME_BYTES
                record_number[number] += 1
        except tf.errors.DataLossError:
            words = _damage(name, offset, index.file_sizes[number])[1]
            return f"{name}: record {record_number[number]} (byte {offset}) is {words}; it was whole when indexed"
    return None


@contextlib.contextmanager
def explained_errors(index: RecordIndex, features: Features):
    """Turns TensorFlow's error about a batch that could not be read into a RecordError that says what and where."""
    try:
        yield
    except tf.errors.OpError as error:
        explanation = explain_record_error(error, index, features)
        if explanation is None:
            raise
        raise RecordError(explanation) from error


# --- Reading ----------------------------------------------------------------------------------------------------------


def training_batches(
    index: RecordIndex,
    features: Features,
    *,
    batch_size: int,
    seed: int,
    start_step: int = 0,
    shuffle_window: int = SHUFFLE_WINDOW,
) -> tf.data.Dataset:
    """Endless shuffled batches; the batch of step k is the same whatever step the reading starts from.

    Every epoch holds each record once, and batches run on from one epoch into the next, so nothing is dropped.

    Args:
      index: from `index_records`.
      features: name -> tf.io.FixedLenFeature; int64 ones come out as int32.
      batch_size: records a step, over all replicas.
      seed: any integer; another one gives another order.
      start_step: the first step wanted, from 0.
      shuffle_window: records that are mixed with each other; they are in memory (serialized) at once.

    Returns:
      dataset of {name: [B, ...]}.
    """
    if batch_size < 1 or start_step < 0 or shuffle_window < 1:
        raise ValueError(f"{batch_size=} and {shuffle_window=} must be at least 1, {start_step=} at least 0")

    def windows():
        return _shuffled_windows(index, seed, shuffle_window, start_step * batch_size)

    rows = tf.TensorSpec([None], tf.int64)
    read = _window_reader(index.files)
    dataset = tf.data.Dataset.from_generator(windows, output_signature=(rows, rows, rows, rows))
    dataset = dataset.map(lambda number, offset, count, order: tf.gather(read(number, offset, count), order))
    dataset = dataset.prefetch(1).rebatch(batch_size, drop_remainder=True)
    dataset = dataset.map(
        lambda serialized: _parse(tf.ensure_shape(serialized, [batch_size]), features),
        num_parallel_calls=_PARSERS,
        deterministic=True,
    )
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    return dataset.with_options(_options()).prefetch(_PREFETCHED)


def evaluation_batches(
    index: RecordIndex, features: Features, *, batch_size: int, repeat: bool, max_steps: int | None
) -> tf.data.Dataset:
    """Batches in the files' order.

    Args:
      index: from `index_records`.
      features: name -> tf.io.FixedLenFeature; int64 ones come out as int32.
      batch_size: records a step, over all replicas.
      repeat: True: start over at the end and give exactly `max_steps` batches (the original's evaluation: small data
        count several times). False: each record at most once, and the last batch is filled up with zeros.
      max_steps: most batches to give; None: all.

    Returns:
      dataset of {name: [B, ...]} with one more entry, "example_weights" float32 [B]: 1 for a record, 0 for filling.
    """
    if batch_size < 1:
        raise ValueError(f"{batch_size=} must be at least 1")
    if repeat and max_steps is None:
        raise ValueError("repeat=True needs max_steps, else the evaluation never ends")
    read = _window_reader(index.files)
    dataset = tf.data.Dataset.from_tensor_slices((index.file_number, index.byte_offset, index.num_records))
    if repeat:
        dataset = dataset.repeat()
    dataset = dataset.map(
        lambda number, offset, count: read(number[None], offset[None], count[None]),
    )
    dataset = dataset.prefetch(1).rebatch(batch_size, drop_remainder=repeat)
    steps = -(-index.total_records // batch_size)
    if max_steps is not None:
        steps = max_steps if repeat else min(steps, max_steps)
        dataset = dataset.take(steps)

    def parse(serialized):
        count = tf.size(serialized)
        # Filling is parsed from copies of the last record, which always fits, and then set to zero.
        serialized = tf.gather(serialized, tf.minimum(tf.range(batch_size), count - 1))
        real = tf.range(batch_size) < count
        batch = {
            name: tf.where(tf.reshape(real, [batch_size] + [1] * (value.shape.rank - 1)), value, tf.zeros_like(value))
            for name, value in _parse(serialized, features).items()
        }
        return {**batch, "example_weights": tf.cast(real, tf.float32)}

    dataset = dataset.map(parse, num_parallel_calls=_PARSERS, deterministic=True)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(steps))
    return dataset.with_options(_options()).prefetch(_PREFETCHED)


def permutation(length: int, seed: int, epoch: int, stream: int) -> np.ndarray:
    """Permutation of range(length), fixed for all time by its arguments."""
    # The generator counts up the first word of the counter, so different epochs and streams never meet.
    generator = np.random.Philox(
        key=np.array([seed % 2**64, 0], np.uint64), counter=np.array([0, 0, stream, epoch], np.uint64)
    )
    return np.argsort(generator.random_raw(length), kind="stable")


def _shuffled_windows(
    index: RecordIndex, seed: int, shuffle_window: int, start_record: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Yields (file number, byte offset, records) of a window's blocks [blocks] and the order of its records.

    `start_record` counts from the beginning of epoch 0; the first window leaves out what comes before it.
    """
    epoch, skip = divmod(start_record, index.total_records)
    pending: list[np.ndarray] = []
    while True:
        order = permutation(len(index.num_records), seed, epoch, 0)
        ends = np.cumsum(index.num_records[order])
        # A block belongs to the window in which its first record falls.
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
            # Data that fit one window are the same blocks each epoch: read them once for many (short) epochs.
            if len(bounds) > 2 or sum(map(len, pending)) >= min(shuffle_window, 4096):
                where = index.file_number[blocks], index.byte_offset[blocks], index.num_records[blocks]
                yield *where, np.concatenate(pending)
                pending = []
        epoch += 1


def _window_reader(files: Sequence[str]):
    """Function (file numbers, byte offsets, counts), each [blocks] -> serialized records [sum of counts], in order."""

    def read(number, offset, count):
        def block(name, start, length):
            return _open_at(name, start).take(length)

        names = tf.gather(tf.constant(list(files), tf.string), number)
        total = tf.reduce_sum(count)
        records = tf.data.Dataset.from_tensor_slices((names, offset, count)).flat_map(block)
        records = records.batch(total).get_single_element()
        complete = tf.debugging.Assert(
            tf.equal(tf.size(records, tf.int64), total), ["a file holds fewer records than when it was indexed", names]
        )
        with tf.control_dependencies([complete]):
            return tf.identity(records)

    return read


def _open_at(name, offset) -> tf.data.Dataset:
    """Records of a file from a frame's byte offset on. Only for use inside a function given to a tf.data method.

    tf.data.TFRecordDataset has no argument for the offset; the op under it has. (As the outermost dataset it fails in
    TF 2.20, which then tries, and is not able, to write the op into a graph.)
    """
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=tf.reshape(name, [1]),
        compression_type="",
        buffer_size=_READ_BUFFER_BYTES,
        byte_offsets=tf.reshape(offset, [1]),
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))


def _parse(serialized: tf.Tensor, features: Features) -> dict[str, tf.Tensor]:
    batch = tf.io.parse_example(serialized, dict(features))
    return {name: tf.cast(value, tf.int32) if value.dtype == tf.int64 else value for name, value in batch.items()}


def _options() -> tf.data.Options:
    options = tf.data.Options()
    options.deterministic = True
    # The end of a data set waits for the tuner's next look at it, after up to as long again as the data set took.
    options.autotune.enabled = False
    # Each worker takes its part of the global batch itself.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options

"""An index of the records in TFRecord files: built once, with all checksums verified, and cached for the next start."""

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import json
import os
import struct
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.data.gzip_records import (
    FRAME_BYTES,
    GzipDamage,
    GzipReader,
    gzip_records,
    is_gzip,
    masked_crc32c,
    next_member,
)
from bert_tf.system.kept_arrays import load_arrays, save_arrays
from bert_tf.system.progress import progress_bar

RECORDS_PER_BLOCK = 1024

_BATCHES_AT_ONCE = 64  # of a file that is scanned
_READ_BUFFER_BYTES = 256 * 1024
_INDEX_THREADS = 8
_CACHE_VERSION = 2


class RecordError(ValueError):
    """A record file can't be used as it is; the message names file, record, byte offset and flag."""


@dataclasses.dataclass(frozen=True)
class RecordIndex:
    """Where the records are: one row for each block of at most 1024 consecutive, intact records.

    Attributes:
      files: names, in reading order.
      file_sizes, file_times: bytes and modification time (ns) of each file when it was indexed.
      skipped: the number of corrupt records or unreadable ends skipped, for each file.
      compressed: whether each file is gzip-compressed.
      file_number, byte_offset, inner_offset, num_records: [blocks] int64; the block's file, where its first frame
        begins (in a gzip file: the start of its member, and the offset within the decompressed member; otherwise
        inner_offset is 0), and its number of records.
    """

    files: tuple[str, ...]
    file_sizes: tuple[int, ...]
    file_times: tuple[int, ...]
    skipped: tuple[int, ...]
    compressed: tuple[bool, ...]
    file_number: np.ndarray
    byte_offset: np.ndarray
    inner_offset: np.ndarray
    num_records: np.ndarray

    @property
    def total_records(self) -> int:
        """The number of records per epoch."""
        return int(self.num_records.sum())

    @property
    def fingerprint(self) -> str:
        """A digest of everything that the order of batches depends on: equal digests mean the same order.

        It does not include directories, so data may be moved between runs.
        """
        digest = hashlib.sha256()
        names = [os.path.basename(name) for name in self.files]
        digest.update(json.dumps([names, list(self.file_sizes)]).encode())
        rows = [self.file_number, self.byte_offset, self.num_records]
        rows += [self.inner_offset] if self.inner_offset.any() else []
        for row in rows:
            digest.update(row.astype("<i8").tobytes())
        return digest.hexdigest()

    def blocks(self, order=slice(None)) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """File number, byte offset, inner offset and number of records of the blocks in `order`."""
        return self.file_number[order], self.byte_offset[order], self.inner_offset[order], self.num_records[order]

    @property
    def first_blocks(self) -> list[int]:
        """The first block of each file that has any records."""
        return np.unique(self.file_number, return_index=True)[1].tolist()


# --- Finding the records ----------------------------------------------------------------------------------------------


def find_records(files: Sequence[str], skip_corrupt_records: bool, cache_file: str | None) -> RecordIndex:
    """The index of TFRecord files, from `cache_file` if that was made from exactly these files.

    Raises:
      RecordError: a record is corrupt or truncated (without `skip_corrupt_records`), or a file is a directory.
    """
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
    return index


def _scan_files(
    files: Sequence[str], sizes: Sequence[int], times: Sequence[int], skip_corrupt_records: bool
) -> RecordIndex:
    with (
        # The bar appears after two seconds.
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
    rows = [(number, *block) for number, (blocks, *_) in enumerate(results) for block in blocks]
    columns = np.array(rows, np.int64).reshape(-1, 4).T
    skipped = tuple(skipped for _, skipped, _ in results)
    compressed = tuple(compressed for *_, compressed in results)
    return RecordIndex(tuple(files), tuple(sizes), tuple(times), skipped, compressed, *columns)


def _scan_file(name: str, size: int, skip_corrupt_records: bool, progress) -> tuple[list[tuple[int, ...]], int, bool]:
    """Blocks (byte offset, inner offset, records) of a file, the number of records skipped, and whether it is gzip."""
    compressed = size > 0 and is_gzip(name)
    scan = _scan_gzip if compressed else _scan_plain
    return *scan(name, size, skip_corrupt_records, progress), compressed


def _scan_plain(name: str, size: int, skip_corrupt_records: bool, progress) -> tuple[list[tuple[int, ...]], int]:
    blocks: list[tuple[int, ...]] = []
    offset = records = skipped = 0
    while offset < size:
        try:
            for count, payload_bytes in _payload_sizes(name, offset, RECORDS_PER_BLOCK):
                blocks.append((offset, 0, count))
                records += count
                offset += payload_bytes + FRAME_BYTES * count
                progress.update(payload_bytes + FRAME_BYTES * count)
            if offset >= size:
                break
        except tf.errors.DataLossError:
            pass
        # Either reading the damaged block failed: read it record by record to find the place. Or less than a record's
        # header is left, which TensorFlow takes for a regular end.
        start, count = offset, 0
        with contextlib.suppress(tf.errors.DataLossError):
            for _, payload_bytes in _payload_sizes(name, offset, 1):
                count += 1
                offset += payload_bytes + FRAME_BYTES
        following, damage = damage_at(name, offset, size)
        if not skip_corrupt_records:
            raise RecordError(
                f"{name}: record {records + skipped + count} (counted from 0) at byte {offset} is {damage}; "
                "write the file again, or skip such records with --skip_corrupt_records"
            )
        if count:
            blocks.append((start, 0, count))
            records += count
        skipped += 1
        lost = (following or size) - offset
        logging.warning("%s: skipped %d of %d bytes; the record at byte %d is %s", name, lost, size, offset, damage)
        if following is None:
            break
        progress.update(following - start)
        offset = following
    return blocks, skipped


def _scan_gzip(name: str, size: int, skip_corrupt_records: bool, progress) -> tuple[list[tuple[int, ...]], int]:
    """Verifies gzip's checksum of each member, and the checksums of the records' lengths.

    Nothing in a corrupt member can be trusted, so all of it is skipped; the readable part of a truncated member is
    intact.
    """
    blocks: list[list[int]] = []
    skipped, start = 0, 0
    while start is not None:
        member = start  # the member being read
        # The state before this member: blocks, and records in the last block.
        checked = len(blocks), blocks[-1][2] if blocks else 0
        try:
            for first, inner, last, _ in gzip_records(name, start):
                if last != member:
                    progress.update(last - member)
                    member, checked = last, (len(blocks), blocks[-1][2] if blocks else 0)
                # Where possible, a block begins with a member.
                if not blocks or blocks[-1][2] >= RECORDS_PER_BLOCK or inner == 0:
                    blocks.append([first, inner, 0])
                blocks[-1][2] += 1
            progress.update(size - member)
            break
        except GzipDamage as damage:
            if damage.member == member and not damage.truncated:
                del blocks[checked[0] :]
                if blocks:
                    blocks[-1][2] = checked[1]
            records = sum(block[2] for block in blocks)
            if not skip_corrupt_records:
                raise RecordError(
                    f"{damage}, after {records} records; write the file again, or skip unreadable records with "
                    "--skip_corrupt_records"
                ) from damage
            skipped += 1
            start = None if damage.truncated else next_member(name, damage.member, size)
            going_on = "nothing after it can be read" if start is None else f"reading resumes at byte {start}"
            logging.warning("%s, after %d records; %s", damage, records, going_on)
            progress.update((start or size) - member)
    if any(inner for _, inner, _ in blocks):
        logging.info(
            "%s is gzip-compressed in members of more than %d records: reading from the middle of one must decompress "
            "everything before it, which is slow. create_pretraining_data.py --compression=gzip writes files "
            "without that.",
            name,
            RECORDS_PER_BLOCK,
        )
    return [tuple(block) for block in blocks], skipped


def _payload_sizes(name: str, offset: int, batch: int) -> Iterator[tuple[int, int]]:
    """Yields (records, bytes of their payloads) for each batch of consecutive records, starting at `offset`."""
    batches = _BATCHES_AT_ONCE
    while True:
        try:
            sizes = _measure(name, offset, batch, batches).numpy().tolist()
        except tf.errors.DataLossError:
            if batches == 1:
                raise
            batches = 1  # so that those before the damage are yielded
            continue
        for count, payload_bytes in sizes:
            offset += payload_bytes + FRAME_BYTES * count
            yield count, payload_bytes
        if len(sizes) < batches:
            return


# Traced once, since tracing takes longer than reading most files.
@tf.function(input_signature=[tf.TensorSpec([], tf.string), *[tf.TensorSpec([], tf.int64)] * 3])
def _measure(name, offset, batch, batches):
    """The records, and bytes of their payloads, of each of the next `batches` batches, int64 [at most batches, 2]."""

    def sizes(payloads):
        lengths = tf.cast(tf.strings.length(payloads), tf.int64)
        return tf.stack([tf.size(lengths, tf.int64), tf.reduce_sum(lengths)])

    records = tf.data.Dataset.from_tensors(offset).flat_map(lambda start: open_at(name, start))
    rows = records.batch(batch).map(sizes).take(batches).batch(batches)
    return rows.reduce(tf.zeros([0, 2], tf.int64), lambda _, chunk: chunk)


def damage_at(name: str, offset: int, size: int) -> tuple[int | None, str]:
    """Where reading can resume after the bad record at `offset` (None: nowhere), and a description of the damage."""
    with tf.io.gfile.GFile(name, "rb") as stream:
        stream.seek(offset)
        header = stream.read(12)
    if offset == 0 and header[:1] == b"{":
        return None, "not a TFRecord file: it looks like JSON (name only the record files, for example by *.tfrecord*)"
    if len(header) == 12:
        length, checksum = struct.unpack("<QI", header)
        if checksum != masked_crc32c(header[:8]):
            return None, "corrupt: its length field does not match its checksum, so the rest of the file can't be read"
        following = offset + FRAME_BYTES + length
        if following <= size:
            return following, "corrupt: its bytes do not match their checksum"
    return None, f"truncated: the file ends inside it, at byte {size}"


def _load_index(
    cache_file: str, key: str, files: Sequence[str], sizes: Sequence[int], times: Sequence[int]
) -> RecordIndex | None:
    stored = load_arrays(cache_file)
    if stored is None:
        return None
    if stored["key"].item() != key:
        logging.info("%s was made from other files or an older state of these; indexing again", cache_file)
        return None
    skipped = tuple(stored["skipped"].tolist())
    compressed = tuple(stored["compressed"].tolist())
    return RecordIndex(tuple(files), tuple(sizes), tuple(times), skipped, compressed, *stored["blocks"])


def _save_index(cache_file: str, key: str, index: RecordIndex) -> None:
    arrays = {
        "key": np.array(key), "skipped": np.array(index.skipped, np.int64), "blocks": np.stack(index.blocks()),
        "compressed": np.array(index.compressed, bool),
    }  # fmt: skip
    # Several workers may write it at the same time: each uses its own temporary name, and the last rename wins.
    try:
        save_arrays(cache_file, arrays)
    except tf.errors.OpError as error:
        logging.warning("cannot save the index of the records in %s (%s); continuing without it", cache_file, error)


# --- Reading from a place on ------------------------------------------------------------------------------------------


def first_payload(index: RecordIndex, block: int) -> bytes:
    """The first record of a block."""
    number, offset, inner, _ = (int(value) for value in index.blocks(block))
    if index.compressed[number]:
        return next(gzip_records(index.files[number], offset, inner))[-1]
    with tf.io.gfile.GFile(index.files[number], "rb") as stream:
        stream.seek(offset)
        length = struct.unpack("<Q", stream.read(12)[:8])[0]
        return stream.read(min(length, index.file_sizes[number]))  # where it is damaged, reading the block says so


def open_at(name, offset) -> tf.data.Dataset:
    """Records of an uncompressed file, from a frame's byte offset on. For use in functions given to tf.data methods.

    tf.data.TFRecordDataset has no argument for the offset, but its op has. (As the outermost dataset it fails in TF
    2.20, which then can't serialize the op into a graph.)

    Args:
      name, offset: scalars, or both [1], or both [0] for no records.
    """
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=tf.reshape(name, [-1]),
        compression_type="",
        buffer_size=_READ_BUFFER_BYTES,
        byte_offsets=tf.reshape(offset, [-1]),
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))


def window_reader(index: RecordIndex):
    """A function of (*index.blocks(...)), each [blocks] -> serialized records [sum of the counts], in order."""
    gzip_reader = GzipReader()

    def read_gzip(name, member, inner, count):
        payloads = gzip_reader.read(name.decode(), int(member), int(inner), int(count))
        return np.array([*payloads, None], object)[:-1]  # so that NumPy treats them as bytes of any length

    def block(name, offset, inner, count, compressed):
        plain = tf.logical_not(compressed)[None]
        records = open_at(tf.boolean_mask(name[None], plain), tf.boolean_mask(offset[None], plain)).take(count)
        if not any(index.compressed):
            return records
        unpacked = tf.data.Dataset.from_tensors((name, offset, inner, count)).take(tf.cast(compressed, tf.int64))
        unpacked = unpacked.flat_map(
            lambda *place: tf.data.Dataset.from_tensor_slices(
                tf.ensure_shape(tf.numpy_function(read_gzip, place, tf.string), [None])
            )
        )
        return records.concatenate(unpacked)

    def read(number, offset, inner, count):
        names = tf.gather(tf.constant(list(index.files), tf.string), number)
        compressed = tf.gather(tf.constant(index.compressed, tf.bool), number)
        total = tf.reduce_sum(count)
        records = tf.data.Dataset.from_tensor_slices((names, offset, inner, count, compressed)).flat_map(block)
        records = records.batch(total).get_single_element()
        complete = tf.debugging.Assert(
            tf.equal(tf.size(records, tf.int64), total), ["a file has fewer records than when it was indexed", names]
        )
        with tf.control_dependencies([complete]):
            return tf.identity(records)

    return read

"""An index of the records in TFRecord files, cached for the next start.

What the writer left beside a file (written_index.py) is taken over; other files are read once, with all checksums.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.data.first_record import RecordError, damage_at, payload_at, with_advice
from bert_tf.data.gzip_records import (
    FRAME_BYTES,
    GzipDamage,
    GzipReader,
    gzip_records,
    is_gzip,
)
from bert_tf.data.written_index import RECORDS_PER_BLOCK, block_misfit, index_path, read_written_index, spread
from bert_tf.system.kept_arrays import load_arrays, save_arrays
from bert_tf.system.progress import progress_bar
from bert_tf.system.threads import in_threads

_BATCHES_AT_ONCE = 64  # of a file that is scanned
_READ_BUFFER_BYTES = 256 * 1024
_SCANNING_THREADS = 8
CHECKED_FILES = 16  # of those with an index beside them, one block of each
_CACHE_VERSION = 3


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


def find_records(
    files: Sequence[str], skip_corrupt_records: bool, cache_file: str | None, verify: bool = False
) -> RecordIndex:
    """The index of TFRecord files, from `cache_file` if that was made from exactly these files.

    Args:
      verify: read all records now, also those of files with an index beside them.

    Raises:
      RecordError: a record that is read is corrupt or truncated (without `skip_corrupt_records`), or a file is a
        directory.
    """
    stats = in_threads(tf.io.gfile.stat, files)
    for name, stat in zip(files, stats, strict=True):
        if stat.is_directory:
            raise RecordError(f"{name} is a directory, not a TFRecord file")
    sizes, times = [int(stat.length) for stat in stats], [int(stat.mtime_nsec) for stat in stats]
    verify = verify or skip_corrupt_records  # only reading shows which are corrupt
    key = json.dumps(
        [
            _CACHE_VERSION,
            RECORDS_PER_BLOCK,
            bool(skip_corrupt_records),
            bool(verify),
            list(zip(files, sizes, times, strict=True)),
        ]
    )
    index = _load_index(cache_file, key, files, sizes, times) if cache_file else None
    if index is None:
        found = {} if verify else _written_blocks(files, sizes)
        index = _scan_files(files, sizes, times, skip_corrupt_records, found)
        if cache_file:
            _save_index(cache_file, key, index)
    return index


# Blocks (byte offset, inner offset, records) of a file int64 [blocks, 3], the number of records skipped, and whether it
# is compressed.
_FileBlocks = tuple[np.ndarray, int, bool]


def _written_blocks(files: Sequence[str], sizes: Sequence[int]) -> dict[int, _FileBlocks]:
    """File number -> its blocks, for the files with an index beside them that fits."""
    read = in_threads(read_written_index, files, sizes)
    found = {number: index for number, (index, _) in enumerate(read) if index}
    problems = {number: problem for number, (_, problem) in enumerate(read) if problem}
    numbers = [number for number in found if number not in problems]
    checked = [numbers[place] for place in spread(len(numbers), CHECKED_FILES)] if numbers else []
    misfits = in_threads(block_misfit, [files[number] for number in checked], [found[number] for number in checked])
    problems |= {number: misfit for number, misfit in zip(checked, misfits, strict=True) if misfit}
    for number, problem in problems.items():
        logging.warning("%s %s: reading all of %s", index_path(files[number]), problem, files[number])
        found.pop(number, None)
    if found:
        logging.info(
            "%d of %d record files have an index beside them; --verify_records reads them nevertheless",
            len(found),
            len(files),
        )
    return {
        number: (np.stack([index.offsets, np.zeros_like(index.offsets), index.counts], axis=1), 0, index.compressed)
        for number, index in found.items()
    }


def _scan_files(
    files: Sequence[str],
    sizes: Sequence[int],
    times: Sequence[int],
    skip_corrupt_records: bool,
    found: dict[int, _FileBlocks],
) -> RecordIndex:
    """The index of all files; those that are not `found` are read."""
    missing = [number for number in range(len(files)) if number not in found]
    # The bar appears after two seconds.
    total = sum(sizes[number] for number in missing)
    with progress_bar(total=total, desc="indexing records", unit="B", unit_scale=True, delay=2) as progress:

        def scan(number: int) -> _FileBlocks:
            return _scan_file(files[number], sizes[number], skip_corrupt_records, progress)

        found |= zip(missing, in_threads(scan, missing, threads=_SCANNING_THREADS), strict=True)
    per_file = [found[number] for number in range(len(files))]
    counts = np.array([len(blocks) for blocks, *_ in per_file], np.int64)
    columns = np.concatenate([np.empty((0, 3), np.int64), *(blocks for blocks, *_ in per_file)]).T
    skipped = tuple(skipped for _, skipped, _ in per_file)
    compressed = tuple(compressed for *_, compressed in per_file)
    numbers = np.repeat(np.arange(len(files)), counts)
    return RecordIndex(tuple(files), tuple(sizes), tuple(times), skipped, compressed, numbers, *columns)


def _scan_file(name: str, size: int, skip_corrupt_records: bool, progress) -> _FileBlocks:
    compressed = size > 0 and is_gzip(name)
    scan = _scan_gzip if compressed else _scan_plain
    blocks, skipped = scan(name, size, skip_corrupt_records, progress)
    return np.array(blocks, np.int64).reshape(-1, 3), skipped, compressed


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
                with_advice(f"{name}: record {records + skipped + count} (counted from 0) at byte {offset} is {damage}")
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

    Nothing in a corrupt member can be trusted, so it is skipped, with all that follows; the readable part of a
    truncated member is intact.
    """
    blocks: list[list[int]] = []
    skipped = member = 0  # the member being read
    checked = 0, 0  # the state before this member: blocks, and records in the last block
    try:
        for first, inner, last, _ in gzip_records(name):
            if last != member:
                progress.update(last - member)
                member, checked = last, (len(blocks), blocks[-1][2] if blocks else 0)
            # Where possible, a block begins with a member.
            if not blocks or blocks[-1][2] >= RECORDS_PER_BLOCK or inner == 0:
                blocks.append([first, inner, 0])
            blocks[-1][2] += 1
    except GzipDamage as damage:
        if damage.member == member and not damage.truncated:
            del blocks[checked[0] :]
            if blocks:
                blocks[-1][2] = checked[1]
        records = sum(block[2] for block in blocks)
        if not skip_corrupt_records:
            raise RecordError(
                f"{damage}, after {records} records; write the file again, or skip what follows with "
                "--skip_corrupt_records"
            ) from damage
        skipped = 1
        logging.warning("%s, after %d records; what follows is skipped", damage, records)
    progress.update(size - member)
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


def _load_index(
    cache_file: str, key: str, files: Sequence[str], sizes: Sequence[int], times: Sequence[int]
) -> RecordIndex | None:
    stored = load_arrays(cache_file, ("key", "skipped", "blocks", "compressed"))
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
    """The first record of a block.

    Raises:
      RecordError: it is damaged; names file and place.
    """
    number, offset, inner, _ = (int(value) for value in index.blocks(block))
    name, size = index.files[number], index.file_sizes[number]
    return payload_at(name, offset, size, inner, index.compressed[number])


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

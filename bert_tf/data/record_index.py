"""Where the records of TFRecord files are: block by block, for reading from any place on.

create_pretraining_data.py leaves an index beside each file that it writes: for `data/a.tfrecord` it is
`data/pretraining_data.a.index.npz`, beside the summary `data/pretraining_data.a.json`. It is taken over if it fits the
file: the size, and where the last block begins. Other files are read at each start, with all checksums.
"""

import dataclasses
import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.data import record_files
from bert_tf.data.record_files import RECORDS_PER_BLOCK, Features
from bert_tf.data.token_rows import permutation
from bert_tf.system.example_bytes import is_frame_head
from bert_tf.system.messages import progress_bar, some
from bert_tf.system.storage import arrays_as_bytes, load_arrays
from bert_tf.system.workers import in_threads

_READ_BUFFER_BYTES = 256 * 1024
_SCANNING_THREADS = 8
_WRITTEN_VERSION = 2


@dataclasses.dataclass(frozen=True)
class RecordIndex:
    """Where the records are: one row for each block of at most 1024 consecutive, intact records.

    Attributes:
      files: names, in reading order.
      file_sizes: bytes of each file when it was indexed.
      file_number, byte_offset, num_records: [blocks] int64; the block's file, where its first frame begins, and its
        number of records.
    """

    files: tuple[str, ...]
    file_sizes: tuple[int, ...]
    file_number: np.ndarray
    byte_offset: np.ndarray
    num_records: np.ndarray

    @property
    def total_records(self) -> int:
        return int(self.num_records.sum())

    @property
    def fingerprint(self) -> str:
        """A digest of everything that the order of batches depends on: equal digests mean the same order.

        It does not include directories, so data may be moved between runs.
        """
        digest = hashlib.sha256()
        digest.update(json.dumps([[*map(os.path.basename, self.files)], list(self.file_sizes)]).encode())
        for row in self.blocks():
            digest.update(row.astype("<i8").tobytes())
        return digest.hexdigest()

    def blocks(self, order=slice(None)) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.file_number[order], self.byte_offset[order], self.num_records[order]

    def first_payloads(self) -> dict[str, tuple[int, bytes]]:
        """File name -> byte offset and payload of its first record, for files that have any."""

        def read(number: int, offset: int) -> tuple[str, tuple[int, bytes]]:
            name = self.files[number]
            _, _, payloads = next(record_files.read_records(name, self.file_sizes[number], offset, most=1))
            return name, (offset, payloads[0])

        first = np.unique(self.file_number, return_index=True)[1]
        return dict(in_threads(read, self.file_number[first].tolist(), self.byte_offset[first].tolist()))


def written_index(blocks: np.ndarray) -> bytes:
    """The content of the index beside a file, as its writer notes it.

    blocks: int64 [blocks, 2]: bytes in the file, and records, of the blocks, which follow each other without a gap.
    """
    return arrays_as_bytes({"version": np.array(_WRITTEN_VERSION), "blocks": blocks.T})


def companion_path(record_file: str, ending: str) -> str:
    """The path of a file that describes a record file: `data/a.tfrecord` -> `data/pretraining_data.a<ending>`.

    Named so that the usual globs for records (data/a*, data/*.tfrecord) leave it out. The number in a name such as
    a.tfrecord-00001 stays, since shards made by separate runs need a file each.
    """
    directory, name = os.path.split(record_file)
    name = re.sub(r"\.tf_?records?", "", name)
    return os.path.join(directory, f"pretraining_data.{name}{ending}")


def index_path(record_file: str) -> str:
    return companion_path(record_file, ".index.npz")


def _written_blocks(record_file: str, size: int) -> np.ndarray | None:
    """The blocks that the index beside a file names; None if there is none, or it does not fit, which is logged."""
    stored = load_arrays(index_path(record_file))
    if stored is None:
        return None
    is_known = {"version", "blocks"} <= stored.keys() and stored["version"].tolist() == _WRITTEN_VERSION
    if is_known and stored["blocks"].shape[:-1] == (2,):
        sizes, counts = stored["blocks"].astype(np.int64)
        is_possible = (sizes > record_files.FRAME_BYTES) & (counts >= 1) & (counts <= RECORDS_PER_BLOCK)
        if sizes.sum() == size and is_possible.all():
            offsets = np.cumsum(sizes) - sizes
            with tf.io.gfile.GFile(record_file, "rb") as file:
                file.seek(int(offsets[-1]) if size else 0)
                if not size or is_frame_head(file.read(12)):
                    return np.stack([offsets, counts], axis=1)
    logging.warning("%s does not fit %s, all of which is read", index_path(record_file), record_file)
    return None


def index_records(files: str | Sequence[str], features: Features | None, *, verify: bool = False) -> RecordIndex:
    """Finds every record of `files`, and compares the first of each file with `features`.

    Files that have an index beside them, as create_pretraining_data.py writes it, are not read for it; their checksums
    are verified when their records are used.

    Args:
      files: TFRecord files, or one, whatever their names.
      features: name -> feature that each record must have; None: not known yet, see `record_files.features_of`.
      verify: read all records of all files now, and verify all checksums.
    """
    files = [os.fspath(name) for name in ([files] if isinstance(files, str | os.PathLike) else files)]
    sizes = [int(stat.length) for stat in in_threads(tf.io.gfile.stat, files)]
    of_files = _scan_files(files, sizes, verify)
    blocks = np.concatenate([np.insert(each, 0, number, axis=1) for number, each in enumerate(of_files)])
    index = RecordIndex(tuple(files), tuple(sizes), *blocks.T)
    if not index.total_records:
        raise record_files.RecordError(f"no records in {some(files)}")
    if empty := sorted(set(range(len(files))) - set(index.file_number.tolist())):
        logging.warning("%d of %d files have no records, the first of them %s", len(empty), len(files), files[empty[0]])
    logging.info("%d records in %d files, %.1f MB", index.total_records, len(files), sum(sizes) / 1e6)
    if features is not None:
        record_files.check_first_records(index.first_payloads(), features)
    return index


def _scan_files(files: Sequence[str], sizes: Sequence[int], verify: bool) -> list[np.ndarray]:
    """The blocks of each file (byte offset, records), int64 [blocks, 2]."""
    blocks_of_files = [None] * len(files) if verify else in_threads(_written_blocks, files, sizes)
    missing = [number for number, blocks in enumerate(blocks_of_files) if blocks is None]
    if len(missing) < len(files):
        count = f"{len(files) - len(missing)} of {len(files)} record files"
        logging.info(f"{count} have an index beside them; --verify_records reads them nevertheless")
    # The bar appears after two seconds.
    total = sum(sizes[number] for number in missing)
    with progress_bar(total=total, desc="indexing records", unit="B", unit_scale=True, delay=2) as progress:

        def scan(number: int) -> None:
            blocks = []
            for begin, end, payloads in record_files.read_records(files[number], sizes[number], most=RECORDS_PER_BLOCK):
                blocks.append((begin, len(payloads)))
                progress.update(end - begin)
            blocks_of_files[number] = np.array(blocks, np.int64).reshape(-1, 2)

        in_threads(scan, missing, threads=_SCANNING_THREADS)
    return blocks_of_files


def window_reader(index: RecordIndex):
    """A function of (*index.blocks(...)), each [blocks] -> serialized records [sum of the counts], in order."""

    def block(name, offset, count):
        # tf.data.TFRecordDataset has no argument for the offset, but its op has. (As the outermost dataset it fails in
        # TF 2.20, which then can't serialize the op into a graph.)
        variant = tf.raw_ops.TFRecordDatasetV2(
            filenames=name[None], compression_type="", buffer_size=_READ_BUFFER_BYTES, byte_offsets=offset[None]
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
    """Yields `index.blocks` of each window and the order of its records.

    `start_record` counts from the start of epoch 0; the first window leaves out the records before it.
    """
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

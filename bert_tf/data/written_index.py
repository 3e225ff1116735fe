"""The index that the writer of a record file leaves beside it, so that a run need not read the whole file to begin.

For `data/a.tfrecord` it is `data/pretraining_data.a.index.npz`, beside the summary `data/pretraining_data.a.json`. It
is trusted if it fits the file: the size, where the last block begins, and in some files a whole block's checksum.
"""

import dataclasses
import os
import re
from collections.abc import Sequence

import google_crc32c
import numpy as np
import tensorflow as tf

from bert_tf.data.gzip_records import FRAME_BYTES, MAGIC, is_frame_head
from bert_tf.system.atomic import arrays_as_bytes, load_arrays

RECORDS_PER_BLOCK = 1024

_VERSION = 1


@dataclasses.dataclass(frozen=True)
class WrittenIndex:
    """The blocks of one record file, which follow each other without a gap.

    Attributes:
      sizes, counts, checksums: int64 [blocks]: bytes in the file, records, and CRC-32C of these bytes; in a compressed
        file a block is a gzip member.
      compressed: whether the file is gzip-compressed.
    """

    sizes: np.ndarray
    counts: np.ndarray
    checksums: np.ndarray
    compressed: bool

    @property
    def offsets(self) -> np.ndarray:
        """int64 [blocks]: the byte where each block begins."""
        return np.cumsum(self.sizes) - self.sizes

    def to_bytes(self) -> bytes:
        """The content of the file."""
        blocks = np.stack([self.sizes, self.counts, self.checksums]).astype(np.int64)
        return arrays_as_bytes({
            "version": np.array(_VERSION), "blocks": blocks, "compressed": np.array(self.compressed),
        })  # fmt: skip


def beside(record_file: str, ending: str) -> str:
    """`data/a.tfrecord` -> `data/pretraining_data.a<ending>`.

    Named so that the usual globs for records (data/a*, data/*.tfrecord) leave it out. The number in a name such as
    a.tfrecord-00001 stays, since shards made by separate runs need a file each.
    """
    directory, name = os.path.split(record_file)
    name = re.sub(r"\.tf_?records?", "", name)
    return os.path.join(directory, f"pretraining_data.{name}{ending}")


def index_path(record_file: str) -> str:
    """Where the index of a record file is."""
    return beside(record_file, ".index.npz")


def read_written_index(record_file: str, size: int) -> tuple[WrittenIndex | None, str | None]:
    """The index beside a file, and why it can't be used although it is there; both None if there is none.

    Args:
      size: of the record file, bytes.
    """
    stored = load_arrays(index_path(record_file))
    if stored is None:
        return None, None
    if {*stored} != {"version", "blocks", "compressed"} or stored["version"].tolist() != _VERSION:
        return None, "is of another version"
    blocks = stored["blocks"]
    if blocks.ndim != 2 or len(blocks) != 3 or blocks.dtype != np.int64 or stored["compressed"].shape != ():
        return None, "is damaged"
    index = WrittenIndex(*blocks, bool(stored["compressed"]))
    if index.sizes.sum() != size:
        return None, f"is of a file of {index.sizes.sum()} bytes, which now has {size}"
    if (index.sizes <= FRAME_BYTES).any() or (index.counts < 1).any() or (index.counts > RECORDS_PER_BLOCK).any():
        return None, "is damaged"
    return index, _misfit(record_file, index)


def _misfit(record_file: str, index: WrittenIndex) -> str | None:
    """Whether the last block is not where it should be."""
    if not len(index.sizes):
        return None
    with tf.io.gfile.GFile(record_file, "rb") as file:
        file.seek(int(index.offsets[-1]))
        head = file.read(12)
    fits = head[:3] == MAGIC if index.compressed else is_frame_head(head)
    return None if fits else "is of another file of this size"


def block_number(record_file: str, blocks: int) -> int:
    """Which block of a file is checked: another one for each file."""
    return google_crc32c.value(os.path.basename(record_file).encode()) % blocks


def block_misfit(record_file: str, index: WrittenIndex) -> str | None:
    """Reads one block and says if its bytes are not those that were written."""
    if not len(index.sizes):
        return None
    block = block_number(record_file, len(index.sizes))
    begin, size = int(index.offsets[block]), int(index.sizes[block])
    with tf.io.gfile.GFile(record_file, "rb") as file:
        file.seek(begin)
        content = file.read(size)
    if google_crc32c.value(content) != index.checksums[block]:
        return f"has another checksum for the {size} bytes from byte {begin} on"
    return None


def spread(count: int, wanted: int) -> Sequence[int]:
    """At most `wanted` of range(count), evenly spread, the first and the last among them."""
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, wanted))})

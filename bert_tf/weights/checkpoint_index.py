"""The index of a TensorFlow checkpoint, read without TensorFlow: names, shapes, and where the values are.

The file is a sorted table of blocks, LevelDB's format: a footer leads to a block that lists the blocks, and each entry
shares the beginning of its key with the one before. A key is a tensor's name, its value a `BundleEntryProto`.
Source of the format: tensorflow/core/protobuf/tensor_bundle.proto and tensorflow/core/lib/io/table_format.txt.
"""

import dataclasses
import posixpath
import struct
from collections.abc import Iterator

import google_crc32c

from bert_tf.system.text_files import exists, open_binary, size_of

INDEX_SUFFIX = ".index"
DATA_SUFFIX = ".data-00000-of-00001"

_FOOTER_BYTES, _MAGIC = 48, 0xDB4775248B80FB57
_TRAILER_BYTES = 5  # of a block: its compression, and a checksum
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # kinds of fields in a protocol buffer
_NOT_COMPRESSED = 0  # TensorFlow writes the blocks of checkpoints as they are


class DamagedError(ValueError):
    """A checkpoint can't be read, or only in part; the message names it."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where the value of a tensor is: its file (a number), first byte and size; and its shape."""

    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int


def read_places(prefix: str) -> dict[str, Place]:
    """Name -> place of all tensors of a checkpoint.

    Raises:
      DamagedError: the index is damaged, or a file of values is missing or too short; names the checkpoint.
    """
    path = prefix + INDEX_SUFFIX
    with open_binary(path) as file:
        content = file.read()
    try:
        entries = dict(_entries(content))
        shards = max(dict(_fields(entries.pop(b""))).get(1, 1), 1)
        places = {key.decode(): _place(value) for key, value in entries.items() if not key.startswith(b"\0")}
    except (ValueError, IndexError, KeyError, TypeError, struct.error) as error:
        reason = "it is a pointer of Git LFS; `git lfs pull` gets the file" if is_lfs_pointer(content) else error
        raise DamagedError(f"{prefix}: can't be read as a TensorFlow checkpoint: {path}: {reason}.") from error
    for shard in range(shards):
        data = f"{prefix}.data-{shard:05d}-of-{shards:05d}"
        needed = max((place.offset + place.size for place in places.values() if place.shard == shard), default=0)
        there = size_of(data) if exists(data) else None
        if there is None or there < needed:
            reason = "is missing" if there is None else f"has {there:,} bytes of at least {needed:,}"
            raise DamagedError(f"{prefix}: its values can't be read: {data} {reason}. {advice_on_damage(prefix)}.")
    return places


def advice_on_damage(prefix: str) -> str:
    """What to do about a damaged checkpoint; only a run's own has a predecessor."""
    is_of_a_run = posixpath.basename(prefix).startswith("model.ckpt-")
    advice = "A run that has not finished goes on from the one before it, if there is one"
    return advice if is_of_a_run else "Copy or download it again"


def is_lfs_pointer(content: bytes) -> bool:
    """Whether a file begins as what Git leaves in the place of a large one that was not downloaded."""
    return content.startswith(b"version https://git-lfs")


def _entries(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a table, in their order."""
    footer = content[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or struct.unpack("<Q", footer[-8:])[0] != _MAGIC:
        raise ValueError("its end is not that of a table")
    _, at = _varint(footer, 0)
    _, at = _varint(footer, at)
    for _, handle in _of_block(content, *_handle(footer, at)):
        yield from _of_block(content, *_handle(handle, 0))


def _handle(content: bytes, at: int) -> tuple[int, int]:
    offset, at = _varint(content, at)
    return offset, _varint(content, at)[0]


def _of_block(content: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    block, trailer = content[offset : offset + size], content[offset + size : offset + size + _TRAILER_BYTES]
    kind, checksum = struct.unpack("<BI", trailer)
    own = google_crc32c.value(block + trailer[:1])
    if checksum != ((own >> 15 | own << 17) + 0xA282EAD8) & 0xFFFFFFFF:
        raise ValueError(f"the block at byte {offset} does not match its checksum")
    if kind != _NOT_COMPRESSED:
        raise ValueError(f"the block at byte {offset} is compressed")
    end = size - 4 * (1 + struct.unpack("<I", block[-4:])[0])  # before the list of whole keys
    key, at = b"", 0
    while at < end:
        shared, at = _varint(block, at)
        own_bytes, at = _varint(block, at)
        value_bytes, at = _varint(block, at)
        key = key[:shared] + block[at : at + own_bytes]
        at += own_bytes + value_bytes
        yield key, block[at - value_bytes : at]


def _place(value: bytes) -> Place:
    found = dict(_fields(value))
    dimensions = [dict(_fields(part)).get(1, 0) for number, part in _fields(found.get(2, b"")) if number == 2]
    return Place(tuple(dimensions), *(found.get(number, 0) for number in (3, 4, 5)))


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values of the fields of a protocol buffer."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
        else:
            size, at = _varint(message, at) if kind == _BYTES else ({_FIXED64: 8, _FIXED32: 4}[kind], at)
            value, at = message[at : at + size], at + size
        yield tag >> 3, value


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """A number that is written seven bits a byte, lowest first, and the place after it."""
    number = shift = 0
    while True:
        byte = content[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at

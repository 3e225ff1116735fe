"""The bytes of tf.train.Example records, and the checksum of the frames around them.

They are encoded by hand because the protocol buffer classes take three times as long. A message is a series of fields,
each a key byte (8 * field number + wire type) and a value; nested messages and packed lists are a length and bytes. The
field numbers: Example.features 1, Features.feature 1 (key 1, value 2), Feature.float_list 2, int64_list 3, value 1.
"""

import operator
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import google_crc32c

_INT64_LIST, _FLOAT_LIST = b"\x1a", b"\x12"
_VARINT, _BYTES, _FIXED_BYTES = 0, 2, {1: 8, 5: 4}  # wire types


class _Varints(dict):
    """number -> its varint, computed on demand: seven bits per byte, lowest first, high bit set in all but the last."""

    def __missing__(self, number: int) -> bytes:
        encoded, rest = bytearray(), operator.index(number)
        while rest > 0x7F:
            encoded.append(rest & 0x7F | 0x80)
            rest >>= 7
        encoded.append(rest)
        result = bytes(encoded)
        if number < 1 << 20:  # ids and lengths repeat, unique numbers don't
            self[number] = result
        return result


_varints = _Varints()


def crc32c(contents: Iterable[bytes]) -> str:
    """The CRC-32C of contents that follow each other, 8 hexadecimal digits."""
    checksum = google_crc32c.Checksum()
    for content in contents:
        checksum.update(content)
    return checksum.hexdigest().decode()


def masked_crc32c(data: bytes) -> int:
    """The checksum of TFRecord frames: CRC-32C, rotated and shifted."""
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def is_frame_head(head: bytes) -> bool:
    """Whether these are the first 12 bytes of a record's frame: a length, and its checksum."""
    return len(head) == 12 and struct.unpack("<I", head[8:])[0] == masked_crc32c(head[:8])


def pack(numbers: Sequence[int]) -> bytes:
    """Non-negative numbers as the content of an int64 list. Numbers below 128 take one byte each: `bytes(numbers)`."""
    return b"".join(map(_varints.__getitem__, numbers))


def field(key: bytes, value: bytes) -> bytes:
    """A field of bytes, a text or a message; `key` is 8 * its number + 2."""
    return key + _varints[len(value)] + value


def _feature(name: bytes, kind: bytes, packed: bytes) -> bytes:
    return field(b"\x0a", field(b"\x0a", name) + field(b"\x12", field(kind, field(b"\x0a", packed))))


def int64_feature(name: bytes, packed: bytes) -> bytes:
    return _feature(name, _INT64_LIST, packed)


def float_feature(name: bytes, values: Sequence[float]) -> bytes:
    return _feature(name, _FLOAT_LIST, struct.pack(f"<{len(values)}f", *values))


def example(features: Iterable[bytes]) -> bytes:
    return field(b"\x0a", b"".join(features))


def decoded_features(serialized: bytes) -> dict[str, tuple[str | None, list]]:
    """The features of a tf.train.Example by their names, sorted: kind (int64_list, ...; None: of none) and values."""
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    try:
        features = tf.train.Example.FromString(serialized).features.feature
    except DecodeError:
        raise ValueError("is not a tf.train.Example") from None
    kinds = {name: feature.WhichOneof("kind") for name, feature in sorted(features.items())}
    return {name: (kind, list(getattr(features[name], kind).value) if kind else []) for name, kind in kinds.items()}


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values of the fields of a message: integers, or bytes."""
    at = 0
    while at < len(message):
        key, at = varint(message, at)
        if key & 7 == _VARINT:
            value, at = varint(message, at)
        else:
            size, at = varint(message, at) if key & 7 == _BYTES else (_FIXED_BYTES[key & 7], at)
            value, at = message[at : at + size], at + size
        if at > len(message):
            raise ValueError("cut off")
        yield key >> 3, value


def varint(content: bytes, at: int) -> tuple[int, int]:
    """A number that is written as a varint, and the place after it."""
    number = shift = 0
    while True:
        byte = content[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at

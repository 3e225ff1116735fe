"""The bytes of tf.train.Example records.

They are encoded by hand because the protocol buffer classes take three times as long. A message is a series of fields,
each a key byte (8 * field number + wire type) and a value; nested messages and packed lists are a length and bytes. The
field numbers: Example.features 1, Features.feature 1 (a map: key 1, value 2), Feature.float_list 2 and int64_list 3,
with value 1.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence

_INT64_LIST, _FLOAT_LIST = b"\x1a", b"\x12"


class _Varints(dict):
    """number -> its varint, computed on demand: seven bits per byte, lowest first, high bit set in all but the last."""

    def __missing__(self, number: int) -> bytes:
        if number < 0:
            raise ValueError(f"{number} is negative")
        encoded, rest = bytearray(), int(number)
        while rest > 0x7F:
            encoded.append(rest & 0x7F | 0x80)
            rest >>= 7
        encoded.append(rest)
        result = bytes(encoded)
        if number < 1 << 20:  # ids and lengths repeat, unique numbers don't
            self[number] = result
        return result


_varints = _Varints()


def pack(numbers: Sequence[int]) -> bytes:
    """Non-negative numbers as the content of an int64 list. Numbers below 128 take one byte each: `bytes(numbers)`."""
    return b"".join(map(_varints.__getitem__, numbers))


def _field(key: bytes, value: bytes) -> bytes:
    return key + _varints[len(value)] + value


def _feature(name: bytes, kind: bytes, packed: bytes) -> bytes:
    return _field(b"\x0a", _field(b"\x0a", name) + _field(b"\x12", _field(kind, _field(b"\x0a", packed))))


def int64_feature(name: bytes, packed: bytes) -> bytes:
    """A feature of integers that `pack` encoded."""
    return _feature(name, _INT64_LIST, packed)


def float_feature(name: bytes, values: Sequence[float]) -> bytes:
    """A feature of float32 values."""
    return _feature(name, _FLOAT_LIST, struct.pack(f"<{len(values)}f", *values))


def example(features: Iterable[bytes]) -> bytes:
    """A serialized tf.train.Example of features."""
    return _field(b"\x0a", b"".join(features))


def feature_names(serialized: bytes) -> list[str]:
    """The sorted names of the features of a tf.train.Example.

    Raises:
      ValueError: it is not one; the end of a sentence.
    """
    names = []
    try:
        for features in _values(serialized):
            for entry in _values(features):
                names += [name.decode() for name in _values(entry)]
    except (IndexError, ValueError):
        raise ValueError("is not a tf.train.Example") from None
    return sorted(names)


def _values(message: bytes) -> Iterator[bytes]:
    """Yields the values of field 1 of a message, all of whose fields are messages or strings.

    Raises:
      IndexError, ValueError: it is not such a message.
    """
    at = 0
    while at < len(message):
        key, size, shift = message[at], 0, 0
        at += 1
        while message[at] > 0x7F:
            size, shift, at = size | (message[at] & 0x7F) << shift, shift + 7, at + 1
        size |= message[at] << shift
        value = message[at + 1 : at + 1 + size]
        at += 1 + size
        if key & 7 != 2 or at > len(message):
            raise ValueError
        if key == 0x0A:
            yield value

"""Files of features: JSON lines as the original writes them, NumPy's npz, and TFRecords.

Each is written piece by piece under a temporary name and then renamed, so that it needs little memory and is there
complete or not at all.

Shape legend: T tokens (or words) of all lines, L requested layers, H hidden size.
"""

import contextlib
import dataclasses
import json
import re
import zipfile
from collections.abc import Callable, Iterator

import numpy as np
import orjson
import tensorflow as tf

from bert_tf.system.example_bytes import field
from bert_tf.system.storage import written

_ROWS_AT_ONCE = 512  # the numbers of this many tokens and layers are turned into text together
# NumPy's arrays of strings are as wide as the longest: one of a megabyte must not make them all so.
_LONGEST_NAME_IN_NPZ = 100
# orjson writes 0.00001 and 1e16 where Python writes 1e-05 and 1e+16.
_WRITTEN_OTHERWISE = re.compile(rb"\b0\.0000\d+|[\d.]+e\d+")


@dataclasses.dataclass(frozen=True)
class Entries:
    """What the rows of values are of: word pieces, words, or lines.

    offsets: int64 [lines + 1], the lines' first entries. names: of the entries from one number up to another.
    longest_name: its characters. ids: int32 [T], of word pieces.
    """

    offsets: np.ndarray
    names: Callable[[int, int], list[str]]
    longest_name: int
    ids: np.ndarray | None = None

    @property
    def count(self) -> int:
        return int(self.offsets[-1])


Write = Callable[[range, np.ndarray], None]


@contextlib.contextmanager
def open_writer(path: str, output_format: str, layers: tuple, hidden_size: int, entries: Entries) -> Iterator[Write]:
    """A function that adds the values [entries, L, H] of the next lines to a file, which gets its name in the end."""
    with written(path) as temporary:
        if output_format == "json":
            with tf.io.gfile.GFile(temporary, "wb") as file:

                def write_lines(lines: range, values: np.ndarray) -> None:
                    for line in _json_lines(lines, values, layers, entries):
                        file.write(line)

                yield write_lines
        elif output_format == "npz":
            with _open_npz(temporary, layers, (entries.count, len(layers), hidden_size), entries) as write:
                yield write
        else:
            with tf.io.TFRecordWriter(temporary) as writer:
                yield lambda lines, values: _write_examples(writer, lines, values, layers, entries)


def rows_to_json(values: np.ndarray) -> list[bytes]:
    """For each row of float32 values [N, H] its numbers, rounded to 6 decimals, as in a JSON list without brackets.

    The same characters as `json.dumps` of Python's round(number, 6): a float32 has 24 bits and a million 14 next to its
    factor 2^6, so that NumPy's product is exact in a double and its ties are decided as Python's are.
    """
    rounded = np.round(values.astype(np.float64), 6)
    if not np.isfinite(rounded).all():
        return [json.dumps(row)[1:-1].encode() for row in rounded.tolist()]
    text = orjson.dumps(rounded, option=orjson.OPT_SERIALIZE_NUMPY)[2:-2]
    text = _WRITTEN_OTHERWISE.sub(lambda match: repr(float(match[0])).encode(), text)
    return text.replace(b",", b", ").split(b"], [") if len(values) else []


def _json_lines(lines: range, values: np.ndarray, layers: tuple[int, ...], entries: Entries) -> Iterator[bytes]:
    heads = [b'{"index": %d, "values": [' % layer for layer in layers]

    def layers_of_entries() -> Iterator[bytes]:
        step = max(_ROWS_AT_ONCE // len(layers), 1)
        for start in range(0, len(values), step):
            part = values[start : start + step]
            numbers = iter(rows_to_json(part.reshape(-1, part.shape[-1])))
            for _ in range(len(part)):
                yield b"]}, ".join([head + next(numbers) for head in heads])

    texts = layers_of_entries()
    for line in lines:
        names = entries.names(int(entries.offsets[line]), int(entries.offsets[line + 1]))
        parts = [b'{"token": %s, "layers": [%s]}]}' % (json.dumps(name).encode(), next(texts)) for name in names]
        # "linex_index" is the original's name.
        yield b'{"linex_index": %d, "features": [%s]}\n' % (line, b", ".join(parts))


class _Stream:
    """A file that zipfile writes to from the beginning to the end: TensorFlow's files can't go back."""

    def __init__(self, file):
        self._file, self.flush = file, file.flush

    def write(self, data) -> int:
        self._file.write(bytes(data))
        return len(data)


@contextlib.contextmanager
def _open_npz(path: str, layers: tuple[int, ...], shape: tuple[int, int, int], entries: Entries) -> Iterator[Write]:
    @contextlib.contextmanager
    def member_of(archive, name: str, dtype: str, shape: tuple):
        head = {"descr": dtype, "fortran_order": False, "shape": shape}
        with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array_header_1_0(member, head)

            def write(array) -> None:
                flat = np.asarray(array, dtype).reshape(-1)
                for start in range(0, len(flat), 1 << 18):  # some megabytes at a time: they are copied on their way
                    member.write(flat[start : start + (1 << 18)].tobytes())

            yield write

    with tf.io.gfile.GFile(path, "wb") as file, zipfile.ZipFile(_Stream(file), "w") as archive:
        arrays = {"layers": np.array(layers, "<i4"), "offsets": np.asarray(entries.offsets, "<i8")}
        arrays |= {} if entries.ids is None else {"token_ids": np.asarray(entries.ids, "<i4")}
        for name, values in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, values)
        with member_of(archive, "tokens", f"<U{min(entries.longest_name, _LONGEST_NAME_IN_NPZ)}", shape[:1]) as write:
            for start in range(0, entries.count, 1 << 16):
                write(entries.names(start, min(start + (1 << 16), entries.count)))
        with member_of(archive, "values", "<f4", shape) as write:
            yield lambda lines, values: write(values)


def _write_examples(writer, lines: range, values: np.ndarray, layers: tuple[int, ...], entries: Entries) -> None:
    def integers(numbers) -> tf.train.Feature:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=numbers))

    offsets = entries.offsets[lines.start : lines.stop + 1].tolist()
    for line, start, end in zip(lines, offsets, offsets[1:], strict=False):
        names = [name.encode() for name in entries.names(start, end)]
        # In a protocol buffer, floats are a key and a field of bytes: they are not made one by one.
        data = np.ascontiguousarray(values[start - offsets[0] : end - offsets[0]], "<f4").tobytes()
        feature = {
            "line_index": integers([line]),
            "layers": integers(layers),
            "tokens": tf.train.Feature(bytes_list=tf.train.BytesList(value=names)),
            "values": tf.train.Feature(float_list=tf.train.FloatList.FromString(field(b"\x0a", data))),
        }
        if entries.ids is not None:
            feature["token_ids"] = integers(entries.ids[start:end].tolist())
        writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())

"""Files of features: JSON lines as the original writes them, NumPy's npz, and TFRecords.

Each is written piece by piece under a temporary name and then renamed, so that it needs little memory and is there
complete or not at all.

Shape legend: T tokens (or words) of all lines, L layers asked for, H hidden size.
"""

import contextlib
import dataclasses
import itertools
import json
import tempfile
import zipfile
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from bert_tf.system.atomic import written
from bert_tf.system.example_bytes import pack

FORMATS = ("json", "npz", "tfrecord")

_ROWS_AT_ONCE = 512  # the numbers of this many tokens and layers are turned into text together
# NumPy's arrays of strings are as wide as the longest: one of a megabyte must not make them all so.
LONGEST_NAME_IN_NPZ = 100


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What will be written, known before the first value is computed.

    Attributes:
      lines, tokens: of the input; tokens are word pieces with [CLS] and [SEP], cut to max_seq_length.
      entries: rows of values: the tokens, or the words. longest_name: characters of an entry's name.
      truncated: lines that were cut.
    """

    lines: int
    tokens: int
    entries: int
    longest_name: int
    truncated: int


@dataclasses.dataclass(frozen=True)
class Features:
    """Features of some consecutive lines.

    Attributes:
      first_line: number of the first, from 0. offsets: int64 [lines + 1]: entries of each line.
      names: of the entries: word pieces or words. ids: their ids in the vocabulary; None for words.
      values: float32 [entries, L, H].
    """

    first_line: int
    offsets: np.ndarray
    names: list[str]
    ids: np.ndarray | None
    values: np.ndarray


Write = Callable[[Features], None]


@contextlib.contextmanager
def open_writer(
    path: str, output_format: str, layers: tuple[int, ...], hidden_size: int, sizes: Sizes, pooling: str
) -> Iterator[Write]:
    """A function that adds the features of the next lines to a file, which gets its name when all went well.

    Args:
      output_format: one of FORMATS.
      layers: as asked for; they are written with the values.

    Raises:
      tf.errors.OpError, OSError: the file can't be written; an earlier file stays as it was.
    """
    shape = (sizes.entries, len(layers), hidden_size)
    with written(path) as temporary:
        if output_format == "json":
            opened = _json_lines(temporary, layers)
        elif output_format == "npz":
            opened = _npz(temporary, layers, shape, sizes, pooling)
        else:
            opened = _records(temporary, layers)
        with opened as write:
            yield write


@contextlib.contextmanager
def _json_lines(path: str, layers: tuple[int, ...]) -> Iterator[Write]:
    from bert_tf.tasks.features.json_numbers import rows_to_json

    heads = [b'{"index": %d, "values": [' % layer for layer in layers]
    beginnings: dict[str, bytes] = {}

    def texts_of(values: np.ndarray) -> Iterator[bytes]:
        """The layers of each entry as JSON."""
        step = max(_ROWS_AT_ONCE // len(layers), 1)
        for start in range(0, len(values), step):
            part = values[start : start + step]
            numbers = rows_to_json(part.reshape(-1, part.shape[-1]))
            for first in range(0, len(numbers), len(layers)):
                own = numbers[first : first + len(layers)]
                yield b"]}, ".join([head + text for head, text in zip(heads, own, strict=True)])

    with tf.io.gfile.GFile(path, "wb") as file:

        def write(features: Features) -> None:
            texts = texts_of(features.values)
            offsets = features.offsets.tolist()
            for line in range(len(offsets) - 1):
                parts = []
                for name in features.names[offsets[line] : offsets[line + 1]]:
                    if (beginning := beginnings.get(name)) is None:
                        if len(beginnings) > 100_000:
                            beginnings.clear()
                        beginning = beginnings[name] = b'{"token": %s, "layers": [' % json.dumps(name).encode()
                    parts.append(beginning + next(texts) + b"]}]}")
                # "linex_index" is the original's name.
                number = features.first_line + line
                file.write(b'{"linex_index": %d, "features": [%s]}\n' % (number, b", ".join(parts)))

        yield write


class _Stream:
    """A file that zipfile only writes to, from the beginning to the end: TensorFlow's files can't go back."""

    def __init__(self, file):
        self._file, self.flush = file, file.flush

    def write(self, data) -> int:
        """Bytes written: all."""
        self._file.write(bytes(data))
        return len(data)


@contextlib.contextmanager
def _npz(path: str, layers: tuple[int, ...], shape: tuple, sizes: Sizes, pooling: str) -> Iterator[Write]:
    def put_head(member, dtype, shape: tuple) -> None:
        head = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(member, head)

    width = min(sizes.longest_name, LONGEST_NAME_IN_NPZ)
    columns = {"tokens": (f"<U{width}", shape[:1]), "offsets": ("<i8", (sizes.lines + 1,))}
    if pooling == "none":
        columns["token_ids"] = ("<i4", shape[:1])
    with contextlib.ExitStack() as stack:
        # An archive takes one array after the other: the smaller ones wait on the disk.
        waiting = {name: stack.enter_context(tempfile.TemporaryFile()) for name in columns}
        file = stack.enter_context(tf.io.gfile.GFile(path, "wb"))
        archive = stack.enter_context(zipfile.ZipFile(_Stream(file), "w"))
        place = 0
        waiting["offsets"].write(np.zeros(1, "<i8").tobytes())
        with archive.open("values.npy", "w", force_zip64=True) as member:
            put_head(member, "<f4", shape)

            def write(features: Features) -> None:
                nonlocal place
                values = np.ascontiguousarray(features.values, "<f4").reshape(-1)
                for start in range(0, len(values), 1 << 18):  # a megabyte at a time: it is copied on its way
                    member.write(values[start : start + (1 << 18)].tobytes())
                arrays = {"tokens": features.names, "offsets": place + features.offsets[1:], "token_ids": features.ids}
                for name, column in waiting.items():
                    column.write(np.asarray(arrays[name], columns[name][0]).tobytes())
                place += len(features.names)

            yield write
        for name, column in waiting.items():
            column.seek(0)
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                put_head(member, *columns[name])
                while block := column.read(1 << 20):
                    member.write(block)
        with archive.open("layers.npy", "w") as member:
            np.lib.format.write_array(member, np.array(layers, np.int32))


@contextlib.contextmanager
def _records(path: str, layers: tuple[int, ...]) -> Iterator[Write]:
    def integers(numbers) -> tf.train.Feature:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=numbers))

    def floats(values: np.ndarray) -> tf.train.Feature:
        # A list of floats in a protocol buffer is a key, its length in bytes and the bytes: read as such it need not
        # be made number by number.
        data = np.ascontiguousarray(values, "<f4").tobytes()
        return tf.train.Feature(float_list=tf.train.FloatList.FromString(b"\x0a" + pack([len(data)]) + data))

    with tf.io.TFRecordWriter(path) as writer:

        def write(features: Features) -> None:
            offsets = features.offsets.tolist()
            for line, (start, end) in enumerate(itertools.pairwise(offsets)):
                names = [name.encode() for name in features.names[start:end]]
                feature = {
                    "line_index": integers([features.first_line + line]),
                    "layers": integers(layers),
                    "tokens": tf.train.Feature(bytes_list=tf.train.BytesList(value=names)),
                    "values": floats(features.values[start:end]),
                }
                if features.ids is not None:
                    feature["token_ids"] = integers(features.ids[start:end].tolist())
                writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())

        yield write

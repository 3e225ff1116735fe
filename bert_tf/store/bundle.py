"""TensorFlow checkpoints (a pair of .index and .data): found and read without TensorFlow, written by it.

The index is a sorted table of blocks, LevelDB's format: a footer leads to a block that lists the blocks, and each entry
shares the beginning of its key with the one before. A key is a tensor's name, its value a `BundleEntryProto`, which
says where the bytes of the value are.
Source of the format: tensorflow/core/protobuf/tensor_bundle.proto and tensorflow/core/lib/io/table_format.txt.
"""

import codecs
import dataclasses
import math
import os
import posixpath
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from bert_tf.store.tensor_files import Weights
from bert_tf.store.variable_names import other_slots, with_our_names
from bert_tf.system.example_bytes import fields, masked_crc32c, varint
from bert_tf.system.messages import abbreviated_list, warn_once
from bert_tf.system.storage import names_in, paths_beginning_with
from bert_tf.system.text_files import Folder, exists, open_binary, read_bytes, size_of

INDEX_SUFFIX = ".index"
DATA_SUFFIX = ".data-00000-of-00001"
# The key of the object graph in every object-based (TF2) checkpoint.
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"

_HUB_SCOPE = "module/"  # of the encoder in TF1 Hub modules

# Smaller models are always one file, however their sizes are spread.
_SHARDED_FROM_BYTES = 1 << 28

_LARGEST_POINTER = 1024  # of Git LFS, in bytes; reading one raises an error
_FOOTER_BYTES, _MAGIC = 48, 0xDB4775248B80FB57
_TRAILER_BYTES = 5  # of a block: its compression, and a checksum
_NOT_COMPRESSED = 0  # TensorFlow writes the blocks of checkpoints as they are
# TensorFlow's numbers for types of values (types.proto).
_STRING, _BFLOAT16 = 7, 14
_TYPES = {1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 6: "i1", 9: "<i8", 10: "?", _BFLOAT16: "<u2", 19: "<f2"}


class DamagedError(ValueError):
    """A checkpoint can't be read, or only in part; the message names it."""


@dataclasses.dataclass(frozen=True)
class _Entry:
    """Of a tensor; shard: the number of its file. A TF1 variable that was partitioned has parts in other entries."""

    type: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    is_partitioned: bool


class CheckpointReader:
    """An open TensorFlow checkpoint, whose values are read on demand."""

    def __init__(self, prefix: str):
        self.prefix, path = prefix, prefix + INDEX_SUFFIX
        content = read_bytes(path)
        try:
            entries = dict(_entries(content))
            self._shards = max(dict(fields(entries.pop(b""))).get(1, 1), 1)
            self._tensors = {key.decode(): _entry(value) for key, value in entries.items() if key[:1] != b"\0"}
        except (ValueError, IndexError, KeyError, TypeError, struct.error) as error:
            raise DamagedError(f"{prefix}: can't be read as a TensorFlow checkpoint: {path}: {error}.") from error
        for shard in range(self._shards):  # before anything else takes time
            ends = (part.offset + part.size for part in self._tensors.values() if part.shard == shard)
            size = size_of(data) if exists(data := self._file(shard)) else -1
            if size < max(ends, default=0):
                if 0 <= size < _LARGEST_POINTER:
                    read_bytes(data)
                raise DamagedError(f"{prefix}: its values can't be read: {data} is missing or cut off.")

    def has_tensor(self, name: str) -> bool:
        return name in self._tensors

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        return {name: list(entry.shape) for name, entry in self._tensors.items()}

    def get_tensor(self, name: str) -> Any:
        entry = self._tensors[name]
        if entry.is_partitioned:
            import tensorflow as tf

            return tf.train.load_checkpoint(self.prefix).get_tensor(name)
        try:
            with open_binary(self._file(entry.shard)) as file:
                file.seek(entry.offset)
                content = file.read(entry.size)
            if entry.type == _STRING:  # behind its length and the length's checksum
                length, at = varint(content, 0)
                _check(entry.checksum, struct.pack("<I", length) + content[at:])
                return content[at + 4 :]
            _check(entry.checksum, content)
            value = np.frombuffer(content, _TYPES[entry.type]).reshape(entry.shape)
        except (ValueError, IndexError, KeyError, OSError, struct.error) as error:
            raise DamagedError(f"{self.prefix}: {name} can't be read: {error!r}.") from error
        return (value.astype("<u4") << 16).view("<f4") if entry.type == _BFLOAT16 else value

    def _file(self, shard: int) -> str:
        return f"{self.prefix}.data-{shard:05d}-of-{self._shards:05d}"


def open_checkpoint(prefix: str) -> Weights:
    """A checkpoint of TF1; of values that optimizers keep, Adam's alone are among its tensors."""
    reader = CheckpointReader(prefix)
    shapes_of_file = reader.get_variable_to_shape_map()
    origins = {name.removeprefix(_HUB_SCOPE): name for name in sorted(shapes_of_file)}
    unused = {origins.pop(name): "of an optimizer" for name in other_slots(origins)}
    shapes = {name: tuple(shapes_of_file[origin]) for name, origin in origins.items()}
    return with_our_names(Weights(prefix, "tf1", shapes, origins, lambda key: reader.get_tensor(origins[key]), unused))


def _check(masked: int, content: bytes) -> None:
    if masked != masked_crc32c(content):
        raise ValueError("it does not match its checksum")


def _entries(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    footer = content[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or struct.unpack("<Q", footer[-8:])[0] != _MAGIC:
        raise ValueError("its end is not that of a table")
    _, at = varint(footer, 0)
    _, at = varint(footer, at)
    for _, handle in _of_block(content, footer[at:]):
        yield from _of_block(content, handle)


def _of_block(content: bytes, handle: bytes) -> Iterator[tuple[bytes, bytes]]:
    offset, at = varint(handle, 0)
    size, _ = varint(handle, at)
    block, trailer = content[offset : offset + size], content[offset + size : offset + size + _TRAILER_BYTES]
    kind, checksum = struct.unpack("<BI", trailer)
    _check(checksum, block + trailer[:1])
    if kind != _NOT_COMPRESSED:
        raise ValueError(f"the block at byte {offset} is compressed")
    end = size - 4 * (1 + struct.unpack("<I", block[-4:])[0])  # before the list of whole keys
    key, at = b"", 0
    while at < end:
        shared, at = varint(block, at)
        unshared, at = varint(block, at)
        value_bytes, at = varint(block, at)
        key = key[:shared] + block[at : at + unshared]
        at += unshared + value_bytes
        yield key, block[at - value_bytes : at]


def _entry(value: bytes) -> _Entry:
    parts = dict(fields(value))
    dimensions = [dict(fields(part)).get(1, 0) for number, part in fields(parts.get(2, b"")) if number == 2]
    shard, offset, size = (parts.get(number, 0) for number in (3, 4, 5))
    checksum = int.from_bytes(parts.get(6, b""), "little")
    return _Entry(parts.get(1, 0), tuple(dimensions), shard, offset, size, checksum, 7 in parts)


# --- writing ---------------------------------------------------------------------------------------------------------


def write_bundle(prefix: str, tensors: Mapping) -> None:
    """Writes tensors in the format of TF1's Saver, version 2; those whose largest are a good part of the whole
    (ALBERT-xxlarge) as shards, one of which is in memory at a time."""
    import tensorflow as tf

    shards = _shards(tensors)
    prefixes = [prefix] if len(shards) == 1 else [f"{prefix}_shard_{number}" for number in range(len(shards))]
    for path, names in zip(prefixes, shards, strict=True):
        values = [tensor_value(tensors[name]) for name in names]
        tf.raw_ops.SaveV2(prefix=path, tensor_names=names, shape_and_slices=[""] * len(values), tensors=values)
        del values
    if len(shards) > 1:
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=prefixes, destination_prefix=prefix, delete_old_dirs=False, allow_missing_files=False
        )


def _shards(tensors: Mapping) -> list[list[str]]:
    """Names by shard, the largest first: copies that are made while they are read are gone before memory is full."""
    shapes = tensors.shapes if isinstance(tensors, Weights) else {}
    sizes = {name: 4 * math.prod(shape) for name, shape in shapes.items()}
    names = sorted(tensors, key=lambda name: -sizes.get(name, 0))
    total, largest = sum(sizes.values()), max(sizes.values(), default=0)
    if total < _SHARDED_FROM_BYTES or largest < total / 8:
        return [names]
    shards, room = [], 0
    for name in names:
        if sizes[name] > room:
            shards.append([])
            room = largest
        shards[-1].append(name)
        room -= sizes[name]
    return shards


def tensor_value(tensor):
    import keras
    import tensorflow as tf

    if isinstance(tensor, keras.Variable):
        value = tf.convert_to_tensor(tensor.value)
        # The original's global_step is int64; Keras counts steps in int32.
        return tf.cast(value, tf.int64) if value.dtype == tf.int32 else value
    # The op frees memory: TensorFlow releases NumPy arrays that it has copied only when an op runs.
    return tf.identity(tf.convert_to_tensor(tensor))


# --- finding ---------------------------------------------------------------------------------------------------------


def latest_checkpoint(output_dir: str) -> str | None:
    return next(iter(checkpoints_among(names_in(output_dir), output_dir)), None)


def checkpoints_among(names: Sequence[str], output_dir: str) -> list[str]:
    """The prefix of the checkpoint that the state file names, or, with a warning, of the newest one that is there, and
    those of older ones of the same run, the newest first. names: of all files there."""
    with_values = {name.partition(".data-")[0] for name in names if ".data-" in name}
    left = [posixpath.join(output_dir, name) for name in steps_among(names).values() if name in with_values]
    newest, _ = checkpoint_state(output_dir)
    if newest and exists(newest + INDEX_SUFFIX) and data_files(newest):
        older = left[: left.index(newest)] if newest in left else []
        return [newest, *reversed(older)]
    if left:
        logging.warning("%s names no checkpoint that is there; %s is the newest.", f"{output_dir}/checkpoint", left[-1])
    return left[::-1]


_INDEX_OF_STEP = re.compile(r"(model\.ckpt-(\d+))\.index")
_STATE_LINE = re.compile(rb'\s*(\w+):\s*(?:"((?:[^"\\\\]|\\\\.)*)"|[\d.e+-]+)\s*')


def checkpoint_state(output_dir: str) -> tuple[str | None, list[str]]:
    """The prefix of the newest checkpoint, and those of all that count, as the file `checkpoint` says, if whole."""
    path = posixpath.join(output_dir, "checkpoint")
    if not exists(path):
        return None, []
    paths: dict[bytes, list[str]] = {}
    try:
        for line in filter(bytes.strip, read_bytes(path).splitlines()):
            if not (match := _STATE_LINE.fullmatch(line)):
                raise ValueError(f"{line!r:.80} is no line of it")
            field, quoted = match.groups()
            name = codecs.escape_decode(quoted or b"")[0].decode()
            paths.setdefault(field, []).append(_beside(output_dir, name))
        newest = paths[b"model_checkpoint_path"][-1]
    except (AttributeError, KeyError, ValueError) as error:
        logging.warning("%s is damaged: %r", path, error)
        return None, []
    return newest, paths.get(b"all_model_checkpoint_paths", [newest])


def _beside(output_dir: str, name: str) -> str:
    """The prefix that a state file names; for an absolute path the one next to the file, since folders are copied."""
    named, here = (posixpath.join(output_dir, path) for path in (name, re.split(r"[/\\]", name)[-1]))
    if not re.match(r"/|\w+:", name) or not exists(here + INDEX_SUFFIX):
        return named
    if os.path.realpath(here) != os.path.realpath(named):
        warn_once((output_dir, name), "%s/checkpoint names %s; %s next to it is used.", output_dir, name, here)
    return here


def state_text(names: Sequence[str]) -> str:
    """The content of the file `checkpoint` for checkpoints of these names, of which the last is the newest.

    Names without a directory: a run that was moved or copied still finds its checkpoints.
    """
    lines = [f'model_checkpoint_path: "{names[-1]}"\n'] + [f'all_model_checkpoint_paths: "{name}"\n' for name in names]
    return "".join(lines)


def steps_among(names: Sequence[str]) -> dict[int, str]:
    """step -> name of the checkpoints of a run that have an index, in order. names: of all files in its folder."""
    matches = filter(None, map(_INDEX_OF_STEP.fullmatch, names))
    return dict(sorted((int(match[2]), match[1]) for match in matches))


def data_files(prefix: str) -> list[str]:
    return paths_beginning_with(prefix + DATA_SUFFIX[:6])


def find_bundle(path: str, there: Folder, usual_name: str) -> str | None:
    """The prefix of the TensorFlow checkpoint that a folder, a prefix or a file refers to: in a folder, in this order,
    a SavedModel's, the newest of a run, `usual_name`, or the only one. there: the path's folder."""
    if path != there.path:
        prefix = path.removesuffix(INDEX_SUFFIX)
        folder, name = posixpath.split(prefix)
        if DATA_SUFFIX[:6] in name:
            prefix = posixpath.join(folder, name[: name.rfind(DATA_SUFFIX[:6])])
        return prefix if exists(prefix + INDEX_SUFFIX) else None
    names = [name for name in there.names if "/" not in name]
    if f"variables/variables{INDEX_SUFFIX}" in there.names:
        return posixpath.join(path, "variables/variables")
    if newest := checkpoints_among(names, path):
        return newest[0]
    if usual_name + INDEX_SUFFIX in names:
        return posixpath.join(path, usual_name)
    prefixes = [name.removesuffix(INDEX_SUFFIX) for name in names if name.endswith(INDEX_SUFFIX)]
    if len(prefixes) > 1:
        raise FileNotFoundError(f"{path} has several checkpoints: name one, {abbreviated_list(prefixes)}.")
    return posixpath.join(path, prefixes[0]) if prefixes else None

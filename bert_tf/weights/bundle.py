"""TensorFlow checkpoint files (a pair of .index and .data): found, read and written tensor by tensor."""

import codecs
import dataclasses
import functools
import math
import os
import posixpath
import re
import weakref
from collections.abc import Mapping

import numpy as np
from absl import logging

from bert_tf.system import literal_paths
from bert_tf.system.literal_paths import names_in, paths_beginning_with
from bert_tf.system.messages import some
from bert_tf.system.text_files import exists, is_folder, read_bytes
from bert_tf.weights.checkpoint_index import DATA_SUFFIX, INDEX_SUFFIX, DamagedError, advice_on_damage, read_places
from bert_tf.weights.mapping import Weights, largest_first

__all__ = ["DATA_SUFFIX", "INDEX_SUFFIX", "DamagedError"]

# The key of the object graph in every object-based (TF2) checkpoint.
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"

# Smaller models are always one file, however their sizes are spread.
_SHARDED_FROM_BYTES = 1 << 28


class CheckpointReader:
    """Names and shapes of a TensorFlow checkpoint; its values, of which each is read by TensorFlow.

    Raises:
      DamagedError: it is damaged or incomplete.
    """

    def __init__(self, prefix: str):
        self.prefix = prefix
        self._places = read_places(prefix)

    @functools.cached_property
    def _reader(self):
        import tensorflow as tf

        if literal_paths.is_plain(self.prefix):
            return tf.train.load_checkpoint(self.prefix)
        # TensorFlow would take it for a pattern.
        paths = paths_beginning_with(self.prefix + ".")
        links = literal_paths.linked({"weights" + path.removeprefix(self.prefix): path for path in paths})
        reader = tf.train.load_checkpoint(os.path.join(links.name, "weights"))
        weakref.finalize(reader, links.cleanup)  # it opens the files of values when they are needed
        return reader

    def has_tensor(self, name: str) -> bool:
        return name in self._places

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        return {name: list(place.shape) for name, place in self._places.items()}

    def get_tensor(self, name: str):
        return self._reader.get_tensor(name)


def open_bundle(prefix: str) -> CheckpointReader:
    """A reader of a TensorFlow checkpoint.

    Raises:
      DamagedError: see `CheckpointReader`. ValueError: see `literal_paths.linked`.
    """
    return CheckpointReader(prefix)


def read_tensor(reader, prefix: str, name: str) -> np.ndarray:
    """One tensor of an open checkpoint.

    Raises:
      DamagedError: the file is damaged.
    """
    import tensorflow as tf

    try:
        return np.asarray(reader.get_tensor(name))
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:
        raise DamagedError(
            f"{prefix}: {name} can't be read, the file is damaged or its .data is missing ({error}). "
            f"{advice_on_damage(prefix)}."
        ) from error


def write_bundle(prefix: str, tensors: Mapping) -> None:
    """Writes tensors by name in the format of TF1's Saver, version 2: an index and a data file, or a few of these.

    Tensors are taken from the mapping and converted one at a time, so `Weights` are held in memory once; those whose
    largest tensors are a good part of the whole (ALBERT-xxlarge) are written as shards, and held one shard at a time.
    """
    import tensorflow as tf

    shards = _shards(tensors)
    prefixes = [prefix] if len(shards) == 1 else [f"{prefix}_shard_{number}" for number in range(len(shards))]
    for path, names in zip(prefixes, shards, strict=True):
        values = [value_of(tensors[name]) for name in names]
        tf.raw_ops.SaveV2(prefix=path, tensor_names=names, shape_and_slices=[""] * len(values), tensors=values)
        del values
    if len(shards) > 1:
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=prefixes, destination_prefix=prefix, delete_old_dirs=False, allow_missing_files=False
        )


def _shards(tensors: Mapping) -> list[list[str]]:
    """Names by shard. TensorFlow's writer needs all tensors of a shard at once, and keeps the memory for the next."""
    names = largest_first(tensors)
    sizes = (
        {name: 4 * math.prod(shape) for name, shape in tensors.shapes.items()} if isinstance(tensors, Weights) else {}
    )
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


def value_of(tensor):
    """The tf.Tensor that a checkpoint keeps of a variable, an array or a scalar."""
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
    """Prefix of the newest complete checkpoint in `output_dir`, or None.

    That is the checkpoint named in the state file. If the file or that checkpoint (or a part of it) does not exist, the
    newest `model.ckpt-<step>` is used, with a warning: a run never starts over beside its own checkpoints.
    """
    state = checkpoint_state(output_dir)
    newest = state.model_checkpoint_path if state else None
    if newest and exists(newest + INDEX_SUFFIX) and data_files(newest):
        return newest
    left = [prefix for _, prefix in sorted(saved_steps(output_dir).items()) if data_files(prefix)]
    if not left:
        return None
    logging.warning(
        "%s names no checkpoint that is there; %s is the newest one left.", f"{output_dir}/checkpoint", left[-1]
    )
    return left[-1]


@dataclasses.dataclass(frozen=True)
class CheckpointState:
    """What a run's file `checkpoint` says: the prefix of its newest checkpoint, and those of all that count."""

    model_checkpoint_path: str
    all_model_checkpoint_paths: tuple[str, ...]


_STATE_LINE = re.compile(rb'\s*(\w+):\s*(?:"((?:[^"\\\\]|\\\\.)*)"|[\d.e+-]+)\s*')


def checkpoint_state(output_dir: str) -> CheckpointState | None:
    """The state in the file `checkpoint`; None if there is no such file, or, with a warning, if it is damaged."""
    path = posixpath.join(output_dir, "checkpoint")
    if not exists(path):
        return None
    found: dict[bytes, list[str]] = {}
    try:
        for line in filter(bytes.strip, read_bytes(path).splitlines()):
            if not (match := _STATE_LINE.fullmatch(line)):
                raise ValueError(f"it has a line {line!r:.80}")
            name = codecs.escape_decode(match[2] or b"")[0].decode()
            found.setdefault(match[1], []).append(posixpath.join(output_dir, name))
        newest = found[b"model_checkpoint_path"][-1]
    except (KeyError, ValueError) as error:
        reason = "it names no newest checkpoint" if isinstance(error, KeyError) else error
        logging.warning("%s is damaged: %s", path, reason)
        return None
    return CheckpointState(newest, tuple(found.get(b"all_model_checkpoint_paths", [newest])))


def saved_steps(output_dir: str) -> dict[int, str]:
    """step -> prefix of all checkpoints of a run that have an index."""
    matches = (re.fullmatch(r"(model\.ckpt-(\d+))\.index", name) for name in names_in(output_dir))
    return {int(match[2]): posixpath.join(output_dir, match[1]) for match in matches if match}


def data_files(prefix: str) -> list[str]:
    """The paths of a checkpoint's files of values: one, or its shards; none if there is no such checkpoint."""
    return paths_beginning_with(prefix + DATA_SUFFIX[:6])


def find_bundle(path: str, usual_name: str) -> str | None:
    """The prefix of the TensorFlow checkpoint that a directory, a prefix or a file of one refers to; None without one.

    In a directory it is, in this order, a SavedModel's, the newest of a run, `usual_name`, or the only one.

    Raises:
      FileNotFoundError: the directory has several and none of the first three.
    """
    if not is_folder(path):
        prefix = path.removesuffix(INDEX_SUFFIX)
        folder, name = posixpath.split(prefix)
        if DATA_SUFFIX[:6] in name:
            prefix = posixpath.join(folder, name[: name.rfind(DATA_SUFFIX[:6])])
        return prefix if exists(prefix + INDEX_SUFFIX) else None
    for name in ("variables/variables", None, usual_name):
        prefix = posixpath.join(path, name) if name else latest_checkpoint(path)
        if prefix and exists(prefix + INDEX_SUFFIX):
            return prefix
    names = names_in(path)
    prefixes = [name.removesuffix(INDEX_SUFFIX) for name in names if name.endswith(INDEX_SUFFIX)]
    if len(prefixes) > 1:
        raise FileNotFoundError(
            f"{path} has several checkpoints: give the prefix of one of them. It contains {some(names)}."
        )
    return posixpath.join(path, prefixes[0]) if prefixes else None

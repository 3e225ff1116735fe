"""TensorFlow checkpoint files (a pair of .index and .data), read and written tensor by tensor."""

import math
import os
import posixpath
import tempfile
import weakref
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

from bert_tf.system import literal_paths
from bert_tf.weights.mapping import Weights, largest_first

INDEX_SUFFIX = ".index"
DATA_SUFFIX = ".data-00000-of-00001"
# The key of the object graph in every object-based (TF2) checkpoint.
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"

# Smaller models are always one file, however their sizes are spread.
_SHARDED_FROM_BYTES = 1 << 28


class DamagedError(ValueError):
    """A checkpoint can't be read, or only in part; the message names it."""


def open_bundle(prefix: str):
    """A reader of a TensorFlow checkpoint.

    Raises:
      DamagedError: it is damaged or incomplete. ValueError: see `literal_paths.linked`.
    """
    readable, links = readable_prefix(prefix)
    try:
        reader = tf.train.load_checkpoint(readable)
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        raise DamagedError(f"{prefix}: can't be read as a TensorFlow checkpoint: {error}") from error
    if links:
        weakref.finalize(reader, links.cleanup)  # it opens the files of values when they are needed
    return reader


def readable_prefix(prefix: str) -> tuple[str, tempfile.TemporaryDirectory | None]:
    """A prefix by which TensorFlow, which takes it for a pattern, finds this checkpoint; and its links, if it has any.

    Raises:
      ValueError: see `literal_paths.linked`.
    """
    if literal_paths.is_plain(prefix):
        return prefix, None
    found = literal_paths.paths_beginning_with(prefix + ".")
    links = literal_paths.linked({"weights" + path.removeprefix(prefix): path for path in found})
    return os.path.join(links.name, "weights"), links


def read_tensor(reader, prefix: str, name: str) -> np.ndarray:
    """One tensor of an open checkpoint.

    Raises:
      DamagedError: the file is damaged.
    """
    try:
        return np.asarray(reader.get_tensor(name))
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:
        # Only a run's own checkpoint has a predecessor.
        is_of_a_run = posixpath.basename(prefix).startswith("model.ckpt-")
        advice = "A run that has not finished goes on from the one before it, if there is one" if is_of_a_run else ""
        raise DamagedError(
            f"{prefix}: {name} can't be read, the file is damaged or its .data is missing ({error}). "
            f"{advice or 'Copy or download it again'}."
        ) from error


def write_bundle(prefix: str, tensors: Mapping) -> None:
    """Writes tensors by name in the format of TF1's Saver, version 2: an index and a data file, or a few of these.

    Tensors are taken from the mapping and converted one at a time, so `Weights` are held in memory once; those whose
    largest tensors are a good part of the whole (ALBERT-xxlarge) are written as shards, and held one shard at a time.
    """
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


def value_of(tensor) -> tf.Tensor:
    """What a checkpoint keeps of a variable, an array or a scalar."""
    if isinstance(tensor, keras.Variable):
        value = tf.convert_to_tensor(tensor.value)
        # The original's global_step is int64; Keras counts steps in int32.
        return tf.cast(value, tf.int64) if value.dtype == tf.int32 else value
    # The op frees memory: TensorFlow releases NumPy arrays that it has copied only when an op runs.
    return tf.identity(tf.convert_to_tensor(tensor))

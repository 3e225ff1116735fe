"""TensorFlow checkpoint files (a pair of .index and .data), read and written tensor by tensor."""

import functools
import math
import os
import tempfile
import weakref
from collections.abc import Mapping

import numpy as np

from bert_tf.system import literal_paths
from bert_tf.system.text_files import exists
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

        readable, links = readable_prefix(self.prefix)
        reader = tf.train.load_checkpoint(readable)
        if links:
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


def is_object_checkpoint(prefix: str) -> bool:
    """Whether a prefix is an object-based (TF2) checkpoint, not a name-based one (TF1).

    Raises:
      DamagedError: its index can't be read.
    """
    return exists(prefix + INDEX_SUFFIX) and open_bundle(prefix).has_tensor(OBJECT_GRAPH)


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

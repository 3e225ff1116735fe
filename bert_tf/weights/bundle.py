"""TensorFlow checkpoint files (a pair of .index and .data), read and written tensor by tensor."""

import posixpath
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

from bert_tf.weights.mapping import largest_first

INDEX_SUFFIX = ".index"
DATA_SUFFIX = ".data-00000-of-00001"
# The key of the object graph in every object-based (TF2) checkpoint.
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


def open_bundle(prefix: str):
    """A reader of a TensorFlow checkpoint.

    Raises:
      ValueError: it is damaged or incomplete.
    """
    try:
        return tf.train.load_checkpoint(prefix)
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        raise ValueError(f"{prefix}: can't be read as a TensorFlow checkpoint: {error}") from error


def read_tensor(reader, prefix: str, name: str) -> np.ndarray:
    """One tensor of an open checkpoint.

    Raises:
      ValueError: the file is damaged.
    """
    try:
        return np.asarray(reader.get_tensor(name))
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:
        base = posixpath.basename(prefix)
        # Only a run's own checkpoint has a predecessor.
        advice = f"To continue from the checkpoint before it, delete {base}.*" if base.startswith("model.ckpt-") else ""
        raise ValueError(
            f"{prefix}: {name} can't be read, the file is damaged or its .data is missing ({error}). "
            f"{advice or 'Copy or download it again.'}"
        ) from error


def write_bundle(prefix: str, tensors: Mapping) -> None:
    """Writes tensors by name as one file pair (the format of TF1's Saver, version 2).

    Tensors are taken from the mapping and converted one at a time, so `Weights` are held in memory once.
    """
    names = largest_first(tensors)
    values = [_value(tensors[name]) for name in names]
    tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(values), tensors=values)


def _value(tensor):
    if isinstance(tensor, keras.Variable):
        value = tf.convert_to_tensor(tensor.value)
        # The original's global_step is int64; Keras counts steps in int32.
        return tf.cast(value, tf.int64) if value.dtype == tf.int32 else value
    # The op frees memory: TensorFlow releases NumPy arrays that it has copied only when an op runs.
    return tf.identity(tf.convert_to_tensor(tensor))

"""Ids, positions and labels out of range are errors that name the input, the value and the range.

Otherwise they would mean something else without a word: a lookup takes the first or the last row of its table, and a
label that is no class costs nothing.

* Outside of graphs, on every backend: a ValueError.
* In a graph of TensorFlow (the training loop, an exported model): the operation `Assert`, whose error is an
  InvalidArgumentError. Of that `fit`, `evaluate` and `predict` make a ValueError, see `inputs.NamedInputs`.
* Compiled programs can't raise (XLA, as in `fit` on GPUs, and on TPUs; the jit of JAX): `poison` makes the numbers that
  depend on such a value NaN. The training loop stops at a loss that is NaN.

Shape legend: B batch, S sequence length, P positions of a row.
"""

import sys
from collections.abc import Mapping

import keras
from keras import ops

FROM_ZERO = "; ids count from 0: from labels 1 to N subtract 1"


def below(values, size):
    """Boolean: whether values are integers from 0 to size - 1. size: an integer or a scalar tensor."""
    numbers = values if "int64" in str(values.dtype) else ops.cast(values, "int32")
    inside = ops.logical_and(numbers >= 0, numbers < ops.cast(size, numbers.dtype))
    if "float" in str(values.dtype):
        inside = ops.logical_and(inside, ops.equal(values, ops.floor(values)))
    return inside


def require(name: str, values, allowed, expected: str, size=None, advice: str = ""):
    """Raises an error if a value is not allowed; see the module.

    Args:
      name: of the input. values: numbers. allowed: boolean, of their shape.
      expected: what the values must be; with size, it ends in a range whose last number is size - 1.
      size: an integer or a scalar tensor. advice: what to do.

    Returns:
      The values; in a graph of TensorFlow what reads these is not computed before the check.

    Raises:
      ValueError: names the input, the place of the first wrong value, and that value.
    """
    if keras.backend.backend() == "tensorflow" and _traces():
        return _asserted(name, values, allowed, expected, size, advice)
    if _is_computed(allowed):
        allowed = ops.convert_to_numpy(allowed)
        if not allowed.all():
            place = tuple((~allowed).nonzero()[axis][0] for axis in range(allowed.ndim))
            value = ops.convert_to_numpy(values)[place].item()
            last = "" if size is None else f" {int(size) - 1}"
            where = "".join(f"[{number}]" for number in place)
            raise ValueError(f"{name}{where} is {value}, but must be {expected}{last}{advice}.")
    return values


def poison(allowed):
    """float32: NaN where a value is not allowed, elsewhere 0."""
    return ops.where(allowed, 0.0, float("nan"))


def require_inputs(config, inputs: Mapping, ids: str = "input_ids"):
    """Checks what an encoder, or a model that reads tokens, is given; see `require`.

    Args:
      config: of any family.
      inputs: input_ids [B, S], and any of segment_ids, position_ids [B, S], pooled_positions, masked_lm_positions
        [B, P]. None counts as not given.
      ids: the name of the input that has the place of input_ids.

    Returns:
      The inputs, checked; and float32 [B, S], NaN for a token whose id, segment or position is out of range, or another
      position of its row, and 0 for others.

    Raises:
      ValueError: see `require`; or the rows are longer than the table of positions.
    """
    length = inputs[ids].shape[1]
    length = ops.shape(inputs[ids])[1] if length is None else length
    in_config = f"in {config.file_name}"
    known = {
        ids: (config.vocab_size, f"less than vocab_size {in_config}: from 0 to"),
        "segment_ids": (config.type_vocab_size, f"less than type_vocab_size {in_config}: from 0 to"),
        "position_ids": (config.max_length, f"within max_position_embeddings {in_config}: from 0 to"),
        "pooled_positions": (length, "a place in the row, from 0 to"),
        "masked_lm_positions": (length, "a place in the row, from 0 to"),
    }
    if not config.type_vocab_size:  # there is no such table
        del known["segment_ids"]
    inputs, fine = dict(inputs), True
    for name, (size, expected) in known.items():
        values = inputs.get(name)
        if values is None:
            continue
        values = ops.convert_to_tensor(values)
        allowed = below(values, size)
        if name == "position_ids" and config.padding_has_a_position:
            allowed = ops.logical_or(allowed, ops.equal(values, -1))
        inputs[name] = require(name, values, allowed, expected, size)
        if name.endswith("_positions"):
            allowed = ops.all(allowed, axis=1, keepdims=True)
        fine = ops.logical_and(fine, allowed)
    return inputs, poison(fine)


def _traces() -> bool:
    import tensorflow as tf

    return not tf.executing_eagerly()


def _asserted(name: str, values, allowed, expected: str, size, advice: str):
    import tensorflow as tf

    # The raw operation: that of tf.debugging is wrapped into a conditional, with two functions of its own.
    numbers = values if values.dtype.is_floating else tf.cast(values, tf.int64)
    wrong = tf.reduce_max(tf.where(allowed, numbers.dtype.min, numbers))
    last = [] if size is None else [tf.cast(size, tf.int32) - 1]
    shown = [f"{name} has the value", wrong, f"but must be {expected}", *last, *filter(None, [advice])]
    check = tf.raw_ops.Assert(condition=tf.reduce_all(allowed), data=shown, summarize=1)
    with tf.control_dependencies([check]):
        return tf.identity(values)


def _is_computed(tensor) -> bool:
    """Whether a tensor has values already, as it has not while a backend traces."""
    backend = keras.backend.backend()
    if keras.backend.is_keras_tensor(tensor):
        return False
    library = sys.modules.get(backend)
    if backend == "jax":
        return not isinstance(tensor, library.core.Tracer)
    if backend == "torch":
        return not tensor.is_meta and not library.compiler.is_compiling()
    return True

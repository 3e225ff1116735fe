"""The elementwise chains of BERT that cost the most memory traffic, each as one function.

Every function has two forms that give the same numbers:

* the plain form, in `keras.ops`: for every Keras backend, TPUs, exported graphs and inference;
* the fused form, for TensorFlow and training only: forward and backward are one small XLA program each, so that a chain
  such as bias + dropout + residual + layer norm passes over memory once instead of ten times. Compiling only these
  chains, and leaving matrix products to oneDNN or cuBLAS, is faster on a CPU than compiling the whole step.

`set_fused(False)` switches to the plain form, and so does a TPUStrategy in scope: a TPU compiles the whole step.

Dropout masks are a pure function of (seed, element index): a counter-based integer hash. Both forms draw the same mask,
the backward pass draws it again instead of storing it, and a resumed run repeats it without saved generator state. The
index counts from the first row of the whole batch, so that the masks don't depend on how the batch is split.

Shape legend: B batch, S sequence length, Q queries, H hidden size, N attention heads, X any leading axes.
"""

import contextlib
import functools
import math

import keras
import numpy as np
from keras import ops

from bert_tf.system.cores import on_cpu

_fused_enabled = keras.config.backend() == "tensorflow"
_fused_in_inference = False
_recomputes = False

# The additive value of a masked key and the layer-norm epsilon (original: modeling.py, attention_layer and layer_norm).
MASK_BIAS = -10000.0
LAYER_NORM_EPSILON = 1e-12
_GUMBEL_EPSILON = 1e-9


def set_fused(enabled: bool) -> None:
    """Turns the fused forms on or off for models that are called or traced from now on."""
    global _fused_enabled
    if enabled and keras.config.backend() != "tensorflow":
        raise ValueError(f"The fused kernels need the TensorFlow backend; this is {keras.config.backend()}.")
    _fused_enabled = enabled


@contextlib.contextmanager
def fused_inference():
    """In this context, models traced with training=False use the fused forms, too, if these are on.

    Compiling them takes about a second per sequence length. That pays off for many batches; otherwise (a single call,
    or an exported graph, which should run without XLA) inference uses plain operations.
    """
    global _fused_in_inference
    previous, _fused_in_inference = _fused_in_inference, True
    try:
        yield
    finally:
        _fused_in_inference = previous


@contextlib.contextmanager
def recomputation(enabled: bool = True):
    """In this context, encoders traced for training keep only the input of each layer for the backward pass.

    It computes the layer again, with the same dropout: less memory, a third more operations, the same numbers. For
    Keras `fit`, call it in this context.

    Source: Chen et al. 2016, "Training deep nets with sublinear memory cost".
    """
    global _recomputes
    previous, _recomputes = _recomputes, enabled
    try:
        yield
    finally:
        _recomputes = previous


def recomputes() -> bool:
    """Whether an encoder that is traced for training now computes its layers again in the backward pass."""
    return _recomputes


def fuses(training: bool) -> bool:
    """Whether a model traced now uses the fused forms."""
    return (training or _fused_in_inference) and fused_enabled()


def _is_eager() -> bool:
    import tensorflow as tf

    return tf.executing_eagerly()


def fused_enabled() -> bool:
    """Whether training uses the fused TensorFlow forms."""
    return _fused_enabled and not _on_tpu()


def _on_tpu() -> bool:
    """Whether this is the scope of a TPUStrategy, or what it runs. Only called if TensorFlow is the backend."""
    import tensorflow as tf

    kinds = (tf.distribute.TPUStrategy, tf.distribute.experimental.TPUStrategy)
    return isinstance(tf.distribute.get_strategy(), kinds)


# --- random bits -----------------------------------------------------------------------------------------------------


def _mix(value, shift, multiplier):
    """One round of an integer hash: multiply, then fold the high bits into the low ones."""
    value = value * np.uint32(multiplier)
    return ops.bitwise_xor(value, ops.right_shift(value, np.uint32(shift)))


def fold_in(seed, number, word: int = 0):
    """A separate seed for layer or replica `number`, from the seed of one training step.

    None stays None. `number` (int or int32 scalar tensor) is mixed into a tensor rather than compiled in, so that all
    layers share one program. Layers go into word 0, replicas (of Keras `fit`) into word 1.
    """
    if seed is None:
        return None
    # Multiples of the golden ratio, modulo 2^32, are far apart. One operation, since there are many layers.
    golden_ratio = np.zeros(seed.shape[0], "uint32")
    golden_ratio[word] = 0x9E3779B9
    golden_ratio = golden_ratio.view("int32")
    if isinstance(number, int):
        return seed + golden_ratio * np.array(number).astype("int32")
    return seed + golden_ratio * ops.cast(number, "int32")


def at_row(seed, row):
    """The seed [2] of a step for the part of its batch that begins at a row: int32 [3]."""
    return ops.concatenate([seed, ops.reshape(ops.cast(row, "int32"), (1,))])


def first_row(seed):
    """The row at which the part of the batch begins, by its seed; 0 if that is for the whole batch, or None."""
    return 0 if seed is None or seed.shape[0] == 2 else seed[2]


def of_several_rows(seed, count: int):
    """The seed for an input that has `count` rows for each row of the batch (choices of a question)."""
    return seed if seed is None or seed.shape[0] == 2 else ops.concatenate([seed[:2], seed[2:] * count])


def random_bits(seed, rows, size):
    """Uniform uint32 [..., size] for rows of a tensor whose last axis has `size` elements.

    Args:
      seed: int32 [2 or more], or with as many leading axes as rows has, which broadcast; two words of it are read.
      rows: int32 [...], the numbers of the rows, counted over all axes but the last.
    """
    seed = ops.cast(seed, "uint32")
    # Two keys, one added before and one mixed in between the rounds: with a single key, the masks of two seeds would
    # be shifted copies of each other.
    first_key = _mix(_mix(seed[..., 0], 16, 0x7FEB352D), 15, 0x846CA68B)
    second_key = _mix(_mix(ops.bitwise_xor(seed[..., 1], first_key), 16, 0x21F0AAAD), 15, 0xD35A2D97)
    # The elements' numbers. The key comes first: XLA would make numbers without it a constant of the tensor's size.
    starts = ops.cast(rows * size, "uint32") + first_key
    bits = _mix(starts[..., None] + ops.cast(ops.arange(size, dtype="int32"), "uint32"), 16, 0x85EBCA6B)
    bits = _mix(ops.bitwise_xor(bits, second_key[..., None]), 13, 0xC2B2AE35)
    return _mix(bits, 16, 0x9E3779B1)


def _product(sizes):
    """The product of sizes, static if all of them are."""
    if all(isinstance(size, int) for size in sizes):
        return math.prod(sizes)
    return ops.prod(ops.cast(ops.stack(list(sizes)), "int32"))


def keep_mask(shape, rate: float, seed, rows=None):
    """Draws a dropout mask.

    Args:
      shape: static or dynamic shape of the mask.
      rate: probability of a zero, in [0, 1).
      seed: int32 tensor [2], or [3] from `at_row`, where the first axis of `shape` is the rows of a part of the batch.
      rows: int32, the shape without its last axis: which rows of a larger tensor these are, counted over all its axes
        but the last. Each gets the mask that it has there. None: this is the whole tensor.

    Returns:
      Boolean tensor of `shape`, True where the element is kept.
    """
    *leading, size = shape
    if rows is None:
        rows = ops.arange(_product(leading), dtype="int32") + first_row(seed) * _product(leading[1:])
    threshold = np.uint32(min(round(rate * 2**32), 2**32 - 1))
    return ops.reshape(ops.greater_equal(random_bits(seed, rows, size), threshold), shape)


def _apply_dropout(x, rate, seed, rows=None):
    """Inverted dropout of a float32 tensor: kept elements are divided by the keep probability."""
    if not rate or seed is None:
        return x
    return ops.where(keep_mask(ops.shape(x), rate, seed, rows), x * (1.0 / (1.0 - rate)), ops.zeros_like(x))


# --- maths shared by both forms (all of it in float32) -------------------------------------------------------------


def _float32(x):
    return ops.cast(x, "float32")


def _gelu_tanh(x):
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1.0 + ops.tanh(inner))


def _gelu_tanh_slope(x):
    t = ops.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x))
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * math.sqrt(2.0 / math.pi) * (1.0 + 3 * 0.044715 * x * x)


def _gelu_erf(x):
    return 0.5 * x * (1.0 + ops.erf(x * math.sqrt(0.5)))


def _gelu_erf_slope(x):
    return 0.5 * (1.0 + ops.erf(x * math.sqrt(0.5))) + x * ops.exp(-0.5 * x * x) * (1.0 / math.sqrt(2.0 * math.pi))


# Activations by the names of bert_config.json. "gelu" is the tanh form (original: modeling.py, gelu, since 2019-02);
# "gelu_erf" is the exact form, which Hugging Face calls "gelu".
ACTIVATIONS = {
    "gelu": _gelu_tanh,
    "gelu_erf": _gelu_erf,
    "relu": ops.relu,
    "tanh": ops.tanh,
    "linear": lambda x: x,
}
_SLOPES = {"gelu": _gelu_tanh_slope, "gelu_erf": _gelu_erf_slope}


def _moments(z, epsilon):
    mean = ops.mean(z, axis=-1, keepdims=True)
    centered = z - mean
    variance = ops.mean(centered * centered, axis=-1, keepdims=True)
    return centered, ops.rsqrt(variance + epsilon)


def _add_bias(x, bias):
    return _float32(x) if bias is None else _float32(x) + _float32(bias)


def _residual_sum(x, bias, residual, rate, seed, rows):
    z = _apply_dropout(_add_bias(x, bias), rate, seed, rows)
    return z if residual is None else z + _float32(residual)


def _softmax(scores, mask_bias, scale):
    scores = _float32(scores) * scale + _float32(mask_bias)
    exponential = ops.exp(scores - ops.max(scores, axis=-1, keepdims=True))
    return exponential / ops.sum(exponential, axis=-1, keepdims=True)


# --- public functions ----------------------------------------------------------------------------------------------


def dense(x, kernel, bias, activation: str = "linear"):
    """activation(x W + b), with the activation computed in float32: x [R, in], kernel [in, out], bias [out]."""
    y = ops.matmul(x, kernel)
    if activation == "linear":
        return ops.add(y, bias)
    if on_cpu() and not _is_eager():
        # In this form TensorFlow turns it into one oneDNN primitive, with float32 inside, and needs no casts.
        import tensorflow as tf

        return ACTIVATIONS[activation](tf.nn.bias_add(y, bias))
    return ops.cast(ACTIVATIONS[activation](_add_bias(y, bias)), y.dtype)


def bias_activation(x, bias, activation: str, training: bool = False):
    """activation(x + bias) over the last axis, computed in float32, returned in the dtype of x."""
    if fuses(training) and activation in _SLOPES:
        return _fused_bias_activation(activation)(*_tensors(x, bias))
    return ops.cast(ACTIVATIONS[activation](_add_bias(x, bias)), x.dtype)


def layer_norm(
    x,
    gamma,
    beta,
    *,
    epsilon: float = LAYER_NORM_EPSILON,
    training=False,
    bias=None,
    residual=None,
    rate=0.0,
    seed=None,
    rows=None,
    dtype=None,
    trained=True,
):
    """LayerNorm(residual + dropout(x + bias)) over the last axis, statistics in float32.

    Args:
      x: [X, H].
      gamma, beta: [H] float32.
      epsilon: added to the variance.
      bias: [H] or None. residual: [X, H] or None.
      rate, seed, rows: dropout of x + bias; none if seed is None (see `keep_mask`).
      dtype: dtype of the result; None: that of x.
      trained: whether gamma, beta and bias have gradients.
    """
    dtype = keras.backend.standardize_dtype(dtype or x.dtype)
    rate = rate if seed is not None else 0.0
    if fuses(training):
        return _fused_layer_norm(x, gamma, beta, bias, residual, rate, seed, rows, dtype, epsilon, trained)
    if training and not trained:
        gamma, beta, bias = (None if value is None else ops.stop_gradient(value) for value in (gamma, beta, bias))
    centered, inverse = _moments(_residual_sum(x, bias, residual, rate, seed, rows), epsilon)
    return ops.cast(centered * inverse * gamma + beta, dtype)


def attention_probabilities(scores, mask_bias, scale: float, *, training=False, rate=0.0, seed=None, rows=None):
    """dropout(softmax(scores * scale + mask_bias)) over the last axis, computed in float32.

    Args:
      scores: [B, N, Q, S], queries by keys.
      mask_bias: float32, broadcastable to scores; 0 for keys that may be attended to, -10000 for others.
      rate, seed, rows: dropout; none if seed is None (see `keep_mask`).

    Returns:
      [B, N, Q, S] in the dtype of scores.
    """
    rate = rate if seed is not None else 0.0
    if not training and not rate and on_cpu():
        # oneDNN fuses scale and mask into the preceding product, and its softmax computes in float32.
        # softmax ignores a constant. Subtracting one preserves the scores of a row whose keys are all masked, also in
        # bfloat16.
        mask_bias = mask_bias - ops.max(mask_bias, axis=-1, keepdims=True)
        return ops.softmax(scores * ops.cast(scale, scores.dtype) + ops.cast(mask_bias, scores.dtype))
    if fuses(training):
        drawn = [] if rows is None or not rate else [rows]
        return _fused_attention(scale, rate)(*_tensors(scores, mask_bias, _seed_or_zero(seed), *drawn))
    return ops.cast(_apply_dropout(_softmax(scores, mask_bias, scale), rate, seed, rows), scores.dtype)


def dropout(x, rate: float, seed):
    """Inverted dropout; x itself if seed is None or rate is 0."""
    return ops.cast(_apply_dropout(_float32(x), rate, seed), x.dtype) if rate and seed is not None else x


def shared(x, count: int) -> tuple:
    """x as `count` tensors for as many uses, whose gradients are added in this order.

    TensorFlow adds the gradients of three or more uses of one tensor in the order in which its threads finish them, so
    that the last bits vary from run to run, even if its kernels are deterministic. The sum of two has no order.
    """
    if keras.config.backend() != "tensorflow":
        return (x,) * count
    import tensorflow as tf

    @tf.custom_gradient
    def copies(x):
        return (tf.identity(x),) * count, lambda *upstream: functools.reduce(tf.add, upstream)

    return copies(tf.convert_to_tensor(x))


def embedding_lookup(table, ids, dense_gradient: bool = False):
    """Rows of table: [V, H], ids [X] -> [X, H].

    Args:
      dense_gradient: give TensorFlow a dense gradient. If the table is also the output layer (tied weights), the two
        gradients are added; TensorFlow would first turn the dense one into slices, which costs several passes over
        the whole table. By default the gradient is `IndexedSlices`, as in the original, whose global norm is computed
        over the unmerged slices.
    """
    if dense_gradient and keras.config.backend() == "tensorflow":
        return _dense_gradient_lookup(table, ids)
    return ops.take(table, ids, axis=0)


def gumbel_argmax(logits, uniform):
    """The index of the largest of logits + Gumbel noise, over the last axis: a draw from their softmax.

    Args:
      logits: float32 [..., V]. uniform: [..., V], uniform in [0, 1).

    Returns:
      int32 [...].

    Source: ELECTRA's pretrain_helpers.py (sample_from_softmax), with its epsilons.
    """
    noisy = logits - ops.log(-ops.log(uniform + _GUMBEL_EPSILON) + _GUMBEL_EPSILON)
    # The first of the largest: compiled, several times as fast on a CPU as argmax.
    size = ops.shape(logits)[-1]
    index = ops.arange(size, dtype="int32")
    largest = ops.where(noisy >= ops.max(noisy, axis=-1, keepdims=True), index, size - 1)
    return ops.min(largest, axis=-1)


def sample(logits, seeds):
    """One draw from the softmax of each row of logits, without a gradient.

    Args:
      logits: float32 [B, P, V].
      seeds: int32 [B, 2]; what is drawn for an example depends only on its own.

    Returns:
      int32 [B, P].
    """
    logits = ops.stop_gradient(logits)
    return _fused_sample()(*_tensors(logits, seeds)) if fused_enabled() else _sample(logits, seeds)


def _sample(logits, seeds):
    _, predictions, size = ops.shape(logits)
    bits = random_bits(seeds[:, None], ops.arange(predictions, dtype="int32")[None], size)
    bits = ops.right_shift(bits, ops.cast(8, "uint32"))
    uniform = ops.cast(ops.cast(bits, "int32"), "float32") * 2.0**-24  # all that float32 tells apart below 1
    return gumbel_argmax(logits, uniform)


# --- fused forms ---------------------------------------------------------------------------------------------------
# TensorFlow is imported inside functions, so that the module also loads if only another backend is installed.


def _seed_or_zero(seed):
    return ops.zeros((2,), "int32") if seed is None else seed


def _tensors(*values):
    """Converts values to tensors, since a custom gradient needs special handling for variables as arguments."""
    import tensorflow as tf

    return [tf.convert_to_tensor(value) for value in values]


def _compiled(function):
    import tensorflow as tf

    return tf.function(function, jit_compile=True, autograph=False)


@functools.cache
def _fused_bias_activation(activation):
    import tensorflow as tf

    forward = _compiled(lambda x, bias: ops.cast(ACTIVATIONS[activation](_add_bias(x, bias)), x.dtype))

    @_compiled
    def backward(x, bias, upstream):
        return ops.cast(_SLOPES[activation](_add_bias(x, bias)) * _float32(upstream), x.dtype)

    @tf.custom_gradient
    def fused(x, bias):
        def gradient(upstream):
            slope = backward(x, bias, upstream)
            return slope, _column_sum(slope, bias.dtype)

        return forward(x, bias), gradient

    return fused


def _column_sum(x, dtype):
    """Sum over all axes but the last, as a product with ones, which matrix units accumulate in float32."""
    import tensorflow as tf

    rows = tf.reshape(x, [-1, tf.shape(x)[-1]])
    return tf.cast(tf.linalg.matvec(rows, tf.ones([tf.shape(rows)[0]], rows.dtype), transpose_a=True), dtype)


def _fused_layer_norm(x, gamma, beta, bias, residual, rate, seed, rows, dtype, epsilon, trained):
    optional = (bias, residual, rows if rate else None)
    given = tuple(value is not None for value in optional)
    function = _fused_layer_norm_function(given, rate, dtype, epsilon, trained)
    return function(*_tensors(x, gamma, beta, _seed_or_zero(seed), *(value for value in optional if value is not None)))


@functools.cache
def _fused_layer_norm_function(given, rate, dtype, epsilon, trained):
    import tensorflow as tf

    def unpack(optional):
        values = iter(optional)
        return [next(values) if is_given else None for is_given in given]

    @_compiled
    def forward(x, gamma, beta, seed, *optional):
        bias, residual, rows = unpack(optional)
        z = _residual_sum(x, bias, residual, rate, seed, rows)
        centered, inverse = _moments(z, epsilon)
        return ops.cast(centered * inverse * gamma + beta, dtype)

    @_compiled
    def backward(x, gamma, seed, upstream, *optional):
        bias, residual, rows = unpack(optional)
        upstream = _float32(upstream)
        centered, inverse = _moments(_residual_sum(x, bias, residual, rate, seed, rows), epsilon)
        normalized = centered * inverse
        scaled = upstream * gamma
        mean_scaled = ops.mean(scaled, axis=-1, keepdims=True)
        mean_product = ops.mean(scaled * normalized, axis=-1, keepdims=True)
        z_gradient = (scaled - mean_scaled - normalized * mean_product) * inverse
        x_gradient = _apply_dropout(z_gradient, rate, seed, rows)
        axes = list(range(len(x.shape) - 1))
        result = [ops.cast(x_gradient, x.dtype)]
        if trained:
            result += [ops.sum(upstream * normalized, axis=axes), ops.sum(upstream, axis=axes)]
        if trained and bias is not None:
            result.append(ops.cast(ops.sum(x_gradient, axis=axes), bias.dtype))
        if residual is not None:
            result.append(ops.cast(z_gradient, residual.dtype))
        return result

    @tf.custom_gradient
    def fused(x, gamma, beta, seed, *optional):
        def gradient(upstream):
            found = iter(backward(x, gamma, seed, upstream, *optional))
            of_optional = (trained, True, False)  # bias, residual, rows
            has_gradient = [True, trained, trained, False]  # x, gamma, beta, seed
            has_gradient += [has for has, is_given in zip(of_optional, given, strict=True) if is_given]
            return tuple(next(found) if has else None for has in has_gradient)

        return forward(x, gamma, beta, seed, *optional), gradient

    return fused


@functools.cache
def _fused_sample():
    return _compiled(_sample)


@functools.cache
def _fused_attention(scale, rate):
    import tensorflow as tf

    @_compiled
    def forward(scores, mask_bias, seed, *rows):
        probabilities = _softmax(scores, mask_bias, scale)
        dropped = _apply_dropout(probabilities, rate, seed, *rows)
        return ops.cast(dropped, scores.dtype), ops.cast(probabilities, scores.dtype)

    @_compiled
    def backward(probabilities, seed, upstream, *rows):
        dtype = probabilities.dtype
        probabilities = _float32(probabilities)
        product = _apply_dropout(_float32(upstream), rate, seed, *rows) * probabilities
        total = ops.sum(product, axis=-1, keepdims=True)
        return ops.cast((product - probabilities * total) * scale, dtype)

    @tf.custom_gradient
    def fused(scores, mask_bias, seed, *rows):
        dropped, probabilities = forward(scores, mask_bias, seed, *rows)
        unused = [None] * (2 + len(rows))
        return dropped, lambda upstream: (backward(probabilities, seed, upstream, *rows), *unused)

    return fused


def _dense_gradient_lookup(table, ids):
    import tensorflow as tf

    @tf.custom_gradient
    def lookup(table):
        def gradient(upstream):
            rows = tf.reshape(upstream, [-1, tf.shape(upstream)[-1]])
            return tf.math.unsorted_segment_sum(rows, tf.reshape(ids, [-1]), tf.shape(table)[0])

        return tf.gather(table, ids), gradient

    return lookup(tf.convert_to_tensor(table))


def replica_number():
    """The number of this replica under tf.distribute; otherwise 0."""
    if keras.config.backend() != "tensorflow":
        return 0
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    return 0 if context is None else context.replica_id_in_sync_group

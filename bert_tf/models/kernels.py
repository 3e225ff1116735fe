"""The elementwise chains of BERT that cost the most memory traffic, each as one function, and lookups.

`bias_activation`, `residual_norm` and `attention_weights` are called in the same way on every device. Each has two
forms that give the same numbers:

* the plain form, in `keras.ops`: for every Keras backend, TPUs, exported graphs and inference;
* the fused form, for TensorFlow and training only: forward and backward are one small XLA program each, so that a chain
  such as mask, softmax and dropout passes over memory once instead of ten times. Compiling only these chains, and
  leaving matrix products to oneDNN or cuBLAS, is faster on a CPU than compiling the whole step.

`set_fused(False)` switches to the plain form, and so do `one_program` and a TPUStrategy, which compile the whole step.

Shape legend: B batch, S sequence length, Q queries, H hidden size, N attention heads, X any leading axes.
"""

import contextlib
import functools
import math
from collections.abc import Iterator

import keras
from keras import ops

from bert_tf.models.dropout import Drop, apply_dropout, random_bits
from bert_tf.system.workers import on_cpu

if keras.config.backend() == "tensorflow":
    import tensorflow as tf

_switches = dict.fromkeys(("fused in inference", "recomputation", "one program"), False)
_switches["fused"] = keras.config.backend() == "tensorflow"

MASK_BIAS = -10000.0  # the additive value of a masked key (original: modeling.py, attention_layer)
_GUMBEL_EPSILON = 1e-9


def set_fused(enabled: bool) -> None:
    """Turns the fused forms on or off for models that are called or traced from now on."""
    _switches["fused"] = enabled


@contextlib.contextmanager
def one_program() -> Iterator[None]:
    """In this context, models are traced as a part of a program that XLA compiles as a whole.

    They are in the plain form, and their layers are a loop (layer_loop.py).
    """
    with _switched("fused", False), _switched("one program", True):
        yield


def in_one_program() -> bool:
    return _switches["one program"] or (keras.config.backend() == "tensorflow" and _on_tpu())


def fused_inference():
    """In this context, models traced with training=False use the fused forms, too, if these are on.

    Compiling them takes about a second per sequence length. That pays off for many batches; otherwise (a single call,
    or an exported graph, which should run without XLA) inference uses plain operations.
    """
    return _switched("fused in inference", True)


def recomputation(enabled: bool = True):
    """In this context, encoders traced for training keep only the input of each layer for the backward pass.

    It computes the layer again, with the same dropout: less memory, a third more operations, the same numbers. For
    Keras `fit`, call it in this context.

    Source: Chen et al. 2016, "Training deep nets with sublinear memory cost".
    """
    return _switched("recomputation", enabled)


@contextlib.contextmanager
def _switched(name: str, value: bool):
    previous, _switches[name] = _switches[name], value
    try:
        yield
    finally:
        _switches[name] = previous


def recomputes() -> bool:
    return _switches["recomputation"]


def fuses(training: bool) -> bool:
    return (training or _switches["fused in inference"]) and fused_enabled()


def fused_enabled() -> bool:
    return _switches["fused"] and not _on_tpu()


def _on_tpu() -> bool:
    kinds = (tf.distribute.TPUStrategy, tf.distribute.experimental.TPUStrategy)
    return isinstance(tf.distribute.get_strategy(), kinds)


def leading_sizes(x, count: int) -> tuple:
    """The sizes of the first `count` axes of x, for `ops.reshape`: the only unknown one is -1.

    To compute it would take seven operations, which are traced, optimized and run in every layer.
    """
    sizes = tuple(x.shape)[:count]
    if sizes.count(None) == 1 and 0 not in sizes:
        return tuple(-1 if size is None else size for size in sizes)
    return ops.shape(x)[:count]


# --- maths shared by both forms (all of it in float32) -------------------------------------------------------------


def _float32(x):
    return ops.cast(x, "float32")


def _gelu_tanh(x):
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1.0 + ops.tanh(inner))


def _gelu_tanh_slope(x):
    t = ops.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x))
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * math.sqrt(2.0 / math.pi) * (1.0 + 3 * 0.044715 * x * x)


def _gelu_erf_slope(x):
    return 0.5 * (1.0 + ops.erf(x * math.sqrt(0.5))) + x * ops.exp(-0.5 * x * x) * (1.0 / math.sqrt(2.0 * math.pi))


# Activations by the names of bert_config.json. "gelu" is the tanh form (original: modeling.py, gelu, since 2019-02);
# "gelu_erf" is the exact form, which Hugging Face calls "gelu".
ACTIVATIONS = {"gelu": _gelu_tanh, "gelu_erf": lambda x: 0.5 * x * (1.0 + ops.erf(x * math.sqrt(0.5)))}
ACTIVATIONS |= {"relu": ops.relu, "tanh": ops.tanh, "linear": lambda x: x}
_SLOPES = {"gelu": _gelu_tanh_slope, "gelu_erf": _gelu_erf_slope}


def _add_bias(x, bias):
    return _float32(x) + _float32(bias)


def _normalized(x, epsilon):
    centered = x - ops.mean(x, axis=-1, keepdims=True)
    scale = ops.rsqrt(ops.mean(ops.square(centered), axis=-1, keepdims=True) + epsilon)
    return centered * scale, scale


def _softmax(scores, mask_bias, scale):
    scores = _float32(scores) * scale + _float32(mask_bias)
    exponential = ops.exp(scores - ops.max(scores, axis=-1, keepdims=True))
    return exponential / ops.sum(exponential, axis=-1, keepdims=True)


# --- the chains -----------------------------------------------------------------------------------------------------


def bias_activation(x, bias, activation: str = "linear", training: bool = False):
    """activation(x + bias) of x [X, H], in its dtype; the activation is computed in float32."""
    if activation == "linear":
        return ops.add(x, bias)
    if fuses(training) and activation in _SLOPES:
        return _fused_bias_activation(activation)(*_tensors(x, bias))
    if not training and len(x.shape) == 2 and on_cpu() and not tf.executing_eagerly():
        # TensorFlow makes one oneDNN primitive of a product, its bias and the activation, with float32 inside.
        return ACTIVATIONS[activation](tf.nn.bias_add(x, bias))
    return ops.cast(ACTIVATIONS[activation](_add_bias(x, bias)), x.dtype)


def residual_norm(x, residual, gamma, beta, drop: Drop | None, epsilon: float, dtype: str, training: bool = False):
    """LayerNorm(residual + dropout(x)) over the last axis, computed in float32.

    x: [X, H]. residual: of the same shape, or None. gamma, beta: float32 [H].
    epsilon: added to the variance. dtype: of the result.
    """
    if residual is None or not fuses(training):
        z = apply_dropout(_float32(x), drop)
        normalized, _ = _normalized(z if residual is None else z + _float32(residual), epsilon)
        return ops.cast(normalized * gamma + beta, dtype)
    rate, key = (drop.rate, drop.key) if drop else (0.0, ops.zeros((3,), "int32"))
    return _fused_norm(rate, epsilon, dtype)(*_tensors(x, residual, gamma, beta, key))


def attention_weights(scores, mask_bias, scale: float, drop: Drop | None = None, training: bool = False):
    """dropout(softmax(scores * scale + mask_bias)) over the last axis, in the dtype of scores, computed in float32.

    scores: [B, N, Q, S], queries by keys.
    mask_bias: float32, broadcastable to scores; 0 for keys that may be attended to, -10000 for others.
    """
    if not training and on_cpu():
        # oneDNN fuses scale and mask into the preceding product, and its softmax computes in float32.
        # Less a constant, to which softmax is blind, scores keep their bits where all keys are masked, in bfloat16 too.
        mask_bias = mask_bias - ops.max(mask_bias, axis=-1, keepdims=True)
        return ops.softmax(scores * ops.cast(scale, scores.dtype) + ops.cast(mask_bias, scores.dtype))
    if fuses(training):
        rate, key = (drop.rate, drop.key) if drop else (0.0, ops.zeros((3,), "int32"))
        return _fused_attention(scale, rate)(*_tensors(scores, mask_bias, key))
    return ops.cast(apply_dropout(_softmax(scores, mask_bias, scale), drop), scores.dtype)


def ordered_fan_out(x, count: int) -> tuple:
    """x as `count` tensors for as many uses, whose gradients are added in this order.

    TensorFlow adds the gradients of three or more uses of one tensor in the order in which its threads finish them, so
    that the last bits vary from run to run, even if its kernels are deterministic. The sum of two has no order.
    """
    if keras.config.backend() != "tensorflow":
        return (x,) * count

    @tf.custom_gradient
    def copies(x):
        return (tf.identity(x),) * count, lambda *upstream: functools.reduce(tf.add, upstream)

    return copies(tf.convert_to_tensor(x))


def embedding_lookup(table, ids, dense_gradient: bool = False):
    """Rows of table: [V, H], ids [X] -> [X, H].

    dense_gradient: give TensorFlow a dense gradient. If the table is also the output layer (tied weights), the two
    gradients are added; TensorFlow would first turn the dense one into slices, which costs several passes over the
    whole table. By default the gradient is `IndexedSlices`, as in the original: global norms are of unmerged slices.
    """
    if not dense_gradient or keras.config.backend() != "tensorflow":
        return ops.take(table, ids, axis=0)

    @tf.custom_gradient
    def lookup(table):
        def gradient(upstream):
            rows = tf.reshape(upstream, [-1, tf.shape(upstream)[-1]])
            return tf.math.unsorted_segment_sum(rows, tf.reshape(ids, [-1]), tf.shape(table)[0])

        return tf.gather(table, ids), gradient

    return lookup(tf.convert_to_tensor(table))


def gumbel_argmax(logits, uniform):
    """The index of the largest of logits + Gumbel noise, over the last axis: a draw from their softmax.

    logits: float32 [..., V]. uniform: [..., V], uniform in [0, 1). Returns int32 [...].

    Source: ELECTRA's pretrain_helpers.py (sample_from_softmax), with its epsilons.
    """
    noisy = logits - ops.log(-ops.log(uniform + _GUMBEL_EPSILON) + _GUMBEL_EPSILON)
    # The first of the largest: compiled, several times as fast on a CPU as argmax.
    size = ops.shape(logits)[-1]
    largest = ops.where(noisy >= ops.max(noisy, axis=-1, keepdims=True), ops.arange(size, dtype="int32"), size - 1)
    return ops.min(largest, axis=-1)


def sample(logits, seeds):
    """int32 [B, P]: one draw from the softmax of each row of float32 logits [B, P, V], without a gradient.

    seeds: int32 [B, 2]; what is drawn for an example depends only on its own.
    """
    logits = ops.stop_gradient(logits)
    return _compiled(_sample)(*_tensors(logits, seeds)) if fused_enabled() else _sample(logits, seeds)


def _sample(logits, seeds):
    _, predictions, size = ops.shape(logits)
    bits = random_bits(seeds[:, None], ops.arange(predictions, dtype="int32")[None] * size, size)
    bits = ops.right_shift(bits, ops.cast(8, "uint32"))
    uniform = ops.cast(ops.cast(bits, "int32"), "float32") * 2.0**-24  # all that float32 tells apart below 1
    return gumbel_argmax(logits, uniform)


# --- fused forms of the chains ---------------------------------------------------------------------------------------


def _tensors(*values):
    """Converts values to tensors, since a custom gradient needs special handling for variables as arguments."""
    return [tf.convert_to_tensor(value) for value in values]


@functools.cache
def _compiled(function):
    return tf.function(function, jit_compile=True, autograph=False)


def _dropped(x, rate, key):
    return apply_dropout(x, Drop(rate, key) if rate else None)


def _column_sums(x):
    """The sums over all axes but the last, as a product with ones, which matrix units accumulate in float32."""
    rows = tf.reshape(x, [-1, x.shape[-1]])
    return tf.linalg.matvec(rows, tf.ones([tf.shape(rows)[0]], rows.dtype), transpose_a=True)


@functools.cache
def _fused_bias_activation(activation):
    forward = _compiled(lambda x, bias: ops.cast(ACTIVATIONS[activation](_add_bias(x, bias)), x.dtype))

    @_compiled
    def backward(x, bias, upstream):
        return ops.cast(_SLOPES[activation](_add_bias(x, bias)) * _float32(upstream), x.dtype)

    @tf.custom_gradient
    def fused(x, bias):
        def gradient(upstream):
            slope = backward(x, bias, upstream)
            return slope, tf.cast(_column_sums(slope), bias.dtype)

        return forward(x, bias), gradient

    return fused


@functools.cache
def _fused_norm(rate, epsilon, dtype):
    @_compiled
    def forward(x, residual, gamma, beta, key):
        normalized, scale = _normalized(_dropped(_float32(x), rate, key) + _float32(residual), epsilon)
        return ops.cast(normalized * gamma + beta, dtype), normalized, scale

    @_compiled
    def backward(upstream, normalized, scale, gamma, key):
        upstream = _float32(upstream)
        slope, of_gamma = upstream * gamma, upstream * normalized
        along = ops.mean(slope * normalized, axis=-1, keepdims=True)
        slope = scale * (slope - ops.mean(slope, axis=-1, keepdims=True) - normalized * along)
        return ops.cast(_dropped(slope, rate, key), dtype), ops.cast(slope, dtype), of_gamma, upstream

    @tf.custom_gradient
    def fused(x, residual, gamma, beta, key):
        y, normalized, scale = forward(x, residual, gamma, beta, key)

        def gradient(upstream):
            of_x, of_residual, *rows = backward(upstream, normalized, scale, gamma, key)
            return of_x, of_residual, *map(_column_sums, rows), None

        return y, gradient

    return fused


@functools.cache
def _fused_attention(scale, rate):
    @_compiled
    def forward(scores, mask_bias, key):
        probabilities = _softmax(scores, mask_bias, scale)
        return ops.cast(_dropped(probabilities, rate, key), scores.dtype), ops.cast(probabilities, scores.dtype)

    @_compiled
    def backward(probabilities, key, upstream):
        dtype = probabilities.dtype
        probabilities = _float32(probabilities)
        product = _dropped(_float32(upstream), rate, key) * probabilities
        return ops.cast((product - probabilities * ops.sum(product, axis=-1, keepdims=True)) * scale, dtype)

    @tf.custom_gradient
    def fused(scores, mask_bias, key):
        weights, probabilities = forward(scores, mask_bias, key)
        return weights, lambda upstream: (backward(probabilities, key, upstream), None, None)

    return fused

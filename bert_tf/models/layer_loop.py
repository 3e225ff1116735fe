"""The layers of an encoder as one loop, for steps that XLA compiles as a whole: a program of one layer, not of all.

The variables of all layers are stacked, and each turn of the loop takes its own. The backward pass is a second loop,
from the last layer to the first. It computes a layer again from its input and the results of its matrix products, which
are kept: what lies between them (softmax, dropout, activations, norms) is cheap, and most of the memory.

On a CPU, where operations are not compiled together, layers stay unrolled: that is faster there.

Shape legend: L turns of the loop, B batch, S sequence length, H hidden size, X any axes.
"""

import contextvars
from collections.abc import Callable, Sequence

import keras

from bert_tf.models.keras_internals import AutocastScope

if keras.config.backend() == "tensorflow":  # otherwise layers stay unrolled
    import tensorflow as tf


def _compute(function: Callable, *tensors):
    return function(*tensors)


# How the layer being traced gets its products: in a loop that keeps any they are kept, or are those that were kept.
_product: contextvars.ContextVar[Callable] = contextvars.ContextVar("product", default=_compute)


def _replay(value, function: Callable, *tensors):
    """A product that a layer kept, when it is computed again."""

    @tf.custom_gradient
    def replayed(*tensors):
        def gradient(upstream):
            with tf.GradientTape() as tape:
                tape.watch(tensors)
                result = function(*tensors)  # no gradient of a product reads it, so it is not computed
            return tape.gradient(result, tensors, upstream)

        return tf.identity(value), gradient

    return replayed(*tensors)


def kept_product(function: Callable, *tensors):
    """function(*tensors), a matrix product; in a loop its result is kept for the backward pass."""
    return _product.get()(function, *tensors)


def looped(call: Callable, layers: Sequence[keras.Layer], x, training: bool, keep: bool = True) -> tuple:
    """Runs layers of one kind, each on the output of the one before it.

    call: (layer, turn, x) -> the output, of x's shape; turn: int32, the number of the layer among `layers`.
    layers: L layers with variables of their own, or L times the same.
    x: [B, S, H]. training: whether there will be a gradient. keep: whether products are kept for it.

    Returns [L, B, S, H], the inputs of all layers, and the last output.
    """
    loop = _Loop(call, layers, keep)
    return (loop.differentiable if training else loop.forward)(x, *loop.values())[:2]


class _Loop:
    """`looped` in TensorFlow. Its values are those of the layers' variables, see `values`."""

    def __init__(self, call: Callable, layers: Sequence[keras.Layer], keep: bool):
        self.call, self.layers, self.keep = call, layers, keep
        self.layer, self.turns = layers[0], len(layers)
        self.shared = all(layer is self.layer for layer in layers)
        self.options = {"parallel_iterations": 1, "maximum_iterations": self.turns}  # of tf.while_loop

    def values(self) -> list:
        """Stacks of the variables, in the dtypes that layers compute with; the variables if layers share them.

        All vectors of a layer are one, since each stack takes operations of its own.
        """
        dtypes = [tf.convert_to_tensor(keras.ops.convert_to_tensor(v)).dtype for v in self.layer.weights]
        groups = {}
        for number, (dtype, weight) in enumerate(zip(dtypes, self.layer.weights, strict=True)):
            groups.setdefault((dtype, "vectors" if len(weight.shape) == 1 else number), []).append(number)
        self.groups, values = list(groups.values()), []
        self.sizes = [[self.layer.weights[number].shape[0] for number in group] for group in self.groups]
        layers = self.layers[:1] if self.shared else self.layers
        for group, sizes in zip(self.groups, self.sizes, strict=True):
            with AutocastScope(None):
                rows = [layer.weights[number].value for layer in layers for number in group]
            rows = tf.cast(tf.concat(rows, 0) if len(rows) > 1 else rows[0], dtypes[group[0]])
            shape = () if self.shared else (self.turns, sum(sizes), *rows.shape[1:])
            values.append(tf.reshape(rows, shape) if shape else rows)
        return values

    def output_of(self, turn, x, values: Sequence, product: Callable = _compute):
        parts = [tf.split(v, sizes) if len(sizes) > 1 else [v] for v, sizes in zip(values, self.sizes, strict=True)]
        weights = [self.layer.weights[number] for group in self.groups for number in group]
        mapping = list(zip(weights, [part for each in parts for part in each], strict=True))
        token = _product.set(product)
        try:
            with keras.StatelessScope(mapping):
                return self.call(self.layer, turn, x)
        finally:
            _product.reset(token)

    def values_of(self, turn, values: Sequence) -> list:
        return [value if self.shared else tf.gather(value, turn) for value in values]

    def recording(self, x, values: Sequence) -> Callable:
        """A traced function (turn, x, values of the turn) -> the output of a layer and what it keeps."""

        def layer(turn, x, *values):
            kept = []

            def product(function, *tensors):
                kept.append(function(*tensors))
                return kept[-1]

            return self.output_of(turn, x, values, product), *kept

        like = (tf.constant(0), x, *self.values_of(tf.constant(0), values))
        specs = (tf.TensorSpec(each.shape, each.dtype) for each in like)
        return tf.function(layer, autograph=False).get_concrete_function(*specs)

    def forward(self, x, *values, recording: Callable | None = None) -> tuple:
        """The inputs of all layers, the last output, and what the layers keep."""

        def body(turn, x, inputs, *records):
            turn_values = self.values_of(turn, values)
            y, *new = recording(turn, x, *turn_values) if recording else (self.output_of(turn, x, turn_values),)
            records = [each.write(turn, value) for each, value in zip(records, new, strict=True)]
            return turn + 1, y, inputs.write(turn, x), *records

        kept = recording.structured_outputs[1:] if recording else ()
        start = (tf.constant(0), x, *(_rows(self.turns, each) for each in (x, *kept)))
        _, y, *rows = tf.while_loop(lambda turn, *_: turn < self.turns, body, start, **self.options)
        inputs, *records = (each.stack() for each in rows)
        return inputs, y, *records

    def differentiable(self, x, *values) -> tuple:
        recording = self.recording(x, values) if self.keep else None

        @tf.custom_gradient
        def run(x, *values):
            inputs, y, *records = self.forward(x, *values, recording=recording)

            def gradient(inputs_gradient, output_gradient):
                return self.backward(inputs_gradient, output_gradient, inputs, values, records)

            return (inputs, y), gradient

        return run(x, *values)

    def backward(self, inputs_gradient, output_gradient, inputs, values: Sequence, records: Sequence) -> list:
        """The gradients of x and the values. The other gradients are those of the results of `looped`."""

        def body(turn, upstream, *gradients):
            x, turn_values = tf.gather(inputs, turn), self.values_of(turn, values)
            kept = iter([tf.gather(record, turn) for record in records])
            product = (lambda *call: _replay(next(kept), *call)) if records else _compute
            with tf.GradientTape() as tape:
                tape.watch([x, *turn_values])
                y = self.output_of(turn, x, turn_values, product)
            x_gradient, *new = tape.gradient(y, [x, *turn_values], upstream, unconnected_gradients="zero")
            pairs = zip(gradients, new, strict=True)
            gradients = [total + value if self.shared else total.write(turn, value) for total, value in pairs]
            return turn - 1, x_gradient + tf.gather(inputs_gradient, turn), *gradients

        totals = (tf.zeros_like(value) if self.shared else _rows(self.turns, value[0]) for value in values)
        start = (tf.constant(self.turns - 1), output_gradient, *totals)
        _, x_gradient, *gradients = tf.while_loop(lambda turn, *_: turn >= 0, body, start, **self.options)
        return [x_gradient, *(each if self.shared else each.stack() for each in gradients)]


def _rows(turns: int, like):
    return tf.TensorArray(like.dtype, turns, element_shape=like.shape)

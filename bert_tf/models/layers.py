"""The layers of encoders in Keras 3: transformer blocks and what they consist of.

Source: Devlin et al. 2018, section 3; original: modeling.py.

Variable paths follow the names of the original's TF1 checkpoints (`bert/encoder/layer_0/attention/self/query/kernel`),
so that no table of names is needed.

Shape legend: B batch, S sequence length, H hidden size, N attention heads, D = H / N, I intermediate size,
V vocabulary, T segment types, M sequences packed into one row, P positions of a row that are read, Q queries: S, or P
in a layer that is computed only there.
"""

import functools
import math

import keras
from keras import ops

from bert_tf.models import kernels, lora
from bert_tf.models.config import BertConfig, config_of_dict
from bert_tf.models.random_weights import add_random_weight

_PACKAGE = "bert_tf"


def leading_sizes(x, count: int) -> tuple:
    """The sizes of the first `count` axes of x, for `ops.reshape`: the only unknown one is -1.

    To compute it would take seven operations, which are traced, optimized and run in every layer.
    """
    sizes = tuple(x.shape)[:count]
    if sizes.count(None) == 1 and 0 not in sizes:
        return tuple(-1 if size is None else size for size in sizes)
    return ops.shape(x)[:count]


def row_numbers(positions, length, groups: int = 1, first=0):
    """int32 [B, groups, P]: which rows of a tensor [B, groups, length, ...] are those at positions [B, P].

    Args:
      first: where the tensor begins in a larger one, along the first axis.
    """
    batch = ops.shape(positions)[0]
    numbers = ops.arange(batch * groups, dtype="int32") + first * groups
    offsets = ops.reshape(numbers * length, (batch, groups, 1))
    return ops.expand_dims(ops.cast(positions, "int32"), 1) + offsets


def gather_positions(sequence, positions):
    """Rows of sequence [B, S, H] at positions [B, P]: [B, P, H]."""
    batch, length, size = ops.shape(sequence)
    flat = ops.reshape(row_numbers(positions, length), (-1,))
    rows = ops.take(ops.reshape(sequence, (-1, size)), flat, axis=0)
    return ops.reshape(rows, (batch, ops.shape(positions)[1], size))


class ConfiguredLayer(keras.layers.Layer):
    """A layer whose only argument is a configuration of any family (or its dict, as stored in a saved model)."""

    def __init__(self, config: BertConfig | dict, **kwargs):
        super().__init__(**kwargs)
        self.config = config_of_dict(config) if isinstance(config, dict) else config

    def get_config(self) -> dict:
        return {**super().get_config(), "config": self.config.to_dict()}


@keras.saving.register_keras_serializable(_PACKAGE)
class LayerNorm(keras.layers.Layer):
    """Layer norm over the last axis, of `residual + dropout(x + bias)` if those are given.

    Statistics and both variables (`gamma`, `beta`, [H]) stay in float32 under every dtype policy, and so does a float32
    input.
    """

    def __init__(self, epsilon: float = kernels.LAYER_NORM_EPSILON, **kwargs):
        super().__init__(**{"autocast": False, **kwargs})
        self.epsilon = epsilon

    def build(self, input_shape):
        size = input_shape[-1]
        self.gamma = self.add_weight(name="gamma", shape=(size,), initializer="ones", autocast=False, dtype="float32")
        self.beta = self.add_weight(name="beta", shape=(size,), initializer="zeros", autocast=False, dtype="float32")
        self.built = True

    def call(self, x, bias=None, residual=None, rate=0.0, dropout_seed=None, rows=None, training=False, trained=True):
        return kernels.layer_norm(
            x,
            ops.convert_to_tensor(self.gamma),
            ops.convert_to_tensor(self.beta),
            epsilon=self.epsilon,
            bias=bias,
            residual=residual,
            rate=rate,
            seed=dropout_seed,
            rows=rows,
            training=training,
            dtype=self.compute_dtype,
            trained=trained,
        )

    def get_config(self) -> dict:
        return {**super().get_config(), "epsilon": self.epsilon}


@keras.saving.register_keras_serializable(_PACKAGE)
class Projection(keras.layers.Layer):
    """x W + b over the last axis, with W stored [in, out].

    Attributes, to be set before `build`:
      frozen: W and b are not trained. lora: what is trained beside them, or None; see lora.py.
    """

    def __init__(self, units: int, initializer_range: float | None = 0.02, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.initializer_range = initializer_range
        self.frozen = False
        self.lora = None

    def build(self, input_shape):
        size, trainable = input_shape[-1], not self.frozen
        # With adapters the sum is made in float32, as that which is saved, and then cast.
        precise = {} if self.lora is None else {"autocast": False, "dtype": "float32"}
        self.kernel = add_random_weight(
            self, "kernel", (size, self.units), self.initializer_range, trainable=trainable, **precise
        )
        self.bias = self.add_weight(name="bias", shape=(self.units,), initializer="zeros", trainable=trainable)
        if self.lora is not None:
            # Normal as in the paper, which gives no deviation; this is that of its authors' code.
            deviation = 1.0 / math.sqrt(3 * size)
            self.lora_a = add_random_weight(self, lora.A, (size, self.lora.rank), deviation, **precise)
            self.lora_b = self.add_weight(
                name=lora.B, shape=(self.lora.rank, self.units), initializer="zeros", **precise
            )
        self.built = True

    def call(self, x, add_bias=True, activation="linear", training=False):
        # Flattened to a matrix: a product of rank 2 has a cheaper gradient, with no broadcast to undo.
        rows = ops.reshape(x, (-1, x.shape[-1]))
        kernel = self.kernel if self.lora is None else self._adapted_kernel(training)
        if add_bias:
            y = kernels.dense(rows, kernel, ops.convert_to_tensor(self.bias), activation)
        else:
            y = ops.matmul(rows, kernel)
        if self.lora is not None and training:  # where no activation is computed here, see `activated`
            a, b = (ops.cast(factor, self.compute_dtype) for factor in (self.lora_a, self.lora_b))
            y = y + ops.matmul(ops.matmul(rows, a), b) * self.lora.scale
        return ops.reshape(y, (*leading_sizes(x, len(x.shape) - 1), self.units))

    def _adapted_kernel(self, training: bool):
        """In training W, beside which the small products are computed, so that W needs no gradient; in evaluation the
        kernel of the model that is saved."""
        kernel = ops.convert_to_tensor(self.kernel)
        if not training:
            kernel = lora.merged_kernel(kernel, self.lora_a, self.lora_b, self.lora.scale)
        return ops.cast(kernel, self.compute_dtype)

    def activated(self, x, activation: str, training: bool):
        """activation(x W + b)."""
        if training or kernels.fuses(training):
            y = self(x, add_bias=False, training=training)
            return kernels.bias_activation(y, ops.convert_to_tensor(self.bias), activation, training)
        return self(x, activation=activation)

    def product_and_bias(self, x, training: bool):
        """(x W, b) for a chain of kernels.py that adds b in float32; at inference (x W + b, None), since oneDNN adds
        the bias within the product and stores a constant W in its preferred layout."""
        if training or kernels.fuses(training):
            return self(x, add_bias=False, training=training), ops.convert_to_tensor(self.bias)
        return self(x), None

    def get_config(self) -> dict:
        return {**super().get_config(), "units": self.units, "initializer_range": self.initializer_range}


@keras.saving.register_keras_serializable(_PACKAGE)
class SelfAttention(ConfiguredLayer):
    """Multi-head scaled dot-product self-attention; only keys are masked (original: attention_layer)."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.query, self.key, self.value = (
            Projection(self.config.hidden_size, self.config.initializer_range, name=name, dtype=self.dtype_policy)
            for name in ("query", "key", "value")
        )

    def build(self, input_shape=None):
        for projection in (self.query, self.key, self.value):
            projection.build((None, None, self.config.hidden_size))
        self.built = True

    def call(self, x, attention_bias, dropout_seed=None, training=False, read=None, positions=None):
        """x: [B, S, H]; attention_bias: float32, broadcastable to [B, N, Q, S].

        Args:
          read, positions: what asks, [B, Q, H], and where in x it is, [B, Q]; None: all of x.

        Returns:
          [B, Q, H], and the attention probabilities [B, N, Q, S]: queries by keys.
        """
        heads = self.config.num_attention_heads
        size = self.config.hidden_size // heads
        rows = None
        if positions is not None:
            rows = row_numbers(positions, ops.shape(x)[1], heads, kernels.first_row(dropout_seed))
        read = x if read is None else read

        def split(y, order):
            return ops.transpose(ops.reshape(y, (*leading_sizes(y, 2), heads, size)), order)

        # Three products, not one that is sliced: the gradient of a slice pads, which costs more than it saves.
        query = split(self.query(read, training=training), (0, 2, 1, 3))  # [B, N, Q, D]
        key = split(self.key(x, training=training), (0, 2, 3, 1))  # [B, N, D, S]
        value = split(self.value(x, training=training), (0, 2, 1, 3))  # [B, N, S, D]
        probabilities = kernels.attention_probabilities(
            ops.matmul(query, key),
            attention_bias,
            1.0 / math.sqrt(size),
            rate=self.config.attention_probs_dropout_prob,
            seed=dropout_seed,
            rows=rows,
            training=training,
        )  # [B, N, Q, S]
        context = ops.transpose(ops.matmul(probabilities, value), (0, 2, 1, 3))  # [B, Q, N, D]
        return ops.reshape(context, (*leading_sizes(read, 2), heads * size)), probabilities


@keras.saving.register_keras_serializable(_PACKAGE)
class ResidualOutput(ConfiguredLayer):
    """LayerNorm(residual + dropout(x W + b)): the end of both halves of a transformer block."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        size, deviation = self.config.hidden_size, self.config.initializer_range
        self.dense = Projection(size, deviation, name="dense", dtype=self.dtype_policy)
        self.layer_norm = LayerNorm(self.config.layer_norm_eps, name="LayerNorm", dtype=self.dtype_policy)

    def build(self, input_shape):
        self.dense.build(input_shape)
        self.layer_norm.build((None, None, self.config.hidden_size))
        self.built = True

    def call(self, x, residual, rate, dropout_seed=None, rows=None, training=False):
        y, bias = self.dense.product_and_bias(x, training)
        return self.layer_norm(
            y,
            bias=bias,
            residual=residual,
            rate=rate,
            dropout_seed=dropout_seed,
            rows=rows,
            training=training,
            trained=not self.dense.frozen,
        )


@keras.saving.register_keras_serializable(_PACKAGE)
class Attention(ConfiguredLayer):
    """First half of a transformer block: self-attention and its residual output."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.self_attention = SelfAttention(self.config, name="self", dtype=self.dtype_policy)
        self.attention_output = ResidualOutput(self.config, name="output", dtype=self.dtype_policy)

    def build(self, input_shape=None):
        self.self_attention.build()
        self.attention_output.build((None, None, self.config.hidden_size))
        self.built = True

    def call(self, x, attention_bias, dropout_seed=None, training=False, positions=None, rows=None):
        """Arguments as for `TransformerBlock`; rows: int32 [B, Q], the `row_numbers` of positions.

        Returns:
          [B, Q, H], and the probabilities [B, N, Q, S] of self-attention.
        """
        read = x
        if positions is not None:
            x, read = kernels.shared(x, 2)
            read = gather_positions(read, positions)
        context, probabilities = self.self_attention(
            x,
            attention_bias,
            dropout_seed=kernels.fold_in(dropout_seed, 1),
            training=training,
            read=read,
            positions=positions,
        )
        rate, seed = self.config.attention_output_dropout_prob, kernels.fold_in(dropout_seed, 2)
        x = self.attention_output(context, read, rate=rate, dropout_seed=seed, rows=rows, training=training)
        return x, probabilities


@keras.saving.register_keras_serializable(_PACKAGE)
class Intermediate(ConfiguredLayer):
    """Dense layer H -> I with hidden_act."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        units = self.config.intermediate_size
        self.dense = Projection(units, self.config.initializer_range, name="dense", dtype=self.dtype_policy)

    def build(self, input_shape=None):
        self.dense.build((None, None, self.config.hidden_size))
        self.built = True

    def call(self, x, training=False):
        return self.dense.activated(x, self.config.activation, training)


@keras.saving.register_keras_serializable(_PACKAGE)
class TransformerBlock(ConfiguredLayer):
    """One encoder layer, layer norm after each residual (original: transformer_model)."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        dtype = self.dtype_policy
        self.attention = Attention(self.config, name="attention", dtype=dtype)
        self.intermediate = Intermediate(self.config, name="intermediate", dtype=dtype)
        self.block_output = ResidualOutput(self.config, name="output", dtype=dtype)

    def build(self, input_shape=None):
        self.attention.build()
        self.intermediate.build()
        self.block_output.build((None, None, self.config.intermediate_size))
        self.built = True

    @property
    def projections(self) -> tuple[Projection, ...]:
        """Query, key, value and output of the attention, and both of the feed-forward network."""
        attention = self.attention.self_attention
        return (
            attention.query,
            attention.key,
            attention.value,
            self.attention.attention_output.dense,
            self.intermediate.dense,
            self.block_output.dense,
        )

    def call(self, x, attention_bias, dropout_seed=None, training=False, positions=None):
        """x: [B, S, H]; attention_bias: float32, broadcastable to [B, N, S, S].

        Args:
          positions: int32 [B, P]: all but keys and values is computed only there, with the dropout masks that the whole
            computation has there. None: everywhere.

        Returns:
          [B, Q, H], and the probabilities [B, N, Q, S] of self-attention.
        """
        rows = None
        if positions is not None:
            rows = row_numbers(positions, ops.shape(x)[1], first=kernels.first_row(dropout_seed))[:, 0]
            if attention_bias.shape[2] != 1:
                attention_bias = gather_positions(attention_bias[:, 0], positions)[:, None]
        x, probabilities = self.attention(
            x, attention_bias, dropout_seed=dropout_seed, training=training, positions=positions, rows=rows
        )
        hidden = self.intermediate(x, training=training)  # [B, Q, I]
        rate, seed = self.config.hidden_dropout_prob, kernels.fold_in(dropout_seed, 3)
        x = self.block_output(hidden, x, rate=rate, dropout_seed=seed, rows=rows, training=training)
        return x, probabilities


@keras.saving.register_keras_serializable(_PACKAGE)
class Encoder(ConfiguredLayer):
    """The stack of transformer blocks; layers may share a block (`config.block_order`)."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.blocks = [
            TransformerBlock(self.config, name=f"layer_{i}", dtype=self.dtype_policy)
            for i in range(1 + max(self.config.block_order))
        ]

    def build(self, input_shape=None):
        for block in self.blocks:
            block.build()
        self.built = True

    def call(
        self,
        x,
        attention_bias,
        dropout_seed=None,
        training=False,
        return_attention=False,
        frozen_layers=None,
        positions=None,
    ):
        """x: [B, S, H]; attention_bias: see `TransformerBlock`. frozen_layers: how many layers pass no gradient back to
        x; with 0 only x itself gets none. positions: [B, P], where the last layer is computed; None: everywhere.

        Returns:
          Two lists in the order of the layers: their outputs [B, S, H], the last [B, P, H] with positions; with
          `return_attention` their attention probabilities [B, N, S, S], the last [B, N, P, S], else an empty list, so
          that eager execution frees their memory at once.
        """
        outputs, attention = [], []
        for number, block in enumerate(self.config.block_order):
            if number == frozen_layers:
                x = ops.stop_gradient(x)
            seed = kernels.fold_in(dropout_seed, 4 * (number + 1))
            read = positions if number == len(self.config.block_order) - 1 else None
            call = functools.partial(
                self.blocks[block], attention_bias=attention_bias, dropout_seed=seed, training=training, positions=read
            )
            if training and kernels.recomputes() and not return_attention:
                x = keras.remat(lambda x, call=call: call(x)[0])(x)
            else:
                x, probabilities = call(x)
            outputs.append(x)
            if return_attention:
                attention.append(probabilities)
        if frozen_layers == len(outputs):
            outputs[-1] = ops.stop_gradient(outputs[-1])
        return outputs, attention


def attention_bias(input_mask, causal: bool = False):
    """The additive form of an attention mask, float32.

    Args:
      input_mask: [B, S], 1 for a key that may be attended to, else 0; or [B, S, S], queries by keys.
      causal: a query attends to no key after itself.

    Returns:
      [B, 1, 1, S] or, for [B, S, S] or causal, [B, 1, S, S]: 0 where attention is allowed, -10000 elsewhere. The mask
      is soft on purpose: a row without any key attends to everything instead of giving NaN (original: attention_layer).
    """
    mask = ops.cast(input_mask, "float32")
    mask = mask[:, None, None, :] if len(mask.shape) == 2 else mask[:, None, :, :]
    if causal:
        place = ops.arange(ops.shape(mask)[-1])
        mask = mask * ops.cast(place[:, None] >= place[None, :], "float32")
    return (1.0 - mask) * kernels.MASK_BIAS

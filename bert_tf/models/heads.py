"""The layers on top of the encoder: BiLSTMs, convolutions, linear output layers and the masked-LM head.

Original: run_pretraining.py (get_masked_lm_output, get_next_sentence_output). Paper: section 3.1.

Shape legend: B batch, S sequence length, H hidden size, P predictions per sequence, V vocabulary, C classes,
U outputs of a BiLSTM or of all convolutions.
"""

import keras
from keras import ops

from bert_tf.models.layers import ConfiguredLayer, gather_positions
from bert_tf.models.random_weights import add_random_weight

_PACKAGE = "bert_tf"

_CONVOLUTION_WIDTHS = (3, 4, 5)
# What reads the embeddings or features of tokens -> what its number of outputs must be a multiple of.
TOKEN_READERS = {"bilstm": 2, "cnn": len(_CONVOLUTION_WIDTHS)}


def bilstm(width: int, *, return_sequences: bool = True, dtype=None, name: str = "bilstm") -> keras.layers.Layer:
    """A bidirectional LSTM; half of its width is for each direction.

    Args:
      return_sequences: outputs [B, S, width] for all tokens; otherwise the two last states, [B, width].
    """
    lstm = keras.layers.LSTM(width // 2, return_sequences=return_sequences, dtype=dtype, name="lstm")
    return keras.layers.Bidirectional(lstm, dtype=dtype, name=name)


def apply_bilstm(layer: keras.layers.Layer, x, input_mask, training: bool):
    """A BiLSTM's outputs for x [B, S, H].

    Args:
      input_mask: [B, S], 0 for padding, so that the backward LSTM starts at the end of the row; None: no padding.
    """
    return layer(x, mask=None if input_mask is None else ops.cast(input_mask, "bool"), training=training)


def token_reader(kind: str, width: int, dtype=None) -> list[keras.layers.Layer]:
    """The layers of a BiLSTM or of a CNN with convolutions of three widths (Kim 2014, arXiv:1408.5882).

    Args:
      kind: one of TOKEN_READERS. width: U.
    """
    if kind == "bilstm":
        return [bilstm(width, dtype=dtype)]
    arguments = {"padding": "same", "activation": "relu", "dtype": dtype}
    filters = width // len(_CONVOLUTION_WIDTHS)
    return [
        keras.layers.Conv1D(filters, width, name=f"convolution_{width}", **arguments) for width in _CONVOLUTION_WIDTHS
    ]


def read_tokens(layers: list[keras.layers.Layer], x, input_mask, training: bool):
    """[B, U]: the maximum over the tokens of each output of the layers of a `token_reader`.

    Args:
      x: [B, S, H]. input_mask: [B, S], 0 for padding, which has no influence; None: no padding.
    """
    mask = ops.ones(ops.shape(x)[:2], "bool") if input_mask is None else ops.cast(input_mask, "bool")
    # For convolutions, padding is zero, like everything beyond the ends of a row.
    x = x * ops.cast(ops.expand_dims(mask, -1), x.dtype)
    if isinstance(layers[0], keras.layers.Bidirectional):
        x = apply_bilstm(layers[0], x, mask, training)  # [B, S, U]
    else:
        x = ops.concatenate([layer(x) for layer in layers], axis=-1)
    lowest = ops.cast(-1e4, x.dtype)
    return ops.max(ops.where(ops.expand_dims(mask, -1), x, lowest), axis=1)


def reader_flops(kind: str, size: int, width: int) -> float:
    """Floating-point operations of a `token_reader`'s matrix products, forward, per token.

    Args:
      size: H of its input. width: U.
    """
    if kind == "bilstm":
        return 2.0 * 2 * 4 * (width // 2) * (size + width // 2)
    return 2.0 * size * width / len(_CONVOLUTION_WIDTHS) * sum(_CONVOLUTION_WIDTHS)


@keras.saving.register_keras_serializable(_PACKAGE)
class LinearHead(keras.layers.Layer):
    """x Wᵀ + b with W stored [C, H], as the original stores output layers (`output_weights`, `output_bias`)."""

    def __init__(self, num_outputs: int, initializer_range: float | None = 0.02, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True  # otherwise Keras warns that it does not use a BiLSTM's mask
        self.num_outputs = num_outputs
        self.initializer_range = initializer_range

    def build(self, input_shape):
        shape = (self.num_outputs, input_shape[-1])
        self.output_weights = add_random_weight(self, "output_weights", shape, self.initializer_range)
        self.output_bias = self.add_weight(name="output_bias", shape=(self.num_outputs,), initializer="zeros")
        self.built = True

    def call(self, x):
        """x: [..., H]. Returns float32 logits [..., C]."""
        logits = ops.add(ops.matmul(x, ops.transpose(self.output_weights)), self.output_bias)
        return ops.cast(logits, "float32")

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "num_outputs": self.num_outputs,
            "initializer_range": self.initializer_range,
        }


@keras.saving.register_keras_serializable(_PACKAGE)
class PredictionTransform(ConfiguredLayer):
    """Dense layer H -> E with hidden_act (or masked_lm_act), then layer norm; no dropout."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.dense, self.layer_norm = self.projection(self.config.embedding_size), self.norm()

    def build(self, input_shape=None):
        self.dense.build((None, None, self.config.hidden_size))
        self.layer_norm.build((None, None, self.config.embedding_size))
        self.built = True

    def call(self, x, training=False):
        activation = self.config.masked_lm_act or self.config.activation
        x = self.dense(x, activation=activation, training=training)
        return self.layer_norm(x)


@keras.saving.register_keras_serializable(_PACKAGE)
class MaskedLanguageModelHead(ConfiguredLayer):
    """Scores of every vocabulary entry; the output matrix is the word-embedding table."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.transform = PredictionTransform(self.config, name="transform", dtype=self.dtype_policy)

    def build(self, input_shape=None):
        self.transform.build()
        self.output_bias = self.add_weight(
            name="output_bias", shape=(self.config.vocab_size,), initializer="zeros", autocast=False, dtype="float32"
        )
        self.built = True

    def call(self, sequence_output, embedding_table, positions=None, training=False):
        """Scores the masked positions, or all of them.

        Args:
          sequence_output: [B, S, H]. embedding_table: [V, E], tied. positions: [B, P], or None for all.

        Returns:
          logits [B, P, V] (P = S without positions), float32.
        """
        x = sequence_output if positions is None else gather_positions(sequence_output, positions)
        x = self.transform(x, training=training)  # [B, P, E]
        table = ops.transpose(ops.cast(embedding_table, x.dtype))  # [E, V]
        logits = ops.matmul(ops.reshape(x, (-1, self.config.embedding_size)), table)  # [B * P, V]
        logits = ops.cast(logits, "float32") + self.output_bias
        return ops.reshape(logits, (*ops.shape(x)[:2], self.config.vocab_size))

"""The layers on top of the encoder: BiLSTMs, linear output layers and the masked-LM head.

Original: run_pretraining.py (get_masked_lm_output, get_next_sentence_output). Paper: section 3.1.

Shape legend: B batch, S sequence length, H hidden size, P predictions per sequence, V vocabulary, C classes.
"""

import keras
from keras import ops

from bert_tf.models.layers import ConfiguredLayer, LayerNorm, Projection, gather_positions, truncated_normal

_PACKAGE = "bert_tf"


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


@keras.saving.register_keras_serializable(_PACKAGE)
class LinearHead(keras.layers.Layer):
    """x Wᵀ + b with W stored [C, H], as the original stores output layers (`output_weights`, `output_bias`)."""

    def __init__(self, num_outputs: int, initializer_range: float = 0.02, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True  # otherwise Keras warns that it does not use a BiLSTM's mask
        self.num_outputs = num_outputs
        self.initializer_range = initializer_range

    def build(self, input_shape):
        shape = (self.num_outputs, input_shape[-1])
        initializer = truncated_normal(self.initializer_range)
        self.output_weights = self.add_weight(name="output_weights", shape=shape, initializer=initializer)
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
    """Dense layer H -> H with hidden_act, then layer norm; no dropout."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        size, deviation = self.config.hidden_size, self.config.initializer_range
        self.dense = Projection(size, deviation, name="dense", dtype=self.dtype_policy)
        self.layer_norm = LayerNorm(self.config.layer_norm_eps, name="LayerNorm", dtype=self.dtype_policy)

    def build(self, input_shape=None):
        for layer in (self.dense, self.layer_norm):
            layer.build((None, None, self.config.hidden_size))
        self.built = True

    def call(self, x, training=False):
        return self.layer_norm(self.dense.activated(x, self.config.activation, training), training=training)


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
          sequence_output: [B, S, H]. embedding_table: [V, H], tied. positions: [B, P], or None for all.

        Returns:
          logits [B, P, V] (P = S without positions), float32.
        """
        x = sequence_output if positions is None else gather_positions(sequence_output, positions)
        x = self.transform(x, training=training)  # [B, P, H]
        table = ops.transpose(ops.cast(embedding_table, x.dtype))  # [H, V]
        logits = ops.matmul(ops.reshape(x, (-1, self.config.hidden_size)), table)  # [B * P, V]
        logits = ops.cast(logits, "float32") + self.output_bias
        return ops.reshape(logits, (*ops.shape(x)[:2], self.config.vocab_size))

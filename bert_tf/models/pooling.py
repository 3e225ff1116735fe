"""One vector of several: of a text's tokens, or of a long text's windows.

Source: Reimers and Gurevych 2019, "Sentence-BERT", section 3.

Shape legend: B batch, S sequence length or windows of a text, H hidden size.
"""

import keras
from keras import ops

from bert_tf.models.layers import Rebuilt

_LOWEST = -1e30


def sentence_vectors(encoder, inputs: dict, pooling: str, skipped: int = 0, **arguments):
    """float32 [B, H]: a vector for each row.

    Args:
      encoder: a `BertEncoder`. inputs: input_ids, input_mask and segment_ids [B, S].
      pooling: see `sentence_settings.SentenceSettings`. skipped: the first tokens of a row that are not read, those of
        a prompt. arguments: for the encoder's call.
    """
    mask = inputs["input_mask"]
    first = ops.full((ops.shape(mask)[0], 1), skipped, "int32") if pooling == "cls" else None
    outputs = encoder(inputs, read_positions=first, **arguments)["sequence_output"]
    return pooled(ops.cast(outputs, "float32"), mask, pooling, 0 if pooling == "cls" else skipped)


def pooled(outputs, mask, pooling: str, skipped: int = 0):
    """[B, H] of the outputs [B, S, H] for tokens and their mask [B, S]; of "cls" only the first output is read.

    skipped: the first tokens that are not read.
    """
    if pooling == "cls":
        return outputs[:, skipped]
    if skipped:
        mask = ops.cast(mask, "int32") * ops.cast(ops.arange(ops.shape(mask)[1]) >= skipped, "int32")
    counted = ops.cast(mask, outputs.dtype)[:, :, None]
    if pooling == "max":
        return ops.max(ops.where(counted > 0, outputs, _LOWEST), axis=1)
    return ops.sum(outputs * counted, axis=1) / ops.maximum(ops.sum(counted, axis=1), 1.0)


def normalized(vectors):
    """The vectors [..., H] with the length 1; zeros stay zeros."""
    return vectors / ops.maximum(ops.norm(vectors, axis=-1, keepdims=True), 1e-12)


@keras.saving.register_keras_serializable("bert_tf")
class WindowPooling(Rebuilt, keras.layers.Layer):
    """Mean or maximum over the windows of a text, or a mean with weights that are learned.

    The weights of "attention" are a softmax over the windows of their vectors' products with one learned vector. It
    begins at zero: then all windows weigh the same. With one window, every kind gives its vector, bit for bit.

    Args:
      kind: one of `head_config.WINDOW_POOLINGS`.
    """

    def __init__(self, kind: str, **kwargs):
        super().__init__(**kwargs)
        self.kind = kind

    def build(self, input_shape):
        if self.kind == "attention":
            shape = (input_shape[-1],)
            self.scores = self.add_weight(
                name="scores", shape=shape, initializer="zeros", autocast=False, dtype="float32"
            )
        self.built = True

    def call(self, x, mask):
        """Combines the windows in float32.

        Args:
          x: [B, S, H]. mask: [B, S], 0 for windows that a text does not have, which have no influence.

        Returns:
          [B, H] in the dtype of x.
        """
        values = ops.cast(x, "float32")
        if self.kind == "attention":
            scores = ops.where(ops.cast(mask, "bool"), ops.sum(values * self.scores, axis=-1), _LOWEST)  # [B, S]
            # Keras's softmax warns of a single value.
            weights = ops.exp(scores - ops.max(scores, axis=-1, keepdims=True))
            weights = weights / ops.sum(weights, axis=-1, keepdims=True)
            values = ops.sum(values * weights[:, :, None], axis=1)
        else:
            values = pooled(values, mask, self.kind)
        return ops.cast(values, x.dtype)

"""One vector for a long text, from the vectors of its windows.

Shape legend: B batch, W windows of a text, H hidden size.
"""

import keras
from keras import ops

from bert_tf.models.sentence_vectors import pooled

_LOWEST = -1e30


@keras.saving.register_keras_serializable("bert_tf")
class WindowPooling(keras.layers.Layer):
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
          x: [B, W, H]. mask: [B, W], 0 for windows that a text does not have, which have no influence.

        Returns:
          [B, H] in the dtype of x.
        """
        values = ops.cast(x, "float32")
        if self.kind == "attention":
            scores = ops.where(ops.cast(mask, "bool"), ops.sum(values * self.scores, axis=-1), _LOWEST)  # [B, W]
            # Keras's softmax warns of a single value.
            weights = ops.exp(scores - ops.max(scores, axis=-1, keepdims=True))
            weights = weights / ops.sum(weights, axis=-1, keepdims=True)
            values = ops.sum(values * weights[:, :, None], axis=1)
        else:
            values = pooled(values, mask, self.kind)
        return ops.cast(values, x.dtype)

    def get_config(self) -> dict:
        return {**super().get_config(), "kind": self.kind}

"""The discriminator of ELECTRA: which tokens of a text a generator replaced (Clark et al. 2020, section 3).

Original: pretrain/pretrain.py (`_get_discriminator_output`).

Shape legend: B batch, S sequence length, H hidden size.
"""

import keras
from keras import ops

from bert_tf.models.base_models import TaskModel
from bert_tf.models.layers import ConfiguredLayer, Projection
from bert_tf.models.objectives import (
    ClassificationObjective,
    means,
    require_zero_or_one,
    row_weights,
    sigmoid_cross_entropy,
)

_PACKAGE = "bert_tf"

# Added to numbers of tokens, so that a batch without any has loss 0.
EPSILON = 1e-6


class ReplacedTokenObjective(ClassificationObjective):
    """Sigmoid cross-entropy of "was this token replaced", mean over all tokens but padding; [CLS] and [SEP] count.

    Outputs: logits [B, S]. Features: `is_replaced` [B, S], 0 or 1; `input_mask` [B, S], 0 for padding.
    Metrics: `replaced_token_accuracy`, `replaced_token_loss`. The values of tokens and their weights are [B, S].
    """

    label_names = ("is_replaced",)
    optional_names = ("example_weights",)
    ratios = means(replaced_token_accuracy="accuracy", replaced_token_loss="metric_loss")

    @classmethod
    def weights(cls, features, in_metrics=False):
        mask = features.get("input_mask")
        weights = ops.cast(ops.ones_like(features["is_replaced"]) if mask is None else mask, "float32")
        return weights * row_weights(features, weights)[:, None] if "example_weights" in features else weights

    @classmethod
    def values(cls, outputs, features: dict) -> tuple:
        labels = require_zero_or_one("is_replaced", features["is_replaced"], cls.weights(features))
        right = ops.cast(ops.equal(outputs > 0, labels > 0), "float32")
        return sigmoid_cross_entropy(outputs, labels), {"accuracy": right}

    @classmethod
    def loss(cls, sums: dict, totals: dict):
        return sums["loss_sum"] / (totals["weight"] + EPSILON)


@keras.saving.register_keras_serializable(_PACKAGE)
class ReplacedTokenHead(ConfiguredLayer):
    """Dense layer H -> H with hidden_act, then H -> 1; no dropout."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.dense = self.projection(self.config.hidden_size)
        self.output_dense = Projection(1, self.config.head_initializer_range, name="dense_1", dtype=self.dtype_policy)

    def build(self, input_shape=None):
        self.dense.build((None, None, self.config.hidden_size))
        self.output_dense.build((None, None, self.config.hidden_size))
        self.built = True

    def call(self, sequence_output, training=False):
        """sequence_output: [B, S, H]. Returns float32 logits [B, S]."""
        x = self.dense(sequence_output, activation=self.config.activation, training=training)
        return ops.cast(self.output_dense(x), "float32")[..., 0]


@keras.saving.register_keras_serializable(_PACKAGE)
class ElectraDiscriminator(TaskModel):
    """Encoder, and for every token whether it was replaced. The generator is a `BertForMaskedLM`.

    Example:

        model = ElectraDiscriminator.from_pretrained("electra_small")
        replaced = model({"input_ids": ids}) > 0  # [B, S]

    Args:
      config: an `ElectraConfig` or its dict. seed: see `BertModel`. dtype: Keras dtype policy.
    """

    part = "discriminator"

    def __init__(self, config, seed: int | None = None, name="discriminator", **kwargs):
        super().__init__(ReplacedTokenObjective, config, seed, name=name, **kwargs)
        self.head = ReplacedTokenHead(self.config, name="discriminator_predictions", dtype=self.dtype_policy)

    def build_head(self):
        self.head.build()

    def call(self, inputs, training=False):
        """inputs: as for `BertModel`. Returns float32 logits [B, S]: positive for tokens that were replaced."""
        encoded = self.encode(inputs, training=training)
        return self.head(encoded["sequence_output"], training=training)

"""The discriminator of ELECTRA: which tokens of a text a generator replaced (Clark et al. 2020, section 3).

Original: pretrain/pretrain.py (`_get_discriminator_output`).

Shape legend: B batch, S sequence length, H hidden size.
"""

import keras
from keras import ops

from bert_tf.models.base_models import TaskModel
from bert_tf.models.layers import ConfiguredLayer, Projection
from bert_tf.models.objectives import require_zero_or_one

_PACKAGE = "bert_tf"
_EPSILON = 1e-6  # added to the number of tokens, so that a batch without any has loss 0


class ReplacedTokenObjective:
    """Sigmoid cross-entropy of "was this token replaced", mean over all tokens but padding; [CLS] and [SEP] count.

    Outputs: logits [B, S]. Features: `is_replaced` [B, S], 0 or 1; `input_mask` [B, S], 0 for padding.
    Metrics: `replaced_token_accuracy`, `replaced_token_loss`.
    """

    label_names = ("is_replaced",)
    optional_names = ("example_weights",)
    sum_names = ("loss_sum", "correct", "tokens")

    @staticmethod
    def weights(features: dict):
        """[B, S] float32: 0 for tokens that do not count."""
        mask = features.get("input_mask")
        weights = ops.ones_like(features["is_replaced"]) if mask is None else mask
        weights = ops.cast(weights, "float32")
        if "example_weights" in features:
            weights = weights * ops.reshape(ops.cast(features["example_weights"], "float32"), (-1, 1))
        return weights

    @staticmethod
    def losses(logits, labels):
        """Sigmoid cross-entropy of each logit; labels: float32 of the same shape."""
        return ops.softplus(logits) - logits * labels

    @staticmethod
    def totals(features: dict) -> dict:
        """The loss's divisor, from the features of a whole batch: `tokens`."""
        return {"tokens": ops.sum(ReplacedTokenObjective.weights(features))}

    @staticmethod
    def sums(outputs, features: dict) -> dict:
        """Adds up over a batch or a part of one: float32 scalars under `sum_names`."""
        labels = ops.cast(features["is_replaced"], "float32")
        weights = ReplacedTokenObjective.weights(features)
        labels = require_zero_or_one("is_replaced", labels, weights)
        losses = ReplacedTokenObjective.losses(outputs, labels)
        correct = ops.cast(ops.equal(outputs > 0, labels > 0), "float32")
        return {
            "loss_sum": ops.sum(weights * losses),
            "correct": ops.sum(weights * correct),
            "tokens": ops.sum(weights),
        }

    @staticmethod
    def loss(sums: dict, totals: dict):
        """Mean over the tokens; with a batch's totals, the losses of its parts add up to its loss."""
        return sums["loss_sum"] / (totals["tokens"] + _EPSILON)

    @staticmethod
    def metrics(sums: dict) -> dict:
        """Means over the tokens, from sums over any number of batches."""
        tokens = sums["tokens"] + _EPSILON
        return {"replaced_token_accuracy": sums["correct"] / tokens, "replaced_token_loss": sums["loss_sum"] / tokens}


@keras.saving.register_keras_serializable(_PACKAGE)
class ReplacedTokenHead(ConfiguredLayer):
    """Dense layer H -> H with hidden_act, then H -> 1; no dropout."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        size, deviation, dtype = self.config.hidden_size, self.config.initializer_range, self.dtype_policy
        self.dense = Projection(size, deviation, name="dense", dtype=dtype)
        self.output_dense = Projection(1, self.config.head_initializer_range, name="dense_1", dtype=dtype)

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

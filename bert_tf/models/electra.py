"""ELECTRA: a generator guesses masked tokens, a discriminator finds its guesses (Clark et al. 2020, section 3).

Original: pretrain/pretrain.py and pretrain_model.py of the ELECTRA repository (`_get_discriminator_output`), with its
pretrain_helpers.py (`sample_from_softmax`, `scatter_update`).

Shape legend: B batch, S sequence length, H hidden size, P predictions per sequence, V vocabulary.
"""

import dataclasses

import numpy as np
from absl import logging
from keras import ops

from bert_tf.families import as_config
from bert_tf.models import kernels, objectives
from bert_tf.models.encoder import BertEncoder
from bert_tf.models.heads import MaskedLanguageModelHead, TaskModel
from bert_tf.models.inputs import require_inputs, select
from bert_tf.models.layers import ConfiguredLayer, Projection
from bert_tf.models.objectives import ClassificationObjective, MaskedLanguageModelObjective, SumObjective, row_weights
from bert_tf.store import variable_names
from bert_tf.store.tensor_files import Weights

_EPSILON = 1e-6  # added to numbers of tokens and predictions, so that a batch without any has loss 0
_THRESHOLDS = 200


class ReplacedTokenObjective(ClassificationObjective):
    """Sigmoid cross-entropy of "was this token replaced", mean over all tokens but padding; [CLS] and [SEP] count.

    Outputs: logits [B, S]. Features: `is_replaced` [B, S], 0 or 1; `input_mask` [B, S], 0 for padding.
    Metrics: `replaced_token_accuracy`, `replaced_token_loss`. The values of tokens and their weights are [B, S].
    """

    label_names = ("is_replaced",)
    optional_names = ("example_weights",)
    ratios = objectives.means(replaced_token_accuracy="accuracy", replaced_token_loss="metric_loss")

    @classmethod
    def weights(cls, features, in_metrics=False):
        mask = features.get("input_mask")
        weights = ops.cast(ops.ones_like(features["is_replaced"]) if mask is None else mask, "float32")
        return weights * row_weights(features, weights)[:, None] if "example_weights" in features else weights

    @classmethod
    def values(cls, outputs, features: dict) -> tuple:
        labels = objectives.require_zero_or_one("is_replaced", features["is_replaced"], cls.weights(features))
        right = ops.cast(ops.equal(outputs > 0, labels > 0), "float32")
        return objectives.sigmoid_cross_entropy(outputs, labels), {"accuracy": right}

    @classmethod
    def loss(cls, sums: dict, totals: dict):
        return sums["loss_sum"] / (totals["weight"] + _EPSILON)


class ReplacedTokenHead(ConfiguredLayer):
    """Dense layer H -> H with hidden_act, then H -> 1: float32 logits [B, S] of [B, S, H]; no dropout."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.dense = self.projection(self.config.hidden_size)
        self.output_dense = Projection(1, self.config.head_initializer_range, name="dense_1", dtype=self.dtype_policy)

    def build(self, input_shape=None):
        self.dense.build((None, None, self.config.hidden_size))
        self.output_dense.build((None, None, self.config.hidden_size))

    def call(self, sequence_output, training=False):
        x = self.dense(sequence_output, activation=self.config.activation, training=training)
        return ops.cast(self.output_dense(x), "float32")[..., 0]


class ElectraDiscriminator(TaskModel):
    """Encoder, and for every token whether it was replaced. The generator is a `BertForMaskedLM`.

        model = ElectraDiscriminator.from_pretrained("electra_small")
        replaced = model({"input_ids": ids}) > 0  # [B, S]

    config is an `ElectraConfig` or its dict; seed and dtype are as for `BertModel`.
    """

    part = "discriminator"

    def __init__(self, config, seed: int | None = None, name="discriminator", **kwargs):
        super().__init__(ReplacedTokenObjective, config, seed, name=name, **kwargs)
        self.head = ReplacedTokenHead(self.config, name="discriminator_predictions", dtype=self.dtype_policy)

    def call(self, inputs, training=False):
        """inputs: as for `BertModel`. Returns float32 logits [B, S]: positive for tokens that were replaced."""
        return self.head(self.encode(inputs, training=training)["sequence_output"], training=training)


@dataclasses.dataclass(frozen=True)
class ReplacedTokenPretraining(SumObjective):
    """Loss and metrics of generator and discriminator together.

    Outputs: those of `ElectraPretrainer`. Features: `masked_lm_ids`, `masked_lm_weights` [B, P], `input_mask` [B, S],
    and optionally `example_weights` [B].
    The metrics are those of the original's evaluation, under its names: `disc_loss` is the mean over the rows of each
    row's mean; `disc_precision` and `disc_recall` are about replaced tokens.

    generator_weight, discriminator_weight: factors of the masked-LM loss, and of the loss of the discriminator.
    """

    generator_weight: float = 1.0
    discriminator_weight: float = 50.0

    label_names = ("masked_lm_ids", "masked_lm_weights")
    optional_names = ("example_weights",)
    loss_sums = ("discriminator_loss",)
    ratios = (
        ("masked_lm_accuracy", "masked_lm_correct", "masked_lm_weight"),
        ("masked_lm_loss", "masked_lm_loss", "masked_lm_weight"),
        ("sampled_masked_lm_accuracy", "sampled_correct", "masked_lm_weight"),
        ("disc_loss", "discriminator_row_loss", "rows"),
        ("disc_accuracy", "discriminator_correct", "tokens"),
        ("disc_precision", "found_replaced", "found"),
        ("disc_recall", "found_replaced", "replaced"),
    )

    @staticmethod
    def totals(features: dict) -> dict:
        weights = MaskedLanguageModelObjective.totals(features)["weight"]
        return {"masked_lm_weight": weights, "tokens": ReplacedTokenObjective.totals(features)["weight"]}

    @classmethod
    def sums(cls, outputs: dict, features: dict) -> dict:
        masked = MaskedLanguageModelObjective.sums(outputs["masked_lm_logits"], features)
        weights = MaskedLanguageModelObjective.weights(features)
        sampled = _as_float(ops.equal(outputs["sampled_ids"], ops.cast(features["masked_lm_ids"], "int32")))
        logits, replaced = outputs["discriminator_logits"], _as_float(outputs["is_replaced"])
        judged = {**features, "is_replaced": replaced}
        losses, measures = ReplacedTokenObjective.values(logits, judged)
        judged_replaced, tokens = _as_float(logits > 0), ReplacedTokenObjective.weights(judged)
        of_rows = ops.sum(tokens * losses, axis=1) / (ops.sum(tokens, axis=1) + _EPSILON)
        return {
            "masked_lm_loss": masked["loss_sum"],
            "masked_lm_correct": masked["accuracy"],
            "sampled_correct": ops.sum(weights * sampled),
            "masked_lm_weight": masked["weight"],
            "discriminator_loss": ops.sum(tokens * losses),
            "discriminator_row_loss": ops.sum(of_rows),
            "discriminator_correct": ops.sum(tokens * measures["accuracy"]),
            "tokens": ops.sum(tokens),
            "rows": ops.sum(row_weights(features, features["masked_lm_ids"])),
            "found_replaced": ops.sum(tokens * judged_replaced * replaced),
            "found": ops.sum(tokens * judged_replaced),
            "replaced": ops.sum(tokens * replaced),
        }

    def loss(self, sums: dict, totals: dict):
        masked_lm = sums["masked_lm_loss"] / (totals["masked_lm_weight"] + _EPSILON)
        discriminator = sums["discriminator_loss"] / (totals["tokens"] + _EPSILON)
        return self.generator_weight * masked_lm + self.discriminator_weight * discriminator


@dataclasses.dataclass(frozen=True)
class ReplacedTokenEvaluation(ReplacedTokenPretraining):
    """`ReplacedTokenPretraining` with the metric `disc_auc`, the area under the ROC curve.

    As TensorFlow 1 computed it, from the rates at 200 thresholds of the probability, which are added up over batches:
    the sums `true_positives` and `false_positives` are [200]. As in the original, padding counts: as tokens that are
    known not to be replaced, which flatters the area.
    """

    loss_sums = (*ReplacedTokenPretraining.loss_sums, "true_positives", "false_positives")

    @classmethod
    def sums(cls, outputs: dict, features: dict) -> dict:
        thresholds = np.arange(_THRESHOLDS, dtype=np.float32) / (_THRESHOLDS - 1)
        thresholds[0], thresholds[-1] = -1.0, 2.0
        probabilities = ops.sigmoid(outputs["discriminator_logits"]) * _as_float(features["input_mask"])
        judged_replaced = _as_float(ops.expand_dims(probabilities, -1) > thresholds)  # [B, S, 200]
        rows = ops.expand_dims(row_weights(features, features["masked_lm_ids"]), 1)
        replaced = _as_float(outputs["is_replaced"])

        def count(weights):
            return ops.sum(ops.expand_dims(weights, -1) * judged_replaced, axis=(0, 1))

        positives = {"true_positives": count(rows * replaced), "false_positives": count(rows * (1.0 - replaced))}
        return super().sums(outputs, features) | positives

    @classmethod
    def metrics(cls, sums: dict) -> dict:
        recall = (sums["true_positives"] + _EPSILON) / (sums["true_positives"][0] + _EPSILON)
        false_rate = sums["false_positives"] / (sums["false_positives"][0] + _EPSILON)
        area = ops.sum((false_rate[:-1] - false_rate[1:]) * (recall[:-1] + recall[1:])) / 2.0
        return super().metrics(sums) | {"disc_auc": area}


def _as_float(condition):
    return ops.cast(condition, "float32")


def replace_tokens(original_ids, positions, weights, sampled_ids):
    """The text with the generator's tokens, int32 [B, S], and where it differs from the original, bool [B, S].

    A position that was drawn several times gets the mean of its tokens' ids, rounded down: an unrelated token. Position
    0 keeps its token. Both are as in the original.

    original_ids: int32 [B, S]. positions, sampled_ids: int32 [B, P]. weights: [B, P], 0 for no prediction.
    """
    slots = ops.arange(ops.shape(original_ids)[1], dtype="int32")
    hits = ops.logical_and(positions[:, :, None] == slots, ops.logical_and(weights > 0, positions > 0)[:, :, None])
    hits = ops.cast(hits, "int32")  # [B, P, S]
    count = ops.sum(hits, axis=1)
    mean = ops.floor_divide(ops.sum(hits * sampled_ids[:, :, None], axis=1), ops.maximum(count, 1))
    new = ops.where(count > 0, mean, original_ids)
    return new, ops.not_equal(new, original_ids)


class ElectraPretrainer(TaskModel):
    """Generator and discriminator, to be trained together.

    They share all embeddings, of words, segments and positions, with their layer norm, but not the layers that project
    these to their widths. The discriminator's loss has no gradient with respect to the generator but for these.

    Its variables are those of the original's checkpoints: an `ElectraDiscriminator` and a `BertForMaskedLM`.

    Args:
      config, generator_config: `ElectraConfig`s or their dicts.
      untied_generator_embeddings: the generator has embeddings of its own, of the width in its configuration.
      disallow_correct: the generator never draws the right token. temperature: the logits are divided by it.
      generator_weight, discriminator_weight: of the losses, see `ReplacedTokenPretraining`; by default the original's.
      seed: see `BertModel`. dtype: Keras dtype policy.
    """

    further_inputs = ("original_ids", "masked_lm_positions", "sampling_seeds", "sampling_uniform")

    def __init__(
        self,
        config,
        generator_config,
        *,
        untied_generator_embeddings: bool = False,
        disallow_correct: bool = False,
        temperature: float = 1.0,
        generator_weight: float = 1.0,
        discriminator_weight: float = 50.0,
        seed: int | None = None,
        name="electra_pretrainer",
        **kwargs,
    ):
        # The generator's output layer gives the gradient of shared tables all their rows.
        objective = ReplacedTokenPretraining(generator_weight, discriminator_weight)
        super().__init__(objective, config, seed, not untied_generator_embeddings, name=name, **kwargs)
        self.generator_config = as_config(generator_config)
        self.untied_generator_embeddings = untied_generator_embeddings
        self.disallow_correct = disallow_correct
        self.temperature = temperature
        self.generator_weight, self.discriminator_weight = generator_weight, discriminator_weight
        shared, dtype = None if untied_generator_embeddings else self.bert.embeddings, self.dtype_policy
        self.generator = BertEncoder(self.generator_config, True, seed, "generator", embeddings=shared, dtype=dtype)
        self.generator_head = MaskedLanguageModelHead(self.generator_config, name="generator_predictions", dtype=dtype)
        self.head = ReplacedTokenHead(self.config, name="discriminator_predictions", dtype=dtype)

    @staticmethod
    def weights_in(weights: Weights) -> Weights:
        """Both parts, where a file has them; if one is missing, which is logged, only the other."""
        both = variable_names.weights_of_both(weights)
        for part, head in (("generator", "generator_predictions"), ("discriminator", "discriminator_predictions")):
            if f"{head}/dense/kernel" not in both:
                logging.warning("%s has no %s: its unshared variables begin random.", weights.path, part)
        return both

    def build_head(self):
        for part in (self.generator, self.generator_head, self.head):
            part.build()

    def call(self, inputs, training=False):
        """Masked tokens are guessed, a guess is drawn for each, and the discriminator judges the text with these.

        inputs: as for `BertModel`, with masked `input_ids` [B, S]; `original_ids` [B, S]; `masked_lm_positions`,
        `masked_lm_ids` [B, P] int32 and `masked_lm_weights` [B, P]; and a row's `sampling_seeds` [B, 2] int32, or the
        draws themselves, `sampling_uniform` [B, P, V] in [0, 1).

        Returns a dict with `masked_lm_logits` [B, P, V] float32; `sampled_ids` [B, P] int32; `corrupted_ids` [B, S]
        int32 and `is_replaced` [B, S] bool, the text with the guesses, and where it differs from the original;
        `discriminator_logits` [B, S] float32.
        """
        encoder_inputs = select(inputs, self.encoder_inputs)
        positions = ops.cast(inputs["masked_lm_positions"], "int32")
        inputs, _ = require_inputs(self.config, inputs, ids="original_ids")
        generated = self.generator(encoder_inputs, training=training, read_positions=positions)
        table = self.generator.get_embedding_table()
        logits = self.generator_head(generated["sequence_output"], table, training=training)
        sampled = self.draw(logits, inputs)
        original_ids = ops.cast(inputs["original_ids"], "int32")
        corrupted, replaced = replace_tokens(original_ids, positions, inputs["masked_lm_weights"], sampled)
        judged = self.encode({**inputs, "input_ids": corrupted}, training=training)
        return {
            "masked_lm_logits": logits,
            "sampled_ids": sampled,
            "corrupted_ids": corrupted,
            "is_replaced": replaced,
            "discriminator_logits": self.head(judged["sequence_output"], training=training),
        }

    def draw(self, logits, inputs: dict):
        """int32 [B, P]: a token for each of the generator's logits [B, P, V]; for the inputs see `call`."""
        logits = ops.stop_gradient(logits)
        if self.temperature != 1:
            logits = logits / self.temperature
        if self.disallow_correct:
            right = ops.arange(self.generator_config.vocab_size, dtype="int32") == inputs["masked_lm_ids"][:, :, None]
            logits = logits - 1000.0 * ops.cast(right, "float32")
        if "sampling_uniform" in inputs:
            return kernels.gumbel_argmax(logits, inputs["sampling_uniform"])
        return kernels.sample(logits, inputs["sampling_seeds"])

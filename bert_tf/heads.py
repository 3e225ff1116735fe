"""What is put on top of the encoder: masked LM, next sentence, and the model that pre-trains with both.

Original: run_pretraining.py (get_masked_lm_output, get_next_sentence_output). Paper: section 3.1.

Shape legend: B batch, S sequence length, H hidden size, P predictions per sequence, M pairs per sequence (packed rows),
V vocabulary, C classes.
"""

import keras
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.modeling import (
    BertModel,
    ConfiguredLayer,
    LayerNorm,
    Pretrained,
    Projection,
    gather_positions,
    truncated_normal,
)

_PACKAGE = "bert_tf"

# Added to the number of predictions, so that a batch without any has loss 0 and not 0/0 (original: 1e-5).
MASKED_LM_EPSILON = 1e-5


def cross_entropy(logits, labels):
    """Negative log-likelihood of each label, in float32.

    Args:
      logits: [..., C]. labels: integers [...]; one outside [0, C) gives loss 0 (the original's all-zero one-hot row).

    Returns:
      [...] float32.
    """
    logits = ops.cast(logits, "float32")
    classes = logits.shape[-1] or ops.shape(logits)[-1]
    labels = ops.cast(labels, "int32")
    known = ops.logical_and(labels >= 0, labels < classes)
    safe = ops.where(known, labels, ops.zeros_like(labels))
    losses = ops.sparse_categorical_crossentropy(safe, logits, from_logits=True)
    return ops.where(known, losses, ops.zeros_like(losses))


@keras.saving.register_keras_serializable(_PACKAGE)
class LinearHead(keras.layers.Layer):
    """x Wᵀ + b with W stored [C, H], as the original stores output layers (`output_weights`, `output_bias`)."""

    def __init__(self, num_outputs: int, initializer_range: float = 0.02, **kwargs):
        super().__init__(**kwargs)
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


class PretrainingObjective:
    """Loss and metrics of masked LM plus next sentence, made of sums.

    Sums, not means, so that replicas, micro-batches and evaluation batches are added up before dividing: the masked-LM
    loss of a whole batch is then the same however the batch was cut. training.py needs these four functions, and
    the names of the sums, of any objective.
    """

    sum_names = (
        "masked_lm_loss",
        "masked_lm_correct",
        "masked_lm_weight",
        "next_sentence_loss",
        "next_sentence_correct",
        "examples",
    )

    @staticmethod
    def totals(features: dict) -> dict:
        """What the loss divides by, from the features of a whole batch: `masked_lm_weight` and `examples` (pairs)."""
        weights = PretrainingObjective._next_sentence_weights(features)
        if weights is None:
            examples = ops.cast(ops.shape(features["next_sentence_labels"])[0], "float32")
        else:
            examples = ops.sum(weights)
        return {
            "masked_lm_weight": ops.sum(ops.cast(features["masked_lm_weights"], "float32")),
            "examples": examples,
        }

    @staticmethod
    def _next_sentence_weights(features: dict):
        """[B] or, in packed rows, [B * M] float32: 0 for examples that only fill up; None where all count."""
        weights = None
        if "example_weights" in features:
            weights = ops.cast(features["example_weights"], "float32")
        if "next_sentence_weights" in features:
            pairs = ops.cast(features["next_sentence_weights"], "float32")
            pairs = pairs if weights is None else pairs * ops.expand_dims(weights, 1)
            weights = ops.reshape(pairs, (-1,))
        return weights

    @staticmethod
    def sums(outputs: dict, features: dict) -> dict:
        """Adds up over a batch or a part of one.

        Args:
          outputs: `masked_lm_logits` [B, P, V], `next_sentence_logits` [B, 2], of packed rows [B, M, 2].
          features: `masked_lm_ids` [B, P], `masked_lm_weights` [B, P], `next_sentence_labels` [B, 1] or [B], and
            optionally `example_weights` [B]; of packed rows `next_sentence_labels` and `next_sentence_weights` [B, M].

        Returns:
          dict of float32 scalars: `masked_lm_loss`, `masked_lm_correct`, `next_sentence_loss`,
          `next_sentence_correct` and those of `totals`.
        """
        logits = outputs["masked_lm_logits"]
        ids = ops.cast(features["masked_lm_ids"], "int32")
        weights = ops.cast(features["masked_lm_weights"], "float32")
        correct = ops.cast(ops.equal(ops.cast(ops.argmax(logits, axis=-1), "int32"), ids), "float32")
        next_logits = outputs["next_sentence_logits"]
        if "next_sentence_weights" in features:
            next_logits = ops.reshape(next_logits, (-1, 2))
        labels = ops.reshape(ops.cast(features["next_sentence_labels"], "int32"), (-1,))
        next_correct = ops.cast(ops.equal(ops.cast(ops.argmax(next_logits, axis=-1), "int32"), labels), "float32")
        next_loss = cross_entropy(next_logits, labels)
        examples = PretrainingObjective._next_sentence_weights(features)
        if examples is not None:
            next_loss, next_correct = next_loss * examples, next_correct * examples
        return {
            "masked_lm_loss": ops.sum(weights * cross_entropy(logits, ids)),
            "masked_lm_correct": ops.sum(weights * correct),
            "next_sentence_loss": ops.sum(next_loss),
            "next_sentence_correct": ops.sum(next_correct),
            **PretrainingObjective.totals(features),
        }

    @staticmethod
    def loss(sums: dict, totals: dict):
        """Masked-LM loss plus next-sentence loss; the parts of a batch, each given its totals, add up to the whole."""
        masked_lm = sums["masked_lm_loss"] / (totals["masked_lm_weight"] + MASKED_LM_EPSILON)
        return masked_lm + sums["next_sentence_loss"] / totals["examples"]

    @staticmethod
    def metrics(sums: dict) -> dict:
        """The original's four evaluation metrics, from sums over any number of batches."""
        weight = ops.maximum(sums["masked_lm_weight"], MASKED_LM_EPSILON)
        examples = ops.maximum(sums["examples"], MASKED_LM_EPSILON)
        return {
            "masked_lm_accuracy": sums["masked_lm_correct"] / weight,
            "masked_lm_loss": sums["masked_lm_loss"] / weight,
            "next_sentence_accuracy": sums["next_sentence_correct"] / examples,
            "next_sentence_loss": sums["next_sentence_loss"] / examples,
        }


@keras.saving.register_keras_serializable(_PACKAGE)
class BertForPreTraining(Pretrained, keras.Model):
    """Encoder, masked-LM head and next-sentence head.

    Works with Keras `compile` and `fit`: the features that create_pretraining_data.py writes, or those of
    `dynamic_masking.mask_rows`, are the input, and the loss and four metrics are computed from them.

    Example:

        model = BertForPreTraining(BertConfig(vocab_size=30522))
        model.compile(optimizer=AdamWeightDecay(1e-4))
        model.fit(dataset)  # of dicts with the seven features of a pre-training record

    Args:
      config: a `BertConfig` or its dict. seed: see `BertModel`. dtype: Keras dtype policy.
    """

    def __init__(self, config, seed: int | None = None, name="pretraining", **kwargs):
        super().__init__(name=name, **kwargs)
        self.config = BertConfig.from_dict(config, allow_unknown=True) if isinstance(config, dict) else config
        self.seed = seed
        dtype = self.dtype_policy
        self.bert = BertModel(self.config, dense_embedding_gradient=True, seed=seed, dtype=dtype)
        self.masked_lm = MaskedLanguageModelHead(self.config, name="cls_predictions", dtype=dtype)
        self.next_sentence = LinearHead(2, self.config.initializer_range, name="cls_seq_relationship", dtype=dtype)
        self.metric_means = {
            name: keras.metrics.Mean(name=name)
            for name in ("masked_lm_accuracy", "masked_lm_loss", "next_sentence_accuracy", "next_sentence_loss")
        }

    def build(self, input_shape=None):
        self.bert.build()
        self.masked_lm.build()
        self.next_sentence.build((None, self.config.hidden_size))
        self.built = True

    def call(self, inputs, training=False, dropout_seed=None):
        """inputs: as for `BertModel`, and `masked_lm_positions` [B, P].

        Returns:
          dict with `masked_lm_logits` [B, P, V] and `next_sentence_logits` [B, 2] (class 1: random next), float32.
          With `pooled_positions` [B, M] among the inputs `next_sentence_logits` is [B, M, 2].
        """
        encoded = self.bert(inputs, training=training, dropout_seed=dropout_seed)
        table = self.bert.get_embedding_table()
        return {
            "masked_lm_logits": self.masked_lm(
                encoded["sequence_output"], table, inputs["masked_lm_positions"], training=training
            ),
            "next_sentence_logits": self.next_sentence(encoded["pooled_output"]),
        }

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        sums = PretrainingObjective.sums(y_pred, x)
        return PretrainingObjective.loss(sums, sums)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        sums = PretrainingObjective.sums(y_pred, x)
        for name, value in PretrainingObjective.metrics(sums).items():
            weight = sums["masked_lm_weight" if name.startswith("masked_lm") else "examples"]
            self.metric_means[name].update_state(value, sample_weight=weight)
        return self.get_metrics_result()

    def get_config(self) -> dict:
        return {**super().get_config(), "config": self.config.to_dict(), "seed": self.seed}


# The name it had first.
BertPretrainingModel = BertForPreTraining


def encoder_flops_per_example(config: BertConfig, length: float) -> float:
    """Floating-point operations of the encoder's matrix products, forward, for one sequence of `length` tokens."""
    hidden, inner = config.hidden_size, config.intermediate_size
    block = 2 * length * (4 * hidden * hidden + 2 * hidden * inner) + 4 * length * length * hidden
    return config.num_hidden_layers * block + 2.0 * hidden * hidden


def pretraining_flops_per_example(config: BertConfig, max_seq_length: int, max_predictions_per_seq: int) -> float:
    """Floating-point operations of the matrix products of one training example, backward counted as twice forward."""
    hidden = config.hidden_size
    predictions = 2 * max_predictions_per_seq * (hidden * hidden + hidden * config.vocab_size)
    return 3.0 * (encoder_flops_per_example(config, max_seq_length) + predictions + 4 * hidden)

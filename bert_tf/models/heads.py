"""Output layers: a linear one, the masked-LM head, and what models share that classify texts, words or choices.

Original: run_pretraining.py (get_masked_lm_output, get_next_sentence_output). Paper: section 3.1.

Shape legend: B batch, S sequence length, H hidden size, E embedding size, P predictions per sequence, V vocabulary,
C classes.
"""

import numbers
from collections.abc import Sequence

import keras
from keras import ops

from bert_tf.models.base_models import TaskModel
from bert_tf.models.dropout import dropout, in_scope
from bert_tf.models.head_config import HeadConfig
from bert_tf.models.layers import ConfiguredLayer, Projection, Rebuilt, gather_positions
from bert_tf.models.objectives import ClassificationObjective, MultiLabelObjective, RegressionObjective
from bert_tf.models.random_weights import add_random_weight
from bert_tf.system.checks import whole_number

_PACKAGE = "bert_tf"


@keras.saving.register_keras_serializable(_PACKAGE)
class LinearHead(Rebuilt, keras.layers.Layer):
    """x Wᵀ + b with W stored [C, H], as the original stores output layers (`output_weights`, `output_bias`)."""

    def __init__(self, num_outputs: int, initializer_range: float | None = 0.02, **kwargs):
        whole_number(num_outputs, "num_outputs")
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


# --- classifiers -----------------------------------------------------------------------------------------------------

PROBLEM_TYPES = {
    "single_label_classification": ClassificationObjective,
    "regression": RegressionObjective,
    "multi_label_classification": MultiLabelObjective,
}


def classification_objective(problem_type: str, num_labels: int) -> type[ClassificationObjective]:
    """The objective of a text classifier.

    Raises:
      ValueError: no such problem type, or num_labels does not suit it.
    """
    if problem_type not in PROBLEM_TYPES:
        raise ValueError(f"problem_type must be one of {', '.join(PROBLEM_TYPES)}, not {problem_type!r}")
    if (problem_type == "regression" and num_labels != 1) or (
        problem_type == "single_label_classification" and num_labels == 1
    ):
        raise ValueError(f"num_labels={num_labels} does not fit problem_type={problem_type!r}")
    return PROBLEM_TYPES[problem_type]


def with_class_weights(objective: type, weights: Sequence[float] | None) -> type:
    """An objective whose loss is the sum of the weighted losses divided by the sum of their weights.

    That is the mean of PyTorch's `CrossEntropyLoss(weight)`. The metrics are those without weights.

    Args:
      objective: of classes of examples [B] or tokens [B, S]. weights: of the C classes; None: the objective itself.
    """
    if weights is None:
        return objective

    class Weighted(objective):
        @classmethod
        def weights(cls, features, in_metrics=False):
            others = super().weights(features, in_metrics)
            if in_metrics:
                return others
            labels = ops.reshape(ops.cast(features[cls.label_names[0]], "int32"), ops.shape(others))
            table = ops.convert_to_tensor(list(weights), "float32")
            return others * ops.take(table, ops.clip(labels, 0, len(weights) - 1), axis=0)

    return Weighted


class ClassifierModel(TaskModel):
    """Dropout and a linear layer on one output of the encoder; for some families' texts with a hidden layer before it.

    The layer is called `classifier`; in checkpoints its variables are called `output_weights` and `output_bias`.
    """

    usual_dropout = "classifier_dropout"  # of the configuration

    def __init__(
        self, objective, config, num_labels: int, head: HeadConfig, seed, dropout_rate: float | None, **kwargs
    ):
        super().__init__(objective, config, seed, **kwargs)
        dropout_rate = getattr(self.config, self.usual_dropout) if dropout_rate is None else dropout_rate
        if not isinstance(num_labels, numbers.Integral) or num_labels < 1:
            raise ValueError(f"num_labels must be a positive integer, not {num_labels!r}")
        num_labels = int(num_labels)  # not NumPy's, which is not for JSON
        if isinstance(dropout_rate, str) or not 0 <= dropout_rate < 1:
            raise ValueError(f"dropout_rate must be a probability, 0 <= p < 1, not {dropout_rate!r}")
        head.check_num_labels(num_labels)
        self.num_labels = num_labels
        self.head_config = head
        self.dropout_rate = dropout_rate
        self.hidden = None
        if self.hidden_act:
            size, deviation = self.config.hidden_size, self.config.initializer_range
            self.hidden = Projection(size, deviation, name="pre_classifier", dtype=self.dtype_policy)
        self.head = LinearHead(
            num_labels, self.config.head_initializer_range, name="classifier", dtype=self.dtype_policy
        )

    @property
    def hidden_act(self) -> str | None:
        """The activation of the hidden layer; None: there is no such layer."""
        return None

    @property
    def labels(self) -> list[str] | None:
        """The names of the labels in the order of their ids; None if they have no names."""
        return list(self.head_config.labels) if self.head_config.labels else None

    def build_head(self):
        self.build_classifier(self.config.hidden_size)

    def build_classifier(self, size: int) -> None:
        """Builds the layers that read vectors [..., size]."""
        if self.hidden:
            self.hidden.build((None, size))
        self.head.build((None, size))

    def read(self, inputs: dict, training: bool):
        """What is classified: [B, H] of a row, of tokens [B, S, H]."""
        return self.encode_pooled(inputs, training=training)

    @in_scope
    def classify(self, inputs, training=False):
        """float32 logits [..., C]; inputs: as for `BertModel`."""
        x = self.read(inputs, training)
        if self.hidden:
            if self.config.hidden_layer_dropout:
                x = dropout(x, self.dropout_rate, "hidden", training)
            x = self.hidden(x, activation=self.hidden_act, training=training)
        return self.head(dropout(x, self.dropout_rate, "head", training))

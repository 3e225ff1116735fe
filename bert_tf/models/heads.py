"""What models share: their base class, and output layers: a linear one, the masked-LM head, those of classifiers.

`TaskModel` has loading, saving and exporting, the encoder, and an objective.

Original: run_pretraining.py (get_masked_lm_output, get_next_sentence_output). Paper: section 3.1.

Shape legend: B batch, S sequence length, H hidden size, E embedding size, P predictions per sequence, V vocabulary,
C classes.
"""

import copy
import warnings
from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import keras
from keras import ops

from bert_tf.families import as_config
from bert_tf.models import layers
from bert_tf.models.dropout import dropout, in_scope
from bert_tf.models.encoder import BertEncoder
from bert_tf.models.inputs import ENCODER_INPUTS, features_with_labels, select
from bert_tf.models.keras_internals import MetricsList
from bert_tf.models.objectives import ClassificationObjective, MultiLabelObjective, RegressionObjective
from bert_tf.models.pretrained import Pretrained
from bert_tf.store.head_config import HeadConfig
from bert_tf.system.checks import check_integer, check_number


class ObjectiveMetric(MetricsList):
    """An objective's metrics over all batches since the last reset.

    Of a list like those that Keras makes of `compile(metrics=...)`, callbacks read what the metrics are called and
    whether they are to rise: EarlyStopping(monitor="val_accuracy") needs no mode.
    """

    def __init__(self, objective):
        super().__init__([], name="objective")
        self.objective = objective
        self.totals = {name: self.add_variable((), "zeros", "float32", name=name) for name in objective.sum_names}
        # A metric's name, and the direction in which it is better, as Keras's callbacks look them up.
        names = objective.metrics(dict.fromkeys(objective.sum_names, 0.0))
        directions = {name: "down" if name.endswith(("loss", "error")) else "up" for name in names}
        self.metrics = [SimpleNamespace(name=name, _direction=way) for name, way in directions.items()]

    def update_state(self, sums: dict):
        for name, variable in self.totals.items():
            variable.assign_add(sums[name])

    reset_state = keras.Metric.reset_state  # not that of a list

    def sums(self) -> dict:
        return {name: ops.convert_to_tensor(total) for name, total in self.totals.items()}

    def result(self) -> dict:
        return self.objective.metrics(self.sums())


class TaskModel(layers.NamedInputs, Pretrained, layers.ConfigFromArguments, keras.Model):
    """The base class of models with heads: the encoder, and an objective.

    A subclass creates its `head` in __init__ (if it has others, it builds them in `build_head`), and defines `call`.
    Besides the encoder's inputs it accepts what its objective reads, so that it can be called with whole batches.

    objective: a class of objectives.py.
    config: of any family, or its dict. seed, dense_embedding_gradient: see `BertModel`. dtype: Keras dtype policy.
    """

    def __init__(self, objective, config, seed: int | None, dense_embedding_gradient: bool = False, **kwargs):
        super().__init__(**kwargs)
        self.config = as_config(config)
        self.seed = seed
        self.objective = objective
        self.bert = BertEncoder(self.config, dense_embedding_gradient, seed, dtype=self.dtype_policy)
        self.objective_metric = ObjectiveMetric(objective)

    encoder_inputs = ENCODER_INPUTS
    further_inputs = ()
    tokens_read = None  # how many of the encoder's outputs for a row the head reads; None: all

    @property
    def reads_pooler(self) -> bool:
        return self.tokens_read is not None

    @property
    def seed_generator(self):
        return self.bert.seed_generator

    @property
    def known_inputs(self) -> tuple[str, ...]:
        objective = (*self.objective.label_names, *self.objective.optional_names)
        return tuple(dict.fromkeys((*self.encoder_inputs, *self.further_inputs, *objective)))

    def encode(self, inputs: dict, **arguments) -> dict:
        """The encoder's outputs for its part of the inputs; arguments as for `BertModel.call`."""
        return self.bert(select(inputs, self.encoder_inputs), **arguments)

    def encode_pooled(self, inputs: dict, **arguments):
        """The encoder's `pooled_output` alone, so that its last layer is computed only for this."""
        nothing = ops.zeros((ops.shape(inputs["input_ids"])[0], 0), "int32")
        return self.encode(inputs, read_positions=nothing, **arguments)["pooled_output"]

    def build(self, input_shape=None):
        self.bert.build()
        self.build_head()

    def build_head(self):
        self.head.build((None, None, self.config.hidden_size))

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        strategy = self.distribute_strategy
        if iterator is not None and strategy.num_replicas_in_sync > 1:
            # Keras takes the mean of the replicas' batches: of ids float64, and an error where their sizes differ.
            *_, batches = next(iter(iterator))
            iterator, local = None, strategy.experimental_local_results
            data_batch = keras.tree.map_structure(lambda value: local(value)[0], next(batches))
        super()._maybe_symbolic_build(iterator, data_batch)

    def make_train_function(self, force=False):
        # Variables created in the first trace of a step would cause a second trace.
        if not self.built:
            self.build()
        if not self.optimizer.built:
            with self.distribute_strategy.scope():
                self.optimizer.build(self.trainable_variables)
        if self.tokens_read is None:
            # Keras would warn in each fit: no head reads the pooler, which is kept for checkpoints and has no gradient.
            pooler = r"'[^']*/pooler/dense/\w+'"
            message = rf"Gradients do not exist for variables \[{pooler}(, {pooler})*\]"
            warnings.filterwarnings("ignore", message=message)
        return super().make_train_function(force)

    @property
    def metrics(self) -> list:
        others = [metric for metric in super().metrics if metric is not self.objective_metric]
        # Before the metrics given to `compile`, so that these win where names are the same.
        return others if self._compile_loss is not None else [*others[:1], self.objective_metric, *others[1:]]

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if self._compile_loss is not None:
            loss = super().compute_loss(x, self._labels(x, y), y_pred, sample_weight, training)
            reductions = {getattr(each, "reduction", None) for each in keras.tree.flatten(self.loss)}
            return loss if reductions == {"sum"} else _share_of_mean(loss, keras.tree.flatten(y_pred)[0])
        features = features_with_labels(self.objective, x, y, sample_weight)
        totals = _of_all_replicas(self.objective.totals(features))
        loss = self.objective.loss(self.objective.sums(y_pred, features), totals)
        return sum(map(self._aggregate_additional_loss, self.losses), loss)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        if self._compile_loss is None:
            sums = self.objective.sums(y_pred, features_with_labels(self.objective, x, y, sample_weight))
            if sample_weight is not None and "loss_sum" in self.objective.loss_sums:
                # Weights count in the loss alone, as for Keras's `metrics`, but for 0: such a row may have no label.
                counted = keras.tree.map_structure(lambda weight: ops.not_equal(weight, 0), sample_weight)
                equal = self.objective.sums(y_pred, features_with_labels(self.objective, x, y, counted))
                sums = equal | {name: sums[name] for name in self.objective.loss_sums}
            self.objective_metric.update_state(sums)
        return super().compute_metrics(x, self._labels(x, y), y_pred, sample_weight)

    def _labels(self, x, y):
        """y for the losses and metrics given to `compile`: if it is not given, the label among the features."""
        names = self.objective.label_names
        if y is not None or len(names) > 1 or not isinstance(x, Mapping):
            return y
        return x.get(names[0], x.get("labels"))

    def get_metrics_result(self) -> dict:
        results = super().get_metrics_result()
        if self._compile_loss is None and not self.losses:
            # Keras weights the losses of batches by their rows, also where tokens are counted.
            sums = self.objective_metric.sums()
            results["loss"] = self.objective.loss(sums, sums)
        return results


def _of_all_replicas(totals: dict) -> dict:
    if keras.backend.backend() != "tensorflow":
        return totals
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return totals
    return context.all_reduce(tf.distribute.ReduceOp.SUM, totals)


def _share_of_mean(loss, outputs):
    """Keras's mean over a replica's rows, with the gradient of their part in the mean over the whole batch."""
    here = {"rows": ops.cast(ops.shape(outputs)[0], loss.dtype), "replicas": ops.ones((), loss.dtype)}
    whole = _of_all_replicas(here)
    if whole is here:
        return loss
    value = ops.stop_gradient(loss)
    return value + (loss - value) * here["rows"] * whole["replicas"] / whole["rows"]


class LinearHead(layers.ConfigFromArguments, keras.layers.Layer):
    """x Wᵀ + b with W stored [C, H], as the original stores output layers (`output_weights`, `output_bias`)."""

    def __init__(self, num_outputs: int, initializer_range: float | None = 0.02, **kwargs):
        check_integer(num_outputs, "num_outputs")
        super().__init__(**kwargs)
        self.num_outputs = num_outputs
        self.initializer_range = initializer_range

    def build(self, input_shape):
        shape = (self.num_outputs, input_shape[-1])
        self.output_weights = layers.add_random_weight(self, "output_weights", shape, self.initializer_range)
        self.output_bias = self.add_weight(name="output_bias", shape=(self.num_outputs,), initializer="zeros")

    def call(self, x):
        """x: [..., H]. Returns float32 logits [..., C]."""
        logits = ops.add(ops.matmul(x, ops.transpose(self.output_weights)), self.output_bias)
        return ops.cast(logits, "float32")


class PredictionTransform(layers.ConfiguredLayer):
    """Dense layer H -> E with hidden_act (or masked_lm_act), then layer norm; no dropout."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.dense, self.layer_norm = self.projection(self.config.embedding_size), self.norm()

    def build(self, input_shape=None):
        self.dense.build((None, None, self.config.hidden_size))
        self.layer_norm.build((None, None, self.config.embedding_size))

    def call(self, x, training=False):
        activation = self.config.masked_lm_act or self.config.activation
        x = self.dense(x, activation=activation, training=training)
        return self.layer_norm(x)


class MaskedLanguageModelHead(layers.ConfiguredLayer):
    """Scores of every vocabulary entry; the output matrix is the word-embedding table."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.transform = PredictionTransform(self.config, name="transform", dtype=self.dtype_policy)

    def build(self, input_shape=None):
        self.transform.build()
        shape = (self.config.vocab_size,)
        self.output_bias = self.add_weight(name="output_bias", shape=shape, initializer="zeros", **layers.IN_FLOAT32)

    def call(self, sequence_output, embedding_table, positions=None, training=False):
        """float32 logits [B, P, V] of the masked positions, or of all.

        sequence_output: [B, S, H]. embedding_table: [V, E], tied. positions: [B, P], or None for all: P is S.
        """
        x = sequence_output if positions is None else layers.gather_positions(sequence_output, positions)
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


def with_class_weights(objective: type, weights: Sequence[float] | None) -> type:
    """An objective with the loss of PyTorch's `CrossEntropyLoss(weight)`, a weighted mean; metrics have no weights.

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
    hidden_act: str | None = None  # of a hidden layer, if there is one
    windows = None  # what makes one vector of those of a text's windows

    def __init__(
        self, objective, config, num_labels: int, head: HeadConfig, seed, dropout_rate: float | None, **kwargs
    ):
        super().__init__(objective, copy.copy(as_config(config)), seed, **kwargs)  # its own, with its labels
        dropout_rate = getattr(self.config, self.usual_dropout) if dropout_rate is None else dropout_rate
        num_labels = int(num_labels)  # not NumPy's, which is not for JSON
        check_number(dropout_rate, "dropout_rate", 0.0, 1.0)
        if head.labels and len(head.labels) != num_labels:
            raise ValueError(f"num_labels={num_labels}, but labels has {len(head.labels)} names.")
        self.num_labels = num_labels
        self.head_config = head
        vars(self.config)["id2label"] = self.id2label
        self.dropout_rate = dropout_rate
        config, dtype, self.hidden = self.config, self.dtype_policy, None
        if self.hidden_act:
            size, deviation = config.hidden_size, config.initializer_range
            self.hidden = layers.Projection(size, deviation, name="pre_classifier", dtype=dtype)
        self.head = LinearHead(num_labels, config.head_initializer_range, name="classifier", dtype=dtype)

    @property
    def labels(self) -> list[str] | None:
        """The names of the labels in the order of their ids; None if they have no names."""
        return list(self.head_config.labels) if self.head_config.labels else None

    @property
    def id2label(self) -> dict[int, str]:
        """The names of the labels by their ids, as transformers has them in `config.id2label`."""
        return dict(enumerate(self.labels or (f"LABEL_{number}" for number in range(self.num_labels))))

    def build_head(self):
        for layer in filter(None, (self.windows, self.hidden, self.head)):
            layer.build((None, self.config.hidden_size))

    def read(self, inputs: dict, training: bool):
        """The vectors that are classified: [B, H] of rows, [B, S, H] of tokens."""
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

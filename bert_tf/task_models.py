"""BERT with one head on top, for fine-tuning and use (original: create_model of run_classifier.py and run_squad.py).

Plain Keras models. `compile(optimizer)` without a loss takes the model's own objective (objectives.py); with a loss
they are trained like any Keras model. `model.objective` is what training.train takes.

Shape legend: B batch, S sequence length, H hidden size, C classes, N choices, P predictions per sequence, V vocabulary.
"""

import keras
from keras import ops

from bert_tf import kernels, objectives
from bert_tf.config import BertConfig
from bert_tf.heads import LinearHead, MaskedLanguageModelHead
from bert_tf.modeling import BertModel, Pretrained

_PACKAGE = "bert_tf"

# The original's, whatever hidden_dropout_prob says.
CLASSIFIER_DROPOUT = 0.1

# What is folded into the step's seed for a head's dropout. The embeddings have 0 and the encoder layers 4 and up.
_HEAD_PLACE = 1

PROBLEM_TYPES = {
    "single_label_classification": objectives.ClassificationObjective,
    "regression": objectives.RegressionObjective,
    "multi_label_classification": objectives.MultiLabelObjective,
}


class ObjectiveMetric(keras.metrics.Metric):
    """An objective's metrics over all batches since the last reset."""

    def __init__(self, objective, name="objective", **kwargs):
        super().__init__(name=name, **kwargs)
        self.objective = objective
        self.totals = {
            name: self.add_variable(shape=(), initializer="zeros", dtype="float32", name=name)
            for name in objective.sum_names
        }

    def update_state(self, sums: dict):
        for name, variable in self.totals.items():
            variable.assign_add(sums[name])

    def result(self) -> dict:
        return self.objective.metrics({name: ops.convert_to_tensor(total) for name, total in self.totals.items()})


class TaskModel(Pretrained, keras.Model):
    """What the models of this module share: the encoder, and an objective of their own.

    A subclass makes its head in __init__, builds it in `build_head`, and defines `call`.

    Args:
      objective: a class of objectives.py.
      config: a `BertConfig` or its dict. seed, dense_embedding_gradient: see `BertModel`. dtype: Keras dtype policy.
    """

    def __init__(self, objective, config, seed: int | None, dense_embedding_gradient: bool = False, **kwargs):
        super().__init__(**kwargs)
        self.config = BertConfig.from_dict(config, allow_unknown=True) if isinstance(config, dict) else config
        self.seed = seed
        self.objective = objective
        self.bert = BertModel(self.config, dense_embedding_gradient, seed=seed, dtype=self.dtype_policy)
        self.objective_metric = ObjectiveMetric(objective)

    def build(self, input_shape=None):
        self.bert.build()
        self.build_head()
        self.built = True

    @property
    def metrics(self) -> list:
        metrics = super().metrics
        if self._compile_loss is None:
            return metrics
        return [metric for metric in metrics if metric is not self.objective_metric]

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if self._compile_loss is not None:
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        sums = self._sums(x, y, y_pred, sample_weight)
        return self.objective.loss(sums, sums)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        if self._compile_loss is None:
            self.objective_metric.update_state(self._sums(x, y, y_pred, sample_weight))
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def _sums(self, x, y, y_pred, sample_weight):
        features = objectives.features_with_labels(self.objective, x, y, sample_weight)
        return self.objective.sums(y_pred, features)

    def get_config(self) -> dict:
        return {**super().get_config(), "config": self.config.to_dict(), "seed": self.seed}


@keras.saving.register_keras_serializable(_PACKAGE)
class BertForMaskedLM(TaskModel):
    """Encoder and masked-LM head.

    Example:

        model = BertForMaskedLM(BertConfig(vocab_size=30522))
        logits = model({"input_ids": ids, "masked_lm_positions": positions})  # [B, P, V]

    Args:
      config: a `BertConfig` or its dict. seed: see `BertModel`. dtype: Keras dtype policy.
    """

    def __init__(self, config, seed: int | None = None, name="masked_lm", **kwargs):
        super().__init__(objectives.MaskedLanguageModelObjective, config, seed, True, name=name, **kwargs)
        self.head = MaskedLanguageModelHead(self.config, name="cls_predictions", dtype=self.dtype_policy)

    def build_head(self):
        self.head.build()

    def call(self, inputs, training=False, dropout_seed=None):
        """inputs: as for `BertModel`, and optionally `masked_lm_positions` [B, P].

        Returns:
          float32 logits [B, P, V] at those positions; without them at all, [B, S, V].
        """
        encoded = self.bert(inputs, training=training, dropout_seed=dropout_seed)
        positions = inputs.get("masked_lm_positions") if isinstance(inputs, dict) else None
        return self.head(encoded["sequence_output"], self.bert.get_embedding_table(), positions, training=training)


@keras.saving.register_keras_serializable(_PACKAGE)
class BertForNextSentencePrediction(TaskModel):
    """Encoder and next-sentence head.

    Args:
      config: a `BertConfig` or its dict. seed: see `BertModel`. dtype: Keras dtype policy.
    """

    def __init__(self, config, seed: int | None = None, name="next_sentence", **kwargs):
        super().__init__(objectives.NextSentenceObjective, config, seed, name=name, **kwargs)
        deviation = self.config.initializer_range
        self.head = LinearHead(2, deviation, name="cls_seq_relationship", dtype=self.dtype_policy)

    def build_head(self):
        self.head.build((None, self.config.hidden_size))

    def call(self, inputs, training=False, dropout_seed=None):
        """inputs: as for `BertModel`. Returns float32 logits [B, 2]; class 1 is a random second segment."""
        return self.head(self.bert(inputs, training=training, dropout_seed=dropout_seed)["pooled_output"])


class ClassifierModel(TaskModel):
    """A linear layer behind dropout on one output of the encoder.

    The layer is called `classifier`: its variables stand in a checkpoint as `output_weights` and `output_bias`.
    """

    def __init__(self, objective, config, num_labels: int, seed, dropout_rate: float, **kwargs):
        super().__init__(objective, config, seed, **kwargs)
        if not isinstance(num_labels, int) or num_labels < 1:
            raise ValueError(f"num_labels must be a positive integer, not {num_labels!r}")
        if not 0 <= dropout_rate < 1:
            raise ValueError(f"dropout_rate must be a probability, 0 <= p < 1, not {dropout_rate!r}")
        self.num_labels = num_labels
        self.dropout_rate = dropout_rate
        self.head = LinearHead(num_labels, name="classifier", dtype=self.dtype_policy)

    def build_head(self):
        self.head.build((None, self.config.hidden_size))

    def classify(self, inputs, output: str, training, dropout_seed, recurrent=None):
        """float32 logits [..., C] of an output of the encoder, or of a recurrent layer on that output."""
        seed = self.bert.resolve_dropout_seed(dropout_seed) if training else None
        x = self.bert(inputs, training=training, dropout_seed=seed)[output]
        if recurrent:
            mask = inputs.get("input_mask") if isinstance(inputs, dict) else None
            # With the mask the backward LSTM begins at a row's own end, not in its padding.
            x = recurrent(x, mask=None if mask is None else ops.cast(mask, "bool"), training=training)
        return self.head(kernels.dropout(x, self.dropout_rate, kernels.fold_in(seed, _HEAD_PLACE)))

    def get_config(self) -> dict:
        return {**super().get_config(), "num_labels": self.num_labels, "dropout_rate": self.dropout_rate}


@keras.saving.register_keras_serializable(_PACKAGE)
class BertForSequenceClassification(ClassifierModel):
    """Encoder and classifier of whole inputs.

    Example:

        model = BertForSequenceClassification(BertConfig(vocab_size=30522, type_vocab_size=2), num_labels=3)
        model.compile(optimizer=create_optimizer("adamw", 2e-5, num_train_steps=300, num_warmup_steps=30))
        model.fit(features, labels, epochs=3)  # dict of input_ids, input_mask, segment_ids [B, S]; labels [B]

    Args:
      config: a `BertConfig` or its dict. With `config.lstm_on_top` a BiLSTM of width H reads the encoder's outputs, and
        its two last states take the place of the pooled output (paper, section 5.1: "+ BiLSTM").
      num_labels: C; 1 for a regression.
      problem_type: "single_label_classification", "regression" or "multi_label_classification": which objective is the
        model's own. None: that of `config.problem_type` if it has one, else a regression for one label and
        single-label classification for more.
      dropout_rate: dropout of the pooled output in training.
      seed: see `BertModel`. dtype: Keras dtype policy.

    Raises:
      ValueError: num_labels, problem_type or dropout_rate out of range, or a choice among one label.
    """

    def __init__(
        self,
        config,
        num_labels: int = 2,
        problem_type: str | None = None,
        dropout_rate: float = CLASSIFIER_DROPOUT,
        seed: int | None = None,
        name="sequence_classification",
        **kwargs,
    ):
        given = config.get("problem_type") if isinstance(config, dict) else getattr(config, "problem_type", None)
        problem_type = problem_type or given
        problem_type = problem_type or ("regression" if num_labels == 1 else "single_label_classification")
        if problem_type not in PROBLEM_TYPES:
            raise ValueError(f"problem_type must be one of {', '.join(PROBLEM_TYPES)}, not {problem_type!r}")
        if (problem_type == "regression" and num_labels != 1) or (
            problem_type == "single_label_classification" and num_labels == 1
        ):
            raise ValueError(f"num_labels={num_labels} does not fit problem_type={problem_type!r}")
        super().__init__(
            PROBLEM_TYPES[problem_type], config, num_labels, seed, dropout_rate=dropout_rate, name=name, **kwargs
        )
        self.problem_type = problem_type
        self.recurrent = None
        if getattr(self.config, "lstm_on_top", False):
            lstm = keras.layers.LSTM(self.config.hidden_size // 2, dtype=self.dtype_policy, name="lstm")
            self.recurrent = keras.layers.Bidirectional(lstm, dtype=self.dtype_policy, name="bilstm")

    def build_head(self):
        size = self.config.hidden_size
        if self.recurrent:
            self.recurrent.build((None, None, size))
            size = 2 * (size // 2)
        self.head.build((None, size))

    def call(self, inputs, training=False, dropout_seed=None):
        """inputs: as for `BertModel`. Returns float32 logits [B, C]."""
        output = "sequence_output" if self.recurrent else "pooled_output"
        return self.classify(inputs, output, training, dropout_seed, self.recurrent)

    def get_config(self) -> dict:
        return {**super().get_config(), "problem_type": self.problem_type}


BertClassifier = BertForSequenceClassification


@keras.saving.register_keras_serializable(_PACKAGE)
class BertForTokenClassification(ClassifierModel):
    """Encoder and classifier of every token, as for named entities.

    Args:
      config: a `BertConfig` or its dict. num_labels: C. dropout_rate: dropout of the sequence output in training.
      seed: see `BertModel`. dtype: Keras dtype policy.
    """

    def __init__(
        self,
        config,
        num_labels: int,
        dropout_rate: float = CLASSIFIER_DROPOUT,
        seed: int | None = None,
        name="token_classification",
        **kwargs,
    ):
        objective = objectives.TokenClassificationObjective
        super().__init__(objective, config, num_labels, seed, dropout_rate=dropout_rate, name=name, **kwargs)

    def call(self, inputs, training=False, dropout_seed=None):
        """inputs: as for `BertModel`. Returns float32 logits [B, S, C]."""
        return self.classify(inputs, "sequence_output", training, dropout_seed)


@keras.saving.register_keras_serializable(_PACKAGE)
class BertForMultipleChoice(ClassifierModel):
    """Encoder and a score for each of several inputs, of which one is right.

    Args:
      config: a `BertConfig` or its dict. dropout_rate: dropout of the pooled output in training.
      seed: see `BertModel`. dtype: Keras dtype policy.
    """

    def __init__(
        self,
        config,
        dropout_rate: float = CLASSIFIER_DROPOUT,
        seed: int | None = None,
        name="multiple_choice",
        **kwargs,
    ):
        super().__init__(
            objectives.MultipleChoiceObjective, config, 1, seed, dropout_rate=dropout_rate, name=name, **kwargs
        )

    def call(self, inputs, training=False, dropout_seed=None):
        """inputs: as for `BertModel`, with an axis of choices: [B, N, S].

        Returns:
          float32 logits [B, N].

        Raises:
          ValueError: input_ids is not of rank 3.
        """
        inputs = inputs if isinstance(inputs, dict) else {"input_ids": inputs}
        names = [name for name in ("input_ids", "input_mask", "segment_ids") if inputs.get(name) is not None]
        inputs = {name: ops.convert_to_tensor(inputs[name]) for name in names}
        if len(inputs["input_ids"].shape) != 3:
            shape = tuple(inputs["input_ids"].shape)
            raise ValueError(f"input_ids must be [batch, choices, sequence]; got shape {shape}.")
        choices = ops.shape(inputs["input_ids"])[1]
        flat = {name: ops.reshape(value, (-1, *ops.shape(value)[2:])) for name, value in inputs.items()}
        return ops.reshape(self.classify(flat, "pooled_output", training, dropout_seed), (-1, choices))

    def get_config(self) -> dict:
        config = super().get_config()
        del config["num_labels"]
        return config


@keras.saving.register_keras_serializable(_PACKAGE)
class BertForQuestionAnswering(TaskModel):
    """Encoder and scores of every token as first and as last of the answer; no dropout in the head.

    Args:
      config: a `BertConfig` or its dict. seed: see `BertModel`. dtype: Keras dtype policy.
    """

    def __init__(self, config, seed: int | None = None, name="question_answering", **kwargs):
        super().__init__(objectives.SpanObjective, config, seed, name=name, **kwargs)
        self.head = LinearHead(2, name="cls_squad", dtype=self.dtype_policy)

    def build_head(self):
        self.head.build((None, None, self.config.hidden_size))

    def call(self, inputs, training=False, dropout_seed=None):
        """inputs: as for `BertModel`. Returns dict of float32 `start_logits` and `end_logits` [B, S]."""
        encoded = self.bert(inputs, training=training, dropout_seed=dropout_seed)
        logits = self.head(encoded["sequence_output"])  # [B, S, 2]
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}

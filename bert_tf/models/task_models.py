"""BERT with one head on top (original: create_model of run_classifier.py and run_squad.py).

Plain Keras models. `compile(optimizer)` without a loss uses the model's own objective (objectives.py); with a loss,
they train like any Keras model. `loop.train` takes `model.objective`.

Shape legend: B batch, S sequence length, H hidden size, C classes, N choices, W windows, P predictions per sequence,
V vocabulary.
"""

from collections.abc import Sequence
from types import MappingProxyType

from keras import ops

from bert_tf.families.config import ACTIVATIONS
from bert_tf.models import heads, objectives
from bert_tf.models.dropout import dropout, in_scope, several_rows
from bert_tf.models.encoder import BertEncoder
from bert_tf.models.inputs import ROW_INPUTS, flat_rows, select
from bert_tf.models.layers import WindowPooling
from bert_tf.models.objectives import PretrainingObjective
from bert_tf.store.head_config import HeadConfig, head_in_argument, labels_of

# What pre-training records have besides the encoder's inputs: the models for either half of pre-training accept all.
PRETRAINING_FEATURES = ("masked_lm_positions", *PretrainingObjective.label_names, *PretrainingObjective.optional_names)


class BertModel(heads.Pretrained, BertEncoder):
    """The BERT encoder (original: modeling.py, BertModel).

        config = BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
        model = BertModel(config)
        outputs = model({"input_ids": np.array([[1, 5, 7, 2]])})
        outputs["sequence_output"].shape  # (1, 4, 32)

    Args:
      config: of any family (or its dict).
      dense_embedding_gradient: see `kernels.embedding_lookup`.
      seed: seed of dropout outside of a `dropout_scope` (Keras `fit`).
      dtype: Keras dtype policy, e.g. "mixed_bfloat16".
    """


class BertForMaskedLM(heads.TaskModel):
    """Encoder and masked-LM head.

        model = BertForMaskedLM(BertConfig(vocab_size=30522))
        logits = model({"input_ids": ids, "masked_lm_positions": positions})  # [B, P, V]

    config, seed and dtype are as for `BertModel`.
    """

    part = "generator"
    further_inputs = PRETRAINING_FEATURES

    def __init__(self, config, seed: int | None = None, name="masked_lm", **kwargs):
        super().__init__(objectives.MaskedLanguageModelObjective, config, seed, True, name=name, **kwargs)
        self.head = heads.MaskedLanguageModelHead(self.config, name="cls_predictions", dtype=self.dtype_policy)

    def call(self, inputs, training=False):
        """inputs: as for `BertModel`, and optionally `masked_lm_positions` [B, P]. Returns float32 [B, P or S, V]."""
        positions = inputs.get("masked_lm_positions")
        encoded = self.encode(inputs, training=training, read_positions=positions)
        return self.head(encoded["sequence_output"], self.bert.get_embedding_table(), training=training)


class BertForNextSentencePrediction(heads.TaskModel):
    """Encoder and next-sentence head. The arguments are as for `BertModel`."""

    further_inputs = PRETRAINING_FEATURES
    reads_pooler = True

    def __init__(self, config, seed: int | None = None, name="next_sentence", **kwargs):
        super().__init__(objectives.NextSentenceObjective, config, seed, name=name, **kwargs)
        deviation = self.config.initializer_range
        self.head = heads.LinearHead(2, deviation, name="cls_seq_relationship", dtype=self.dtype_policy)

    def call(self, inputs, training=False):
        """inputs: as for `BertModel`. Returns float32 logits [B, 2]; class 1 is a random second segment."""
        return self.head(self.encode_pooled(inputs, training=training))


class BertForSequenceClassification(heads.ClassifierModel):
    """Encoder and text classifier.

        model = BertForSequenceClassification(BertConfig(vocab_size=30522, type_vocab_size=2), num_labels=3)
        model.compile(optimizer=create_optimizer("adamw", 2e-5, num_train_steps=300, num_warmup_steps=30))
        model.fit(features, labels, epochs=3)  # dict of input_ids, input_mask, segment_ids [B, S]; labels [B]

    Args:
      config: of any family, or its dict.
      num_labels: C; 1 for a regression. By default the number of `labels`, or 2.
      problem_type: "single_label_classification", "regression" or "multi_label_classification"; it selects the model's
        objective. None: a regression for one label, single-label classification for more.
      dropout_rate: dropout before the output layer in training; None: the family's, 0.1 for BERT.
      seed: see `BertModel`. dtype: Keras dtype policy.
      labels: the names of the classes in the order of their ids.
      hidden_act: the activation of a hidden layer before the output layer, in a family whose original has none.
      window_pooling: the model reads each text as one or more windows, and this combines their pooled outputs; one of
        `head_config.WINDOW_POOLINGS`. window_stride, max_windows: how texts are cut, kept for those who use the model.

    Raises:
      ValueError: num_labels, problem_type, dropout_rate or hidden_act is invalid, a classification has only one label,
        or the number of labels is not num_labels.
    """

    def __init__(
        self,
        config,
        num_labels: int | None = None,
        problem_type: str | None = None,
        dropout_rate: float | None = None,
        seed: int | None = None,
        name="sequence_classification",
        *,
        labels: Sequence[str] | None = None,
        hidden_act: str | None = None,
        window_pooling: str | None = None,
        window_stride: int | None = None,
        max_windows: int | None = None,
        **kwargs,
    ):
        stored = head_in_argument(config)
        labels = labels_of(labels, config)
        num_labels = num_labels if num_labels is not None else len(labels) if labels else 2
        problem_type = problem_type or stored.problem_type or ("regression" if num_labels == 1 else None)
        windows = window_pooling, window_stride, max_windows
        head = HeadConfig("BertForSequenceClassification", labels, problem_type, hidden_act, *windows)
        problem_type = problem_type or "single_label_classification"
        if (num_labels == 1) != (problem_type == "regression") and problem_type != "multi_label_classification":
            raise ValueError(f"num_labels={num_labels} does not fit problem_type={problem_type!r}")
        objective = heads.PROBLEM_TYPES[problem_type]
        super().__init__(objective, config, num_labels, head, seed, dropout_rate=dropout_rate, name=name, **kwargs)
        self.problem_type = problem_type
        if hidden_act not in (None, *ACTIVATIONS):
            raise ValueError(f"hidden_act={hidden_act!r} is not one of {', '.join(ACTIVATIONS)}")
        if window_pooling:
            self.windows = WindowPooling(window_pooling, name="window_pooling", dtype=self.dtype_policy)
            # Those that can have an axis of windows.
            self.encoder_inputs, self.exported_inputs = ROW_INPUTS, MappingProxyType(dict.fromkeys(ROW_INPUTS, 3))

    @property
    def hidden_act(self):
        return self.head_config.hidden_act or self.config.classifier_act

    tokens_read = 1

    def encode_pooled(self, inputs, **arguments):
        """[B, H]: one vector of each row, or of all windows of a text."""
        if not self.windows:
            return super().encode_pooled(inputs, **arguments)
        if len(ops.convert_to_tensor(inputs["input_ids"]).shape) == 2:  # one window each
            inputs = {name: ops.expand_dims(value, 1) for name, value in select(inputs, ROW_INPUTS).items()}
        rows, count = flat_rows(inputs)
        with several_rows(count):
            x = super().encode_pooled(rows, **arguments)
        mask = ops.any(rows.get("input_mask", ops.ones_like(rows["input_ids"])), axis=-1)
        return self.windows(ops.reshape(x, (-1, count, self.config.hidden_size)), ops.reshape(mask, (-1, count)))

    def call(self, inputs, training=False):
        """float32 logits [B, C] of inputs as for `BertModel`.

        With window_pooling input_ids, input_mask and segment_ids have an axis of windows, [B, W, S]. A window whose
        mask is all zeros does not count.
        """
        return self.classify(inputs, training)


BertClassifier = BertForSequenceClassification


class BertForTokenClassification(heads.ClassifierModel):
    """Encoder and token classifier, e.g. for named entities.

    num_labels: C. labels: their names in the order of their ids. Others: see `BertForSequenceClassification`.
    """

    usual_dropout = "token_dropout"

    def __init__(
        self,
        config,
        num_labels: int,
        dropout_rate: float | None = None,
        seed: int | None = None,
        name="token_classification",
        *,
        labels: Sequence[str] | None = None,
        **kwargs,
    ):
        head = HeadConfig("BertForTokenClassification", labels_of(labels, config))
        objective = objectives.TokenClassificationObjective
        super().__init__(objective, config, num_labels, head, seed, dropout_rate=dropout_rate, name=name, **kwargs)

    def read(self, inputs, training):
        return self.encode(inputs, training=training)["sequence_output"]

    def call(self, inputs, training=False):
        """inputs: as for `BertModel`. Returns float32 logits [B, S, C]."""
        return self.classify(inputs, training)


class BertForMultipleChoice(heads.ClassifierModel):
    """Encoder and a score for each of several choices, one of which is correct.

    dropout_rate: before the output layer in training; None: the family's, 0.1 for BERT. Others: see `BertModel`.
    """

    exported_inputs = MappingProxyType(dict.fromkeys(heads.Pretrained.exported_inputs, 3))

    def __init__(
        self, config, dropout_rate: float | None = None, seed: int | None = None, name="multiple_choice", **kwargs
    ):
        head, objective = HeadConfig("BertForMultipleChoice"), objectives.MultipleChoiceObjective
        super().__init__(objective, config, 1, head, seed, dropout_rate=dropout_rate, name=name, **kwargs)

    encoder_inputs = ROW_INPUTS
    tokens_read = 1

    @property
    def hidden_act(self):
        return self.config.choice_act or self.config.classifier_act

    def call(self, inputs, training=False):
        """float32 logits [B, N] of input_ids, input_mask and segment_ids with an axis of choices: [B, N, S]."""
        rows, choices = flat_rows(inputs)
        with several_rows(choices):
            return ops.reshape(self.classify(rows, training), (-1, choices))


class BertForQuestionAnswering(heads.TaskModel):
    """Encoder and scores of every token as the answer's first and last token; BERT has no dropout in the head.

    config, seed and dtype are as for `BertModel`.
    """

    def __init__(self, config, seed: int | None = None, name="question_answering", **kwargs):
        super().__init__(objectives.SpanObjective, config, seed, name=name, **kwargs)
        deviation = self.config.head_initializer_range
        self.head = heads.LinearHead(2, deviation, name="cls_squad", dtype=self.dtype_policy)

    @in_scope
    def call(self, inputs, training=False):
        """inputs: as for `BertModel`. Returns dict of float32 `start_logits` and `end_logits` [B, S]."""
        x = self.encode(inputs, training=training)["sequence_output"]
        logits = self.head(dropout(x, self.config.span_dropout, "head", training))  # [B, S, 2]
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}


class BertForPreTraining(heads.TaskModel):
    """Encoder, masked-LM head and next-sentence head.

    Works with Keras `compile` and `fit`: the input is the features that create_pretraining_data.py writes, or those of
    `mask_rules.bert`, from which it computes the loss and four metrics.

        model = BertForPreTraining(BertConfig(vocab_size=30522))
        model.compile(optimizer=AdamWeightDecay(1e-4))
        model.fit(dataset)  # of dicts with the seven features of a pre-training record

    config, seed and dtype are as for `BertModel`.
    """

    part = "generator"
    further_inputs = PRETRAINING_FEATURES
    reads_pooler = True
    exported_inputs = MappingProxyType({**heads.Pretrained.exported_inputs, "masked_lm_positions": 2})

    def __init__(self, config, seed: int | None = None, name="pretraining", **kwargs):
        super().__init__(PretrainingObjective, config, seed, True, name=name, **kwargs)
        dtype = self.dtype_policy
        self.masked_lm = heads.MaskedLanguageModelHead(self.config, name="cls_predictions", dtype=dtype)
        deviation = self.config.initializer_range
        self.next_sentence = heads.LinearHead(2, deviation, name="cls_seq_relationship", dtype=dtype)

    def build_head(self):
        self.masked_lm.build()
        self.next_sentence.build((None, self.config.hidden_size))

    def call(self, inputs, training=False):
        """inputs: as for `BertModel`, and `masked_lm_positions` [B, P].

        Returns a dict with `masked_lm_logits` [B, P, V] and `next_sentence_logits` [B, 2] (class 1: random next),
        float32. With `pooled_positions` [B, M] among the inputs, `next_sentence_logits` is [B, M, 2].
        """
        positions = inputs["masked_lm_positions"]
        encoded = self.encode(inputs, training=training, read_positions=positions)
        table = self.bert.get_embedding_table()
        return {
            "masked_lm_logits": self.masked_lm(encoded["sequence_output"], table, training=training),
            "next_sentence_logits": self.next_sentence(encoded["pooled_output"]),
        }


# Its first name.
BertPretrainingModel = BertForPreTraining

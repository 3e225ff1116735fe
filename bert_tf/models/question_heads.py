"""The heads for questions: BERT's (`task_models`), and the joint ones of ELECTRA's and ALBERT's authors.

A joint head scores ends for given starts, and whether there is an answer. Which head a model has shows in its
variables, and head_config.json says it.

Originals: ELECTRA's finetune/qa/qa_tasks.py with its defaults (joint_prediction, answerable_classifier,
answerable_uses_start_logits); ALBERT's run_squad_v2.py and squad_utils.py.

Shape legend: B batch, S sequence length, H hidden size, K starts, N ends of each.
"""

import abc
from collections.abc import Container

import keras
from keras import ops

from bert_tf.models import directory as model_directory
from bert_tf.models import kernels
from bert_tf.models.config import BertConfig
from bert_tf.models.dropout import dropout, in_scope
from bert_tf.models.head_config import HeadConfig
from bert_tf.models.heads import TaskModel
from bert_tf.models.layers import LayerNorm, Projection, gather_positions
from bert_tf.models.objectives import SpanObjective, require_zero_or_one, sigmoid_cross_entropy
from bert_tf.models.task_models import BertForQuestionAnswering
from bert_tf.models.variable_names import INDEPENDENT_HEAD, JOINT_HEAD

_ANSWERABLE_WEIGHT = 0.5


class AnswerableSpanObjective(SpanObjective):
    """`SpanObjective`, plus half the sigmoid cross-entropy of whether the question has no answer.

    Outputs: those of a `JointSpanModel` for given starts. Features: `start_positions`, `end_positions` [B], and
    optionally `is_impossible` [B], 1 for a question without answer, whose positions are 0; by default all have one.
    """

    optional_names = (*SpanObjective.optional_names, "is_impossible")

    @classmethod
    def values(cls, outputs, features: dict) -> tuple:
        losses, measures = super().values(outputs, features)
        impossible = ops.zeros_like(losses)
        if "is_impossible" in features:
            impossible = ops.reshape(ops.cast(features["is_impossible"], "float32"), (-1,))
            impossible = require_zero_or_one("is_impossible", impossible, cls.weights(features))
        lacking = sigmoid_cross_entropy(outputs["answerable_logit"], impossible)
        return losses + _ANSWERABLE_WEIGHT * lacking, measures


class JointSpanModel(TaskModel, abc.ABC):
    """The base class of models with a joint head.

    Attributes:
      family: `model_type` of the family whose authors had it.
      beam_size: K and N of the family's authors.
      needs_impossible: whether they used it only for data in which questions may have no answer.
      window_decides: whether a training window without the answer counts as a question without one.

    Args:
      config: of the family, or its dict. starts, ends: K and N; None: beam_size. seed: see `BertModel`.
      dtype: Keras dtype policy.
    """

    other_head = (INDEPENDENT_HEAD, "an independent head for questions: use BertForQuestionAnswering")
    family: str
    beam_size: int
    needs_impossible = False
    window_decides = False

    def __init__(
        self,
        config,
        starts: int | None = None,
        ends: int | None = None,
        seed: int | None = None,
        name="question_answering",
        **kwargs,
    ):
        super().__init__(AnswerableSpanObjective, config, seed, name=name, **kwargs)
        if self.config.model_type != self.family:
            raise ValueError(f"{type(self).__name__} is no head for {self.config.title}: use BertForQuestionAnswering.")
        self.starts, self.ends = (self.beam_size if number is None else number for number in (starts, ends))
        self.head_config = HeadConfig(type(self).__name__, starts=self.starts, ends=self.ends)
        self.create_head()

    @abc.abstractmethod
    def create_head(self) -> None:
        """Sets the layers of the head, which `build_head` builds, as attributes; `start` scores starts."""

    def create_projections(self, deviation: float | None, **widths: int) -> None:
        """Layers of these widths, under their names in checkpoints."""
        for name, units in widths.items():
            setattr(self, name, Projection(units, deviation, name=f"cls_squad_{name}", dtype=self.dtype_policy))

    @abc.abstractmethod
    def outside(self, inputs: dict, length):
        """float32 [B, S]: what is added to the logits of tokens, so that those that can't be in an answer are low."""

    @abc.abstractmethod
    def end_scores(self, tokens, starts, training: bool):
        """[B, K, S, 1] from tokens [B, 1, S, H] and starts [B, K, 1, H]; see `pair_product`."""

    @abc.abstractmethod
    def answerable_score(self, first, summary, training: bool):
        """[B, 1] from the first token and the mean of the starts, both [B, H]; positive for no answer."""

    @in_scope
    def call(self, inputs, training=False):
        """inputs: as for `BertModel`, with what the class needs besides; in training also `start_positions` [B].

        Returns:
          dict of float32 `start_logits` [B, S] and `answerable_logit` [B], positive where there is no answer. With
          start_positions also `end_logits` [B, S] for these starts; else the log-probabilities and places of the K best
          starts and, for each, of the N best ends: `start_top_log_probs`, `start_top_index` [B, K],
          `end_top_log_probs`, `end_top_index` [B, K, N]. If S is less than K or N, the last ones are places from S on
          with log-probability -inf.
        """
        x = self.encode(inputs, training=training)["sequence_output"]
        outside = self.outside(inputs, ops.shape(x)[1])
        start_logits = _scores(self.start(x)) + outside
        summary = ops.sum(ops.cast(ops.softmax(start_logits), x.dtype)[:, :, None] * x, axis=1)
        answerable = _scores(self.answerable_score(x[:, 0], summary, training))
        outputs = {"start_logits": start_logits, "answerable_logit": answerable}
        if inputs.get("start_positions") is not None:
            positions = ops.reshape(inputs["start_positions"], (-1, 1))
            return {**outputs, "end_logits": self._end_logits(x, positions, outside, training)[:, 0]}
        start_scores, starts = _best(start_logits, self.starts)
        inside = ops.minimum(starts, ops.shape(x)[1] - 1)
        end_scores, ends = _best(self._end_logits(x, inside, outside, training), self.ends)
        beam = {"start_top_log_probs": start_scores, "start_top_index": starts}
        return {**outputs, **beam, "end_top_log_probs": end_scores, "end_top_index": ends}

    def _end_logits(self, x, starts, outside, training: bool):
        """float32 [B, K, S]: the score of each token as the end, for each start [B, K]."""
        scores = self.end_scores(x[:, None], gather_positions(x, starts)[:, :, None], training)
        return _scores(scores) + outside[:, None, :]


def _scores(x):
    """The only value of the last axis, in float32."""
    return ops.cast(x, "float32")[..., 0]


def context_tokens(inputs: dict, model_name: str):
    """float32 [B, S]: 1 for the tokens of the context and the [SEP] behind it, by segment_ids and input_mask.

    Raises:
      ValueError: there are no segment_ids; names the model.
    """
    if inputs.get("segment_ids") is None:
        raise ValueError(f"{model_name} needs segment_ids: 1 for the context.")
    mask, context = inputs.get("input_mask"), ops.cast(inputs["segment_ids"], "float32")
    return context if mask is None else context * ops.cast(mask, "float32")


def pair_product(layer: Projection, one, other):
    """[one, other] W of a layer, for all pairs of vectors that `one` and `other` [..., H] broadcast to.

    Each has its half of W, so the pairs are never in memory, and each vector is multiplied once.
    """

    def product(x, half):
        return ops.reshape(ops.matmul(ops.reshape(x, (-1, size)), half), (*ops.shape(x)[:-1], layer.units))

    size, kernel = one.shape[-1], ops.convert_to_tensor(layer.kernel)
    return product(one, kernel[:size]) + product(other, kernel[size:])


def _best(logits, number: int):
    """Log-probabilities and places of the best of the last axis, `number` of them however short that is."""
    padding = [(0, 0)] * (len(logits.shape) - 1) + [(0, number - 1)]
    return ops.top_k(ops.pad(ops.log_softmax(logits), padding, constant_values=-float("inf")), number)


@keras.saving.register_keras_serializable("bert_tf")
class ElectraForQuestionAnswering(JointSpanModel):
    """Encoder, and the head with which ELECTRA's authors fine-tuned it on SQuAD; it has no dropout.

    Its outputs are those of `JointSpanModel`. It needs segment_ids: 1 for the context.

    Args:
      config: an `ElectraConfig` or its dict. starts, ends: the best starts, and the best ends of each; 20 by default.
      seed: see `BertModel`. dtype: Keras dtype policy.
    """

    family = "electra"
    beam_size = 20
    hidden_size = 512
    activation = "gelu_erf"  # whatever hidden_act is, as in the original

    def create_head(self):
        hidden, deviation = self.hidden_size, self.config.head_initializer_range
        self.create_projections(deviation, start=1, end_hidden=hidden, end=1, answerable_hidden=hidden, answerable=1)

    def build_head(self):
        size = self.config.hidden_size
        widths = (size, 2 * size, self.hidden_size, 2 * size, self.hidden_size)
        layers = (self.start, self.end_hidden, self.end, self.answerable_hidden, self.answerable)
        for layer, width in zip(layers, widths, strict=True):
            layer.build((None, None, width))

    def outside(self, inputs, length):
        context = context_tokens(inputs, type(self).__name__)
        return (1.0 - ops.maximum(context, ops.cast(ops.arange(length) == 0, "float32"))) * -1000.0

    def end_scores(self, tokens, starts, training):
        bias = ops.convert_to_tensor(self.end_hidden.bias)
        product = pair_product(self.end_hidden, starts, tokens)
        return self.end(kernels.bias_activation(product, bias, self.activation, training))

    def answerable_score(self, first, summary, training):
        pairs = ops.concatenate([first, summary], axis=-1)
        return self.answerable(self.answerable_hidden(pairs, activation=self.activation, training=training))


@keras.saving.register_keras_serializable("bert_tf")
class AlbertForQuestionAnswering(JointSpanModel):
    """Encoder, and the head with which ALBERT's authors fine-tuned it on SQuAD 2.0.

    Its outputs are those of `JointSpanModel`. It reads p_mask [B, S]: 1 for tokens that can't be in an
    answer (question, [SEP], padding), 0 for the context and [CLS]; without p_mask they follow from segment_ids, 1 for
    the context and the [SEP] behind it.

    Args:
      config: an `AlbertConfig` or its dict. starts, ends: the best starts, and the best ends of each; 5 by default.
      dropout_rate: before the score of whether there is an answer, in training.
      seed: see `BertModel`. dtype: Keras dtype policy.
    """

    family = "albert"
    further_inputs = ("p_mask",)
    beam_size = 5
    needs_impossible = True
    window_decides = True

    def __init__(
        self,
        config,
        starts: int | None = None,
        ends: int | None = None,
        dropout_rate: float = 0.1,
        seed: int | None = None,
        name="question_answering",
        **kwargs,
    ):
        super().__init__(config, starts, ends, seed, name, **kwargs)
        self.dropout_rate = dropout_rate

    def create_head(self):
        size, deviation, dtype = self.config.hidden_size, self.config.initializer_range, self.dtype_policy
        self.create_projections(deviation, start=1, end_hidden=size, end=1, answerable_hidden=size)
        # Its name says that its weights are not decayed (`recipe.EXCLUDE_FROM_WEIGHT_DECAY`).
        self.end_norm = LayerNorm(self.config.layer_norm_eps, name="cls_squad_end_LayerNorm", dtype=dtype)
        initializer = keras.initializers.TruncatedNormal(stddev=deviation)
        self.answerable = keras.layers.Dense(
            1, use_bias=False, kernel_initializer=initializer, name="cls_squad_answerable", dtype=dtype
        )

    def build_head(self):
        size = self.config.hidden_size
        for layer in (self.end_hidden, self.answerable_hidden):
            layer.build((None, None, 2 * size))
        for layer in (self.start, self.end_norm, self.end, self.answerable):
            layer.build((None, None, size))

    def outside(self, inputs, length):
        p_mask = inputs.get("p_mask")
        if p_mask is None:
            context = context_tokens(inputs, type(self).__name__)
            followed = ops.pad(context[:, 1:], ((0, 0), (0, 1)))  # not the [SEP] at its end
            p_mask = 1.0 - ops.maximum(context * followed, ops.cast(ops.arange(length) == 0, "float32"))
        return ops.cast(p_mask, "float32") * -1e30

    def end_scores(self, tokens, starts, training):
        hidden = ops.tanh(pair_product(self.end_hidden, tokens, starts) + ops.convert_to_tensor(self.end_hidden.bias))
        return self.end(self.end_norm(hidden))

    def answerable_score(self, first, summary, training):
        hidden = self.answerable_hidden(
            ops.concatenate([summary, first], axis=-1), activation="tanh", training=training
        )
        return self.answerable(dropout(hidden, self.dropout_rate, "head", training))


# Family -> the class with the joint head of its authors.
JOINT_CLASSES = {kind.family: kind for kind in (ElectraForQuestionAnswering, AlbertForQuestionAnswering)}

# Head -> a variable of it.
OUTPUT_LAYERS = {"independent": INDEPENDENT_HEAD, "joint": JOINT_HEAD}


def head_in(names: Container[str]) -> str | None:
    """Which head a model with these variables has; None if it has neither."""
    return next((head for head, layer in OUTPUT_LAYERS.items() if layer in names), None)


def create_model(config: BertConfig, head: HeadConfig, **arguments) -> keras.Model:
    """A model with random weights, not built yet.

    Args:
      head: says which head it is. arguments: for the class.
    """
    joint = JOINT_CLASSES.get(config.model_type)
    if joint and head.architecture == joint.__name__:
        return joint(config, head.starts, head.ends, **arguments)
    return BertForQuestionAnswering(config, lstm_on_top=head.lstm_on_top, **arguments)


def from_pretrained(path: str, **arguments) -> keras.Model:
    """The model for questions at a path, of the class that its variables show.

    Args:
      path, arguments: see `base_models.Pretrained.from_pretrained`.

    Raises:
      FileNotFoundError, ValueError: see there.
    """
    weights, files = model_directory.read_model(path)
    family = model_directory.needed_config(files).model_type if head_in(weights) == "joint" else None
    return JOINT_CLASSES.get(family, BertForQuestionAnswering).from_pretrained(path, **arguments)

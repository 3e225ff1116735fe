"""Answers whose end is scored for given starts, and whether there is one: the heads of ELECTRA's and ALBERT's authors.

Shape legend: B batch, S sequence length, H hidden size, K starts, N ends of each.
"""

import abc

from keras import ops

from bert_tf.models import objectives
from bert_tf.models.base_models import TaskModel
from bert_tf.models.dropout import in_scope
from bert_tf.models.families import family_of
from bert_tf.models.head_config import HeadConfig
from bert_tf.models.layers import Projection, gather_positions
from bert_tf.models.variable_names import INDEPENDENT_HEAD

_ANSWERABLE_WEIGHT = 0.5


class AnswerableSpanObjective(objectives.SpanObjective):
    """`SpanObjective`, plus half the sigmoid cross-entropy of whether the question has no answer.

    Outputs: those of a `JointSpanModel` for given starts. Features: `start_positions`, `end_positions` [B], and
    optionally `is_impossible` [B], 1 for a question without answer, whose positions are 0; by default all have one.
    """

    optional_names = (*objectives.SpanObjective.optional_names, "is_impossible")

    @classmethod
    def values(cls, outputs, features: dict) -> tuple:
        losses, measures = super().values(outputs, features)
        logits = outputs["answerable_logit"]
        lacking = ops.softplus(logits)
        if "is_impossible" in features:
            impossible = ops.reshape(ops.cast(features["is_impossible"], "float32"), (-1,))
            impossible = objectives.require_zero_or_one("is_impossible", impossible, cls.weights(features))
            lacking = lacking - logits * impossible
        return losses + _ANSWERABLE_WEIGHT * lacking, measures


class JointSpanModel(TaskModel, abc.ABC):
    """The base class of such models.

    Attributes:
      beam_size: K and N of the family's authors.
      needs_impossible: whether they used it only for data in which questions may have no answer.
      window_decides: whether a training window without the answer counts as a question without one.

    Args:
      config: of the family, or its dict. starts, ends: K and N; None: beam_size. seed: see `BertModel`.
      dtype: Keras dtype policy.
    """

    other_head = (INDEPENDENT_HEAD, "an independent head for questions: use BertForQuestionAnswering")
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
        own = family_of(self.config).joint_head
        if not own or own[1] not in [kind.__name__ for kind in type(self).__mro__]:
            raise ValueError(f"{type(self).__name__} is no head for {self.config.title}: use BertForQuestionAnswering.")
        self.starts, self.ends = (self.beam_size if number is None else number for number in (starts, ends))
        self.head_config = HeadConfig(type(self).__name__, starts=self.starts, ends=self.ends)
        self.create_head()

    @abc.abstractmethod
    def create_head(self) -> None:
        """Sets the layers of the head, which `build_head` builds, as attributes."""

    @abc.abstractmethod
    def outside(self, inputs: dict, length):
        """float32 [B, S]: what is added to the logits of tokens, so that those that can't be in an answer are low."""

    @abc.abstractmethod
    def start_scores(self, x):
        """[B, S, 1] from the encoder's outputs [B, S, H]."""

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
        start_logits = _scores(self.start_scores(x)) + outside
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

    def get_config(self) -> dict:
        return {**super().get_config(), "starts": self.starts, "ends": self.ends}

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

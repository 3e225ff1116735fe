"""ELECTRA's own model for questions: the end of an answer depends on its start, and a score says if there is one.

Original: finetune/qa/qa_tasks.py, with its defaults (joint_prediction, answerable_classifier,
answerable_uses_start_logits).

Shape legend: B batch, S sequence length, H hidden size, K beam size.
"""

import keras
from keras import ops

from bert_tf.models import objectives
from bert_tf.models.base_models import TaskModel
from bert_tf.models.layers import Projection, gather_positions

_HIDDEN_SIZE = 512
_OUTSIDE = -1000.0  # added to the logits of tokens that can't be in an answer
_ANSWERABLE_WEIGHT = 0.5


class AnswerableSpanObjective(objectives.SpanObjective):
    """`SpanObjective`, plus half the sigmoid cross-entropy of whether the question has no answer.

    Outputs: those of `ElectraForQuestionAnswering` for given starts. Features: `start_positions`, `end_positions` [B],
    and optionally `is_impossible` [B], 1 for a question without answer, whose positions are 0; by default all have one.
    """

    optional_names = (*objectives.SpanObjective.optional_names, "is_impossible")

    @classmethod
    def values(cls, outputs, features: dict) -> tuple:
        losses, measures = super().values(outputs, features)
        logits = outputs["answerable_logit"]
        lacking = ops.softplus(logits)
        if "is_impossible" in features:
            lacking = lacking - logits * ops.reshape(ops.cast(features["is_impossible"], "float32"), (-1,))
        return losses + _ANSWERABLE_WEIGHT * lacking, measures


@keras.saving.register_keras_serializable("bert_tf")
class ElectraForQuestionAnswering(TaskModel):
    """Encoder, and the head with which ELECTRA's authors fine-tuned it on SQuAD; it has no dropout.

    The scripts train `BertForQuestionAnswering`, with one layer for starts and ends.

    Args:
      config: of a family without pooler, or its dict. beam_size: K, the starts whose ends are scored; at most S.
      seed: see `BertModel`. dtype: Keras dtype policy.
    """

    def __init__(self, config, beam_size: int = 20, seed: int | None = None, name="question_answering", **kwargs):
        super().__init__(AnswerableSpanObjective, config, seed, name=name, **kwargs)
        self.beam_size = beam_size
        sizes = {"dense": 1, "qa_hidden": _HIDDEN_SIZE, "dense_1": 1, "dense_2": _HIDDEN_SIZE, "dense_3": 1}
        deviation = self.config.head_initializer_range
        self.start, self.end_hidden, self.end, self.answerable_hidden, self.answerable = (
            Projection(size, deviation, name=f"cls_squad_{name}", dtype=self.dtype_policy)
            for name, size in sizes.items()
        )

    def build_head(self):
        size = self.config.hidden_size
        widths = (size, 2 * size, _HIDDEN_SIZE, 2 * size, _HIDDEN_SIZE)
        layers = (self.start, self.end_hidden, self.end, self.answerable_hidden, self.answerable)
        for layer, width in zip(layers, widths, strict=True):
            layer.build((None, None, width))

    def call(self, inputs, training=False, dropout_seed=None):
        """inputs: as for `BertModel`, with segment 1 for the context; in training also `start_positions` [B].

        Returns:
          dict of float32 `start_logits` [B, S] and `answerable_logit` [B], positive where there is no answer. With
          start_positions also `end_logits` [B, S] for these starts; else the log-probabilities and places of the K best
          starts and, for each, of the K best ends: `start_top_log_probs`, `start_top_index` [B, K],
          `end_top_log_probs`, `end_top_index` [B, K, K].
        """
        x = self.encode(inputs, training=training, dropout_seed=dropout_seed)["sequence_output"]
        length = ops.shape(x)[1]
        segments, mask = inputs.get("segment_ids"), inputs.get("input_mask")
        if segments is None:
            raise ValueError("ElectraForQuestionAnswering needs segment_ids: 1 for the context.")
        context = ops.cast(segments, "float32") * (1.0 if mask is None else ops.cast(mask, "float32"))
        context = ops.maximum(context, ops.cast(ops.arange(length) == 0, "float32"))  # [CLS]: no answer
        outside = (1.0 - context) * _OUTSIDE  # [B, S]
        start_logits = _scores(self.start(x)) + outside
        summary = ops.sum(ops.cast(ops.softmax(start_logits), x.dtype)[:, :, None] * x, axis=1)
        hidden = self.answerable_hidden.activated(
            ops.concatenate([x[:, 0], summary], axis=-1), self.config.activation, training
        )
        outputs = {"start_logits": start_logits, "answerable_logit": _scores(self.answerable(hidden))}
        if inputs.get("start_positions") is not None:
            positions = ops.reshape(inputs["start_positions"], (-1, 1))
            return {**outputs, "end_logits": self._end_logits(x, positions, outside, training)[:, 0]}
        start_scores, starts = ops.top_k(ops.log_softmax(start_logits), self.beam_size)
        end_scores, ends = ops.top_k(ops.log_softmax(self._end_logits(x, starts, outside, training)), self.beam_size)
        beam = {"start_top_log_probs": start_scores, "start_top_index": starts}
        return {**outputs, **beam, "end_top_log_probs": end_scores, "end_top_index": ends}

    def _end_logits(self, x, starts, outside, training: bool):
        """float32 [B, K, S]: the score of each token as the end, for each start [B, K]."""
        batch, count, length, size = ops.shape(x)[0], ops.shape(starts)[1], ops.shape(x)[1], x.shape[-1]
        shape = (batch, count, length, size)
        first = ops.broadcast_to(gather_positions(x, starts)[:, :, None, :], shape)
        pairs = ops.concatenate([first, ops.broadcast_to(x[:, None], shape)], axis=-1)
        hidden = self.end_hidden.activated(pairs, self.config.activation, training)
        return _scores(self.end(hidden)) + outside[:, None, :]

    def get_config(self) -> dict:
        return {**super().get_config(), "beam_size": self.beam_size}


def _scores(x):
    """The only value of the last axis, in float32."""
    return ops.cast(x, "float32")[..., 0]

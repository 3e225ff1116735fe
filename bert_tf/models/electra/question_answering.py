"""ELECTRA's own model for questions.

Original: finetune/qa/qa_tasks.py, with its defaults (joint_prediction, answerable_classifier,
answerable_uses_start_logits).
"""

import keras
from keras import ops

from bert_tf.models.joint_spans import JointSpanModel
from bert_tf.models.layers import Projection

_HIDDEN_SIZE = 512
_OUTSIDE = -1000.0  # added to the logits of tokens that can't be in an answer


@keras.saving.register_keras_serializable("bert_tf")
class ElectraForQuestionAnswering(JointSpanModel):
    """Encoder, and the head with which ELECTRA's authors fine-tuned it on SQuAD; it has no dropout.

    Its outputs are those of `joint_spans.JointSpanModel`. It needs segment_ids: 1 for the context. The scripts train
    `BertForQuestionAnswering`, with one layer for starts and ends.

    Args:
      config: an `ElectraConfig` or its dict. beam_size: the starts whose ends are scored, and the ends of each.
      seed: see `BertModel`. dtype: Keras dtype policy.
    """

    def __init__(self, config, beam_size: int = 20, seed: int | None = None, name="question_answering", **kwargs):
        super().__init__(config, beam_size, beam_size, seed, name, **kwargs)
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

    def outside(self, inputs, length):
        if inputs.get("segment_ids") is None:
            raise ValueError("ElectraForQuestionAnswering needs segment_ids: 1 for the context.")
        mask, context = inputs.get("input_mask"), ops.cast(inputs["segment_ids"], "float32")
        context = context if mask is None else context * ops.cast(mask, "float32")
        return (1.0 - ops.maximum(context, ops.cast(ops.arange(length) == 0, "float32"))) * _OUTSIDE

    def start_scores(self, x):
        return self.start(x)

    def end_scores(self, tokens, starts, training):
        pairs = ops.concatenate([starts, tokens], axis=-1)
        return self.end(self.end_hidden.activated(pairs, self.config.activation, training))

    def answerable_score(self, first, summary, training, seed):
        pairs = ops.concatenate([first, summary], axis=-1)
        return self.answerable(self.answerable_hidden.activated(pairs, self.config.activation, training))

    def get_config(self) -> dict:
        return {**super().get_config(), "beam_size": self.starts}

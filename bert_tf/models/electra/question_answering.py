"""ELECTRA's own model for questions.

Original: finetune/qa/qa_tasks.py, with its defaults (joint_prediction, answerable_classifier,
answerable_uses_start_logits).
"""

import keras
from keras import ops

from bert_tf.models import kernels
from bert_tf.models.joint_spans import JointSpanModel, context_tokens, pair_product
from bert_tf.models.layers import Projection

_HIDDEN_SIZE = 512
_ACTIVATION = "gelu_erf"  # whatever hidden_act is, as in the original
_OUTSIDE = -1000.0  # added to the logits of tokens that can't be in an answer


@keras.saving.register_keras_serializable("bert_tf")
class ElectraForQuestionAnswering(JointSpanModel):
    """Encoder, and the head with which ELECTRA's authors fine-tuned it on SQuAD; it has no dropout.

    Its outputs are those of `joint_spans.JointSpanModel`. It needs segment_ids: 1 for the context.

    Args:
      config: an `ElectraConfig` or its dict. starts, ends: the best starts, and the best ends of each; 20 by default.
      seed: see `BertModel`. dtype: Keras dtype policy.
    """

    beam_size = 20

    def create_head(self):
        sizes = {"start": 1, "end_hidden": _HIDDEN_SIZE, "end": 1, "answerable_hidden": _HIDDEN_SIZE, "answerable": 1}
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
        context = context_tokens(inputs, type(self).__name__)
        return (1.0 - ops.maximum(context, ops.cast(ops.arange(length) == 0, "float32"))) * _OUTSIDE

    def start_scores(self, x):
        return self.start(x)

    def end_scores(self, tokens, starts, training):
        bias = ops.convert_to_tensor(self.end_hidden.bias)
        product = pair_product(self.end_hidden, starts, tokens)
        return self.end(kernels.bias_activation(product, bias, _ACTIVATION, training))

    def answerable_score(self, first, summary, training):
        pairs = ops.concatenate([first, summary], axis=-1)
        return self.answerable(self.answerable_hidden(pairs, activation=_ACTIVATION, training=training))

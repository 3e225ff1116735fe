"""ALBERT's own model for questions that may have no answer (original: run_squad_v2.py, squad_utils.py)."""

import keras
from keras import ops

from bert_tf.models.dropout import dropout
from bert_tf.models.joint_spans import JointSpanModel, context_tokens, pair_product
from bert_tf.models.layers import LayerNorm, Projection

_OUTSIDE = -1e30  # added to the logits of tokens that can't be in an answer


@keras.saving.register_keras_serializable("bert_tf")
class AlbertForQuestionAnswering(JointSpanModel):
    """Encoder, and the head with which ALBERT's authors fine-tuned it on SQuAD 2.0.

    Its outputs are those of `joint_spans.JointSpanModel`. It reads p_mask [B, S]: 1 for tokens that can't be in an
    answer (question, [SEP], padding), 0 for the context and [CLS]; without p_mask they follow from segment_ids, 1 for
    the context and the [SEP] behind it.

    Args:
      config: an `AlbertConfig` or its dict. starts, ends: the best starts, and the best ends of each; 5 by default.
      dropout_rate: before the score of whether there is an answer, in training.
      seed: see `BertModel`. dtype: Keras dtype policy.
    """

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
        widths = {"start": 1, "end_hidden": size, "end": 1, "answerable_hidden": size}
        self.start, self.end_hidden, self.end, self.answerable_hidden = (
            Projection(width, deviation, name=f"cls_squad_{name}", dtype=dtype) for name, width in widths.items()
        )
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
        return ops.cast(p_mask, "float32") * _OUTSIDE

    def start_scores(self, x):
        return self.start(x)

    def end_scores(self, tokens, starts, training):
        hidden = ops.tanh(pair_product(self.end_hidden, tokens, starts) + ops.convert_to_tensor(self.end_hidden.bias))
        return self.end(self.end_norm(hidden))

    def answerable_score(self, first, summary, training):
        hidden = self.answerable_hidden(
            ops.concatenate([summary, first], axis=-1), activation="tanh", training=training
        )
        return self.answerable(dropout(hidden, self.dropout_rate, "head", training))

    def get_config(self) -> dict:
        return {**super().get_config(), "dropout_rate": self.dropout_rate}

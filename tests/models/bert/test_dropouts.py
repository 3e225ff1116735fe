"""Where dropout is, and at which rate: the original's list, for the encoder and every head."""

import numpy as np
import pytest
from helpers.dropped import in_training
from helpers.tiny import TINY_CONFIG

from bert_tf.models import dropout, encoder, heads, kernels, task_models
from bert_tf.models.config import BertConfig
from bert_tf.models.layers import LayerNorm
from bert_tf.models.students import as_distilbert

HIDDEN, ATTENTION, HEAD = 0.25, 0.5, 0.1
BATCH = {"input_ids": np.full((2, 8), 7, np.int32)}
PREDICTIONS = {**BATCH, "masked_lm_positions": np.ones((2, 3), np.int32)}
CHOICES = {"input_ids": np.full((2, 3, 8), 7, np.int32)}
# (what is computed, its rate, the shape that it has, whether it is the sum with a residual)
EMBEDDINGS = [("layer norm", 0.0, (2, 8, 32), False), ("dropout", HIDDEN, (2, 8, 32), False)]
LAYER = [
    ("attention", ATTENTION, (2, 2, 8, 8), False),
    ("layer norm", HIDDEN, (2, 8, 32), True),
    ("layer norm", HIDDEN, (2, 8, 32), True),
]
ENCODER = EMBEDDINGS + 2 * LAYER


def read_at(count):
    """The encoder's list if so many positions of a row are read: the last layer is computed for these."""
    last = [(name, rate, (*shape[:-2], count, shape[-1]), residual) for name, rate, shape, residual in LAYER]
    return EMBEDDINGS + LAYER + last


def of_choices(calls):
    return [(name, rate, (6, *shape[1:]), residual) for name, rate, shape, residual in calls]


@pytest.mark.parametrize(
    ("make", "batch", "expected"),
    [
        (task_models.BertModel, BATCH, ENCODER),
        # DistilBERT has none behind its attention.
        (lambda c: task_models.BertModel(as_distilbert(c)), BATCH,
         EMBEDDINGS + 2 * [LAYER[0], ("layer norm", 0.0, (2, 8, 32), True), LAYER[2]]),
        # The masked positions' own layer norm has none, and next sentence prediction neither.
        (task_models.BertForPreTraining, PREDICTIONS, [*read_at(4), ("layer norm", 0.0, (2, 3, 32), False)]),
        (task_models.BertForQuestionAnswering, BATCH, [*ENCODER, ("dropout", 0.0, (2, 8, 32), False)]),
        # The heads have the original's 0.1, whatever the configuration says.
        (lambda c: task_models.BertForSequenceClassification(c, 3), BATCH,
         [*read_at(1), ("dropout", HEAD, (2, 32), False)]),
        (lambda c: task_models.BertForTokenClassification(c, 3), BATCH,
         [*ENCODER, ("dropout", HEAD, (2, 8, 32), False)]),
        (task_models.BertForMultipleChoice, CHOICES, [*of_choices(read_at(1)), ("dropout", HEAD, (6, 32), False)]),
    ],
    ids=["encoder", "distilbert", "pretraining", "squad", "classification", "tags", "choice"],
)  # fmt: skip
def test_places_and_rates(monkeypatch, make, batch, expected):
    config = {**TINY_CONFIG, "hidden_dropout_prob": HIDDEN, "attention_probs_dropout_prob": ATTENTION}
    model = make(BertConfig.from_dict(config))
    model.build()
    calls, results = [], []

    def record(name, rate, x, residual, compute):
        calls.append((name, rate, tuple(x.shape if residual is None else residual.shape), residual is not None))
        if name == "dropout" and len(calls) == 2:  # of the embeddings: after their layer norm, not before it
            assert x is results[-1]
        results.append(compute())
        return results[-1]

    def norm(self, x, residual=None, drop=None, call=LayerNorm.call, **more):
        rate = drop.rate if drop else 0.0
        compute = lambda: call(self, x, residual=residual, drop=drop, **more)  # noqa: E731
        return record("layer norm", rate, x, residual, compute)

    def attention(scores, mask_bias, scale, drop, training, weights=kernels.attention_weights):
        compute = lambda: weights(scores, mask_bias, scale, drop, training)  # noqa: E731
        return record("attention", drop.rate if drop else 0.0, scores, None, compute)

    def plain(x, rate, name, training):
        compute = lambda: dropout.dropout(x, rate, name, training)  # noqa: E731
        return record("dropout", rate * training, x, None, compute)

    monkeypatch.setattr(LayerNorm, "call", norm)
    monkeypatch.setattr(kernels, "attention_weights", attention)
    for module in (encoder, heads, task_models):
        monkeypatch.setattr(module, "dropout", plain)
    in_training(model, batch)
    assert calls == expected
    calls.clear()
    model(batch, training=False)
    assert calls and not any(rate for _, rate, *_ in calls)

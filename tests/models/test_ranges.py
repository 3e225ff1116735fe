"""Ids, positions and labels out of range are errors that name them, everywhere."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.models.baselines import BaselineClassifier, create_config
from bert_tf.models.config import BertConfig
from bert_tf.models.electra.config import ElectraConfig
from bert_tf.models.electra.discriminator import ElectraDiscriminator
from bert_tf.models.electra.pretraining import ElectraPretrainer
from bert_tf.models.electra.question_answering import ElectraForQuestionAnswering
from bert_tf.models.similarity import BertForSimilarity
from bert_tf.models.task_models import (
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)

ROWS, LENGTH, VOCAB = 4, 6, 40
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
CONFIG = BertConfig(VOCAB, **SIZES, max_position_embeddings=8, type_vocab_size=2)
ELECTRA = ElectraConfig(VOCAB, 16, 16, 1, 2, 32, max_position_embeddings=8)
ERRORS = (ValueError, tf.errors.InvalidArgumentError)


def inputs(*leading, **others) -> dict:
    shape = (ROWS, *leading, LENGTH)
    ids = np.random.default_rng(1).integers(5, VOCAB, shape).astype("int32")
    return {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids), **others}


def zeros(*shape, dtype="int32"):
    return np.zeros((ROWS, *shape), dtype)


PREDICTED = {"masked_lm_positions": zeros(2), "masked_lm_ids": zeros(2), "masked_lm_weights": zeros(2) + 1.0}
GENERATED = {**PREDICTED, "original_ids": inputs()["input_ids"], "sampling_seeds": zeros(2)}
SPANS = {"start_positions": zeros(), "end_positions": zeros()}
JOINT = {**SPANS, "is_impossible": zeros()}

# Class, its arguments, the inputs and labels that are right; a feature, what to put into it, and what the error says.
MODELS = {
    "classifier": (lambda: BertForSequenceClassification(CONFIG, 5), inputs(label_ids=zeros())),
    "labels": (
        lambda: BertForSequenceClassification(CONFIG, 3, "multi_label_classification"),
        inputs(label_ids=zeros(3)),
    ),
    "tagger": (lambda: BertForTokenClassification(CONFIG, 5), inputs(label_ids=zeros(LENGTH))),
    "choice": (lambda: BertForMultipleChoice(CONFIG), inputs(3, label_ids=zeros())),
    "questions": (lambda: BertForQuestionAnswering(CONFIG), inputs(**SPANS)),
    "joint": (lambda: ElectraForQuestionAnswering(ELECTRA), inputs(**JOINT)),
    "next": (lambda: BertForNextSentencePrediction(CONFIG), inputs(next_sentence_labels=zeros(1))),
    "masked": (lambda: BertForMaskedLM(CONFIG), inputs(**PREDICTED)),
    "pretraining": (lambda: BertForPreTraining(CONFIG), inputs(**PREDICTED, next_sentence_labels=zeros())),
    "similarity": (lambda: BertForSimilarity(CONFIG, "cosine"), inputs(2, scores=zeros(dtype="float32"))),
    "discriminator": (lambda: ElectraDiscriminator(ELECTRA), inputs(is_replaced=zeros(LENGTH))),
    "electra": (lambda: ElectraPretrainer(ELECTRA, ELECTRA), inputs(**GENERATED)),
    "baseline": (
        lambda: BaselineClassifier(create_config("cnn", VOCAB, embedding_size=6, hidden_size=6), 5, "cnn"),
        inputs(label_ids=zeros()),
    ),
}
OF_LABELS = [
    ("classifier", "label_ids", 5, "5*must be a class, from 0 to*4*from labels 1 to N subtract 1"),
    ("classifier", "label_ids", -1, "-1*from 0 to*4"),
    ("labels", "label_ids", 2, "2*must be 0 or 1"),
    ("tagger", "label_ids", 5, "5*from 0 to*4"),
    ("tagger", "label_ids", -2, "-2*from 0 to*4"),
    ("choice", "label_ids", 3, "3*from 0 to*2"),
    ("questions", "start_positions", LENGTH, "6*a place in the row, from 0 to*5"),
    ("questions", "end_positions", -1, "-1*from 0 to*5"),
    ("joint", "end_positions", LENGTH, "6*from 0 to*5"),
    ("joint", "is_impossible", 2, "2*0 or 1"),
    ("next", "next_sentence_labels", 2, "2*from 0 to*1"),
    ("masked", "masked_lm_ids", VOCAB, "40*a token of the vocabulary, from 0 to*39"),
    ("masked", "masked_lm_weights", -1, "-1*0 or more"),
    ("pretraining", "masked_lm_ids", -1, "-1*from 0 to*39"),
    ("pretraining", "masked_lm_weights", -1, "-1*0 or more"),
    ("pretraining", "next_sentence_labels", 3, "3*from 0 to*1"),
    ("similarity", "scores", 5, "5*from -1 to 1"),
    ("discriminator", "is_replaced", 2, "2*0 or 1"),
    ("electra", "masked_lm_ids", VOCAB, "40*from 0 to*39"),
]
OF_INPUTS = [
    ("classifier", "input_ids", VOCAB, "40*less than vocab_size in bert_config.json: from 0 to*39"),
    ("classifier", "input_ids", -1, "-1*from 0 to*39"),
    ("classifier", "segment_ids", 2, "2*type_vocab_size in bert_config.json: from 0 to*1"),
    ("choice", "input_ids", VOCAB, "40*from 0 to*39"),
    ("baseline", "input_ids", VOCAB, "40*from 0 to*39"),
    ("masked", "masked_lm_positions", LENGTH, "6*a place in the row, from 0 to*5"),
    ("pretraining", "masked_lm_positions", -1, "-1*a place in the row, from 0 to*5"),
    ("electra", "original_ids", VOCAB, "40*less than vocab_size in electra_config.json: from 0 to*39"),
]


def broken(features: dict, name: str, value) -> dict:
    array = features[name].copy()
    array.flat[-1] = value
    return {**features, name: array}


def pattern(name: str, message: str) -> str:
    r"""Between parts an error of a graph has brackets and blanks."""
    return r"[\s\S]*".join([name, *message.split("*")])


@pytest.mark.parametrize("model, name, value, message", OF_LABELS)
def test_labels(model, name, value, message):
    create, features = MODELS[model]
    model = create()
    outputs, bad = model(features), broken(features, name, value)
    assert np.isfinite(model.objective.loss(*[model.objective.sums(outputs, features)] * 2))
    with pytest.raises(ValueError, match=pattern(name, message)):
        model.objective.sums(outputs, bad)

    @tf.function(autograph=False)
    def loss(outputs, features):
        sums = model.objective.sums(outputs, features)
        return model.objective.loss(sums, sums)

    def tensors(features):
        return {label: tf.constant(value) for label, value in features.items()}

    np.testing.assert_allclose(
        loss(outputs, tensors(features)),
        model.objective.loss(*[model.objective.sums(outputs, features)] * 2),
        rtol=1e-6,
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=pattern(name, message)):
        loss(outputs, tensors(bad))
    compiled = tf.function(loss, jit_compile=True, autograph=False)
    assert np.isnan(compiled(outputs, tensors(bad))) or name == "masked_lm_weights"


@pytest.mark.parametrize("model, name, value, message", OF_INPUTS)
def test_inputs(model, name, value, message):
    create, features = MODELS[model]
    model = create()
    bad = broken(features, name, value)
    with pytest.raises(ValueError, match=pattern(name, message)):
        model(bad)
    specs = {label: tf.TensorSpec([None] * array.ndim, array.dtype) for label, array in features.items()}

    @tf.function(autograph=False, input_signature=[specs])
    def call(features):
        return keras.tree.flatten(model(features))

    def tensors(features):
        return {label: tf.constant(value) for label, value in features.items()}

    for one, other in zip(call(tensors(features)), keras.tree.flatten(model(features)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError, match=pattern(name, message)):
        call(tensors(bad))

"""Ids, positions and labels out of range are errors that name them, everywhere."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.every_model import CONFIG, LENGTH, MODELS, SIZES, VOCAB, inputs

from bert_tf import AdamWeightDecay, BertModel
from bert_tf.families.roberta import RobertaConfig

# Model, a feature, what is put into it, and what the error says.
OF_LABELS = [
    ("classifier", "label_ids", 5, "5*must be a class, from 0 to*4*from labels 1 to N subtract 1"),
    ("classifier", "label_ids", -1, "-1*from 0 to*4"),
    ("labels", "label_ids", 2, "2*must be 0 or 1"),
    ("tagger", "label_ids", -2, "-2*from 0 to*4"),
    ("questions", "start_positions", LENGTH, "6*a place in the row, from 0 to*5"),
    ("masked", "masked_lm_ids", VOCAB, "40*a token of the vocabulary, from 0 to*39"),
    ("masked", "masked_lm_weights", -1, "-1*0 or more"),
    ("pretraining", "next_sentence_labels", 3, "3*from 0 to*1"),
    ("similarity", "scores", 5, "5*from -1 to 1"),
    ("discriminator", "is_replaced", 2, "2*0 or 1"),
    ("electra", "masked_lm_ids", VOCAB, "40*from 0 to*39"),
]
# Of these the loss of a graph is computed, too, and compiled: one for each kind of check.
TRACED = [("tagger", "label_ids"), ("labels", "label_ids"), ("similarity", "scores")]
OF_INPUTS = [
    ("classifier", "input_ids", VOCAB, "40*less than vocab_size in bert_config.json: from 0 to*39"),
    ("classifier", "segment_ids", 2, "2*type_vocab_size in bert_config.json: from 0 to*1"),
    ("masked", "masked_lm_positions", LENGTH, "6*a place in the row, from 0 to*5"),
    ("pretraining", "masked_lm_positions", -1, "-1*a place in the row, from 0 to*5"),
    ("electra", "original_ids", VOCAB, "40*less than vocab_size in electra_config.json: from 0 to*39"),
]


def broken(features: dict, name: str, value) -> dict:
    array = features[name].copy()
    array.flat[-1] = value
    return {**features, name: array}


def tensors(features: dict) -> dict:
    return {label: tf.constant(value) for label, value in features.items()}


def refused(name: str, message: str, kind=ValueError):
    """Between parts an error of a graph has brackets and blanks."""
    return pytest.raises(kind, match=r"[\s\S]*".join([name, *message.split("*")]))


@pytest.mark.parametrize("kind, name, value, message", OF_LABELS)
def test_labels(kind, name, value, message):
    create, features = MODELS[kind]
    model, bad = create(), broken(features, name, value)
    outputs = model(features)

    def loss(outputs, features):
        sums = model.objective.sums(outputs, features)
        return model.objective.loss(sums, sums)

    expected = loss(outputs, features)
    assert np.isfinite(expected)
    with refused(name, message):
        loss(outputs, bad)
    if (kind, name) in TRACED:
        graph = tf.function(loss, autograph=False)
        np.testing.assert_allclose(graph(outputs, tensors(features)), expected, rtol=1e-6)
        with refused(name, message, tf.errors.InvalidArgumentError):
            graph(outputs, tensors(bad))
        assert np.isnan(tf.function(loss, jit_compile=True, autograph=False)(outputs, tensors(bad)))


@pytest.mark.parametrize("kind, name, value, message", OF_INPUTS)
def test_inputs(kind, name, value, message):
    create, features = MODELS[kind]
    model, bad = create(), broken(features, name, value)
    with refused(name, message):
        model(bad)
    if name in ("segment_ids", "original_ids"):  # in a graph the checks are those of input_ids
        return
    specs = {label: tf.TensorSpec([None] * array.ndim, array.dtype) for label, array in features.items()}
    call = tf.function(lambda features: keras.tree.flatten(model(features)), [specs], autograph=False)
    for one, other in zip(call(tensors(features)), keras.tree.flatten(model(features)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    with refused(name, message, tf.errors.InvalidArgumentError):
        call(tensors(bad))


@pytest.mark.parametrize("config", [CONFIG, RobertaConfig(VOCAB, **SIZES, max_position_embeddings=10)], ids=type)
def test_positions_and_lengths(config):
    model, ids, spec = BertModel(config), inputs()["input_ids"], tf.TensorSpec([None, None], tf.int32)
    of_ids = tf.function(lambda ids: model(ids)["pooled_output"], [spec], autograph=False)

    @tf.function(autograph=False, input_signature=[spec] * 2)
    def call(ids, positions):
        return model({"input_ids": ids, "position_ids": positions})["pooled_output"]

    places, last = config.first_position + np.arange(LENGTH, dtype="int32")[None], config.max_position_embeddings - 1
    np.testing.assert_allclose(call(ids, places), of_ids(ids), atol=1e-6)
    for wrong in (last + 1, -1):
        bad = np.where(places == places[0, 2], wrong, places)
        with refused("position_ids", rf"\[0\]\[2\] is {wrong}, but must be within *from 0 to {last}"):
            model({"input_ids": ids, "position_ids": bad})
        with refused("position_ids", rf"has the value\] \[{wrong}\]", tf.errors.InvalidArgumentError):
            call(ids, bad)
    long = np.tile(ids, 2)
    with refused("length of input_ids is 12", "but must be at most 8, as max_position_embeddings"):
        model(long)
    with refused("length of input_ids", r"has the value\] \[12\]", tf.errors.InvalidArgumentError):
        of_ids(long)


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="a GPU asserts nothing: see the next test")
def test_fit_of_stars_from_one_to_five():
    model, features = MODELS["classifier"][0](), inputs()
    model.build()
    model.compile(optimizer=AdamWeightDecay(1e-3))
    stars = np.array([1, 2, 3, 5])
    before = [np.array(variable) for variable in model.trainable_variables]
    with refused("label_ids", r"has the value\] \[5\] \[but must be a class*4", tf.errors.InvalidArgumentError):
        model.fit(features, stars, verbose=0)
    for one, other in zip(before, model.trainable_variables, strict=True):
        np.testing.assert_array_equal(one, other)
    # What does not count may be anything.
    weights = np.array([1.0, 1.0, 1.0, 0.0])
    assert np.isfinite(model.evaluate(features, stars, sample_weight=weights, verbose=0, return_dict=True)["loss"])


@pytest.mark.slow
def test_fit_of_a_compiled_step_ends_with_the_epoch():
    """As on a GPU, where XLA drops assertions."""
    model = MODELS["classifier"][0]()
    model.compile(optimizer=AdamWeightDecay(1e-3), jit_compile=True)
    with pytest.raises(FloatingPointError, match="loss of epoch 1 is NaN: labels or input_ids are out of range"):
        model.fit(inputs(), np.array([1, 2, 3, 5]), epochs=3, verbose=0)


def test_the_rows_of_a_compiled_model_are_nan():
    model = BertModel(CONFIG)
    compiled = tf.function(lambda ids: model(ids)["sequence_output"], jit_compile=True, autograph=False)
    found = np.isnan(compiled(tf.constant(broken(inputs(), "input_ids", VOCAB)["input_ids"])))
    assert found[-1].all() and not found[:-1].any()

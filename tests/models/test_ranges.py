"""Ids, positions and labels out of range are errors that name them, everywhere."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.every_model import CONFIG, LENGTH, MODELS, SIZES, VOCAB, inputs
from helpers.paths import ROOT
from helpers.slow import slow
from helpers.training_steps import feed, one_device, trainer_of

from bert_tf.models.families import RobertaConfig
from bert_tf.models.task_models import BertModel
from bert_tf.training import step as train_step
from bert_tf.training.optimization import AdamWeightDecay, create_optimizer

# Model, a feature, what is put into it, and what the error says.
OF_LABELS = [
    ("classifier", "label_ids", 5, "5*must be a class, from 0 to*4*from labels 1 to N subtract 1"),
    ("classifier", "label_ids", -1, "-1*from 0 to*4"),
    ("labels", "label_ids", 2, "2*must be 0 or 1"),
    ("tagger", "label_ids", -2, "-2*from 0 to*4"),
    ("questions", "start_positions", LENGTH, "6*a place in the row, from 0 to*5"),
    ("masked", "masked_lm_ids", VOCAB, "40*a token of the vocabulary, from 0 to*39"),
    ("masked", "masked_lm_weights", -1, "-1*0 or more"),
    ("pretraining", "masked_lm_ids", -1, "-1*from 0 to*39"),
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


def pattern(name: str, message: str) -> str:
    r"""Between parts an error of a graph has brackets and blanks."""
    return r"[\s\S]*".join([name, *message.split("*")])


@pytest.mark.parametrize("model, name, value, message", OF_LABELS)
def test_labels(model, name, value, message):
    kind, (create, features) = model, MODELS[model]
    model = create()
    outputs, bad = model(features), broken(features, name, value)
    assert np.isfinite(model.objective.loss(*[model.objective.sums(outputs, features)] * 2))
    with pytest.raises(ValueError, match=pattern(name, message)):
        model.objective.sums(outputs, bad)
    if (kind, name) not in TRACED:
        return

    @tf.function(autograph=False)
    def loss(outputs, features):
        sums = model.objective.sums(outputs, features)
        return model.objective.loss(sums, sums)

    np.testing.assert_allclose(
        loss(outputs, tensors(features)),
        model.objective.loss(*[model.objective.sums(outputs, features)] * 2),
        rtol=1e-6,
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=pattern(name, message)):
        loss(outputs, tensors(bad))
    assert np.isnan(tf.function(loss, jit_compile=True, autograph=False)(outputs, tensors(bad)))


@pytest.mark.parametrize("model, name, value, message", OF_INPUTS)
def test_inputs(model, name, value, message):
    create, features = MODELS[model]
    model = create()
    bad = broken(features, name, value)
    with pytest.raises(ValueError, match=pattern(name, message)):
        model(bad)
    if name in ("segment_ids", "original_ids"):  # in a graph the checks are those of input_ids
        return
    specs = {label: tf.TensorSpec([None] * array.ndim, array.dtype) for label, array in features.items()}

    @tf.function(autograph=False, input_signature=[specs])
    def call(features):
        return keras.tree.flatten(model(features))

    for one, other in zip(call(tensors(features)), keras.tree.flatten(model(features)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError, match=pattern(name, message)):
        call(tensors(bad))


@pytest.mark.parametrize("config", [CONFIG, RobertaConfig(VOCAB, **SIZES, max_position_embeddings=10)], ids=type)
def test_positions_and_lengths(config):
    model, ids = BertModel(config), inputs()["input_ids"]

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, None], tf.int32)] * 2)
    def call(ids, positions):
        return model({"input_ids": ids, "position_ids": positions})["pooled_output"]

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, None], tf.int32)])
    def of_ids(ids):
        return model(ids)["pooled_output"]

    places, last = config.first_position + np.arange(LENGTH, dtype="int32")[None], config.max_position_embeddings - 1
    np.testing.assert_allclose(call(ids, places), of_ids(ids), atol=1e-6)
    for wrong in (last + 1, -1):
        bad = np.where(places == places[0, 2], wrong, places)
        message = rf"position_ids\[0\]\[2\] is {wrong}, but must be within .* from 0 to {last}"
        with pytest.raises(ValueError, match=message):
            model({"input_ids": ids, "position_ids": bad})
        with pytest.raises(tf.errors.InvalidArgumentError, match=rf"position_ids has the value\] \[{wrong}\]"):
            call(ids, bad)
    long = np.tile(ids, 2)
    with pytest.raises(ValueError, match="12 tokens is longer than the 8 of max_position_embeddings"):
        model(long)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"length of input_ids has the value\] \[12\]"):
        of_ids(long)


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="a GPU asserts nothing: see the next test")
def test_fit_of_stars_from_one_to_five():
    """The mistake that cost nothing: the loss of five stars was 0."""
    model, features = MODELS["classifier"][0](), inputs()
    model.build()
    model.compile(optimizer=AdamWeightDecay(1e-3))
    stars = np.array([1, 2, 3, 5])
    message = r"label_ids has the value\] \[5\] \[but must be a class, from 0 to\] \[4\]"
    before = [np.array(variable) for variable in model.trainable_variables]
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        model.fit(features, stars, verbose=0)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="input_ids has the value. .40. .but must be less than voc"
    ):
        model.predict(broken(features, "input_ids", VOCAB), verbose=0)
    for one, other in zip(before, model.trainable_variables, strict=True):
        np.testing.assert_array_equal(one, other)
    assert np.isfinite(model.fit(features, stars - 1, verbose=0).history["loss"][0])
    # What does not count may be anything.
    weights = np.array([1.0, 1.0, 1.0, 0.0])
    assert np.isfinite(model.evaluate(features, stars, sample_weight=weights, verbose=0, return_dict=True)["loss"])


@pytest.mark.parametrize("wrong", ["label_ids", "input_ids"])
def test_fit_of_a_compiled_step_ends_with_the_epoch(wrong):
    """As on a GPU, where XLA drops assertions."""
    model, features = MODELS["classifier"][0](), inputs()
    model.build()
    model.compile(optimizer=AdamWeightDecay(1e-3), jit_compile=True)
    labels = np.array([1, 2, 3, 5 if wrong == "label_ids" else 4])
    features = broken(features, "input_ids", VOCAB) if wrong == "input_ids" else features
    with pytest.raises(FloatingPointError, match="loss of epoch 1 is NaN: label_ids or input_ids are out of range"):
        model.fit(features, labels, epochs=3, verbose=0)


def test_the_rows_of_a_compiled_model_are_nan():
    model = BertModel(CONFIG)
    compiled = tf.function(lambda ids: model(ids)["sequence_output"], jit_compile=True, autograph=False)
    found = np.isnan(compiled(tf.constant(broken(inputs(), "input_ids", VOCAB)["input_ids"])))
    assert found[-1].all() and not found[:-1].any()


def test_the_training_loop():
    create, features = MODELS["tagger"]
    with one_device().scope():
        model = create()
        model.build()
        optimizer = create_optimizer("adamw", 1e-3, 3, 0)
        optimizer.build(model.trainable_variables)
    bad = broken(features, "label_ids", 5)
    iterator = feed(one_device(), tf.data.Dataset.from_tensors(bad).repeat())
    run = trainer_of(model, optimizer, batch_size=4, use_xla=True).steps
    assert run(iterator, 1)["failed"]  # a compiled step can't raise; the loop stops, see `loop.NonFiniteLossError`
    evaluate = train_step.make_evaluate_function(model, model.objective, one_device())
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"label_ids has the value\] \[5\]"):
        evaluate([tensors(bad)])


PROGRAM = """
import numpy as np
from helpers.every_model import MODELS, VOCAB, inputs

model, features = MODELS["classifier"][0](), inputs()
model.compile(optimizer="sgd")
loss = model.evaluate(features, np.array([1, 2, 3, 5]), verbose=0)[0]
assert np.isnan(loss), loss
assert np.isfinite(model.evaluate(features, np.array([1, 2, 3, 4]), verbose=0)[0])
features['input_ids'][0, 0] = VOCAB
assert np.isnan(model.predict(features, verbose=0)[0]).all()
try:
    model(features)
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize("backend", slow("jax", "torch"))  # each needs a process of its own
def test_other_backends(backend):
    """The programs that JAX compiles give NaN; whatever is not compiled raises an error."""
    pytest.importorskip(backend, reason=f"{backend} is not installed (requirements-dev.txt)")
    program = PROGRAM
    if backend == "torch":  # without fit
        start, rest = PROGRAM.split("model.compile")
        program = start + rest[rest.index("features['input_ids']") :].replace("assert", "pass #")
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    result = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    assert "input_ids[0][0] is 40, but must be less than vocab_size" in result.stdout

"""Plain Keras on any backend: `fit` makes the steps of the originals, and ids and labels out of range are named."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.basics import ROOT
from helpers.every_model import CONFIG, LENGTH, MODELS, SIZES, VOCAB, inputs

from bert_tf import AdamWeightDecay, BertModel
from bert_tf.families.roberta import RobertaConfig
from bert_tf.store import bundle

# A separate process, since the Keras backend is chosen at import.
BEFORE = """
import json, sys
import numpy as np
import keras
from bert_tf.families.config import BertConfig
from bert_tf.families.electra import ElectraConfig
from bert_tf.models.electra import ElectraPretrainer
from bert_tf.models.initialize import initialize, model_variables, weights_for
from bert_tf.models.inputs import select
from bert_tf.models.task_models import BertForPreTraining, BertForSequenceClassification
from bert_tf.training.optimization import create_optimizer

loaded = "tensorflow" in sys.modules  # of the backend's own need
"""
AFTER = """
if sys.argv[2:]:
    np.savez(sys.argv[2], **{name: np.asarray(v.value) for name, v in model_variables(model).items()})
print(json.dumps([keras.config.backend(), loaded, losses]))
"""
PROGRAM = """
folder = sys.argv[1]
model = BertForPreTraining(BertConfig.from_json_file(folder + "/bert_config.json"))
model.build()
initialize(model_variables(model), weights_for(model, folder + "/pretraining.ckpt-0"), must_have_all=True)
batch = select(np.load(folder + "/inputs.npz"), model.known_inputs)
model.compile(optimizer=create_optimizer("adamw", 0.001, 20, 5))
losses = [float(model.train_on_batch(batch, return_dict=True)["loss"]) for _ in range(12)]
"""
ELECTRA_PROGRAM = """
from bert_tf.store import bundle

config = ElectraConfig(260, 32, 2, 2, 128, "gelu_erf", 0.0, 0.0, 40, embedding_size=24)
model = ElectraPretrainer(config, config.generator(0.5))
model = type(model).from_config(model.get_config())
model.build()
reader = bundle.CheckpointReader(sys.argv[1] + "/uneven/model.ckpt")
for name, variable in model_variables(model).items():
    variable.assign(reader.get_tensor(name))
arrays = dict(np.load(sys.argv[1] + "/training/batches.npz"))
names = {"masked_input_ids": "input_ids", "input_ids": "original_ids", "draw_gumbel_uniform": "sampling_uniform"}
arrays = {names.get(name, name): value for name, value in arrays.items()}
arrays = {name: value for name, value in arrays.items() if name in model.known_inputs}
model.compile(optimizer=create_optimizer("adamw", 0.001, 20, 4, config.pretraining_recipe))
losses = [
    float(model.train_on_batch({name: value[step] for name, value in arrays.items()}, return_dict=True)["loss"])
    for step in range(8)
]
"""
# Of each family a classifier with the same weights on both backends.
FAMILIES_PROGRAM = """
from helpers.tiny import NAMES, tiny_config

losses, ids = [], np.random.default_rng(0).integers(5, 100, (8, 12))
for name in NAMES:
    config = tiny_config(name, dropout=0.0, **{"num_hidden_groups": 2} if name == "albert" else {})
    model, generator = BertForSequenceClassification(config, 2, dropout_rate=0.0), np.random.default_rng(1)
    model.build()
    model.set_weights([generator.normal(0.5, 0.15, value.shape) for value in model.get_weights()])
    model.compile(optimizer=create_optimizer("adamw", 0.001, 20, 2))
    batch, labels = {"input_ids": ids}, ids[:, 0] % 2
    losses += [float(model.train_on_batch(batch, labels, return_dict=True)["loss"]) for _ in range(4)]
"""
# Ids and labels out of range.
RANGES_PROGRAM = """
import sys
import numpy as np
from helpers.every_model import MODELS, VOCAB, inputs

model, features = MODELS["classifier"][0](), inputs()
if sys.argv[1] == "jax":  # whose compiled programs give NaN
    model.compile(optimizer="sgd")
    assert np.isnan(model.evaluate(features, np.array([1, 2, 3, 5]), verbose=0)[0])
    assert np.isfinite(model.evaluate(features, np.array([1, 2, 3, 4]), verbose=0)[0])
features['input_ids'][0, 0] = VOCAB
if sys.argv[1] == "jax":
    assert np.isnan(model.predict(features, verbose=0)[0]).all()
try:
    model(features)
except ValueError as error:
    print(repr(error))
"""


def last_line_of(program: str, backend: str, *arguments) -> str:
    pytest.importorskip(backend, reason=f"{backend} is not installed (requirements-dev.txt)")
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout.splitlines()[-1]


def losses_of(program: str, backend: str, *arguments) -> tuple[bool, list[float]]:
    """Whether TensorFlow was imported, and the losses of all steps."""
    name, loaded, losses = json.loads(last_line_of(BEFORE + program + AFTER, backend, *arguments))
    assert name == backend
    return loaded, losses


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
@pytest.mark.parametrize(("program", "folder", "steps", "checkpoint"), [
    (PROGRAM, "optimizer", "pretraining_steps.json", "pretraining.ckpt-12"),
    (ELECTRA_PROGRAM, "electra", "training/steps.json", "training/model.ckpt-8"),
], ids=["bert", "electra"])  # fmt: skip
def test_fit_makes_the_originals_steps(golden, tmp_path, backend, program, folder, steps, checkpoint):
    folder = golden / folder
    loaded, losses = losses_of(program, backend, folder, tmp_path / "weights.npz")
    assert loaded == (backend == "tensorflow")
    steps = json.loads((folder / steps).read_text())["steps"]
    # Keras reports the mean since the last reset of its metrics; train_on_batch resets them each time.
    np.testing.assert_allclose(losses, [step["loss"] for step in steps], atol=2e-4)
    reader = bundle.CheckpointReader(str(folder / checkpoint))
    for variable, value in np.load(tmp_path / "weights.npz").items():
        np.testing.assert_allclose(value, reader.get_tensor(variable), atol=5e-5, err_msg=variable)


@pytest.mark.slow
def test_every_family_makes_the_same_steps_on_jax():
    # Steps enlarge rounding: the last losses differ most.
    expected = losses_of(FAMILIES_PROGRAM, "tensorflow")[1]
    np.testing.assert_allclose(losses_of(FAMILIES_PROGRAM, "jax")[1], expected, atol=3e-4)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_ids_out_of_range_are_named(backend):
    message = "input_ids[0][0] is 40, but must be less than vocab_size"
    assert message in last_line_of(RANGES_PROGRAM, backend, backend)


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


# Of a RoBERTa, positions begin behind the padding's.
ROBERTA = RobertaConfig(VOCAB, **SIZES, max_position_embeddings=12, pad_token_id=3)


@pytest.mark.parametrize(("config", "first"), [(CONFIG, 0), (ROBERTA, 4)], ids=["bert", "roberta"])
def test_positions_and_lengths(config, first):
    model, ids, spec = BertModel(config), inputs()["input_ids"], tf.TensorSpec([None, None], tf.int32)
    of_ids = tf.function(lambda ids: model(ids)["pooled_output"], [spec], autograph=False)

    @tf.function(autograph=False, input_signature=[spec] * 2)
    def call(ids, positions):
        return model({"input_ids": ids, "position_ids": positions})["pooled_output"]

    assert (config.first_position, config.max_length) == (first, 8)
    places, last = first + np.arange(LENGTH, dtype="int32")[None], config.max_position_embeddings - 1
    np.testing.assert_allclose(call(ids, places), of_ids(ids), atol=1e-6)
    assert np.abs(call(ids, places + 1) - of_ids(ids)).max() > 1e-3 and call(ids, 0 * places + last).shape[0] == 4
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

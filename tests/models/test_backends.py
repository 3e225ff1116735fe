"""Models, heads and optimizer are plain Keras: `fit` on any backend reproduces the originals' steps."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from helpers.paths import ROOT

from bert_tf.store import bundle

# A separate process, since the Keras backend is chosen at import.
BEFORE = """
import json, sys
import numpy as np
import keras
from bert_tf.families.config import BertConfig
from bert_tf.families.electra import ElectraConfig
from bert_tf.models.electra import ElectraPretrainer
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
from bert_tf.models.initialize import initialize, model_variables, weights_for

folder = sys.argv[1]
model = BertForPreTraining(BertConfig.from_json_file(folder + "/bert_config.json"))
model.build()
initialize(model_variables(model), weights_for(model, folder + "/pretraining.ckpt-0"), must_have_all=True)
batch = select(np.load(folder + "/inputs.npz"), model.known_inputs)
model.compile(optimizer=create_optimizer("adamw", 0.001, 20, 5))
losses = [float(model.train_on_batch(batch, return_dict=True)["loss"]) for _ in range(12)]
"""
ELECTRA_PROGRAM = """
from bert_tf.models.initialize import initialize, model_variables
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
from helpers.descendants import NAMES, tiny_config

losses, ids = [], np.random.default_rng(0).integers(5, 100, (8, 12))
for name in NAMES:
    config = tiny_config(name, dropout=0.0, **{"num_hidden_groups": 2} if name == "albert" else {})
    model, generator = BertForSequenceClassification(config, 2, dropout_rate=0.0), np.random.default_rng(1)
    model.build()
    model.set_weights([generator.normal(0.5, 0.15, value.shape) for value in model.get_weights()])
    model.compile(optimizer=create_optimizer("adamw", 0.001, 20, 2))
    batch, labels = {"input_ids": ids}, ids[:, 0] % 2
    losses += [float(model.train_on_batch(batch, labels, return_dict=True)["loss"]) for _ in range(4)]
print(json.dumps([keras.config.backend(), loaded, losses]))
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

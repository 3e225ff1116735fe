"""What holds for BERT's encoder holds for every family's: kernels, precision, saving, fit, and other backends."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.dropped import in_training
from helpers.paths import ROOT
from helpers.slow import slow

from bert_tf.models import kernels, task_models
from bert_tf.models.dropout import dropout_scope
from bert_tf.models.families import FAMILIES, family_named

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
OWN = {"electra": {"embedding_size": 24}, "albert": {"embedding_size": 24, "num_hidden_groups": 2}}
NAMES = [family.model_type for family in FAMILIES]
RANDOM = np.random.default_rng(0)
BATCH = {
    "input_ids": RANDOM.integers(5, 100, (8, 12)),
    "input_mask": (np.arange(12) < RANDOM.integers(4, 13, (8, 1))) * 1,
}
LABELS = BATCH["input_ids"][:, 0] % 2
SEED = np.array([5, 7], np.int32)


def config_of(family: str, dropout: float = 0.1):
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    config_class = family_named(family).config_class
    return config_class(vocab_size=100, max_position_embeddings=20, **SIZES, **OWN.get(family, {}), **rates)


def classifier(family: str, **arguments):
    keras.utils.set_random_seed(1)
    model = task_models.BertForSequenceClassification(config_of(family), 2, seed=3, **arguments)
    model.build()
    generator = np.random.default_rng(1)
    for variable in model.trainable_variables:  # initial values are so small that all outputs would be alike
        if len(variable.shape) > 1:
            variable.assign(generator.normal(0.0, 0.15, variable.shape))
    return model


@pytest.fixture(params=["albert", *slow(*(name for name in NAMES if name != "albert"))])
def family(request):
    return request.param


def gradients(model):
    with tf.GradientTape() as tape:
        sums = model.objective.sums(in_training(model, BATCH, SEED), {"label_ids": LABELS})
        loss = model.objective.loss(sums, sums)
    values = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
    return float(loss), [None if value is None else tf.convert_to_tensor(value).numpy() for value in values]


@pytest.mark.parametrize("family", slow(*NAMES))  # in small: bert/test_encoder.py
def test_fused_and_plain_kernels_give_the_same_numbers(family):
    model = classifier(family)
    loss, fused = gradients(model)
    try:
        kernels.set_fused(False)
        plain_loss, plain = gradients(model)
    finally:
        kernels.set_fused(True)
    np.testing.assert_allclose(loss, plain_loss, atol=1e-5)
    for variable, one, other in zip(model.trainable_variables, fused, plain, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5 * max(1.0, np.abs(other).max()), err_msg=variable.path)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", *slow("mixed_float16")])
def test_mixed_precision(family, dtype):
    plain, model = classifier(family), classifier(family, dtype=dtype)
    assert {variable.dtype for variable in model.trainable_variables} == {"float32"}
    for training in (False, True):
        with dropout_scope(SEED):
            outputs = [np.asarray(each(BATCH, training=training)) for each in (model, plain)]
        np.testing.assert_allclose(*outputs, atol=0.1)
    assert model.bert(BATCH)["sequence_output"].dtype.name == dtype.removeprefix("mixed_")


# A separate process, since the Keras backend is chosen at import.
PROGRAM = """
import json, sys
import numpy as np
import keras
from bert_tf.models.families import config_of_dict
from bert_tf.models.task_models import BertForSequenceClassification
from bert_tf.models.electra import ElectraDiscriminator
from bert_tf.training.optimization import create_optimizer

batch, results = dict(np.load(sys.argv[1] + "/batch.npz")), {}
labels = batch.pop("labels")
for name, config in json.load(open(sys.argv[1] + "/configs.json")).items():
    model = BertForSequenceClassification(config_of_dict(config), 2, dropout_rate=0.0)
    model.build()
    values = np.load(f"{sys.argv[1]}/{name}.npz")
    model.set_weights([values[f"arr_{number}"] for number in range(len(values.files))])
    model.compile(optimizer=create_optimizer("adamw", 0.001, 20, 2))
    results[name] = [float(model.train_on_batch(batch, labels, return_dict=True)["loss"]) for _ in range(4)]
    if name == "electra":
        assert ElectraDiscriminator(config_of_dict(config))(batch).shape == batch["input_ids"].shape
print(json.dumps([keras.config.backend(), results]))
"""


@pytest.mark.slow
def test_fit_on_jax_makes_the_same_steps(tmp_path):
    pytest.importorskip("jax", reason="jax is not installed (requirements-dev.txt)")
    np.savez(tmp_path / "batch.npz", labels=LABELS, **BATCH)
    configs = {}
    for family in NAMES:
        config = config_of(family, 0.0)
        model = task_models.BertForSequenceClassification(config, 2)
        model.build()
        np.savez(tmp_path / f"{family}.npz", *model.get_weights())
        configs[family] = {"model_type": family, **config.to_dict()}
    configs["bert"].pop("model_type")
    (tmp_path / "configs.json").write_text(json.dumps(configs))
    results = {}
    for backend in ("tensorflow", "jax"):
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path)],
            env={**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "2"},
            capture_output=True, text=True, cwd=ROOT,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr[-3000:]
        name, results[backend] = json.loads(run.stdout.splitlines()[-1])
        assert name == backend
    for family in NAMES:
        # Steps enlarge rounding: the last losses differ most.
        np.testing.assert_allclose(results["jax"][family], results["tensorflow"][family], atol=3e-4, err_msg=family)

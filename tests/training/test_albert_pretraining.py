"""ALBERT: six steps of pre-training with each optimizer are the original's.

Oracle: tests/golden/albert/training, computed by the original from config1's weights without dropout; its LAMB has no
bias correction. The norm counts rows of the segment table unmerged.
"""

import json

import numpy as np
import pytest
import tensorflow as tf
from helpers.slow import slow
from helpers.training_steps import trainer_of

from bert_tf.models.files import initialize, open_weights
from bert_tf.models.task_models import BertForPreTraining
from bert_tf.training.optimization import AdamWeightDecay, Lamb, WarmupLinearDecay

pytestmark = pytest.mark.numbers


@pytest.mark.parametrize(
    "name, optimizer_class, tolerance", [("adamw", AdamWeightDecay, 2e-5), *slow(("lamb", Lamb, 5e-5))]
)
def test_six_steps(golden, name, optimizer_class, tolerance):
    folder = golden / "albert" / "training"
    expected, batches = json.loads((folder / f"{name}_steps.json").read_text()), dict(np.load(folder / "batches.npz"))
    model = BertForPreTraining.from_pretrained(str(golden / "albert" / "config1" / "model.ckpt"))
    schedule = (expected[key] for key in ("learning_rate", "num_train_steps", "num_warmup_steps"))
    optimizer = optimizer_class(WarmupLinearDecay(*schedule), bias_correction=False)
    optimizer.build(model.trainable_variables)
    train = trainer_of(model, optimizer, batch_size=batches["input_ids"].shape[1]).steps
    data = iter(tf.data.Dataset.from_tensor_slices(batches))
    for step in expected["steps"]:
        result = train(data, tf.constant(1))
        np.testing.assert_allclose(result["loss"], step["loss"], atol=2e-5)
        np.testing.assert_allclose(result["gradient_norm"], step["global_norm"], rtol=1e-5)
    weights = open_weights.open_weights(str(folder / f"{name}.ckpt-6"))
    variables = initialize.training_variables(model, optimizer)
    assert set(variables) == set(weights)
    for variable, value in variables.items():
        allowed = 2e-4 if "key/bias" in variable else tolerance
        np.testing.assert_allclose(value.numpy(), weights[variable], atol=allowed, err_msg=variable)

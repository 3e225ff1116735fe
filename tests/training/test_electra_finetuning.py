"""ELECTRA's fine-tuning: gradients and eight steps are the original's.

Oracle: tests/golden/electra/finetuning, computed by the original on one batch of MNLI without dropout: the loss is the
sum over the batch, the norm counts a word's rows unmerged, layer-wise decay is 0.8. The last row is padding.
"""

import json

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.models import initialize
from bert_tf.models.electra.config import ElectraConfig
from bert_tf.models.task_models import BertForSequenceClassification
from bert_tf.training import step as train_step
from bert_tf.training.optimization import create_optimizer
from bert_tf.weights import bundle

OUTPUT_LAYER = {"output_weights": "task_specific/mnli/dense/kernel", "output_bias": "task_specific/mnli/dense/bias"}


@pytest.fixture
def folder(golden):
    return golden / "electra" / "finetuning"


@pytest.fixture
def model(folder):
    options = json.loads((folder.parent / "uneven" / "hparams.json").read_text())
    config = ElectraConfig(**options["discriminator_config"] | {"embedding_size": 24, "hidden_act": "gelu_erf"})
    return BertForSequenceClassification.from_pretrained(str(folder / "mnli.ckpt"), config=config, dropout_rate=0.0)


@pytest.fixture
def batch(folder):
    inputs = dict(np.load(folder / "mnli_inputs.npz"))
    real = inputs["task_id"] == 0
    batch = {name: inputs[name][real] for name in ("input_ids", "input_mask", "segment_ids")}
    return {**batch, "label_ids": inputs["mnli_label_ids"][real]}


def there(name: str, value) -> tuple[str, np.ndarray]:
    """A variable's or moment's name and value in the original's files."""
    value = tf.convert_to_tensor(value).numpy()
    base, *moment = name.split("/adam_")
    value = value.T if base == "output_weights" else value
    return "/adam_".join([OUTPUT_LAYER.get(base, base), *moment]), value


def test_gradients(folder, model, batch):
    outputs, expected = (dict(np.load(folder / f"mnli_{name}.npz")) for name in ("outputs", "grads_step0"))
    variables = initialize.model_variables(model)
    with tf.GradientTape() as tape:
        logits = model(batch, training=True)
        sums = model.objective.sums(logits, batch)
    np.testing.assert_allclose(logits, outputs["logits"][:-1], atol=2e-5)
    np.testing.assert_allclose(sums["loss_sum"], outputs["total_loss"], atol=2e-5)
    gradients = tape.gradient(sums["loss_sum"], [variable.value for variable in variables.values()])
    for variable, gradient in zip(variables, gradients, strict=True):
        name, value = there(variable, gradient)
        np.testing.assert_allclose(value, expected.pop(name.replace("/", ".")), atol=2e-5, err_msg=name)
    assert not expected


def test_eight_steps(folder, model, batch):
    expected = json.loads((folder / "mnli_steps.json").read_text())
    recipe = model.config.recipe
    assert (recipe.layerwise_lr_decay, recipe.sum_loss) == (expected["layerwise_lr_decay"], True)
    steps, total = expected["steps"], expected["num_train_steps"]
    warmup = total * expected["warmup_proportion"]
    optimizer = create_optimizer("adamw", expected["learning_rate"], total, warmup, recipe)
    optimizer.build(model.trainable_variables)
    plan = train_step.TrainingPlan(num_train_steps=total, batch_size=5, sum_loss=recipe.sum_loss)
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    train = train_step.make_train_function(model, optimizer, model.objective, strategy, plan)
    data = iter(tf.data.Dataset.from_tensors({name: value.astype("int32") for name, value in batch.items()}).repeat())
    for step in steps:
        result = train(data, tf.constant(1), tf.constant(1.0), tf.constant(0))
        np.testing.assert_allclose(5 * result["loss"], step["loss"], atol=2e-5)
        np.testing.assert_allclose(result["gradient_norm"], step["global_norm"], rtol=1e-5)
    reader = bundle.open_bundle(str(folder / "mnli.ckpt-8"))
    variables = initialize.training_variables(model, optimizer)
    assert int(variables.pop("global_step")) == len(steps)
    for variable, value in variables.items():
        name, value = there(variable, value.value)
        tolerance = 1e-4 if "key/bias" in name else 2e-5
        np.testing.assert_allclose(value, reader.get_tensor(name), atol=tolerance, err_msg=name)

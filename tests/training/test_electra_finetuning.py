"""ELECTRA's fine-tuning: outputs, gradients and all steps are the original's.

Oracles: tests/golden/electra/finetuning for MNLI, and of questions, STS-B and chunking (outputs only) in the data
folder; computed by the original on one batch without dropout: the loss is the sum over the batch, the norm counts a
word's rows unmerged, layer-wise decay is 0.8. The last row is padding.
"""

import json

import numpy as np
import pytest
import tensorflow as tf
from helpers.outputs import assert_close
from helpers.paths import GOLDEN
from helpers.training_steps import trainer_of

from bert_tf import BertForQuestionAnswering, BertForSequenceClassification, BertForTokenClassification
from bert_tf.families.electra import ElectraConfig
from bert_tf.models import initialize
from bert_tf.store import bundle, variable_names
from bert_tf.training.optimization import create_optimizer

pytestmark = pytest.mark.numbers

OUTPUT_LAYER = {"output_weights": "task_specific/mnli/dense/kernel", "output_bias": "task_specific/mnli/dense/bias"}


FOLDER = GOLDEN / "electra" / "finetuning"
OPTIONS = json.loads((GOLDEN / "electra" / "uneven" / "hparams.json").read_text())
CONFIG = ElectraConfig(**OPTIONS["discriminator_config"] | {"embedding_size": 24, "hidden_act": "gelu_erf"})


@pytest.fixture
def further(shared):
    return shared / "golden" / "electra" / "finetuning"


def model_and_batch() -> tuple:
    model = BertForSequenceClassification.from_pretrained(str(FOLDER / "mnli.ckpt"), config=CONFIG, dropout_rate=0.0)
    inputs = dict(np.load(FOLDER / "mnli_inputs.npz"))
    real = inputs["task_id"] == 0
    batch = {name: inputs[name][real] for name in ("input_ids", "input_mask", "segment_ids")}
    return model, {**batch, "label_ids": inputs["mnli_label_ids"][real]}


def there(name: str, value) -> tuple[str, np.ndarray]:
    """A variable's or moment's name and value in the original's files."""
    value = tf.convert_to_tensor(value).numpy()
    base, *moment = name.split("/adam_")
    value = value.T if base == "output_weights" else value
    base = OUTPUT_LAYER.get(base) or variable_names.names_there([base], ElectraConfig(9))[base]
    return "/adam_".join([base, *moment]), value


def test_outputs_and_gradients():
    model, batch = model_and_batch()
    expected, gradients_there = (dict(np.load(FOLDER / f"mnli_{name}.npz")) for name in ("outputs", "grads_step0"))
    variables = initialize.model_variables(model)
    with tf.GradientTape() as tape:
        outputs = model(batch, training=True)
        sums = model.objective.sums(outputs, batch)
    np.testing.assert_allclose(outputs, expected["training_logits"][:-1], atol=2e-5, rtol=0)
    np.testing.assert_allclose(sums["loss_sum"], expected["training_total_loss"], atol=2e-5)
    gradients = tape.gradient(sums["loss_sum"], [variable.value for variable in variables.values()])
    for variable, gradient in zip(variables, gradients, strict=True):
        name, value = there(variable, gradient)
        np.testing.assert_allclose(value, gradients_there.pop(name.replace("/", ".")), atol=2e-5, err_msg=name)
    assert not gradients_there


@pytest.mark.slow  # in small: test_outputs_and_gradients, and test_recipes.py for schedule, layers and sums
def test_all_steps():
    expected, (model, batch) = json.loads((FOLDER / "mnli_steps.json").read_text()), model_and_batch()
    recipe = model.config.recipe
    assert (recipe.layerwise_lr_decay, recipe.sum_loss) == (expected["layerwise_lr_decay"], True)
    steps, total = expected["steps"], expected["num_train_steps"]
    warmup = total * expected["warmup_proportion"]
    optimizer = create_optimizer("adamw", expected["learning_rate"], total, warmup, recipe)
    optimizer.build(model.trainable_variables)
    train = trainer_of(model, optimizer, batch_size=5, sum_loss=recipe.sum_loss).steps
    data = iter(tf.data.Dataset.from_tensors({name: value.astype("int32") for name, value in batch.items()}).repeat())
    for step in steps:
        result = train(data, tf.constant(1))
        np.testing.assert_allclose(5 * result["loss"], step["loss"], atol=2e-5)
        np.testing.assert_allclose(result["gradient_norm"], step["global_norm"], rtol=1e-5)
    reader = bundle.CheckpointReader(str(FOLDER / f"mnli.ckpt-{len(steps)}"))
    variables = initialize.training_variables(model, optimizer)
    assert int(variables.pop("global_step")) == len(steps)
    for variable, value in variables.items():
        name, value = there(variable, value.value)
        tolerance = 1e-4 if "key/bias" in name else 2e-5
        np.testing.assert_allclose(value, reader.get_tensor(name), atol=tolerance, err_msg=name)


def read_oracles(folder, task) -> tuple[dict, dict, dict]:
    """Model inputs, the task's own inputs, and outputs; without the row of padding."""
    files = (dict(np.load(folder / f"{task}_{name}.npz")) for name in ("inputs", "outputs"))
    inputs, outputs = ({name: value[:-1] if value.ndim else value for name, value in file.items()} for file in files)
    return {name: inputs[name] for name in ("input_ids", "input_mask", "segment_ids")}, inputs, outputs


def test_regression(further):
    """The original divides the scores by 5 before it computes these targets; here they are those of the file."""
    batch, inputs, expected = read_oracles(further, "sts")
    model = BertForSequenceClassification.from_pretrained(str(further / "sts.ckpt"), config=CONFIG, num_labels=1)
    predictions = model(batch)
    assert_close(predictions[:, 0], expected["predictions"])
    sums = model.objective.sums(predictions, {**batch, "label_ids": inputs["sts_targets"]})
    np.testing.assert_allclose(sums["loss_sum"], expected["total_loss"], atol=2e-5)


def test_tags(further):
    """The original gathers the words' first tokens; here the labels of all others are negative."""
    batch, inputs, expected = read_oracles(further, "chunk")
    model = BertForTokenClassification.from_pretrained(str(further / "chunk.ckpt"), config=CONFIG, num_labels=5)
    rows, words = np.nonzero(inputs["chunk_labels_mask"])
    positions = inputs["chunk_labeled_positions"][rows, words]
    labels = np.full(batch["input_ids"].shape, -1)
    labels[rows, positions] = inputs["chunk_labels"][rows, words]
    logits = model(batch)
    assert_close(np.asarray(logits)[rows, positions], expected["logits"][rows, words])
    sums = model.objective.sums(logits, {**batch, "label_ids": labels})
    np.testing.assert_allclose(sums["loss_sum"], expected["total_loss"], atol=2e-5)


def test_independent_head(further):
    """The original without joint prediction and answerability scores starts and ends as BERT's head does."""
    inputs, _, expected = read_oracles(further, "squadv1_plain")
    model = BertForQuestionAnswering.from_pretrained(str(further / "squadv1_plain.ckpt"), config=CONFIG)
    reader = bundle.CheckpointReader(str(further / "squadv1_plain.ckpt"))
    variables = initialize.model_variables(model)
    for last, axis in (("kernel", 1), ("bias", 0)):
        parts = [reader.get_tensor(f"task_specific/squadv1/{layer}/{last}") for layer in ("dense", "dense_1")]
        name = "cls/squad/output_" + ("weights" if axis else "bias")
        variables[name].assign(np.concatenate(parts, axis).T)
    outputs = model(inputs)
    for name in ("start_logits", "end_logits"):
        in_answers = expected[name] > -500  # the original adds -1000 elsewhere
        assert in_answers.any(1).all()
        np.testing.assert_allclose(np.asarray(outputs[name])[in_answers], expected[name][in_answers], atol=2e-5)

"""Models with fine-tuning heads: the original's numbers (tests/golden/model), Keras, training."""

import contextlib
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.every_model import CONFIG, MODELS
from helpers.losses import as_floats
from helpers.outputs import enlarge
from helpers.slow import slow

from bert_tf.models import initialize, objectives
from bert_tf.models.config import BertConfig
from bert_tf.models.inputs import features_with_labels, select
from bert_tf.models.task_models import BertForQuestionAnswering, BertForSequenceClassification
from bert_tf.training.optimization import AdamWeightDecay
from bert_tf.training.step import make_evaluate_function

pytestmark = pytest.mark.numbers

CONFIGS = ("config1", "config2")
# Tolerances of the golden README; the last row has an all-zero mask, where float32 is coarse.
LAYERS, LOG_PROBABILITIES, ZERO_MASK_ROW, SCALAR = 2e-5, 5e-5, 2e-3, 5e-4


def load(golden, name, checkpoint, model_class, **arguments):
    folder = golden / "model" / name
    model = model_class(BertConfig.from_json_file(str(folder / "bert_config.json")), **arguments)
    result = initialize.load_weights(model, str(folder / checkpoint))
    assert not result.missing
    inputs = select(np.load(folder / "inputs.npz"), model.known_inputs)  # the file has the inputs of all models
    return model, inputs, dict(np.load(folder / "outputs.npz"))


def assert_close(actual, expected, tolerance=LAYERS, last_rows=1):
    actual = np.asarray(actual)
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual[:-last_rows], expected[:-last_rows], rtol=0, atol=tolerance)
    np.testing.assert_allclose(actual[-last_rows:], expected[-last_rows:], rtol=0, atol=ZERO_MASK_ROW)


# --- the original's numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_classifier_equals_the_original(golden, name):
    model, inputs, outputs = load(golden, name, "classifier.ckpt", BertForSequenceClassification, num_labels=3)
    logits = model(inputs)
    assert_close(logits, outputs["classifier_logits"])
    assert_close(keras.ops.softmax(logits), outputs["classifier_probabilities"])
    losses, _ = model.objective.values(logits, inputs)
    assert_close(losses, outputs["classifier_example_loss"])
    sums = model.objective.sums(logits, inputs)
    np.testing.assert_allclose(model.objective.loss(sums, sums), outputs["classifier_loss"], atol=SCALAR)
    # A padding example counts in the original's loss, but in neither of its metrics.
    assert not inputs["is_real_example"].all()
    expected = json.loads((golden / "model" / name / "eval_metrics.json").read_text())["classifier"]
    evaluate = make_evaluate_function(model, model.objective, tf.distribute.OneDeviceStrategy("/cpu:0"))
    actual = evaluate([{key: tf.constant(value) for key, value in inputs.items()}])
    np.testing.assert_allclose(actual["accuracy"], expected["eval_accuracy"], atol=1e-6)
    np.testing.assert_allclose(actual["example_loss"], expected["eval_loss"], atol=2e-5)
    np.testing.assert_allclose(actual["loss"], expected["loss"], atol=SCALAR)
    assert abs(actual["loss"] - actual["example_loss"]) > 0.005


@pytest.mark.parametrize("name", CONFIGS)
def test_question_answering_equals_the_original(golden, name):
    model, inputs, outputs = load(golden, name, "squad.ckpt", BertForQuestionAnswering)
    result = model(inputs)
    assert_close(result["start_logits"], outputs["squad_start_logits"])
    assert_close(result["end_logits"], outputs["squad_end_logits"])
    if name == "config1":
        sums = model.objective.sums(result, inputs)
        loss = model.objective.loss(sums, sums)
    else:  # has positions outside of the rows, which cost the original nothing; here they are errors
        with pytest.raises(ValueError, match=r"start_positions\[1\] is 43, but must be a place in the row"):
            model.objective.sums(result, inputs)
        losses = [
            objectives.cross_entropy(result[f"{end}_logits"], inputs[f"{end}_positions"]) for end in ("start", "end")
        ]
        loss = np.mean(losses)
    np.testing.assert_allclose(loss, outputs["squad_loss"], atol=SCALAR)


# --- Keras -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["classifier", *slow("labels", "tagger", "choice", "questions", "masked", "next")])
def test_fit_needs_no_loss_and_lowers_it(name):
    create, features = MODELS[name]
    model, labels = create(), {label: features[label] for label in create().objective.label_names}
    x = {key: value for key, value in features.items() if key not in labels}
    y = list(labels.values()) if len(labels) > 1 else next(iter(labels.values()))
    model.compile(optimizer=AdamWeightDecay(1e-2), run_eagerly=True)  # traced in the next test
    before = model.evaluate(x, y, verbose=0, return_dict=True)
    model.fit(x, y, epochs=8, verbose=0)
    after = model.evaluate(x, y, verbose=0, return_dict=True)
    assert after["loss"] < 0.6 * before["loss"], (before, after)
    # Labels may be among the features, as in a dataset made from records.
    np.testing.assert_allclose(model.evaluate(features, verbose=0, return_dict=True)["loss"], after["loss"], rtol=1e-5)
    # Metrics over batches of unequal size equal those over all examples at once.
    enlarge(model)  # it gives all rows one answer by now
    uneven = model.evaluate(x, y, batch_size=3, verbose=0, return_dict=True)
    assert features_with_labels(model.objective, x, y).keys() == features.keys()
    expected = as_floats(model.objective.metrics(model.objective.sums(model(x), features)))
    assert set(uneven) == {"loss", *expected}
    assert {name: uneven[name] for name in expected} == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("replicas", [1, *slow(2)])
def test_fit_traces_a_step_once_per_replica(replicas, monkeypatch):
    """Variables created in the first trace would cause a second trace, which takes as long as everything else."""
    traced = []
    compute_loss = BertForSequenceClassification.compute_loss

    def counted(self, *args, **kwargs):
        traced.append(self)
        return compute_loss(self, *args, **kwargs)

    monkeypatch.setattr(BertForSequenceClassification, "compute_loss", counted)
    create, features = MODELS["classifier"]
    devices = [f"CPU:{number}" for number in range(replicas)]
    with tf.distribute.MirroredStrategy(devices).scope() if replicas > 1 else contextlib.nullcontext():
        model = create()
        model.build()
        model.bert.trainable = False  # the head's variables suffice
        model.compile(optimizer=AdamWeightDecay(2e-3), jit_compile=False)
    model.fit(tf.data.Dataset.from_tensor_slices(features).batch(2, drop_remainder=True), verbose=0)
    assert len(traced) == replicas and keras.ops.convert_to_numpy(model.optimizer.iterations) == 2


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_labels": 3, "labels": ["a", "b"]}, "num_labels=3, but labels has 2 names"),
        ({"labels": "a, b"}, "labels must be a list of names, not a str"),
        ({"labels": [0, 1]}, r"labels=\[0, 1\] must be different names"),
        ({"labels": {"a", "b"}}, "labels must be a list of names, not a set"),
        ({"num_labels": 3, "problem_type": "regression"}, "num_labels=3 does not fit problem_type='regression'"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        BertForSequenceClassification(CONFIG, **arguments)


def test_the_kind_of_problem():
    several = BertForSequenceClassification(CONFIG, 4, "multi_label_classification")
    assert several.objective is objectives.MultiLabelObjective
    assert BertForSequenceClassification(CONFIG, 4).objective is objectives.ClassificationObjective
    assert BertForSequenceClassification(CONFIG, 1).objective is objectives.RegressionObjective

"""What `compile`, `fit` and `evaluate` do beside what Keras does itself."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.every_model import MODELS, inputs

NUMBERS = np.array([0, 1, 3, 1])


def compiled(name="classifier", *arguments):
    model = MODELS[name][0]()
    model.compile("sgd", *arguments, run_eagerly=True)
    return model


def dataset(*parts):
    return tf.data.Dataset.from_tensor_slices(parts).batch(2)


def test_metrics_of_each_output():
    for metrics in ({"start_logits": ["accuracy"], "end_logits": ["accuracy"]}, ["accuracy", "accuracy"]):
        model = compiled("questions", None, None, metrics)
        values = model.evaluate(inputs(), [NUMBERS] * 2, verbose=0, return_dict=True)
        assert values["start_logits_accuracy"] == values["start_accuracy"]


def test_a_second_compile_forgets_the_first():
    """Keras would keep a loss, or metrics, that the second call does not name."""
    model = compiled("classifier", lambda y, logits: keras.ops.sum(logits) / 0)
    model.compile("sgd", metrics=[lambda y, logits: 1 / 0], run_eagerly=True)
    with pytest.raises(ZeroDivisionError):
        model.fit(inputs(), NUMBERS, verbose=0)
    model.compile("sgd", run_eagerly=True)
    assert np.isfinite(model.fit(inputs(), NUMBERS, verbose=0).history["loss"]).all()


def test_weights_of_two_labels_are_those_of_the_rows():
    """Keras gives one for each label."""
    positions, weights = [NUMBERS, NUMBERS], [1.0, 0.0, 0.5, 2.0]
    model = compiled("questions")
    values = model.evaluate(inputs(), positions, sample_weight=np.array(weights), verbose=0)
    named = inputs(start_positions=NUMBERS, end_positions=NUMBERS, example_weights=np.array(weights, np.float32))
    assert values == model.evaluate(named, verbose=0)


def test_lists_of_numbers_are_arrays():
    weights = [1.0, 0.0, 2.0, 1.0]
    for name, labels in (("classifier", [0, 1, 3, 1]), ("labels", [[0, 1, 1]] * 4), ("questions", [[0, 1, 2, 0]] * 2)):
        model = compiled(name)
        lists = {key: value.tolist() for key, value in inputs().items()}
        arrays = [np.array(part) for part in labels] if name == "questions" else np.array(labels)
        expected = model.evaluate(inputs(), arrays, sample_weight=np.array(weights), verbose=0)
        assert model.evaluate(lists, labels, sample_weight=weights, verbose=0) == expected
        model.optimizer.learning_rate = 0.0
        logs = model.fit(lists, labels, validation_data=(lists, labels, weights), verbose=0).history
        assert logs["val_loss"][0] == pytest.approx(expected[0], rel=1e-6)


def test_class_weight_of_some_classes():
    """Keras has no weight for a class above those that are named."""
    model, data = compiled(), dataset(inputs(), NUMBERS)
    model.optimizer.learning_rate = 0.0
    losses = [model.fit(data, class_weight=weights, verbose=0).history["loss"] for weights in ({0: 9.0}, {0: 1})]
    assert losses[0] != losses[1]

"""Keras's own calls, callbacks, losses, metrics and files work as with any Keras model."""

import keras
import numpy as np
import pytest
from helpers.every_model import MODELS, inputs

from bert_tf.training.optimization import AdamWeightDecay

LOWER = {"similarity": "mean_absolute_error", "tagger": "token_loss", "masked": "masked_lm_loss"}


def callbacks_after(model, x, monitors, folder) -> list:
    """Keras's callbacks after an epoch: two for each monitor, and one that saves by the last of them."""
    callbacks = [keras.callbacks.ModelCheckpoint(str(folder / "best.keras"), monitors[-1], save_best_only=True)]
    for monitor in monitors:
        callbacks.append(keras.callbacks.EarlyStopping(monitor, patience=1, restore_best_weights=True))
        callbacks.append(keras.callbacks.ReduceLROnPlateau(monitor, patience=1))
    logs = {f"val_{name}": value for name, value in model.evaluate(x, verbose=0, return_dict=True).items()}
    assert set(monitors) <= logs.keys() and "val_loss" in logs
    for callback in callbacks:
        callback.set_model(model)
        callback.on_train_begin()
        callback.on_epoch_end(0, dict(logs))
    assert (folder / "best.keras").exists()
    return callbacks


# The rule is one for all names of metrics: losses and errors are to fall, others to rise.
@pytest.mark.parametrize("name", ["classifier", "similarity", "tagger", "masked", "electra"])
def test_callbacks_need_no_mode(name, tmp_path):
    create, features = MODELS[name]
    model = create()
    model.compile(optimizer=AdamWeightDecay(1e-3), run_eagerly=True)
    higher = [metric.name for metric in model.objective_metric.metrics if not metric.name.endswith(("loss", "error"))]
    better = {f"val_{LOWER.get(name, 'loss')}": keras.ops.less}
    better |= {f"val_{metric}": keras.ops.greater for metric in higher[:1]}
    for callback in callbacks_after(model, features, list(better), tmp_path):
        assert callback.monitor_op is better[callback.monitor]


@pytest.mark.parametrize("name", MODELS)
def test_saved_keras_model_gives_the_same_outputs(name, tmp_path):
    create, features = MODELS[name]
    model = create()
    expected = model(features)
    if name in ("classifier", "similarity"):
        model.compile(optimizer="adam")
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model) and loaded.get_config() == model.get_config()
    if model.compiled:
        assert loaded.compiled and loaded.optimizer.get_config() == model.optimizer.get_config()
    assert loaded.objective is model.objective or name in ("similarity", "electra")  # which make their own
    for actual, value in zip(keras.tree.flatten(loaded(features)), keras.tree.flatten(expected), strict=True):
        np.testing.assert_allclose(actual, value, atol=1e-6)


NUMBERS = np.array([0, 1, 3, 1])


def compiled(name="classifier", *arguments):
    model = MODELS[name][0]()
    model.compile("sgd", *arguments, run_eagerly=True)
    return model


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
    for name, labels in (("labels", [[0, 1, 1]] * 4), ("questions", [[0, 1, 2, 0]] * 2)):
        model = compiled(name)
        lists = {key: value.tolist() for key, value in inputs().items()}
        arrays = [np.array(part) for part in labels] if name == "questions" else np.array(labels)
        expected = model.evaluate(inputs(), arrays, sample_weight=np.array(weights), verbose=0)
        assert model.evaluate(lists, labels, sample_weight=weights, verbose=0) == expected
        model.optimizer.learning_rate = 0.0
        logs = model.fit(lists, labels, validation_data=(lists, labels, weights), verbose=0).history
        assert logs["val_loss"][0] == pytest.approx(expected[0], rel=1e-6)

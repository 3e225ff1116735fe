"""Keras's own callbacks, losses, metrics and files work as with any Keras model."""

import keras
import numpy as np
import pytest
from helpers.every_model import MODELS

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

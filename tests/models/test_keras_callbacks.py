"""Keras's own callbacks, losses, metrics and files work as with any Keras model."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.every_model import MODELS, inputs

import bert_tf
from bert_tf.models.task_models import BertForSequenceClassification
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


def test_the_best_epoch_is_that_of_the_highest_accuracy(tmp_path):
    """Of a model that gets worse from its first epoch on, the first is kept, and the learning rate is lowered."""
    model, features = MODELS["classifier"][0](), inputs()
    labels = np.asarray(model(features)).argmax(-1)
    model.compile(optimizer=keras.optimizers.SGD(0.0), run_eagerly=True)

    class Worse(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch:
                self.model.head.output_weights.assign(-self.model.head.output_weights)

    stop = keras.callbacks.EarlyStopping("val_accuracy", patience=0, restore_best_weights=True)
    slower = keras.callbacks.ReduceLROnPlateau("val_accuracy", patience=1, factor=0.5)
    keep = keras.callbacks.ModelCheckpoint(str(tmp_path / "best.weights.h5"), "val_accuracy", save_best_only=True,
                                           save_weights_only=True)  # fmt: skip
    rows = tf.data.Dataset.from_tensor_slices((features, labels)).batch(2)
    history = model.fit(
        rows, validation_data=rows, epochs=5, callbacks=[Worse(), keep, slower, stop], verbose=0
    ).history
    assert set(history) >= {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert history["val_accuracy"][0] == 1.0 and len(history["val_accuracy"]) == 2
    again = MODELS["classifier"][0]()
    again.build()
    again.load_weights(str(tmp_path / "best.weights.h5"))
    for restored in (model, again):
        np.testing.assert_array_equal(np.asarray(restored(features)).argmax(-1), labels)


def test_metrics_and_losses_of_the_caller():
    create, features = MODELS["classifier"]
    labels = {"label_ids": np.array([0, 1, 2, 3])}
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for given in ({"metrics": ["accuracy"]}, {"loss": loss, "metrics": ["accuracy"]}, {"loss": loss}):
        model = create()
        model.compile(optimizer="adam", run_eagerly=True, **given)
        for data in ((features, labels["label_ids"]), ({**features, **labels}, None)):
            data = (
                {name: value for name, value in data[0].items() if name != "label_ids"}
                | (labels if data[1] is None else {}),
                data[1],
            )
            result = model.evaluate(*data, verbose=0, return_dict=True)
            logits = np.asarray(model(features))
            expected = float(loss(labels["label_ids"], logits))
            assert result["loss"] == pytest.approx(expected, rel=1e-5)
            if "metrics" in given:
                assert result["accuracy"] == (logits.argmax(-1) == labels["label_ids"]).mean()
            assert ("example_loss" in result) == ("loss" not in given)
        assert set(model.fit(features, labels["label_ids"], verbose=0).history) == set(result)


def test_a_dataset_of_texts(english):
    config = bert_tf.BertConfig(
        len(english.vocab), hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    model = BertForSequenceClassification(config, labels=["bad", "good"])
    model.compile(optimizer=AdamWeightDecay(1e-3), run_eagerly=True)
    data = bert_tf.as_dataset(
        ["A lovely film.", "Dull."], ["good", "bad"], tokenizer=english, label_names=model.labels, batch_size=2, seed=1
    )
    history = model.fit(data, validation_data=data, verbose=0).history
    assert {"loss", "accuracy", "val_loss", "val_accuracy"} <= set(history)


@pytest.mark.parametrize("name", MODELS)
def test_saved_keras_model_gives_the_same_outputs(name, tmp_path):
    create, features = MODELS[name]
    model = create()
    expected = model(features)
    model.compile(optimizer="adam")
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model) and loaded.get_config() == model.get_config()
    assert loaded.compiled and loaded.optimizer.get_config() == model.optimizer.get_config()
    assert loaded.objective is model.objective or name in ("similarity", "electra")  # which make their own
    for actual, value in zip(keras.tree.flatten(loaded(features)), keras.tree.flatten(expected), strict=True):
        np.testing.assert_allclose(actual, value, atol=1e-6)

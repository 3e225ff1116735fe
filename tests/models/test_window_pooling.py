"""Classifiers of texts in windows: one window as ordinarily, pooling by hand, empty windows, dropout, saved models."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.slow import slow
from helpers.tiny import ONE_LAYER, TINY_CONFIG

from bert_tf import BertForSequenceClassification
from bert_tf.conversion.convert import convert
from bert_tf.models import kernels
from bert_tf.models.config import BertConfig
from bert_tf.models.dropout import dropout_scope
from bert_tf.models.head_config import WINDOW_POOLINGS
from bert_tf.models.initialize import model_variables
from bert_tf.models.layers import WindowPooling

CONFIG = BertConfig.from_dict(ONE_LAYER)
ROW_INPUTS = ("input_ids", "input_mask", "segment_ids")


def windows_of(counts, length=12, seed=0):
    """Texts of so many windows, in arrays of the most there are."""
    generator = np.random.default_rng(seed)
    shape = (len(counts), max(counts), length)
    real = np.arange(max(counts)) < np.array(counts)[:, None]
    lengths = np.where(real, generator.integers(3, length + 1, shape[:2]), 0)
    mask = (np.arange(length) < lengths[:, :, None]).astype(np.int32)
    ids = generator.integers(5, CONFIG.vocab_size, shape).astype(np.int32) * mask
    return {"input_ids": ids, "input_mask": mask, "segment_ids": np.zeros_like(ids)}


def model_with(pooling, config=CONFIG, **arguments):
    """A model with random scores of windows, always the same."""
    keras.utils.set_random_seed(0)
    model = BertForSequenceClassification(config, 3, window_pooling=pooling, **arguments)
    model.build()
    if pooling == "attention":
        assert not np.asarray(model.windows.scores).any()  # at first, all windows weigh the same
        model.windows.scores.assign(np.random.default_rng(5).normal(size=config.hidden_size) * 3)
    return model


def gradients_of(model, features, **arguments):
    with tf.GradientTape() as tape:
        logits = model({name: features[name] for name in ROW_INPUTS}, **arguments)
        loss = tf.reduce_sum(logits * tf.reshape(tf.range(tf.size(logits), dtype=tf.float32), tf.shape(logits)))
    variables = model_variables(model)
    found = tape.gradient(loss, [variable.value for variable in variables.values()])
    return logits, {name: tf.convert_to_tensor(g) for name, g in zip(variables, found, strict=True) if g is not None}


@pytest.mark.parametrize("pooling", ["attention", *slow("mean", "max")])
@pytest.mark.parametrize(("fused", "dtype"), [(True, "float32"), *slow((False, "float32"), (True, "mixed_bfloat16"))])
def test_texts_of_one_window_are_as_in_an_ordinary_classifier(pooling, fused, dtype):
    """Bit for bit: logits, in training with its dropout, too, and all gradients."""
    kernels.set_fused(fused)
    try:
        model = model_with(pooling, BertConfig.from_dict(TINY_CONFIG), dtype=dtype)
        ordinary = BertForSequenceClassification(BertConfig.from_dict(TINY_CONFIG), 3, dtype=dtype)
        ordinary.build()
        known = model_variables(model)
        for name, variable in model_variables(ordinary).items():
            variable.assign(known[name])
        windows = windows_of([1] * 5)
        plain = {name: value[:, 0] for name, value in windows.items()}
        for training in (False, True):
            with dropout_scope([3, 4], 10):  # the part of a batch that begins at row 10
                logits, gradients = gradients_of(model, windows, training=training)
                expected, ordinary_gradients = gradients_of(ordinary, plain, training=training)
                again = model(plain, training=training)  # without an axis of windows
            np.testing.assert_allclose(logits, expected, atol=1e-6)
            np.testing.assert_allclose(again, expected, atol=1e-6)
            for name, value in ordinary_gradients.items():
                np.testing.assert_allclose(gradients[name], value, atol=1e-6, err_msg=name)
            assert not np.any(gradients.get("window_pooling/scores", 0.0))
    finally:
        kernels.set_fused(True)


def pooled_by_hand(vectors, pooling, scores):
    """Of one text: [W, H] -> [H]."""
    if pooling == "mean":
        return vectors.mean(0)
    if pooling == "max":
        return vectors.max(0)
    weights = np.exp(vectors @ scores)
    return (weights / weights.sum()) @ vectors


@pytest.mark.parametrize("pooling", WINDOW_POOLINGS)
def test_pooling_by_hand_and_empty_windows(pooling):
    counts = [3, 1, 2, 4]
    model, features = model_with(pooling), windows_of(counts)
    flat = {name: value.reshape(-1, value.shape[-1]) for name, value in features.items()}
    vectors = np.asarray(model.bert(flat)["pooled_output"]).reshape(len(counts), max(counts), -1)
    scores = np.asarray(model.windows.scores) if pooling == "attention" else None
    expected = np.stack([pooled_by_hand(vectors[k, :count], pooling, scores) for k, count in enumerate(counts)])
    expected = expected @ np.asarray(model.head.output_weights).T + np.asarray(model.head.output_bias)
    logits = np.asarray(model(features))
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    # A text's result does not depend on how many empty windows it has, nor on what is in them.
    for number, count in enumerate(counts):
        alone = {name: value[number : number + 1, :count] for name, value in features.items()}
        np.testing.assert_allclose(np.asarray(model(alone))[0], logits[number], atol=1e-5)
    odd = features["input_ids"] + 7 * (features["input_mask"].sum(-1, keepdims=True) == 0)
    np.testing.assert_allclose(np.asarray(model({**features, "input_ids": odd})), logits, atol=1e-6)
    whole = {name: value[3:] for name, value in features.items() if name != "input_mask"}
    ones = {**whole, "input_mask": np.ones_like(whole["input_ids"])}
    np.testing.assert_allclose(np.asarray(model(whole)), np.asarray(model(ones)), atol=1e-6)


def test_an_empty_window_counts_nothing_whatever_is_in_it():
    x = np.array([[[1.0, -2.0], [3.0, 4.0], [1e30, -1e30]]], np.float32)
    mask = np.array([[1, 1, 0]])
    for pooling, expected in (("mean", [2.0, 1.0]), ("max", [3.0, 4.0]), ("attention", [2.0, 1.0])):
        layer = WindowPooling(pooling)
        layer.build((None, None, 2))
        assert np.asarray(layer(x, mask)).tolist() == [expected]
    assert keras.layers.deserialize(keras.layers.serialize(layer)).kind == "attention"


def test_the_model_is_saved(tmp_path):
    """See test_keras_callbacks.py for Keras's own files."""
    features, model = windows_of([3, 1, 2, 4]), model_with("attention", window_stride=4, max_windows=6)
    expected = np.asarray(model(features))
    model.save_pretrained(str(tmp_path / "folder"))
    again = BertForSequenceClassification.from_pretrained(str(tmp_path / "folder"))
    assert again.head_config == model.head_config and again.head_config.max_windows == 6
    np.testing.assert_array_equal(np.asarray(again(features)), expected)
    model.export(str(tmp_path / "exported"), verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "exported"))
    np.testing.assert_allclose(loaded.serve(features), expected, atol=1e-5)
    with pytest.raises(ValueError, match="reads long texts in windows \\(window_pooling=attention\\), which the hugg"):
        convert(str(tmp_path / "folder"), str(tmp_path / "theirs"), "huggingface")
    report = convert(str(tmp_path / "folder"), str(tmp_path / "long"), "bert_tf")
    assert "head_config.json" in report.written.files

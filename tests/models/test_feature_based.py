"""Classifiers on the outputs of a frozen BERT: BiLSTM and CNN."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.dropped import in_training
from helpers.slow import slow
from helpers.tiny import TINY_CONFIG
from keras import ops

from bert_tf.models import baselines, initialize, task_models
from bert_tf.models.config import BertConfig
from bert_tf.models.head_config import HeadConfig
from bert_tf.models.task_models import BertForSequenceClassification
from bert_tf.tasks.table import TASKS

CONFIG = BertConfig.from_dict({**TINY_CONFIG, "num_hidden_layers": 4})
LENGTHS = (4, 7, 1)


def classifier(kind, features="concat_last_four", **arguments):
    """Or a tagger, whose logits are those of each token."""
    keras.utils.set_random_seed(0)
    if kind == "tagger":
        model = baselines.BertFeatureTagger(CONFIG, 3, features, lstm_size=12)
    else:
        model = BertForSequenceClassification(
            CONFIG, features=features, model_on_top=kind, size_on_top=12, **{"num_labels": 3, **arguments}
        )
    model.build()
    return model


def rows(width=9, seed=0):
    generator = np.random.default_rng(seed)
    mask = (np.arange(width) < np.array(LENGTHS)[:, None]).astype(np.int32)
    return {"input_ids": generator.integers(5, 100, mask.shape) * mask, "input_mask": mask}


def logits_of(model, inputs, **arguments):
    return ops.convert_to_numpy(model(inputs, **arguments))


@pytest.mark.parametrize(
    ("kind", "features"),
    [("bilstm", "last"), ("cnn", "concat_last_four"), ("tagger", "sum_last_four"), *slow(("cnn", "sum_all"))],
)
def test_padding_changes_nothing(kind, features):
    """The backward LSTM starts at the end of a row, and what comes last counts for what is first."""
    model = classifier(kind, features)
    wide = rows()
    logits = logits_of(model, wide)
    assert logits.shape == ((3, 9, 3) if kind == "tagger" else (3, 3))
    for row, length in enumerate(LENGTHS):
        alone = {name: values[row : row + 1, :length] for name, values in wide.items()}
        expected = logits[row, :length] if kind == "tagger" else logits[row]
        np.testing.assert_allclose(logits_of(model, alone)[0], expected, atol=1e-6)
    np.testing.assert_allclose(logits_of(model, alone["input_ids"])[0], expected, atol=1e-6)  # without a mask
    changed = {**wide, "input_ids": np.where(wide["input_mask"], wide["input_ids"], 7)}
    real = wide["input_mask"].astype(bool) if kind == "tagger" else slice(None)
    np.testing.assert_allclose(logits_of(model, changed)[real], logits[real], atol=1e-6)
    changed["input_ids"][1, 6] = 5 + (changed["input_ids"][1, 6] - 4) % 90
    assert np.abs(logits_of(model, changed) - logits)[1, 0].max() > 1e-6


def test_the_layers_of_the_cnn_by_hand():
    """Convolutions of widths 3, 4 and 5 with zeros around the row, ReLU, maximum over the tokens."""
    model = classifier("cnn", "second_to_last")
    inputs = {"input_ids": np.array([[7, 8, 9, 10, 11, 12]])}
    x = ops.convert_to_numpy(model.bert(inputs, return_all_layers=True)["encoder_layers"][-2])[0]
    found = []
    for width, layer in zip((3, 4, 5), model.reader.layers_on_top, strict=True):
        before = (width - 1) // 2
        padded = np.pad(x, ((before, width - 1 - before), (0, 0)))
        kernel, bias = (ops.convert_to_numpy(value) for value in (layer.kernel, layer.bias))
        outputs = [np.einsum("wh,whu->u", padded[place : place + width], kernel) + bias for place in range(6)]
        found.append(np.maximum(outputs, 0).max(0))
    weights, bias = (ops.convert_to_numpy(value) for value in (model.head.output_weights, model.head.output_bias))
    np.testing.assert_allclose(logits_of(model, inputs)[0], weights @ np.concatenate(found) + bias, atol=1e-5)


@pytest.mark.parametrize("kind", [*baselines.TOKEN_READERS, "tagger"])
def test_no_gradient_reaches_bert_and_dropout_hangs_on_the_seed(kind):
    model = classifier(kind)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(in_training(model, rows()) ** 2)
    gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
    by_name = dict(zip(map(initialize.checkpoint_name, model.trainable_variables), gradients, strict=True))
    learned = {name for name, gradient in by_name.items() if gradient is not None}
    assert learned == {name for name in by_name if not name.startswith("bert/")}
    layer = "tagger/output_weights" if kind == "tagger" else TASKS["classification"].other_layer
    assert layer in learned and len(learned) == 2 + (2 * 6 if kind == "tagger" else 6)
    one, again, other = (np.asarray(in_training(model.read, rows(), seed)) for seed in ((1, 2), (1, 2), (1, 3)))
    assert (one == again).all() and (one != other).any()
    assert (np.asarray(in_training(model, rows())) != logits_of(model.head, one)).any()  # which has dropout, too


@pytest.mark.parametrize(("kind", "labels"), [("bilstm", ["a", "b", "c"]), ("cnn", None)])
def test_save_and_load(tmp_path, kind, labels):
    """A regression has no labels that would say how many outputs it has."""
    arguments = {"labels": labels} if labels else {"num_labels": 1}
    model, folder = classifier(kind, **arguments), str(tmp_path / "model")
    model.save_pretrained(folder)
    head = json.loads((tmp_path / "model" / "head_config.json").read_text())
    assert {"features": "concat_last_four", "model_on_top": kind, "size_on_top": 12}.items() <= head.items()
    loaded = BertForSequenceClassification.from_pretrained(folder)
    assert loaded.head_config == model.head_config
    np.testing.assert_array_equal(logits_of(loaded, rows()), logits_of(model, rows()))
    copy = BertForSequenceClassification.from_config(model.get_config())
    assert copy.head_config == model.head_config
    with pytest.raises(ValueError, match="format=huggingface: this model reads features of a frozen BERT"):
        model.save_pretrained(str(tmp_path / "other"), format="huggingface")
    # Its output layer does not fit on a BERT.
    encoder = task_models.BertModel.from_pretrained(folder)
    np.testing.assert_array_equal(encoder.get_embedding_table(), model.bert.get_embedding_table())


def test_bad_arguments():
    with pytest.raises(ValueError, match="features='first' is not one of last, second_to_last"):
        classifier("cnn", "first")
    with pytest.raises(ValueError, match="model_on_top='gru' is not one of bilstm, cnn"):
        classifier("gru")
    for kind, number in (("cnn", 3), ("bilstm", 2)):
        with pytest.raises(ValueError, match=f"size_on_top=7 must be a multiple of {number} for {kind}"):
            BertForSequenceClassification(CONFIG, features="last", model_on_top=kind, size_on_top=7)
    with pytest.raises(ValueError, match="lstm_on_top and features are two ways"):
        classifier("cnn", lstm_on_top=True)
    with pytest.raises(ValueError, match="size_on_top must be a whole number, not '3'"):
        HeadConfig(size_on_top="3")

"""Outputs that answer to the names of transformers, and labels among the inputs; for Keras they are what they were."""

import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.every_model import CONFIG, inputs

from bert_tf.models.task_models import BertForQuestionAnswering, BertForSequenceClassification, BertModel


def test_outputs_answer_to_the_names_of_transformers():
    ids = inputs()["input_ids"]
    outputs = BertModel(CONFIG)(ids, return_all_layers=True, return_attention=True)
    assert outputs.last_hidden_state is outputs["sequence_output"] and outputs["pooler_output"] is outputs.pooled_output
    assert len(outputs.hidden_states) == len(outputs.encoder_layers) + 1
    assert outputs.attentions is outputs.attention_probabilities
    model = BertForSequenceClassification(CONFIG, num_labels=3)
    with tf.GradientTape() as tape:
        logits = model(ids)
        loss = tf.reduce_sum(logits.logits**2)
    np.testing.assert_array_equal(logits.logits, logits)
    assert tape.gradient(loss, model.head.output_weights) is not None
    kept = weakref.ref(logits)
    del logits
    assert kept() is None, "its memory waits for Python's search for garbage"


def test_outputs_are_a_dict_for_keras(tmp_path):
    """Losses and metrics by name, around a model and in a functional one, which is saved as before."""

    class Around(keras.Model):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def call(self, batch):
            return self.inner(batch)

    inner, ids = BertForQuestionAnswering(CONFIG), inputs()["input_ids"]
    places = {name: np.arange(len(ids)) for name in ("start_logits", "end_logits")}
    given = keras.Input(ids.shape[1:], dtype="int32", name="input_ids")
    functional = keras.Model([given], inner(given, attention_mask=keras.ops.ones_like(given)))
    one = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    by_name = dict.fromkeys(places, one)
    for model, loss in ((inner, by_name), (inner, one), (Around(inner), by_name), (functional, one)):
        is_eager = model is not inner or loss is one  # one in a graph, which takes long
        model.compile("sgd", loss=loss, metrics={"end_logits": ["accuracy"]}, run_eagerly=is_eager)
        found = model.evaluate({"input_ids": ids}, places, verbose=0, return_dict=True)
        expected = {f"{name}_loss": one(places[name], inner(ids)[name]) for name in places}
        assert {name: pytest.approx(float(value), 1e-5) for name, value in expected.items()}.items() <= found.items()
        assert "end_logits_accuracy" in found
    assert list(inner.predict(ids, verbose=0)) == list(inner(ids)) == ["start_logits", "end_logits"]
    functional.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(ids)["end_logits"], functional(ids)["end_logits"])


def test_labels_in_the_inputs():
    model, batch = BertForSequenceClassification(CONFIG, num_labels=3), dict(inputs())
    batch["labels"] = np.arange(len(batch["input_ids"])) % 3
    model.compile("sgd")
    model.run_eagerly = True
    expected = model.evaluate(inputs(), batch["labels"], verbose=0)
    assert model.evaluate(batch, verbose=0) == expected
    assert float(model.compute_loss(batch, y_pred=model(batch))) == pytest.approx(expected[0], 1e-6)
    model.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
    assert model.evaluate(batch, verbose=0) == pytest.approx(expected[0], 1e-6)

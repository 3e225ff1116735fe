"""A model's inputs: Hugging Face's names are accepted everywhere; unknown names are errors."""

import collections
import functools
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.every_model import CONFIG, MODELS, inputs
from helpers.outputs import enlarge

from bert_tf.models.task_models import BertForQuestionAnswering, BertForSequenceClassification, BertModel

HUGGING_FACE = {"input_mask": "attention_mask", "segment_ids": "token_type_ids"}
KINDS = {
    "encoder": (lambda: BertModel(CONFIG), inputs()),
    **MODELS,
}


@functools.cache
def made(name) -> tuple:
    """A model, and its inputs with a mask and segments that matter."""
    create, features = KINDS[name]
    model, batch = enlarge(create()), dict(features)
    batch["input_mask"], batch["segment_ids"] = batch["input_mask"].copy(), batch["segment_ids"].copy()
    batch["input_mask"][..., 4:], batch["segment_ids"][..., 2:] = 0, 1
    return model, batch


def renamed(batch):
    return {HUGGING_FACE.get(name, name): value for name, value in batch.items()}


def arrays_of(outputs):
    outputs = outputs if isinstance(outputs, dict) else {"": outputs}
    return {name: np.asarray(value) for name, value in outputs.items()}


def assert_same(outputs, expected):
    outputs, expected = arrays_of(outputs), arrays_of(expected)
    assert set(outputs) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(outputs[name], value, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", KINDS)
def test_other_names_give_the_same(name):
    model, batch = made(name)
    expected = model(batch)
    assert_same(model(collections.UserDict(renamed(batch))), expected)
    without_mask = model({key: value for key, value in batch.items() if key != "input_mask"})
    found = arrays_of(without_mask)
    assert any(not np.allclose(found[key], value) for key, value in arrays_of(expected).items())
    if name not in ("encoder", "choice", "pretraining"):  # others take their arguments alike
        return
    assert_same(model(**renamed(batch), training=False), expected)
    assert_same(model({**batch, "input_mask": None, "attention_mask": batch["input_mask"]}), expected)
    model.run_eagerly = name != "pretraining"  # tracing all models takes long; this one has inputs of all kinds
    assert_same(model.predict(renamed(batch), verbose=0), expected)


@pytest.mark.parametrize("name", ["encoder", "classifier"])
def test_unknown_and_double_names(name):
    model, batch = made(name)
    for more, message in (
        ({"atention_mask": 0}, "does not know the input atention_mask. Known: input_ids, "),
        ({"token_type_ids": 0}, "got segment_ids and token_type_ids, two names of one input"),
        ({"start_positions": 0}, "does not know the input start_positions"),
    ):
        with pytest.raises(ValueError, match=f"{type(model).__name__} {message}"):
            model(batch | more)


@pytest.mark.parametrize("name", ["masked", "next", "pretraining"])
def test_pretraining_models_take_whole_records(name):
    record = {**MODELS["pretraining"][1], "example_weights": np.ones(4, "float32")}
    model = MODELS[name][0]()
    model.compile(optimizer="sgd", run_eagerly=True)
    model(record)
    assert np.isfinite(model.fit(renamed(record), epochs=1, verbose=0).history["loss"][0])
    packed = record | {
        "sequence_ids": np.array([[1, 1, 1, 2, 2, 0]] * 4, "int32"),
        "position_ids": np.array([[0, 1, 2, 0, 1, 0]] * 4, "int32"),
        "pooled_positions": np.array([[0, 3]] * 4, "int32"),
        "next_sentence_labels": np.array([[0, 1]] * 4, "int32"),
        "next_sentence_weights": np.ones((4, 2), "float32"),
    }
    model(packed)
    with pytest.raises(ValueError, match="does not know the input unique_ids"):
        model({**record, "unique_ids": np.zeros(4)})


# --- shapes ----------------------------------------------------------------------------------------------------------

IDS, ONES = np.array([[5, 6, 7], [5, 6, 0]]), np.ones((2, 3), int)


@pytest.mark.parametrize(("name", "given"), [
    ("input_mask", ONES[0]), ("segment_ids", 0 * ONES[0]), ("position_ids", ONES[:, :1])
])  # fmt: skip
def test_arrays_that_are_no_rows(name, given):
    with pytest.raises(ValueError, match=rf"^{name} must have the shape of input_ids, \(2, 3\), not \("):
        made("classifier")[0]({"input_ids": IDS, name: given})
    causal = np.tril(np.ones((2, 3, 3)))
    assert made("encoder")[0]({"input_ids": IDS, "input_mask": causal})["pooled_output"].shape[0] == 2


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
    """Losses and metrics by name, of a model and of a functional one around it, which is saved as before."""
    inner, ids = BertForQuestionAnswering(CONFIG), inputs()["input_ids"]
    places = {name: np.arange(len(ids)) for name in ("start_logits", "end_logits")}
    given = keras.Input(ids.shape[1:], dtype="int32", name="input_ids")
    functional = keras.Model([given], inner(given, attention_mask=keras.ops.ones_like(given)))
    one = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    by_name = dict.fromkeys(places, one)
    for model, loss in ((inner, by_name), (inner, one), (functional, one)):
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

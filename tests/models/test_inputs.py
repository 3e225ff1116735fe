"""A model's inputs: Hugging Face's names are accepted everywhere; unknown names are errors."""

import collections
import functools

import numpy as np
import pytest
from helpers.every_model import CONFIG, MODELS, inputs
from helpers.outputs import enlarge

from bert_tf.models.task_models import BertModel

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
    kind = type(model).__name__
    with pytest.raises(ValueError, match=f"{kind} does not know the input atention_mask. Known: input_ids, "):
        model({**batch, "atention_mask": batch["input_mask"]})
    with pytest.raises(ValueError, match=f"{kind} got segment_ids and token_type_ids, which are two names of the same"):
        model({**batch, "token_type_ids": batch["segment_ids"]})
    with pytest.raises(ValueError, match=f"{kind} needs input_ids; given: input_mask"):
        model(attention_mask=batch["input_mask"])
    with pytest.raises(ValueError, match=f"{kind} needs input_ids; given: nothing"):
        model()
    with pytest.raises(ValueError, match="does not know the input label\\."):
        model.predict({**batch, "label": np.zeros(4)}, verbose=0)


def test_labels_are_known_to_the_model_that_learns_from_them():
    labels = {"label_ids": np.zeros(4, int), "example_weights": np.ones(4, "float32"), "is_real_example": np.ones(4)}
    MODELS["classifier"][0]()({**inputs(), **labels})
    for name in ("questions", "encoder"):
        with pytest.raises(ValueError, match="does not know the input label_ids"):
            KINDS[name][0]()(inputs(label_ids=labels["label_ids"]))


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


@pytest.mark.parametrize(("given", "message"), [
    ({"input_ids": IDS, "input_mask": ONES[0]}, r"^input_mask must have the shape .*, \(2, 3\), not \(3,\)"),
    ({"input_ids": IDS, "segment_ids": 0 * ONES[0]}, r"^segment_ids must have the shape of input_ids"),
    ({"input_ids": IDS, "position_ids": ONES[:, :1]}, r"^position_ids must have the shape of input_ids"),
])  # fmt: skip
def test_arrays_that_are_no_rows(given, message):
    for name in ("encoder", "classifier"):
        with pytest.raises((TypeError, ValueError), match=message) as caught:
            made(name)[0](given)
        assert "\n" not in str(caught.value)
    causal = np.tril(np.ones((2, 3, 3)))
    assert made("encoder")[0]({"input_ids": IDS, "input_mask": causal})["pooled_output"].shape[0] == 2

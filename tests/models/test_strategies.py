"""`fit` and `evaluate` in a strategy's scope give the numbers of one device, as with any Keras model."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.every_model import ALBERT, CASES, CONFIG, ELECTRA, LENGTH, MODELS, inputs
from helpers.slow import slow

CLASSES, WEIGHTS = np.array([0, 1, 3, 1], "int32"), np.array([1.0, 0.0, 0.5, 4.0], "float32")
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
# Of the tokens that each replica reads, different numbers have a label.
TOKENS = np.where(np.arange(LENGTH) < [[6], [5], [1], [2]], 2, -100).astype("int32")
LABELS = {"tagger": {"label_ids": TOKENS}, "discriminator": {"is_replaced": (TOKENS == 2).astype("int32")},
          "masked": {"masked_lm_weights": np.array([[1, 1], [1, 1], [1, 0], [0, 0]], "float32")}}  # fmt: skip


def scope_of(count: int):
    if count == 1:
        return tf.distribute.get_strategy().scope()
    names = [device.name for device in tf.config.list_logical_devices("CPU")[:count]]
    # TensorFlow's collectives fail where four "devices" share one processor.
    return tf.distribute.MirroredStrategy(names, cross_device_ops=tf.distribute.ReductionToOneDevice()).scope()


@pytest.fixture(autouse=True)
def without_dropout(monkeypatch):
    for config in (ALBERT, CONFIG, ELECTRA):
        for name in vars(config):
            if "dropout" in name:
                monkeypatch.setattr(config, name, 0.0)


def with_equal_weights(model):
    """The same in each call; without dropout in the head."""
    if hasattr(model, "dropout_rate"):
        model.dropout_rate = 0.0
    if not model.built:
        model.build()
    for number, variable in enumerate(model.trainable_variables):
        variable.assign(np.random.default_rng(number).normal(0, 0.3, variable.shape))
    return model


def trained(count: int, make, data: dict, *, regularizer=None, **settings) -> tuple:
    """The change of each variable, what `fit` gives, and what `evaluate` does, on so many devices."""
    with scope_of(count):
        model = with_equal_weights(make())
        if regularizer:
            model.trainable_variables[-1].regularizer = regularizer
        model.compile(optimizer=keras.optimizers.SGD(0.1), run_eagerly=True, **settings)
    before = [variable.numpy() for variable in model.trainable_variables]
    history = model.fit(**data, shuffle=False, verbose=0, batch_size=4).history
    changes = [variable.numpy() - old for variable, old in zip(model.trainable_variables, before, strict=True)]
    data = {name: value for name, value in data.items() if name != "class_weight"}
    return changes, history, model.evaluate(**data, verbose=0, return_dict=True)


def assert_equal(found: tuple, expected: tuple) -> None:
    assert max(np.abs(change).max() for change in expected[0]) > 1e-4
    for value, other in zip(*map(keras.tree.flatten, (found, expected)), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-4, atol=1e-6)


HEADS = ["tagger"]
WITHOUT_A_CASE_HERE = ("electra", "adapted", "causal", "taught", "taught classes")
OTHERS = [name for name in CASES if name not in (*HEADS, *WITHOUT_A_CASE_HERE)]


@pytest.mark.parametrize(
    ("name", "count"), [*((name, 2) for name in HEADS), *slow(*((n, 2) for n in OTHERS), *((n, 4) for n in HEADS))]
)
def test_each_head_trains_as_on_one_device(name, count):
    make, features = CASES[name]
    data = {"x": features | LABELS.get(name, {})}
    assert_equal(trained(count, make, data), trained(1, make, data))


@pytest.mark.parametrize(("data", "settings"), [
    ({"sample_weight": WEIGHTS}, {"loss": CROSS_ENTROPY, "metrics": ["accuracy"]}),
    *slow(
        ({"sample_weight": WEIGHTS}, {}),
        ({"class_weight": {0: 9.0, 1: 0.5}}, {}),
        ({}, {"regularizer": keras.regularizers.L2(0.3)}),
    ),
])  # fmt: skip
def test_what_compile_and_fit_are_given(data, settings):
    make, data = MODELS["classifier"][0], {"x": inputs(), "y": CLASSES, **data}
    assert_equal(trained(2, make, data, **settings), trained(1, make, data, **settings))


def test_the_loss_of_tokens_is_their_mean_in_uneven_batches():
    model = with_equal_weights(MODELS["tagger"][0]())
    model.compile("sgd", run_eagerly=True)
    found = [model.evaluate(inputs(label_ids=TOKENS), batch_size=size, verbose=0, return_dict=True) for size in (4, 1)]
    assert found[0]["loss"] == pytest.approx(found[1]["loss"], rel=1e-5)
    assert found[0]["loss"] == pytest.approx(found[0]["token_loss"], rel=1e-5)

"""Keras's own calls, callbacks, losses, metrics and files work as with any Keras model."""

import collections
import contextlib
import functools
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.basics import slow
from helpers.every_model import CASES, CONFIG, LENGTH, MODELS, PACKED, inputs, without_dropout
from helpers.outputs import enlarge
from helpers.training_steps import mirrored

from bert_tf import AdamWeightDecay, BertForQuestionAnswering, BertForSequenceClassification, BertModel

LOWER = {"similarity": "mean_absolute_error", "tagger": "token_loss", "masked": "masked_lm_loss"}


# The rule is one for all names of metrics: losses and errors are to fall, others to rise.
@pytest.mark.parametrize("name", ["classifier", "similarity", "tagger", "masked", "electra"])
def test_callbacks_need_no_mode(name, tmp_path):
    create, features = MODELS[name]
    model = create()
    model.compile(optimizer=AdamWeightDecay(1e-3), run_eagerly=True)
    higher = [metric.name for metric in model.objective_metric.metrics if not metric.name.endswith(("loss", "error"))]
    better = {f"val_{LOWER.get(name, 'loss')}": keras.ops.less}
    better |= {f"val_{metric}": keras.ops.greater for metric in higher[:1]}
    file = tmp_path / "best.keras"
    callbacks = [keras.callbacks.ModelCheckpoint(str(file), [*better][-1], save_best_only=True)]
    for monitor in better:
        callbacks.append(keras.callbacks.EarlyStopping(monitor, patience=1, restore_best_weights=True))
        callbacks.append(keras.callbacks.ReduceLROnPlateau(monitor, patience=1))
    logs = {f"val_{name}": value for name, value in model.evaluate(features, verbose=0, return_dict=True).items()}
    assert better.keys() <= logs.keys() and "val_loss" in logs
    for callback in callbacks:
        callback.set_model(model)
        callback.on_train_begin()
        callback.on_epoch_end(0, dict(logs))
        assert callback.monitor_op is better[callback.monitor]
    assert file.exists()


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
    """Keras gives one for each label. Metrics count rows alike, but none of weight 0."""
    positions, weights = [NUMBERS, NUMBERS], np.array([1.0, 0.0, 0.5, 2.0], np.float32)
    model = compiled("questions")
    loss, *metrics = model.evaluate(inputs(), positions, sample_weight=weights, verbose=0)
    named = inputs(start_positions=NUMBERS, end_positions=NUMBERS)
    assert loss == model.evaluate({**named, "example_weights": weights}, verbose=0)[0]
    assert metrics == model.evaluate({**named, "example_weights": np.sign(weights)}, verbose=0)[1:]


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


KINDS = {"encoder": (lambda: BertModel(CONFIG), inputs()), **MODELS}


@functools.cache
def made(name) -> tuple:
    create, features = KINDS[name]
    model, batch = enlarge(create()), dict(features)
    batch["input_mask"], batch["segment_ids"] = batch["input_mask"].copy(), batch["segment_ids"].copy()
    batch["input_mask"][..., 4:], batch["segment_ids"][..., 2:] = 0, 1
    return model, batch


def renamed(batch):
    names = {"input_mask": "attention_mask", "segment_ids": "token_type_ids"}
    return {names.get(name, name): value for name, value in batch.items()}


def are_same(outputs, expected) -> bool:
    pairs = zip(*map(keras.tree.flatten, (outputs, expected)), strict=True)
    return all(np.allclose(one, other, rtol=0, atol=1e-6) for one, other in pairs)


@pytest.mark.parametrize("name", KINDS)
def test_other_names_give_the_same(name):
    model, batch = made(name)
    expected = model(batch)
    assert are_same(model(collections.UserDict(renamed(batch))), expected)
    assert not are_same(model({key: value for key, value in batch.items() if key != "input_mask"}), expected)
    if name not in ("encoder", "choice", "pretraining"):  # others take their arguments alike
        return
    assert are_same(model(**renamed(batch), training=False), expected)
    assert are_same(model({**batch, "input_mask": None, "attention_mask": batch["input_mask"]}), expected)
    model.run_eagerly = name != "pretraining"  # tracing all models takes long; this one has inputs of all kinds
    assert are_same(model.predict(renamed(batch), verbose=0), expected)


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
    with pytest.raises(ValueError, match="BertForQuestionAnswering does not know .* labels. .*from-transformers.md#in"):
        MODELS["questions"][0]()(batch, labels=np.zeros(4))
    ids, labels = keras.Input((None,), dtype="int32"), keras.Input((), dtype="int32")
    assert not hasattr(MODELS["classifier"][0]()(ids, labels=labels), "loss")  # of a functional model
    with pytest.raises(TypeError, match="is given input_ids twice"):
        model(batch, input_ids=batch["input_ids"])


@pytest.mark.parametrize("name", ["masked", "next", "pretraining"])
def test_pretraining_models_take_whole_records(name):
    record = {**MODELS["pretraining"][1], "example_weights": np.ones(4, "float32")}
    model = MODELS[name][0]()
    model.compile(optimizer="sgd", run_eagerly=True)
    model(record)
    assert np.isfinite(model.fit(renamed(record), epochs=1, verbose=0).history["loss"][0])
    model(record | PACKED)
    with pytest.raises(ValueError, match="does not know the input unique_ids"):
        model({**record, "unique_ids": np.zeros(4)})


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
    """The one output of a model, too; of several: test_descendants.py."""
    ids, model = inputs()["input_ids"], BertForSequenceClassification(CONFIG, num_labels=3)
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


CLASSES, WEIGHTS = np.array([0, 1, 3, 1], "int32"), np.array([1.0, 0.0, 0.5, 4.0], "float32")
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
SUM = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
THREE = {"x": {name: value[:3] for name, value in inputs().items()}, "y": CLASSES[:3]}  # for two devices unevenly
# Of the tokens that each replica reads, different numbers have a label.
TOKENS = np.where(np.arange(LENGTH) < [[6], [5], [1], [2]], 2, -100).astype("int32")
LABELS = {"tagger": {"label_ids": TOKENS}, "discriminator": {"is_replaced": (TOKENS == 2).astype("int32")},
          "masked": {"masked_lm_weights": np.array([[1, 1], [1, 1], [1, 0], [0, 0]], "float32")}}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_is_dropped(monkeypatch):
    without_dropout(monkeypatch)


def trained(count: int, make, data: dict, *, regularizer=None, **settings) -> tuple:
    """The change of each variable, what `fit` gives, and what `evaluate` does, on so many devices."""
    with mirrored(count).scope() if count > 1 else contextlib.nullcontext():
        model = enlarge(make())
        if regularizer:
            model.trainable_variables[-1].regularizer = regularizer
        model.compile(**{"optimizer": keras.optimizers.SGD(0.1), "run_eagerly": True, **settings})
    before = [variable.numpy() for variable in model.trainable_variables]
    data = {"batch_size": 4, **data}
    history = model.fit(**data, shuffle=False, verbose=0).history
    changes = [variable.numpy() - old for variable, old in zip(model.trainable_variables, before, strict=True)]
    data = {name: value for name, value in data.items() if name != "class_weight"}
    return changes, history, model.evaluate(**data, verbose=0, return_dict=True)


def assert_equal(found: tuple, expected: tuple) -> None:
    assert max(np.abs(change).max() for change in expected[0]) > 1e-4
    for value, other in zip(*map(keras.tree.flatten, (found, expected)), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-4, atol=1e-6)


OTHERS = CASES.keys() - {"tagger", "electra", "adapted", "causal", "taught", "taught classes"}  # without a case here


@pytest.mark.parametrize(
    ("name", "count"), [("tagger", 2), *slow(*((name, 2) for name in sorted(OTHERS)), ("tagger", 4))]
)
def test_each_head_trains_as_on_one_device(name, count):
    make, features = CASES[name]
    data = {"x": features | LABELS.get(name, {})}
    assert_equal(trained(count, make, data), trained(1, make, data))


@pytest.mark.parametrize(("data", "settings"), [
    ({**THREE, "sample_weight": WEIGHTS[:3]}, {"loss": CROSS_ENTROPY, "metrics": ["accuracy"]}),
    *slow(({"sample_weight": WEIGHTS}, {}), ({"class_weight": {0: 9.0, 1: 0.5}}, {}), (THREE, {"loss": SUM}),
          ({"batch_size": 3}, {"loss": CROSS_ENTROPY, "run_eagerly": False}),
          ({"batch_size": 3}, {"run_eagerly": False}), ({}, {"regularizer": keras.regularizers.L2(0.3)})),
])  # fmt: skip
def test_what_compile_and_fit_are_given(data, settings):
    make, data = MODELS["classifier"][0], {"x": inputs(), "y": CLASSES, **data}
    told = 1 if settings.get("loss") is SUM else 3  # of sums Keras reports another loss
    assert_equal(trained(2, make, data, **settings)[:told], trained(1, make, data, **settings)[:told])


def test_loss_and_metrics_of_tokens_are_their_means_in_uneven_batches():
    model = enlarge(MODELS["tagger"][0]())
    model.compile("sgd", run_eagerly=True)
    found = [model.evaluate(inputs(label_ids=TOKENS), batch_size=size, verbose=0, return_dict=True) for size in (4, 1)]
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert found[0]["loss"] == pytest.approx(found[0]["token_loss"], rel=1e-5)

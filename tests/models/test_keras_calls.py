"""Arguments of compile, fit, evaluate and predict that Keras would pass over, or answer with a traceback of its own."""

import functools

import keras
import numpy as np
import pandas
import pytest
import tensorflow as tf
from helpers.every_model import MODELS, ROWS, inputs

NUMBERS, IDS = np.array([0, 1, 3, 1]), inputs()["input_ids"]
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy


def compiled(name="classifier", *arguments):
    model = MODELS[name][0]()
    model.compile("sgd", *arguments, run_eagerly=True)
    return model


@functools.cache
def untrained(name="classifier"):
    """A model for calls that are refused: it stays as it is."""
    return compiled(name)


def dataset(*parts):
    return tf.data.Dataset.from_tensor_slices(parts).batch(2)


# --- compile ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["classifier", "labels", "tagger", "questions", "similarity", "baseline"])
def test_losses_that_take_no_logits(name):
    wrong = [
        "sparse_categorical_crossentropy",
        "mse",
        keras.losses.mean_squared_error,
        CROSS_ENTROPY(),
        keras.losses.KLDivergence(),
    ]
    for loss in (*wrong, {"start_logits": CROSS_ENTROPY(), "end_logits": CROSS_ENTROPY()}, wrong[:1]):
        with pytest.raises(ValueError, match="gives logits, which this loss .* Leave loss out for the model's own, or"):
            compiled(name, loss)
    for loss in (CROSS_ENTROPY(from_logits=True), lambda y, logits: keras.ops.sum(logits), None):
        compiled(name, loss)


def test_losses_of_a_number():
    model = MODELS["classifier"][0]()
    model = type(model)(model.config, num_labels=1)
    for loss in ("mse", keras.losses.Huber()):
        model.compile("sgd", loss, run_eagerly=True)
    assert np.isfinite(model.fit(inputs(), NUMBERS / 2, verbose=0).history["loss"]).all()
    with pytest.raises(ValueError, match="loss='binary_crossentropy': BertForSequenceClassification gives numbers"):
        model.compile("sgd", "binary_crossentropy")


@pytest.mark.parametrize("metric", [
    "AUC", "mae", "Precision", "Recall", "sparse_categorical_crossentropy", "F1Score", keras.metrics.Accuracy(),
    keras.metrics.AUC(from_logits=True), keras.losses.mean_squared_error, keras.metrics.SparseCategoricalCrossentropy(),
])  # fmt: skip
def test_metrics_that_take_no_logits(metric):
    model = MODELS["classifier"][0]()
    message = "metrics='?[A-Za-z1_]+'?: BertForSequenceClassification gives logits, but .*write \"accuracy\", or give"
    for metrics in ([metric], ["accuracy", metric], {"logits": metric}):
        for name in ("metrics", "weighted_metrics"):
            with pytest.raises(ValueError, match=message) as caught:
                model.compile("sgd", **{name: metrics})
            assert "\n" not in str(caught.value)


def test_metrics_that_take_logits_or_numbers():
    class Own(keras.metrics.MeanSquaredError):
        def update_state(self, y, logits, sample_weight=None):
            super().update_state(y, keras.ops.argmax(logits, axis=-1), sample_weight)

    def own(y, logits):
        return keras.ops.mean(logits)

    accuracies = ["accuracy", "acc", "sparse_categorical_accuracy", "SparseTopKCategoricalAccuracy"]
    losses = [keras.metrics.SparseCategoricalCrossentropy(from_logits=True), CROSS_ENTROPY(from_logits=True)]
    model = compiled()
    metrics = [*accuracies, *losses, own, keras.metrics.MeanMetricWrapper(own), Own("own_error")]
    model.compile("sgd", metrics=metrics, run_eagerly=True)
    assert np.isfinite([*model.evaluate(inputs(), NUMBERS, verbose=0, return_dict=True).values()]).all()
    with pytest.raises(ValueError, match="accuracyy"):
        model.compile("sgd", metrics=["accuracyy"])
    several = MODELS["labels"][0]()
    metrics = [keras.metrics.BinaryAccuracy(threshold=0.0), keras.metrics.AUC(from_logits=True)]
    several.compile("sgd", metrics=metrics, run_eagerly=True)
    assert np.isfinite([*several.evaluate(MODELS["labels"][1], verbose=0, return_dict=True).values()]).all()
    for odd in ("Precision", "accuracy", "binary_accuracy"):  # Keras would count a logit above 0.5 as a label
        with pytest.raises(ValueError, match=f"{odd}.* for the model's own, or give a function of labels and logits"):
            several.compile("sgd", metrics=[odd])
    number = type(model)(model.config, num_labels=1)
    number.compile("sgd", metrics=["mae", keras.metrics.RootMeanSquaredError()], run_eagerly=True)
    assert np.isfinite([*number.evaluate(inputs(), NUMBERS / 2, verbose=0, return_dict=True).values()]).all()
    with pytest.raises(ValueError, match='metrics=.AUC.: .* gives numbers, but .* write "mae"'):
        number.compile("sgd", metrics=["AUC"])


@pytest.mark.parametrize("name", ["questions", "pretraining", "electra"])
def test_metrics_of_several_outputs(name):
    model, features = MODELS[name]
    for metrics in (["accuracy"], "accuracy", keras.metrics.SparseCategoricalAccuracy()):
        message = r"several outputs. Leave it out for the model's own, \w+_accuracy.* or give a dict by the name of the"
        with pytest.raises(ValueError, match=message) as caught:
            model().compile("sgd", metrics=metrics)
        assert "\n" not in str(caught.value)
    model = compiled(name, None, None, {"start_logits": ["accuracy"]})
    with pytest.raises(ValueError, match="metrics of compile need labels as y, a list of one array for each output: "):
        model.evaluate(features, verbose=0)


def test_metrics_of_each_output():
    for metrics in ({"start_logits": ["accuracy"], "end_logits": ["accuracy"]}, ["accuracy", "accuracy"]):
        found = compiled("questions", None, None, metrics).evaluate(
            inputs(), [NUMBERS] * 2, verbose=0, return_dict=True
        )
        assert found["start_logits_accuracy"] == found["start_accuracy"]


def test_a_second_compile_forgets_the_first():
    """Keras would keep a loss, or metrics, that the second call does not name."""
    model = compiled("classifier", lambda y, logits: keras.ops.sum(logits) / 0)
    model.compile("sgd", metrics=[lambda y, logits: 1 / 0], run_eagerly=True)
    with pytest.raises(ZeroDivisionError):
        model.fit(inputs(), NUMBERS, verbose=0)
    model.compile("sgd", run_eagerly=True)
    assert np.isfinite(model.fit(inputs(), NUMBERS, verbose=0).history["loss"]).all()


# --- fit, evaluate and predict ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "labels", "message"), [
    ("classifier", np.eye(5)[NUMBERS], r"^label_ids must be \[batch\], not .*; of one-hot labels give labels.argmax"),
    ("classifier", ["a", "b", "c", "a"], "^fit: labels are numbers, not names"),
    ("classifier", pandas.Series(["a"] * 4), "^fit: labels are numbers, not names"),
    ("classifier", [1, None, 0, 1], "^fit: labels are numbers, one for each row of input_ids, not objects, None"),
    ("classifier", pandas.Series([1, 0, 2, 1], dtype="category"), "^fit: labels are numbers, one for each row"),
    ("classifier", [0.5, 1, 2, 0], r"^label_ids\[\d\] is 0.5, but must be a class, from 0 to 4"),
    ("classifier", 1, "^fit: labels must be a list or an array, one for each row of input_ids, not 1"),
    ("classifier", [0, 1, np.nan, 1], "^fit: labels must be finite numbers: some are NaN or infinite"),
    ("classifier", NUMBERS[:3], "^fit: 4 rows of input_ids and 3 labels or weights: give as many of each"),
    ("labels", NUMBERS, r"^label_ids must be \[batch, 3\], not \(4,\)"),
    ("labels", np.eye(4)[NUMBERS], r"^label_ids must be \[batch, 3\], not \(4, 4\)"),
    ("tagger", NUMBERS, r"^label_ids must be \[batch, 6\], not \(4,\)"),
    ("questions", [NUMBERS, NUMBERS[:, None] * [1, 1]], r"^end_positions must be \[batch\], not \(4, 2\)"),
])  # fmt: skip
def test_labels_that_do_not_fit(name, labels, message):
    model = untrained(name)
    for data in ((inputs(), labels), (inputs(), labels, np.ones(ROWS))):
        with pytest.raises((TypeError, ValueError), match=message) as caught:
            model.fit(*data[:2], sample_weight=[*data, None][2], verbose=0)
        assert "\n" not in str(caught.value)
    if name == "tagger":
        with pytest.raises((TypeError, ValueError), match=message.removeprefix("^")):
            model.fit(MODELS[name][1], validation_data=(inputs(), labels), verbose=0)


@pytest.mark.parametrize(("changed", "message"), [
    ({"input_ids": IDS > 9}, "^input_ids must be whole numbers, not bool: give them as int32"),
    ({"input_ids": IDS.astype("uint8")}, "^input_ids must be whole numbers, not uint8: give them as int32"),
    ({"input_ids": IDS.astype("object")}, "^input_ids must be whole numbers, not object: give them as int32"),
    ({"input_ids": tf.ragged.constant([[1, 2], [3]]), "input_mask": None, "segment_ids": None},
     "^input_ids must be an array, not a RaggedTensor: pad its rows, as tokenizer"),
    ({"input_ids": tf.sparse.from_dense(IDS)}, "^input_ids must be an array, not a SparseTensor: pad its rows, as tok"),
    ({"input_ids": IDS[0], "input_mask": None, "segment_ids": None},
     r"^input_ids must be \[batch, sequence\]; got shape \(6,\)"),
    ({"input_ids": IDS.astype("float32")}, "^input_ids must be whole numbers, not float32: give them as int32"),
    ({"input_ids": IDS[:0]}, r"^input_ids has no tokens: its shape is \(0, 6\)"),
    ({"input_mask": np.ones_like(IDS).T}, r"^input_mask must have the shape of input_ids, \(4, 6\), not \(6, 4\)"),
    ({"input_mask": 2 * np.ones_like(IDS)}, "^input_mask must be 1 for tokens and 0 for padding, not 2"),
    ({"attention_mask": -np.ones_like(IDS), "input_mask": None}, "^input_mask must be 1 .* and 0 for padding, not -1"),
])  # fmt: skip
def test_inputs_that_are_none(changed, message):
    model, features = untrained(), {name: value for name, value in inputs(**changed).items() if value is not None}
    for call in (model, model.predict, lambda x: model.fit(x, NUMBERS, verbose=0)):
        with pytest.raises((TypeError, ValueError), match=message) as caught:
            call(features)
        assert "\n" not in str(caught.value)


def test_calls_of_what_is_not_there():
    model = untrained()
    with pytest.raises(
        TypeError, match=r"^BertForSequenceClassification has no argument trainng \(did you mean training"
    ):
        model(inputs(), trainng=True)
    with pytest.raises(TypeError, match=r"has no argument atention_mask \(did you mean attention_mask\?\)"):
        model(input_ids=IDS, atention_mask=IDS)
    for x in ([], [inputs()], [(inputs(), NUMBERS)]):
        with pytest.raises(
            TypeError, match="^predict takes one dict of arrays, not a list of them: model.predict.token"
        ):
            model.predict(x)


def test_an_optimizer_of_another_model():
    optimizer = keras.optimizers.SGD()
    for model in (MODELS["classifier"][0](), MODELS["tagger"][0]()):
        model.compile(optimizer, run_eagerly=True)
        if not optimizer.built:
            model.fit(inputs(), NUMBERS, verbose=0)
    with pytest.raises(
        ValueError, match="^The optimizer was made for another model, without .*: compile a new one"
    ) as caught:
        model.fit(MODELS["tagger"][1], verbose=0)
    assert "\n" not in str(caught.value)


def test_a_dataset_is_not_warned_of(recwarn):
    """Keras warns that it can't shuffle a dataset, which nobody asked for."""
    compiled().fit(dataset(inputs(), NUMBERS), verbose=0)
    assert not [warning for warning in recwarn if "shuffle" in str(warning.message)]


def test_weights_of_two_labels_are_those_of_the_rows():
    """Keras gives one for each label."""
    positions, weights = [NUMBERS, NUMBERS], [1.0, 0.0, 0.5, 2.0]
    keras.utils.set_random_seed(1)
    model = compiled("questions")
    found = model.evaluate(inputs(), positions, sample_weight=np.array(weights), verbose=0)
    named = inputs(start_positions=NUMBERS, end_positions=NUMBERS, example_weights=np.array(weights, np.float32))
    assert found == model.evaluate(named, verbose=0)


def test_lists_of_numbers_are_arrays():
    for name, labels in (("classifier", [0, 1, 3, 1]), ("labels", [[0, 1, 1]] * 4), ("questions", [[0, 1, 2, 0]] * 2)):
        model = compiled(name)
        lists = {key: value.tolist() for key, value in inputs().items()}
        arrays = [np.array(part) for part in labels] if name == "questions" else np.array(labels)
        assert model.evaluate(lists, labels, verbose=0) == model.evaluate(inputs(), arrays, verbose=0)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"sample_weight": [1, 1, 1]}, "^fit: 4 rows of input_ids and 3 labels or weights"),
    ({"sample_weight": -np.ones(4)}, "^fit: sample_weight must be finite and at least 0"),
    ({"sample_weight": np.array([1, np.nan, 1, 1])}, "^fit: sample_weight must be finite and at least 0"),
    ({"sample_weight": np.ones((4, 6))}, r"^sample_weight must be of the shape of label_ids, \(4,\), not \(4, 6\)"),
    ({"sample_weight": "balanced"}, "^fit: sample_weight must be an array, a number for each row, not 'balanced'"),
    ({"sample_weight": {0: 1.0, 1: 2.0}}, "^fit: sample_weight must be .*; weights by class are class_weight"),
    ({"callbacks": "early"}, "^callbacks must be objects such as keras.callbacks.EarlyStopping.., not 'early'"),
    ({"callbacks": [keras.callbacks.EarlyStopping]}, "^callbacks must be objects .*, not <class"),
    ({"epochs": "3"}, "^epochs must be a whole number, not '3'"),
    ({"batch_size": 0}, "^batch_size=0 must be at least 1"),
    ({"validation_split": 2}, "^validation_split=2 must be at least 0 and less than 1"),
    ({"validation_data": (["a text"], ["a"])}, r"^validation_data takes token ids, not strings: validation_data=bert"),
    ({"class_weight": "balanced"}, r"^class_weight must be a dict by class number, such as \{0: 1.0, 1: 3.0\}, not 'b"),
    ({"class_weight": {"a": 1.0}}, "^a class in class_weight must be a whole number, not 'a'"),
    ({"class_weight": {0: "1"}}, r"^class_weight\[0\] must be a number, not '1'"),
    ({"class_weight": {5: 1.0}}, "^class_weight has the class 5, but the model has the classes 0 to 4"),
])  # fmt: skip
def test_arguments_that_are_none(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        untrained().fit(inputs(), NUMBERS, verbose=0, **arguments)
    assert "\n" not in str(caught.value)


def test_data_that_are_no_token_ids():
    texts, table = ["a text"] * 4, pandas.DataFrame({"text": ["a text"] * 4, "label": NUMBERS})
    for data in ((), (table,), (table[["text"]], table.label), (dataset(texts, NUMBERS),), (dataset(inputs(), texts),)):
        with pytest.raises(TypeError, match=r"^fit takes token ids, not (nothing|a table|strings): model.fit\("):
            untrained().fit(*data)
    weights = [1.0, 0.0, 2.0, 1.0]
    found = [compiled_evaluation(kind(weights)) for kind in (list, np.array)]
    assert found[0] == found[1] != compiled_evaluation(None)


def compiled_evaluation(weights):
    keras.utils.set_random_seed(1)
    return compiled().evaluate(inputs(), NUMBERS, sample_weight=weights, verbose=0)


def test_a_dataset_has_its_batches():
    model, data = compiled(), dataset(inputs(), NUMBERS)
    for call in (model.fit, model.evaluate, model.predict):
        with pytest.raises(ValueError, match="the dataset has its batches already, so that batch_size=4 would have no"):
            call(data, batch_size=4)
    with pytest.raises(ValueError, match="validation_data: the dataset has its batches already"):
        model.fit(data, validation_data=data, validation_batch_size=4)
    assert "val_loss" in model.fit(inputs(), NUMBERS, batch_size=2, validation_data=data, verbose=0).history


def test_class_weight_of_some_classes_and_without_labels():
    """Keras has no weight for a class above those that are named."""
    model, data = compiled(), dataset(inputs(), NUMBERS)
    model.optimizer.learning_rate = 0.0
    losses = [model.fit(data, class_weight=weights, verbose=0).history["loss"] for weights in ({0: 9.0}, {0: 1})]
    assert losses[0] != losses[1]
    labelled = inputs(label_ids=NUMBERS)
    for features in (labelled, tf.data.Dataset.from_tensor_slices(labelled).batch(2)):
        with pytest.raises(ValueError, match="class_weight needs labels beside the features: give y, or a dataset of"):
            model.fit(features, class_weight={0: 2.0}, verbose=0)

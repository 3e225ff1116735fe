"""Arguments of compile, fit, evaluate and predict that Keras would pass over, or answer with a traceback of its own."""

import keras
import numpy as np
import pandas
import pytest
import tensorflow as tf
from helpers.every_model import MODELS, ROWS, inputs

NUMBERS = np.array([0, 1, 3, 1])
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy


def compiled(name="classifier", *arguments):
    model = MODELS[name][0]()
    model.compile("sgd", *arguments, run_eagerly=True)
    return model


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


@pytest.mark.parametrize("name", ["questions", "joint", "pretraining", "electra"])
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
    ("classifier", NUMBERS[:3], "^fit: 4 rows of input_ids and 3 labels or weights: give as many of each"),
    ("labels", NUMBERS, r"^label_ids must be \[batch, 3\], not \(4,\)"),
    ("labels", np.eye(4)[NUMBERS], r"^label_ids must be \[batch, 3\], not \(4, 4\)"),
    ("tagger", NUMBERS, r"^label_ids must be \[batch, 6\], not \(4,\)"),
    ("questions", [NUMBERS, NUMBERS[:, None] * [1, 1]], r"^end_positions must be \[batch\], not \(4, 2\)"),
])  # fmt: skip
def test_labels_that_do_not_fit(name, labels, message):
    model = compiled(name)
    for data in ((inputs(), labels), (inputs(), labels, np.ones(ROWS))):
        with pytest.raises((TypeError, ValueError), match=message) as caught:
            model.fit(*data[:2], sample_weight=[*data, None][2], verbose=0)
        assert "\n" not in str(caught.value)
    with pytest.raises((TypeError, ValueError), match=message.removeprefix("^fit").removeprefix("^")):
        model.fit(MODELS[name][1], validation_data=(inputs(), labels), verbose=0)


def test_lists_of_numbers_are_arrays():
    for name, labels in (("classifier", [0, 1, 3, 1]), ("labels", [[0, 1, 1]] * 4), ("questions", [[0, 1, 2, 0]] * 2)):
        model = compiled(name)
        lists = {key: value.tolist() for key, value in inputs().items()}
        arrays = [np.array(part) for part in labels] if name == "questions" else np.array(labels)
        assert model.evaluate(lists, labels, verbose=0) == model.evaluate(inputs(), arrays, verbose=0)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"sample_weight": [1, 1, 1]}, "^fit: 4 rows of input_ids and 3 labels or weights"),
    ({"sample_weight": -np.ones(4)}, "^fit: sample_weight must be at least 0"),
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
        compiled().fit(inputs(), NUMBERS, verbose=0, **arguments)
    assert "\n" not in str(caught.value)


def test_data_that_are_no_token_ids():
    texts, table = ["a text"] * 4, pandas.DataFrame({"text": ["a text"] * 4, "label": NUMBERS})
    for data in ((), (table,), (table[["text"]], table.label), (dataset(texts, NUMBERS),), (dataset(inputs(), texts),)):
        with pytest.raises(TypeError, match=r"^fit takes token ids, not (nothing|a table|strings): model.fit\("):
            compiled().fit(*data)
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

"""Models with fine-tuning heads: the original's numbers (tests/golden/model), Keras, training."""

import contextlib
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.dropped import in_training
from helpers.losses import as_floats, softmax_losses
from helpers.paths import ROOT
from helpers.slow import slow
from helpers.training_steps import feed, trainer_of

from bert_tf.models import initialize, objectives
from bert_tf.models.config import BertConfig
from bert_tf.models.inputs import select
from bert_tf.models.task_models import (
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from bert_tf.training.optimization import AdamWeightDecay, create_optimizer
from bert_tf.training.step import make_evaluate_function

pytestmark = pytest.mark.numbers

CONFIGS = ("config1", "config2")
# Tolerances of the golden README; the last row has an all-zero mask, where float32 is coarse.
LAYERS, LOG_PROBABILITIES, ZERO_MASK_ROW, SCALAR = 2e-5, 5e-5, 2e-3, 5e-4


def load(golden, name, checkpoint, model_class, **arguments):
    folder = golden / "model" / name
    model = model_class(BertConfig.from_json_file(str(folder / "bert_config.json")), **arguments)
    result = initialize.load_weights(model, str(folder / checkpoint))
    assert not result.missing
    inputs = select(np.load(folder / "inputs.npz"), model.known_inputs)  # the file has the inputs of all models
    return model, inputs, dict(np.load(folder / "outputs.npz"))


def assert_close(actual, expected, tolerance=LAYERS, last_rows=1):
    actual = np.asarray(actual)
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual[:-last_rows], expected[:-last_rows], rtol=0, atol=tolerance)
    np.testing.assert_allclose(actual[-last_rows:], expected[-last_rows:], rtol=0, atol=ZERO_MASK_ROW)


# --- the original's numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_classifier_equals_the_original(golden, name):
    model, inputs, outputs = load(golden, name, "classifier.ckpt", BertForSequenceClassification, num_labels=3)
    logits = model(inputs)
    assert_close(logits, outputs["classifier_logits"])
    assert_close(keras.ops.softmax(logits), outputs["classifier_probabilities"])
    losses, _ = model.objective.values(logits, inputs)
    assert_close(losses, outputs["classifier_example_loss"])
    sums = model.objective.sums(logits, inputs)
    np.testing.assert_allclose(model.objective.loss(sums, sums), outputs["classifier_loss"], atol=SCALAR)


@pytest.mark.parametrize("name", CONFIGS)
def test_evaluation_of_a_classifier_equals_the_original(golden, name):
    """A padding example counts in the original's loss, but in neither of its metrics."""
    model, inputs, _ = load(golden, name, "classifier.ckpt", BertForSequenceClassification, num_labels=3)
    assert not inputs["is_real_example"].all()
    expected = json.loads((golden / "model" / name / "eval_metrics.json").read_text())["classifier"]
    evaluate = make_evaluate_function(model, model.objective, tf.distribute.OneDeviceStrategy("/cpu:0"))
    actual = evaluate([{key: tf.constant(value) for key, value in inputs.items()}])
    np.testing.assert_allclose(actual["accuracy"], expected["eval_accuracy"], atol=1e-6)
    np.testing.assert_allclose(actual["example_loss"], expected["eval_loss"], atol=2e-5)
    np.testing.assert_allclose(actual["loss"], expected["loss"], atol=SCALAR)
    assert abs(actual["loss"] - actual["example_loss"]) > 0.005


@pytest.mark.parametrize("name", CONFIGS)
def test_question_answering_equals_the_original(golden, name):
    model, inputs, outputs = load(golden, name, "squad.ckpt", BertForQuestionAnswering)
    result = model(inputs)
    assert_close(result["start_logits"], outputs["squad_start_logits"])
    assert_close(result["end_logits"], outputs["squad_end_logits"])
    if name == "config1":
        sums = model.objective.sums(result, inputs)
        loss = model.objective.loss(sums, sums)
    else:  # has positions outside of the rows, which cost the original nothing; here they are errors
        with pytest.raises(ValueError, match=r"start_positions\[1\] is 43, but must be a place in the row"):
            model.objective.sums(result, inputs)
        losses = [
            objectives.cross_entropy(result[f"{end}_logits"], inputs[f"{end}_positions"]) for end in ("start", "end")
        ]
        loss = np.mean(losses)
    np.testing.assert_allclose(loss, outputs["squad_loss"], atol=SCALAR)


def test_gradients_of_question_answering_equal_the_original(golden):
    folder = golden / "optimizer"
    model = BertForQuestionAnswering(BertConfig.from_json_file(str(folder / "bert_config.json")))
    initialize.load_weights(model, str(golden / "model" / "config1" / "squad.ckpt"))
    batch = select(np.load(folder / "inputs.npz"), model.known_inputs)
    variables = initialize.model_variables(model)
    with tf.GradientTape() as tape:
        sums = model.objective.sums(model(batch, training=True), batch)
        loss = model.objective.loss(sums, sums)
    gradients = tape.gradient(loss, {name: variable.value for name, variable in variables.items()})
    expected = np.load(folder / "squad_grads_step0.npz")
    without = {name for name, gradient in gradients.items() if gradient is None}
    assert without == {"bert/pooler/dense/kernel", "bert/pooler/dense/bias"}  # as in the original
    assert set(expected.files) == {name.replace("/", ".") for name in set(gradients) - without}
    for name in set(gradients) - without:
        actual = tf.convert_to_tensor(gradients[name])
        np.testing.assert_allclose(actual, expected[name.replace("/", ".")], atol=1e-5, err_msg=name)


@pytest.mark.parametrize("name", CONFIGS)
def test_masked_lm_equals_the_original(golden, name):
    model, inputs, outputs = load(golden, name, "bert_model.ckpt", BertForMaskedLM)
    del inputs["is_real_example"]  # of the classifier
    logits = model(inputs)
    predictions = inputs["masked_lm_ids"].shape[1]
    log_probabilities = np.asarray(keras.ops.log_softmax(logits)).reshape(-1, model.config.vocab_size)
    assert_close(log_probabilities, outputs["masked_lm_log_probs"], LOG_PROBABILITIES, predictions)
    sums = model.objective.sums(logits, inputs)
    np.testing.assert_allclose(model.objective.loss(sums, sums), outputs["masked_lm_loss"], atol=SCALAR)
    expected = json.loads((golden / "model" / name / "eval_metrics.json").read_text())["pretraining"]
    metrics = model.objective.metrics(sums)
    np.testing.assert_allclose(metrics["masked_lm_accuracy"], expected["masked_lm_accuracy"], atol=1e-6)
    np.testing.assert_allclose(metrics["masked_lm_loss"], expected["masked_lm_loss"], atol=SCALAR)
    everywhere = np.asarray(model({key: inputs[key] for key in ("input_ids", "input_mask", "segment_ids")}))
    assert everywhere.shape == (*inputs["input_ids"].shape, model.config.vocab_size)
    picked = np.take_along_axis(everywhere, inputs["masked_lm_positions"][..., None], axis=1)
    np.testing.assert_allclose(picked, logits, atol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_next_sentence_equals_the_original(golden, name):
    model, inputs, outputs = load(golden, name, "bert_model.ckpt", BertForNextSentencePrediction)
    logits = model(inputs)
    assert_close(keras.ops.log_softmax(logits), outputs["next_sentence_log_probs"])
    sums = model.objective.sums(logits, inputs)
    np.testing.assert_allclose(model.objective.loss(sums, sums), outputs["next_sentence_loss"], atol=SCALAR)


def test_variable_names_are_those_of_the_original(golden):
    for checkpoint, model_class, arguments in (
        ("classifier.ckpt", BertForSequenceClassification, {"num_labels": 3}),
        ("classifier.ckpt", BertForTokenClassification, {"num_labels": 3}),
        ("squad.ckpt", BertForQuestionAnswering, {}),
    ):
        model, _, _ = load(golden, "config1", checkpoint, model_class, **arguments)
        expected = dict(tf.train.list_variables(str(golden / "model" / "config1" / checkpoint)))
        assert {name: list(v.shape) for name, v in initialize.model_variables(model).items()} == expected


def test_tokens_and_choices_have_the_same_head_as_the_classifier(golden):
    arguments = (golden, "config1", "classifier.ckpt")
    model, inputs, outputs = load(*arguments, BertForTokenClassification, num_labels=3)
    weights, bias = (np.asarray(value) for value in (model.head.output_weights, model.head.output_bias))
    assert_close(model(inputs), outputs["sequence_output"] @ weights.T + bias, 1e-4)

    choice = BertForMultipleChoice(model.config)
    choice.build()
    choice.bert.set_weights(model.bert.get_weights())
    choice.head.output_weights.assign(weights[:1])
    choice.head.output_bias.assign(bias[:1])
    names = ("input_ids", "input_mask", "segment_ids")
    grouped = {name: inputs[name].reshape(2, 3, -1) for name in names}  # 6 rows: 2 examples of 3 choices
    scores = outputs["pooled_output"] @ weights[0] + bias[0]
    np.testing.assert_allclose(np.asarray(choice(grouped)).reshape(-1), scores, atol=ZERO_MASK_ROW)
    np.testing.assert_allclose(choice(grouped)[0], scores[:3], atol=5e-5)


# --- dropout ---------------------------------------------------------------------------------------------------------


def test_dropout_of_the_head():
    """With the identity as head, a tenth of the values is zero and the rest is divided by 0.9."""
    config = tiny_config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = BertForTokenClassification(config, num_labels=config.hidden_size)
    model.build()
    model.head.output_weights.assign(np.eye(config.hidden_size))
    inputs = batch_of("tokens", rows=64)
    plain = np.asarray(model(inputs))
    first, again, second = (np.asarray(in_training(model, inputs, seed)) for seed in ([1, 2], [1, 2], [1, 3]))
    np.testing.assert_array_equal(first, again)
    kept = first != 0
    np.testing.assert_allclose(first[kept], plain[kept] / 0.9, atol=1e-4)
    assert abs(kept.mean() - 0.9) < 4 * np.sqrt(0.09 / kept.size)
    both = ((first == 0) & (second == 0)).mean()
    assert abs(both - 0.01) < 5 * np.sqrt(0.01 / kept.size)
    unseeded, other = (np.asarray(model(inputs, training=True)) for _ in range(2))
    assert (unseeded != other).any()


@pytest.mark.parametrize("task", ["classification", "choices"])
def test_dropout_rate_is_the_originals_and_can_be_changed(task):
    config = tiny_config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    inputs, seed = batch_of(task), np.array([3, 4], "int32")
    for arguments, same in (({}, False), ({"dropout_rate": 0.0}, True)):
        model = make(task, config, **arguments)
        assert model.dropout_rate == (0.0 if same else 0.1)
        training = np.asarray(in_training(model, inputs, seed))
        assert np.allclose(training, model(inputs), atol=1e-5) == same


# --- Keras -----------------------------------------------------------------------------------------------------------

TASKS = {
    "classification": BertForSequenceClassification,
    "regression": BertForSequenceClassification,
    "multi_label": BertForSequenceClassification,
    "tokens": BertForTokenClassification,
    "choices": BertForMultipleChoice,
    "spans": BertForQuestionAnswering,
    "masked_lm": BertForMaskedLM,
    "next_sentence": BertForNextSentencePrediction,
}


def some_of(*often) -> list:
    """All tasks; only those in `often` run in `make test`, others share their head or objective."""
    return [pytest.param(task, marks=[pytest.mark.slow] * (task not in often)) for task in TASKS]


TASK_ARGUMENTS = {
    "classification": {"num_labels": 3},
    "regression": {"num_labels": 1},
    "multi_label": {"num_labels": 4, "problem_type": "multi_label_classification"},
    "tokens": {"num_labels": 5},
}


def tiny_config(**changes):
    sizes = {
        "vocab_size": 100,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 16,
        "type_vocab_size": 2,
    }
    return BertConfig(**{**sizes, **changes})


def make(task, config=None, **arguments):
    keras.utils.set_random_seed(1)
    model = TASKS[task](config or tiny_config(), **{**TASK_ARGUMENTS.get(task, {}), **arguments})
    model.build()
    return model


def batch_of(task, rows=8, length=12):
    """Inputs from which the labels of `labels_of` can be predicted."""
    generator = np.random.default_rng(2)
    shape = (rows, 3, length) if task == "choices" else (rows, length)
    mask = np.ones(shape, "int32")
    mask[..., length - 2 :] = 0
    segments = (np.arange(length) >= length // 2) * np.ones(shape, "int32")
    inputs = {"input_ids": generator.integers(5, 100, shape).astype("int32"), "input_mask": mask}
    inputs["segment_ids"] = segments.astype("int32")
    if task == "masked_lm":
        inputs["masked_lm_positions"] = np.tile(np.array([[1, 4, 6]], "int32"), (rows, 1))
    return inputs


def labels_of(task, rows=8, length=12):
    generator = np.random.default_rng(3)
    return {
        "classification": lambda: generator.integers(0, 3, rows),
        "regression": lambda: generator.normal(size=rows),
        "multi_label": lambda: generator.integers(0, 2, (rows, 4)),
        "tokens": lambda: generator.integers(-1, 5, (rows, length)),
        "choices": lambda: generator.integers(0, 3, rows),
        "spans": lambda: {name: generator.integers(0, length, rows) for name in ("start_positions", "end_positions")},
        "masked_lm": lambda: generator.integers(5, 100, (rows, 3)),
        "next_sentence": lambda: generator.integers(0, 2, rows),
    }[task]()


@pytest.mark.parametrize("task", some_of("classification"))
def test_fit_needs_no_loss_and_lowers_it(request, task):
    config = tiny_config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    has_dropout = task not in ("spans", "masked_lm", "next_sentence")
    model = make(task, config, **({"dropout_rate": 0.0} if has_dropout else {}))
    # Tracing one of the small forms is enough: a trace takes as long as all the steps.
    is_slow = request.node.get_closest_marker("slow") is not None
    eager = {"run_eagerly": not is_slow and task != "classification"}
    model.compile(optimizer=AdamWeightDecay(5e-3), jit_compile=False, **eager)
    x, y = batch_of(task), labels_of(task)
    before = model.evaluate(x, y, verbose=0, return_dict=True)
    history = model.fit(x, y, epochs=10, batch_size=8, verbose=0).history
    after = model.evaluate(x, y, verbose=0, return_dict=True)
    np.testing.assert_allclose(history["loss"][0], before["loss"], rtol=2e-3)
    assert after["loss"] < 0.6 * before["loss"], (before, after)

    # Metrics over batches of unequal size equal those over all examples at once.
    uneven = model.evaluate(x, y, batch_size=3, verbose=0, return_dict=True)
    labelled = objectives.features_with_labels(model.objective, x, y)
    expected = as_floats(model.objective.metrics(model.objective.sums(model(x), labelled)))
    assert set(uneven) == {"loss", *expected}
    assert {name: uneven[name] for name in expected} == pytest.approx(expected, rel=1e-4, abs=1e-6)
    # Labels may be among the features, as in a dataset made from records.
    np.testing.assert_allclose(model.evaluate(labelled, verbose=0, return_dict=True)["loss"], after["loss"], rtol=1e-5)


@pytest.mark.parametrize("replicas", [1, *slow(2)])
def test_fit_traces_a_step_once_per_replica(replicas, monkeypatch):
    """Variables created in the first trace would cause a second trace, which takes as long as everything else."""
    traced = []
    compute_loss = BertForSequenceClassification.compute_loss

    def counted(self, *args, **kwargs):
        traced.append(self)
        return compute_loss(self, *args, **kwargs)

    monkeypatch.setattr(BertForSequenceClassification, "compute_loss", counted)
    devices = [f"CPU:{number}" for number in range(replicas)]
    with tf.distribute.MirroredStrategy(devices).scope() if replicas > 1 else contextlib.nullcontext():
        model = make("classification")
        model.bert.trainable = False  # the head's variables suffice
        model.compile(optimizer=AdamWeightDecay(2e-3), jit_compile=False)
    x, y = batch_of("classification"), labels_of("classification")
    model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(4, drop_remainder=True), verbose=0)
    assert len(traced) == replicas and keras.ops.convert_to_numpy(model.optimizer.iterations) == len(y) // 4


@pytest.mark.parametrize(
    "how", [{"jit_compile": False}, *slow({"run_eagerly": True}, {"jit_compile": "auto"})], ids=str
)
def test_compile_with_a_loss_of_keras(how):
    model = make("classification", tiny_config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=AdamWeightDecay(5e-3), loss=loss, metrics=["accuracy"], **how)
    x, y = batch_of("classification"), labels_of("classification")
    history = model.fit(x, y, epochs=10, verbose=0).history
    assert set(history) == {"loss", "accuracy"}
    assert history["loss"][-1] < 0.6 * history["loss"][0]
    mean = softmax_losses(model.predict(x, verbose=0).astype("float64"), y).mean()
    result = model.evaluate(x, y, verbose=0, return_dict=True)
    np.testing.assert_allclose(result["loss"], mean, rtol=1e-4)
    assert result["accuracy"] == 1.0


def test_sample_weights():
    model = make("classification")
    model.compile(optimizer="adam", run_eagerly=True)
    x, y = batch_of("classification"), labels_of("classification")
    weights = np.array([0, 1, 2, 0, 1, 1, 0.5, 0])
    losses = softmax_losses(np.asarray(model(x)), y)
    result = model.evaluate(x, y, sample_weight=weights, verbose=0, return_dict=True)
    np.testing.assert_allclose(result["loss"], (losses * weights).sum() / weights.sum(), rtol=1e-5)
    np.testing.assert_allclose(result["example_loss"], result["loss"], rtol=1e-5)
    again = {**x, "example_weights": weights}
    ones = np.ones(8)
    np.testing.assert_allclose(model.evaluate(again, y, sample_weight=ones, verbose=0)[0], result["loss"], rtol=1e-5)


@pytest.mark.parametrize("task", TASKS)
def test_saved_keras_model_gives_the_same_outputs(task, tmp_path):
    model, x = make(task, tiny_config(layer_norm_eps=1e-6), seed=3), batch_of(task)
    model.compile(optimizer="adam")
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model) and loaded.objective is model.objective
    assert loaded.get_config() == model.get_config()
    assert loaded.config.layer_norm_eps == 1e-6
    for actual, expected in zip(keras.tree.flatten(loaded(x)), keras.tree.flatten(model(x)), strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-6)


@pytest.mark.slow  # In small: test_family_features.py.
@pytest.mark.parametrize("task", some_of("classification"))
def test_mixed_precision(task):
    x, y = batch_of(task), labels_of(task)
    plain, model = make(task), make(task, dtype="mixed_bfloat16")
    model.set_weights(plain.get_weights())
    assert {v.dtype for v in model.trainable_variables} == {"float32"}
    for actual, expected in zip(keras.tree.flatten(model(x)), keras.tree.flatten(plain(x)), strict=True):
        assert actual.dtype == tf.float32
        np.testing.assert_allclose(actual, expected, atol=0.02)
    assert model.bert(batch_of("tokens"))["sequence_output"].dtype == tf.bfloat16
    model.compile(optimizer=AdamWeightDecay(2e-3), jit_compile=False)
    losses = [model.train_on_batch(x, y, return_dict=True)["loss"] for _ in range(10)]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]


def test_inputs_may_be_ids_alone():
    for task in ("classification", "masked_lm", "choices"):
        model, ids = make(task), batch_of(task)["input_ids"]
        np.testing.assert_array_equal(model(ids), model({"input_ids": ids}))


# --- the training loop -----------------------------------------------------------------------------------------------


@pytest.mark.slow  # in small: training/test_loop.py
@pytest.mark.parametrize("task", ["tokens", "classification"])
def test_two_replicas_and_two_micro_batches_make_the_same_steps(task):
    """With dropout, whose masks depend on the place in the batch, not on the replica.

    ReductionToOneDevice, because TensorFlow's collective operations mix up two models of one process.
    """
    batch = {**batch_of(task), "label_ids": labels_of(task)}
    batch = {name: tf.constant(value) for name, value in batch.items()}
    results = []
    for strategy, parts in (
        (tf.distribute.OneDeviceStrategy("/cpu:0"), 2),
        (tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"], tf.distribute.ReductionToOneDevice()), 1),
    ):
        with strategy.scope():
            model = make(task, tiny_config(num_hidden_layers=2))
            optimizer = create_optimizer("adamw", 1e-3, num_train_steps=10, num_warmup_steps=0)
            optimizer.build(model.trainable_variables)
        options = {"batch_size": 8, "gradient_accumulation_steps": parts, "seed": 5}
        run = trainer_of(model, optimizer, strategy=strategy, **options).steps
        iterator = feed(strategy, tf.data.Dataset.from_tensors(batch).repeat())
        sums = run(iterator, tf.constant(3))
        results.append((as_floats(sums), [np.asarray(v) for v in model.trainable_variables]))
    (one, one_weights), (two, two_weights) = results
    assert one == pytest.approx(two, rel=1e-4)
    for value, other in zip(one_weights, two_weights, strict=True):
        np.testing.assert_allclose(value, other, atol=2e-5)


# --- another backend -------------------------------------------------------------------------------------------------

PROGRAM = """
import sys
import keras
import numpy as np
from bert_tf.models import task_models
from bert_tf.models.config import BertConfig
from bert_tf.models.inputs import select

assert keras.config.backend() == "jax" and "tensorflow" not in sys.modules
from bert_tf.models import initialize

folder, result, names, epochs = sys.argv[1:]
config = BertConfig.from_json_file(folder + "/bert_config.json")
config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
inputs = np.load(folder + "/inputs.npz")
models = {
    "classifier": lambda: task_models.BertForSequenceClassification(config, num_labels=3, dropout_rate=0.0),
    "squad": lambda: task_models.BertForQuestionAnswering(config),
    "bert_model": lambda: task_models.BertForMaskedLM(config),
}
arrays = {}
for name in names.split(","):
    model = models[name]()
    initialize.load_weights(model, f"{folder}/{name}.ckpt")
    batch = select(inputs, model.known_inputs)
    outputs = model(batch)
    arrays |= outputs if isinstance(outputs, dict) else {name + "_logits": outputs}
    if int(epochs):
        model.compile(optimizer=keras.optimizers.Adam(1e-3))
        arrays[name + "_history"] = model.fit(batch, epochs=int(epochs), verbose=0).history["loss"]
np.savez(result, **arrays)
"""


@pytest.mark.parametrize(("names", "epochs"), slow(("classifier", 0), ("classifier,squad,bert_model", 10)))
def test_on_jax(golden, tmp_path, names, epochs):
    pytest.importorskip("jax", reason="jax is not installed (requirements-dev.txt)")
    folder = golden / "model" / "config1"
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), str(tmp_path / "result.npz"), names, str(epochs)],
        env={**os.environ, "KERAS_BACKEND": "jax", "TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    actual, expected = np.load(tmp_path / "result.npz"), np.load(folder / "outputs.npz")
    assert_close(actual["classifier_logits"], expected["classifier_logits"])
    if not epochs:
        return
    assert_close(actual["start_logits"], expected["squad_start_logits"])
    assert_close(actual["end_logits"], expected["squad_end_logits"])
    log_probabilities = keras.ops.log_softmax(actual["bert_model_logits"]).numpy().reshape(-1, 200)
    assert_close(log_probabilities, expected["masked_lm_log_probs"], LOG_PROBABILITIES, 5)
    losses = {"classifier": "classifier_loss", "squad": "squad_loss", "bert_model": "masked_lm_loss"}
    for name, loss in losses.items():
        history = actual[f"{name}_history"]
        assert history[-1] < 0.9 * history[0], name
        np.testing.assert_allclose(history[0], expected[loss], atol=SCALAR)


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_labels": 0}, "num_labels must be a positive integer, not 0"),
        ({"num_labels": 2.0}, "num_labels must be a positive integer, not 2.0"),
        ({"num_labels": 3, "problem_type": "ranking"}, "problem_type must be one of .*, not 'ranking'"),
        ({"num_labels": 3, "labels": ["a", "b"]}, "num_labels=3, but labels has 2 names"),
        ({"labels": "ab"}, "labels must be a list of names, not 'ab'"),
        ({"num_labels": 3, "problem_type": "regression"}, "num_labels=3 does not fit problem_type='regression'"),
        ({"num_labels": 1, "problem_type": "single_label_classification"}, "num_labels=1 does not fit"),
        ({"dropout_rate": 1.0}, "dropout_rate must be a probability"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        BertForSequenceClassification(tiny_config(), **arguments)


def test_the_kind_of_problem():
    several = BertForSequenceClassification(tiny_config(), 4, "multi_label_classification")
    assert several.objective is objectives.MultiLabelObjective
    assert BertForSequenceClassification(tiny_config(), 4).objective is objectives.ClassificationObjective
    assert BertForSequenceClassification(tiny_config(), 1).objective is objectives.RegressionObjective


def test_missing_labels_are_named():
    model = make("spans")
    model.compile(optimizer="adam", run_eagerly=True)
    with pytest.raises(ValueError, match="start_positions, end_positions is neither among the features nor given as y"):
        model.fit(batch_of("spans"), verbose=0)
    with pytest.raises(ValueError, match="2 arrays \\(start_positions, end_positions\\) or a dict, not 1"):
        model.fit(batch_of("spans"), np.zeros(8, int), verbose=0)


def test_choices_need_their_axis():
    with pytest.raises(ValueError, match=r"\[batch, choices, sequence\]; got shape \(8, 12\)"):
        make("choices")(batch_of("tokens"))


def test_saving_a_model_that_was_never_called(tmp_path):
    config = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    model = BertForSequenceClassification(config, num_labels=3)
    model.save_pretrained(str(tmp_path / "model"))
    again = BertForSequenceClassification.from_pretrained(str(tmp_path / "model"))
    assert len(again.weights) == len(model.weights) > 20
    for one, other in zip(model.weights, again.weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())

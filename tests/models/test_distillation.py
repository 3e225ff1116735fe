"""Distillation in pre-training: a student's beginning, losses, and all steps are the research project's.

Oracles in tests/golden/distilbert, and the larger ones in the data folder, computed by distiller.py and
extract_distilbert.py of DistilBERT.
"""

import json

import numpy as np
import pytest
import tensorflow as tf
from helpers.every_model import CASES, CONFIG, PREDICTED, inputs
from helpers.outputs import in_training
from scipy.special import log_softmax, softmax

from bert_tf import BertConfig, BertForMaskedLM, BertForSequenceClassification
from bert_tf.models import distillation, initialize, objectives
from bert_tf.models.distillation import (
    LanguageDistillation,
    TaughtLanguageModel,
    TaughtModel,
    as_distilbert,
    chosen_layers,
    shallower,
    vocabulary_divergence,
)
from bert_tf.store.open import open_model
from bert_tf.store.open_weights import open_weights

LAYERS = [0, 2, 4, 7, 9, 11]


@pytest.fixture
def oracle(shared):
    return shared / "golden" / "distilbert"


@pytest.mark.parametrize("transform", [False, True])
def test_the_students_beginning(oracle, golden, transform):
    teacher = open_model(str(oracle / "teacher"))
    config = as_distilbert(shallower(teacher.config, LAYERS))
    weights = chosen_layers(teacher.weights, LAYERS, config, transform=transform)
    there = open_weights(str(oracle / "student_init"))
    assert set(weights.shapes) == {name for name in there.shapes if transform or "/transform/" not in name}
    for name in weights:
        np.testing.assert_array_equal(weights[name], there[name], err_msg=name)
    listed = json.loads((golden / "distilbert" / f"extracted{'_vocab_transform' * transform}.json").read_text())
    assert len(weights) == listed["tensors"] - 1  # the output matrix is the table of words
    model = BertForMaskedLM(config)
    model.build()
    result = initialize.initialize(initialize.model_variables(model), weights)
    assert [name for name in result.missing if "/transform/" not in name] == [] and bool(result.missing) != transform
    assert open_model(str(oracle / "student_init")).config == config


def test_rows_that_pad_a_batch_count_nowhere():
    make, features = CASES["taught"]
    model, mask = make(), np.ones((4, 6), "int32")
    mask[1, 4:] = 0
    features = features | {"input_mask": mask}
    rows = {name: value[:3] for name, value in features.items()}
    expected = model.objective.sums(model(rows), rows)
    padded = features | {"example_weights": np.array([1, 1, 1, 0], "float32")}
    sums = model.objective.sums(model(features), padded)
    assert float(sums["tokens"]) == 16 == float(expected["tokens"])
    assert float(sums["cosine_distance"]) == pytest.approx(float(expected["cosine_distance"]), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("config", [CONFIG, as_distilbert(CONFIG)])
def test_a_teacher_sees_segments_if_its_student_does(config):
    model = TaughtLanguageModel(BertForMaskedLM(config), BertForMaskedLM(CONFIG), LanguageDistillation())
    features = inputs(**PREDICTED)
    one, other = (
        np.asarray(model({**features, "segment_ids": np.full_like(features["input_ids"], segment)})["teacher_states"])
        for segment in (0, 1)
    )
    assert (one != other).any() == bool(config.type_vocab_size)


def made_up(oracle, settings):
    """Outputs, features of the six settings: models whose scores are their vectors."""
    arrays = dict(np.load(oracle / "distillation_inputs.npz"))
    labels, mask = arrays["mlm_labels"], arrays["attention_mask"]
    features = {"input_mask": mask, "masked_lm_ids": np.maximum(labels, 0)}
    features["masked_lm_weights"] = (labels >= 0).astype(np.float32)
    objective = LanguageDistillation(**settings)
    size = arrays["student_logits"].shape[-1]
    both = [
        (arrays[f"{name}_logits"].reshape(-1, size), np.eye(size, dtype=np.float32), np.zeros(size, np.float32))
        for name in ("student", "teacher")
    ]
    weights = np.reshape(objective.compared_weights(features), -1)
    factors = objective.alpha_ce, objective.alpha_mse
    outputs = {
        "masked_lm_logits": arrays["student_logits"], "states": arrays["student_hidden"],
        "teacher_states": arrays["teacher_hidden"],
        "soft_sums": vocabulary_divergence(*both, tf.constant(weights), objective.temperature, factors, False),
    }  # fmt: skip
    return objective, outputs, features


def test_losses_of_all_settings(oracle, golden):
    for case in json.loads((golden / "distilbert" / "distillation_losses.json").read_text()):
        objective, outputs, features = made_up(oracle, case["settings"])
        sums, totals = objective.sums(outputs, features), objective.totals(features)
        assert set(sums) == set(objective.sum_names)
        np.testing.assert_allclose(objective.loss(sums, totals), case["total"], rtol=1e-5)
        metrics = objective.metrics(sums)
        names = {"loss_ce": "divergence", "loss_mlm": "masked_lm_loss", "loss_cos": "cosine_distance",
                 "loss_mse": "squared_error"}  # fmt: skip
        for there, here in names.items():
            assert (case[there] is None) == (here not in metrics), there
            if here in metrics:
                np.testing.assert_allclose(metrics[here], case[there], rtol=1e-5, err_msg=there)


@pytest.mark.parametrize("count, dtype", [(700, "float32"), (1024, "bfloat16"), (3, "float32")])
def test_divergence_and_its_gradients(count, dtype):
    """As computed at once by TensorFlow; tokens without a weight have no influence."""
    generator = np.random.default_rng(count)

    def scoring(size):
        arrays = generator.normal(size=(count, size)), generator.normal(size=(11, size)), generator.normal(size=11)
        vectors, *others = (tf.constant(x, tf.float32) for x in arrays)
        return [tf.cast(vectors, dtype), *others]

    student, teacher = scoring(5), scoring(7)
    weights = tf.constant(generator.choice([0.0, 0.5, 1.0], count), tf.float32)

    def at_once(student):
        scores = [
            tf.cast(tf.matmul(vectors, tf.cast(table, dtype), transpose_b=True), tf.float32) + bias
            for vectors, table, bias in (student, teacher)
        ]
        goal = tf.nn.log_softmax(scores[1] / 2.0)
        divergence = 4.0 * tf.reduce_sum(tf.exp(goal) * (goal - tf.nn.log_softmax(scores[0] / 2.0)), -1)
        error = tf.reduce_sum((scores[0] - scores[1]) ** 2, -1)
        parts = [tf.reduce_sum(weights * value) for value in (divergence, error)]
        return tf.stack([5.0 * parts[0] + 0.1 * parts[1], *parts])

    @tf.function
    def value_and_gradients(function):
        with tf.GradientTape() as tape:
            tape.watch(student)
            values = function(student)
            loss = 3.0 * values[0]
        return values, tape.gradient(loss, student)

    arguments = teacher, weights, 2.0, (5.0, 0.1)
    values, gradients = value_and_gradients(lambda student: vocabulary_divergence(student, *arguments, True))
    expected, slopes = value_and_gradients(at_once)
    tolerance = {"rtol": 1e-5} if dtype == "float32" else {"rtol": 2e-2}
    np.testing.assert_allclose(values, expected, **tolerance)
    np.testing.assert_allclose(values, vocabulary_divergence(student, *arguments, False), rtol=1e-6)
    for one, other in zip(gradients, slopes, strict=True):
        assert one.dtype == other.dtype
        one, other = np.asarray(one, np.float32), np.asarray(other, np.float32)
        np.testing.assert_allclose(one, other, atol=(2e-6 if dtype == "float32" else 2e-2) * np.abs(other).max())


@pytest.mark.slow
def test_a_taught_language_model_works_outside_of_graphs():
    places = {name: np.array([[1, 2]] * 4) for name in ("masked_lm_positions", "masked_lm_ids")}
    features = inputs(**places, masked_lm_weights=np.ones((4, 2), "float32"))
    model = TaughtLanguageModel(BertForMaskedLM(CONFIG), BertForMaskedLM(CONFIG), LanguageDistillation())
    objective = model.objective

    def loss_and_gradients():
        with tf.GradientTape() as tape:
            outputs = in_training(model, features)
            loss = objective.loss(objective.sums(outputs, features), objective.totals(features))
        found = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
        return loss, [None if one is None else tf.convert_to_tensor(one) for one in found]

    loss, gradients = loss_and_gradients()
    expected, others = tf.function(loss_and_gradients, autograph=False)()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert [one is None for one in gradients] == [one is None for one in others]
    for one, other in zip(gradients, others, strict=True):
        if one is not None:
            np.testing.assert_allclose(one, other, atol=1e-4)
    assert any(one is not None and np.abs(one).max() > 0 for one in gradients)


def divergence(logits, targets, temperature):
    goal = softmax(targets / temperature, axis=-1)
    parts = goal * (np.log(goal) - log_softmax(logits / temperature, axis=-1))
    return parts.sum(-1) * temperature**2


def cases():
    """Objective, outputs of student and teacher, features, the mean of the soft losses."""
    generator = np.random.default_rng(3)
    student, teacher = generator.normal(size=(2, 6, 3)) * 3
    labels = np.array([0, 1, 2, 2, 1, 0])
    for objective in (objectives.ClassificationObjective, objectives.MultipleChoiceObjective):
        yield objective, student, teacher, {"label_ids": labels}, divergence(student, teacher, 3.0).mean()
    several = generator.integers(0, 2, (6, 3))
    pairs = [np.stack([np.zeros_like(x), x], axis=-1) for x in (student, teacher)]
    yield objectives.MultiLabelObjective, student, teacher, {"label_ids": several}, divergence(*pairs, 3.0).mean()
    numbers = [x[:, :1] for x in (student, teacher)]
    expected = ((numbers[0] - numbers[1]) ** 2).mean()
    yield objectives.RegressionObjective, *numbers, {"label_ids": generator.normal(size=6)}, expected
    tags = generator.normal(size=(2, 6, 5, 4))
    features = {"label_ids": generator.integers(-1, 4, (6, 5))}
    expected = divergence(*tags, 3.0)[features["label_ids"] >= 0].mean()
    yield objectives.TokenClassificationObjective, *tags, features, expected
    outputs = [dict(zip(("start_logits", "end_logits"), generator.normal(size=(2, 6, 5)), strict=True)) for _ in "st"]
    features = {"start_positions": labels, "end_positions": labels}
    losses = [divergence(outputs[0][name], outputs[1][name], 3.0) for name in outputs[0]]
    yield objectives.SpanObjective, *outputs, features, np.mean(losses)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case[0].__name__)
def test_losses(case):
    objective, student, teacher, features, expected = case
    taught = distillation.DistillationObjective(objective, 0.3, 3.0)
    outputs = {"student": student, "teacher": teacher}
    sums, totals = taught.sums(outputs, features), taught.totals(features)
    assert set(sums) == set(taught.sum_names)
    alone = objective.sums(student, features)
    labels = float(objective.loss(alone, totals))
    np.testing.assert_allclose(taught.loss(sums, totals), 0.7 * labels + 0.3 * expected, rtol=1e-5)
    metrics = taught.metrics(sums)
    np.testing.assert_allclose(metrics.pop("soft_loss"), expected, rtol=1e-5)
    assert {name: float(value) for name, value in metrics.items()} == pytest.approx(
        {name: float(value) for name, value in objective.metrics(alone).items()}
    )
    # Parts of a batch add up, and rows that only pad it count nowhere.
    weights = np.array([1, 1, 0, 1, 1, 1], np.float32)
    features = {**features, "example_weights": weights}
    totals = taught.totals(features)

    def rows(value, part):
        return {name: array[part] for name, array in value.items()} if isinstance(value, dict) else value[part]

    def loss(part):
        both = {name: rows(value, part) for name, value in outputs.items()}
        return float(taught.loss(taught.sums(both, rows(features, part)), totals))

    assert loss(slice(2)) + loss(slice(2, 6)) == pytest.approx(loss(slice(None)), rel=1e-5)
    assert loss(slice(2)) + loss(slice(3, 6)) == pytest.approx(loss(slice(None)), rel=1e-5)


def test_answers_as_in_the_research_project(golden):
    arrays = dict(np.load(golden / "distilbert" / "squad_distillation.npz"))
    student, teacher = (
        {f"{end}_logits": arrays[f"{one}_{end}"] for end in ("start", "end")} for one in ("student", "teacher")
    )
    losses = objectives.SpanObjective.soft_losses(student, teacher, float(arrays["temperature"]))
    np.testing.assert_allclose(np.mean(losses), arrays["loss_ce"], rtol=1e-5)


def test_the_teacher_stays_as_it_is():
    """No gradient reaches it, nothing of it is dropped, and it is not among the variables."""
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(**sizes, num_hidden_layers=1, max_position_embeddings=8, type_vocab_size=2)
    student, teacher = (BertForSequenceClassification(config, 3) for _ in "st")
    for model in (student, teacher):
        model.build()
    taught = TaughtModel(student, teacher)
    assert taught.trainable_variables == student.trainable_variables and not teacher.trainable_variables
    features = {"input_ids": np.arange(12).reshape(2, 6), "label_ids": np.array([0, 2])}
    objective = distillation.DistillationObjective(student.objective, 1.0, 2.0)
    watched = student.trainable_variables + teacher.variables
    values = [variable.value for variable in watched if variable.dtype == "float32"]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(values)
        outputs = taught(features, training=True)
        sums = objective.sums(outputs, features)
        loss = objective.loss(sums, sums)
    moved = [gradient is not None for gradient in tape.gradient(loss, values)]
    assert moved == [number < len(student.trainable_variables) for number in range(len(values))]
    np.testing.assert_allclose(outputs["teacher"], teacher(features, training=False), atol=1e-6)

"""Students and teachers: losses compared with NumPy and the research project's, and what a step touches.

Oracles in tests/golden/distilbert: the formulas of run_squad_w_distillation.py.
"""

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from bert_tf.models import objectives
from bert_tf.models.config import BertConfig
from bert_tf.models.distillation import DistillationObjective, TaughtModel
from bert_tf.models.task_models import BertForSequenceClassification


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
    taught = DistillationObjective(objective, 0.3, 3.0)
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
    import tensorflow as tf

    sizes = {"vocab_size": 50, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(**sizes, num_hidden_layers=1, max_position_embeddings=8, type_vocab_size=2)
    student, teacher = (BertForSequenceClassification(config, 3) for _ in "st")
    for model in (student, teacher):
        model.build()
    taught = TaughtModel(student, teacher)
    assert taught.trainable_variables == student.trainable_variables and not teacher.trainable_variables
    features = {"input_ids": np.arange(12).reshape(2, 6), "label_ids": np.array([0, 2])}
    objective = DistillationObjective(student.objective, 1.0, 2.0)
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

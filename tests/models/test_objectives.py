"""Objectives compared with NumPy, with weights of classes with PyTorch, of labels and a teacher; parts add up."""

import numpy as np
import pytest
import tensorflow as tf
from helpers.every_model import CONFIG, MODELS, inputs
from helpers.outputs import as_floats, softmax_losses
from scipy.special import log_softmax

from bert_tf import BertForSequenceClassification, ClassificationObjective, TokenClassificationObjective
from bert_tf.models import inputs as model_inputs
from bert_tf.models import objectives
from bert_tf.models.distillation import DistillationObjective
from bert_tf.models.heads import with_class_weights
from bert_tf.models.similarity import similarity_objective


def objective_cases():
    """Objective, outputs, features, and loss and metrics by NumPy in float64."""
    generator = np.random.default_rng(1)
    logits, labels = generator.normal(size=(6, 3)), np.array([0, 1, 2, 2, 1, 0])
    losses = softmax_losses(logits, labels)
    right = logits.argmax(-1) == labels
    metrics = {"accuracy": right.mean(), "example_loss": losses.mean()}
    for objective in (objectives.ClassificationObjective, objectives.MultipleChoiceObjective):
        yield objective, logits, {"label_ids": labels}, losses.mean(), metrics
    two, following = logits[:, :2], labels % 2
    pair_losses = softmax_losses(two, following)
    metrics = {"accuracy": (two.argmax(-1) == following).mean(), "example_loss": pair_losses.mean()}
    features = {"next_sentence_labels": following[:, None]}
    yield objectives.NextSentenceObjective, two, features, pair_losses.mean(), metrics

    targets = generator.normal(size=6)
    errors = logits[:, 0] - targets
    metrics = {"mean_absolute_error": np.abs(errors).mean(), "example_loss": (errors**2).mean()}
    yield objectives.RegressionObjective, logits[:, :1], {"label_ids": targets}, (errors**2).mean(), metrics

    several = generator.integers(0, 2, (6, 3))
    several[0] = logits[0] > 0
    probabilities = 1 / (1 + np.exp(-logits))
    losses = -np.log(np.where(several == 1, probabilities, 1 - probabilities))
    right = (logits > 0) == (several == 1)
    metrics = {"accuracy": right.mean(), "exact_match": right.all(-1).mean(), "example_loss": losses.mean()}
    yield objectives.MultiLabelObjective, logits, {"label_ids": several}, losses.mean(), metrics

    start, end = generator.normal(size=(2, 6, 5))
    starts, ends = start.argmax(-1), np.array([0, 1, 2, 3, 4, end[5].argmax()])
    losses = (softmax_losses(start, starts) + softmax_losses(end, ends)) / 2
    right = end.argmax(-1) == ends
    accuracies = {"start_accuracy": 1.0, "end_accuracy": right.mean(), "exact_match": right.mean()}
    outputs = {"start_logits": start, "end_logits": end}
    features = {"start_positions": starts, "end_positions": ends}
    yield objectives.SpanObjective, outputs, features, losses.mean(), {**accuracies, "example_loss": losses.mean()}

    logits = generator.normal(size=(6, 5, 4))
    labels = generator.integers(-1, 4, (6, 5))
    labels[1] = -100
    counted = labels >= 0
    losses = softmax_losses(logits, labels)
    mean = losses[counted].mean()
    accuracy = (logits.argmax(-1) == labels)[counted].mean()
    metrics = {"accuracy": accuracy, "token_loss": mean}
    yield objectives.TokenClassificationObjective, logits, {"label_ids": labels}, mean, metrics
    metrics = {"masked_lm_accuracy": accuracy, "masked_lm_loss": mean}
    yield objectives.MaskedLanguageModelObjective, logits, {"masked_lm_ids": labels}, mean, metrics
    weights = generator.choice([0.0, 0.5, 1.0], (6, 5)) * counted
    accuracy = ((logits.argmax(-1) == labels) * weights).sum() / weights.sum()
    mean = (losses * weights).sum() / weights.sum()
    features = {"masked_lm_ids": labels, "masked_lm_weights": weights}
    metrics = {"masked_lm_accuracy": accuracy, "masked_lm_loss": mean}
    yield objectives.MaskedLanguageModelObjective, logits, features, mean, metrics

    vectors, scores = generator.normal(size=(6, 3, 5)).astype("float32"), generator.uniform(-1, 1, 6)
    normal = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    errors = (normal[:, 0] * normal[:, 1]).sum(-1) - scores
    metrics = {"mean_absolute_error": np.abs(errors).mean(), "example_loss": (errors**2).mean()}
    yield similarity_objective("cosine"), vectors, {"scores": scores}, (errors**2).mean(), metrics
    near, far = (np.linalg.norm(vectors[:, 0] - vectors[:, number], axis=-1) for number in (1, 2))
    losses = np.maximum(near - far + 0.5, 0)
    metrics = {"accuracy": (near < far).mean(), "example_loss": losses.mean()}
    features = {"text_ids": np.zeros((6, 3), int)}
    yield similarity_objective("triplet", margin=0.5), vectors, features, losses.mean(), metrics


def divergence(logits, targets):
    goal, logits = (log_softmax(x / 3.0, axis=-1) for x in (targets, logits))
    return (np.exp(goal) * (goal - logits)).sum(-1) * 3.0**2


def soft_loss(objective, outputs, targets, features):
    """The mean loss against a teacher's outputs at temperature 3."""
    if objective is objectives.RegressionObjective:
        return ((outputs - targets) ** 2).mean()
    if objective is objectives.SpanObjective:
        return np.mean([divergence(outputs[name], targets[name]) for name in outputs])
    if objective is objectives.MultiLabelObjective:  # each decision is one of two classes
        outputs, targets = (np.stack([np.zeros_like(x), x], axis=-1) for x in (outputs, targets))
    losses = divergence(outputs, targets)
    return losses[features["label_ids"] >= 0].mean() if losses.ndim == 2 else losses.mean()


def rows_of(value, rows):
    return {key: rows_of(part, rows) for key, part in value.items()} if isinstance(value, dict) else value[rows]


def taught_cases():
    for objective, outputs, features, loss, metrics in PLAIN_CASES[:2] + PLAIN_CASES[3:7]:
        targets = rows_of(outputs, slice(None, None, -1))
        soft, both = soft_loss(objective, outputs, targets, features), {"student": outputs, "teacher": targets}
        taught = DistillationObjective(objective, 0.3, 3.0)
        yield taught, both, features, 0.7 * loss + 0.3 * soft, {**metrics, "soft_loss": soft}


PLAIN_CASES = list(objective_cases())
CASES = [*PLAIN_CASES, *taught_cases()]
CASE_NAMES = [getattr(case[0], "objective", case[0]).__name__ for case in CASES]


@pytest.mark.parametrize(("objective", "outputs", "features", "loss", "metrics"), CASES, ids=CASE_NAMES)
def test_loss_and_metrics_of_an_objective(objective, outputs, features, loss, metrics):
    sums = objective.sums(outputs, features)
    assert set(sums) == set(objective.sum_names)
    assert not set(sums) & {"loss", "steps", "skipped", "gradient_norm"}  # the names of the training loop's own
    np.testing.assert_allclose(objective.loss(sums, objective.totals(features)), loss, rtol=2e-5)
    actual = as_floats(objective.metrics(sums))
    assert set(actual) == set(metrics)
    np.testing.assert_allclose([actual[name] for name in metrics], list(metrics.values()), rtol=2e-5)


@pytest.mark.parametrize(("objective", "outputs", "features", "loss", "metrics"), CASES, ids=CASE_NAMES)
def test_parts_of_a_batch_add_up(objective, outputs, features, loss, metrics):
    """However a batch is split (micro-batches, replicas), and with padding rows."""
    count = 6
    filler = np.zeros(2, int)  # two more copies of row 0, which must not count

    def padded(value):
        return rows_of(value, np.concatenate([np.arange(count), filler]))

    weights = np.array([1.0] * count + [0.0, 0.0])
    outputs, features = padded(outputs), {**padded(features), "example_weights": weights}
    totals = objective.totals(features)
    parts = [slice(0, 1), slice(1, 5), slice(5, 8)]
    sums = [objective.sums(rows_of(outputs, part), rows_of(features, part)) for part in parts]
    np.testing.assert_allclose(sum(float(objective.loss(part, totals)) for part in sums), loss, rtol=2e-5)
    total = {name: sum(float(part[name]) for part in sums) for name in objective.sum_names}
    actual = as_floats(objective.metrics(total))
    np.testing.assert_allclose([actual[name] for name in metrics], list(metrics.values()), rtol=2e-5)
    nothing = rows_of(features, slice(6, 8))  # a batch without examples: 0, not 0/0
    sums = objective.sums(rows_of(outputs, slice(6, 8)), nothing)
    assert float(objective.loss(sums, objective.totals(nothing))) == 0.0
    assert set(as_floats(objective.metrics(sums)).values()) == {0.0}


def test_examples_that_are_not_real_count_in_the_loss_only():
    for objective, outputs, features, loss, _ in PLAIN_CASES:
        features = {**features, "is_real_example": np.array([0, 1, 1, 1, 0, 1])}
        real = rows_of(features, features["is_real_example"] == 1)
        sums = objective.sums(outputs, features)
        np.testing.assert_allclose(objective.loss(sums, sums), loss, rtol=2e-5)
        alone = objective.sums(rows_of(outputs, features["is_real_example"] == 1), real)
        expected = as_floats(objective.metrics(alone))
        assert as_floats(objective.metrics(sums)) == pytest.approx(expected, rel=2e-5), objective


WEIGHTS = [0.25, 3.0, 1.0, 2.0, 0.5]


def weighted_cases():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 5, 8)
    yield ClassificationObjective, generator.normal(size=(8, 5)).astype("float32"), labels
    labels = generator.integers(-1, 5, (8, 6))
    labels[0, :2] = -100
    yield TokenClassificationObjective, generator.normal(size=(8, 6, 5)).astype("float32"), labels


@pytest.mark.parametrize("objective, logits, labels", weighted_cases())
def test_the_loss_is_that_of_pytorch(objective, logits, labels):
    torch = pytest.importorskip("torch")
    loss = torch.nn.CrossEntropyLoss(weight=torch.tensor(WEIGHTS), ignore_index=-1)
    wanted = np.where(labels == -100, -1, labels).reshape(-1)
    expected = float(loss(torch.tensor(logits.reshape(-1, 5)), torch.tensor(wanted)))
    weighted = with_class_weights(objective, WEIGHTS)
    features = {"label_ids": labels}
    totals, sums = weighted.totals(features), weighted.sums(logits, features)
    assert float(weighted.loss(sums, totals)) == pytest.approx(expected, rel=1e-5)
    # In parts: what is divided by is of the whole batch.
    parts = [weighted.sums(logits[part], {"label_ids": labels[part]}) for part in (slice(0, 3), slice(3, 8))]
    assert sum(float(weighted.loss(part, totals)) for part in parts) == pytest.approx(expected, rel=1e-5)
    plain = objective.sums(logits, features)
    assert weighted.metrics(sums) == objective.metrics(plain)
    assert float(objective.loss(plain, plain)) != pytest.approx(expected, rel=1e-3)
    assert with_class_weights(objective, None) is objective


def test_weights_in_fit():
    """Keras's class_weight, and sample_weight, for examples and for tokens."""
    model, features = MODELS["classifier"][0](), inputs()
    labels = np.array([0, 1, 3, 1])
    model.compile(optimizer="sgd", run_eagerly=True)
    losses = np.asarray(model.objective.values(model(features), {"label_ids": labels})[0])
    given = np.array(WEIGHTS)[labels]
    expected = (losses * given).sum() / given.sum()
    model.optimizer.learning_rate = 0.0
    model.dropout_rate, model.config.hidden_dropout_prob, model.config.attention_probs_dropout_prob = 0.0, 0.0, 0.0
    by_class = dict(enumerate(WEIGHTS))
    data = tf.data.Dataset.from_tensor_slices((features, labels)).batch(4)
    for arguments in (
        {"x": data, "class_weight": by_class},
        {"x": {**features, "labels": labels}, "class_weight": by_class},
        {"x": features, "y": labels, "sample_weight": given},
    ):
        loss = model.fit(**arguments, verbose=0, shuffle=False).history["loss"][0]
        assert loss == pytest.approx(expected, rel=1e-4), arguments.keys()
    # Keras has no weight for a class above those that are named.
    named, all_of_them = ({0: 9.0}, dict.fromkeys(range(5), 1.0) | {0: 9.0})
    losses = [model.fit(data, class_weight=weights, verbose=0).history["loss"] for weights in (named, all_of_them)]
    assert losses[0] == losses[1] != [expected]
    named = BertForSequenceClassification(CONFIG, labels=["no", "\u110c\u1161", "so"])
    by_name = model_inputs.keras_arguments("evaluate", named, class_weight={"\uc790": 3, np.int64(2): 2})
    assert by_name["class_weight"] == {0: 1.0, 1: 3, 2: 2}
    for weights, message in (
        ({"부정": 1.0}, "class_weight: '부정' is none of the model's classes, {0: 'no', 1: '자', 2: 'so'}"),
        ({3: 1.0}, "class_weight: 3 is none of the model's"),
        ({0: -1.0}, r"class_weight\[0\]=-1.0 must be a number, at least 0"),
        ("balanced", "class_weight must be a dict of a number for each class"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            named.fit(features, labels, class_weight=weights, verbose=0)

    model, labels = MODELS["tagger"][0](), np.random.default_rng(2).integers(-1, 5, (4, 6))
    model.compile(optimizer="sgd", run_eagerly=True)
    sums = with_class_weights(model.objective, WEIGHTS).sums(model(features), {"label_ids": labels})
    expected = float(model.objective.loss(sums, sums))
    given = np.array(WEIGHTS)[np.maximum(labels, 0)]
    found = model.evaluate(features, labels, sample_weight=given, verbose=0, return_dict=True)["loss"]
    assert found == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match="class_weight is for one class an example: give weights as sample_weight"):
        model.fit(features, labels, class_weight={0: 1.0, 1: 2.0}, verbose=0)

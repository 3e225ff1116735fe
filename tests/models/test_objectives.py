"""Objectives compared with NumPy, with weights of classes with PyTorch, of labels and a teacher; distillation.

Oracles of distillation in pre-training in tests/golden/distilbert, and the larger ones in the data folder, computed by
distiller.py and extract_distilbert.py of DistilBERT.
"""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.every_model import CASES as TRAINED
from helpers.every_model import CONFIG, MODELS, PREDICTED, inputs
from helpers.outputs import as_floats, enlarge, loss_and_gradients, softmax_losses
from scipy.special import log_softmax

from bert_tf import BertForMaskedLM, BertForSequenceClassification
from bert_tf.families.config import shallower
from bert_tf.families.distilbert import DistilBertConfig
from bert_tf.models import distillation, initialize, objectives
from bert_tf.models import inputs as model_inputs
from bert_tf.models.distillation import LanguageDistillation, TaughtLanguageModel, vocabulary_divergence
from bert_tf.models.heads import with_class_weights
from bert_tf.models.similarity import similarity_objective
from bert_tf.store.open import open_model, open_weights


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
    metrics = {"masked_lm_accuracy": accuracy, "masked_lm_loss": mean}
    for size in (1.0, 1e-3):  # of few predictions BERT's epsilon shows
        features, total = {"masked_lm_ids": labels, "masked_lm_weights": size * weights}, size * weights.sum()
        of_bert = mean * total / (total + 1e-5)
        yield objectives.MaskedLanguageModelObjective, logits, features, of_bert, metrics
        yield objectives.MeanMaskedLanguageModelObjective, logits, features, mean, metrics
        yield objectives.LanguageModelObjective, {"masked_lm_logits": logits}, features, of_bert, metrics

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
        taught = distillation.DistillationObjective(objective, 0.3, 3.0)
        yield taught, both, features, 0.7 * loss + 0.3 * soft, {**metrics, "soft_loss": soft}


PLAIN_CASES = list(objective_cases())
CASES = [*PLAIN_CASES, *taught_cases()]
CASE_NAMES = [getattr(case[0], "objective", case[0]).__name__ for case in CASES]


@pytest.mark.parametrize(("objective", "outputs", "features", "loss", "metrics"), CASES, ids=CASE_NAMES)
def test_loss_and_metrics_of_a_batch_and_of_its_parts(objective, outputs, features, loss, metrics):
    sums = objective.sums(outputs, features)
    assert set(sums) == set(objective.sum_names)
    assert not set(sums) & {"loss", "steps", "skipped", "gradient_norm"}  # the names of the training loop's own
    np.testing.assert_allclose(objective.loss(sums, objective.totals(features)), loss, rtol=2e-5)
    actual = as_floats(objective.metrics(sums))
    assert set(actual) == set(metrics)
    np.testing.assert_allclose([actual[name] for name in metrics], list(metrics.values()), rtol=2e-5)
    # However a batch is split (micro-batches, replicas), and with two more copies of row 0, which must not count.
    outputs, features = (rows_of(value, [*range(6), 0, 0]) for value in (outputs, features))
    features["example_weights"] = np.array([1.0] * 6 + [0.0, 0.0])
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
    yield objectives.ClassificationObjective, generator.normal(size=(8, 5)).astype("float32"), labels
    labels = generator.integers(-1, 5, (8, 6))
    labels[0, :2] = -100
    yield objectives.TokenClassificationObjective, generator.normal(size=(8, 6, 5)).astype("float32"), labels


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
    labels = np.argmax(enlarge(model).predict(features, verbose=0), -1) * [1, 1, 0, 0] + [0, 0, 3, 3]
    metric = keras.metrics.SparseCategoricalAccuracy("of_keras")
    model.compile(optimizer="sgd", metrics=[metric], run_eagerly=True)
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
        history = model.fit(**arguments, verbose=0, shuffle=False).history
        assert history["loss"][0] == pytest.approx(expected, rel=1e-4), arguments.keys()
        assert history["accuracy"] == history["of_keras"] and 0 < history["accuracy"][0] < 1
        assert history["example_loss"][0] == pytest.approx(losses.mean(), rel=1e-4) != expected
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


LAYERS = [0, 2, 4, 7, 9, 11]


@pytest.fixture
def oracle(shared):
    return shared / "golden" / "distilbert"


@pytest.mark.parametrize("transform", [False, True])
def test_the_students_beginning(oracle, golden, transform):
    teacher = open_model(str(oracle / "teacher"))
    config = DistilBertConfig.of_teacher(shallower(teacher.config, LAYERS))
    weights = distillation.chosen_layers(teacher.weights, LAYERS, config, transform=transform)
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
    make, features = TRAINED["taught"]
    model, mask = make(), np.ones((4, 6), "int32")
    mask[1, 4:] = 0
    features = features | {"input_mask": mask}
    rows = {name: value[:3] for name, value in features.items()}
    expected = model.objective.sums(model(rows), rows)
    padded = features | {"example_weights": np.array([1, 1, 1, 0], "float32")}
    sums = model.objective.sums(model(features), padded)
    assert float(sums["tokens"]) == 16 == float(expected["tokens"])
    assert float(sums["cosine_distance"]) == pytest.approx(float(expected["cosine_distance"]), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("config", [CONFIG, DistilBertConfig.of_teacher(CONFIG)])
def test_a_teacher_sees_segments_if_its_student_does(config):
    model = TaughtLanguageModel(BertForMaskedLM(config), BertForMaskedLM(CONFIG), LanguageDistillation())
    features = inputs(**PREDICTED)
    one, other = (
        np.asarray(model({**features, "segment_ids": np.full_like(features["input_ids"], segment)})["teacher_states"])
        for segment in (0, 1)
    )
    assert (one != other).any() == bool(config.type_vocab_size)


def test_losses_of_all_settings(oracle, golden):
    """Of models whose scores are their vectors."""
    arrays = dict(np.load(oracle / "distillation_inputs.npz"))
    labels, size = arrays["mlm_labels"], arrays["student_logits"].shape[-1]
    features = {"input_mask": arrays["attention_mask"], "masked_lm_ids": np.maximum(labels, 0)}
    features["masked_lm_weights"] = (labels >= 0).astype(np.float32)
    layer = np.eye(size, dtype=np.float32), np.zeros(size, np.float32)
    both = [(arrays[f"{name}_logits"].reshape(-1, size), *layer) for name in ("student", "teacher")]
    outputs = {"masked_lm_logits": arrays["student_logits"], "states": arrays["student_hidden"]}
    outputs["teacher_states"] = arrays["teacher_hidden"]
    for case in json.loads((golden / "distilbert" / "distillation_losses.json").read_text()):
        objective = LanguageDistillation(**case["settings"])
        weights = tf.constant(np.reshape(objective.compared_weights(features), -1))
        factors = objective.alpha_ce, objective.alpha_mse
        outputs["soft_sums"] = vocabulary_divergence(*both, weights, objective.temperature, factors, False)
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
    make, features = TRAINED["taught"]
    model = make()
    loss, gradients = loss_and_gradients(model, features)
    expected, others = tf.function(lambda: loss_and_gradients(model, features), autograph=False)()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    for one, other in zip(gradients, others, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    assert any(np.abs(one).max() > 0 for one in gradients)


def test_answers_as_in_the_research_project(golden):
    arrays = dict(np.load(golden / "distilbert" / "squad_distillation.npz"))
    student, teacher = (
        {f"{end}_logits": arrays[f"{one}_{end}"] for end in ("start", "end")} for one in ("student", "teacher")
    )
    losses = objectives.SpanObjective.soft_losses(student, teacher, float(arrays["temperature"]))
    np.testing.assert_allclose(np.mean(losses), arrays["loss_ce"], rtol=1e-5)


def test_the_teacher_stays_as_it_is():
    """No gradient reaches it, nothing of it is dropped, and it is not among the variables."""
    make, features = TRAINED["taught classes"]
    taught = make()
    student, teacher, objective = taught.student, taught.teacher, taught.objective
    assert taught.trainable_variables == student.trainable_variables and not teacher.trainable_variables
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

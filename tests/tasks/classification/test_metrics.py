"""Metrics, reports and summaries over seeds, compared with numbers computed by hand and by libraries."""

import json

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.models import objectives
from bert_tf.tasks import outcome
from bert_tf.tasks.classification import data, settings
from bert_tf.tasks.classification import metrics as classification_encode
from bert_tf.tasks.classification.metrics import METRICS, evaluate
from bert_tf.tasks.rows import Task

SEVERAL = Task("custom", ("a", "b", "c"), None, metrics=("micro_f1", "macro_f1"), multi_label=True)


def logits_for(predictions, classes=2) -> np.ndarray:
    return np.eye(classes, dtype=np.float32)[np.asarray(predictions)]


def test_hand_numbers():
    labels = np.array([1, 1, 1, 0, 0, 0, 0, 1])
    logits = logits_for([1, 1, 0, 0, 0, 0, 1, 1])  # 3 of 4 positives found, 1 of 4 negatives taken for one
    assert evaluate(data.find_task("mrpc"), logits, labels, 4)["eval_f1"] == pytest.approx(0.75)
    assert evaluate(data.find_task("cola"), logits, labels, 4)["eval_matthews"] == pytest.approx(0.5)
    assert evaluate(data.find_task("sst-2"), logits, labels, 4)["eval_accuracy"] == pytest.approx(0.75)
    three = Task("custom", ("x", "y", "z"), None, metrics=("accuracy", "macro_f1"))
    # F1 of the classes: 0.5, 0.8, 0.
    results = evaluate(three, logits_for([0, 0, 1, 1, 1], 3), np.array([0, 2, 0, 1, 1]), 5)
    assert results["eval_macro_f1"] == pytest.approx((0.5 + 0.8 + 0) / 3)
    # A class that neither occurs nor is predicted counts as 0, as in the report's "macro avg", and of several labels.
    for task in (Task("custom", tuple("wxyz"), None, metrics=("macro_f1",)), SEVERAL):
        chosen, truth = logits_for([0, 0, 1], len(task.labels)), np.array([0, 1, 1])
        truth = np.eye(3, dtype=int)[truth] if task.multi_label else truth
        results, table = evaluate(task, chosen, truth, 3), classification_encode.report(task, chosen, truth)
        assert results["eval_macro_f1"] == pytest.approx(2 * (2 / 3) / len(task.labels))
        assert f"{results['eval_macro_f1']:.4f}" == table.split("macro avg")[1].split()[2]
    # The chosen class has probability e / (1 + e): the loss is its -log if right, 1 more if wrong.
    right = np.log(1 + np.exp(-1))
    results = evaluate(data.find_task("rte"), logits, labels, 3)
    assert results["eval_loss"] == pytest.approx(right + 2 / 8)
    # Batches of 3, 3 and 2, the wrong ones in the first and the last.
    assert results["loss"] == pytest.approx(right + (1 / 3 + 0 + 1 / 2) / 3)


def test_the_metric_that_chooses_the_best_model():
    three = Task("custom", ("x", "y", "z"), None, metrics=("accuracy", "macro_f1"))
    numbers = Task("custom", None, None, metrics=("pearson", "spearman"))
    for task, best, weighted, metrics in (
        (three, None, False, ("accuracy", "macro_f1")),
        (three, None, True, ("macro_f1", "accuracy")),
        (three, "accuracy", True, ("accuracy", "macro_f1")),
        (data.find_task("rte"), "macro_f1", False, ("macro_f1", "accuracy")),
        (data.find_task("cola"), None, True, ("matthews", "accuracy")),
        (data.find_task("mrpc"), "f1", False, ("f1", "accuracy")),
        (SEVERAL, "eval_macro_f1", False, ("macro_f1", "micro_f1")),  # as the log and eval_results.txt have it
        (numbers, "f1_at_3", False, ("f1_at_3", "pearson", "spearman")),
    ):
        assert settings.with_best_metric(task, best, weighted).metrics == metrics
    for task, best in ((three, "f1"), (numbers, "accuracy"), (SEVERAL, "accuracy")):
        with pytest.raises(ValueError, match=f"--best_metric={best}: this task has "):
            settings.with_best_metric(task, best, False)
    # KLUE-STS: of three pairs from 3 on two are found, and one that is below.
    task = settings.with_best_metric(numbers, "f1_at_3", False)
    logits = np.array([[3.0], [4.5], [2.9], [3.1], [0.2]])
    assert evaluate(task, logits, np.array([3.0, 5.0, 4.0, 2.9, 0.0]), 5)["eval_f1_at_3"] == pytest.approx(2 / 3)


def test_keys_are_the_originals_and_the_tasks():
    labels, logits = np.array([0, 1]), logits_for([0, 1])
    keys = {name: set(evaluate(data.find_task(name), logits, labels, 2)) for name in ("mnli", "cola", "qqp", "wnli")}
    common = {"eval_accuracy", "eval_loss", "loss"}
    assert keys == {
        "mnli": common, "wnli": common, "cola": common | {"eval_matthews"}, "qqp": common | {"eval_f1"},
    }  # fmt: skip
    scores = evaluate(data.find_task("sts-b"), np.array([[1.0], [2.0]]), np.array([1.0, 3.0], np.float32), 2)
    assert set(scores) == {"eval_pearson", "eval_spearman", "eval_loss", "loss"}
    # The first one chooses the best model.
    assert {name: task.metrics for name, task in data.TASKS.items()} == {
        "cola": ("matthews", "accuracy"), "mrpc": ("accuracy", "f1"), "qqp": ("accuracy", "f1"),
        "sts-b": ("pearson", "spearman"),
        **dict.fromkeys(("sst-2", "mnli", "qnli", "rte", "wnli", "ax", "xnli"), ("accuracy",)),
    }  # fmt: skip
    assert all(set(task.metrics) <= set(METRICS) for task in data.TASKS.values())
    kinds = [task.problem_type for task in (data.find_task("rte"), data.find_task("sts-b"), SEVERAL)]
    assert kinds == ["single_label_classification", "regression", "multi_label_classification"]


def test_what_is_not_defined_is_0(caplog):
    labels = np.array([1, 1, 0])
    assert evaluate(data.find_task("cola"), logits_for([1, 1, 1]), labels, 8)["eval_matthews"] == 0.0
    assert evaluate(data.find_task("mrpc"), logits_for([0, 0, 0]), labels, 8)["eval_f1"] == 0.0
    for scores, given in (([[1.0], [1.0]], [1.0, 2.0]), ([[1.0], [2.0]], [3.0, 3.0]), ([[1.0]], [1.0])):
        results = evaluate(data.find_task("sts-b"), np.array(scores), np.array(given, np.float32), 8)
        assert results["eval_pearson"] == results["eval_spearman"] == 0.0
    assert caplog.text.count("spearmanr is not defined, as all scores or all predictions are equal: 0.") == 1


@pytest.mark.parametrize("kind", ["classes", "numbers", "several"])
def test_losses_are_those_of_training(kind):
    generator = np.random.default_rng(2)
    logits = (5 * generator.normal(size=(13, 1 if kind == "numbers" else 3))).astype(np.float32)
    task, objective, labels = {
        "classes": (data.find_task("mnli"), objectives.ClassificationObjective, generator.integers(0, 3, 13)),
        "numbers": (data.find_task("sts-b"), objectives.RegressionObjective, generator.normal(size=13)),
        "several": (SEVERAL, objectives.MultiLabelObjective, generator.integers(0, 2, (13, 3))),
    }[kind]
    labels = labels.astype(np.int32 if kind == "classes" else np.float32)
    losses, _ = objective.values(tf.constant(logits), {"label_ids": tf.constant(labels)})
    np.testing.assert_allclose(classification_encode.example_losses(task, logits, labels), losses, rtol=1e-5)


def test_report_and_confusion_matrix(tmp_path, caplog):
    task = data.find_task("mnli")
    labels, logits = np.array([0, 1, 1, 0]), logits_for([0, 1, 0, 0], 3)  # a class that never occurs
    classification_encode.write_analysis(str(tmp_path), "_dev", task, logits, labels)
    table = (tmp_path / "classification_report_dev.txt").read_text()
    rows = {line.split()[0]: line.split()[1:] for line in table.splitlines() if line.strip()}
    assert rows["contradiction"] == ["0.6667", "1.0000", "0.8000", "2"]
    assert rows["entailment"] == ["1.0000", "0.5000", "0.6667", "2"]
    assert rows["neutral"] == ["0.0000", "0.0000", "0.0000", "0"]
    assert (tmp_path / "confusion_matrix_dev.png").read_bytes()[:4] == b"\x89PNG"
    assert "All" not in caplog.text
    classification_encode.write_analysis(str(tmp_path), "_dev", task, logits_for([1] * 4, 3), labels)
    assert "All 4 predictions are 'entailment': the model tells no classes apart" in caplog.text
    classification_encode.write_analysis(str(tmp_path), "_several", SEVERAL, logits[:1].repeat(4, 0), logits)
    assert "All 4 predictions are ['a']: the model" in caplog.text
    assert "micro avg" in (tmp_path / "classification_report_several.txt").read_text()
    classification_encode.write_analysis(str(tmp_path), "_numbers", data.find_task("sts-b"), logits[:, :1], labels)
    assert len(list(tmp_path.iterdir())) == 3


def test_seeds_are_summed_up_and_the_best_model_is_copied(tmp_path):
    results = {
        1: {"eval_f1": 0.5, "eval_loss": 1.0, "global_step": 9},
        2: {"eval_f1": 0.9, "eval_loss": 3.0, "global_step": 9},
        3: {"eval_f1": 0.7, "eval_loss": 2.0, "global_step": 9},
    }
    for seed in results:
        (tmp_path / f"seed-{seed}" / "best_model").mkdir(parents=True)
        (tmp_path / f"seed-{seed}" / "best_model" / "name").write_text(str(seed))
    (tmp_path / "best_model").mkdir()
    (tmp_path / "best_model" / "of_an_earlier_run").write_text("")
    text = outcome.write_seeds(str(tmp_path), outcome.Trial({}, results), "eval_f1")
    content = json.loads((tmp_path / "seeds.json").read_text())
    assert content["best_seed"] == 2 and set(content["seeds"]) == {"1", "2", "3"}
    assert content["summary"]["eval_f1"] == pytest.approx(
        {"mean": 0.7, "min": 0.5, "max": 0.9, "standard_deviation": 0.2}
    )
    assert set(content["summary"]) == {"eval_f1", "eval_loss"}
    assert [path.name for path in (tmp_path / "best_model").iterdir()] == ["name"]
    assert (tmp_path / "best_model" / "name").read_text() == "2"
    assert text.splitlines()[1].split() == ["eval_f1", "0.7000", "0.5000", "0.9000", "0.2000"]

"""A model's outputs to what run_classifier.py writes: metrics, predictions, reports.

Metrics are those of scikit-learn and SciPy.
"""

import functools

import numpy as np

from bert_tf.store.head_config import softmax
from bert_tf.system.messages import warn_once
from bert_tf.tasks.rows import Task


def _by_scikit_learn(name: str, labels, predictions, /, **options) -> float:
    from sklearn import metrics

    return getattr(metrics, name)(labels, predictions, **options)


def _f1(average: str):
    return functools.partial(_by_scikit_learn, "f1_score", average=average, zero_division=0.0)


def _by_scipy(name: str, labels, predictions) -> float:
    from scipy import stats

    if len(labels) < 2 or np.ptp(labels) == 0 or np.ptp(predictions) == 0:
        warn_once(name, "%s is not defined, as all scores or all predictions are equal: 0.", name)
        return 0.0
    return getattr(stats, name)(labels, predictions).statistic


# name -> function (labels, predictions); classes as numbers, of several labels as rows of 0 and 1.
METRICS = {
    "accuracy": functools.partial(_by_scikit_learn, "accuracy_score"),
    "f1": _f1("binary"),
    "macro_f1": _f1("macro"),
    "micro_f1": _f1("micro"),
    "matthews": functools.partial(_by_scikit_learn, "matthews_corrcoef"),
    "pearson": functools.partial(_by_scipy, "pearsonr"),
    "spearman": functools.partial(_by_scipy, "spearmanr"),
    # KLUE-STS's: two texts mean the same from 3 of 5 on.
    "f1_at_3": lambda labels, scores: _f1("binary")(np.asarray(labels) >= 3.0, np.asarray(scores) >= 3.0),
}


def probabilities(task: Task, logits: np.ndarray) -> np.ndarray:
    """The probability of each label [n, C], float32; for a regression the predicted numbers [n, 1]."""
    logits = np.asarray(logits, np.float32)
    if task.is_regression:
        return logits
    if not task.multi_label:
        return softmax(logits)
    return np.exp(-np.logaddexp(0, -logits))  # SciPy's expit, without its import


def predictions_of(task: Task, logits: np.ndarray) -> np.ndarray:
    """Predicted class numbers [n]; numbers [n] for a regression; rows of 0 and 1 where several labels may hold."""
    if task.is_regression:
        return np.asarray(logits).reshape(-1)
    if task.multi_label:
        return (np.asarray(logits) > 0).astype(np.int32)
    return np.argmax(logits, -1)


def describe_predictions(task: Task, logits: np.ndarray) -> list[dict]:
    """`label` and `probabilities` of each example; `labels` where several may hold; `score` of a regression."""
    predicted = predictions_of(task, logits)
    if task.is_regression:
        return [{"score": float(value)} for value in predicted]
    described = []
    for row, prediction in zip(probabilities(task, logits), predicted, strict=True):
        if task.multi_label:
            record = {"labels": [task.labels[number] for number in np.flatnonzero(prediction)]}
        else:
            record = {"label": task.labels[prediction]}
        record["probabilities"] = {label: float(value) for label, value in zip(task.labels, row, strict=True)}
        described.append(record)
    return described


def example_losses(task: Task, logits: np.ndarray, label_ids: np.ndarray) -> np.ndarray:
    """The loss of each example [n], as the objectives define it."""
    logits = np.asarray(logits, np.float64)
    if task.is_regression:
        return (logits.reshape(-1) - label_ids) ** 2
    if task.multi_label:
        return (np.logaddexp(0.0, logits) - logits * label_ids).mean(-1)
    from scipy.special import log_softmax

    return -log_softmax(logits, axis=-1)[np.arange(len(label_ids)), label_ids]


def evaluate(task: Task, logits: np.ndarray, label_ids: np.ndarray, batch_size: int) -> dict[str, float]:
    """eval_<metric> for each metric of the task, eval_loss, and loss.

    `loss` is the plain mean over batches of `batch_size` in the order of the examples, as the original reports it; with
    a last batch that is not full it differs a little from `eval_loss`, the mean over the examples.
    """
    predicted = predictions_of(task, logits)
    results = {}
    for name in task.metrics:
        every = {"labels": range(len(task.labels))} if name == "macro_f1" else {}  # also those that never occur
        results[f"eval_{name}"] = float(METRICS[name](label_ids, predicted, **every))
    losses = example_losses(task, logits, label_ids)
    batches = [losses[start : start + batch_size].mean() for start in range(0, len(losses), batch_size)]
    return {**results, "eval_loss": float(losses.mean()), "loss": float(np.mean(batches))}


def report(task: Task, logits: np.ndarray, label_ids: np.ndarray) -> str:
    """Precision, recall, F1 and number of examples of each class, as a table of text."""
    from sklearn.metrics import classification_report

    options = {"labels": range(len(task.labels)), "target_names": task.labels, "digits": 4, "zero_division": 0.0}
    return classification_report(label_ids, predictions_of(task, logits), **options)

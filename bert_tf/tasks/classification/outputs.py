"""What a model's outputs mean, and what run_classifier.py writes of them: metrics, predictions, reports on a dev set.

Metrics are those of scikit-learn and SciPy.
"""

import posixpath
from collections.abc import Sequence

import numpy as np
from absl import logging

from bert_tf.data.token_rows import WindowRows
from bert_tf.models.heads import softmax
from bert_tf.system.messages import warn_once
from bert_tf.system.storage import write_text_file
from bert_tf.tasks.classification.data import InputExample, Task
from bert_tf.tasks.classification.encode import EncodedExamples
from bert_tf.text.tokenizer import Tokenizer


def _average(kind: str):
    def score(labels, predictions):
        from sklearn.metrics import f1_score

        return f1_score(labels, predictions, average=kind, zero_division=0.0)

    return score


def _accuracy(labels, predictions):
    from sklearn.metrics import accuracy_score

    return accuracy_score(labels, predictions)


def _matthews(labels, predictions):
    from sklearn.metrics import matthews_corrcoef

    return matthews_corrcoef(labels, predictions)


def _correlation(name: str):
    def score(labels, predictions):
        from scipy import stats

        if len(labels) < 2 or np.ptp(labels) == 0 or np.ptp(predictions) == 0:
            warn_once(name, "%s is not defined, as all scores or all predictions are equal: 0.", name)
            return 0.0
        return getattr(stats, name)(labels, predictions).statistic

    return score


# name -> function (labels, predictions); classes as numbers, of several labels as rows of 0 and 1.
METRICS = {
    "accuracy": _accuracy,
    "f1": _average("binary"),
    "macro_f1": _average("macro"),
    "micro_f1": _average("micro"),
    "matthews": _matthews,
    "pearson": _correlation("pearsonr"),
    "spearman": _correlation("spearmanr"),
}


def probabilities(task: Task, logits: np.ndarray) -> np.ndarray:
    """What a model gives for each label [n, C], float32; for a regression the predicted numbers [n, 1]."""
    logits = np.asarray(logits, np.float32)
    if task.is_regression:
        return logits
    if not task.multi_label:
        return softmax(logits)
    from scipy.special import expit

    return expit(logits)


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
    results = {f"eval_{name}": float(METRICS[name](label_ids, predicted)) for name in task.metrics}
    losses = example_losses(task, logits, label_ids)
    batches = [losses[start : start + batch_size].mean() for start in range(0, len(losses), batch_size)]
    return {**results, "eval_loss": float(losses.mean()), "loss": float(np.mean(batches))}


def report(task: Task, logits: np.ndarray, label_ids: np.ndarray) -> str:
    """Precision, recall, F1 and number of examples of each class, as a table of text; empty for a regression."""
    from sklearn.metrics import classification_report

    if task.is_regression:
        return ""
    return classification_report(
        label_ids,
        predictions_of(task, logits),
        labels=list(range(len(task.labels))),
        target_names=list(task.labels),
        digits=4,
        zero_division=0.0,
    )


# --- files -----------------------------------------------------------------------------------------------------------


def log_examples(examples: Sequence[InputExample], encoded: EncodedExamples, tokenizer: Tokenizer) -> None:
    """Shows the first examples as the model will see them, as the original does; of long texts the first window."""
    for row, example in enumerate(examples):
        first = encoded.first_rows[row] if isinstance(encoded, WindowRows) else row
        ids = encoded.ids[encoded.offsets[first] : encoded.offsets[first + 1]].tolist()
        tokens = " ".join(map(tokenizer.spell, tokenizer.convert_ids_to_tokens(ids)))
        logging.info("Example %s, label %s: %s", example.guid, example.label, tokens)


def write_predictions(
    output_dir: str, name: str, task: Task, examples: Sequence[InputExample], logits: np.ndarray, as_csv: bool = False
) -> None:
    """Writes test_results<name>.tsv as the original does, and predictions<name>.jsonl; see `outcome.write_predictions`.

    The first has one line an example, the probabilities in the order of the labels (of a regression the number). The
    second has `guid`, the chosen columns of its row, and what `describe_predictions` gives.
    """
    values = probabilities(task, logits)
    table = "".join("\t".join(str(np.float32(value)) for value in row) + "\n" for row in values)
    write_text_file(posixpath.join(output_dir, f"test_results{name}.tsv"), table)
    described = describe_predictions(task, logits)
    from bert_tf.tasks.outcome import write_predictions as write  # serving writes none

    paths = write(output_dir, name, examples, described, as_csv)
    logging.info(
        "Wrote %d predictions to %s; in test_results%s.tsv their bare numbers.",
        len(examples), " and ".join(paths), name,
    )  # fmt: skip


def write_analysis(
    output_dir: str, name: str, task: Task, logits: np.ndarray, label_ids: np.ndarray, title: str | None = None
) -> None:
    """Writes classification_report<name>.txt and, for one label an example, confusion_matrix<name>.png with a title."""
    if task.is_regression:
        return
    text = report(task, logits, label_ids)
    write_text_file(posixpath.join(output_dir, f"classification_report{name}.txt"), text)
    logging.info("Each class:\n%s", text)
    if not task.multi_label:
        from bert_tf.training import plots

        predicted = predictions_of(task, logits)
        path = posixpath.join(output_dir, f"confusion_matrix{name}.png")
        if title:
            accuracy = float(np.mean(predicted == label_ids))
            title = f"{title}: accuracy {accuracy:.3f}"
        plots.plot_confusion_matrix(label_ids, predicted, list(task.labels), path, title=title)

"""A multiple-choice model in run_swag.py: its evaluation and predictions."""

import posixpath
from collections.abc import Sequence

import numpy as np

from bert_tf.data.token_rows import GroupedRows
from bert_tf.models.configuration.head_config import softmax
from bert_tf.tasks import outcome
from bert_tf.tasks.choice.data import ChoiceExample
from bert_tf.tasks.classification import encode as classification_encode
from bert_tf.tasks.classification.data import Task


def evaluate(rows: GroupedRows, logits: np.ndarray, batch_size: int) -> dict[str, float]:
    """eval_accuracy, eval_loss (mean over the examples) and loss (mean over batches), see
    `metrics.evaluate`."""
    task = Task("multiple choice", tuple(map(str, range(rows.rows_per_example))), None)
    return classification_encode.evaluate(task, logits, rows.labels["label_ids"], batch_size)


def write_confusion_matrix(output_dir: str, rows: GroupedRows, logits: np.ndarray, title: str) -> None:
    """Writes confusion_matrix.png: the positions of the right choices and of the chosen ones."""
    from bert_tf.training import plots

    labels, chosen = rows.labels["label_ids"], np.argmax(logits, -1)
    path = posixpath.join(output_dir, "confusion_matrix.png")
    plots.plot_confusion_matrix(labels, chosen, list(map(str, range(rows.rows_per_example))), path, title=title)


def write_predictions(output_dir: str, examples: Sequence[ChoiceExample], logits: np.ndarray) -> list[str]:
    """Writes predictions.jsonl (see `outcome.write_predictions`) and test_results.tsv; returns their paths.

    The first has for each example its number `guid`, the number of the chosen one from 0, its text, the probabilities
    of all choices, and the `label` if there is one. The second has the probabilities, as run_classifier.py writes them.
    """
    probabilities = softmax(np.asarray(logits, np.float32))
    described = []
    for example, row in zip(examples, probabilities, strict=True):
        choice = int(row.argmax())
        record = {"choice": choice, "text": example.choices[choice], "probabilities": row.tolist()}
        if example.label is not None:
            record["label"] = example.label
        described.append(record)
    return outcome.write_predictions(output_dir, "", examples, described, probabilities)

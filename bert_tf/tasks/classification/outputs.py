"""What run_classifier.py writes: predictions, and reports on a dev set."""

import posixpath
from collections.abc import Sequence

import numpy as np
from absl import logging

from bert_tf.data.grouped_rows import WindowRows
from bert_tf.system.atomic import write_text_file
from bert_tf.tasks import predictions
from bert_tf.tasks.classification import metrics as classification_metrics
from bert_tf.tasks.classification.data import InputExample, Task
from bert_tf.tasks.classification.encode import EncodedExamples
from bert_tf.text.tokenizer import Tokenizer


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
    """Writes test_results<name>.tsv as the original does, and predictions<name>.jsonl; see `predictions.write`.

    The first has one line an example, the probabilities in the order of the labels (of a regression the number). The
    second has `guid`, the chosen columns of its row, and what `metrics.describe_predictions` gives.
    """
    values = classification_metrics.probabilities(task, logits)
    table = "".join("\t".join(str(np.float32(value)) for value in row) + "\n" for row in values)
    write_text_file(posixpath.join(output_dir, f"test_results{name}.tsv"), table)
    described = classification_metrics.describe_predictions(task, logits)
    paths = predictions.write(output_dir, name, examples, described, as_csv)
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
    text = classification_metrics.report(task, logits, label_ids)
    write_text_file(posixpath.join(output_dir, f"classification_report{name}.txt"), text)
    logging.info("Each class:\n%s", text)
    if not task.multi_label:
        from bert_tf.training import plots

        predicted = classification_metrics.predictions_of(task, logits)
        path = posixpath.join(output_dir, f"confusion_matrix{name}.png")
        if title:
            accuracy = float(np.mean(predicted == label_ids))
            title = f"{title}: accuracy {accuracy:.3f}"
        plots.plot_confusion_matrix(label_ids, predicted, list(task.labels), path, title=title)

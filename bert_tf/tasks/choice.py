"""What run_swag.py does with a model for multiple choice: mark it as one, evaluate it, write its predictions."""

import json
import posixpath
from collections.abc import Callable, Sequence

import numpy as np

from bert_tf.config import BertConfig
from bert_tf.tasks import batching, classification_metrics
from bert_tf.tasks.choice_data import ChoiceExample
from bert_tf.tasks.choice_features import ChoiceRows
from bert_tf.tasks.classification_data import Task
from bert_tf.text_files import write_text_file


def configure(config: BertConfig) -> BertConfig:
    """A copy of a model's configuration that says what its output layer is for, and of no classes."""
    values = config.to_dict()
    for key in ("problem_type", "id2label", "label2id"):
        values.pop(key, None)
    values["architectures"] = ["BertForMultipleChoice"]
    return BertConfig.from_dict(values, allow_unknown=True)


def predict_logits(
    predict: Callable, rows: ChoiceRows, *, batch_size: int, max_seq_length: int, static_padding: bool
) -> np.ndarray:
    """Logits [n, N] of all examples in their order.

    Args:
      predict: from `train_step.make_predict_function`.
    """
    batches = batching.evaluation_batches(
        rows, batch_size=batch_size, max_seq_length=max_seq_length, static_padding=static_padding
    )
    return batching.in_order(rows, batch_size, predict(batches))


def evaluate(rows: ChoiceRows, logits: np.ndarray, batch_size: int) -> dict[str, float]:
    """eval_accuracy, eval_loss (mean over the examples) and loss (mean over batches), see
    `classification_metrics.evaluate`."""
    task = Task("multiple choice", tuple(map(str, range(rows.num_choices))), None)
    return classification_metrics.evaluate(task, logits, rows.labels["label_ids"], batch_size)


def write_predictions(output_dir: str, examples: Sequence[ChoiceExample], logits: np.ndarray) -> list[str]:
    """Writes predictions.jsonl and test_results.tsv; returns their paths.

    The first has for each example its number `guid`, the number of the chosen one from 0, its text, and the
    probabilities of all; and the `label` where there is one. The second has the probabilities, as run_classifier.py.
    """
    probabilities = classification_metrics.softmax(np.asarray(logits, np.float32))
    lines, table = [], []
    for example, row in zip(examples, probabilities, strict=True):
        choice = int(row.argmax())
        record = {"guid": example.guid, "choice": choice, "text": example.choices[choice]}
        record["probabilities"] = [float(value) for value in row]
        if example.label is not None:
            record["label"] = example.label
        lines.append(json.dumps(record, ensure_ascii=False) + "\n")
        table.append("\t".join(str(value) for value in row) + "\n")
    paths = [posixpath.join(output_dir, name) for name in ("predictions.jsonl", "test_results.tsv")]
    for path, content in zip(paths, (lines, table), strict=True):
        write_text_file(path, "".join(content))
    return paths

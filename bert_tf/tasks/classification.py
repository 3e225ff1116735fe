"""What run_classifier.py does with a model: evaluate it, write its predictions, and sum up several seeds."""

import json
import posixpath
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.baseline_models import ARCHITECTURES
from bert_tf.config import BertConfig
from bert_tf.tasks import batching, classification_metrics
from bert_tf.tasks.classification_data import InputExample, Task
from bert_tf.tasks.classification_features import EncodedExamples
from bert_tf.text_files import write_text_file
from bert_tf.tokenization import FullTokenizer


def configure(config: BertConfig, task: Task) -> BertConfig:
    """A copy of a model's configuration with the task's labels and kind, which travel with its checkpoints."""
    values = config.to_dict()
    kind = "multi_label_classification" if task.multi_label else "single_label_classification"
    values["problem_type"] = "regression" if task.is_regression else kind
    for key in ("id2label", "label2id"):
        values.pop(key, None)
    # What a Hugging Face model was before counts no more; of a model without BERT it is what says so.
    if values.get("architectures") not in [[name] for name in ARCHITECTURES.values()]:
        values.pop("architectures", None)
    if not task.is_regression:
        values["id2label"] = {str(number): label for number, label in enumerate(task.labels)}
        values["label2id"] = {label: number for number, label in enumerate(task.labels)}
    return BertConfig.from_dict(values, allow_unknown=True)


def predict_logits(
    predict: Callable, encoded: EncodedExamples, *, batch_size: int, max_seq_length: int, static_padding: bool
) -> np.ndarray:
    """Logits [n, C] of all examples in their order.

    Args:
      predict: from `train_step.make_predict_function`.
    """
    batches = batching.evaluation_batches(
        encoded, batch_size=batch_size, max_seq_length=max_seq_length, static_padding=static_padding
    )
    return batching.in_order(encoded, batch_size, predict(batches))


def log_examples(examples: Sequence[InputExample], encoded: EncodedExamples, tokenizer: FullTokenizer) -> None:
    """Shows the first examples as the model will see them, as the original does."""
    for row, example in enumerate(examples):
        ids = encoded.ids[encoded.offsets[row] : encoded.offsets[row + 1]].tolist()
        tokens = " ".join(tokenizer.convert_ids_to_tokens(ids))
        logging.info("Example %s, label %s: %s", example.guid, example.label, tokens)


def write_predictions(output_dir: str, name: str, task: Task, encoded: EncodedExamples, logits: np.ndarray) -> None:
    """Writes test_results<name>.tsv as the original does, and predictions<name>.jsonl.

    The first has one line an example, the probabilities in the order of the labels (of a regression the number). The
    second has `guid` and what `classification_metrics.describe_predictions` gives.
    """
    values = classification_metrics.probabilities(task, logits)
    table = "".join("\t".join(str(np.float32(value)) for value in row) + "\n" for row in values)
    write_text_file(posixpath.join(output_dir, f"test_results{name}.tsv"), table)
    described = classification_metrics.describe_predictions(task, logits)
    lines = [
        json.dumps({"guid": guid, **record}, ensure_ascii=False) + "\n"
        for guid, record in zip(encoded.guids, described, strict=True)
    ]
    write_text_file(posixpath.join(output_dir, f"predictions{name}.jsonl"), "".join(lines))
    logging.info("Wrote %d predictions to %s.", len(lines), posixpath.join(output_dir, f"test_results{name}.tsv"))


def write_analysis(output_dir: str, name: str, task: Task, logits: np.ndarray, label_ids: np.ndarray) -> None:
    """Writes classification_report<name>.txt and, for one label an example, confusion_matrix<name>.png."""
    if task.is_regression:
        return
    text = classification_metrics.report(task, logits, label_ids)
    write_text_file(posixpath.join(output_dir, f"classification_report{name}.txt"), text)
    logging.info("Each class:\n%s", text)
    if not task.multi_label:
        from bert_tf import plots

        predicted = classification_metrics.predictions_of(task, logits)
        path = posixpath.join(output_dir, f"confusion_matrix{name}.png")
        plots.plot_confusion_matrix(label_ids, predicted, list(task.labels), path)


def summarize_seeds(results: Mapping[int, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """mean, min, max and standard deviation over seeds of each metric. results: seed -> metrics."""
    names = [name for name in next(iter(results.values())) if name != "global_step"]
    summary = {}
    for name in names:
        values = np.array([result[name] for result in results.values()])
        deviation = float(values.std(ddof=1)) if len(values) > 1 else 0.0
        summary[name] = {
            "mean": float(values.mean()),
            "min": float(values.min()),
            "max": float(values.max()),
            "standard_deviation": deviation,
        }
    return summary


_RESULT_FILES = ("eval_results", "test_results", "predictions", "classification_report", "confusion_matrix")


def write_seed_summary(
    output_dir: str, results: Mapping[int, Mapping[str, float]], main_metric: str, smaller_is_better: bool = False
) -> str:
    """Writes seeds.json and copies the best seed's results and best model to output_dir; returns the table as text.

    Those of all seeds lie in output_dir/seed-<seed>.
    """
    summary = summarize_seeds(results)
    choose = min if smaller_is_better else max
    best = choose(results, key=lambda seed: results[seed][main_metric])
    content = {"best_seed": best, "seeds": {str(seed): values for seed, values in results.items()}, "summary": summary}
    write_text_file(posixpath.join(output_dir, "seeds.json"), json.dumps(content, indent=2, sort_keys=True) + "\n")
    of_best = posixpath.join(output_dir, f"seed-{best}")
    for name in tf.io.gfile.listdir(of_best):
        if name.startswith(_RESULT_FILES):
            tf.io.gfile.copy(posixpath.join(of_best, name), posixpath.join(output_dir, name), overwrite=True)
    source, target = (posixpath.join(folder, "best_model") for folder in (of_best, output_dir))
    if tf.io.gfile.exists(source):
        if tf.io.gfile.exists(target):
            tf.io.gfile.rmtree(target)
        tf.io.gfile.makedirs(target)
        for name in tf.io.gfile.listdir(source):
            tf.io.gfile.copy(posixpath.join(source, name), posixpath.join(target, name))
    width = max(map(len, summary))
    lines = [f"{'metric'.ljust(width)}  {'mean':>8}  {'min':>8}  {'max':>8}  {'std':>8}"]
    for name, values in summary.items():
        cells = "  ".join(f"{values[key]:8.4f}" for key in ("mean", "min", "max", "standard_deviation"))
        lines.append(f"{name.ljust(width)}  {cells}")
    return "\n".join([*lines, f"{len(results)} seeds, the best by {main_metric} is {best}."])

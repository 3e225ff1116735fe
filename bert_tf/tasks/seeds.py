"""Several seeds of one fine-tuning run: mean, min and max of their results, and the best one's files."""

import json
import posixpath
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from bert_tf.models.card import shown_results
from bert_tf.system.atomic import remove_folder, write_text_file
from bert_tf.training import best_model, run_directory


def summarize(results: Mapping[int, Mapping[str, float]]) -> dict[str, dict[str, float]]:
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


def best_of(results: Mapping[int, Mapping[str, float]], main_metric: str, smaller_is_better: bool = False) -> int:
    """The seed with the best value of a metric; the first of equals, and of one seed this, without any metric."""
    if len(results) == 1:
        return next(iter(results))
    choose = min if smaller_is_better else max
    return choose(results, key=lambda seed: results[seed][main_metric])


# The names of a run's result files begin like this.
_RESULT_FILES = (
    "eval_re", "test_re", "predictions", "nbest_predictions", "null_odds", "classification_report", "confusion_matrix",
    "question_answering.json", "token_classification.json", "loss.png",
)  # fmt: skip


def copy_best(run_dir: str, output_dir: str) -> None:
    """Copies the results and the best model of one of several runs to the directory of them all."""
    for name in tf.io.gfile.listdir(run_dir):
        if name.startswith(_RESULT_FILES):
            tf.io.gfile.copy(posixpath.join(run_dir, name), posixpath.join(output_dir, name), overwrite=True)
    source, target = (posixpath.join(folder, best_model.DIRECTORY) for folder in (run_dir, output_dir))
    if tf.io.gfile.exists(source):
        remove_folder(target)
        for folder, _, names in tf.io.gfile.walk(source):
            there = posixpath.join(target, posixpath.relpath(folder, source))
            tf.io.gfile.makedirs(there)
            for name in names:
                tf.io.gfile.copy(posixpath.join(folder, name), posixpath.join(there, name))


def write_summary(
    output_dir: str, results: Mapping[int, Mapping[str, float]], main_metric: str, smaller_is_better: bool = False
) -> str:
    """Writes seeds.json and copies the best seed's results and best model to output_dir; returns the table as text.

    The files of all seeds are in output_dir/seed-<seed>.
    """
    summary = summarize(results)
    best = best_of(results, main_metric, smaller_is_better)
    content = {"best_seed": best, "seeds": {str(seed): values for seed, values in results.items()}, "summary": summary}
    write_text_file(
        posixpath.join(output_dir, run_directory.SEEDS), json.dumps(content, indent=2, sort_keys=True) + "\n"
    )
    copy_best(posixpath.join(output_dir, f"seed-{best}"), output_dir)
    summary = shown_results(summary)
    width = max(map(len, summary))
    lines = [f"{'metric'.ljust(width)}  {'mean':>8}  {'min':>8}  {'max':>8}  {'std':>8}"]
    for name, values in summary.items():
        cells = "  ".join(f"{values[key]:8.4f}" for key in ("mean", "min", "max", "standard_deviation"))
        lines.append(f"{name.ljust(width)}  {cells}")
    return "\n".join([*lines, f"{len(results)} seeds, the best by {main_metric} is {best}."])

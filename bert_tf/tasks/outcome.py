"""What comes of fine-tuning: results of several seeds and of --search, predictions, and the last lines of a run."""

import dataclasses
import json
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.families.recipe import Values, combination_text, folder_of, value_text
from bert_tf.store.card import shown_results
from bert_tf.store.save import files_below
from bert_tf.system.storage import link_or_copy, remove_folder, write_text_file
from bert_tf.tasks.table import TASKS
from bert_tf.training import fine_tuning, run_directory
from bert_tf.training.settings import FineTuningSettings

_SHOWN = 80  # characters of a text
# Characters of a language's script -> examples for a card, which shows none of the data's: a question, then texts.
_SAMPLES = {
    "[가-힣]": ("대한민국의 수도는 어디입니까?", "대한민국의 수도는 서울이다.", "서울에는 한강이 흐른다."),
    "[ぁ-ヿ]": ("日本の首都はどこですか。", "日本の首都は東京です。", "東京には隅田川が流れています。"),
    "[一-鿿]": ("中国的首都是哪里？", "中国的首都是北京。", "北京有很多公园。"),
}


@dataclasses.dataclass(frozen=True)
class Trial:
    """A combination of settings that was trained.

    values: of the settings that are searched, if any. results: seed -> metrics on the main dev set.
    best_models: seed -> the same of the best model, with `step`, if any.
    """

    values: Values
    results: Mapping[int, Mapping[str, float]]
    best_models: Mapping[int, Mapping[str, float] | None] = dataclasses.field(default_factory=dict)

    @property
    def summary(self) -> dict[str, dict[str, float]]:
        summary = {}
        for name in next(iter(self.results.values())):
            values = np.array([result[name] for result in self.results.values()])
            deviation = float(values.std(ddof=1)) if len(values) > 1 else 0.0
            numbers = {"mean": float(values.mean()), "min": float(values.min()), "max": float(values.max())}
            summary[name] = {**numbers, "standard_deviation": deviation}
        summary.pop("global_step", None)
        return summary

    @property
    def by_seed(self) -> dict[str, dict[str, float]]:
        return {str(seed): dict(values) for seed, values in self.results.items()}

    def best_seed(self, main_metric: str) -> int:
        """The seed with the largest value of a metric; the first of equals. One seed needs no metric."""
        if len(self.results) == 1:
            return next(iter(self.results))
        return max(self.results, key=lambda seed: self.results[seed][main_metric])


def best_of(tried: Sequence[Trial], main_metric: str) -> Trial:
    """The combination with the largest mean of the metric over its seeds; the first of equals."""
    return tried[0] if len(tried) == 1 else max(tried, key=lambda trial: trial.summary[main_metric]["mean"])


def write_seeds(output_dir: str, tried: Trial, main_metric: str) -> str:
    """Writes seeds.json and copies the results and model of the best output_dir/seed-<seed>; returns the table."""
    best, summary, seeds = tried.best_seed(main_metric), tried.summary, tried.by_seed
    text = json.dumps({"best_seed": best, "seeds": seeds, "summary": summary}, indent=2, sort_keys=True)
    _write(output_dir, {run_directory.SEEDS: text}, f"seed-{best}")
    summary = shown_results(summary)
    width = max(map(len, summary))
    lines = [f"{'metric'.ljust(width)}  {'mean':>8}  {'min':>8}  {'max':>8}  {'std':>8}"]
    for name, values in summary.items():
        cells = "  ".join(f"{values[key]:8.4f}" for key in ("mean", "min", "max", "standard_deviation"))
        lines.append(f"{name.ljust(width)}  {cells}")
    return "\n".join([*lines, f"{len(seeds)} seeds, the best by {main_metric} is {best}.", ""])


def write_search(output_dir: str, tried: Sequence[Trial], main_metric: str) -> str:
    """Writes search.json and search.md, and copies the results and model of the best combination; returns the table."""
    best = best_of(tried, main_metric)
    combinations = []
    for trial in tried:
        what = {"settings": dict(trial.values), "folder": folder_of(trial.values)}
        combinations.append({**what, "seeds": trial.by_seed, "summary": trial.summary})
    content = {"metric": main_metric, "best": dict(best.values), "combinations": combinations}
    text, table = json.dumps(content, indent=2, ensure_ascii=False), table_text(tried, main_metric)
    _write(output_dir, {run_directory.SEARCH: text, "search.md": table}, folder_of(best.values))
    return f"{table}\n"


def _write(output_dir: str, texts: Mapping[str, str], best: str) -> None:
    """Writes what is known of several runs, and copies the results and the best model of the one in the folder best."""
    for name, text in texts.items():
        write_text_file(posixpath.join(output_dir, name), f"{text}\n")
    run_dir = posixpath.join(output_dir, best)
    for name in tf.io.gfile.listdir(run_dir):
        if run_directory.RESULTS.fullmatch(name):
            tf.io.gfile.copy(posixpath.join(run_dir, name), posixpath.join(output_dir, name), overwrite=True)
    source, target = (posixpath.join(folder, fine_tuning.BEST_MODEL) for folder in (run_dir, output_dir))
    if tf.io.gfile.exists(source):
        remove_folder(target)
        for name in files_below(source):
            tf.io.gfile.makedirs(posixpath.dirname(posixpath.join(target, name)))
            link_or_copy(posixpath.join(source, name), posixpath.join(target, name))


def table_text(tried: Sequence[Trial], main_metric: str) -> str:
    """A table in Markdown that can also be read on a console: a row for each combination, the best one named below."""
    best, several = best_of(tried, main_metric), len(tried[0].results) > 1
    further = [name for name in shown_results(tried[0].summary) if name != main_metric]
    spread = {"std": "standard_deviation", "min": "min", "max": "max"} if several else {}
    rows = [[*tried[0].values, main_metric, *spread, *further]]
    for trial in tried:
        summary = trial.summary
        numbers = [summary[main_metric]["mean"], *(summary[main_metric][key] for key in spread.values())]
        numbers += [summary[name]["mean"] for name in further]
        rows.append([*map(value_text, trial.values.values()), *(f"{number:.4f}" for number in numbers)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [f"| {' | '.join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))} |" for row in rows]
    lines.insert(1, f"|{'|'.join('-' * (width + 1) + ':' for width in widths)}|")
    count = len(tried[0].results)
    over = f", the mean of {count} seeds," if several else ""
    verdict = f"The best by {main_metric}{over} is {combination_text(best.values)}."
    if not several:
        verdict += " One seed each: what differs little may be chance; --num_seeds=5 shows how much."
    return "\n".join([*lines, "", verdict])


# --- predictions of a test file --------------------------------------------------------------------------------------


def write_predictions(
    output_dir: str, name: str, examples: Sequence, described: Sequence[Mapping], numbers: Iterable[Iterable[float]]
) -> list[str]:
    """Writes predictions<name>.jsonl, one object an example, and test_results<name>.tsv; returns their paths.

    examples: with a `guid`, and in `source` columns of the row or None. A column that is called as a part of a
      prediction gets `input_` before its name.
    described: the prediction of each example. numbers: its line in the second file, as the original writes it.
    """
    lines = []
    for example, prediction in zip(examples, described, strict=True):
        taken, source = {"guid", *prediction}, example.source or {}
        columns = {f"input_{name}" if name in taken else name: value for name, value in source.items()}
        record = {"guid": example.guid, **columns, **prediction}
        lines.append(json.dumps(record, ensure_ascii=False) + "\n")
    paths = [posixpath.join(output_dir, file) for file in (f"predictions{name}.jsonl", f"test_results{name}.tsv")]
    write_text_file(paths[0], "".join(lines))
    write_text_file(paths[1], "".join("\t".join(map(str, row)) + "\n" for row in numbers))
    return paths


# --- the summary -----------------------------------------------------------------------------------------------------


def log_summary(task, run: FineTuningSettings, trial: Trial, last: int) -> None:
    """Logs the results of the best seed, where the model is, and the line of Python that uses it.

    task: a `task.FineTuningTask`. last: the step where the results say none.
    """
    path, metric, seed = run.output_dir, task.main_metric, trial.best_seed(task.main_metric)
    results = trial.results[seed]
    step = results.get("global_step", last)
    of_step = f" of step {step}" if step else ""
    if run.do_train:
        of_step += f", the {'best' if run.use_best_model else 'last'} one"
        of_step += f", with seed {seed}" if run.num_seeds > 1 else ""
    if results:
        shown = (f"{name} {value:.6g}" for name, value in sorted(shown_results(results).items()))
        logging.info("Results%s: %s.", of_step, ", ".join(shown))
    if not run.do_train:
        return
    if run.do_predict:
        logging.info("Predictions:%s.", of_step)
    if task.dev_sets and (best := trial.best_models.get(seed)):
        path, beside = posixpath.join(path, fine_tuning.BEST_MODEL), ")."
        if best["step"] != step and not run.use_best_model:
            advice = "To evaluate and predict with it, run the same command with --use_best_model."
            beside = f", compared with {results[metric]:.4f} of step {step}). {advice}"
        logging.info("Best model: %s (step %d, %s %.4f%s", path, best["step"], metric, best[metric], beside)
    else:
        logging.info("Model: %s (the last step; a best_model needs a dev set).", path)
    if task.answers:
        logging.info("In Python:\n  from bert_tf import %s\n  %s", *usage(task, path, task.known_texts()))


def samples(task) -> list[str]:
    """Examples for `usage` in the script of the data's texts or of the labels; none if both seem to be English."""
    all_text = " ".join([*task.known_texts(), *map(str, task.files.head.labels or ())])
    texts = next((texts for script, texts in _SAMPLES.items() if re.search(script, all_text)), ())
    return [*texts] if TASKS[task.name].answerer == "QuestionAnswerer" else [*texts[1:]]


def usage(task, path: str, texts: Iterable[str] = ()) -> tuple[str, str]:
    """The name of `bert_tf` that answers with the task's models, and the line that does so with that at a path.

    texts: take the place of the English examples in the line.
    """
    shown = (text if len(text) <= _SHOWN else text[:_SHOWN] + "..." for text in texts)
    quoted = (json.dumps(string, ensure_ascii=False) for string in (path, *shown))
    return TASKS[task.name].answerer, re.sub('"[^"]*"', lambda match: next(quoted, match[0]), task.answers)

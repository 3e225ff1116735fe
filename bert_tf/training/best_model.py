"""The best model of a run by its main metric, kept next to the newest checkpoints, and early stopping."""

import dataclasses
import json
import posixpath

import keras
import tensorflow as tf
from absl import logging

from bert_tf.models import initialize, lora, saving
from bert_tf.models.directory import ModelFiles
from bert_tf.system.atomic import check_may_write, write_text_file
from bert_tf.system.messages import announced
from bert_tf.system.text_files import parse_json, read_json_if_there, read_text_lines

DIRECTORY = "best_model"
_EVALUATIONS = "evaluations.jsonl"
_RESULTS = "eval_results.json"  # in the best model's directory


def read_results(output_dir: str) -> dict | None:
    """The results of the best model in a run's directory, with `step`; None if there is none."""
    return read_json_if_there(posixpath.join(output_dir, DIRECTORY, _RESULTS))


def _check_numbers(results: object, names: tuple[str, ...], source: str) -> None:
    """Checks the results of an evaluation that a file has.

    Raises:
      ValueError: they lack a number that is needed; names the source.
    """
    for name in names:
        if not isinstance(results, dict) or not isinstance(results.get(name), int | float):
            raise ValueError(f"{source} has no number for {name}; if it is damaged, remove it.")


class BestModel:
    """Keeps `output_dir/best_model`, a complete model directory, and `output_dir/evaluations.jsonl`.

    This state is resumed with the run: evaluations of repeated steps count once, and the model kept so far stays the
    best until another is better, even if its step has yet to be repeated.

    Args:
      output_dir: of the run. files: what to write beside the weights. metric: name in the results; larger is better.
      patience: evaluations without improvement after which `should_stop` is True; 0: never.
      active: False on workers that write nothing.

    Attributes:
      best: the results of the best model, with `step`; on a tie, of the first.
      further_files: name -> content of other files that belong to the current model.
    """

    def __init__(self, output_dir: str, files: ModelFiles, metric: str, *, patience: int = 0, active: bool = True):
        self.directory = posixpath.join(output_dir, DIRECTORY)
        self._path = posixpath.join(output_dir, _EVALUATIONS)
        self._files, self._metric, self._patience, self._active = files, metric, patience, active
        self.further_files: dict[str, str] = {}
        self._evaluations = {}
        self.best = read_results(output_dir)
        if tf.io.gfile.exists(self._path):
            for number, line in enumerate(read_text_lines(self._path), start=1):
                values = parse_json(line, self._path, number)
                _check_numbers(values, ("step",), f"{self._path}, line {number}")
                self._evaluations[values["step"]] = values

    def forget_after(self, step: int) -> None:
        """Drops evaluations of steps that a run resumed at `step` will repeat.

        Raises:
          ValueError: the results that are resumed lack the metric; names the file.
        """
        self._evaluations = {number: values for number, values in self._evaluations.items() if number <= step}
        if step == 0:
            self.best = None  # nothing is resumed: a model found there belongs to another run
        for values, path in (
            *((values, self._path) for values in self._evaluations.values()),
            *([(self.best, posixpath.join(self.directory, _RESULTS))] if self.best else ()),
        ):
            _check_numbers(values, ("step", self._metric), path)

    @property
    def steps(self) -> set[int]:
        """The steps that were evaluated."""
        return set(self._evaluations)

    def results_of(self, step: int) -> dict | None:
        """The results of the evaluation of a step, without `step`; None if there was none."""
        values = self._evaluations.get(step)
        return values and {name: value for name, value in values.items() if name != "step"}

    def update(self, step: int, results: dict, model: keras.Model) -> None:
        """Records the results of an evaluation, and saves the model if no earlier one is as good.

        Raises:
          ValueError: the results lack the metric.
        """
        if self._metric not in results:
            raise ValueError(f"The best model is chosen by {self._metric}, but there are only {', '.join(results)}.")
        values = {"step": step, **results}
        self._evaluations[step] = values
        old, self.best = self.best, values if self._is_better(values) else self.best
        if not self._active:
            return
        check_may_write(self._path)
        if self.best is not old:
            with announced(f"Saving the best model in {self.directory} ..."):
                self._save(model)
        lines = [json.dumps(self._evaluations[number]) + "\n" for number in sorted(self._evaluations)]
        write_text_file(self._path, "".join(lines))

    def _is_better(self, values: dict) -> bool:
        if self.best is None or values[self._metric] > self.best[self._metric]:
            return True
        # The same step again, after a kill, with the same weights: a kill during saving may have left a mix of old and
        # new files, so they are written again.
        return values["step"] == self.best["step"] and values[self._metric] == self.best[self._metric]

    def _save(self, model: keras.Model) -> None:
        results = posixpath.join(self.directory, _RESULTS)
        if tf.io.gfile.exists(results):
            tf.io.gfile.remove(results)  # a kill in between must not leave new weights under old results
        weights = initialize.model_weights(model)
        facts = dataclasses.replace(self._files.card, results=self.best)
        files = dataclasses.replace(self._files, card=facts)
        saving.write_model(self.directory, weights, files, format="bert_tf", overwrite=True)
        if lora.has_adapters(model):
            from bert_tf.models import lora_file

            lora_file.write_lora(posixpath.join(self.directory, lora_file.FILE), model)
        for name, content in self.further_files.items():
            write_text_file(posixpath.join(self.directory, name), content)
        write_text_file(results, json.dumps(self.best, indent=2, sort_keys=True) + "\n")
        found = self.best[self._metric], self.best["step"]
        logging.info("Best so far: %s %.4f at step %d, in %s", self._metric, *found, self.directory)

    def should_stop(self) -> bool:
        """Whether the last `patience` evaluations were all no better than one before them."""
        if not self._patience or not self.best:
            return False
        return sum(step > self.best["step"] for step in self._evaluations) >= self._patience

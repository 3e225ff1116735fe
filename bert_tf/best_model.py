"""The best model of a run by its main metric, kept beside the newest checkpoints, and when to stop early."""

import json
import posixpath

import keras
import tensorflow as tf
from absl import logging

from bert_tf import checkpoints, pretrained
from bert_tf.model_files import ModelFiles
from bert_tf.text_files import read_text_lines, write_text_file

DIRECTORY = "best_model"
_EVALUATIONS = "evaluations.jsonl"


class BestModel:
    """Keeps `output_dir/best_model`, a directory that describes itself, and `output_dir/evaluations.jsonl`.

    A run that goes on after a kill goes on here, too: what an evaluation gave is in the file before anything else
    happens, and evaluations of steps that are repeated count once.

    Args:
      output_dir: of the run. files: what to write beside the weights. metric: name in the results; larger is better
        unless `smaller_is_better`.
      patience: evaluations without a better one after which `should_stop` says so; 0: never.
      active: False on workers that write nothing.
    """

    def __init__(
        self,
        output_dir: str,
        files: ModelFiles,
        metric: str,
        *,
        smaller_is_better: bool = False,
        patience: int = 0,
        active: bool = True,
    ):
        self.directory = posixpath.join(output_dir, DIRECTORY)
        self._path = posixpath.join(output_dir, _EVALUATIONS)
        self._files, self._metric, self._patience, self._active = files, metric, patience, active
        self._sign = -1.0 if smaller_is_better else 1.0
        self._evaluations = {}
        if tf.io.gfile.exists(self._path):
            for line in read_text_lines(self._path):
                values = json.loads(line)
                self._evaluations[values["step"]] = values

    def forget_after(self, step: int) -> None:
        """Drops evaluations of steps that a run which goes on at `step` will make again."""
        self._evaluations = {number: values for number, values in self._evaluations.items() if number <= step}

    @property
    def steps(self) -> set[int]:
        """The steps that were evaluated."""
        return set(self._evaluations)

    @property
    def best(self) -> dict | None:
        """The results of the best evaluation so far, with `step`; of equals the first."""
        ordered = [self._evaluations[step] for step in sorted(self._evaluations)]
        return max(ordered, key=lambda values: self._sign * values[self._metric]) if ordered else None

    def update(self, step: int, results: dict, model: keras.Model) -> None:
        """Notes the results of an evaluation, and saves the model if no earlier one is as good."""
        self._evaluations[step] = {"step": step, **results}
        if not self._active:
            return
        if self.best["step"] == step:
            weights = checkpoints.model_weights(model)
            pretrained.write_model(self.directory, weights, self._files, format="bert_tf", overwrite=True)
            text = json.dumps(self.best, indent=2, sort_keys=True) + "\n"
            write_text_file(posixpath.join(self.directory, "eval_results.json"), text)
            logging.info("Best so far: %s %.4f at step %d, in %s", self._metric, results[self._metric], step, DIRECTORY)
        lines = [json.dumps(self._evaluations[number]) + "\n" for number in sorted(self._evaluations)]
        write_text_file(self._path, "".join(lines))

    def should_stop(self) -> bool:
        """Whether the last `patience` evaluations were all no better than one before them."""
        if not self._patience or not self._evaluations:
            return False
        return sum(step > self.best["step"] for step in self._evaluations) >= self._patience

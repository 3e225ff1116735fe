"""The parts of a fine-tuning run: the best model, kept next to the newest checkpoints, and early stopping; adapters.

`starting_model` has the weights it begins with. The run is in `tasks.script`, the training loop in `loop.train`.
"""

import dataclasses
import json
import posixpath
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.families.config import BertConfig
from bert_tf.models import encoder, initialize, lora_file
from bert_tf.store import save, variable_names
from bert_tf.store.description import ModelFiles
from bert_tf.store.open import BERT_TF, open_ours
from bert_tf.store.tensor_files import Weights
from bert_tf.system.messages import abbreviated_list, announced
from bert_tf.system.storage import write_text_file
from bert_tf.system.text_files import parse_json, read_json_if_there, read_text_lines
from bert_tf.training.settings import FineTuningSettings
from bert_tf.training.starting_model import Adjustment

BEST_MODEL = "best_model"
_EVALUATIONS = "evaluations.jsonl"
_RESULTS = "eval_results.json"  # in the best model's directory


def read_best_results(output_dir: str) -> dict | None:
    """The results of the best model in a run's directory, with `step`, if any."""
    return read_json_if_there(posixpath.join(output_dir, BEST_MODEL, _RESULTS))


class BestModel:
    """Keeps `output_dir/best_model`, a complete model directory, and `output_dir/evaluations.jsonl`.

    This state is resumed with the run: evaluations of repeated steps count once, and the model kept so far stays the
    best until another is better, even if its step has yet to be repeated.

    files: what to write next to the weights. metric: its name in the results; larger is better.
    step: at which the run is resumed; evaluations of later ones, which it repeats, are dropped. 0: it begins, and a
      model in its directory is another run's.
    patience: evaluations without improvement after which `should_stop` is True; 0: never.
    active: False on workers that write nothing.
    best: the results of the best model, with `step`; on a tie, of the first. evaluations: step -> results.
    paths: of its results and its weights.
    """

    def __init__(
        self, output_dir: str, files: ModelFiles, metric: str, step: int = 0, *, patience: int = 0, active: bool = True
    ):
        self.directory = posixpath.join(output_dir, BEST_MODEL)
        self.paths = [posixpath.join(self.directory, name) for name in (_RESULTS, BERT_TF.file_name)]
        self._output_dir, self._path = output_dir, posixpath.join(output_dir, _EVALUATIONS)
        self._files, self._metric, self._patience, self._active = files, metric, patience, active
        self.evaluations: dict[int, dict] = {}
        self.best = read_best_results(output_dir) if step else None
        for number, line in enumerate(read_text_lines(self._path) if tf.io.gfile.exists(self._path) else (), start=1):
            values = parse_json(line, self._path, number)
            if values["step"] <= step:
                self.evaluations[values["step"]] = values

    def update(self, step: int, results: dict, model: keras.Model, further_files: Mapping[str, str]) -> None:
        """Records the results of an evaluation, and saves the model if no earlier one is as good.

        further_files: name -> content, of the model; output_dir gets them, too.
        """
        self.evaluations[step] = values = {"step": step, **results}
        old, score = self.best, values[self._metric]
        # Of the same step, after a kill during saving, there may be a mix of old and new files: they are written again.
        again = old is not None and (values["step"], score) == (old["step"], old[self._metric])
        if old is None or again or score > old[self._metric]:
            self.best = values
        if not self._active:
            return
        for name, content in further_files.items():
            write_text_file(posixpath.join(self._output_dir, name), content)
        if self.best is not old:
            with announced(f"Saving the best model in {self.directory} ..."):
                self._save(model, further_files)
        lines = [json.dumps(self.evaluations[number]) + "\n" for number in sorted(self.evaluations)]
        write_text_file(self._path, "".join(lines))

    def _save(self, model: keras.Model, further_files: Mapping[str, str]) -> None:
        results, _ = self.paths
        if tf.io.gfile.exists(results):
            tf.io.gfile.remove(results)  # a kill in between must not leave new weights under old results
        facts = dataclasses.replace(self._files.card, results=self.best)
        files = dataclasses.replace(self._files, card=facts)
        save.write_model(self.directory, initialize.model_weights(model), files, format="bert_tf", overwrite=True)
        if variable_names.has_adapters(model):
            lora_file.write_lora(posixpath.join(self.directory, lora_file.FILE), model)
        for name, content in further_files.items():
            write_text_file(posixpath.join(self.directory, name), content)
        write_text_file(results, json.dumps(self.best, indent=2, sort_keys=True) + "\n")
        score, step = self.best[self._metric], self.best["step"]
        logging.info("Best so far: %s %.4f at step %d, in %s", self._metric, score, step, self.directory)

    def should_stop(self) -> bool:
        """Whether the last `patience` evaluations were all no better than one before them."""
        if not self._patience or not self.best:
            return False
        return sum(step > self.best["step"] for step in self.evaluations) >= self._patience


# --- adapters ---------------------------------------------------------------------------------------------------------


def check_base(model: keras.Model, weights: Weights | None) -> None:
    """Raises if weights lack a part of the encoder, which would stay random where only adapters are trained."""
    if not weights:
        raise ValueError("--lora_rank adapts a trained encoder: give --init_checkpoint.")
    missing = [name for name in lora_file.base_variables(model) if name not in weights]
    if missing:
        raise ValueError(f"--lora_rank: {weights.path} lacks variables of the encoder: {abbreviated_list(missing)}.")


def log_lora(model: keras.Model, learning_rate: float, usual_rate: float) -> None:
    """Logs how little LoRA trains, and warns of a learning rate that is no more than the usual one."""
    rank, alpha = model.bert.lora.rank, model.bert.lora.alpha
    trained = sum(int(np.prod(variable.shape)) for variable in model.trainable_variables)
    total = sum(int(np.prod(variable.shape)) for variable in initialize.model_variables(model).values())
    share = 100 * trained / total
    message = "LoRA of rank %d, alpha %g: %s parameters are trained, %.2f %% of the model's %s."
    logging.info(message, rank, alpha, f"{trained:,}", share, f"{total:,}")
    if learning_rate <= usual_rate:
        logging.warning(
            "--learning_rate=%g is one for whole models; adapters need about ten times as much to learn in the "
            "same steps.",
            learning_rate,
        )


def cost_of_example(
    run: FineTuningSettings, config: BertConfig, lengths: np.ndarray, tokens_read: int | None
) -> tuple[float, float]:
    """The mean tokens of training examples of these lengths, and the model FLOPs of one, forward and backward."""
    mean_length = run.max_seq_length if run.padding["static_padding"] else float(lengths.mean())
    # Backward is twice as much as forward, and needless where nothing is trained.
    forward = encoder.encoder_flops_per_example(config, mean_length, tokens_read)
    needless = 2.0 * sum(encoder.layer_flops(config, mean_length, tokens_read)[: run.freeze_layers or 0])
    if run.lora_rank is not None:  # products with kernels go back to what is below, not to the kernels
        needless = sum(encoder.layer_flops(config, mean_length, tokens_read, with_attention=False))
    return mean_length, 3.0 * forward - needless


def use_best_model(model: keras.Model, keeper: BestModel, adjust: Adjustment) -> int:
    initialize.load_complete(model, adjust(open_ours(keeper.paths[1])))
    if variable_names.has_adapters(model):
        variable_names.clear_adapters(model)  # its kernels have them
    return keeper.best["step"]

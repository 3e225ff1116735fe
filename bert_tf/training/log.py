"""What a run reports during training: progress bar, log lines, TensorBoard, and train_log.jsonl for plots."""

import json
import posixpath
import time

import tensorflow as tf
from absl import logging
from tqdm import tqdm

from bert_tf.models.card import shown_results
from bert_tf.system.atomic import check_may_write, write_file
from bert_tf.system.progress import progress_bar, start_clock

LOG_FILE = "train_log.jsonl"


class TrainingLog:
    """Progress bar, TensorBoard and train_log.jsonl (one JSON object per line).

    Args:
      output_dir: where the files go. step: where the run begins or resumes. last_step: where it ends.
      batch_size, tokens_per_example, flops_per_example: for the speed.
      active: False on workers that write nothing.
    """

    def __init__(
        self, output_dir: str, step: int, last_step: int, batch_size: int, tokens_per_example: float,
        flops_per_example: float, active: bool = True,
    ):  # fmt: skip
        self._output_dir, self._active = output_dir, active
        names = ("examples_per_second", "tokens_per_second", "model_flops_per_second")
        factors = (1.0, tokens_per_example, flops_per_example)
        self._per_step = {name: batch_size * factor for name, factor in zip(names, factors, strict=True)}
        # The mean over all calls (smoothing 0): calls differ in length, and an evaluation follows some of them.
        self._bar = progress_bar(
            total=last_step, initial=step, desc="train", unit="step", smoothing=0, disable=not active
        )
        self._sums, self._seconds, self._timed_steps, self._skipped = {}, 0.0, 0, 0
        self._shown = {}  # shown beside the bar; the loss is newer than the rest
        self._last, self._first_call = time.monotonic(), True

    def __enter__(self):
        # Evaluation has its own directory, as in the original, so that TensorBoard draws both in one chart.
        folders = {"train": self._output_dir, "eval": posixpath.join(self._output_dir, "eval")}
        self._writers = {
            kind: tf.summary.create_file_writer(folder) for kind, folder in folders.items() if self._active
        }
        if self._active:
            repair_last_line(posixpath.join(self._output_dir, LOG_FILE))
        return self

    def __exit__(self, *_):
        self._bar.close()
        for writer in self._writers.values():
            writer.close()

    def add(self, step: int, result: dict) -> None:
        """Adds the sums of one call of the graph."""
        now = time.monotonic()
        if self._first_call:  # it includes compilation, so it says nothing about speed
            start_clock(self._bar, step)
        else:
            self._seconds += now - self._last
            self._timed_steps += int(result["steps"] + result["skipped"])
        self._first_call, self._last = False, now
        self._skipped += int(result["skipped"])
        for name, value in result.items():
            self._sums[name] = value if name == "gradient_norm" else self._sums.get(name, 0.0) + value
        self._shown["loss"] = _readable(self._mean_loss())
        self._bar.set_postfix(self._shown, refresh=False)
        self._bar.update(step - self._bar.n)

    def _mean_loss(self) -> float:
        return self._sums["loss"] / max(self._sums["steps"], 1.0)

    def write(self, step: int, objective, learning_rate: float) -> None:
        """Logs the means since the last call of this method, and starts over."""
        values = {"loss": self._mean_loss()}
        values |= {name: float(value) for name, value in objective.metrics(self._sums).items()}
        values |= {"gradient_norm": self._sums["gradient_norm"], "learning_rate": learning_rate}
        if self._timed_steps:
            rate = self._timed_steps / self._seconds
            values |= {name: rate * number for name, number in self._per_step.items()}
        values["skipped_steps"] = self._skipped
        self._emit("train", step, values)
        self._shown = {short: _readable(values[name]) for name, short in _IN_THE_BAR.items() if name in values}
        self._bar.set_postfix(self._shown, refresh=True)
        self._sums, self._seconds, self._timed_steps = {}, 0.0, 0
        self._last = time.monotonic()

    def write_evaluation(self, step: int, values: dict) -> None:
        self._emit("eval", step, values)
        self._last = time.monotonic()

    def _emit(self, kind: str, step: int, values: dict) -> None:
        if not self._active:
            return
        path = posixpath.join(self._output_dir, LOG_FILE)
        check_may_write(path)
        with tqdm.external_write_mode():
            text = ", ".join(f"{name} {_readable(value)}" for name, value in shown_results(values).items())
            logging.info("%s step %d: %s", kind, step, text)
        with self._writers[kind].as_default(step=step):
            for name, value in values.items():
                tf.summary.scalar(name, value)
        self._writers[kind].flush()
        with tf.io.gfile.GFile(path, "a") as file:
            file.write(json.dumps({"kind": kind, "step": step, "time": time.time(), **values}) + "\n")


def repair_last_line(path: str) -> None:
    """Removes the last line of a file of JSON lines if it was torn by a kill; completes one that lacks only its end."""
    if not tf.io.gfile.exists(path):
        return
    with tf.io.gfile.GFile(path, "rb") as file:
        content = file.read()
    whole, _, last = content.rpartition(b"\n")
    if not last:
        return
    try:
        json.loads(last)
    except ValueError:
        content = whole + b"\n" if whole else b""
        logging.warning("%s: its last line was torn when an earlier run ended, and is removed.", path)
    else:
        content += b"\n"
    write_file(path, content)


def _readable(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e5 else f"{value:.3e}"


# The values that fit into a progress bar, and what they are called there.
_IN_THE_BAR = {
    "loss": "loss",
    "masked_lm_accuracy": "mlm_acc",
    "next_sentence_accuracy": "nsp_acc",
    "disc_accuracy": "disc_acc",
    "sentence_order_accuracy": "sop_acc",
    "examples_per_second": "ex/s",
    "tokens_per_second": "tok/s",
    "model_flops_per_second": "FLOP/s",
}

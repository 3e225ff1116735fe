"""The run of all training scripts, read from top to bottom: order of work, loop, checkpoints, resuming, the log.

A killed run resumes bit for bit because batches are a function of (files, seed, step) (data/), dropout is a function
of (seed, step, row of the batch) (models/dropout.py), and everything else that a step reads is in the checkpoint.

Keras `fit` is for notebooks. It has no gradient accumulation, XLA or several steps per call on more than one replica,
and no exact resume; here they all work together.
"""

import contextlib
import functools
import json
import math
import os
import platform
import posixpath
import signal
import sys
import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import keras
import tensorflow as tf
from absl import logging
from tqdm import tqdm

from bert_tf.models import initialize, layers
from bert_tf.store.card import shown_results
from bert_tf.system import messages
from bert_tf.system.storage import write_file
from bert_tf.system.text_files import exists, read_bytes
from bert_tf.training import checkpoints, distribution
from bert_tf.training.distribution import compiles_steps, distribute, is_chief
from bert_tf.training.optimization import optimizer_of
from bert_tf.training.run_directory import LOG_FILE
from bert_tf.training.step import Trainer

# 128 + SIGTERM: what a shell reports for a process that this signal ended. Here: stopped early, checkpoint saved.
EXIT_CODE_TERMINATED = 128 + signal.SIGTERM

# One call of the graph should last no longer than this many seconds: it can be neither interrupted nor watched.
_SECONDS_PER_CALL = 5.0
_POINTS, _LINES = 50, 10  # in the curves of a run and its log, at least
_FIRST_STEP = (
    "The first step takes longest: TensorFlow builds its graph and XLA compiles parts of it, once for each shape; on a "
    "GPU it compiles the whole step, which takes a minute or so."
)
_NOT_FINITE = (
    "The loss or the gradient of step %d is NaN or infinite; nothing of it was applied. The newest checkpoint is %s. "
    "Lower --learning_rate, check the data, or pass --skip_nonfinite_steps to leave such steps out."
)
_STOPS = (signal.SIGTERM, signal.SIGINT)
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


class NonFiniteLossError(FloatingPointError):
    """The loss or the gradient norm was NaN or infinite."""


def set_seed(seed: int, deterministic: bool) -> None:
    """Seeds Python, NumPy and TensorFlow, and logs it; with `deterministic`, turns op determinism on."""
    keras.utils.set_random_seed(seed % 2**32)
    if deterministic:
        tf.config.experimental.enable_op_determinism()
        # It makes one sum of nested ones, in the order in which the parts come: see `kernels.ordered_fan_out`.
        tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    logging.info("Seed %d for weights, data order and dropout; deterministic kernels: %s.", seed, deterministic)


# --- order of work ---------------------------------------------------------------------------------------------------


class Run:
    """A run, resumed or new. Those of pre-training and of fine-tuning say what each step of `execute` does.

    num_train_steps: the step at which it ends. chief: whether this process writes files.
    trains: False for a finished run, too. reading: the context in which the training reads.
    evaluated: step -> what its evaluation gave, for use at the end.
    """

    def __init__(self, settings, strategy: tf.distribute.Strategy, num_train_steps: int):
        self.settings, self.strategy, self.num_train_steps = settings, strategy, num_train_steps
        self.chief, self.compiles = is_chief(strategy), compiles_steps(settings.use_xla, strategy)
        self.output_dir, self.trains = settings.output_dir, settings.do_train
        self.reading, self.evaluated = contextlib.nullcontext(), {}

    def execute(self) -> dict[str, float]:
        """Restores, trains, evaluates; returns the results of the last evaluation."""
        # Before a model is built: another one's variables would be waited for.
        distribution.compare(self.strategy, self.common_facts)
        self.settings = distribution.with_pace_of_first(self.strategy, self.settings)
        self.model, optimizer, step = self.build_and_restore()
        trainer, options = self.create_trainer(optimizer) if self.trains else (None, {})
        distribution.compare(self.strategy, lambda: self.restored_facts(optimizer, step))
        self.begin(step, trainer)
        if trainer:
            with self.reading:
                batches = distribute(self.strategy, functools.partial(self.training_batches, step))
                step = train(
                    trainer,
                    self.num_train_steps,
                    batches,
                    self.output_dir,
                    evaluate=lambda step: self.evaluate(step) if self.is_due(step) else None,
                    **options,
                )
        return self.finish(step)

    def common_facts(self) -> dict[str, object]:
        """What must be the same on all workers, by names for messages."""
        runs = {"run that is finished": not self.trains, "last step": self.num_train_steps, "use of XLA": self.compiles}
        return distribution.facts_of(self.settings) | runs

    def restored_facts(self, optimizer: keras.optimizers.Optimizer | None, step: int) -> dict[str, object]:
        model = self.model
        variables = initialize.training_variables(model, optimizer) if optimizer else initialize.all_variables(model)
        values, checksum = initialize.variables_as_weights("", variables), 0
        for name in sorted(values):
            checksum = zlib.crc32(values[name].tobytes(), checksum)
        return {"step in --output_dir": step, "checksum of the weights to begin with": f"{checksum:08x}"}

    @layers.deferred_initialization()
    def build_and_restore(self) -> tuple[keras.Model, keras.optimizers.Optimizer | None, int]:
        """The model, its optimizer (None: no training) and the step: restored from the run in its folder, or new."""
        optimizer = None
        with self.strategy.scope():
            model = self.create_model()
            model.build()
            if self.trains:
                optimizer = optimizer_of(*self.schedule())
                optimizer.build(model.trainable_variables)
        return model, optimizer, self.restore(model, optimizer)


# --- loop ------------------------------------------------------------------------------------------------------------


def train(
    trainer: Trainer,
    num_train_steps: int,
    batches: Iterable,
    output_dir: str,
    *,
    evaluate: Callable[[int], dict | None] = lambda step: None,
    eval_every_steps: int = 0,
    should_stop: Callable[[], bool] = lambda: False,
    final_optimizer_state: Callable[[], Mapping] | None = None,
    cost_of_example: tuple[float, float] = (0.0, 0.0),
    background_work: Callable[[], object] = lambda: None,
) -> int:
    """Trains from the step that was restored until `num_train_steps`; returns the step reached.

    output_dir: for checkpoints, which are also saved after SIGTERM and Ctrl-C, which then end the run.
    batches: from the step that was restored on, without end, as `distribution.distribute` gives them.
    evaluate: called with the step every `eval_every_steps` and at the end; its numbers, if any, are logged.
    should_stop: asked at the start and after each evaluation; True ends the training early, with a checkpoint.
    final_optimizer_state: the tensors of the last checkpoint, by name; None: all that a further step would read.
    cost_of_example: for the log: tokens, and FLOPs of the model.
    background_work: called in a thread after the first step.
    """
    settings, step, saved_step = trainer.settings, trainer.step, trainer.step
    if step >= num_train_steps or should_stop():
        end = f"ends at step {num_train_steps}" if step >= num_train_steps else "was stopped early"
        logging.info("Nothing to train: step %d is reached, and the run %s.", step, end)
        return step
    final_optimizer_state = final_optimizer_state or (lambda: trainer.tensors)
    with (
        _stop_signals() as received,
        TrainingLog(trainer, output_dir, num_train_steps, cost_of_example) as log,
        checkpoints.Writer(output_dir, settings.checkpoints_while_training, trainer.is_chief) as writer,
    ):
        iterator = iter(batches)
        periods = num_train_steps, log.period, settings.save_checkpoints_steps, eval_every_steps
        pace = _StepsPerCall(trainer, periods, received, background_work)
        while step < num_train_steps:
            with pace:
                trainer.own_memory()
                result = trainer.steps(iterator, pace.count(step))
            step, result, stops = pace.after(step, result)
            if result.pop("failed"):
                raise NonFiniteLossError(_NOT_FINITE % (step - 1, writer.newest()))
            log.add(step, result)
            at_end = step >= num_train_steps
            if step % settings.save_checkpoints_steps == 0 or at_end or any(stops):
                writer.save(step, final_optimizer_state() if at_end else trainer.tensors)
                saved_step = step
            _end_if_asked(stops, step, writer)
            due = at_end or (eval_every_steps and step % eval_every_steps == 0)
            if due and (values := evaluate(step)) is not None:
                log.emit("eval", step, values)
                if should_stop():
                    logging.info("Stopping early at step %d of %d.", step, num_train_steps)
                    break
        if saved_step != step:  # it was stopped early
            writer.save(step, final_optimizer_state())
    return step


class _StepsPerCall:
    """How many steps each call of `Trainer.steps`, which is made in this context, runs: none takes long.

    periods: a call ends at each multiple of one; 0: none. received: the signals that came. background_work: of `train`.
    """

    def __init__(self, trainer: Trainer, periods: Sequence[int], received: Collection[int], background_work: Callable):
        # Workers synchronize in every step, and TensorFlow matches their messages by position within the call: all must
        # make calls of the same length, and agree on the time and on the end; see `distribution.with_pace_of_first`.
        self._most, self._periods = trainer.settings.iterations_per_loop, periods
        self._strategy, self._received = trainer.strategy, received
        self._background_work = threading.Thread(target=background_work, daemon=True)
        self._seconds = math.inf  # a step; unknown: the first call runs one
        self._around_call, self._started = messages.announced(_FIRST_STEP), 0.0

    def __enter__(self):
        if math.isfinite(self._seconds) and not self._background_work.ident:
            self._background_work.start()
        self._started = time.monotonic()
        self._around_call.__enter__()

    def __exit__(self, *error):
        self._around_call.__exit__(*error)
        self._around_call = contextlib.nullcontext()

    def count(self, step: int) -> tf.Tensor:
        count = min(self._most, *(period - step % period for period in self._periods if period))
        return tf.constant(min(count, max(1, int(_SECONDS_PER_CALL / self._seconds))))

    def after(self, step: int, result: dict) -> tuple[int, dict[str, float], list[float]]:
        """The step reached, the sums of the call as numbers, and for each of _STOPS whether a worker received it."""
        result = {name: float(value) for name, value in result.items()}
        done = int(result["steps"] + result["skipped"])
        seconds = (time.monotonic() - self._started) / max(done, 1)
        received = (float(number in self._received) for number in _STOPS)
        self._seconds, *stops = distribution.mean(self._strategy, [seconds, *received]).tolist()
        return step + done, result, stops


def _end_if_asked(stops: list[float], step: int, writer: checkpoints.Writer) -> None:
    """Ends a run that was asked to, once its checkpoint is written. stops: whether each of _STOPS was received."""
    if not any(stops):
        return
    writer.join()
    if stops[_STOPS.index(signal.SIGTERM)]:
        logging.warning("SIGTERM: saved step %d, leaving with exit code %d.", step, EXIT_CODE_TERMINATED)
        raise SystemExit(EXIT_CODE_TERMINATED)
    logging.warning("Interrupted: saved step %d; the same command resumes there.", step)
    raise KeyboardInterrupt


@contextlib.contextmanager
def _stop_signals():
    """The list of received signals that ask for an end, which the loop reads between calls; empty in other threads.

    A second SIGINT interrupts at once. A signal on which the loop did not act, as it had ended, acts after the context.
    """
    received = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def note(number, _):
        if number == signal.SIGINT:
            if received:
                raise KeyboardInterrupt
            logging.warning("Interrupted: the run ends after this step, with a checkpoint. Ctrl-C again: at once.")
        received.append(number)

    previous = {number: signal.signal(number, note) for number in _STOPS}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if received:
        signal.raise_signal(received[0])


# --- log -------------------------------------------------------------------------------------------------------------


class TrainingLog:
    """Progress bar, TensorBoard and train_log.jsonl (one JSON object per line).

    last_step: where the run ends. cost_of_example: see `train`. period: steps between two points.
    """

    def __init__(self, trainer: Trainer, output_dir: str, last_step: int, cost_of_example: tuple[float, float]):
        self._trainer, self._output_dir, self._last_step = trainer, output_dir, last_step
        self._active = trainer.is_chief
        every = trainer.settings.log_every_steps
        self.period = max(1, min(every, last_step // _POINTS))
        self._steps_of_line = self.period * max(1, min(every, last_step // _LINES) // self.period)
        costs = zip(("examples", "tokens", "model_flops"), (1.0, *cost_of_example), strict=True)
        self._per_step = {f"{unit}_per_second": trainer.settings.train_batch_size * cost for unit, cost in costs}
        self._sums, self._seconds, self._timed_steps, self._skipped = {}, 0.0, 0, 0
        self._shown = {}  # shown next to the bar; the loss is newer than the rest
        self._last, self._first_call = time.monotonic(), True

    def __enter__(self):
        # The mean over all calls (smoothing 0): calls differ in length, and an evaluation follows some of them.
        steps = {"total": self._last_step, "initial": self._trainer.step}
        self._bar = messages.progress_bar(**steps, desc="train", unit="step", smoothing=0, disable=not self._active)
        # Evaluation has its own directory, as in the original, so that TensorBoard draws both in one chart.
        folders = {"train": self._output_dir, "eval": posixpath.join(self._output_dir, "eval")}
        self._events = {kind: open_events(folder) for kind, folder in folders.items() if self._active}
        path = posixpath.join(self._output_dir, LOG_FILE)
        if self._active and exists(path):
            whole, end, torn = read_bytes(path).rpartition(b"\n")
            if torn:
                write_file(path, whole + end)
                logging.warning("%s: its last line was torn when an earlier run ended, and is removed.", path)
        return self

    def __exit__(self, *_):
        self._bar.close()
        for file in self._events.values():
            file.close()

    def add(self, step: int, result: dict) -> None:
        """Adds the sums of one call of the graph, and logs their means where a point of the log is due."""
        now = time.monotonic()
        if self._first_call:  # it includes compilation, so it says nothing about speed
            messages.start_clock(self._bar, step)
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
        if step % self.period == 0 or step >= self._last_step:
            self._write(step)

    def _mean_loss(self) -> float:
        return self._sums["loss"] / max(self._sums["steps"], 1.0)

    def _write(self, step: int) -> None:
        """Logs the means since the last call of this method, and starts over."""
        learning_rate = float(self._trainer.optimizer.learning_rate)
        values = {"loss": self._mean_loss()}
        values |= {name: float(value) for name, value in self._trainer.objective.metrics(self._sums).items()}
        values |= {"gradient_norm": self._sums["gradient_norm"], "learning_rate": learning_rate}
        if self._timed_steps:
            rate = self._timed_steps / self._seconds
            values |= {name: rate * number for name, number in self._per_step.items()}
        values["skipped_steps"] = self._skipped
        self.emit("train", step, values)
        self._shown = {short: _readable(values[name]) for name, short in _IN_THE_BAR.items() if name in values}
        self._bar.set_postfix(self._shown, refresh=True)
        self._sums, self._seconds, self._timed_steps = {}, 0.0, 0

    def emit(self, kind: str, step: int, values: dict) -> None:
        """Writes a point of the log, whose time does not count. kind: "train" or "eval"."""
        if not self._active:
            return
        path = posixpath.join(self._output_dir, LOG_FILE)
        is_line = step % self._steps_of_line == 0 or step >= self._last_step
        if kind == "eval" or (is_line and not sys.stderr.isatty()):  # on a terminal the bar shows the steps
            text = ", ".join(f"{name} {_readable(value)}" for name, value in shown_results(values).items())
            with tqdm.external_write_mode():
                logging.info("%s step %d: %s", kind, step, text)
        self._events[kind].write(event(step, values))
        self._events[kind].flush()
        with tf.io.gfile.GFile(path, "a") as file:
            file.write(json.dumps({"kind": kind, "step": step, "time": time.time(), **values}) + "\n")
        self._last = time.monotonic()


def open_events(folder: str) -> tf.io.TFRecordWriter:
    tf.io.gfile.makedirs(folder)
    name = f"events.out.tfevents.{time.time():.6f}.{platform.node()}.{os.getpid()}"
    writer = tf.io.TFRecordWriter(posixpath.join(folder, name))
    writer.write(tf.compat.v1.Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
    return writer


def event(step: int, values: Mapping[str, float]) -> bytes:
    """An event of scalars. tf.summary would import TensorBoard, a third of a second, and take 1 ms for each value."""
    summary = tf.compat.v1.Summary(value=[{"tag": name, "simple_value": value} for name, value in values.items()])
    return tf.compat.v1.Event(wall_time=time.time(), step=step, summary=summary).SerializeToString()


def _readable(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e5 else f"{value:.3e}"

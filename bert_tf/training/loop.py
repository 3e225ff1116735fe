"""The training loop of all scripts, read from top to bottom: loop, checkpoints, resuming, what is written.

A killed run resumes bit for bit because batches are a function of (files, seed, step) (data/), dropout is a function
of (seed, step, row of the batch) (models/dropout.py), and everything else that a step reads is in the checkpoint.

Keras `fit` is for notebooks. It has no gradient accumulation, XLA or several steps per call on more than one replica,
and no exact resume; here they all work together.
"""

import contextlib
import functools
import math
import signal
import threading
import time
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.data.shares import Share
from bert_tf.models import initialize, lora
from bert_tf.system import compiled_programs, first_use
from bert_tf.training import checkpoints
from bert_tf.training.distribution import distribute, is_chief
from bert_tf.training.log import TrainingLog
from bert_tf.training.step import TrainingPlan, make_train_function
from bert_tf.weights.bundle import open_bundle
from bert_tf.weights.mapping import Weights

# 128 + SIGTERM: what a shell reports for a process that this signal ended. Here: stopped early, checkpoint saved.
EXIT_CODE_TERMINATED = 128 + signal.SIGTERM

# One call of the graph should last no longer than this many seconds: it can be neither interrupted nor watched.
_SECONDS_PER_CALL = 5.0
_FIRST_LOSS_SCALE = 2.0**15
_STOPS = (signal.SIGTERM, signal.SIGINT)


class NonFiniteLossError(FloatingPointError):
    """The loss or the gradient norm was NaN or infinite."""


def set_seed(seed: int, deterministic: bool) -> None:
    """Seeds Python, NumPy and TensorFlow, and logs it; with `deterministic`, turns op determinism on."""
    keras.utils.set_random_seed(seed % 2**32)
    if deterministic:
        tf.config.experimental.enable_op_determinism()
        # It makes one sum of nested ones, which adds in the order in which the parts come; see `kernels.shared`.
        tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    logging.info("Seed %d for weights, data order and dropout; deterministic kernels: %s.", seed, deterministic)


# --- loop ------------------------------------------------------------------------------------------------------------


def train(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    objective,
    strategy: tf.distribute.Strategy,
    plan: TrainingPlan,
    training_batches: Callable[[int, Share], tf.data.Dataset],
    output_dir: str,
    evaluate: Callable[[int], dict] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> int:
    """Trains until `plan.last_step`, from the newest checkpoint of output_dir.

    The caller has built model and optimizer in the strategy's scope and called `claim_output_dir` and `restore`.

    Args:
      training_batches: first step, share -> dataset of the parts of each batch in the share, from that step on.
      evaluate: called with the step every `eval_every_steps`; its numbers are logged.
      should_stop: asked at the start and after each evaluation; True ends the training early, with a checkpoint.

    Returns:
      The step reached.

    Raises:
      NonFiniteLossError: the loss was NaN or infinite; nothing of that step was applied, and it is not saved.
      SystemExit: with EXIT_CODE_TERMINATED, after SIGTERM; a checkpoint of the step reached was saved.
      KeyboardInterrupt: after Ctrl-C, likewise; after a second Ctrl-C at once.
    """
    step = int(optimizer.iterations.numpy())
    if step >= plan.last_step:
        flag = "stop_at_step" if plan.last_step < plan.num_train_steps else "num_train_steps"
        logging.info("Nothing to train: step %d of --%s=%d is reached.", step, flag, plan.last_step)
        return step
    if should_stop and should_stop():
        logging.info("Nothing to train: this run was stopped early at step %d.", step)
        return step
    chief = is_chief(strategy)
    saved_step = step
    with (
        _stop_signals() as received,
        TrainingLog(output_dir, plan, step, active=chief) as log,
        checkpoints.Writer(output_dir, plan.keep_checkpoint_max) as writer,
    ):
        batches = distribute(strategy, functools.partial(training_batches, step))
        calls = _Calls(model, optimizer, objective, strategy, plan, batches, output_dir, writer)
        if plan.save_first and checkpoints.latest_checkpoint(output_dir) is None:
            calls.save(step, chief)
        while step < plan.last_step:
            result, stopped_by = calls.run(step, received)
            step += int(result["steps"] + result["skipped"])
            log.add(step, result)
            at_end = step >= plan.last_step
            if step % plan.log_period == 0 or at_end:
                log.write(step, objective, float(optimizer.learning_rate))
            if step % plan.save_checkpoints_steps == 0 or at_end or stopped_by:
                calls.save(step, chief)
                saved_step = step
            if stopped_by:
                writer.join()
            if signal.SIGTERM in stopped_by:
                logging.warning("SIGTERM: saved step %d, leaving with exit code %d.", saved_step, EXIT_CODE_TERMINATED)
                raise SystemExit(EXIT_CODE_TERMINATED)
            if stopped_by:
                logging.warning("Interrupted: saved step %d; the same command resumes there.", saved_step)
                raise KeyboardInterrupt
            due = plan.eval_every_steps and (step % plan.eval_every_steps == 0 or (plan.eval_at_end and at_end))
            if evaluate and due:
                log.write_evaluation(step, evaluate(step))
                if should_stop and should_stop():
                    logging.info("Stopping early at step %d of %d.", step, plan.num_train_steps)
                    if saved_step != step:
                        calls.save(step, chief)
                    break
    return step


class _Calls:
    """Consecutive calls of the training graph, with what one passes on to the next: loss scale and seconds per step."""

    def __init__(self, model, optimizer, objective, strategy, plan: TrainingPlan, batches, output_dir: str,
                 writer: checkpoints.Writer):  # fmt: skip
        self._model, self._optimizer, self._plan, self._output_dir = model, optimizer, plan, output_dir
        self._writer = writer
        self._scale_state = _read_loss_scale(output_dir, plan)
        self._iterator = iter(batches)
        self._run_steps = make_train_function(model, optimizer, objective, strategy, plan)
        self._seconds_per_step = math.inf  # unknown: the first call runs one step
        self._average = _make_average(strategy)
        self._around_call = first_use.announced(
            "The first step takes longest: TensorFlow builds its graph and XLA compiles parts of it, once for each "
            f"shape. Compiled parts: {compiled_programs.said()}."
        )

    def run(self, step: int, received: list) -> tuple[dict[str, float], list]:
        """Runs as many steps from `step` on as fit into one call.

        Args:
          received: signals that this worker has received.

        Returns:
          The result of the training function; the signals that any worker had received at its end. All workers return
          the same ones, so that they stop at the same step; a signal that comes later counts after the next call.

        Raises:
          NonFiniteLossError: see `train`.
        """
        count = min(self._plan.iterations_per_loop, _steps_to_next(step, self._plan))
        count = min(count, max(1, int(_SECONDS_PER_CALL / self._seconds_per_step)))
        started = time.monotonic()
        with self._around_call:
            result = self._run_steps(self._iterator, tf.constant(count), *self._scale_state)
        self._around_call = contextlib.nullcontext()
        self._scale_state = (result.pop("loss_scale"), result.pop("good_steps"))
        failed = bool(result.pop("failed"))
        result = {name: float(value) for name, value in result.items()}
        done = int(result["steps"] + result["skipped"])
        # Workers synchronize in every step, and TensorFlow matches their messages by position within the call. So all
        # must make calls of the same length, and agree on the time and on the end.
        seconds = (time.monotonic() - started) / max(done, 1)
        self._seconds_per_step, *stops = self._average(seconds, *(float(number in received) for number in _STOPS))
        if failed:
            self._writer.join()
            raise NonFiniteLossError(
                f"The loss or the gradient of step {step + done - 1} is NaN or infinite. Nothing of this step was "
                f"applied; the newest checkpoint is {checkpoints.latest_checkpoint(self._output_dir)}. Lower "
                "--learning_rate, check the data (ids and labels out of range give NaN with --use_xla and on TPUs), "
                "or pass --skip_nonfinite_steps to count such steps and leave them out."
            )
        return result, [number for number, stop in zip(_STOPS, stops, strict=True) if stop]

    def save(self, step: int, chief: bool) -> None:
        """Saves everything that the next step reads. Every worker calls it; only the chief writes."""
        tensors = checkpoints.training_variables(self._model, self._optimizer)
        if self._plan.loss_scaling:
            tensors |= {"loss_scale": self._scale_state[0], "loss_scale_good_steps": self._scale_state[1]}
        if chief:
            self._writer.save(step, tensors)


def _make_average(strategy: tf.distribute.Strategy) -> Callable[..., list[float]]:
    """A function of numbers that gives the mean of each over all workers, which call it at the same time."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return lambda *values: list(values)

    @tf.function(autograph=False)
    def average(values):
        def add(values):  # of a tensor that is on the replica's device
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.MEAN, tf.identity(values))

        return strategy.experimental_local_results(strategy.run(add, args=(values,)))[0]

    return lambda *values: average(tf.constant(values, tf.float32)).numpy().tolist()


def _steps_to_next(step: int, plan: TrainingPlan) -> int:
    """Steps until something has to be saved, logged or evaluated."""
    periods = [plan.save_checkpoints_steps, plan.log_period, plan.eval_every_steps]
    return min([plan.last_step - step] + [period - step % period for period in periods if period])


def restore(
    model,
    optimizer,
    output_dir: str,
    init_checkpoint: str | Weights | None,
    with_optimizer: bool = False,
    resume_from_older: bool = True,
    *,
    adjust: Callable[[Weights], Weights] | None = None,
    unread: tuple[str, ...] = (),
) -> int:
    """Restores what a run starts from, logs it in one line, and returns the step.

    A checkpoint in output_dir wins over init_checkpoint: the same command started again resumes.

    Args:
      optimizer: None to restore the model only (evaluation without training).
      init_checkpoint: a path, or open weights.
      with_optimizer: take Adam moments and global_step from init_checkpoint as well, to continue a run in a new
        output_dir.
      resume_from_older: see `checkpoints.use_newest`; only for training.
      adjust: makes of the weights those that the model takes.
      unread: of a model that is not trained, see `initialize.check_complete`.

    Raises:
      FileNotFoundError, ValueError: see `checkpoints.initialize` and `checkpoints.use_newest`; without an optimizer
        also `initialize.check_complete`.
    """
    model_only = initialize.model_variables(model)
    everything = checkpoints.training_variables(model, optimizer) if optimizer else model_only

    def resume(newest: str) -> tuple[str, int]:
        merge = optimizer is None or not lora.has_adapters(model)
        weights = initialize.weights_for(model, newest, merge=merge)
        _restore_all(everything, adjust(weights) if adjust else weights)
        return newest, checkpoints.read_global_step(newest)

    resumed = checkpoints.use_newest(output_dir, resume, resume_from_older and optimizer is not None)
    if resumed:
        newest, step = resumed
        ignored = f" (so --init_checkpoint={init_checkpoint} is not used)" if isinstance(init_checkpoint, str) else ""
        logging.info("Resuming at step %d from %s%s.", step, newest, ignored)
        return step
    if init_checkpoint:
        try:
            is_open = isinstance(init_checkpoint, Weights)
            weights = init_checkpoint if is_open else initialize.weights_for(model, init_checkpoint)
        except (FileNotFoundError, ValueError) as error:
            raise type(error)(f"--init_checkpoint={init_checkpoint}: {error}") from error
        weights = adjust(weights) if adjust else weights
        result = _restore_all(everything, weights) if with_optimizer else initialize.initialize(model_only, weights)
        if optimizer is None:
            initialize.check_complete(result, model, unread)
        initialize.log_initialization(result, model)
        return int(weights["global_step"]) if with_optimizer else 0
    logging.info("No checkpoint in %s and no --init_checkpoint: starting from random weights.", output_dir)
    return 0


def _restore_all(variables: dict[str, keras.Variable], weights: Weights) -> initialize.Initialization:
    """Restores variables and Adam moments, of which only those of variables without a gradient may be missing.

    The original has no moments for them (the pooler, in run_squad.py); here they are zero, as they would have stayed.
    """
    moments = ("adam_m", "adam_v")
    trained = [name.removesuffix("/adam_m") for name in variables if name.endswith("/adam_m")]
    without = [name for name in trained if not any(f"{name}/{moment}" in weights.shapes for moment in moments)]
    if len(without) == len(trained):
        without = []  # no optimizer state at all, which is an error
    absent = {f"{name}/{moment}" for name in without for moment in moments}
    result = initialize.initialize(
        {name: variable for name, variable in variables.items() if name not in absent}, weights, must_have_all=True
    )
    if without:
        for name in absent:
            variables[name].assign(np.zeros(variables[name].shape, np.float32))
        logging.info("%s has no Adam moments of %s: they start at zero.", weights.path, ", ".join(sorted(without)))
    return result


def _read_loss_scale(output_dir: str, plan: TrainingPlan):
    scale, good_steps = (_FIRST_LOSS_SCALE, 0) if plan.loss_scaling else (1.0, 0)
    newest = checkpoints.latest_checkpoint(output_dir)
    if plan.loss_scaling and newest:
        reader = open_bundle(newest)
        if reader.has_tensor("loss_scale"):
            scale, good_steps = reader.get_tensor("loss_scale"), reader.get_tensor("loss_scale_good_steps")
    return tf.constant(scale, tf.float32), tf.constant(int(good_steps), tf.int32)


@contextlib.contextmanager
def _stop_signals():
    """The list of received signals that ask for an end (SIGTERM, SIGINT), which the loop reads between calls.

    A second SIGINT interrupts at once. A signal on which the loop did not act, as it had ended, acts after the context.
    Outside the main thread the list stays empty.
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

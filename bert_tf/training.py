"""The training loop of all scripts, read top to bottom: loop, checkpoints, resume, what is written.

What makes a killed run go on bit for bit: batches are a function of (files, seed, step) (records.py), dropout is a
function of (seed, step, replica, micro-batch) (kernels.py), and everything else a step reads is in the checkpoint.

Keras `fit` is for notebooks. It has no gradient accumulation, XLA or several steps per call on more than one replica,
and no exact resume; here all of them work together.
"""

import contextlib
import json
import math
import posixpath
import signal
import threading
import time
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf import checkpoints, weight_files
from bert_tf.text_files import write_text_file
from bert_tf.train_step import TrainingPlan, make_train_function
from bert_tf.training_log import TrainingLog

# 128 + SIGTERM: what a shell reports for a process that this signal ended. Here: stopped early, checkpoint saved.
EXIT_CODE_TERMINATED = 128 + signal.SIGTERM

# One call of the graph should last no longer than this many seconds: it can't be interrupted or shown inside.
_SECONDS_PER_CALL = 5.0
_FIRST_LOSS_SCALE = 2.0**15


class NonFiniteLossError(ArithmeticError):
    """The loss or the gradient norm was NaN or infinite."""


def write_eval_results(path: str, results: dict) -> None:
    """Writes sorted `key = value` lines, as the original does; floats in the shortest form that is exact in float32."""
    lines = [
        f"{key} = {value if isinstance(value, int) else np.float32(value)!s}\n"
        for key, value in sorted(results.items())
    ]
    write_text_file(path, "".join(lines))
    for line in lines:
        logging.info("  %s", line.rstrip())


# --- loop ------------------------------------------------------------------------------------------------------------


def train(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    objective,
    strategy: tf.distribute.Strategy,
    plan: TrainingPlan,
    training_batches: Callable[[int], tf.data.Dataset],
    output_dir: str,
    evaluate: Callable[[int], dict] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> int:
    """Trains until `plan.num_train_steps`, from wherever the newest checkpoint of output_dir stands.

    The caller has built model and optimizer in the strategy's scope and called `claim_output_dir` and `restore`.

    Args:
      training_batches: first step -> dataset of whole batches from that step on.
      evaluate: called with the step every `eval_every_steps`; its numbers are logged.
      should_stop: asked at the start and after each evaluation; True ends the training early, with a checkpoint.

    Returns:
      The step reached.

    Raises:
      NonFiniteLossError: the loss was NaN or infinite; nothing of that step was applied, and it is not saved.
      SystemExit: with EXIT_CODE_TERMINATED, after SIGTERM; a checkpoint of the step reached was saved.
    """
    step = int(optimizer.iterations.numpy())
    if step >= plan.num_train_steps:
        logging.info("Nothing to train: step %d of --num_train_steps=%d is reached.", step, plan.num_train_steps)
        return step
    if should_stop and should_stop():
        logging.info("Nothing to train: this run was stopped early at step %d.", step)
        return step
    chief = is_chief(strategy)
    scale_state = _read_loss_scale(output_dir, plan)
    iterator = iter(training_batches(step))
    run_steps = make_train_function(model, optimizer, objective, strategy, plan)

    def save():
        tensors = checkpoints.training_variables(model, optimizer)
        if plan.loss_scaling:
            tensors |= {"loss_scale": scale_state[0], "loss_scale_good_steps": scale_state[1]}
        if chief:
            path = checkpoints.save(output_dir, step, tensors, plan.keep_checkpoint_max)
            logging.info("Saved %s", path)

    saved_step = step
    if checkpoints.latest_checkpoint(output_dir) is None:
        save()
    log = TrainingLog(output_dir, plan, step, active=chief)
    seconds_per_step = math.inf  # unknown: the first call runs one step
    # Workers meet in every step, and TensorFlow tells the meetings apart by their place in the call, so calls of all
    # workers must be equally long; their clocks are not.
    by_the_clock = not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    with _termination_flag() as terminated, log:
        while step < plan.num_train_steps:
            count = min(
                plan.iterations_per_loop,
                _steps_to_next(step, plan),
                max(1, int(_SECONDS_PER_CALL / seconds_per_step)) if by_the_clock else plan.iterations_per_loop,
            )
            started = time.monotonic()
            result = run_steps(iterator, tf.constant(count), *scale_state)
            scale_state = (result.pop("loss_scale"), result.pop("good_steps"))
            failed = bool(result.pop("failed"))
            result = {name: float(value) for name, value in result.items()}
            done = int(result["steps"] + result["skipped"])
            seconds_per_step = (time.monotonic() - started) / max(done, 1)
            if failed:
                raise NonFiniteLossError(
                    f"The loss or the gradient of step {step + done - 1} is NaN or infinite. Nothing of this step was "
                    f"applied; the newest checkpoint is {checkpoints.latest_checkpoint(output_dir)}. Lower "
                    "--learning_rate, check the data (a vocabulary larger than vocab_size gives NaN on accelerators), "
                    "or pass --skip_nonfinite_steps to count such steps and go on."
                )
            step += done
            log.add(step, result)
            if step % plan.log_every_steps == 0 or step >= plan.num_train_steps:
                log.write(step, objective, float(optimizer.learning_rate))
            if step % plan.save_checkpoints_steps == 0 or step >= plan.num_train_steps or terminated.is_set():
                save()
                saved_step = step
            if terminated.is_set():
                logging.warning("SIGTERM: saved step %d, leaving with exit code %d.", saved_step, EXIT_CODE_TERMINATED)
                raise SystemExit(EXIT_CODE_TERMINATED)
            at_end = plan.eval_at_end and step >= plan.num_train_steps
            if evaluate and plan.eval_every_steps and (step % plan.eval_every_steps == 0 or at_end):
                log.write_evaluation(step, evaluate(step))
                if should_stop and should_stop():
                    logging.info("Stopping early at step %d of %d.", step, plan.num_train_steps)
                    if saved_step != step:
                        save()
                    break
    return step


def _steps_to_next(step: int, plan: TrainingPlan) -> int:
    """Steps until the next one at which something has to be saved, logged or evaluated."""
    periods = [plan.save_checkpoints_steps, plan.log_every_steps, plan.eval_every_steps]
    return min([plan.num_train_steps - step] + [period - step % period for period in periods if period])


def check_output_dir(output_dir: str, config_json: str) -> None:
    """Refuses a directory with the checkpoints of another model.

    Raises:
      ValueError: it has checkpoints and a bert_config.json with other values; the message names them.
    """
    path = posixpath.join(output_dir, "bert_config.json")
    if checkpoints.latest_checkpoint(output_dir) and tf.io.gfile.exists(path):
        with tf.io.gfile.GFile(path) as file:
            old = json.loads(file.read())
        new = json.loads(config_json)
        keys = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
        if keys:
            different = "; ".join(f"{key}: {old.get(key)} there, {new.get(key)} now" for key in keys)
            raise ValueError(
                f"--output_dir={output_dir} holds a run of another configuration ({different}). Choose another "
                "directory, or give that run's --bert_config_file."
            )


def claim_output_dir(output_dir: str, config_json: str) -> None:
    """Keeps bert_config.json with the run; called once everything else has been checked."""
    tf.io.gfile.makedirs(output_dir)
    write_text_file(posixpath.join(output_dir, "bert_config.json"), config_json)


_SETTINGS = "run.json"

# Changing these between two starts of a run leaves its result as it was.
_WITHOUT_EFFECT = {
    "do_train", "do_eval", "output_dir", "eval_input_file", "eval_batch_size", "max_eval_steps", "eval_every_steps",
    "log_every_steps", "save_checkpoints_steps", "keep_checkpoint_max", "iterations_per_loop",
}  # fmt: skip


def read_settings(output_dir: str) -> dict:
    """Flags and versions of the run in a directory; empty if there is none."""
    path = posixpath.join(output_dir, _SETTINGS)
    if not tf.io.gfile.exists(path):
        return {}
    with tf.io.gfile.GFile(path) as file:
        return json.loads(file.read())


def _with_versions(settings: dict) -> dict:
    versions = {"tensorflow": tf.__version__, "keras": keras.__version__}
    return json.loads(json.dumps({**settings, **{f"version of {name}": v for name, v in versions.items()}}))


def warn_of_changes(output_dir: str, settings: dict) -> None:
    """Says which settings are not those of the run in output_dir.

    A run goes on exactly only with the same data, batch size, seed and schedule; a change may well be meant, so it is
    told and not refused.
    """
    old, new = read_settings(output_dir), _with_versions(settings)
    keys = [key for key in sorted({*old, *new} - _WITHOUT_EFFECT) if old.get(key) != new.get(key)] if old else []
    if keys:
        logging.warning(
            "Not as in the earlier run of this directory: %s. What is still to be done will be done differently.",
            "; ".join(f"{key} {old.get(key)} -> {new.get(key)}" for key in keys),
        )


def record_settings(output_dir: str, settings: dict, resumed: bool) -> None:
    """Keeps flags and versions in output_dir/run.json; on a resumed run, warns of what is not as it was."""
    if resumed:
        warn_of_changes(output_dir, settings)
    content = json.dumps(_with_versions(settings), indent=2, sort_keys=True) + "\n"
    write_text_file(posixpath.join(output_dir, _SETTINGS), content)


def restore(model, optimizer, output_dir: str, init_checkpoint: str | None, with_optimizer: bool = False) -> int:
    """Decides where a run starts, says so in one log line, and returns the step.

    A checkpoint in output_dir wins over init_checkpoint: the same command started again goes on.

    Args:
      optimizer: None to restore the model only (evaluation without training).
      with_optimizer: take Adam moments and global_step from init_checkpoint as well (going on with somebody's run).

    Raises:
      FileNotFoundError, ValueError: see `checkpoints.initialize`.
    """
    model_only = checkpoints.model_variables(model)
    everything = checkpoints.training_variables(model, optimizer) if optimizer else model_only
    newest = checkpoints.latest_checkpoint(output_dir)
    if newest:
        checkpoints.initialize(everything, newest, must_have_all=True)
        step = checkpoints.read_global_step(newest)
        ignored = f" (so --init_checkpoint={init_checkpoint} is not used)" if init_checkpoint else ""
        logging.info("Going on at step %d from %s%s.", step, newest, ignored)
        return step
    if init_checkpoint:
        try:
            weights = weight_files.open_weights(init_checkpoint)
        except (FileNotFoundError, ValueError) as error:
            raise type(error)(f"--init_checkpoint={init_checkpoint}: {error}") from error
        result = checkpoints.initialize(
            everything if with_optimizer else model_only, weights, must_have_all=with_optimizer
        )
        checkpoints.log_initialization(result, model)
        return int(weights["global_step"]) if with_optimizer else 0
    logging.info("No checkpoint in %s and no --init_checkpoint: starting from random weights.", output_dir)
    return 0


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process is the one that writes files: always, but for workers other than the first."""
    resolver = strategy.cluster_resolver
    if resolver is None or resolver.task_type is None:
        return True
    return resolver.task_type == "chief" or (resolver.task_type == "worker" and resolver.task_id == 0)


def _read_loss_scale(output_dir: str, plan: TrainingPlan):
    scale, good_steps = (_FIRST_LOSS_SCALE, 0) if plan.loss_scaling else (1.0, 0)
    newest = checkpoints.latest_checkpoint(output_dir)
    if plan.loss_scaling and newest:
        reader = tf.train.load_checkpoint(newest)
        if reader.has_tensor("loss_scale"):
            scale, good_steps = reader.get_tensor("loss_scale"), reader.get_tensor("loss_scale_good_steps")
    return tf.constant(scale, tf.float32), tf.constant(int(good_steps), tf.int32)


@contextlib.contextmanager
def _termination_flag():
    """An event that SIGTERM sets; the loop looks at it between calls. Outside the main thread it is never set."""
    terminated = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield terminated
        return
    previous = signal.signal(signal.SIGTERM, lambda *_: terminated.set())
    try:
        yield terminated
    finally:
        signal.signal(signal.SIGTERM, previous)

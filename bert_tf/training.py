"""The training loop of all scripts, read top to bottom: step, loop, evaluation, checkpoints, resume, log.

What makes a killed run go on bit for bit: batches are a function of (files, seed, step) (records.py), dropout is a
function of (seed, step, replica, micro-batch) (kernels.py), and everything else a step reads is in the checkpoint.

Keras `fit` is for notebooks. It has no gradient accumulation, XLA or several steps per call on more than one replica,
and no exact resume; here all of them work together.
"""

import contextlib
import dataclasses
import json
import math
import posixpath
import signal
import threading
import time
from collections.abc import Callable, Iterable

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf import checkpoints, kernels
from bert_tf.progress import progress_bar
from bert_tf.text_files import write_text_file
from bert_tf.training_log import TrainingLog

# 128 + SIGTERM: what a shell reports for a process that this signal ended. Here: stopped early, checkpoint saved.
EXIT_CODE_TERMINATED = 128 + signal.SIGTERM

# One call of the graph should last no longer than this many seconds: it can't be interrupted or shown inside.
_SECONDS_PER_CALL = 5.0
_FIRST_LOSS_SCALE = 2.0**15
_STEPS_TO_DOUBLE_LOSS_SCALE = 2000
_CLIP_NORM = 1.0


class NonFiniteLossError(ArithmeticError):
    """The loss or the gradient norm was NaN or infinite."""


@dataclasses.dataclass(frozen=True)
class TrainingPlan:
    """How long and how to train; the fields are the flags of the same names.

    Attributes:
      num_train_steps: optimizer steps in all, those of an earlier run in the same directory included.
      batch_size: examples a step, over all replicas and micro-batches.
      gradient_accumulation_steps: micro-batches that a replica's share is cut into.
      seed: seed of dropout (of the data order, too, where the caller uses it for that).
      loss_scaling: dynamic loss scale, for float16.
      use_xla: compile forward and backward.
      skip_nonfinite_steps: count steps with a NaN or infinite loss and leave them out, instead of stopping.
      iterations_per_loop: most steps in one call of the graph.
      save_checkpoints_steps, log_every_steps, eval_every_steps: in steps; eval_every_steps=0 means never.
      keep_checkpoint_max: 0 keeps all.
      tokens_per_example, flops_per_example: for the log; model FLOPs of forward and backward.
    """

    num_train_steps: int
    batch_size: int
    gradient_accumulation_steps: int = 1
    seed: int = 0
    loss_scaling: bool = False
    use_xla: bool = False
    skip_nonfinite_steps: bool = False
    iterations_per_loop: int = 1000
    save_checkpoints_steps: int = 1000
    log_every_steps: int = 100
    eval_every_steps: int = 0
    keep_checkpoint_max: int = 5
    tokens_per_example: int = 0
    flops_per_example: float = 0.0


# --- step ------------------------------------------------------------------------------------------------------------


def make_train_function(model, optimizer, objective, strategy, plan: TrainingPlan) -> Callable:
    """Builds the graph function that runs several optimizer steps.

    Args:
      model, optimizer: built inside `strategy.scope()`.
      objective: see `heads.PretrainingObjective`.

    Returns:
      train(iterator, steps, loss_scale, good_steps) -> dict of tensors, summed over the steps run: the objective's
      `sums`; `loss`, `steps`, `skipped`; and the last `gradient_norm`, `failed`, `loss_scale`, `good_steps`. It stops
      early, before changing anything, at a step that is not finite, unless such steps are to be skipped.
    """
    variables = list(model.trainable_variables)
    replicas, parts = strategy.num_replicas_in_sync, plan.gradient_accumulation_steps
    part_size = plan.batch_size // (replicas * parts)
    skip = plan.skip_nonfinite_steps or plan.loss_scaling

    def part_gradients(features, totals, dropout_seed, loss_scale):
        """Forward and backward of one micro-batch; the losses of all parts of a batch add up to its loss."""
        with tf.GradientTape() as tape:
            outputs = model(features, training=True, dropout_seed=dropout_seed)
            sums = objective.sums(outputs, features)
            loss = objective.loss(sums, totals)
            scaled_loss = loss * loss_scale
        gradients = tape.gradient(scaled_loss, [variable.value for variable in variables])
        return {"loss": loss, **sums}, gradients

    if plan.use_xla:
        part_gradients = tf.function(part_gradients, jit_compile=True)

    def replica_gradients(batch, totals, seed, loss_scale):
        """This replica's share of the whole batch, one micro-batch after the other."""
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group

        def part(number):
            number = replica * parts + number
            features = {name: _rows(tensor, number * part_size, part_size) for name, tensor in batch.items()}
            return part_gradients(features, totals, kernels.fold_in(seed, number, word=1), loss_scale)

        sums, gradients = part(0)
        if parts == 1:
            return sums, gradients
        # A loop in the graph, so that only one micro-batch's activations are alive at a time.
        has_gradient = [gradient is not None for gradient in gradients]
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]

        def body(number, sums, total):
            new_sums, new = part(number)
            new = [tf.convert_to_tensor(gradient) for gradient in new if gradient is not None]
            return number + 1, tf.nest.map_structure(tf.add, sums, new_sums), tf.nest.map_structure(tf.add, total, new)

        _, sums, dense = tf.while_loop(lambda number, *_: number < parts, body, (1, sums, dense), parallel_iterations=1)
        dense = iter(dense)
        return sums, [next(dense) if has else None for has in has_gradient]

    def step(batch, loss_scale):
        """One optimizer step in replica context; every replica is given the whole batch."""
        context = tf.distribute.get_replica_context()
        # The counts of the whole batch: each replica's loss is then its exact share of the batch's loss.
        totals = objective.totals(batch)
        seed = tf.stack([tf.constant(_signed(plan.seed)), tf.cast(optimizer.iterations.value, tf.int32)])
        sums, gradients = replica_gradients(batch, totals, seed, loss_scale)
        updated = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
        gradients = [gradient for gradient, _ in updated]
        if replicas > 1:
            sums = context.all_reduce(tf.distribute.ReduceOp.SUM, sums)
            gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        # Clipped after the sum, so that any number of replicas gives the same step.
        norm = tf.linalg.global_norm(gradients) / loss_scale
        finite = tf.math.is_finite(norm) & tf.math.is_finite(sums["loss"])
        factor = _CLIP_NORM / (tf.maximum(norm, _CLIP_NORM) * loss_scale)
        learning_rate = tf.convert_to_tensor(optimizer.learning_rate)

        def apply(strategy, gradients, *scalars):
            for gradient, (_, variable) in zip(gradients, updated, strict=True):
                strategy.extended.update(
                    variable.value,
                    lambda var, grad, *scalars: optimizer.update_step(grad, var, *scalars),
                    args=(gradient, *scalars),
                    group=False,
                )

        context.merge_call(apply, args=(gradients, learning_rate, factor, finite))
        if skip:
            optimizer.iterations.assign_add(1)
        else:
            optimizer.iterations.assign_add(tf.cast(finite, tf.int32))
        return sums, norm, finite

    @tf.function
    def train(iterator, steps, loss_scale, good_steps):
        def one_step(loss_scale):
            sums, norm, finite = strategy.run(step, args=(next(iterator), loss_scale))
            sums, norm, finite = tf.nest.map_structure(
                lambda value: strategy.experimental_local_results(value)[0], (sums, norm, finite)
            )
            sums = {name: tf.where(finite, value, 0.0) for name, value in sums.items()}
            sums["steps"] = tf.cast(finite, tf.float32)
            sums["skipped"] = 1.0 - sums["steps"]
            return sums, norm, finite

        def next_scale(loss_scale, good_steps, finite):
            if not plan.loss_scaling:
                return loss_scale, good_steps
            good_steps = tf.where(finite, good_steps + 1, 0)
            double = good_steps >= _STEPS_TO_DOUBLE_LOSS_SCALE
            grown = tf.where(double, loss_scale * 2.0, loss_scale)
            return tf.where(finite, grown, tf.maximum(loss_scale / 2.0, 1.0)), tf.where(double, 0, good_steps)

        def body(done, failed, loss_scale, good_steps, norm, totals):
            sums, norm, finite = one_step(loss_scale)
            # A loss scale of 1 that still overflows is a failure, not a scale that is too large.
            failed = ~finite & (not plan.skip_nonfinite_steps) & (loss_scale <= 1.0)
            loss_scale, good_steps = next_scale(loss_scale, good_steps, finite)
            return done + 1, failed, loss_scale, good_steps, norm, tf.nest.map_structure(tf.add, totals, sums)

        names = [*objective.sum_names, "loss", "steps", "skipped"]
        start = (0, False, loss_scale, good_steps, 0.0, {name: tf.constant(0.0) for name in names})
        _, failed, loss_scale, good_steps, norm, totals = tf.while_loop(
            lambda done, failed, *_: (done < steps) & ~failed, body, start, parallel_iterations=1
        )
        state = {"loss_scale": loss_scale, "good_steps": good_steps}
        return {**totals, "gradient_norm": norm, "failed": failed, **state}

    return train


def _rows(tensor, start, count):
    """Rows start..start+count of a tensor, with a static shape (XLA and TPUs need one)."""
    rank = len(tensor.shape)
    return tf.slice(tensor, [start] + [0] * (rank - 1), [count, *tensor.shape[1:]])


def _signed(seed: int) -> int:
    """The low 32 bits of a seed as int32."""
    return (seed + 2**31) % 2**32 - 2**31


# --- evaluation ------------------------------------------------------------------------------------------------------


def make_evaluate_function(model, objective, strategy) -> Callable[[Iterable], dict]:
    """Builds evaluate(batches) -> {metric: float, "loss": float}.

    `loss` is the plain mean of the batches' losses, as the original's Estimator reported it; the metrics weight every
    prediction alike. The batch size must divide by the number of replicas.
    """
    replicas = strategy.num_replicas_in_sync

    def replica_sums(batch):
        context = tf.distribute.get_replica_context()
        count = next(iter(batch.values())).shape[0] // replicas
        share = {name: _rows(tensor, context.replica_id_in_sync_group * count, count) for name, tensor in batch.items()}
        sums = objective.sums(model(share, training=False), share)
        return context.all_reduce(tf.distribute.ReduceOp.SUM, sums) if replicas > 1 else sums

    @tf.function
    def batch_sums(batch):
        sums = strategy.run(replica_sums, args=(batch,))
        sums = {name: strategy.experimental_local_results(value)[0] for name, value in sums.items()}
        return sums, objective.loss(sums, objective.totals(batch))

    def evaluate(batches: Iterable) -> dict:
        total, losses = None, []
        for batch in progress_bar(batches, desc="evaluate", unit="batch", leave=False):
            sums, loss = batch_sums(batch)
            losses.append(loss)
            total = sums if total is None else tf.nest.map_structure(tf.add, total, sums)
        if total is None:
            raise ValueError("Nothing to evaluate: the evaluation data has no batch.")
        metrics = {name: float(value) for name, value in objective.metrics(total).items()}
        return {**metrics, "loss": float(tf.reduce_mean(tf.stack(losses)))}

    return evaluate


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
    evaluate: Callable[[], dict] | None = None,
) -> int:
    """Trains until `plan.num_train_steps`, from wherever the newest checkpoint of output_dir stands.

    The caller has built model and optimizer in the strategy's scope and called `claim_output_dir` and `restore`.

    Args:
      training_batches: first step -> dataset of whole batches from that step on.
      evaluate: called every `eval_every_steps`; its numbers are logged.

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
            if evaluate and plan.eval_every_steps and step % plan.eval_every_steps == 0:
                log.write_evaluation(step, evaluate())
    return step


def _steps_to_next(step: int, plan: TrainingPlan) -> int:
    """Steps until the next one at which something has to be saved, logged or evaluated."""
    periods = [plan.save_checkpoints_steps, plan.log_every_steps, plan.eval_every_steps]
    return min([plan.num_train_steps - step] + [period - step % period for period in periods if period])


def claim_output_dir(output_dir: str, config_json: str, chief: bool = True) -> None:
    """Creates output_dir and keeps bert_config.json with the run; refuses a directory with another model's run.

    Raises:
      ValueError: output_dir has a bert_config.json with other values; the message names them.
    """
    path = posixpath.join(output_dir, "bert_config.json")
    if tf.io.gfile.exists(path):
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
    elif chief:
        tf.io.gfile.makedirs(output_dir)
        write_text_file(path, config_json)


def record_settings(output_dir: str, settings: dict, resumed: bool) -> None:
    """Keeps flags and versions in output_dir/run.json; on a resumed run, warns of what is not as it was.

    A run goes on exactly only with the same data, batch size, seed and schedule; a change may well be meant, so it is
    told and not refused.
    """
    path = posixpath.join(output_dir, "run.json")
    versions = {"tensorflow": tf.__version__, "keras": keras.__version__}
    settings = json.loads(json.dumps({**settings, **{f"version of {name}": v for name, v in versions.items()}}))
    if resumed and tf.io.gfile.exists(path):
        with tf.io.gfile.GFile(path) as file:
            old = json.loads(file.read())
        keys = [key for key in sorted({*old, *settings}) if old.get(key) != settings.get(key)]
        if keys:
            logging.warning(
                "Not as in the earlier run of this directory, so this one goes on differently: %s.",
                "; ".join(f"{key} {old.get(key)} -> {settings.get(key)}" for key in keys),
            )
    write_text_file(path, json.dumps(settings, indent=2, sort_keys=True) + "\n")


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
        result = checkpoints.initialize(
            everything if with_optimizer else model_only, init_checkpoint, must_have_all=with_optimizer
        )
        checkpoints.log_initialization(result, model)
        return checkpoints.read_global_step(result.checkpoint) if with_optimizer else 0
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

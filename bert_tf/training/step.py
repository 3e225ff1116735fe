"""The trainer: all that a training step reads and changes, and steps as one graph function. Evaluation and prediction.

This structure works with every strategy (Keras `fit` supports none of it on several replicas): a loop in the graph
around `strategy.run(replica_step)`, micro-batches inside the step, XLA on forward and backward only, the sum over
replicas before clipping. Every replica gets its rows of a batch; the counts that a loss divides by are added up over
all of them. AutoGraph is off: nothing here needs it, and it doubles the tracing time.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence

import keras
import tensorflow as tf

from bert_tf.models import initialize, kernels
from bert_tf.models.dropout import dropout_scope
from bert_tf.system.cores import batches_at_once, mapped_in_order
from bert_tf.system.progress import batches_with_progress
from bert_tf.training.settings import TrainingSettings
from bert_tf.weights.bundle import CheckpointReader

_FIRST_LOSS_SCALE = 2.0**15
_STEPS_TO_DOUBLE_LOSS_SCALE = 2000


class Trainer:
    """A model in training, with the optimizer, its step count and the loss scale: what a checkpoint of a run holds.

    Args:
      model, optimizer: built inside `strategy.scope()`. The gradient's norm is clipped to the optimizer's
        `global_clipnorm`.
      objective: see `objectives.PretrainingObjective`.
      settings: of the run. With dtype="float16" the loss is scaled, so that small gradients survive.
      sum_loss: the gradient is that of the sum of the examples' losses, or of the tokens' where these are classified;
        the log still has their mean.

    Attributes:
      loss_scale, good_steps: variables, float32 and int32: the factor of the loss, and the steps since it changed.
    """

    def __init__(
        self,
        model,
        optimizer: keras.optimizers.Optimizer,
        objective,
        strategy: tf.distribute.Strategy,
        settings: TrainingSettings,
        sum_loss: bool = False,
    ):
        self.model, self.optimizer, self.objective = model, optimizer, objective
        self.strategy, self.settings, self.sum_loss = strategy, settings, sum_loss
        self.scales_loss = settings.dtype == "float16"
        with tf.device("CPU:0"):
            self.loss_scale = tf.Variable(_FIRST_LOSS_SCALE if self.scales_loss else 1.0, trainable=False)
            self.good_steps = tf.Variable(0, trainable=False)
        self._variables = list(model.trainable_variables)
        self._parts = settings.gradient_accumulation_steps
        self._part_size = settings.train_batch_size // (strategy.num_replicas_in_sync * self._parts)
        if settings.use_xla:
            self._gradients = tf.function(self._gradients, jit_compile=True, autograph=False)
        self.steps = tf.function(self._steps, autograph=False)

    # --- state

    @property
    def step(self) -> int:
        """The number of steps done."""
        return int(self.optimizer.iterations.numpy())

    @property
    def tensors(self) -> dict:
        """Name -> variable of everything that the next step reads, as checkpoints name it."""
        scale = {"loss_scale": self.loss_scale, "loss_scale_good_steps": self.good_steps} if self.scales_loss else {}
        return {**initialize.training_variables(self.model, self.optimizer), **scale}

    def read_loss_scale(self, checkpoint: str | None) -> None:
        """Takes over the loss scale of a run's checkpoint, if both scale the loss."""
        reader = CheckpointReader(checkpoint) if checkpoint and self.scales_loss else None
        if reader and reader.has_tensor("loss_scale"):
            self.loss_scale.assign(reader.get_tensor("loss_scale"))
            self.good_steps.assign(int(reader.get_tensor("loss_scale_good_steps")))

    # --- steps

    def _steps(self, iterator, count):
        """Runs several optimizer steps; called as `steps`, a graph function.

        After a step that is not finite nothing changes any more, unless such steps are to be skipped.

        Args:
          iterator: of `distribution.distribute`, or on one device of a plain dataset. count: of steps, scalar.

        Returns:
          dict of scalars, summed over the steps: the objective's `sums`; `loss`, `steps`, `skipped`; and the last
          `gradient_norm`; `failed`, whether a step was not finite, which is the last that is counted.
        """
        names = [*self.objective.sum_names, "loss", "steps", "skipped"]
        start = (0, False, self.loss_scale.read_value(), self.good_steps.read_value(), 0.0,
                 {name: tf.constant(0.0) for name in names})  # fmt: skip

        def body(done, failed, scale, good_steps, norm, totals):
            results = self.strategy.run(self.replica_step, args=(iterator.get_next(), scale, failed))
            sums, new_norm, finite = tf.nest.map_structure(
                lambda value: self.strategy.experimental_local_results(value)[0], results
            )
            sums = {name: tf.where(finite, value, 0.0) for name, value in sums.items()}
            sums["steps"] = tf.cast(finite, tf.float32)
            sums["skipped"] = tf.cast(~(finite | failed), tf.float32)
            norm = tf.where(failed, norm, new_norm)
            # A loss scale of 1 that still overflows is a failure, not a scale that is too large.
            failed |= ~finite & (not self.settings.skip_nonfinite_steps) & (scale <= 1.0)
            if self.scales_loss:
                good_steps = tf.where(finite, good_steps + 1, 0)
                double = good_steps >= _STEPS_TO_DOUBLE_LOSS_SCALE
                grown = tf.where(double, scale * 2.0, scale)
                scale = tf.where(finite, grown, tf.maximum(scale / 2.0, 1.0))
                good_steps = tf.where(double, 0, good_steps)
            return done + 1, failed, scale, good_steps, norm, tf.nest.map_structure(tf.add, totals, sums)

        _, failed, scale, good_steps, norm, totals = tf.while_loop(
            lambda done, *_: done < count, body, start, parallel_iterations=1
        )
        if self.scales_loss:
            self.loss_scale.assign(scale)
            self.good_steps.assign(good_steps)
        return {**totals, "gradient_norm": norm, "failed": failed}

    def replica_step(self, share, loss_scale, failed=False):
        """One optimizer step, in replica context.

        Args:
          share: the replica's rows of the batch. loss_scale: scalar. failed: whether an earlier step was not finite.

        Returns:
          (sums, gradient norm, whether both are finite), the same on every replica. A step that is not finite, or comes
          after one, changes nothing except, if such steps are skipped, the step count.
        """
        optimizer, replicas = self.optimizer, self.strategy.num_replicas_in_sync
        for name, tensor in share.items():
            if tensor.shape[0] not in (None, self._parts * self._part_size):
                expected = self._parts * self._part_size
                raise ValueError(f"{name} has {tensor.shape[0]} rows, but a replica's share has {expected}")
        context = tf.distribute.get_replica_context()
        add = functools.partial(context.all_reduce, tf.distribute.ReduceOp.SUM)
        # The counts of the whole batch make each replica's loss its exact share of the batch's loss.
        totals = self.objective.totals(share)
        if replicas > 1:
            totals = add(totals)
        seed = tf.stack([tf.constant(_signed(self.settings.seed)), tf.cast(optimizer.iterations.value, tf.int32)])

        def arguments(part):
            size = self._part_size
            rows = {name: _rows(tensor, part * size, size) for name, tensor in share.items()}
            first_row = (context.replica_id_in_sync_group * self._parts + part) * size  # in the whole batch
            return rows, totals, seed, tf.convert_to_tensor(first_row), loss_scale

        sums, gradients, squares = self._gradients(*arguments(0))
        if self._parts > 1:
            further = lambda part: self._gradients(*arguments(part))  # noqa: E731
            sums, gradients, squares = _add_parts(further, self._parts, (sums, gradients, squares))
        updated = [(g, s, v) for g, s, v in zip(gradients, squares, self._variables, strict=True) if g is not None]
        gradients, squares, variables = zip(*updated, strict=True)
        if replicas > 1:
            # TensorFlow fixes the shape of what it gathers at the first step, but the rows of a table's gradient are as
            # many as the tokens, which differ from batch to batch.
            gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
            sums, gradients, squares = _map_values(add, (sums, gradients, squares))
        # Clip after the sum, so that any number of replicas gives the same step.
        norm = _global_norm(gradients, squares) / loss_scale
        finite = tf.math.is_finite(norm) & tf.math.is_finite(sums["loss"]) & ~tf.convert_to_tensor(failed)
        factor = 1.0 / loss_scale
        if self.sum_loss:
            (total,) = totals.values()
            norm, factor = norm * total, factor * total
        if optimizer.global_clipnorm:
            factor = factor * (optimizer.global_clipnorm / tf.maximum(norm, optimizer.global_clipnorm))

        learning_rate = tf.convert_to_tensor(optimizer.learning_rate)
        scalars = (learning_rate, factor, finite, optimizer.step_number())
        context.merge_call(functools.partial(self._update, variables), args=(gradients, *scalars))
        counts = ~tf.convert_to_tensor(failed) if self.settings.skip_nonfinite_steps or self.scales_loss else finite
        optimizer.iterations.assign_add(tf.cast(counts, tf.int32))
        return sums, norm, finite

    def _update(self, variables: Sequence, strategy: tf.distribute.Strategy, gradients: Sequence, *scalars) -> None:
        """Updates each variable by its gradient on all replicas; scalars: those of `optimizer.update_step`."""
        for gradient, variable in zip(gradients, variables, strict=True):
            strategy.extended.update(
                variable.value,
                lambda var, grad, *scalars: self.optimizer.update_step(grad, var, *scalars),
                args=(gradient, *scalars),
                group=False,
            )

    def _gradients(self, features, totals, seed, first_row, loss_scale):
        """Forward and backward of one micro-batch; the losses of all parts of a batch add up to its loss.

        Returns:
          (sums, gradients, squares). The gradient of a variable that the loss does not depend on is None. squares: for
          each gradient None, or, if it consists of slices of a table (a row for each token), half the sum of their
          squares, a scalar.
        """
        with dropout_scope(seed, first_row), tf.GradientTape() as tape, kernels.recomputation(self.settings.recompute):
            outputs = self.model(features, training=True)
            sums = self.objective.sums(outputs, features)
            loss = self.objective.loss(sums, totals)
            scaled_loss = loss * loss_scale
        gradients = tape.gradient(scaled_loss, [variable.value for variable in self._variables])
        squares = [_half_square(g.values) if isinstance(g, tf.IndexedSlices) else None for g in gradients]
        return {"loss": loss, **sums}, gradients, squares


def _add_parts(part: Callable, parts: int, first: tuple) -> tuple:
    """Adds the values of part(1), part(2), ... to those of part(0), which are `first`.

    A loop in the graph, so that only one micro-batch's activations are alive at a time.
    """

    def body(number, *total):
        new = [tf.convert_to_tensor(value) for value in tf.nest.flatten(part(number)) if value is not None]
        # The dependency keeps TensorFlow from fusing this addition with earlier ones (the gradients of an embedding
        # table come from two places): with packed rows the fused op failed in a nested loop.
        with tf.control_dependencies(new[:1]):
            return number + 1, *map(tf.add, total, new)

    def add(values):
        start = (1, *map(tf.convert_to_tensor, values))
        return tf.while_loop(lambda number, *_: number < parts, body, start, parallel_iterations=1)[1:]

    return _map_values(add, first)


def _map_values(function: Callable[[list], Sequence], structure):
    """Applies a function to the list of a structure's values; None stays None."""
    values = tf.nest.flatten(structure)
    new = iter(function([value for value in values if value is not None]))
    return tf.nest.pack_sequence_as(structure, [None if value is None else next(new) for value in values])


def _half_square(tensor):
    """Half the sum of the squares of a tensor."""
    return tf.nn.l2_loss(tf.cast(tensor, tf.float32))


def _global_norm(gradients: Sequence, squares: Sequence):
    """The norm of all gradients together, as the original's clipping computes it on CPU and GPU.

    The gradient of a table that is only looked up has a row for each token, and each row counts: rows of the same token
    are not added up first. To make the norm independent of how a batch is split, the rows' squares are summed where the
    rows are computed, and the gradient that merges them does not count.
    """
    halves = [_half_square(g) if square is None else square for g, square in zip(gradients, squares, strict=True)]
    return tf.sqrt(2.0 * tf.reduce_sum(tf.stack(halves)))


def _rows(tensor, start, count):
    """Rows start to start + count (exclusive) of a tensor; static sizes stay static, as XLA and TPUs need."""
    sizes = [-1 if size is None else size for size in tensor.shape[1:]]
    return tf.slice(tensor, [start] + [0] * len(sizes), [count, *sizes])


def _replica_rows(batch: dict, context: tf.distribute.ReplicaContext) -> dict:
    """A replica's share of a batch's rows."""
    if context.num_replicas_in_sync == 1:
        return batch
    count = next(iter(batch.values())).shape[0] // context.num_replicas_in_sync
    return {name: _rows(tensor, context.replica_id_in_sync_group * count, count) for name, tensor in batch.items()}


def _signed(seed: int) -> int:
    """The low 32 bits of a seed as int32."""
    return (seed + 2**31) % 2**32 - 2**31


# --- evaluation ------------------------------------------------------------------------------------------------------


def make_evaluate_function(model, objective, strategy) -> Callable[[Iterable], dict]:
    """Builds evaluate(batches) -> {metric: float, "loss": float}.

    `loss` is the plain mean of the batches' losses, as the original's Estimator reported it; the metrics weight every
    prediction equally. The batch size must be divisible by the number of replicas.
    """
    replicas = strategy.num_replicas_in_sync

    def replica_sums(batch):
        context = tf.distribute.get_replica_context()
        share = _replica_rows(batch, context)
        sums = objective.sums(model(share, training=False), share)
        return context.all_reduce(tf.distribute.ReduceOp.SUM, sums) if replicas > 1 else sums

    @tf.function(autograph=False)
    def batch_sums(batch):
        sums = strategy.run(replica_sums, args=(batch,))
        sums = {name: strategy.experimental_local_results(value)[0] for name, value in sums.items()}
        return sums, objective.loss(sums, objective.totals(batch))

    def evaluate(batches: Iterable) -> dict:
        total, losses, sums_of = None, [], _traced_once(batch_sums, batches)
        for batch in batches_with_progress(batches, "evaluate"):
            sums, loss = sums_of(batch)
            losses.append(loss)
            total = sums if total is None else tf.nest.map_structure(tf.add, total, sums)
        if total is None:
            raise ValueError("Nothing to evaluate: the evaluation data has no batches.")
        metrics = {name: float(value) for name, value in objective.metrics(total).items()}
        return {**metrics, "loss": float(tf.reduce_mean(tf.stack(losses)))}

    return evaluate


def _traced_once(function, batches: Iterable, spec: dict | None = None) -> Callable:
    """A tf.function of a batch for all batches of a dataset, or of this spec, whatever their lengths.

    Called with the batches themselves, it would be traced for each length again, two seconds or so.
    """
    if isinstance(batches, tf.data.Dataset):
        spec = batches.element_spec
    return function.get_concrete_function(spec) if spec else function


def make_predict_function(model, strategy, fused: bool = True) -> Callable[..., Iterator]:
    """Builds predict(batches, spec) -> iterator over the model's outputs for each batch, as NumPy arrays.

    The rows of a batch stay in order for any number of replicas, which must divide the batch size. On a CPU several
    are computed at a time. Batches that are no dataset may have a spec, a dict of tf.TensorSpec, and then no bar.

    Args:
      fused: see `kernels.fused_inference`.
    """
    replicas = strategy.num_replicas_in_sync

    def replica_outputs(batch):
        with kernels.fused_inference() if fused else contextlib.nullcontext():
            return model(_replica_rows(batch, tf.distribute.get_replica_context()), training=False)

    @tf.function(autograph=False)
    def batch_outputs(batch):
        outputs = strategy.run(replica_outputs, args=(batch,))
        return tf.nest.map_structure(lambda value: strategy.gather(value, axis=0), outputs) if replicas > 1 else outputs

    def predict(batches: Iterable, spec: dict | None = None) -> Iterator:
        outputs_of = _traced_once(batch_outputs, batches, spec)

        def arrays_of(batch):
            return tf.nest.map_structure(lambda value: value.numpy(), outputs_of(batch))

        shown = batches if spec else batches_with_progress(batches, "predict")
        return mapped_in_order(arrays_of, shown, batches_at_once(replicas))

    return predict

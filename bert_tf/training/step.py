"""One training step and one evaluation step, as graph functions: replicas, micro-batches, clipping, loss scale.

This structure works with every strategy (Keras `fit` supports none of it on several replicas): a loop in the graph
around `strategy.run(step)`, micro-batches inside the step, XLA on forward and backward only, the sum over replicas
before clipping. Every replica gets its rows of a batch; the counts that a loss divides by are added up over all of
them. AutoGraph is off: nothing here needs it, and it doubles the tracing time.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence

import tensorflow as tf

from bert_tf.models import kernels
from bert_tf.models.dropout import dropout_scope
from bert_tf.system.cores import batches_at_once
from bert_tf.system.progress import batches_with_progress
from bert_tf.system.threads import mapped_in_order

_STEPS_TO_DOUBLE_LOSS_SCALE = 2000
_POINTS = 50  # in the log of a run, at least


@dataclasses.dataclass(frozen=True)
class TrainingPlan:
    """How long and how to train; the fields are the flags of the same names.

    Attributes:
      num_train_steps: optimizer steps in total, including those before the run was resumed.
      stop_at_step: end there, short of num_train_steps; None: at num_train_steps.
      batch_size: examples per step, over all replicas and micro-batches.
      gradient_accumulation_steps: micro-batches into which a replica's share is split.
      seed: seed of dropout (and of the data order, if the caller uses it for that).
      loss_scaling: dynamic loss scale, for float16.
      clip_norm: the gradient's norm is clipped to this; 0: it is not clipped.
      sum_loss: the gradient is that of the sum of the examples' losses, or of the tokens' where these are classified;
        the log still has their mean.
      use_xla: compile forward and backward.
      recompute: see `kernels.recomputation`.
      skip_nonfinite_steps: skip and count steps with a NaN or infinite loss, instead of stopping.
      iterations_per_loop: maximum steps in one call of the graph.
      save_checkpoints_steps, log_every_steps, eval_every_steps: in steps; eval_every_steps=0 means never. A run is
        logged 50 times at least, however short it is (`log_period`).
      eval_at_end: also evaluate the last step, if eval_every_steps is not 0.
      keep_checkpoint_max: 0 keeps all.
      save_first: save a checkpoint before the first step, as the original does.
      tokens_per_example, flops_per_example: for the log; model FLOPs of forward and backward.
    """

    num_train_steps: int
    batch_size: int
    gradient_accumulation_steps: int = 1
    seed: int = 0
    loss_scaling: bool = False
    clip_norm: float = 1.0
    sum_loss: bool = False
    use_xla: bool = False
    recompute: bool = False
    skip_nonfinite_steps: bool = False
    iterations_per_loop: int = 1000
    save_checkpoints_steps: int = 1000
    log_every_steps: int = 100
    eval_every_steps: int = 0
    eval_at_end: bool = False
    keep_checkpoint_max: int = 5
    save_first: bool = True
    tokens_per_example: int = 0
    flops_per_example: float = 0.0
    stop_at_step: int | None = None

    @classmethod
    def of(cls, *settings, **own) -> "TrainingPlan":
        """The plan of a run: what its settings say under the names of the fields, and what the run knows itself."""
        names = {field.name for field in dataclasses.fields(cls)}
        said = {name: value for one in settings for name, value in vars(one).items() if name in names}
        scales = any(getattr(one, "dtype", None) == "float16" for one in settings)
        return cls(**{"loss_scaling": scales, **said, **own})

    def with_rows(self, count: float) -> "TrainingPlan":
        """The plan, made for examples of one row, for examples of `count` rows."""
        return dataclasses.replace(
            self,
            tokens_per_example=self.tokens_per_example * count,
            flops_per_example=self.flops_per_example * count,
        )

    @property
    def last_step(self) -> int:
        """The step at which training ends; the learning rate decays until num_train_steps all the same."""
        return min(self.num_train_steps, self.stop_at_step or self.num_train_steps)

    @property
    def log_period(self) -> int:
        """Steps between two points of the log: few enough for a curve."""
        return max(1, min(self.log_every_steps, self.last_step // _POINTS))


# --- step ------------------------------------------------------------------------------------------------------------


def make_replica_step(model, optimizer, objective, strategy, plan: TrainingPlan) -> Callable:
    """Builds one optimizer step in replica context.

    Args:
      model, optimizer: built inside `strategy.scope()`.
      objective: see `objectives.PretrainingObjective`.

    Returns:
      step(share, loss_scale) -> (sums, gradient norm, whether both are finite), the same on every replica. share: the
      replica's rows of the batch. A step that is not finite changes nothing except, if such steps are skipped, the
      step count.
    """
    variables = list(model.trainable_variables)
    replicas = strategy.num_replicas_in_sync
    skip = plan.skip_nonfinite_steps or plan.loss_scaling
    replica_gradients = _make_replica_gradients(model, variables, objective, replicas, plan)

    def step(share, loss_scale):
        context = tf.distribute.get_replica_context()
        add = functools.partial(context.all_reduce, tf.distribute.ReduceOp.SUM)
        # The counts of the whole batch make each replica's loss its exact share of the batch's loss.
        totals = objective.totals(share)
        if replicas > 1:
            totals = add(totals)
        seed = tf.stack([tf.constant(_signed(plan.seed)), tf.cast(optimizer.iterations.value, tf.int32)])
        sums, gradients, squares = replica_gradients(share, totals, seed, loss_scale)
        updated = [(g, s, v) for g, s, v in zip(gradients, squares, variables, strict=True) if g is not None]
        gradients, squares, _ = zip(*updated, strict=True)
        if replicas > 1:
            # TensorFlow fixes the shape of what it gathers at the first step, but the rows of a table's gradient are as
            # many as the tokens, which differ from batch to batch.
            gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
            sums, gradients, squares = _map_values(add, (sums, gradients, squares))
        # Clip after the sum, so that any number of replicas gives the same step.
        norm = _global_norm(gradients, squares) / loss_scale
        finite = tf.math.is_finite(norm) & tf.math.is_finite(sums["loss"])
        factor = 1.0 / loss_scale
        if plan.sum_loss:
            (count,) = totals.values()
            norm, factor = norm * count, factor * count
        if plan.clip_norm:
            factor = factor * (plan.clip_norm / tf.maximum(norm, plan.clip_norm))
        learning_rate = tf.convert_to_tensor(optimizer.learning_rate)

        def apply(strategy, gradients, *scalars):
            for gradient, (*_, variable) in zip(gradients, updated, strict=True):
                strategy.extended.update(
                    variable.value,
                    lambda var, grad, *scalars: optimizer.update_step(grad, var, *scalars),
                    args=(gradient, *scalars),
                    group=False,
                )

        context.merge_call(apply, args=(gradients, learning_rate, factor, finite, optimizer.step_number()))
        if skip:
            optimizer.iterations.assign_add(1)
        else:
            optimizer.iterations.assign_add(tf.cast(finite, tf.int32))
        return sums, norm, finite

    return step


def _make_replica_gradients(model, variables: list, objective, replicas: int, plan: TrainingPlan) -> Callable:
    """Builds gradients(share, totals, seed, loss_scale) of a replica's rows of a batch.

    They are processed in `plan.gradient_accumulation_steps` parts, one after the other.

    Returns:
      A function that returns (sums, gradients, squares). The gradient of a variable that the loss does not depend on is
      None. squares: for each gradient None, or, if it consists of slices of a table (a row for each token), half the
      sum of their squares, a scalar.
    """
    parts = plan.gradient_accumulation_steps
    part_size = plan.batch_size // (replicas * parts)

    def part_gradients(features, totals, seed, first_row, loss_scale):
        """Forward and backward of one micro-batch; the losses of all parts of a batch add up to its loss."""
        with dropout_scope(seed, first_row), tf.GradientTape() as tape, kernels.recomputation(plan.recompute):
            outputs = model(features, training=True)
            sums = objective.sums(outputs, features)
            loss = objective.loss(sums, totals)
            scaled_loss = loss * loss_scale
        gradients = tape.gradient(scaled_loss, [variable.value for variable in variables])
        squares = [_half_square(g.values) if isinstance(g, tf.IndexedSlices) else None for g in gradients]
        return {"loss": loss, **sums}, gradients, squares

    if plan.use_xla:
        part_gradients = tf.function(part_gradients, jit_compile=True, autograph=False)

    def replica_gradients(share, totals, seed, loss_scale):
        for name, tensor in share.items():
            if tensor.shape[0] not in (None, parts * part_size):
                raise ValueError(f"{name} has {tensor.shape[0]} rows, but a replica's share has {parts * part_size}")
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group

        def part(number):
            features = {name: _rows(tensor, number * part_size, part_size) for name, tensor in share.items()}
            first_row = tf.convert_to_tensor((replica * parts + number) * part_size)  # in the whole batch
            return part_gradients(features, totals, seed, first_row, loss_scale)

        first = part(0)
        return first if parts == 1 else _add_parts(part, parts, first)

    return replica_gradients


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


def make_train_function(model, optimizer, objective, strategy, plan: TrainingPlan) -> Callable:
    """Builds the graph function that runs several optimizer steps; for the arguments see `make_replica_step`.

    Returns:
      train(iterator, steps, loss_scale, good_steps) -> dict of tensors, summed over the steps run: the objective's
      `sums`; `loss`, `steps`, `skipped`; and the last `gradient_norm`, `failed`, `loss_scale`, `good_steps`. It stops
      early, before changing anything, at a step that is not finite, unless such steps are to be skipped. iterator: of
      `distribution.distribute`, or on one device of a plain dataset.
    """
    step = make_replica_step(model, optimizer, objective, strategy, plan)

    @tf.function(autograph=False)
    def train(iterator, steps, loss_scale, good_steps):
        def one_step(loss_scale):
            sums, norm, finite = strategy.run(step, args=(iterator.get_next(), loss_scale))
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
    """Rows start to start + count (exclusive) of a tensor; static sizes stay static, as XLA and TPUs need."""
    sizes = [-1 if size is None else size for size in tensor.shape[1:]]
    return tf.slice(tensor, [start] + [0] * len(sizes), [count, *sizes])


def _replica_rows(batch: dict, context: tf.distribute.ReplicaContext) -> dict:
    """A replica's share of a batch's rows."""
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


def _traced_once(function, batches: Iterable) -> Callable:
    """A tf.function of a batch for all batches of a dataset, whatever their lengths.

    Called with the batches themselves, it would be traced for each length again, two seconds or so.
    """
    if not isinstance(batches, tf.data.Dataset):
        return function
    return function.get_concrete_function(batches.element_spec)


def make_predict_function(model, strategy) -> Callable[[Iterable], Iterator]:
    """Builds predict(batches) -> iterator over the model's outputs for each batch, as NumPy arrays.

    The rows of a batch stay in order for any number of replicas, which must divide the batch size. On a CPU several
    are computed at a time.
    """
    replicas = strategy.num_replicas_in_sync

    def replica_outputs(batch):
        with kernels.fused_inference():
            return model(_replica_rows(batch, tf.distribute.get_replica_context()), training=False)

    @tf.function(autograph=False)
    def batch_outputs(batch):
        outputs = strategy.run(replica_outputs, args=(batch,))
        return tf.nest.map_structure(lambda value: strategy.gather(value, axis=0), outputs) if replicas > 1 else outputs

    def predict(batches: Iterable) -> Iterator:
        outputs_of = _traced_once(batch_outputs, batches)

        def arrays_of(batch):
            return tf.nest.map_structure(lambda value: value.numpy(), outputs_of(batch))

        return mapped_in_order(arrays_of, batches_with_progress(batches, "predict"), batches_at_once(replicas))

    return predict

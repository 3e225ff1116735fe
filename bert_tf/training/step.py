"""The trainer: all that a training step reads and changes, and steps as one graph function. Evaluation and prediction.

This structure works with every strategy (Keras `fit` supports none of it on several replicas): a loop in the graph
around `strategy.run(replica_step)`, micro-batches inside the step, the sum over replicas before clipping. Every replica
gets its rows of a batch; the counts that a loss divides by are added up over all of them. AutoGraph is off: nothing
here needs it, and it doubles the tracing time.

On GPUs, or with `use_xla`, a step is one XLA program; on several replicas three, between which values are added up.
So is a batch of an evaluation, if all have one length.
The loop waits for nothing that a step computes: its state stays on the device, which holds integers of 64 bits only,
since TensorFlow keeps those of 32 bits in the host's memory.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from bert_tf.models import initialize, kernels
from bert_tf.models.dropout import dropout_scope
from bert_tf.store.bundle import CheckpointReader
from bert_tf.system.messages import batches_with_progress
from bert_tf.system.workers import batches_at_once, mapped_in_order
from bert_tf.training.distribution import compiles_steps, is_chief, is_one_cpu
from bert_tf.training.optimization import AdamWeightDecay
from bert_tf.training.settings import TrainingSettings

_FIRST_LOSS_SCALE = 2.0**15
_STEPS_TO_DOUBLE_LOSS_SCALE = 2000
BATCHES_OF_A_PROGRAM = 200  # from so many, a program for them saves more time than it takes to compile


class State(NamedTuple):
    """The values that a step passes to the next, besides variables: scalars, the same on every replica.

    step: int64, the number of steps done. failed: whether one was not finite. loss_scale: float32. good_steps: int64,
    the steps since it changed. gradient_norm: the last. sums: name -> sum over the steps of a call, float32.
    """

    step: tf.Tensor
    failed: tf.Tensor
    loss_scale: tf.Tensor
    good_steps: tf.Tensor
    gradient_norm: tf.Tensor
    sums: dict[str, tf.Tensor]


class Trainer:
    """A model in training, with the optimizer, its step count and the loss scale: what a checkpoint of a run holds.

    Args:
      model, optimizer: built inside `strategy.scope()`. The gradient's norm is clipped to the optimizer's
        `global_clipnorm`.
      objective: see `objectives.PretrainingObjective`.
      settings: of the run. With dtype="float16" the loss is scaled, so that small gradients survive.
      sum_loss: the gradient is that of the sum of the examples' losses, or of the tokens' where these are classified;
        the log still has their mean.
      checkpoint: of the run that goes on, whose loss scale is taken over.

    Attributes:
      is_chief: whether this process writes the run's files.
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
        checkpoint: str | None = None,
    ):
        self.model, self.optimizer, self.objective = model, optimizer, objective
        self.strategy, self.settings, self.sum_loss = strategy, settings, sum_loss
        self.scales_loss, self.is_chief = settings.dtype == "float16", is_chief(strategy)
        with tf.device("CPU:0"):
            self.loss_scale = tf.Variable(_FIRST_LOSS_SCALE if self.scales_loss else 1.0, trainable=False)
            self.good_steps = tf.Variable(0, trainable=False)
        self.read_loss_scale(checkpoint)
        self._variables = list(model.trainable_variables)
        self._parts = settings.gradient_accumulation_steps
        self._part_size = settings.train_batch_size // (strategy.num_replicas_in_sync * self._parts)
        self._totals = objective.totals
        self._computed = self._gradients if self._parts == 1 else self._gradients_of_parts
        self._in_place = None
        if compiles_steps(settings.use_xla, strategy):
            if strategy.num_replicas_in_sync == 1:
                self.replica_step = _one_program(self.replica_step)
            else:
                self._totals, self._computed, self._updated = map(
                    _one_program, (self._totals, self._computed, self._updated)
                )
        elif is_one_cpu(strategy) and kernels.fused_enabled() and type(optimizer) is AdamWeightDecay:
            from bert_tf.training.in_place import InPlaceAdam

            self._in_place = InPlaceAdam(optimizer, self._variables)
        self.steps = tf.function(self._steps, autograph=False)
        self.own_memory()

    # --- state

    @property
    def step(self) -> int:
        return int(self.optimizer.iterations.numpy())

    @property
    def tensors(self) -> dict:
        """Name -> variable of everything that the next step reads, as checkpoints name it.

        They may be assigned, and what is read of them be held: call `own_memory` before the next step. What was read of
        a variable otherwise may share its memory (`tf.identity`, `b.assign(a)`), and then changes with it on a CPU.
        """
        if self._in_place:
            self._in_place.addresses.clear()
        scale = {"loss_scale": self.loss_scale, "loss_scale_good_steps": self.good_steps} if self.scales_loss else {}
        return {**initialize.training_variables(self.model, self.optimizer), **scale}

    def read_loss_scale(self, checkpoint: str | None) -> None:
        """Takes over the loss scale of a run's checkpoint, if both scale the loss."""
        reader = CheckpointReader(checkpoint) if checkpoint and self.scales_loss else None
        if reader and reader.has_tensor("loss_scale"):
            self.loss_scale.assign(reader.get_tensor("loss_scale"))
            self.good_steps.assign(int(reader.get_tensor("loss_scale_good_steps")))

    # --- steps

    def own_memory(self) -> None:
        """Needed before `steps`, which write to the variables' memory, after the use of `tensors`."""
        if self._in_place:
            self._in_place.own_memory()

    def _steps(self, iterator, count):
        """Runs several optimizer steps; called as `steps`, a graph function.

        After a step that is not finite nothing changes any more, unless such steps are to be skipped.

        iterator: of `distribution.distribute`, or on one device of a plain dataset. count: of steps, scalar.

        Returns a dict of scalars, summed over the steps: the objective's `sums`; `loss`, `steps`, `skipped`; and the
        last `gradient_norm`; `failed`, whether a step was not finite, which is the last that is counted.
        """
        state = self.first_state()

        def body(done, state):
            results = self.strategy.run(self.replica_step, args=(iterator.get_next(), state))
            first = tf.nest.map_structure(lambda value: self.strategy.experimental_local_results(value)[0], results)
            return done + 1, first

        # The condition reads the counter alone: were it to read a result, the device would wait in every step.
        with tf.control_dependencies([self._in_place.check()] if self._in_place else []):
            _, state = tf.while_loop(lambda done, _: done < count, body, (0, state), parallel_iterations=1)
        self.optimizer.iterations.assign(state.step)
        if self.scales_loss:
            self.loss_scale.assign(state.loss_scale)
            self.good_steps.assign(tf.cast(state.good_steps, tf.int32))
        return {**state.sums, "gradient_norm": state.gradient_norm, "failed": state.failed}

    def first_state(self) -> State:
        names = [*self.objective.sum_names, "loss", "steps", "skipped"]
        return State(
            tf.convert_to_tensor(self.optimizer.iterations),
            tf.constant(False),
            self.loss_scale.read_value(),
            tf.cast(self.good_steps, tf.int64),
            tf.constant(0.0),
            {name: tf.constant(0.0) for name in names},
        )

    def replica_step(self, share: dict, state: State) -> State:
        """One optimizer step, in replica context. share: the replica's rows of the batch.

        A step that is not finite, or comes after one, changes nothing except, if such steps are skipped, their number.
        """
        context = tf.distribute.get_replica_context()
        sums = functools.partial(context.all_reduce, tf.distribute.ReduceOp.SUM)
        add = sums if context.num_replicas_in_sync > 1 else lambda values: values
        # The counts of the whole batch make each replica's loss its exact share of the batch's loss.
        totals = add(self._totals(share))
        computed = self._computed(share, totals, context.replica_id_in_sync_group, state)
        # Clip after the sum, so that any number of replicas gives the same step.
        return self._updated(*_map_values(add, computed), totals, state)

    def _gradients_of_parts(self, share: dict, totals: dict, replica, state: State) -> tuple:
        """Sums, gradients and squares of a replica's share, as `_gradients` returns them for a micro-batch of it."""
        part = functools.partial(self._gradients, share, totals, replica, state)
        return _add_parts(part, self._parts, part(0))

    def _updated(self, sums: dict, gradients: list, squares: list, totals: dict, state: State) -> State:
        optimizer, loss_scale = self.optimizer, state.loss_scale
        updated = [(g, s, v) for g, s, v in zip(gradients, squares, self._variables, strict=True) if g is not None]
        gradients, squares, variables = zip(*updated, strict=True)
        norm = _global_norm(gradients, squares) / loss_scale
        finite = tf.math.is_finite(norm) & tf.math.is_finite(sums["loss"]) & ~state.failed
        factor = 1.0 / loss_scale
        if self.sum_loss:
            (total,) = totals.values()
            norm, factor = norm * total, factor * total
        if optimizer.global_clipnorm:
            factor = factor * (optimizer.global_clipnorm / tf.maximum(norm, optimizer.global_clipnorm))
        scalars = optimizer.learning_rate_at(state.step), factor, finite, tf.cast(state.step, tf.float32) + 1.0
        (self._in_place or optimizer).update_steps(gradients, variables, *scalars)
        return self._next_state(state, sums, norm, finite)

    def _next_state(self, state: State, sums: dict, norm, finite) -> State:
        """The state after a step. sums: its own. finite: whether it was applied."""
        step, failed, scale, good_steps, last_norm, all_sums = state
        counts = ~failed if self.settings.skip_nonfinite_steps or self.scales_loss else finite
        sums = {name: tf.where(finite, value, 0.0) for name, value in sums.items()}
        sums["steps"] = tf.cast(finite, tf.float32)
        sums["skipped"] = tf.cast(~(finite | failed), tf.float32)
        norm = tf.where(failed, last_norm, norm)
        # A loss scale of 1 that still overflows is a failure, not a scale that is too large.
        failed |= ~finite & (not self.settings.skip_nonfinite_steps) & (scale <= 1.0)
        if self.scales_loss:
            good_steps = tf.where(finite, good_steps + 1, 0)
            double = good_steps >= _STEPS_TO_DOUBLE_LOSS_SCALE
            grown = tf.where(double, scale * 2.0, scale)
            scale = tf.where(finite, grown, tf.maximum(scale / 2.0, 1.0))
            good_steps = tf.where(~double, good_steps, 0)
        sums = tf.nest.map_structure(tf.add, all_sums, sums)
        return State(step + tf.cast(counts, step.dtype), failed, scale, good_steps, norm, sums)

    def _gradients(self, share: dict, totals: dict, replica, state: State, part=0) -> tuple:
        """Forward and backward of one micro-batch; the losses of all parts of a batch add up to its loss.

        share: the replica's rows. totals: those of the whole batch. replica, part: their numbers.

        Returns (sums, gradients, squares). The gradient of a variable that the loss does not depend on is None.
        squares: for each gradient None, or, if it comes as slices of a table (a row for each token), half the sum of
        their squares, a scalar.
        """
        size = self._part_size
        features = {name: _rows(tensor, part * size, size) for name, tensor in share.items()}
        run_seed = (self.settings.seed + 2**31) % 2**32 - 2**31  # the low 32 bits as int32
        seed = tf.stack([tf.constant(run_seed), tf.cast(state.step, tf.int32)])
        first_row = tf.convert_to_tensor((replica * self._parts + part) * size)  # in the whole batch
        with dropout_scope(seed, first_row), tf.GradientTape() as tape, kernels.recomputation(self.settings.recompute):
            outputs = self.model(features, training=True)
            sums = self.objective.sums(outputs, features)
            loss = self.objective.loss(sums, totals)
            scaled_loss = loss * state.loss_scale
        gradients = tape.gradient(scaled_loss, [variable.value for variable in self._variables])
        squares = [_half_square(g.values) if isinstance(g, tf.IndexedSlices) else None for g in gradients]
        if self.strategy.num_replicas_in_sync > 1:
            # A table's gradient has a row for each token: these would be gathered. Dense, it is part of the one sum.
            gradients = [g if g is None else tf.convert_to_tensor(g) for g in gradients]
        return {"loss": loss, **sums}, gradients, squares


def _one_program(function: Callable) -> Callable:
    """The function, compiled by XLA as a whole: what would be small programs of their own elsewhere is part of it."""

    def plain(*arguments):
        with kernels.one_program():
            return function(*arguments)

    return tf.function(plain, jit_compile=True, autograph=False)


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
    values = tf.nest.flatten(structure)
    new = iter(function([value for value in values if value is not None]))
    return tf.nest.pack_sequence_as(structure, [None if value is None else next(new) for value in values])


def _half_square(tensor):
    return tf.nn.l2_loss(tf.cast(tensor, tf.float32))


def _global_norm(gradients: Sequence, squares: Sequence):
    """The norm of all gradients together, as the original's clipping computes it on CPU and GPU.

    The gradient of a table that is only looked up has a row for each token, and each row counts: rows of the same token
    are not added up first. To make the norm independent of how a batch is split, the rows' squares are summed where the
    rows are computed, and the gradient that merges them does not count.
    """
    halves = [square for square in squares if square is not None]
    whole = [tf.cast(g, tf.float32) for g, square in zip(gradients, squares, strict=True) if square is None]
    joins, alike = kernels.in_one_program(), {}  # matrices of a shape, as all vectors are
    for number, gradient in enumerate(whole):
        shape = tuple(gradient.shape)
        alike.setdefault("vectors" if len(shape) == 1 else shape if joins else number, []).append(gradient)
    whole = [tf.concat(gradients, 0) if len(gradients) > 1 else gradients[0] for gradients in alike.values()]
    return tf.sqrt(2.0 * tf.reduce_sum(tf.stack([*halves, *map(_half_square, whole)])))


def _rows(tensor, start, count):
    """Rows start to start + count (exclusive) of a tensor; static sizes stay static, as XLA and TPUs need."""
    sizes = [-1 if size is None else size for size in tensor.shape[1:]]
    return tf.slice(tensor, [start] + [0] * len(sizes), [count, *sizes])


def _replica_rows(batch: dict, context: tf.distribute.ReplicaContext) -> dict:
    if context.num_replicas_in_sync == 1:
        return batch
    count = next(iter(batch.values())).shape[0] // context.num_replicas_in_sync
    return {name: _rows(tensor, context.replica_id_in_sync_group * count, count) for name, tensor in batch.items()}


# --- evaluation ------------------------------------------------------------------------------------------------------


def make_evaluate_function(model, objective, strategy, compiled: bool = False) -> Callable[[Iterable], dict]:
    """Builds evaluate(batches) -> {metric: float, "loss": float}.

    `loss` is the plain mean of the batches' losses, as the original's Estimator reported it; the metrics weight every
    prediction equally. The batch size must be divisible by the number of replicas.

    compiled: a batch is one XLA program on each replica, compiled once for each length.
    """
    replicas = strategy.num_replicas_in_sync

    def share_sums(share):
        return objective.sums(model(share, training=False), share)

    if compiled:
        share_sums = _one_program(share_sums)

    def replica_sums(batch):
        context = tf.distribute.get_replica_context()
        sums = share_sums(_replica_rows(batch, context))
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


def make_predict_function(model, strategy, fused: bool = True, compiled: bool = False) -> Callable[..., Iterator]:
    """Builds predict(batches, spec) -> iterator over the model's outputs for each batch, as NumPy arrays.

    The rows of a batch stay in order for any number of replicas, which must divide the batch size. On a CPU several
    are computed at a time. Batches that are no dataset may have a spec, a dict of tf.TensorSpec, and then no bar.

    fused, compiled: with `BATCHES_OF_A_PROGRAM` or more, or a spec, see `kernels.fused_inference`; a batch is one XLA
      program. Fewer are done sooner with nothing compiled.
    """
    replicas = strategy.num_replicas_in_sync

    def batch_outputs(of_rows, batch):
        def replica_outputs(batch):
            return of_rows(_replica_rows(batch, tf.distribute.get_replica_context()))

        outputs = strategy.run(replica_outputs, args=(batch,))
        return tf.nest.map_structure(lambda value: strategy.gather(value, axis=0), outputs) if replicas > 1 else outputs

    @functools.cache
    def graph(many: bool):
        def outputs_of_rows(rows):
            with kernels.fused_inference() if many and fused and not compiled else contextlib.nullcontext():
                return model(rows, training=False)

        of_rows = _one_program(outputs_of_rows) if many and compiled else outputs_of_rows
        return tf.function(functools.partial(batch_outputs, of_rows), autograph=False)

    def predict(batches: Iterable, spec: dict | None = None) -> Iterator:
        outputs_of = _traced_once(graph(bool(spec) or len(batches) >= BATCHES_OF_A_PROGRAM), batches, spec)

        def arrays_of(batch):
            return tf.nest.map_structure(lambda value: value.numpy(), outputs_of(batch))

        shown = batches if spec else batches_with_progress(batches, "predict")
        return mapped_in_order(arrays_of, shown, batches_at_once(replicas))

    return predict

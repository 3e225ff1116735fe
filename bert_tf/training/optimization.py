"""Optimizers and learning-rate schedule of BERT (original: optimization.py; LAMB: You et al. 2019, algorithm 2).

They are ordinary Keras optimizers, but `update_steps` also takes scalars that the training step needs: a factor for
the gradient (clipping, loss scale), whether to apply the update at all, and the number of the step.
"""

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Sequence
from numbers import Real

import keras
import numpy as np
from absl import logging
from keras import ops

from bert_tf.families.recipe import EXCLUDE_FROM_WEIGHT_DECAY, WARMUPS, Recipe
from bert_tf.models import kernels
from bert_tf.system.checks import check_integer, check_number, list_of_strings, true_or_false

_PACKAGE = "bert_tf"
_BERT = Recipe()


def _check_rate(rate) -> None:
    check_number(rate, "learning_rate", -math.inf)
    if not 0 < rate <= 1:
        raise ValueError(f"learning_rate={rate:g} must be more than 0 and at most 1.")


def _float32_reciprocal(steps: int) -> float:
    return float(np.float32(1.0) / np.float32(steps))


@keras.saving.register_keras_serializable(_PACKAGE)
class WarmupLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up over `num_warmup_steps`, then linear decay that reaches 0 at `num_train_steps`.

    Both lines start at step 0, so with warm-up the very first update has rate 0, and the rate drops where warm-up ends.
    Both are kept, because published runs were made that way.

    Args:
      initial_learning_rate: the peak of the schedule.
      num_train_steps: optimizer steps until the rate is 0.
      num_warmup_steps: 0 for no warm-up.
      warmup: one of `recipe.WARMUPS`. "replaces" is BERT's way, described above. "multiplies" is ELECTRA's
        (create_optimizer of model/optimization.py): the decayed rate times step / num_warmup_steps, which may be a
        fraction, and the peak is never reached. "precedes" is fairseq's polynomial_decay: the decay starts at the peak,
        where warm-up ends, and the first update already has the second one's rate. "precedes_from_zero" is that of
        transformers (get_linear_schedule_with_warmup), the same with a first rate of 0.
      power: of the decay, which is linear by default; warm-up is always linear (ELECTRA's lr_decay_power, ALBERT's
        poly_power).
    """

    def __init__(
        self,
        initial_learning_rate: float,
        num_train_steps: int,
        num_warmup_steps: float = 0,
        warmup: str = _BERT.warmup,
        power: float = _BERT.lr_decay_power,
    ):
        super().__init__()
        _check_rate(initial_learning_rate)
        check_integer(num_train_steps, "num_train_steps")
        check_number(num_warmup_steps or 0, "num_warmup_steps")
        if warmup not in WARMUPS:
            raise ValueError(f"warmup={warmup!r} is not one of {', '.join(WARMUPS)}.")
        if not 0 < power < math.inf:
            raise ValueError(f"power must be positive, got {power}.")
        self.initial_learning_rate, self.num_train_steps = initial_learning_rate, num_train_steps
        self.num_warmup_steps, self.warmup, self.power = num_warmup_steps or 0, warmup, power

    def __call__(self, step):
        step = ops.cast(step, "float32")
        if self.warmup.startswith("precedes"):
            return self._rate_after_warmup(step)
        # Multiply by reciprocals instead of dividing: TensorFlow's graph optimizer rewrote the original's divisions by
        # constants like this, and towards the end of a long run the difference exceeds rounding.
        done = ops.minimum(step, float(self.num_train_steps)) * _float32_reciprocal(self.num_train_steps)
        rate = self.initial_learning_rate * self._curved(1.0 - done)
        if self.num_warmup_steps:
            warmed_up = step * _float32_reciprocal(self.num_warmup_steps)
            if self.warmup == "multiplies":
                return rate * ops.minimum(warmed_up, 1.0)
            rate = ops.where(step < float(self.num_warmup_steps), self.initial_learning_rate * warmed_up, rate)
        return rate

    def _curved(self, left):
        return left if self.power == 1 else ops.power(left, self.power)

    def _rate_after_warmup(self, step):
        warmup, steps = float(self.num_warmup_steps), float(self.num_train_steps)
        left = self._curved(ops.clip((steps - step) / max(steps - warmup, 1.0), 0.0, 1.0))
        if warmup:
            first = 1.0 if self.warmup == "precedes" else 0.0
            left = ops.where(step < warmup, ops.maximum(step, first) / warmup, left)
        return self.initial_learning_rate * left

    def get_config(self) -> dict:
        names = ("initial_learning_rate", "num_train_steps", "num_warmup_steps", "warmup", "power")
        return {name: getattr(self, name) for name in names}


def layer_rates(paths: Sequence[str], decay: float) -> list[float]:
    """The factor of the learning rate for each variable (ELECTRA's model/optimization.py, _get_layer_lrs).

    With n layers: decay ** (n + 2) for the embeddings, decay ** (n + 1) for layer 0, ..., decay ** 2 for the top layer,
    decay for the pooler, 1 for the head. Layers that share a block are one layer.
    """
    if not 0 < decay <= 1:
        raise ValueError(f"layerwise_lr_decay={decay:g} must be more than 0 and at most 1, which means no decay.")
    if decay == 1 or not paths:
        return [1.0] * len(paths)
    numbers = [re.search(r"/encoder/layer_(\d+)/", path) for path in paths]
    layers = 1 + max((int(number[1]) for number in numbers if number), default=-1)
    if not layers:
        raise ValueError(f"layerwise_lr_decay={decay:g} is for models with transformer layers.")

    def depth(path, number):
        if number:
            return 1 + int(number[1])
        if re.search("/embeddings(_project)?/", path):
            return 0
        return layers + 1 if "/pooler/" in path else layers + 2

    return [decay ** (layers + 2 - depth(path, number)) for path, number in zip(paths, numbers, strict=True)]


class _DecayingOptimizer(keras.optimizers.Optimizer):
    """First and second moments, a weight decay that skips variables by path, and rates that differ by layer.

    bias_correction: divide the moments by what their zero start takes from them. None: the optimizer's usual way.
    epsilon_after_correction: epsilon is added to the corrected second moment, not to the other.
    layerwise_lr_decay: see `layer_rates`.
    """

    corrects_bias = False  # usually
    element_wise = True  # no element's update depends on another element

    def __init__(
        self,
        learning_rate=5e-5,
        weight_decay_rate: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        exclude_from_weight_decay=EXCLUDE_FROM_WEIGHT_DECAY,
        global_clipnorm: float | None = 1.0,
        name=None,
        bias_correction: bool | None = None,
        layerwise_lr_decay: float = 1.0,
        epsilon_after_correction: bool = False,
        **kwargs,
    ):
        if isinstance(learning_rate, Real | str) and learning_rate != 0:  # 0: a saved optimizer may have been set to it
            _check_rate(learning_rate)
        check_number(weight_decay_rate, "weight_decay_rate")
        check_number(beta_1, "beta_1", most=1)
        check_number(beta_2, "beta_2", most=1)
        check_number(epsilon, "epsilon")
        check_number(layerwise_lr_decay, "layerwise_lr_decay", -math.inf)
        check_number(global_clipnorm or 0, "global_clipnorm")
        true_or_false(bias_correction=bias_correction, epsilon_after_correction=epsilon_after_correction)
        if kwargs.get("weight_decay") is not None:
            raise TypeError("weight_decay is Keras's own, which would be added: write weight_decay_rate")
        list_of_strings(exclude_from_weight_decay or (), "exclude_from_weight_decay")
        super().__init__(learning_rate=learning_rate, global_clipnorm=global_clipnorm, name=name, **kwargs)
        self.weight_decay_rate, self.layerwise_lr_decay = weight_decay_rate, layerwise_lr_decay
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        # Not under Keras's own name for it: Keras would read that and set up its own weight decay.
        self.excluded_patterns = tuple(exclude_from_weight_decay or ())
        self.bias_correction = self.corrects_bias if bias_correction is None else bias_correction
        self.epsilon_after_correction = epsilon_after_correction

    def build(self, variables):
        if self.built:
            return
        self.layer_rates = layer_rates([variable.path for variable in variables], self.layerwise_lr_decay)
        super().build(variables)
        self.first_moments = [self.add_variable_from_reference(v, name="adam_m") for v in variables]
        self.second_moments = [self.add_variable_from_reference(v, name="adam_v") for v in variables]
        self.decayed = [not any(re.search(p, v.path) for p in self.excluded_patterns) for v in variables]

    @property
    def constants(self) -> tuple:
        return self.beta_1, self.beta_2, self.epsilon, self.bias_correction, self.epsilon_after_correction

    def decay_rate(self, index: int) -> float | None:
        return self.weight_decay_rate if self.decayed[index] else None

    def learning_rate_at(self, step):
        """The learning rate after `step` steps, float32."""
        schedule = isinstance(self._learning_rate, keras.optimizers.schedules.LearningRateSchedule)
        return ops.convert_to_tensor(self._learning_rate(step) if schedule else self._learning_rate)

    def update_step(self, gradient, variable, learning_rate):
        number = ops.cast(self.iterations, "float32") + 1.0
        self.update_steps([gradient], [variable], learning_rate, 1.0, True, number)

    def update_steps(self, gradients: Sequence, variables: Sequence, learning_rate, factor, counts, step) -> None:
        """Updates variables and their moments: all vectors that are updated alike are one tensor.

        In one program so are those of one shape, which makes it a sixth shorter; a GPU writes and reads what is updated
        once more. What that costs was not measured.

        gradients: of the variables' shapes, dense or IndexedSlices; factor multiplies them. step: its number, from 1.
        counts: boolean scalar; where False, variables and moments keep their values, even if a gradient is NaN.
        """
        groups: dict[object, list] = {}
        for gradient, variable in zip(gradients, variables, strict=True):
            index = self._get_variable_index(variable)
            shape = "vectors" if len(variable.shape) == 1 else tuple(variable.shape)
            joins = (kernels.in_one_program() or shape == "vectors") and (self.element_wise or not self.decayed[index])
            key = (shape, self.decayed[index], self.layer_rates[index]) if joins else index
            gradient = ops.cast(ops.convert_to_tensor(gradient), variable.dtype)
            moments = self.first_moments[index], self.second_moments[index]
            groups.setdefault(key, []).append((index, variable, *moments, gradient))
        # A step that doesn't count multiplies a moment by 1 and adds 0 to it.
        decays = [pair for beta in (self.beta_1, self.beta_2) for pair in ((beta, 1.0), (1.0 - beta, 0.0))]
        decays = [ops.where(counts, np.float32(value), np.float32(without)) for value, without in decays]
        rate = ops.where(counts, ops.cast(learning_rate, "float32"), 0.0)
        for group in groups.values():
            indices, *kinds, gradients = zip(*group, strict=True)
            tensors = [each[0] if len(each) == 1 else ops.concatenate(each) for each in (*kinds, gradients)]
            of_layer = self.layer_rates[indices[0]]
            scalars = rate if of_layer == 1 else rate * of_layer, factor, counts, *decays, step
            fixed = type(self)._direction, self.decay_rate(indices[0]), self.constants
            update = _compiled(*fixed) if kernels.fused_enabled() else functools.partial(_update, *fixed)
            new = update(tensors, scalars)
            ends = list(itertools.accumulate(variable.shape[0] for variable in kinds[0][:-1]))
            for variables, value in zip(kinds, new, strict=True):
                for variable, part in zip(variables, ops.split(value, ends) if ends else [value], strict=True):
                    self.assign(variable, part)

    def get_config(self) -> dict:
        config = super().get_config()
        config.pop("weight_decay", None)
        names = "weight_decay_rate beta_1 beta_2 epsilon bias_correction layerwise_lr_decay epsilon_after_correction"
        values = {name: getattr(self, name) for name in names.split()}
        return {**config, **values, "exclude_from_weight_decay": list(self.excluded_patterns)}


def _update(direction, decay_rate, constants, tensors, scalars):
    """New (variable, m, v): moments, then the optimizer's own direction, then one step along it.

    scalars: the learning rate; the gradient's factor, and whether it counts; those of both moments; the step.
    """
    variable, m, v, gradient = (ops.convert_to_tensor(tensor) for tensor in tensors)
    learning_rate, factor, counts, beta_1, rest_1, beta_2, rest_2, step = scalars
    gradient = ops.where(counts, gradient * ops.cast(factor, gradient.dtype), 0.0)
    m = beta_1 * m + rest_1 * gradient
    v = beta_2 * v + rest_2 * gradient * gradient
    return variable - learning_rate * direction(variable, m, v, step, decay_rate, constants), m, v


@functools.cache
def _compiled(*fixed):
    """`_update` with its first arguments, as a function of tensors and scalars that XLA compiles."""
    import tensorflow as tf

    update = tf.function(lambda tensors, scalars: _update(*fixed, tensors, scalars), jit_compile=True, autograph=False)
    return lambda *lists: update(*([tf.convert_to_tensor(value) for value in values] for values in lists))


@keras.saving.register_keras_serializable(_PACKAGE)
class AdamWeightDecay(_DecayingOptimizer):
    """The original's Adam: no bias correction, epsilon outside the square root, decoupled weight decay.

    Without bias correction the first steps are about three times as long as Adam's ((1 - beta_1) / sqrt(1 - beta_2));
    the warm-up is tuned to that, so it stays. With it, this is fairseq's Adam, whose epsilon counts before v is
    corrected, or with `epsilon_after_correction` PyTorch's AdamW.
    """

    @staticmethod
    def _direction(variable, m, v, step, decay_rate, constants):
        scale, epsilon = AdamWeightDecay.correction(step, constants)
        change = m / (ops.sqrt(v) + epsilon) * scale
        return change + decay_rate * variable if decay_rate else change

    @staticmethod
    def correction(step, constants: tuple) -> tuple:
        """What m / (sqrt(v) + epsilon) is multiplied by in this step, and that epsilon."""
        beta_1, beta_2, epsilon, bias_correction, epsilon_after_correction = constants
        if not bias_correction:
            return 1.0, epsilon
        left_1, left_2 = (1.0 - ops.power(ops.cast(beta, "float32"), step) for beta in (beta_1, beta_2))
        return ops.sqrt(left_2) / left_1, epsilon * ops.sqrt(left_2) if epsilon_after_correction else epsilon


@keras.saving.register_keras_serializable(_PACKAGE)
class Lamb(_DecayingOptimizer):
    """LAMB, for very large batches: Adam with bias correction, each update rescaled to the norm of its variable.

    Variables excluded from weight decay are not rescaled either, as in the implementations behind published results.
    """

    corrects_bias = True
    element_wise = False  # of variables with weight decay

    @staticmethod
    def _direction(variable, m, v, step, decay_rate, constants):
        scale, epsilon = AdamWeightDecay.correction(step, (*constants[:-1], True))  # of the moments, before epsilon
        change = m / (ops.sqrt(v) + epsilon) * scale
        if decay_rate is None:
            return change
        change = change + decay_rate * variable
        variable_norm = ops.sqrt(ops.sum(ops.square(variable)))
        change_norm = ops.sqrt(ops.sum(ops.square(change)))
        usable = ops.logical_and(variable_norm > 0, change_norm > 0)
        ratio = variable_norm / ops.where(usable, change_norm, ops.ones_like(change_norm))
        return ops.where(usable, ratio, ops.ones_like(ratio)) * change


def create_optimizer(
    name: str, learning_rate: float, num_train_steps: int, num_warmup_steps: float, recipe: Recipe = _BERT
) -> keras.optimizers.Optimizer:
    """The optimizer of a training script: "adamw" (the original's) or "lamb", with a family's schedule.

    Args:
      num_warmup_steps: a warm-up that is not shorter than the run is warned of.
      recipe: of a family (`config.recipe`), BERT's by default, but for its optimizer, learning_rate and
        warmup_proportion.

    Raises:
      ValueError: there is no such optimizer, the recipe is impossible, or see `WarmupLinearDecay`.
    """
    _check_rate(learning_rate)
    recipe = dataclasses.replace(recipe, optimizer=name, learning_rate=learning_rate)
    return optimizer_of(recipe, num_train_steps, num_warmup_steps)


def optimizer_of(recipe: Recipe, num_train_steps: int, num_warmup_steps: float) -> keras.optimizers.Optimizer:
    """The optimizer of a recipe, with its schedule for so many steps; see `create_optimizer`."""
    name, learning_rate = recipe.optimizer, recipe.learning_rate
    schedule = WarmupLinearDecay(learning_rate, num_train_steps, num_warmup_steps, recipe.warmup, recipe.lr_decay_power)
    num_warmup_steps = num_warmup_steps or 0
    if 0 < num_warmup_steps < min(1, num_train_steps / 100):
        message = "num_warmup_steps=%g is a number of steps, not a share: for that write %g * %d."
        logging.warning(message, num_warmup_steps, num_warmup_steps, num_train_steps)
    if num_warmup_steps >= num_train_steps:  # by default 10,000, as in the original, whatever the run's length
        reached = min(num_train_steps / num_warmup_steps, 1.0) * learning_rate
        logging.warning(
            "The warm-up of %d steps is not shorter than the run of %d: the learning rate rises to %g at its very end "
            "(of %g) and never falls. A tenth of the steps is usual (num_warmup_steps, warmup_proportion).",
            *(num_warmup_steps, num_train_steps, reached, learning_rate),
        )
    optimizers = {"adamw": AdamWeightDecay, "lamb": Lamb}
    if name not in optimizers:
        raise ValueError(f"optimizer={name} is not known; choose one of {', '.join(optimizers)}.")
    return optimizers[name](
        learning_rate=schedule,
        weight_decay_rate=recipe.weight_decay_rate,
        beta_2=recipe.adam_beta_2,
        exclude_from_weight_decay=recipe.exclude_from_weight_decay,
        global_clipnorm=recipe.clip_norm or None,
        bias_correction=recipe.bias_correction,
        layerwise_lr_decay=recipe.layerwise_lr_decay,
        epsilon_after_correction=recipe.epsilon_after_correction,
    )

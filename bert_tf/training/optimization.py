"""Optimizers and learning-rate schedule of BERT (original: optimization.py; LAMB: You et al. 2019, algorithm 2).

They are ordinary Keras optimizers, but `update_step` also takes two scalars that the training step needs: a factor for
the gradient (clipping, loss scale), and whether to apply the update at all.
"""

import functools
import re

import keras
import numpy as np
from keras import ops

_PACKAGE = "bert_tf"

# Variables whose path contains one of these are not decayed: layer norms and every bias.
EXCLUDE_FROM_WEIGHT_DECAY = ("LayerNorm", "layer_norm", "bias")


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
    """

    def __init__(self, initial_learning_rate: float, num_train_steps: int, num_warmup_steps: int = 0):
        super().__init__()
        if num_train_steps <= 0:
            raise ValueError(f"num_train_steps must be positive, got {num_train_steps}.")
        self.initial_learning_rate = initial_learning_rate
        self.num_train_steps = num_train_steps
        self.num_warmup_steps = num_warmup_steps or 0

    def __call__(self, step):
        step = ops.cast(step, "float32")
        # Multiply by reciprocals instead of dividing: TensorFlow's graph optimizer rewrote the original's divisions by
        # constants like this, and towards the end of a long run the difference exceeds rounding.
        done = ops.minimum(step, float(self.num_train_steps)) * _float32_reciprocal(self.num_train_steps)
        rate = self.initial_learning_rate * (1.0 - done)
        if self.num_warmup_steps:
            warmup_rate = self.initial_learning_rate * (step * _float32_reciprocal(self.num_warmup_steps))
            rate = ops.where(step < float(self.num_warmup_steps), warmup_rate, rate)
        return rate

    def get_config(self) -> dict:
        return {
            "initial_learning_rate": self.initial_learning_rate,
            "num_train_steps": self.num_train_steps,
            "num_warmup_steps": self.num_warmup_steps,
        }


class _DecayingOptimizer(keras.optimizers.Optimizer):
    """First and second moments, and a weight decay that skips variables by path."""

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
        **kwargs,
    ):
        super().__init__(learning_rate=learning_rate, global_clipnorm=global_clipnorm, name=name, **kwargs)
        self.weight_decay_rate = weight_decay_rate
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        # Not under Keras's own name for it: Keras would read that and set up its own weight decay.
        self.excluded_patterns = tuple(exclude_from_weight_decay or ())

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.first_moments = [self.add_variable_from_reference(v, name="adam_m") for v in variables]
        self.second_moments = [self.add_variable_from_reference(v, name="adam_v") for v in variables]
        self.decayed = [self._is_decayed(v) for v in variables]

    def _is_decayed(self, variable) -> bool:
        return bool(self.weight_decay_rate) and not any(re.search(p, variable.path) for p in self.excluded_patterns)

    def update_step(self, gradient, variable, learning_rate, gradient_factor=1.0, apply_update=True):
        """Updates one variable and its moments.

        Args:
          gradient: has the variable's shape (dense or IndexedSlices).
          gradient_factor: scalar by which the gradient is multiplied.
          apply_update: boolean scalar; where False, variable and moments keep their values, whatever the gradient
            holds (NaN included).
        """
        index = self._get_variable_index(variable)
        m, v = self.first_moments[index], self.second_moments[index]
        gradient = ops.cast(ops.convert_to_tensor(gradient), variable.dtype)
        scalars = (learning_rate, gradient_factor, apply_update, ops.cast(self.iterations, "float32") + 1.0)
        update = _compiled_update if _use_compiled() else _update
        new = update(
            type(self)._direction,
            self.decayed[index] and self.weight_decay_rate,
            (self.beta_1, self.beta_2, self.epsilon),
            (variable, m, v, gradient),
            scalars,
        )
        for target, value in zip((variable, m, v), new, strict=True):
            self.assign(target, value)

    def get_config(self) -> dict:
        config = super().get_config()
        config.pop("weight_decay", None)
        return {
            **config,
            "weight_decay_rate": self.weight_decay_rate,
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "exclude_from_weight_decay": list(self.excluded_patterns),
        }


def _update(direction, decay_rate, constants, tensors, scalars):
    """New (variable, m, v): moments, then the optimizer's own direction, then one step along it."""
    beta_1, beta_2, _ = constants
    variable, m, v, gradient = (ops.convert_to_tensor(tensor) for tensor in tensors)
    learning_rate, gradient_factor, apply_update, step = scalars
    gradient = gradient * ops.cast(gradient_factor, gradient.dtype)
    new_m = beta_1 * m + (1.0 - beta_1) * gradient
    new_v = beta_2 * v + (1.0 - beta_2) * gradient * gradient
    change = direction(variable, new_m, new_v, step, decay_rate, constants)
    new_variable = variable - ops.cast(learning_rate, variable.dtype) * change
    return tuple(ops.where(apply_update, new, old) for new, old in ((new_variable, variable), (new_m, m), (new_v, v)))


@functools.cache
def _compiled_form(direction, decay_rate, constants):
    import tensorflow as tf

    return tf.function(
        lambda tensors, scalars: _update(direction, decay_rate, constants, tensors, scalars),
        jit_compile=True,
        autograph=False,
    )


def _compiled_update(direction, decay_rate, constants, tensors, scalars):
    import tensorflow as tf

    tensors, scalars = ([tf.convert_to_tensor(value) for value in values] for values in (tensors, scalars))
    return _compiled_form(direction, decay_rate, constants)(tensors, scalars)


def _use_compiled() -> bool:
    from bert_tf.models import kernels

    return kernels.fused_enabled()


@keras.saving.register_keras_serializable(_PACKAGE)
class AdamWeightDecay(_DecayingOptimizer):
    """The original's Adam: no bias correction, epsilon outside the square root, decoupled weight decay.

    Without bias correction the first steps are about three times as long as Adam's ((1 - beta_1) / sqrt(1 - beta_2));
    the warm-up is tuned to that, so it stays.
    """

    @staticmethod
    def _direction(variable, m, v, step, decay_rate, constants):
        change = m / (ops.sqrt(v) + constants[2])
        return change + decay_rate * variable if decay_rate else change


@keras.saving.register_keras_serializable(_PACKAGE)
class Lamb(_DecayingOptimizer):
    """LAMB, for very large batches: Adam with bias correction, each update rescaled to the norm of its variable.

    Variables excluded from weight decay are not rescaled either, as in the implementations behind published results.
    """

    @staticmethod
    def _direction(variable, m, v, step, decay_rate, constants):
        beta_1, beta_2, epsilon = constants
        m = m / (1.0 - ops.power(ops.cast(beta_1, "float32"), step))
        v = v / (1.0 - ops.power(ops.cast(beta_2, "float32"), step))
        change = m / (ops.sqrt(v) + epsilon)
        if not decay_rate:
            return change
        change = change + decay_rate * variable
        variable_norm = ops.sqrt(ops.sum(ops.square(variable)))
        change_norm = ops.sqrt(ops.sum(ops.square(change)))
        usable = ops.logical_and(variable_norm > 0, change_norm > 0)
        ratio = variable_norm / ops.where(usable, change_norm, ops.ones_like(change_norm))
        return ops.where(usable, ratio, ops.ones_like(ratio)) * change


def create_optimizer(
    name: str, learning_rate: float, num_train_steps: int, num_warmup_steps: int
) -> keras.optimizers.Optimizer:
    """The optimizer of a training script: "adamw" (the original's) or "lamb", with the original's schedule."""
    optimizers = {"adamw": AdamWeightDecay, "lamb": Lamb}
    if name not in optimizers:
        raise ValueError(f"--optimizer={name} is not known; choose one of {', '.join(optimizers)}.")
    return optimizers[name](learning_rate=WarmupLinearDecay(learning_rate, num_train_steps, num_warmup_steps))

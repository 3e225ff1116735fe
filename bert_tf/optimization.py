"""The names of the original's optimization.py; docs/names.md says what differs."""

from collections.abc import Sequence

import keras

from bert_tf.training import optimization
from bert_tf.training.optimization import AdamWeightDecay, Lamb, WarmupLinearDecay

__all__ = ["AdamWeightDecay", "AdamWeightDecayOptimizer", "Lamb", "WarmupLinearDecay", "create_optimizer"]


@keras.saving.register_keras_serializable("bert_tf")
class AdamWeightDecayOptimizer(AdamWeightDecay):
    """`AdamWeightDecay` with the defaults of the original's class: no decay, no clipping.

    Args:
      learning_rate: a number or a Keras schedule.
      exclude_from_weight_decay: regular expressions; a variable whose path contains a match is not decayed.
      kwargs: of a Keras optimizer, e.g. `global_clipnorm`.
    """

    def __init__(
        self,
        learning_rate,
        weight_decay_rate: float = 0.0,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        exclude_from_weight_decay: Sequence[str] | None = None,
        name: str = "AdamWeightDecayOptimizer",
        **kwargs,
    ):
        others = {"global_clipnorm": None, "name": name, **kwargs}
        super().__init__(learning_rate, weight_decay_rate, beta_1, beta_2, epsilon, exclude_from_weight_decay, **others)


def create_optimizer(init_lr: float, num_train_steps: int, num_warmup_steps: int | None) -> AdamWeightDecay:
    """The optimizer that the original's train op used: decay 0.01, clipping to norm 1, warm-up, then linear decay to 0.

        optimizer = create_optimizer(init_lr=2e-5, num_train_steps=343, num_warmup_steps=34)

    Args:
      init_lr: the peak of the learning rate. num_train_steps: updates until it is 0.
      num_warmup_steps: updates of linear warm-up; 0 or None for none.
    """
    return optimization.create_optimizer("adamw", init_lr, num_train_steps, num_warmup_steps or 0)

"""Functions of transformers 4 for TensorFlow that the original has under the same name; docs/from-transformers.md."""

from collections.abc import Sequence

import bert_tf
from bert_tf.training.optimization import AdamWeightDecay, WarmupLinearDecay


def __getattr__(name: str):
    try:
        return bert_tf.__getattr__(name)
    except AttributeError as error:  # which an import does not show
        raise (ImportError if "from-transformers" in str(error) else AttributeError)(str(error)) from None


def create_optimizer(
    init_lr: float,
    num_train_steps: int,
    num_warmup_steps: int,
    adam_beta1: float = 0.9,
    adam_beta2: float = 0.999,
    adam_epsilon: float = 1e-8,
    adam_clipnorm: float | None = None,
    adam_global_clipnorm: float | None = None,
    weight_decay_rate: float = 0.0,
    exclude_from_weight_decay: Sequence[str] = ("LayerNorm", "layer_norm", "bias"),
) -> tuple[AdamWeightDecay, WarmupLinearDecay]:
    """transformers' optimizer and its schedule: Adam with bias correction, no clipping, and no decay by default.

    `bert_tf.create_optimizer` is the original's: without bias correction, clipping to norm 1, decay 0.01.

    Args:
      init_lr: the peak of the learning rate. num_warmup_steps: updates of linear warm-up, from 0; the linear decay
        begins after them. num_train_steps: updates until it is 0.
    """
    schedule = WarmupLinearDecay(init_lr, num_train_steps, num_warmup_steps, "precedes_from_zero")
    others = {"clipnorm": adam_clipnorm, "global_clipnorm": adam_global_clipnorm, "bias_correction": True}
    numbers = (weight_decay_rate, adam_beta1, adam_beta2, adam_epsilon)
    return AdamWeightDecay(schedule, *numbers, exclude_from_weight_decay, **others), schedule

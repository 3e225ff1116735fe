"""How the authors of a family trained it: what the scripts do where no flag says otherwise."""

import dataclasses

# Variables whose path contains one of these are not decayed: layer norms and every bias.
EXCLUDE_FROM_WEIGHT_DECAY = ("LayerNorm", "layer_norm", "bias")

# How warm-up meets the linear decay from the peak at step 0 to 0 at the last step: until its end it replaces the
# decayed rate (BERT), or multiplies it (ELECTRA); or the decay begins where it ends, and the first update already has
# the rate of the second (RoBERTa), or the rate 0 (DistilBERT).
WARMUPS = ("replaces", "multiplies", "precedes", "precedes_from_zero")


def check_learning_rate(value: float | None) -> None:
    """Refuses a learning rate that is not from 0 to 1; None is one that is not given.

    Raises:
      ValueError: names the flag.
    """
    if value is not None and not 0 <= value <= 1:
        raise ValueError(f"--learning_rate={value:g} must be from 0 to 1.")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Schedule and optimizer; the defaults are BERT's. Most fields are flags of the fine-tuning scripts.

    Attributes:
      optimizer: its name; see `optimization.create_optimizer`.
      learning_rate: the peak. warmup_proportion: the share of the steps for warm-up. warmup: one of WARMUPS, no flag.
      lr_decay_power: the rate is the peak times the linear decay to this power; a flag of run_pretraining.py only.
      layerwise_lr_decay: each layer learns slower than the one above it by this factor; see `layer_rates`.
      weight_decay_rate: exclude_from_weight_decay: parts of the names of variables that don't decay, no flag.
      adam_beta_2: of the second moment. bias_correction: of the moments in the first steps; None: as the
        optimizer does it, AdamW without and LAMB with it. epsilon_after_correction: PyTorch's AdamW adds epsilon to the
        corrected second moment, no flag.
      clip_norm: the gradient's norm is clipped to this; 0: it is not clipped.
      sum_loss: clip the gradient of the sum of the losses of a batch's examples, or tagged words, not of their mean.
    """

    optimizer: str = "adamw"
    learning_rate: float = 5e-5
    warmup_proportion: float = 0.1
    warmup: str = "replaces"
    lr_decay_power: float = 1.0
    layerwise_lr_decay: float = 1.0
    weight_decay_rate: float = 0.01
    exclude_from_weight_decay: tuple[str, ...] = EXCLUDE_FROM_WEIGHT_DECAY
    adam_beta_2: float = 0.999
    bias_correction: bool | None = None
    epsilon_after_correction: bool = False
    clip_norm: float = 1.0
    sum_loss: bool = False

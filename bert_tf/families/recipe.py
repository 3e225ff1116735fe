"""How the authors of a family trained it: what the scripts do where no flag says otherwise."""

import dataclasses
import itertools
from collections.abc import Mapping

from absl import logging

from bert_tf.system.declare import ORIGINAL, Settings, declared_in, setting, unset_setting

# Variables whose path contains one of these are not decayed: layer norms and every bias.
EXCLUDE_FROM_WEIGHT_DECAY = ("LayerNorm", "layer_norm", "bias")

OPTIMIZER = "Optimizer"  # a heading of --help

# How warm-up meets the linear decay from the peak at step 0 to 0 at the last step: until its end it replaces the
# decayed rate (BERT), or multiplies it (ELECTRA); or the decay begins where it ends, and the first update already has
# the rate of the second (RoBERTa), or the rate 0 (DistilBERT).
WARMUPS = ("replaces", "multiplies", "precedes", "precedes_from_zero")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """Schedule and optimizer, as flags of the fine-tuning scripts. None: as in the family's recipe."""

    learning_rate: float | None = setting(
        5e-5,
        "Peak learning rate. The paper tried 5e-5, 3e-5 and 2e-5. If unset, 5e-5, or what the family's authors used: "
        "RoBERTa 1e-5, ELECTRA 1e-4, Large 5e-5.",
        heading=ORIGINAL,
        unset=True,
        above=0,
        most=1,
        on_card=True,
    )
    warmup_proportion: float | None = setting(
        0.1,
        "Share of the steps over which the learning rate rises from 0. If unset, 0.1; RoBERTa: 0.06.",
        unset=True,
        least=0,
        most=1,
    )
    optimizer: str | None = setting(
        "adamw",
        "adamw: the original's Adam with weight decay. lamb: for batches of thousands of examples. If unset, adamw; "
        "lamb where an ALBERT is pre-trained.",
        heading=OPTIMIZER,
        unset=True,
        choices=("adamw", "lamb"),
    )
    layerwise_lr_decay: float | None = unset_setting(
        1.0,
        "Each layer learns slower than the one above it by this factor, the embeddings slowest; 1: all alike. If "
        "unset, 1; ELECTRA: 0.8, Large 0.9.",
        heading=OPTIMIZER,
        above=0,
        most=1,
    )
    weight_decay_rate: float | None = unset_setting(
        0.01, "Weight decay. If unset, 0.01; RoBERTa: 0.1, on all variables.", least=0
    )
    adam_beta_2: float | None = unset_setting(
        0.999, "Adam's decay of the second moment. If unset, 0.999; RoBERTa: 0.98.", least=0, below=1
    )
    bias_correction: bool | None = setting(
        None, "Correct the moments in the first steps. If unset, false, as in the original; RoBERTa and lamb: true."
    )
    clip_norm: float | None = unset_setting(
        1.0, "Clip the gradient's norm to this; 0: don't. If unset, 1; RoBERTa: 0.", least=0
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe(OptimizerSettings):
    """Schedule and optimizer of a family: all settings, with or without flags. The defaults are BERT's.

    bias_correction: None: as the optimizer does it, AdamW without and LAMB with it.
    sum_loss: the gradient is that of the sum of the losses of a batch's examples (words in tagging), not of their mean.
    warmup: one of WARMUPS. lr_decay_power: the rate is the peak times the linear decay to this power.
    exclude_from_weight_decay: parts of the names of variables that don't decay.
    epsilon_after_correction: PyTorch's AdamW adds epsilon to the corrected second moment.
    """

    sum_loss: bool = False
    warmup: str = "replaces"
    lr_decay_power: float = 1.0
    exclude_from_weight_decay: tuple[str, ...] = EXCLUDE_FROM_WEIGHT_DECAY
    epsilon_after_correction: bool = False

    def __post_init__(self):
        for name, declared in declared_in(OptimizerSettings).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, declared.default)  # the class is frozen


def with_recipe(settings: Settings, recipe: Recipe, whose: str | None, **further: float | None) -> Settings:
    """The settings, with a recipe where they say nothing, which is logged where the recipe is not BERT's.

    whose: the beginning of the line in the log; None: nothing is logged. further: values that follow from the recipe.
    """
    names, usual = [name for name in declared_in(OptimizerSettings) if hasattr(settings, name)], Recipe()
    values = {**{name: getattr(recipe, name) for name in names}, **further}
    filled = {name: value for name, value in values.items() if getattr(settings, name) is None}
    differ = [f"--{name}={value}" for name, value in filled.items() if value != getattr(usual, name, None)]
    if whose and recipe != usual and differ:
        logging.info("%s by its authors, unless you say otherwise: %s.", whose, " ".join(differ))
    return dataclasses.replace(settings, **filled)


def number_of_steps(num_examples: int, batch_size: int, num_train_epochs: float) -> int:
    """Steps of a run, as the original counts them."""
    steps = int(num_examples / batch_size * num_train_epochs)
    if steps < 1:
        given = f"{num_examples} training examples, --train_batch_size={batch_size}"
        given = f"{given} and --num_train_epochs={num_train_epochs} give less than one step"
        raise ValueError(f"{given}: lower the batch size, or train longer.")
    return steps


# --- --search: a grid of settings, of which every combination is a run ------------------------------------------------
#
# grid_points("learning_rate=2e-5,3e-5,5e-5;train_batch_size=16,32")  # the paper's, appendix A.3:
# [{"learning_rate": 2e-05, "train_batch_size": 16}, ...], six of them

# The settings that can be searched, and the type of their values: those of the optimizer and of its schedule, which
# change neither the model nor its rows.
SEARCHED = {"learning_rate": float, "train_batch_size": int}
SEARCHED |= dict.fromkeys(("num_train_epochs", "warmup_proportion", "layerwise_lr_decay", "weight_decay_rate"), float)

Values = Mapping[str, float | int]


def grid_points(text: str | None) -> list[dict[str, float | int]]:
    """All combinations of the values, the last setting changing fastest; without --search one, which is empty."""
    grid: dict[str, list[float | int]] = {}
    for part in () if text is None else text.split(";"):
        name, _, values = (piece.strip() for piece in part.partition("="))
        if name not in SEARCHED:
            raise ValueError(f"{name!r} can't be searched; {', '.join(SEARCHED)} can.")
        if name in grid:
            raise ValueError(f"{name} appears twice; give all its values in one list.")
        grid[name] = [*map(SEARCHED[name], values.split(","))]
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def value_text(value: float | int) -> str:
    """The shortest text that reads back as the same value."""
    return repr(value).removesuffix(".0")


def combination_text(values: Values, separator: str = ", ") -> str:
    """A combination in words: "learning_rate=2e-05, train_batch_size=16"."""
    return separator.join(f"{name}={value_text(value)}" for name, value in values.items())


def folder_of(values: Values) -> str:
    """The name of a combination's folder in output_dir; `run_directory` knows its form."""
    return f"search-{combination_text(values, '-')}"

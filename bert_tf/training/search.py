"""--search: a grid of settings, of which every combination is a run. Nothing here needs TensorFlow.

grid = parse_search("learning_rate=2e-5,3e-5,5e-5;train_batch_size=16,32")  # the paper's, appendix A.3
combinations_of(grid)  # [{"learning_rate": 2e-05, "train_batch_size": 16}, ...], six of them
"""

import itertools
import math
from collections.abc import Mapping

# The settings that can be searched, and the type of their values: those of the optimizer and of its schedule, which
# change neither the model nor its rows.
SEARCHED = {
    "learning_rate": float,
    "train_batch_size": int,
    "num_train_epochs": float,
    "warmup_proportion": float,
    "layerwise_lr_decay": float,
    "weight_decay_rate": float,
}
_MOST_COMBINATIONS = 1_000
_FORM = "write it as 'learning_rate=2e-5,3e-5;train_batch_size=16,32'"

Values = Mapping[str, float | int]


def parse_search(text: str) -> dict[str, tuple[float | int, ...]]:
    """The values of each setting.

    Raises:
      ValueError: not of the form NAME=VALUE,VALUE;NAME=VALUE, a setting that can't be searched, something twice, or
        fewer than two combinations or too many; names the place.
    """
    grid: dict[str, tuple[float | int, ...]] = {}
    for part in text.split(";"):
        name, _, values = (piece.strip() for piece in part.partition("="))
        if name not in SEARCHED:
            raise ValueError(f"--search: {name!r} can't be searched; {', '.join(SEARCHED)} can: {_FORM}.")
        if name in grid:
            raise ValueError(f"--search: {name} appears twice; give all its values in one list.")
        grid[name] = tuple(_parse_value(name, value.strip()) for value in values.split(","))
        twice = next((value for value in grid[name] if grid[name].count(value) > 1), None)
        if twice is not None:
            raise ValueError(f"--search: {name} has the value {value_text(twice)} twice.")
    count = math.prod(map(len, grid.values()))
    if count > _MOST_COMBINATIONS:
        raise ValueError(
            f"--search has {count:,} combinations, each of which is a run: at most {_MOST_COMBINATIONS:,}."
        )
    if count < 2:
        raise ValueError(f"--search={text} is one combination; give several values, or the setting as its own flag.")
    return grid


def _parse_value(name: str, text: str) -> float | int:
    try:
        value = SEARCHED[name](text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        kind = "whole number" if SEARCHED[name] is int else "number"
        raise ValueError(f"--search: {name}={text} is no {kind}; {_FORM}.")
    return value


def combinations_of(grid: Mapping[str, tuple[float | int, ...]]) -> list[dict[str, float | int]]:
    """All combinations of the values, the last setting changing fastest; of no settings one, which is empty."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def value_text(value: float | int) -> str:
    """A value as short as it can be written without becoming another one."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def combination_text(values: Values, separator: str = ", ") -> str:
    """A combination in words: "learning_rate=2e-05, train_batch_size=16"."""
    return separator.join(f"{name}={value_text(value)}" for name, value in values.items())


def folder_of(values: Values) -> str:
    """The name of a combination's folder in output_dir; `run_directory` knows its form."""
    return f"search-{combination_text(values, '-')}"

"""The computed time of the paper's recipe."""

import pytest

from bert_tf.models.families import config_of_size
from experiments import recipe_time


def test_operations_are_about_six_per_parameter_and_token():
    """The usual estimate; attention, which it leaves out, adds a tenth at 128 tokens and more at 512.

    Of the last layer only keys and values are needed for all tokens.
    """
    config = config_of_size("base")
    matrices = 11 * (4 * 768**2 + 2 * 768 * 3072) + 2 * 768**2
    short, long = recipe_time.phase_flops(config)
    assert 1.0 < short / (6 * matrices * 900_000 * 256 * 128) < 1.15
    assert 1.1 < long / (6 * matrices * 100_000 * 256 * 512) < 1.25


def test_hours():
    assert recipe_time.hours(3600 * 400e12, 1000e12, 0.4) == pytest.approx(1.0)
    table = recipe_time.create_table(["base"], 0.5)
    first, total = (recipe_time.create_table(["base"], rate).splitlines()[2].split(" | ") for rate in (0.25, 0.5))
    assert first[:4] == total[:4]  # operations do not depend on the utilisation; hours do
    assert float(first[4]) == pytest.approx(2 * float(total[4]), rel=0.02)
    assert table.count("\n") == 2

"""The texts of the domain's example: what a row is made of."""

import random

import pytest

from experiments import domain_texts


def test_half_of_the_rows_follow():
    lines = [f"{number} " * 15 for number in range(300)]
    pairs = domain_texts.pairs_of_lines(lines, 200, random.Random(1))
    assert pairs == domain_texts.pairs_of_lines(lines, 200, random.Random(1))
    for text, other, label in pairs:
        if label == "follows":
            assert lines.index(other) == lines.index(text) + 1
    assert 70 < sum(label == "follows" for *_, label in pairs) < 130


def test_no_fitting_lines():
    with pytest.raises(ValueError, match="No two consecutive lines have 15 to 50 words each"):
        domain_texts.pairs_of_lines(["too short"] * 9, 1, random.Random(1))

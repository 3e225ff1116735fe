"""The draws of compiled code are those of Python's and NumPy's generators. (Instances: test_plain.py.)"""

import random

import numba
import numpy as np
import pytest
from helpers.slow import slow

from bert_tf.pretraining import instance_kernels
from bert_tf.system.numba_compile import interpreted


@numba.njit
def _draw(counts):
    floats, numbers, of_numpy = np.empty(len(counts)), np.empty(len(counts), np.int64), np.empty(len(counts))
    for k in range(len(counts)):
        floats[k], numbers[k] = instance_kernels.uniform(), instance_kernels.below(counts[k])
        of_numpy[k] = instance_kernels.uniform_of_numpy()
    return floats, numbers, of_numpy


@pytest.mark.parametrize("compiled", [*slow(True), False])
def test_draws_are_those_of_the_generators(compiled):
    """From the same state, over several blocks of the generators."""
    rng, plain = random.Random(3), random.Random(3)
    numpy_rng, plain_numpy = np.random.RandomState(7), np.random.RandomState(7)
    rng.random()  # in the middle of a block
    plain.random()
    counts = np.array([1 + turn * turn % 70_001 for turn in range(1500)] + [(1 << 32) - 1])
    with interpreted(not compiled), instance_kernels.drawing_from(rng, numpy_rng):
        drawn = (_draw if compiled else _draw.py_func)(counts)
        for one in zip(counts.tolist(), *(values.tolist() for values in drawn), strict=True):
            assert one[1:] == (plain.random(), plain.randrange(one[0]), plain_numpy.random_sample())
        for length in (0, 1, 2, 3, 4, 7, 8, 9, 125, 128, 1000):
            items, reference = np.arange(length), list(range(length))
            instance_kernels.shuffle(items, length)
            plain.shuffle(reference)
            assert items.tolist() == reference
    assert rng.getstate() == plain.getstate() and numpy_rng.random_sample() == plain_numpy.random_sample()

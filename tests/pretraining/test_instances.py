"""The draws of compiled code are those of Python's generator. (Instances: test_plain.py, test_create.py.)"""

import random

import numba
import numpy as np
import pytest

from bert_tf.pretraining import instance_kernels
from bert_tf.system.numba_compile import interpreted


@numba.njit
def _draw(counts):
    floats, numbers = np.empty(len(counts)), np.empty(len(counts), np.int64)
    for k in range(len(counts)):
        floats[k], numbers[k] = instance_kernels.uniform(), instance_kernels.below(counts[k])
    return floats, numbers


@pytest.mark.parametrize("compiled", [True, False])
def test_draws_are_those_of_random(compiled):
    """`random`, `randrange` and `shuffle` from the same state, over several blocks of the generator."""
    rng, plain = random.Random(3), random.Random(3)
    rng.random()  # in the middle of a block
    plain.random()
    counts = np.array([1 + turn * turn % 70_001 for turn in range(1500)] + [(1 << 32) - 1])
    before = random.getstate()
    with interpreted(not compiled), instance_kernels.drawing_from(rng):
        floats, numbers = (_draw if compiled else _draw.py_func)(counts)
        for length in (0, 1, 2, 3, 4, 7, 8, 9, 125, 128, 1000):
            items = np.arange(length)
            instance_kernels.shuffle(items, length)
            if not length:
                for number, (count, value) in enumerate(zip(counts.tolist(), floats, strict=True)):
                    assert (value, numbers[number]) == (plain.random(), plain.randrange(count))
            reference = list(range(length))
            plain.shuffle(reference)
            assert items.tolist() == reference
    assert rng.getstate() == plain.getstate() and random.getstate() == before

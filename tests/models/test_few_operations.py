"""What every layer traces takes few operations, and gives the numbers that NumPy computes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.models import kernels, layers

GOLDEN_RATIO = 0x9E3779B9


@pytest.mark.parametrize("number", [0, 1, 4, 4 * 24 + 3, 2**31 - 1])
@pytest.mark.parametrize("word", [0, 1])
def test_fold_in_adds_multiples_of_the_golden_ratio(number, word):
    for seed in ([12345, 7], [-5, 2**31 - 1, 64]):
        expected = np.array(seed, "int32").view("uint32").astype("uint64")
        expected[word] += GOLDEN_RATIO * number % 2**32
        expected = (expected % 2**32).astype("uint32").view("int32")
        for given in (number, tf.constant(number)):
            np.testing.assert_array_equal(kernels.fold_in(tf.constant(seed), given, word), expected)
    assert kernels.fold_in(None, number, word) is None


def mixed(value, shift, multiplier):
    value = value * np.uint32(multiplier)
    return value ^ (value >> np.uint32(shift))


def test_the_hash_of_numpy():
    first, second = (np.array([seed], "int32").view("uint32") for seed in (-12345, 7))
    first = mixed(mixed(first, 16, 0x7FEB352D), 15, 0x846CA68B)
    second = mixed(mixed(second ^ first, 16, 0x21F0AAAD), 15, 0xD35A2D97)
    bits = mixed(np.arange(96, dtype="uint32").reshape(2, 6, 8) + first, 16, 0x85EBCA6B)
    bits = mixed(mixed(bits ^ second, 13, 0xC2B2AE35), 16, GOLDEN_RATIO - 8)
    seed = tf.constant([-12345, 7])
    found = keras.ops.convert_to_numpy(kernels.random_bits(seed, tf.range(12), 8))
    np.testing.assert_array_equal(found.reshape(2, 6, 8), bits)
    for rate in (0.1, 0.5, 1 - 2**-33):
        threshold = min(round(rate * 2**32), 2**32 - 1)
        np.testing.assert_array_equal(kernels.keep_mask((2, 6, 8), rate, seed), bits >= threshold)


@pytest.mark.parametrize(
    ("shape", "computed"), [((4, None, 6), 0), ((None, 3, 6), 0), ((None, None, 6), 1), ((None, 0, 6), 1)]
)
def test_only_what_is_unknown_is_computed(shape, computed):
    @tf.function(input_signature=[tf.TensorSpec(shape)])
    def halves(x):
        return tf.reshape(x, (*layers.leading_sizes(x, 2), 2, 3))

    graph = halves.get_concrete_function().graph
    assert sum(operation.type == "Shape" for operation in graph.get_operations()) == computed
    assert graph.outputs[0].shape.as_list() == [*shape[:2], 2, 3]
    for batch, length in ((4, 3), (4, 0), (0, 3)):
        if all(size in (None, given) for size, given in zip(shape, (batch, length), strict=False)):
            assert halves(tf.ones((batch, length, 6))).shape == (batch, length, 2, 3)
    assert layers.leading_sizes(tf.ones((2, 0, 6)), 2) == (2, 0)

"""What every layer traces takes few operations."""

import pytest
import tensorflow as tf

from bert_tf.models import kernels


@pytest.mark.parametrize(
    ("shape", "computed"), [((4, None, 6), 0), ((None, 3, 6), 0), ((None, None, 6), 1), ((None, 0, 6), 1)]
)
def test_only_what_is_unknown_is_computed(shape, computed):
    @tf.function(input_signature=[tf.TensorSpec(shape)])
    def halves(x):
        return tf.reshape(x, (*kernels.leading_sizes(x, 2), 2, 3))

    graph = halves.get_concrete_function().graph
    assert sum(operation.type == "Shape" for operation in graph.get_operations()) == computed
    assert graph.outputs[0].shape.as_list() == [*shape[:2], 2, 3]
    for batch, length in ((4, 3), (4, 0), (0, 3)):
        if all(size in (None, given) for size, given in zip(shape, (batch, length), strict=False)):
            assert halves(tf.ones((batch, length, 6))).shape == (batch, length, 2, 3)
    assert kernels.leading_sizes(tf.ones((2, 0, 6)), 2) == (2, 0)

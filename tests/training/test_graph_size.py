"""Tracing a step takes much of the time of a start: it happens once, and a layer or a variable adds few operations."""

import pytest
import tensorflow as tf
from helpers.training_steps import build, make_batches, one_device, trainer_of

from bert_tf.models.objectives import PretrainingObjective

# 365 operations: forward, backward and the update of 16 variables, with dropout, for batches of unknown length.
_MOST_OPERATIONS_PER_LAYER = 400


def make_step(layers: int):
    strategy = one_device()
    model, optimizer = build(strategy, dropout=0.1, layers=layers)
    return trainer_of(model, optimizer, PretrainingObjective, strategy, batch_size=4, seed=3).steps


def batches():
    """An iterator whose batches' shapes are not known when the step is traced."""
    values = make_batches(4, 9)
    shapes = {name: tf.TensorSpec([None] * (value.ndim - 1), value.dtype) for name, value in values.items()}
    steps = ({name: value[step] for name, value in values.items()} for step in range(9))
    return iter(tf.data.Dataset.from_generator(lambda: steps, output_signature=shapes))


def operations(layers: int) -> dict[str, int]:
    """Type -> number of operations of a step."""
    graph = make_step(layers).get_concrete_function(batches(), tf.constant(1)).graph.as_graph_def()
    types = [node.op for function in (graph, *graph.library.function) for node in _nodes(function)]
    return {kind: types.count(kind) for kind in set(types)}


def _nodes(function):
    return function.node if isinstance(function, tf.compat.v1.GraphDef) else function.node_def


@pytest.mark.slow
def test_a_layer_more_takes_few_operations():
    two, three = operations(2), operations(3)
    more = {kind: count - two.get(kind, 0) for kind, count in three.items()}
    assert 0 < sum(more.values()) < _MOST_OPERATIONS_PER_LAYER, more
    # For each of 16 variables: it and its two moments are read and written in the update, and it is read forward.
    assert (more["ReadVariableOp"], more["AssignVariableOp"]) == (4 * 16, 3 * 16)

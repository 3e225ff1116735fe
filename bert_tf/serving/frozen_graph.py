"""Functions whose variables are constants, so that oneDNN reorders weights once, and casts are done once."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from bert_tf.system import script

MOST_BYTES = 1_900_000_000  # a graph is a protocol buffer, which must be smaller than 2 GiB


def weight_bytes(variables: Sequence[tf.Variable]) -> int:
    """The size of all variables."""
    return sum(variable.dtype.size * variable.shape.num_elements() for variable in variables)


def frozen(call: Callable, specs: Sequence) -> tf.types.experimental.PolymorphicFunction:
    """The tf.function of a call with these arguments, with the values that its variables have now as constants.

    Their size must be less than MOST_BYTES.
    """
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    function = tf.function(call, specs, autograph=False).get_concrete_function()
    with script.without_notes():
        constant = convert_variables_to_constants_v2(function, lower_control_flow=False)
    graph, structure = constant.graph.as_graph_def(), function.structured_outputs
    inputs, outputs = ([tensor.name for tensor in part] for part in (constant.inputs, constant.outputs))

    @tf.function(input_signature=specs, autograph=False)
    def call_frozen(*values):
        given = dict(zip(inputs, tf.nest.flatten(values), strict=True))
        found = tf.graph_util.import_graph_def(graph, input_map=given, return_elements=outputs, name="frozen")
        return tf.nest.pack_sequence_as(structure, found)

    return call_frozen

"""What this project needs of TensorFlow that is not public, in one place; imported where it is called."""


def has_mkl() -> bool:
    """Whether TensorFlow keeps the memory of tensors by itself, as it does with oneDNN.

    There is no public function for it. If it moves: the answer True only leaves the memory as TensorFlow has it.
    """
    from tensorflow.python.util import _pywrap_util_port

    return _pywrap_util_port.IsMklEnabled()


def frozen(function):
    """A concrete function with its variables as constants.

    `tf.compat.v1.graph_util` has only the form for sessions. If it moves: exports without --freeze go on.
    """
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    return convert_variables_to_constants_v2(function, lower_control_flow=False)

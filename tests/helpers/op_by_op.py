"""TensorFlow functions run without being traced."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf


@contextlib.contextmanager
def op_by_op(wanted: bool = True) -> Iterator[None]:
    """Runs the ops of tf.functions one by one: tracing a function takes longer than all of them on a small input.

    For one of several tests of the same function: another must trace it."""
    tf.config.run_functions_eagerly(wanted)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)

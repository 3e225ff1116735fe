"""Runs TensorFlow functions without tracing them."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf


@contextlib.contextmanager
def op_by_op(wanted: bool = True) -> Iterator[None]:
    """Runs the ops of tf.functions one by one: on a small input, tracing takes longer than running all of them.

    Only for some of the tests of a function: another must trace it."""
    tf.config.run_functions_eagerly(wanted)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)

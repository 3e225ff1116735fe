"""What a process with TensorFlow and tensorflow_text and nothing of this project, like a server, runs."""

import functools
import sys


def _strangers() -> set[str]:
    return {name for name in sys.modules if name.split(".")[0] in ("bert_tf", "keras", "tf_keras")}


@functools.cache
def _opened(path: str):
    import tensorflow as tf

    return tf.saved_model.load(path)


def answer(path: str, signature: str, inputs: dict) -> tuple[dict, set[str]]:
    """The outputs of a signature of an export, and what was imported for them."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401

    before = _strangers()  # some of Keras comes with TensorFlow itself
    outputs = _opened(path).signatures[signature](**{name: tf.constant(value) for name, value in inputs.items()})
    return {name: value.numpy() for name, value in outputs.items()}, _strangers() - before

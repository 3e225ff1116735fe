"""A process with TensorFlow and tensorflow_text and nothing of this project, like a server."""

import contextlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator

import tensorflow as tf

_PROGRAM = """
import pickle, sys
import tensorflow as tf
import tensorflow_text

def strangers():
    return {name for name in sys.modules if name.split(".")[0] in ("bert_tf", "keras", "tf_keras")}

before, signatures = strangers(), {}
while True:
    path, signature, inputs = pickle.load(sys.stdin.buffer)
    try:
        if path not in signatures:
            signatures[path] = tf.saved_model.load(path).signatures
        outputs = signatures[path][signature](**{name: tf.constant(value) for name, value in inputs.items()})
        imported = sorted(strangers() - before)  # some of Keras comes with TensorFlow itself
        reply = {name: value.numpy() for name, value in outputs.items()}, imported
    except Exception as error:
        reply = {}, repr(error)
    pickle.dump(reply, sys.stdout.buffer)
    sys.stdout.flush()
"""


@contextlib.contextmanager
def serving_process(directory: str) -> Iterator[Callable]:
    """Starts it; gives a function for the outputs of a signature of an export, inputs as tf.constant takes them."""
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    # So that bert_tf can't be imported by accident.
    place = {"cwd": directory, "env": {**os.environ, "PYTHONPATH": ""}}
    with subprocess.Popen([sys.executable, "-c", _PROGRAM], **streams, **place) as process:

        def call(path: str, signature: str = "serving_default", **inputs) -> dict[str, tf.Tensor]:
            pickle.dump((path, signature, inputs), process.stdin)
            process.stdin.flush()
            outputs, imported = pickle.load(process.stdout)
            assert imported == []
            return {name: tf.constant(value) for name, value in outputs.items()}

        yield call

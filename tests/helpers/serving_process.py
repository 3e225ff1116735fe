"""A process with TensorFlow and tensorflow_text and nothing of this project, like a server."""

import os
import pickle
import subprocess
import sys

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


class ServingProcess:
    """Started on the first call; `close` ends it."""

    def __init__(self, directory: str):
        self._directory, self._process = directory, None

    def call(self, path: str, signature: str = "serving_default", **inputs) -> dict[str, tf.Tensor]:
        """The outputs of a signature of the export at `path`; inputs as tf.constant takes them."""
        if self._process is None:
            streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            # So that bert_tf can't be imported by accident.
            place = {"cwd": self._directory, "env": {**os.environ, "PYTHONPATH": ""}}
            self._process = subprocess.Popen([sys.executable, "-c", _PROGRAM], **streams, **place)
        pickle.dump((path, signature, inputs), self._process.stdin)
        self._process.stdin.flush()
        outputs, imported = pickle.load(self._process.stdout)
        assert imported == []
        return {name: tf.constant(value) for name, value in outputs.items()}

    def close(self) -> None:
        if self._process is not None:
            self._process.stdin.close()
            self._process.wait()

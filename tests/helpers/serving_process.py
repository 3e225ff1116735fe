"""A process with TensorFlow and tensorflow_text and nothing of this project, like a server."""

import base64
import json
import os
import subprocess
import sys

import tensorflow as tf

_PROGRAM = """
import base64, json, sys
import tensorflow as tf
import tensorflow_text

def strangers():
    return {name for name in sys.modules if name.split(".")[0] in ("bert_tf", "keras", "tf_keras")}

before, signatures = strangers(), {}
for line in sys.stdin:
    path, signature, inputs = json.loads(line)
    try:
        if path not in signatures:
            signatures[path] = tf.saved_model.load(path).signatures
        tensors = {
            name: tf.io.parse_tensor(base64.b64decode(value), kind) for name, (kind, value) in inputs.items()
        }
        outputs = {
            name: [value.dtype.name, base64.b64encode(tf.io.serialize_tensor(value).numpy()).decode()]
            for name, value in signatures[path][signature](**tensors).items()
        }
        imported = sorted(strangers() - before)  # some of Keras comes with TensorFlow itself
        print(json.dumps({"outputs": outputs, "imported": imported}), flush=True)
    except Exception as error:
        print(json.dumps({"error": repr(error)}), flush=True)
"""


class ServingProcess:
    """Started on the first call; `close` ends it."""

    def __init__(self, directory: str):
        self._directory, self._process = directory, None

    def call(self, path: str, signature: str = "serving_default", **inputs) -> dict[str, tf.Tensor]:
        """The outputs of a signature of the export at `path`; inputs as tf.constant takes them."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=self._directory,  # so that bert_tf can't be imported by accident
                env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
                text=True,
            )
        tensors = {name: tf.constant(value) for name, value in inputs.items()}
        sent = {name: [tensor.dtype.name, _packed(tensor)] for name, tensor in tensors.items()}
        print(json.dumps([path, signature, sent]), file=self._process.stdin, flush=True)
        reply = json.loads(self._process.stdout.readline())
        assert "error" not in reply, reply["error"]
        assert reply["imported"] == []
        return {
            name: tf.io.parse_tensor(base64.b64decode(value), tf.as_dtype(kind))
            for name, (kind, value) in reply["outputs"].items()
        }

    def close(self) -> None:
        if self._process is not None:
            self._process.stdin.close()
            self._process.wait()


def _packed(tensor: tf.Tensor) -> str:
    return base64.b64encode(tf.io.serialize_tensor(tensor).numpy()).decode()

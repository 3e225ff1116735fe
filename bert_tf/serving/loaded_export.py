"""SavedModels of export_saved_model.py, loaded in Python.

A SavedModel is a program: its ops can read and write files. So an export is loaded only if it holds nothing but what
exports hold (`safe_graph`), unless the caller trusts it.
"""

import posixpath

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from bert_tf.serving import safe_graph
from bert_tf.store.open import GRAPH_FILE, description_of
from bert_tf.system import storage
from bert_tf.system.messages import abbreviated_list, escape_control_characters
from bert_tf.system.text_files import naming_damaged, read_bytes


class Export:
    """A loaded export: `description` is the content of export.json, `signatures` are functions of tensors by name.

    Calling it runs a signature on strings. Threads may share it.

    trust: load it whatever ops it has; for exports of your own or of someone you trust like your own code.
    """

    rows_at_once = 32

    def __init__(self, directory: str, trust: bool = False):
        import tensorflow_text  # noqa: F401  registers its ops

        self.description = description_of(directory)
        self.task = self.description["task"]
        if "input_ids" in self.description["signatures"].get("serving_default", {}).get("inputs", ()):
            raise ValueError(f"{directory} takes token ids alone: open its model directory, or ask a server of it.")
        if not trust:
            check_ops(directory)
        files = f"{GRAPH_FILE} or what is in variables/"
        with storage.literal_path(directory) as path, naming_damaged(posixpath.join(directory, files)):
            self._loaded = tf.saved_model.load(path)
        self.signatures = self._loaded.signatures

    def __call__(self, signature: str, **columns: list[str]) -> dict[str, np.ndarray]:
        inputs = {name: tf.constant(values, tf.string) for name, values in columns.items()}
        return {name: value.numpy() for name, value in self.signatures[signature](**inputs).items()}


def check_ops(directory: str) -> None:
    """Checks that a SavedModel can only compute, as exports do; see `safe_graph`."""
    path = posixpath.join(directory, GRAPH_FILE)
    with naming_damaged(path):
        saved = saved_model_pb2.SavedModel.FromString(read_bytes(path))
    if len(saved.meta_graphs) != 1 or not saved.meta_graphs[0].HasField("object_graph_def"):
        raise ValueError(f"{path} is not an export of export_saved_model.py: it was not saved by TensorFlow 2.")
    if foreign := safe_graph.disallowed_parts(saved.meta_graphs[0]):
        names = escape_control_characters(abbreviated_list([name for names in foreign.values() for name in names]))
        what = f"{' and '.join(foreign)} that no export has, and which may do anything: {names}"
        raise ValueError(f"{path} has {what}. If you trust it like a program of your own, give trust=True.")

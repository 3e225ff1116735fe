"""Exports of export_saved_model.py, loaded in Python."""

import os
import posixpath

import numpy as np
import tensorflow as tf

from bert_tf.system import literal_paths
from bert_tf.system.text_files import read_json

EXPORT_FILE = "export.json"
_GRAPH_FILE = "saved_model.pb"


def find_export(path: str) -> str | None:
    """The export at `path`: this directory, or the newest version in it; None if there is none."""
    if not tf.io.gfile.isdir(path):
        return None
    names = [name.rstrip("/") for name in tf.io.gfile.listdir(path)]
    versions = sorted((int(name) for name in names if name.isdigit()), reverse=True)
    for candidate in (path, *(posixpath.join(path, str(version)) for version in versions)):
        if all(tf.io.gfile.exists(posixpath.join(candidate, name)) for name in (EXPORT_FILE, _GRAPH_FILE)):
            return candidate
    return None


class Export:
    """A loaded export: `description` is the content of export.json, `signatures` are functions of tensors by name.

    Calling it runs a signature on strings. Threads may share it.

    Raises:
      ValueError: export.json is damaged; the message names it.
    """

    def __init__(self, directory: str):
        import tensorflow_text  # noqa: F401  registers its ops

        path = posixpath.join(directory, EXPORT_FILE)
        self.description = read_json(path)
        try:
            self.task = self.description["task"]
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path}: not the description of an export ({error!r})") from None
        self._loaded = _load(directory)
        self.signatures = self._loaded.signatures

    def __call__(self, signature: str, **columns: list[str]) -> dict[str, np.ndarray]:
        """The outputs of a signature for lists of strings."""
        inputs = {name: tf.constant(values, tf.string) for name, values in columns.items()}
        return {name: value.numpy() for name, value in self.signatures[signature](**inputs).items()}


def _load(directory: str):
    if literal_paths.is_plain(directory):
        return tf.saved_model.load(directory)
    with literal_paths.linked({"export": directory}) as folder:
        return tf.saved_model.load(os.path.join(folder, "export"))

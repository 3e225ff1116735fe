"""Exports of export_saved_model.py, loaded in Python: SavedModels, and ONNX files, which are called like Keras models.

A SavedModel is a program: its ops can read and write files. So an export is loaded only if it holds nothing but what
exports hold (`safe_graph`), unless the caller trusts it.
"""

import contextlib
import posixpath
from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf
from google.protobuf.message import Message
from tensorflow.core.protobuf import saved_model_pb2

from bert_tf.serving import safe_graph
from bert_tf.store.open import EXPORT_FILE, GRAPH_FILE, onnx_file
from bert_tf.system import storage
from bert_tf.system.messages import abbreviated_list, escape_control_characters
from bert_tf.system.text_files import read_bytes, read_json


class Export:
    """A loaded export: `description` is the content of export.json, `signatures` are functions of tensors by name.

    Calling it runs a signature on strings. Threads may share it.

    trust: load it whatever ops it has; for exports of your own or of someone you trust like your own code.
    """

    def __init__(self, directory: str, trust: bool = False):
        import tensorflow_text  # noqa: F401  registers its ops

        self.description = _description(directory)
        self.task = self.description["task"]
        if "input_ids" in self.description["signatures"].get("serving_default", {}).get("inputs", ()):
            raise ValueError(f"{directory} takes token ids alone: open its model directory, or ask a server of it.")
        if not trust:
            check_ops(directory)
        files = f"{GRAPH_FILE} or what is in variables/"
        with storage.literal_path(directory) as path, _naming(posixpath.join(directory, files)):
            self._loaded = tf.saved_model.load(path)
        self.signatures = self._loaded.signatures

    def __call__(self, signature: str, **columns: list[str]) -> dict[str, np.ndarray]:
        inputs = {name: tf.constant(values, tf.string) for name, values in columns.items()}
        return {name: value.numpy() for name, value in self.signatures[signature](**inputs).items()}


def _description(directory: str) -> dict:
    """The content of export.json; what it lacks is an error that names the file."""
    path = posixpath.join(directory, EXPORT_FILE)

    class Described(dict):
        def __missing__(self, key):
            raise ValueError(f"{path} does not say {key!r} where exports do: is it damaged?")

    return read_json(path, object_hook=Described)


@contextlib.contextmanager
def _naming(files: str) -> Iterator[None]:
    """Names the files that a library reads, which fails in many ways at damaged ones."""
    try:
        yield
    except Exception as error:
        message = escape_control_characters(" ".join(str(error).split()))
        raise ValueError(f"{files} can't be read: is it damaged? {type(error).__name__}: {message:.300}") from error


def check_ops(directory: str) -> None:
    """Checks that a SavedModel can only compute, as exports do; see `safe_graph`."""
    path = posixpath.join(directory, GRAPH_FILE)
    with _naming(path):
        saved = saved_model_pb2.SavedModel.FromString(read_bytes(path))
    if len(saved.meta_graphs) != 1 or not saved.meta_graphs[0].HasField("object_graph_def"):
        raise ValueError(f"{path} is not an export of export_saved_model.py: it was not saved by TensorFlow 2.")
    if foreign := safe_graph.disallowed_parts(saved.meta_graphs[0]):
        names = escape_control_characters(abbreviated_list([name for names in foreign.values() for name in names]))
        what = f"{' and '.join(foreign)} that no export has, and which may do anything: {names}"
        raise ValueError(f"{path} has {what}. If you trust it like a program of your own, give trust=True.")


class OnnxModel:
    """The model in the directory of an ONNX export. Threads may share it.

    An ONNX file is no program: its operators compute, and touch no files. But its tensors may be parts of other files,
    or of this process's memory; such a file raises, see `check_self_contained`.

    task: a name of `tasks.table.TASKS`. labels, num_labels, problem_type: as those of the Keras model.
    description: the content of export.json.
    """

    def __init__(self, directory: str):
        self.description = _description(directory)
        self.task = self.description["task"]
        self.labels, self.problem_type = tuple(self.description["labels"]), self.description.get("problem_type")
        self.num_labels, path = len(self.labels), onnx_file(directory)
        import onnxruntime

        check_self_contained(content := read_bytes(path), path)
        options = onnxruntime.SessionOptions()
        # Not by its first bytes: ONNX Runtime has a format of its own, which may name other files, too.
        options.add_session_config_entry("session.load_model_format", "ONNX")
        with _naming(path):
            self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        self._inputs = [entry.name for entry in self._session.get_inputs()]
        self._outputs = [entry.name for entry in self._session.get_outputs()]

    def run(self, features: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All outputs for input_ids, input_mask and segment_ids, integers [B, S]; for multiple choice [B, N, S]."""
        inputs = {name: np.asarray(features[name], np.int32) for name in self._inputs}
        for name, values in inputs.items():
            if values.min(initial=0) < 0:
                raise ValueError(f"{name} has the negative number {values.min()}, which is not a row of a table")
        return dict(zip(self._outputs, self._session.run(self._outputs, inputs), strict=True))

    def __call__(self, features: Mapping[str, np.ndarray], training: bool = False):
        """What the Keras model returns: logits, or a dict of outputs."""
        outputs = self.run(features)
        return outputs.get("logits", outputs)


def check_self_contained(content: bytes, path: str) -> None:
    """Raises if an ONNX file has tensors elsewhere: of graphs, their branches and loops, functions and training."""
    import onnx

    with _naming(path):
        model = onnx.ModelProto.FromString(content)
    for part in messages_in(model):
        if isinstance(part, onnx.TensorProto) and (part.external_data or part.data_location):
            name = (escape_control_characters(part.name) or "one without a name")[:80]
            raise ValueError(f"{path} has a tensor that is not in it ({name}); an export holds all of its tensors.")


def messages_in(part: Message) -> Iterator[Message]:
    """A message of a protocol buffer, and all messages in it."""
    yield part
    for field, value in part.ListFields():
        if field.message_type:
            for inner in [value] if isinstance(value, Message) else value:
                yield from messages_in(inner)

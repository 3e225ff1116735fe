"""Models computed by ONNX Runtime: opened models of any format, and exported ONNX files. Neither TensorFlow nor Keras
is imported here.

Shape legend: B batch, S sequence length, H hidden size, C classes, N choices.
"""

import importlib.metadata
import os
from collections.abc import Iterator, Mapping

import numpy as np
import onnx
import onnxruntime
from absl import logging
from google.protobuf.message import Message

from bert_tf.serving.onnx_graph import INPUTS, LOWEST, EncoderGraph
from bert_tf.store.head_config import OUTPUT_LAYER
from bert_tf.store.open import OpenedModel, description_of, onnx_file
from bert_tf.store.tensor_files import incomplete
from bert_tf.system import storage
from bert_tf.system.messages import escape_control_characters
from bert_tf.system.text_files import naming_damaged, read_bytes
from bert_tf.system.workers import available_cores

_WEIGHTS_FILE = "weights"


class _Session:
    """A graph that ONNX Runtime computes. Threads may share it.

    threads: that compute a batch; None: one for each core.
    """

    rows_at_once = 8

    def keep_matrices(self) -> None:
        """Nothing: the weights are constants of every graph; see `KerasModel`."""

    def _open(self, model: bytes | str, threads: int | None, tensors: Mapping[str, np.ndarray] | None = None) -> None:
        """model: its content, or the path of one whose weights are `tensors`."""
        options = onnxruntime.SessionOptions()
        # Not by its first bytes: ONNX Runtime has a format of its own, which may name other files, too.
        options.add_session_config_entry("session.load_model_format", "ONNX")
        options.intra_op_num_threads = threads = threads or available_cores()
        self.batches_at_once = max(1, available_cores() // threads)
        self._tensors = {}  # they must live as long as the session, which does not copy them
        for name, value in (tensors or {}).items():  # of those in the model, too
            self._tensors[name] = onnxruntime.OrtValue.ortvalue_from_numpy(value)
            options.add_initializer(name, self._tensors[name])
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._inputs = [entry.name for entry in self._session.get_inputs()]
        self._outputs = [entry.name for entry in self._session.get_outputs()]

    def run(self, features: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All outputs for input_ids, input_mask and segment_ids, integers [B, S]; for multiple choice [B, N, S]."""
        inputs = {name: np.asarray(features[name], np.int32) for name in self._inputs}
        for name, values in inputs.items():
            if values.min(initial=0) < 0:
                raise ValueError(f"{name} has the negative number {values.min()}, which is not a row of a table")
        return dict(zip(self._outputs, self._session.run(self._outputs, inputs), strict=True))

    def compute(self, features: Mapping[str, np.ndarray]) -> np.ndarray | dict[str, np.ndarray]:
        """Logits, or the only output, or a dict of several."""
        outputs = self.run(features)
        return outputs.get("logits", outputs if len(outputs) > 1 else next(iter(outputs.values())))


class OnnxModel(_Session):
    """The model in the directory of an ONNX export. Threads may share it.

    An ONNX file is no program: its operators compute, and touch no files. But its tensors may be parts of other files,
    or of this process's memory; such a file raises, see `check_self_contained`.

    task: a name of `tasks.table.TASKS`. labels, num_labels, problem_type: as those of the Keras model.
    description: the content of export.json. pooling: of an encoder, see `OpenedOnnxModel`.
    """

    def __init__(self, directory: str, threads: int | None = None, pooling: str | None = None):
        self._pooling = pooling
        self.description = description_of(directory)
        self.task = self.description["task"]
        self.labels, self.problem_type = tuple(self.description["labels"]), self.description.get("problem_type")
        self.num_labels, path = len(self.labels), onnx_file(directory)
        check_self_contained(content := read_bytes(path), path)
        with naming_damaged(path):
            self._open(content, threads)

    def compute(self, features):
        outputs = super().compute(features)
        if not self._pooling:
            return outputs
        x, mask, skipped = outputs["sequence_output"], features["input_mask"], int(features["skipped"][0])
        if self._pooling == "cls":
            return x[:, skipped]
        counted = (mask * (np.arange(mask.shape[1]) >= skipped))[:, :, None]
        if self._pooling == "max":
            return np.max(np.where(counted > 0, x, LOWEST), axis=1)
        return np.sum(x * counted, axis=1) / np.maximum(np.sum(counted, axis=1), 1)


class OpenedOnnxModel(_Session):
    """A model of any format, which was opened, with the output layer of a task. Threads may share it.

    task: a name of `tasks.table.TASKS`; not "masked_lm". dtype: "float32" or "int8".
    pooling: how vectors are made of the outputs of an "encoder", see `SentenceSettings`.

    labels, num_labels, problem_type: as those of the Keras model.

    Raises:
      ValueError: the weights lack what answers depend on, or have numbers that are not finite.
    """

    def __init__(
        self,
        opened: OpenedModel,
        task: str,
        *,
        dtype: str = "float32",
        threads: int | None = None,
        pooling: str | None = None,
    ):
        self._describe(opened, task)
        graph = EncoderGraph(opened.needed_config(), opened.weights, opened.head.untrained, dtype == "int8")
        axes = ["batch", "choices", "length"] if task == "multiple_choice" else ["batch", "length"]
        inputs, outputs = dict.fromkeys(INPUTS, ("int32", axes)), {}
        if task == "encoder":
            inputs["skipped"], outputs = ("int32", [1]), {"vectors": graph.pooled_vectors(pooling, "skipped")}
        elif task == "squad":
            outputs = graph.span_logits()
        else:
            outputs = {"logits": graph.logits(task, opened.head)}
        if graph.missing:
            raise incomplete(opened.weights.path, graph.missing, not {*graph.missing}.isdisjoint(opened.weights))
        for name, tensor in outputs.items():
            graph.op("Identity", tensor, name=name)
        model = graph.model(task, inputs, dict.fromkeys(outputs, ("float32", None)), weights_file=_WEIGHTS_FILE)
        # ONNX Runtime takes weights from memory without a copy, if the model is a file that names another one for them.
        with storage.private_folder() as folder:
            for name, content in (("model.onnx", model.SerializeToString()), (_WEIGHTS_FILE, b"")):
                with open(os.path.join(folder, name), "wb") as file:
                    file.write(content)
            self._open(os.path.join(folder, "model.onnx"), threads, graph.weights)
        logging.info("%s is computed by ONNX Runtime %s.", opened.path, importlib.metadata.version("onnxruntime"))

    def _describe(self, opened: OpenedModel, task: str) -> None:
        head, self.labels, self.problem_type, self.num_labels = opened.head, None, None, 0
        if task in ("classification", "regression", "ner"):
            self.num_labels = opened.weights.shapes[OUTPUT_LAYER][0]
            self.labels = head.labels if len(head.labels or ()) == self.num_labels else None
        if task in ("classification", "regression"):
            by_size = "regression" if self.num_labels == 1 else "single_label_classification"
            self.problem_type = head.problem_type or by_size


# ---- files -----------------------------------------------------------------------------------------------------------


def check_self_contained(content: bytes, path: str) -> None:
    """Raises if an ONNX file has tensors elsewhere: of graphs, their branches and loops, functions and training."""
    with naming_damaged(path):
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

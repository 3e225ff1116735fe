"""Models computed by ONNX Runtime: opened models of any format, and exported ONNX files. Neither TensorFlow nor Keras
is imported here.

Shape legend: B batch, S sequence length, N choices.
"""

import importlib.metadata
from collections.abc import Iterator, Mapping

import numpy as np
import onnx
import onnxruntime
from absl import logging
from google.protobuf.message import Message

from bert_tf.serving.onnx_graph import LOWEST, EncoderGraph
from bert_tf.store.open import OpenedModel
from bert_tf.store.tensor_files import place_in_file
from bert_tf.system.messages import escape_control_characters
from bert_tf.system.text_files import naming_damaged, read_bytes
from bert_tf.system.workers import available_cores


class OnnxModel:
    """A graph that ONNX Runtime computes. Threads may share it.

    tensors: weights of which the model says that they lie outside of it, see `EncoderGraph.model`.
    threads: that compute a batch; None: one for each core.
    pooling: how vectors are made of `sequence_output`, if that is the model's, see `SentenceSettings`.
    """

    rows_at_once, tokens_at_once = 8, 4096

    def __init__(
        self,
        model: bytes,
        threads: int | None = None,
        pooling: str | None = None,
        tensors: Mapping[str, np.ndarray] | None = None,
    ):
        options = onnxruntime.SessionOptions()
        # Not by its first bytes: ONNX Runtime has a format of its own, which may name other files, too.
        options.add_session_config_entry("session.load_model_format", "ONNX")
        options.intra_op_num_threads = threads = threads or available_cores()
        self.batches_at_once = max(1, available_cores() // threads)
        if tensors:
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", "/")
        # It maps those in files itself, and unmaps what it has packed. Others it doesn't copy: they live as long as it.
        held = {name: value for name, value in (tensors or {}).items() if not place_in_file(value)}
        self._tensors = {name: onnxruntime.OrtValue.ortvalue_from_numpy(value) for name, value in held.items()}
        for name, value in self._tensors.items():
            options.add_initializer(name, value)
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._pooling = pooling
        self._inputs, self._outputs = (
            [entry.name for entry in entries] for entries in (self._session.get_inputs(), self._session.get_outputs())
        )

    def run(self, features: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All outputs for input_ids, input_mask and segment_ids, integers [B, S]; for multiple choice [B, N, S]."""
        inputs = {name: np.asarray(features[name], np.int32) for name in self._inputs}
        return dict(zip(self._outputs, self._session.run(self._outputs, inputs), strict=True))

    def compute(self, features: Mapping[str, np.ndarray]) -> np.ndarray | dict[str, np.ndarray]:
        """Logits, a dict of several outputs, or vectors."""
        outputs = self.run(features)
        if not self._pooling:
            return outputs.get("logits", outputs.get("vectors", outputs))
        x, mask, skipped = outputs["sequence_output"], features["input_mask"], int(features["skipped"][0])
        if self._pooling == "cls":
            return x[:, skipped]
        counted = (mask * (np.arange(mask.shape[1]) >= skipped))[:, :, None]
        if self._pooling == "max":
            return np.max(np.where(counted > 0, x, LOWEST), axis=1)
        return np.sum(x * counted, axis=1) / np.maximum(np.sum(counted, axis=1), 1)


def model_of(
    opened: OpenedModel, task: str, dtype: str, threads: int | None = None, pooling: str | None = None
) -> OnnxModel:
    """An opened model with the output layer of a task, a name of `tasks.table.TASKS`.

    dtype: "float32" or "int8". pooling: how an "encoder" makes vectors.
    """
    graph = EncoderGraph(opened, task, dtype == "int8", in_place=True)
    if task == "encoder":
        outputs = {"vectors": graph.pooled_vectors(pooling, graph.input("skipped", [1]))}
    elif task == "squad":
        outputs = graph.span_logits()
    elif task == "masked_lm":
        outputs = {"logits": graph.masked_lm(graph.input("masked_lm_positions", ["batch", "masks"]))}
    else:
        outputs = {"logits": graph.logits()}
    for name, tensor in outputs.items():
        graph.output(name, tensor, "float32", None)
    session = OnnxModel(graph.model(task).SerializeToString(), threads, tensors=graph.weights)
    session.rows_at_once = 16  # whose lengths matter little: padding is left out
    logging.info("%s is computed by ONNX Runtime %s.", opened.path, importlib.metadata.version("onnxruntime"))
    return session


# ---- files -----------------------------------------------------------------------------------------------------------


def open_file(path: str, threads: int | None = None, pooling: str | None = None) -> OnnxModel:
    """The model in an exported file.

    An ONNX file is no program: its operators compute, and touch no files. But its tensors may be parts of other files,
    or of this process's memory: of graphs, their branches and loops, functions and training. Such a file raises.
    """
    content = read_bytes(path)
    with naming_damaged(path):
        model = onnx.ModelProto.FromString(content)
    for part in messages_in(model):
        if isinstance(part, onnx.TensorProto) and (part.external_data or part.data_location):
            name = (escape_control_characters(part.name) or "one without a name")[:80]
            raise ValueError(f"{path} has a tensor that is not in it ({name}); an export holds all of its tensors.")
    with naming_damaged(path):
        return OnnxModel(content, threads, pooling)


def messages_in(part: Message) -> Iterator[Message]:
    """A message of a protocol buffer, and all messages in it."""
    yield part
    for field, value in part.ListFields():
        if field.message_type:
            for inner in [value] if isinstance(value, Message) else value:
                yield from messages_in(inner)

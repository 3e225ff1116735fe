"""ONNX exports of export_saved_model.py, computed by ONNX Runtime and called like the Keras models they are made of."""

import functools
from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from bert_tf.models.directory import read_head
from bert_tf.serving import loaded_export
from bert_tf.system.messages import visible


class OnnxModel:
    """The model in the directory of an ONNX export. Threads may share it.

    An ONNX file is no program: its operators compute, and touch no files. But its tensors may be parts of other files,
    or of this process's memory; such a file is refused, see `check_self_contained`.

    Attributes:
      task: a name of `tasks.table.TASKS`. labels, num_labels, problem_type, head_config: as those of the Keras model.
      description: the content of export.json.

    Raises:
      ValueError: ONNX Runtime is not installed; or the file is damaged, needs a newer ONNX Runtime, or has tensors
        elsewhere. Names the file.
    """

    def __init__(self, directory: str):
        self.description = loaded_export.read_description(directory)
        self.task = self.description["task"]
        self.labels = tuple(self.description.get("labels", ()))
        self.num_labels, self.problem_type = len(self.labels), self.description.get("problem_type")
        self.head_config = read_head(directory)
        path = loaded_export.onnx_file(directory)
        try:
            import onnxruntime
        except ImportError:
            raise ValueError(f"{path} needs ONNX Runtime: pip install onnxruntime") from None
        with tf.io.gfile.GFile(path, "rb") as file:
            content = file.read()
        check_self_contained(content, path)
        options = onnxruntime.SessionOptions()
        # Not by its first bytes: ONNX Runtime has a format of its own, which may name other files, too.
        options.add_session_config_entry("session.load_model_format", "ONNX")
        try:
            self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # they have no common class
            raise ValueError(f"{path} can't be loaded by ONNX Runtime {onnxruntime.__version__}: {error}") from None
        self._inputs = [entry.name for entry in self._session.get_inputs()]
        self._outputs = [entry.name for entry in self._session.get_outputs()]

    def run(self, features: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All outputs.

        Args:
          features: input_ids, input_mask and segment_ids, integers [B, S]; for multiple choice [B, N, S].
        """
        inputs = {name: np.asarray(features[name], np.int32) for name in self._inputs}
        return dict(zip(self._outputs, self._session.run(self._outputs, inputs), strict=True))

    def __call__(self, features: Mapping[str, np.ndarray], training: bool = False):
        """What the Keras model returns: logits, or a dict of outputs."""
        if training:
            raise ValueError("an ONNX export can't be trained")
        outputs = self.run(features)
        return outputs.get("logits", outputs)


# ---- files that name other files -------------------------------------------------------------------------------------

# Where onnx.proto has tensors, and what says that a tensor is elsewhere: message -> field -> (number, message).
_PARTS = {
    "Model": {"graph": (7, "Graph"), "training_info": (20, "Training"), "functions": (25, "Function")},
    "Training": {"initialization": (1, "Graph"), "algorithm": (2, "Graph")},
    "Function": {"node": (7, "Node"), "attribute_proto": (11, "Attribute")},
    "Graph": {"node": (1, "Node"), "initializer": (5, "Tensor"), "sparse_initializer": (15, "SparseTensor")},
    "Node": {"attribute": (5, "Attribute")},
    "Attribute": {
        "t": (5, "Tensor"), "g": (6, "Graph"), "tensors": (10, "Tensor"), "graphs": (11, "Graph"),
        "sparse_tensor": (22, "SparseTensor"), "sparse_tensors": (23, "SparseTensor"),
    },
    "SparseTensor": {"values": (1, "Tensor"), "indices": (2, "Tensor")},
    "Tensor": {"name": (8, None), "external_data": (13, None), "data_location": (14, None)},
}  # fmt: skip


def check_self_contained(content: bytes, path: str) -> None:
    """Checks that all tensors of an ONNX file are in it: of graphs, their branches and loops, functions and training.

    Raises:
      ValueError: one is in another file, or this file is damaged; names `path` and the tensor.
    """
    try:
        model = _model_class().FromString(content)
    except message.DecodeError:
        raise ValueError(f"{path} is damaged: it is not an ONNX file.") from None
    for part in _parts_of(model):
        if part.DESCRIPTOR.name == "Tensor" and (part.external_data or any(part.data_location)):
            name = visible(b"".join(part.name).decode(errors="replace")) or "one without a name"
            raise ValueError(
                f"{path} has a tensor that is not in it ({name:.80}): exports are complete, so it is refused."
            )


def _parts_of(part: message.Message) -> Iterator[message.Message]:
    yield part
    for field, values in part.ListFields():
        for value in values if field.message_type else ():
            yield from _parts_of(value)


@functools.cache
def _model_class() -> type[message.Message]:
    """A message with those fields of ONNX's ModelProto, each repeated: ONNX Runtime needs no package that has it."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="bert_tf/onnx_parts.proto", package="bert_tf.onnx", syntax="proto2")
    for name, fields in _PARTS.items():
        described = file.message_type.add(name=name)
        for field, (number, inner) in fields.items():
            kind = kinds.TYPE_MESSAGE if inner else kinds.TYPE_INT32 if field == "data_location" else kinds.TYPE_BYTES
            type_name = f".bert_tf.onnx.{inner}" if inner else None
            described.field.add(name=field, number=number, type=kind, type_name=type_name, label=kinds.LABEL_REPEATED)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("bert_tf.onnx.Model"))

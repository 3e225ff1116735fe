"""ONNX exports of export_saved_model.py, computed by ONNX Runtime and called like the Keras models they are made of."""

from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf
from google.protobuf import message

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
      ValueError: a package is not installed; or the file is damaged, needs a newer ONNX Runtime, or has tensors
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
            import onnx  # noqa: F401  for `check_self_contained`
            import onnxruntime
        except ImportError:
            raise ValueError(f"{path} needs ONNX Runtime: pip install 'bert-tf[onnx]'") from None
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


def check_self_contained(content: bytes, path: str) -> None:
    """Checks that all tensors of an ONNX file are in it: of graphs, their branches and loops, functions and training.

    Raises:
      ValueError: one is in another file, or this file is damaged; names `path` and the tensor.
    """
    import onnx

    try:
        model = onnx.ModelProto.FromString(content)
    except message.DecodeError:
        raise ValueError(f"{path} is damaged: it is not an ONNX file.") from None
    for part in _parts_of(model):
        if isinstance(part, onnx.TensorProto) and (part.external_data or part.data_location):
            name = visible(part.name) or "one without a name"
            raise ValueError(
                f"{path} has a tensor that is not in it ({name:.80}): exports are complete, so it is refused."
            )


def _parts_of(part: message.Message) -> Iterator[message.Message]:
    yield part
    for field, value in part.ListFields():
        if field.message_type:
            for inner in [value] if isinstance(value, message.Message) else value:
                yield from _parts_of(inner)

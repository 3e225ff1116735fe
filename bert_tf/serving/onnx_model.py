"""ONNX exports of export_saved_model.py, computed by ONNX Runtime and called like the Keras models they are made of."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from bert_tf.models.directory import read_head
from bert_tf.serving import loaded_export


class OnnxModel:
    """The model in the directory of an ONNX export. Threads may share it.

    An ONNX file is no program: its operators compute, and touch no files.

    Attributes:
      task: a name of `tasks.table.TASKS`. labels, num_labels, problem_type, head_config: as those of the Keras model.
      description: the content of export.json.

    Raises:
      ValueError: ONNX Runtime is not installed; or the file is damaged, or needs a newer ONNX Runtime. Names the file.
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
        # From memory, so that it can name no other files.
        try:
            self._session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
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

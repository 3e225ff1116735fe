"""Opened models computed by Keras: in a graph of TensorFlow, if that is the backend."""

import contextlib
import functools
from collections.abc import Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from bert_tf.models import layers, task_models
from bert_tf.store.open import OpenedModel
from bert_tf.system.workers import batches_at_once

_MOST_BYTES = 1_900_000_000  # of constants: a graph is a protocol buffer, which must be smaller than 2 GiB


class _Encoder(task_models.BertModel):
    reads_pooler = False


_CLASSES = {
    "encoder": _Encoder,
    "classification": task_models.BertForSequenceClassification,
    "regression": task_models.BertForSequenceClassification,
    "squad": task_models.BertForQuestionAnswering,
    "ner": task_models.BertForTokenClassification,
    "multiple_choice": task_models.BertForMultipleChoice,
}


class KerasModel:
    """A model with the output layer of a task. Threads may share it.

    graphs: of TensorFlow, by how many tokens their pooling leaves out.

    task, pooling: see `onnx_runtime.OpenedOnnxModel`. dtype: "float32" or "bfloat16".
    """

    rows_at_once = 32

    def __init__(self, opened: OpenedModel, task: str, *, dtype: str = "float32", pooling: str | None = None):
        policy = "mixed_bfloat16" if dtype == "bfloat16" else dtype
        self.model = _CLASSES[task].from_pretrained(opened, trained=True, dtype=policy)
        self._pooling, self.graphs, self._constants = pooling, {}, []

    @property
    def labels(self) -> Sequence[str] | None:
        return self.model.labels

    @property
    def num_labels(self) -> int:
        return self.model.num_labels

    @property
    def problem_type(self) -> str | None:
        return self.model.problem_type

    @property
    def batches_at_once(self) -> int:
        return batches_at_once()

    def compute(self, features: Mapping[str, np.ndarray]) -> np.ndarray | dict[str, np.ndarray]:
        """Logits, or a dict of outputs, of a batch; of an encoder vectors that leave out `skipped` tokens."""
        features = dict(features)
        skipped = int(features.pop("skipped", [0])[0])
        outputs_of = functools.partial(self._outputs, skipped)
        if keras.backend.backend() == "tensorflow":
            # Operation by operation a single text takes several times as long.
            if skipped not in self.graphs:
                self.graphs[skipped] = tf.function(outputs_of, autograph=False)
            specs = {name: tf.TensorSpec([None] * value.ndim, value.dtype) for name, value in features.items()}
            outputs_of = self.graphs[skipped].get_concrete_function(specs)
        return keras.tree.map_structure(np.asarray, outputs_of(features))

    def _outputs(self, skipped: int, features: Mapping):
        constants = [(kernel, tf.constant(value)) for kernel, value in self._constants]
        with keras.StatelessScope(state_mapping=constants) if constants else contextlib.nullcontext():
            if self._pooling:
                return layers.sentence_vectors(self.model, features, self._pooling, skipped, training=False)
            return self.model(features, training=False)

    def keep_matrices(self) -> None:
        """Makes bfloat16 matrices constants, if they fit: oneDNN reorders a variable each time before it multiplies."""
        is_slow = keras.backend.backend() == "tensorflow" and self.model.compute_dtype == "bfloat16"
        if self._constants or not is_slow:
            return
        kernels = [variable for variable in self.model.variables if variable.path.endswith("/kernel")]
        values = [tf.cast(kernel.value, "bfloat16").numpy() for kernel in kernels]
        if sum(value.nbytes for value in values) <= _MOST_BYTES:
            self._constants, self.graphs = list(zip(kernels, values, strict=True)), {}

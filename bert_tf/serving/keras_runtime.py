"""Opened models computed by Keras: in a graph of TensorFlow, if that is the backend."""

import functools
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

from bert_tf.models import layers, task_models
from bert_tf.store.open import OpenedModel
from bert_tf.system.workers import batches_at_once


class _Encoder(task_models.BertModel):
    reads_pooler = False


MODELS = {
    "encoder": _Encoder,
    "classification": task_models.BertForSequenceClassification,
    "regression": task_models.BertForSequenceClassification,
    "squad": task_models.BertForQuestionAnswering,
    "ner": task_models.BertForTokenClassification,
    "multiple_choice": task_models.BertForMultipleChoice,
    "masked_lm": task_models.BertForMaskedLM,
}


class KerasModel:
    """A model with the output layer of a task. Threads may share it.

    graphs: of TensorFlow, by how many tokens their pooling leaves out.

    task, pooling: see `onnx_runtime.model_of`. dtype: "float32" or "bfloat16".
    """

    rows_at_once = 32

    def __init__(self, opened: OpenedModel, task: str, dtype: str, pooling: str | None = None):
        policy = "mixed_bfloat16" if dtype == "bfloat16" else dtype
        self.model = MODELS[task].from_pretrained(opened, trained=True, dtype=policy)
        self._pooling, self.graphs, self.batches_at_once = pooling, {}, batches_at_once()

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
        if self._pooling:
            return layers.sentence_vectors(self.model, features, self._pooling, skipped, training=False)
        return self.model(features, training=False)

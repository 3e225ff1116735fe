"""Classifiers that read long texts in windows, as TensorFlow ops for an exported graph.

The windows are those of `tasks/classification/encode.py`, written a second time because no Python runs in a server.

Shape legend: B texts, W most windows of a text of the batch, R windows of all texts, S longest window.
"""

from collections.abc import Sequence

import keras
import tensorflow as tf

from bert_tf.serving.graph_models import ServedClassifier, strings
from bert_tf.tasks.classification.long_texts import windows_of_model
from bert_tf.text.tokenizer import Tokenizer


class ServedWindowClassifier(ServedClassifier):
    """BertForSequenceClassification with window_pooling: the outputs are those of `ServedClassifier`.

    `serving_default` takes `text` [B]; `serve_ids` takes token ids of windows [B, W, S], with a mask of zeros for
    windows that a text does not have.
    """

    def __init__(
        self, model: keras.Model, tokenizer: Tokenizer, max_seq_length: int, labels: Sequence[str], problem_type: str
    ):
        super().__init__(model, tokenizer, max_seq_length, labels, problem_type, text_pairs=False)
        windows = windows_of_model(model.head_config, tokenizer, max_seq_length)
        self._stride, self._most = windows.stride, windows.most
        self._room = max_seq_length - tokenizer.num_special_tokens(pair=False)

    def model_inputs(self):
        return {name: tf.TensorSpec([None, None, None], tf.int32, name) for name in super().model_inputs()}

    def features_of_windows(self, texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """string [B] -> input_ids, input_mask, segment_ids, int32 [B, W, S]."""
        pieces = self.encoder.tokenizer.encode(texts)
        lengths = pieces.row_lengths()
        beyond = tf.maximum(lengths - self._room, 0)
        counts = tf.minimum(1 + (beyond + self._stride - 1) // self._stride, self._most)  # windows of each text
        numbers = tf.ragged.range(counts)  # [B, windows]
        rows = numbers.value_rowids()  # [R], the text of each window
        starts = numbers.values * self._stride
        sizes = tf.minimum(tf.gather(lengths, rows) - starts, self._room)
        starts += tf.gather(pieces.row_starts(), rows)
        places = tf.ragged.range(starts, starts + sizes)
        features = self.encoder.features_of_ids(places.with_values(tf.gather(pieces.values, places.values)))
        filling = {"input_ids": self.encoder.pad_id}
        return {name: numbers.with_values(value).to_tensor(filling.get(name, 0)) for name, value in features.items()}

    def signatures(self):
        return {
            "serving_default": tf.function(
                lambda text: self.outputs(self.features_of_windows(text)), [strings("text")], autograph=False
            ),
            "serve_ids": tf.function(self._of_ids, list(self.model_inputs().values()), autograph=False),
        }

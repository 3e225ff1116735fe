"""Windows of long texts as TensorFlow ops for an exported graph, and the classifier that reads them.

The rules are those of `document_spans` in `data/token_rows.py`, written again because no Python runs in a server.

Shape legend: B texts, W windows of all texts, S longest window.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from bert_tf.serving.graph_inputs import parts_of
from bert_tf.serving.graph_models import ServedClassifier, signature, strings
from bert_tf.tasks.classification.encode import windows_of_model
from bert_tf.text.tokenizer import Tokenizer

CPU = "CPU:0"  # for strings and the many small ops around them


class Windows(NamedTuple):
    """Windows, in the order of their texts, int64 each.

    Attributes:
      counts: of each text [B]. texts: whose a window is [W]. starts: its first token, counted in the text [W]. sizes:
        how many tokens it has [W].
    """

    counts: tf.Tensor
    texts: tf.Tensor
    starts: tf.Tensor
    sizes: tf.Tensor


def cut(lengths: tf.Tensor, room, stride, least: int = 0) -> Windows:
    """The windows of texts with these lengths, int64 [B].

    Args:
      room: the most tokens of a window. stride: from the start of one to the next. Both for all texts, or int64 [B].
      least: windows of a text without tokens.
    """
    room, stride = (tf.broadcast_to(tf.cast(size, tf.int64), tf.shape(lengths)) for size in (room, stride))
    further = (tf.maximum(lengths - room, 0) + stride - 1) // stride
    counts = tf.where(lengths > 0, 1 + further, least)
    texts = tf.repeat(tf.range(tf.size(counts, tf.int64)), counts)
    numbers = tf.range(tf.size(texts, tf.int64)) - tf.gather(tf.cumsum(counts, exclusive=True), texts)
    starts = numbers * tf.gather(stride, texts)
    return Windows(counts, texts, starts, tf.minimum(tf.gather(lengths, texts) - starts, tf.gather(room, texts)))


def most_context(context: tf.Tensor, inside: tf.Tensor, tokens: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """bool [W, S]: whether no other window shows more context of a token; of equal windows the earliest.

    Args:
      context: how much each shows [W, S]. inside: where there is a token, bool [W, S].
      tokens: which it is, int64 [W, S], of all `count`.
    """
    most = tf.math.unsorted_segment_max(context, tf.where(inside, tokens, -1), count)
    best = tf.logical_and(inside, tf.equal(context, tf.gather(most, tokens)))
    rows = tf.range(tf.shape(tokens)[0])[:, None] + tf.zeros_like(tokens, tf.int32)
    earliest = tf.math.unsorted_segment_min(rows, tf.where(best, tokens, -1), count)
    return tf.logical_and(best, tf.equal(rows, tf.gather(earliest, tokens)))


def in_batches(
    compute: Callable[[tf.Tensor], Sequence[tf.Tensor]], lengths: tf.Tensor, size: int, specs: Sequence[tf.TensorSpec]
) -> list[tf.Tensor]:
    """What `compute` finds for all windows, `size` at a time, which limits the memory that long texts take.

    Windows of similar length are together, for less padding.

    Args:
      compute: numbers of windows, int32 [R] -> tensors [R, ...]. lengths: of all windows [W].
      specs: of each tensor for one window.
    """
    with tf.device(CPU):
        order = tf.argsort(-lengths, stable=True)
        count = tf.size(order)
        arrays = [
            tf.TensorArray(spec.dtype, (count + size - 1) // size, infer_shape=False, element_shape=[None, *spec.shape])
            for spec in specs
        ]

    def step(done, *arrays):
        with tf.device(CPU):
            rows = order[done : done + size]
        found = compute(rows)
        with tf.device(CPU):
            written = (array.write(done // size, part) for array, part in zip(arrays, found, strict=True))
            return done + tf.size(rows), *written

    # One batch at a time: each uses all cores, and only one takes memory.
    _, *arrays = tf.while_loop(lambda done, *_: done < count, step, [0, *arrays], parallel_iterations=1)
    with tf.device(CPU):
        back = tf.math.invert_permutation(order)
        return [
            tf.gather(tf.reshape(array.concat(), [-1, *spec.shape]), back)
            for array, spec in zip(arrays, specs, strict=True)
        ]


class ServedWindowClassifier(ServedClassifier):
    """BertForSequenceClassification with window_pooling: the outputs are those of `ServedClassifier`.

    `serving_default` takes `text` [B]; `serve_ids` takes token ids of windows [B, N, S], N of the text with most of
    them, with a mask of zeros for windows that a text does not have.
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

    def features_of_texts(self, texts):
        """string [B] -> input_ids, input_mask, segment_ids, int32 [B, N, S]."""
        pieces = self.encoder.tokenizer.encode(texts)
        # The windows that are read end where the last of them does.
        lengths = tf.minimum(pieces.row_lengths(), self._room + (self._most - 1) * self._stride)
        windows = cut(lengths, self._room, self._stride, least=1)
        starts = tf.gather(pieces.row_starts(), windows.texts) + windows.starts
        features = self.encoder.features_of_ids(parts_of(pieces.values, starts, windows.sizes))
        filling = {"input_ids": self.encoder.pad_id}
        return {
            name: tf.RaggedTensor.from_row_lengths(value, windows.counts, validate=False).to_tensor(
                filling.get(name, 0)
            )
            for name, value in features.items()
        }

    def signatures(self):
        return {
            "serving_default": signature(lambda text: self.outputs(self.features_of_texts(text)), strings("text")),
            "serve_ids": signature(self._of_ids, *self.model_inputs().values()),
        }

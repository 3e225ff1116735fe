"""What tokenizers in graphs share: their interface, text as code points, and properties of code points.

Shape legend: B texts, N code points of all texts.
"""

import numpy as np
import tensorflow as tf

CODE_POINTS = 0x110000
_PAGE = 256


class TokenizerGraph(tf.Module):
    """A tokenizer as TensorFlow ops: the ids and offsets of its Python code for every text.

    It has no state, so threads may share it. An export of it has no asset file, and loading it needs at most `import
    tensorflow_text` (which TensorFlow Serving includes), and nothing of this project. It runs on the CPU. A subclass
    defines `_encoded` and `_with_offsets`.

    Attributes:
      resources: what an export must track if it does not track this object.
    """

    resources = ()

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "texts")], autograph=False)
    def encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Ids of `texts`, string [B] in UTF-8: ragged int32 [B, None], without special tokens.

        Invalid bytes are left out as by `bytes.decode("utf-8", "ignore")`; it fails for no text.
        """
        with tf.device("CPU:0"):
            return self._encoded(texts)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "texts")], autograph=False)
    def tokenize(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """`encode` with offsets.

        Returns:
          (ids, starts, ends), each ragged int32 [B, None]: the token, the first character of the text that it covers
          and the one after the last, as by the tokenizer's `encode_with_offsets`. Characters are code points, without
          invalid bytes.
        """
        with tf.device("CPU:0"):
            return tuple(self._with_offsets(texts))


class CodePointTable(tf.Module):
    """A number for each code point, as constants of a graph: pages of 256 that are equal are stored once.

    Args:
      values: int32 [CODE_POINTS].
    """

    def __init__(self, values: np.ndarray):
        super().__init__(name="code_point_table")
        numbers = {}  # page -> its number among the distinct pages
        pages = values.astype(np.int32).reshape(-1, _PAGE)
        starts = [numbers.setdefault(page.tobytes(), len(numbers)) * _PAGE for page in pages]
        self._starts = tf.constant(starts, tf.int32)
        self._values = tf.constant(np.frombuffer(b"".join(numbers), np.int32))

    def __call__(self, codes: tf.Tensor) -> tf.Tensor:
        """The numbers of `codes`, int32."""
        starts = tf.gather(self._starts, tf.bitwise.right_shift(codes, 8))
        return tf.gather(self._values, starts + tf.bitwise.bitwise_and(codes, _PAGE - 1))


def decode(texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Row splits int64 [B+1] and code points int32 [N] of UTF-8, without invalid bytes."""
    codes = tf.strings.unicode_decode(texts, "UTF-8", errors="ignore")
    return codes.row_splits, codes.values


def byte_counts(codes: tf.Tensor) -> tf.Tensor:
    """The number of bytes of each code point in UTF-8, int64."""
    return 1 + tf.add_n([tf.cast(codes >= least, tf.int64) for least in (0x80, 0x800, 0x10000)])


def ranks(chosen: tf.Tensor) -> tf.Tensor:
    """For each `chosen` element its number among these; for others that of the previous chosen one (0 if none)."""
    return tf.maximum(tf.cumsum(tf.cast(chosen, tf.int32)) - 1, 0)


def next_chosen(chosen: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """For each of `places`, the first `chosen` place from there on; there must be one."""
    before = tf.cumsum(tf.cast(chosen, tf.int32), exclusive=True)
    return tf.gather(tf.where(chosen)[:, 0], tf.gather(before, places))

"""A tokenizer as TensorFlow ops: what word pieces and SentencePiece share.

Shape legend: B texts, P pieces of all texts.
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from bert_tf.text.characters import is_mark
from bert_tf.text.graph_characters import CodePointTable, Rows, decode_rows, values_of


class Pieces(NamedTuple):
    """Pieces of texts.

    Attributes:
      ids: int32 [P]. splits: int64 [B+1], the first of each text.
      starts, ends: int64 [P], the first code point of all texts that each covers and the one after the last.
      kept: int64, the code points that pieces are made of. These three are None where offsets are not asked for.
    """

    ids: tf.Tensor
    splits: tf.Tensor
    starts: tf.Tensor | None = None
    ends: tf.Tensor | None = None
    kept: tf.Tensor | None = None


class TokenizerGraph(tf.Module):
    """A tokenizer as TensorFlow ops: the ids and offsets of its Python code for every text.

    It has no state, so threads may share it. An export of it has no asset file, and loading it needs at most `import
    tensorflow_text` (which TensorFlow Serving includes), and nothing of this project. It runs on the CPU. A subclass
    defines `_pieces`.

    Attributes:
      resources: what an export must track if it does not track this object.
    """

    _pieces: Callable[[Rows, bool], Pieces]  # of texts, with offsets or without
    resources = ()

    def __init__(self, name: str):
        super().__init__(name=name)
        with tf.device("CPU:0"):
            self._marks = CodePointTable(values_of(is_mark))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "texts")], autograph=False)
    def encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Ids of `texts`, string [B] in UTF-8: ragged int32 [B, None], without special tokens.

        Invalid bytes are left out as by `bytes.decode("utf-8", "ignore")`; it fails for no text.
        """
        with tf.device("CPU:0"):
            table, splits = self._of_texts(texts, False)
            return tf.RaggedTensor.from_row_splits(table[:, 0], splits, validate=False)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "texts")], autograph=False)
    def tokenize(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """`encode` with offsets.

        Returns:
          (ids, starts, ends), each ragged int32 [B, None]: the token, the first character of the text that it covers
          and the one after the last, as by the tokenizer's `encode_with_offsets`. Characters are code points, without
          invalid bytes.
        """
        with tf.device("CPU:0"):
            table, splits = self._of_texts(texts, True)
            rows = tf.RaggedTensor.from_row_splits(table, splits, validate=False)
            return tuple(rows.with_values(table[:, column]) for column in range(3))

    def _of_texts(self, texts: tf.Tensor, with_offsets: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """int32 [P, 1 or 3]: ids and, with_offsets, starts and ends; the first of each text, int64 [B+1]."""
        text = decode_rows(texts)
        pieces = self._pieces(text, with_offsets)
        if not with_offsets:
            return pieces.ids[:, None], pieces.splits
        marks = tf.equal(self._marks(text.characters), 1)
        owners = tf.ragged.row_splits_to_segment_ids(pieces.splits, out_type=tf.int64)

        def over_lost_marks() -> tf.Tensor:
            """The ends behind the marks that were dropped, which belong to the piece before them."""
            count = tf.size(marks, tf.int64)
            is_kept = tf.scatter_nd(pieces.kept[:, None], tf.ones_like(pieces.kept, tf.int32), [count]) > 0
            stops = tf.concat([~marks | is_kept, [True]], 0)
            before = tf.cumsum(tf.cast(stops, tf.int32), exclusive=True)
            ends = tf.gather(tf.where(stops)[:, 0], tf.gather(before, pieces.ends))
            return tf.where(
                pieces.ends > pieces.starts, tf.minimum(ends, tf.gather(text.splits[1:], owners)), pieces.ends
            )

        ends = tf.cond(tf.reduce_any(marks), over_lost_marks, lambda: pieces.ends)
        firsts = tf.gather(text.splits, owners)
        columns = (pieces.ids, pieces.starts - firsts, ends - firsts)
        return tf.stack([tf.cast(column, tf.int32) for column in columns], 1), pieces.splits

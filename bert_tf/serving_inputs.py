"""From strings, ids or tf.Examples to what a model takes, as TensorFlow ops for an exported graph.

The strings' way gives the features of the fine-tuning scripts: `tasks/classification_features.py` for texts and pairs.
Every op works for a batch of no rows.

Shape legend: B batch, S longest row of the batch.
"""

import tensorflow as tf

from bert_tf.graph_tokenizer import GraphTokenizer
from bert_tf.tokenization import FullTokenizer


class TextEncoder(tf.Module):
    """Texts, or pairs of them, to rows `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`.

    Args:
      max_seq_length: longer rows lose their last tokens, of pairs the longer part first, as in the original.
    """

    def __init__(self, tokenizer: FullTokenizer, max_seq_length: int):
        super().__init__(name="text_encoder")
        self.tokenizer = GraphTokenizer.from_tokenizer(tokenizer)
        self.max_seq_length = max_seq_length
        self.cls_id, self.sep_id = tokenizer.vocab["[CLS]"], tokenizer.vocab["[SEP]"]

    def features(self, texts: tf.Tensor, pairs: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """string [B] each -> input_ids, input_mask, segment_ids, int32 [B, S].

        A second text without any token counts as none.
        """
        first = self.tokenizer.encode(texts)
        return self.features_of_ids(first, None if pairs is None else self.tokenizer.encode(pairs))

    def features_of_ids(self, first: tf.RaggedTensor, second: tf.RaggedTensor | None = None) -> dict[str, tf.Tensor]:
        """`features` of texts in ids, ragged int32 [B, None]."""
        first_lengths = tf.cast(first.row_lengths(), tf.int32)
        if second is None:
            kept = head(first, tf.minimum(first_lengths, self.max_seq_length - 2))
            return dense_features([self._column(kept, self.cls_id), kept, self._column(kept, self.sep_id)], [0, 0, 0])
        second_lengths = tf.cast(second.row_lengths(), tf.int32)
        has_second = second_lengths > 0
        room = self.max_seq_length - tf.where(has_second, 3, 2)
        # What is left when the longer of the two (B, if they are equal) loses its last token until they fit.
        larger_half = (room + 1) // 2
        first_kept = tf.where(second_lengths <= room // 2, room - second_lengths, larger_half)
        first_kept = tf.minimum(first_lengths, tf.maximum(first_kept, larger_half))
        second_kept = tf.minimum(second_lengths, room - first_kept)
        first, second = head(first, first_kept), head(second, second_kept)
        last = head(self._column(second, self.sep_id), tf.cast(has_second, tf.int32))
        parts = [self._column(first, self.cls_id), first, self._column(first, self.sep_id), second, last]
        return dense_features(parts, [0, 0, 0, 1, 1])

    def _column(self, like: tf.RaggedTensor, token: int) -> tf.RaggedTensor:
        rows = like.nrows(out_type=tf.int64)
        return tf.RaggedTensor.from_uniform_row_length(tf.fill([rows], token), 1, nrows=rows)


def head(rows: tf.RaggedTensor, lengths: tf.Tensor) -> tf.RaggedTensor:
    """The first lengths [B] values of each row."""
    starts = rows.row_starts()
    places = tf.ragged.range(starts, starts + tf.cast(lengths, tf.int64))
    return places.with_values(tf.gather(rows.values, places.values))


def dense_features(parts: list[tf.RaggedTensor], segments: list[int]) -> dict[str, tf.Tensor]:
    """Parts of rows, one after the other, with a segment each -> input_ids, input_mask, segment_ids [B, S]."""
    ids = tf.concat(parts, 1)
    segment_ids = tf.concat([tf.ones_like(part) * segment for part, segment in zip(parts, segments, strict=True)], 1)
    return {
        "input_ids": to_dense(ids),
        "input_mask": to_dense(tf.ones_like(ids)),
        "segment_ids": to_dense(segment_ids),
    }


def to_dense(rows: tf.RaggedTensor) -> tf.Tensor:
    """[B, S] with zeros behind the shorter rows; S is at least 1, since no attention is over nothing."""
    dense = rows.to_tensor()
    return tf.pad(dense, [[0, 0], [0, tf.maximum(0, 1 - tf.shape(dense)[1])]])


def parse_examples(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
    """Serialized tf.Examples [B] -> features [B, S].

    Each has the int64 list `input_ids` and may have `input_mask` (default: 1 for each id) and `segment_ids` (default:
    0), as long as this. Those of the scripts' record files will do.
    """
    names = ("input_ids", "input_mask", "segment_ids")
    rows = tf.io.parse_example(
        serialized, {name: tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64) for name in names}
    )
    rows = {name: tf.cast(row, tf.int32) for name, row in rows.items()}
    ids = to_dense(rows["input_ids"])
    lengths = tf.cast(rows["input_ids"].row_lengths(), tf.int32)
    given = tf.cast(rows["input_mask"].row_lengths(), tf.int32)
    mask = tf.where(
        (given > 0)[:, None], _as_wide(rows["input_mask"], ids), tf.sequence_mask(lengths, tf.shape(ids)[1], tf.int32)
    )
    return {"input_ids": ids, "input_mask": mask, "segment_ids": _as_wide(rows["segment_ids"], ids)}


def _as_wide(rows: tf.RaggedTensor, like: tf.Tensor) -> tf.Tensor:
    width = tf.shape(like)[1]
    lengths = tf.minimum(tf.cast(rows.row_lengths(), tf.int32), width)
    dense = head(rows, lengths).to_tensor()
    return tf.pad(dense, [[0, 0], [0, width - tf.shape(dense)[1]]])

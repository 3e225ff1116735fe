"""`characters.split_words` as TensorFlow ops, for exported graphs.

Shape legend: B texts, N code points of all texts, W words of all texts.
"""

import functools
from typing import NamedTuple

import tensorflow as tf

from bert_tf.text.characters import ALONE, DROPPED, INSIDE, SPACE, kind_of
from bert_tf.text.graph_added_tokens import TokenizerGraph
from bert_tf.text.graph_characters import CodePointTable, values_of


class Words(NamedTuple):
    """Words of texts.

    Attributes:
      texts: string [W]. splits: int64 [B+1], the first word of each text.
      starts, ends: int32 [W], the first character of the text and the one after the last.
    """

    texts: tf.Tensor
    splits: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor


class GraphWords(tf.Module):
    """Splits texts into words, with the results of `split_words`; invalid bytes are left out.

    Args:
      split: one of SPLITS. added_tokens: the tokenizer whose added tokens are each a word of its own.
    """

    def __init__(self, split: str = "words", added_tokens: TokenizerGraph | None = None):
        super().__init__(name="graph_words")
        self._added_tokens = added_tokens
        with tf.device("CPU:0"):
            self._kinds = CodePointTable(values_of(functools.partial(kind_of, split=split)))

    def __call__(self, texts: tf.Tensor) -> Words:
        """The words of texts, string [B] in UTF-8."""
        # The space completes a character that the end cuts off, and ends a text's last word.
        decoded = tf.strings.unicode_decode(tf.strings.join([texts, " "]), "UTF-8", errors="ignore")
        row_splits, codes = decoded.row_splits, decoded.values
        ends = tf.scatter_nd(row_splits[1:, None] - 1, tf.ones_like(row_splits[1:]), tf.shape(codes, row_splits.dtype))
        kinds = tf.where(ends > 0, SPACE, self._kinds(codes))
        row_starts = tf.cast(row_splits, tf.int32)
        tokens = [tf.zeros([0], tf.int32)] * 2
        if self._added_tokens:
            found = self._added_tokens.places(texts)
            tokens = [places.values + tf.gather(row_starts, places.value_rowids()) for places in found]
            # What is beside a token goes on from it as little as from a space.
            inside = tf.ragged.range(*tokens).values[:, None]
            kinds = tf.tensor_scatter_nd_update(kinds, inside, tf.fill(tf.shape(inside)[:1], SPACE))
        places = tf.boolean_mask(tf.range(tf.size(codes)), tf.not_equal(kinds, DROPPED))
        kinds = tf.gather(kinds, places)
        is_inside = tf.equal(kinds, INSIDE)
        goes_on = is_inside & tf.concat([[False], is_inside[:-1]], 0)
        first = tf.not_equal(kinds, SPACE) & ~goes_on
        last = (is_inside & ~tf.concat([is_inside[1:], [False]], 0)) | tf.equal(kinds, ALONE)
        starts = tf.sort(tf.concat([tf.boolean_mask(places, first), tokens[0]], 0))  # [W], in `codes`
        ends = tf.sort(tf.concat([tf.boolean_mask(places, last) + 1, tokens[1]], 0))
        splits = tf.searchsorted(starts, row_starts, out_type=tf.int64)
        offsets = tf.gather(row_starts, tf.searchsorted(row_starts, starts, "right") - 1)
        inside = tf.ragged.range(starts, ends, row_splits_dtype=tf.int64)
        words = tf.strings.unicode_encode(inside.with_values(tf.gather(codes, inside.values)), "UTF-8")
        return Words(words, splits, starts - offsets, ends - offsets)

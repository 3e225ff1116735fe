"""Strings, ids or tf.Examples to a model's inputs, as TensorFlow ops for an exported graph; windows of long texts.

The features are those of the fine-tuning scripts, the windows those of `token_rows.document_spans`, written again
because no Python runs in a server. Every op works for an empty batch.

Shape legend: B batch, S longest row of the batch, R rows of a folded batch, W the longest of these. In the functions
of windows: B texts, W windows of all texts, S longest window.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from bert_tf.text.graph_wordpiece import GraphWordPiece
from bert_tf.text.tokenizer import Tokenizer

CPU = "CPU:0"  # for strings and the many small ops around them


class TextEncoder:
    """Encodes texts, or pairs of them, as rows `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`.

    max_seq_length: longer rows lose their last tokens (their first by truncation_side), in pairs those of the longer
    part first, as in the original.
    graph: that of the tokenizer; None: texts are not encoded.
    """

    def __init__(self, tokenizer: Tokenizer, max_seq_length: int, graph: GraphWordPiece | None):
        self.tokenizer, self.max_seq_length, self.graph = tokenizer, max_seq_length, graph
        self._kept = head if tokenizer.truncation_side == "right" else tail

    def features(self, texts: tf.Tensor, pairs: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """string [B] each -> input_ids, input_mask, segment_ids, int32 [B, S]. An empty pair counts as missing."""
        if pairs is not None:
            texts, pairs = equally_many(texts, pairs, "text and text_pair")
        first = self.graph.encode(texts)
        return self.features_of_ids(first, None if pairs is None else self.graph.encode(pairs))

    def features_of_ids(self, first: tf.RaggedTensor, second: tf.RaggedTensor | None = None) -> dict[str, tf.Tensor]:
        """`features` of texts given as ids, ragged int32 [B, None]."""
        begin_ids, between_ids, end_ids = self.tokenizer.begin_ids, self.tokenizer.between_ids, self.tokenizer.end_ids
        first_lengths = tf.cast(first.row_lengths(), tf.int32)
        room = self.max_seq_length - len(begin_ids) - len(end_ids)
        begin, end = _special(first, begin_ids), _special(first, end_ids)
        if second is None:
            return self._dense([begin, self._kept(first, tf.minimum(first_lengths, room)), end], [0, 0, 0])
        second_lengths = tf.cast(second.row_lengths(), tf.int32)
        has_second = tf.cast(second_lengths > 0, tf.int32)
        room -= len(between_ids) * has_second
        # As in `lengths_that_fit`, the longer of the two (B on a tie) loses its last token until both fit.
        first_kept = tf.minimum(first_lengths, tf.maximum(room - second_lengths, (room + 1) // 2))
        second_kept = tf.minimum(second_lengths, room - first_kept)
        between = head(_special(first, between_ids), len(between_ids) * has_second)
        parts = [begin, self._kept(first, first_kept), between, self._kept(second, second_kept), end]
        second_segment = self.tokenizer.second_segment
        return self._dense(parts, [0, 0, 0, second_segment, tf.repeat(second_segment * has_second, len(end_ids))])

    def _dense(self, parts: list[tf.RaggedTensor], segments: list) -> dict[str, tf.Tensor]:
        ids = tf.concat(parts, 1)
        pairs = zip(parts, segments, strict=True)
        segments = [part.with_values(tf.ones_like(part.values) * segment) for part, segment in pairs]
        return {
            "input_ids": to_dense(ids, self.tokenizer.pad_id),
            "input_mask": to_dense(tf.ones_like(ids)),
            "segment_ids": to_dense(tf.concat(segments, 1)),
        }


def _special(like: tf.RaggedTensor, ids: list[int]) -> tf.RaggedTensor:
    rows = like.nrows(out_type=tf.int64)
    values = tf.tile(tf.constant(ids, tf.int32), [rows])
    return tf.RaggedTensor.from_uniform_row_length(values, len(ids), nrows=rows)


def equally_many(first: tf.Tensor, second: tf.Tensor, names: str) -> tuple[tf.Tensor, tf.Tensor]:
    """Both; if they differ in size, the graph raises InvalidArgumentError with their names."""
    equal = tf.debugging.assert_equal(tf.size(first), tf.size(second), f"{names} must be equally many")
    with tf.control_dependencies([equal] if equal is not None else []):
        return tf.identity(first), tf.identity(second)


def slices_of(values: tf.Tensor, starts: tf.Tensor, sizes: tf.Tensor) -> tf.RaggedTensor:
    """For each start and size, int64 [n], that slice of the values."""
    positions = tf.ragged.range(starts, starts + sizes)
    return positions.with_values(tf.gather(values, positions.values))


def head(rows: tf.RaggedTensor, lengths: tf.Tensor) -> tf.RaggedTensor:
    return slices_of(rows.values, rows.row_starts(), tf.cast(lengths, tf.int64))


def tail(rows: tf.RaggedTensor, lengths: tf.Tensor) -> tf.RaggedTensor:
    lengths = tf.cast(lengths, tf.int64)
    return slices_of(rows.values, rows.row_limits() - lengths, lengths)


def to_dense(rows: tf.RaggedTensor, filling: int = 0) -> tf.Tensor:
    """[B, S], shorter rows padded; S is at least 1, since attention needs at least one token."""
    dense = rows.to_tensor(filling)
    return tf.pad(dense, [[0, 0], [0, tf.maximum(0, 1 - tf.shape(dense)[1])]], constant_values=filling)


def parse_examples(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
    """Serialized tf.Examples [B], as in the scripts' record files, -> features [B, S].

    `input_mask` and `segment_ids` may be missing: 1 and 0 for every id.
    """
    names = ("input_ids", "input_mask", "segment_ids")
    feature = tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64)
    rows = tf.io.parse_example(serialized, dict.fromkeys(names, feature))
    rows = {name: tf.cast(row, tf.int32) for name, row in rows.items()}
    ids = to_dense(rows["input_ids"])
    shape = tf.stack([-1, tf.shape(ids)[1]])
    mask, segments = (rows[name].to_tensor(shape=shape) for name in names[1:])
    lengths = rows["input_ids"].row_lengths()
    is_given = (rows["input_mask"].row_lengths() > 0)[:, None]
    mask = tf.where(is_given, mask, tf.sequence_mask(lengths, tf.shape(ids)[1], tf.int32))
    return {"input_ids": ids, "input_mask": mask, "segment_ids": segments}


class Folded(NamedTuple):
    """A batch of texts, two per row.

    features: the inputs of `BertModel` for several sequences per row: input_ids, segment_ids, position_ids int32
      [R, W], input_mask int32 [R, W, W] (queries by keys: a token sees its own text), pooled_positions int32
      [R, 2].
    places: int32 [B], which of the 2 R pooled outputs belongs to a text.
    """

    features: dict[str, tf.Tensor]
    places: tf.Tensor


# Texts are folded only if at most this fraction of the batch's token positions remains: wider rows cost more attention.
_WORTH_FOLDING = 0.85


def fold(features: dict[str, tf.Tensor]) -> Folded:
    """Puts the longest text in a row with the shortest, the second longest with the second shortest, and so on.

    For sentences of mixed length about half of the token positions remain. Texts of similar length stay alone.

    features: input_ids, input_mask, segment_ids [B, S]; a row of the mask is ones followed by zeros.
    """
    shape = tf.shape(features["input_ids"])
    number, width = shape[0], shape[1]
    lengths = tf.reduce_sum(features["input_mask"], 1)
    order = tf.argsort(-lengths, stable=True)
    ordered = tf.gather(lengths, order)
    half = (number + 1) // 2
    tokens = half * tf.reduce_max(ordered + tf.reverse(ordered, [0]))
    is_worth_it = tf.cast(tokens, tf.float32) <= _WORTH_FOLDING * tf.cast(number * width, tf.float32)
    rows = tf.where(is_worth_it, half, number)

    partners = number - 1 - tf.range(rows)  # by length, counted from the shortest
    has_partner = partners >= rows
    first, second = order[:rows, None], tf.gather(order, tf.where(has_partner, partners, 0))[:, None]
    starts = tf.gather(lengths, first)  # [R, 1], of the second text
    ends = starts + tf.where(has_partner[:, None], tf.gather(lengths, second), 0)
    columns = tf.range(tf.reduce_max(tf.concat([ends, [[1]]], 0)))[None]  # [1, W]
    is_first, is_real = columns < starts, columns < ends
    positions = tf.where(is_real, tf.where(is_first, columns, columns - starts), 0)
    sources = tf.where(is_first, first, second) * width + positions

    def folded(name: str) -> tf.Tensor:
        return tf.where(is_real, tf.gather(tf.reshape(features[name], [-1]), sources), 0)

    owners = tf.where(is_first, 1, tf.where(is_real, 2, 0))
    rank = tf.math.invert_permutation(order)
    features_of_rows = {
        "input_ids": folded("input_ids"),
        "segment_ids": folded("segment_ids"),
        "input_mask": tf.cast(tf.equal(owners[:, :, None], owners[:, None, :]), tf.int32),
        "position_ids": positions,
        "pooled_positions": tf.concat([tf.zeros_like(starts), tf.minimum(starts, tf.shape(positions)[1] - 1)], 1),
    }
    return Folded(features_of_rows, tf.where(rank < rows, 2 * rank, 2 * (number - 1 - rank) + 1))


def unfolded(features: dict[str, tf.Tensor]) -> Folded:
    """A batch with any mask, in the form of a folded one: the second pooled output of a row belongs to no text."""
    ids = features["input_ids"]
    number, width = tf.shape(ids)[0], tf.shape(ids)[1]
    further = {
        "input_mask": tf.tile(features["input_mask"][:, None], [1, width, 1]),
        "position_ids": tf.tile(tf.range(width)[None], [number, 1]),
        "pooled_positions": tf.zeros([number, 2], tf.int32),
    }
    return Folded({"input_ids": ids, "segment_ids": features["segment_ids"], **further}, 2 * tf.range(number))


# ---- windows of long texts -------------------------------------------------------------------------------------------


class Windows(NamedTuple):
    """Windows, in the order of their texts, int64.

    counts: of a text [B]. texts: whose a window is [W]. starts: its first token in the text [W]. sizes: its tokens [W].
    """

    counts: tf.Tensor
    texts: tf.Tensor
    starts: tf.Tensor
    sizes: tf.Tensor


def cut(lengths: tf.Tensor, room, stride, least: int = 0) -> Windows:
    """The windows of texts with these lengths, int64 [B].

    room: the most tokens of a window. stride: from the start of one to the next. Both for all texts, or int64 [B].
    least: windows of a text without tokens.
    """
    room, stride = (tf.broadcast_to(tf.cast(size, tf.int64), tf.shape(lengths)) for size in (room, stride))
    counts = tf.where(lengths > 0, 1 + (tf.maximum(lengths - room, 0) + stride - 1) // stride, least)
    texts = tf.repeat(tf.range(tf.size(counts, tf.int64)), counts)
    numbers = tf.range(tf.size(texts, tf.int64)) - tf.gather(tf.cumsum(counts, exclusive=True), texts)
    starts = numbers * tf.gather(stride, texts)
    return Windows(counts, texts, starts, tf.minimum(tf.gather(lengths, texts) - starts, tf.gather(room, texts)))


def most_context(context: tf.Tensor, inside: tf.Tensor, tokens: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """bool [W, S]: whether no other window shows more context of a token; of equal windows the earliest.

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
    """The results of `compute` for all windows, `size` of similar length at a time, which limits the memory.

    compute: numbers of windows, int32 [R] -> tensors [R, ...]. lengths: [W]. specs: of the tensors for one window.
    """
    with tf.device(CPU):
        order = tf.argsort(-lengths, stable=True)
        count = tf.size(order)
        options = {"size": (count + size - 1) // size, "infer_shape": False}
        arrays = [tf.TensorArray(spec.dtype, element_shape=[None, *spec.shape], **options) for spec in specs]

    def step(done, *arrays):
        with tf.device(CPU):
            rows = order[done : done + size]
        outputs = compute(rows)
        with tf.device(CPU):
            written = (array.write(done // size, part) for array, part in zip(arrays, outputs, strict=True))
            return done + tf.size(rows), *written

    # One batch at a time: each uses all cores, and only one takes memory.
    _, *arrays = tf.while_loop(lambda done, *_: done < count, step, [0, *arrays], parallel_iterations=1)
    with tf.device(CPU):
        back = tf.math.invert_permutation(order)
        whole = (tf.reshape(array.concat(), [-1, *spec.shape]) for array, spec in zip(arrays, specs, strict=True))
        return [tf.gather(values, back) for values in whole]

"""`AddedTokens` as TensorFlow ops: an exported graph cuts added tokens out of texts before it tokenizes the rest.

RE2, which TensorFlow's regular expressions are, finds the tokens; what is around them decides about single_word, lstrip
and rstrip. A table that Python fills says what the tokenizer's normalization makes of each code point.

Shape legend: B texts, R rows of characters (texts, or parts of them), N characters of all rows, K tokens found, I items
(tokens and what is between them).
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.text.added_tokens import WHITESPACE, AddedTokens, Forms, is_word_character
from bert_tf.text.characters import characters_in_use
from bert_tf.text.graph_normalizer import GraphNormalizer, Rows, decode_rows
from bert_tf.text.graph_ops import CODE_POINTS, CodePointTable, TokenizerGraph

_BUCKETS = 2**63 - 1
_MARK_OF_TOKEN = b"\xff"  # no byte of UTF-8
_WORD, _SPACE = 1, 2


class _Items(NamedTuple):
    """What rows are cut into: the id of a token, or -1; the first character and the one after the last; all [I]. And
    the items of each row, [R+1]."""

    ids: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor
    splits: tf.Tensor


class GraphAddedTokens(TokenizerGraph):
    """A tokenizer's graph with added tokens, with the results of the tokenizer in Python for every text.

    Args:
      graph: of the tokenizer without added tokens.
      trims: whether offsets leave the whitespace out that a token takes.

    Raises:
      ValueError: there are too many added tokens for one regular expression.
    """

    def __init__(self, graph: tf.Module, added: AddedTokens, trims: bool = False):
        super().__init__(name="graph_added_tokens")
        self._graph, self.resources, self._trims = graph, graph.resources, trims
        with tf.device("CPU:0"):
            self._written = _GraphForms(added.written)
            self._normalized = _GraphForms(added.normalized)
            self._normalizer = GraphNormalizer(added.normalize) if added.normalized else None

    def _encoded(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self._if_any(texts, lambda: [self._graph.encode(texts)], lambda rows: [self._encode(rows)])[0]

    def _with_offsets(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        return tuple(self._if_any(texts, lambda: self._graph.tokenize(texts), self._tokenize))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "texts")], autograph=False)
    def places(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """`AddedTokens.places` of `texts`, string [B]: (starts, ends), each ragged int32 [B, None]."""
        with tf.device("CPU:0"):
            none = tf.RaggedTensor.from_row_lengths(tf.zeros([0], tf.int32), tf.zeros_like(texts, tf.int64))
            return tuple(self._if_any(texts, lambda: [none, none], self._places))

    def _places(self, rows: Rows) -> list[tf.RaggedTensor]:
        items, _, begins, ends = self._cut(rows)
        begins, ends = self._without_space(rows, begins, ends)
        owners = tf.ragged.row_splits_to_segment_ids(items.splits, out_type=tf.int64)
        chosen = (items.ids >= 0) & (begins < ends)
        owners, begins, ends = (tf.boolean_mask(values, chosen) for values in (owners, begins, ends))
        firsts = tf.gather(rows.splits, owners)
        count = tf.size(rows.splits, tf.int64) - 1
        return [
            tf.RaggedTensor.from_value_rowids(tf.cast(places - firsts, tf.int32), owners, count, validate=False)
            for places in (begins, ends)
        ]

    def _without_space(self, rows: Rows, begins: tf.Tensor, ends: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Places without the whitespace at either end."""
        begins = tf.minimum(self._written.beside_space(rows, begins)[1], ends)
        return begins, tf.maximum(self._written.beside_space(rows, ends)[0], begins)

    def _if_any(self, texts: tf.Tensor, plainly: Callable, with_tokens: Callable) -> list[tf.RaggedTensor]:
        """Ragged results by one of two functions, the second of which gets the texts as rows."""
        rows = decode_rows(texts)
        found = tf.reduce_any(self._written.occur(texts))
        if self._normalizer:
            found |= tf.reduce_any(self._normalized.occur(self._normalizer(rows).texts()))

        def flat(results: Sequence[tf.RaggedTensor]) -> list[tf.Tensor]:
            return [part for rows in results for part in (rows.values, tf.cast(rows.row_splits, tf.int64))]

        parts = tf.cond(found, lambda: flat(with_tokens(rows)), lambda: flat(plainly()))
        pairs = zip(parts[::2], parts[1::2], strict=True)
        return [tf.RaggedTensor.from_row_splits(values, splits, validate=False) for values, splits in pairs]

    def _cut(self, rows: Rows) -> tuple[_Items, Rows, tf.Tensor, tf.Tensor]:
        """Items of the texts; the characters that those between tokens are made of; the code points at which each item
        begins and ends [I]."""
        items = self._written.cut(rows)
        if not self._normalizer:
            return items, rows, items.starts, items.ends
        # Each item is a row, empty if it is a token, which is put before the items that the row is cut into.
        is_token = items.ids >= 0
        inside = tf.ragged.range(items.starts, tf.where(is_token, items.starts, items.ends))
        written = Rows(tf.gather(rows.characters, inside.values), inside.row_splits, inside.values)
        normal = self._normalizer(written)
        found = self._normalized.cut(normal)
        owners = tf.ragged.row_splits_to_segment_ids(found.splits, out_type=tf.int64)
        # A row without tokens stays as it is.
        has_token = tf.math.unsorted_segment_max(found.ids, owners, tf.size(is_token, tf.int64)) >= 0
        rows = _choose(has_token, normal, written)
        moved = tf.gather(rows.splits - normal.splits, owners)
        row_ends, is_cut = tf.gather(rows.splits, owners + 1), tf.gather(has_token, owners)
        found = found._replace(starts=found.starts + moved, ends=tf.where(is_cut, found.ends + moved, row_ends))
        origins = tf.concat([rows.origins, [0]], 0)
        last = tf.gather(items.ends, owners)
        after_token = tf.gather(origins, tf.maximum(found.ends, 1) - 1) + 1
        begins = tf.where(found.starts < row_ends, tf.gather(origins, found.starts), last)
        ends = tf.where(found.ends < row_ends, tf.gather(origins, found.ends), last)
        ends = tf.where(found.ids >= 0, after_token, ends)

        def merge(tokens: tf.Tensor, parts: tf.Tensor) -> tf.RaggedTensor:
            return tf.concat(
                [_of_tokens(tokens, is_token), tf.RaggedTensor.from_row_splits(parts, found.splits, validate=False)], 1
            )

        ids = merge(items.ids, found.ids)
        none = tf.zeros_like(items.starts)
        merged = _Items(
            ids.values,
            merge(none, found.starts).values,
            merge(none, found.ends).values,
            tf.gather(ids.row_splits, items.splits),
        )
        return merged, rows, merge(items.starts, begins).values, merge(items.ends, ends).values

    def _between(self, items: _Items, rows: Rows) -> tf.Tensor:
        """The texts of items, string [I]; tokens have none."""
        ends = tf.where(items.ids >= 0, items.starts, tf.maximum(items.starts, items.ends))
        inside = tf.ragged.range(items.starts, ends)
        return Rows(tf.gather(rows.characters, inside.values), inside.row_splits, inside.values).texts()

    def _join(self, items: _Items, parts: tf.RaggedTensor, of_tokens: tf.Tensor) -> tf.RaggedTensor:
        """Values of what is between tokens [I, None], and of the tokens, as values of the texts."""
        tokens = _of_tokens(of_tokens, items.ids >= 0)
        parts = tf.RaggedTensor.from_row_splits(parts.values, tf.cast(parts.row_splits, tf.int64), validate=False)
        joined = tf.concat([tokens, parts], 1)
        return tf.RaggedTensor.from_row_splits(
            joined.values, tf.gather(joined.row_splits, items.splits), validate=False
        )

    def _encode(self, rows: Rows) -> tf.RaggedTensor:
        items, normal, *_ = self._cut(rows)
        return self._join(items, self._graph.encode(self._between(items, normal)), items.ids)

    def _tokenize(self, rows: Rows) -> list[tf.RaggedTensor]:
        items, normal, begins, limits = self._cut(rows)
        ids, firsts, afters = self._graph.tokenize(self._between(items, normal))
        owners = ids.value_rowids()
        begin, end = (tf.gather(items.starts, owners) + tf.cast(places.values, tf.int64) for places in (firsts, afters))
        limit = tf.gather(limits, owners)
        origins = tf.concat([normal.origins, [0]], 0)
        covers = end > begin
        starts = tf.where(begin < tf.gather(items.ends, owners), tf.gather(origins, begin), limit)
        ends = tf.where(covers, tf.gather(origins, tf.maximum(end, 1) - 1) + 1, starts)
        if self._normalizer:
            # A mark that was normalized away belongs to what is before it.
            extended = self._normalizer.over_lost_marks(rows, normal.origins, ends)
            ends = tf.where(covers, tf.maximum(ends, tf.minimum(extended, limit)), ends)
        if self._trims:
            # As the library does for byte-level BPE, whose pieces have the space before a word.
            is_space = tf.concat([tf.equal(rows.characters, ord(" ")), [False]], 0)
            row_starts = tf.gather(rows.splits, tf.ragged.row_splits_to_segment_ids(items.splits, out_type=tf.int64))
            skips = tf.gather(is_space, starts) & (starts > tf.gather(row_starts, owners))
            starts = tf.minimum(starts + tf.cast(skips, tf.int64), ends)
            begins, limits = self._without_space(rows, begins, limits)
        joined = [
            self._join(items, ids.with_values(values), of_tokens)
            for values, of_tokens in ((tf.cast(starts, tf.int64), begins), (tf.cast(ends, tf.int64), limits))
        ]
        places = [
            values.with_values(tf.cast(values.values - tf.gather(rows.splits, values.value_rowids()), tf.int32))
            for values in joined
        ]
        return [self._join(items, ids, items.ids), *places]


def _of_tokens(values: tf.Tensor, is_token: tf.Tensor) -> tf.RaggedTensor:
    """[I, None]: the value of each item that is a token, and nothing for the others."""
    lengths = tf.cast(is_token, tf.int64)
    return tf.RaggedTensor.from_row_lengths(tf.boolean_mask(values, is_token), lengths, validate=False)


def _choose(first: tf.Tensor, one: Rows, other: Rows) -> Rows:
    """Rows of `one` where `first` [R], else those of `other`."""
    size = tf.size(one.characters, tf.int64)
    splits = tf.where(first, one.splits[:-1], other.splits[:-1] + size)
    inside = tf.ragged.range(splits, tf.where(first, one.splits[1:], other.splits[1:] + size))
    characters, origins = (
        tf.gather(tf.concat([getattr(one, name), getattr(other, name)], 0), inside.values)
        for name in ("characters", "origins")
    )
    return Rows(characters, inside.row_splits, origins)


class _GraphForms(tf.Module):
    """Finds the tokens of `Forms`."""

    def __init__(self, forms: Forms):
        super().__init__(name="graph_forms")
        self._expression = forms.expression
        texts, tokens = list(forms), list(forms.values())
        self._is_empty, self._kinds = not texts, CodePointTable(_kinds())
        if self._is_empty:
            return
        fingerprints = tf.strings.to_hash_bucket_fast(texts, _BUCKETS).numpy()
        order = np.argsort(fingerprints)
        if len(np.unique(fingerprints)) < len(texts) or not _is_found(self._expression, texts):
            raise ValueError(f"{len(texts)} added tokens can't be part of a graph: export the model for ids.")
        self._fingerprints = tf.constant(fingerprints[order], tf.int64)
        self._ids = tf.constant([tokens[number].id for number in order], tf.int32)
        self._flags = {
            name: tf.constant([getattr(tokens[number], name) for number in order])
            for name in ("single_word", "lstrip", "rstrip")
        }

    def has(self, characters: tf.Tensor, kind: int) -> tf.Tensor:
        """bool: whether characters are of a kind."""
        return tf.not_equal(tf.bitwise.bitwise_and(self._kinds(characters), kind), 0)

    def beside_space(self, rows: Rows, places: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Where the whitespace before each place begins, and where that from there on ends; any row may end in it."""
        is_other = tf.concat([[True], ~self.has(rows.characters, _SPACE), [True]], 0)  # of the character before each
        others = tf.where(is_other)[:, 0]
        counts = tf.gather(tf.cumsum(tf.cast(is_other, tf.int64)), places)
        return tf.gather(others, counts - 1), tf.gather(others, counts) - 1

    def occur(self, texts: tf.Tensor) -> tf.Tensor:
        """bool: whether a token is written in each text."""
        if self._is_empty:
            return tf.zeros_like(texts, tf.bool)
        return tf.strings.regex_full_match(texts, f"(?s).*(?:{self._expression}).*")

    def cut(self, rows: Rows) -> _Items:
        """The tokens in rows and what is between them, by the rules of `added_tokens._cut`."""
        firsts, afters = rows.splits[:-1], rows.splits[1:]
        if self._is_empty:
            return _Items(tf.fill(tf.shape(firsts), -1), firsts, afters, tf.range(tf.size(rows.splits, tf.int64)))
        ids, starts, ends, owners = self._tokens(rows)
        row_starts = tf.gather(firsts, owners)
        before = tf.concat([[0], ends[:-1]], 0)[: tf.size(ends)]
        is_same_row = tf.concat([[False], tf.equal(owners[1:], owners[:-1])], 0)[: tf.size(ends)]
        done = tf.where(is_same_row, before, row_starts)  # where the token before it ends
        starts = tf.where(starts[:, 1] < starts[:, 0], tf.maximum(starts[:, 1], done), starts[:, 0])
        # For each token what is before it, and the token; at the end of a row the rest.
        last = tf.maximum(tf.math.unsorted_segment_max(ends, owners, tf.size(firsts)), firsts)

        def arranged(of_parts: tf.Tensor, of_tokens: tf.Tensor, of_rests: tf.Tensor) -> tf.RaggedTensor:
            both = tf.reshape(tf.stack([of_parts, of_tokens], 1), [-1])
            pairs = tf.RaggedTensor.from_value_rowids(both, tf.repeat(owners, 2), tf.size(firsts, tf.int64))
            return tf.concat([pairs, of_rests[:, None]], 1)

        items = arranged(tf.fill(tf.shape(ids), -1), ids, tf.fill(tf.shape(firsts), -1))
        return _Items(
            items.values,
            arranged(done, starts, last).values,
            arranged(tf.maximum(done, starts), ends, afters).values,
            tf.cast(items.row_splits, tf.int64),
        )

    def _tokens(self, rows: Rows) -> tuple[tf.Tensor, ...]:
        """Ids int32 [K]; starts int64 [K, 2], as written and with the whitespace before it if the token takes it; ends
        [K], with the whitespace after it; rows [K]."""
        mark = _MARK_OF_TOKEN
        marked = tf.strings.regex_replace(rows.texts(), f"({self._expression})", mark + rb"\1" + mark)
        parts = tf.strings.split(marked, mark)  # each second one is a token
        ends = tf.cumsum(tf.cast(tf.strings.length(parts.values, "UTF8_CHAR"), tf.int64))
        numbers = tf.range(tf.size(ends, tf.int64)) - tf.gather(parts.row_starts(), parts.value_rowids())
        is_token = tf.equal(numbers % 2, 1)
        texts, owners = tf.boolean_mask(parts.values, is_token), tf.boolean_mask(parts.value_rowids(), is_token)
        starts = tf.boolean_mask(tf.concat([[0], ends[:-1]], 0)[: tf.size(ends)], is_token)
        ends = tf.boolean_mask(ends, is_token)
        found = tf.searchsorted(self._fingerprints, tf.strings.to_hash_bucket_fast(texts, _BUCKETS))
        row_starts, row_ends = tf.gather(rows.splits, owners), tf.gather(rows.splits, owners + 1)
        is_word = tf.concat([self.has(rows.characters, _WORD), [False]], 0)
        inside = (starts > row_starts) & tf.gather(is_word, tf.maximum(starts, 1) - 1)
        inside |= (ends < row_ends) & tf.gather(is_word, ends)
        kept = ~(tf.gather(self._flags["single_word"], found) & inside)
        found, starts, ends, owners, row_starts, row_ends = (
            tf.boolean_mask(values, kept) for values in (found, starts, ends, owners, row_starts, row_ends)
        )
        without_space = tf.maximum(self.beside_space(rows, starts)[0], row_starts)
        with_space = tf.minimum(self.beside_space(rows, ends)[1], row_ends)
        starts = tf.stack([starts, tf.where(tf.gather(self._flags["lstrip"], found), without_space, starts)], 1)
        ends = tf.where(tf.gather(self._flags["rstrip"], found), with_space, ends)
        return tf.gather(self._ids, found), starts, ends, owners


def _is_found(expression: str, texts: list[str]) -> bool:
    """Whether RE2 takes a regular expression, and finds each text in itself."""
    try:
        return bool(tf.reduce_all(tf.strings.regex_full_match(texts, expression)))
    except tf.errors.InvalidArgumentError:
        return False


@functools.cache
def _kinds() -> np.ndarray:
    kinds = np.zeros(CODE_POINTS, np.int32)
    for char in characters_in_use():
        kinds[ord(char)] = _WORD * is_word_character(char) | _SPACE * (char in WHITESPACE)
    return kinds

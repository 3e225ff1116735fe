"""A tokenizer as TensorFlow ops: what all kinds share, and added tokens, cut out before the rest is tokenized.

RE2, which TensorFlow's regular expressions are, finds the tokens; what is around them decides about single_word, lstrip
and rstrip, as in `added_tokens.py`.

Shape legend: B texts, R parts of texts, N characters of all parts, K tokens found, P pieces.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.text.added_tokens import AddedTokens, Forms
from bert_tf.text.characters import WHITESPACE, is_mark, is_word_character
from bert_tf.text.graph_characters import CodePointTable, GraphNormalizer, Rows, decode_rows, next_chosen, values_of
from bert_tf.text.tokenizer import Tokenizer

_BUCKETS = 2**63 - 1
_MARK_OF_TOKEN = b"\xff"  # no byte of UTF-8


class Parts(NamedTuple):
    """Added tokens and what is between them.

    Attributes:
      rows: the characters of each part; of a token, none once all are found. ids: int32 [R] of tokens, -1 between them.
      texts: int64 [R], the text that each belongs to. begins, ends: int64 [R], its first code point of all texts and
        the one after the last. text: the whole texts.
    """

    rows: Rows
    ids: tf.Tensor
    texts: tf.Tensor
    begins: tf.Tensor
    ends: tf.Tensor
    text: Rows


class Pieces(NamedTuple):
    """Pieces of parts.

    Attributes:
      ids: int32 [P]. splits: int64 [R+1], the first of each part.
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

    Raises:
      ValueError: there are too many added tokens for one regular expression.
    """

    _pieces: Callable[[Parts, bool], Pieces]  # of parts, with offsets or without
    resources = ()
    _trims = False  # whether offsets leave the whitespace out that an added token takes

    def __init__(self, tokenizer: Tokenizer, name: str):
        super().__init__(name=name)
        with tf.device("CPU:0"):
            self._added = _GraphAddedTokens(tokenizer.added_tokens) if tokenizer.added_tokens else None
            self._marks = CodePointTable(values_of(is_mark))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "texts")], autograph=False)
    def encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Ids of `texts`, string [B] in UTF-8: ragged int32 [B, None], without special tokens.

        Invalid bytes are left out as by `bytes.decode("utf-8", "ignore")`; it fails for no text.
        """
        with tf.device("CPU:0"):
            return self._found(texts, False)[0]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "texts")], autograph=False)
    def tokenize(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """`encode` with offsets.

        Returns:
          (ids, starts, ends), each ragged int32 [B, None]: the token, the first character of the text that it covers
          and the one after the last, as by the tokenizer's `encode_with_offsets`. Characters are code points, without
          invalid bytes.
        """
        with tf.device("CPU:0"):
            return tuple(self._found(texts, True))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "texts")], autograph=False)
    def places(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """`AddedTokens.places` of `texts`, string [B]: (starts, ends), each ragged int32 [B, None]."""

        def found():
            parts = self._added.parts(decode_rows(texts))
            begins, ends = self._added.without_space(parts)
            chosen = (parts.ids >= 0) & (begins < ends)
            firsts = tf.gather(parts.text.splits, parts.texts)
            return [tf.boolean_mask(values, chosen) for values in (begins - firsts, ends - firsts, parts.texts)]

        with tf.device("CPU:0"):
            none = [tf.zeros([0], tf.int64)] * 3
            starts, ends, owners = tf.cond(self._added.occur(texts), found, lambda: none) if self._added else none
            rows = tf.RaggedTensor.from_value_rowids(owners, owners, tf.size(texts, tf.int64), validate=False)
            return rows.with_values(tf.cast(starts, tf.int32)), rows.with_values(tf.cast(ends, tf.int32))

    def _found(self, texts: tf.Tensor, with_offsets: bool) -> list[tf.RaggedTensor]:
        """Ids and, with_offsets, starts and ends."""

        def plainly():
            return self._of_texts(texts, with_offsets)

        def with_tokens():
            parts = self._added.parts(decode_rows(texts))
            table, splits = self._table(parts, with_offsets)
            places = self._added.without_space(parts) if self._trims else (parts.begins, parts.ends)
            tokens = tf.stack([tf.cast(column, tf.int64) for column in (parts.ids, *places)[: table.shape[1]]], 1)
            is_token = parts.ids >= 0
            tokens = tf.boolean_mask(tokens, is_token)
            tokens = tf.RaggedTensor.from_row_lengths(tokens, tf.cast(is_token, tf.int64), validate=False)
            joined = tf.concat([tokens, tf.RaggedTensor.from_row_splits(table, splits, validate=False)], 1)
            firsts = tf.searchsorted(parts.texts, tf.range(tf.size(texts, tf.int64) + 1), out_type=tf.int64)
            return _in_texts(joined.values, tf.gather(joined.row_splits, firsts), parts.text)

        table, splits = tf.cond(self._added.occur(texts), with_tokens, plainly) if self._added else plainly()
        rows = tf.RaggedTensor.from_row_splits(table, splits, validate=False)
        return [rows.with_values(table[:, column]) for column in range(3 if with_offsets else 1)]

    def _of_texts(self, texts: tf.Tensor, with_offsets: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """int32 [P, 1 or 3]: ids and, with_offsets, starts and ends in texts without added tokens; the first of each
        text, int64 [B+1]."""
        parts = whole(decode_rows(texts))
        return _in_texts(*self._table(parts, with_offsets), parts.text)

    def _table(self, parts: Parts, with_offsets: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """int64 [P, 1 or 3]: ids and, with_offsets, starts and ends in all texts; the first of each part, [R+1]."""
        pieces = self._pieces(parts, with_offsets)
        ids = tf.cast(pieces.ids, tf.int64)
        if not with_offsets:
            return ids[:, None], pieces.splits
        marks = tf.equal(self._marks(parts.text.characters), 1)
        limits = tf.gather(parts.ends, tf.ragged.row_splits_to_segment_ids(pieces.splits, out_type=tf.int64))

        def over_lost_marks() -> tf.Tensor:
            count = tf.size(marks, tf.int64)
            is_kept = tf.scatter_nd(pieces.kept[:, None], tf.ones_like(pieces.kept, tf.int32), [count]) > 0
            ends = next_chosen(tf.concat([~marks | is_kept, [True]], 0), pieces.ends)
            return tf.where(pieces.ends > pieces.starts, tf.minimum(ends, limits), pieces.ends)

        ends = tf.cond(tf.reduce_any(marks), over_lost_marks, lambda: pieces.ends)
        return tf.stack([ids, pieces.starts, ends], 1), pieces.splits


def whole(text: Rows) -> Parts:
    """Texts without added tokens, each a part."""
    count = tf.size(text.splits, tf.int64) - 1
    return Parts(text, tf.fill([count], -1), tf.range(count), text.splits[:-1], text.splits[1:], text)


def _in_texts(table: tf.Tensor, splits: tf.Tensor, text: Rows) -> tuple[tf.Tensor, tf.Tensor]:
    """A table whose places are in all texts, with those in each text, int32; and splits."""
    if table.shape[1] == 3:
        firsts = tf.gather(text.splits, tf.ragged.row_splits_to_segment_ids(splits, out_type=tf.int64))
        table -= tf.stack([tf.zeros_like(firsts), firsts, firsts], 1)
    return tf.cast(table, tf.int32), splits


class _GraphAddedTokens(tf.Module):
    """`AddedTokens` as TensorFlow ops."""

    def __init__(self, added: AddedTokens):
        super().__init__(name="graph_added_tokens")
        self._written = _GraphForms(added.written) if added.written else None
        self._normalized = _GraphForms(added.normalized) if added.normalized else None
        self._normalizer = GraphNormalizer(added.normalize) if added.normalized else None
        self._is_space = CodePointTable(values_of(WHITESPACE.__contains__))

    def occur(self, texts: tf.Tensor) -> tf.Tensor:
        """bool: whether a token is written in any text."""
        found = tf.constant(False)
        if self._written:
            found |= self._written.occur(texts)
        if self._normalized:
            found |= self._normalized.occur(self._normalizer(decode_rows(texts)).texts())
        return found

    def parts(self, text: Rows) -> Parts:
        """The parts of texts."""
        parts = whole(text)
        if self._written:
            parts = self._written.cut(parts, text)
        if self._normalized:
            parts = self._normalized.cut(parts, self._normalizer(parts.rows))
        rows = parts.rows
        is_between = tf.gather(parts.ids < 0, rows.owners())
        counts = tf.concat([[0], tf.cumsum(tf.cast(is_between, tf.int64))], 0)
        characters, origins = (tf.boolean_mask(values, is_between) for values in (rows.characters, rows.origins))
        return parts._replace(rows=Rows(characters, tf.gather(counts, rows.splits), origins))

    def without_space(self, parts: Parts) -> tuple[tf.Tensor, tf.Tensor]:
        """The begins and ends of parts without the whitespace at either end."""
        is_space = tf.equal(self._is_space(parts.text.characters), 1)
        begins = tf.minimum(_beside_space(is_space, parts.begins)[1], parts.ends)
        return begins, tf.maximum(_beside_space(is_space, parts.ends)[0], begins)


class _GraphForms(tf.Module):
    """Finds the tokens of `Forms`."""

    def __init__(self, forms: Forms):
        super().__init__(name="graph_forms")
        self._expression = forms.expression
        texts, tokens = list(forms), list(forms.values())
        fingerprints = tf.strings.to_hash_bucket_fast(texts, _BUCKETS).numpy()
        order = np.argsort(fingerprints)
        if len(np.unique(fingerprints)) < len(texts) or not _is_found(self._expression, texts):
            raise ValueError(f"{len(texts)} added tokens can't be part of a graph: export the model for ids.")
        self._fingerprints = tf.constant(fingerprints[order], tf.int64)
        self._ids = tf.constant([tokens[number].id for number in order], tf.int32)
        self._single_word, self._lstrip, self._rstrip = (
            tf.constant([getattr(tokens[number], name) for number in order])
            for name in ("single_word", "lstrip", "rstrip")
        )
        self._is_word = CodePointTable(values_of(is_word_character))
        self._is_space = CodePointTable(values_of(WHITESPACE.__contains__))

    def occur(self, texts: tf.Tensor) -> tf.Tensor:
        """bool: whether a token is written in any text."""
        return tf.reduce_any(tf.strings.regex_full_match(texts, f"(?s).*(?:{self._expression}).*"))

    def cut(self, parts: Parts, rows: Rows) -> Parts:
        """Parts, cut at the tokens in those that are none yet, by the rules of `added_tokens._cut`.

        Args:
          rows: the characters of the parts in the form in which tokens are looked for.
        """
        found, starts, ends, owners = self._tokens(rows, parts.ids < 0)

        def arranged(first: tf.Tensor, of_tokens: tf.Tensor, of_rests: tf.Tensor) -> tf.RaggedTensor:
            """For each part what is before its tokens; for each token the token, and what is behind it."""
            pairs = tf.reshape(tf.stack([of_tokens, of_rests], 1), [-1])
            pairs = tf.RaggedTensor.from_value_rowids(pairs, tf.repeat(owners, 2), tf.size(first, tf.int64))
            return tf.concat([first[:, None], pairs], 1)

        ids = arranged(parts.ids, found, tf.fill(tf.shape(found), -1))
        firsts = arranged(rows.splits[:-1], starts, ends).values
        splits, owners = tf.concat([firsts, rows.splits[-1:]], 0), ids.value_rowids()
        origins = tf.concat([rows.origins, [0]], 0)
        at_end = firsts >= tf.gather(rows.splits, owners + 1)
        begins = tf.where(at_end, tf.gather(parts.ends, owners), tf.gather(origins, firsts))
        is_first = tf.concat([[True], owners[1:] > owners[:-1]], 0)[: tf.size(owners)]
        begins = tf.where(is_first, tf.gather(parts.begins, owners), begins)
        is_last = tf.concat([is_first[1:], [True]], 0)[: tf.size(owners)]
        behind = tf.where(is_last, tf.gather(parts.ends, owners), tf.concat([begins[1:], [0]], 0)[: tf.size(owners)])
        is_new = (ids.values >= 0) & ~is_first
        after = tf.where(is_new, tf.gather(origins, tf.maximum(splits[1:], 1) - 1) + 1, behind)
        rows = Rows(rows.characters, splits, rows.origins)
        return Parts(rows, ids.values, tf.gather(parts.texts, owners), begins, after, parts.text)

    def _tokens(self, rows: Rows, is_open: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """The tokens in the rows that are open [R]: ids int32; the first character and the one after the last, with the
        whitespace that they take, int64; rows int64; all [K]."""
        mark = _MARK_OF_TOKEN
        marked = tf.strings.regex_replace(rows.texts(), f"({self._expression})", mark + rb"\1" + mark)
        parts = tf.strings.split(marked, mark)  # each second one is a token
        ends = tf.cumsum(tf.cast(tf.strings.length(parts.values, "UTF8_CHAR"), tf.int64))
        starts, owners = tf.concat([[0], ends[:-1]], 0)[: tf.size(ends)], parts.value_rowids()
        numbers = tf.range(tf.size(ends, tf.int64)) - tf.gather(parts.row_starts(), owners)
        chosen = tf.equal(numbers % 2, 1) & tf.gather(is_open, owners)
        texts, starts, ends, owners = (tf.boolean_mask(v, chosen) for v in (parts.values, starts, ends, owners))
        found = tf.searchsorted(self._fingerprints, tf.strings.to_hash_bucket_fast(texts, _BUCKETS))
        row_starts, row_ends = tf.gather(rows.splits, owners), tf.gather(rows.splits, owners + 1)
        is_word = tf.concat([tf.equal(self._is_word(rows.characters), 1), [False]], 0)
        inside = (starts > row_starts) & tf.gather(is_word, tf.maximum(starts, 1) - 1)
        inside |= (ends < row_ends) & tf.gather(is_word, ends)
        kept = ~(tf.gather(self._single_word, found) & inside)
        found, starts, ends, owners, row_starts, row_ends = (
            tf.boolean_mask(values, kept) for values in (found, starts, ends, owners, row_starts, row_ends)
        )
        is_space = tf.equal(self._is_space(rows.characters), 1)
        with_space = tf.minimum(_beside_space(is_space, ends)[1], row_ends)
        ends = tf.where(tf.gather(self._rstrip, found), with_space, ends)
        done = tf.maximum(tf.concat([[0], ends[:-1]], 0)[: tf.size(ends)], row_starts)  # where the token before it ends
        starts = tf.where(tf.gather(self._lstrip, found), _beside_space(is_space, starts)[0], starts)
        return tf.gather(self._ids, found), tf.maximum(starts, done), ends, owners


def _beside_space(is_space: tf.Tensor, places: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Where the whitespace before each place begins, and where that from there on ends; any row may end in it."""
    is_other = tf.concat([[True], ~is_space, [True]], 0)  # of the character before each
    others = tf.where(is_other)[:, 0]
    counts = tf.gather(tf.cumsum(tf.cast(is_other, tf.int64)), places)
    return tf.gather(others, counts - 1), tf.gather(others, counts) - 1


def _is_found(expression: str, texts: list[str]) -> bool:
    """Whether RE2 takes a regular expression, and finds each text in itself."""
    try:
        return bool(tf.reduce_all(tf.strings.regex_full_match(texts, expression)))
    except tf.errors.InvalidArgumentError:
        return False

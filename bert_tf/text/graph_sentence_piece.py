"""ALBERT's tokenizer as TensorFlow ops: the ids and offsets of `SentencePieceTokenizer` inside an exported graph.

`GraphNormalizer` does ALBERT's preprocessing, tensorflow-text's Sentencepiece op
finds the pieces, and another table holds what the pieces that end in a digit and a comma are split into. Of tensorflow-
text's two ops, the faster one rounds scores as the `sentencepiece` library does, which decides between pieces of equal
scores (`3` `33` or `33` `3`); the other one is only asked how long unknown pieces are. One difference is left: the op
adds the penalty of an unknown character once for each of its bytes, so that behind such a character rounding may decide
otherwise between pieces of equal scores (in one of 100,000 odd strings with a small vocabulary).

Shape legend: R texts, M code points of all prepared texts, P pieces.
"""

import unicodedata
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from bert_tf.text.graph_characters import CODE_POINTS, CodePointTable, GraphNormalizer, Rows, byte_counts, ranks
from bert_tf.text.graph_tokenizer import Pieces, TokenizerGraph
from bert_tf.text.sentence_piece import SentencePieceTokenizer
from bert_tf.text.tokenizer_files import WORD_START


class GraphSentencePiece(TokenizerGraph):
    """`SentencePieceTokenizer.encode` and `encode_with_offsets` for a batch as a graph, with the same result; see
    the module about pieces of equal scores.

    Args:
      split_unknown: makes no difference, as for `encode_with_offsets`.
    """

    def __init__(self, tokenizer: SentencePieceTokenizer, split_unknown: bool = False):
        super().__init__("graph_sentence_piece")
        self._unk_id = tokenizer.unk_id
        with tf.device("CPU:0"):
            self._normalizer = GraphNormalizer(tokenizer.preprocess)
            self._seen = CodePointTable(_seen(tokenizer, self._normalizer.characters))
            self._fast = tf_text.FastSentencepieceTokenizer(tokenizer.model)
            self._op = tf_text.SentencepieceTokenizer(tokenizer.model, out_type=tf.int32)
            self.resources = (self._op,)
            # A symbol that the model takes as it is, and that begins with ▁ itself: the ops differ on the ▁ before it.
            symbols = tf.constant([token for token in tokenizer.pieces if token.startswith(WORD_START)] or [""])
            self._ops_differ = self._op.tokenize(symbols).to_list() != self._fast.tokenize(symbols).to_list()
            self._build_parts(tokenizer)

    def _pieces(self, text: Rows, with_offsets: bool) -> Pieces:
        normal = self._normalizer(text)
        prepared = normal.texts()
        pieces = self._whole_pieces(prepared)
        ids, owners, sizes = self._split(pieces.values)
        splits = tf.searchsorted(owners, pieces.row_splits, out_type=tf.int64)
        if not with_offsets:
            return Pieces(ids, splits)
        # The characters that pieces are made of are numbered: each piece covers the next ones.
        seen = tf.equal(self._seen(normal.characters), 1)  # [M]
        before = tf.concat([[0], tf.cumsum(tf.cast(seen, tf.int64))], 0)  # [M+1]
        row_bytes = tf.cumsum(tf.cast(tf.strings.length(prepared), tf.int64), exclusive=True)  # [R]
        ends_of_bytes = tf.cumsum(byte_counts(normal.characters))  # [M]

        def number(byte_places, rows):
            places = tf.cast(byte_places, tf.int64) + tf.gather(row_bytes, rows)
            return tf.gather(before, tf.searchsorted(ends_of_bytes, places, "right", tf.int64))

        sizes = self._with_sizes_of_unknown(sizes, prepared, number)
        owners = tf.ragged.row_splits_to_segment_ids(splits, out_type=tf.int64)  # [P]
        firsts = tf.concat([tf.cumsum(sizes, exclusive=True), [0]], 0)
        firsts_of_rows = tf.gather(before, normal.splits[:-1]) - tf.gather(firsts, splits[:-1])
        firsts = firsts[:-1] + tf.gather(firsts_of_rows, owners)
        lasts = firsts + sizes
        # From characters that are seen to those of the text; a piece that covers none is where the next is.
        places = tf.concat([tf.boolean_mask(normal.origins, seen), tf.size(text.characters, tf.int64)[None]], 0)
        starts = tf.minimum(tf.gather(places, firsts), tf.gather(text.splits[1:], owners))
        ends = tf.where(lasts > firsts, tf.gather(places, tf.maximum(lasts, 1) - 1) + 1, starts)
        return Pieces(ids, splits, starts, ends, normal.origins)

    # ---- constants --------------------------------------------------------------------------------------------------

    def _build_parts(self, tokenizer: SentencePieceTokenizer) -> None:
        """For each id the ids that it is split into, with their numbers of characters without ▁; -1: not known."""
        size = len(tokenizer.pieces)
        starts, counts = np.arange(size), np.ones(size, np.int64)
        parts, sizes = list(range(size)), [len(token.replace(WORD_START, "")) for token in tokenizer.pieces]
        sizes[tokenizer.unk_id] = -1
        for index in tokenizer.split_ids:
            piece = tokenizer.inv_vocab[index]
            found = tokenizer.parts(index, piece)
            starts[index], counts[index] = len(parts), len(found)
            sizes += [count for _, count in found]
            sizes[len(parts)] -= piece.startswith(WORD_START)
            parts += [part for part, _ in found]
        self._part_starts, self._part_counts = tf.constant(starts, tf.int64), tf.constant(counts, tf.int64)
        self._parts, self._part_sizes = tf.constant(parts, tf.int32), tf.constant(sizes, tf.int64)

    # ---- the graph --------------------------------------------------------------------------------------------------

    def _whole_pieces(self, prepared: tf.Tensor) -> tf.RaggedTensor:
        """Ids of the pieces of prepared texts, int32 [B, None], before commas are split off."""
        found = self._fast.tokenize(prepared)
        found = tf.RaggedTensor.from_row_splits(found.values, tf.cast(found.row_splits, tf.int64), validate=False)
        if not self._ops_differ:
            return found
        is_written = tf.strings.regex_full_match(prepared, f"(?s).*{WORD_START}.*")

        def by_rows():
            other = self._op.tokenize(prepared)
            rows = tf.range(tf.size(prepared)) + tf.where(is_written, tf.size(prepared), 0)
            chosen = tf.gather(tf.concat([found, other], 0), rows)
            return chosen.values, chosen.row_splits

        values, splits = tf.cond(tf.reduce_any(is_written), by_rows, lambda: (found.values, found.row_splits))
        return tf.RaggedTensor.from_row_splits(values, splits, validate=False)

    def _split(self, pieces: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Ids of the parts of `pieces` [P]; the piece that each comes from, int64; its number of characters, or -1."""
        counts = tf.gather(self._part_counts, pieces)
        owners = tf.repeat(tf.range(tf.size(pieces, tf.int64)), counts)
        within = tf.range(tf.size(owners, tf.int64)) - tf.gather(tf.cumsum(counts, exclusive=True), owners)
        places = tf.gather(tf.gather(self._part_starts, pieces), owners) + within
        return tf.gather(self._parts, places), owners, tf.gather(self._part_sizes, places)

    def _with_sizes_of_unknown(self, sizes: tf.Tensor, prepared: tf.Tensor, number: Callable) -> tf.Tensor:
        """`sizes` with those of unknown pieces, which only the slower op tells: it finds the same ones."""
        unknown = sizes < 0

        def complete():
            pieces, starts, ends = self._op.tokenize_with_offsets(prepared)
            chosen = tf.equal(pieces.values, self._unk_id)
            rows = tf.boolean_mask(pieces.value_rowids(), chosen)
            starts, ends = (number(tf.boolean_mask(places.values, chosen), rows) for places in (starts, ends))
            return tf.where(unknown, tf.gather(ends - starts, ranks(unknown)), sizes)

        return tf.cond(tf.reduce_any(unknown), complete, lambda: sizes)


# ---- what Python makes of each code point ---------------------------------------------------------------------------


def _seen(tokenizer: SentencePieceTokenizer, prepared: set[str]) -> np.ndarray:
    """int32 [CODE_POINTS]: 1 for characters of which the model makes more than the beginning of a word, else 0.

    Args:
      prepared: the characters of prepared texts.
    """
    normalize = tokenizer.normalize_prepared
    if normalize("  a  b ") != f"{WORD_START}a{WORD_START}b":
        raise ValueError("the SentencePiece model keeps repeated spaces, which an exported graph can't follow exactly.")
    composed = [token for token in tokenizer.pieces if any(_is_composed(char) for char in token)]
    if composed:
        raise ValueError(
            f"the SentencePiece model has pieces of composed characters ({composed[0]}), as those of Korean text have, "
            "which an exported graph can't follow exactly."
        )
    seen = np.ones(CODE_POINTS, np.int32)
    for char in prepared:
        made = normalize(f"a{char}a").removeprefix(WORD_START)[1:-1]
        if len(made) > 1:
            raise ValueError(
                f"the SentencePiece model writes U+{ord(char):04X} as {len(made)} characters, which an exported graph "
                "can't follow exactly."
            )
        seen[ord(char)] = made not in ("", WORD_START)
    return seen


def _is_composed(char: str) -> bool:
    """Whether a model makes one character of several that preprocessing leaves apart, as of the letters of Hangul."""
    return sum(not unicodedata.combining(part) for part in unicodedata.normalize("NFKD", char)) > 1

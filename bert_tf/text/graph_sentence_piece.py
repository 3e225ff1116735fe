"""ALBERT's tokenizer as TensorFlow ops: the ids and offsets of `SentencePieceTokenizer` inside an exported graph.

When the graph is built, Python says what each code point becomes by ALBERT's preprocessing, so that nothing about
Unicode is left to the libraries that execute the graph; a table holds the answers. tensorflow-text's Sentencepiece op
finds the pieces, and another table holds what the pieces that end in a digit and a comma are split into. Of tensorflow-
text's two ops, the faster one rounds scores as the `sentencepiece` library does, which decides between pieces of equal
scores (`3` `33` or `33` `3`); the other one is only asked how long unknown pieces are. One difference is left: the op
adds the penalty of an unknown character once for each of its bytes, so that behind such a character rounding may decide
otherwise between pieces of equal scores (in one of 100,000 odd strings with a small vocabulary).

Shape legend: B texts, N code points of all texts, M code points of all prepared texts, P pieces.
"""

import functools
import unicodedata
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from bert_tf.text.graph_ops import (
    CODE_POINTS,
    SIGMA,
    CodePointTable,
    byte_counts,
    case_beside_sigma,
    decode,
    next_chosen,
    ranks,
    replace_final_sigmas,
)
from bert_tf.text.sentence_piece import WORD_START, SentencePieceTokenizer

# Entry of the table of texts: the place in the sequences of what a code point becomes, 0 for itself, and below it
_COUNT_BITS, _COUNT = 5, 31  # the number of characters (U+FDFA becomes 18);
_MARK = 1 << 30  # whether it is of Unicode category M: an offset may be extended over it.
# Entry of the table of prepared texts: the kind of the character beside a sigma (2 bits), and
_SEEN = 4  # whether the model makes more of it than the beginning of a word.


class GraphSentencePiece(tf.Module):
    """`SentencePieceTokenizer.encode` and `encode_with_offsets` for a batch as a graph, with the same result; see
    the module about pieces of equal scores.

    Attributes:
      resources: what an export must track if it does not track this object.

    Threads may share it. An export of it has no asset file, and loading it needs `import tensorflow_text` (which
    TensorFlow Serving includes) but nothing of this project. Invalid bytes are left out. It runs on the CPU.

    Raises:
      ValueError: the model treats whitespace or single characters in a way that the graph would not follow.
    """

    def __init__(self, tokenizer: SentencePieceTokenizer):
        super().__init__(name="graph_sentence_piece")
        self._do_lower_case = tokenizer.do_lower_case
        self._unk_id = tokenizer.unk_id
        texts, sequences = _preparation(tokenizer.do_lower_case)
        prepared = _prepared_characters(tokenizer, texts, sequences)
        with tf.device("CPU:0"):
            self._texts, self._sequences = CodePointTable(texts), tf.constant(sequences)
            self._prepared = CodePointTable(prepared)
            self._fast = tf_text.FastSentencepieceTokenizer(tokenizer.model)
            self._op = tf_text.SentencepieceTokenizer(tokenizer.model, out_type=tf.int32)
            self.resources = (self._op,)
            # A symbol that the model takes as it is, and that begins with ▁ itself: the ops differ on the ▁ before it.
            symbols = tf.constant([token for token in tokenizer.pieces if token.startswith(WORD_START)] or [""])
            self._ops_differ = self._op.tokenize(symbols).to_list() != self._fast.tokenize(symbols).to_list()
            self._build_parts(tokenizer)

    @classmethod
    def from_tokenizer(cls, tokenizer: SentencePieceTokenizer, split_unknown: bool = False) -> "GraphSentencePiece":
        """The graph of a tokenizer; split_unknown makes no difference, as for `encode_with_offsets`."""
        return cls(tokenizer)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "texts")], autograph=False)
    def encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Ids of `texts`, string [B] in UTF-8: ragged int32 [B, None], without special tokens."""
        with tf.device("CPU:0"):
            pieces = self._pieces(self._prepare(texts)[0])
            ids, owners, _ = self._split(pieces.values)
            splits = tf.searchsorted(owners, pieces.row_splits, out_type=tf.int64)
            return tf.RaggedTensor.from_row_splits(ids, splits, validate=False)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "texts")], autograph=False)
    def tokenize(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """`encode` with offsets.

        Returns:
          (ids, starts, ends), each ragged int32 [B, None]: the token, the first character of the text that it covers
          and the one after the last, as by `SentencePieceTokenizer.encode_with_offsets`.
        """
        with tf.device("CPU:0"):
            prepared, row_splits, codes, characters, origins = self._prepare(texts)
            pieces = self._pieces(prepared)
            ids, owners, sizes = self._split(pieces.values)
            splits = tf.searchsorted(owners, pieces.row_splits, out_type=tf.int64)
            # The characters that pieces are made of are numbered: each piece covers the next ones.
            seen = tf.not_equal(tf.bitwise.bitwise_and(self._prepared(characters), _SEEN), 0)  # [M]
            before = tf.concat([[0], tf.cumsum(tf.cast(seen, tf.int64))], 0)  # [M+1]
            row_bytes = tf.cumsum(tf.cast(tf.strings.length(prepared), tf.int64), exclusive=True)  # [B]
            ends_of_bytes = tf.cumsum(byte_counts(characters))  # [M]

            def number(byte_places, rows):
                places = tf.cast(byte_places, tf.int64) + tf.gather(row_bytes, rows)
                return tf.gather(before, tf.searchsorted(ends_of_bytes, places, "right", tf.int64))

            sizes = self._with_sizes_of_unknown(sizes, prepared, number)
            rows = tf.searchsorted(splits[1:], tf.range(tf.size(ids, tf.int64)), "right")  # [P]
            firsts = tf.concat([tf.cumsum(sizes, exclusive=True), [0]], 0)
            firsts_of_rows = number(tf.zeros_like(row_bytes), tf.range(tf.size(row_bytes))) - tf.gather(
                firsts, splits[:-1]
            )
            firsts = firsts[:-1] + tf.gather(firsts_of_rows, rows)
            row_starts, row_ends = tf.gather(row_splits, rows), tf.gather(row_splits[1:], rows) - 1
            origins = tf.boolean_mask(origins, seen)
            starts, ends = self._places_in_text(firsts, firsts + sizes, origins, codes, row_ends)
            return tuple(
                tf.RaggedTensor.from_row_splits(tf.cast(values, tf.int32), splits, validate=False)
                for values in (ids, starts - row_starts, ends - row_starts)
            )

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

    def _prepare(self, texts: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """The prepared texts, string [B], each with a space behind it; row splits int64 [B+1] and code points int32 [N]
        of the texts, also with a space; the characters of the prepared texts, int32 [M], and the code point that each
        comes from, int64 [M]."""
        row_splits, codes = decode(tf.strings.join([texts, " "]))
        entries = self._texts(codes)
        counts = tf.cast(tf.where(entries == 0, 1, tf.bitwise.bitwise_and(entries, _COUNT)), tf.int64)
        origins = tf.repeat(tf.range(tf.size(codes, tf.int64)), counts)  # [M]
        within = tf.range(tf.size(origins, tf.int64)) - tf.gather(tf.cumsum(counts, exclusive=True), origins)
        starts = tf.bitwise.right_shift(tf.bitwise.bitwise_and(entries, _MARK - 1), _COUNT_BITS)
        sequences = tf.gather(self._sequences, tf.gather(tf.cast(starts, tf.int64), origins) + within)
        characters = tf.where(tf.gather(entries, origins) == 0, tf.gather(codes, origins), sequences)
        if self._do_lower_case:
            characters = tf.cond(
                tf.reduce_any(tf.equal(characters, SIGMA)),
                lambda: tf.where(
                    tf.equal(characters, SIGMA),
                    _lower(replace_final_sigmas(characters, self._kinds(characters))),
                    characters,
                ),
                lambda: characters,
            )
        prepared_splits = tf.gather(tf.concat([[0], tf.cumsum(counts)], 0), row_splits)
        rows = tf.RaggedTensor.from_row_splits(characters, prepared_splits, validate=False)
        return tf.strings.unicode_encode(rows, "UTF-8"), row_splits, codes, characters, origins

    def _kinds(self, characters: tf.Tensor) -> tf.Tensor:
        return tf.bitwise.bitwise_and(self._prepared(characters), 3)

    def _pieces(self, prepared: tf.Tensor) -> tf.RaggedTensor:
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

    def _places_in_text(self, firsts, lasts, origins, codes, row_ends) -> tuple[tf.Tensor, tf.Tensor]:
        """From characters that are seen to those of the text; a part that covers none is where the next is."""
        origins = tf.concat([origins, [tf.size(codes, tf.int64)]], 0)
        starts = tf.minimum(tf.gather(origins, firsts), row_ends)
        ends = tf.gather(origins, tf.maximum(lasts, 1) - 1) + 1
        entries = self._texts(codes)
        is_lost_mark = tf.equal(tf.bitwise.bitwise_and(entries, _MARK | _COUNT), _MARK)
        stops = tf.concat([tf.logical_not(is_lost_mark), [True]], 0)
        return starts, tf.where(lasts > firsts, next_chosen(stops, ends), starts)


def _lower(characters: tf.Tensor) -> tf.Tensor:
    """Without capital sigmas."""
    return tf.where(tf.equal(characters, SIGMA), ord("\u03c3"), characters)


# ---- what Python makes of each code point ---------------------------------------------------------------------------


def _code_points() -> list[int]:
    """Those that may become something else: beyond plane 3 only plane 14 is in use, and private use."""
    codes = (*range(0x40000), *range(0xE0000, 0xF0000))
    return [code for code in codes if unicodedata.category(chr(code)) not in ("Cn", "Co", "Cs")]


@functools.cache
def _preparation(do_lower_case: bool) -> tuple[np.ndarray, np.ndarray]:
    """The entries of the table of texts, int32 [CODE_POINTS], and the sequences, int32."""
    entries, sequences, places = np.zeros(CODE_POINTS, np.int32), [0], {}
    for code in _code_points():
        char = chr(code)
        output = " " if char.isspace() else unicodedata.normalize("NFKD", char)
        output = "".join(part for part in output if not unicodedata.combining(part))
        if do_lower_case:
            output = "".join(part if ord(part) == SIGMA else part.lower() for part in output)
        is_mark = unicodedata.category(char)[0] == "M"
        if output == char and not is_mark:
            continue
        if output not in places:
            places[output] = len(sequences)
            sequences += map(ord, output)
        entries[code] = places[output] << _COUNT_BITS | len(output) | (_MARK if is_mark else 0)
    return entries, np.array(sequences, np.int32)


def _prepared_characters(tokenizer: SentencePieceTokenizer, texts: np.ndarray, sequences: np.ndarray) -> np.ndarray:
    """The entries of the table of prepared texts, int32 [CODE_POINTS], whose characters are those of `_preparation`.

    Raises:
      ValueError: see `GraphSentencePiece`.
    """
    normalize = tokenizer.normalize_prepared
    if normalize("  a  b ") != f"{WORD_START}a{WORD_START}b":
        raise ValueError("the SentencePiece model keeps repeated spaces, which an exported graph can't follow exactly.")
    entries = np.full(CODE_POINTS, _SEEN | case_beside_sigma("\ue000"), np.int32)
    composed = [token for token in tokenizer.pieces if any(_is_composed(char) for char in token)]
    if composed:
        raise ValueError(
            f"the SentencePiece model has pieces of composed characters ({composed[0]}), as those of Korean text have, "
            "which an exported graph can't follow exactly."
        )
    for code in {*sequences[1:].tolist(), *(code for code in _code_points() if texts[code] == 0)}:
        char = chr(code)
        made = normalize(f"a{char}a").removeprefix(WORD_START)[1:-1]
        if len(made) > 1:
            raise ValueError(
                f"the SentencePiece model writes U+{code:04X} as {len(made)} characters, which an exported graph "
                "can't follow exactly."
            )
        entries[code] = case_beside_sigma(char) | (_SEEN if made and made != WORD_START else 0)
    return entries


def _is_composed(char: str) -> bool:
    """Whether a model makes one character of several that preprocessing leaves apart, as of the letters of Hangul."""
    return sum(not unicodedata.combining(part) for part in unicodedata.normalize("NFKD", char)) > 1

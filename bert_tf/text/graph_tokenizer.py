"""The tokenizer of `wordpiece.py` as TensorFlow ops: the same ids and offsets inside an exported graph.

In the graph, text becomes code points, `GraphNormalizer` does what `BasicTokenizer.normalize` does, a table says which
characters are tokens of their own, and tensorflow-text's FastWordpiece op splits the tokens into pieces. Texts of plain
ASCII, on which all Unicode versions agree, take a shorter path: they are lower-cased and split by the same op, which
can also split at ASCII punctuation; this is five times as fast.

Shape legend: B texts, N characters of all normalized texts, K those of all tokens, W tokens before they are split into
pieces, P pieces.
"""

import functools
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from bert_tf.system.messages import some
from bert_tf.text.characters import characters_in_use, is_cjk, is_punctuation
from bert_tf.text.graph_normalizer import GraphNormalizer, Rows, decode_rows
from bert_tf.text.graph_ops import CODE_POINTS, CodePointTable, TokenizerGraph, byte_counts, next_chosen, ranks
from bert_tf.text.wordpiece import BasicTokenizer, FullTokenizer

# Properties of a code point.
_BREAK = 1  # no token continues across it: whitespace or, if also kept, a separate token
_KEPT = 2  # it is (part of) a token
_KNOWN = 4  # it occurs in the vocabulary

_LONGEST_PIECE = 256  # bytes; a limit of the FastWordpiece op


class GraphTokenizer(TokenizerGraph):
    """`FullTokenizer.encode` and `encode_with_offsets` for a batch as a graph, with the same result for every text.

        graph_tokenizer = GraphTokenizer(tokenizer.vocab, do_lower_case=True)
        graph_tokenizer.encode(tf.constant(["one", "two words"]))  # <tf.RaggedTensor [[2028], [2048, 2616]]>

    Vocabulary and tables are constants. The only op from outside TensorFlow is FastWordpieceTokenizeWithOffsets.

    Args:
      vocab: token -> id, as `FullTokenizer.vocab`.
      do_lower_case, strip_accents: as for `FullTokenizer`.
      split_unknown: as for `FullTokenizer.encode_with_offsets`; here `encode` follows it, too.
      drop_unassigned, tokenize_chinese_chars, do_basic_tokenize: as for `BasicTokenizer`.
      unk_token, max_input_chars_per_word: as for `WordpieceTokenizer`.

    Raises:
      ValueError: the vocabulary lacks unk_token, or a token in it has more than 256 bytes.
    """

    def __init__(
        self,
        vocab: Mapping[str, int],
        do_lower_case: bool = True,
        strip_accents: bool | None = None,
        split_unknown: bool = False,
        drop_unassigned: bool = False,
        *,
        tokenize_chinese_chars: bool = True,
        do_basic_tokenize: bool = True,
        unk_token: str = "[UNK]",
        max_input_chars_per_word: int = 200,
    ):
        super().__init__(name="graph_tokenizer")
        self._basic = _basic_tokenizer(do_lower_case, strip_accents, drop_unassigned, do_basic_tokenize)
        self._split_unknown = bool(split_unknown)
        self._unk_token, self._longest_word = unk_token, max_input_chars_per_word
        with tf.device("CPU:0"):
            self._normalizer = GraphNormalizer(self._basic.normalize)
            properties = _properties(do_basic_tokenize, tokenize_chinese_chars).copy()
            properties[[ord(char) for char in self._build_pieces(vocab)]] |= _KNOWN
            self._properties = CodePointTable(properties)

    @classmethod
    def from_tokenizer(cls, tokenizer: FullTokenizer, split_unknown: bool = False) -> "GraphTokenizer":
        """The graph of a tokenizer.

        Raises:
          ValueError: see the class; or the tokenizer has words that are never split.
        """
        basic, pieces = tokenizer.basic_tokenizer, tokenizer.wordpiece_tokenizer
        if basic.never_split:
            raise ValueError(
                f"never_split ({some(sorted(basic.never_split))}) in tokenizer_config.json has no form as a graph."
            )
        return cls(
            pieces.vocab,
            basic.do_lower_case,
            basic.strip_accents,
            split_unknown,
            basic.drop_unassigned,
            tokenize_chinese_chars=basic.tokenize_chinese_chars,
            do_basic_tokenize=basic.do_basic_tokenize,
            unk_token=pieces.unk_token,
            max_input_chars_per_word=pieces.max_input_chars_per_word,
        )

    def _encoded(self, texts: tf.Tensor) -> tf.RaggedTensor:
        table = self._by_kind_of_row(texts, with_offsets=False)
        return table.with_values(table.values[:, 0])

    def _with_offsets(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        table = self._by_kind_of_row(texts, with_offsets=True)
        return tuple(table.with_values(table.values[:, column]) for column in range(3))

    # ---- constants ---------------------------------------------------------------------------------------------------

    def _build_pieces(self, vocab: Mapping[str, int]) -> set[str]:
        """Builds the model of the FastWordpiece op and the ids of its tokens; returns the vocabulary's characters."""
        unknown = self._unk_token
        if unknown not in vocab:
            raise ValueError(f"the vocabulary lacks {unknown}, the token for words that it has no pieces for")
        pieces = {token: index for token, index in vocab.items() if token not in ("", "##")}  # these never match
        for token in pieces:
            if len(token.removeprefix("##").encode("utf-8", "surrogatepass")) > _LONGEST_PIECE:
                raise ValueError(f"the token {token[:50]!r}... has more than {_LONGEST_PIECE} bytes")
        alphabet = set("".join(pieces))
        # Represents all characters that occur in no token: a word with any of them is unknown.
        self._stranger = next(code for code in range(1, CODE_POINTS) if chr(code) not in alphabet)
        if self._split_unknown:
            # Where no token matches, one character is unknown and matching continues with the next: as if each
            # character were a token of its own that means [UNK].
            for char in [chr(self._stranger), *sorted(alphabet)]:
                for token in (char, "##" + char):
                    pieces.setdefault(token, vocab[unknown])
        self._any_pieces, self._any_ids = self._build_model(pieces, unknown, words=True)
        ascii_pieces = {unknown: vocab[unknown]}
        for token, index in pieces.items():
            body = token.removeprefix("##")
            if token.isascii() and (body.isalnum() or len(token) == 1):  # the others never match
                ascii_pieces[token] = index
        if self._split_unknown:
            for char in filter(str.isalnum, map(chr, range(128))):
                for token in (char, "##" + char):
                    ascii_pieces.setdefault(token, vocab[unknown])
        self._ascii_pieces, self._ascii_ids = self._build_model(ascii_pieces, unknown, words=False)
        return alphabet

    def _build_model(
        self, pieces: Mapping[str, int], unknown: str, words: bool
    ) -> tuple[tf_text.FastWordpieceTokenizer, tf.Tensor]:
        """The op with its model, for words or for whole texts in ASCII, and the ids (int32) of the tokens it numbers.

        `_pieces` limits words in code points, so the op's own limit is off."""
        model = tf_text.FastWordpieceTokenizer(
            list(pieces),
            max_bytes_per_word=2**31 - 1 if words or self._split_unknown else self._longest_word,
            token_out_type=tf.int32,
            unknown_token=unknown,
            no_pretokenization=words,
        )
        return model, tf.constant(list(pieces.values()), tf.int32)

    # ---- the graph -----------------------------------------------------------------------------------------------

    def _by_kind_of_row(self, texts: tf.Tensor, with_offsets: bool) -> tf.RaggedTensor:
        """int32 [B, None, 1 or 3]: ids of `texts`, and with_offsets starts and ends; each text by the path that suits
        it."""

        def parts(rows: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor]:
            return rows.values, rows.row_splits

        def mixed():
            rows = tf.concat(
                [
                    self._of_ascii(tf.boolean_mask(texts, is_ascii), with_offsets),
                    self._of_any(tf.boolean_mask(texts, ~is_ascii), with_offsets),
                ],
                0,
            )
            ascii_count = tf.reduce_sum(tf.cast(is_ascii, tf.int32))
            return parts(tf.gather(rows, tf.where(is_ascii, ranks(is_ascii), ascii_count + ranks(~is_ascii))))

        if not self._basic.do_basic_tokenize:  # the op would split ASCII at punctuation
            return self._of_any(texts, with_offsets)
        # Control characters except tab, newline and return must be dropped first; the other path does that.
        is_ascii = tf.strings.regex_full_match(texts, r"[\t\n\r -~]*")
        found = tf.cond(tf.reduce_all(is_ascii), lambda: parts(self._of_ascii(texts, with_offsets)), mixed)
        return tf.RaggedTensor.from_row_splits(*found, validate=False)

    def _of_ascii(self, texts: tf.Tensor, with_offsets: bool) -> tf.RaggedTensor:
        texts = tf.strings.lower(texts) if self._basic.do_lower_case else texts
        pieces, starts, ends = self._ascii_pieces.tokenize_with_offsets(texts)
        # Bytes are characters here.
        columns = [tf.gather(self._ascii_ids, pieces.values), starts.values, ends.values][: 3 if with_offsets else 1]
        return pieces.with_values(tf.stack([tf.cast(column, tf.int32) for column in columns], 1))

    def _of_any(self, texts: tf.Tensor, with_offsets: bool) -> tf.RaggedTensor:
        rows = decode_rows(texts)
        ids, id_splits, piece_bytes, characters, properties, places = self._pieces(self._normalizer(rows))
        columns = [ids]
        if with_offsets:
            owners = tf.ragged.row_splits_to_segment_ids(id_splits, out_type=tf.int64)  # [P]
            lasts = tf.searchsorted(tf.cumsum(byte_counts(characters)), tf.cumsum(piece_bytes), out_type=tf.int64)
            starts, ends = _places_of_pieces(lasts, places)
            ends = self._extend_over_marks(ends, _has(tf.gather(properties, lasts), _BREAK), rows, places)
            ends = tf.minimum(ends, tf.gather(rows.splits, owners + 1))
            columns += [tf.cast(place - tf.gather(rows.splits, owners), tf.int32) for place in (starts, ends)]
        return tf.RaggedTensor.from_row_splits(tf.stack(columns, 1), id_splits, validate=False)

    def _pieces(self, rows: Rows) -> tuple[tf.Tensor, ...]:
        """Splits normalized rows into pieces.

        Returns:
          ids int32 [P]; their row splits int64 [B+1]; the number of bytes of the tokens that each piece covers [P]
          (together the pieces cover all tokens); the characters of the tokens [K], their properties, and the code point
          of the texts that each comes from, int64 [K].
        """
        properties = self._properties(rows.characters)
        kept = tf.where(_has(properties, _KEPT))[:, 0]  # [K]
        # Characters with the same number form a token: a break adds two, and a separate token gets the number between.
        breaks = tf.bitwise.bitwise_and(properties, _BREAK)
        numbers = tf.gather(2 * (tf.cumsum(breaks) + tf.cast(rows.owners(), tf.int32)) - breaks, kept)
        properties = tf.gather(properties, kept)
        characters = tf.where(_has(properties, _KNOWN), tf.gather(rows.characters, kept), self._stranger)
        token_starts = tf.where(tf.not_equal(numbers, tf.concat([[-1], numbers], 0)[:-1]))[:, 0]  # [W]
        token_splits = tf.concat([token_starts, [tf.size(characters, tf.int64)]], 0)  # [W+1]
        if not self._split_unknown:  # split_unknown has no length limit
            too_long = token_splits[1:] - token_splits[:-1] > self._longest_word
            characters = tf.cond(
                tf.reduce_any(too_long),
                lambda: self._make_unknown(characters, token_starts[too_long]),
                lambda: characters,
            )
        tokens = tf.strings.unicode_encode(
            tf.RaggedTensor.from_row_splits(characters, token_splits, validate=False), "UTF-8"
        )  # [W]
        pieces, firsts, ends = self._any_pieces.tokenize_with_offsets(tokens)  # [W, None]
        splits = tf.searchsorted(tf.gather(kept, token_starts), rows.splits, out_type=tf.int64)
        id_splits = tf.gather(pieces.row_splits, splits)  # [B+1]
        ids = tf.gather(self._any_ids, pieces.values)
        return ids, id_splits, ends.values - firsts.values, characters, properties, tf.gather(rows.origins, kept)

    def _make_unknown(self, characters: tf.Tensor, starts: tf.Tensor) -> tf.Tensor:
        """Puts a character that occurs in no token at `starts`."""
        return tf.tensor_scatter_nd_update(characters, starts[:, None], tf.fill(tf.shape(starts), self._stranger))

    def _extend_over_marks(self, ends: tf.Tensor, is_alone: tf.Tensor, rows: Rows, places: tf.Tensor) -> tf.Tensor:
        """Moves `ends` [P] over marks of the texts that vanished or are not part of the same token: a mark that is kept
        continues the token before it, unless that is a separate token."""
        marks = self._normalizer.is_mark(rows.characters)

        def extend():
            all_marks = next_chosen(tf.concat([~marks, [True]], 0), ends)
            return tf.where(is_alone, all_marks, self._normalizer.over_lost_marks(rows, places, ends))

        return tf.cond(tf.reduce_any(marks), extend, lambda: ends)


def _places_of_pieces(lasts: tf.Tensor, places: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Where each piece's characters start and end (exclusive) in the texts, int64 [P].

    Args:
      lasts: the last character of each piece, [P]. places: of characters, [K].
    """
    firsts = tf.concat([[0], lasts + 1], 0)[:-1]

    def of_marks_in_another_order():
        pieces = tf.searchsorted(lasts, tf.range(tf.size(places, tf.int64)), out_type=tf.int64)
        return tf.math.segment_min(places, pieces), tf.math.segment_max(places, pieces) + 1

    return tf.cond(
        tf.reduce_any(places[1:] < places[:-1]),
        of_marks_in_another_order,
        lambda: (tf.gather(places, firsts), tf.gather(places, lasts) + 1),
    )


def _has(properties: tf.Tensor, bit: int) -> tf.Tensor:
    return tf.not_equal(tf.bitwise.bitwise_and(properties, bit), 0)


@functools.cache
def _basic_tokenizer(
    do_lower_case: bool, strip_accents: bool | None, drop_unassigned: bool, do_basic_tokenize: bool
) -> BasicTokenizer:
    """Which normalizes text; that Chinese characters are separate tokens is a property of them."""
    return BasicTokenizer(
        do_lower_case,
        strip_accents,
        drop_unassigned,
        tokenize_chinese_chars=False,
        do_basic_tokenize=do_basic_tokenize,
    )


@functools.cache
def _properties(do_basic_tokenize: bool, tokenize_chinese_chars: bool) -> np.ndarray:
    """int32 [CODE_POINTS]: the properties of characters of normalized text."""
    properties = np.full(CODE_POINTS, _KEPT, np.int32)
    for char in characters_in_use():
        is_alone = is_punctuation(char) or (tokenize_chinese_chars and is_cjk(char))
        if do_basic_tokenize and is_alone:
            properties[ord(char)] |= _BREAK
        if char.isspace():
            properties[ord(char)] = _BREAK
    return properties

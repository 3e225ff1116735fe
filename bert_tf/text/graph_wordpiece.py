"""The tokenizer of `wordpiece.py` as TensorFlow ops: the same ids and offsets inside an exported graph.

Text becomes code points, `GraphNormalizer` does what `BasicTokenizer.normalize` does, a table says which characters are
tokens of their own, and tensorflow-text's FastWordpiece op splits the tokens into pieces. Texts of plain ASCII take a
shorter path, five times as fast: the same op also splits at ASCII punctuation.

Shape legend: B texts, N characters of all normalized texts, K those of all tokens, W uncut tokens, P pieces.
"""

import functools
from collections.abc import Callable, Mapping

import tensorflow as tf
import tensorflow_text as tf_text

from bert_tf.system.messages import abbreviated_list
from bert_tf.text.characters import is_cjk, is_mark, is_punctuation
from bert_tf.text.graph_characters import CODE_POINTS, CodePointTable, GraphNormalizer, Rows, decode_rows, values_of
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.wordpiece import BasicTokenizer, FullTokenizer

# Properties of a code point.
_BREAK = 1  # no token continues across it: whitespace or, if also kept, a separate token
_KEPT = 2  # it is (part of) a token
_KNOWN = 4  # it occurs in the vocabulary


class GraphWordPiece(tf.Module):
    """`FullTokenizer.encode` and `encode_with_offsets` for a batch as a graph, with the same result for every text.

        graph = graph_of(FullTokenizer("vocab.txt"))
        graph.encode(tf.constant(["one", "two words"]))  # <tf.RaggedTensor [[2028], [2048, 2616]]>

    It has no state, so threads may share it, and runs on the CPU. The only op from outside TensorFlow is
    tensorflow-text's FastWordpieceTokenizeWithOffsets.

    split_unknown: as for `FullTokenizer.encode_with_offsets`; here `encode` follows it, too.
    """

    def __init__(self, tokenizer: FullTokenizer, split_unknown: bool = False):
        self._basic, pieces = tokenizer.basic_tokenizer, tokenizer.wordpiece_tokenizer
        if self._basic.never_split:
            words = abbreviated_list(sorted(self._basic.never_split))
            raise ValueError(f"never_split ({words}) in tokenizer_config.json has no form as a graph.")
        super().__init__(name="graph_wordpiece")
        self._split_unknown = split_unknown
        self._unk_token, self._longest_word = pieces.unk_token, pieces.max_input_chars_per_word
        with tf.device("CPU:0"):
            self._marks = CodePointTable(values_of(is_mark))
            self._normalizer = GraphNormalizer(_normalizing(*map(vars(self._basic).get, _NORMALIZING)).normalize)
            rule = _properties(self._basic.do_basic_tokenize, self._basic.tokenize_chinese_chars)
            properties = values_of(rule).copy()
            properties[[ord(char) for char in self._build_pieces(pieces.vocab)]] |= _KNOWN
            self._properties = CodePointTable(properties)

    # ---- constants ---------------------------------------------------------------------------------------------------

    def _build_pieces(self, vocab: Mapping[str, int]) -> set[str]:
        """Builds the model of the FastWordpiece op and the ids of its tokens; returns the vocabulary's characters."""
        unknown = self._unk_token
        pieces = {token: index for token, index in vocab.items() if token not in ("", "##")}  # these never match
        alphabet = set("".join(pieces))
        # Represents all characters that occur in no token: a word with any of them is unknown.
        self._stranger = next(code for code in range(1, CODE_POINTS) if chr(code) not in alphabet)
        if self._split_unknown:
            # Where no token matches, one character is unknown and matching continues with the next: as if each
            # character were a token of its own that means [UNK].
            for char in [chr(self._stranger), *sorted(alphabet.union(filter(str.isalnum, map(chr, range(128)))))]:
                for token in (char, "##" + char):
                    pieces.setdefault(token, vocab[unknown])
        self._any_pieces, self._any_ids = self._build_model(pieces, words=True)
        ascii_pieces = {unknown: vocab[unknown]}
        for token, index in pieces.items():
            if token.isascii() and (token.removeprefix("##").isalnum() or len(token) == 1):  # the others never match
                ascii_pieces[token] = index
        self._ascii_pieces, self._ascii_ids = self._build_model(ascii_pieces, words=False)
        return alphabet

    def _build_model(self, pieces: Mapping[str, int], words: bool) -> tuple[tf_text.FastWordpieceTokenizer, tf.Tensor]:
        """The op, for words or for whole texts in ASCII, and the ids of the tokens it numbers."""
        # `_pieces` limits words in code points, so the op's own limit is off.
        options = {"token_out_type": tf.int32, "unknown_token": self._unk_token, "no_pretokenization": words}
        longest = 2**31 - 1 if words or self._split_unknown else self._longest_word
        model = tf_text.FastWordpieceTokenizer(list(pieces), max_bytes_per_word=longest, **options)
        return model, tf.constant(list(pieces.values()), tf.int32)

    # ---- the graph -----------------------------------------------------------------------------------------------

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "texts")], autograph=False)
    def encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Ids of `texts`, string [B] in UTF-8 without its invalid bytes: ragged int32 [B, None], no special tokens."""
        with tf.device("CPU:0"):
            table, splits = self._of_texts(texts, False)
            return tf.RaggedTensor.from_row_splits(table[:, 0], splits, validate=False)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "texts")], autograph=False)
    def tokenize(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """`encode` with offsets, as by `encode_with_offsets`: (ids, starts, ends), each ragged int32 [B, None]."""
        with tf.device("CPU:0"):
            table, splits = self._of_texts(texts, True)
            rows = tf.RaggedTensor.from_row_splits(table, splits, validate=False)
            return tuple(rows.with_values(table[:, column]) for column in range(3))

    def _of_texts(self, texts: tf.Tensor, with_offsets: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """int32 [P, 1 or 3]: ids and, with_offsets, starts and ends; the first of each text, int64 [B+1]."""
        if not self._basic.do_basic_tokenize:  # the op would split ASCII at punctuation
            return self._of_any(texts, with_offsets)
        # Control characters except tab, newline and return must be dropped first; the other path does that.
        is_ascii = tf.strings.regex_full_match(texts, r"[\t\n\r -~]*")

        def mixed():
            parts = [(self._of_ascii, is_ascii), (self._of_any, ~is_ascii)]
            parts = [pieces_of(tf.boolean_mask(texts, mask), with_offsets) for pieces_of, mask in parts]
            rows = tf.concat([tf.RaggedTensor.from_row_splits(*part, validate=False) for part in parts], 0)
            ascii_count = tf.reduce_sum(tf.cast(is_ascii, tf.int32))
            rows = tf.gather(rows, tf.where(is_ascii, _ranks(is_ascii), ascii_count + _ranks(~is_ascii)))
            return rows.values, rows.row_splits

        return tf.cond(tf.reduce_all(is_ascii), lambda: self._of_ascii(texts, with_offsets), mixed)

    def _of_ascii(self, texts: tf.Tensor, with_offsets: bool) -> tuple[tf.Tensor, tf.Tensor]:
        texts = tf.strings.lower(texts) if self._basic.do_lower_case else texts
        pieces, starts, ends = self._ascii_pieces.tokenize_with_offsets(texts)
        # Bytes are characters here.
        columns = [tf.gather(self._ascii_ids, pieces.values), starts.values, ends.values][: 3 if with_offsets else 1]
        return tf.stack([tf.cast(column, tf.int32) for column in columns], 1), pieces.row_splits

    def _of_any(self, texts: tf.Tensor, with_offsets: bool) -> tuple[tf.Tensor, tf.Tensor]:
        text = decode_rows(texts)
        ids, splits, (starts, lasts, kept) = self._pieces(text, with_offsets)
        if not with_offsets:
            return ids[:, None], splits
        marks = tf.equal(self._marks(text.characters), 1)
        owners = tf.ragged.row_splits_to_segment_ids(splits, out_type=tf.int64)

        def over_lost_marks() -> tf.Tensor:
            count = tf.size(marks, tf.int64)
            is_kept = tf.scatter_nd(kept[:, None], tf.ones_like(kept, tf.int32), [count]) > 0
            stops = tf.concat([~marks | is_kept, [True]], 0)
            before = tf.cumsum(tf.cast(stops, tf.int32), exclusive=True)
            ends = tf.gather(tf.where(stops)[:, 0], tf.gather(before, lasts))
            within = tf.minimum(ends, tf.gather(text.splits[1:], owners))
            return tf.where(lasts > starts, within, lasts)

        ends = tf.cond(tf.reduce_any(marks), over_lost_marks, lambda: lasts)
        firsts = tf.gather(text.splits, owners)
        columns = (ids, starts - firsts, ends - firsts)
        return tf.stack([tf.cast(column, tf.int32) for column in columns], 1), splits

    def _pieces(self, text: Rows, with_offsets: bool) -> tuple[tf.Tensor, tf.Tensor, tuple[tf.Tensor, ...]]:
        """Pieces of texts: ids, int32 [P]; the first of each text, int64 [B+1]; and with_offsets, int64, the first code
        point of all texts that each piece covers, [P], the one after the last, [P], and all that pieces are made of."""
        rows = self._normalizer(text)
        properties = self._properties(rows.characters)
        kept = tf.where(_has(properties, _KEPT))[:, 0]  # [K]
        # Characters with the same number form a token: a break adds two, and a separate token gets the number between.
        breaks = tf.bitwise.bitwise_and(properties, _BREAK)
        numbers = tf.gather(2 * (tf.cumsum(breaks) + tf.cast(rows.owners(), tf.int32)) - breaks, kept)
        is_known = _has(tf.gather(properties, kept), _KNOWN)
        characters = tf.where(is_known, tf.gather(rows.characters, kept), self._stranger)
        token_starts = tf.where(tf.not_equal(numbers, tf.concat([[-1], numbers], 0)[:-1]))[:, 0]  # [W]
        token_splits = tf.concat([token_starts, [tf.size(characters, tf.int64)]], 0)  # [W+1]
        if not self._split_unknown:  # split_unknown has no length limit
            too_long = token_splits[1:] - token_splits[:-1] > self._longest_word
            strangers = tf.fill([tf.math.count_nonzero(too_long)], self._stranger)  # occur in no token
            characters = tf.cond(
                tf.reduce_any(too_long),
                lambda: tf.tensor_scatter_nd_update(characters, token_starts[too_long][:, None], strangers),
                lambda: characters,
            )
        tokens = tf.RaggedTensor.from_row_splits(characters, token_splits, validate=False)
        tokens = tf.strings.unicode_encode(tokens, "UTF-8")  # [W]
        pieces, firsts, ends = self._any_pieces.tokenize_with_offsets(tokens)  # [W, None]
        splits = tf.searchsorted(tf.gather(kept, token_starts), rows.splits, out_type=tf.int64)
        ids, id_splits = tf.gather(self._any_ids, pieces.values), tf.gather(pieces.row_splits, splits)
        if not with_offsets:
            return ids, id_splits, (None,) * 3
        # Together the pieces cover all tokens.
        piece_ends = tf.cumsum(tf.cast(ends.values - firsts.values, tf.int64))
        byte_counts = 1 + tf.add_n([tf.cast(characters >= least, tf.int64) for least in (0x80, 0x800, 0x10000)])
        lasts = tf.searchsorted(tf.cumsum(byte_counts), piece_ends, out_type=tf.int64)
        origins = tf.gather(rows.origins, kept)
        return ids, id_splits, (*_spans_of_pieces(lasts, origins), origins)


class NoGraphError(ValueError):
    """A tokenizer can't be part of a graph."""


def graph_of(tokenizer: Tokenizer, split_unknown: bool = False) -> GraphWordPiece:
    """The rules of a tokenizer as TensorFlow ops. split_unknown: see `Tokenizer.encode_with_offsets`."""
    try:
        if isinstance(tokenizer, FullTokenizer) and not tokenizer.added_tokens:
            return GraphWordPiece(tokenizer, split_unknown)
        if tokenizer.added_tokens:
            names = abbreviated_list([token.content for token in tokenizer.added_tokens.tokens])
            raise ValueError(f"added tokens ({names}) can't be cut out inside a graph")
        raise ValueError(f"the pieces of a {tokenizer.huggingface_class} can't be found inside a graph")
    except (KeyError, RuntimeError, ValueError) as error:  # without [UNK], or with a piece of more than 256 bytes
        source, reason = tokenizer.vocab_file or tokenizer.huggingface_class, str(error).rstrip(".")
        raise NoGraphError(f"{source}: {reason}. Exports of this model take ids.") from error


def _spans_of_pieces(lasts: tf.Tensor, origins: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Where each piece's characters start and end in the texts, [P]. lasts: of each piece, [P]. origins: [K]."""
    firsts = tf.concat([[0], lasts + 1], 0)[:-1]

    def of_marks_in_another_order():
        pieces = tf.searchsorted(lasts, tf.range(tf.size(origins, tf.int64)), out_type=tf.int64)
        return tf.math.segment_min(origins, pieces), tf.math.segment_max(origins, pieces) + 1

    return tf.cond(
        tf.reduce_any(origins[1:] < origins[:-1]),
        of_marks_in_another_order,
        lambda: (tf.gather(origins, firsts), tf.gather(origins, lasts) + 1),
    )


def _ranks(chosen: tf.Tensor) -> tf.Tensor:
    """For each `chosen` element its number among these; for others that of the previous chosen one (0 if none)."""
    return tf.maximum(tf.cumsum(tf.cast(chosen, tf.int32)) - 1, 0)


def _has(properties: tf.Tensor, bit: int) -> tf.Tensor:
    return tf.not_equal(tf.bitwise.bitwise_and(properties, bit), 0)


# What decides about the normalization; that Chinese characters are separate tokens is a property of them.
_NORMALIZING = ("do_lower_case", "strip_accents", "drop_unassigned", "do_basic_tokenize")


@functools.cache
def _normalizing(do_lower_case: bool, strip_accents: bool, drop_unassigned: bool, is_basic: bool) -> BasicTokenizer:
    """The same object for equal settings, so that what is derived from it is made once."""
    kept = {"tokenize_chinese_chars": False, "do_basic_tokenize": is_basic}
    return BasicTokenizer(do_lower_case, strip_accents, drop_unassigned, **kept)


@functools.cache
def _properties(do_basic_tokenize: bool, tokenize_chinese_chars: bool) -> Callable[[str], int]:

    def properties(char: str) -> int:
        if char.isspace():
            return _BREAK
        is_alone = is_punctuation(char) or (tokenize_chinese_chars and is_cjk(char))
        return _KEPT | _BREAK if do_basic_tokenize and is_alone else _KEPT

    return properties

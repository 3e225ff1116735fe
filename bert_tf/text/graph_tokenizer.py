"""The tokenizer of `wordpiece.py` as TensorFlow ops: the same ids and offsets inside an exported graph.

Nothing about Unicode is left to the libraries that execute the graph, because their Unicode versions differ from
Python's and from each other. When the graph is built, `BasicTokenizer` says what each of the 1,114,112 code points
becomes, and the graph contains the result as a table (identical pages of 256 code points are stored once, so it is
small). In the graph, text becomes code points, a look-up gives each one's output and whether a token ends there, and
tensorflow-text's FastWordpiece op splits the tokens into pieces. Three cases don't fit into such a table: a character
that becomes several, a capital sigma, which depends on its neighbours, and marks that are reordered. They are handled
in a branch that runs only for batches with such characters. Texts of plain ASCII, on which all Unicode versions agree,
take a shorter path: they are lower-cased and split by the same op, which can also split at ASCII punctuation; this is
five times as fast.

Shape legend: B texts, N code points of all texts, K characters of all tokens, W tokens before they are split into
pieces, P pieces.
"""

import functools
import unicodedata
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from bert_tf.system.messages import some
from bert_tf.text.characters import characters_in_use
from bert_tf.text.graph_ops import (
    CODE_POINTS,
    OTHER,
    SIGMA,
    TRANSPARENT,
    byte_counts,
    case_beside_sigma,
    next_chosen,
    ranks,
    replace_final_sigmas,
)
from bert_tf.text.wordpiece import BasicTokenizer, FullTokenizer

_PAGE = 256

# Entry of the first table: the character that a code point becomes, and in the lowest bits
_BREAK = 1  # no token continues across it: whitespace or, if also kept, a separate token
_KEPT = 2  # it is (part of) a token; a character with neither bit is dropped
_RARE = 4  # see `_rewrite_rare`
_MARK = 8  # Unicode category M: an offset may be extended over it
_ENTRY_BITS = 4
# Entry of the second table, used only by `_rewrite_rare`: the kind of the character beside a sigma (2 bits),
_CLEANED = 4  # it is dropped before lower-casing,
_CLASS_BITS = 8  # its canonical combining class (in 8 bits),
_SEQUENCE_BITS = 16  # and the row of several characters that it becomes, 0 for none.

_LONGEST_PIECE = 256  # bytes; a limit of the FastWordpiece op


class GraphTokenizer(tf.Module):
    """`FullTokenizer.encode` and `encode_with_offsets` for a batch as a graph, with the same result for every text.

        graph_tokenizer = GraphTokenizer(tokenizer.vocab, do_lower_case=True)
        graph_tokenizer.encode(tf.constant(["one", "two words"]))  # <tf.RaggedTensor [[2028], [2048, 2616]]>

    It has no state, so threads may share it. Vocabulary and tables are constants: `tf.saved_model.save` stores them
    without an asset file, and loading the result needs `import tensorflow_text` (which TensorFlow Serving includes) but
    nothing of this project. The only op from outside TensorFlow is FastWordpieceTokenizeWithOffsets. Everything runs on
    the CPU.

    Args:
      vocab: token -> id, as `FullTokenizer.vocab`.
      do_lower_case, strip_accents: as for `FullTokenizer`.
      split_unknown: as for `FullTokenizer.encode_with_offsets`; here `encode` follows it, too.
      drop_unassigned, tokenize_chinese_chars, do_basic_tokenize: as for `BasicTokenizer`.
      unk_token, max_input_chars_per_word: as for `WordpieceTokenizer`.

    Raises:
      ValueError: the vocabulary lacks unk_token, or a token in it has more than 256 bytes.
    """

    resources = ()  # see `GraphSentencePiece`

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
        self._rules = (do_lower_case, strip_accents, drop_unassigned, tokenize_chinese_chars, do_basic_tokenize)
        self._basic = _basic_tokenizer(*self._rules)
        self._split_unknown = bool(split_unknown)
        self._unk_token, self._longest_word = unk_token, max_input_chars_per_word
        with tf.device("CPU:0"):
            self._build_tables(self._build_pieces(vocab))

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

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "texts")], autograph=False)
    def encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Ids of `texts`, string [B] in UTF-8: ragged int32 [B, None], without [CLS] and [SEP].

        Invalid bytes are left out as by `bytes.decode("utf-8", "ignore")`; it fails for no text.
        """
        return self._by_kind_of_row(texts, self._encode_ascii, self._encode_any)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "texts")], autograph=False)
    def tokenize(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """`encode` with offsets.

        Returns:
          (ids, starts, ends), each ragged int32 [B, None]: the token, the first character of the text that it covers
          and the one after the last, as by `FullTokenizer.encode_with_offsets`. Characters are code points, without
          invalid bytes.
        """
        table = self._by_kind_of_row(texts, self._tokenize_ascii, self._tokenize_any)
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

        `_tokenize_codes` limits words in code points, so the op's own limit is off."""
        model = tf_text.FastWordpieceTokenizer(
            list(pieces),
            max_bytes_per_word=2**31 - 1 if words or self._split_unknown else self._longest_word,
            token_out_type=tf.int32,
            unknown_token=unknown,
            no_pretokenization=words,
        )
        return model, tf.constant(list(pieces.values()), tf.int32)

    def _build_tables(self, alphabet: set[str]) -> None:
        """Builds the two tables and the sequences, in pages."""
        kinds, outputs, contexts, sequences = _characters(*self._rules)
        known = np.zeros(CODE_POINTS, bool)
        known[[ord(char) for char in alphabet]] = True
        entries = kinds | np.where(kinds & _KEPT, np.where(known[outputs], outputs, self._stranger), 0) << _ENTRY_BITS
        numbers = {}  # page -> its number among the distinct pages
        places = [
            numbers.setdefault(page.tobytes(), len(numbers))
            for page in np.stack([entries, contexts], -1).astype(np.int32).reshape(-1, 2 * _PAGE)
        ]
        pages = np.frombuffer(b"".join(numbers), np.int32).reshape(-1, 2)
        self._page_starts = tf.constant(np.array(places) * _PAGE, tf.int32)
        self._entries = tf.constant(pages[:, 0], tf.int32)
        self._contexts = tf.constant(pages[:, 1], tf.int32)
        self._sequences = tf.constant(sequences, tf.int32)

    # ---- the graph -----------------------------------------------------------------------------------------------

    def _by_kind_of_row(
        self,
        texts: tf.Tensor,
        of_ascii: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]],
        of_any: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]],
    ) -> tf.RaggedTensor:
        """Rows (values int32 [P] or [P, 3] and row splits) of `texts`, each by the path that suits it."""

        def mixed():
            columns = [of_ascii(tf.boolean_mask(texts, is_ascii)), of_any(tf.boolean_mask(texts, ~is_ascii))]
            rows = tf.concat(
                [tf.RaggedTensor.from_row_splits(values, splits, validate=False) for values, splits in columns], 0
            )
            ascii_count = tf.reduce_sum(tf.cast(is_ascii, tf.int32))
            rows = tf.gather(rows, tf.where(is_ascii, ranks(is_ascii), ascii_count + ranks(~is_ascii)))
            return rows.values, rows.row_splits

        with tf.device("CPU:0"):
            if not self._basic.do_basic_tokenize:  # the op would split ASCII at punctuation
                return tf.RaggedTensor.from_row_splits(*of_any(texts), validate=False)
            # Control characters except tab, newline and return must be dropped first; the other path does that.
            is_ascii = tf.strings.regex_full_match(texts, r"[\t\n\r -~]*")
            values, splits = tf.cond(tf.reduce_all(is_ascii), lambda: of_ascii(texts), mixed)
            return tf.RaggedTensor.from_row_splits(values, splits, validate=False)

    def _cut_ascii(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        texts = tf.strings.lower(texts) if self._basic.do_lower_case else texts
        pieces, starts, ends = self._ascii_pieces.tokenize_with_offsets(texts)
        return pieces.with_values(tf.gather(self._ascii_ids, pieces.values)), starts, ends

    def _encode_ascii(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        ids, _, _ = self._cut_ascii(texts)
        return ids.values, ids.row_splits

    def _tokenize_ascii(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        ids, starts, ends = self._cut_ascii(texts)
        offsets = [tf.cast(places.values, tf.int32) for places in (starts, ends)]  # in bytes, which are characters
        return tf.stack([ids.values, *offsets], 1), ids.row_splits

    def _encode_any(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        row_splits, codes = self._decode(texts)
        ids, id_splits, *_ = self._tokenize_codes(codes, self._look_up(codes), row_splits)
        return ids, id_splits

    def _tokenize_any(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        row_splits, codes = self._decode(texts)
        entries = self._look_up(codes)
        ids, id_splits, piece_bytes, characters, places = self._tokenize_codes(codes, entries, row_splits)
        starts, ends = self._places_of_pieces(piece_bytes, characters, places)
        ends = self._extend_over_marks(ends, entries)
        rows = tf.searchsorted(id_splits[1:], tf.range(tf.size(ids, tf.int64)), "right")  # [P]
        row_starts = tf.gather(row_splits, rows)
        offsets = [tf.cast(places - row_starts, tf.int32) for places in (starts, ends)]
        return tf.stack([ids, *offsets], 1), id_splits

    def _decode(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Row splits int64 [B+1] and code points int32 [N]; a space is added after each text, so that no token and no
        rule about neighbours extends into the next."""
        codes = tf.strings.unicode_decode(tf.strings.join([texts, " "]), "UTF-8", errors="ignore")
        return codes.row_splits, codes.values

    def _address(self, codes: tf.Tensor) -> tf.Tensor:
        page_starts = tf.gather(self._page_starts, tf.bitwise.right_shift(codes, 8))
        return page_starts + tf.bitwise.bitwise_and(codes, _PAGE - 1)

    def _look_up(self, codes: tf.Tensor) -> tf.Tensor:
        return tf.gather(self._entries, self._address(codes))

    def _tokenize_codes(self, codes: tf.Tensor, entries: tf.Tensor, row_splits: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Splits code points [N] into pieces.

        Returns:
          ids int32 [P]; their row splits int64 [B+1]; the number of bytes of the tokens that each piece covers [P]
          (together the pieces cover all tokens); the characters of the tokens [K]; the index of the code point that
          each comes from, int64 [K].
        """
        entries, places = tf.cond(
            tf.reduce_any(_has(entries, _RARE)),
            lambda: self._rewrite_rare(codes),
            lambda: (entries, tf.range(tf.size(codes, tf.int64))),
        )
        kept = tf.where(_has(entries, _KEPT))[:, 0]  # [K]
        # Characters with the same number form a token: a break adds two, and a separate token gets the number between.
        breaks = tf.bitwise.bitwise_and(entries, _BREAK)
        token_numbers = tf.gather(2 * tf.cumsum(breaks) - breaks, kept)  # [K]
        characters = tf.bitwise.right_shift(tf.gather(entries, kept), _ENTRY_BITS)  # [K]
        places = tf.gather(places, kept)  # [K]
        previous = tf.concat([[-1], token_numbers], 0)[:-1]
        token_starts = tf.where(tf.not_equal(token_numbers, previous))[:, 0]  # [W]
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
        row_splits = tf.searchsorted(tf.gather(places, token_starts), row_splits, out_type=tf.int64)
        id_splits = tf.gather(pieces.row_splits, row_splits)  # [B+1]
        return tf.gather(self._any_ids, pieces.values), id_splits, ends.values - firsts.values, characters, places

    def _make_unknown(self, characters: tf.Tensor, starts: tf.Tensor) -> tf.Tensor:
        """Puts a character that occurs in no token at `starts`."""
        return tf.tensor_scatter_nd_update(characters, starts[:, None], tf.fill(tf.shape(starts), self._stranger))

    def _rewrite_rare(self, codes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Replaces code points [N] that the first table can't express by code points that it can.

        Returns:
          Entries int32 [N'] and the index in `codes` that each comes from, int64 [N'].
        """
        contexts = tf.gather(self._contexts, self._address(codes))
        places = tf.where(tf.logical_not(_has(contexts, _CLEANED)))[:, 0]
        codes, contexts = tf.gather(codes, places), tf.gather(contexts, places)
        if self._basic.do_lower_case:
            codes = replace_final_sigmas(codes, tf.bitwise.bitwise_and(contexts, 3))
        # One character becomes several.
        sequence_rows = tf.bitwise.right_shift(contexts, _SEQUENCE_BITS)
        sequences = tf.gather(self._sequences, sequence_rows)  # [N, longest], -1 after the end
        sequences = tf.concat([tf.where(sequence_rows > 0, sequences[:, 0], codes)[:, None], sequences[:, 1:]], 1)
        chosen = tf.where(sequences >= 0)
        codes, places = tf.gather_nd(sequences, chosen), tf.gather(places, chosen[:, 0])
        if self._basic.strip_accents:
            # NFD sorts the marks between two characters of class 0 by their classes.
            classes = tf.bitwise.right_shift(tf.gather(self._contexts, self._address(codes)), _CLASS_BITS)
            classes = tf.cast(tf.bitwise.bitwise_and(classes, 255), tf.int64)
            keys = 256 * tf.cumsum(tf.cast(tf.equal(classes, 0), tf.int64)) + classes
            codes, places = tf.cond(
                tf.reduce_any(keys[1:] < keys[:-1]),
                lambda: _in_order_of(keys, codes, places),
                lambda: (codes, places),
            )
        return self._look_up(codes), places

    def _places_of_pieces(
        self, piece_bytes: tf.Tensor, characters: tf.Tensor, places: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Where each piece's characters start and end (exclusive), int64 [P]."""
        last_characters = tf.searchsorted(
            tf.cumsum(byte_counts(characters)), tf.cumsum(piece_bytes), out_type=tf.int64
        )  # [P]
        first_characters = tf.concat([[0], last_characters + 1], 0)[:-1]

        def of_marks_in_another_order():
            pieces = tf.searchsorted(last_characters, tf.range(tf.size(places, tf.int64)), out_type=tf.int64)
            return tf.math.segment_min(places, pieces), tf.math.segment_max(places, pieces) + 1

        return tf.cond(
            tf.reduce_any(places[1:] < places[:-1]),
            of_marks_in_another_order,
            lambda: (tf.gather(places, first_characters), tf.gather(places, last_characters) + 1),
        )

    def _extend_over_marks(self, ends: tf.Tensor, entries: tf.Tensor) -> tf.Tensor:
        """Moves `ends` [P] over marks (in `entries` [N]) that vanished or are not part of the same token."""
        marks = _has(entries, _MARK)

        def extend():
            # A mark that is kept continues the token before it, unless that is a separate token.
            all_marks = next_chosen(tf.logical_not(marks), ends)
            lost_marks = next_chosen(tf.logical_or(tf.logical_not(marks), _has(entries, _KEPT)), ends)
            return tf.where(_has(tf.gather(entries, ends - 1), _BREAK), all_marks, lost_marks)

        return tf.cond(tf.reduce_any(marks), extend, lambda: ends)


def _has(entries: tf.Tensor, bit: int) -> tf.Tensor:
    return tf.not_equal(tf.bitwise.bitwise_and(entries, bit), 0)


def _in_order_of(keys: tf.Tensor, *values: tf.Tensor) -> tuple[tf.Tensor, ...]:
    order = tf.argsort(keys, stable=True)
    return tuple(tf.gather(value, order) for value in values)


# ---- what the Python tokenizer makes of each code point --------------------------------------------------------------


def _basic_tokenizer(
    do_lower_case: bool,
    strip_accents: bool | None,
    drop_unassigned: bool,
    tokenize_chinese_chars: bool,
    do_basic_tokenize: bool,
) -> BasicTokenizer:
    return BasicTokenizer(
        do_lower_case,
        strip_accents,
        drop_unassigned,
        tokenize_chinese_chars=tokenize_chinese_chars,
        do_basic_tokenize=do_basic_tokenize,
    )


@functools.cache
def _characters(*rules: bool | None) -> tuple[np.ndarray, ...]:
    """The properties of all code points; rules: arguments of `_basic_tokenizer`.

    Returns:
      int32 [code points] each: the low bits of entries; the characters that code points become; the second table.
      int32 [rows, longest]: the sequences that code points become, padded with -1; the first row is for none.
    """
    basic = _basic_tokenizer(*rules)
    do_lower_case, strip_accents, drop_unassigned = basic.do_lower_case, basic.strip_accents, basic.drop_unassigned
    kinds = np.full(CODE_POINTS, 0 if drop_unassigned else _KEPT, np.int32)
    outputs = np.arange(CODE_POINTS, dtype=np.int32)
    contexts = np.full(CODE_POINTS, _CLEANED | TRANSPARENT if drop_unassigned else OTHER, np.int32)
    chars = characters_in_use()
    fates = _fates(basic, chars)
    sequences = [[]]
    for char, (kind, body) in zip(chars, fates, strict=True):
        code = ord(char)
        full = char.lower() if do_lower_case else char
        if strip_accents:
            full = unicodedata.normalize("NFD", full)
        classes = [unicodedata.combining(part) for part in full]
        combining_class = 0 if not strip_accents or 0 in classes else classes[0]
        if unicodedata.category(char).startswith("M"):
            kind |= _MARK
        contexts[code] = case_beside_sigma(char) | combining_class << _CLASS_BITS
        if basic.clean(char) is None:
            contexts[code] = _CLEANED | TRANSPARENT
        if len(body) > 1:
            contexts[code] |= len(sequences) << _SEQUENCE_BITS
            sequences.append([ord(part) for part in full])
        elif body:
            outputs[code] = ord(body)
        sigma = do_lower_case and code == SIGMA
        kinds[code] = kind | (_RARE if len(body) > 1 or sigma or (body and combining_class) else 0)
    longest = max(map(len, sequences))
    table = np.full((len(sequences), max(longest, 1)), -1, np.int32)
    for row, sequence in zip(table, sequences, strict=True):
        row[: len(sequence)] = sequence
        # The characters of a sequence are looked up again and must not change any more.
        assert all(outputs[code] == code or not kinds[code] & _KEPT for code in sequence)
    return kinds, outputs, contexts, table


def _fates(tokenizer: BasicTokenizer, chars: list[str]) -> list[tuple[int, str]]:
    """What each character becomes inside a word: its bits of an entry, and its part of a token or the whole token."""
    tokens = iter(tokenizer.tokenize(" ".join(f"0{char}1" for char in chars)))
    fates = []
    for first, char in zip(tokens, chars, strict=False):
        if len(first) > 1:  # "0", the character, "1": one token
            fates.append((_KEPT if len(first) > 2 else 0, first[1:-1]))
            continue
        second = next(tokens)
        if second == "1":
            fates.append((_BREAK, ""))
            continue
        third = next(tokens)
        if first + third != "01" or len(second) != 1:
            raise AssertionError(f"no table for {char!r}: {first!r} {second!r} {third!r}")
        fates.append((_KEPT | _BREAK, second))
    return fates

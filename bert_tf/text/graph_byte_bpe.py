"""Byte-level BPE as TensorFlow ops: the ids and offsets of `ByteBpeTokenizer` inside an exported graph.

The split into words can't be left to TensorFlow's regular expressions, which have neither look-ahead nor the Unicode
version of the `tokenizers` library. Instead, the library says for each code point whether it is a letter, a digit,
whitespace or anything else, and the graph derives from the classes of neighbours where words begin. Most words are a
piece of the vocabulary as a whole and are looked up; the others start as bytes, and in a loop each word's first pair in
the list of merges is merged, in all words at once. Look-ups are binary searches in constants: a hash table would be a
resource, which an export would have to initialise.

Shape legend: R parts of texts, N code points of all parts, W words, U different words that aren't pieces, n symbols of
these, P pieces.
"""

import functools
import json
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
from tokenizers import Regex, pre_tokenizers

from bert_tf.text.byte_bpe import WORD_START, ByteBpeTokenizer
from bert_tf.text.graph_added_tokens import Parts, Pieces, TokenizerGraph
from bert_tf.text.graph_characters import CODE_POINTS, CodePointTable, byte_counts

_LETTER, _DIGIT, _SPACE, _OTHER = range(4)
_NEVER = np.iinfo(np.int32).max  # the rank of a pair that isn't merged
_BUCKETS = 2**63 - 1


class GraphByteBpe(TokenizerGraph):
    """`ByteBpeTokenizer.encode` and `encode_with_offsets` for a batch as a graph, with the same result for every text.

    Everything is TensorFlow's own ops and constants.

    Args:
      split_unknown: makes no difference, since nothing is unknown.

    Raises:
      ValueError: the tokenizer has a normalizer, or a list of merges that no training gives, so that
        their order matters beyond their ranks.
    """

    _trims = True

    def __init__(self, tokenizer: ByteBpeTokenizer, split_unknown: bool = False):
        super().__init__(tokenizer, "graph_byte_bpe")
        values = json.loads(tokenizer.files()["tokenizer.json"])
        model = values["model"]
        merges = [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in model["merges"]]
        _check(values, model, merges)
        self._add_prefix_space = tokenizer.add_prefix_space
        vocab = model["vocab"]
        with tf.device("CPU:0"):
            self._classes = CodePointTable(_classes())
            alphabet = _characters_of_bytes()
            self._byte_ids = tf.constant([vocab[char] for char in alphabet], tf.int32)
            self._build_merges(vocab, merges)
            self._build_words(vocab, tokenizer, {char: byte for byte, char in enumerate(alphabet)})

    # ---- constants --------------------------------------------------------------------------------------------------

    def _build_merges(self, vocab: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> None:
        """The pairs, as one number each, in the order of these numbers; with rank and result."""
        self._size = max(vocab.values()) + 1
        keys = np.array([vocab[left] * self._size + vocab[right] for left, right in merges], np.int64)
        order = np.argsort(keys)
        self._pairs = tf.constant(keys[order], tf.int64)
        self._ranks = tf.constant(order, tf.int32)
        self._results = tf.constant([vocab["".join(merges[rank])] for rank in order], tf.int32)
        spaces = np.zeros((2, self._size), np.int64)
        for token, index in vocab.items():
            spaces[:, index] = [
                len(token) - len(token.lstrip(WORD_START)),
                len(token) - len(token.rstrip(WORD_START)),
            ]
        self._leading, self._trailing = tf.constant(spaces[0]), tf.constant(spaces[1])

    def _build_words(self, vocab: Mapping[str, int], tokenizer: ByteBpeTokenizer, byte_of: Mapping[str, int]) -> None:
        """The pieces that are words as a whole: their texts and ids, in the order of the fingerprints of the texts."""
        texts, ids = [], []
        for token, index in vocab.items():
            if not all(char in byte_of for char in token):
                continue
            text = bytes(byte_of[char] for char in token)
            if tokenizer.merge(token) == [index]:
                texts.append(text)
                ids.append(index)
        fingerprints = tf.strings.to_hash_bucket_fast(texts, _BUCKETS).numpy()
        # Of two texts with one fingerprint, the second is left to the merges.
        fingerprints, firsts = np.unique(fingerprints, return_index=True)
        self._fingerprints = tf.constant(fingerprints, tf.int64)
        self._word_texts = tf.constant([texts[first] for first in firsts])
        self._word_ids = tf.constant([ids[first] for first in firsts], tf.int32)

    # ---- the graph --------------------------------------------------------------------------------------------------

    def _pieces(self, parts: Parts, with_offsets: bool) -> Pieces:
        codes, row_splits, origins = parts.rows
        added = tf.zeros_like(codes, tf.int64)  # 1 for a space that is put before the characters of a part
        if self._add_prefix_space:
            spaces = [ord(" ")] * 2
            needs_space = tf.not_equal(tf.gather(tf.concat([codes, spaces], 0), row_splits[:-1]), spaces[0])
            needs_space &= row_splits[1:] > row_splits[:-1]
            counts = tf.cast(needs_space, tf.int64)

            def with_space(values: tf.Tensor, space: tf.Tensor) -> tf.RaggedTensor:
                spaces = tf.RaggedTensor.from_row_lengths(tf.boolean_mask(space, needs_space), counts, validate=False)
                return tf.concat([spaces, tf.RaggedTensor.from_row_splits(values, row_splits, validate=False)], 1)

            added = with_space(added, counts).values
            origins = with_space(origins, parts.begins).values
            with_spaces = with_space(codes, tf.fill(tf.shape(counts), spaces[0]))
            codes, row_splits = with_spaces.values, with_spaces.row_splits
        firsts = tf.where(self._word_starts(codes, row_splits))[:, 0]  # [W]
        word_splits = tf.concat([firsts, [tf.size(codes, tf.int64)]], 0)  # [W+1]
        words = tf.RaggedTensor.from_row_splits(codes, word_splits, validate=False)
        pieces = self._pieces_of_words(words)  # [W, None, 2]
        ids, sizes = pieces.values[:, 0], tf.cast(pieces.values[:, 1], tf.int64)
        splits = tf.gather(pieces.row_splits, tf.searchsorted(firsts, row_splits, out_type=tf.int64))
        if not with_offsets:
            return Pieces(ids, splits)
        # Without spaces at either end, as in the library.
        byte_ends, character_ends = tf.cumsum(sizes), tf.cumsum(byte_counts(codes))
        first = tf.searchsorted(character_ends, byte_ends - sizes, "right", tf.int64)
        last = tf.searchsorted(character_ends, byte_ends - 1, "right", tf.int64)
        is_added = tf.gather(added, first)
        leading = tf.gather(self._leading, ids) - is_added
        starts, ends = tf.gather(origins, first), tf.gather(origins, last) + 1 - tf.gather(added, last)
        if self._add_prefix_space:
            # A single space at the beginning of a text isn't left out there, whether it was added or not.
            rows = tf.ragged.row_splits_to_segment_ids(splits, out_type=tf.int64)
            text_starts = tf.gather(parts.text.splits, tf.gather(parts.texts, rows))
            leading = tf.where(tf.equal(starts, text_starts) & tf.equal(leading, 1), tf.zeros_like(leading), leading)
        starts = tf.minimum(starts + leading, ends)
        ends = tf.maximum(ends - tf.gather(self._trailing, ids), starts)
        return Pieces(ids, splits, starts, ends, parts.rows.origins)

    def _word_starts(self, codes: tf.Tensor, row_splits: tf.Tensor) -> tf.Tensor:
        """bool [N]: whether a word, number, run of other characters or run of whitespace begins."""
        kinds = self._classes(codes)
        places = tf.boolean_mask(row_splits[:-1], row_splits[1:] > row_splits[:-1])
        first = tf.scatter_nd(places[:, None], tf.ones_like(places, tf.int32), [tf.size(codes, tf.int64)]) > 0
        last = _shifted(first, -1, True)
        before, after = _shifted(kinds, 1, _OTHER), _shifted(kinds, -1, _OTHER)
        is_space = tf.equal(kinds, _SPACE)
        # The last character of whitespace before a word is apart from the rest; a space becomes part of the word.
        before_word = ~last & tf.not_equal(after, _SPACE)
        after_space = ~first & tf.equal(_shifted(codes, 1, 0), ord(" "))
        starts = first | (~after_space & tf.not_equal(kinds, before)) | (is_space & (before_word | (kinds != before)))
        # 's 't 'm 'd 're 've 'll, where the apostrophe begins a part: they end after these letters.
        next_code = tf.where(last, 0, _shifted(codes, -1, 0))
        third_code = tf.where(last | _shifted(last, -1, True), 0, _shifted(codes, -2, 0))
        apostrophe = starts & tf.equal(codes, ord("'"))
        one = apostrophe & _among(next_code, "stmd")
        pairs = [(next_code == ord(a)) & (third_code == ord(b)) for a, b in ("re", "ve", "ll")]
        two = apostrophe & functools.reduce(tf.logical_or, pairs)
        inside = _shifted(one | two, 1, False) | _shifted(two, 2, False)
        return (starts & ~inside) | _shifted(one, 2, False) | _shifted(two, 3, False)

    def _pieces_of_words(self, words: tf.RaggedTensor) -> tf.RaggedTensor:
        """int32 [W, None, 2]: for each word, as code points, its pieces: ids and numbers of bytes."""
        texts = tf.strings.unicode_encode(words, "UTF-8")
        fingerprints = tf.strings.to_hash_bucket_fast(texts, _BUCKETS)
        places = _search(self._fingerprints, fingerprints)
        known = tf.equal(tf.gather(self._word_texts, places), texts)
        whole = tf.stack([tf.gather(self._word_ids, places), tf.strings.length(texts)], 1)  # [W, 2]
        numbers = tf.range(tf.size(texts))

        def with_merges():
            rest = tf.boolean_mask(numbers, ~known)
            different, number_of = tf.unique(tf.boolean_mask(texts, ~known))
            one_each = tf.math.unsorted_segment_min(rest, number_of, tf.size(different))
            merged = self._merge(tf.gather(words, one_each))  # [U, None, 2]
            singles = tf.RaggedTensor.from_uniform_row_length(whole, 1)
            rows = tf.tensor_scatter_nd_update(numbers, rest[:, None], tf.size(numbers) + number_of)
            found = tf.gather(tf.concat([singles, merged], 0), rows)
            return found.values, found.row_splits

        values, splits = tf.cond(
            tf.reduce_all(known), lambda: (whole, tf.range(tf.size(numbers, tf.int64) + 1)), with_merges
        )
        return tf.RaggedTensor.from_row_splits(values, splits, validate=False)

    def _merge(self, words: tf.RaggedTensor) -> tf.RaggedTensor:
        """int32 [U, None, 2]: words, as code points, to the ids of their pieces and numbers of bytes, by merges."""
        codes = words.values
        sizes = byte_counts(codes)
        is_byte = tf.range(4, dtype=tf.int64) < sizes[:, None]
        symbols = tf.gather(self._byte_ids, tf.boolean_mask(_bytes_of(codes), is_byte))
        owners = tf.repeat(tf.cast(words.value_rowids(), tf.int32), sizes)
        symbols, owners, sizes, *_ = tf.while_loop(
            lambda symbols, owners, sizes, ranks, results: tf.reduce_any(ranks < _NEVER),
            self._merge_once,
            (symbols, owners, tf.ones_like(symbols), *self._ranks_of(symbols, owners)),
            shape_invariants=(tf.TensorShape([None]),) * 5,
        )
        return tf.RaggedTensor.from_value_rowids(
            tf.stack([symbols, sizes], 1), tf.cast(owners, tf.int64), words.nrows()
        )

    def _ranks_of(self, symbols: tf.Tensor, owners: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Rank and result of each symbol with the next of its word, int32 [n-1]."""
        pairs = tf.cast(symbols[:-1], tf.int64) * self._size + tf.cast(symbols[1:], tf.int64)
        places = _search(self._pairs, pairs)
        merges = tf.equal(tf.gather(self._pairs, places), pairs) & tf.equal(owners[:-1], owners[1:])
        return tf.where(merges, tf.gather(self._ranks, places), _NEVER), tf.gather(self._results, places)

    def _merge_once(self, symbols, owners, sizes, ranks, results) -> tuple[tf.Tensor, ...]:
        """Merges the pair of lowest rank of each word, wherever it occurs, from the left."""
        best = tf.gather(tf.math.segment_min(ranks, owners[:-1]), owners[:-1])
        chosen = (ranks < _NEVER) & tf.equal(ranks, best)
        # Of overlapping ones (three equal symbols in a row) every second is merged.
        run_starts = chosen & ~_shifted(chosen, 1, False)
        places = tf.range(tf.size(chosen))
        run_numbers = tf.maximum(tf.cumsum(tf.cast(run_starts, tf.int32)) - 1, 0)
        starts = tf.gather(tf.where(run_starts)[:, 0], run_numbers)
        chosen = chosen & tf.equal((places - tf.cast(starts, tf.int32)) % 2, 0)
        merged = tf.concat([chosen, [False]], 0)  # [n]
        kept = ~_shifted(merged, 1, False)
        symbols = tf.where(merged, tf.concat([results, [0]], 0), symbols)
        sizes = sizes + tf.where(merged, _shifted(sizes, -1, 0), 0)
        symbols, owners, sizes = (tf.boolean_mask(values, kept) for values in (symbols, owners, sizes))
        return symbols, owners, sizes, *self._ranks_of(symbols, owners)


# ---- helpers --------------------------------------------------------------------------------------------------------


def _shifted(values: tf.Tensor, by: int, fill) -> tf.Tensor:
    """`values` moved to the right (to the left if `by` is negative), with `fill` in the places that become free."""
    filled = tf.fill([tf.minimum(abs(by), tf.size(values))], tf.constant(fill, values.dtype))
    return tf.concat([filled, values[:-by]], 0) if by > 0 else tf.concat([values[-by:], filled], 0)


def _among(codes: tf.Tensor, characters: str) -> tf.Tensor:
    return functools.reduce(tf.logical_or, [tf.equal(codes, ord(char)) for char in characters])


def _search(keys: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
    """Where each of `wanted` is in the sorted `keys`, or any place if it isn't."""
    return tf.minimum(tf.searchsorted(keys, wanted), tf.size(keys) - 1)


def _bytes_of(codes: tf.Tensor) -> tf.Tensor:
    """int32 [N, 4]: the bytes of code points in UTF-8; what follows the last of each has no meaning."""
    tails = [128 + tf.bitwise.bitwise_and(tf.bitwise.right_shift(codes, shift), 63) for shift in (0, 6, 12)]
    heads = [codes, *(mark + tf.bitwise.right_shift(codes, shift) for mark, shift in ((192, 6), (224, 12), (240, 18)))]
    zero = tf.zeros_like(codes)
    forms = [
        [heads[0], zero, zero, zero],
        [heads[1], tails[0], zero, zero],
        [heads[2], tails[1], tails[0], zero],
        [heads[3], tails[2], tails[1], tails[0]],
    ]
    forms = tf.stack([tf.stack(form, -1) for form in forms], 1)  # [N, 4 forms, 4 bytes]
    return tf.gather(forms, byte_counts(codes) - 1, axis=1, batch_dims=1)


@functools.cache
def _characters_of_bytes() -> list[str]:
    """The character that stands for each byte (Radford et al. 2019; fairseq: bytes_to_unicode)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in shown else next(others)) for byte in range(256)]


@functools.cache
def _classes() -> np.ndarray:
    """int32 [CODE_POINTS]: how the library's regular expressions classify each code point."""
    # Beyond plane 3 only plane 14 is in use, and private use.
    codes = np.array([code for code in (*range(0x40000), *range(0xE0000, 0xF0000)) if not 0xD800 <= code <= 0xDFFF])
    text = "".join(map(chr, codes))
    classes = np.full(CODE_POINTS, _OTHER, np.int32)
    for kind, pattern in ((_LETTER, r"\p{L}+"), (_DIGIT, r"\p{N}+"), (_SPACE, r"\s+")):
        is_kind = np.ones(len(codes), bool)
        for _, (start, end) in pre_tokenizers.Split(Regex(pattern), "removed").pre_tokenize_str(text):
            is_kind[start:end] = False
        classes[codes[is_kind]] = kind
    return classes


def _check(values: Mapping, model: Mapping, merges: Sequence[tuple[str, str]]) -> None:
    """Refuses tokenizers that the graph would not follow.

    Raises:
      ValueError: see `GraphByteBpe`.
    """
    reasons = {
        "a normalizer": values.get("normalizer"),
        "dropout": model.get("dropout"),
        "ignore_merges": model.get("ignore_merges"),
        "marks of subwords": model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"),
    }
    made = {}  # piece -> the last rank that makes it
    for rank, pair in enumerate(merges):
        made["".join(pair)] = rank
    reasons["merges of pieces that later merges make"] = any(
        made.get(part, -1) >= rank for rank, pair in enumerate(merges) for part in pair
    )
    if found := [name for name, value in reasons.items() if value]:
        raise ValueError(f"this byte-level BPE has {', '.join(found)}, which an exported graph can't follow exactly.")

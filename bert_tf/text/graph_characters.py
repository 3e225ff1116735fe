"""Characters of texts as TensorFlow ops: code points, tables of them, and a tokenizer's normalization.

The Unicode versions of the libraries that execute the graph differ, so when it is built, Python says what each code
point becomes, and tables hold the answers. Two rules look at neighbours and are ops: a capital sigma at the end of a
word, and the order of combining marks.

Shape legend: B texts, R rows of characters (texts), N characters of all rows.
"""

import functools
import unicodedata
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.text.characters import characters_in_use

CODE_POINTS = 0x110000
_PAGE = 256
_SIGMA, _SMALL_SIGMA, _FINAL_SIGMA = 0x3A3, 0x3C3, 0x3C2
# How `str.lower` classifies the character next to a sigma.
_TRANSPARENT, _CASED, _OTHER = 0, 1, 2
# Entry of a code point: 0 for itself, else the place in the sequences of what it becomes, and the number of characters
_COUNT_BITS, _COUNT = 6, 63  # below it; plus one
_BETWEEN = "qzq"  # no character becomes this
_UNASSIGNED = "\U00050000"  # treated as all code points that are not in use
# Two marks that are not accents, which Unicode's normal forms put into the other order.
_TWO_MARKS = "\u302e\U0001d165"


@functools.lru_cache(32)
def values_of(rule: Callable[[str], int]) -> np.ndarray:
    """int32 [CODE_POINTS]: what a rule says of each character; those that are not in use are all treated alike."""
    values = np.full(CODE_POINTS, rule(_UNASSIGNED), np.int32)
    chars = characters_in_use()
    values[[*map(ord, chars)]] = [*map(rule, chars)]
    return values


class CodePointTable(tf.Module):
    """A number for each code point, as constants of a graph: pages of 256 that are equal are stored once."""

    def __init__(self, values: np.ndarray):
        super().__init__(name="code_point_table")
        numbers = {}  # page -> its number among the distinct pages
        pages = values.astype(np.int32).reshape(-1, _PAGE)
        starts = [numbers.setdefault(page.tobytes(), len(numbers)) * _PAGE for page in pages]
        self._starts = tf.constant(starts, tf.int32)
        self._values = tf.constant(np.frombuffer(b"".join(numbers), np.int32))

    def __call__(self, codes: tf.Tensor) -> tf.Tensor:
        starts = tf.gather(self._starts, tf.bitwise.right_shift(codes, 8))
        return tf.gather(self._values, starts + tf.bitwise.bitwise_and(codes, _PAGE - 1))


class Rows(NamedTuple):
    """Characters of rows: int32 [N], where rows begin and the last ends, int64 [R+1], and the code points of the texts
    that they come from, int64 [N]."""

    characters: tf.Tensor
    splits: tf.Tensor
    origins: tf.Tensor

    def owners(self) -> tf.Tensor:
        return tf.ragged.row_splits_to_segment_ids(self.splits, out_type=tf.int64)


def decode_rows(texts: tf.Tensor) -> Rows:
    """The characters of texts, string [B] in UTF-8, without invalid bytes."""
    # The space completes a character that the end cuts off.
    decoded = tf.strings.unicode_decode(tf.strings.join([texts, " "]), "UTF-8", errors="ignore")
    splits, codes = decoded.row_splits, decoded.values
    is_end = tf.scatter_nd(splits[1:, None] - 1, tf.ones_like(splits[1:], tf.int32), [tf.size(codes, tf.int64)]) > 0
    codes = tf.boolean_mask(codes, ~is_end)
    return Rows(codes, splits - tf.range(tf.size(splits, tf.int64)), tf.range(tf.size(codes, tf.int64)))


class GraphNormalizer(tf.Module):
    """A tokenizer's normalization of rows: character by character, but for capital sigmas and the order of marks."""

    def __init__(self, normalize: Callable[[str], str]):
        super().__init__(name="graph_normalizer")
        entries, sequences = _outputs(normalize)
        self._entries, self._sequences = CodePointTable(entries), tf.constant(sequences, tf.int32)
        self._lowers = normalize("A") == "a"
        self._sorts = normalize(f"A{_TWO_MARKS}").endswith(_TWO_MARKS[0])
        self._kinds = CodePointTable(values_of(_kind_next_to_sigma))
        if self._sorts:
            self._classes = CodePointTable(values_of(_combining_class))
            self._delimiters = CodePointTable(_delimiters(normalize, entries))

    def __call__(self, rows: Rows) -> Rows:
        # A space behind each row, so that no rule about neighbours extends into the next.
        lengths = rows.splits[1:] - rows.splits[:-1]
        owners = tf.repeat(tf.range(tf.size(lengths, tf.int64)), lengths + 1)

        def with_end(values: tf.Tensor, end) -> tf.Tensor:
            ragged = tf.RaggedTensor.from_row_splits(values, rows.splits, validate=False)
            return tf.concat([ragged, tf.fill([tf.size(lengths), 1], tf.constant(end, values.dtype))], 1).values

        codes, origins = with_end(rows.characters, ord(" ")), with_end(rows.origins, -1)
        characters, sources = self._expand(codes)
        if self._lowers:
            lower = functools.partial(self._lower_sigmas, characters)
            characters = tf.cond(tf.reduce_any(tf.equal(characters, _SIGMA)), lower, lambda: characters)
        if self._sorts:
            classes, unsorted = self._classes(characters), (characters, sources)

            def in_order() -> tuple[tf.Tensor, tf.Tensor]:
                # The marks between two characters of class 0, of which some are dropped later, by their classes.
                groups = tf.cumsum(tf.cast(self._delimiters(codes), tf.int64))
                order = tf.argsort(256 * tf.gather(groups, unsorted[1]) + tf.cast(classes, tf.int64), stable=True)
                return tuple(tf.gather(values, order) for values in unsorted)

            characters, sources = tf.cond(tf.reduce_any(classes > 0), in_order, lambda: unsorted)
        origins, owners = tf.gather(origins, sources), tf.gather(owners, sources)
        kept = origins >= 0
        owners = tf.boolean_mask(owners, kept)
        splits = tf.searchsorted(owners, tf.range(tf.size(lengths, tf.int64) + 1), out_type=tf.int64)
        return Rows(tf.boolean_mask(characters, kept), splits, tf.boolean_mask(origins, kept))

    def _expand(self, codes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The replacements, capital sigmas undecided, and the place in `codes` that each is from."""
        entries = self._entries(codes)
        is_same = tf.equal(entries, 0)
        counts = tf.cast(tf.where(is_same, 1, tf.bitwise.bitwise_and(entries - 1, _COUNT)), tf.int64)
        sources = tf.repeat(tf.range(tf.size(codes, tf.int64)), counts)
        within = tf.range(tf.size(sources, tf.int64)) - tf.gather(tf.cumsum(counts, exclusive=True), sources)
        starts = tf.cast(tf.bitwise.right_shift(entries - 1, _COUNT_BITS), tf.int64)
        is_same = tf.gather(is_same, sources)
        places = tf.where(is_same, tf.zeros_like(within), tf.gather(starts, sources) + within)
        return tf.where(is_same, tf.gather(codes, sources), tf.gather(self._sequences, places)), sources

    def _lower_sigmas(self, characters: tf.Tensor) -> tf.Tensor:
        """The rule of `str.lower`: a capital sigma becomes a final sigma after a cased character, unless one follows;
        case-ignorable characters do not count on either side."""
        kinds = self._kinds(characters)
        counted = tf.not_equal(kinds, _TRANSPARENT)
        cased = tf.equal(tf.boolean_mask(kinds, counted), _CASED)
        final = tf.concat([[False], cased[:-1]], 0) & ~tf.concat([cased[1:], [False]], 0)
        number = tf.maximum(tf.cumsum(tf.cast(counted, tf.int32)) - 1, 0)
        lowered = tf.where(tf.gather(final, number), _FINAL_SIGMA, _SMALL_SIGMA)
        return tf.where(tf.equal(characters, _SIGMA), lowered, characters)


# ---- what Python makes of each code point ----------------------------------------------------------------------------


@functools.lru_cache(8)
def _outputs(normalize: Callable[[str], str]) -> tuple[np.ndarray, list[int]]:
    chars = [_UNASSIGNED, *characters_in_use()]
    inside = normalize(_BETWEEN.join(f"a{char}a" for char in chars)).split(_BETWEEN)
    last = normalize(f" {_BETWEEN} ".join(f"a{char}" for char in chars)).split(f" {_BETWEEN} ")
    entries, sequences, places = np.zeros(CODE_POINTS, np.int32), [0], {}
    for char, word, end in zip(chars, inside, last, strict=True):
        output = word[1:-1]
        if len(end) == len(output) + 1:  # they differ in a sigma, which is decided later
            output = "".join(a if a == b else chr(_SIGMA) for a, b in zip(output, end[1:], strict=True))
        if output != char and output not in places:
            places[output] = len(sequences)
            sequences += map(ord, output)
        entry = 0 if output == char else (places[output] << _COUNT_BITS | len(output)) + 1
        if char == _UNASSIGNED:
            entries[:] = entry
        entries[ord(char)] = entry
    return entries, sequences


def _kind_next_to_sigma(char: str) -> int:
    if f" {char}\u03a3".lower()[-1] == "\u03c2":
        return _CASED
    return _TRANSPARENT if f"A{char}\u03a3".lower()[-1] == "\u03c2" else _OTHER


def _combining_class(char: str) -> int:
    return min(map(unicodedata.combining, unicodedata.normalize("NFD", char)))


def _delimiters(normalize: Callable[[str], str], entries: np.ndarray) -> np.ndarray:
    """1 for characters over which no mark moves: those of class 0, unless they are dropped before marks are sorted."""
    classes, is_dropped = values_of(_combining_class), (entries > 0) & ((entries - 1) & _COUNT == 0)

    def delimits(char: str) -> bool:
        if classes[ord(char)] or not is_dropped[ord(char)]:
            return classes[ord(char)] == 0
        return not normalize(f"A{_TWO_MARKS[0]}{char}{_TWO_MARKS[1]}").endswith(_TWO_MARKS[0])

    return values_of.__wrapped__(delimits)

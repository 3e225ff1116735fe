"""TensorFlow ops that tokenizers in graphs share: text as code points, and properties of code points.

Shape legend: B texts, N code points of all texts.
"""

import numpy as np
import tensorflow as tf

CODE_POINTS = 0x110000
SIGMA, _FINAL_SIGMA = 0x3A3, 0x3C2
# How `str.lower` classifies the character beside a sigma.
TRANSPARENT, CASED, OTHER = 0, 1, 2
_PAGE = 256


class CodePointTable(tf.Module):
    """A number for each code point, as constants of a graph: pages of 256 that are equal are stored once.

    Args:
      values: int32 [CODE_POINTS].
    """

    def __init__(self, values: np.ndarray):
        super().__init__(name="code_point_table")
        numbers = {}  # page -> its number among the distinct pages
        pages = values.astype(np.int32).reshape(-1, _PAGE)
        starts = [numbers.setdefault(page.tobytes(), len(numbers)) * _PAGE for page in pages]
        self._starts = tf.constant(starts, tf.int32)
        self._values = tf.constant(np.frombuffer(b"".join(numbers), np.int32))

    def __call__(self, codes: tf.Tensor) -> tf.Tensor:
        """The numbers of `codes`, int32."""
        starts = tf.gather(self._starts, tf.bitwise.right_shift(codes, 8))
        return tf.gather(self._values, starts + tf.bitwise.bitwise_and(codes, _PAGE - 1))


def decode(texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Row splits int64 [B+1] and code points int32 [N] of UTF-8, without invalid bytes."""
    codes = tf.strings.unicode_decode(texts, "UTF-8", errors="ignore")
    return codes.row_splits, codes.values


def byte_counts(codes: tf.Tensor) -> tf.Tensor:
    """The number of bytes of each code point in UTF-8, int64."""
    return 1 + tf.add_n([tf.cast(codes >= least, tf.int64) for least in (0x80, 0x800, 0x10000)])


def ranks(chosen: tf.Tensor) -> tf.Tensor:
    """For each `chosen` element its number among these; for others that of the previous chosen one (0 if none)."""
    return tf.maximum(tf.cumsum(tf.cast(chosen, tf.int32)) - 1, 0)


def next_chosen(chosen: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """For each of `places`, the first `chosen` place from there on; there must be one."""
    before = tf.cumsum(tf.cast(chosen, tf.int32), exclusive=True)
    return tf.gather(tf.where(chosen)[:, 0], tf.gather(before, places))


def replace_final_sigmas(codes: tf.Tensor, kinds: tf.Tensor) -> tf.Tensor:
    """The rule of `str.lower`: a capital sigma becomes a final sigma after a cased character, unless one follows;
    case-ignorable characters do not count on either side.

    Args:
      codes: code points, with something of kind OTHER between texts. kinds: by `case_beside_sigma`, of each.
    """
    counted = tf.not_equal(kinds, TRANSPARENT)
    cased = tf.equal(tf.boolean_mask(kinds, counted), CASED)
    after_cased = tf.concat([[False], cased[:-1]], 0)
    before_cased = tf.concat([cased[1:], [False]], 0)
    final = tf.gather(tf.logical_and(after_cased, tf.logical_not(before_cased)), ranks(counted))
    return tf.where(tf.logical_and(tf.equal(codes, SIGMA), final), _FINAL_SIGMA, codes)


def case_beside_sigma(char: str) -> int:
    """How `str.lower` classifies a character beside a capital sigma, found by calling it."""
    if f" {char}\u03a3".lower()[-1] == "\u03c2":
        return CASED
    return TRANSPARENT if f"A{char}\u03a3".lower()[-1] == "\u03c2" else OTHER

"""What the rules of `mask_rules` share: what is masked, how rows are arranged, random numbers.

The random numbers are a function of (seed, step, row): a resumed run, and any number of replicas or workers, draw what
an undisturbed run draws. Everything is made of TensorFlow's own operations on whole batches, so it runs inside tf.data.

Shape legend: B batch, S sequence length, P predictions per row, M pairs per row, V vocabulary.
"""

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

import numpy as np
import tensorflow as tf

from bert_tf.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Masking:
    """What is masked, and how; the settings of run_pretraining.py, whose tokenizer is that of the records."""

    tokenizer: Tokenizer
    max_predictions_per_seq: int
    masked_lm_prob: float = 0.15
    do_whole_word_mask: bool = False
    mask_rate: float = 0.8
    random_rate: float = 0.1
    keep_rate: float = 0.1
    mask_smoothing: float = 0.0
    mask_rule: str = "bert"

    def __post_init__(self):
        if self.mask_smoothing and self.do_whole_word_mask:
            raise ValueError("--mask_smoothing chooses single pieces: give it or --do_whole_word_mask.")

    cls_id, sep_id, mask_id, pad_id = (
        property(attrgetter(f"tokenizer.{role}_token_id")) for role in ("cls", "sep", "mask", "pad")
    )

    @functools.cached_property
    def all_ids(self) -> np.ndarray:
        """What replacements are drawn from: every id of the vocabulary, for RoBERTa's rule less special ones."""
        names = ("pad_token", "unk_token", "cls_token", "sep_token") if self.mask_rule == "roberta" else ()
        never = {getattr(self.tokenizer, name) for name in names}
        return np.array([index for token, index in self.tokenizer.vocab.items() if token not in never], np.int32)

    def drawn(self, bits: tf.Tensor) -> tf.Tensor:
        """Tokens to replace others with, by uniform int32."""
        return tf.gather(tf.constant(self.all_ids), scale_bits(bits, len(self.all_ids)))

    @functools.cached_property
    def continuations(self) -> np.ndarray:
        """bool [largest id + 1], True for the tokens that continue a word."""
        return self.tokenizer.continuations_of(self.tokenizer.vocab)

    @property
    def fingerprint(self) -> str:
        """Digest of all in the vocabulary that the masks depend on."""
        content = json.dumps([self.cls_id, self.sep_id, self.mask_id]).encode()
        content += self.all_ids.astype("<i4").tobytes() + self.continuations.astype("u1").tobytes()
        return hashlib.sha256(content).hexdigest()

    def problem(self, rows: Mapping[str, tf.Tensor]) -> str | None:
        """How the ids of rows contradict the vocabulary, if they do, as the rest of a sentence."""
        ids, lengths = np.asarray(rows["input_ids"]), np.asarray(rows["segment_lengths"])
        if ids.max() >= len(self.continuations):
            return f"has token id {ids.max()}, the vocabulary none above {len(self.continuations) - 1}"
        ends = np.cumsum(lengths, axis=1)
        row, segment = np.nonzero(lengths)
        is_first = segment % 2 == 0
        for name, row_numbers, columns, known in (
            (self.tokenizer.cls_token, row[is_first], (ends - lengths)[row, segment][is_first], self.cls_id),
            (self.tokenizer.sep_token, row, (ends - 1)[row, segment], self.sep_id),
        ):
            tokens = ids[row_numbers, columns]
            if (tokens != known).any():
                return f"has token id {tokens[tokens != known][0]} where the vocabulary's {name} is {known}"
        return None


# --- rows -------------------------------------------------------------------------------------------------------------


def predictions_at(ids: tf.Tensor, positions: tf.Tensor) -> dict[str, tf.Tensor]:
    """The features of predictions, see `mask_rules.bert`. ids: [B, S]. positions: [B, P], S where there is none."""
    chosen = positions < ids.shape[1]
    positions = tf.where(chosen, positions, 0)
    return {
        "masked_lm_positions": positions,
        "masked_lm_ids": tf.where(chosen, tf.gather(ids, positions, batch_dims=1), 0),
        "masked_lm_weights": tf.cast(chosen, tf.float32),
    }


def write_tokens(ids: tf.Tensor, positions: tf.Tensor, tokens: tf.Tensor) -> tf.Tensor:
    """`ids` [B, S] with `tokens` [B, P] at `positions` [B, P], S for those that are written nowhere."""
    batch, length = ids.shape
    wide = tf.pad(ids, [[0, 0], [0, 1]])  # with a column that is cut off again
    indices = tf.reshape(positions + tf.range(batch)[:, None] * (length + 1), [-1, 1])
    flat = tf.tensor_scatter_nd_update(tf.reshape(wide, [-1]), indices, tf.reshape(tokens, [-1]))
    return tf.reshape(flat, [batch, length + 1])[:, :length]


def replaced(features: Mapping[str, tf.Tensor], positions: tf.Tensor, tokens: tf.Tensor) -> dict[str, tf.Tensor]:
    """The features of rows whose tokens at `positions` [B, P] are predicted, and replaced by `tokens` [B, P]."""
    ids = features["input_ids"]
    return {**features, **predictions_at(ids, positions), "input_ids": write_tokens(ids, positions, tokens)}


def continuations_of(rows: Mapping[str, tf.Tensor], masking: "Masking") -> tf.Tensor:
    """bool [B, S]: whether a token continues the word before it, by the records or else by the vocabulary."""
    continues = rows.get("word_continuations")
    if continues is None:
        return tf.gather(tf.constant(masking.continuations), rows["input_ids"])
    return continues > 0


@tf.autograph.experimental.do_not_convert
def arrange_rows(rows: Mapping[str, tf.Tensor], pad_id: int = 0) -> tuple[dict[str, tf.Tensor], tf.Tensor, tf.Tensor]:
    """Of a batch of unmasked rows, as for `mask_rules.bert`:

    features: what that returns, without the masks; of `input_ids` only padding may change.
    pair: [B, S], number of the pair that a token belongs to, M for padding.
    starts: [B, M + 1], where the pairs begin, and last the padding.
    """
    ids, lengths = rows["input_ids"], rows["segment_lengths"]
    batch, length = ids.shape
    pairs = lengths.shape[1] // 2
    ends = tf.cumsum(lengths, axis=1)  # [B, 2 M]
    positions = tf.tile(tf.range(length)[None], [batch, 1])
    segment = tf.searchsorted(ends, positions, side="right")  # [B, S], 2 M for padding
    pair = segment // 2
    real = pair < pairs
    starts = tf.concat([tf.zeros([batch, 1], tf.int32), ends[:, 1::2]], axis=1)
    features = {
        "input_ids": tf.where(real, ids, pad_id) if pad_id else ids,
        "input_mask": tf.cast(real, tf.int32),
        "segment_ids": tf.where(real, segment % 2, 0),
    }
    if "next_sentence_labels" in rows:
        features["next_sentence_labels"] = rows["next_sentence_labels"]
    if pairs > 1:
        present = lengths[:, ::2] + lengths[:, 1::2] > 0
        features |= {
            "sequence_ids": tf.where(real, pair + 1, 0),
            "position_ids": tf.where(real, positions - tf.gather(starts, pair, batch_dims=1), 0),
            "pooled_positions": tf.where(present, starts[:, :-1], 0),
            "next_sentence_weights": tf.cast(present, tf.float32),
        }
    return features, pair, starts


# --- choice -----------------------------------------------------------------------------------------------------------


def at_most(counts: tf.Tensor, limit: int) -> tf.Tensor:
    """Counts [B, M], cut in proportion where those of a row are more than `limit` together."""
    # Rounding down the running sum, and not each count, makes exactly P of them where there would be more.
    running = tf.cumsum(counts, axis=1)
    total = running[:, -1:]
    running = tf.where(total > limit, running * limit // tf.maximum(total, 1), running)
    return running - tf.pad(running, [[0, 0], [1, 0]])[:, :-1]


def choose(continues, candidate, pair, starts, counts, order_bits, masking: Masking, take_words: Callable) -> tf.Tensor:
    """Increasing positions of the tokens to predict, [B, P]; S where there are fewer.

    continues, candidate, pair: [B, S]. starts: [B, M + 1]. counts: [B, M]. order_bits: [B, S] int32, uniform.
    take_words: chooses whole words: a function of (candidate, the tokens of each token's word, those of it that follow,
      pair), all [B, S] in the random order of words, starts, counts -> bool [B, S], the tokens taken.
    """
    length = pair.shape[1]
    limit = masking.max_predictions_per_seq
    if masking.do_whole_word_mask:
        word, size, following = _words(continues, candidate, pair, starts)
        order_bits = tf.gather(order_bits, word, batch_dims=1)  # one number for all tokens of a word
    # Each pair's candidates in random order (a word's tokens side by side, in their own order), then its other tokens;
    # the pairs stay where they are, so place j of the new order is one of pair[j].
    key = tf.cast(pair * 2 + tf.cast(~candidate, tf.int32), tf.int64)
    key = key * 2**48 + unsigned(order_bits) * 2**16 + tf.range(length, dtype=tf.int64)
    key = tf.sort(key, axis=1)
    position = tf.cast(key & 0xFFFF, tf.int32)
    candidate = tf.equal(key & 2**48, 0)
    counts = tf.pad(counts, [[0, 0], [0, 1]])  # none of the padding
    rank = tf.range(length)[None] - tf.gather(starts, pair, batch_dims=1)
    if not masking.do_whole_word_mask:
        taken = candidate & (rank < tf.gather(counts, pair, batch_dims=1))
    else:
        size = tf.gather(size, position, batch_dims=1)
        following = tf.gather(following, position, batch_dims=1)
        taken = take_words(candidate, size, following, pair, starts, counts)
    if limit > length:
        taken = tf.pad(taken, [[0, 0], [0, limit - length]])
        position = tf.pad(position, [[0, 0], [0, limit - length]])
    return -tf.math.top_k(tf.where(taken, -position, -length), limit).values


def _words(continues, candidate, pair, starts):
    """Words of the candidates: number in the row, tokens in it, and tokens of it that follow; each [B, S].

    A token that continues belongs to the word before it, also over a [SEP]; the first candidate of a pair doesn't.
    """
    batch, length = candidate.shape
    running = cumsum(candidate)  # candidates up to and including each token
    before_pair = tf.gather(tf.pad(running, [[0, 0], [1, 0]]), starts, batch_dims=1)  # [B, M + 1]
    continues &= running != tf.gather(before_pair, pair, batch_dims=1) + 1  # the first of a pair
    word = tf.maximum(cumsum(candidate & ~continues) - 1, 0)
    number = tf.reshape(word + tf.range(batch)[:, None] * length, [-1])
    sizes = tf.math.unsorted_segment_sum(tf.reshape(tf.cast(candidate, tf.int32), [-1]), number, batch * length)
    sizes = tf.reshape(sizes, [batch, length])  # by the number of the word
    ends = cumsum(sizes)  # candidates up to the end of each word
    return word, tf.gather(sizes, word, batch_dims=1), tf.gather(ends, word, batch_dims=1) - running


def cumsum(values) -> tf.Tensor:
    """Running sums along the rows of [B, S] small integers or booleans, int32.

    A product with a triangle of ones is several times as fast as tf.cumsum; in float32 it is exact up to 2^24.
    """
    length = values.shape[1]
    triangle = tf.constant(np.triu(np.ones((length, length), np.float32)))
    return tf.cast(tf.matmul(tf.cast(values, tf.float32), triangle), tf.int32)


# --- random numbers ---------------------------------------------------------------------------------------------------


def random_bits(shape: Sequence[int], seed: int, step, first_row=0) -> tf.Tensor:
    """Uniform int32 [B, ...]: what `tf.random.stateless_uniform` by Philox draws for these rows of the step's batch.

    shape: of the result, static. first_row: number in the batch of the first row.
    """
    signed_seed = (seed + 2**63) % 2**64 - 2**63  # its low 64 bits
    step_seed = tf.stack([tf.constant(signed_seed, tf.int64), tf.cast(step, tf.int64)])
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=step_seed)
    size = math.prod(shape)
    first = tf.cast(first_row, tf.int64) * math.prod(shape[1:])
    # Each value of the counter, a number of 128 bits, gives four numbers.
    low = counter[0] + tf.cast(first // 4, tf.uint64)
    high = counter[1] + tf.cast(low < counter[0], tf.uint64)
    bits = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[size + 3], key=key, counter=tf.stack([low, high]), alg=tf.random.Algorithm.PHILOX.value, dtype=tf.int32
    )
    return tf.reshape(tf.slice(bits, [first % 4], [size]), shape)


def scale_bits(bits: tf.Tensor, count) -> tf.Tensor:
    """Uniform int32 -> uniform numbers from 0 to count - 1, int64."""
    return tf.bitwise.right_shift(unsigned(bits) * tf.cast(count, tf.int64), tf.constant(32, tf.int64))


def uniform(bits: tf.Tensor, dtype: tf.DType = tf.float32) -> tf.Tensor:
    """Uniform int32 -> uniform numbers in [0, 1): multiples of 2^-24 in float32, of 2^-32 in float64."""
    digits = 24 if dtype == tf.float32 else 32
    return tf.cast(unsigned(bits) // 2 ** (32 - digits), dtype) * 2.0**-digits


def unsigned(bits: tf.Tensor) -> tf.Tensor:
    """Uniform int32 -> the same bits as int64 from 0 to 2^32 - 1."""
    return tf.cast(bits, tf.int64) + 2**31

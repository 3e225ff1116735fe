"""Masks drawn during training: rows of unmasked pairs -> the features that the model takes.

The rules are those of create_pretraining_data.py (original: create_masked_lm_predictions), pair by pair; only the
random numbers differ. These are a function of (seed, step, row): a resumed run, and any number of replicas or
workers, draw what an undisturbed run draws, and each pass over the data draws something new. Everything is made of
TensorFlow's own operations on whole batches, so it runs inside tf.data.

Shape legend: B batch, S sequence length, P predictions per row, M pairs per row, V vocabulary.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from bert_tf.pretraining.record_settings import check_mask_rates
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_files import special_tokens_of
from bert_tf.text.wordpiece import FullTokenizer

# The seed for evaluation: not the run's, so that different runs are evaluated on the same masks.
EVALUATION_SEED = -1


@dataclasses.dataclass(frozen=True)
class Masking:
    """What is masked, and how.

    Attributes:
      cls_id, sep_id, mask_id: ids of [CLS], [SEP] and [MASK].
      all_ids: every id of the vocabulary, for RoBERTa's rule less special ones; replacements are drawn from them.
      continuations: bool [largest id + 1], True for the tokens that continue a word.
      max_predictions_per_seq: P.
      masked_lm_prob: share of a pair's tokens to predict.
      do_whole_word_mask: mask all pieces of a word or none.
      mask_rate, random_rate, keep_rate: shares of the chosen tokens that become [MASK], become any token, stay.
      mask_smoothing: exponent of the tokens' counts by which tokens are chosen; 0: all alike. See `smoothed_masking`.
      tokenizer_class: the tokenizer or its class, which names the special tokens.
      pad_id: the id of padding. special_ids: of all special tokens.
      mask_rule: one of MASK_RULES, or "electra": how many tokens are predicted, and which may be.
    """

    cls_id: int
    sep_id: int
    mask_id: int
    all_ids: np.ndarray
    continuations: np.ndarray
    max_predictions_per_seq: int
    masked_lm_prob: float = 0.15
    do_whole_word_mask: bool = False
    mask_rate: float = 0.8
    random_rate: float = 0.1
    keep_rate: float = 0.1
    mask_smoothing: float = 0.0
    tokenizer_class: Tokenizer | type[Tokenizer] = FullTokenizer
    pad_id: int = 0
    special_ids: tuple[int, ...] = ()
    mask_rule: str = "bert"

    @classmethod
    def from_vocab(
        cls,
        vocab: Mapping[str, int],
        vocab_file: str,
        tokenizer_class: Tokenizer | type[Tokenizer] = FullTokenizer,
        mask_rule: str = "bert",
        **settings,
    ) -> "Masking":
        """From a vocabulary (`tokenization.load_vocab`) and the other attributes.

        Raises:
          ValueError: a special token is missing (names --vocab_file), or a setting is out of range (names its flag).
        """
        special = (tokenizer_class.cls_token, tokenizer_class.sep_token, tokenizer_class.mask_token)
        missing = [token for token in special if token not in vocab]
        if missing:
            raise ValueError(
                f"--vocab_file={vocab_file} has no {', '.join(missing)}: it is not a vocabulary of this model's kind."
            )
        never_drawn = ()
        if mask_rule == "roberta":
            never_drawn = (tokenizer_class.pad_token, tokenizer_class.unk_token, *special[:2])
        all_ids = np.array([index for token, index in vocab.items() if token not in never_drawn], np.int32)
        continuations = tokenizer_class.continuations_of(vocab)
        masking = cls(
            *(vocab[token] for token in special),
            all_ids,
            continuations,
            tokenizer_class=tokenizer_class,
            pad_id=vocab.get(tokenizer_class.pad_token, 0),
            special_ids=tuple(vocab[token] for token in special_tokens_of(tokenizer_class) if token in vocab),
            mask_rule=mask_rule,
            **settings,
        )
        if not 0 < masking.masked_lm_prob <= 1:
            raise ValueError(f"--masked_lm_prob={masking.masked_lm_prob} must be above 0, at most 1.")
        if masking.max_predictions_per_seq < 1:
            raise ValueError(f"--max_predictions_per_seq={masking.max_predictions_per_seq} must be at least 1.")
        check_mask_rates(masking.mask_rate, masking.random_rate, masking.keep_rate)
        if not 0 <= masking.mask_smoothing <= 1:
            raise ValueError(f"--mask_smoothing={masking.mask_smoothing} must be from 0 to 1.")
        if masking.mask_smoothing and masking.do_whole_word_mask:
            raise ValueError("--mask_smoothing chooses single pieces: give it or --do_whole_word_mask.")
        return masking

    @property
    def fingerprint(self) -> str:
        """Digest of everything in the vocabulary that the masks depend on."""
        content = json.dumps([self.cls_id, self.sep_id, self.mask_id]).encode()
        content += self.all_ids.astype("<i4").tobytes() + self.continuations.astype("u1").tobytes()
        return hashlib.sha256(content).hexdigest()

    def problem(self, rows: Mapping[str, tf.Tensor]) -> str | None:
        """How the ids of a batch contradict the vocabulary, as the rest of a sentence; None if they don't.

        Args:
          rows: as for `mask_rows`, any number of them.
        """
        ids, lengths = np.asarray(rows["input_ids"]), np.asarray(rows["segment_lengths"])
        if ids.max() >= len(self.continuations):
            return f"has token id {ids.max()}, the vocabulary none above {len(self.continuations) - 1}"
        ends = np.cumsum(lengths, axis=1)
        row, segment = np.nonzero(lengths)
        is_first = segment % 2 == 0
        for name, row_numbers, place, known in (
            (self.tokenizer_class.cls_token, row[is_first], (ends - lengths)[row, segment][is_first], self.cls_id),
            (self.tokenizer_class.sep_token, row, (ends - 1)[row, segment], self.sep_id),
        ):
            found = ids[row_numbers, place]
            if (found != known).any():
                return f"has token id {found[found != known][0]} where the vocabulary's {name} is {known}"
        return None


@tf.autograph.experimental.do_not_convert
def mask_rows(rows: Mapping[str, tf.Tensor], seed: int, step, masking: Masking, first_row=0) -> dict[str, tf.Tensor]:
    """Masks a batch, or consecutive rows of one.

    A pair of n tokens ([CLS] and [SEP]s counted) gets masked_lm_prob * n predictions, rounded half to even, at least 1
    and at most P. Where the pairs of a row together would get more than P, their counts are cut in proportion.

    Args:
      rows: int32 `input_ids` [B, S], padded with 0; `segment_lengths` [B, 2 M], tokens of `[CLS] A [SEP]` and of
        `B [SEP]` of each pair, 0 for absent ones and for the B of single sequences; `next_sentence_labels` [B, M];
        optionally `word_continuations` [B, S], 1 for a token that continues a word; else the vocabulary says it.
        B, S and M are static.
      seed: any integer. step: number of the batch, int64. first_row: number in the batch of the first of the rows.

    Returns:
      `input_ids`, `input_mask`, `segment_ids` [B, S]; `masked_lm_positions`, `masked_lm_ids` [B, P] int32 and
      `masked_lm_weights` [B, P] float32, padded with 0; `next_sentence_labels` [B, M]. For M > 1 also `sequence_ids`
      and `position_ids` [B, S] (see `BertModel`), `pooled_positions` [B, M], where the pairs begin (0 for absent
      ones), and `next_sentence_weights` [B, M] float32, 0 for absent ones.
    """
    ids, lengths = rows["input_ids"], rows["segment_lengths"]
    batch, length = ids.shape
    predictions = masking.max_predictions_per_seq
    features, pair, starts = arrange_rows(rows, masking.pad_id)
    ids = features["input_ids"]
    real = pair < lengths.shape[1] // 2

    # --- which tokens are predicted
    # One draw for all purposes, row by row, so that what a row gets does not depend on the size of the batch.
    bits = random_bits([batch, length + 2 * predictions], seed, step, first_row)
    order_bits, action_bits, token_bits = tf.split(bits, [length, predictions, predictions], axis=1)
    counts = _counts(lengths[:, ::2] + lengths[:, 1::2], masking)  # [B, M]
    candidate = real & (ids != masking.cls_id) & (ids != masking.sep_id)
    continues = continuations_of(rows, masking)
    # [B, P], S where there is none
    positions = choose(length, continues, candidate, pair, starts, counts, order_bits, masking)
    predicted = predictions_at(ids, positions)

    # --- what replaces them
    number = scale_bits(token_bits, len(masking.all_ids))
    replacement = tf.gather(tf.constant(masking.all_ids), number)
    # In int64, since all of it (a rate of 1) is 2^32.
    action = unsigned(action_bits)
    hidden = action < int(masking.mask_rate * 2**32)
    kept = action < int((masking.mask_rate + masking.keep_rate) * 2**32)
    replacement = tf.where(hidden, masking.mask_id, tf.where(kept, predicted["masked_lm_ids"], replacement))
    return features | predicted | {"input_ids": write_tokens(ids, positions, replacement)}


def predictions_at(ids: tf.Tensor, positions: tf.Tensor) -> dict[str, tf.Tensor]:
    """The features of predictions.

    Args:
      ids: [B, S]. positions: [B, P], S where there is none.

    Returns:
      `masked_lm_positions`, `masked_lm_ids` and `masked_lm_weights`, see `mask_rows`.
    """
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
    offsets = tf.range(batch)[:, None] * (length + 1)
    flat = tf.tensor_scatter_nd_update(
        tf.reshape(wide, [-1]), tf.reshape(positions + offsets, [-1, 1]), tf.reshape(tokens, [-1])
    )
    return tf.reshape(flat, [batch, length + 1])[:, :length]


def continuations_of(rows: Mapping[str, tf.Tensor], masking: "Masking") -> tf.Tensor:
    """bool [B, S]: whether a token continues the word before it, by the records or else by the vocabulary."""
    continues = rows.get("word_continuations")
    if continues is None:
        return tf.gather(tf.constant(masking.continuations), rows["input_ids"])
    return continues > 0


@tf.autograph.experimental.do_not_convert
def arrange_rows(rows: Mapping[str, tf.Tensor], pad_id: int = 0) -> tuple[dict[str, tf.Tensor], tf.Tensor, tf.Tensor]:
    """Where things are in a batch of unmasked rows.

    Args:
      rows: as for `mask_rows`. pad_id: the id of padding.

    Returns:
      features: what `mask_rows` returns, without the masks; of `input_ids` only padding may change.
      pair: [B, S], number of the pair that a token belongs to, M for padding.
      starts: [B, M + 1], where the pairs begin, and last the padding.
    """
    ids, lengths = rows["input_ids"], rows["segment_lengths"]
    batch, length = ids.shape
    pairs = lengths.shape[1] // 2
    ends = tf.cumsum(lengths, axis=1)  # [B, 2 M]
    place = tf.tile(tf.range(length)[None], [batch, 1])
    segment = tf.searchsorted(ends, place, side="right")  # [B, S], 2 M for padding
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
            "position_ids": tf.where(real, place - tf.gather(starts, pair, batch_dims=1), 0),
            "pooled_positions": tf.where(present, starts[:, :-1], 0),
            "next_sentence_weights": tf.cast(present, tf.float32),
        }
    return features, pair, starts


def _counts(pair_lengths: tf.Tensor, masking: Masking) -> tf.Tensor:
    """Tokens to predict in each pair, [B, M]: in all of a row at most P."""
    limit = masking.max_predictions_per_seq
    # In float64, as Python multiplies.
    wanted = tf.round(tf.cast(pair_lengths, tf.float64) * masking.masked_lm_prob)
    counts = tf.minimum(tf.maximum(tf.cast(wanted, tf.int32), 1), limit)
    return at_most(tf.where(pair_lengths > 0, counts, 0), limit)


def at_most(counts: tf.Tensor, limit: int) -> tf.Tensor:
    """Counts [B, M], cut in proportion where those of a row are more than `limit` together."""
    # Rounding down the running sum, and not each count, makes exactly P of them where there would be more.
    running = tf.cumsum(counts, axis=1)
    total = running[:, -1:]
    running = tf.where(total > limit, running * limit // tf.maximum(total, 1), running)
    return running - tf.pad(running, [[0, 0], [1, 0]])[:, :-1]


def choose(
    length, continues, candidate, pair, starts, counts, order_bits, masking: Masking, take_words=None
) -> tf.Tensor:
    """Increasing positions of the tokens to predict, [B, P]; S where there are fewer.

    Args:
      length: S. continues, candidate, pair: [B, S]. starts: [B, M + 1]. counts: [B, M].
      order_bits: [B, S] int32, uniform.
      take_words: of the words in random order, those to predict: a function like `_take_words`, the default.
    """
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
        taken = (take_words or _take_words)(candidate, size, following, pair, starts, counts)
    if limit > length:
        taken = tf.pad(taken, [[0, 0], [0, limit - length]])
        position = tf.pad(position, [[0, 0], [0, limit - length]])
    return -tf.math.top_k(tf.where(taken, -position, -length), limit).values


def _words(continues, candidate, pair, starts):
    """Words of the candidates: number in the row, tokens in it, and tokens of it that follow; each [B, S].

    A token that continues belongs to the word before it, also over the [SEP] between A and B; the first candidate of a
    pair begins a word whatever it is. Numbers of tokens that are not candidates mean nothing.
    """
    batch, length = candidate.shape
    running = cumsum(candidate)  # candidates up to and including each token
    before_pair = tf.gather(tf.pad(running, [[0, 0], [1, 0]]), starts, batch_dims=1)  # [B, M + 1]
    first = running == tf.gather(before_pair, pair, batch_dims=1) + 1
    continues &= ~first
    word = tf.maximum(cumsum(candidate & ~continues) - 1, 0)
    number = tf.reshape(word + tf.range(batch)[:, None] * length, [-1])
    sizes = tf.math.unsorted_segment_sum(tf.reshape(tf.cast(candidate, tf.int32), [-1]), number, batch * length)
    sizes = tf.reshape(sizes, [batch, length])  # by the number of the word
    ends = cumsum(sizes)  # candidates up to the end of each word
    return word, tf.gather(sizes, word, batch_dims=1), tf.gather(ends, word, batch_dims=1) - running


def _take_words(candidate, size, following, pair, starts, counts) -> tf.Tensor:
    """Words in the order given, as long as they fit: one that would exceed the pair's count is skipped.

    Word by word that would be hundreds of steps. But a word that does not fit now will not fit later, so each round
    looks only at the words that may still fit, takes the longest run of them that fits together, and the first word
    that is left over is too long for the next round: two or three rounds suffice.

    Args:
      candidate, size, following, pair: [B, S], tokens in the order of their words. starts, counts: [B, M + 1].

    Returns:
      bool [B, S], the tokens taken.
    """
    pairs = counts.shape[1]
    members = tf.one_hot(pair, pairs, dtype=tf.float32)  # [B, S, M + 1]

    def one_round(left, taken, _):
        room = tf.gather(left, pair, batch_dims=1)
        eligible = candidate & ~taken & (size <= room)
        running = cumsum(eligible)
        before_pair = tf.gather(tf.pad(running, [[0, 0], [1, 0]]), starts, batch_dims=1)
        # Tokens up to the end of this token's word: a word is eligible as a whole.
        upto = running - tf.gather(before_pair, pair, batch_dims=1) + following
        new = eligible & (upto <= room)
        used = tf.linalg.matvec(members, tf.cast(new, tf.float32), transpose_a=True)
        return left - tf.cast(used, tf.int32), taken | new, tf.reduce_any(new)

    start = (counts, tf.zeros_like(candidate), tf.constant(True))
    return tf.while_loop(lambda left, taken, more: more, one_round, start)[1]


def cumsum(values) -> tf.Tensor:
    """Running sums along the rows of [B, S] small integers or booleans, int32.

    A product with a triangle of ones is several times as fast as tf.cumsum; in float32 it is exact up to 2^24.
    """
    length = values.shape[1]
    triangle = tf.constant(np.triu(np.ones((length, length), np.float32)))
    return tf.cast(tf.matmul(tf.cast(values, tf.float32), triangle), tf.int32)


def random_bits(shape: Sequence[int], seed: int, step, first_row=0) -> tf.Tensor:
    """Uniform int32 [B, ...]: what `tf.random.stateless_uniform` by Philox draws for these rows of the step's batch.

    Only these are drawn, so that a worker's share of a batch costs no more if the batch is larger.

    Args:
      shape: of the result, static. seed: any integer. step: number of the batch.
      first_row: number in the batch of the first row.
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

"""RoBERTa's masks, drawn during training: rows of unmasked records -> the features that the model takes.

Source: fairseq's mask_tokens_dataset.py (Liu et al. 2019, section 4.1). Its rule is not BERT's: every token may be
predicted, also `<s>` and `</s>`; how many are is rounded up or down at random, so that on average it is exactly
masked_lm_prob of them; and a special token replaces none, except the mask. As in `dynamic_masking`, the draws are a
function of (seed, step, row).

Shape legend: B batch, S sequence length, P predictions per row, M sequences per row.
"""

import dataclasses
from collections.abc import Mapping

import tensorflow as tf

from bert_tf.pretraining.dynamic_masking import (
    Masking,
    arrange_rows,
    at_most,
    choose,
    continuations_of,
    cumsum,
    predictions_at,
    random_bits,
    scale_bits,
    uniform,
    write_tokens,
)


@dataclasses.dataclass(frozen=True)
class Draws:
    """The random numbers of a batch. Those of [B, S] are of the tokens, or, for whole words, of the words in order.

    Attributes:
      rounding: float64 [B, M], in [0, 1): added to the number of predictions before it is rounded down.
      order: int32 [B, S]: the lowest are predicted.
      change: float64 [B, S], in [0, 1): below random_rate + keep_rate, a prediction's token isn't masked.
      keep: float64 [B, S], in [0, 1): below keep_rate / (random_rate + keep_rate), it then stays, else it is replaced.
      tokens: int32 [B, S]: ids that replace tokens, always one for each token.
    """

    rounding: tf.Tensor
    order: tf.Tensor
    change: tf.Tensor
    keep: tf.Tensor
    tokens: tf.Tensor


def default_predictions(masked_lm_prob: float, max_seq_length: int, whole_words: bool) -> int:
    """P, where no flag says it: what a row gets at most; of whole words, half as much again, which rows rarely get."""
    return int(masked_lm_prob * max_seq_length * (1.5 if whole_words else 1)) + 1


def draw(rows: Mapping[str, tf.Tensor], seed: int, step, masking: Masking, first_row=0) -> Draws:
    """The draws of a batch; see `mask_rows`."""
    batch, length = rows["input_ids"].shape
    sequences = rows["segment_lengths"].shape[1] // 2
    bits = random_bits([batch, sequences + 4 * length], seed, step, first_row)
    rounding, order, change, keep, tokens = tf.split(bits, [sequences, *[length] * 4], axis=1)
    rounding, change, keep = (uniform(values, tf.float64) for values in (rounding, change, keep))
    tokens = tf.gather(tf.constant(masking.all_ids), scale_bits(tokens, len(masking.all_ids)))
    return Draws(rounding, order, change, keep, tokens)


@tf.autograph.experimental.do_not_convert
def mask_rows(
    rows: Mapping[str, tf.Tensor], seed: int, step, masking: Masking, first_row=0, draws: Draws | None = None
) -> dict[str, tf.Tensor]:
    """Masks a batch, or consecutive rows of one.

    A sequence of n tokens (`<s>` and `</s>` counted) gets masked_lm_prob * n predictions, rounded up or down at random.
    Only what would be more than P in a row is left out. Of whole words, masked_lm_prob of the words are predicted; each
    is masked, replaced or kept as a whole. A special token is a word, and so is what follows one, while in fairseq the
    first word of a text, which has no space before it, belongs to the special token.

    Args:
      rows, seed, step, first_row: as for `dynamic_masking.mask_rows`. masking: its mask_rule is "roberta".
      draws: the random numbers, instead of those of seed and step.

    Returns:
      As `dynamic_masking.mask_rows`.
    """
    features, sequence, starts = arrange_rows(rows, masking.pad_id)
    ids = features["input_ids"]
    length, sequences = ids.shape[1], starts.shape[1] - 1
    real = sequence < sequences
    draws = draws or draw(rows, seed, step, masking, first_row)

    begins = real
    if masking.do_whole_word_mask:
        special = (ids == masking.cls_id) | (ids == masking.sep_id)
        after_special = tf.pad(special, [[0, 0], [1, 0]])[:, :-1]
        first = tf.range(length)[None] == tf.gather(starts, sequence, batch_dims=1)
        begins &= ~continuations_of(rows, masking) | special | after_special | first
    members = tf.one_hot(sequence, sequences, dtype=tf.float32)  # [B, S, M]
    units = tf.linalg.matvec(members, tf.cast(begins, tf.float32), transpose_a=True)
    counts = tf.cast(tf.cast(units, tf.float64) * masking.masked_lm_prob + draws.rounding, tf.int32)
    counts = tf.minimum(counts, tf.cast(units, tf.int32))
    if not masking.do_whole_word_mask:
        counts = at_most(counts, masking.max_predictions_per_seq)

    def take_words(candidate, size, following, sequence, starts, counts):
        """The first `counts` words of each sequence, as long as the row's predictions are at most P."""
        is_first = candidate & (following == size - 1)
        running = cumsum(is_first)
        before = tf.gather(tf.pad(running, [[0, 0], [1, 0]]), starts, batch_dims=1)
        number = running - tf.gather(before, sequence, batch_dims=1)  # from 1, of the word in its sequence
        taken = candidate & (number <= tf.gather(counts, sequence, batch_dims=1))
        return taken & (cumsum(taken) + following <= masking.max_predictions_per_seq)

    positions = choose(length, ~begins, real, sequence, starts, counts, draws.order, masking, take_words)
    predicted = predictions_at(ids, positions)
    place = predicted["masked_lm_positions"]
    unit = tf.gather(cumsum(begins) - 1, place, batch_dims=1) if masking.do_whole_word_mask else place
    change, keep = (tf.gather(values, unit, batch_dims=1) for values in (draws.change, draws.keep))
    others = masking.random_rate + masking.keep_rate
    kept = keep < (masking.keep_rate / others if others else 0.0)
    replacement = tf.where(kept, predicted["masked_lm_ids"], tf.gather(draws.tokens, place, batch_dims=1))
    replacement = tf.where(change < others, replacement, masking.mask_id)
    return features | predicted | {"input_ids": write_tokens(ids, positions, replacement)}

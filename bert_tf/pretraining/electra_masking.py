"""ELECTRA's masks, drawn during training: rows of unmasked records -> the features that its pre-training model takes.

Source: `mask` of the original's pretrain/pretrain_helpers.py (Clark et al. 2020, section 3). Its rule is not BERT's:
positions are drawn with replacement, and a prediction whose token stays is the only one that is not masked. As in
`dynamic_masking`, the draws are a function of (seed, step, row).

Shape legend: B batch, S sequence length, P predictions per row.
"""

from collections.abc import Mapping

import tensorflow as tf

from bert_tf.pretraining.dynamic_masking import (
    Masking,
    arrange_rows,
    predictions_at,
    random_bits,
    scale_bits,
    uniform,
    write_tokens,
)

# The share of the chosen tokens that become [MASK]; the others stay.
MASK_RATE = 0.85
# Features that only next sentence prediction needs.
_OF_PAIRS = ("next_sentence_labels", "next_sentence_weights", "pooled_positions")


def default_predictions(masked_lm_prob: float, max_seq_length: int) -> int:
    """P, where no flag says it (the original's configure_pretraining.py)."""
    return int((masked_lm_prob + 0.005) * max_seq_length)


@tf.autograph.experimental.do_not_convert
def mask_rows(rows: Mapping[str, tf.Tensor], seed: int, step, masking: Masking, first_row=0) -> dict[str, tf.Tensor]:
    """Masks a batch, or consecutive rows of one.

    Args:
      rows, seed, step, first_row: as for `dynamic_masking.mask_rows`. A row of several sequences counts as one.
      masking: its rates are not used.

    Returns:
      The encoder's inputs, those of `mask`, and `sampling_seeds` [B, 2] int32, from which the generator's tokens are
      drawn.
    """
    features = {name: value for name, value in arrange_rows(rows)[0].items() if name not in _OF_PAIRS}
    predictions = masking.max_predictions_per_seq
    bits = random_bits([rows["input_ids"].shape[0], 2 * predictions + 2], seed, step, first_row)
    position_bits, mask_bits, sampling_seeds = tf.split(bits, [predictions, predictions, 2], axis=1)
    candidate = candidates(features, masking)
    running = tf.cumsum(tf.cast(candidate, tf.int32), axis=1)
    number = scale_bits(position_bits, running[:, -1:])
    positions = tf.searchsorted(running, tf.cast(number, tf.int32), side="right")
    positions = tf.where(running[:, -1:] > 0, positions, 0)
    masked = mask(features, positions, uniform(mask_bits), masking)
    return features | masked | {"sampling_seeds": sampling_seeds}


def candidates(features: Mapping[str, tf.Tensor], masking: Masking) -> tf.Tensor:
    """bool [B, S]: the tokens that may be predicted."""
    ids = features["input_ids"]
    special = (ids == masking.cls_id) | (ids == masking.sep_id) | (ids == masking.mask_id)
    return (features["input_mask"] > 0) & ~special


def mask(
    features: Mapping[str, tf.Tensor], positions: tf.Tensor, share: tf.Tensor, masking: Masking
) -> dict[str, tf.Tensor]:
    """Masks a batch at positions that were drawn.

    A row of n tokens ([CLS] and [SEP] counted) gets masked_lm_prob * n predictions, rounded half to even, at least 1
    and at most P: the first of its positions. One that is drawn twice counts twice, and is masked if either draw says
    so.

    Args:
      features: int32 `input_ids`, `input_mask` [B, S].
      positions: int32 [B, P], of tokens that may be predicted. share: float32 [B, P], in [0, 1): below MASK_RATE the
        token becomes [MASK].

    Returns:
      `input_ids` [B, S], masked; `original_ids` [B, S]; `masked_lm_positions`, `masked_lm_ids` [B, P] int32 and
      `masked_lm_weights` [B, P] float32, padded with 0.
    """
    ids = features["input_ids"]
    length, predictions = ids.shape[1], positions.shape[1]
    tokens = tf.cast(tf.reduce_sum(features["input_mask"], axis=1, keepdims=True), tf.float32)
    wanted = tf.round(tokens * tf.constant(masking.masked_lm_prob, tf.float32))
    counts = tf.clip_by_value(tf.cast(wanted, tf.int32), 1, predictions)
    # A row of padding, without a token that may be predicted, has no predictions.
    counts = tf.where(tf.reduce_any(candidates(features, masking), axis=1, keepdims=True), counts, 0)
    positions = tf.where(tf.range(predictions)[None] < counts, positions, length)
    hidden = tf.where(share < MASK_RATE, positions, length)
    masked = write_tokens(ids, hidden, tf.fill(hidden.shape, masking.mask_id))
    return {"input_ids": masked, "original_ids": ids} | predictions_at(ids, positions)

"""Masks that prefer rare tokens, drawn during training over a whole batch: the way of DistilBERT's authors.

Source: prepare_batch_mlm of distiller.py and train.py of DistilBERT (transformers-research-projects, distillation;
section 4.3 of Lample & Conneau 2019, arXiv:1901.07291, has the idea). As in `dynamic_masking`, the draws are a function
of (seed, step).

Shape legend: B batch, S sequence length, P predictions per row, V vocabulary.
"""

from collections.abc import Collection, Mapping

import numpy as np
import tensorflow as tf

from bert_tf.pretraining.dynamic_masking import (
    Masking,
    arrange_rows,
    predictions_at,
    random_bits,
    scale_bits,
    uniform,
)

# What becomes of a chosen token.
MASKED, KEPT, REPLACED = 0, 1, 2


def token_weights(counts: np.ndarray, special_ids: Collection[int], smoothing: float) -> np.ndarray:
    """float32 [V]: how likely a token is chosen, before normalisation: max(count, 1) ** -smoothing; special ones never.

    Args:
      counts: [V], how often each token is in the data.
    """
    weights = np.maximum(counts, 1).astype(np.float64) ** -smoothing
    weights[list(special_ids)] = 0.0
    return weights.astype(np.float32)


@tf.autograph.experimental.do_not_convert
def mask_rows(
    rows: Mapping[str, tf.Tensor], seed: int, step, masking: Masking, weights: np.ndarray
) -> dict[str, tf.Tensor]:
    """Masks a batch.

    Of all tokens of the batch, with the special ones counted, masked_lm_prob are chosen, rounded up, without
    replacement. A row has at most P of them: the first ones drawn.

    Args:
      rows, seed, step: as for `dynamic_masking.mask_rows`. masking: how many are chosen, and what becomes of them.
      weights: [V], from `token_weights`.

    Returns:
      As `dynamic_masking.mask_rows`.
    """
    features = arrange_rows(rows, masking.pad_id)[0]
    ids, real = features["input_ids"], features["input_mask"] > 0
    order_bits, kind_bits, token_bits = tf.unstack(random_bits([*ids.shape, 3], seed, step), axis=2)
    own_weights = tf.where(real, tf.gather(tf.constant(weights), ids), 0.0)
    # In float64, as Python multiplies.
    wanted = tf.cast(tf.reduce_sum(features["input_mask"]), tf.float64) * masking.masked_lm_prob
    chosen = draw(own_weights, tf.cast(tf.math.ceil(wanted), tf.int32), uniform(order_bits) + 2.0**-25, masking)
    share = uniform(kind_bits)
    kinds = tf.cast(share >= masking.mask_rate, tf.int32)
    kinds += tf.cast(share >= masking.mask_rate + masking.keep_rate, tf.int32)
    number = scale_bits(token_bits, len(masking.all_ids))
    return features | mask(ids, chosen, kinds, tf.gather(tf.constant(masking.all_ids), number), masking)


def draw(weights: tf.Tensor, number, share: tf.Tensor, masking: Masking) -> tf.Tensor:
    """Chooses tokens of a batch by their weights, without replacement.

    The order in which -log(u) / weight grows is that of such draws (Efraimidis & Spirakis 2006).

    Args:
      weights: float32 [B, S], 0 for tokens that are never chosen. number: of tokens to choose, if there are as many.
      share: float32 [B, S], uniform between 0 and 1.

    Returns:
      bool [B, S], at most P in a row.
    """
    key = tf.where(weights > 0, -tf.math.log(share) / weights, np.inf)
    flat = tf.reshape(key, [-1])
    rank = tf.reshape(tf.argsort(tf.argsort(flat, stable=True)), tf.shape(key))
    chosen = (weights > 0) & (rank < number)
    in_row = tf.argsort(tf.argsort(tf.where(chosen, key, np.inf), axis=1, stable=True), axis=1)
    return chosen & (in_row < masking.max_predictions_per_seq)


def mask(
    ids: tf.Tensor, chosen: tf.Tensor, kinds: tf.Tensor, replacements: tf.Tensor, masking: Masking
) -> dict[str, tf.Tensor]:
    """Masks chosen tokens.

    Args:
      ids: int32 [B, S]. chosen: bool [B, S], at most P in a row. kinds: int [B, S], MASKED, KEPT or REPLACED, by
        `replacements` [B, S]; both are read at chosen tokens only.

    Returns:
      `input_ids` [B, S]; `masked_lm_positions`, `masked_lm_ids` [B, P] int32 and `masked_lm_weights` [B, P] float32,
      padded with 0.
    """
    length, limit = ids.shape[1], masking.max_predictions_per_seq
    place = tf.where(chosen, tf.range(length), length)
    positions = tf.sort(tf.pad(place, [[0, 0], [0, max(0, limit - length)]], constant_values=length), axis=1)
    new = tf.where(kinds == MASKED, masking.mask_id, tf.where(kinds == KEPT, ids, replacements))
    return {"input_ids": tf.where(chosen, new, ids)} | predictions_at(ids, positions[:, :limit])

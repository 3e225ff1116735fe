"""The rules by which rows of unmasked records are masked during training, one for each family's data.

Each makes a batch's features for the model out of its rows and random numbers (`masking`):

  bert             that of create_pretraining_data.py (original: create_masked_lm_predictions), pair by pair
  roberta          fairseq's mask_tokens_dataset.py (Liu et al. 2019, section 4.1)
  electra          `mask` of the original's pretrain/pretrain_helpers.py (Clark et al. 2020, section 3)
  smoothed         prefers rare tokens: prepare_batch_mlm of distiller.py and train.py of DistilBERT
                   (transformers-research-projects, distillation; the idea is Lample & Conneau's, arXiv:1901.07291)
  left_to_right    masks nothing: each token is predicted from those before it

Shape legend: B batch, S sequence length, P predictions per row, M pairs per row, V vocabulary.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import tensorflow as tf

from bert_tf.pretraining import masking as shared
from bert_tf.pretraining.masking import Masking

# The seed for evaluation: not the run's, so that different runs are evaluated on the same masks.
EVALUATION_SEED = -1
ELECTRA_MASK_RATE = 0.85  # of the chosen tokens, those that become [MASK]; the others stay
# Features that only next sentence prediction needs.
_OF_PAIRS = ("next_sentence_labels", "next_sentence_weights", "pooled_positions")

Rows, Features = Mapping[str, tf.Tensor], dict[str, tf.Tensor]
_plain = tf.autograph.experimental.do_not_convert


@_plain
def bert(rows: Rows, seed: int, step, masking: Masking, first_row=0) -> Features:
    """Masks a batch, or consecutive rows of one, by BERT's rule.

    A pair of n tokens ([CLS] and [SEP]s counted) gets masked_lm_prob * n predictions, rounded half to even, at least 1
    and at most P. Where the pairs of a row together would get more than P, their counts are cut in proportion.

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
    lengths, predictions = rows["segment_lengths"], masking.max_predictions_per_seq
    features, pair, starts = shared.arrange_rows(rows, masking.pad_id)
    ids = features["input_ids"]
    # One draw for all purposes, row by row, so that what a row gets does not depend on the size of the batch.
    bits = shared.random_bits([ids.shape[0], ids.shape[1] + 2 * predictions], seed, step, first_row)
    order_bits, action_bits, token_bits = tf.split(bits, [ids.shape[1], predictions, predictions], axis=1)
    sizes = lengths[:, ::2] + lengths[:, 1::2]  # [B, M]
    # In float64, as Python multiplies.
    wanted = tf.cast(tf.round(tf.cast(sizes, tf.float64) * masking.masked_lm_prob), tf.int32)
    counts = tf.where(sizes > 0, tf.clip_by_value(wanted, 1, predictions), 0)
    candidate = (pair < lengths.shape[1] // 2) & (ids != masking.cls_id) & (ids != masking.sep_id)
    continues = shared.continuations_of(rows, masking)
    counts = shared.at_most(counts, predictions)
    positions = shared.choose(continues, candidate, pair, starts, counts, order_bits, masking, _take_words)
    kept = shared.predictions_at(ids, positions)["masked_lm_ids"]
    # In int64, since all of it (a rate of 1) is 2^32.
    action = shared.unsigned(action_bits)
    is_hidden = action < int(masking.mask_rate * 2**32)
    is_kept = action < int((masking.mask_rate + masking.keep_rate) * 2**32)
    tokens = tf.where(is_hidden, masking.mask_id, tf.where(is_kept, kept, masking.drawn(token_bits)))
    return shared.replaced(features, positions, tokens)


def _take_words(candidate, size, following, pair, starts, counts) -> tf.Tensor:
    """Words in the order given, as long as they fit, bool [B, S]: one that would exceed the pair's count is skipped.

    A word that does not fit now will not fit later, so each round looks only at the words that may still fit, and takes
    the longest run of them that fits together: two or three rounds suffice.
    Arguments: see `masking.choose`.
    """
    members = tf.one_hot(pair, counts.shape[1], dtype=tf.float32)  # [B, S, M + 1]

    def one_round(left, taken, _):
        room = tf.gather(left, pair, batch_dims=1)
        eligible = candidate & ~taken & (size <= room)
        running = shared.cumsum(eligible)
        before_pair = tf.gather(tf.pad(running, [[0, 0], [1, 0]]), starts, batch_dims=1)
        # Tokens up to the end of this token's word: a word is eligible as a whole.
        upto = running - tf.gather(before_pair, pair, batch_dims=1) + following
        new = eligible & (upto <= room)
        used = tf.linalg.matvec(members, tf.cast(new, tf.float32), transpose_a=True)
        return left - tf.cast(used, tf.int32), taken | new, tf.reduce_any(new)

    start = (counts, tf.zeros_like(candidate), tf.constant(True))
    return tf.while_loop(lambda left, taken, more: more, one_round, start)[1]


@_plain
def roberta(rows: Rows, seed: int, step, masking: Masking, first_row=0, draws: Sequence | None = None) -> Features:
    """Masks a batch, or consecutive rows of one, by RoBERTa's rule.

    Every token may be predicted, also `<s>` and `</s>`, and a special token replaces none, except the mask. A sequence
    of n tokens gets masked_lm_prob * n predictions, rounded up or down at random; what would be more than P in a row is
    left out. Of whole words, masked_lm_prob of the words are predicted; each is masked, replaced or kept as a whole. A
    special token is a word, and so is what follows one, while in fairseq that belongs to the special token.

    As `bert`; draws: of `roberta_draws`, instead of those of seed and step.
    """
    features, sequence, starts = shared.arrange_rows(rows, masking.pad_id)
    ids = features["input_ids"]
    length, sequences = ids.shape[1], starts.shape[1] - 1
    real = sequence < sequences
    rounding, order, change, keep, drawn = draws or roberta_draws(rows, seed, step, masking, first_row)
    begins = real
    if masking.do_whole_word_mask:
        special = (ids == masking.cls_id) | (ids == masking.sep_id)
        after_special = tf.pad(special, [[0, 0], [1, 0]])[:, :-1]
        first = tf.range(length)[None] == tf.gather(starts, sequence, batch_dims=1)
        begins &= ~shared.continuations_of(rows, masking) | special | after_special | first
    members = tf.one_hot(sequence, sequences, dtype=tf.float32)  # [B, S, M]
    units = tf.linalg.matvec(members, tf.cast(begins, tf.float32), transpose_a=True)
    counts = tf.cast(tf.cast(units, tf.float64) * masking.masked_lm_prob + rounding, tf.int32)
    counts = tf.minimum(counts, tf.cast(units, tf.int32))
    if not masking.do_whole_word_mask:
        counts = shared.at_most(counts, masking.max_predictions_per_seq)

    def take_words(candidate, size, following, sequence, starts, counts):
        """The first `counts` words of each sequence, as long as the row's predictions are at most P."""
        running = shared.cumsum(candidate & (following == size - 1))
        before = tf.gather(tf.pad(running, [[0, 0], [1, 0]]), starts, batch_dims=1)
        number = running - tf.gather(before, sequence, batch_dims=1)  # from 1, of the word in its sequence
        taken = candidate & (number <= tf.gather(counts, sequence, batch_dims=1))
        return taken & (shared.cumsum(taken) + following <= masking.max_predictions_per_seq)

    positions = shared.choose(~begins, real, sequence, starts, counts, order, masking, take_words)
    predicted = shared.predictions_at(ids, positions)
    chosen = predicted["masked_lm_positions"]
    unit = tf.gather(shared.cumsum(begins) - 1, chosen, batch_dims=1) if masking.do_whole_word_mask else chosen
    change, keep = (tf.gather(values, unit, batch_dims=1) for values in (change, keep))
    others = masking.random_rate + masking.keep_rate
    is_kept = keep < (masking.keep_rate / others if others else 0.0)
    tokens = tf.where(is_kept, predicted["masked_lm_ids"], tf.gather(drawn, chosen, batch_dims=1))
    return shared.replaced(features, positions, tf.where(change < others, tokens, masking.mask_id))


def roberta_draws(rows: Rows, seed: int, step, masking: Masking, first_row=0) -> tuple[tf.Tensor, ...]:
    """The random numbers of a batch. Those of [B, S] are of the tokens, or, for whole words, of the words in order.

    Returns:
      rounding: float64 [B, M], in [0, 1): added to the number of predictions before it is rounded down.
      order: int32 [B, S]: the lowest are predicted.
      change: float64 [B, S], in [0, 1): below random_rate + keep_rate, a prediction's token isn't masked.
      keep: float64 [B, S], in [0, 1): below keep_rate / (random_rate + keep_rate), it then stays, else it is replaced.
      tokens: int32 [B, S]: ids that replace tokens, always one for each token.
    """
    batch, length = rows["input_ids"].shape
    sequences = rows["segment_lengths"].shape[1] // 2
    bits = shared.random_bits([batch, sequences + 4 * length], seed, step, first_row)
    rounding, order, change, keep, tokens = tf.split(bits, [sequences, *[length] * 4], axis=1)
    rounding, change, keep = (shared.uniform(values, tf.float64) for values in (rounding, change, keep))
    return rounding, order, change, keep, masking.drawn(tokens)


@_plain
def electra(rows: Rows, seed: int, step, masking: Masking, first_row=0) -> Features:
    """Masks a batch, or consecutive rows of one, by ELECTRA's rule, as `bert`; also `original_ids`.

    Positions are drawn with replacement. A row of several sequences counts as one; the rates of masking are not used.
    The generator's tokens are drawn from `sampling_seeds` [B, 2] int32.
    """
    features = {name: value for name, value in shared.arrange_rows(rows)[0].items() if name not in _OF_PAIRS}
    predictions = masking.max_predictions_per_seq
    bits = shared.random_bits([rows["input_ids"].shape[0], 2 * predictions + 2], seed, step, first_row)
    position_bits, mask_bits, sampling_seeds = tf.split(bits, [predictions, predictions, 2], axis=1)
    running = tf.cumsum(tf.cast(electra_candidates(features, masking), tf.int32), axis=1)
    drawn = tf.cast(shared.scale_bits(position_bits, running[:, -1:]), tf.int32)
    positions = tf.searchsorted(running, drawn, side="right")
    positions = tf.where(running[:, -1:] > 0, positions, 0)
    masked = mask_electra(features, positions, shared.uniform(mask_bits), masking)
    return features | masked | {"sampling_seeds": sampling_seeds}


def electra_candidates(features: Rows, masking: Masking) -> tf.Tensor:
    """bool [B, S]: the tokens that ELECTRA may predict."""
    ids = features["input_ids"]
    special = (ids == masking.cls_id) | (ids == masking.sep_id) | (ids == masking.mask_id)
    return (features["input_mask"] > 0) & ~special


def mask_electra(features: Rows, positions: tf.Tensor, share: tf.Tensor, masking: Masking) -> Features:
    """Masks a batch at positions that were drawn, [B, P]; below ELECTRA_MASK_RATE, a share makes a token [MASK].

    A row of n tokens gets masked_lm_prob * n predictions, rounded half to even, from 1 to P: the first of its
    positions. One that is drawn twice counts twice, and is masked if either draw says so.
    """
    ids = features["input_ids"]
    length, predictions = ids.shape[1], positions.shape[1]
    tokens = tf.cast(tf.reduce_sum(features["input_mask"], axis=1, keepdims=True), tf.float32)
    wanted = tf.round(tokens * tf.constant(masking.masked_lm_prob, tf.float32))
    counts = tf.clip_by_value(tf.cast(wanted, tf.int32), 1, predictions)
    # A row of padding, without a token that may be predicted, has no predictions.
    counts = tf.where(tf.reduce_any(electra_candidates(features, masking), axis=1, keepdims=True), counts, 0)
    positions = tf.where(tf.range(predictions)[None] < counts, positions, length)
    hidden = tf.where(share < ELECTRA_MASK_RATE, positions, length)
    masked = shared.write_tokens(ids, hidden, tf.fill(hidden.shape, masking.mask_id))
    return {"input_ids": masked, "original_ids": ids} | shared.predictions_at(ids, positions)


def token_weights(counts: np.ndarray, special_ids: Collection[int], smoothing: float) -> np.ndarray:
    """float32 [V]: how likely a token is chosen: max(count, 1) ** -smoothing; special ones never. counts: [V]."""
    weights = np.maximum(counts, 1).astype(np.float64) ** -smoothing
    weights[list(special_ids)] = 0.0
    return weights.astype(np.float32)


@_plain
def smoothed(rows: Rows, seed: int, step, masking: Masking, weights: np.ndarray) -> Features:
    """Masks a batch by the rule of DistilBERT's authors, as `bert`. weights: [V], from `token_weights`.

    Of all tokens of the batch, with the special ones counted, masked_lm_prob are chosen, rounded up, without
    replacement. A row has at most P of them: the first ones drawn.
    """
    features = shared.arrange_rows(rows, masking.pad_id)[0]
    ids, real = features["input_ids"], features["input_mask"] > 0
    order_bits, kind_bits, token_bits = tf.unstack(shared.random_bits([*ids.shape, 3], seed, step), axis=2)
    weights_of_ids = tf.where(real, tf.gather(tf.constant(weights), ids), 0.0)
    # In float64, as Python multiplies.
    wanted = tf.cast(tf.reduce_sum(features["input_mask"]), tf.float64) * masking.masked_lm_prob
    number = tf.cast(tf.math.ceil(wanted), tf.int32)
    chosen = draw_weighted(weights_of_ids, number, shared.uniform(order_bits) + 2.0**-25, masking)
    share = shared.uniform(kind_bits)
    drawn = masking.drawn(token_bits)
    others = tf.where(share < masking.mask_rate + masking.keep_rate, ids, drawn)
    return features | mask_chosen(ids, chosen, tf.where(share < masking.mask_rate, masking.mask_id, others), masking)


def draw_weighted(weights: tf.Tensor, number, share: tf.Tensor, masking: Masking) -> tf.Tensor:
    """Chooses tokens of a batch by their weights, without replacement (Efraimidis & Spirakis 2006): bool [B, S].

    At most P in a row, and never those of weight 0. number: of tokens to choose, if there are as many. share: uniform.
    """
    key = tf.where(weights > 0, -tf.math.log(share) / weights, np.inf)
    rank = tf.reshape(tf.argsort(tf.argsort(tf.reshape(key, [-1]), stable=True)), tf.shape(key))
    chosen = (weights > 0) & (rank < number)
    in_row = tf.argsort(tf.argsort(tf.where(chosen, key, np.inf), axis=1, stable=True), axis=1)
    return chosen & (in_row < masking.max_predictions_per_seq)


def mask_chosen(ids: tf.Tensor, chosen: tf.Tensor, tokens: tf.Tensor, masking: Masking) -> Features:
    """`input_ids` [B, S] with the tokens that were chosen, at most P in a row, and the features of predictions."""
    length, limit = ids.shape[1], masking.max_predictions_per_seq
    indices = tf.where(chosen, tf.range(length), length)
    positions = tf.sort(tf.pad(indices, [[0, 0], [0, max(0, limit - length)]], constant_values=length), axis=1)
    return {"input_ids": tf.where(chosen, tokens, ids)} | shared.predictions_at(ids, positions[:, :limit])


@_plain
def left_to_right(rows: Rows) -> Features:
    """Labels of a batch for the left-to-right language model of the paper's ablations ("LTR & No NSP", section 5.1).

    Every token but [CLS] is predicted, the [SEP]s too, from the output one place before it, but not over the border of
    two sequences; no token is masked. Attention is causal; as [CLS] sees nothing but itself, the pooler reads the last
    token ([SEP]), whose positions are `pooled_positions`. The labels have the form of masked LM, with the positions of
    all tokens. rows: as for `bert`, or the seven features of masked records, whose tokens are put back.

    Returns the features of `bert` with `masked_lm_positions`, `masked_lm_ids` and `masked_lm_weights` [B, S - 1]:
    places 0 to S - 2, the tokens after them, and 1 where there is one in the same sequence.
    """
    if "segment_lengths" in rows:
        features, pair, starts = shared.arrange_rows(rows)
        same = tf.equal(pair[:, 1:], pair[:, :-1])
        if "pooled_positions" in features:
            features["pooled_positions"] = tf.where(features["next_sentence_weights"] > 0, starts[:, 1:] - 1, 0)
    else:
        ids, is_prediction = rows["input_ids"], rows["masked_lm_weights"] > 0
        positions = tf.where(is_prediction, rows["masked_lm_positions"], ids.shape[1])
        features = dict(rows) | {"input_ids": shared.write_tokens(ids, positions, rows["masked_lm_ids"])}
        same = True
    following = features["input_ids"][:, 1:]
    known = same & tf.cast(features["input_mask"][:, 1:], tf.bool)
    steps = tf.range(following.shape[1], dtype=tf.int32)
    return features | {
        "masked_lm_positions": tf.tile(steps[None], [following.shape[0], 1]),
        "masked_lm_ids": tf.where(known, following, 0),
        "masked_lm_weights": tf.cast(known, tf.float32),
    }

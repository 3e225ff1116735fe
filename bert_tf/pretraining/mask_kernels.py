"""The compiled loops that choose and replace the tokens to predict; see `instance_kernels`.

Shape legend: S max_seq_length, P max_predictions_per_seq.
"""

import numpy as np

from bert_tf.pretraining.mersenne_twister import below, random_float, shuffle
from bert_tf.system.numba_compile import inner

SCRATCH_ROWS = 6


@inner
def round_half_even(x):
    """Python's `round` of a number that is not negative."""
    below = np.floor(x)
    rest = x - below
    if rest > 0.5 or (rest == 0.5 and np.int64(below) % 2 == 1):
        below += 1.0
    return np.int64(below)


@inner
def mask(
    row, length, to_predict, whole_words, ngram_shares, mask_rate, keep_share, cls_id, sep_id, mask_id, all_ids,
    continues, state, numpy_state, scratch, positions, replacements,
):  # fmt: skip
    """Chooses positions of one instance and the tokens to put there; returns their number.

    Args:
      row: int32 [S], the first `length` are the instance. to_predict: most positions.
      ngram_shares: float64 [N], the share of n-grams of up to 1, 2, ... N words, the last 1; or empty: single words.
      continues: int32 [S], whether each token continues a word; used if whole_words.
      state, numpy_state: of Python's generator, and of NumPy's, which draws the lengths of n-grams.
      scratch: int64 [SCRATCH_ROWS, S + 1]. positions, replacements: int32 [P], filled in, by increasing position.
    """
    words, order, chosen = scratch[0], scratch[1], scratch[2]  # words: the word that each candidate belongs to
    candidates, begins, num_candidates, num_words = scratch[3], scratch[4], 0, 0
    for position in range(length):
        token = row[position]
        if token == cls_id or token == sep_id:  # noqa: SIM109  Numba would build a tuple
            continue
        # A piece that continues a word, at the beginning of B, joins the last word of A, over the [SEP] between them,
        # as in the original.
        if not (whole_words and num_words and continues[position]):
            order[num_words] = begins[num_words] = num_candidates
            num_words += 1
        words[num_candidates] = num_words - 1
        candidates[num_candidates] = position
        num_candidates += 1
    begins[num_words] = num_candidates
    shuffle(state, order, num_words)
    if len(ngram_shares):
        count = _choose_ngrams(
            order, words, begins, candidates, num_words, to_predict, ngram_shares, numpy_state, scratch[5], chosen
        )
    else:
        count = _choose_words(order, words, begins, candidates, num_words, to_predict, chosen)
    for k in range(count):
        position = chosen[k]
        token = mask_id
        if random_float(state) >= mask_rate:
            token = row[position] if random_float(state) < keep_share else all_ids[below(state, len(all_ids))]
        # Inserted in order: there are few.
        place = k
        while place and positions[place - 1] > position:
            positions[place] = positions[place - 1]
            replacements[place] = replacements[place - 1]
            place -= 1
        positions[place] = position
        replacements[place] = token
    if len(ngram_shares):
        shuffle(state, order, num_words)  # as the original does, for a permutation that it rarely makes
    return count


@inner
def _choose_words(order, words, begins, candidates, num_words, to_predict, chosen):
    """Positions of words, in the order given, as long as they fit; returns their number."""
    count = 0
    for k in range(num_words):
        if count >= to_predict:
            break
        begin = order[k]
        end = begins[words[begin] + 1]
        if count + end - begin <= to_predict:
            for candidate in range(begin, end):
                chosen[count] = candidates[candidate]
                count += 1
    return count


@inner
def _choose_ngrams(
    order, words, begins, candidates, num_words, to_predict, ngram_shares, numpy_state, covered, chosen
):  # fmt: skip
    """Positions of n-grams that begin with each word, in the order given; returns their number.

    The length is drawn for every word, also for one that is then left out: because not even it alone fits, or because
    a word of its n-gram is chosen already. An n-gram that does not fit is cut to fewer words.
    """
    covered[: begins[num_words]] = 0
    count = 0
    for k in range(num_words):
        if count >= to_predict:
            break
        draw, size = random_float(numpy_state), 1
        while ngram_shares[size - 1] <= draw:
            size += 1
        begin = order[k]
        word = words[begin]
        end = begins[min(word + size, num_words)]
        while size > 1 and count + end - begin > to_predict:
            size -= 1
            end = begins[min(word + size, num_words)]
        free = count + end - begin <= to_predict
        for candidate in range(begin, end):
            free = free and covered[candidate] == 0
        if free:
            for candidate in range(begin, end):
                covered[candidate] = 1
                chosen[count] = candidates[candidate]
                count += 1
    return count

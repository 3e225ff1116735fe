"""The loops of create_pretraining_data.py that go over every token, compiled by Numba.

They work on flat arrays instead of lists of lists: a document is a range of sentences, a sentence a range of tokens,
an instance two ranges of tokens and a few masked positions. `tests/plain_pretraining.py` has the same in plain Python.

Every draw comes from CPython's Mersenne Twister, in the order in which the original draws (its
create_pretraining_data.py), so that the same seed gives the same instances. The generator's state is an array of
uint32: the 624 words of MT19937 and the number of words used up, as in `random.Random.getstate()`, and behind these the
624 outputs that the words give.

Dimensions: S max_seq_length, P max_predictions_per_seq.
"""

import random

import numba
import numpy as np

_STATE_WORDS = 624
_OUTPUTS = _STATE_WORDS + 1  # where the outputs begin in a state

# What `plan_instances` keeps between two calls, as an int64 array.
PLACE_PASS, PLACE_DOCUMENT, PLACE_SENTENCE, PLACE_TARGET = range(4)
# Columns of an instance's spans.
A_BEGIN, A_LENGTH, B_BEGIN, B_LENGTH, IS_RANDOM, NUM_MASKED = range(6)
NO_B = -1  # as B_BEGIN: the instance is no pair but [CLS] A [SEP]

compiled = numba.njit(cache=True, nogil=True, boundscheck=False)


# ---- CPython's random numbers ----------------------------------------------------------------------------------------


def generator_state(rng: random.Random) -> np.ndarray:
    """The state of a `random.Random` as uint32 [1249]."""
    state = np.empty(_OUTPUTS + _STATE_WORDS, np.uint32)
    state[:_OUTPUTS] = rng.getstate()[1]
    _fill_outputs(state)
    return state


def restore(rng: random.Random, state: np.ndarray) -> None:
    """Brings a `random.Random` where compiled code left its state."""
    rng.setstate((3, tuple(state[:_OUTPUTS].tolist()), None))


@compiled
def _twist(word, following, far):
    mixed = (word & np.uint32(0x80000000)) | (following & np.uint32(0x7FFFFFFF))
    return far ^ (mixed >> np.uint32(1)) ^ ((mixed & np.uint32(1)) * np.uint32(0x9908B0DF))


@compiled
def _next_words(state):
    """The next 624 words (Matsumoto and Nishimura 1998). In simple loops, of which vector instructions can be made."""
    for k in range(_STATE_WORDS - 397):
        state[k] = _twist(state[k], state[k + 1], state[k + 397])
    for k in range(_STATE_WORDS - 397, _STATE_WORDS - 1):
        state[k] = _twist(state[k], state[k + 1], state[k + 397 - _STATE_WORDS])
    state[_STATE_WORDS - 1] = _twist(state[_STATE_WORDS - 1], state[0], state[396])
    _fill_outputs(state)


@compiled
def _fill_outputs(state):
    for k in range(_STATE_WORDS):
        word = state[k]
        word ^= word >> np.uint32(11)
        word ^= (word << np.uint32(7)) & np.uint32(0x9D2C5680)
        word ^= (word << np.uint32(15)) & np.uint32(0xEFC60000)
        state[_OUTPUTS + k] = word ^ (word >> np.uint32(18))


@compiled
def _next_word(state):
    """The next 32 bits."""
    used = np.int64(state[_STATE_WORDS])
    if used >= _STATE_WORDS:
        _next_words(state)
        used = 0
    state[_STATE_WORDS] = used + 1
    return state[_OUTPUTS + used]


@compiled
def _random(state):
    """`rng.random()`: 53 bits, from 0 to below 1."""
    high = np.int64(_next_word(state) >> np.uint32(5))
    low = np.int64(_next_word(state) >> np.uint32(6))
    return (high * 67108864.0 + low) * (1.0 / 9007199254740992.0)


@compiled
def _below(state, count):
    """`rng.randrange(count)`; count from 1 to 2^32 - 1."""
    bits, rest = 0, count
    while rest:
        bits += 1
        rest >>= 1
    shift = np.uint32(32 - bits)
    number = np.int64(_next_word(state) >> shift)
    while number >= count:
        number = np.int64(_next_word(state) >> shift)
    return number


@compiled
def shuffle(state, items, length):
    """`rng.shuffle` of the first `length` items of an array, in place."""
    bits = 0
    while (length >> bits) > 0:
        bits += 1
    for last in range(length - 1, 0, -1):
        count = last + 1
        if count < (1 << (bits - 1)):
            bits -= 1
        shift = np.uint32(32 - bits)
        number = np.int64(_next_word(state) >> shift)
        while number >= count:
            number = np.int64(_next_word(state) >> shift)
        items[last], items[number] = items[number], items[last]


# ---- instances -------------------------------------------------------------------------------------------------------


@compiled
def plan_instances(
    tokens, sentence_ends, document_ends, order, state, place, settings, probabilities, all_ids, is_continuation,
    spans, positions, replacements,
):  # fmt: skip
    """Goes on making instances until `spans` is full or all passes are done.

    Args:
      tokens: uint16 or int32, the whole text. sentence_ends: int64, where each sentence ends in tokens.
      document_ends: int64, where each document ends in sentences. order: int64, the documents in shuffled order.
      state: of the generator. place: int64 [4], where to go on; zeros and PLACE_TARGET -1 to begin with.
      settings: int64 (S, dupe_factor, P, whether whole words are masked, whether instances are pairs, ids of [CLS],
        [SEP], [MASK]); P 0: no masks. What is no pair is `[CLS] A [SEP]`.
      probabilities: (short_seq_prob, masked_lm_prob, mask_rate, keep_share: of the positions that don't become [MASK],
        those that stay).
      all_ids: int32, what random replacements are drawn from. is_continuation: bool by id, whether it continues a word.
      spans: int64 [n, 6], filled in. positions, replacements: int32 [n, P], filled in: masked positions, increasing,
        and what stands there after masking.

    Returns:
      The number of instances made; less than n only at the end.
    """
    max_seq_length, dupe_factor, max_predictions, whole_words, pairs, cls_id, sep_id, mask_id = settings
    short_seq_prob, masked_lm_prob, mask_rate, keep_share = probabilities
    max_num_tokens = max_seq_length - 3 if pairs else max_seq_length - 2
    documents = len(order)
    row = np.empty(max_seq_length, np.int32)
    scratch = np.empty((4, max_seq_length), np.int64)
    made = 0
    while place[PLACE_PASS] < dupe_factor:
        while place[PLACE_DOCUMENT] < documents:
            number = place[PLACE_DOCUMENT]
            document = order[number]
            first = document_ends[document - 1] if document else 0
            last = document_ends[document]
            if place[PLACE_TARGET] < 0:
                place[PLACE_TARGET] = max_num_tokens
                if _random(state) < short_seq_prob:
                    place[PLACE_TARGET] = 2 + _below(state, max_num_tokens - 1)
                place[PLACE_SENTENCE] = first
            target_length = place[PLACE_TARGET]
            while place[PLACE_SENTENCE] < last:
                if made == len(spans):
                    return made
                # Gather sentences start..end until they are long enough.
                start = end = place[PLACE_SENTENCE]
                begin = sentence_ends[start - 1] if start else 0
                while True:
                    length = sentence_ends[end] - begin
                    end += 1
                    if length >= target_length or end == last:
                        break
                num_sentences = end - start
                if not pairs:
                    a_end = end
                else:
                    a_end = start + 1 if num_sentences == 1 else start + 1 + _below(state, num_sentences - 1)
                a_length = sentence_ends[a_end - 1] - begin
                is_random = pairs != 0 and (num_sentences == 1 or _random(state) < 0.5)
                if not pairs:
                    b_begin, b_length = NO_B, 0
                elif is_random:
                    b_begin, b_length = _random_next(
                        sentence_ends, document_ends, order, number, target_length - a_length, state
                    )
                    end = a_end
                else:
                    b_begin = sentence_ends[a_end - 1]
                    b_length = sentence_ends[end - 1] - b_begin
                a_begin = begin
                while a_length + b_length > max_num_tokens:  # the longer loses a token, at one end or the other
                    if a_length > b_length:
                        a_length -= 1
                        a_begin += _random(state) < 0.5
                    else:
                        b_length -= 1
                        b_begin += _random(state) < 0.5
                span = spans[made]
                span[A_BEGIN], span[A_LENGTH], span[B_BEGIN], span[B_LENGTH] = a_begin, a_length, b_begin, b_length
                span[IS_RANDOM] = is_random
                span[NUM_MASKED] = 0
                if max_predictions:
                    row_length = gather(tokens, span, cls_id, sep_id, row)
                    to_predict = min(max_predictions, max(1, _round_half_even(row_length * masked_lm_prob)))
                    span[NUM_MASKED] = _mask(
                        row, row_length, to_predict, whole_words, mask_rate, keep_share, cls_id, sep_id, mask_id,
                        all_ids, is_continuation, state, scratch, positions[made], replacements[made],
                    )  # fmt: skip
                made += 1
                place[PLACE_SENTENCE] = end
            place[PLACE_DOCUMENT] += 1
            place[PLACE_TARGET] = -1
        place[PLACE_PASS] += 1
        place[PLACE_DOCUMENT] = 0
    return made


@compiled
def _random_next(sentence_ends, document_ends, order, number, target_length, state):
    """Sentences of a random place of, if ten draws find one, another document: (first token, number of tokens)."""
    other = 0
    for _ in range(10):
        other = _below(state, len(order))
        if other != number:
            break
    document = order[other]
    first = document_ends[document - 1] if document else 0
    last = document_ends[document]
    start = first + _below(state, last - first)
    begin = sentence_ends[start - 1] if start else 0
    end = start
    while True:
        length = sentence_ends[end] - begin
        end += 1
        if length >= target_length or end == last:
            return begin, length


@compiled
def gather(tokens, span, cls_id, sep_id, row):
    """Writes [CLS] A [SEP] B [SEP] of an instance, or [CLS] A [SEP], unmasked, into row; returns its length."""
    a_begin, a_length, b_begin, b_length = span[A_BEGIN], span[A_LENGTH], span[B_BEGIN], span[B_LENGTH]
    row[0] = cls_id
    for k in range(a_length):
        row[1 + k] = tokens[a_begin + k]
    row[a_length + 1] = sep_id
    if b_begin == NO_B:
        return a_length + 2
    for k in range(b_length):
        row[a_length + 2 + k] = tokens[b_begin + k]
    row[a_length + b_length + 2] = sep_id
    return a_length + b_length + 3


@compiled
def _round_half_even(x):
    below = np.floor(x)
    rest = x - below
    if rest > 0.5 or (rest == 0.5 and np.int64(below) % 2 == 1):
        below += 1.0
    return np.int64(below)


@compiled
def _mask(
    row, length, to_predict, whole_words, mask_rate, keep_share, cls_id, sep_id, mask_id, all_ids, is_continuation,
    state, scratch, positions, replacements,
):  # fmt: skip
    """Chooses positions of one instance and what will stand there; returns how many."""
    words, order, chosen = scratch[0], scratch[1], scratch[2]  # words: the word that each candidate belongs to
    candidates, num_candidates, num_words = scratch[3], 0, 0
    for position in range(length):
        token = row[position]
        if token == cls_id or token == sep_id:  # noqa: SIM109  Numba would build a tuple
            continue
        # A "##" piece at the beginning of B joins the last word of A, over the [SEP] between them, as in the original.
        if not (whole_words and num_words and is_continuation[token]):
            order[num_words] = num_candidates
            num_words += 1
        words[num_candidates] = num_words - 1
        candidates[num_candidates] = position
        num_candidates += 1
    shuffle(state, order, num_words)
    count = 0
    for k in range(num_words):
        if count >= to_predict:
            break
        begin = end = order[k]
        while end < num_candidates and words[end] == words[begin]:
            end += 1
        if count + end - begin <= to_predict:
            for candidate in range(begin, end):
                chosen[count] = candidates[candidate]
                count += 1
    for k in range(count):
        position = chosen[k]
        token = mask_id
        if _random(state) >= mask_rate:
            token = row[position] if _random(state) < keep_share else all_ids[_below(state, len(all_ids))]
        # Sorted in as they come: there are few.
        place = k
        while place and positions[place - 1] > position:
            positions[place] = positions[place - 1]
            replacements[place] = replacements[place - 1]
            place -= 1
        positions[place] = position
        replacements[place] = token
    return count

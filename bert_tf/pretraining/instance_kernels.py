"""The loops of create_pretraining_data.py that go over every token, compiled by Numba, and their random numbers.

A document is a range of sentences, a sentence a range of tokens, an instance two ranges of tokens and a few masked
positions. `tests/helpers/plain_pretraining.py` has the same in plain Python. Every draw comes from CPython's Mersenne
Twister, in the original's order; `drawing_from` hands the state over to Numba's.

Shape legend: S max_seq_length, P max_predictions_per_seq.
"""

import contextlib
import contextvars
import functools
import random
from collections.abc import Iterator

import numpy as np
from numba import _helperlib

from bert_tf.system.numba_compile import compiled, inner, is_interpreting

# The state of `plan_instances` between two calls, as an int64 array.
AT_PASS, AT_DOCUMENT, AT_SENTENCE, AT_TARGET = range(4)
# Columns of an instance's spans.
A_BEGIN, A_LENGTH, B_BEGIN, B_LENGTH, LABEL, NUM_MASKED = range(6)
NO_B = -1  # as B_BEGIN: the instance is not a pair but [CLS] A [SEP]
_SCRATCH_ROWS = 6


# ---- random numbers --------------------------------------------------------------------------------------------------


_generators = contextvars.ContextVar("generators")  # where functions run as Python


@contextlib.contextmanager
def drawing_from(rng: random.Random, numpy_rng: np.random.RandomState | None = None) -> Iterator[None]:
    """In this context functions draw from these generators, and leave them where they are then."""
    numpy_rng = numpy_rng or np.random.RandomState(0)
    token = _generators.set((rng, numpy_rng))
    python, numpy = _helperlib.rnd_get_py_state_ptr(), _helperlib.rnd_get_np_state_ptr()
    try:
        if is_interpreting():
            yield
            return
        *words, used = rng.getstate()[1]
        _helperlib.rnd_set_state(python, (used, words))
        _, words, used, *_ = numpy_rng.get_state()
        _helperlib.rnd_set_state(numpy, (used, words.tolist()))
        yield
        used, words = _helperlib.rnd_get_state(python)
        rng.setstate((3, (*words, used), None))
        used, words = _helperlib.rnd_get_state(numpy)
        numpy_rng.set_state(("MT19937", words, used))
    finally:
        _generators.reset(token)


@functools.partial(inner, in_python=lambda: _generators.get()[0].random())
def uniform():
    """`rng.random()`."""
    return random.random()


@functools.partial(inner, in_python=lambda: _generators.get()[1].random_sample())
def uniform_of_numpy():
    """`numpy_rng.random_sample()`."""
    return np.random.random()  # noqa: NPY002


@functools.partial(inner, in_python=lambda: np.int64(_generators.get()[0].getrandbits(32)))
def _bits():
    return np.int64(random.getrandbits(32))


@inner
def below(count):
    """`rng.randrange(count)`; count from 1 to 2^32 - 1."""
    bits, rest = 0, count
    while rest:
        bits += 1
        rest >>= 1
    number = _bits() >> (32 - bits)
    while number >= count:
        number = _bits() >> (32 - bits)
    return number


@compiled
def shuffle(items, length):
    """`rng.shuffle` of the first `length` items of an array, in place."""
    bits = 0
    while (length >> bits) > 0:
        bits += 1
    for last in range(length - 1, 0, -1):
        count = last + 1
        if count < (1 << (bits - 1)):
            bits -= 1
        number = _bits() >> (32 - bits)
        while number >= count:
            number = _bits() >> (32 - bits)
        items[last], items[number] = items[number], items[last]


# ---- instances -------------------------------------------------------------------------------------------------------


@inner
def begin_of(ends, number):
    """Where a range begins, of ranges that follow each other and end at `ends`."""
    return ends[number - 1] if number else 0


@compiled
def plan_instances(
    tokens, continuations, sentence_ends, document_ends, order, cursor, settings, probabilities,
    ngram_shares, all_ids, is_continuation, spans, positions, replacements,
):  # fmt: skip
    """Makes more instances until `spans` is full or all passes are done.

    tokens: uint16 or int32, the whole text. continuations: uint8, whether each token continues a word, or empty:
      is_continuation says it. sentence_ends: int64, where each sentence ends in tokens.
    document_ends: int64, where each document ends in sentences. order: int64, the documents in shuffled order.
    cursor: int64 [4], where to continue; at first zeros, with AT_TARGET -1.
    settings: int64 (S, dupe_factor, P, whether whole words are masked, whether instances are pairs, whether the
      order of pairs is the question, ids of [CLS], [SEP], [MASK]); P 0: no masks.
    probabilities: (short_seq_prob, masked_lm_prob, mask_rate, keep_share: of the positions that don't become [MASK],
      those that stay). ngram_shares: see `_mask`. all_ids: int32, what random replacements are drawn from.
    spans, positions, replacements: filled in, see `instances.Instances`.

    Returns the number of instances made; less than n only at the end.
    """
    max_seq_length, dupe_factor, _, _, pairs, in_order, _, _, _ = settings
    max_num_tokens = max_seq_length - 3 if pairs else max_seq_length - 2
    row = np.empty(max_seq_length, np.int32)
    continues = np.empty(max_seq_length, np.int32)
    scratch = np.empty((_SCRATCH_ROWS, max_seq_length + 1), np.int64)
    made = 0
    while cursor[AT_PASS] < dupe_factor:
        while cursor[AT_DOCUMENT] < len(order):
            number = cursor[AT_DOCUMENT]
            first, last = begin_of(document_ends, order[number]), document_ends[order[number]]
            if cursor[AT_TARGET] < 0:
                cursor[AT_TARGET] = max_num_tokens
                if uniform() < probabilities[0]:
                    cursor[AT_TARGET] = 2 + below(max_num_tokens - 1)
                cursor[AT_SENTENCE] = first
            while cursor[AT_SENTENCE] < last:
                if made == len(spans):
                    return made
                span = spans[made]
                cursor[AT_SENTENCE] = _put_span(
                    sentence_ends, document_ends, order, number, cursor[AT_SENTENCE], last, cursor[AT_TARGET],
                    pairs, in_order, span,
                )  # fmt: skip
                _truncate(span, max_num_tokens)
                span[NUM_MASKED] = 0
                if settings[2]:
                    span[NUM_MASKED] = _mask(
                        tokens, continuations, is_continuation, span, settings, probabilities, ngram_shares, all_ids,
                        row, continues, scratch, positions[made], replacements[made],
                    )  # fmt: skip
                made += 1
            cursor[AT_DOCUMENT] += 1
            cursor[AT_TARGET] = -1
        cursor[AT_PASS] += 1
        cursor[AT_DOCUMENT] = 0
    return made


@inner
def _put_span(sentence_ends, document_ends, order, number, start, last, target_length, pairs, in_order, span):
    """Puts texts and label of the instance that begins with the sentence `start`; returns the sentence after it."""
    begin, _, end = _sentences_from(sentence_ends, start, last, target_length)
    num_sentences, span[LABEL] = end - start, 0
    if not pairs:
        span[A_BEGIN], span[A_LENGTH] = begin, sentence_ends[end - 1] - begin
        span[B_BEGIN], span[B_LENGTH] = NO_B, 0
        return end
    a_end = start + 1 if num_sentences == 1 else start + 1 + below(num_sentences - 1)
    span[A_BEGIN], span[A_LENGTH] = begin, sentence_ends[a_end - 1] - begin
    if num_sentences == 1 or (not in_order and uniform() < 0.5):
        rest, span[LABEL] = target_length - span[A_LENGTH], 1
        span[B_BEGIN], span[B_LENGTH] = _random_next(sentence_ends, document_ends, order, number, rest)
        return a_end
    span[B_BEGIN] = sentence_ends[a_end - 1]
    span[B_LENGTH] = sentence_ends[end - 1] - span[B_BEGIN]
    if in_order and uniform() < 0.5:
        span[A_BEGIN], span[B_BEGIN] = span[B_BEGIN], span[A_BEGIN]
        span[A_LENGTH], span[B_LENGTH] = span[B_LENGTH], span[A_LENGTH]
        span[LABEL] = 1
    return end


@inner
def _random_next(sentence_ends, document_ends, order, number, target_length):
    """Sentences of, if ten draws find one, another document: (first token, number of tokens)."""
    other = 0
    for _ in range(10):
        other = below(len(order))
        if other != number:
            break
    document = order[other]
    first = begin_of(document_ends, document)
    last = document_ends[document]
    begin, length, _ = _sentences_from(sentence_ends, first + below(last - first), last, target_length)
    return begin, length


@inner
def _sentences_from(sentence_ends, start, last, target_length):
    """Sentences from `start` on until they are long enough: (first token, number of tokens, sentence after them)."""
    begin = begin_of(sentence_ends, start)
    end = start
    while True:
        length = sentence_ends[end] - begin
        end += 1
        if length >= target_length or end == last:
            return begin, length, end


@inner
def _truncate(span, max_num_tokens):
    while span[A_LENGTH] + span[B_LENGTH] > max_num_tokens:
        if span[A_LENGTH] > span[B_LENGTH]:
            span[A_LENGTH] -= 1
            span[A_BEGIN] += uniform() < 0.5
        else:
            span[B_LENGTH] -= 1
            span[B_BEGIN] += uniform() < 0.5


@inner
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


@inner
def _mask(
    tokens, continuations, is_continuation, span, settings, probabilities, ngram_shares, all_ids, row,
    continues, scratch, positions, replacements,
):  # fmt: skip
    """Chooses positions of one instance and the tokens to put there, see `plan_instances`; returns their number.

    ngram_shares: float64 [N], the share of n-grams of up to 1, 2, ... N words, the last 1; or empty: single words.
    row, continues [S], scratch [_SCRATCH_ROWS, S + 1]: for any use.
    """
    _, _, max_predictions, whole_words, _, _, cls_id, sep_id, mask_id = settings
    _, masked_lm_prob, mask_rate, keep_share = probabilities
    length = gather(tokens, span, cls_id, sep_id, row)
    if whole_words and len(continuations):
        gather(continuations, span, 0, 0, continues)
    elif whole_words:
        for k in range(length):
            continues[k] = is_continuation[row[k]]
    # Half to even, as Python rounds.
    to_predict = min(max_predictions, max(1, np.int64(np.rint(length * masked_lm_prob))))
    words, order, chosen = scratch[0], scratch[1], scratch[2]  # words: the word that each candidate belongs to
    candidates, begins, num_candidates, num_words = scratch[3], scratch[4], 0, 0
    for position in range(length):
        token = row[position]
        if token == cls_id or token == sep_id:  # noqa: SIM109  Numba would build a tuple
            continue
        # As in the original, a piece that continues a word, at the beginning of B, joins the last word of A.
        if not (whole_words and num_words and continues[position]):
            order[num_words] = begins[num_words] = num_candidates
            num_words += 1
        words[num_candidates] = num_words - 1
        candidates[num_candidates] = position
        num_candidates += 1
    begins[num_words] = num_candidates
    shuffle(order, num_words)
    count = _choose(order, words, begins, candidates, num_words, to_predict, ngram_shares, scratch[5], chosen)
    for k in range(count):
        position = chosen[k]
        token = mask_id
        if uniform() >= mask_rate:
            token = row[position] if uniform() < keep_share else all_ids[below(len(all_ids))]
        # Inserted in order: there are few.
        slot = k
        while slot and positions[slot - 1] > position:
            positions[slot] = positions[slot - 1]
            replacements[slot] = replacements[slot - 1]
            slot -= 1
        positions[slot] = position
        replacements[slot] = token
    if len(ngram_shares):
        shuffle(order, num_words)  # as the original does, for a permutation that it rarely makes
    return count


@inner
def _choose(order, words, begins, candidates, num_words, to_predict, ngram_shares, covered, chosen):
    """Positions of words, or n-grams that begin with each word, in the order given, as long as they fit: their number.

    The length of an n-gram is drawn also for a word that is then left out. One that does not fit is cut to fewer words.
    """
    covered[: begins[num_words]] = 0
    count = 0
    for k in range(num_words):
        if count >= to_predict:
            break
        size = 1
        if len(ngram_shares):
            draw = uniform_of_numpy()
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

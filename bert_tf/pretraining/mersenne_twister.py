"""Python's random numbers in compiled code: the same draws as `random.Random`, from the same state.

NumPy's older generator (`np.random.RandomState`) is the same Mersenne Twister, and its `random_sample` is `random`.
"""

import random

import numpy as np

from bert_tf.system.numba_compile import compiled, inner

_STATE_WORDS = 624

_OUTPUTS = _STATE_WORDS + 1  # where the outputs begin in a state


def generator_state(rng: random.Random) -> np.ndarray:
    """The state of a `random.Random` as uint32 [1249]."""
    state = np.empty(_OUTPUTS + _STATE_WORDS, np.uint32)
    state[:_OUTPUTS] = rng.getstate()[1]
    _fill_outputs(state)
    return state


def restore(rng: random.Random, state: np.ndarray) -> None:
    """Sets a `random.Random` to the state that compiled code left."""
    rng.setstate((3, tuple(state[:_OUTPUTS].tolist()), None))


def numpy_state(rng: np.random.RandomState) -> np.ndarray:
    """`generator_state` of NumPy's generator."""
    state = np.empty(_OUTPUTS + _STATE_WORDS, np.uint32)
    _, state[:_STATE_WORDS], state[_STATE_WORDS], *_ = rng.get_state(legacy=True)
    _fill_outputs(state)
    return state


def restore_numpy(rng: np.random.RandomState, state: np.ndarray) -> None:
    """Sets NumPy's generator to the state that compiled code left."""
    rng.set_state(("MT19937", state[:_STATE_WORDS], int(state[_STATE_WORDS])))


@inner
def _twist(word, following, far):
    mixed = (word & np.uint32(0x80000000)) | (following & np.uint32(0x7FFFFFFF))
    return far ^ (mixed >> np.uint32(1)) ^ ((mixed & np.uint32(1)) * np.uint32(0x9908B0DF))


@inner
def _next_words(state):
    """The next 624 words (Matsumoto and Nishimura 1998). The loops are simple, so that they can be vectorized."""
    for k in range(_STATE_WORDS - 397):
        state[k] = _twist(state[k], state[k + 1], state[k + 397])
    for k in range(_STATE_WORDS - 397, _STATE_WORDS - 1):
        state[k] = _twist(state[k], state[k + 1], state[k + 397 - _STATE_WORDS])
    state[_STATE_WORDS - 1] = _twist(state[_STATE_WORDS - 1], state[0], state[396])
    _fill_outputs(state)


@inner
def _fill_outputs(state):
    for k in range(_STATE_WORDS):
        word = state[k]
        word ^= word >> np.uint32(11)
        word ^= (word << np.uint32(7)) & np.uint32(0x9D2C5680)
        word ^= (word << np.uint32(15)) & np.uint32(0xEFC60000)
        state[_OUTPUTS + k] = word ^ (word >> np.uint32(18))


@inner
def _next_word(state):
    """The next 32 bits."""
    used = np.int64(state[_STATE_WORDS])
    if used >= _STATE_WORDS:
        _next_words(state)
        used = 0
    state[_STATE_WORDS] = used + 1
    return state[_OUTPUTS + used]


@inner
def random_float(state):
    """`rng.random()`: 53 bits, from 0 to below 1."""
    high = np.int64(_next_word(state) >> np.uint32(5))
    low = np.int64(_next_word(state) >> np.uint32(6))
    return (high * 67108864.0 + low) * (1.0 / 9007199254740992.0)


@inner
def below(state, count):
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

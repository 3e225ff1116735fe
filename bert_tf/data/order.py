"""The order of the records in an epoch, as a function of seed and position alone."""

import numpy as np


def permutation(length: int, seed: int, epoch: int, stream: int) -> np.ndarray:
    """A permutation of range(length) that depends on nothing but its arguments, in every NumPy version."""
    # The generator increments the first word of the counter, so different epochs and streams never overlap.
    generator = np.random.Philox(
        key=np.array([seed % 2**64, 0], np.uint64), counter=np.array([0, 0, stream, epoch], np.uint64)
    )
    return np.argsort(generator.random_raw(length), kind="stable")

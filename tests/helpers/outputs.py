"""Comparison of a model's outputs with an oracle's."""

import numpy as np

TOLERANCE = 2e-5  # of outputs in float32, at tokens that are not padding


def assert_close(actual, expected, mask=slice(None)):
    """Outputs [B, S, ...] or [B, ...] are equal where mask [B, S] or [B] is True; by default everywhere."""
    np.testing.assert_allclose(np.asarray(actual)[mask], expected[mask], atol=TOLERANCE, rtol=0)


def assert_drawn_independently(model):
    """No two weights of a new model begin with the same random numbers."""
    values = [v.numpy().ravel() for v in model.trainable_variables if len(v.shape) > 1]
    size = min(64, *(value.size for value in values))
    correlations = np.corrcoef([value[:size] for value in values if value[:size].any()])
    np.fill_diagonal(correlations, 0.0)
    assert abs(correlations).max() < 0.9

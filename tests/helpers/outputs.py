"""Comparison of a model's outputs with an oracle's."""

import numpy as np

TOLERANCE = 2e-5  # of outputs in float32, at tokens that are not padding


def assert_close(actual, expected, mask=slice(None)):
    """Outputs [B, S, ...] or [B, ...] are equal where mask [B, S] or [B] is True; by default everywhere."""
    np.testing.assert_allclose(np.asarray(actual)[mask], expected[mask], atol=TOLERANCE, rtol=0)

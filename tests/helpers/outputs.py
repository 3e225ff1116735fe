"""Comparison of a model's outputs with an oracle's."""

import numpy as np

TOLERANCE = 2e-5  # of outputs in float32, at tokens that are not padding


def enlarge(model, seed=7):
    """Gives a model random weights, large enough for its outputs to differ between rows; returns it."""
    if not model.built:
        model.build()
    generator = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        noise = generator.normal(size=variable.shape) * (0.3 if len(variable.shape) > 1 else 0.02)
        variable.assign(noise + (1 if variable.name == "gamma" else 0))
    return model


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

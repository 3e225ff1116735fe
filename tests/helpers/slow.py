"""Variants of a test that only `make test-slow` runs."""

import pytest


def slow(*cases) -> list:
    """Parameters for `pytest.mark.parametrize`, each marked slow; a tuple is one case with several values."""
    return [pytest.param(*case if isinstance(case, tuple) else (case,), marks=pytest.mark.slow) for case in cases]

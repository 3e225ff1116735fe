"""Variants of a test that only `make test-slow` runs, or only `make test-all`."""

import pytest


def slow(*cases) -> list:
    return _marked(cases, pytest.mark.slow)


def exhaustive(*cases) -> list:
    """As `slow`, for the other cases of a test that has many of one kind: only `make test-all` runs them."""
    return _marked(cases, [pytest.mark.slow, pytest.mark.exhaustive])


def _marked(cases: tuple, marks) -> list:
    return [pytest.param(*case if isinstance(case, tuple) else (case,), marks=marks) for case in cases]

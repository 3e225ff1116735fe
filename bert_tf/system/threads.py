"""Waiting for many files at once."""

import concurrent.futures
from collections.abc import Callable, Iterable

_THREADS = 32  # they wait for disks and networks


def in_threads(function: Callable, *arguments: Iterable, threads: int = _THREADS) -> list:
    """`list(map(function, *arguments))`, several calls at a time; after an error no further call begins."""
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        calls = [pool.submit(function, *values) for values in zip(*arguments, strict=True)]
        try:
            return [call.result() for call in calls]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise

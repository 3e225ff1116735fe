"""Calls in threads: for what waits for disks and networks, and for what TensorFlow computes with one core in a call."""

import collections
import concurrent.futures
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item, Result = TypeVar("Item"), TypeVar("Result")

_THREADS = 32  # they wait for disks and networks


def mapped_in_order(function: Callable[[Item], Result], items: Iterable[Item], at_once: int) -> Iterator[Result]:
    """function(item) for each item, in their order, as `map` does; up to `at_once` are computed in threads.

    What TensorFlow computes with one core in a call, another call can fill: two batches at once take less time on a
    CPU than one after the other. Items are taken no earlier than a thread is free; after an error no further call
    begins.
    """
    if at_once == 1:
        yield from map(function, items)
        return
    with concurrent.futures.ThreadPoolExecutor(at_once) as threads:
        begun = collections.deque()
        for item in items:
            begun.append(threads.submit(function, item))
            if len(begun) == at_once:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()


def in_threads(function: Callable, *arguments: Iterable, threads: int = _THREADS) -> list:
    """`list(map(function, *arguments))` by `mapped_in_order`."""
    return list(mapped_in_order(lambda values: function(*values), zip(*arguments, strict=True), threads))

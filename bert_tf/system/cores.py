"""The cores of this machine, how they are shared among what is computed at the same time, and calls in threads."""

import collections
import concurrent.futures
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from absl import logging

_MOST = 8  # batches that have cores of their own; each holds its activations
_WAITING_THREADS = 32  # they wait for disks and networks
_THREADS = "TF_NUM_INTRAOP_THREADS"  # TensorFlow's own variable: threads that compute one operation

Item, Result = TypeVar("Item"), TypeVar("Result")


def available_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on_cpu() -> bool:
    """Whether TensorFlow is Keras' backend and runs on the CPU only."""
    import keras

    if keras.config.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return all(device.device_type == "CPU" for device in tf.config.list_logical_devices())


def _threads_of_environment() -> int:
    """The threads of an operation that the environment asks for; 0 if it does not."""
    given = os.environ.get(_THREADS) or "0"
    if not given.isdecimal():
        raise ValueError(f"the environment variable {_THREADS}={given} must be a number of threads, from 1")
    return int(given)


def share_among_batches() -> None:
    """Gives each batch that is computed at the same time as others its own cores, if the environment does not say
    otherwise (TF_NUM_INTRAOP_THREADS).

    For programs that only predict: one thread that computes a batch neither wakes others nor waits for them. It changes
    nothing once TensorFlow has computed something.
    """
    import tensorflow as tf

    if not _threads_of_environment():
        threads = max(1, available_cores() // _MOST)
        with contextlib.suppress(RuntimeError):  # there are threads already
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            logging.info("On a CPU each batch is predicted by %d of %d cores.", threads, available_cores())


def batches_at_once(replicas: int = 1) -> int:
    """How many batches to compute at the same time: on a CPU one more than there are cores for; else one, as it fills
    the device.

    By default TensorFlow gives all cores to each operation. The batch that is one more fills what others leave idle,
    and what is needed before and after a batch is done meanwhile.
    """
    if replicas > 1 or not on_cpu():
        return 1
    import tensorflow as tf

    threads = tf.config.threading.get_intra_op_parallelism_threads() or _threads_of_environment()
    return 1 + min(_MOST, max(1, available_cores() // threads if threads else 1))


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


def in_threads(function: Callable, *arguments: Iterable, threads: int = _WAITING_THREADS) -> list:
    """`list(map(function, *arguments))` by `mapped_in_order`."""
    return list(mapped_in_order(lambda values: function(*values), zip(*arguments, strict=True), threads))

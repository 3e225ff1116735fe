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


def share_among_batches() -> None:
    """Gives each batch that is predicted at the same time as others its own cores, unless TF_NUM_INTRAOP_THREADS is set
    or TensorFlow has computed something: one thread neither wakes others nor waits."""
    import tensorflow as tf

    if not int(os.environ.get(_THREADS) or 0):
        threads = max(1, available_cores() // _MOST)
        with contextlib.suppress(RuntimeError):  # there are threads already
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            logging.info("On a CPU each batch is predicted by %d of %d cores.", threads, available_cores())


def batches_at_once(replicas: int = 1) -> int:
    """How many batches to compute at the same time: on a CPU one more than there are cores for, which fills what others
    leave idle; else one, as it fills the device."""
    if replicas > 1 or not on_cpu():
        return 1
    import tensorflow as tf

    threads = tf.config.threading.get_intra_op_parallelism_threads() or int(os.environ.get(_THREADS) or 0)
    return 1 + min(_MOST, max(1, available_cores() // threads if threads else 1))


def mapped_in_order(function: Callable[[Item], Result], items: Iterable[Item], at_once: int) -> Iterator[Result]:
    """As `map` does, but up to `at_once` are computed in threads.

    Items are taken no earlier than a thread is free; after an error no further call begins.
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
    return list(mapped_in_order(lambda values: function(*values), zip(*arguments, strict=True), threads))

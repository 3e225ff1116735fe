"""The cores of this machine: how batches and threads share them, and tasks in processes, which may die."""

import collections
import concurrent.futures
import contextlib
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from absl import logging

_MOST = 8  # batches that have cores of their own; each holds its activations
_WAITING_THREADS = 32  # they wait for disks and networks
_THREADS = "TF_NUM_INTRAOP_THREADS"  # TensorFlow's own variable: threads that compute one operation

Item = TypeVar("Item")
Result = TypeVar("Result")


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_gpu() -> bool:
    """Whether this process may use a GPU of NVIDIA; asked without TensorFlow, whose import takes seconds."""
    return os.path.exists("/dev/nvidiactl") and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1")


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


# --- processes --------------------------------------------------------------------------------------------------------

_POLL_SECONDS = 0.5
_DEATHS_ALLOWED = 3  # in a row, without a finished task in between

Progress = Callable[[float], None]  # receives what was done since the last call

_report: Progress | None = None  # of a running task
_shared: tuple = ()  # in a worker process: arguments that all tasks share


def report_progress(amount: float) -> None:
    """Called by a task: adds to the share of its work that is done."""
    if _report is not None:
        _report(amount)


def _start_worker(counter, verbosity: int, shared: tuple) -> None:
    """Sets up a new process: it adds progress to a counter shared with the parent, and ends with the parent."""
    global _report, _shared

    def end_with_parent() -> None:
        if parent := multiprocessing.parent_process():
            parent.join()  # also if that is killed
        os._exit(1)

    def report(amount: float) -> None:
        with counter.get_lock():
            counter.value += amount

    threading.Thread(target=end_with_parent, daemon=True).start()
    _report, _shared = report, shared
    logging.set_verbosity(verbosity)


def _run_in_worker(function: Callable, task: tuple):
    return function(*task, *_shared)


def map_tasks(function: Callable, tasks: Sequence[tuple], num_workers: int, *, shared: tuple = ()) -> Iterator:
    """The results of `run_tasks` in the order of the tasks, without their numbers."""
    results, wanted = {}, 0
    for number, result in run_tasks(function, tasks, num_workers, lambda _: None, shared):
        results[number] = result
        while wanted in results:
            yield results.pop(wanted)
            wanted += 1


def run_tasks(
    function: Callable, tasks: Sequence[tuple], num_workers: int, on_progress: Progress, shared: tuple = ()
) -> Iterator[tuple[int, object]]:
    """Yields (number of the task, function(*task, *shared)) as tasks finish, in any order.

    If a process dies (killed for its memory, say), the unfinished tasks start again in new processes.

    function: of a module, so that another process can import it; it may call `report_progress`.
    num_workers: 1: this process. on_progress: called every half second.
    shared: sent to each process once; tasks can use it as a cache for later ones.
    """
    global _report
    if num_workers == 1:
        for number, task in enumerate(tasks):
            _report = on_progress
            try:
                result = function(*task, *shared)
            finally:
                _report = None
            yield number, result
        return
    # Not by forking this process, since TensorFlow's threads would not survive that. On Linux processes are forked from
    # one that has only imported the module: all wait for a single import of TensorFlow, and share its memory.
    context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
    if sys.platform == "linux":
        context.set_forkserver_preload([function.__module__])
    counter, shown = context.Value("d", 0.0), 0.0
    pending, deaths = list(range(len(tasks))), 0
    while pending:
        count, start = min(num_workers, len(pending)), (counter, logging.get_verbosity(), shared)
        with concurrent.futures.ProcessPoolExecutor(count, context, _start_worker, start) as pool:
            try:
                try:
                    futures = {pool.submit(_run_in_worker, function, tasks[number]): number for number in pending}
                except (EOFError, ConnectionError) as error:  # the process that workers are forked from was killed
                    raise BrokenProcessPool from error
                waiting = set(futures)
                while waiting:
                    done, waiting = concurrent.futures.wait(waiting, _POLL_SECONDS, concurrent.futures.FIRST_COMPLETED)
                    now = counter.value
                    on_progress(now - shown)
                    shown = now
                    for future in done:
                        result = future.result()
                        pending.remove(futures[future])
                        deaths = 0
                        yield futures[future], result
            except BrokenProcessPool:
                deaths += 1
                if deaths > _DEATHS_ALLOWED:
                    problem = f"probably for memory, {deaths} times in a row with {len(pending)} tasks left"
                    advice = "fewer processes need less (--num_workers, if there is that flag)."
                    raise RuntimeError(f"A worker process was killed, {problem}: {advice}") from None
                logging.warning("A worker process was killed; its work starts again (%d tasks left).", len(pending))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

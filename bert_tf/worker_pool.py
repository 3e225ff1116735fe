"""Work cut into independent tasks, done by processes that may die."""

import concurrent.futures
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool

from absl import logging

_POLL_SECONDS = 0.5
_DEATHS_ALLOWED = 3  # in a row, without any task done in between

_report: Callable[[float], None] | None = None  # where progress goes while a task is done


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def report_progress(amount: float) -> None:
    """Called by a task: so much more of its weight is done."""
    if _report is not None:
        _report(amount)


def _start_worker(counter, verbosity) -> None:
    """In a new process: progress is added to a number shared with the parent, without whom it ends, too."""
    global _report
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def report(amount: float) -> None:
        with counter.get_lock():
            counter.value += amount

    _report = report
    logging.set_verbosity(verbosity)


def _end_with_parent() -> None:
    """Waits for the parent process, which may be killed, and ends this one at once."""
    multiprocessing.parent_process().join()
    os._exit(1)


def run_tasks(
    function: Callable, tasks: Sequence[tuple], num_workers: int, on_progress: Callable[[float], None]
) -> Iterator[tuple[int, object]]:
    """Yields (number of the task, function(*task)) as the tasks are done, in any order.

    A process that dies (killed for its memory, say) takes the unfinished tasks with it: they are begun anew by new
    processes, so a task must do nothing halfway that a second try would double.

    Args:
      function: of a module, so that another process finds it; it may call `report_progress`.
      num_workers: processes; 1: this one.
      on_progress: given the amounts reported, every half second.

    Raises:
      RuntimeError: processes keep dying. What `function` raises is raised; tasks not begun are dropped.
    """
    if num_workers == 1:
        yield from _run_here(function, tasks, on_progress)
        return
    # "spawn" on every system: forking a process that has threads (TensorFlow's) is unsafe.
    context = multiprocessing.get_context("spawn")
    counter, shown = context.Value("d", 0.0), 0.0
    pending, deaths = list(range(len(tasks))), 0
    while pending:
        with concurrent.futures.ProcessPoolExecutor(
            min(num_workers, len(pending)), context, _start_worker, (counter, logging.get_verbosity())
        ) as pool:
            futures = {pool.submit(function, *tasks[number]): number for number in pending}
            waiting = set(futures)
            try:
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
                    raise RuntimeError(
                        f"Worker processes died {deaths} times in a row with {len(pending)} tasks left; the system "
                        "may have killed them for their memory: try fewer of them (--num_workers)."
                    ) from None
                logging.warning("A worker process died; its work is begun anew (%d tasks left).", len(pending))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise


def _run_here(function: Callable, tasks: Sequence[tuple], on_progress: Callable[[float], None]) -> Iterator:
    """`run_tasks` in this process."""
    global _report
    for number, task in enumerate(tasks):
        _report = on_progress
        try:
            result = function(*task)
        finally:
            _report = None
        yield number, result

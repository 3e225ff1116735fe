"""Work cut into independent tasks, done by processes that may die."""

import concurrent.futures
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool

from absl import logging

_POLL_SECONDS = 0.5
_DEATHS_ALLOWED = 3  # in a row, without any task done in between

_counter = None  # in a worker: shared with the parent


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def report_progress(amount: float) -> None:
    """Called by a task: so much more of its weight is done."""
    if _counter is not None:
        with _counter.get_lock():
            _counter.value += amount


def _start_worker(counter, verbosity):
    global _counter
    _counter = counter
    logging.set_verbosity(verbosity)


def run_tasks(
    function: Callable, tasks: Sequence[tuple], num_workers: int, on_progress: Callable[[float], None]
) -> Iterator[tuple[int, object]]:
    """Yields (number of the task, function(*task)) as the tasks are done, in any order.

    A process that dies (killed for its memory, say) takes the unfinished tasks with it: they are begun anew by new
    processes, so a task must do nothing halfway that a second try would double.

    Args:
      function: of a module, so that another process finds it; it may call `report_progress`.
      on_progress: given the amounts reported, every half second.

    Raises:
      RuntimeError: processes keep dying. What `function` raises is raised; tasks not begun are dropped.
    """
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

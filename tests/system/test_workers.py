"""Tasks done by worker processes, which may die, and by threads that share the cores."""

import contextlib
import importlib
import multiprocessing.forkserver
import os
import pathlib
import signal
import sys
import threading

import pytest
from helpers.events import wait_until
from helpers.warm import HANG_SECONDS

from bert_tf.system import workers
from bert_tf.system.workers import mapped_in_order


def _die(marker: str, number: int) -> int:
    if number == 1 and (marker == "always" or not os.path.exists(marker)):
        if marker != "always":
            pathlib.Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    workers.report_progress(1)
    return number * number


def test_tasks_of_dead_processes_are_restarted(tmp_path):
    amounts = []
    tasks = [(str(tmp_path / "died"), number) for number in range(6)]
    results = dict(workers.run_tasks(_die, tasks, 2, amounts.append))
    assert results == {number: number * number for number in range(6)}
    with pytest.raises(RuntimeError, match="killed, probably for memory, 4 times.* tasks left.*--num_workers"):
        dict(workers.run_tasks(_die, [("always", 1)], 2, amounts.append))


@pytest.mark.parametrize("times", [1, 9])
def test_processes_that_die_at_the_start_are_restarted(times, tmp_path, monkeypatch):
    """The one that the others are forked from is killed while it imports the module."""
    (tmp_path / "deadly.py").write_text(f"""
import os, signal
with open({str(tmp_path / "starts")!r}, "ab", buffering=0) as file:
    if os.getpid() != {os.getpid()} and file.write(b"x") and file.tell() <= {times}:
        os.kill(os.getpid(), signal.SIGKILL)
def square(number):
    return number * number
""")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "deadly", raising=False)
    square, server = importlib.import_module("deadly").square, multiprocessing.forkserver._forkserver
    server._stop()
    with contextlib.ExitStack() as stack:
        stack.callback(server._stop)
        if times > 1:
            stack.enter_context(
                pytest.raises(RuntimeError, match="killed, probably for memory, 4 times.* 2 tasks left")
            )
        assert list(workers.map_tasks(square, [(2,), (3,)], 2)) == [4, 9]


def _fail(number: int) -> None:
    raise ValueError(f"task {number} has bad text")


@pytest.mark.parametrize("num_workers", [1, 2])
def test_an_error_of_a_task_is_raised(num_workers):
    with pytest.raises(ValueError, match="task 0 has bad text"):
        dict(workers.run_tasks(_fail, [(0,)], num_workers, lambda _: None))


def _wait_and_add(number: int, seen: list, offset: int, ended: pathlib.Path | None) -> tuple[int, int]:
    """The first task is not the first to end, if there are several workers."""
    if number == 0 and ended:
        wait_until(ended.exists)
    seen.append(number)
    if number == 1 and ended:
        ended.touch()
    return number + offset, len(seen)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_results_in_order_and_what_tasks_share(num_workers, tmp_path):
    tasks, seen = [(number,) for number in range(6)], []
    shared = (seen, 10, tmp_path / "ended" if num_workers > 1 else None)
    results = list(workers.map_tasks(_wait_and_add, tasks, num_workers, shared=shared))
    assert [result for result, _ in results] == list(range(10, 16))
    # Each process keeps its copy of the shared arguments from task to task.
    counts = [count for _, count in results]
    assert max(counts) > 1 and (
        counts == [1, 2, 3, 4, 5, 6] and seen == list(range(6)) if num_workers == 1 else not seen
    )


@pytest.mark.parametrize(
    ("available", "given", "expected"), [(2, "", 2), (16, "", 2), (16, "1", 9), (16, "4", 5), (4, "4", 2)]
)
def test_batches_at_once_by_the_environment(monkeypatch, available, given, expected):
    monkeypatch.setattr(workers, "available_cores", lambda: available)
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", given)
    assert workers.batches_at_once() == expected


@pytest.mark.parametrize("at_once", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_results_are_in_order_and_few_at_a_time(count, at_once):
    """As many as may are computed at the same time, and the first does not end before the second."""
    taken, running, most, lock = [], 0, 0, threading.Lock()
    all_run, second_ended = threading.Event(), threading.Event()

    def items():
        for number in range(count):
            taken.append(number)
            yield number

    def square(number):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == min(count, at_once):
                all_run.set()
        assert all_run.wait(HANG_SECONDS)
        if number == 0 and at_once > 1 < count:
            assert second_ended.wait(HANG_SECONDS)
        with lock:
            running -= 1
        if number == 1:
            second_ended.set()
        return number * number

    results = []
    for result in mapped_in_order(square, items(), at_once):
        results.append(result)
        assert len(taken) < len(results) + at_once
    assert results == [number * number for number in range(count)] and most == min(count, at_once)


@pytest.mark.parametrize("at_once", [1, 2])
def test_an_error_comes_in_its_turn(at_once):
    results = mapped_in_order(lambda number: 6 // number, [3, 2, 0, 1], at_once)
    assert [next(results), next(results)] == [2, 3]
    with pytest.raises(ZeroDivisionError):
        next(results)

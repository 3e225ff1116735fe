"""Worker processes, which may die, threads that share the cores, and what Numba keeps on disk, which can be damaged."""

import contextlib
import errno
import hashlib
import importlib
import multiprocessing.forkserver
import os
import pathlib
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from helpers.basics import ROOT
from helpers.warm import HANG_SECONDS, wait_until
from numba.core import caching

from bert_tf.system import messages, numba_compile, workers
from bert_tf.system.numba_compile import compiled
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
            message = "killed, probably for memory, 4 times.* 2 tasks left"
            stack.enter_context(pytest.raises(RuntimeError, match=message))
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
    taken, running, most = [], [], []
    first_ones, second_ended = threading.Barrier(max(1, min(count, at_once))), threading.Event()

    def items():
        for number in range(count):
            taken.append(number)
            yield number

    def square(number):
        running.append(number)
        most.append(len(running))
        if number < at_once:
            first_ones.wait(HANG_SECONDS)
        if number == 0 and at_once > 1 < count:
            assert second_ended.wait(HANG_SECONDS)
        running.remove(number)
        if number == 1:
            second_ended.set()
        return number * number

    results = []
    for result in mapped_in_order(square, items(), at_once):
        results.append(result)
        assert len(taken) < len(results) + at_once
    assert results == [number * number for number in range(count)]
    assert max(most, default=0) == min(count, at_once)


@pytest.mark.parametrize("at_once", [1, 2])
def test_an_error_comes_in_its_turn(at_once):
    results = mapped_in_order(lambda number: 6 // number, [3, 2, 0, 1], at_once)
    assert [next(results), next(results)] == [2, 3]
    with pytest.raises(ZeroDivisionError):
        next(results)


CALLED = """
from bert_tf.system.numba_compile import compiled

@compiled
def called(x):
    return x + {number}
"""
CALLER = """
from bert_tf.system.numba_compile import compiled
from called import called

@compiled
def caller(x):
    return 10 * called(x)

print(caller(1), sum(caller.stats.cache_hits.values()))
"""


def test_a_change_of_what_a_function_calls_compiles_it_again(tmp_path):
    (tmp_path / "caller.py").write_text(CALLER)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    results = []
    for number in (1, 1, 2):
        (tmp_path / "called.py").write_text(CALLED.format(number=number))
        results.append(subprocess.check_output([sys.executable, tmp_path / "caller.py"], env=environment, text=True))
    assert results == ["20 0\n", "20 1\n", "30 0\n"]  # the result, and how many functions came from the disk


LOOPS = """
import numpy as np
from bert_tf.system.numba_compile import compiled, inner

@compiled
def advance(at, step):
    return at + step

@compiled
def advance_twice(step):
    at = 0
    for _ in range(2):
        at = advance(at, step)
    return advance(at, 1)

@inner
def doubled(x):
    return np.uint64(2) * x

@compiled
def wrapped(x):
    return doubled(x) + np.uint64(1)
"""


@pytest.fixture
def loops(monkeypatch, tmp_path):
    (tmp_path / "loops.py").write_text(LOOPS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "loops", raising=False)
    return importlib.import_module("loops")


def test_constants_and_variables_share_what_is_compiled(loops):
    assert loops.advance_twice(3) == 7 and len(loops.advance.signatures) == 1


def test_interpreted_and_inner_functions_compile_nothing(loops, tmp_path):
    assert loops.doubled(np.uint64(3)) == 6
    with numba_compile.interpreted():
        assert loops.wrapped(np.uint64(1 << 63)) == 1  # as compiled code does, without a warning of the overflow
        with numba_compile.interpreted(False):
            assert not numba_compile.is_interpreting()
    assert not loops.doubled.signatures and not loops.wrapped.signatures
    assert loops.wrapped(np.uint64(1 << 63)) == 1
    assert len(loops.doubled.signatures) == len(loops.wrapped.signatures) == 1
    assert [path.name.partition("-")[0] for path in (tmp_path / "__pycache__").glob("*.nbc")] == ["loops.wrapped"]


@pytest.fixture
def run(loops):
    """Runs a function as a new process would; its result, and how many functions came from the disk."""

    def once() -> tuple[int, int]:
        loop = compiled(loops.advance.py_func)
        return loop(1, 2), sum(loop.stats.cache_hits.values())

    return once


@pytest.mark.parametrize("damage", [
    lambda content: b"",
    lambda content: content[: len(content) // 2],
    lambda content: content[: len(content) // 2] + bytes(len(content) - len(content) // 2),
    lambda content: content[:999] + bytes([content[999] ^ 1]) + content[1000:],
    lambda content: content[:32] + hashlib.sha256(b"no pickle").digest() + b"no pickle",
], ids=["empty", "cut off", "zeros", "a bit", "of another Numba"])  # fmt: skip
def test_a_damaged_file_is_compiled_again_and_replaced(run, tmp_path, caplog, damage):
    assert [run(), run()] == [(3, 0), (3, 1)]
    (file,) = tmp_path.rglob("*.nbc")
    file.write_bytes(damage(file.read_bytes()))
    assert [run(), run()] == [(3, 0), (3, 1)]
    assert [record.getMessage().startswith(f"{file} is damaged (") for record in caplog.records] == [True]


@pytest.mark.parametrize("is_full", [True, False])
def test_where_nothing_can_be_written_it_is_compiled_in_memory(run, monkeypatch, tmp_path, is_full):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    if is_full:
        monkeypatch.setattr(caching.IndexDataCacheFile, "_open_for_write", fail)
    else:  # neither the module's folder nor that of the user
        monkeypatch.setattr(caching._CacheLocator, "ensure_cache_path", fail)
    assert [run(), run()] == [(3, 0), (3, 0)] and not [*tmp_path.rglob("*.nbc")]


def test_what_takes_long_is_announced_and_nothing_else(monkeypatch):
    said = threading.Event()
    monkeypatch.setattr(messages.logging, "info", lambda form, message: message == "slow" and said.set())
    with messages.announced("slow", HANG_SECONDS):
        pass
    assert not said.is_set()
    with messages.announced("slow", 0.001):
        assert said.wait(HANG_SECONDS)

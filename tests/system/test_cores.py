"""How the cores are shared: threads of an operation, batches at once, calls in threads."""

import os
import subprocess
import sys
import threading

import pytest
from helpers.paths import ROOT
from helpers.warm import HANG_SECONDS

from bert_tf.system import cores
from bert_tf.system.cores import mapped_in_order

SCRIPT = """
import sys
from absl import app, flags
from bert_tf.system import cores, script
from bert_tf.system.declare import define_flags
from bert_tf.training.settings import DeviceSettings

define_flags(DeviceSettings)
cores.available_cores = lambda: int(sys.argv[1])

def main(_):
    script.start_tensorflow(*eval(sys.argv[2]))
    import tensorflow as tf
    print(tf.config.threading.get_intra_op_parallelism_threads(), cores.batches_at_once(), cores.batches_at_once(2))

app.run(main)
"""


@pytest.mark.slow  # in small: the next one
@pytest.mark.parametrize(("available", "started", "given", "expected"), [
    (2, "None, False", "", "1 3 1"), (64, "None, False", "", "8 9 1"), (6, "None, False", "3", "0 3 1"),
    (6, "None, True", "", "0 2 1"),
])  # fmt: skip
def test_a_script_that_only_predicts_has_a_core_for_each_batch(available, started, given, expected):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    environment["TF_NUM_INTRAOP_THREADS"] = given or "0"
    command = [sys.executable, "-c", SCRIPT, str(available), started]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == expected.split()


@pytest.mark.parametrize(
    ("available", "given", "expected"), [(2, "", 2), (16, "", 2), (16, "1", 9), (16, "4", 5), (4, "4", 2)]
)
def test_batches_at_once_by_the_environment(monkeypatch, available, given, expected):
    monkeypatch.setattr(cores, "available_cores", lambda: available)
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", given)
    assert cores.batches_at_once() == expected


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
    assert results == [number * number for number in range(count)]
    assert most == min(count, at_once)


@pytest.mark.parametrize("at_once", [1, 2])
def test_an_error_comes_in_its_turn(at_once):
    results = mapped_in_order(lambda number: 6 // number, [3, 2, 0, 1], at_once)
    assert [next(results), next(results)] == [2, 3]
    with pytest.raises(ZeroDivisionError):
        next(results)

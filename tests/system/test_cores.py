"""How the cores are shared: threads of an operation, batches at once, calls in threads."""

import threading

import pytest
from helpers.warm import HANG_SECONDS

from bert_tf.system import workers
from bert_tf.system.workers import mapped_in_order


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
    assert results == [number * number for number in range(count)]
    assert most == min(count, at_once)


@pytest.mark.parametrize("at_once", [1, 2])
def test_an_error_comes_in_its_turn(at_once):
    results = mapped_in_order(lambda number: 6 // number, [3, 2, 0, 1], at_once)
    assert [next(results), next(results)] == [2, 3]
    with pytest.raises(ZeroDivisionError):
        next(results)

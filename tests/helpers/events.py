"""Waiting for what happens in other processes: a file, a line, an end. No test waits for a time.

A test that has to stop a run at some place lets the run stop itself there (`run_that`): however busy the machine is,
the run can't have gone on meanwhile.
"""

import os
import sys
import time
from collections.abc import Callable

from helpers import warm
from helpers.paths import ROOT, TESTS

_PROGRAM = """
import os, runpy, signal, sys
{change}
sys.argv = sys.argv[1:]
sys.path[:2] = {path!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def wait_until(condition: Callable[[], bool], *processes, log: Callable[[], str] = str) -> None:
    """Returns once a condition holds, which the processes are to bring about; log: is shown if one ends before."""
    guard = time.monotonic() + warm.HANG_SECONDS
    while not condition():
        ended = any(process.poll() is not None for process in processes)
        assert not ended or condition(), f"a process ended before: {log()[-3000:]}"
        assert time.monotonic() < guard, "it hangs"
        time.sleep(0.02)


def run_that(change: str, script: str, arguments: list[str], **options) -> warm.Popen:
    program = _PROGRAM.format(change=change, path=[str(ROOT), str(TESTS)])
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, "-c", program, str(ROOT / f"{script}.py"), *arguments]
    return warm.Popen(command, env=environment, **options)


def after_rename(name: str, do: str, condition: str = "True") -> str:
    """A piece of Python for `run_that`: does something as soon as a file with this path, and `text`, has its name."""
    return f"""
import tensorflow as tf
rename = tf.io.gfile.rename
def renamed(source, target, overwrite=False):
    rename(source, target, overwrite=overwrite)
    if os.path.abspath(target) == {os.path.abspath(name)!r}:
        with open(target, errors="replace") as file:
            text = file.read()
        if {condition}:
            {do}
tf.io.gfile.rename = renamed
"""

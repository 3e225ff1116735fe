"""Waiting for what happens in other processes: a file, a line, an end. No test waits for a time.

A test that has to stop a run at some place lets the run stop itself there (`kill_after_rename`): however busy the
machine is, the run can't have gone on meanwhile.
"""

import os
import pathlib
import signal
import sys
import time
from collections.abc import Callable

from helpers import warm

_KILLED = """
import os, runpy, signal, sys
import tensorflow as tf
rename, (last, *sys.argv) = tf.io.gfile.rename, sys.argv[1:]
def renamed(source, target, overwrite=False):
    rename(source, target, overwrite=overwrite)
    if os.path.abspath(target) == last:
        os.kill(os.getpid(), signal.SIGKILL)
tf.io.gfile.rename = renamed
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


def kill_after_rename(path: pathlib.Path, command: list[str]) -> None:
    """Runs a script that kills itself as soon as a file has this path."""
    killed = [sys.executable, "-c", _KILLED, os.path.abspath(path), *command[1:]]
    assert warm.Popen(killed, stderr=warm.DEVNULL).wait() == -signal.SIGKILL, "it ended before"

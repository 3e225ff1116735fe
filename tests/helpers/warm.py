"""`subprocess.run` and `subprocess.Popen` for Python programs, with all imports already done.

Starting a script takes longer than a tiny run of it: imports take five seconds. Here one process has done them
(`warm_server`) and forks a child for each run, with its own flags, command line, environment, directory, output, exit
code and signals. Tests of the start itself (imports, environment read by them, encoding of the terminal, string hashes)
need `subprocess`.

No test waits for a time. One that has to stop a run at some place lets the run stop itself there (`kill_after_rename`):
however busy the machine is, the run can't have gone on meanwhile.
"""

import atexit
import contextlib
import functools
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from subprocess import DEVNULL, PIPE, STDOUT, CompletedProcess, TimeoutExpired

_SERVER = pathlib.Path(__file__).with_name("warm_server.py")
# Python, TensorFlow, Keras and Numba read these when they are started or imported.
_FIXED = (
    "KERAS_BACKEND", "KERAS_HOME", "LANG", "LC_ALL", "MPLBACKEND", "OMP_NUM_THREADS", "PYTHONHASHSEED",
    "PYTHONIOENCODING", "PYTHONUTF8", "TF_USE_LEGACY_KERAS", "TF_XLA_FLAGS", "XLA_FLAGS",
)  # fmt: skip
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
# Guards against hanging only: many times what any run takes on a slow and busy machine.
HANG_SECONDS = 1200
_ADDRESS = "BERT_TF_WARM_SERVER"  # in the environment, so that pytest's processes share one server


def start() -> None:
    """Starts the server, for this process and all that it starts from now on."""
    folder = tempfile.TemporaryDirectory(prefix="warm-")
    address = os.path.join(folder.name, "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen()
        command, number = [sys.executable, str(_SERVER)], listening.fileno()
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
        process = subprocess.Popen([*command, str(number)], env=environment, stdin=DEVNULL, pass_fds=[number])
    os.environ[_ADDRESS] = address
    connection = _connection()  # the server ends with its last connection

    def end():
        connection.close()
        process.wait()
        folder.cleanup()

    atexit.register(end)


@functools.cache
def _connection() -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(os.environ[_ADDRESS])
    return connection


class Popen:
    """A run; arguments and attributes are those of `subprocess.Popen` that tests need. Output goes to files."""

    def __init__(self, args, *, stdin=None, stdout=None, stderr=None, cwd=None, env=None):
        if args[0] != sys.executable:
            raise ValueError(f"{args[0]} is another program than this Python")
        environment = dict(os.environ if env is None else env)
        other = [name for name in _FIXED if environment.get(name) != os.environ.get(name)]
        if other:
            raise ValueError(f"{', '.join(other)} takes effect at the start of a process: use subprocess")
        if _ADDRESS not in os.environ:
            start()
        self.args, self.returncode = args, None
        request = {"arguments": [os.fspath(argument) for argument in args[1:]]}
        request |= {"cwd": os.path.abspath(cwd or os.getcwd()), "env": environment}
        with contextlib.ExitStack() as theirs:
            nothing = theirs.enter_context(open(os.devnull, "r+b"))
            files = [nothing if stdin in (None, DEVNULL) else stdin]
            files.append({None: sys.__stdout__, DEVNULL: nothing}.get(stdout, stdout))
            files.append({None: sys.__stderr__, DEVNULL: nothing, STDOUT: files[1]}.get(stderr, stderr))
            status, end = os.pipe()
            self._status = os.fdopen(status, "rb", buffering=0)
            files.append(theirs.enter_context(os.fdopen(end, "wb")))
            # In a file, since the size of a socket message is limited.
            files.append(theirs.enter_context(tempfile.TemporaryFile()))
            files[-1].write(json.dumps(request).encode())
            files[-1].seek(0)
            socket.send_fds(_connection(), [b"run"], [file.fileno() for file in files])
        self.pid = int(self._status.readline())  # it may have ended already, with its status on the next line

    def poll(self) -> int | None:
        with contextlib.suppress(TimeoutExpired):
            self.wait(timeout=0)
        return self.returncode

    def wait(self, timeout: float | None = HANG_SECONDS) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise TimeoutExpired(self.args, timeout)
            self.returncode = int(self._status.read(32))
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(args, *, input=None, capture_output=False, text=False, check=False, **options):
    """`subprocess.run`; output goes to files, so that no pipe fills up."""
    with contextlib.ExitStack() as stack:

        def file():
            return stack.enter_context(tempfile.TemporaryFile("w+" if text else "w+b"))

        if input is not None:
            options["stdin"] = file()
            options["stdin"].write(input)
            options["stdin"].seek(0)
        if capture_output:
            options |= {"stdout": PIPE, "stderr": PIPE}
        outputs = {name: file() for name in ("stdout", "stderr") if options.get(name) == PIPE}
        process = Popen(args, **options | outputs)
        try:
            process.wait()
        except BaseException:
            process.kill()
            raise
        written = {}
        for name, output in outputs.items():
            output.seek(0)
            written[name] = output.read()
    result = CompletedProcess(args, process.returncode, **written)
    if check:
        result.check_returncode()
    return result


def wait_until(condition: Callable[[], bool], *processes, log: Callable[[], str] = str) -> None:
    """Returns once a condition holds, which the processes are to bring about; log: is shown if one ends before."""
    guard = time.monotonic() + HANG_SECONDS
    while not condition():
        ended = any(process.poll() is not None for process in processes)
        assert not ended or condition(), f"a process ended before: {log()[-3000:]}"
        assert time.monotonic() < guard, "it hangs"
        time.sleep(0.02)


def kill_after_rename(path: pathlib.Path, command: list[str]) -> None:
    """Runs a script that kills itself as soon as a file has this path."""
    killed = [sys.executable, "-c", _KILLED, os.path.abspath(path), *command[1:]]
    assert Popen(killed, stderr=DEVNULL).wait() == -signal.SIGKILL, "it ended before"


if __name__ == "__main__":  # Python for pytest-xdist: `warm.py -u -c program`
    sys.exit(Popen([sys.executable, *sys.argv[2:]], stdin=sys.stdin, stdout=sys.stdout).wait(timeout=None))

"""The parent process of scripts that tests run: it has imported everything, and forks a child for each run.

TensorFlow starts its devices and thread pools on first use, in the child, since they would not survive a fork. The
child takes over the files, directory, environment and command line of its request (see `warm`), and runs as the main
program to its normal end.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import random
import runpy
import select
import signal
import socket
import sys

import quick


def import_everything() -> None:
    import keras  # noqa: F401
    import matplotlib.pyplot  # noqa: F401
    import numpy as np  # noqa: F401
    import tensorflow  # noqa: F401
    import tensorflow_text  # noqa: F401

    import bert_tf

    for module in pkgutil.walk_packages(bert_tf.__path__, "bert_tf."):
        if not module.name.startswith("bert_tf.cli."):  # each defines the flags of its own process
            importlib.import_module(module.name)


def report_ended(running: dict[int, int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pipe = running.pop(ended[0])
            with contextlib.suppress(BrokenPipeError):
                os.write(pipe, str(os.waitstatus_to_exitcode(ended[1])).encode())
            os.close(pipe)


def serve(listening: socket.socket) -> dict:
    """Forks a child for each request, and returns in it; ends the process when the last connection is closed."""
    connections: list[socket.socket] = []
    running: dict[int, int] = {}  # process -> the pipe for its exit code
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([listening, woken, *connections], [], [])
        if woken in ready:
            os.read(woken, 4096)
            report_ended(running)
        if listening in ready:
            connections.append(listening.accept()[0])
        for connection in [link for link in connections if link in ready]:
            message, files, _, _ = socket.recv_fds(connection, 16, 5)
            if not message:
                connections.remove(connection)
                connection.close()
                if not connections:
                    sys.exit(0)
                continue
            *files, pipe, file = files
            with open(file) as opened:
                request = json.load(opened)
            process = os.fork()
            if not process:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                sockets = [link.detach() for link in (listening, *connections)]
                for file in (*sockets, woken, wake, pipe, *running.values()):
                    os.close(file)
                for number, file in enumerate(files):
                    os.dup2(file, number)
                    os.close(file)
                return request
            for file in files:
                os.close(file)
            running[process] = pipe
            os.write(pipe, f"{process}\n".encode())


def become(request: dict) -> None:
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.stdout.reconfigure(line_buffering=False, write_through="PYTHONUNBUFFERED" in os.environ)
    random.seed()
    sys.modules["numpy"].random.seed()
    if "PYTEST_CURRENT_TEST" in os.environ:  # a script, and no process of pytest-xdist
        quick.draw_nothing()


def run(arguments: list[str]) -> None:
    """Runs [script, ...], ["-c", program, ...] or ["-m", module, ...] as Python does."""
    kind, *rest = arguments
    if kind == "-c":
        sys.argv[:], sys.path[0] = ["-c", *rest[1:]], ""
        del sys.modules["__main__"].__file__  # multiprocessing would import it
        exec(compile(rest[0], "<string>", "exec"), vars(sys.modules["__main__"]))
    elif kind == "-m":
        sys.argv[:], sys.path[0] = rest, os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:], sys.path[0] = arguments, os.path.dirname(os.path.abspath(kind))
        runpy.run_path(kind, run_name="__main__")


def leave() -> None:
    if exit_code is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)


if __name__ == "__main__":
    exit_code = None
    atexit.register(leave)  # the first one registered is called last
    import_everything()
    quick.apply()
    gc.collect()
    gc.freeze()  # what the children share stays shared
    REQUEST = serve(socket.socket(fileno=int(sys.argv[1])))
    become(REQUEST)
    try:
        run(REQUEST["arguments"])
        exit_code = 0
    except SystemExit as error:
        exit_code = error.code if isinstance(error.code, int) else int(error.code is not None)
        raise
    except Exception:
        exit_code = 1
        raise

"""Several workers: processes of this machine in one cluster."""

import contextlib
import json
import os
import pathlib
import socket
import sys
from collections.abc import Iterator, Sequence

from helpers import script_cases, warm
from helpers.basics import ROOT, TESTS


@contextlib.contextmanager
def workers(commands: Sequence[list[str]], folder: pathlib.Path, more_of_last=()) -> Iterator[list[warm.Popen]]:
    """The processes of these commands, which write worker-0.log, worker-1.log and so on; they end with the context.

    What is in worker-0.in, if it is there, is the input of the first, and worker-0.out its output.

    more_of_last: addresses of workers that only the last one's TF_CONFIG has.
    """
    sockets = [socket.create_server(("localhost", 0)) for _ in commands]
    addresses = [f"localhost:{server.getsockname()[1]}" for server in sockets]
    for server in sockets:
        server.close()
    processes = []
    try:
        for number, command in enumerate(commands):
            listed = [*addresses, *(more_of_last if number == len(commands) - 1 else ())]
            config = {"cluster": {"worker": listed}, "task": {"type": "worker", "index": number}}
            environment = {**os.environ, "TF_CONFIG": json.dumps(config)}
            given, written, log = (folder / f"worker-{number}.{ending}" for ending in ("in", "out", "log"))
            given.touch()
            with open(given) as stdin, open(written, "w") as stdout, open(log, "w") as stderr:
                files = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
                processes.append(warm.Popen(command, env=environment, cwd=folder, **files))
        yield processes
    finally:
        for process in processes:
            process.kill()


def run_mains(steps: dict[str, tuple[str, list[dict]]], folder: pathlib.Path, prepare: str = "") -> list[dict]:
    """`script_cases.run_mains` in several workers at once; returns for each the outcomes of all steps.

    steps: name -> (script without ".py", {flag: value} of each worker).
    """
    count = len(next(iter(steps.values()))[1])
    for number in range(count):
        lines = [[name, script, script_cases.arguments_of(given[number])] for name, (script, given) in steps.items()]
        (folder / f"worker-{number}.in").write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [sys.executable, "-c", script_cases.PROGRAM, prepare, str(TESTS), str(ROOT)]
    with workers([command] * count, folder) as processes:
        for process in processes:
            process.wait()
    written = ((folder / f"worker-{number}.out").read_text().splitlines() for number in range(count))
    ended = ([json.loads(line) for line in lines if line.startswith('["')] for lines in written)
    return [{name: outcome for name, outcome, _ in steps} for steps in ended]


def prepare() -> None:
    """In a process of `run_mains`: the last evaluation is the best, and the first worker holds its model back until
    another has asked for it, or read an older one; no file is waited for long."""
    from bert_tf.training import distribution, fine_tuning

    best, asked = fine_tuning.BestModel, pathlib.Path("asked")
    save, update, load = best._save, best.update, fine_tuning.initialize.load_complete
    await_written = distribution.await_written

    def held_save(self, *arguments):
        if len(self.evaluations) > 1:
            warm.wait_until(asked.exists)
        save(self, *arguments)

    def ask() -> None:
        if json.loads(os.environ["TF_CONFIG"])["task"]["index"]:
            asked.touch()

    def noted(strategy, paths):
        if "best_model" in paths[0]:
            ask()
        await_written(strategy, paths)

    def noted_load(*arguments):
        load(*arguments)
        ask()

    distribution._SECONDS_TO_APPEAR = 0.1
    distribution.await_written = noted
    best._save = held_save
    best.update = lambda self, step, results, *rest: update(self, step, results | {self._metric: float(step)}, *rest)
    fine_tuning.initialize.load_complete = noted_load

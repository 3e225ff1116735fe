"""Runs of the scripts, one after the other; finished ones are not repeated."""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import BinaryIO

from absl import logging

from bert_tf.system.messages import progress_bar
from bert_tf.system.script import ENDS_WITH_STDIN
from bert_tf.system.storage import is_remote, write_text_file
from bert_tf.system.text_files import read_json_if_there, read_text_lines

SCRIPTS = pathlib.Path(__file__).resolve().parents[1]

_LINES_OF_LOG = 15
_SECONDS_BETWEEN_LOOKS = 0.5
_END_OF_LOG = 4096  # characters, enough for a progress bar
_MOST_WARNINGS = 5  # of one run
# A progress bar of the scripts, "train:  40%|####      | 40/100 [00:10<00:15, 4.0step/s]", and a warning of theirs.
_BAR = re.compile(r"(\w[\w ]*): +\d+%\|[^|]*\| *(\d+/\d+) \[[\d:]+<([\d:]+)")
_WARNING = re.compile(r"^W\d{4} [\d:.]+ +\d+ \w+\.py:\d+\] (.*)$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a script.

    Attributes:
      name: of its log and its results. script: file name. flags: without the leading dashes; None: not given.
      extra: further flags as on a command line. read: reads the results, once the script has succeeded.
    """

    name: str
    script: str
    flags: Mapping[str, object]
    read: Callable[[], dict] = dict
    extra: tuple[str, ...] = ()

    def command(self) -> list[str]:
        given = [f"--{name}={value}" for name, value in self.flags.items() if value is not None]
        return [self.script, *given, *self.extra]


def ending_with_this() -> dict:
    """Arguments of `subprocess.Popen`, with which a script ends when this process does, also if that is killed."""
    return {"stdin": subprocess.PIPE, "env": {**os.environ, ENDS_WITH_STDIN: "1"}}


def ending_of(returncode: int) -> str:
    """How a script that failed ended, by its exit code; the system kills what takes too much memory."""
    return "was killed, probably for memory" if returncode == -signal.SIGKILL else f"failed with exit code {returncode}"


def result_of(run: Run, output_dir: str) -> dict | None:
    """The saved result of a run: `results`, and `seconds` of its last start; None if it isn't finished.

    Raises:
      ValueError: it was run with other flags; names them.
    """
    path = os.path.join(output_dir, "results", f"{run.name}.json")
    kept = read_json_if_there(path)
    if kept is None:
        return None
    now, then = run.command(), kept["command"]
    if now != then:
        different = [part for part in now if part not in then] + [f"not {part}" for part in then if part not in now]
        raise ValueError(
            f"--output_dir={output_dir} has results for other flags ({run.name}: now {', '.join(different)}). Choose "
            f"another directory, or delete {path} and the run's folder."
        )
    return kept


def progress_in(log: str) -> str:
    """Where a script is, by the last progress bar in its log: "train 40/100, 00:15 left"; "" if there is none."""
    bars = _BAR.findall(log)
    return "{} {}, {} left".format(*bars[-1]) if bars else ""


def do_run(run: Run, output_dir: str, wait: Callable[[str], None] = lambda progress: None) -> dict:
    """Runs a script, with its output in logs/<name>.log, and saves the results; see `result_of`.

    Its warnings are repeated at its end.

    Args:
      wait: called from time to time while the script runs, with `progress_in` its log.

    Raises:
      ChildProcessError: it failed; the message ends with the last lines of its log.
    """
    import tensorflow as tf

    log_path = os.path.join(output_dir, "logs", f"{run.name}.log")
    for folder in ("logs", "results"):
        tf.io.gfile.makedirs(os.path.join(output_dir, folder))
    command = run.command()
    logging.info("%s; its log is %s", " ".join(command), log_path)
    started = time.monotonic()
    with _appended(log_path) as log:
        known = log.seek(0, os.SEEK_END)  # bytes of earlier starts
        process = subprocess.Popen(
            [sys.executable, str(SCRIPTS / command[0]), *command[1:]], stdout=log, stderr=subprocess.STDOUT,
            **ending_with_this(),
        )  # fmt: skip
        try:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_SECONDS_BETWEEN_LOOKS)
                wait(progress_in(_text_in(log, known)[-_END_OF_LOG:]))
        finally:
            if process.poll() is None:  # on SIGTERM a training run saves a checkpoint
                process.terminate()
                process.wait()
        text = _text_in(log, known)
    if process.returncode:
        last = "".join(text.splitlines(keepends=True)[-_LINES_OF_LOG:])
        raise ChildProcessError(
            f"{run.script} of the run {run.name} {ending_of(process.returncode)}; the end of {log_path}:\n{last}"
        )
    for warning in list(dict.fromkeys(_WARNING.findall(text)))[:_MOST_WARNINGS]:
        logging.warning("%s: %s", run.name, warning)
    kept = {"command": command, "results": run.read(), "seconds": round(time.monotonic() - started, 1)}
    write_text_file(os.path.join(output_dir, "results", f"{run.name}.json"), json.dumps(kept, indent=2) + "\n")
    return kept


def _text_in(log: BinaryIO, begin: int) -> str:
    """What a log has from a byte on, without moving the position at which a script writes."""
    return os.pread(log.fileno(), os.fstat(log.fileno()).st_size - begin, begin).decode("utf-8", errors="replace")


@contextlib.contextmanager
def _appended(path: str) -> Iterator[BinaryIO]:
    """A file whose content is appended to the one at `path`: at once if that is local, at the end if it is remote."""
    import tensorflow as tf

    with tempfile.TemporaryFile() if is_remote(path) else open(path, "a+b") as file:
        try:
            yield file
        finally:
            if is_remote(path):
                with tf.io.gfile.GFile(path, "ab") as target:
                    target.write(_text_in(file, 0).encode())


def do_runs(runs: Iterable[Run], output_dir: str) -> dict[str, dict]:
    """Does all unfinished runs one after the other, with a progress bar; returns name -> `result_of`.

    Raises:
      ValueError, ChildProcessError: see `result_of` (before anything runs) and `do_run`.
    """
    runs = list({run.name: run for run in runs}.values())
    done = {run.name: kept for run in runs if (kept := result_of(run, output_dir))}
    if done:
        logging.info("%d of %d runs are already done.", len(done), len(runs))
    options = {"total": len(runs), "initial": len(done), "desc": "scripts", "unit": "run", "miniters": 0}
    with progress_bar(**options) as bar, _stopped_by_signal():
        for run in (run for run in runs if run.name not in done):

            def show(progress: str, name: str = run.name) -> None:
                bar.set_postfix_str(f"{name}: {progress}" if progress else name, refresh=False)
                bar.update(0)  # drawn as often as any bar

            show("")
            done[run.name] = do_run(run, output_dir, show)
            bar.update()
    return done


@contextlib.contextmanager
def _stopped_by_signal() -> Iterator[None]:
    """Makes SIGTERM end this process as Ctrl-C does, so that the script it waits for ends, too."""

    def stop(*_):
        raise SystemExit(128 + signal.SIGTERM)

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def results_in(output_dir: str) -> dict[str, float]:
    """What a run wrote to eval_results.txt."""
    lines = read_text_lines(os.path.join(output_dir, "eval_results.txt"))
    return {key: float(value) for key, value in (line.split(" = ") for line in lines)}


def scores_in(output_dir: str) -> dict[str, list[float]]:
    """Each metric's values, one for each seed of a fine-tuning."""
    if seeds := read_json_if_there(os.path.join(output_dir, "seeds.json")):
        results = list(seeds["seeds"].values())
        return {name: [values[name] for values in results] for name in results[0]}
    return {name: [value] for name, value in results_in(output_dir).items()}

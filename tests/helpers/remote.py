"""A remote file system for tests: paths remote://bucket/... that only TensorFlow can open, as it opens gs://...

Its files lie below a local folder (see remote_files.cc), where a test can look at them.
"""

import contextlib
import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from absl import flags

from helpers import warm
from helpers.paths import ROOT, TESTS
from helpers.script_cases import arguments_of

PLACE = "remote://bucket"
_OWN_FLAGS = set(flags.FLAGS)
_PROGRAM = """
import sys
library, *sys.path[:2] = sys.argv[1:]
sys.argv = sys.argv[:1]
from helpers import remote
remote.run_steps(library)
"""


def compiled() -> str:
    """The library that adds the file system to TensorFlow; compiled once, and kept in the cache of pytest."""
    import tensorflow as tf

    source = TESTS / "helpers" / "remote_files.cc"
    target = ROOT / ".pytest_cache" / "d" / f"{tf.version.VERSION}-{int(source.stat().st_mtime)}" / "remote_files.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = pathlib.Path(folder) / target.name
            command = ["g++", "-w", "-O0", "-fPIC", "-shared", "-DNDEBUG", *tf.sysconfig.get_compile_flags()]
            subprocess.run([*command, str(source), "-o", str(made), *tf.sysconfig.get_link_flags()], check=True)
            made.replace(target)
    return str(target)


def add_file_system(library: str) -> None:
    """Makes remote:// paths known to this process; the environment variable REMOTE_FILES must say where they lie."""
    import tensorflow as tf

    tf.load_op_library(library)


def run_on_bucket(folder: pathlib.Path, steps: dict[str, tuple[str, dict]]) -> tuple[dict, str]:
    """Runs scripts' mains one after the other in one process, with the folder's bucket/ as remote://bucket.

    The process runs in an empty directory, with another empty one for temporary files.

    Args:
      steps: name -> (script without ".py", {flag: value}).

    Returns:
      "done" or the error as "ValueError: ..." by name, and stderr.

    Raises:
      AssertionError: something is left in one of the two directories.
    """
    places = {name: folder / name for name in ("current", "temporary")}
    for place in places.values():
        place.mkdir()
    lines = [json.dumps([name, script, arguments_of(given)]) + "\n" for name, (script, given) in steps.items()]
    settings = {"TF_CPP_MIN_LOG_LEVEL": "2", "REMOTE_FILES": str(folder), "TMPDIR": str(places["temporary"])}
    result = warm.run(
        [sys.executable, "-c", _PROGRAM, compiled(), str(TESTS), str(ROOT)],
        input="".join(lines),
        capture_output=True,
        text=True,
        cwd=places["current"],
        env={**os.environ, **settings},
    )
    outcomes = dict(json.loads(line) for line in result.stdout.splitlines() if line.startswith('["'))
    assert list(outcomes) == list(steps), result.stderr[-3000:]
    left = [str(path) for place in places.values() for path in place.rglob("*")]
    assert not left, left
    for place in places.values():
        place.rmdir()
    return outcomes, result.stderr


def run_steps(library: str) -> None:
    """The program of `run_on_bucket`: reads steps from stdin, and writes [name, outcome] for each to stdout."""
    add_file_system(library)
    for line in sys.stdin:
        name, script, arguments = json.loads(line)
        try:
            _run(script, arguments)
            outcome = "done"
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
        print(json.dumps([name, outcome]), flush=True)


def _run(script: str, arguments: list[str]) -> None:
    """Runs the main of a script, with only its own flags."""
    outer = _remove_flags()
    try:
        for name in (script, "run_classifier"):  # modules that define flags when imported
            sys.modules.pop(name, None)
        module = importlib.import_module(script)
        if script == "experiments.ablations":
            module.define_flags()
            module.subprocess = _Here  # other processes do not know the file system
        flags.FLAGS([f"{script}.py", *arguments])
        module.main([])
    finally:
        _remove_flags()
        for name, flag in outer.items():
            flags.FLAGS[name] = flag


def _remove_flags() -> dict:
    """Removes and returns all flags but absl's own."""
    removed = {name: flags.FLAGS[name] for name in set(flags.FLAGS) - _OWN_FLAGS}
    for name in removed:
        delattr(flags.FLAGS, name)
    return removed


class _Here:
    """`subprocess`, as the ablations use it, in this process."""

    STDOUT = subprocess.STDOUT
    TimeoutExpired = subprocess.TimeoutExpired

    class Popen:
        """A run of a script, which has ended when it has begun."""

        def __init__(self, command: list[str], stdout, stderr):
            del stderr
            with contextlib.redirect_stdout(None):
                _run(pathlib.Path(command[1]).stem, command[2:])
            stdout.write(f"{command[1]} has run\n".encode())
            self.returncode = 0

        def poll(self) -> int:
            return self.returncode

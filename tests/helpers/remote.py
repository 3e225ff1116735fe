"""A remote file system for tests: paths remote://bucket/... that only TensorFlow can open, as it opens gs://...

Its files lie below a local folder (see remote_files.cc), where a test can look at them.
"""

import contextlib
import itertools
import os
import pathlib
import shutil
import subprocess
import tempfile
import types

from helpers.basics import ROOT, TESTS
from helpers.script_cases import run_main, run_mains

BUCKET = "remote://bucket"
# Where the files lie, for remote_files.cc; and its compiled library.
_FILES, _LIBRARY = "REMOTE_FILES", "REMOTE_LIBRARY"


def compiled_library() -> str:
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


def add_file_system(folder: pathlib.Path) -> None:
    import tensorflow as tf

    os.environ[_FILES] = str(folder)
    tf.load_op_library(compiled_library())


class Killed(BaseException):
    pass


def end_at(count: int, monkeypatch, kills: bool = True) -> None:
    """Makes the operation of this number that changes files fail, or the program die there: nothing works afterwards.

    As in a store, a remote folder is renamed by copying and removing each of its files: these are operations.
    """
    import tensorflow as tf

    numbers, rename, copy, remove = itertools.count(), tf.io.gfile.rename, tf.io.gfile.copy, tf.io.gfile.remove

    def counted(original):
        def call(*arguments, **named):
            number = next(numbers)
            if kills and number >= count:
                raise Killed
            if number == count:
                raise tf.errors.UnavailableError(None, None, f"{arguments[0]}: the store does not answer")
            return original(*arguments, **named)

        return call

    copied, removed = counted(copy), counted(remove)

    def renamed(source, target, overwrite=False):
        if not source.startswith(BUCKET):
            return counted(rename)(source, target, overwrite)
        folders = list(tf.io.gfile.walk(source)) if tf.io.gfile.isdir(source) else [(source, [], [""])]
        for folder, _, names in folders:
            for path in [f"{folder}/{name}".rstrip("/") for name in sorted(names)]:
                tf.io.gfile.makedirs(os.path.dirname(place := path.replace(source, target, 1)))
                copied(path, place, overwrite)
                removed(path)
        if folders[0][0] == source and tf.io.gfile.isdir(source):
            tf.io.gfile.rmtree(source)

    for name, changed in (("rename", renamed), ("copy", copied), ("remove", removed)):
        monkeypatch.setattr(tf.io.gfile, name, changed)
    for module, name in ((os, "rename"), (shutil, "rmtree")):
        monkeypatch.setattr(module, name, counted(getattr(module, name)) if kills else getattr(module, name))


def run_on_bucket(folder: pathlib.Path, steps: dict[str, tuple[str, dict]]) -> tuple[dict, str]:
    """`run_mains` with the folder's bucket/ as remote://bucket; returns outcomes without reports, and stderr.

    Asserts that nothing is left in its current directory and in that for temporary files.
    """
    folders = {name: folder / name for name in ("current", "temporary")}
    for directory in folders.values():
        directory.mkdir()
    settings = {_FILES: str(folder), _LIBRARY: compiled_library(), "TMPDIR": str(folders["temporary"])}
    ended, log = run_mains(steps, "helpers.remote", cwd=folders["current"], **settings)
    for directory in folders.values():
        directory.rmdir()  # which is empty
    return {name: outcome for name, (outcome, _) in ended.items()}, log


def prepare() -> None:
    """Prepares the process of `run_mains`. Others that it starts do not know remote://, so the ablations start none."""
    import tensorflow as tf

    from experiments import script_runs

    tf.load_op_library(os.environ[_LIBRARY])
    names = {name: getattr(subprocess, name) for name in ("PIPE", "STDOUT", "TimeoutExpired")}
    script_runs.subprocess = types.SimpleNamespace(Popen=_Here, **names)


class _Here:
    """`subprocess.Popen` of a script, as the ablations use it, in this process; it has ended when it has begun."""

    def __init__(self, command: list[str], stdout, **others):
        del others
        with contextlib.redirect_stdout(None):
            run_main(pathlib.Path(command[1]).stem, command[2:])
        stdout.write(f"{command[1]} has run\n".encode())
        stdout.flush()
        self.returncode = 0

    def poll(self) -> int:
        return self.returncode

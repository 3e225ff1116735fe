"""Local stand-ins of remote files, for libraries that open local files only; private, and removed after use."""

import contextlib
import hashlib
import os
import posixpath
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence

from bert_tf.system import processes
from bert_tf.system.checks import is_remote

_PRIVATE = re.compile(r"bert_tf_([0-9a-f]{8})_(\d+)_(\d+)_\w+")


def private_folder() -> tempfile.TemporaryDirectory:
    """A new folder that only this user can read; it is removed with the object, or at the end of the context.

    Its name says which process made it, see `remove_left_behind`.
    """
    pid = os.getpid()
    return tempfile.TemporaryDirectory(prefix=f"bert_tf_{_machine()}_{pid}_{processes.start_of(pid) or 0}_")


def remove_left_behind() -> None:
    """Removes the private folders of this user's killed processes: real folders, without following links."""
    place = tempfile.gettempdir()
    with contextlib.suppress(OSError):
        for name in os.listdir(place):
            made = _PRIVATE.fullmatch(name)
            if not made or made[1] != _machine() or processes.is_alive(int(made[2]), int(made[3]) or None):
                continue
            path = os.path.join(place, name)
            status = os.lstat(path)
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
                shutil.rmtree(path, ignore_errors=True)


def _machine() -> str:
    return hashlib.sha256(processes.machine().encode()).hexdigest()[:8]


@contextlib.contextmanager
def local_copies(paths: Sequence[str]) -> Iterator[list[str]]:
    """Yields a local path for each file: itself, or if it is remote (gs://...), a copy of the same name.

    All copies are in one folder, which is removed at the end.

    Raises:
      tf.errors.OpError: a remote file can't be read.
    """
    import tensorflow as tf

    if not any(map(is_remote, paths)):
        yield list(paths)
        return
    with private_folder() as folder:
        copies = [os.path.join(folder, posixpath.basename(path)) if is_remote(path) else path for path in paths]
        for path, copied in zip(paths, copies, strict=True):
            if copied != path:
                tf.io.gfile.copy(path, copied)
        yield copies


@contextlib.contextmanager
def written_locally(path: str) -> Iterator[str]:
    """Yields a local name to write to: `path`, or if it is remote, a temporary one that is copied there at the end.

    Raises:
      tf.errors.OpError: the remote file can't be written.
    """
    import tensorflow as tf

    if not is_remote(path):
        yield path
        return
    with private_folder() as folder:
        local = os.path.join(folder, posixpath.basename(path))
        yield local
        tf.io.gfile.copy(local, path, overwrite=True)

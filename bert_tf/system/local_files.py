"""Local files: private folders and stand-ins of remote files, which are removed after use, and names taken literally.

A path names one file or folder, whatever characters are in it: it is never read as a pattern. Folders are listed and
their names compared here, instead of by `tf.io.gfile.glob`, to which `/runs/lr=[1e-4]` is a pattern that does not match
itself. TensorFlow's own readers of checkpoints match such patterns too; they are given links of plain names.
"""

import contextlib
import fcntl
import os
import posixpath
import shutil
import stat
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence

from bert_tf.system.checks import is_remote

_SPECIAL = frozenset("[]*?\\")
_PRIVATE = "bert_tf_private_"
_SECONDS_TO_LOCK = 10.0


# --- names ------------------------------------------------------------------------------------------------------------


def names_in(folder: str) -> list[str]:
    """The names of a folder's files and folders, sorted; none if there is no such folder."""
    if not is_remote(folder):
        return sorted(os.listdir(folder or ".")) if os.path.isdir(folder or ".") else []
    import tensorflow as tf

    return sorted(name.rstrip("/") for name in tf.io.gfile.listdir(folder)) if tf.io.gfile.isdir(folder) else []


def paths_beginning_with(start: str) -> list[str]:
    """The paths whose beginning is `start`: a folder and the beginning of a name in it."""
    folder, beginning = posixpath.split(start)
    return [posixpath.join(folder, name) for name in names_in(folder) if name.startswith(beginning)]


def is_plain(path: str) -> bool:
    """Whether a path, read as a pattern, can only match itself."""
    return _SPECIAL.isdisjoint(path)


def linked(targets: Mapping[str, str]) -> tempfile.TemporaryDirectory:
    """A private folder of links to files or folders that TensorFlow can't open by their own names.

    Args:
      targets: name of the link -> path.

    Raises:
      ValueError: they are remote, or temporary files are kept in such a folder as well; names the path.
    """
    folder = private_folder()
    for name, path in targets.items():
        if is_remote(path) or not is_plain(folder.name):
            folder.cleanup()
            raise ValueError(
                f"{path}: TensorFlow takes the characters [ ] * ? \\ in it for a pattern and can't read this file: "
                "choose another name."
            )
        os.symlink(os.path.abspath(path), os.path.join(folder.name, name))
    return folder


def check_text(arguments: Sequence[str]) -> None:
    """Checks that a command line is UTF-8, since TensorFlow can't open other paths.

    Raises:
      ValueError: names the flag.
    """
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{ascii(argument)[1:-1]}: this is not UTF-8; choose another name.") from None


# --- private folders and stand-ins ------------------------------------------------------------------------------------


def private_folder() -> tempfile.TemporaryDirectory:
    """A new folder that only this user can read; it is removed with the object, or at the end of the context.

    The system holds a lock of it while the process lives, see `remove_left_behind`.
    """
    folder = tempfile.TemporaryDirectory(prefix=_PRIVATE)
    descriptor = os.open(folder.name, os.O_RDONLY)
    weakref.finalize(folder, os.close, descriptor)
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return folder


def remove_left_behind() -> None:
    """Removes the private folders of this user's killed processes: real folders, without following links."""
    place = tempfile.gettempdir()
    for name in names_in(place):
        path = os.path.join(place, name)
        with contextlib.suppress(OSError):
            status = os.lstat(path)
            # A new one is not locked yet.
            is_old = name.startswith(_PRIVATE) and time.time() - status.st_mtime > _SECONDS_TO_LOCK
            if is_old and stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and _is_unlocked(path):
                shutil.rmtree(path, ignore_errors=True)


def _is_unlocked(folder: str) -> bool:
    descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails also on a network's disk, where it can't be seen
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


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

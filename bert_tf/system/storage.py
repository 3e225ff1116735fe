"""Files and folders: what paths mean, private folders, and files that appear only when they are complete.

A path names one file or folder, whatever characters are in it: it is never read as a pattern. Folders are listed and
their names compared here, instead of by `tf.io.gfile.glob`, to which `/runs/lr=[1e-4]` is a pattern that does not match
itself. TensorFlow's own readers of checkpoints match such patterns too; they are given links of plain names.

A file appears under its name only when it is complete and on the disk: also after a power cut. Likewise arrays (.npz),
kept for the next start: they are read whole, or made again.
"""

import contextlib
import contextvars
import errno
import fcntl
import io
import json
import os
import posixpath
import re
import shutil
import stat
import tempfile
import time
import uuid
import weakref
from collections.abc import Collection, Generator, Mapping, Sequence

import numpy as np
from absl import logging

PREFIX, PAGE = "hf://", "https://huggingface.co/"  # before the name of a model on the hub
HUB, PAGES = f"{PREFIX}datasets/", f"{PAGE}datasets/"  # before a file of a data set there
_SPECIAL = frozenset("[]*?\\")
PRIVATE = "bert_tf_private_"
_SECONDS_TO_LOCK = 1.0


# --- names ------------------------------------------------------------------------------------------------------------


def is_remote(path: str) -> bool:
    """Whether only TensorFlow can open a path."""
    return "://" in path and not is_on_hub(path)


def is_on_hub(path: str) -> bool:
    return path.startswith((HUB, PAGES))


def gfile():
    """TensorFlow's file functions, imported when they are used, since that takes seconds."""
    import tensorflow as tf

    return tf.io.gfile


def names_in(folder: str) -> list[str]:
    """The names of a folder's files and folders, sorted; none if there is no such folder."""
    if not is_remote(folder):
        return sorted(os.listdir(folder or ".")) if os.path.isdir(folder or ".") else []
    return sorted(name.rstrip("/") for name in gfile().listdir(folder)) if gfile().isdir(folder) else []


def paths_beginning_with(start: str) -> list[str]:
    folder, beginning = posixpath.split(start)
    return [posixpath.join(folder, name) for name in names_in(folder) if name.startswith(beginning)]


@contextlib.contextmanager
def literal_path(path: str) -> Generator[str]:
    """The path, or, where TensorFlow would read it as a pattern, that of a link to it in a private folder."""
    if _SPECIAL.isdisjoint(path):
        yield path
        return
    with private_folder() as folder:
        os.symlink(os.path.abspath(path), os.path.join(folder, "plain"))
        yield os.path.join(folder, "plain")


# --- private folders and stand-ins ------------------------------------------------------------------------------------


def private_folder(parent: str | None = None) -> tempfile.TemporaryDirectory:
    """A new folder that only this user can read; it is removed with the object, or at the end of the context.

    The system holds a lock of it while the process lives, see `remove_left_behind`.
    """
    folder = tempfile.TemporaryDirectory(prefix=PRIVATE, dir=parent)
    descriptor = os.open(folder.name, os.O_RDONLY)
    weakref.finalize(folder, os.close, descriptor)
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return folder


def remove_left_behind(parent: str | None = None) -> None:
    """Removes the private folders of this user's killed processes: real folders, without following links."""
    parent = parent or tempfile.gettempdir()
    for name in names_in(parent):
        path = os.path.join(parent, name)
        with contextlib.suppress(OSError):
            status = os.lstat(path)
            # A new one is not locked yet.
            is_old = name.startswith(PRIVATE) and time.time() - status.st_mtime > _SECONDS_TO_LOCK
            if is_old and stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
                try:  # fails if a process holds the lock, and on a network's disk, where that can't be seen
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                finally:
                    os.close(descriptor)
                shutil.rmtree(path, ignore_errors=True)


# --- complete files ---------------------------------------------------------------------------------------------------

_puts_off = contextvars.ContextVar("whether `sync` leaves it to `batch_fsync`", default=False)


def is_temporary_name(name: str) -> bool:
    return re.fullmatch(r"\..+\.[0-9a-f]{12}\.tmp", name, re.DOTALL) is not None


def remove_temporary_files(paths: Sequence[str]) -> None:
    """Removes what a killed process left half-written of some files, which nobody else may write meanwhile."""
    for folder in {os.path.dirname(path) for path in paths}:
        for name in filter(is_temporary_name, names_in(folder)):
            if os.path.join(folder, name[1:].rsplit(".", 2)[0]) in paths:
                gfile().remove(os.path.join(folder, name))


def sync(path: str) -> None:
    """Returns when a local file's content, or a folder's names, are on the disk; a remote file is once it is closed."""
    if is_remote(path) or _puts_off.get():
        return
    descriptor = os.open(path or ".", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system without it
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def batch_fsync(folder: str) -> Generator[None]:
    """Syncs all that is in a folder, which has a temporary name, at the end of the context, and nothing before."""
    before = _puts_off.set(True)
    try:
        yield
    finally:
        _puts_off.reset(before)
    for directory, _, names in os.walk(folder) if not is_remote(folder) else ():
        for name in names:
            sync(os.path.join(directory, name))
        sync(directory)


@contextlib.contextmanager
def atomic_files(paths: Sequence[str]) -> Generator[list[str]]:
    """Yields a temporary name for each path, in its directory; at the end all are renamed, see `replace_files`.

    The files are created at the start, so that a folder that can't be written fails before the work.
    """
    key = uuid.uuid4().hex[:12]
    temporary = [os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{key}.tmp") for path in paths]
    try:
        for name in temporary:
            with gfile().GFile(name, "wb") as file:
                file.write(b"")
        yield temporary
        for name in temporary:
            sync(name)
        replace_files(dict(zip(temporary, paths, strict=True)))
    except BaseException:
        for name in temporary:
            if gfile().exists(name):
                gfile().remove(name)
        raise


def replace_files(moves: Mapping[str, str], obsolete: Sequence[str] = ()) -> None:
    """Renames complete files, or copies them to a remote folder; readers raise for the others without the last of them.

    Its predecessor is removed first, so a kill never leaves new files next to old ones that are read together.

    moves: temporary name -> path, in order. obsolete: old files to be removed, those first that readers need.
    """
    *others, last = moves.values()
    for path in dict.fromkeys([*obsolete, last] if others else obsolete):
        if gfile().exists(path):
            gfile().remove(path)
            sync(os.path.dirname(path))
    for source, path in moves.items():
        if path == last:
            for folder in {os.path.dirname(path) for path in others}:
                sync(folder)
        if is_remote(path) and not is_remote(source):
            gfile().makedirs(os.path.dirname(path))
            with written(path) as temporary:
                gfile().copy(source, temporary, overwrite=True)
        else:
            gfile().rename(source, path, overwrite=True)
    sync(os.path.dirname(last))


_ARRIVING, _MOVES = ".bert_tf_arriving", "moves.json"


def replace_together(source: str, folder: str, names: Sequence[str], obsolete: Sequence[str]) -> None:
    """`replace_files` of all files of a local folder to another one on the same disk, in which they replace others.

    Killed before the rename it leaves the old ones; after it the new ones, which `finish_replacing` moves from a folder
    in this one when that is next read or written. Until then other programs may find neither.
    """
    for name in names:
        os.makedirs(os.path.join(folder, os.path.dirname(name)), exist_ok=True)
    write_text_file(os.path.join(source, _MOVES), json.dumps([names, obsolete]))
    finish_replacing(folder)
    os.rename(source, os.path.join(folder, _ARRIVING))
    sync(folder)
    finish_replacing(folder)


def finish_replacing(folder: str) -> None:
    """Does what is left of a killed `replace_together`, or waits for one that lives."""
    arriving = os.path.join(folder, _ARRIVING)
    while not is_remote(folder) and os.path.isdir(arriving):
        with contextlib.suppress(FileNotFoundError), _locked(arriving) as is_there:
            if is_there:
                return _finish(folder, arriving)


@contextlib.contextmanager
def _locked(folder: str) -> Generator[bool]:
    """Holds a folder's lock. Yields whether it is still there: not removed, or another one, when the lock is got."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield os.path.samestat(os.fstat(descriptor), os.stat(folder))
    finally:
        os.close(descriptor)


def _finish(folder: str, arriving: str) -> None:
    import tensorflow as tf

    try:
        if os.path.exists(listed := os.path.join(arriving, _MOVES)):
            with open(listed, encoding="utf-8") as file:
                names, obsolete = json.load(file)
            root, places = os.path.realpath(folder), [folder, arriving]
            paths = [os.path.join(place, name) for place in places for name in (*names, *obsolete)]
            if any(os.path.commonpath([root, os.path.realpath(os.path.dirname(path))]) != root for path in paths):
                raise ValueError(f"{_MOVES} names files in other folders")  # of someone else's model
            moves = {os.path.join(arriving, name): os.path.join(folder, name) for name in names}
            if left := {source: path for source, path in moves.items() if os.path.exists(source)}:
                replace_files(left, [os.path.join(folder, name) for name in obsolete])
        remove_folder(arriving)
    except (OSError, ValueError, tf.errors.OpError) as error:
        if getattr(error, "errno", None) == errno.ENOTEMPTY:
            return  # removed, and another process has put a new one there
        problem = f"{arriving}, of an interrupted save, can't be moved to its place: {error}"
        advice = "Open the model once where it may be written; or, if you do not trust it, remove that folder."
        raise OSError(f"{problem}. {advice}") from error


@contextlib.contextmanager
def written(path: str) -> Generator[str]:
    """`atomic_files` for one path."""
    with atomic_files([path]) as (temporary,):
        yield temporary


def write_file(path: str, content: bytes) -> None:
    write_files({path: content})


def write_files(contents: Mapping[str, bytes]) -> None:
    """Writes files, by their paths, complete or not at all: see `atomic_files`."""
    with atomic_files(list(contents)) as temporary:
        for name, content in zip(temporary, contents.values(), strict=True):
            with gfile().GFile(name, "wb") as file:
                file.write(content)


def write_text_file(path: str, text: str) -> None:
    write_file(path, text.encode("utf-8", "backslashreplace"))  # a lone surrogate, as JSON escapes it


@contextlib.contextmanager
def temporary_folder(folder: str) -> Generator[None]:
    """Creates an empty folder, clearing what a killed process left there; removes what is left of it at the end."""
    remove_folder(folder)
    try:
        gfile().makedirs(folder)
        yield
    finally:
        remove_folder(folder)


def remove_folder(folder: str) -> None:
    """Removes a folder, if there is one, with all that is in it; a link in its place or in it is not followed."""
    if is_remote(folder):
        if gfile().exists(folder):
            gfile().rmtree(folder)
    elif os.path.islink(folder):
        os.unlink(folder)
    elif os.path.exists(folder):
        shutil.rmtree(folder)


def link_or_copy(source: str, target: str) -> None:
    """For files that are replaced, never changed."""
    try:
        os.link(source, target)
    except OSError:  # a file system without links, or a remote one
        gfile().copy(source, target)


def load_arrays(path: str, names: Collection[str] = ()) -> dict[str, np.ndarray] | None:
    """The arrays of a file of `arrays_as_bytes`; None if it is not there, or, which is logged, is damaged or lacks one
    of `names`: a flipped bit in the archive's directory can hide an array."""
    if not gfile().exists(path):
        return None
    try:
        with gfile().GFile(path, "rb") as file, np.load(io.BytesIO(file.read()), allow_pickle=False) as stored:
            arrays = dict(stored)  # which checks their checksums
        if lost := sorted({*names} - {*arrays}):
            raise ValueError(f"no {', '.join(lost)}")
        return arrays
    except Exception as error:  # a damaged archive has many ways to fail
        logging.warning("%s can't be read (%s): made again.", path, error)
        return None


def arrays_as_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The content of a file that `load_arrays` reads."""
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    return content.getvalue()


# --- one run at a time ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(path: str, named: str) -> Generator[None]:
    """Holds a lock file while the run lives, so that another one raises at once; a remote folder has none.

    Its folder is made, and removed if it is left empty. named: the flag and its value.
    """
    if is_remote(path):
        yield
        return
    import filelock  # 60 ms, for what --help does not need

    folder = os.path.dirname(path) or "."
    is_new = not os.path.isdir(folder)
    os.makedirs(folder, exist_ok=True)
    try:
        with filelock.FileLock(path, timeout=0):
            try:
                yield
            finally:
                os.remove(path)  # while it is held: a run that has opened it by now sees that it was removed
    except filelock.Timeout:
        advice = "wait for its end, end it, or choose another place."
        raise BlockingIOError(f"{named} is in use by another run, which holds {path}: {advice}") from None
    finally:
        if is_new and not os.listdir(folder):
            os.rmdir(folder)


@contextlib.contextmanager
def file_locked(output_file: str, *others: str) -> Generator[None]:
    """`locked` for the file of --output_file and others, after removing what a killed run left half-written of them."""
    folder, name = os.path.split(output_file)
    with locked(os.path.join(folder, f".{name}.lock"), f"--output_file={output_file}"):
        remove_temporary_files([output_file, *others])
        yield

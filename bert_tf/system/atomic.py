"""Files that appear under their name only when they are complete, and on the disk: also after a power cut.

And arrays kept in such a file (.npz) for the next start: read whole, or made again.
"""

import contextlib
import contextvars
import errno
import io
import os
import re
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np
from absl import logging

from bert_tf.system.checks import is_remote
from bert_tf.system.local_files import names_in

# Each is called with the path of a file before that is written; it raises if this process may not write it any more.
# Worker processes get a copy.
guards: list[Callable[[str], None]] = []

_puts_off = contextvars.ContextVar("whether `sync` leaves it to `synced_together`", default=False)


def check_may_write(path: str) -> None:
    """Checks that this process may still write a file; everything that changes a run's files calls it before.

    Raises:
      OSError: another run has taken over; see `run_lock`.
    """
    for guard in tuple(guards):
        guard(path)


def temporary_name(path: str, key: str) -> str:
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name}.{key}.tmp")


def is_temporary_name(name: str) -> bool:
    """Whether a file has a temporary name of `written_together`."""
    return re.fullmatch(r"\..+\.[0-9a-f]{12}\.tmp", name, re.DOTALL) is not None


def remove_temporary_files(paths: Sequence[str]) -> None:
    """Removes what a killed process left half-written of some files, which nobody else may write meanwhile."""
    import tensorflow as tf

    for folder in {os.path.dirname(path) for path in paths}:
        names = {os.path.basename(path) for path in paths if os.path.dirname(path) == folder}
        for name in names_in(folder):
            if is_temporary_name(name) and name[1:].rsplit(".", 2)[0] in names:
                tf.io.gfile.remove(os.path.join(folder, name))


def sync(path: str) -> None:
    """Returns when a local file's content, or a folder's names, are on the disk. A remote file is, once it is closed.

    Raises:
      OSError: the disk is full or fails; names the path.
    """
    if is_remote(path) or _puts_off.get():
        return
    descriptor = os.open(path or ".", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system without it
            raise OSError(error.errno, f"{path}: {os.strerror(error.errno)}") from error
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def synced_together(folder: str) -> Iterator[None]:
    """Syncs all that is in a folder once, at the end of the context, in which this thread syncs nothing.

    For a folder that has a temporary name itself: a power cut before the end leaves files in it half-written.
    """
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
def written_together(paths: Sequence[str]) -> Iterator[list[str]]:
    """Yields a temporary name for each path, in its directory; at the end all are renamed, in order.

    The files are created at the start, empty, so that an unwritable place fails before the work. On an error they are
    removed, and any earlier files stay as they were.

    Raises:
      tf.errors.OpError: a directory does not exist, is not writable or is full. OSError: see `check_may_write`.
    """
    import tensorflow as tf

    for path in paths:
        check_may_write(path)
    key = uuid.uuid4().hex[:12]
    temporary = [temporary_name(path, key) for path in paths]
    try:
        for name in temporary:
            with tf.io.gfile.GFile(name, "wb") as file:
                file.write(b"")
        yield temporary
        for name in temporary:
            sync(name)
        for path in paths:
            check_may_write(path)
        for source, path in zip(temporary, paths, strict=True):
            tf.io.gfile.rename(source, path, overwrite=True)
        for folder in {os.path.dirname(path) for path in paths}:
            sync(folder)
    except BaseException:
        for name in temporary:
            if tf.io.gfile.exists(name):
                tf.io.gfile.remove(name)
        raise


@contextlib.contextmanager
def written(path: str) -> Iterator[str]:
    """`written_together` for one path."""
    with written_together([path]) as (temporary,):
        yield temporary


def write_file(path: str, content: bytes) -> None:
    """Writes a file complete or not at all: under a temporary name beside `path`, which is then renamed.

    Raises:
      tf.errors.OpError: the directory does not exist, is not writable or is full; an earlier file stays as it was.
    """
    write_files({path: content})


def write_files(contents: Mapping[str, bytes]) -> None:
    """`write_file` for files, by their paths, that are renamed together when all are complete."""
    import tensorflow as tf

    with written_together(list(contents)) as temporary:
        for name, content in zip(temporary, contents.values(), strict=True):
            with tf.io.gfile.GFile(name, "wb") as file:
                file.write(content)


def write_text_file(path: str, text: str) -> None:
    """`write_file` for text, as UTF-8."""
    write_file(path, text.encode("utf-8"))


@contextlib.contextmanager
def temporary_folder(folder: str) -> Iterator[None]:
    """Creates an empty folder, clearing what a killed process left there; removes what is left of it at the end."""
    import tensorflow as tf

    remove_folder(folder)
    try:
        tf.io.gfile.makedirs(folder)
        yield
    finally:
        remove_folder(folder)


def remove_folder(folder: str) -> None:
    """Removes a folder, if there is one, with all that is in it; a link in its place or in it is not followed."""
    if is_remote(folder):
        import tensorflow as tf

        if tf.io.gfile.exists(folder):
            tf.io.gfile.rmtree(folder)
    elif os.path.islink(folder):
        os.unlink(folder)
    elif os.path.exists(folder):
        shutil.rmtree(folder)


def link_or_copy(source: str, target: str) -> None:
    """Gives a file a second name, or copies it where that can't be; for files that are replaced, never changed."""
    try:
        os.link(source, target)
    except OSError:  # a file system without links, or a remote one
        import tensorflow as tf

        tf.io.gfile.copy(source, target)


def load_arrays(path: str, names: Collection[str] = ()) -> dict[str, np.ndarray] | None:
    """The arrays that `save_arrays` wrote, by name; None if the file is not there, or damaged, which is logged.

    Args:
      names: of arrays without which it is damaged: a flipped bit in the archive's directory can hide one.
    """
    import tensorflow as tf

    if not tf.io.gfile.exists(path):
        return None
    try:
        with tf.io.gfile.GFile(path, "rb") as file, np.load(io.BytesIO(file.read()), allow_pickle=False) as stored:
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
    np.savez(content, **arrays)
    return content.getvalue()


def save_arrays(path: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays, complete or not at all."""
    write_file(path, arrays_as_bytes(arrays))

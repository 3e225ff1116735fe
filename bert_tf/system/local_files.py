"""Local stand-ins of remote files, for libraries that open local files only; private, and removed after use."""

import contextlib
import os
import posixpath
import tempfile
from collections.abc import Iterator, Sequence

from bert_tf.system.checks import is_remote


def private_folder() -> tempfile.TemporaryDirectory:
    """A new folder that only this user can read; it is removed with the object, or at the end of the context."""
    return tempfile.TemporaryDirectory(prefix="bert_tf_")


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

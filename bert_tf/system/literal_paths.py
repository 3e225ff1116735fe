"""Paths that name one file or folder, whatever characters are in them: such a path is never read as a pattern.

Folders are listed and their names compared here, instead of by `tf.io.gfile.glob`, to which `/runs/lr=[1e-4]` is a
pattern that does not match itself. TensorFlow's own readers of checkpoints match such patterns too; they are given
links of plain names.
"""

import os
import posixpath
import tempfile
from collections.abc import Mapping, Sequence

from bert_tf.system.checks import is_remote
from bert_tf.system.local_files import private_folder

_SPECIAL = frozenset("[]*?\\")


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

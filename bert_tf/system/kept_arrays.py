"""Arrays kept in a file (.npz) for the next start: read whole, or made again."""

import io
from collections.abc import Collection, Mapping

import numpy as np
from absl import logging

from bert_tf.system.atomic import write_file


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

"""Safetensors files: shapes when opened, tensors one at a time; written complete or not at all."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import tensorflow as tf
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from bert_tf.system.atomic import written
from bert_tf.system.checks import is_remote
from bert_tf.system.local_files import private_folder, written_locally
from bert_tf.weights.mapping import largest_first

_HALF_PRECISION = ("float16", "bfloat16")


@contextlib.contextmanager
def _open(path: str) -> Iterator:
    # Reopened for each tensor: the file is memory-mapped, and pages that were touched count until it is closed.
    try:
        with safe_open(path, framework="np") as file:
            yield file
    except SafetensorError as error:
        raise ValueError(f"{path} is not a complete safetensors file ({error}); download or copy it again.") from error


def open_safetensors(path: str) -> tuple[dict[str, tuple[int, ...]], dict[str, str], Callable[[str], np.ndarray]]:
    """Opens a file.

    A remote file (gs://...) is first copied to a temporary folder, which lives as long as the reader.

    Returns:
      shapes by name, the metadata of the header (and `half_precision` if any tensor is), and a function that reads a
      tensor by name; it returns float16 and bfloat16 as float32 (exactly the same values).

    Raises:
      FileNotFoundError: there is no such file. ValueError: it is damaged or not a safetensors file.
    """
    if not tf.io.gfile.exists(path):
        raise FileNotFoundError(f"{path} does not exist.")
    local, folder = path, None
    if is_remote(path):
        folder = private_folder()
        local = os.path.join(folder.name, "model.safetensors")
        tf.io.gfile.copy(path, local)
    with _open(local) as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (no mapping)
        metadata = dict(file.metadata() or {})
        types = {file.get_slice(name).get_dtype() for name in shapes}
    if types & {"F16", "BF16"}:
        metadata["half_precision"] = "true"

    def read(name: str, _folder=folder) -> np.ndarray:
        with _open(local) as file:
            value = file.get_tensor(name)
        return value.astype(np.float32) if value.dtype.name in _HALF_PRECISION else value

    return shapes, metadata, read


def _contiguous(value) -> np.ndarray:
    return np.ascontiguousarray(value).reshape(np.shape(value))


def write_safetensors(path: str, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Writes a file without copying the tensors.

    Raises:
      OSError: it could not be written (disk full, no permission).
    """
    arrays = {name: _contiguous(tensors[name]) for name in largest_first(tensors)}
    with written(path) as temporary, written_locally(temporary) as local:
        try:
            save_file(arrays, local, metadata=dict(metadata))
        except SafetensorError as error:
            raise OSError(f"{path} could not be written: {error}") from error
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(local, 0o666 & ~mask)  # the library creates files that only their owner can read

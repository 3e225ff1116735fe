"""Safetensors files: shapes when opened, tensors read and written one at a time; complete or not at all."""

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import tensorflow as tf
from safetensors import SafetensorError, safe_open

from bert_tf.system.atomic import written
from bert_tf.system.checks import is_remote
from bert_tf.system.local_files import private_folder
from bert_tf.weights.mapping import Weights, blocks

_HALF_PRECISION = ("float16", "bfloat16")
_CODES = {"float32": "F32", "int64": "I64"}


def _type_of(name: str) -> str:
    return "int64" if name == "global_step" else "float32"


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


def write_safetensors(path: str, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Writes a file, one tensor after the other: of `Weights` only one is in memory.

    The library's writer gives the same bytes, but needs all tensors at once.

    Raises:
      ValueError: a tensor isn't of the type that the original's variables have: float32, global_step int64.
      tf.errors.OpError: it could not be written (disk full, no permission).
    """
    shapes = tensors.shapes if isinstance(tensors, Weights) else {name: np.shape(tensors[name]) for name in tensors}
    names = sorted(shapes, key=lambda name: (_type_of(name) != "int64", name))  # larger types first, for alignment
    header, end = {"__metadata__": dict(metadata)}, 0
    for name in names:
        kind = np.dtype(_type_of(name))
        start, end = end, end + math.prod(shapes[name]) * kind.itemsize
        header[name] = {"dtype": _CODES[kind.name], "shape": list(shapes[name]), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with written(path) as temporary, tf.io.gfile.GFile(temporary, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            value = np.asarray(tensors[name])
            if value.dtype != _type_of(name):
                raise ValueError(f"{path}: {name} is of type {value.dtype}, where {_type_of(name)} is expected.")
            for block in blocks(value):
                file.write(block.tobytes())

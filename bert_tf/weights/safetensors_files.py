"""Safetensors files: shapes when opened, tensors read and written one at a time; complete or not at all.

The header of a file that is written here has checksums (CRC-32C), which other programs ignore: one of each tensor's
bytes, and one of the rest of the header. They are checked where something is read.
"""

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import google_crc32c
import numpy as np
from safetensors import SafetensorError, safe_open

from bert_tf.system.atomic import written
from bert_tf.system.checks import is_remote
from bert_tf.system.local_files import private_folder, written_locally
from bert_tf.system.text_files import exists
from bert_tf.weights.mapping import Weights, blocks

_HALF_PRECISION = ("float16", "bfloat16")
_CODES = {"float32": "F32", "int64": "I64"}
_CHECKSUMS = "crc32c"  # in the metadata: a JSON object, tensor's name -> 8 hexadecimal digits; "" -> the header's


def _type_of(name: str) -> str:
    return "int64" if name == "global_step" else "float32"


def _checksum(parts: Iterable[bytes]) -> str:
    checksum = google_crc32c.Checksum()
    for part in parts:
        checksum.update(part)
    return checksum.hexdigest().decode()


def _header_checksum(metadata: Mapping[str, str], types: Mapping[str, str], shapes: Mapping[str, Sequence[int]]) -> str:
    """Of all that a header says but where the tensors are, which their own checksums show."""
    content = [sorted(metadata.items()), [(name, types[name], list(shapes[name])) for name in sorted(shapes)]]
    return _checksum([json.dumps(content).encode()])


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
      FileNotFoundError: there is no such file. ValueError: it is damaged or not a safetensors file; the function
        raises it, too, if the tensor doesn't match its checksum.
    """
    if not exists(path):
        raise FileNotFoundError(f"{path} does not exist.")
    local, folder = path, None
    if is_remote(path):
        folder = private_folder()
        local = os.path.join(folder.name, "model.safetensors")
        import tensorflow as tf

        tf.io.gfile.copy(path, local)
    with _open(local) as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (no mapping)
        metadata = dict(file.metadata() or {})
        types = {name: file.get_slice(name).get_dtype() for name in shapes}
    checksums = _checked_header(path, metadata, types, shapes)
    if {"F16", "BF16"} & set(types.values()):
        metadata["half_precision"] = "true"

    def read(name: str, _folder=folder) -> np.ndarray:
        with _open(local) as file:
            value = file.get_tensor(name)
        if checksums and _checksum(block.tobytes() for block in blocks(value)) != checksums[name]:
            raise ValueError(f"{path} is damaged: {name} does not match its checksum; copy the file again.")
        return value.astype(np.float32) if value.dtype.name in _HALF_PRECISION else value

    return shapes, metadata, read


def _checked_header(path: str, metadata: dict, types: Mapping, shapes: Mapping) -> dict[str, str]:
    """Takes the tensors' checksums out of the metadata; empty if there are none.

    Raises:
      ValueError: the header does not match its own.
    """
    text = metadata.pop(_CHECKSUMS, None)
    if text is None:
        return {}
    with contextlib.suppress(ValueError):
        checksums = json.loads(text)
        own = {"": _header_checksum(metadata, types, shapes)}
        if isinstance(checksums, dict) and checksums.keys() == {"", *shapes} and checksums.items() >= own.items():
            return checksums
    raise ValueError(f"{path} is damaged: its header does not match its checksum; copy the file again.")


def write_safetensors(path: str, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Writes a file, one tensor after the other: of `Weights` only one is in memory.

    The library's writer gives the same bytes, but needs all tensors at once.

    Raises:
      ValueError: a tensor isn't of the type that the original's variables have: float32, global_step int64.
      OSError, tf.errors.OpError: it could not be written (disk full, no permission); names the path.
    """
    shapes = tensors.shapes if isinstance(tensors, Weights) else {name: np.shape(tensors[name]) for name in tensors}
    names = sorted(shapes, key=lambda name: (_type_of(name) != "int64", name))  # larger types first, for alignment
    entries, end = {}, 0
    for name in names:
        kind = np.dtype(_type_of(name))
        start, end = end, end + math.prod(shapes[name]) * kind.itemsize
        entries[name] = {"dtype": _CODES[kind.name], "shape": list(shapes[name]), "data_offsets": [start, end]}
    types = {name: entry["dtype"] for name, entry in entries.items()}
    checksums = {"": _header_checksum(metadata, types, shapes), **dict.fromkeys(names, "0" * 8)}

    def header() -> bytes:
        own = {**metadata, _CHECKSUMS: json.dumps(checksums, separators=(",", ":"), ensure_ascii=False)}
        text = json.dumps({"__metadata__": own, **entries}, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text

    # A local file, since one of TensorFlow's can't be changed: the checksums are known at the end.
    with written(path) as temporary, written_locally(temporary) as local, _named(path), open(local, "wb") as file:
        file.write(header())
        for name in names:
            value = np.asarray(tensors[name])
            if value.dtype != _type_of(name):
                raise ValueError(f"{path}: {name} is of type {value.dtype}, where {_type_of(name)} is expected.")
            checksum = google_crc32c.Checksum()
            for block in blocks(value):
                content = block.tobytes()
                checksum.update(content)
                file.write(content)
            checksums[name] = checksum.hexdigest().decode()
        file.seek(0)
        file.write(header())


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    """The system's errors in this context name a path."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{path}: {error.strerror}") from error

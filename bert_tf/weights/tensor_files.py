"""Files of tensors other than TensorFlow's: safetensors, pickles of PyTorch, and shards of both.

They are opened with names and shapes; tensors are read and written one at a time. The header of a safetensors file that
is written here has checksums (CRC-32C), which other programs ignore: one of each tensor's bytes, and one of the rest of
the header. They are checked where something is read.
"""

import contextlib
import json
import math
import os
import posixpath
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence

import google_crc32c
import numpy as np
from safetensors import SafetensorError, safe_open

from bert_tf.system.atomic import written
from bert_tf.system.checks import is_remote
from bert_tf.system.local_files import local_copies, private_folder, written_locally
from bert_tf.system.messages import some
from bert_tf.system.text_files import LFS_POINTER, exists, foreign_kind, open_binary, read_json
from bert_tf.weights.mapping import Weights, blocks, checksum_of

Shapes = dict[str, tuple[int, ...]]
Reader = Callable[[str], np.ndarray]  # of a tensor by its name

SHARD_INDEX_SUFFIX = ".index.json"

_HALF_PRECISION = ("float16", "bfloat16")
_CODES = {"float32": "F32", "int64": "I64"}
_ARCHIVE = b"PK\3\4"  # the beginning of what PyTorch writes since 1.6
_CHECKSUMS = "crc32c"  # in the metadata: a JSON object, tensor's name -> 8 hexadecimal digits; "" -> the header's


def open_tensors(file: str) -> tuple[Shapes, Reader, bool]:
    """Opens a safetensors file, a pickle of PyTorch, or an index of shards.

    Returns:
      shapes by name, a function that reads a tensor, and whether any tensor has half precision, which is widened.

    Raises:
      FileNotFoundError: there is no such file or shard. ValueError: it is damaged, or a pickle without PyTorch.
    """
    if file.endswith(SHARD_INDEX_SUFFIX):
        return _open_shards(file)
    if file.endswith(".safetensors"):
        shapes, metadata, read = open_safetensors(file)
        return shapes, read, "half_precision" in metadata
    return _open_pickle(file)


# --- safetensors -----------------------------------------------------------------------------------------------------


def open_safetensors(path: str) -> tuple[Shapes, dict[str, str], Reader]:
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
    with _opened(local) as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (no mapping)
        metadata = dict(file.metadata() or {})
        types = {name: file.get_slice(name).get_dtype() for name in shapes}
    checksums = {}
    if (text := metadata.pop(_CHECKSUMS, None)) is not None:
        with contextlib.suppress(ValueError):
            checksums = json.loads(text)
        own = _header_checksum(metadata, types, shapes)
        if not isinstance(checksums, dict) or checksums.keys() != {"", *shapes} or checksums[""] != own:
            raise ValueError(f"{path} is damaged: its header does not match its checksum; copy the file again.")
    if {"F16", "BF16"} & set(types.values()):
        metadata["half_precision"] = "true"

    def read(name: str, _folder=folder) -> np.ndarray:
        with _opened(local) as file:
            value = file.get_tensor(name)
        if checksums and checksum_of(blocks(value)) != checksums[name]:
            raise ValueError(f"{path} is damaged: {name} does not match its checksum; copy the file again.")
        return value.astype(np.float32) if value.dtype.name in _HALF_PRECISION else value

    return shapes, metadata, read


def refuse_pointer(path: str) -> None:
    """Refuses what Git leaves in the place of a large file.

    Raises:
      ValueError: names the file, and how to get it.
    """
    with open_binary(path) as file:
        beginning = file.read(len(LFS_POINTER))
    if beginning == LFS_POINTER:
        raise ValueError(f"{path} is {foreign_kind(beginning)}.")


@contextlib.contextmanager
def _opened(path: str) -> Iterator:
    # Reopened for each tensor: the file is memory-mapped, and pages that were touched count until it is closed.
    try:
        with safe_open(path, framework="np") as file:
            yield file
    except SafetensorError as error:
        refuse_pointer(path)
        raise ValueError(f"{path} is not a complete safetensors file ({error}); download or copy it again.") from error


def _header_checksum(metadata: Mapping[str, str], types: Mapping[str, str], shapes: Mapping[str, Sequence[int]]) -> str:
    """Of all that a header says but where the tensors are, which their own checksums show."""
    content = [sorted(metadata.items()), [(name, types[name], list(shapes[name])) for name in sorted(shapes)]]
    return checksum_of([json.dumps(content).encode()])


def write_safetensors(path: str, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Writes a file, one tensor after the other: of `Weights` only one is in memory.

    The library's writer gives the same bytes, but needs all tensors at once.

    Raises:
      ValueError: a tensor isn't of the type that the original's variables have: float32, global_step int64.
      OSError, tf.errors.OpError: it could not be written (disk full, no permission); names the path.
    """
    shapes = tensors.shapes if isinstance(tensors, Weights) else {name: np.shape(tensors[name]) for name in tensors}
    kinds = {name: np.dtype("int64" if name == "global_step" else "float32") for name in shapes}
    names = sorted(shapes, key=lambda name: (-kinds[name].itemsize, name))  # larger types first, for alignment
    types = {name: _CODES[kinds[name].name] for name in names}
    entries, end = {}, 0
    for name in names:
        start, end = end, end + math.prod(shapes[name]) * kinds[name].itemsize
        entries[name] = {"dtype": types[name], "shape": list(shapes[name]), "data_offsets": [start, end]}
    checksums = {"": _header_checksum(metadata, types, shapes), **dict.fromkeys(names, "0" * 8)}

    def header() -> bytes:
        own = {**metadata, _CHECKSUMS: json.dumps(checksums, separators=(",", ":"), ensure_ascii=False)}
        text = json.dumps({"__metadata__": own, **entries}, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text

    # A local file, since one of TensorFlow's can't be changed: the checksums are known at the end.
    with written(path) as temporary, written_locally(temporary) as local:
        try:
            with open(local, "wb") as file:
                file.write(header())
                for name in names:
                    value = np.asarray(tensors[name])
                    if value.dtype != kinds[name]:
                        raise ValueError(f"{path}: {name} is of type {value.dtype}, where {kinds[name]} is expected.")
                    checksum = google_crc32c.Checksum()
                    for block in blocks(value):
                        content = block.tobytes()
                        checksum.update(content)
                        file.write(content)
                    checksums[name] = checksum.hexdigest().decode()
                file.seek(0)
                file.write(header())
        except OSError as error:
            raise OSError(error.errno, f"{path}: {error.strerror}") from error


# --- PyTorch ---------------------------------------------------------------------------------------------------------


def _open_pickle(file: str) -> tuple[Shapes, Reader, bool]:
    if not exists(file):
        raise FileNotFoundError(f"{file} does not exist.")
    refuse_pointer(file)
    try:
        import torch
    except ImportError:
        raise ValueError(
            f"{file} is a pickle, which only PyTorch reads safely, and PyTorch is not installed. Use model.safetensors "
            "from the same source if there is one, or `pip install torch`."
        ) from None
    # weights_only: nothing but tensors; otherwise a pickle can run any code.
    options = {"map_location": "cpu", "weights_only": True}
    try:
        with local_copies([file]) as (local,):
            try:
                tensors = torch.load(local, mmap=True, **options)
            except RuntimeError:  # files older than PyTorch 1.6 can't be memory-mapped
                tensors = torch.load(local, **options)
    except Exception as error:  # torch raises RuntimeError, UnpicklingError, EOFError, ... for a bad file
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"{file} is not a PyTorch weight file that can be read safely, or it is damaged: {reason}"
        ) from None
    if not isinstance(tensors, Mapping) or not all(isinstance(value, torch.Tensor) for value in tensors.values()):
        raise ValueError(f"{file} is not a plain dict of tensors (a state_dict) like pytorch_model.bin.")

    def read(name: str) -> np.ndarray:
        value = tensors[name]
        return (value.float() if value.is_floating_point() else value).numpy()

    half = any(value.dtype in (torch.float16, torch.bfloat16) for value in tensors.values())
    return {name: tuple(value.shape) for name, value in tensors.items()}, read, half


def check_pickle(path: str) -> None:
    """Refuses a pickle of PyTorch, or an index of several, that is visibly not whole; needs no PyTorch.

    Raises:
      FileNotFoundError: a file is not there. ValueError: it has no end, or is none; names it.
    """
    folder = posixpath.dirname(path)
    is_index = path.endswith(SHARD_INDEX_SUFFIX)
    for file in [posixpath.join(folder, name) for name in set(_file_of(path).values())] if is_index else [path]:
        refuse_pointer(file)
        with open_binary(file) as opened:
            is_archive = opened.read(len(_ARCHIVE)) == _ARCHIVE
        if is_archive and not zipfile.is_zipfile(file):
            raise ValueError(f"{file} is not complete: its end is missing; download or copy it again.")


def _file_of(index_file: str) -> dict[str, str]:
    """An index of shards: tensor's name -> name of the file that it is in, which is there."""
    if not isinstance(file_of := read_json(index_file).get("weight_map"), dict):
        raise ValueError(f"{index_file} is not an index of shards: it has no `weight_map`.")
    folder = posixpath.dirname(index_file)
    for name in file_of.values():
        if not isinstance(name, str) or posixpath.basename(name) != name or name in ("", ".", ".."):
            raise ValueError(f"{index_file}: weight_map names {name!r:.80}, which is not a file in its folder.")
    for name in sorted(set(file_of.values())):
        if not exists(posixpath.join(folder, name)):
            raise FileNotFoundError(f"{index_file} names the shard {name}, which is missing in {folder or '.'}.")
    return file_of


def _open_shards(index_file: str) -> tuple[Shapes, Reader, bool]:
    file_of, folder = _file_of(index_file), posixpath.dirname(index_file)
    names = sorted(set(file_of.values()))
    shards = {name: open_tensors(posixpath.join(folder, name)) for name in names}
    if absent := sorted(name for name, shard in file_of.items() if name not in shards[shard][0]):
        raise ValueError(f"{index_file}: {some(absent)} not in the shards that it names.")
    shapes = {name: shards[shard][0][name] for name, shard in file_of.items()}
    return shapes, lambda name: shards[file_of[name]][1](name), any(shard[2] for shard in shards.values())

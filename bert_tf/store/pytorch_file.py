"""PyTorch's weight files (pytorch_model.bin), read without PyTorch: a zip of a pickle and of the tensors' bytes.

A pickle is a program that may call any function. Here it is given none but those of `_Unpickler`, which describe
tensors. Operations that no dict of tensors needs, and any number that does not fit the bytes that are there, are
errors before a tensor is read.

Source: the notes "Serialization semantics" of PyTorch's documentation; operations: `pickletools` of Python.
"""

import collections
import io
import math
import pickle
import pickletools
import re
import zipfile
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

# The classes of storages -> the types of their numbers; a bfloat16 is the upper half of a float32.
_TYPES = {
    "FloatStorage": "f4", "DoubleStorage": "f8", "HalfStorage": "f2", "BFloat16Storage": "u2", "LongStorage": "i8",
    "IntStorage": "i4", "ShortStorage": "i2", "CharStorage": "i1", "ByteStorage": "u1", "BoolStorage": "?",
}  # fmt: skip
_OPERATIONS = """
    APPEND APPENDS BINFLOAT BINGET BININT BININT1 BININT2 BINPERSID BINPUT BINUNICODE BUILD EMPTY_DICT EMPTY_LIST
    EMPTY_TUPLE GLOBAL LONG1 LONG_BINGET LONG_BINPUT MARK NEWFALSE NEWTRUE NONE PROTO REDUCE SETITEM SETITEMS STOP TUPLE
    TUPLE1 TUPLE2 TUPLE3
"""
# What these make may be used again, by its number.
_USED_AGAIN = {"BINPERSID", "BINUNICODE", "EMPTY_DICT", "EMPTY_LIST", "GLOBAL", "REDUCE"}
_LARGEST_PICKLE = 1 << 19  # bytes, two seconds; those of 2,500 tensors
_MOST_TUPLES = 30_000  # four a tensor; hashing deeper ones overflows the stack


class _Storage(NamedTuple):
    key: str
    kind: str
    count: int


class _Tensor(NamedTuple):
    """A view of a storage: where it begins, and the steps between its elements along each axis, in numbers."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def open_state_dict(local: str, path: str) -> tuple[dict[str, tuple[int, ...]], Callable[[str], np.ndarray], bool]:
    """See `tensor_files.open_tensors`. local: the file, of PyTorch 1.6 or later. path: what it is called in errors."""
    try:
        archive = zipfile.ZipFile(local)
        entries = {info.filename: info for info in archive.infolist()}
        if len(entries) < len(archive.infolist()):
            raise ValueError("it has an entry twice")
        (root,) = (name.removesuffix("data.pkl") for name in entries if re.fullmatch(r"[^/]+/data\.pkl", name))
        tensors = _described(_content(archive, entries[f"{root}data.pkl"], _LARGEST_PICKLE))
        order = _content(archive, entries[f"{root}byteorder"], 9) if f"{root}byteorder" in entries else b"little"
        is_big = {b"little": False, b"big": True}[order]
        largest = sum(entry.file_size for entry in entries.values())
        for name, tensor in tensors.items():
            if not _fits(tensor, entries[f"{root}data/{tensor.storage.key}"], largest):
                raise ValueError(f"the tensor {name!r:.80} is larger than its storage, or that is of another size")
    except Exception as error:  # zipfile raises any kind for a damaged file
        raise ValueError(
            f"{path} is not a dict of tensors that PyTorch 1.6 or later has written, or it is damaged: {error!r:.300}."
        ) from None

    def read(name: str) -> np.ndarray:
        tensor, kind = tensors[name], np.dtype(_TYPES[tensors[name].storage.kind])
        content = _content(archive, entries[f"{root}data/{tensor.storage.key}"])
        numbers = np.frombuffer(bytearray(content), kind.newbyteorder(">" if is_big else "<"))
        axes = zip(tensor.shape, tensor.strides, strict=True)
        steps = [step * kind.itemsize if size > 1 else 0 for size, step in axes]
        start = tensor.offset if 0 not in tensor.shape else 0
        values = np.lib.stride_tricks.as_strided(numbers[start:], tensor.shape, steps)
        if tensor.storage.kind == "BFloat16Storage":
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32 if kind.kind == "f" else kind, copy=False)

    half = any(tensor.storage.kind in ("HalfStorage", "BFloat16Storage") for tensor in tensors.values())
    return {name: tensor.shape for name, tensor in tensors.items()}, read, half


def _content(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, most: float = math.inf) -> bytes:
    if entry.file_size > most:
        raise ValueError(f"an entry has {entry.file_size:,} bytes where {most:,} are the most")
    if entry.compress_type or entry.compress_size != entry.file_size:
        raise ValueError(f"the entry {entry.filename!r:.80} of the zip is compressed, which PyTorch never does")
    entry.CRC = entry.CRC or None  # pyrefly: ignore[bad-assignment]  # 0: PyTorch computed none; zipfile takes None
    return archive.read(entry)


def _fits(tensor: _Tensor, entry: zipfile.ZipInfo, largest: int) -> bool:
    """Whether a tensor, whose numbers may be any, is in its storage. largest: its most elements."""
    storage, numbers = tensor.storage, (*tensor.shape, *tensor.strides, tensor.offset)
    if min(numbers) < 0 or len(tensor.shape) > 32:
        return False
    if entry.file_size != storage.count * np.dtype(_TYPES[storage.kind]).itemsize:
        return False
    end = tensor.offset + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.strides, strict=True)) + 1
    return not (math.prod(filter(None, tensor.shape)) > largest or (0 not in tensor.shape and end > storage.count))


# --- the pickle ------------------------------------------------------------------------------------------------------


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str):
        """What a pickle gets for a name. Functions are made anew each time, since a pickle could change them."""
        match module, name:
            case "collections", "OrderedDict":
                return collections.OrderedDict
            case "torch", kind if kind in _TYPES:
                return kind
            case "torch._utils", "_rebuild_tensor_v2":
                return lambda *arguments: _tensor(*arguments)
            case "torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state":
                return lambda tensor, requires_grad, *_: _tensor(*tensor, requires_grad=requires_grad, hooks=None)
        raise ValueError(f"it names {f'{module}.{name}'!r:.80}, which no dict of tensors needs")

    def persistent_load(self, pid) -> _Storage:
        match pid:  # ("storage", its class, its key, the device, the count of its numbers)
            case ("storage", str(kind), str(key), str(), int(count)) if kind in _TYPES:
                return _Storage(key, kind, count)
        raise ValueError("a persistent id in it is not a storage")


def _tensor(storage, offset, shape, strides, requires_grad, hooks, negated_or_conjugated=None) -> _Tensor:
    kinds = type(storage), type(requires_grad), *{*map(type, (offset, *shape, *strides))}
    if kinds != (_Storage, bool, int) or hooks or negated_or_conjugated:
        raise ValueError("it has a tensor with arguments that no tensor has")
    return _Tensor(storage, offset, tuple(shape), tuple(strides))


def _described(content: bytes) -> dict[str, _Tensor]:
    # A tuple that is used again could stand for a tree of tuples that takes forever to be hashed.
    allowed, made_by, numbers, tuples = _OPERATIONS.split(), "", set(), 0
    for operation, value, _ in pickletools.genops(content):
        if (name := operation.name) not in allowed:
            raise ValueError(f"it has the operation {name}, which no dict of tensors needs")
        if (tuples := tuples + name.startswith("TUPLE")) > _MOST_TUPLES:
            raise ValueError("it has more tuples than a dict of tensors needs")
        if name in ("BINGET", "LONG_BINGET") and value not in numbers:
            raise ValueError("it uses something again that no dict of tensors does")
        if name not in ("BINPUT", "LONG_BINPUT"):
            made_by = name
        elif value is None or value > len(content):
            raise ValueError(f"it has the number {value}, which takes too much memory")
        else:
            (numbers.add if made_by in _USED_AGAIN else numbers.discard)(value)
    loaded = _Unpickler(io.BytesIO(content)).load()
    tensors = dict(loaded) if isinstance(loaded, dict) else {None: None}
    if {*map(type, tensors)} - {str} or {*map(type, tensors.values())} - {_Tensor}:
        raise ValueError("it is not a dict of tensors by name")
    return tensors

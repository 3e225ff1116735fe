"""PyTorch's weight files (pytorch_model.bin), read without PyTorch: a zip of a pickle and of the tensors' bytes.

A pickle is a program that may call any function. Here nothing is called: the operations that describe a dict of tensors
are read as a description. All else, and any number that does not fit the bytes that are there, is refused before a
tensor is read.

Source: the notes "Serialization semantics" of PyTorch's documentation; operations: `pickletools` of Python.
"""

import dataclasses
import math
import pickletools
import re
import zipfile
from collections.abc import Callable

import numpy as np

# The classes of storages -> the types of their numbers; a bfloat16 is the upper half of a float32.
_TYPES = {
    "FloatStorage": "f4", "DoubleStorage": "f8", "HalfStorage": "f2", "BFloat16Storage": "u2", "LongStorage": "i8",
    "IntStorage": "i4", "ShortStorage": "i2", "CharStorage": "i1", "ByteStorage": "u1", "BoolStorage": "?",
}  # fmt: skip
_DICT, _TENSOR = "collections OrderedDict", "torch._utils _rebuild_tensor_v2"
_PARAMETERS = ("torch._utils _rebuild_parameter", "torch._utils _rebuild_parameter_with_state")
_KNOWN = {_DICT, _TENSOR, *_PARAMETERS, *(f"torch {kind}" for kind in _TYPES)}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_VALUES = {"BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"}
_LARGEST_PICKLE = 1 << 19  # bytes, two seconds; those of 2,500 tensors
_MOST_DIMENSIONS = 32


@dataclasses.dataclass(frozen=True)
class _Name:
    """A class or function that a pickle names: "module name"."""

    name: str


@dataclasses.dataclass(frozen=True)
class _Storage:
    """Numbers in an entry of the zip."""

    key: str
    kind: str
    count: int


@dataclasses.dataclass(frozen=True)
class _Tensor:
    """A view of a storage: where it begins, and the steps between its elements along each axis, in numbers."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def open_state_dict(local: str, path: str) -> tuple[dict[str, tuple[int, ...]], Callable[[str], np.ndarray], bool]:
    """Shapes by name; a function that reads a tensor, floats as float32; whether any has half precision.

    Args:
      local: the file, of PyTorch 1.6 or later. path: what it is called in errors.
    """
    try:
        archive = zipfile.ZipFile(local)
        entries = {info.filename: info for info in archive.infolist()}
        roots = [name.removesuffix("data.pkl") for name in entries if re.fullmatch(r"[^/]+/data\.pkl", name)]
        if len(roots) != 1 or len(entries) < len(archive.infolist()):
            raise ValueError("it should have one data.pkl, in a folder, and each entry once")
        (root,) = roots
        tensors = _described(_content(archive, entries[f"{root}data.pkl"], _LARGEST_PICKLE))
        order = _content(archive, entries[f"{root}byteorder"], 9) if f"{root}byteorder" in entries else b"little"
        if order not in (b"little", b"big"):
            raise ValueError(f"its byte order is {order!r:.80}")
        largest = sum(entry.file_size for entry in entries.values())
        for name, tensor in tensors.items():
            if problem := _misfit(tensor, entries.get(f"{root}data/{tensor.storage.key}"), largest):
                raise ValueError(f"its tensor {name!r:.80} {problem}")
    except Exception as error:  # zipfile raises any kind for a damaged file
        reason = "an operation of its pickle lacks its arguments" if isinstance(error, LookupError) else str(error)
        raise ValueError(
            f"{path} is not a dict of tensors that PyTorch 1.6 or later has written, or it is damaged: {reason:.300}. "
            "Use model.safetensors of the same model if there is one, or download or copy it again."
        ) from None

    def read(name: str) -> np.ndarray:
        tensor, kind = tensors[name], np.dtype(_TYPES[tensors[name].storage.kind])
        try:
            content = _content(archive, entries[f"{root}data/{tensor.storage.key}"])
        except Exception as error:
            raise ValueError(f"{path} is damaged: {name}: {error}; copy the file again.") from error
        numbers = np.frombuffer(bytearray(content), kind.newbyteorder("<" if order == b"little" else ">"))
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
    """The bytes of an entry, which match its checksum, if it has one."""
    if entry.file_size > most:
        raise ValueError(f"an entry has {entry.file_size:,} bytes where {most:,} are the most")
    if entry.compress_type or entry.compress_size != entry.file_size:
        raise ValueError(f"the entry {entry.filename!r:.80} of the zip is compressed, which PyTorch never does")
    entry.CRC = entry.CRC or None  # 0: PyTorch was told to compute none
    return archive.read(entry)


def _misfit(tensor: _Tensor, entry: zipfile.ZipInfo | None, largest: int) -> str:
    """What is wrong with a tensor, whose numbers may be any; "" if nothing is.

    Args:
      entry: of its storage. largest: the most elements that a file of this size may describe.
    """
    storage, numbers = tensor.storage, (*tensor.shape, *tensor.strides, tensor.offset, tensor.storage.count)
    if any(type(number) is not int or number < 0 for number in numbers):
        return "has a size, step or offset that is none"
    if len(tensor.shape) != len(tensor.strides) or len(tensor.shape) > _MOST_DIMENSIONS:
        return f"has {len(tensor.shape)} sizes and {len(tensor.strides)} steps"
    if entry is None or entry.file_size != storage.count * np.dtype(_TYPES[storage.kind]).itemsize:
        return "should have a storage of another size than the one in the file" if entry else "has no storage"
    end = tensor.offset + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.strides, strict=True)) + 1
    if math.prod(filter(None, tensor.shape)) > largest or (0 not in tensor.shape and end > storage.count):
        return "is larger than its storage"
    return ""


# --- the pickle ------------------------------------------------------------------------------------------------------


def _described(pickle: bytes) -> dict[str, _Tensor]:
    # Objects are never compared, hashed or shown, since small ones can stand for a very large tree.
    stack, marks, memo = [], [], {}

    def pop(count: int | None = None) -> list:
        """The newest objects, of all since the newest mark if no count is given."""
        start = marks.pop() if count is None else len(stack) - count
        if start < (marks[-1] if marks else 0):
            raise ValueError("an operation lacks its arguments")
        items = stack[start:]
        del stack[start:]
        return items

    for operation, value, _ in pickletools.genops(pickle):
        match operation.name:
            case name if name in _VALUES or name in _CONSTANTS:
                stack.append(_CONSTANTS.get(name, value))
            case "BINPUT" | "LONG_BINPUT":
                memo[value] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[value])
            case "MARK":
                marks.append(len(stack))
            case "EMPTY_DICT" | "EMPTY_LIST" as name:
                stack.append({} if name == "EMPTY_DICT" else [])
            case "TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3" as name:
                stack.append(tuple(pop(None if name == "TUPLE" else int(name[-1]))))
            case "APPEND" | "APPENDS" as name:
                items = pop(1 if name == "APPEND" else None)
                if type(stack[-1]) is not list:
                    raise ValueError("it appends to something else than a list")
                stack[-1].extend(items)
            case "SETITEM" | "SETITEMS" as name:
                items = pop(2 if name == "SETITEM" else None)
                if type(stack[-1]) is not dict or len(items) % 2 or any(type(key) is not str for key in items[::2]):
                    raise ValueError("it has something else than a dict by names")
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
            case "GLOBAL" if value in _KNOWN:
                stack.append(_Name(value))
            case "GLOBAL":
                raise ValueError(f"it names {value.replace(' ', '.')!r:.80}, which no dict of tensors needs")
            case "BINPERSID":
                stack.append(_storage(*pop(1)))
            case "REDUCE":
                stack.append(_made(*pop(2)))
            case "BUILD":  # attributes of a dict: the versions of the model's modules
                if [*map(type, (*pop(1), stack[-1]))] != [dict, dict]:
                    raise ValueError("it sets attributes of something else than a dict")
            case "PROTO" | "STOP":
                pass
            case name:
                raise ValueError(f"it has the operation {name}, which no dict of tensors needs")
    tensors = stack.pop()
    if type(tensors) is not dict or stack or marks:
        raise ValueError("it is no dict of tensors")
    for name, tensor in tensors.items():
        if type(tensor) is not _Tensor:
            raise ValueError(f"{name!r:.80} in it is no tensor, but {type(tensor).__name__}")
    return tensors


def _storage(found) -> _Storage:
    """What a tuple ("storage", its class, its key, the device, the count of its numbers) describes."""
    match found:
        case ("storage", _Name(name), str(key), str(), int(count)) if name.startswith("torch "):
            return _Storage(key, name.removeprefix("torch "), count)
    raise ValueError("a persistent id in it is no storage")


def _made(function, arguments) -> dict | _Tensor:
    """What a call of a function that a pickle names stands for."""
    match function, arguments:
        case _Name(name), () if name == _DICT:
            return {}
        case _Name(name), (_Tensor() as tensor, bool(), {}, *_) if name in _PARAMETERS:
            return tensor
        # Behind the hooks: what says that values are to be negated or conjugated.
        case _Name(name), (_Storage() as storage, offset, tuple(shape), tuple(strides), bool(), {}, *further) if (
            name == _TENSOR and all(value is None or (type(value) is dict and not value) for value in further)
        ):
            return _Tensor(storage, offset, shape, strides)
    raise ValueError("it calls a function with arguments that no tensor has")

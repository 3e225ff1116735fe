"""PyTorch's weight files (pytorch_model.bin), read without PyTorch: a zip of a pickle and of the tensors' bytes.

A pickle is a program that may call any function. It is interpreted here, and nothing is called: of the operations that
`torch.load(weights_only=True)` knows, those that describe a dict of tensors are read as a description. All else, and
any number that does not fit the bytes that are there, is refused before a tensor is read.

Source: the notes "Serialization semantics" of PyTorch's documentation; operations: `pickletools` of Python.
"""

import dataclasses
import json
import math
import pickletools
import shlex
import struct
import zipfile
import zlib
from collections.abc import Callable

import numpy as np

# The classes of storages -> the types of their numbers; a bfloat16 is the upper half of a float32.
_TYPES = {
    "FloatStorage": "f4", "DoubleStorage": "f8", "HalfStorage": "f2", "BFloat16Storage": "u2", "LongStorage": "i8",
    "IntStorage": "i4", "ShortStorage": "i2", "CharStorage": "i1", "ByteStorage": "u1", "BoolStorage": "?",
}  # fmt: skip
_HALF_PRECISION = ("HalfStorage", "BFloat16Storage")
_DICT, _TENSOR = "collections OrderedDict", "torch._utils _rebuild_tensor_v2"
_PARAMETERS = ("torch._utils _rebuild_parameter", "torch._utils _rebuild_parameter_with_state")
_KNOWN = {_DICT, _TENSOR, *_PARAMETERS, *(f"torch {kind}" for kind in _TYPES)}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_VALUES = {"BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"}
_LARGEST_PICKLE = 1 << 22  # bytes; those of 20,000 tensors
_MOST_DIMENSIONS = 32
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # of a zip's entry: signature, ..., length of the name, of further fields
_OLD = (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", b"ustar")  # before 1.6: a number, at first; earlier a tar file


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


@dataclasses.dataclass(frozen=True)
class _Entry:
    """Where the bytes of a zip's entry are, and their CRC-32; 0: it was not computed."""

    start: int
    size: int
    checksum: int


def open_state_dict(local: str, path: str) -> tuple[dict[str, tuple[int, ...]], Callable[[str], np.ndarray], bool]:
    """Opens a file that `torch.save` has written of a model's tensors, by PyTorch 1.6 or later.

    Args:
      local: the file, which is mapped into memory. path: what it is called in errors.

    Returns:
      shapes by name; a function that reads a tensor, floating-point numbers as float32; whether any has half precision.

    Raises:
      ValueError: the file is damaged, older, or has anything but a dict of tensors; says what to do. The function
        raises it, too, if the bytes of a tensor don't match their checksum.
    """
    try:
        entries, root = _entries(local, path)
        tensors = _described(_content(local, entries[f"{root}/data.pkl"], _LARGEST_PICKLE))
        order = _content(local, entries[f"{root}/byteorder"], 9) if f"{root}/byteorder" in entries else b"little"
        if order not in (b"little", b"big"):
            raise ValueError(f"its byte order is {order!r:.80}")
        largest = max(entry.start + entry.size for entry in entries.values())
        for name, tensor in tensors.items():
            if problem := _misfit(tensor, entries.get(f"{root}/data/{tensor.storage.key}"), largest):
                raise ValueError(f"its tensor {name!r:.80} {problem}")
    except _NotOurs as error:
        raise ValueError(f"{path} {error}") from None
    except (ValueError, LookupError) as error:
        reason = str(error) if isinstance(error, ValueError) else "an operation of its pickle lacks its arguments"
        raise ValueError(
            f"{path} is not a dict of tensors that PyTorch has written, or it is damaged: {reason:.300}. Use "
            "model.safetensors of the same model if there is one, or download or copy it again."
        ) from None
    checked = set()

    def read(name: str) -> np.ndarray:
        tensor = tensors[name]
        entry = entries[f"{root}/data/{tensor.storage.key}"]
        if 0 in tensor.shape:
            values = np.zeros(tensor.shape, _TYPES[tensor.storage.kind])
        else:
            content = np.memmap(local, np.uint8, "c", entry.start, (entry.size,))  # a page is copied if it is changed
            if entry.checksum and entry not in checked:
                if zlib.crc32(content) != entry.checksum:
                    raise ValueError(f"{path} is damaged: {name} does not match its checksum; copy the file again.")
                checked.add(entry)
            values = _view(content, tensor, "<" if order == b"little" else ">")
        if tensor.storage.kind == "BFloat16Storage":
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32 if values.dtype.kind == "f" else values.dtype.newbyteorder("="), copy=False)

    half = any(tensor.storage.kind in _HALF_PRECISION for tensor in tensors.values())
    return {name: tensor.shape for name, tensor in tensors.items()}, read, half


def _view(content: np.ndarray, tensor: _Tensor, order: str) -> np.ndarray:
    numbers = np.asarray(content).view(np.dtype(_TYPES[tensor.storage.kind]).newbyteorder(order))
    steps = [
        step * numbers.itemsize if size > 1 else 0 for size, step in zip(tensor.shape, tensor.strides, strict=True)
    ]
    return np.lib.stride_tricks.as_strided(numbers[tensor.offset :], tensor.shape, steps)


def _misfit(tensor: _Tensor, entry: _Entry | None, largest: int) -> str:
    """What is wrong with a tensor, whose numbers may be any; "" if nothing is.

    Args:
      entry: of its storage; None: there is none. largest: as many elements as a file of this size may describe, since
        an element may be read several times.
    """
    storage, numbers = tensor.storage, (*tensor.shape, *tensor.strides, tensor.offset, tensor.storage.count)
    if any(type(number) is not int or number < 0 for number in numbers):
        return "has a size, step or offset that is none"
    if len(tensor.shape) != len(tensor.strides) or len(tensor.shape) > _MOST_DIMENSIONS:
        return f"has {len(tensor.shape)} sizes and {len(tensor.strides)} steps"
    if entry is None or entry.size != storage.count * np.dtype(_TYPES[storage.kind]).itemsize:
        return "should have a storage of another size than the one in the file" if entry else "has no storage"
    end = tensor.offset + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.strides, strict=True)) + 1
    if math.prod(filter(None, tensor.shape)) > largest or (0 not in tensor.shape and end > storage.count):
        return "is larger than its storage"
    return ""


# --- the zip ---------------------------------------------------------------------------------------------------------


class _NotOurs(Exception):
    """What a file is instead, and what to do."""


def _entries(local: str, path: str) -> tuple[dict[str, _Entry], str]:
    """The entries of a zip by name, each of which has bytes of its own, and the folder that all names begin with."""
    with open(local, "rb") as file:
        beginning = file.read(262)
        if beginning.startswith(_OLD[0]) or beginning[257:] == _OLD[1]:
            name = json.dumps(path, ensure_ascii=False)
            program = f"import torch; f = {name}; torch.save(torch.load(f, 'cpu', weights_only=True), f)"
            raise _NotOurs(
                "has the form of PyTorch before 1.6, which only PyTorch reads: where it is installed, convert the file "
                f"by python -c {shlex.quote(program)}"
            )
        if not beginning.startswith(b"PK\3\4"):
            raise _NotOurs("is no weight file of PyTorch: it is not a zip. Download or copy it again.")
        try:
            archive = zipfile.ZipFile(file)
        except Exception as error:  # zipfile raises any kind for a damaged directory of entries
            raise _NotOurs("is not complete: its end is missing; download or copy it again.") from error
        found = sorted(archive.infolist(), key=lambda info: info.header_offset)
        names = {info.filename for info in found}
        if len(names) < len(found):
            raise ValueError("two entries of the zip have one name")
        roots = [
            name.removesuffix("/data.pkl") for name in names if name.endswith("/data.pkl") and name.count("/") == 1
        ]
        if len(roots) != 1:
            raise _NotOurs("is a zip, but none of PyTorch: it should have one data.pkl, in a folder.")
        if f"{roots[0]}/constants.pkl" in names:
            raise _NotOurs(
                "is a program of TorchScript, not a dict of tensors: give the model's model.safetensors or "
                "pytorch_model.bin, or save its state_dict() with torch.save."
            )
        entries, end = {}, 0
        for info in found:
            file.seek(info.header_offset)
            header = file.read(_LOCAL_HEADER.size)
            if info.header_offset < end or len(header) < _LOCAL_HEADER.size or not header.startswith(b"PK\3\4"):
                raise ValueError(f"the entry {info.filename!r:.80} of the zip is not where it should be")
            if info.compress_type or info.flag_bits & 1 or info.compress_size != info.file_size:
                raise ValueError(f"the entry {info.filename!r:.80} of the zip is compressed, which PyTorch never does")
            start = info.header_offset + _LOCAL_HEADER.size + sum(_LOCAL_HEADER.unpack(header)[1:])
            end = start + info.file_size
            entries[info.filename] = _Entry(start, info.file_size, info.CRC)
        if end > archive.start_dir:
            raise ValueError("its last entry goes beyond the zip's end")
    return entries, roots[0]


def _content(local: str, entry: _Entry, most: int) -> bytes:
    """The bytes of a small entry."""
    if entry.size > most:
        raise ValueError(f"an entry has {entry.size:,} bytes where {most:,} are the most")
    with open(local, "rb") as file:
        file.seek(entry.start)
        content = file.read(entry.size)
    if entry.checksum and zlib.crc32(content) != entry.checksum:
        raise ValueError("an entry does not match its checksum")
    return content


# --- the pickle ------------------------------------------------------------------------------------------------------


def _described(pickle: bytes) -> dict[str, _Tensor]:
    """The dict of tensors that a pickle describes.

    No name is imported, nothing is called. Objects are never compared, hashed or shown, since small ones can stand for
    a very large tree. The time is that of the pickle's length.

    Raises:
      ValueError, LookupError: it has another operation or name, or describes something else.
    """
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
        name = operation.name
        if name in _VALUES:
            stack.append(value)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[value] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[value])
        elif name == "MARK":
            marks.append(len(stack))
        elif name in ("EMPTY_DICT", "EMPTY_LIST"):
            stack.append({} if name == "EMPTY_DICT" else [])
        elif name in ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"):
            stack.append(tuple(pop(None if name == "TUPLE" else int(name[-1]))))
        elif name in ("APPEND", "APPENDS"):
            _extend(pop(1 if name == "APPEND" else None), stack[-1])
        elif name in ("SETITEM", "SETITEMS"):
            _set_items(pop(2 if name == "SETITEM" else None), stack[-1])
        elif name == "GLOBAL":
            if value not in _KNOWN:
                raise ValueError(f"it names {value.replace(' ', '.')!r:.80}, which no dict of tensors needs")
            stack.append(_Name(value))
        elif name == "BINPERSID":
            stack.append(_storage(*pop(1)))
        elif name == "REDUCE":
            stack.append(_made(*pop(2)))
        elif name == "BUILD":  # attributes of a dict: the versions of the model's modules
            if [*map(type, (*pop(1), stack[-1]))] != [dict, dict]:
                raise ValueError("it sets attributes of something else than a dict")
        elif name not in ("PROTO", "STOP"):
            raise ValueError(f"it has the operation {name}, which no dict of tensors needs")
    tensors = stack.pop()
    if type(tensors) is not dict or stack or marks:
        raise ValueError("it is no dict of tensors")
    for name, tensor in tensors.items():
        if type(tensor) is not _Tensor:
            raise ValueError(f"{name!r:.80} in it is no tensor, but {type(tensor).__name__}")
    return tensors


def _extend(items: list, target) -> None:
    if type(target) is not list:
        raise ValueError("it appends to something else than a list")
    target.extend(items)


def _set_items(items: list, target) -> None:
    keys = items[::2]
    if type(target) is not dict or len(items) % 2 or any(type(key) is not str for key in keys):
        raise ValueError("it has something else than a dict by names")
    target.update(zip(keys, items[1::2], strict=True))


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

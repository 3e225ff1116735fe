"""Files of tensors other than checkpoints: safetensors, of PyTorch (see `pytorch_file`), HDF5, and shards.

`Weights` is a file of any format under the original's names (TF1), whatever the file calls them; tensors are read one
at a time and only on request, so that a large model is never in memory twice.
"""

import dataclasses
import json
import math
import mmap
import os
import posixpath
import re
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import google_crc32c
import numpy as np
from safetensors import SafetensorError, safe_open

from bert_tf.families.family import is_model_variable
from bert_tf.system.example_bytes import crc32c
from bert_tf.system.hub import wrong_checksum
from bert_tf.system.messages import abbreviated_list
from bert_tf.system.storage import gfile, is_remote, private_folder, written
from bert_tf.system.text_files import read_json, refuse_pointer

_BLOCK_BYTES = 1 << 23


@dataclasses.dataclass(eq=False)
class Weights(Mapping[str, np.ndarray]):
    """The tensors of a file under the original's names: a mapping that reads a tensor on each access.

    path: the file or prefix, as shown in errors. format: its name in `open.FORMATS`.
    origins: the original's name -> what the file calls it. shapes, reader: of tensors in the original's layout.
    unused: entries of the file without an equivalent in the original's format -> why.
    hints: what the file itself says about the model: `num_attention_heads`, `hidden_act`, `do_lower_case`.
    parts: by name, the models in a file that has several, this one among them.
    """

    path: str
    format: str
    shapes: dict[str, tuple[int, ...]]
    origins: dict[str, str]
    reader: Callable[[str], np.ndarray]
    unused: dict[str, str] = dataclasses.field(default_factory=dict)
    hints: dict = dataclasses.field(default_factory=dict)
    parts: dict[str, "Weights"] = dataclasses.field(default_factory=dict)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.reader(name)

    def read_finite(self, name: str) -> np.ndarray:
        value = self.reader(name)
        if not all(np.isfinite(block).all() for block in blocks(value if value.flags.c_contiguous else value.T)):
            raise ValueError(f"{self.path}: {name} has NaN or infinite values.")
        return value

    @property
    def checksum(self) -> str:
        """CRC-32C of names and values of the model's variables, 8 hexadecimal digits; reads them all."""
        checksum = google_crc32c.Checksum()
        for name in sorted(filter(is_model_variable, self.shapes)):
            checksum.update(name.encode())
            for block in blocks(self[name]):
                checksum.update(block.tobytes())
        return checksum.hexdigest().decode()

    def __contains__(self, name) -> bool:
        return name in self.shapes  # without reading the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def incomplete(path: str, missing: Sequence[str], untrained: bool) -> ValueError:
    """The error of a model whose outputs depend on variables that its weights lack, or have untrained."""
    verb = "holds, but untrained," if untrained else "lacks"
    return ValueError(
        f"{path} {verb} {len(missing)} of the model's variables, so that its answers would be random: "
        f"{abbreviated_list(missing)}. Train it first."
    )


def blocks(tensor: np.ndarray) -> Iterator[np.ndarray]:
    """The rows of a tensor in blocks of some megabytes, to copy or compare it without a second one in memory."""
    rows, mapped = (tensor if tensor.ndim else tensor.reshape(1)), _mapped(tensor)
    count = max(1, _BLOCK_BYTES // max(1, rows[:1].nbytes))
    for start in range(0, len(rows), count):
        yield rows[start : start + count]
        if mapped:
            mapped[1].madvise(mmap.MADV_DONTNEED)  # what was read of it doesn't count as memory of this process


def _mapped(tensor: np.ndarray) -> tuple[np.memmap, mmap.mmap] | None:
    """The array, a whole tensor of a file, of whose memory this one is, and that memory."""
    base: object = tensor
    while isinstance(base, np.ndarray):
        array, base = base, base.base
        if isinstance(array, np.memmap) and isinstance(base, mmap.mmap):
            return array, base
    return None


def place_in_file(tensor: np.ndarray) -> tuple[str, int] | None:
    """Path and first byte, if these bytes in this order lie in a file on this machine."""
    array, _ = _mapped(tensor) or (None, None)
    if array is None or not tensor.flags.c_contiguous or not tensor.flags.aligned:
        return None
    whole = array.nbytes == tensor.nbytes and array.ctypes.data == tensor.ctypes.data
    return (os.path.realpath(str(array.filename)), array.offset) if whole else None


def renamed(
    weights: Weights, names: Mapping[str, str], unused: Mapping[str, str], transposed: Collection[str] = ()
) -> Weights:
    """Some of the tensors, as new name -> old one. transposed: new names of matrices that are transposed."""

    def shape_of(new: str) -> tuple[int, ...]:
        shape = weights.shapes[names[new]]
        return shape[::-1] if new in transposed else shape

    def read(new: str) -> np.ndarray:
        value = weights[names[new]]
        return value.T if new in transposed else value

    return dataclasses.replace(
        weights,
        shapes={new: shape_of(new) for new in names},
        origins={new: weights.origins[old] for new, old in names.items()},
        reader=read,
        unused={**weights.unused, **unused},
        hints=dict(weights.hints),
    )


def with_tensors(weights: Weights, tensors: Mapping[str, np.ndarray]) -> Weights:
    return dataclasses.replace(
        weights,
        shapes={**weights.shapes, **{name: value.shape for name, value in tensors.items()}},
        origins={**dict.fromkeys(tensors, ""), **weights.origins},
        reader=lambda name: tensors[name] if name in tensors else weights[name],
    )


Shapes = dict[str, tuple[int, ...]]
Reader = Callable[[str], np.ndarray]  # of a tensor by its name

SHARD_INDEX_SUFFIX = ".index.json"

_CODES = {"float32": "F32", "int64": "I64"}
_CHECKSUMS = "crc32c"  # in the metadata: of names, shapes and other metadata, then of each tensor, by name
# What NumPy reads; of BF16 the bits.
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1"}
_TYPES |= {"U8": "u1", "BOOL": "?"}


def open_tensors(file: str) -> tuple[Shapes, Reader, bool]:
    """Opens a safetensors file, a pytorch_model.bin, a tf_model.h5, or an index of shards.

    Returns shapes, a reader, and whether any tensor has half precision, which is widened.
    """
    if file.endswith(SHARD_INDEX_SUFFIX):
        return _open_shards(file)
    if file.endswith(".safetensors"):
        shapes, metadata, read = open_safetensors(file)
        return shapes, read, "half_precision" in metadata
    from bert_tf.store.pytorch_file import open_state_dict  # few programs need it

    local, folder = _local(file)
    shapes, read, half = (_open_hdf5 if file.endswith(".h5") else open_state_dict)(local, file)
    return shapes, lambda name, _folder=folder: read(name), half


def _open_hdf5(local: str, path: str) -> tuple[Shapes, Reader, bool]:
    """Keras puts the names of a layer and of the model before that of a tensor."""
    import h5py

    tensors = {}

    def add(name: str, item) -> None:
        if isinstance(item, h5py.Dataset) and item.dtype.kind == "f" and not item.external:
            tensors[name.split("/", 2)[-1]] = name, item.shape, item.dtype.itemsize

    try:
        with h5py.File(local) as file:
            file.visititems(add)
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(f"{path} is not an HDF5 file, or it is damaged: {error}.") from None

    def read(name: str) -> np.ndarray:
        with h5py.File(local) as file:
            return file[tensors[name][0]][()].astype(np.float32, copy=False)

    return {name: tensors[name][1] for name in tensors}, read, any(tensors[name][2] == 2 for name in tensors)


# --- safetensors -----------------------------------------------------------------------------------------------------


def open_safetensors(path: str) -> tuple[Shapes, dict[str, str], Reader]:
    """Shapes by name, the header's metadata (and `half_precision`), and a reader, of half precision as float32, which
    compares the checksums that `write_safetensors` gives a file. Other tensors are `np.memmap`."""
    local, folder = _local(path)
    try:
        with safe_open(local, framework="np") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            metadata = dict(file.metadata() or {})
            types = {name: file.get_slice(name).get_dtype() for name in shapes}
    except SafetensorError as error:
        raise ValueError(f"{path} is not a complete safetensors file ({error}); download or copy it again.") from error
    if unread := sorted({*types.values()} - _TYPES.keys()):
        raise ValueError(f"{path} has tensors of types that are not read here: {abbreviated_list(unread)}.")
    noted = re.findall("." * 8, metadata.pop(_CHECKSUMS, ""))
    noted = dict(zip(["", *sorted(shapes)], noted, strict=False))

    def check(name: str, tensor: np.ndarray) -> None:
        if name in noted and noted[name] != _crc32c(tensor):
            advice = f"or, if a program has changed it, write it without the metadata {_CHECKSUMS!r}"
            problem = f"{name or 'its header'} does not match its checksum"
            raise ValueError(f"{path} is damaged: {problem}. Copy it again; {advice}.")

    check("", _described(shapes, metadata))
    if not {"F16", "BF16"}.isdisjoint(types.values()):
        metadata["half_precision"] = "true"

    def read(name: str, _folder=folder) -> np.ndarray:
        with open(local, "rb") as file:
            start = 8 + int.from_bytes(file.read(8), "little")
            begin, _ = json.loads(file.read(start - 8))[name]["data_offsets"]
        values = np.memmap(local, _TYPES[types[name]], "r", start + begin, shapes[name])
        check(name, values)
        if types[name] == "BF16":
            return (np.asarray(values, np.uint32) << 16).view(np.float32)
        return np.asarray(values, np.float32) if types[name] == "F16" else values

    return shapes, metadata, read


def _described(shapes: Shapes, metadata: Mapping[str, str]) -> np.ndarray:
    return np.frombuffer(json.dumps([shapes, dict(metadata)], sort_keys=True).encode(), np.uint8)


def _crc32c(tensor: np.ndarray) -> str:
    return crc32c(block.tobytes() for block in blocks(tensor))


def _local(path: str) -> tuple[str, tempfile.TemporaryDirectory | None]:
    """A file's local path, and the folder of a remote one's copy, which is there as long as this object."""
    local, folder = path, None
    if is_remote(path):
        folder = private_folder()
        local = os.path.join(folder.name, posixpath.basename(path))
        gfile().copy(path, local)
    with open(local, "rb") as file:
        refuse_pointer(path, file.read(99))
    if wrong := wrong_checksum(local):
        raise ValueError(f"{path} is damaged: it has {wrong}. Remove it; with the model's name it is fetched again.")
    return local, folder


def write_safetensors(path: str, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Writes a file, of `Weights` tensor by tensor; but for checksums, the library's writer gives the same bytes."""
    shapes = tensors.shapes if isinstance(tensors, Weights) else {name: np.shape(tensors[name]) for name in tensors}
    kinds = {name: np.dtype("int64" if name == "global_step" else "float32") for name in shapes}
    names = sorted(shapes, key=lambda name: (-kinds[name].itemsize, name))  # larger types first, for alignment
    empty, sums = "0" * 8 * (1 + len(names)), {"": _crc32c(_described(shapes, metadata))}
    # What was written to a remote file can't be changed: it has none.
    header: dict[str, Any] = {"__metadata__": {**metadata, _CHECKSUMS: "" if is_remote(path) else empty}}
    end = 0
    for name in names:
        start, end = end, end + math.prod(shapes[name]) * kinds[name].itemsize
        header[name] = {"dtype": _CODES[kinds[name].name], "shape": [*shapes[name]], "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with written(path) as temporary:
        with gfile().GFile(temporary, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name in names:
                checksum = google_crc32c.Checksum()
                for block in blocks(np.asarray(tensors[name]).astype(kinds[name], casting="same_kind", copy=False)):
                    file.write(content := block.tobytes())
                    checksum.update(content)
                sums[name] = checksum.hexdigest().decode()
        if not is_remote(path):
            with open(temporary, "r+b") as file:
                file.seek(8)
                file.write(text.replace(empty.encode(), "".join(sums[name] for name in sorted(sums)).encode(), 1))


def _open_shards(index_file: str) -> tuple[Shapes, Reader, bool]:
    file_of, folder = read_json(index_file).get("weight_map"), posixpath.dirname(index_file)
    names = sorted({*map(str, file_of.values())}) if isinstance(file_of, dict) else [""]
    if odd := [name for name in names if not re.fullmatch(r"[^/\\]+\.(safetensors|bin)", name)]:
        raise ValueError(f"{index_file}: weight_map names {odd[0]!r:.80}, not a file of tensors in its folder.")
    shards = {name: open_tensors(posixpath.join(folder, name)) for name in names}
    if absent := sorted(name for name, shard in file_of.items() if name not in shards[shard][0]):
        raise ValueError(f"{index_file}: {abbreviated_list(absent)} not in the shards that it names.")
    shapes = {name: shards[shard][0][name] for name, shard in file_of.items()}
    return shapes, lambda name: shards[file_of[name]][1](name), any(shard[2] for shard in shards.values())

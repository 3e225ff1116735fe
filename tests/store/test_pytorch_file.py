"""PyTorch's weight files: values are those of torch.load; other files are errors, and nothing runs."""

import copyreg
import pickle
import random
import re
import struct
import zipfile

import numpy as np
import pytest
from helpers.basics import slow

from bert_tf.store.pytorch_file import open_state_dict
from bert_tf.store.tensor_files import open_tensors

torch = pytest.importorskip("torch", reason="torch is not installed (requirements-dev.txt)")


def opened(path) -> dict[str, np.ndarray]:
    shapes, read, _ = open_tensors(str(path))
    values = {name: read(name) for name in shapes}
    assert {name: value.shape for name, value in values.items()} == shapes
    return values


def assert_as_in_pytorch(path) -> None:
    expected = torch.load(path, "cpu", weights_only=True)
    found = opened(path)
    assert [*found] == [*expected]
    for name, value in expected.items():
        wanted = (value.detach().float() if value.is_floating_point() else value).numpy()
        assert found[name].dtype == wanted.dtype and found[name].shape == wanted.shape
        assert found[name].tobytes() == wanted.tobytes(), name


def refusal(path) -> str:
    with pytest.raises(ValueError, match="^[^\n]*$") as caught:
        opened(path)
    assert str(caught.value).startswith(f"{path} ")
    return str(caught.value).removeprefix(f"{path} ")


def some_tensors() -> dict:
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(6, 8, generator=generator)
    kinds = ("float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
    tensors = {kind: (base * 50).to(getattr(torch, kind)) for kind in kinds}
    special = torch.tensor([float("nan"), float("inf"), -0.0, 1e-40, 3e38])
    return {
        **tensors, "whole": base, "transposed": base.T, "part": base[1:4, 2:7:2], "tied": base, "one": base[3, 3],
        "none": torch.zeros(0, 5), "expanded": torch.arange(4).expand(3, 4), "special": special,
        "special_half": special.bfloat16(), "axes": torch.randn(2, 3, 4, generator=generator).permute(2, 0, 1),
        "parameter": torch.nn.Parameter(base[:2]), "single": torch.ones(1, 1).as_strided((1, 1), (99, 77)),
    }  # fmt: skip


def test_the_values_are_those_of_pytorch(tmp_path):
    path, with_attribute = tmp_path / "a b.bin", torch.nn.Parameter(torch.ones(2))
    with_attribute.note = {"a": [1, 2.5, None]}
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    for saved in (some_tensors(), {"x": with_attribute}, model.state_dict()):  # an OrderedDict with attributes
        for with_checksums in (False, True):
            torch.serialization.set_crc32_options(with_checksums)
            torch.save(saved, path)
            assert_as_in_pytorch(path)
        assert open_tensors(str(path))[2] == ("bfloat16" in saved)
    before = path.read_bytes()
    opened(path)["0.weight"][:] = 1  # a tensor may be changed, and the file stays
    assert path.read_bytes() == before


def write(path, content: bytes, storages=None, *, more=None, root="archive", compression=zipfile.ZIP_STORED):
    """A zip in PyTorch's form of a pickle, and of bytes by key."""
    entries = {"data.pkl": content, "byteorder": b"little", "version": b"3\n", **(more or {})}
    entries |= {f"data/{key}": value for key, value in (storages or {}).items()}
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, value in entries.items():
            file.writestr(f"{root}/{name}", value)
    return path


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value) -> bytes:
    content = pickle.dumps(value, 2)  # PROTO, the operation, STOP
    return content[2:-1]


ORDERED = b"ccollections\nOrderedDict\n)R"
FLOATS = b"ctorch\nFloatStorage\n"


def storage(key=b"X\x01\0\0\x000", kind=FLOATS, count=6, first=None, device=None) -> bytes:
    first, device = first or text("storage"), device or text("cpu")
    return b"(" + first + kind + key + device + number(count) + b"tQ"


def tensor(where=None, offset=0, shape=(2, 3), strides=(3, 1), further=b"") -> bytes:
    sizes = number(offset) + number(shape) + number(strides)
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + (where or storage()) + sizes + b"\x89" + ORDERED + further + b"tR"


def dict_of(value: bytes, key: bytes | None = None) -> bytes:
    return b"\x80\x02}" + (key or text("a")) + value + b"s."


SIX = {"0": np.arange(6, dtype=np.float32).tobytes()}


def test_a_crafted_file_is_as_pytorchs(tmp_path):
    """So that what raises below raises for what it says."""
    assert_as_in_pytorch(write(tmp_path / "x.bin", dict_of(tensor()), SIX))
    assert_as_in_pytorch(write(tmp_path / "x.bin", dict_of(tensor(offset=1, shape=(2,), strides=(4,))), SIX, root="ü"))
    swapped = {"0": np.arange(6, dtype=">f4").tobytes()}
    assert_as_in_pytorch(write(tmp_path / "x.bin", dict_of(tensor()), swapped, more={"byteorder": b"big"}))


class Touch:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def programs(marker: str) -> dict[str, bytes]:
    """Pickles that would make a file."""
    command, system = text(f"touch {marker}"), b"cposix\nsystem\n"
    short = b"\x8c\x05posix\x8c\x06system\x93"
    evaluate = b"c__builtin__\neval\n" + text(f"open({marker!r}, 'w')") + b"\x85R"
    return {
        "reduce": dict_of(system + command + b"\x85R"),
        "stack global": b"\x80\x04" + dict_of(short + command + b"\x85R")[2:],
        "instance": dict_of(b"(" + command + b"iposix\nsystem\n"),
        "extension": dict_of(b"\x82\xf0" + command + b"\x85R"),
        "as hooks": dict_of(tensor().replace(ORDERED, evaluate)),
        "of a persistent id": dict_of(evaluate + b"Q"),
        "protocol 0": pickle.dumps({"a": Touch(marker)}, 0),
    }


def test_nothing_is_run(tmp_path):
    marker = tmp_path / "marker"
    copyreg.add_extension("posix", "system", 0xF0)
    try:
        for name, program in programs(str(marker)).items():
            message = refusal(write(tmp_path / "x.bin", program, SIX))
            assert re.search("it names '|has the operation |MARK", message), (name, message)
            assert not marker.exists(), name
    finally:
        copyreg.remove_extension("posix", "system", 0xF0)


def tree(again: bytes) -> bytes:
    """A dict whose key is a tuple of 2^100 empty ones."""
    return dict_of(b"K\x01", b")" + (again + b"q\0h\0\x86") * 100)


PARAMETER = b"ctorch._utils\n_rebuild_parameter\n"
PICKLES = {
    "a persistent id of text": (dict_of(b"P0\n"), "the operation PERSID"),
    "a persistent id of a number": (dict_of(b"K\x01Q"), "a persistent id in it is not a storage"),
    "a storage of another class": (dict_of(tensor(storage(kind=text("Storage")))), "in it is not a storage"),
    "a path as key": (dict_of(tensor(storage(key=text("../../../etc/passwd")))), "KeyError"),
    "too many numbers": (dict_of(tensor(storage(count=7))), "larger than its storage, or that is of another size"),
    "a negative step": (dict_of(tensor(strides=(3, -1))), "larger than its storage"),
    "a fraction": (dict_of(tensor(shape=(2.0, 3))), "arguments that no tensor has"),
    "a negated tensor": (dict_of(tensor(further=b"}" + text("neg") + b"\x88s")), "arguments that no tensor has"),
    "beyond the storage": (dict_of(tensor(offset=1)), "is larger than its storage"),
    "one element for all": (dict_of(tensor(shape=(10**6, 10**6), strides=(0, 0))), "is larger than its storage"),
    "none of huge sizes": (dict_of(tensor(shape=(0, 10**9, 10**9), strides=(1, 1, 1))), "is larger than its st"),
    "many axes": (dict_of(tensor(shape=(1,) * 33, strides=(1,) * 33)), "is larger than its storage"),
    "attributes of a tensor": (dict_of(tensor() + b"}b"), "__dict__"),
    "a dict inside": (dict_of(dict_of(tensor())[2:-1], text("state_dict")), "it is not a dict of tensors by name"),
    "a list of tensors": (b"\x80\x02]" + tensor() + b"a.", "it is not a dict of tensors"),
    "a parameter of four": (dict_of(PARAMETER + b"(" + number((1, 2, 3, 4)) + b"\x88" + ORDERED + b"tR"), "iterable"),
    "a number that fills the memory": (b"\x80\x02}r\xf0\xff\xff\xff.", "takes too much memory"),
    "a key whose hash would end the process": (dict_of(b"N", b")" + b"\x85" * 400_000), "more tuples than a dict"),
    "a tree": (tree(b""), "uses something again"),
    "a tree behind a number of a text": (tree(text("a") + b"q\0}h\0Nsb"), "uses something again"),
    "a tree behind an operation without effect": (tree(b"(e"), "uses something again"),
    "a tree with two numbers": (tree(b"q\1"), "uses something again"),
    "too large": (b"\x80\x02" + b"]" * (1 << 19) + b".", "an entry has 524,291 bytes where 524,288 are the most"),
}  # fmt: skip


def test_crafted_pickles(tmp_path):
    for name, (content, message) in PICKLES.items():
        assert message in (told := refusal(write(tmp_path / "x.bin", content, SIX))), (name, told)


def test_crafted_zips(tmp_path):
    good, path = dict_of(tensor()), tmp_path / "x.bin"
    assert "is compressed" in refusal(write(path, good, SIX, compression=zipfile.ZIP_DEFLATED))
    assert "not enough values" in refusal(write(path, good, SIX, root="a/b"))
    assert "KeyError(b'middle')" in refusal(write(path, good, SIX, more={"byteorder": b"middle"}))
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(write(path, good, SIX), "a") as file:
        file.writestr("archive/data/0", SIX["0"])
    assert "an entry twice" in refusal(path)
    write(path, good, {**SIX, "../../../../escaped": b"x"})  # such an entry is never unpacked
    assert_as_in_pytorch(path)


def test_damaged_and_other_files(tmp_path):
    path = tmp_path / "x.bin"
    torch.save({"a": torch.arange(1000.0), "b": torch.ones(3)}, path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert "File is not a zip file" in refusal(path)
    values = content.index(np.arange(1000, dtype="f4").tobytes())
    path.write_bytes(content[: values + 9] + b"\xff" + content[values + 10 :])
    with pytest.raises(zipfile.BadZipFile, match="Bad CRC-32 for file 'x/data/0'"):
        opened(path)
    torch.save({"a": torch.ones(3)}, path, _use_new_zipfile_serialization=False)
    assert "PyTorch 1.6 or later" in refusal(path)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("part", [0, *slow(*range(1, 8))])
def test_no_more_is_accepted_than_by_pytorch(part, tmp_path):
    """Pickles with random changes: an error of a line, or what torch.load gives."""
    path = tmp_path / "x.bin"
    model = torch.nn.Linear(3, 2)
    torch.save({"w": model.weight, **model.state_dict(), "half": torch.ones(3).half()}, path)
    with zipfile.ZipFile(path) as file:
        parts = {name.partition("/")[2]: file.read(name) for name in file.namelist()}
    original, random_ = parts.pop("data.pkl"), random.Random(part)
    accepted = 0
    for _ in range(400):
        content = bytearray(original)
        for _ in range(random_.choice((1, 1, 2, 5))):
            place = random_.randrange(2, len(content))
            content[place] = random_.choice((random_.randrange(256), content[random_.randrange(len(content))]))
        write(path, bytes(content), more=parts)
        try:
            open_state_dict(str(path), str(path))
        except ValueError as error:
            assert "\n" not in str(error) and str(error).startswith(str(path))
        else:
            accepted += 1
            assert_as_in_pytorch(path)
    assert accepted > 20

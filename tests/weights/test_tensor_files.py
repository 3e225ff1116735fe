"""Safetensors files are written tensor by tensor with the bytes of the library's writer; what is no file of tensors."""

import json
import subprocess
import sys

import numpy as np
import pytest
from helpers.paths import ROOT
from safetensors.numpy import save_file

from bert_tf.weights.tensor_files import Weights, open_safetensors, open_tensors, write_safetensors

METADATA = {"format": "pt"}


def random_tensors():
    generator = np.random.default_rng(0)
    shapes = {"b": (3,), "a/kernel": (2000, 1500), "c": (), "ü": (2, 0), "d": (1, 2, 3)}
    tensors = {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return {**tensors, "global_step": np.array(7, np.int64)}


def parts_of(path):
    """The tensors' bytes, and the header, in which the library has metadata in any order."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    assert start % 8 == 0
    return content[start:], json.loads(content[8:start])


def test_the_bytes_are_the_librarys(tmp_path):
    tensors = random_tensors()
    shapes = {name: value.shape for name, value in tensors.items()}
    read = []

    def reader(name):
        read.append(name)
        return tensors[name]

    write_safetensors(str(tmp_path / "ours"), Weights("m", "tf1", shapes, dict.fromkeys(shapes, ""), reader), METADATA)
    assert sorted(read) == sorted(tensors)  # each once
    write_safetensors(str(tmp_path / "again"), tensors, METADATA)
    assert (tmp_path / "again").read_bytes() == (tmp_path / "ours").read_bytes()
    save_file(tensors, str(tmp_path / "theirs"), metadata=METADATA)
    (ours, ours_header), (theirs, theirs_header) = map(parts_of, (tmp_path / "ours", tmp_path / "theirs"))
    assert len(ours_header["__metadata__"].pop("crc32c")) == 8 * (1 + len(tensors))
    assert ours == theirs and ours_header == theirs_header


@pytest.mark.parametrize(("old", "new", "damaged"), [
    (None, bytes(4), "a/kernel"),
    (b'"alpha":"16"', b'"alpha":"14"', "its header"),
    (b'"d":{', b'"e":{', "its header"),
])  # fmt: skip
def test_damage_is_found_where_it_is_read(tmp_path, old, new, damaged):
    path, tensors = tmp_path / "ours", random_tensors()
    write_safetensors(str(path), tensors, METADATA | {"alpha": "16"})
    content = path.read_bytes()
    path.write_bytes(content.replace(old or tensors["a/kernel"][1, :1].tobytes(), new, 1))
    with pytest.raises(ValueError, match=f"ours is damaged: {damaged} does not match its checksum. Copy it again; or"):
        open_safetensors(str(path))[2]("a/kernel")
    if not old:  # opening reads no tensor, and others are whole
        np.testing.assert_array_equal(open_safetensors(str(path))[2]("b"), tensors["b"])


def crafted(path, header: dict, content: bytes) -> str:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content)
    return str(path)


def test_types_of_other_programs(tmp_path):
    entry = {"shape": [2], "data_offsets": [0, 4]}
    half = crafted(tmp_path / "half", {"a": {"dtype": "BF16", **entry}}, b"\x80\x3f\x20\xc0")
    code = (
        "import sys; from bert_tf.weights.tensor_files import open_safetensors as o; "
        f"shapes, metadata, read = o({half!r}); print(read('a'), metadata, 'tensorflow' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stdout == "[ 1.  -2.5] {'half_precision': 'true'} False\n"
    eight = crafted(tmp_path / "eight", {"a": {"dtype": "F8_E4M3", **entry, "data_offsets": [0, 2]}}, bytes(2))
    with pytest.raises(ValueError, match=r"eight has tensors of types that are not read here: F8_E4M3\.$"):
        open_safetensors(eight)
    nested = crafted(tmp_path / "nested", {"__metadata__": {"format": {"a": 1}}, "a": {"dtype": "F32", **entry}}, b"")
    with pytest.raises(ValueError, match=r"nested is not a complete safetensors file"):
        open_safetensors(nested)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "tf_model.h5"])
def test_pointers_of_git_lfs_and_other_texts(tmp_path, name):
    path = tmp_path / name
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:" + 64 * "0" + "\nsize 12345\n")
    with pytest.raises(ValueError, match=f"{name} is a pointer of Git LFS, .*: git lfs pull"):
        open_tensors(str(path))
    path.write_text("Not Found")
    with pytest.raises(ValueError, match=f"{name} is not a"):
        open_tensors(str(path))

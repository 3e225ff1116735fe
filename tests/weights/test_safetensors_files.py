"""Safetensors files are written tensor by tensor with the bytes of the library's writer."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from bert_tf.weights.mapping import Weights, blocks, renamed
from bert_tf.weights.safetensors_files import open_safetensors, write_safetensors

METADATA = {"format": "pt"}


def random_tensors():
    generator = np.random.default_rng(0)
    shapes = {"b": (3,), "a/kernel": (2000, 1500), "c": (), "ü": (2, 0), "d": (1, 2, 3)}
    tensors = {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return {**tensors, "global_step": np.array(7, np.int64)}


def test_the_bytes_are_the_librarys(tmp_path):
    tensors = random_tensors()
    save_file(tensors, str(tmp_path / "theirs"), metadata=METADATA)
    shapes = {name: value.shape for name, value in tensors.items()}
    read = []

    def reader(name):
        read.append(name)
        return tensors[name]

    write_safetensors(str(tmp_path / "ours"), Weights("m", "tf1", shapes, dict.fromkeys(shapes, ""), reader), METADATA)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert sorted(read) == sorted(tensors)  # each once
    write_safetensors(str(tmp_path / "again"), tensors, METADATA)
    assert (tmp_path / "again").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_a_transposed_matrix(tmp_path):
    tensors = random_tensors()
    weights = Weights("m", "tf1", {"a": (2000, 1500)}, {"a": "a"}, lambda name: tensors["a/kernel"])
    write_safetensors(str(tmp_path / "file"), renamed(weights, {"t": "a"}, {}, ["t"]), METADATA)
    shapes, metadata, read = open_safetensors(str(tmp_path / "file"))
    assert shapes == {"t": (1500, 2000)} and metadata == METADATA
    np.testing.assert_array_equal(read("t"), tensors["a/kernel"].T)


def test_another_type_leaves_no_file(tmp_path):
    with pytest.raises(ValueError, match="b is of type float64, where float32 is expected"):
        write_safetensors(str(tmp_path / "file"), {"a": np.zeros(2, np.float32), "b": np.zeros(2)}, METADATA)
    assert not list(tmp_path.iterdir())


def test_blocks_are_the_tensor():
    tensor = np.arange(6_000_000, dtype=np.float32).reshape(3_000_000, 2)
    parts = list(blocks(tensor))
    assert len(parts) > 1 and max(part.nbytes for part in parts) <= 1 << 23
    np.testing.assert_array_equal(np.concatenate(parts), tensor)
    assert [part.tobytes() for part in blocks(np.array(3.0))] == [np.array(3.0).tobytes()]
    assert list(blocks(np.zeros((0, 2)))) == []

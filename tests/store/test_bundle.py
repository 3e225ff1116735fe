"""Checkpoint files of TensorFlow: one data file, or several where the largest tensors are a good part of the whole."""

import json
import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.basics import GOLDEN
from safetensors.numpy import save_file

from bert_tf.store import bundle
from bert_tf.store.tensor_files import Weights, open_safetensors, open_tensors, write_safetensors
from bert_tf.system.text_files import list_folder

LFS_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + 64 * "0" + "\nsize 12345\n"
SHAPES = {"bert/table": (64, 16), "bert/kernel": (32, 32), "bert/bias": (32,), "bert/scale": (4, 8)}


def weights_of(shapes: dict) -> Weights:
    generator = np.random.default_rng(0)
    values = {name: generator.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    return Weights("here", "tf1", shapes, dict.fromkeys(shapes, ""), values.get)


def test_shards(tmp_path, monkeypatch):
    many = {f"layer_{number}": (8, 8) for number in range(20)}  # no tensor is large
    for number, (least_bytes, shapes, files) in enumerate([(1, SHAPES, 3), (1 << 28, SHAPES, 1), (1, many, 1)]):
        monkeypatch.setattr(bundle, "_SHARDED_FROM_BYTES", least_bytes)
        weights, folder = weights_of(shapes), tmp_path / str(number)
        folder.mkdir()
        prefix = str(folder / "model.ckpt")
        bundle.write_bundle(prefix, weights)
        data = [f"model.ckpt.data-{number:05d}-of-{files:05d}" for number in range(files)]
        assert sorted(os.listdir(folder)) == [*data, "model.ckpt.index"]
        reader = tf.train.load_checkpoint(prefix)
        assert reader.get_variable_to_shape_map() == {name: list(shape) for name, shape in shapes.items()}
        for name in shapes:
            np.testing.assert_array_equal(reader.get_tensor(name), weights[name])
        sizes = [os.path.getsize(folder / name) for name in data]
        assert files == 1 or max(sizes) == 4 * 64 * 16


def test_checkpoints_are_read_as_by_tensorflow(tmp_path):
    """Those of the original, one of a partitioned variable, and one of other types."""
    values = [tf.constant([[1.5, -2.25]], tf.float16), tf.constant(b"a\0" * 200), tf.zeros((0, 3)), tf.constant([True])]
    tf.raw_ops.SaveV2(prefix=str(tmp_path / "a"), tensor_names=[*"0123"], shape_and_slices=[""] * 4, tensors=values)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.set_random_seed(1)  # a run with --deterministic, earlier in this process, makes it required
        tf.compat.v1.get_variable("parts", (9, 4), partitioner=tf.compat.v1.fixed_size_partitioner(3))
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, str(tmp_path / "x"))
    paths = (*GOLDEN.rglob("*.index"), *sorted(tmp_path.glob("*.index")))
    prefixes = [str(path).removesuffix(".index") for path in paths]
    assert len(prefixes) > 10
    for prefix in prefixes:
        ours, theirs = bundle.CheckpointReader(prefix), tf.train.load_checkpoint(prefix)
        found = ours.get_variable_to_shape_map()
        assert found == theirs.get_variable_to_shape_map(), prefix
        for name in found:
            np.testing.assert_equal(ours.get_tensor(name), theirs.get_tensor(name), err_msg=f"{prefix}: {name}")
            assert getattr(ours.get_tensor(name), "dtype", None) == getattr(theirs.get_tensor(name), "dtype", None)
    assert found == {"parts": [9, 4]}


def test_bfloat16_and_the_step_of_the_original(tmp_path):
    """bfloat16 is widened, as TensorFlow does; the step is written as int64, as the original reads it."""
    prefix, values = str(tmp_path / "model.ckpt"), np.float32([1, -2.5, 3e38, 0.1])
    half = tf.cast(values, tf.bfloat16)
    tf.raw_ops.SaveV2(prefix=prefix, tensor_names=["half"], shape_and_slices=[""], tensors=[half])
    found = bundle.CheckpointReader(prefix).get_tensor("half")
    assert found.dtype == np.float32 and found.tolist() == tf.cast(half, tf.float32).numpy().tolist()
    bundle.write_bundle(prefix, {"global_step": keras.Variable(7, dtype="int32", name="step")})
    step = tf.train.load_checkpoint(prefix).get_tensor("global_step")
    assert step == 7 and step.dtype == np.int64


def test_a_copied_folder_has_its_own_checkpoint(tmp_path, caplog):
    """Its state file may hold an absolute path of the place that it comes from, where there may be others by now."""
    old, new, inner = (str(tmp_path / name / "model.ckpt-10") for name in ("old", "new", "new/inner"))
    for prefix in (old, new, inner):
        bundle.write_bundle(prefix, weights_of({"a": (2,)}))
    named = dict.fromkeys((old, r"C:\\runs\\model.ckpt-10", "gs://none/model.ckpt-10", new), new)
    for name, expected in {**named, "inner/model.ckpt-10": inner}.items():
        (tmp_path / "new/checkpoint").write_text(f'model_checkpoint_path: "{name}"')
        assert bundle.find_bundle(str(tmp_path / "new"), list_folder(str(tmp_path / "new")), "x") == expected
        assert bundle.checkpoint_state(str(tmp_path / "new")) == (expected, [expected])
    assert caplog.text.count(f"names {old}; {new} next to it is used") == 1 and len(caplog.records) == 3
    (tmp_path / "new/model.ckpt-10.index").unlink()
    (tmp_path / "new/checkpoint").write_text(f'model_checkpoint_path: "{old}"')
    assert bundle.latest_checkpoint(str(tmp_path / "new")) == old


CHECKPOINT = ["model.ckpt.index", "model.ckpt.data-00000-of-00001"]


@pytest.mark.parametrize("name", [*CHECKPOINT, "model.safetensors", "pytorch_model.bin", "tf_model.h5"])
def test_pointers_of_git_lfs_and_other_texts(tmp_path, name):
    """A run would put a damaged checkpoint aside."""
    path, prefix = tmp_path / name, str(tmp_path / "model.ckpt")
    bundle.write_bundle(prefix, weights_of({"a": (64,)}))
    path.write_text(LFS_POINTER)
    with pytest.raises(ValueError, match=f"{name} is a pointer of Git LFS, .*: git lfs pull") as error:
        bundle.CheckpointReader(prefix) if name in CHECKPOINT else open_tensors(str(path))
    assert not isinstance(error.value, bundle.DamagedError)
    if name not in CHECKPOINT:
        path.write_text("Not Found")
        with pytest.raises(ValueError, match=f"{name} is not a"):
            open_tensors(str(path))


METADATA = {"format": "pt"}


def parts_of(path):
    """The tensors' bytes, and the header, in which the library has metadata in any order."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    assert start % 8 == 0
    return content[start:], json.loads(content[8:start])


def random_tensors():
    generator = np.random.default_rng(0)
    shapes = {"b": (3,), "a/kernel": (2000, 1500), "c": (), "ü": (2, 0), "d": (1, 2, 3)}
    tensors = {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return {**tensors, "global_step": np.array(7, np.int64)}


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
    _, metadata, read = open_safetensors(half)
    assert read("a").dtype == np.float32 and read("a").tolist() == [1, -2.5] and metadata == {"half_precision": "true"}
    eight = crafted(tmp_path / "eight", {"a": {"dtype": "F8_E4M3", **entry, "data_offsets": [0, 2]}}, bytes(2))
    with pytest.raises(ValueError, match=r"eight has tensors of types that are not read here: F8_E4M3\.$"):
        open_safetensors(eight)
    nested = crafted(tmp_path / "nested", {"__metadata__": {"format": {"a": 1}}, "a": {"dtype": "F32", **entry}}, b"")
    with pytest.raises(ValueError, match=r"nested is not a complete safetensors file"):
        open_safetensors(nested)

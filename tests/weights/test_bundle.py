"""Checkpoint files of TensorFlow: one data file, or several where the largest tensors are a good part of the whole."""

import os

import numpy as np
import pytest
import tensorflow as tf
from helpers.paths import GOLDEN

from bert_tf.weights import bundle
from bert_tf.weights.mapping import Weights

SHAPES = {"bert/table": (64, 16), "bert/kernel": (32, 32), "bert/bias": (32,), "bert/scale": (4, 8)}


def weights_of(shapes: dict) -> Weights:
    generator = np.random.default_rng(0)
    values = {name: generator.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    return Weights("here", "tf1", shapes, dict.fromkeys(shapes, ""), values.get)


@pytest.mark.parametrize(
    ("least_bytes", "shapes", "files"),
    [
        (1, SHAPES, 3),
        (1 << 28, SHAPES, 1),
        (1, {f"layer_{number}": (8, 8) for number in range(20)}, 1),  # no tensor is large
    ],
    ids=["large tensors", "a small model", "many tensors"],
)
def test_shards(least_bytes, shapes, files, tmp_path, monkeypatch):
    monkeypatch.setattr(bundle, "_SHARDED_FROM_BYTES", least_bytes)
    weights = weights_of(shapes)
    prefix = str(tmp_path / "model.ckpt")
    bundle.write_bundle(prefix, weights)
    data = [f"model.ckpt.data-{number:05d}-of-{files:05d}" for number in range(files)]
    assert sorted(os.listdir(tmp_path)) == [*data, "model.ckpt.index"]
    reader = tf.train.load_checkpoint(prefix)
    assert bundle.open_bundle(prefix).get_variable_to_shape_map() == reader.get_variable_to_shape_map()
    assert reader.get_variable_to_shape_map() == {name: list(shape) for name, shape in shapes.items()}
    for name in shapes:
        np.testing.assert_array_equal(reader.get_tensor(name), weights[name])
    sizes = [os.path.getsize(tmp_path / name) for name in data]
    assert files == 1 or max(sizes) == 4 * 64 * 16


def test_an_index_is_read_as_by_tensorflow(tmp_path):
    """Those of the original, and one of a partitioned variable."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.get_variable("parts", (9, 4), partitioner=tf.compat.v1.fixed_size_partitioner(3))
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, str(tmp_path / "x"))
    prefixes = [str(path).removesuffix(".index") for path in (*GOLDEN.rglob("*.index"), *tmp_path.glob("*.index"))]
    assert len(prefixes) > 10
    for prefix in prefixes:
        found = bundle.open_bundle(prefix).get_variable_to_shape_map()
        assert found == tf.train.load_checkpoint(prefix).get_variable_to_shape_map(), prefix
    assert found == {"parts": [9, 4]}


def test_savers_of_tf1_restore_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(bundle, "_SHARDED_FROM_BYTES", 1)
    weights = weights_of(SHAPES)
    bundle.write_bundle(str(tmp_path / "model.ckpt"), weights)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name, shape in SHAPES.items():
            tf.compat.v1.get_variable(name, shape)
        variables = tf.compat.v1.global_variables()
        tf.compat.v1.train.Saver(variables).restore(session, str(tmp_path / "model.ckpt"))
        for variable, value in zip(variables, session.run(variables), strict=True):
            np.testing.assert_array_equal(value, weights[variable.op.name])

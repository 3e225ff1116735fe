"""ONNX files whose tensors are in other files are refused, wherever these tensors are."""

import json

import numpy as np
import pytest

from bert_tf.serving.loaded_export import OnnxModel

onnx = pytest.importorskip("onnx", reason="needs the extra `onnx`")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra `onnx`")
helper = onnx.helper

SECRET = np.array([1234.0], np.float32)
HERE = onnx.numpy_helper.from_array(SECRET, "elsewhere")


def outside(name="elsewhere", location="secret", but=None):
    """A tensor that is in another file of the working directory; but: a field of what says so, which it lacks."""
    tensor = onnx.TensorProto(name=name, data_type=onnx.TensorProto.FLOAT, dims=[1])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    if but:
        tensor.ClearField(but)
    return tensor


def model(*initializers, nodes=()) -> bytes:
    """A model that gives its input `input_ids`, as a number, plus what `nodes` compute as `more`."""
    entered = helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT32, [1, 1])
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["number"], to=onnx.TensorProto.FLOAT),
        *(nodes or [helper.make_node("Identity", ["elsewhere"], ["more"])]),
        helper.make_node("Add", ["number", "more"], ["logits"]),
    ]
    result = helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "graph", [entered], [result], initializer=initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()


def constant(value, result="more"):
    return [helper.make_node("Constant", [], [result], value=value)]


def condition(then):
    """Nodes of a branch."""
    outputs = [helper.make_tensor_value_info("more", onnx.TensorProto.FLOAT, [1])]
    then, other = (helper.make_graph(nodes, "branch", [], outputs) for nodes in (then, constant(HERE)))
    yes = onnx.numpy_helper.from_array(np.array(True), "yes")
    return [*constant(yes, "yes"), helper.make_node("If", ["yes"], ["more"], then_branch=then, else_branch=other)]


# The walk through a file is the same for all its parts: single and repeated ones, in each other.
FILES = {
    "initialiser that nothing uses": model(HERE, outside("unused")),
    "place without a kind": model(outside(but="data_location")),
    "kind without a place": model(outside(but="external_data")),
    "memory of the process": model(outside(location="*/_ORT_MEM_ADDR_/*")),
    "branch of a branch": model(nodes=condition(condition(constant(outside())))),
}


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """Opens a model, with the secret in the working directory."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "secret").write_bytes(SECRET.tobytes())
    (tmp_path / "export.json").write_text(json.dumps({"task": "classification", "labels": []}))
    monkeypatch.chdir(tmp_path / "work")

    def open_model(content: bytes) -> OnnxModel:
        (tmp_path / "model.onnx").write_bytes(content)
        return OnnxModel(str(tmp_path))

    return open_model


def test_a_tensor_that_is_elsewhere(opened):
    for content in FILES.values():
        with pytest.raises(ValueError, match=r"model.onnx has a tensor that is not in it \((elsewhere|unused)\): exp"):
            opened(content)
    for content in (model(HERE), model(nodes=condition(constant(HERE)))):
        assert opened(content).run({"input_ids": np.array([[1]])})["logits"].tolist() == [[1235.0]]


def test_a_damaged_file_is_named(opened):
    for content in (b"", model(HERE)[:-9]):
        with pytest.raises(ValueError, match=r"^\S+/model.onnx can't be read: is it damaged\? "):
            opened(content)


def test_another_format(opened, tmp_path):
    """ONNX Runtime's own format, recognised by its first bytes, may name other files as well."""
    (tmp_path / "plain.onnx").write_bytes(model(HERE))
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "model.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(str(tmp_path / "plain.onnx"), options)
    content = (tmp_path / "model.ort").read_bytes()
    assert content[4:8] == b"ORTM"
    with pytest.raises(ValueError, match="model.onnx can't be read: .* Error parsing message"):
        opened(content)

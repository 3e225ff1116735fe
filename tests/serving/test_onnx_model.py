"""ONNX files whose tensors are in other files are refused, wherever these tensors are."""

import json

import numpy as np
import pytest

from bert_tf.serving.loaded_export import OnnxModel

onnx = pytest.importorskip("onnx", reason="needs the extra `onnx`")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra `onnx`")
helper = onnx.helper

SECRET = np.array([1234.0], np.float32)


def outside(name="elsewhere", location="secret"):
    """A tensor that is in another file of the working directory."""
    tensor = onnx.TensorProto(name=name, data_type=onnx.TensorProto.FLOAT, dims=[1])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return tensor


def inside(name="here"):
    return onnx.numpy_helper.from_array(SECRET, name)


def output(name):
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1])


def model(nodes=(), initializers=()):
    """A model that gives its input `input_ids`, as a number, plus what `nodes` compute as `more`."""
    entered = helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT32, [1, 1])
    nodes = nodes or [helper.make_node("Identity", ["elsewhere"], ["more"])]
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["number"], to=onnx.TensorProto.FLOAT),
        *nodes,
        helper.make_node("Add", ["number", "more"], ["logits"]),
    ]
    result = helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "graph", [entered], [result], initializer=list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def constant(value, result="more"):
    return helper.make_node("Constant", [], [result], value=value)


def branch(*nodes):
    return helper.make_graph(list(nodes), "branch", [], [output("more")])


def condition(then):
    yes = onnx.numpy_helper.from_array(np.array(True), "yes")
    branches = {"then_branch": then, "else_branch": branch(constant(inside()))}
    return [constant(yes, "yes"), helper.make_node("If", ["yes"], ["more"], **branches)]


def without(field):
    """A tensor elsewhere by one half of what says so."""
    tensor = outside()
    tensor.ClearField(field)
    return tensor


# The walk through a file is the same for all its parts: single and repeated ones, in each other.
FILES = {
    "initialiser that nothing uses": lambda: model(initializers=[inside("elsewhere"), outside("unused")]),
    "place without a kind": lambda: model(initializers=[without("data_location")]),
    "kind without a place": lambda: model(initializers=[without("external_data")]),
    "memory of the process": lambda: model(initializers=[outside(location="*/_ORT_MEM_ADDR_/*")]),
    "branch of a branch": lambda: model(condition(branch(*condition(branch(constant(outside())))))),
}


DESCRIPTION = {"task": "classification", "labels": [], "max_seq_length": 8, "signatures": {}}


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """Opens a model, with the secret in the working directory."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "secret").write_bytes(SECRET.tobytes())
    monkeypatch.chdir(tmp_path / "work")

    def open_model(content: bytes) -> OnnxModel:
        (tmp_path / "export.json").write_text(json.dumps(DESCRIPTION))
        (tmp_path / "model.onnx").write_bytes(content)
        return OnnxModel(str(tmp_path))

    return open_model


@pytest.mark.parametrize("case", FILES)
def test_a_tensor_that_is_elsewhere(case, opened):
    message = r"model.onnx has a tensor that is not in it \((elsewhere|unused)\): exports are complete"
    with pytest.raises(ValueError, match=message):
        opened(FILES[case]().SerializeToString())


def test_what_is_in_the_file_is_computed(opened):
    for file in (model(initializers=[inside("elsewhere")]), model(condition(branch(constant(inside()))))):
        found = opened(file.SerializeToString()).run({"input_ids": np.array([[1]])})
        assert found["logits"].tolist() == [[1235.0]]


def test_another_format_or_none(opened, tmp_path):
    """ONNX Runtime's own format, recognised by its first bytes, may name other files as well."""
    (tmp_path / "plain.onnx").write_bytes(model(initializers=[inside("elsewhere")]).SerializeToString())
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "model.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(str(tmp_path / "plain.onnx"), options)
    content = (tmp_path / "model.ort").read_bytes()
    assert content[4:8] == b"ORTM"
    with pytest.raises(Exception, match="Error parsing message|INVALID_PROTOBUF|Load model"):
        opened(content)

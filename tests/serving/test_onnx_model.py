"""ONNX files whose tensors are in other files are refused, wherever these tensors are."""

import json

import numpy as np
import pytest

from bert_tf.serving.onnx_model import OnnxModel

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


def sparse(values, indices=None):
    indices = indices or onnx.numpy_helper.from_array(np.array([0], np.int64), f"{values.name}_indices")
    return helper.make_sparse_tensor(values, indices, [1])


def output(name):
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1])


def model(nodes=(), initializers=(), **parts):
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
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, **parts)


def constant(**attributes):
    return helper.make_node("Constant", [], ["more"], **attributes)


def branch(*nodes, initializers=()):
    return helper.make_graph(list(nodes), "branch", [], [output("more")], initializer=list(initializers))


def condition(then):
    yes = onnx.numpy_helper.from_array(np.array(True), "yes")
    branches = {"then_branch": then, "else_branch": branch(constant(value=inside()))}
    return model([constant_as(yes), helper.make_node("If", ["yes"], ["more"], **branches)])


def constant_as(tensor):
    return helper.make_node("Constant", [], [tensor.name], value=tensor)


def function(*nodes, attributes=()):
    return helper.make_function(
        "local", "Local", [], ["more"], list(nodes), [helper.make_opsetid("", 18)], attribute_protos=list(attributes)
    )


LOCAL = helper.make_node("Local", [], ["more"], domain="local")


def with_sparse_initializer(values, indices=None):
    made = model()
    made.graph.sparse_initializer.append(sparse(values, indices))
    return made


def with_training(part):
    made = model(initializers=[inside("elsewhere")])
    getattr(made.training_info.add(), part).initializer.append(outside())
    return made


def only_data():
    """Where the data is without saying that it is there."""
    tensor = inside("elsewhere")
    tensor.external_data.add(key="location", value="secret")
    return tensor


FILES = {
    "initialiser": lambda: model(initializers=[outside()]),
    "initialiser that nothing uses": lambda: model(initializers=[inside("elsewhere"), outside("unused")]),
    "place without a kind": lambda: model(initializers=[only_data()]),
    "memory of the process": lambda: model(initializers=[outside(location="*/_ORT_MEM_ADDR_/*")]),
    "sparse initialiser": lambda: with_sparse_initializer(outside()),
    "indices of a sparse initialiser": lambda: with_sparse_initializer(inside("elsewhere"), outside("indices")),
    "constant": lambda: model([constant(value=outside())]),
    "sparse constant": lambda: model([constant(sparse_value=sparse(outside()))]),
    "list of tensors": lambda: model([constant(value=inside(), other=[outside()])]),
    "list of sparse tensors": lambda: model([constant(value=inside(), other=[sparse(outside())])]),
    "branch": lambda: condition(branch(constant(value=outside()))),
    "initialiser of a branch": lambda: condition(
        branch(helper.make_node("Identity", ["elsewhere"], ["more"]), initializers=[outside()])
    ),
    "branch of a list of graphs": lambda: model([constant(value=inside(), other=[branch(constant(value=outside()))])]),
    "branch of a branch": lambda: condition(branch(*condition(branch(constant(value=outside()))).graph.node[1:3])),
    "function": lambda: model([LOCAL], functions=[function(constant(value=outside()))]),
    "attribute of a function": lambda: model(
        [LOCAL], functions=[function(constant(value=inside()), attributes=[helper.make_attribute("a", outside())])]
    ),
    "initialization": lambda: with_training("initialization"),
    "algorithm": lambda: with_training("algorithm"),
}


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """Opens a model, with the secret in the working directory."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "secret").write_bytes(SECRET.tobytes())
    monkeypatch.chdir(tmp_path / "work")

    def open_model(content: bytes) -> OnnxModel:
        (tmp_path / "export.json").write_text(json.dumps({"task": "classification"}))
        (tmp_path / "model.onnx").write_bytes(content)
        return OnnxModel(str(tmp_path))

    return open_model


@pytest.mark.parametrize("case", FILES)
def test_a_tensor_that_is_elsewhere(case, opened):
    message = r"model.onnx has a tensor that is not in it \((elsewhere|unused|indices)\): exports are complete"
    with pytest.raises(ValueError, match=message):
        opened(FILES[case]().SerializeToString())


def test_what_is_in_the_file_is_computed(opened):
    files = [
        model(initializers=[inside("elsewhere")]),
        model([constant(value=inside())]),
        condition(branch(constant(value=inside()))),
        model([LOCAL], functions=[function(constant(value=inside()))]),
    ]
    for file in files:
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
    for damaged in (content, b"\xff" * 9, b"\x00\x00\x00\x00ORTM"):
        with pytest.raises(ValueError, match=r"model.onnx (is damaged: it is not an ONNX file|can't be loaded)"):
            opened(damaged)

"""ONNX files whose tensors are in other files are refused, wherever these tensors are."""

import json
import random

import numpy as np
import pytest

from bert_tf.serving.loaded_export import OnnxModel, _parts_of

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


def sparse(values):
    indices = onnx.numpy_helper.from_array(np.array([0], np.int64), f"{values.name}_indices")
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


def branch(*nodes):
    return helper.make_graph(list(nodes), "branch", [], [output("more")])


def condition(then):
    yes = onnx.numpy_helper.from_array(np.array(True), "yes")
    branches = {"then_branch": then, "else_branch": branch(constant(value=inside()))}
    return model([constant_as(yes), helper.make_node("If", ["yes"], ["more"], **branches)])


def constant_as(tensor):
    return helper.make_node("Constant", [], [tensor.name], value=tensor)


def function(*nodes):
    return helper.make_function("local", "Local", [], ["more"], list(nodes), [helper.make_opsetid("", 18)])


LOCAL = helper.make_node("Local", [], ["more"], domain="local")


def with_training():
    made = model(initializers=[inside("elsewhere")])
    made.training_info.add().algorithm.initializer.append(outside())
    return made


def only(field):
    """What says that the data is elsewhere, without the other half of it."""
    tensor = outside()
    tensor.ClearField({"external_data": "data_location", "data_location": "external_data"}[field])
    return tensor


# The walk through a file is the same for all its parts: single and repeated ones, in each other.
FILES = {
    "initialiser that nothing uses": lambda: model(initializers=[inside("elsewhere"), outside("unused")]),
    "place without a kind": lambda: model(initializers=[only("external_data")]),
    "kind without a place": lambda: model(initializers=[only("data_location")]),
    "memory of the process": lambda: model(initializers=[outside(location="*/_ORT_MEM_ADDR_/*")]),
    "sparse constant": lambda: model([constant(sparse_value=sparse(outside()))]),
    "branch of a branch": lambda: condition(branch(*condition(branch(constant(value=outside()))).graph.node[1:3])),
    "branch of a list of graphs": lambda: model([constant(value=inside(), other=[branch(constant(value=outside()))])]),
    "function": lambda: model([LOCAL], functions=[function(constant(value=outside()))]),
    "training": with_training,
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
    files = [
        model(initializers=[inside("elsewhere")]),
        model([constant(value=inside())]),
        condition(branch(constant(value=inside()))),
        model([LOCAL], functions=[function(constant(value=inside()))]),
    ]
    for file in files:
        found = opened(file.SerializeToString()).run({"input_ids": np.array([[1]])})
        assert found["logits"].tolist() == [[1235.0]]


PLACES = ("secret", "./secret", "../other/secret", "/proc/self/environ", "*/_ORT_MEM_ADDR_/*", "", "\x1b[2J")
ADDED = {
    "TensorProto": lambda part, tensor: part.CopyFrom(tensor),
    "SparseTensorProto": lambda part, tensor: part.values.CopyFrom(tensor),
    "AttributeProto": lambda part, tensor: part.tensors.append(tensor),
    "NodeProto": lambda part, tensor: part.attribute.add(name="added", t=tensor),
    "GraphProto": lambda part, tensor: part.initializer.append(tensor),
    "FunctionProto": lambda part, tensor: part.attribute_proto.add(name="added", sparse_tensor=sparse(tensor)),
    "ModelProto": lambda part, tensor: part.training_info.add().initialization.initializer.append(tensor),
}


def test_crafted_files_are_refused_or_read_no_other_file(opened):
    """Sixty by chance: a tensor elsewhere is added at any place, or bytes change."""
    chance, read = random.Random(3), []
    five = onnx.numpy_helper.from_array(np.array([5.0], np.float32), "elsewhere")
    bases = [
        model(initializers=[five]), model([constant(value=five)]), condition(branch(constant(value=five))),
        model([constant(sparse_value=sparse(five))]), model([LOCAL], functions=[function(constant(value=five))]),
    ]  # fmt: skip
    for number in range(60):
        file = onnx.ModelProto.FromString(chance.choice(bases).SerializeToString())
        if number % 3:
            part = chance.choice([part for part in _parts_of(file) if type(part).__name__ in ADDED])
            ADDED[type(part).__name__](part, outside(location=chance.choice(PLACES)))
            with pytest.raises(ValueError, match=r"^[^\n]*model.onnx has a tensor that is not in it"):
                opened(file.SerializeToString())
            continue
        content = bytearray(file.SerializeToString())
        for place in chance.sample(range(len(content)), 2):
            content[place] ^= 1 << chance.randrange(8)
        try:
            read.append(opened(bytes(content)).run({"input_ids": np.array([[1]])})["logits"])
        except (ValueError, KeyError):
            continue  # refused, or another model
        except Exception as error:  # those of ONNX Runtime have no common class
            assert type(error).__module__.startswith("onnxruntime"), error
    assert not any(np.isin(SECRET + np.arange(7), found).any() for found in read)


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

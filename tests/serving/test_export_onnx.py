"""ONNX exports answer like the models they are made of, in ONNX Runtime alone and opened by the predictors; files whose
tensors are in other files are not opened, wherever these tensors are."""

import os
import pathlib
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import tensorflow as tf
from helpers import warm
from helpers.descendants import save_model
from helpers.paths import ROOT

from bert_tf.models import task_models
from bert_tf.serving import export, onnx_export
from bert_tf.serving.onnx_runtime import open_file
from bert_tf.serving.predictor import Predictor
from bert_tf.serving.question_answerer import QuestionAnswerer
from bert_tf.store.open import find_export, read_tokenizer
from bert_tf.system.text_files import list_folder, read_json

helper = onnx.helper
TEXTS = ["A short text.", "", "naïve café 日本 김철수 (2019, it's 9,000)…", "many words " * 60]
LABELS = ["bad", "fair", "좋다"]


def probabilities(rows: list[dict]) -> list[list[float]]:
    return [list(row["probabilities"].values()) for row in rows]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classifier")
    return save_model(folder, "bert", task_models.BertForSequenceClassification, labels=LABELS)


@pytest.fixture(scope="module")
def exported(classifier, tmp_path_factory):
    """The directory of versions, and its first version."""
    versions = str(tmp_path_factory.mktemp("onnx"))
    return versions, onnx_export.export_onnx(classifier, versions)


# ---- what is written -------------------------------------------------------------------------------------------------


def test_the_files_of_a_version(classifier, exported):
    versions, path = exported
    assert path == f"{versions}/1"
    configuration = {"bert_config.json", "export.json", "head_config.json", "tokenizer_config.json"}
    assert {*os.listdir(path)} == {*configuration, "labels.txt", "model.onnx", "vocab.txt"}
    description = read_json(f"{path}/export.json")
    assert (description["task"], description["labels"], description["opset"]) == ("classification", LABELS, 20)
    model = onnx.load(f"{path}/model.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 20)]
    axes = {entry.name: [size.dim_param for size in entry.type.tensor_type.shape.dim] for entry in model.graph.input}
    assert axes == {name: ["batch", "length"] for name in ("input_ids", "input_mask", "segment_ids")}
    kinds = [node.op_type for node in model.graph.node]
    assert set(kinds) == set(description["ops"])
    # 2 layers with 2 norms and a GELU each, and the norm of the embeddings; nothing is left of the chains.
    assert (kinds.count("LayerNormalization"), kinds.count("Gelu")) == (5, 2)
    given = [(attribute.name, attribute.f) for node in model.graph.node for attribute in node.attribute]
    assert [value for name, value in given if name == "epsilon"] == [np.float32(1e-12)] * 5
    assert not {"Tanh", "Erf", "Reciprocal", "ReduceMean"} & set(kinds) - {"Tanh"}
    assert kinds.count("Tanh") == 1  # the pooler's


def test_onnx_runtime_alone_computes_what_serve_ids_does(classifier, exported):
    _, path = exported
    session = onnxruntime.InferenceSession(f"{path}/model.onnx")
    served = export.create_served_model(*export.open_for(classifier, "classification"), ids_only=True)
    tokenizer = read_tokenizer(classifier)
    for texts in (TEXTS, TEXTS[:1], TEXTS[:2] * 3):
        features = {name: np.asarray(value, np.int32) for name, value in tokenizer(texts, max_length=64).items()}
        expected = served.outputs({name: tf.constant(value) for name, value in features.items()})
        names = [entry.name for entry in session.get_outputs()]
        assert set(names) == {*expected, "logits"}
        found = dict(zip(names, session.run(None, features), strict=True))
        assert found["labels"].tolist() == [LABELS] * len(texts)
        assert found["label"].tolist() == [label.decode() for label in expected["label"].numpy()]
        for name in ("score", "probabilities"):
            np.testing.assert_allclose(found[name], expected[name], atol=1e-5)


@pytest.mark.slow
def test_eight_bits_and_what_they_cost(classifier, exported, tmp_path):
    _, path = exported
    predictor = Predictor(classifier)
    texts = [f"sentence number {number} of {number % 7} words" for number in range(20)]
    expected = probabilities(predictor.predict(texts))
    np.testing.assert_allclose(probabilities(Predictor(path).predict(texts)), expected, atol=1e-5)
    small = onnx_export.export_onnx(classifier, str(tmp_path / "int8"), int8=True)
    assert os.path.getsize(f"{small}/model_int8.onnx") < os.path.getsize(f"{path}/model.onnx") / 2.5
    assert "model.onnx" not in os.listdir(small)
    found = probabilities(Predictor(small).predict(texts))
    assert 1e-5 < np.abs(np.subtract(found, expected)).max() < 0.2
    assert read_json(f"{small}/export.json")["dtype"] == "int8"


def test_predictor_opens_it(classifier, exported):
    """From the directory of versions, or a version; single texts and pairs."""
    versions, path = exported
    assert find_export(list_folder(versions)).path == path
    mixed = [*TEXTS, *zip(TEXTS, reversed(TEXTS), strict=True)]
    expected = probabilities(Predictor(classifier).predict(mixed))
    for place in (versions, path):
        np.testing.assert_allclose(probabilities(Predictor(place).predict(mixed)), expected, atol=1e-5)
    with pytest.raises(ValueError, match="is an export for classification, not for squad"):
        QuestionAnswerer(versions)


def test_exports_of_a_model_have_the_same_bytes(classifier, exported, tmp_path):
    again = onnx_export.export_onnx(classifier, str(tmp_path))
    assert pathlib.Path(again, "model.onnx").read_bytes() == pathlib.Path(exported[1], "model.onnx").read_bytes()


@pytest.mark.slow  # in small: the tests above, and test_export.py
def test_the_script(classifier, tmp_path):
    script = [sys.executable, str(ROOT / "export_saved_model.py"), f"--model_dir={classifier}"]
    script += [f"--export_dir={tmp_path}/out", "--format=onnx"]
    result = warm.run([*script, "--version=3"], capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.splitlines()[0] == f"{tmp_path}/out/3"
    assert "opset 20" in result.stderr


# ---- tensors in other files ------------------------------------------------------------------------------------------

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
    monkeypatch.chdir(tmp_path / "work")

    def open_model(content: bytes):
        (tmp_path / "model.onnx").write_bytes(content)
        return open_file(str(tmp_path / "model.onnx"))

    return open_model


def test_a_tensor_that_is_elsewhere(opened):
    for content in FILES.values():
        with pytest.raises(ValueError, match=r"model.onnx has a tensor that is not in it \((elsewhere|unused)\);"):
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

"""ONNX Runtime computes predictors and exported files: equal to the Keras models, without TensorFlow in the process, in
threads, and alone."""

import concurrent.futures
import itertools
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import tensorflow as tf
from helpers.basics import exhaustive, slow
from helpers.exports import CLASSIFIER, KINDS, LABELS, TEXTS, check_answers, save_kind
from helpers.tiny import NAMES, save_model

import bert_tf
from bert_tf import Embedder, Predictor
from bert_tf.models import task_models
from bert_tf.serving import export, onnx_graph
from bert_tf.serving import predictor as predictor_module
from bert_tf.serving.onnx_export import export_onnx
from bert_tf.store.open import open_model, read_tokenizer
from bert_tf.store.tensor_files import open_safetensors, place_in_file, write_safetensors
from bert_tf.system.text_files import read_json


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("bert", "classes"), ("electra", "choices"), ("roberta", "answers"), ("albert", "tags"), ("bert", "attention"),
        ("distilbert", "max"), ("roberta", "mean"), *slow(("bert", "several labels"), ("bert", "a number")),
        *exhaustive(*itertools.product(NAMES, KINDS)),
    ],
)  # fmt: skip
def test_answers_are_those_of_tensorflow(tmp_path, family, kind):
    """From a model's folder, and from its export, in the directory of versions."""
    _, _, _, answerer, asked, _ = KINDS[kind]
    path = save_kind(tmp_path / "model", family, kind)
    export_onnx(path, str(tmp_path / "onnx"))
    expected = answerer(path, runtime="tensorflow", max_seq_length=48).predict(asked)
    for opened in (path, str(tmp_path / "onnx")):
        check_answers(answerer(opened, max_seq_length=48).predict(asked), expected)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """In folders of all formats, called like these."""
    folder = tmp_path_factory.mktemp("classifier")
    for format in ("huggingface", "tf1", "bert_tf"):
        path = save_model(folder / format, "bert", CLASSIFIER, format=format, labels=LABELS)
    return path


@pytest.fixture(scope="module")
def exported(classifier, tmp_path_factory):
    return export_onnx(classifier, str(tmp_path_factory.mktemp("onnx")))


# Reads (class, path, items) of JSON and prints what `predict` gives for each, and what was imported.
ANSWERS = """
import json, sys, bert_tf
for name, path, items in json.load(sys.stdin):
    items = [tuple(item) if isinstance(item, list) and name != "Tagger" else item for item in items]
    print(json.dumps(getattr(bert_tf, name)(path, max_seq_length=48).predict(items)))
print(bert_tf.Embedder(path)("A short text.").shape, {"tensorflow", "keras"} & {*sys.modules})
"""


def test_no_tensorflow_in_the_process(classifier, exported, tmp_path):
    """Any format that NumPy reads, an ONNX export, all tasks; for `make test-answers` nor is TensorFlow installed."""
    others = [str(pathlib.Path(classifier).parent / format) for format in ("huggingface", "tf1")]
    asked = [("Predictor", path, TEXTS[:2]) for path in (exported, classifier, *others)]
    for kind, (_, _, _, answerer, items, _) in KINDS.items():
        asked.append((answerer.__name__, save_kind(tmp_path / kind, "bert", kind), items))
    command = [os.environ.get("ANSWERS_PYTHON", sys.executable), "-c", ANSWERS]
    result = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=True)
    *lines, last = result.stdout.splitlines()
    assert last.endswith(") set()")
    for line, (name, path, items) in zip(lines, asked, strict=True):
        runtime = None if path == exported else "tensorflow"
        expected = getattr(bert_tf, name)(path, max_seq_length=48, runtime=runtime).predict(items)
        check_answers(json.loads(line), expected)


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
def test_vectors_are_those_of_tensorflow(classifier, pooling):
    embedders = [Embedder(classifier, pooling=pooling, runtime=runtime) for runtime in (None, "tensorflow")]
    found, expected = (embedder.encode(TEXTS) for embedder in embedders)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("family", ["bert", *exhaustive("albert", "electra", "roberta")])
def test_guesses_are_those_of_tensorflow(tmp_path, family):
    path = save_model(tmp_path / "model", family, task_models.BertForMaskedLM)
    model, tokenizer = task_models.BertForMaskedLM.from_pretrained(path), bert_tf.read_tokenizer(path)
    texts = [text.replace("[MASK]", tokenizer.mask_token) for text in ("a [MASK] of [MASK]", "[MASK]", "words [MASK]")]
    check_answers(bert_tf.fill_mask(path, texts=texts), bert_tf.fill_mask(model, tokenizer, texts))
    with pytest.raises(ValueError, match="is a model for ner, not for masked_lm: use Tagger"):
        bert_tf.fill_mask(save_model(tmp_path / "tagger", family, task_models.BertForTokenClassification, num_labels=2))


def test_a_causal_model_reads_its_last_token(tmp_path):
    path = save_model(tmp_path / "model", "bert", CLASSIFIER, config={"attention": "causal"}, num_labels=3)
    found, expected = (Predictor(path, runtime=runtime).logits(TEXTS) for runtime in (None, "tensorflow"))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_eight_bits(classifier, exported, tmp_path):
    """Near, and in each process the same; texts that are computed alone don't depend on others."""
    path = export_onnx(classifier, str(tmp_path), int8=True)
    assert "model.onnx" not in os.listdir(path) and read_json(f"{path}/export.json")["dtype"] == "int8"
    assert os.path.getsize(f"{path}/model_int8.onnx") < os.path.getsize(f"{exported}/model.onnx") / 2.5
    expected = Predictor(classifier).logits(TEXTS)
    for small in (Predictor(classifier, dtype="int8", batch_size=1), Predictor(path, batch_size=1)):
        found = small.logits(TEXTS)
        assert 1e-5 < np.abs(found - expected).max() < 0.1 * np.abs(expected).max()
        np.testing.assert_array_equal(small.logits(TEXTS[:1]), found[:1])


@pytest.mark.parametrize("options", [{"threads": 1}, {}])
def test_threads_share_a_predictor(classifier, options):
    predictor = Predictor(classifier, **options)
    assert [len(rows) for rows in Predictor(classifier)._batches([512] * 20)] == [8, 8, 4]  # 4,096 tokens at once
    texts = [f"text {number} of {number % 97}{' words' * (number % 13)}" for number in range(3_000)]
    parts = [texts[number : number + 1 + number % 7] for number in range(0, len(texts), 5)]  # batches of 1 to 7
    expected = [predictor.logits(part) for part in parts]
    assert len({*np.concatenate(expected)[:, 0].round(5)}) > 1_000
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        for found, wanted in zip(threads.map(predictor.logits, parts), expected, strict=True):
            np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_who_computes(classifier, tmp_path, monkeypatch):
    assert Predictor(classifier).model is None and Predictor(classifier, runtime="tensorflow").model is not None
    monkeypatch.setattr(predictor_module, "has_gpu", lambda: True)
    assert Predictor(classifier).model is not None and Predictor(classifier, runtime="onnxruntime").model is None
    assert Predictor(classifier, dtype="bfloat16").model is not None
    for message, options in (
        ("runtime='torch' is not one of onnxruntime, tensorflow", {"runtime": "torch"}),
        ("runtime=onnxruntime: dtype=bfloat16", {"runtime": "onnxruntime", "dtype": "bfloat16"}),
        ("dtype=int8 needs ONNX Runtime", {"runtime": "tensorflow", "dtype": "int8"}),
        ("dtype='int4' is not one of", {"dtype": "int4"}),
        ("batch_size=-1 must be a whole number, at least 1", {"batch_size": -1}),
        ("unexpected keyword argument 'pooling'", {"pooling": "max"}),  # of vectors, which there are none
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            Predictor(classifier, **options)
    monkeypatch.undo()
    monkeypatch.setattr(predictor_module, "missing_packages", lambda extra: ["onnxruntime"])
    assert Predictor(classifier).model is not None
    with pytest.raises(ValueError, match="runtime=onnxruntime: onnxruntime not installed"):
        Predictor(classifier, runtime="onnxruntime")


def test_weights_that_are_not_there_are_an_error(tmp_path):
    path = save_model(tmp_path / "model", "electra", CLASSIFIER, labels=LABELS)
    head = json.loads((tmp_path / "model" / "head_config.json").read_text())
    (tmp_path / "model" / "head_config.json").write_text(json.dumps({**head, "untrained": ["output_bias"]}))
    with pytest.raises(ValueError, match="holds, but untrained, 1 of the model's variables.*: output_bias. Train it"):
        Predictor(path)


def test_weights_stay_in_their_file(classifier, tmp_path, monkeypatch):
    """Matrices of a Hugging Face folder, which lie there transposed, are named by file and offset, not copied."""
    file = tmp_path / "a b.safetensors"
    write_safetensors(str(file), {"x": np.arange(4.0), "matrix": np.arange(6.0, dtype=np.float32).reshape(2, 3)}, {})
    matrix = open_safetensors(str(file))[2]("matrix")
    path, first = place_in_file(matrix.T.T)
    assert path == str(file) and file.read_bytes()[first : first + 24] == np.arange(6, dtype=np.float32).tobytes()
    assert [place_in_file(value) for value in (matrix.T, matrix[1:], matrix + 1, matrix.copy())] == [None] * 4
    folder = str(pathlib.Path(classifier).parent / "huggingface")
    monkeypatch.setattr(onnx_graph, "_MOST_INLINE_BYTES", 0)
    graph = onnx_graph.EncoderGraph(open_model(folder), "classification", in_place=True)
    graph.logits()
    stored = graph.model("").graph.initializer
    files = {tensor.external_data[0].value for tensor in stored if tensor.name.endswith("/kernel")}
    assert files == {f"{folder}/model.safetensors".lstrip("/")}


# ---- files ---------------------------------------------------------------------------------------------------------


def test_the_files_of_a_version(exported):
    configuration = {"bert_config.json", "export.json", "head_config.json", "tokenizer_config.json"}
    assert {*os.listdir(exported)} == {*configuration, "labels.txt", "model.onnx", "vocab.txt"}
    description = read_json(f"{exported}/export.json")
    assert (description["task"], description["labels"], description["opset"]) == ("classification", LABELS, 20)
    model = onnx.load(f"{exported}/model.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 20)]
    axes = {entry.name: [size.dim_param for size in entry.type.tensor_type.shape.dim] for entry in model.graph.input}
    assert axes == {name: ["batch", "length"] for name in ("input_ids", "input_mask", "segment_ids")}
    kinds = [node.op_type for node in model.graph.node]
    assert set(kinds) == set(description["ops"])
    # 2 layers with 2 norms and a GELU each, the norm of the embeddings, and the pooler.
    assert [kinds.count(kind) for kind in ("LayerNormalization", "Gelu", "Tanh")] == [5, 2, 1]
    given = [(attribute.name, attribute.f) for node in model.graph.node for attribute in node.attribute]
    assert [value for name, value in given if name == "epsilon"] == [np.float32(1e-12)] * 5


def test_onnx_runtime_alone_computes_what_serve_ids_does(classifier, exported):
    session = onnxruntime.InferenceSession(f"{exported}/model.onnx")
    served = export.create_served_model(*export.open_for(classifier, "classification"), ids_only=True)
    tokenizer = read_tokenizer(classifier)
    for texts in (TEXTS, TEXTS[:1]):
        features = {name: np.asarray(value, np.int32) for name, value in tokenizer(texts, max_length=64).items()}
        expected = served.outputs({name: tf.constant(value) for name, value in features.items()})
        names = [entry.name for entry in session.get_outputs()]
        assert set(names) == {*expected, "logits"}
        found = dict(zip(names, session.run(None, features), strict=True))
        assert found["labels"].tolist() == [LABELS] * len(texts)
        assert found["label"].tolist() == [label.decode() for label in expected["label"].numpy()]
        for name in ("score", "probabilities"):
            np.testing.assert_allclose(found[name], expected[name], atol=1e-5)


def test_exports_of_a_model_have_the_same_bytes(classifier, exported, tmp_path):
    again = export_onnx(classifier, str(tmp_path), version=3)
    assert again == f"{tmp_path}/3"
    assert pathlib.Path(again, "model.onnx").read_bytes() == pathlib.Path(exported, "model.onnx").read_bytes()

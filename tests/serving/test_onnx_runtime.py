"""Predictors that ONNX Runtime computes: equal to the Keras models, without TensorFlow in the process, in threads."""

import concurrent.futures
import itertools
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from helpers.descendants import NAMES, save_model
from helpers.slow import exhaustive

import bert_tf
from bert_tf import BertConfig, ChoicePredictor, Embedder, Predictor, QuestionAnswerer, Tagger
from bert_tf.models import task_models
from bert_tf.serving import onnx_graph
from bert_tf.serving import predictor as predictor_module
from bert_tf.serving.onnx_export import export_onnx
from bert_tf.store.head_config import WINDOW_POOLINGS
from bert_tf.store.open import open_model
from bert_tf.store.tensor_files import open_safetensors, place_in_file, write_safetensors

TEXTS = ["A short text.", "", "naïve café 日本 김철수 (2019, it's 9,000)…", "many words " * 40, "one"] * 3
LABELS = ["bad", "fair", "좋다"]
TAGS = ["O", "B-PER", "I-PER"]
QUESTIONS = [("Who met Ada?", "Her teacher met Ada Brown (1801-1852) in London. " * 6), ("Who?", "Nobody.")]
CHOICES = [("It rained.", ["a b", "walks in.", "it rains"]), ("So what?", ["c", "9,000"], "Then")]
CLASSIFIER = task_models.BertForSequenceClassification
# kind -> (class of the model, its arguments, class that answers, what it is asked)
KINDS = {
    "classes": (CLASSIFIER, {"labels": LABELS}, Predictor, TEXTS),
    "tags": (task_models.BertForTokenClassification, {"num_labels": 3, "labels": TAGS}, Tagger, TEXTS),
    "answers": (task_models.BertForQuestionAnswering, {}, QuestionAnswerer, QUESTIONS),
    "choices": (task_models.BertForMultipleChoice, {}, ChoicePredictor, CHOICES),
    **{
        pooling: (CLASSIFIER, {"labels": LABELS, "window_pooling": pooling, "max_windows": 3}, Predictor, TEXTS)
        for pooling in WINDOW_POOLINGS
    },
}


def numbers_in(answers) -> tuple[list[float], object]:
    """All floats of answers, in their order, and the answers without them."""
    found = []
    others = json.loads(json.dumps(answers), parse_float=lambda text: found.append(float(text)))
    return found, others


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("bert", "classes"), ("electra", "choices"), ("roberta", "answers"), ("albert", "tags"), ("bert", "attention"),
        ("distilbert", "max"), ("roberta", "mean"),
        *exhaustive(*itertools.product(NAMES, KINDS)),
    ],
)  # fmt: skip
def test_answers_are_those_of_tensorflow(tmp_path, family, kind):
    """From a model's folder, and from its export."""
    model_class, arguments, answerer, asked = KINDS[kind]
    path = save_model(tmp_path / "model", family, model_class, **arguments)
    options = {"max_seq_length": 48} if answerer is not QuestionAnswerer else {"max_seq_length": 48, "doc_stride": 16}
    expected, others_expected = numbers_in(answerer(path, runtime="tensorflow", **options).predict(asked))
    for opened in (path, export_onnx(path, str(tmp_path / "onnx"))):
        found, others = numbers_in(answerer(opened, **options).predict(asked))
        assert others == others_expected
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    folder, kind = tmp_path_factory.mktemp("classifier"), task_models.BertForSequenceClassification
    save_model(folder / "theirs", "bert", kind, format="huggingface", labels=LABELS)
    save_model(folder / "tf1", "bert", kind, format="tf1", labels=LABELS)
    return save_model(folder / "ours", "bert", kind, labels=LABELS)


# Reads (class, path, items) of JSON and prints what `predict` gives for each, and what was imported.
ANSWERS = """
import json, sys, bert_tf
for name, path, items in json.load(sys.stdin):
    items = [tuple(item) if isinstance(item, list) else item for item in items]
    print(json.dumps(getattr(bert_tf, name)(path, max_seq_length=48).predict(items)))
print(bert_tf.Embedder(path)("A short text.").shape, {"tensorflow", "keras"} & {*sys.modules})
"""


def test_no_tensorflow_in_the_process(classifier, tmp_path):
    """Any format that NumPy reads, an ONNX export, all tasks; for `make test-answers` nor is TensorFlow installed."""
    exported = export_onnx(classifier, str(tmp_path))
    paths = [classifier, f"{classifier[:-4]}theirs", f"{classifier[:-4]}tf1", exported]
    asked = [("Predictor", path, TEXTS[:2]) for path in paths]
    for kind, (model_class, arguments, answerer, items) in KINDS.items():
        path = save_model(tmp_path / kind, "bert", model_class, **arguments)
        asked.append((answerer.__name__, path, items))
    command = [os.environ.get("ANSWERS_PYTHON", sys.executable), "-c", ANSWERS]
    result = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=True)
    *lines, last = result.stdout.splitlines()
    assert last.endswith(") set()")
    for line, (name, path, items) in zip(lines, asked, strict=True):
        runtime = None if path == exported else "tensorflow"
        expected = getattr(bert_tf, name)(path, max_seq_length=48, runtime=runtime).predict(items)
        (found, others), (numbers, others_expected) = numbers_in(json.loads(line)), numbers_in(expected)
        np.testing.assert_allclose(found, numbers, atol=1e-5)
        assert others == others_expected


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
def test_vectors_are_those_of_tensorflow(classifier, pooling):
    embedders = [Embedder(classifier, pooling=pooling, runtime=runtime) for runtime in (None, "tensorflow")]
    found, expected = (embedder.encode(TEXTS) for embedder in embedders)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("family", ["bert", *exhaustive("albert", "electra", "roberta")])
def test_guesses_are_those_of_tensorflow(tmp_path, family):
    path = save_model(tmp_path / "model", family, task_models.BertForMaskedLM)
    model, tokenizer = task_models.BertForMaskedLM.from_pretrained(path), bert_tf.read_tokenizer(path)
    texts = ["a [MASK] of [MASK]", "[MASK]", "one of many words [MASK]"]
    texts = [text.replace("[MASK]", tokenizer.mask_token) for text in texts]
    found, others = numbers_in(bert_tf.fill_mask(path, texts=texts))
    expected, others_expected = numbers_in(bert_tf.fill_mask(model, tokenizer, texts))
    assert others == others_expected
    np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(ValueError, match="is 72, but must be at most 64, as max_position_embeddings"):
        bert_tf.fill_mask(path, texts=[texts[1] * 70])
    with pytest.raises(ValueError, match="is a model for ner, not for masked_lm: use Tagger"):
        bert_tf.fill_mask(save_model(tmp_path / "tagger", family, task_models.BertForTokenClassification, num_labels=2))


def test_a_causal_model_reads_its_last_token(tmp_path):
    config = BertConfig(13, 32, 2, 2, 64, type_vocab_size=2, attention="causal")
    keras.utils.set_random_seed(3)
    model = task_models.BertForSequenceClassification(config, num_labels=3)
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]) + "\n")
    model.save_pretrained(str(tmp_path / "model"), vocab_file=str(vocabulary), do_lower_case=True)
    texts = ["a b c", "h", "d e f g h a b"]
    found, expected = (Predictor(tmp_path / "model", runtime=name).logits(texts) for name in (None, "tensorflow"))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_eight_bits(classifier):
    """Near, and in each process the same; texts that are computed alone don't depend on others."""
    plain, small = Predictor(classifier), Predictor(classifier, dtype="int8", batch_size=1)
    expected, found = plain.logits(TEXTS), small.logits(TEXTS)
    assert 1e-5 < np.abs(found - expected).max() < 0.1 * np.abs(expected).max()
    np.testing.assert_array_equal(small.logits(TEXTS[:1]), found[:1])


@pytest.mark.parametrize("options", [{"threads": 1}, {}])
def test_threads_share_a_predictor(classifier, options):
    predictor = Predictor(classifier, **options)
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
    path = save_model(tmp_path / "model", "electra", task_models.BertForSequenceClassification, labels=LABELS)
    head = json.loads((tmp_path / "model" / "head_config.json").read_text())
    (tmp_path / "model" / "head_config.json").write_text(json.dumps({**head, "untrained": ["output_bias"]}))
    with pytest.raises(ValueError, match="holds, but untrained, 1 of the model's variables.*: output_bias. Train it"):
        Predictor(path)


def test_weights_stay_in_their_file(tmp_path, monkeypatch):
    """Matrices of a Hugging Face folder, which lie there transposed, are named by file and offset, not copied."""
    file = tmp_path / "a b.safetensors"
    write_safetensors(str(file), {"x": np.arange(4.0), "matrix": np.arange(6.0, dtype=np.float32).reshape(2, 3)}, {})
    matrix = open_safetensors(str(file))[2]("matrix")
    path, first = place_in_file(matrix.T.T)
    assert path == str(file) and np.frombuffer(file.read_bytes()[first : first + 24], np.float32).tolist() == [
        *range(6)
    ]
    assert [place_in_file(value) for value in (matrix.T, matrix[1:], matrix + 1, matrix.copy())] == [None] * 4
    folder = save_model(tmp_path / "model", "bert", CLASSIFIER, labels=LABELS, format="huggingface")
    monkeypatch.setattr(onnx_graph, "_MOST_INLINE_BYTES", 0)
    graph = onnx_graph.EncoderGraph(open_model(folder), "classification", in_place=True)
    graph.logits()
    stored = graph.model("").graph.initializer
    kernels = [tensor for tensor in stored if tensor.name.endswith("/kernel")]
    assert kernels and all(tensor.external_data[0].value.endswith("model/model.safetensors") for tensor in kernels)

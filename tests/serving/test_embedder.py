"""Embedder: vectors of texts, by a model's directory, a directory of sentence-transformers, and an export."""

import itertools
import json
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
from helpers.descendants import save_model
from helpers.exports import save, show_progress_at_once, signature_of
from helpers.slow import slow

from bert_tf import BertModel, Embedder
from bert_tf.serving import embedder as embedder_module
from bert_tf.serving import export, predictor
from bert_tf.store.sentence_settings import POOLINGS, SentenceSettings, read_settings, settings_files

TEXTS = ["A man eats food.", "", "김철수는 서울에 산다.", " Spaces around \n", "word " * 100, "A MAN"]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return save(tmp_path_factory.mktemp("embedder") / "model", BertModel, {"num_hidden_layers": 1})


def write_settings(folder, settings: SentenceSettings, hidden_size=32) -> None:
    for name, content in settings_files(settings, hidden_size).items():
        path = pathlib.Path(folder, name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)


def described(folder, model_dir, **settings) -> str:
    shutil.copytree(model_dir, folder)
    write_settings(folder, SentenceSettings(str(folder), **settings))
    return str(folder)


def plainly(model_dir, pooling, length=None, lower=False) -> np.ndarray:
    embedder = Embedder(model_dir)
    model, vectors = BertModel.from_pretrained(model_dir), []
    for text in TEXTS:
        text = text.lower() if lower else text
        outputs = np.asarray(model(embedder.tokenizer([text], max_length=length or 64))["sequence_output"])[0]
        vectors.append({"mean": outputs.mean(0), "max": outputs.max(0), "cls": outputs[0]}[pooling])
    return np.array(vectors)


def test_vectors_are_those_of_one_text_at_a_time(model_dir):
    embedder = Embedder(model_dir, pooling="mean", batch_size=4)
    assert embedder.max_seq_length == 64 and embedder.size == 32
    found, expected = embedder.encode(TEXTS), plainly(model_dir, "mean")
    assert found.dtype == np.float32 and found.shape == (len(TEXTS), 32) and embedder.encode([]).shape == (0, 32)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(embedder(TEXTS[0]), expected[0], atol=1e-5)
    lengths = np.linalg.norm(embedder.encode(TEXTS, normalize=True), axis=1)
    np.testing.assert_allclose(lengths, np.ones(len(TEXTS)), atol=1e-6)
    np.testing.assert_array_equal(embedder(TEXTS), found)


def test_arguments_of_sentence_transformers(model_dir, tmp_path, monkeypatch):
    embedder, shown = Embedder(model_dir), show_progress_at_once(monkeypatch, predictor)
    plain, normalized = embedder.encode(TEXTS), embedder.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(normalized, embedder.encode(TEXTS, normalize=True), atol=1e-6)
    tensor = embedder.encode(TEXTS, convert_to_tensor=True, batch_size=1, show_progress_bar=False)
    assert isinstance(tensor, tf.Tensor) and embedder.encode([], convert_to_tensor=True).shape == (0, 32)
    np.testing.assert_allclose(tensor, plain, atol=1e-5)
    embedder.encode(TEXTS, show_progress_bar=True)
    assert [(options["disable"], options["delay"]) for options in shown[-2:]] == [(True, 5), (False, 0)]
    assert embedder.batch_size == 32 and embedder.get_sentence_embedding_dimension() == 32
    np.testing.assert_allclose(embedder.similarity(plain, plain[0]), normalized @ normalized[:1].T, atol=1e-5)
    dot = Embedder(described(tmp_path / "dot", model_dir, similarity="dot"))
    np.testing.assert_allclose(dot.similarity(plain, plain[:2]), plain @ plain[:2].T, rtol=1e-5)
    with pytest.raises(ValueError, match="batch_size=2.5 must be a whole number, at least 1"):
        embedder.encode(TEXTS, batch_size=2.5)


def test_many_texts_are_worth_constant_matrices_in_bfloat16(model_dir, monkeypatch):
    embedder = Embedder(model_dir, dtype="bfloat16", batch_size=len(TEXTS))
    expected, graph = embedder.encode(TEXTS), embedder._graph
    monkeypatch.setattr(embedder_module, "_CONSTANTS_FROM", len(TEXTS))
    found, constant = embedder.encode(TEXTS), embedder._graph
    assert constant is not graph
    np.testing.assert_array_equal(found, expected)
    embedder.encode(TEXTS)
    assert embedder._graph is constant  # made once


def test_spaces_around_a_text_do_not_count(tmp_path):
    """Though tokenizers without word pieces, like RoBERTa's, encode them."""
    embedder = Embedder(save_model(tmp_path / "model", "roberta", BertModel))
    np.testing.assert_allclose(embedder(" Spaces around \n"), embedder("Spaces around"), atol=1e-6)
    assert embedder.tokenizer.encode(" a\n") != embedder.tokenizer.encode("a")


def test_what_a_directory_says_holds_unless_told_otherwise(model_dir, tmp_path):
    settings = {"pooling": "max", "normalize": True, "max_seq_length": 8, "lower": True, "truncate_dim": 5}
    folder = described(tmp_path / "st", model_dir, **settings)
    embedder = Embedder(folder)
    assert (embedder.max_seq_length, embedder.size) == (8, 5)
    expected = plainly(model_dir, "max", 8, lower=True)
    np.testing.assert_allclose(embedder.encode(TEXTS, normalize=False), expected[:, :5], atol=1e-5)
    expected = (expected / np.linalg.norm(expected, axis=1, keepdims=True))[:, :5]
    np.testing.assert_allclose(embedder.encode(TEXTS), expected, atol=1e-5)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(embedder.encode(TEXTS, normalize=True), expected, atol=1e-5)
    other = Embedder(folder, pooling="cls", max_seq_length=16)
    assert other.max_seq_length == 16
    expected = plainly(model_dir, "cls", 16, lower=True)[:, :5]
    np.testing.assert_allclose(other.encode(TEXTS, False), expected, atol=1e-5)


def test_files_of_sentence_transformers(tmp_path):
    """Both forms of the pooling's file, and an encoder in a folder of its own."""
    assert read_settings(str(tmp_path)) == SentenceSettings(str(tmp_path))
    for settings in (
        SentenceSettings(str(tmp_path), "cls", True, 128, True, described=True),
        SentenceSettings(str(tmp_path), "max", described=True, truncate_dim=4),
    ):
        write_settings(tmp_path, settings)
        assert read_settings(str(tmp_path)) == settings
    (tmp_path / "1_Pooling/config.json").write_text('{"embedding_dimension": 32, "pooling_mode": "cls"}')
    assert read_settings(str(tmp_path)).pooling == "cls"
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules[0] |= {"path": "0_BERT", "type": "sentence_transformers.base.modules.transformer.Transformer"}
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    assert read_settings(str(tmp_path)) == SentenceSettings(f"{tmp_path}/0_BERT", "cls", described=True, truncate_dim=4)


def test_files_that_are_refused(tmp_path):
    for name, content, message in (
        ("modules.json", '[{"type": "a.Pooling", "path": ""}]', "is not the next of Transformer, Pooling, Normalize"),
        ("modules.json", '[{"type": "Transformer", "path": "../x"}]', "in a folder below this one"),
        ("1_Pooling/config.json", '{"pooling_mode": ["cls", "max"]}', r"the pooling is \['cls', 'max'\]"),
        ("config_sentence_transformers.json", '{"truncate_dim": 0}', "transformers.json: truncate_dim=0 must be"),
        ("config_sentence_transformers.json", '{"default_prompt_name": "c"}', "'c', which is none of its prompts"),
    ):
        write_settings(tmp_path, SentenceSettings(str(tmp_path)))
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=message):
            read_settings(str(tmp_path))


@pytest.mark.parametrize(
    "settings", [{"normalize": True, "max_seq_length": 16, "truncate_dim": 5}, {"pooling": "max", "lower": True}]
)
def test_graphs_make_the_same_vectors(model_dir, tmp_path, settings):
    folder = described(tmp_path / "st", model_dir, **settings)
    found = signature_of(folder, "encoder", "embed", text=TEXTS)["vector"]
    np.testing.assert_allclose(found, Embedder(folder).encode(TEXTS), atol=1e-5)


@pytest.mark.slow  # in small: the graphs above, and opened exports in test_tagger.py
def test_an_export_makes_the_same_vectors(model_dir, tmp_path, clean_process):
    path = export.export_saved_model(model_dir, str(tmp_path / "out"), warm_up=False)
    expected = Embedder(model_dir).encode(TEXTS)
    np.testing.assert_allclose(clean_process(path, "embed", text=TEXTS)["vector"], expected, atol=1e-5)
    embedder = Embedder(str(tmp_path / "out"), batch_size=4)
    assert embedder.size == 32 and embedder.max_seq_length == 64
    np.testing.assert_allclose(embedder.encode(TEXTS), expected, atol=1e-5)
    with pytest.raises(ValueError, match="pooling=cls, dtype=None: what an export computes is decided"):
        Embedder(path, pooling="cls")


PROMPTS = {"query": "query: ", "passage": "A passage of text: ", "none": ""}


def test_prompts_by_hand(model_dir, tmp_path):
    """Tokens of a prompt are read, but count in the mean only if they are included."""
    for include in (True, False):
        settings = {"prompts": PROMPTS, "default_prompt_name": "query", "include_prompt": include}
        folder = described(tmp_path / str(include), model_dir, **settings)
        embedder, model = Embedder(folder), BertModel.from_pretrained(model_dir)
        for name, prompt in PROMPTS.items():
            first = 0 if include or not prompt else 1 + len(embedder.tokenizer.encode(prompt))
            outputs = model(embedder.tokenizer([prompt + TEXTS[0]]))["sequence_output"]
            expected = np.asarray(outputs)[0, first:].mean(0)
            np.testing.assert_allclose(embedder.encode(TEXTS[:1], prompt_name=name)[0], expected, atol=1e-5)
            if name == "query":
                np.testing.assert_allclose(embedder(TEXTS[0]), expected, atol=1e-5)
    with pytest.raises(ValueError, match="has no prompt 'other'; those of its .* are: query, passage, none"):
        embedder.encode(TEXTS, prompt_name="other")


@pytest.mark.parametrize(("pooling", "include"), slow(*itertools.product(POOLINGS, (False, True))))
def test_equal_to_sentence_transformers(shared, tmp_path, monkeypatch, pooling, include):
    """Vectors of real sentences by real weights, with prompts by default and by name, and in exports."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = str(shutil.copytree(shared / "weights" / "minilm-l6-h384", tmp_path / "model"))
    lines = (shared / "data" / "glue" / "STS-B" / "dev.tsv").read_text(encoding="utf-8").splitlines()[1:31]
    texts = [text for line in lines for text in line.split("\t")[7:9]] + [" ".join(["long"] * 300), "", " \u0007 É\n"]
    prompts = {"prompts": PROMPTS, "default_prompt_name": "query", "include_prompt": include}
    settings = SentenceSettings(folder, pooling, pooling != "max", 256, described=True, **prompts)
    write_settings(folder, settings, 384)
    assert read_settings(folder) == settings
    theirs, embedder = sentence_transformers.SentenceTransformer(folder, device="cpu"), Embedder(folder)
    for name in (None, "passage", "none"):
        expected = theirs.encode(texts, prompt_name=name)
        np.testing.assert_allclose(embedder.encode(texts, prompt_name=name), expected, atol=1e-5)
    for normalize in (True, False):  # False leaves what the directory says
        found, expected = (each.encode(texts, normalize_embeddings=normalize) for each in (embedder, theirs))
        np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(embedder.similarity(found, found), theirs.similarity(found, found), atol=1e-5)
    assert embedder.get_sentence_embedding_dimension() == theirs.get_embedding_dimension()
    served = export.create_served_model(folder, "encoder")
    np.testing.assert_allclose(served.vectors(np.array(texts))["vector"], theirs.encode(texts), atol=1e-5)


def test_what_is_lost_of_texts_is_reported_once(model_dir, caplog):
    for length in (4, 5):
        Embedder(str(model_dir), max_seq_length=length).encode(["w1 " * 9, " ", "w1"])
    messages = [record.message for record in caplog.records]
    assert messages == [
        "1 of 3 texts are longer than 4 tokens and lost their last ones. (Logged once.)",
        "1 of 3 texts are empty; their vectors mean nothing. (Logged once.)",
    ]

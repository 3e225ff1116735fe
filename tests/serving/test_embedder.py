"""Embedder: vectors of texts, by a model's directory, a directory of sentence-transformers, and an export; search, with
the results of sentence-transformers; and an index, which is what it was, or an error."""

import itertools
import json
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
from helpers.basics import slow
from helpers.exports import signature_of
from helpers.tiny import save_model

from bert_tf import BertModel, Embedder, TextIndex
from bert_tf.serving import export, predictor
from bert_tf.store.description import POOLINGS, SentenceSettings, read_sentence_settings, settings_files

TEXTS = ["A man eats food.", "", "김철수는 서울에 산다.", " Spaces around \n", "word " * 100, "A MAN"]


def near(found, expected, atol=1e-5) -> None:
    np.testing.assert_allclose(found, expected, atol=atol)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("embedder") / "model", "bert", BertModel)


@pytest.fixture(scope="module")
def embedder(model_dir):
    return Embedder(model_dir)


def write_settings(folder, settings: SentenceSettings, hidden_size=32) -> None:
    for name, content in settings_files(settings, hidden_size).items():
        path = pathlib.Path(folder, name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)


def described(folder, model_dir, **settings) -> str:
    shutil.copytree(model_dir, folder)
    write_settings(folder, SentenceSettings(str(folder), **settings))
    return str(folder)


def plainly(embedder, pooling, length=None, lower=False) -> np.ndarray:
    model, vectors = BertModel.from_pretrained(embedder.path), []
    for text in TEXTS:
        text = text.lower() if lower else text
        outputs = np.asarray(model(embedder.tokenizer([text], max_length=length or 64))["sequence_output"])[0]
        vectors.append({"mean": outputs.mean(0), "max": outputs.max(0), "cls": outputs[0]}[pooling])
    return np.array(vectors)


def test_vectors_are_those_of_one_text_at_a_time(embedder):
    several = Embedder(embedder.path, pooling="mean", batch_size=4)
    assert several.max_seq_length == 64 and several.size == 32
    found, expected = several.encode(TEXTS), plainly(embedder, "mean")
    assert found.dtype == np.float32 and found.shape == (len(TEXTS), 32) and several.encode([]).shape == (0, 32)
    near(found, expected)
    near(several(TEXTS[0]), expected[0])
    near(np.linalg.norm(several.encode(TEXTS, normalize=True), axis=1), np.ones(len(TEXTS)), 1e-6)
    np.testing.assert_array_equal(several(TEXTS), found)


def test_arguments_of_sentence_transformers(embedder, tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(predictor, "progress_bar", lambda rows, **options: shown.append(options) or rows)
    plain, normalized = embedder.encode(TEXTS), embedder.encode(TEXTS, normalize_embeddings=True)
    near(normalized, embedder.encode(TEXTS, normalize=True), 1e-6)
    tensor = embedder.encode(TEXTS, convert_to_tensor=True, batch_size=1, show_progress_bar=False)
    assert isinstance(tensor, tf.Tensor) and embedder.encode([], convert_to_tensor=True).shape == (0, 32)
    near(tensor, plain)
    embedder.encode(TEXTS, show_progress_bar=True)
    assert [(options["disable"], options["delay"]) for options in shown[-2:]] == [(True, 5), (False, 0)]
    assert embedder.batch_size == 16 and embedder.get_sentence_embedding_dimension() == 32
    near(embedder.similarity(plain, plain[0]), normalized @ normalized[:1].T)
    dot = Embedder(described(tmp_path / "dot", embedder.path, similarity="dot"))
    np.testing.assert_allclose(dot.similarity(plain, plain[:2]), plain @ plain[:2].T, rtol=1e-5)
    with pytest.raises(ValueError, match="batch_size=2.5 must be a whole number, at least 1"):
        embedder.encode(TEXTS, batch_size=2.5)


def test_spaces_around_a_text_do_not_count(tmp_path):
    """Though tokenizers without word pieces, like RoBERTa's, encode them."""
    embedder = Embedder(save_model(tmp_path / "model", "roberta", BertModel))
    near(embedder(" Spaces around \n"), embedder("Spaces around"), 1e-6)
    assert embedder.tokenizer.encode(" a\n") != embedder.tokenizer.encode("a")


def test_what_a_directory_says_holds_unless_told_otherwise(embedder, tmp_path):
    settings = {"pooling": "max", "normalize": True, "max_seq_length": 8, "lower": True, "truncate_dim": 5}
    folder = described(tmp_path / "st", embedder.path, **settings)
    opened, other = Embedder(folder), Embedder(folder, pooling="cls", max_seq_length=16)
    assert (opened.max_seq_length, opened.size, other.max_seq_length) == (8, 5, 16)
    expected = plainly(embedder, "max", 8, lower=True)
    near(opened.encode(TEXTS, normalize=False), expected[:, :5])
    expected = (expected / np.linalg.norm(expected, axis=1, keepdims=True))[:, :5]
    near(opened.encode(TEXTS), expected)
    near(opened.encode(TEXTS, normalize=True), expected / np.linalg.norm(expected, axis=1, keepdims=True))
    near(other.encode(TEXTS, False), plainly(embedder, "cls", 16, lower=True)[:, :5])


def test_files_of_sentence_transformers(tmp_path):
    """Both forms of the pooling's file, and an encoder in a separate folder; then files that are wrong."""
    path = str(tmp_path)
    assert read_sentence_settings(path) == SentenceSettings(path)
    for settings in (
        SentenceSettings(path, "cls", True, 128, True, described=True),
        SentenceSettings(path, "max", described=True, truncate_dim=4),
    ):
        write_settings(tmp_path, settings)
        assert read_sentence_settings(path) == settings
    (tmp_path / "1_Pooling/config.json").write_text('{"embedding_dimension": 32, "pooling_mode": "cls"}')
    assert read_sentence_settings(path).pooling == "cls"
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules[0] |= {"path": "0_BERT", "type": "sentence_transformers.base.modules.transformer.Transformer"}
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    assert read_sentence_settings(path) == SentenceSettings(f"{tmp_path}/0_BERT", "cls", described=True, truncate_dim=4)
    for name, content, message in (
        ("modules.json", '[{"type": "a.Pooling", "path": ""}]', "is not the next of Transformer, Pooling, Normalize"),
        ("modules.json", '[{"type": "Transformer", "path": "../x"}]', "in a folder below this one"),
        ("1_Pooling/config.json", '{"pooling_mode": ["cls", "max"]}', r"the pooling is \['cls', 'max'\]"),
        ("config_sentence_transformers.json", '{"truncate_dim": 0}', "transformers.json: truncate_dim=0 must be"),
        ("config_sentence_transformers.json", '{"default_prompt_name": "c"}', "'c', which is none of its prompts"),
    ):
        write_settings(tmp_path, SentenceSettings(path))
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=message):
            read_sentence_settings(path)


@pytest.mark.parametrize(
    "settings", [{"normalize": True, "max_seq_length": 16, "truncate_dim": 5}, {"pooling": "max", "lower": True}]
)
def test_graphs_make_the_same_vectors(model_dir, tmp_path, settings):
    folder = described(tmp_path / "st", model_dir, **settings)
    assert np.abs(signature_of(folder, "encoder", "embed", text=TEXTS)["vector"] - Embedder(folder)(TEXTS)).max() < 1e-5


PROMPTS = {"query": "query: ", "passage": "A passage of text: ", "none": ""}


def test_prompts_by_hand(model_dir, tmp_path):
    """Tokens of a prompt are read, but count in the mean only if they are included."""
    model = BertModel.from_pretrained(model_dir)
    for include, runtime in itertools.product((True, False), ("onnxruntime", "tensorflow")):
        settings = {"prompts": PROMPTS, "default_prompt_name": "query", "include_prompt": include}
        embedder = Embedder(described(tmp_path / f"{include}_{runtime}", model_dir, **settings), runtime=runtime)
        for name, prompt in PROMPTS.items():
            first = 0 if include or not prompt else 1 + len(embedder.tokenizer.encode(prompt))
            expected = np.asarray(model(embedder.tokenizer([prompt + TEXTS[0]]))["sequence_output"])[0, first:].mean(0)
            near(embedder.encode(TEXTS[:1], prompt_name=name)[0], expected)
            near(embedder(TEXTS[0]) if name == "query" else expected, expected)
    no_prompt = "has no prompt 'other'; those of its .* are: query, passage, none"
    for name, message in ("other", no_prompt), ("passage", r"a prompt of \d+ tokens fills max_seq_length=4"):
        with pytest.raises(ValueError, match=message):
            Embedder(embedder.path, max_seq_length=4).encode(TEXTS, prompt_name=name)


@pytest.mark.parametrize(("pooling", "include"), slow(*itertools.product(POOLINGS, (False, True))))
def test_equal_to_sentence_transformers(shared, tmp_path, monkeypatch, pooling, include):
    """Vectors of real sentences by real weights, with prompts by default and by name, and in exports."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = str(shutil.copytree(shared / "weights" / "minilm-l6-h384", tmp_path / "model"))
    lines = (shared / "data" / "glue" / "STS-B" / "dev.tsv").read_text(encoding="utf-8").splitlines()
    texts = [text for line in lines[1:31] for text in line.split("\t")[7:9]]
    texts += [" ".join(["long"] * 300), "", " \u0007 É\n"]
    prompts = {"prompts": PROMPTS, "default_prompt_name": "query", "include_prompt": include}
    settings = SentenceSettings(folder, pooling, pooling != "max", 256, described=True, **prompts)
    write_settings(folder, settings, 384)
    assert read_sentence_settings(folder) == settings
    theirs, embedder = sentence_transformers.SentenceTransformer(folder, device="cpu"), Embedder(folder)
    for name in (None, "passage", "none"):
        near(embedder.encode(texts, prompt_name=name), theirs.encode(texts, prompt_name=name))
    for normalize in (True, False):  # False leaves what the directory says
        found, expected = (each.encode(texts, normalize_embeddings=normalize) for each in (embedder, theirs))
        near(found, expected)
    near(embedder.similarity(found, found), theirs.similarity(found, found))
    assert embedder.get_sentence_embedding_dimension() == theirs.get_embedding_dimension()
    served = export.create_served_model(*export.open_for(folder, "encoder"))
    near(served.vectors(np.array(texts))["vector"], theirs.encode(texts))


def test_what_is_lost_of_texts_is_reported_once(model_dir, caplog):
    for length in (4, 5):
        Embedder(str(model_dir), max_seq_length=length).encode(["w1 " * 9, " ", "w1"])
    assert caplog.messages == [
        "1 of 3 texts are longer than 4 tokens and lost their last ones. (Logged once.)",
        "1 of 3 texts are empty; their vectors mean nothing. (Logged once.)",
    ]


# ---- search ----------------------------------------------------------------------------------------------------------

KEPT = ["A man eats food.", "김철수는 서울에 산다.", "The sky is blue.", "A man eats bread.", "Hello"]


def test_the_nearest_texts(embedder):
    vectors = embedder.encode(KEPT, normalize=True)
    scores = vectors @ vectors[3]
    order = np.argsort(-scores)
    index = embedder.index(KEPT)
    for where in (KEPT, index, vectors, 3 * vectors):
        found = embedder.search(KEPT[3], where, k=3)
        assert [hit["index"] for hit in found] == order[:3].tolist() and found[0]["index"] == 3
        near([hit["score"] for hit in found], scores[order[:3]])
        assert ("text" in found[0]) == (where is KEPT or where is index)
    both = embedder.search([KEPT[3], KEPT[1]], index, k=99)
    assert both[1][0]["text"] == KEPT[1] and len(both[0]) == len(KEPT)
    assert embedder.search([], index) == []


def test_an_index_grows(embedder):
    index = embedder.index(KEPT[:2])
    assert len(index) == 2
    assert repr(index) == "<TextIndex: 2 vectors of 32, the first text 'A man eats food.', compared by cosine>"
    index.add((text for text in KEPT[2:]), embedder)
    near(index.vectors, embedder.index(KEPT).vectors, 1e-6)
    assert len(index) == 5 and index.texts == KEPT
    alone = TextIndex(None, index.vectors)
    assert "no texts" in repr(alone)
    for wrong, texts, message in ((alone, ["a"], "vectors alone"), (index, ["a", None], r"^texts\[1\] is None")):
        with pytest.raises((TypeError, ValueError), match=message):
            wrong.add(texts, embedder)


@pytest.mark.parametrize(("prompts", "default", "of_query", "of_text"), [
    ({"query": "query: ", "document": "A passage: "}, "query", "query: ", "A passage: "),
    ({"query": "query: ", "passage": "A passage: "}, None, "query: ", ""),
    ({"passage": "A passage: "}, "passage", "", ""),
])  # fmt: skip
def test_prompts_of_queries_and_texts(embedder, tmp_path, prompts, default, of_query, of_text):
    """Those that sentence-transformers 6.2 takes in encode_query and encode_document: never the default one."""
    path = described(tmp_path / "model", embedder.path, prompts=prompts, default_prompt_name=default)
    opened = Embedder(path)
    index = opened.index(KEPT)
    of_texts = embedder.encode([of_text + text for text in KEPT], True)
    near(index.vectors, of_texts, 1e-6)
    found = opened.search(KEPT[0], index, k=5)
    near(found[0]["score"], (embedder.encode([of_query + KEPT[0]], True) @ of_texts.T).max())
    index.save(str(tmp_path / "index"))
    assert opened.search(KEPT[0], TextIndex.load(str(tmp_path / "index"), opened), k=5) == found
    if "passage" in prompts:
        of_texts = embedder.encode([prompts["passage"] + text for text in KEPT], True)
        near(opened.index(KEPT, "passage").vectors, of_texts, 1e-6)


def test_vectors_that_are_compared_by_their_products(embedder, tmp_path):
    opened = Embedder(described(tmp_path / "model", embedder.path, similarity="dot"))
    texts = [*KEPT, "word " * 30, "1"]
    products = opened.encode(texts) @ opened.encode(["A man eats"])[0]
    order = np.argsort(-products).tolist()
    cosines = opened.encode(texts, True) @ opened.encode(["A man eats"], True)[0]
    assert order != np.argsort(-cosines).tolist()
    index = opened.index(texts)
    index.save(str(tmp_path / "index"))
    for where in (texts, opened.encode(texts), index, TextIndex.load(str(tmp_path / "index"), opened)):
        found = opened.search("A man eats", where, k=7)
        assert [hit["index"] for hit in found] == order
        np.testing.assert_allclose([hit["score"] for hit in found], products[order], rtol=1e-4)
    other = Embedder(described(tmp_path / "other", embedder.path, similarity="euclidean"))
    assert other("a").shape == (32,)
    with pytest.raises(ValueError, match="other: search compares by cosine or dot, not by 'euclidean'"):
        other.search("a", texts)


def test_an_index_is_saved_next_to_its_texts(embedder, tmp_path):
    texts = [*KEPT, 'quotes " and\nlines']
    embedder.index(texts).save(str(tmp_path / "index"))
    assert sorted(path.name for path in (tmp_path / "index").iterdir()) == ["texts.jsonl", "vectors.npy"]
    again = TextIndex.load(tmp_path / "index", embedder)
    assert again.texts == texts
    assert embedder.search(texts[5], again) == embedder.search(texts[5], embedder.index(texts))
    other = Embedder(save_model(tmp_path / "model", "bert", BertModel, seed=8))
    with pytest.raises(ValueError, match="index was made by another model than .*model, or with another pooling"):
        TextIndex.load(str(tmp_path / "index"), other)
    with pytest.raises(UnicodeEncodeError):  # not when it is saved
        TextIndex(["a\ud800"], np.ones((1, 32)))


def test_damaged_files_of_an_index(embedder, tmp_path):
    changes = (
        ("vectors.npy", lambda _: np.array([open]), "Object arrays cannot be"),
        ("vectors.npy", lambda _: np.full((5, 32), np.nan, np.float32), r"finite vectors \[5, H\]"),
        ("texts.jsonl", lambda old: old + b'"one more"\n', r"finite vectors \[6, H\], not vectors \[5, 32\]"),
        ("texts.jsonl", lambda old: old.replace(b'"Hello"', b"3"), "texts.jsonl has no JSON object"),
        ("texts.jsonl", lambda old: old.partition(b"\n")[2], "texts.jsonl has no JSON object"),
        ("texts.jsonl", lambda old: old.replace(b"vectors.npy", b"../x"), r"names no file of vectors: .\.\./x"),
    )
    for number, (name, change, message) in enumerate(changes):
        folder = tmp_path / str(number)
        embedder.index(KEPT).save(str(folder))
        content = change((folder / name).read_bytes())
        (np.save if name == "vectors.npy" else pathlib.Path.write_bytes)(folder / name, content)
        with pytest.raises(ValueError, match=f"^{folder} is not an index of texts, or damaged: .*{message}"):
            TextIndex.load(str(folder), embedder)

"""Search: results are those of sentence-transformers, and an index is what it was, or refused."""

import io
import shutil

import numpy as np
import pytest
from helpers.exports import save

from bert_tf import BertModel, Embedder, TextIndex
from bert_tf.store.sentence_settings import SentenceSettings, settings_files

TEXTS = ["A man eats food.", "김철수는 서울에 산다.", "The sky is blue.", "A man eats bread.", "Hello"]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory):
    return Embedder(save(tmp_path_factory.mktemp("index") / "model", BertModel, {"num_hidden_layers": 1}))


def test_the_nearest_texts(embedder):
    vectors = embedder.encode(TEXTS, normalize=True)
    scores = vectors @ vectors[3]
    order = np.argsort(-scores)
    index = embedder.index(TEXTS)
    for where in (TEXTS, index, vectors, 3 * vectors):
        found = embedder.search(TEXTS[3], where, k=3)
        assert [hit["index"] for hit in found] == order[:3].tolist() and found[0]["index"] == 3
        np.testing.assert_allclose([hit["score"] for hit in found], scores[order[:3]], atol=1e-5)
        assert ("text" in found[0]) == (where is TEXTS or where is index)
    both = embedder.search([TEXTS[3], TEXTS[1]], index, k=99)
    assert both[1][0]["text"] == TEXTS[1] and len(both[0]) == len(TEXTS)
    assert embedder.search([], index) == []


def test_an_index_grows(embedder):
    index = embedder.index(TEXTS[:2])
    assert len(index) == 2
    assert repr(index) == "<TextIndex: 2 vectors of 32, the first text 'A man eats food.', compared by cosine>"
    index.add((text for text in TEXTS[2:]), embedder)
    np.testing.assert_allclose(index.vectors, embedder.index(TEXTS).vectors, atol=1e-6)
    assert len(index) == 5 and index.texts == TEXTS
    alone = TextIndex(None, index.vectors)
    assert "no texts" in repr(alone)
    for wrong, texts, message in ((alone, ["a"], "vectors alone"), (index, ["a", None], r"^texts\[1\] is None")):
        with pytest.raises((TypeError, ValueError), match=message):
            wrong.add(texts, embedder)


@pytest.mark.slow  # in small: the other tests, by NumPy
def test_results_are_those_of_sentence_transformers(shared):
    util = pytest.importorskip("sentence_transformers.util")
    lines = (shared / "data" / "glue" / "STS-B" / "dev.tsv").read_text(encoding="utf-8").splitlines()[1:101]
    queries, texts = ([line.split("\t")[column] for line in lines] for column in (7, 8))
    embedder = Embedder(str(shared / "weights" / "minilm-l6-h384"))
    found = embedder.search(queries, texts, k=5)
    expected = util.semantic_search(embedder.encode(queries), embedder.encode(texts), top_k=5)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose([hit["score"] for hit in ours], [hit["score"] for hit in theirs], atol=1e-5)
        assert [hit["text"] for hit in ours][:1] == [texts[hit["corpus_id"]] for hit in theirs][:1]
        assert {hit["index"] for hit in ours[:4]} <= {hit["corpus_id"] for hit in theirs}


def described(embedder, folder, **settings) -> Embedder:
    shutil.copytree(embedder.path, folder)
    for name, content in settings_files(SentenceSettings("", described=True, **settings), 32).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    return Embedder(str(folder))


@pytest.mark.parametrize(("prompts", "default", "of_query", "of_text"), [
    ({"query": "query: ", "document": "A passage: "}, "query", "query: ", "A passage: "),
    ({"query": "query: ", "passage": "A passage: "}, None, "query: ", ""),
    ({"passage": "A passage: "}, "passage", "", ""),
])  # fmt: skip
def test_prompts_of_queries_and_texts(embedder, tmp_path, prompts, default, of_query, of_text):
    """Those that sentence-transformers 6.2 takes in encode_query and encode_document: never the default one."""
    opened = described(embedder, tmp_path / "model", prompts=prompts, default_prompt_name=default)
    index = opened.index(TEXTS)
    of_texts = embedder.encode([of_text + text for text in TEXTS], True)
    np.testing.assert_allclose(index.vectors, of_texts, atol=1e-6)
    query = embedder.encode([of_query + TEXTS[0]], True)
    found = opened.search(TEXTS[0], index, k=5)
    np.testing.assert_allclose(found[0]["score"], (query @ of_texts.T).max(), atol=1e-5)
    index.save(str(tmp_path / "index"))
    again = TextIndex.load(str(tmp_path / "index"), opened)
    assert opened.search(TEXTS[0], again, k=5) == found
    if "passage" in prompts:
        of_texts = embedder.encode([prompts["passage"] + text for text in TEXTS], True)
        np.testing.assert_allclose(opened.index(TEXTS, "passage").vectors, of_texts, atol=1e-6)


def test_vectors_that_are_compared_by_their_products(embedder, tmp_path):
    opened = described(embedder, tmp_path / "model", similarity="dot")
    texts = [*TEXTS, "word " * 30, "1"]
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
    other = described(embedder, tmp_path / "other", similarity="euclidean")
    assert other("a").shape == (32,)
    with pytest.raises(ValueError, match="other: search compares by cosine or dot, not by 'euclidean'"):
        other.search("a", texts)


def test_an_index_is_saved_beside_its_texts(embedder, tmp_path):
    texts = [*TEXTS, 'quotes " and\nlines']
    embedder.index(texts).save(str(tmp_path / "index"))
    assert sorted(path.name for path in (tmp_path / "index").iterdir()) == ["texts.jsonl", "vectors.npy"]
    again = TextIndex.load(tmp_path / "index", embedder)
    assert again.texts == texts
    assert embedder.search(texts[5], again) == embedder.search(texts[5], embedder.index(texts))
    other = Embedder(save(tmp_path / "model", BertModel, {"num_hidden_layers": 2}))
    with pytest.raises(ValueError, match="index was made by another model than .*model, or with another pooling"):
        TextIndex.load(str(tmp_path / "index"), other)
    with pytest.raises(UnicodeEncodeError):  # not when it is saved
        TextIndex(["a\ud800"], np.ones((1, 32)))


def saved(vectors, **options) -> bytes:
    content = io.BytesIO()
    np.save(content, vectors, **options)
    return content.getvalue()


def test_damaged_files_are_refused(embedder, tmp_path):
    changes = (
        ("vectors.npy", lambda _: saved(np.array([open]), allow_pickle=True), "Object arrays cannot be"),
        ("vectors.npy", lambda _: saved(np.full((5, 32), np.nan, np.float32)), r"finite vectors \[5, H\]"),
        ("texts.jsonl", lambda old: old + b'"one more"\n', r"finite vectors \[6, H\], not vectors \[5, 32\]"),
        ("texts.jsonl", lambda old: old.replace(b'"Hello"', b"3"), "texts.jsonl has no JSON object"),
        ("texts.jsonl", lambda old: old.partition(b"\n")[2], "texts.jsonl has no JSON object"),
        ("texts.jsonl", lambda old: old.replace(b"vectors.npy", b"../x"), r"names no file of vectors: .\.\./x"),
    )
    for number, (name, change, message) in enumerate(changes):
        folder = tmp_path / str(number)
        embedder.index(TEXTS).save(str(folder))
        (folder / name).write_bytes(change((folder / name).read_bytes()))
        with pytest.raises(ValueError, match=f"^{folder} is not an index of texts, or damaged: .*{message}"):
            TextIndex.load(str(folder), embedder)

"""Search: results are those of sentence-transformers, and an index is what it was, or refused."""

import shutil

import numpy as np
import pytest
from helpers.exports import save

from bert_tf.models.sentence_settings import SentenceSettings, settings_files
from bert_tf.models.task_models import BertModel
from bert_tf.serving.embedder import Embedder
from bert_tf.serving.text_index import TextIndex

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


def test_prompts_of_queries_and_texts(embedder, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(embedder.path, folder)
    settings = SentenceSettings("", prompts={"query": "query: ", "passage": "A passage of text: "}, described=True)
    for name, content in settings_files(settings, 32).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    with_prompts = Embedder(str(folder))
    index = with_prompts.index(TEXTS)
    np.testing.assert_allclose(index.vectors, with_prompts.encode(TEXTS, True, "passage"), atol=1e-6)
    query = with_prompts.encode(TEXTS[:1], True, "query")
    score = with_prompts.search(TEXTS[0], index, k=5)[0]["score"]
    np.testing.assert_allclose(score, (query @ index.vectors.T).max(), atol=1e-5)
    index.save(str(tmp_path / "index"))
    assert TextIndex.load(str(tmp_path / "index"), with_prompts).prompt_name == "passage"


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
    with pytest.raises(ValueError, match="^the index was made by another model than"):
        other.search("a", again)
    with pytest.raises(ValueError, match="^the index was made by another model than "):
        embedder.search("a", np.ones((2, 7), np.float32))
    with pytest.raises(ValueError, match="an index needs at least one text"):
        embedder.search("a", [])
    with pytest.raises(ValueError, match=r"finite vectors \[1, H\], not vectors \[2, 32\]"):
        TextIndex(["a"], np.ones((2, 32)))
    with pytest.raises(ValueError, match="this one has vectors alone"):
        TextIndex(None, np.ones((2, 32))).save(str(tmp_path / "index"))
    with pytest.raises(FileNotFoundError, match="nowhere is no index of texts, or damaged: .*texts.jsonl"):
        TextIndex.load(str(tmp_path / "nowhere"), embedder)


def saved(vectors, **options) -> bytes:
    import io

    content = io.BytesIO()
    np.save(content, vectors, **options)
    return content.getvalue()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("vectors.npy", lambda old: old[:-40], "vectors.npy: "),
        ("vectors.npy", lambda old: b"", "vectors.npy: "),
        ("vectors.npy", lambda old: saved(np.array([open]), allow_pickle=True), "vectors.npy: Object arrays cannot be"),
        ("vectors.npy", lambda old: saved(np.full((5, 32), np.nan, np.float32)), r"finite vectors \[5, H\]"),
        ("vectors.npy", lambda old: saved(np.ones((4, 32))), r"finite vectors \[5, H\], not vectors \[4, 32\]"),
        ("texts.jsonl", lambda old: old + b'"one more"\n', r"finite vectors \[6, H\], not vectors \[5, 32\]"),
        ("texts.jsonl", lambda old: b"", "texts.jsonl has no JSON object"),
        ("texts.jsonl", lambda old: old[:-4], "texts.jsonl, line 6, column 1: not JSON"),
        ("texts.jsonl", lambda old: old.replace(b'"Hello"', b"3"), "texts.jsonl has no JSON object"),
    ],
)
def test_damaged_files_are_refused(embedder, tmp_path, name, change, message):
    embedder.index(TEXTS).save(str(tmp_path / "index"))
    file = tmp_path / "index" / name
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(ValueError, match=message) as error:
        TextIndex.load(str(tmp_path / "index"), embedder)
    assert str(tmp_path / "index") in str(error.value) and "\n" not in str(error.value)

"""Tagger on directories and exports: the same tags as run_ner.py, and entities at the right places."""

import functools

import numpy as np
import pytest
from helpers.exports import VOCAB, load_no_graphs, save, signature_of
from helpers.slow import slow

from bert_tf import FullTokenizer, Predictor, Tagger
from bert_tf.models import task_models
from bert_tf.serving import export
from bert_tf.store.head_config import softmax
from bert_tf.tasks.ner import data as ner_data
from bert_tf.tasks.ner import encode as ner_encode
from bert_tf.tasks.ner import metrics as ner_tags
from bert_tf.tasks.ner.data import Sentence

TEXTS = [
    "Ada Lovelace  lived in London.",
    "",
    "  ",
    "서울에 (Élodie) 갔다 日本 Ångström",
    "a word " * 100,
    "\u200b\u0007",
]


SENTENCES = [
    ["Ada", "Lovelace", "lived", "in", "London", "."],
    ["U.S.", "soldiers", "(1990)", "met", "Élodie", "and", "김철수"],
    ["\u200b\u0007", "one"],
    [f"word{number}" for number in range(150)],  # longer than the model
    ["x" * 300],
]


def tagger(folder, scheme) -> tuple[str, list[str]]:
    labels = ner_tags.tag_set(scheme, ["LOC", "PER"]) if scheme != "plain" else ["NOUN", "VERB", "X"]
    save(folder, task_models.BertForTokenClassification, num_labels=len(labels), labels=labels)
    (folder / ner_tags.SETTINGS_FILE).write_text(ner_tags.TaggingSettings(learned_scheme=scheme).to_json())
    return str(folder), labels


def tags_of_the_script(path, labels, scheme) -> tuple[list[list[str]], np.ndarray]:
    sentences = [Sentence(words, ["O"] * len(words), [1] * len(words)) for words in SENTENCES]
    rows = ner_encode.encode_sentences(sentences, FullTokenizer(VOCAB), 64)
    model = task_models.BertForTokenClassification.from_pretrained(path)
    options = {"batch_size": 3, "max_seq_length": 64, "static_padding": False}
    logits = ner_encode.predict_logits(lambda batches: map(np.asarray, map(model, batches)), rows, **options)
    return ner_data.predicted_tags(sentences, logits, labels, scheme), softmax(logits).max(-1)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """For a scheme: a tagger's directory, its labels, and its export, opened; made once."""

    @functools.cache
    def make(scheme: str) -> tuple[str, list[str], Tagger]:
        folder = tmp_path_factory.mktemp(scheme)
        path, labels = tagger(folder / "model", scheme)
        export.export_saved_model(path, str(folder / "out"), warm_up=False)
        return path, labels, Tagger(str(folder / "out"), batch_size=3)

    return make


def check_places(text: str, found: dict) -> None:
    for word, start, end in zip(found["words"], found["starts"], found["ends"], strict=True):
        assert text[start:end] == word != ""
    for entity in found["entities"]:
        assert text[entity["start"] : entity["end"]] == entity["text"] != ""
        inside = [entity["start"] <= start < entity["end"] for start in found["starts"]]
        assert entity["score"] == pytest.approx(np.mean(np.array(found["scores"])[inside]), abs=1e-6)


@pytest.mark.parametrize("scheme", ["iob2", *slow("bioes", "plain")])
def test_words_get_the_scripts_tags(exported, scheme):
    path, labels, theirs = exported(scheme)
    tags, scores = tags_of_the_script(path, labels, scheme)
    for one in (Tagger(path, batch_size=3), theirs):
        assert (one.labels, one.scheme, one.max_seq_length) == (labels, scheme, 64)
        found = one.predict(SENTENCES)
        assert [row["words"] for row in found] == SENTENCES
        assert [row["tags"] for row in found] == tags
        np.testing.assert_allclose([score for row in found for score in row["scores"]], scores, atol=1e-5)
        for words, row, own in zip(SENTENCES, found, tags, strict=True):
            check_places(" ".join(words), row)
            expected = [] if scheme == "plain" else ner_tags.entities_of(own, scheme)
            assert [entity["type"] for entity in row["entities"]] == [entity.type for entity in expected]
            assert [entity["text"] for entity in row["entities"]] == [
                " ".join(words[entity.start : entity.end]) for entity in expected
            ]
        entities = [entity["text"] for row in found for entity in row["entities"]]
        assert scheme != "iob2" or any(" " in text for text in entities)  # of several words, whose scores differ


def test_texts_are_cut_into_words_as_the_export_cuts_them(exported):
    mine, theirs = Tagger(exported("iob2")[0], batch_size=2), exported("iob2")[2]
    mixed = [*TEXTS, SENTENCES[0]]  # words and strings in one call
    found, by_export = mine.predict(mixed), theirs.predict(mixed)
    for text, one, other in zip(TEXTS, found, by_export, strict=False):
        check_places(text, one)
        for name in ("words", "tags", "starts", "ends"):
            assert one[name] == other[name], (text, name)
        np.testing.assert_allclose(one["scores"], other["scores"], atol=1e-4)
        assert [entity["text"] for entity in one["entities"]] == [entity["text"] for entity in other["entities"]]
    assert found[0]["words"] == ["Ada", "Lovelace", "lived", "in", "London", "."]
    assert found[3]["words"] == ["서울에", "(", "Élodie", ")", "갔다", "日", "本", "Ångström"]
    assert found[1] == {"words": [], "tags": [], "scores": [], "starts": [], "ends": [], "entities": []}
    assert len(found[4]["tags"]) == 200
    assert found[6]["tags"] == found[0]["tags"] and found[6]["starts"] == [0, 4, 13, 19, 22, 29]
    # One by one they have the same tags.
    assert [mine(text)["tags"] for text in mixed] == [row["tags"] for row in found]
    assert mine(TEXTS) == found[: len(TEXTS)]
    assert mine.predict([]) == theirs.predict([]) == []


@pytest.mark.parametrize("split", ["characters", *slow("characters_and_spaces")])
def test_texts_are_split_as_the_training_data_was(tmp_path, split):
    path, _ = tagger(tmp_path / "model", "iob2")
    settings = ner_tags.TaggingSettings(split=split).to_json()
    (tmp_path / "model" / ner_tags.SETTINGS_FILE).write_text(settings)
    found, by_export = Tagger(path).predict(TEXTS), signature_of(path, "ner", text=TEXTS)
    for row, (text, one) in enumerate(zip(TEXTS, found, strict=True)):
        check_places(text, one)
        count = len(one["words"])
        assert np.count_nonzero(by_export["tags"][row] != b"") == count
        assert [word.decode() for word in by_export["words"][row, :count]] == one["words"]
        assert [tag.decode() for tag in by_export["tags"][row, :count]] == one["tags"]
        for name, tolerance in (("starts", 0), ("ends", 0), ("scores", 1e-4)):
            np.testing.assert_allclose(by_export[name][row, :count], one[name], atol=tolerance)
    with_spaces = split == "characters_and_spaces"
    assert found[3]["words"][:5] == (["서", "울", "에", " ", "("] if with_spaces else ["서", "울", "에", "(", "É"])
    assert [len(row["words"]) for row in found[1:3]] == ([0, 2] if with_spaces else [0, 0])


@pytest.mark.parametrize(("labels", "standard", "scheme"), [
    (["o", "e-loc", "s-loc", "b-loc", "i-loc"], ["O", "E-loc", "S-loc", "B-loc", "I-loc"], "bioes"),
    *slow(
        (["PER_B", "-", "PER_I"], ["B-PER", "O", "I-PER"], "iob2"),
        (["NOUN", "VERB", "X"], ["NOUN", "VERB", "X"], "plain"),
    ),
])  # fmt: skip
def test_a_model_that_spells_its_tags_otherwise(tmp_path, labels, standard, scheme):
    """Models of others have no settings beside them: their labels say what they learned."""
    path = save(tmp_path / "model", task_models.BertForTokenClassification, num_labels=len(labels), labels=labels)
    mine, served = Tagger(path), export.create_served_model(path, "ner")  # what an export is made of
    assert (mine.labels, mine.scheme) == (list(served.labels), served._scheme) == (standard, scheme)
    found = mine.predict(TEXTS)
    tags = {tag for row in found for tag in row["tags"]}
    assert tags <= set(standard) and tags != {"O"}
    assert any(row["entities"] for row in found) == (scheme != "plain")


def test_tagger_rejects_other_texts_and_models(exported, tmp_path, monkeypatch):
    path, _, opened = exported("iob2")
    with pytest.raises(TypeError, match="texts must be a list of strings or lists of words"):
        Tagger(path).predict("Ada")
    with pytest.raises(ValueError, match=r"texts\[0\]: word 1 is empty"):
        Tagger(path)(["Ada", ""])
    load_no_graphs(monkeypatch)
    with pytest.raises(ValueError, match="is an export for ner, not for classification"):
        Predictor(opened.path)
    unnamed = save(tmp_path / "unnamed", task_models.BertForTokenClassification, num_labels=3)
    with pytest.raises(ValueError, match="unnamed does not list the tags that it has learned"):
        Tagger(unnamed)

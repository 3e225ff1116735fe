"""Rows of Parquet files: values, names of classes, limits, and how the tasks read them."""

import datetime
import decimal
import json

import pytest
from helpers.parquet import parquet_of

from bert_tf.data import parquet
from bert_tf.data.tables import TableSettings, named_rows, read_rows
from bert_tf.tasks.ner.data import Layout, read_conll
from bert_tf.tasks.squad.data import read_squad_examples

LIST = {"feature": {"names": ["O", "B-PS", "I-PS"], "_type": "ClassLabel"}, "_type": "Sequence"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "train.parquet"


def test_values_are_those_of_json(path, caplog):
    row = {"text": " a\u00a0", "labels": {"label": 4.9, "real-label": None}, "day": datetime.date(2026, 11, 26),
           "price": decimal.Decimal("1.50"), "image": {"bytes": b"\xff", "path": "x.png"}, "of": ["b ", "c"],
           "n": None}  # fmt: skip
    path.write_bytes(parquet_of([row, row | {"day": None, "n": 3}]))
    with caplog.at_level("INFO"):
        (one, first, _), (two, second, _) = named_rows(str(path), ["text"], TableSettings())
    assert (one, two) == (1, 2)
    assert json.loads(json.dumps(first)) == first == {
        "text": "a", "labels": row["labels"], "labels.label": 4.9, "labels.real-label": None, "day": "2026-11-26",
        "price": "1.50", "of": ["b", "c"], "n": None,
    }  # fmt: skip
    assert (second["day"], second["n"]) == (None, 3)
    assert "train.parquet: left out columns of bytes: image." in caplog.text


def test_numbers_of_classes_have_the_names_in_the_file(path, caplog):
    inner = {"label": LIST["feature"], "n": {"_type": "Value"}, "old": [LIST["feature"]]}  # before there was a Sequence
    rows = [{"label": 1, "tags": [0, 2], "inner": {"label": 0, "n": 7, "old": [1]}}, {"label": -1}]
    classes = {"label": ["no", "yes"], "tags": LIST, "inner": inner}
    path.write_bytes(parquet_of(rows, **classes))
    with caplog.at_level("INFO"):
        (_, first), (_, second) = read_rows(str(path))
    assert (first["label"], first["tags"]) == ("yes", ["O", "I-PS"])
    assert [first[f"inner.{name}"] for name in inner] == ["O", 7, ["B-PS"]]
    assert (second["label"], second["tags"], second["inner"]) == (None, None, None)
    assert "the file names the numbers in 'label', and the names are read: 0 no, 1 yes." in caplog.text
    path.write_bytes(parquet_of([{"label": 2}], label=["no", "yes"]))
    with pytest.raises(ValueError, match=r"train\.parquet: a value in it.* not of the expected kind"):
        list(read_rows(str(path)))


def test_rows_without_bound_raise(path, monkeypatch):
    monkeypatch.setattr(parquet, "_MOST", 1000)
    path.write_bytes(parquet_of([{"text": "a"}] * 1000))
    assert len(list(read_rows(str(path)))) == 1000
    path.write_bytes(parquet_of([{"text": "a"}] * 100_000))
    with pytest.raises(ValueError, match=r"train\.parquet has 100,000 rows in \d+ bytes"):
        list(read_rows(str(path)))


def test_damaged_files_and_those_of_other_kinds(path):
    good = parquet_of([{"text": f"text {number}", "label": "a"} for number in range(100)])
    for content in (good[:-9], good[:4] + b"z" * 60 + good[64:], b"", b"text,label\na,b\n"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"train\.parquet can't be read as Parquet: ") as caught:
            list(read_rows(str(path)))
        assert "\n" not in str(caught.value)


def test_a_file_on_a_remote_file_system(path):
    """A file of TensorFlow's, which pyarrow can't open itself."""
    import tensorflow as tf

    content = parquet_of([{"text": "a"}])
    with tf.io.gfile.GFile("ram://folder/a.parquet", "wb") as file:
        file.write(content)
    assert list(read_rows("ram://folder/a.parquet")) == [(1, {"text": "a"})]


def test_sentences_of_words_and_tags(path):
    rows = [{"sentence": "홍 길동", "tokens": ["홍", " ", "길"], "pos": [1, 2], "ner_tags": [1, 2, 2]},
            {"sentence": "a", "tokens": ["a\tb"], "pos": [1], "ner_tags": [0]}]  # fmt: skip
    path.write_bytes(parquet_of(rows, ner_tags=LIST))
    read = read_conll(str(path), Layout())
    assert [(one.words, one.tags) for one in read.sentences] == [
        (["홍", " ", "길"], ["B-PS", "I-PS", "I-PS"]), (["a b"], ["O"]),
    ]  # fmt: skip
    assert read.lines[:2] == ["홍\t1\tB-PS", " \t2\tI-PS"]
    lines = path.with_name("train.jsonl")
    lines.write_text(json.dumps({"tokens": ["a", "b"], "ner_tags": ["B-X", "O"]}) + "\n")
    assert read_conll(str(lines), Layout()).sentences[0].tags == ["B-X", "O"]


def test_questions(path):
    """As `datasets` has them: a row each, answers as two lists."""
    answers = [(["Seoul"], [0]), (["city"], [11]), ([], [])]
    rows = [
        {"id": f"q{number}", "title": "t", "context": "Seoul is a city.", "question": "Which?",
         "answers": {"text": text, "answer_start": start}}
        for number, (text, start) in enumerate(answers)
    ]  # fmt: skip
    path.write_bytes(parquet_of(rows))
    read = read_squad_examples([str(path)], True, True)
    assert [one.orig_answer_text for one in read.examples] == ["Seoul", "city", ""]
    assert [one.is_impossible for one in read.examples] == [False, False, True]
    assert [len(entry["qas"]) for entry in read.articles[0]["paragraphs"]] == [3]
    lines = path.with_name("train.jsonl")
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_squad_examples([str(lines)], True, True) == read
    with pytest.raises(ValueError, match="train.parquet has 1 questions without answer"):
        read_squad_examples([str(path)], is_training=True)

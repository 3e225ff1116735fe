"""Rows of JSON: a line each, or one array, and values inside of objects."""

import json

import pytest

from bert_tf.data.tables import read_rows
from bert_tf.tasks.classification.data import custom_task
from bert_tf.tasks.classification.data import read_examples as classified
from bert_tf.tasks.similarity.data import Columns
from bert_tf.tasks.similarity.data import read_examples as compared

ROWS = [
    {"guid": "a", "text": "[{"},
    {"guid": "b", "text": "}, {"},
    {"guid": "c", "labels": {"label": 4.9, "of": {"x": 1}}},
]
INNER = [{}, {}, {"labels.label": 4.9, "labels.of.x": 1}]


def rows_of(path, text):
    path.write_text(text, encoding="utf-8")
    return list(read_rows(str(path)))


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("".join(json.dumps(row) + "\n" for row in ROWS), [1, 2, 3]),
        ("\ufeff\n" + "\n\n".join(map(json.dumps, ROWS)), [2, 4, 6]),
        (json.dumps(ROWS), [1, 1, 1]),
        ("\n \n" + json.dumps(ROWS, indent=4) + "\n", [4, 8, 12]),
        ("[" + ",\n".join(map(json.dumps, ROWS)) + "\n]", [1, 2, 3]),
        ("[\n" + "\n, ".join(map(json.dumps, ROWS)) + "]", [2, 3, 4]),
    ],
)
def test_rows_and_their_lines(tmp_path, text, lines):
    expected = [(line, row | inner) for line, row, inner in zip(lines, ROWS, INNER, strict=True)]
    assert rows_of(tmp_path / "a.json", text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('\n[\n{"a": 1},\n{"a": 2\n]', r"a\.json, line 5, column 1: not JSON"),
        ('[{"a": 1} {"a": 2}]', r"a\.json, line 1, column 11: not JSON"),
        ('[{"a": 1}]\n{"a": 2}', r"a\.json, line 2, column 1: not JSON: Extra data"),
        ('[{"a": 1},\n[2]]', r"a\.json, line 2: expected a JSON object, found list"),
        ('{"a": 1}\n[2]', r"a\.json, line 2: expected a JSON object, found list"),
        ('{"a": 1}\n{', r"a\.json, line 2, column 2: not JSON"),
    ],
)
def test_mistakes(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        rows_of(tmp_path / "a.json", text)


def test_nothing(tmp_path):
    assert rows_of(tmp_path / "a.json", "") == rows_of(tmp_path / "a.json", "[]") == []


def test_klue(shared):
    """Arrays as published; the score of a pair is inside of `labels`."""
    folder = shared / "data" / "korean" / "klue"
    path = str(folder / "klue-nli-v1.1_dev.json")
    task = custom_task(path, None, None, text_a="premise", text_b="hypothesis", label="gold_label")
    assert set(task.labels) == {"contradiction", "entailment", "neutral"}
    examples = classified(task, task.train)
    assert (
        len(examples) == 3000
        and examples[0].label == "contradiction"
        and examples[0].text_b.startswith("어떤 방에서도")
    )
    path = str(folder / "klue-sts-v1.1_dev.json")
    task = custom_task(path, None, None, text_a="sentence1", text_b="sentence2", label="labels.label", regression=True)
    assert [example.label for example in classified(task, task.train)][:2] == [4.9, 1.4]
    pairs = compared(path, columns=Columns("sentence1", "sentence2", score="labels.label"), score_range=(0, 5))
    assert len(pairs) == 519 and [pair.score for pair in pairs[:2]] == pytest.approx([0.98, 0.28])

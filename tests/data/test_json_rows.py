"""Rows of JSON: a line each, or one array, and values inside of objects."""

import json

import pytest

from bert_tf.data.tables import field_of, read_rows

ROWS = [
    {"guid": "a", "text": "[{"},
    {"guid": "b", "text": "}, {"},
    {"guid": "c", "labels": {"label": 4.9, "of": {"x": 1}}},
]
INNER = [{}, {}, {"labels.label": 4.9, "labels.of.x": 1}]


def rows_of(path, text):
    path.write_text(text, encoding="utf-8")
    return list(read_rows(str(path)))


@pytest.mark.parametrize(("text", "lines"), [
    ("".join(json.dumps(row) + "\n" for row in ROWS), [1, 2, 3]),
    ("\ufeff\n" + "\n\n".join(map(json.dumps, ROWS)), [2, 4, 6]),
    (json.dumps(ROWS), [1, 1, 1]),
    ("\n \n" + json.dumps(ROWS, indent=4) + "\n", [4, 8, 12]),
    ("[" + ",\n".join(map(json.dumps, ROWS)) + "\n]", [1, 2, 3]),
    ("[\n" + "\n, ".join(map(json.dumps, ROWS)) + "]", [2, 3, 4]),
    ("\n" + "\n".join(json.dumps(row, indent=1) for row in ROWS), [2, 6, 10]),
])  # fmt: skip
def test_rows_and_their_lines(tmp_path, text, lines):
    expected = [(line, row | inner) for line, row, inner in zip(lines, ROWS, INNER, strict=True)]
    assert rows_of(tmp_path / "a.json", text) == expected


@pytest.mark.parametrize(("text", "message"), [
    ('\n[\n{"a": 1},\n{"a": 2\n]', r"a\.json, line 5, column 1: not JSON"),
    ('[{"a": 1} {"a": 2}]', r"a\.json, line 1, column 11: not JSON"),
    ('[{"a": 1},\n[2]]', r"a\.json, line 2: expected a JSON object, found list"),
    ('{"a": 1}\n{', r"a\.json, line 2, column 2: not JSON"),
    ('{\n"a": 1\n}\n{"a": }\n', r"a\.json, line 4: not JSON: Expecting value: line 4 column 7"),
])  # fmt: skip
def test_mistakes(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        rows_of(tmp_path / "a.json", text)


@pytest.mark.parametrize("indent", [None, 1])
def test_lists_of_rows_in_an_object(tmp_path, indent):
    [(line, row)] = rows_of(tmp_path / "a.json", json.dumps({"version": 1, "train": ROWS, "test": ROWS}, indent=indent))
    with pytest.raises(
        ValueError, match="a.json, line 1: no 'text'; .*; if 'train' has the rows, the file must be that"
    ):
        field_of(row, "text", "a.json", line)


def test_nothing(tmp_path):
    assert rows_of(tmp_path / "a.json", "") == rows_of(tmp_path / "a.json", "[]") == []

"""Rows of files: .csv with other delimiters than commas, JSON as a line each or one array."""

import json

import pytest

from bert_tf.data.tables import TableSettings, field_of, read_rows

NAMES = ("text", "label")


def rows_of(tmp_path, content: str, csv_delimiter=None, columns=NAMES, name="train.csv"):
    path = tmp_path / name
    path.write_bytes(content.encode())
    return list(read_rows(str(path), TableSettings(csv_delimiter=csv_delimiter), columns))


@pytest.mark.parametrize(
    ("delimiter", "newline", "start"), [(",", "\n", ""), (";", "\r\n", ""), ("\t", "\n", "\ufeff"), ("|", "\n", "")]
)
def test_the_header_tells_the_delimiter(tmp_path, delimiter, newline, start):
    lines = [["id", "text", "label"], ["1", "It cost me 3 nights.", "bad"], ["2", f'"a{delimiter}b ""c"""', "good"]]
    content = start + newline.join(delimiter.join(line) for line in lines) + newline
    assert rows_of(tmp_path, content) == [
        (1, ["id", "text", "label"]),
        (2, ["1", "It cost me 3 nights.", "bad"]),
        (3, ["2", f'a{delimiter}b "c"', "good"]),
    ]


def test_semicolons_with_decimal_commas_and_quoted_newlines(tmp_path, caplog):
    content = 'text;label\n"Es kostet 3,50; zu viel\n, finde ich";1,5\nGut, wirklich;4,5\n'
    with caplog.at_level("INFO"):
        rows = rows_of(tmp_path, content)
    assert rows == [
        (1, ["text", "label"]),
        (2, ["Es kostet 3,50; zu viel\n, finde ich", "1,5"]),
        (4, ["Gut, wirklich", "4,5"]),
    ]
    assert caplog.text.count("train.csv: the delimiter is the semicolon, according to the header.") == 1


def test_a_row_with_more_fields_than_the_first_is_an_error(tmp_path):
    content = "text;label\nGood tea;praise\n\nMy kettle leaks; please help;repair\n"
    message = r"train\.csv, line 4: 3 columns, but line 1 has 2. A field that contains the delimiter must be in double"
    with pytest.raises(ValueError, match=message):
        rows_of(tmp_path, content)
    for name in ("a.tsv", "b.tsv"):  # in whatever row is longer than the first
        with pytest.raises(ValueError, match=r"line 2: 3 columns, but line 1 has 2"):
            rows_of(tmp_path, "film\tup\nseen\ttwice\tdown\n", name=name, columns=None)


def test_commas_in_names_and_single_columns(tmp_path, caplog):
    with caplog.at_level("INFO"):
        assert rows_of(tmp_path, "text,label\na;b,1\n")[1] == (2, ["a;b", "1"])
        # One column: only the comma is unambiguous.
        assert rows_of(tmp_path, "text\na; b | c\n", columns=("text",))[1] == (2, ["a; b | c"])
        # With columns by number, the first row may be an example.
        assert rows_of(tmp_path, "so; la la,1\n", columns=None) == [(1, ["so; la la", "1"])]
        # The caller reports which column is missing.
        assert rows_of(tmp_path, "words,label\na,1\n")[0] == (1, ["words", "label"])
        assert rows_of(tmp_path, "words;label\na;1\n", name="other.csv")[0] == (1, ["words", "label"])
    assert caplog.text.count("the delimiter is") == 1  # the comma goes without saying
    assert rows_of(tmp_path, '"text, or so";label\na,b;1\n', columns=("text, or so",))[1] == (2, ["a,b", "1"])


@pytest.mark.parametrize(("content", "columns"), [
    ("words;label|x\na;1\n", NAMES),  # a name is missing with both delimiters that split
    ("text;label;x,label,y\na;b,c\n", ("label",)),  # two delimiters give the name
    ("good;1\n", None),  # by number
    ("a;b|c\n1;2|3\n", ()),
])  # fmt: skip
def test_what_is_not_clear_is_an_error(tmp_path, content, columns):
    with pytest.raises(ValueError, match=r"train\.csv, line 1: the delimiter is ambiguous: give --csv_delimiter"):
        rows_of(tmp_path, content, columns=columns)


def test_a_given_delimiter_is_taken(tmp_path):
    assert rows_of(tmp_path, "words;label\na;1\n", ";") == [(1, ["words", "label"]), (2, ["a", "1"])]
    assert rows_of(tmp_path, "a^1\n", "^", columns=None) == [(1, ["a", "1"])]
    with pytest.raises(ValueError, match=r"data\.jsonl: --csv_delimiter is for \.csv files"):
        rows_of(tmp_path, '{"text": "a"}\n', ";", name="data.jsonl")
    with pytest.raises(ValueError, match=r"train\.csv, line 2: not CSV"):
        rows_of(tmp_path, 'text;label\n"a" b;1\n')


@pytest.mark.parametrize(
    "content", [b"PK\x03\x04\x14\0", b"\xef\xbb\xbf\n<!DOCTYPE html>\n<html>", b"\xd0\xcf\x11\xe0\xa1", b"PAR1"]
)
def test_what_is_no_table(tmp_path, content):
    (tmp_path / "train.csv").write_bytes(content)
    with pytest.raises(ValueError, match=r"train\.csv is an? "):
        list(read_rows(str(tmp_path / "train.csv"), TableSettings(), NAMES))


@pytest.mark.parametrize("first", ["\ufeffsep=;\r\n", '"sep=;"\n', "SEP=;;\n"])
def test_the_delimiter_that_a_first_line_names_for_excel(tmp_path, first):
    content = first + "text;label\na,b;1\nc,d;2,5\n"
    expected = [(2, ["text", "label"]), (3, ["a,b", "1"]), (4, ["c,d", "2,5"])]
    assert rows_of(tmp_path, content) == rows_of(tmp_path, content, ";") == expected
    assert rows_of(tmp_path, content, columns=None) == expected
    assert rows_of(tmp_path, first.replace(";", "\t") + "text\tlabel\n")[0] == (2, ["text", "label"])


@pytest.mark.parametrize(("name", "content", "cell"), [
    ("a.csv", 'text,label\r\n"a\rb\rc\rd\r\r",1\r\r\n', "a\rb\rc\rd"),
    ("a.tsv", "text\tlabel\r\na\rb\r\t1\r\r\n\r\n", "a\rb"),
    ("a.jsonl", '\r\n{"text": "a\\rb\\rc", "label": "1"}\r\n', "a\rb\rc"),
])  # fmt: skip
def test_a_carriage_return_in_a_cell_is_whitespace(tmp_path, name, content, cell):
    """As pandas writes and reads it."""
    number, row = rows_of(tmp_path, content, name=name)[-1]
    assert (number, *(row.values() if isinstance(row, dict) else row)) == (2, cell, "1")


def test_a_carriage_return_that_ends_a_row(tmp_path):
    with pytest.raises(ValueError, match=r"train\.csv, line 2: not CSV: a carriage return outside of quotation marks"):
        rows_of(tmp_path, "text,label\ngood,1\rbad,0\n")


def test_a_quotation_mark_that_is_not_closed(tmp_path):
    content = 'text,label\n"two\nlines",a\nx,"y\nz,a\n"q"",b\n'
    for cut, line in ((content, 4), (content[: content.index("z")], 4), ('text,label\n"a\nb","c\n', 2)):
        with pytest.raises(ValueError, match=rf"train\.csv, line {line}: not CSV: .* is written twice"):
            rows_of(tmp_path, cut)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
def test_cells_mean_what_they_look_like(tmp_path, name):
    """Blanks and byte order marks at the ends, also at the start of lines, as in files that were joined."""
    cells = [
        ["\ufefftext\u00a0", " label\u200b"], [" good film\u3000", "pos\ufeff"], ["\ufeffbad\u00a0film", "\u00a0neg "],
        [" ", "\u00a0"],
    ]  # fmt: skip
    if name.endswith("jsonl"):
        lines = [f'\ufeff {{"{cells[0][0]}": "{text}", "{cells[0][1]}": ["{label}"]}}\t' for text, label in cells[1:3]]
        expected = [{"text": "good film", "label": ["pos"]}, {"text": "bad\u00a0film", "label": ["neg"]}]
        assert rows_of(tmp_path, "\n".join(lines), name=name) == list(enumerate(expected, 1))
        return
    content = "\n".join(("," if name == "a.csv" else "\t").join(row) for row in [*cells, cells[0]])
    assert rows_of(tmp_path, content, name=name) == [
        (1, ["text", "label"]), (2, ["good film", "pos"]), (3, ["bad\u00a0film", "neg"]),
    ]  # fmt: skip


def test_a_quoted_cell_after_a_byte_order_mark_inside_a_joined_file(tmp_path, caplog):
    part = '\ufefftext,label\n"good, really",pos\n'
    content = part + part.replace("good", "bad") + '\ufeff"so, so",\n'
    expected = [(1, ["text", "label"]), (2, ["good, really", "pos"]), (4, ["bad, really", "pos"]), (5, ["so, so", ""])]
    assert rows_of(tmp_path, content) == expected
    assert "train.csv: left out rows that repeat the header: 1, the first in line 3" in caplog.text
    assert rows_of(tmp_path, "text,label\na,b\n,\n ,\t\n")[1:] == [(2, ["a", "b"])]
    assert "train.csv: left out rows that have no text in any column: 2, the first in line 3" in caplog.text


def test_without_settings_every_character_counts(tmp_path):
    (tmp_path / "a.tsv").write_text("\ufeffa \t\u00a0b\n \t \n", encoding="utf-8")
    assert list(read_rows(str(tmp_path / "a.tsv"))) == [(1, ["a ", "\u00a0b"]), (2, [" ", " "])]


ROWS = [
    {"guid": "a", "text": "[{"},
    {"guid": "b", "text": "}, {"},
    {"guid": "c", "labels": {"label": 4.9, "of": {"x": 1}}},
]
INNER = [{}, {}, {"labels.label": 4.9, "labels.of.x": 1}]


@pytest.mark.parametrize(("text", "lines"), [
    ("".join(json.dumps(row) + "\n" for row in ROWS), [1, 2, 3]),
    ("\ufeff\n" + "\n\n".join(map(json.dumps, ROWS)), [2, 4, 6]),
    (json.dumps(ROWS), [1, 1, 1]),
    ("\n \n" + json.dumps(ROWS, indent=4) + "\n", [4, 8, 12]),
    ("[" + ",\n".join(map(json.dumps, ROWS)) + "\n]", [1, 2, 3]),
    ("[\n" + "\n, ".join(map(json.dumps, ROWS)) + "]", [2, 3, 4]),
    ("\n" + "\n".join(json.dumps(row, indent=1) for row in ROWS), [2, 6, 10]),
])  # fmt: skip
def test_json_rows_and_their_lines(tmp_path, text, lines):
    expected = [(line, row | inner) for line, row, inner in zip(lines, ROWS, INNER, strict=True)]
    assert rows_of(tmp_path, text, name="a.json") == expected


@pytest.mark.parametrize(("text", "message"), [
    ('\n[\n{"a": 1},\n{"a": 2\n]', r"a\.json, line 5, column 1: not JSON"),
    ('[{"a": 1} {"a": 2}]', r"a\.json, line 1, column 11: not JSON"),
    ('[{"a": 1},\n[2]]', r"a\.json, line 2: expected a JSON object, found list"),
    ('{"a": 1}\n{', r"a\.json, line 2, column 2: not JSON"),
    ('{\n"a": 1\n}\n{"a": }\n', r"a\.json, line 4: not JSON: Expecting value: line 4 column 7"),
])  # fmt: skip
def test_json_mistakes_are_named(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        rows_of(tmp_path, text, name="a.json")


@pytest.mark.parametrize("indent", [None, 1])
def test_json_lists_of_rows_in_an_object(tmp_path, indent):
    [(line, row)] = rows_of(tmp_path, json.dumps({"train": ROWS, "test": ROWS}, indent=indent), name="a.json")
    with pytest.raises(
        ValueError, match="a.json, line 1: no 'text'; .*; if 'train' has the rows, the file must be that"
    ):
        field_of(row, "text", "a.json", line)


def test_a_json_file_without_rows(tmp_path):
    assert rows_of(tmp_path, "", name="a.json") == rows_of(tmp_path, "[]", name="a.json") == []

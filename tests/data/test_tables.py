"""Rows of files: .csv with other delimiters than commas, .tsv, JSON, Parquet; and rows of several windows."""

import dataclasses
import datetime
import decimal
import json

import numpy as np
import pytest
from helpers.hub_server import parquet_of

from bert_tf.data import tables, token_rows
from bert_tf.data.tables import TableSettings, field_of, named_rows, read_rows
from bert_tf.data.token_rows import Share, WindowRows

NAMES = ("text", "label")


def rows_of(tmp_path, content: str | bytes, csv_delimiter=None, columns=NAMES, name="train.csv"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(read_rows(str(path), TableSettings(csv_delimiter=csv_delimiter), columns))


@pytest.mark.parametrize(
    ("delimiter", "newline", "start"), [(",", "\n", ""), (";", "\r\n", ""), ("\t", "\n", "\ufeff"), ("|", "\n", "")]
)
def test_the_header_tells_the_delimiter(tmp_path, delimiter, newline, start):
    lines = [["id", "text", "label"], ["1", "It cost me 3 nights.", "bad"], ["2", f'"a{delimiter}b ""c"""', "good"]]
    content = start + newline.join(delimiter.join(line) for line in lines) + newline
    assert rows_of(tmp_path, content) == list(enumerate([*lines[:2], ["2", f'a{delimiter}b "c"', "good"]], 1))


EXCEL = [(2, ["text", "label"]), (3, ["a,b", "1"]), (4, ["c,d", "2,5"])]
JOINED = '\ufefftext,label\n"good, really",pos\n\ufefftext,label\n"bad, really",pos\n\ufeff"so, so",\n'
HEADER, WORDS = (1, ["text", "label"]), [(1, ["words", "label"]), (2, ["a", "1"])]
# content, arguments, rows
READ = {
    "decimal commas and quoted newlines": (
        'text;label\n"Es kostet 3,50; zu viel\n, finde ich";1,5\nGut, wirklich;4,5\n', {},
        [HEADER, (2, ["Es kostet 3,50; zu viel\n, finde ich", "1,5"]), (4, ["Gut, wirklich", "4,5"])],
    ),
    "a comma": ("text,label\na;b,1\n", {}, [HEADER, (2, ["a;b", "1"])]),
    "one column: only the comma is unambiguous": (
        "text\na; b | c\n", {"columns": ("text",)}, [(1, ["text"]), (2, ["a; b | c"])],
    ),
    "columns by number: the first row may be an example": (
        "so; la la,1\n", {"columns": None}, [(1, ["so; la la", "1"])],
    ),
    "the caller reports which column is missing": ("words,label\na,1\n", {}, WORDS),
    "also with another delimiter": ("words;label\na;1\n", {}, WORDS),
    "a comma in a name": (
        '"text, or so";label\na,b;1\n', {"columns": ("text, or so",)},
        [(1, ["text, or so", "label"]), (2, ["a,b", "1"])],
    ),
    "a given delimiter": ("words;label\na;1\n", {"csv_delimiter": ";"}, WORDS),
    "any character": ("a^1\n", {"csv_delimiter": "^", "columns": None}, [(1, ["a", "1"])]),
    **{
        f"a first line for Excel, {first!r}, {given}": (f"{first}text;label\na,b;1\nc,d;2,5\n", given, EXCEL)
        for first in ("\ufeffsep=;\r\n", '"sep=;"\n', "SEP=;;\n")
        for given in ({}, {"csv_delimiter": ";"}, {"columns": None})
    },
    "a tab for Excel": ("\ufeffsep=\t\r\ntext\tlabel\n", {}, [(2, ["text", "label"])]),
    # A carriage return in a cell is whitespace, as pandas writes and reads it.
    "carriage returns": ('text,label\r\n"a\rb\rc\rd\r\r",1\r\r\n', {}, [HEADER, (2, ["a\rb\rc\rd", "1"])]),
    "carriage returns in .tsv": (
        "text\tlabel\r\na\rb\r\t1\r\r\n\r\n", {"name": "a.tsv"}, [HEADER, (2, ["a\rb", "1"])],
    ),
    "carriage returns in JSON": (
        '\r\n{"text": "a\\rb\\rc", "label": "1"}\r\n', {"name": "a.jsonl"}, [(2, {"text": "a\rb\rc", "label": "1"})],
    ),
    "a joined file": (
        JOINED, {}, [HEADER, (2, ["good, really", "pos"]), (4, ["bad, really", "pos"]), (5, ["so, so", ""])],
    ),
    "blank rows": ("text,label\na,b\n,\n ,\t\n", {}, [HEADER, (2, ["a", "b"])]),
    "an empty JSON file": ("", {"name": "a.json"}, []),
    "an empty array": ("[]", {"name": "a.json"}, []),
}  # fmt: skip
LOGGED = {
    "decimal commas and quoted newlines": "train.csv: the delimiter is the semicolon, according to the header.",
    "a joined file": "train.csv: left out rows that repeat the header: 1, the first in line 3",
    "blank rows": "train.csv: left out rows that have no text in any column: 2, the first in line 3",
}


@pytest.mark.parametrize("case", READ)
def test_rows(tmp_path, caplog, case):
    content, arguments, expected = READ[case]
    with caplog.at_level("INFO"):
        assert rows_of(tmp_path, content, **arguments) == expected
    if case in LOGGED:
        assert caplog.text.count(LOGGED[case]) == 1
    if "," in content.split("\n")[0] and ";" not in content:  # it goes without saying
        assert "the delimiter is" not in caplog.text


AMBIGUOUS = r"train\.csv, line 1: the delimiter is ambiguous: give --csv_delimiter"
QUOTED = 'text,label\n"two\nlines",a\nx,"y\nz,a\n"q"",b\n'
LONGER = r"line 2: 3 columns, but line 1 has 2"


@pytest.mark.parametrize(("content", "arguments", "message"), [
    ("words;label|x\na;1\n", {}, AMBIGUOUS),  # a name is missing with both delimiters that split
    ("text;label;x,label,y\na;b,c\n", {"columns": ("label",)}, AMBIGUOUS),  # two delimiters give the name
    ("good;1\n", {"columns": None}, AMBIGUOUS),  # by number
    ("a;b|c\n1;2|3\n", {"columns": ()}, AMBIGUOUS),
    ("{}\n", {"csv_delimiter": ";", "name": "data.jsonl"}, r"data\.jsonl: --csv_delimiter is for \.csv files"),
    ('text;label\n"a" b;1\n', {}, r"train\.csv, line 2: not CSV"),
    ("text;label\nGood tea;praise\n\nMy kettle leaks; please help;repair\n", {},
     r"train\.csv, line 4: 3 columns, but line 1 has 2. A field that contains the delimiter must be in double"),
    *(("film\tup\nseen\ttwice\tdown\n", {"name": name, "columns": None}, LONGER) for name in ("a.tsv", "b.tsv")),
    ("text,label\ngood,1\rbad,0\n", {}, r"train\.csv, line 2: not CSV: a carriage return outside of quotation marks"),
    (QUOTED, {}, r"train\.csv, line 4: not CSV: .* is written twice"),
    (QUOTED[: QUOTED.index("z")], {}, r"train\.csv, line 4: not CSV: .* is written twice"),
    ('text,label\n"a\nb","c\n', {}, r"train\.csv, line 2: not CSV: .* is written twice"),
    *((start, {}, r"train\.csv is an? ") for start in ("PK\x03\x04\x14\0", "\ufeff\n<!DOCTYPE html>\n<html>", "PAR1")),
    (b"\xd0\xcf\x11\xe0\xa1", {}, r"train\.csv is a file of Excel"),
    ('\n[\n{"a": 1},\n{"a": 2\n]', {"name": "a.json"}, r"a\.json, line 5, column 1: not JSON"),
    ('[{"a": 1} {"a": 2}]', {"name": "a.json"}, r"a\.json, line 1, column 11: not JSON"),
    ('[{"a": 1},\n[2]]', {"name": "a.json"}, r"a\.json, line 2: expected a JSON object, found list"),
    ('{"a": 1}\n{', {"name": "a.json"}, r"a\.json, line 2, column 2: not JSON"),
    ('{\n"a": 1\n}\n{"a": }\n', {"name": "a.json"}, r"a\.json, line 4: not JSON: Expecting value: line 4 column 7"),
])  # fmt: skip
def test_mistakes_are_named(tmp_path, content, arguments, message):
    with pytest.raises(ValueError, match=message):
        rows_of(tmp_path, content, **arguments)


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
    expected = [HEADER, (2, ["good film", "pos"]), (3, ["bad\u00a0film", "neg"])]
    assert rows_of(tmp_path, content, name=name) == expected


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


@pytest.mark.parametrize("indent", [None, 1])
def test_json_lists_of_rows_in_an_object(tmp_path, indent):
    [(line, row)] = rows_of(tmp_path, json.dumps({"train": ROWS, "test": ROWS}, indent=indent), name="a.json")
    message = "a.json, line 1: no 'text'; .*; if 'train' has the rows, the file must be that"
    with pytest.raises(ValueError, match=message):
        field_of(row, "text", "a.json", line)


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
    monkeypatch.setattr(tables, "_MOST_PARQUET_ROWS", 1000)
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


LENGTH = 8


def window_rows_of(totals, pad_id=0) -> WindowRows:
    """Examples of so many tokens in all their windows, numbered from 100 on."""
    counts = [-(-total // LENGTH) for total in totals]
    sizes = [min(LENGTH, total - LENGTH * k) for total, count in zip(totals, counts, strict=True) for k in range(count)]
    offsets = np.cumsum([0, *sizes], dtype=np.int64)
    return WindowRows(
        np.arange(100, 100 + offsets[-1], dtype=np.int32), offsets, np.array(sizes, np.int32),
        {"label_ids": np.arange(len(totals), dtype=np.int32)}, first_rows=np.cumsum([0, *counts], dtype=np.int64),
        window_length=LENGTH, pad_id=pad_id,
    )  # fmt: skip


def test_a_batch_by_hand():
    rows = window_rows_of([5, 19, 8], pad_id=1)
    assert (len(rows), rows.windows.tolist(), rows.lengths.tolist()) == (3, [1, 3, 1], [5, 19, 8])
    assert rows.row_lengths.tolist() == [5, 8, 8, 3, 8]
    batch = rows.batch([1, 0], 3 * LENGTH)
    shapes = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), (2, 3, LENGTH)) | {"label_ids": (2,)}
    assert {name: values.shape for name, values in batch.items()} == shapes
    assert {values.dtype for values in batch.values()} == {np.dtype(np.int32)}
    ids, mask = batch["input_ids"], batch["input_mask"]
    assert ids[0].tolist() == [list(range(105, 113)), list(range(113, 121)), [121, 122, 123, 1, 1, 1, 1, 1]]
    assert mask[0].sum(-1).tolist() == [8, 8, 3]
    # The windows that the text does not have.
    assert ids[1, 0].tolist() == [100, 101, 102, 103, 104, 1, 1, 1] and mask[1].sum(-1).tolist() == [5, 0, 0]
    assert (ids[1, 1:] == 1).all() and not batch["segment_ids"].any() and batch["label_ids"].tolist() == [1, 0]
    # Texts of one window are as ordinary rows.
    alone = rows.batch([0, 2], 8)
    plain = rows.rows.batch([0, 4], 8)
    for name in ("input_ids", "input_mask", "segment_ids"):
        np.testing.assert_array_equal(alone[name][:, 0], plain[name])
    assert rows.batch([0], 5)["input_ids"].shape == (1, 1, 5)


def test_the_checksum_knows_which_windows_are_of_one_text():
    rows = window_rows_of([16, 8])
    other = dataclasses.replace(rows, first_rows=np.array([0, 1, 3]))
    assert rows.checksum == window_rows_of([16, 8]).checksum != other.checksum


def batches_of(rows, start_step, count, **arguments):
    arguments = {"batch_size": 4, "seed": 3, "max_seq_length": LENGTH, **arguments}
    batches = token_rows.training_batches(rows, start_step=start_step, **arguments)
    return [{name: value.numpy() for name, value in batch.items()} for batch in batches.take(count)]


def test_batches():
    """Alike texts go together, a resumed run goes on with the same batches, and replicas get parts of one shape."""
    totals = np.random.default_rng(0).integers(2, 70, 40)
    rows = window_rows_of(totals.tolist())
    whole = batches_of(rows, 0, 60)
    computed = sum(batch["input_mask"][..., 0].size for batch in whole)
    real = sum(batch["input_mask"][..., 0].sum() for batch in whole)
    assert real > 0.9 * computed
    assert {batch["input_mask"].shape[1] for batch in whole} <= {1, 2, 3, 4, 6, 8, 9}
    for batch in whole:  # every text is whole
        np.testing.assert_array_equal(batch["input_mask"].sum((1, 2)), totals[batch["label_ids"]])
    for start in (7, 43):  # after which a window of fifty batches ends
        for one, other in zip(whole[start:], batches_of(rows, start, 60 - start), strict=True):
            assert all(np.array_equal(one[name], other[name]) for name in one)
    half, *quarters = batches_of(rows, 0, 60, share=Share(2, 0, 1)), *batches_of(rows, 0, 120, share=Share(4, 2, 2))
    for batch, *parts in zip(whole, half, quarters[::2], quarters[1::2], strict=True):
        assert all(np.array_equal(np.concatenate([part[name] for part in parts]), batch[name]) for name in batch)
    static = batches_of(rows, 3, 7, static_padding=True)
    assert {batch["input_ids"].shape for batch in static} == {(4, int(rows.windows.max()), LENGTH)}
    order = np.concatenate([batch["label_ids"] for batch in static])  # as they were drawn, not by their lengths
    np.testing.assert_array_equal(order, token_rows.permutation(40, 3, 0, 0)[12:40])


def test_evaluation_gives_every_example_once():
    rows = window_rows_of([5, 30, 8, 17, 64, 2, 9])
    seen = []
    for batch in token_rows.evaluation_batches(rows, batch_size=3, max_seq_length=LENGTH):
        seen.append(batch["input_mask"].numpy().sum((1, 2)).astype(np.float32))
    assert token_rows.in_order(rows, 3, seen).tolist() == rows.lengths.tolist()

"""Reading classification examples: official layouts, their pitfalls, users' own files, and errors."""

import contextlib
import json
import math
import re

import pandas
import pytest
from helpers.hub_server import parquet_of
from helpers.tiny import custom_task

from bert_tf.tasks import rows as task_rows
from bert_tf.tasks.classification import data, settings
from bert_tf.tasks.classification.settings import ClassificationSettings

PAIRS = "index|sentence1|sentence2"
STS_B = "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2"
QQP = "id|qid1|qid2|question1|question2|is_duplicate"
# Task -> file -> lines as in the official downloads, with | for tabs; the first has names but in CoLA's train and dev.
GLUE_LAYOUTS = {
    "cola": {"train.tsv": ['gj04|1||An "unbalanced one.', "bc01|0|*|Two"], "dev.tsv": ["gj04|0|*|Three"],
             "test.tsv": ["index|sentence", "0|Four"]},
    "sst-2": {"train.tsv": ["sentence|label", "\u00a0fine |1"], "dev.tsv": ["sentence|label", "bad|0"],
              "test.tsv": ["index|sentence", "0|so so"]},
    "sts-b": {"train.tsv": [f"{STS_B}|score", "0|g|f|2012|1|none|none|A plane.|An air plane.|4.250"],
              "dev.tsv": [f"{STS_B}|score", "0|g|f|2012|1|none|none|A|B|0"],
              "test.tsv": [STS_B, "0|g|f|2012|1|none|none|A|B"]},
    "qqp": {"train.tsv": [QQP, "1|2|3|Why?|How?|0", "4|5|6|cut off", "7|8|9|Who?|Who?|1"],
            "dev.tsv": [QQP, "1|2|3|a|b|0"], "test.tsv": ["id|question1|question2", "0|Why?|How?"]},
    "qnli": {"train.tsv": ["index|question|sentence|label", "0|Q?|S.|entailment"],
             "dev.tsv": ["index|question|sentence|label", "0|Q?|S.|not_entailment"],
             "test.tsv": ["index|question|sentence", "0|Q?|S."]},
    "rte": {"train.tsv": [f"{PAIRS}|label", "0|A|B|not_entailment"], "dev.tsv": [f"{PAIRS}|label", "0|A|B|entailment"],
            "test.tsv": [PAIRS, "0|A|B"]},
    "wnli": {"train.tsv": [f"{PAIRS}|label", "0|A|B|1"], "dev.tsv": [f"{PAIRS}|label", "0|A|B|0"],
             "test.tsv": [PAIRS, "0|A|B"]},
    "ax": {"diagnostic.tsv": [PAIRS, "0|A|B"]},
}  # fmt: skip


def write_lines(path, lines, bom=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((bom + "".join(line.replace("|", "\t") + "\r\n" for line in lines)).encode("utf-8"))


# text_a, text_b, label and guid of the first training example, of ax of the first test example: read to the letter.
@pytest.mark.parametrize(("name", "expected"), [
    ("cola", ('An "unbalanced one.', None, "1", "train-0")),
    ("sst-2", ("\u00a0fine ", None, "1", "train-1")),
    ("sts-b", ("A plane.", "An air plane.", 4.25, "train-1")),
    ("qqp", ("Why?", "How?", "0", "train-1")),
    ("qnli", ("Q?", "S.", "entailment", "train-1")),
    ("rte", ("A", "B", "not_entailment", "train-1")),
    ("wnli", ("A", "B", "1", "train-1")),
    ("ax", ("A", "B", None, "test-1")),
])  # fmt: skip
def test_official_layouts(tmp_path, name, expected):
    for file, lines in GLUE_LAYOUTS[name].items():
        write_lines(tmp_path / file, lines, "" if name == "cola" else "\ufeff")
    task = data.find_task(name)
    splits = {split: where for split, where in {"train": task.train, **task.dev, **task.test}.items() if where}
    examples = {split: data.read_examples(task, where, str(tmp_path)) for split, where in splits.items()}
    first = examples["train" if task.train else "test"][0]
    assert (first.text_a, first.text_b, first.label, first.guid) == expected
    assert [example.label for example in examples["test"]] == [None]
    if name == "qqp":  # the short row is left out and the others keep their numbers
        assert [example.guid for example in examples["train"]] == ["train-1", "train-3"]


def test_mnli_mismatched_and_xnli_in_another_language(tmp_path):
    header = "index|1|2|3|4|5|6|7|sentence1|sentence2|label1|gold_label"
    write_lines(tmp_path / "dev_mismatched.tsv", [header, "31|32|33|34|35|36|37|38|P|H|neutral|entailment"])
    task = data.find_task("MNLI")
    example = data.read_examples(task, task.dev["dev_mismatched"], str(tmp_path))[0]
    assert example == task_rows.InputExample("dev_mismatched-31", "P", "H", "entailment")
    rows = ["language|gold_label|a|b|c|d|sentence1|sentence2", "zh|neutral|a|b|c|d|一|二", "ko|neutral|a|b|c|d|하나|둘"]
    for name in ("dev", "test"):
        write_lines(tmp_path / f"xnli.{name}.tsv", rows)
    write_lines(tmp_path / "multinli" / "multinli.train.ko.tsv", ["premise|hypo|label", "가|나|contradictory"])
    task = data.find_task("xnli", "ko")
    assert data.read_examples(task, task.train, str(tmp_path))[0].label == "contradiction"
    expected = task_rows.InputExample("dev-2", "하나", "둘", "neutral")
    assert data.read_examples(task, task.dev["dev"], str(tmp_path)) == [expected]
    assert data.read_examples(task, task.test["test"], str(tmp_path))[0].label == "neutral"


@pytest.mark.parametrize(("name", "counts"), [
    ("MRPC", (3668, 408, 1725)), ("CoLA", (8551, 1043, None)), ("RTE", (2490, 277, None)),
    ("SST-2", (67349, 872, None)), ("STS-B", (5749, 1500, None)), ("WNLI", (635, 71, None)),
])  # fmt: skip
def test_real_files(shared, name, counts):
    task = data.find_task(name)
    directory = str(shared / "data" / "glue" / name)
    for split, count in zip((task.train, task.dev["dev"], task.test["test"]), counts, strict=True):
        if count:
            assert len(data.read_examples(task, split, directory)) == count


RTE = f"{PAIRS}|label"


@pytest.mark.parametrize(("name", "lines", "message"), [
    ("rte", [RTE], r"train\.tsv has no example"),
    ("qqp", [*GLUE_LAYOUTS["qqp"]["train.tsv"], "8|9|9|a|b|2"], r"train\.tsv, line 5: the label '2' is not one of '0'"),
    ("rte", [RTE, "0|A|B"], r"train\.tsv, line 2: no '3'; found '0', '1', '2'"),
    ("sst-2", ["sentence|label", "fine|1 "], "line 2: the label '1 ' is not one of"),
])  # fmt: skip
def test_glue_reader_rejects(tmp_path, name, lines, message):
    write_lines(tmp_path / "train.tsv", lines)
    task = data.find_task(name)
    with pytest.raises(ValueError, match=message):
        data.read_examples(task, task.train, str(tmp_path))


def test_missing_file_unknown_task_and_other_language(tmp_path):
    task = data.find_task("sts_b")
    with pytest.raises(FileNotFoundError, match=r"train\.tsv"):
        data.read_examples(task, task.train, str(tmp_path))
    with pytest.raises(ValueError, match=r"--task_name=sst is not one of cola, sst-2, .*custom"):
        data.find_task("sst")
    with pytest.raises(ValueError, match="--language=de: --task_name=MRPC has one language only"):
        data.find_task("MRPC", "de")


CUSTOM = {
    "tsv": 'text\tstars\tmore\nso "so\t3\tx\nfine\t10\ty\n',
    "csv": 'text,stars,more\n"so ""so",3,x\nfine,10,y\n',
    "jsonl": '{"text": "so \\"so", "stars": 3}\n\n{"text": "fine", "stars": "10"}\n',
}


BY_NUMBER = {"text_a": "0", "label": "1"}
SEVERAL = {"multi_label": True}


def own_task(tmp_path, content, name="train.csv", test_file=None, **arguments):
    (tmp_path / name).write_text(content, encoding="utf-8")
    own = {"train_file": str(tmp_path / name), "test_file": test_file, "text_a": "text", "label": "label"}
    return custom_task(ClassificationSettings(**own | arguments))


@pytest.mark.parametrize("kind", CUSTOM)
def test_custom_files_by_name(tmp_path, kind):
    task = own_task(tmp_path, CUSTOM[kind], f"train.{kind}", test_file=str(tmp_path / f"train.{kind}"), label="stars")
    assert task.labels == ("3", "10")  # sorted as numbers
    examples = data.read_examples(task, task.train)
    assert [(example.text_a, example.label) for example in examples] == [('so "so', "3"), ("fine", "10")]
    assert data.read_examples(task, task.test["test"])[0].label is None
    regression = own_task(tmp_path, CUSTOM[kind], f"train.{kind}", label="stars", regression=True)
    assert [example.label for example in data.read_examples(regression, regression.train)] == [3.0, 10.0]


def test_custom_files_by_number_have_no_header(tmp_path):
    task = own_task(tmp_path, 'b,"first, of\ntwo lines",second\na,x,y\n', text_a="1", text_b="-1", label="0")
    assert task.labels == ("a", "b")
    expected = task_rows.InputExample("train-0", "first, of\ntwo lines", "second", "b")
    assert data.read_examples(task, task.train)[0] == expected


@pytest.mark.parametrize(("values", "given", "labels", "found"), [
    ([["pos"], ["neg"], "pos"], {}, ("neg", "pos"), ["pos", "neg", "pos"]),
    ([True, "TRUE", False, "true"], {}, ("false", "true"), ["true", "true", "false", "true"]),
    ([1, 1.0, "1", "0.0", [0.0]], {}, ("0", "1"), ["1", "1", "1", "0", "0"]),
    ([1, 0.0], {"labels": ["1.0", "0.0"]}, ("1.0", "0.0"), ["1.0", "0.0"]),
    ([[0, 1], [1, 0]], {}, ("0", "1"), ["1", "0"]),
    ([{"a": 1, "b": 0}, {"a": False, "b": True}], {}, ("a", "b"), ["a", "b"]),
    ([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]], SEVERAL, ("0", "1", "2"), [("1",), ()]),
    ([[True, False], [False, True]], SEVERAL, ("0", "1"), [("0",), ("1",)]),
    ([[1, 0], [0, 1]], SEVERAL, ("0", "1"), [("0",), ("1",)]),
    ([[0, 1, 1], [1, 0, 0]], SEVERAL | {"labels": ["x", "y", "z"]}, ("x", "y", "z"), [("y", "z"), ("x",)]),
    ([{"x": 0, "y": True}, {"x": 0.0, "y": 0}], SEVERAL, ("x", "y"), [("y",), ()]),
    ([[1, 0], [1], []], SEVERAL, ("0", "1"), [("1", "0"), ("1",), ()]),  # numbers as names
    ([[27], [2, 14]], SEVERAL, ("2", "14", "27"), [("27",), ("2", "14")]),
    (["[0. 1.  0.]", "[1 1 0]"], SEVERAL, ("0", "1", "2"), [("1",), ("0", "1")]),  # arrays, as text
    (["['pos' 'neg']", "('neg',)"], SEVERAL, ("neg", "pos"), [("pos", "neg"), ("neg",)]),
    (["[true, false]", "[ True  True]"], SEVERAL, ("0", "1"), [("0",), ("0", "1")]),
    (['{"x": true, "y": 0}'], SEVERAL, ("x", "y"), [("x",)]),
    ([["[a]", "b"], "c, b", 1.0, []], SEVERAL, ("1", "[a]", "b", "c"), [("[a]", "b"), ("c", "b"), ("1",), ()]),
    (["[a]", "[b]"], {}, ("[a]", "[b]"), ["[a]", "[b]"]),
])  # fmt: skip
def test_values_that_are_labels(tmp_path, caplog, values, given, labels, found):
    lines = "".join(json.dumps({"text": "a", "label": value}) + "\n" for value in values)
    cells = pandas.DataFrame({"text": "a", "label": pandas.Series(values, dtype=object)}).to_csv(index=False)
    for name, content in {"a.jsonl": lines, "a.csv": cells}.items():
        with caplog.at_level("INFO", logger="absl"):
            task = own_task(tmp_path, content, name, **given)
            assert (task.labels, [row.label for row in data.read_examples(task, task.train)]) == (labels, found), name
    said = "Each row has 0 or 1 for each of 3 labels: 0, 1, 2."
    assert caplog.text.count(said) == (labels == ("0", "1", "2"))


@pytest.mark.parametrize(("values", "given", "message"), [
    *((["a", value], {}, "line 2: there is no label") for value in (math.nan, [])),
    (["a", None], SEVERAL, "line 2: there is no label"),
    (["a", ["a", "b"]], {}, r"line 2: one label is expected \(or --multi_label\), found \['a', 'b'\]"),
    ([[0, 1], [0, 0]], {}, r"line 2: one label is expected .*found \[0, 0\]"),
    ([[0.0, 1.0], [1.0]], SEVERAL, r"line 2: 0 or 1 is expected for each of 2 labels, found \[1.0\]"),
    ([[0, 1, 1], [0, 2, 1]], SEVERAL, "line 2: the label '1' is 2, where 0 or 1 is expected"),
    ([{"name": "pos"}], {}, "line 1: the label 'name' is 'pos', where 0 or 1 is expected"),
    (["a", math.inf], {}, "line 2: inf is neither a label nor a list of different labels"),
    *((["a", value], SEVERAL, "line 2: .* is neither") for value in ([0.5, 0.7], [["b"]], ["b", None], ["b", "b"])),
    (["a", "[x, y]"], SEVERAL, r"line 2: '\[x, y\]' can't be read as a list"),
    (["a", '["b", null]'], SEVERAL, "line 2: .* is neither a label"),
    ([1.5, True], {"regression": True}, "line 2: a number is expected as label, found True"),
])  # fmt: skip
def test_values_that_are_no_labels(tmp_path, values, given, message):
    lines = "".join(json.dumps({"text": "a", "label": value}) + "\n" for value in values)
    with pytest.raises(ValueError, match=rf"a\.jsonl, {message}"):
        data.read_examples(task := own_task(tmp_path, lines, "a.jsonl", **given), task.train)


def test_lists_are_read_as_those_of_the_training_file(tmp_path):
    for name, labels in {"train": ([0, 1], [1], [0]), "dev": ([0, 1], [1, 0])}.items():
        rows = [json.dumps({"text": "a", "label": label}) + "\n" for label in labels]
        (tmp_path / f"{name}.jsonl").write_text("".join(rows))
    files = {f"{name}_file": str(tmp_path / f"{name}.jsonl") for name in ("train", "dev")}
    task = custom_task(ClassificationSettings(**files, text_a="text", label="label", multi_label=True))
    assert [row.label for row in data.read_examples(task, task.dev["dev"])] == [("0", "1"), ("1", "0")]


def test_missing_labels_are_left_out_where_the_classes_are_given(tmp_path, caplog):
    rows = [{"text": "a", "label": value} for value in (1.0, math.nan, None, 0.0)]
    (tmp_path / "a.parquet").write_bytes(parquet_of(rows))
    own = {"train_file": f"{tmp_path}/a.parquet", "text_a": "text", "label": "label", "labels": ["0", "1"]}
    task = custom_task(ClassificationSettings(**own))
    assert [row.label for row in data.read_examples(task, task.train)] == ["1", "0"]
    assert "left out rows that have no label ('-' or null): 2, the first in line 2" in caplog.text


def test_a_column_of_0_and_1_for_each_label(tmp_path):
    table = "text,toxic,obscene\nx,0,1\ny,1.0,1\nz,false,0\n"
    rows = ('{"text": "x", "toxic": 0, "obscene": 1}\n{"text": "y", "toxic": 1.0, "obscene": true}\n'
            '{"text": "z", "toxic": false, "obscene": 0}\n')  # fmt: skip
    for name, content in {"a.csv": table, "a.tsv": table.replace(",", "\t"), "a.jsonl": rows}.items():
        path = tmp_path / name
        path.write_text(content)
        for labels in (None, ["Toxic", "Obscene"]):
            first, second = labels or ("toxic", "obscene")
            given = {"text_a": "text", "label": "toxic,obscene", "labels": labels, "multi_label": True}
            task = custom_task(ClassificationSettings(train_file=str(path), dev_file=str(path), **given))
            assert task.labels == (first, second)
            found = [example.label for example in data.read_examples(task, task.dev["dev"])]
            assert found == [(second,), (first, second), ()], name


# What all formats of tables have in common is in tests/data/.
@pytest.mark.parametrize(("name", "content", "changes", "message"), [
    ("a.csv", "text,label\nx,1\n", {"text_a": "words"}, r"a\.csv, line 1: no 'words'; found 'text', 'label'"),
    ("a.jsonl", '{"text": null, "label": "x"}\n', {}, "found None in 'text'$"),
    ("a.tsv", "text\tlabel\nx\t1\ny\t1\n", {}, "1 classes in the column 'label': there is nothing to learn"),
    ("a.tsv", "text\tlabel\nx\t1\n", {"label": "1"}, "all columns by name, or all by number"),
    # The row with the mistake begins in line 4, since a field spans lines 2 and 3.
    ("a.csv", 'text,label\n"x\ny",1\n"z\nz"\n', {}, r"a\.csv, line 4: no 'label'; found 'text'"),
    ("a.tsv", "x\tyes\ny\tno\nz\tmaybe\n", BY_NUMBER | {"labels": ["yes", "no"]},
     r"a\.tsv, line 3: the label 'maybe' is not one of 'yes', 'no'"),
    ("a.tsv", "x\t1\n", BY_NUMBER | {"regression": True, "labels": ["a"]}, "--regression has no classes"),
    ("a.tsv", "x\t1\n", {"train_file": None, "text_a": "0", "label": None}, "--train_file, or --labels"),
    *(("a.tsv", f"text\tlabel\nx\t1e3\ny\t{value}\n", {"regression": True},
       rf"a\.tsv, line 3: a number is expected as label, .*'{value}'") for value in ("nan", "4,5")),
    ("b.tsv", "x\t1\t0\ny\t2\t0\n", {"text_a": "0", "label": "1,2"} | SEVERAL,
     r"b\.tsv, line 2: the label '1' is '2', where 0 or 1 is expected"),
])  # fmt: skip
def test_classification_reader_rejects(tmp_path, name, content, changes, message):
    with pytest.raises(ValueError, match=message):
        data.read_examples(task := own_task(tmp_path, content, name, **changes), task.train)


def test_data_of_another_task_are_noticed(tmp_path):
    readers = [name for name in GLUE_LAYOUTS if name != "ax"]
    for name in readers:
        write_lines(tmp_path / name / "train.tsv", GLUE_LAYOUTS[name]["train.tsv"])
        for task in map(data.find_task, {*readers} - {name}):
            with pytest.raises(ValueError, match=f"{tmp_path / name}/train.tsv, line "):
                data.read_examples(task, task.train, str(tmp_path / name))
    write_lines(tmp_path / "sst-2" / "test.tsv", GLUE_LAYOUTS["sst-2"]["dev.tsv"])
    task = data.find_task("sst-2")
    with pytest.raises(ValueError, match=r"test\.tsv, line 1: column 1 should be 'sentence' and is 'label'"):
        data.read_examples(task, task.test["test"], str(tmp_path / "sst-2"))


def test_labels_in_a_test_set_and_blank_lines_are_reported(tmp_path, caplog):
    task = data.find_task("rte")
    rows = "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n\n1\tc\td\tnot_entailment\n"
    (tmp_path / "test.tsv").write_text(rows)
    with caplog.at_level("INFO", logger="absl"):
        examples = data.read_examples(task, task.test["test"], str(tmp_path))
    assert [(example.guid, example.label) for example in examples] == [("test-1", None), ("test-2", None)]
    assert "test.tsv, line 1: a test set has no labels; 'label' is not used" in caplog.text
    assert "test.tsv: skipped 1 blank lines" in caplog.text


def test_labels_and_columns_that_look_alike_are_the_same(tmp_path, caplog):
    content = "\ufefftext ,label\u00a0\na,very good \nb,\ufeffvery\u00a0good\nc, 나쁨\nd,"
    content += "\u1102\u1161\u1108\u1173\u11b7\n"
    task = own_task(tmp_path, content, text_a="text\u00a0", label=" label")
    assert task.labels == ("very good", "나쁨")
    labels = [example.label for example in data.read_examples(task, task.train)]
    assert labels == ["very good", "very good", "나쁨", "나쁨"]
    task = own_task(tmp_path, content, labels=["나쁨\u200b", "very\u00a0good "])
    assert task.labels == ("나쁨", "very good")
    several = own_task(tmp_path, 'text,label\na,"x,\u00a0y"\nb,"y ,\ufeffx"\n', multi_label=True)
    assert several.labels == ("x", "y")
    content = "text,label\na,Positive\nb,positive\nc,negative\nd,NEGATIVE\ne,negative\n"
    assert len(own_task(tmp_path, content).labels) == 4
    task = own_task(tmp_path, content, labels=["negative", "positive"])
    found = [example.label for example in data.read_examples(task, task.train)]
    assert found == ["positive", "positive", "negative", "negative", "negative"]
    assert caplog.text.count("the label 'Positive' is read as 'positive'") == 1


@pytest.mark.parametrize(("header", "labels", "raises", "is_warned"), [
    ("text,label", ["good", "bad"], True, True),
    ("Review,Sentiment", ["good", "bad"], True, True),
    ("내용,평가", ["0", "1"], True, False),  # the others are numbers
    ("내용,평가", ["good", "bad"], False, True),
    ("a film,good", ["good", "bad"], False, False),
])  # fmt: skip
def test_a_header_that_is_read_as_an_example_is_named(tmp_path, caplog, header, labels, raises, is_warned):
    content = header + "\n" + "".join(f"text {number},{labels[number % 2]}\n" for number in range(8))
    text, label = header.split(",")
    expected = pytest.raises(ValueError, match=f"'{label}', .* header, name .*: --text_a={text} --label={label}")
    with expected if raises else contextlib.nullcontext():
        own_task(tmp_path, content, **BY_NUMBER)
    assert ("header" in caplog.text) == is_warned


def test_a_dev_set_with_texts_of_the_training_set_is_reported(caplog):
    rows = [task_rows.InputExample(str(number), f"text {number}", label="x") for number in range(300)]
    pair = [task_rows.InputExample("0", "text 0", "pair")]
    for dev in (rows, rows[:1] + rows[:200:2], pair, rows[:1], rows[199::-1]):
        settings.warn_of_known_texts(rows[:200], dev)
    assert [record.args for record in caplog.records] == [(300, 200), (101, 101), (1, 1), (200, 200)]
    caplog.clear()
    for dev in (rows[:200], rows[199:], []):
        settings.warn_of_known_texts(rows[:200], dev)
    assert not caplog.records


@pytest.mark.parametrize(("labels", "message"), [
    (range(100, 130), "each of the 30 rows has a label of its own, as '100': .*--regression"),
    ([f"user-{number}" for number in range(6)], "each of the 6 rows has a label of its own, as 'user-0'"),
    ([0.25, 0.5, 0.5, 1.25], "3 numbers as classes, such as '0.25': if they are scores, give --regression"),
    ([*"abba", "b\ntext 0,b"], "rows with the text of an earlier row and another label: 1"),
    ([*"abba-"], "'-' is taken for a class; --labels=first,second"),
    ([*range(60)] * 2, "60 numbers as classes, such as '0': if they are scores, give --regression"),
    *((usual, "") for usual in (
        ["good", "bad"], [*range(1, 6)] * 3, ["1.0", "0.0", "1.0"], [f"intent {n}" for n in range(150)] * 3)),
])  # fmt: skip
def test_labels_that_are_no_classes_are_named(tmp_path, caplog, labels, message):
    said, rows = "", "".join(f"text {number},{label}\n" for number, label in enumerate(labels))
    try:
        own_task(tmp_path, f"text,label\n{rows}")
    except ValueError as error:
        said = str(error)
    said += "".join(record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert re.search(rf"train\.csv: ({message})", said) if message else not said

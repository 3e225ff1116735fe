"""What is told of the labels and texts of users' own classification files."""

import contextlib
import re

import pytest

from bert_tf.tasks.classification import data, glue, label_checks


def own_task(tmp_path, content, name="train.csv", **arguments):
    (tmp_path / name).write_text(content, encoding="utf-8")
    by_name = {"text_a": "text", "label": "label"}
    return data.custom_task(str(tmp_path / name), None, None, **{**by_name, **arguments})


BY_NUMBER = {"text_a": "0", "label": "1"}


def test_labels_and_columns_that_look_alike_are_the_same(tmp_path):
    content = (
        "\ufefftext ,label\u00a0\na,very good \nb,\ufeffvery\u00a0good\nc, 나쁨\nd,\u1102\u1161\u1108\u1173\u11b7\n"
    )
    task = own_task(tmp_path, content, text_a="text\u00a0", label=" label")
    assert task.labels == ("very good", "나쁨")
    labels = [example.label for example in data.read_examples(task, task.train)]
    assert labels == ["very good", "very good", "나쁨", "나쁨"]
    task = own_task(tmp_path, content, labels=["나쁨\u200b", "very\u00a0good "])
    assert task.labels == ("나쁨", "very good")
    several = own_task(tmp_path, 'text,label\na,"x,\u00a0y"\nb,"y ,\ufeffx"\n', multi_label=True)
    assert several.labels == ("x", "y")


def test_glue_is_read_to_the_letter(tmp_path):
    rows = "sentence\tlabel\nfine \t1\n\u00a0bad\t0\n"
    (tmp_path / "train.tsv").write_text(rows, encoding="utf-8")
    task = glue.find_task("sst-2")
    assert [example.text_a for example in data.read_examples(task, task.train, str(tmp_path))] == ["fine ", "\u00a0bad"]
    (tmp_path / "train.tsv").write_text("sentence\tlabel\nfine\t1 \n")
    with pytest.raises(ValueError, match="line 2: the label '1 ' is not one of"):
        data.read_examples(task, task.train, str(tmp_path))


@pytest.mark.parametrize(
    ("header", "labels", "is_refused"),
    [
        ("text,label", ["good", "bad"], True),
        ("Review,Sentiment", ["good", "bad"], True),
        ("내용,평가", ["0", "1"], True),  # the others are numbers
        ("so la la,average", ["good", "bad"], False),
        ("a film,good", ["good", "bad"], False),
    ],
)
def test_a_header_that_is_read_as_an_example_is_named(tmp_path, header, labels, is_refused):
    content = header + "\n" + "".join(f"text {number},{labels[number % 2]}\n" for number in range(8))
    text, label = header.split(",")
    expected = pytest.raises(ValueError, match=f"'{label}', .* header, name .*: --text_a={text} --label={label}")
    with expected if is_refused else contextlib.nullcontext():
        own_task(tmp_path, content, **BY_NUMBER)


def test_labels_that_differ_in_case(tmp_path, caplog):
    content = "text,label\na,Positive\nb,positive\nc,negative\nd,NEGATIVE\ne,negative\n"
    assert len(own_task(tmp_path, content).labels) == 4
    task = own_task(tmp_path, content, labels=["negative", "positive"])
    found = [example.label for example in data.read_examples(task, task.train)]
    assert found == ["positive", "positive", "negative", "negative", "negative"]
    assert caplog.text.count("the label 'Positive' is read as 'positive'") == 1


def test_a_dev_set_with_texts_of_the_training_set_is_told(caplog):
    rows = [data.InputExample(str(number), f"text {number}", label="x") for number in range(300)]
    for dev in (rows, rows[:1] + rows[:200:2], [data.InputExample("0", "text 0", "pair")], rows[:1]):
        label_checks.warn_of_known_texts(rows[:200], dev)
    assert [record.args for record in caplog.records] == [(300, 200), (101, 101), (1, 1)]
    caplog.clear()
    for dev in (rows[:200], rows[199:], []):
        label_checks.warn_of_known_texts(rows[:200], dev)
    assert not caplog.records


def table_of(labels) -> str:
    return "text,label\n" + "".join(f"text {number},{label}\n" for number, label in enumerate(labels))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (range(100, 130), "each of the 30 rows has a label of its own, as '100': .*--regression"),
        ([f"user-{number}" for number in range(6)], "each of the 6 rows has a label of its own, as 'user-0'"),
        ([0.25, 0.5, 0.5, 1.25], "3 numbers as classes, such as '0.25': if they are scores, give --regression"),
        ([*range(60)] * 2, "60 numbers as classes, such as '0': if they are scores, give --regression"),
    ],
)
def test_labels_that_are_no_classes_are_named(tmp_path, caplog, labels, message):
    said = ""
    try:
        own_task(tmp_path, table_of(labels))
    except ValueError as error:
        said = str(error)
    assert re.search(rf"train\.csv: ({message})", said + caplog.text)


def test_usual_classes_are_not_complained_of(tmp_path, caplog):
    for labels in (["good", "bad"], [*range(1, 6)] * 3, ["1.0", "0.0", "1.0"], [f"intent {n}" for n in range(150)] * 3):
        own_task(tmp_path, table_of(labels))
    assert not [record for record in caplog.records if record.levelname == "WARNING"]

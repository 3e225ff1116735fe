"""Predictions that are joined to the rows of their file: ids, texts and all columns, as JSON lines and as CSV."""

import csv
import json

import numpy as np
import pandas
import pytest

from bert_tf.data.tables import TableSettings, read_rows
from bert_tf.tasks.choice import data as choice_data
from bert_tf.tasks.choice import outputs as choice_outputs
from bert_tf.tasks.classification import data, encode
from bert_tf.tasks.classification.settings import ClassificationSettings
from bert_tf.tasks.similarity import data as similarity_data
from bert_tf.tasks.similarity import outputs as similarity_outputs
from bert_tf.training.settings import FineTuningSettings

FILES = {
    "new.csv": '번호,text,label,date\nA-7,"good, ""really""\nvery",pos,1 May\nA-8,bad,,2 May\n',
    "new.jsonl": '{"번호": "A-7", "text": "good, \\"really\\"\\nvery", "label": "pos", "date": "1 May"}\n'
    '{"번호": "A-8", "text": "bad", "label": "", "date": "2 May"}\n',
    "numbers.tsv": "A-7\tgood\tpos\nA-8\tbad\tneg\n",
}
LOGITS = np.array([[0.0, 2.0], [3.0, 0.0]], np.float32)


@pytest.fixture
def folder(tmp_path):
    for name, content in FILES.items():
        (tmp_path / name).write_text(content, encoding="utf-8", newline="")
    return tmp_path


def predictions(folder) -> tuple[list[dict], list[dict]]:
    """What is in predictions.jsonl and in predictions.csv."""
    lines = (folder / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    assert (folder / "predictions.csv").read_bytes()[:5] == b"\xef\xbb\xbfgu"  # for Excel
    with open(folder / "predictions.csv", encoding="utf-8-sig", newline="") as file:
        return list(map(json.loads, lines)), list(csv.DictReader(file))


def predict(folder, name, text_a="text", several=False, **table):
    labels = ["neg", "pos"]
    task = data.custom_task(
        None, None, str(folder / name), text_a=text_a, labels=labels, multi_label=several, table=TableSettings(**table)
    )
    examples = data.read_examples(task, task.test["test"])
    encode.write_predictions(str(folder), "", task, examples, LOGITS, as_csv=True)
    return predictions(folder)


@pytest.mark.parametrize("name", ["new.csv", "new.jsonl"])
def test_all_columns_of_a_classifiers_file(folder, name):
    records, rows = predict(folder, name, id_column="번호", copy_columns=["all"])
    assert [record["guid"] for record in records] == (["test-1", "test-2"] if "csv" in name else ["test-0", "test-1"])
    assert [record["번호"] for record in records] == [row["번호"] for row in rows] == ["A-7", "A-8"]
    assert records[0]["text"] == rows[0]["text"] == 'good, "really"\nvery' and rows[1]["date"] == "2 May"
    assert [record["label"] for record in records] == [row["label"] for row in rows] == ["pos", "neg"]
    assert [record["input_label"] for record in records] == [row["input_label"] for row in rows] == ["pos", ""]
    assert next(read_rows(str(folder / "predictions.csv")))[1][0] == "guid"
    assert list(pandas.read_csv(folder / "predictions.csv")["번호"]) == ["A-7", "A-8"]
    assert pandas.read_csv(folder / "predictions.csv").columns[0] == "guid"
    for record, row in zip(records, rows, strict=True):
        assert float(row["probability_pos"]) == record["probabilities"]["pos"]
    assert list(rows[0]) == [
        "guid", "번호", "text", "input_label", "date", "label", "probability_neg", "probability_pos",
    ]  # fmt: skip


def test_chosen_columns_by_number_and_several_labels(folder):
    records, rows = predict(folder, "numbers.tsv", "1", id_column="0", copy_columns=["-1"], several=True)
    assert [(record["0"], record["-1"], record["labels"]) for record in records] == [
        ("A-7", "pos", ["pos"]), ("A-8", "neg", ["neg"]),
    ]  # fmt: skip
    assert rows[0]["labels"] == "pos"
    records, _ = predict(folder, "numbers.tsv", "1", copy_columns=["all"])
    assert list(records[0])[:4] == ["guid", "0", "1", "2"]


def test_without_flags_nothing_is_added(folder):
    records, rows = predict(folder, "new.csv")
    assert list(records[0]) == ["guid", "label", "probabilities"] and "text" not in rows[0]


def test_pairs_and_choices(folder):
    (folder / "pairs.csv").write_text("id,query,positive,score\n7,a,b,0.5\n8,c,d,1\n")
    table = TableSettings(id_column="id", copy_columns=["query", "score"])
    columns = similarity_data.Columns("query", "positive")
    examples = similarity_data.read_examples(str(folder / "pairs.csv"), columns, table=table)
    vectors = np.array([[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]], np.float32)
    similarity_outputs.write_predictions(str(folder), examples, vectors, as_csv=True)
    records, rows = predictions(folder)
    assert records[0] == {"guid": "0", "id": "7", "query": "a", "score": "0.5", "cosine": pytest.approx(1.0)}
    assert rows[1]["id"] == "8" and float(rows[1]["cosine"]) == pytest.approx(0.0)
    (folder / "choices.csv").write_text("id,context,choices0,choices1\n7,a,b,c\n8,d,e,f\n")
    examples = choice_data.read_examples(
        str(folder / "choices.csv"), labels_needed=False, table=TableSettings(id_column="id", copy_columns=["context"])
    )
    choice_outputs.write_predictions(str(folder), examples, LOGITS, as_csv=True)
    records, rows = predictions(folder)
    assert [(record["id"], record["context"], record["text"]) for record in records] == [
        ("7", "a", "c"),
        ("8", "d", "e"),
    ]
    assert float(rows[0]["probability_1"]) == pytest.approx(records[0]["probabilities"][1])


def test_ids_are_checked(folder, caplog):
    with pytest.raises(ValueError, match=r"new\.csv, line 1: no 'row' for --id_column; found '번호', 'text'"):
        predict(folder, "new.csv", id_column="row")
    (folder / "new.csv").write_text("id,text\n7,a\n,b\n")
    with pytest.raises(ValueError, match=r"new\.csv, line 3: --id_column=id is empty"):
        predict(folder, "new.csv", id_column="id")
    (folder / "new.csv").write_text("id,text\n7,a\n8,b\n7,c\n8,d\n")
    with pytest.raises(ValueError, match="zip"):  # there are logits of two examples only
        predict(folder, "new.csv", id_column="id")
    assert "rows with the --id_column of an earlier row: 2; the first is '7' in lines 2 and 4" in caplog.text


def test_flags_are_refused_before_tensorflow_is_imported(folder):
    own = {"task_name": "custom", "test_file": str(folder / "new.csv"), "text_a": "text", "label": "label"}
    run = FineTuningSettings(output_dir=str(folder / "out"), do_predict=True)
    ClassificationSettings(**own, id_column="번호", copy_columns=["date"]).check(run)
    with pytest.raises(ValueError, match=r"new\.csv, line 1: no 'day' for --\w+; found"):
        ClassificationSettings(**own, copy_columns=["day"]).check(run)
    train = FineTuningSettings(output_dir=str(folder / "out"), do_eval=True)
    for name, value in (("id_column", "번호"), ("copy_columns", ["all"]), ("predictions_csv", True)):
        with pytest.raises(ValueError, match=f"--{name} is for predictions: give --do_predict"):
            ClassificationSettings(**own, dev_file=str(folder / "new.csv"), **{name: value}).check(train)
    with pytest.raises(ValueError, match="--id_column is for --task_name=custom"):
        ClassificationSettings(task_name="MRPC", data_dir=str(folder), id_column="0").check(run)
    # Train and dev files need no such columns.
    task = data.custom_task(str(folder / "new.csv"), None, None, text_a="text", label="date",
                            table=TableSettings(id_column="row"))  # fmt: skip
    assert task.labels == ("1 May", "2 May")

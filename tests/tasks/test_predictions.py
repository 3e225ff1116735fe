"""Predictions that are joined to the rows of their file: ids, texts and all columns."""

import numpy as np
import pytest
from helpers.paths import lines_of

from bert_tf.data.tables import TableSettings
from bert_tf.store.description import ModelFiles, SentenceSettings
from bert_tf.tasks.choice import data as choice_data
from bert_tf.tasks.choice.task import ChoiceTask
from bert_tf.tasks.classification import data
from bert_tf.tasks.classification.settings import ClassificationSettings, custom_task, declared_task
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.similarity import data as similarity_data
from bert_tf.tasks.similarity.task import SimilarityTask
from bert_tf.tasks.task import ExampleSet

CSV = '번호,text,label,date\nA-7,"good, ""really""\nvery",pos,1 May\nA-8,bad,,2 May\n'
JSON_LINES = (
    '{"번호": "A-7", "text": "good, \\"really\\"\\nvery", "label": "pos", "date": "1 May"}\n'
    '{"번호": "A-8", "text": "bad", "label": "", "date": "2 May"}\n'
)
NUMBERS = "A-7\tgood\tpos\nA-8\tbad\tneg\n"
ALL = {"번호": "A-7", "text": 'good, "really"\nvery', "input_label": "pos", "date": "1 May"}
LOGITS = np.array([[0.0, 2.0], [3.0, 0.0]], np.float32)


@pytest.mark.parametrize(("name", "content", "text_a", "copied", "guid", "columns"), [
    ("new.csv", CSV, "text", ["all"], "test-1", ALL),
    ("new.jsonl", JSON_LINES, "text", ["all"], "test-0", ALL),
    ("new.csv", CSV, "text", [" 번호"], "test-1", {"번호": "A-7"}),
    ("new.csv", CSV, "text", [], "test-1", {}),
    ("new.tsv", NUMBERS, "1", ["0", "-1"], "test-0", {"0": "A-7", "-1": "pos"}),
    ("new.tsv", NUMBERS, "1", ["all"], "test-0", {"0": "A-7", "1": "good", "2": "pos"}),
])  # fmt: skip
@pytest.mark.parametrize("several", [False, True])
def test_columns_of_a_classifiers_file(tmp_path, name, content, text_a, copied, guid, columns, several):
    (tmp_path / name).write_text(content, encoding="utf-8", newline="")
    file, labels = str(tmp_path / name), ["neg", "pos"]
    own = {"test_file": file, "text_a": text_a, "labels": labels, "multi_label": several, "copy_columns": copied}
    task = custom_task(ClassificationSettings(**own))
    run = ClassificationTask(None)
    run.task = task
    examples = data.read_examples(task, task.test["test"])
    run.write_predictions(str(tmp_path), ExampleSet("test", None, examples), LOGITS)
    first, second = lines_of(tmp_path / "predictions.jsonl")
    if several:
        columns = {{"input_label": "label"}.get(name, name): value for name, value in columns.items()}
    answer = {"labels": ["pos"]} if several else {"label": "pos"}
    assert list(first) == ["guid", *columns, *answer, "probabilities"]
    assert first == {"guid": guid, **columns, **answer, "probabilities": first["probabilities"]}
    assert second["guid"] != guid and second["labels" if several else "label"] == (["neg"] if several else "neg")


def test_pairs_and_choices(tmp_path):
    (tmp_path / "pairs.csv").write_text("id,query,positive,score\n7,a,b,0.5\n8,c,d,1\n")
    table = TableSettings(copy_columns=["id", "query", "score"])
    columns = similarity_data.Columns("query", "positive")
    examples = similarity_data.read_examples(str(tmp_path / "pairs.csv"), columns, table=table)
    vectors = np.array([[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]], np.float32)
    run = SimilarityTask(None)
    run.files = ModelFiles("", sentences=SentenceSettings(""))
    run.write_predictions(str(tmp_path), ExampleSet("test", None, examples), vectors)
    first, second = lines_of(tmp_path / "predictions.jsonl")
    assert first == {"guid": "0", "id": "7", "query": "a", "score": "0.5", "cosine": pytest.approx(1.0)}
    assert second["id"] == "8" and second["cosine"] == pytest.approx(0.0)
    (tmp_path / "choices.csv").write_text("id,context,choices0,choices1\n7,a,b,c\n8,d,e,f\n")
    table = TableSettings(copy_columns=["id", "context"])
    examples = choice_data.read_examples(str(tmp_path / "choices.csv"), labels_needed=False, table=table)
    ChoiceTask(None).write_predictions(str(tmp_path), ExampleSet("test", None, examples), LOGITS)
    rows = [(record["id"], record["context"], record["text"]) for record in lines_of(tmp_path / "predictions.jsonl")]
    assert rows == [("7", "a", "c"), ("8", "d", "e")]


def test_columns_that_are_not_there_or_not_used(tmp_path):
    path = str(tmp_path / "new.csv")
    (tmp_path / "new.csv").write_text(CSV, encoding="utf-8")
    own = {"task_name": "custom", "text_a": "text", "label": "label", "copy_columns": ["row"]}
    task = declared_task(ClassificationSettings(**own, test_file=path))
    with pytest.raises(ValueError, match=r"new\.csv, line 1: no 'row' for --copy_columns; found '번호', 'text'"):
        data.read_examples(task, task.test["test"])
    # Train and dev files need no such columns.
    task = custom_task(ClassificationSettings(**own | {"label": "date"}, train_file=path))
    assert task.labels == ("1 May", "2 May")

"""Directories from before head_config.json: recognised, used and exported like those of today."""

import pytest
from helpers.exports import save
from helpers.old_directories import make_old, numbered
from helpers.slow import slow

from bert_tf import ChoicePredictor, Predictor, Tagger
from bert_tf.models import task_models
from bert_tf.serving import export
from bert_tf.tasks import table

CLASSIFIER, TAGGER = task_models.BertForSequenceClassification, task_models.BertForTokenClassification
TEXTS = ["One text.", "Another, longer text"]
LABELS = {"labels": ["bad", "좋다"], "num_labels": 2}
TAGS = {"labels": ["O", "B-X", "I-X"], "num_labels": 3}
OLD_LABELS = numbered("bad", "좋다")
SINGLE = {"problem_type": "single_label_classification"}


@pytest.mark.parametrize(
    ("task", "answerer", "model_class", "arguments", "keys"),
    [
        ("classification", Predictor, CLASSIFIER, LABELS, {**OLD_LABELS, **SINGLE}),
        *slow(
        ("ner", Tagger, TAGGER, TAGS,
         {**numbered("O", "B-X", "I-X"), "architectures": ["BertForTokenClassification"]}),
        ("regression", Predictor, CLASSIFIER, {"num_labels": 1}, {"problem_type": "regression"}),
        ("classification", Predictor, CLASSIFIER, {**LABELS, "problem_type": "multi_label_classification"},
         {**OLD_LABELS, "problem_type": "multi_label_classification"}),
        ("multiple_choice", ChoicePredictor, task_models.BertForMultipleChoice, {},
         {"architectures": ["BertForMultipleChoice"]}),
        ),
    ],
    ids=["labels", "tags", "regression", "several", "choices"],
)  # fmt: skip
def test_they_answer_and_can_be_exported(tmp_path, task, answerer, model_class, arguments, keys):
    path = save(tmp_path / "model", model_class, {"num_hidden_layers": 1}, **arguments)
    if task == "ner":  # recognised by this file in all versions
        (tmp_path / "model" / "token_classification.json").write_text("{}")
    questions = [(text, ["yes", "no"]) for text in TEXTS] if task == "multiple_choice" else TEXTS
    expected = answerer(path).predict(questions)
    make_old(path, **keys)
    assert table.task_in(path) == task
    assert answerer(path).predict(questions) == expected
    served = export.create_served_model(path, task)  # what an export is made of
    assert list(served.labels) == arguments.get("labels", [])

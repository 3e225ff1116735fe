"""ChoicePredictor on directories and exports makes the same choices as run_swag.py."""

import json

import numpy as np
import pytest
from helpers.exports import save

from bert_tf.models import task_models
from bert_tf.serving import export
from bert_tf.serving.choice_predictor import ChoicePredictor
from bert_tf.tasks.choice.data import ChoiceExample, encode_examples
from bert_tf.tasks.choice.task import ChoiceTask
from bert_tf.tasks.task import ExampleSet, predict_logits

QUESTIONS = [
    ("It rained all day.", ["went in.", "went out to play.", "\u200b\u0007."], "So they"),
    ("x " * 100, ["a", "b b b"]),
    ("", ["one", "c " * 90, "서울"], ""),
    ("A door.", ("opened", "closed", "was blue")),
    ("Élodie", ["a", "b"], "김철수"),
]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("choice") / "model"
    return save(folder, task_models.BertForMultipleChoice, {"num_hidden_layers": 1})


@pytest.fixture(scope="module")
def export_dir(model_dir, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("choice_export"))
    export.export_saved_model(model_dir, folder, warm_up=False)
    return folder


def predictions_of_the_script(model_dir, questions, folder) -> list[dict]:
    """predictions.jsonl of run_swag.py, whose examples all have the same number of choices."""
    examples = [
        ChoiceExample(str(number), context, *beginning or [""], tuple(choices))
        for number, (context, choices, *beginning) in enumerate(questions)
    ]
    rows = encode_examples(examples, ChoicePredictor(model_dir).tokenizer, 64)
    model = task_models.BertForMultipleChoice.from_pretrained(model_dir)
    settings = {"batch_size": 2, "max_seq_length": 64, "static_padding": False}
    logits = predict_logits(lambda batches: (np.asarray(model(batch)) for batch in batches), rows, **settings)
    ChoiceTask(None).write_predictions(str(folder), ExampleSet("test", rows, examples), logits)
    return [json.loads(line) for line in (folder / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]


def test_choices_are_the_scripts(model_dir, export_dir, tmp_path):
    expected = [None] * len(QUESTIONS)
    for numbers in ([0, 2, 3], [1, 4]):
        found = predictions_of_the_script(model_dir, [QUESTIONS[number] for number in numbers], tmp_path)
        for number, record in zip(numbers, found, strict=True):
            expected[number] = record
    for one in (ChoicePredictor(model_dir, batch_size=2), ChoicePredictor(export_dir, batch_size=1)):
        assert one.max_seq_length == 64
        found = one.predict(QUESTIONS)
        for mine, theirs in zip(found, expected, strict=True):
            assert set(mine) == {"choice", "text", "probabilities"}
            assert (mine["choice"], mine["text"]) == (theirs["choice"], theirs["text"])
            np.testing.assert_allclose(mine["probabilities"], theirs["probabilities"], atol=1e-5)
        assert one(*QUESTIONS[0])["choice"] == found[0]["choice"]
        assert one("x " * 100, ["a", "b b b"])["text"] == found[1]["text"]
        assert one.predict([]) == []
    assert len({row["choice"] for row in expected}) > 1


def test_choices_are_no_string(model_dir):
    with pytest.raises(TypeError, match="choices must be a list of strings, not a str"):
        ChoicePredictor(model_dir)("a", "bc")

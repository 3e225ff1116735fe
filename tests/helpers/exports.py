"""Tiny models of every task to export, what they are asked, and how answers are compared."""

import json

import numpy as np
import tensorflow as tf

from bert_tf import ChoicePredictor, Predictor, QuestionAnswerer, Tagger
from bert_tf.models import task_models
from bert_tf.serving import export
from bert_tf.store.head_config import WINDOW_POOLINGS
from bert_tf.tasks.ner.metrics import tag_set
from bert_tf.tasks.squad.answers import PredictionSettings
from bert_tf.tasks.squad.metrics import SETTINGS_FILE, QuestionAnsweringSettings
from bert_tf.tasks.squad.windows import WindowSettings
from helpers.outputs import op_by_op
from helpers.tiny import save_model

TEXTS = ["A short text.", " Two  spaces,\na line\tand a tab ", "", "naïve café 日本 김철수 (2019, it's 9,000)…"]
TEXTS += ["many words " * 60]
PAIRS = list(zip(TEXTS, reversed(TEXTS), strict=True))
CONTEXTS = [*TEXTS, "Her teacher met Ada Brown (1801-1852)  in London,\nwhere she was born. " * 4]
WORDS = [["Ada", "Lovelace", "lived", "in", "London", "."], ["It", "'s", "9,000", "km", "\u200b\u0007"]]
CHOICES = [(a, ["walks in.", "it rains", "日本"], b) for a, b in PAIRS] + [("She opens.", ["walks in.", "9,"], "")]
LABELS = ["bad", "fair", "좋다"]
TAGS = tag_set("iob2", ["LOC", "PER"])
SETTINGS = QuestionAnsweringSettings(
    WindowSettings(max_seq_length=48, doc_stride=16, max_query_length=10),
    PredictionSettings(n_best_size=5, max_answer_length=8, version_2_with_negative=True),
)
CLASSIFIER, CHOICE = task_models.BertForSequenceClassification, task_models.BertForMultipleChoice
QUESTIONS = [("Who met Ada?", context) for context in CONTEXTS]
COLUMNS = {"question": ["Who met Ada?"] * len(CONTEXTS), "context": CONTEXTS}
# name -> (task, class of the model, its arguments, class that answers, what it is asked, inputs of the export)
KINDS = {
    "classes": ("classification", CLASSIFIER, {"labels": LABELS}, Predictor, [*TEXTS, *PAIRS], {"text": TEXTS}),
    "several labels": (
        "classification", CLASSIFIER, {"labels": LABELS, "problem_type": "multi_label_classification"}, Predictor,
        TEXTS, {"text": TEXTS}),
    "a number": ("regression", CLASSIFIER, {"num_labels": 1}, Predictor, TEXTS, {"text": TEXTS}),
    "answers": ("squad", task_models.BertForQuestionAnswering, {}, QuestionAnswerer, QUESTIONS, COLUMNS),
    "tags": (
        "ner", task_models.BertForTokenClassification, {"num_labels": len(TAGS), "labels": TAGS}, Tagger,
        [*TEXTS, *WORDS], {"text": TEXTS}),
    "choices": (
        "multiple_choice", CHOICE, {}, ChoicePredictor, CHOICES,
        {"context": TEXTS, "question": TEXTS, "choices": [["a", "b"]] * len(TEXTS)}),
    **{
        pooling: (
            "classification", CLASSIFIER, {"labels": LABELS, "window_pooling": pooling, "max_windows": 3}, Predictor,
            TEXTS, {"text": TEXTS})
        for pooling in WINDOW_POOLINGS
    },
}  # fmt: skip


def save_kind(folder, family: str, kind: str) -> str:
    task, model_class, arguments, *_ = KINDS[kind]
    path = save_model(folder, family, model_class, **arguments)
    if task == "squad":
        (folder / SETTINGS_FILE).write_text(SETTINGS.to_json())
    return path


def numbers_in(answers) -> tuple[list[float], object]:
    """All floats of answers, in their order, and the rest but n-best lists, in which near ties may change places."""
    found = []
    rows = [{**row, "nbest": None} if isinstance(row, dict) else row for row in answers]
    return found, json.loads(json.dumps(rows), parse_float=lambda text: found.append(float(text)))


def check_answers(found, expected, atol=1e-5) -> None:
    (numbers, others), (numbers_expected, others_expected) = map(numbers_in, (found, expected))
    assert others == others_expected
    np.testing.assert_allclose(numbers, numbers_expected, atol=atol)


def signature_of(model_dir: str, task: str, name: str = "serving_default", **strings) -> dict[str, np.ndarray]:
    signature = export.create_served_model(*export.open_for(model_dir, task)).signatures()[name]
    with op_by_op():
        outputs = signature(**{name: tf.constant(values) for name, values in strings.items()})
    return {name: value.numpy() for name, value in outputs.items()}

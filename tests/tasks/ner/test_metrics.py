"""Scores of tags, beside values that seqeval 1.2.2 gives; the settings saved with a trained tagger."""

import json

import numpy as np
import pytest

from bert_tf.tasks.ner import data as ner_data
from bert_tf.tasks.ner import metrics as ner_metrics
from bert_tf.tasks.ner import task as ner_task
from bert_tf.tasks.ner.data import Layout, Sentence, read_conll
from bert_tf.tasks.ner.metrics import SETTINGS_FILE, TaggingSettings

# Gold and predicted sentences -> precision, recall and F1 of all entities as conlleval counts them (seqeval's default),
# and KLUE's mean F1 over types (mode="strict", scheme=IOB2).
CASES = [
    ("B-PS I-PS O B-LC I-LC O O", "I-PS I-PS O B-LC I-LC O O", (1, 1, 1), 0.5),
    ("B-PS I-PS O B-LC I-LC O I-PS", "B-PS I-PS O B-LC I-LC O O", (1, 2 / 3, 0.8), 1.0),
    ("B-PS I-LC B-PS I-PS O | O O B-QT", "B-PS I-PS B-PS O O | O I-QT B-QT", (1 / 4, 1 / 4, 1 / 4), 0.5),
    ("B-A I-A O B-B | O B-A B-A | O", "B-A O O B-A | O B-A B-A | B-B", (2 / 5, 2 / 4, 4 / 9), 2 / 7),
    ("B-A I-A O B-B | O B-A B-A | O", "B-A I-A O B-B | O B-A I-A | O", (2 / 3, 2 / 4, 4 / 7), 0.7),
    ("B-A I-A B-A | B-C", "B-A I-A I-A | I-C", (1 / 2, 1 / 3, 0.4), 0.0),
    ("B-A | I-A", "B-A | B-A", (1, 1, 1), 2 / 3),
    ("B-creative-work I-creative-work", "B-creative-work I-creative-x", (0, 0, 0), 0.0),
    ("B-A O", "O O", (0, 0, 0), 0.0),
    ("O O", "O B-A", (0, 0, 0), 0.0),
    ("O O", "O O", (0, 0, 0), 0.0),
]


def sentences_of(text: str) -> list[list[str]]:
    return [sentence.split() for sentence in text.split("|")]


@pytest.mark.parametrize(("gold", "predicted", "scores", "by_type"), CASES)
def test_entities(gold, predicted, scores, by_type):
    gold, predicted = sentences_of(gold), sentences_of(predicted)
    results = ner_metrics.evaluate(gold, predicted)
    assert (results["precision"], results["recall"], results["f1"]) == pytest.approx(scores)
    right = [one == other for tags in zip(gold, predicted, strict=True) for one, other in zip(*tags, strict=True)]
    assert results["accuracy"] == pytest.approx(sum(right) / len(right))
    assert ner_metrics.klue(gold, predicted, ["O"])["entity_macro_f1"] == pytest.approx(by_type)


@pytest.mark.parametrize(("gold", "predicted", "expected"), [
    ("B-PS I-PS O B-LC I-LC O O", "I-PS I-PS O B-LC I-LC O O", (50.0, 73.33)),
    ("B-PS I-PS O B-LC I-LC O I-PS", "B-PS I-PS O B-LC I-LC O O", (100.0, 89.33)),
    # PS: 2 of 3 predicted and 2 of 2 found, LC: none. O: 3 of 4 and 3 of 4; I-LC does not occur.
    ("B-PS I-PS O B-LC | O O B-PS O", "B-PS I-PS O O | O O B-PS B-PS", (40.0, 71.0)),
])  # fmt: skip
def test_the_scores_of_klue(gold, predicted, expected):
    """By hand; issued by the model's logits, with spaces between the characters, which don't count."""
    labels = ["O", "B-LC", "I-LC", "B-PS", "I-PS"]
    gold, predicted = sentences_of(gold), sentences_of(predicted)
    scores = ner_metrics.klue(gold, predicted, labels)
    values = tuple(round(100 * scores[name], 2) for name in ("entity_macro_f1", "character_macro_f1"))
    assert values == expected
    sentences, chosen = [], []
    for tags, own in zip(gold, predicted, strict=True):
        words = [*"가나다라마바사"[: len(tags)]]
        words.insert(1, " ")
        repaired = ["B-PS" if tag == "I-PS" and number == 6 else tag for number, tag in enumerate(tags)]
        sentences.append(Sentence(words, [repaired[0], "O", *repaired[1:]], [], 0, "", [tags[0], "O", *tags[1:]]))
        chosen += [own[0], "I-LC", *own[1:]]
    logits = np.eye(len(labels))[[labels.index(tag) for tag in chosen]]
    results, _ = ner_task.score(sentences, logits, labels, TaggingSettings(), "klue")
    assert tuple(round(100 * results[f"{name}_macro_f1"], 2) for name in ("entity", "character")) == expected
    pairs = [pair for tags in zip(gold, predicted, strict=True) for pair in zip(*tags, strict=True)]
    assert results["accuracy"] == pytest.approx(sum(one == other for one, other in pairs) / len(chosen))


def test_report():
    gold, predicted = sentences_of("B-A I-A O B-B | O B-A B-A | O"), sentences_of("B-A O O B-A | O B-A B-A | B-B")
    assert ner_metrics.report(gold, predicted) == (
        "              precision    recall  f1-score   support\n\n"
        "           A     0.5000    0.6667    0.5714         3\n"
        "           B     0.0000    0.0000    0.0000         1\n\n"
        "   micro avg     0.4000    0.5000    0.4444         4\n"
        "   macro avg     0.2500    0.3333    0.2857         4\n"
        "weighted avg     0.3750    0.5000    0.4286         4\n"
    )
    assert "creative-work     0.0000" in ner_metrics.report([["B-creative-work", "O"]], [["O", "B-x"]])
    assert "No entities" in ner_metrics.report([["O"]], [["O"]])


def test_plain_tags():
    gold, predicted = [["NN", "VB"], ["NN", "JJ"]], [["NN", "NN"], ["NN", "JJ"]]
    assert ner_metrics.evaluate(gold, predicted, plain=True) == {"accuracy": 0.75}
    assert "VB" in ner_metrics.report(gold, predicted, plain=True)


def test_an_entity_has_the_mean_probability_of_its_words(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("aa\nb\nc\nd\n")
    logits = np.log(np.array([[0.9, 0.06, 0.04], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6], [0.75, 0.2, 0.05]], np.float32))
    file = read_conll(str(path), Layout(), has_tags=False)
    ner_task.write_predictions(str(tmp_path), file, Layout(), logits, ["O", "B-A", "I-A"])
    (record,) = map(json.loads, (tmp_path / "predictions.jsonl").read_text().splitlines())
    assert record["entities"] == [{"type": "A", "start": 1, "end": 3, "text": "b c", "score": 0.7}]


def test_a_model_that_tags_everything_alike(tmp_path, caplog):
    sentences, labels = [Sentence(["a", "b"], ["B-A", "O"], [])], ["O", "B-A", "I-A"]
    for tags, warnings in (([0, 1], 0), ([0, 0], 1), ([1, 2], 2)):
        ner_task.write_confusion_matrix(str(tmp_path), sentences, np.eye(3)[tags], labels, False, "")
        assert caplog.text.count("All 2 words are tagged ") == warnings


def test_settings_stay_with_the_model(tmp_path):
    assert TaggingSettings.read(str(tmp_path)) is None
    settings = TaggingSettings("bioes", True)
    path = tmp_path / SETTINGS_FILE
    path.write_text(settings.to_json())
    assert TaggingSettings.read(str(tmp_path)) == settings
    earlier = {"features": None, "lstm_size": 768, "lstm_layers": 2}
    path.write_text(json.dumps({**json.loads(settings.to_json()), **earlier}))
    assert TaggingSettings.read(str(tmp_path)) == settings
    path.write_text('{"features": "last"}')
    with pytest.raises(ValueError, match=r"token_classification\.json: a model of frozen features on top was removed"):
        TaggingSettings.read(str(tmp_path))


def test_labels_do_not_depend_on_chance():
    sentences = [Sentence(["a", "b"], ["B-y", "O"], [1, 2]), Sentence(["c"], ["S-x"], [4])]
    assert ner_task.labels_of(sentences[:1], "iob2") == ["O", "B-y", "I-y"]
    assert len(ner_task.labels_of(sentences, "bioes")) == 9
    assert ner_task.labels_of(sentences, "plain") == ["B-y", "O", "S-x"]


def test_scores_from_logits():
    """Two words right, one wrong, one with a tag that the model does not know; the loss by hand."""
    labels = ["O", "B-a", "I-a"]
    sentences = [Sentence(["1", "2", "3"], ["B-a", "I-a", "O"], []), Sentence(["4"], ["B-god"], [])]
    logits = np.log(np.array([[0.1, 0.8, 0.1], [0.2, 0.2, 0.6], [0.3, 0.1, 0.6], [0.9, 0.05, 0.05]]))
    results, report = ner_task.score(sentences, logits, labels, TaggingSettings())
    assert results["loss"] == pytest.approx(-np.mean(np.log([0.8, 0.6, 0.3])))
    assert results["accuracy"] == 0.5 and results["f1"] == 0.0 and "god" in report
    # I- after O begins an entity, as in conlleval.
    raw = np.log(np.array([[0.8, 0.1, 0.1], [0.1, 0.1, 0.8], [0.1, 0.1, 0.8], [0.9, 0.05, 0.05]]))
    assert ner_data.predicted_tags(sentences, raw, labels, "iob2") == [["O", "B-a", "I-a"], ["O"]]
    assert ner_data.predicted_tags(sentences, raw, labels, "iob1") == [["O", "I-a", "I-a"], ["O"]]
    assert ner_data.predicted_tags(sentences, raw, labels, "bilou") == [["O", "B-a", "L-a"], ["O"]]
    assert ner_data.predicted_tags(sentences, raw, labels, "plain") == [["O", "I-a", "I-a"], ["O"]]

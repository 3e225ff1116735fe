"""The settings saved with a trained tagger, its labels and its scores."""

import json

import numpy as np
import pytest

from bert_tf.tasks.ner import outputs as ner_outputs
from bert_tf.tasks.ner import tagging
from bert_tf.tasks.ner.data import Sentence
from bert_tf.tasks.ner.tagging import TaggingSettings


def test_settings_stay_with_the_model(tmp_path):
    assert TaggingSettings.read(str(tmp_path)) is None
    settings = TaggingSettings("bioes", True)
    path = tmp_path / tagging.SETTINGS_FILE
    path.write_text(settings.to_json())
    assert TaggingSettings.read(str(tmp_path)) == settings
    earlier = {"features": None, "lstm_size": 768, "lstm_layers": 2}
    path.write_text(json.dumps({**json.loads(settings.to_json()), **earlier}))
    assert TaggingSettings.read(str(tmp_path)) == settings
    path.write_text('{"features": "last"}')
    with pytest.raises(ValueError, match=r"token_classification\.json: a model of frozen features on top is gone"):
        TaggingSettings.read(str(tmp_path))


def test_labels_do_not_hang_on_chance():
    sentences = [Sentence(["a", "b"], ["B-y", "O"], [1, 2]), Sentence(["c"], ["S-x"], [4])]
    assert ner_outputs.labels_of(sentences[:1], "iob2") == ["O", "B-y", "I-y"]
    assert len(ner_outputs.labels_of(sentences, "bioes")) == 9
    assert ner_outputs.labels_of(sentences, "plain") == ["B-y", "O", "S-x"]


def test_scores_from_logits():
    """Two words right, one wrong, one with a tag that the model does not know; the loss by hand."""
    labels = ["O", "B-a", "I-a"]
    sentences = [Sentence(["1", "2", "3"], ["B-a", "I-a", "O"], []), Sentence(["4"], ["B-god"], [])]
    logits = np.log(np.array([[0.1, 0.8, 0.1], [0.2, 0.2, 0.6], [0.3, 0.1, 0.6], [0.9, 0.05, 0.05]]))
    results, report = ner_outputs.score(sentences, logits, labels, TaggingSettings())
    assert results["loss"] == pytest.approx(-np.mean(np.log([0.8, 0.6, 0.3])))
    assert results["accuracy"] == 0.5 and results["f1"] == 0.0 and "god" in report
    # I- after O begins an entity, as in conlleval.
    raw = np.log(np.array([[0.8, 0.1, 0.1], [0.1, 0.1, 0.8], [0.1, 0.1, 0.8], [0.9, 0.05, 0.05]]))
    assert ner_outputs.predicted_tags(sentences, raw, labels, "iob2") == [["O", "B-a", "I-a"], ["O"]]
    assert ner_outputs.predicted_tags(sentences, raw, labels, "iob1") == [["O", "I-a", "I-a"], ["O"]]
    assert ner_outputs.predicted_tags(sentences, raw, labels, "bilou") == [["O", "B-a", "L-a"], ["O"]]
    assert ner_outputs.predicted_tags(sentences, raw, labels, "plain") == [["O", "I-a", "I-a"], ["O"]]

"""BiLSTMs on the outputs of a frozen BERT, and the settings saved with a trained tagger."""

import numpy as np
import pytest
from helpers.tiny import TINY_CONFIG
from keras import ops

from bert_tf.models import baselines
from bert_tf.models.baselines import BertFeatureTagger
from bert_tf.models.config import BertConfig
from bert_tf.tasks.ner import outputs as ner_outputs
from bert_tf.tasks.ner import tagging
from bert_tf.tasks.ner.data import Sentence
from bert_tf.tasks.ner.tagging import TaggingSettings

CONFIG = BertConfig.from_dict({**TINY_CONFIG, "num_hidden_layers": 4})


def features_of(lengths, width, seed=0):
    generator = np.random.default_rng(seed)
    mask = (np.arange(width) < np.array(lengths)[:, None]).astype(np.int32)
    return {"input_ids": generator.integers(5, 100, mask.shape) * mask, "input_mask": mask}


def test_which_layers_are_taken():
    layers = [np.full((1, 2, 3), 10.0**number, np.float32) for number in range(5)]
    outputs = {"embedding_output": np.full((1, 2, 3), 7.0, np.float32), "encoder_layers": layers}
    values = {name: ops.convert_to_numpy(baselines.select_features(outputs, name))[0, 0] for name in baselines.FEATURES}
    assert values["last"].tolist() == [10000.0] * 3
    assert values["second_to_last"].tolist() == [1000.0] * 3
    assert values["sum_last_four"].tolist() == [11110.0] * 3
    assert values["sum_all"].tolist() == [11111.0] * 3
    assert values["embeddings"].tolist() == [7.0] * 3
    assert values["concat_last_four"].tolist() == [10.0] * 3 + [100.0] * 3 + [1000.0] * 3 + [10000.0] * 3


def test_save_and_load(tmp_path):
    model = BertFeatureTagger(CONFIG, 3, "last", lstm_size=8)
    model.build()
    features = features_of([9, 4], 9)
    model.save_pretrained(str(tmp_path / "model"))
    loaded = BertFeatureTagger.from_pretrained(str(tmp_path / "model"), num_labels=3, features="last", lstm_size=8)
    np.testing.assert_array_equal(ops.convert_to_numpy(loaded(features)), ops.convert_to_numpy(model(features)))
    copy = BertFeatureTagger.from_config(model.get_config())
    assert (copy.features, copy.lstm_size, copy.num_labels) == ("last", 8, 3)


def test_bad_arguments():
    with pytest.raises(ValueError, match="features='first' is not one of last, second_to_last"):
        BertFeatureTagger(CONFIG, 3, "first")
    shallow = BertConfig.from_dict({**TINY_CONFIG, "num_hidden_layers": 3})
    with pytest.raises(ValueError, match="features=sum_last_four needs 4 layers, but the model has 3"):
        BertFeatureTagger(shallow, 3, "sum_last_four")
    with pytest.raises(ValueError, match="lstm_size=7 must be even"):
        BertFeatureTagger(CONFIG, 3, "last", lstm_size=7)


def test_settings_stay_with_the_model(tmp_path):
    assert TaggingSettings.read(str(tmp_path)) is None
    settings = TaggingSettings("bioes", True, "sum_all", 16, 1)
    path = tmp_path / tagging.SETTINGS_FILE
    path.write_text(settings.to_json())
    assert TaggingSettings.read(str(tmp_path)) == settings
    for text in ("{", '{"colour": 1}'):
        path.write_text(text)
        problem = "line 1, column 2: not JSON" if text == "{" else "not the settings of a tagger"
        with pytest.raises(ValueError, match=rf"token_classification\.json[:,] {problem}"):
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

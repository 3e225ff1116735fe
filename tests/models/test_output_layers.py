"""Labels matched by name, and output layers reordered or left out."""

import json
import unicodedata

import keras
import numpy as np
import pytest
from helpers.tiny import TINY_CONFIG

from bert_tf.models import initialize, lora_file, task_models
from bert_tf.models.config import BertConfig
from bert_tf.models.head_config import HEAD_CONFIG, folded, order_of, spelled_as
from bert_tf.models.task_models import BertForSequenceClassification, BertForTokenClassification

CONFIG = BertConfig.from_dict({**TINY_CONFIG, "num_hidden_layers": 1})
ROW = {"input_ids": np.array([[2, 7, 9, 3]]), "input_mask": np.ones((1, 4), np.int32)}


def probabilities(model, labels) -> np.ndarray:
    """By the names of the labels, or by position."""
    logits = np.asarray(model(ROW, training=False)).reshape(-1, model.num_labels).mean(0)
    return logits if labels is None else np.array([logits[model.labels.index(label)] for label in labels])


@pytest.fixture(params=[BertForSequenceClassification, BertForTokenClassification])
def saved(request, tmp_path):
    keras.utils.set_random_seed(1)
    model = request.param(CONFIG, num_labels=3, labels=["a", "b", "c"])
    model.build()
    model.head.trainable_variables[0].assign(np.random.default_rng(0).normal(size=(3, 32)))
    for format in ("bert_tf", "huggingface"):
        model.save_pretrained(str(tmp_path / format), format=format)
    return request.param, tmp_path, model


@pytest.mark.parametrize(("known", "wanted", "others", "order"), [
    (("a", "b"), ("a", "b"), (), None),
    (("a", "b", "c"), ("c", "a", "b"), (), [2, 0, 1]),
    (("ENTAILMENT", "neutral "), ("neutral", "entailment"), (), [1, 0]),
    (("Not\u00a0  entailment", "Entailment"), ("entailment", "not entailment"), (), [1, 0]),
    ((unicodedata.normalize("NFD", "긍정"), "부정"), ("부정", "긍정"), (), [1, 0]),
    (("A", "a"), ("a", "A"), (), [1, 0]),
    (("POSITIVE", "NEGATIVE"), ("0", "1"), ("negative", "positive"), [1, 0]),
    (("1", "0"), ("0", "1"), ("negative", "positive"), [1, 0]),
    (("LABEL_1", "LABEL_0"), ("LABEL_0", "LABEL_1"), (), None),
    (("LABEL_0", "LABEL_1"), ("b", "a"), (), None),
    (("b", "a"), ("LABEL_0", "LABEL_1"), (), None),
    (None, ("b", "a"), (), None),
])  # fmt: skip
def test_the_order(known, wanted, others, order):
    assert order_of(known, wanted, "model", "", others) == order


def test_spellings():
    assert spelled_as(["B-per", "x"], ["B-PER", "B-LOC"]) == ("B-PER", "x")
    assert spelled_as(["per"], ["PER", "Per"]) == ("per",)  # it could be either
    assert spelled_as(["per", "Per"], ["PER"]) == ("per", "Per")
    assert folded(" Straße\t1 ") == "strasse 1"


def test_from_pretrained_puts_outputs_into_the_order_of_the_labels(saved):
    kind, folder, model = saved
    expected = probabilities(model, "abc")
    for format in ("bert_tf", "huggingface"):
        for labels in (["a", "b", "c"], ["c", "a", "b"], ["B", "c", "A"]):
            loaded = kind.from_pretrained(str(folder / format), labels=labels)
            assert loaded.labels == labels
            found = probabilities(loaded, ["aA"["A" in labels], "bB"["B" in labels], "c"])
            np.testing.assert_allclose(found, expected, atol=1e-6)
    loaded.save_pretrained(str(folder / "again"))
    assert json.loads((folder / "again" / HEAD_CONFIG).read_text())["labels"] == ["B", "c", "A"]
    again = kind.from_pretrained(str(folder / "again"))
    np.testing.assert_allclose(probabilities(again, ["A", "B", "c"]), expected, atol=1e-6)


def test_a_model_without_names_gets_them_by_position(saved, caplog):
    kind, folder, model = saved
    config = folder / "huggingface" / "config.json"
    values = json.loads(config.read_text())
    values |= {"id2label": {str(n): f"LABEL_{n}" for n in range(3)}}
    config.write_text(json.dumps(values))
    loaded = kind.from_pretrained(str(folder / "huggingface"), labels=["x", "y", "z"])
    np.testing.assert_allclose(probabilities(loaded, "xyz"), probabilities(model, "abc"), atol=1e-6)
    assert "does not name its labels" in caplog.text
    with pytest.raises(ValueError, match=r"huggingface has 3 outputs, not 2\. new_head=True begins a new output layer"):
        kind.from_pretrained(str(folder / "huggingface"), labels=["x", "y"])


def test_other_labels_need_a_new_head(saved):
    kind, folder, _ = saved
    path = str(folder / "bert_tf")
    for labels, difference in (
        (["a", "b", "d"], "only there c; only here d"), (["a", "b"], "c is missing here"),
        (["0", "1", "2"], "only there a, b, c; only here 0, 1, 2"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"bert_tf has other labels: {difference}. new_head=True begins a new"):
            kind.from_pretrained(path, labels=labels)
    with pytest.raises(ValueError, match=r"bert_tf has 3 outputs, not 5\. new_head=True begins a new output layer"):
        kind.from_pretrained(path, num_labels=5)
    for arguments in ({"labels": ["d", "e"]}, {"num_labels": 3}):
        with pytest.warns(UserWarning, match="2 variables of Bert.* and are random: output_weights, output_bias"):
            new = kind.from_pretrained(path, new_head=True, **arguments)
        assert new.labels == arguments.get("labels")
        weights = new.head.trainable_variables[0].numpy()
        assert len(weights) == arguments.get("num_labels", 2) and np.abs(weights).max() < 0.1  # not the trained ones


def test_layers_of_other_tasks(saved):
    kind, folder, _ = saved
    other = {BertForSequenceClassification: BertForTokenClassification,
             BertForTokenClassification: BertForSequenceClassification}[kind]  # fmt: skip
    path = str(folder / "huggingface")
    with pytest.raises(ValueError, match=rf"huggingface is a {kind.__name__}, whose output layer is for another"):
        other.from_pretrained(path, num_labels=3)
    assert task_models.BertModel.from_pretrained(path).built  # whose head is of no interest
    with pytest.warns(UserWarning, match="output_weights"):
        assert task_models.BertForMultipleChoice.from_pretrained(path, new_head=True).num_labels == 1


def test_what_lora_has_trained_goes_to_the_labels_of_its_names(tmp_path):
    keras.utils.set_random_seed(2)
    encoder, generator = task_models.BertModel(CONFIG), np.random.default_rng(4)
    encoder.save_pretrained(str(tmp_path / "encoder"))
    trained = BertForSequenceClassification(CONFIG, labels=["a", "b", "c"])
    trained.bert.add_lora(2, 4.0, lora_file.reads_pooler(trained))
    with pytest.warns(initialize.PartialLoadWarning):
        initialize.load_weights(trained, str(tmp_path / "encoder"))
    for variable in trained.trainable_variables:
        variable.assign(generator.normal(size=variable.shape))
    file = str(tmp_path / lora_file.FILE)
    lora_file.write_lora(file, trained)
    expected = probabilities(trained, "abc")

    def loaded(**arguments):
        with pytest.warns(initialize.PartialLoadWarning, match="output_weights"):
            model = BertForSequenceClassification.from_pretrained(str(tmp_path / "encoder"), **arguments)
        lora_file.load_lora(model, file)
        return model

    for arguments in ({"labels": ["a", "b", "c"]}, {"labels": ["c", "a", "b"]}, {"num_labels": 3}):
        model = loaded(**arguments)
        assert model.labels == arguments.get("labels", ["a", "b", "c"])
        np.testing.assert_allclose(probabilities(model, "abc"), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"lora\.safetensors has other labels: only there b; only here x"):
        loaded(labels=["a", "x", "c"])

"""An export is compared with its model label by label, and a file's labels are found in another case."""

import pytest
from helpers.exports import save

from bert_tf.models import directory as model_directory
from bert_tf.models.task_models import BertForSequenceClassification
from bert_tf.serving import compare_export, loaded_export
from bert_tf.serving.predictor import Predictor


@pytest.fixture
def model(tmp_path):
    return save(tmp_path / "model", BertForSequenceClassification, {"num_hidden_layers": 1}, labels=["up", "down"])


def test_labels_in_another_order(tmp_path, model, monkeypatch):
    # A model directory in place of an ONNX export, which `Predictor` opens likewise.
    BertForSequenceClassification.from_pretrained(model, labels=["down", "up"]).save_pretrained(str(tmp_path / "other"))
    monkeypatch.setattr(loaded_export, "read_description", lambda path: {"task": "classification"})
    monkeypatch.setattr(model_directory, "onnx_file", lambda path: path)
    texts = [f"text {number} of {number * number}" for number in range(9)]
    gold = [one["label"] for one in Predictor(model).predict(texts)]
    lines = (f"{text}\t{label.upper()}\n" for text, label in zip(texts, gold, strict=True))
    (tmp_path / "check.tsv").write_text("".join(lines))
    compared = compare_export.compare(str(tmp_path / "other"), model, str(tmp_path / "check.tsv"))
    assert compared.model == compared.export == {"accuracy": 1.0}
    assert compared.same == 1.0 and compared.largest_difference < 1e-5

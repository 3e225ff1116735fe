"""Readers on a frozen BERT: they learn, BERT does not, and padding has no influence."""

import types

import numpy as np
import pytest
from absl import flags
from helpers.descendants import save_model
from helpers.slow import slow

from bert_tf import BertModel
from experiments import feature_based

TRAIN = "".join(f"w{k % 9} O\n{name} B-PER\n\n" for k in range(24) for name in ("good", "bad"))
TEXTS = "text,label\n" + "".join(
    f"w{k % 9} {word},{label}\n" for k in range(24) for word, label in (("good", "up"), ("bad", "down"))
)


@pytest.mark.parametrize(
    ("features", "reader", "of_texts"), slow(("sum_last_four", "bilstm", False), ("none", "cnn", True))
)
def test_a_reader_learns_and_bert_does_not(tmp_path, monkeypatch, capsys, features, reader, of_texts):
    path = save_model(tmp_path / "bert", "bert", BertModel)
    (tmp_path / "train").write_text(TEXTS if of_texts else TRAIN)
    values = {
        "init_checkpoint": path, "train_file": str(tmp_path / "train"), "dev_file": str(tmp_path / "train"),
        "text_column": "text" if of_texts else None, "label_column": "label", "features": features, "reader": reader,
        "width": 12, "learning_rate": 3e-2, "epochs": 8, "batch_size": 8, "max_seq_length": 12, "seed": 1,
    }  # fmt: skip
    models = []
    made = feature_based.Reader
    monkeypatch.setattr(feature_based, "Reader", lambda *given: models.append(made(*given)) or models[0])
    monkeypatch.setattr(flags, "FLAGS", types.SimpleNamespace(**values))
    feature_based.main(None)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]
    assert len(lines) == 8 and float(lines[-1].split()[-1]) > 0.95  # accuracy
    for variable, before in zip(models[0].bert.weights, BertModel.from_pretrained(path).weights, strict=True):
        np.testing.assert_array_equal(variable, before, err_msg=variable.path)


def test_padding_has_no_influence_and_only_first_pieces_have_labels(tmp_path):
    path = save_model(tmp_path / "bert", "bert", BertModel)
    sentences = [(["w1", "good", "w2"], ["O", "B-PER", "O"]), (["bad"], ["O"])]
    tokenizer = feature_based.read_tokenizer(path)
    for reader in ("bilstm", "cnn"):
        model = feature_based.Reader(BertModel.from_pretrained(path), "last", reader, 12, 2, True)
        short, long = (feature_based.encode(sentences, tokenizer, ["B-PER", "O"], length) for length in (8, 16))
        np.testing.assert_allclose(model(short[0]), model(long[0]), atol=1e-5)
        assert short[1].tolist()[0][:6] == [-1, 1, -1, 0, 1, -1] and (short[1] >= 0).sum() == 4  # w1 has two pieces

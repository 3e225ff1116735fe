"""A model with entity markers, whose export takes ids; what `Predictor` takes for texts."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from helpers.outputs import enlarge
from helpers.tiny import ONE_LAYER

from bert_tf import BertConfig, BertForSequenceClassification, Predictor
from bert_tf.serving import export

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "삼성", "전자", "은", "##은", "[", "]", "/", "e1", "a", "b"]
TEXTS = ["[E1]삼성[/E1]은 전자", "삼성은 [e1] a", "a b", "[E1][E1]"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    folder = tmp_path_factory.mktemp("markers")
    (folder / "vocab.txt").write_text("".join(piece + "\n" for piece in PIECES), encoding="utf-8")
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    decoder = {15: {**flags, "content": "[E1]"}, 16: {**flags, "content": "[/E1]", "normalized": True}}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"added_tokens_decoder": decoder, "do_lower_case": True, "strip_accents": False})
    )
    model = BertForSequenceClassification(
        BertConfig.from_dict({**ONE_LAYER, "vocab_size": 17}), num_labels=2, labels=["yes", "no"]
    )
    enlarge(model).save_pretrained(
        str(folder / "model"), vocab_file=str(folder / "vocab.txt"), do_lower_case=True, strip_accents=False
    )
    return folder


def test_an_export_takes_ids(directory, tmp_path, caplog):
    model = str(directory / "model")
    with pytest.raises(ValueError, match=r"^--text_pairs: .*vocab.txt: added tokens .* take ids\.$"):
        export.export_saved_model(model, str(tmp_path), text_pairs=True)
    path = export.export_saved_model(model, str(tmp_path))
    assert [line for line in caplog.messages if "take ids" in line] == [
        f"{model}/vocab.txt: added tokens ([E1], [/E1]) can't be cut out inside a graph. Exports of this model take "
        f"ids. serve_client.py --tokenizer={model} makes them of texts."
    ]
    assert set(json.loads(pathlib.Path(path, "export.json").read_text())["ops"]) <= set(dir(tf.raw_ops))
    with pytest.raises(ValueError, match="takes token ids alone: open its model directory"):
        Predictor(path)
    predictor = Predictor(model)
    assert predictor.tokenizer.encode(TEXTS[0]) == [15, 5, 16, 7, 6]
    wanted = np.array([[row["probabilities"][k] for k in ("yes", "no")] for row in predictor.predict(TEXTS)])
    ids = {name: tf.constant(value) for name, value in predictor.tokenizer(TEXTS).items()}
    signatures = tf.saved_model.load(path).signatures
    assert signatures.keys() == {"serving_default", "serve_ids", "serve_examples"}
    np.testing.assert_allclose(signatures["serving_default"](**ids)["probabilities"], wanted, atol=1e-5)
    # Markers matter: without them in the vocabulary the answer is another.
    assert abs(wanted[0] - np.array(list(predictor("삼성은 전자")["probabilities"].values()))).max() > 1e-4


def test_what_predictor_takes_for_texts(directory):
    import pandas as pd

    predictor = Predictor(str(directory / "model"))
    wanted = predictor.predict(["a", "b"])
    for texts in (pd.Series(["a", "b"]), np.array(["a", "b"]), (text for text in "ab")):
        assert predictor.predict(texts) == wanted
    assert len(predictor.predict(("a", "b", "a"))) == 3
    for texts, message in (
        ("a", r"must be a list of strings or \(text, text_pair\), as tuples or dicts with these names, not a str"),
        (("a", "b"), r"one pair: write predictor\(\*pair\)"),
    ):
        with pytest.raises(TypeError, match=message):
            predictor.predict(texts)

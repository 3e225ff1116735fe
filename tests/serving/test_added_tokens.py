"""Entity markers from a model directory to an export that takes strings."""

import json
import shutil

import numpy as np
import pytest
from helpers.exports import signature_of
from helpers.paths import GOLDEN

from bert_tf.models.config import BertConfig
from bert_tf.models.families import config_of_dict
from bert_tf.models.task_models import BertForSequenceClassification, BertForTokenClassification
from bert_tf.serving.export import export_saved_model
from bert_tf.serving.predictor import Predictor
from bert_tf.serving.tagger import Tagger
from bert_tf.tasks.ner import tagging
from bert_tf.tasks.ner import tags as ner_tags

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "삼성", "전자", "은", "##은", "[", "]", "/", "e1", "a", "b"]
CONFIG = {"vocab_size": 17, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
          "intermediate_size": 16, "max_position_embeddings": 32, "type_vocab_size": 2}  # fmt: skip
TEXTS = ["[E1]삼성[/E1]은 전자", "삼성은 [e1] a", "a b", "[E1][E1]"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    folder = tmp_path_factory.mktemp("markers")
    (folder / "vocab.txt").write_text("".join(piece + "\n" for piece in PIECES), encoding="utf-8")
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    decoder = {15: {**flags, "content": "[E1]"}, 16: {**flags, "content": "[/E1]"}}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"added_tokens_decoder": decoder, "do_lower_case": True, "strip_accents": False})
    )
    model = BertForSequenceClassification(BertConfig.from_dict(CONFIG), num_labels=2, labels=["yes", "no"])
    model.build()
    generator = np.random.default_rng(7)
    for variable in model.trainable_variables:
        variable.assign(generator.normal(size=variable.shape) * 0.3)
    model.save_pretrained(
        str(folder / "model"), vocab_file=str(folder / "vocab.txt"), do_lower_case=True, strip_accents=False
    )
    return folder


def test_an_export_reads_markers_as_the_model_does(directory):
    predictor = Predictor(str(directory / "model"))
    assert predictor.tokenizer.encode(TEXTS[0]) == [15, 5, 16, 7, 6]
    wanted = np.array([[row["probabilities"][k] for k in ("yes", "no")] for row in predictor.predict(TEXTS)])
    found = signature_of(str(directory / "model"), "classification", text=TEXTS)
    np.testing.assert_allclose(found["probabilities"], wanted, atol=1e-5)
    # Markers matter: without them in the vocabulary the answer is another.
    assert abs(wanted[0] - np.array(list(predictor("삼성은 전자")["probabilities"].values()))).max() > 1e-4


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("a", r"a list of strings or pairs of strings, not a single string; for one write predictor\(text\)"),
        (("a", "b"), r"one pair: write predictor\(\*pair\), or predictor\.predict\(\[pair\]\)"),
        ({"text": ["a"]}, r"not a dict: give one of its columns; for one write predictor\(text\)"),
        (None, r"not None; for one write predictor\(text\)"),
    ],
)
def test_other_arguments(directory, texts, message):
    predictor = Predictor(str(directory / "model"))
    with pytest.raises(TypeError, match=message):
        predictor.predict(texts)


@pytest.mark.slow  # in small: the classifier above, and text/test_graph_tokenizer.py
def test_a_tagger_keeps_markers_whole(tmp_path):
    """In strings and in words, as its export does; a RoBERTa's, whose markers are numbered in a file of their own."""
    labels = ner_tags.tag_set("iob2", ["PER", "LOC"])
    shutil.copytree(GOLDEN / "tokenization" / "roberta", tmp_path / "files")
    vocab_file = tmp_path / "files" / "vocab.json"
    (tmp_path / "files" / "tokenizer.json").unlink()
    size = len(json.loads(vocab_file.read_text(encoding="utf-8")))
    (tmp_path / "files" / "added_tokens.json").write_text(json.dumps({"[E1]": size, "[/E1]": size + 1}))
    sizes = {"vocab_size": size + 2, "pad_token_id": 1, "type_vocab_size": 1}
    config = config_of_dict({**CONFIG, "model_type": "roberta", **sizes})
    model = BertForTokenClassification(config, num_labels=len(labels), labels=labels)
    model.build()
    generator = np.random.default_rng(7)
    for variable in model.trainable_variables:
        variable.assign(generator.normal(size=variable.shape) * 0.3)
    path = str(tmp_path / "model")
    model.save_pretrained(path, vocab_file=str(vocab_file))
    settings = tagging.TaggingSettings(learned_scheme="iob2").to_json()
    (tmp_path / "model" / tagging.SETTINGS_FILE).write_text(settings)
    tagger = Tagger(path)
    export_saved_model(path, str(tmp_path / "export"), warm_up=False)
    exported = Tagger(str(tmp_path / "export"))
    text = "[E1]삼성[/E1]은  a, [E1]"
    words = ["[E1]", "삼성", "[/E1]", "은", "a", ",", "[E1]"]
    asked = [text, words, "삼성은", "", "a [E1][/E1]b"]
    found, others = tagger.predict(asked), exported.predict(asked)
    assert found[0]["words"] == found[1]["words"] == words
    assert found[0]["tags"] == found[1]["tags"]
    assert [text[a:b] for a, b in zip(found[0]["starts"], found[0]["ends"], strict=True)] == words
    assert found[4]["words"] == ["a", "[E1]", "[/E1]", "b"] and found[4]["starts"] == [0, 2, 6, 11]
    for one, other in zip(found, others, strict=True):
        assert [one[name] for name in ("words", "tags", "starts", "ends")] == [
            other[name] for name in ("words", "tags", "starts", "ends")
        ]
        np.testing.assert_allclose(one["scores"], other["scores"], atol=1e-5)


def test_any_iterable_of_strings(directory):
    import pandas as pd

    predictor = Predictor(str(directory / "model"))
    wanted = predictor.predict(["a", "b"])
    for texts in (pd.Series(["a", "b"]), np.array(["a", "b"]), (text for text in "ab")):
        assert predictor.predict(texts) == wanted
    assert len(predictor.predict(("a", "b", "a"))) == 3
    with pytest.raises(TypeError, match=r"not \['a'\]; write predictor\.predict\(texts\)"):
        predictor(["a"])

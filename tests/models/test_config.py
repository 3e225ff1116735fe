"""bert_config.json: defaults, the original's bytes, and what is refused."""

import json
import logging as python_logging
import pathlib

import numpy as np
import pytest

from bert_tf.models.config import BertConfig, check_vocab_size
from bert_tf.models.task_models import BertForSequenceClassification

RELEASED = """{
  "attention_probs_dropout_prob": 0.1,
  "hidden_act": "gelu",
  "hidden_dropout_prob": 0.1,
  "hidden_size": 32,
  "initializer_range": 0.02,
  "intermediate_size": 64,
  "max_position_embeddings": 64,
  "num_attention_heads": 2,
  "num_hidden_layers": 2,
  "type_vocab_size": 2,
  "vocab_size": 200
}
"""


def write(path, text) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_defaults_are_the_originals():
    assert BertConfig(30522).to_dict() == {
        "vocab_size": 30522,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "max_position_embeddings": 512,
        "type_vocab_size": 16,
        "initializer_range": 0.02,
    }
    assert BertConfig.from_dict({"vocab_size": 5}) == BertConfig(vocab_size=5)
    assert BertConfig(7, 8, 1, 2).num_attention_heads == 2  # the original's order of arguments
    with pytest.raises(TypeError):
        BertConfig()


def test_json_round_trip_is_byte_exact(tmp_path):
    path = write(tmp_path / "bert_config.json", RELEASED)
    config = BertConfig.from_json_file(path)
    assert config.to_json_string() == RELEASED
    copy = str(tmp_path / "copy.json")
    config.save(copy)
    assert pathlib.Path(copy).read_bytes() == RELEASED.encode()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bert_config.json", "copy.json"]
    config = BertConfig.from_dict({"vocab_size": 99, "hidden_size": 37, "num_attention_heads": 1})
    values = json.loads(config.to_json_string())
    assert values["vocab_size"] == 99 and values["hidden_size"] == 37
    # An integer stays an integer, and what the original does not know is written only where it differs.
    values = {"vocab_size": 5, "hidden_dropout_prob": 0, "hidden_act": None, "layer_norm_eps": 1e-5}
    config = BertConfig.from_dict(values)
    text = config.to_json_string()
    assert '"hidden_dropout_prob": 0,' in text and '"hidden_act": null,' in text and '"layer_norm_eps": 1e-05,' in text
    assert BertConfig.from_dict(config.to_dict()) == config != BertConfig(5)


def test_to_dict_and_from_dict_share_nothing():
    values = {"vocab_size": 5, "extra": [1]}
    config = BertConfig.from_dict(values, allow_unknown=True)
    config.to_dict()["extra"].append(2)
    values["extra"].append(3)
    assert config.extra == [1] and values["vocab_size"] == 5


def test_what_is_not_of_the_model_is_left_out(caplog):
    """Keys about the head, which earlier versions kept in bert_config.json; those that no model reads are kept."""
    of_head = {
        "architectures": ["BertForSequenceClassification"],
        "id2label": {"0": "no"},
        "label2id": {"no": 0},
        "problem_type": "single_label_classification",
        "lstm_on_top": True,
    }
    with caplog.at_level(python_logging.WARNING):
        config = BertConfig.from_dict({"vocab_size": 5, "pad_token_id": 1, **of_head})
    assert not caplog.records
    expected = BertConfig(5)
    expected.pad_token_id = 1  # a conversion to Hugging Face needs it
    assert config == expected
    assert BertConfig.from_dict({"vocab_size": 5, "directionality": "bidi"}).to_dict()["directionality"] == "bidi"
    with pytest.raises(ValueError, match="unknown key num_labels.*gelu_erf"):
        BertConfig.from_dict({"vocab_size": 5, "num_labels": 3, **of_head})


def test_unknown_key_is_an_error_unless_allowed(tmp_path, caplog):
    path = write(tmp_path / "c.json", '{"vocab_size": 5, "hiden_size": 64}')
    with pytest.raises(ValueError, match=r"c\.json: unknown key hiden_size.*allow_unknown=True"):
        BertConfig.from_json_file(path)
    with caplog.at_level(python_logging.WARNING):
        config = BertConfig.from_json_file(path, allow_unknown=True)
    assert "c.json" in caplog.text and "hiden_size" in caplog.text
    assert config.hiden_size == 64 and config.hidden_size == 768
    assert json.loads(config.to_json_string())["hiden_size"] == 64
    with pytest.raises(ValueError, match="gelu_erf"):
        BertConfig.from_dict({"vocab_size": 5, "model_type": "bert"})
    with pytest.raises(ValueError, match="to_dict"):
        BertConfig.from_dict({"vocab_size": 5, "to_dict": 1}, allow_unknown=True)


def test_numpys_numbers_are_numbers(tmp_path):
    config = BertConfig(
        np.int64(9), hidden_size=np.int32(8), num_attention_heads=2, hidden_dropout_prob=np.float64(0.5)
    )
    config.save(str(tmp_path / "bert_config.json"))
    assert BertConfig.from_json_file(str(tmp_path / "bert_config.json")) == config
    model = BertForSequenceClassification(config, num_labels=np.int64(3))
    assert type(model.num_labels) is int is type(config.vocab_size)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"hidden_size": -1}, "hidden_size must be a positive"),
        ({"num_hidden_layers": 2.0}, "num_hidden_layers must be a positive"),
        ({"vocab_size": 10**400}, "vocab_size must be at most 16,777,216, not 1000"),
        ({"hidden_size": 49152}, "these sizes make 122,030,112,768 parameters; there may be 100,000,000,000"),
        ({"hidden_size": 770}, "hidden_size must be a multiple of num_attention_heads: 770 is not one of 12"),
        ({"attention_probs_dropout_prob": float("nan")}, "attention_probs_dropout_prob must be a probability"),
        ({"layer_norm_eps": 0}, "layer_norm_eps must be a positive number, not 0"),
        ({"hidden_act": "swish"}, "hidden_act must be one of gelu, gelu_erf, relu, tanh, linear, not 'swish'"),
    ],
)
def test_bad_values_name_file_and_key(tmp_path, values, message):
    path = write(tmp_path / "c.json", json.dumps({"vocab_size": 5, **values}))
    with pytest.raises(ValueError, match=rf"c\.json: {message}"):
        BertConfig.from_json_file(path)


@pytest.mark.parametrize(
    ("written", "meant"),
    [("GELU", "gelu"), ("gelu_erf", "gelu_erf"), ("Relu", "relu"), ("tanh", "tanh"), (None, "linear"), ("", "linear")],
)
def test_activation_names(written, meant):
    config = BertConfig(5, hidden_act=written)
    assert config.activation == meant and config.to_dict()["hidden_act"] == written


def test_vocab_size_check(caplog):
    def check(lines, vocab_size, **kwargs):
        check_vocab_size(BertConfig(vocab_size), lines, "v.txt", "c.json", **kwargs)

    check(200, 200)
    assert not caplog.records
    with pytest.raises(ValueError, match=r"v\.txt has 201 lines but c\.json has vocab_size 200: ids from 200 on"):
        check(201, 200)
    for lines, vocab_size in [(199, 200 + 128), (190, 199), (0, 200)]:
        with pytest.raises(
            ValueError, match=rf"v\.txt has {lines} lines but c\.json has vocab_size {vocab_size}: does"
        ):
            check(lines, vocab_size)
    with caplog.at_level(python_logging.WARNING):
        check(30522, 30528)
        assert "padded" in caplog.text
    with pytest.raises(ValueError, match=r"Set vocab_size to 201 in c\.json, or to 208, a multiple of 8"):
        check(201, 500, is_new=True)
    with pytest.raises(ValueError, match=r"if this is it, add 299 lines to it for the unused rows: \[row201\]"):
        check(201, 500)

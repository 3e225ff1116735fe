"""bert_config.json: defaults, the original's bytes, and what is refused."""

import json
import pathlib

import numpy as np
import pytest

from bert_tf import families
from bert_tf.families import config_of_size
from bert_tf.families.config import BertConfig, check_vocab_size
from bert_tf.families.family import expected_shapes
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
    path.write_text(text)
    return str(path)


def test_defaults_are_the_originals():
    defaults = {
        "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1, "max_position_embeddings": 512, "type_vocab_size": 16,
        "initializer_range": 0.02,
    }  # fmt: skip
    assert BertConfig(30522).to_dict() == defaults
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
    # An integer stays an integer, and what the original does not know is written only where it differs.
    values = {"vocab_size": 5, "hidden_dropout_prob": 0, "hidden_act": None, "layer_norm_eps": 1e-5}
    config = BertConfig.from_dict(values)
    text = config.to_json_string()
    assert '"hidden_dropout_prob": 0,' in text and '"hidden_act": null,' in text and '"layer_norm_eps": 1e-05,' in text
    assert BertConfig.from_dict(config.to_dict()) == config != BertConfig(5)


def test_what_is_not_of_the_model_is_left_out(caplog):
    """Keys about the head, which earlier versions kept in bert_config.json; those that no model reads are kept."""
    of_head = {
        "architectures": ["BertForSequenceClassification"], "id2label": {"0": "no"}, "label2id": {"no": 0},
        "problem_type": "single_label_classification", "lstm_on_top": True,
    }  # fmt: skip
    config = BertConfig.from_dict({"vocab_size": 5, "pad_token_id": 1, **of_head})
    assert not caplog.records
    expected = BertConfig(5)
    expected.pad_token_id = 1  # a conversion to Hugging Face needs it
    assert config == expected
    assert BertConfig.from_dict({"vocab_size": 5, "directionality": "bidi"}).to_dict()["directionality"] == "bidi"


def test_unknown_key_is_an_error_unless_allowed(tmp_path, caplog):
    path = write(tmp_path / "c.json", '{"vocab_size": 5, "hiden_size": 64}')
    with pytest.raises(ValueError, match=r"c\.json: unknown key hiden_size.*allow_unknown=True"):
        BertConfig.from_json_file(path)
    config = BertConfig.from_json_file(path, allow_unknown=True)
    assert "c.json" in caplog.text and "hiden_size" in caplog.text
    assert config.hiden_size == 64 and config.hidden_size == 768
    assert json.loads(config.to_json_string())["hiden_size"] == 64


def test_numpys_numbers_are_numbers(tmp_path):
    config = BertConfig(
        np.int64(9), hidden_size=np.int32(8), num_attention_heads=2, hidden_dropout_prob=np.float64(0.5)
    )
    config.save(str(tmp_path / "bert_config.json"))
    assert BertConfig.from_json_file(str(tmp_path / "bert_config.json")) == config
    model = BertForSequenceClassification(config, num_labels=np.int64(3))
    assert type(model.num_labels) is int is type(config.vocab_size)


@pytest.mark.parametrize(("values", "message"), [
    ({"vocab_size": None}, "vocab_size is missing"),
    ({"hidden_size": -1}, "hidden_size must be an integer from 1 to 65,536, not -1"),
    ({"num_hidden_layers": 2.0}, "num_hidden_layers must be an integer"),
    ({"vocab_size": 10**400}, "vocab_size must be an integer from 1 to 16,777,216, not 1000"),
    ({"hidden_size": 770}, "hidden_size=770 must be a multiple of num_attention_heads=12"),
    ({"attention_probs_dropout_prob": float("nan")}, "attention_probs_dropout_prob must be a probability"),
    ({"layer_norm_eps": 0}, "layer_norm_eps must be a positive number, not 0"),
    ({"hidden_act": "swish"}, "hidden_act must be one of gelu, gelu_erf, relu, tanh, linear, not 'swish'"),
])  # fmt: skip
def test_bad_values_name_file_and_key(tmp_path, values, message):
    path = write(tmp_path / "c.json", json.dumps({"vocab_size": 5, **values}))
    with pytest.raises(ValueError, match=rf"c\.json: {message}"):
        BertConfig.from_json_file(path)


def test_activation_names():
    meanings = {"GELU": "gelu", "gelu_erf": "gelu_erf", "Relu": "relu", None: "linear", "": "linear"}
    for written, meant in meanings.items():
        config = BertConfig(5, hidden_act=written)
        assert config.activation == meant and config.to_dict()["hidden_act"] == written


def test_vocab_size_check(caplog):
    def check(lines, vocab_size, **kwargs):
        check_vocab_size(BertConfig(vocab_size), lines, "v.txt", "c.json", **kwargs)

    check(200, 200)
    assert not caplog.records
    for lines, vocab_size in [(201, 200), (199, 200 + 128), (190, 199), (0, 200)]:
        with pytest.raises(ValueError, match=rf"v\.txt has {lines} lines but c\.json has vocab_size {vocab_size}: use"):
            check(lines, vocab_size)
    with pytest.raises(ValueError, match="set vocab_size to 201, or give the vocabulary"):
        check(201, 500, is_new=True)
    check(30522, 30528)
    assert "padded" in caplog.text


# In millions. Tiny to base with the pre-training heads; all others are the encoder's.
PUBLISHED = {"tiny": 4.4, "mini": 11.3, "small": 29.1, "medium": 41.7, "base": 110.1, "large": 335.1}
# Of descendants, in round numbers. ALBERT's paper has 235 for xxlarge, its cards at Hugging Face 223.
PUBLISHED_FAMILIES = {
    "roberta_base": 125, "roberta_large": 355, "electra_small": 14, "electra_base": 110, "electra_large": 335,
    "albert_base_v2": 12, "albert_large_v2": 18, "albert_xlarge_v2": 60, "albert_xxlarge_v2": 223,
    "distilbert_base": 66,
}  # fmt: skip


def count_of(config, encoder_only=False):
    """Millions of parameters."""
    shapes, scope = expected_shapes(config), f"{config.model_type}/"
    return sum(np.prod(shape) for name, shape in shapes.items() if name.startswith(scope) or not encoder_only) / 1e6


def test_berts_sizes_have_the_published_parameters():
    names = list(BertConfig.sizes)
    assert names[:6] == list(PUBLISHED)
    for size, millions in PUBLISHED.items():
        assert round(count_of(config_of_size(size), encoder_only=size == "large"), 1) == millions
    assert len(names[6:]) == 28 and len({str(BertConfig.sizes[name]) for name in names}) == 28
    config = config_of_size("L-10_H-256", vocab_size=99)
    assert config == BertConfig(99, 256, 10, 4, 1024, type_vocab_size=2)
    assert config_of_size("L-6_H-768_A-3").num_attention_heads == 3
    assert config_of_size("L-6_H-768_A-12") == config_of_size("L-6_H-768")


@pytest.mark.parametrize(("size", "millions"), PUBLISHED_FAMILIES.items())
def test_descendants_sizes_have_the_published_parameters(size, millions):
    config = config_of_size(size)
    assert config.model_type == size.split("_")[0]
    assert abs(count_of(config, encoder_only=True) - millions) < 0.02 * millions + 0.5
    assert config_of_size(size, 100).vocab_size == 100


def test_version_1_of_albert_has_dropout_and_scopes_tell_families():
    names = ["generator/x", "electra/embeddings/word_embeddings"]
    assert families.family_of_variables(names) is families.electra.FAMILY
    assert families.is_encoder_variable("albert/encoder/layer_0") and not families.is_encoder_variable("cls/x")
    config = config_of_size("albert_base_v1")
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.1, 0.1)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    assert config == config_of_size("albert_base_v2")

"""Model families: look-up by configuration, by name and by variable names."""

import pytest

from bert_tf.models import families, initialize, variable_names
from bert_tf.models.config import BertConfig
from bert_tf.models.huggingface_layouts import LAYOUTS
from bert_tf.models.task_models import BertForPreTraining
from bert_tf.text.wordpiece import FullTokenizer

CONFIG = BertConfig(30, 8, 1, 2, 16, max_position_embeddings=8, type_vocab_size=2)


def test_bert():
    family = families.family_of(CONFIG)
    assert family is families.BERT is families.family_named("bert") is families.family_of_variables(["bert/pooler/x"])
    assert (family.scope, family.tokenizer_class) == ("bert", FullTokenizer)
    assert family.formats == ("bert_tf", "tf1", "huggingface")


def test_every_family_is_one_of_a_kind():
    assert list(LAYOUTS) == [family.model_type for family in families.FAMILIES]
    for field in ("model_type", "config_class"):
        values = [getattr(family, field) for family in families.FAMILIES]
        assert len(set(values)) == len(values) == len(families.FAMILIES)


def test_scopes_tell_families_and_encoders():
    assert families.family_of_variables(["generator/x", "electra/embeddings/word_embeddings"]) is families.ELECTRA
    assert families.is_encoder_variable("albert/encoder/layer_0") and not families.is_encoder_variable("cls/x")


def test_an_unknown_family_is_named():
    with pytest.raises(ValueError, match="config.json: model_type is 'xlnet'; .* are 'bert', 'distilbert', 'roberta'"):
        families.family_named("xlnet", "config.json")


def test_variables_of_encoder_and_heads():
    model = BertForPreTraining(CONFIG)
    model.build()
    variables = initialize.model_variables(model)
    assert set(variable_names.expected_shapes(CONFIG)) == set(variables)
    assert {name for name in variables if not families.is_encoder_variable(name)} == {
        name for name in variables if name.startswith("cls/")
    }
    assert model.bert.name == "bert"
    assert variable_names.config_of_shapes("path", variable_names.expected_shapes(CONFIG), 2) == CONFIG

"""Model families: look-up by configuration, by name, by variable names and by size, with the published parameters."""

import numpy as np
import pytest

from bert_tf.models import families
from bert_tf.models.config import BertConfig
from bert_tf.models.families import config_of_size
from bert_tf.models.variable_names import expected_shapes

# In millions. Tiny to base with the pre-training heads; all others are the encoder's.
PUBLISHED = {"tiny": 4.4, "mini": 11.3, "small": 29.1, "medium": 41.7, "base": 110.1, "large": 335.1}
# Of descendants, in round numbers. ALBERT's paper has 235 for xxlarge, its cards at Hugging Face 223.
PUBLISHED_FAMILIES = {
    "roberta_base": 125, "roberta_large": 355, "electra_small": 14, "electra_base": 110, "electra_large": 335,
    "albert_base_v2": 12, "albert_large_v2": 18, "albert_xlarge_v2": 60, "albert_xxlarge_v2": 223,
    "distilbert_base": 66,
}  # fmt: skip


def test_scopes_tell_families_and_encoders():
    assert families.family_of_variables(["generator/x", "electra/embeddings/word_embeddings"]) is families.ELECTRA
    assert families.is_encoder_variable("albert/encoder/layer_0") and not families.is_encoder_variable("cls/x")


def count_of(config, encoder_only=False):
    """Millions of parameters."""
    shapes = expected_shapes(config)
    scope = f"{config.model_type}/"
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
    assert config_of_size("L-6_H-768_A-12") == config_of_size("L-6_H-768") == BertConfig.from_size("L-6_H-768")
    with pytest.raises(ValueError, match="'albert_base_v2' is not one of the sizes of BERT: tiny, "):
        BertConfig.from_size("albert_base_v2")


@pytest.mark.parametrize(("size", "millions"), PUBLISHED_FAMILIES.items())
def test_descendants_sizes_have_the_published_parameters(size, millions):
    config = config_of_size(size)
    assert config.model_type == size.split("_")[0]
    assert abs(count_of(config, encoder_only=True) - millions) < 0.02 * millions + 0.5
    assert config_of_size(size, 100).vocab_size == 100


def test_version_1_of_albert_has_dropout():
    config = config_of_size("albert_base_v1")
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.1, 0.1)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    assert config == config_of_size("albert_base_v2")

"""Files of tf-models-official: a pretrainer, other spellings, other models, and damage."""

import numpy as np
import pytest
import tensorflow as tf
from helpers.converted import example_inputs, our_outputs
from helpers.model_garden_models import (
    CONFIG,
    assert_same_bits,
    encoder_values,
    make_encoder,
    make_pretrainer,
    masked_lm_values,
    next_sentence_head,
    older_names,
    pretrainer_values,
    randomise,
    write,
    write_variables,
)

from bert_tf.models import model_garden

tf_keras = pytest.importorskip("tf_keras")
from official.nlp.modeling import layers, models, networks  # noqa: E402


@pytest.fixture(scope="module", params=[networks.BertEncoder, networks.BertEncoderV2], ids=lambda kind: kind.__name__)
def pretrainer(request):
    return randomise(make_pretrainer(request.param))


def test_outputs_equal_theirs(pretrainer, tmp_path):
    """Padding and segments count, the trained pooler is the next-sentence head's."""
    weights = model_garden.open_weights(write(tmp_path, "x", model=pretrainer))
    assert_same_bits(weights, pretrainer_values(pretrainer))
    inputs = example_inputs(CONFIG)
    places = inputs["masked_lm_positions"]
    names = {"input_word_ids": "input_ids", "input_mask": "input_mask", "input_type_ids": "segment_ids"}
    theirs = pretrainer({name: inputs[ours] for name, ours in names.items()} | {"masked_lm_positions": places})
    head = pretrainer.classification_heads[0]
    expected = {
        "sequence_output": theirs["sequence_output"],
        "pooled_output": head(theirs["sequence_output"], only_project=True),
        "masked_lm_logits": theirs["mlm_logits"],
        "next_sentence_logits": theirs["next_sentence"],
    }
    found = our_outputs(weights, CONFIG, inputs)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-5, rtol=0, err_msg=name)


@pytest.mark.parametrize("split_heads", [True, False])
def test_names_of_older_releases(tmp_path, split_heads):
    values, expected = older_names(split_heads=split_heads)
    assert "bert_model/encoder/layer_1/self_attention_output/kernel" in values
    weights = model_garden.open_weights(write_variables(tmp_path / "older", values))
    assert_same_bits(weights, expected)
    assert weights.hints == ({"num_attention_heads": 3} if split_heads else {})
    # A position table from the time in between.
    values["position_embeddings/embeddings"] = values.pop("bert_model/embedding_postprocessor/position_embeddings")
    assert_same_bits(model_garden.open_weights(write_variables(tmp_path / "between", values)), expected)


def test_half_precision_is_widened(tmp_path):
    values, expected = older_names()
    narrow = {name: tf.cast(value, tf.bfloat16) for name, value in values.items()}
    weights = model_garden.open_weights(write_variables(tmp_path / "x", narrow))
    assert_same_bits(weights, {n: tf.cast(tf.cast(v, tf.bfloat16), tf.float32).numpy() for n, v in expected.items()})


def test_heads_that_do_not_fit_are_listed(tmp_path):
    """A pooler with the head's own width invalidates the head; the encoder's pooler then counts."""
    pretrainer = models.BertPretrainerV2(
        make_encoder(networks.BertEncoderV2),
        classification_heads=[next_sentence_head(5), layers.ClassificationHead(12, 3, name="topic")],
    )
    pretrainer(pretrainer.inputs)
    prefix = write(tmp_path, "p", model=randomise(pretrainer))
    weights = model_garden.open_weights(prefix)
    expected = encoder_values(pretrainer.encoder_network) | masked_lm_values(pretrainer.masked_lm)
    assert_same_bits(weights, expected)
    reasons = {key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE"): reason for key, reason in weights.unused.items()}
    head = "model/classification_heads/"
    assert reasons[head + "0/dense/kernel"] == "a head of another shape than the original's: [12, 5]"
    assert reasons[head + "0/out_proj/bias"] == "a head of another shape than the original's: [2]"
    assert "no variable for bert/topic/logits/kernel" in reasons[head + "1/out_proj/kernel"]
    assert "no variable for bert/topic/pooler_dense/kernel" in reasons[head + "1/dense/kernel"]


def test_encoder_layers_of_another_kind_are_refused(tmp_path):
    values, _ = older_names()
    first = "bert_model/encoder/layer_1/"
    more = values | {first + "self_attention_layer_norm_kv/gamma": np.ones(12, np.float32)}
    with pytest.raises(ValueError, match="another kind than BERT's.*layer_1/self_attention_layer_norm_kv/gamma"):
        model_garden.open_weights(write_variables(tmp_path / "more", more))
    other = values | {first + "self_attention/query/kernel": np.zeros((12, 4, 3), np.float32)}
    with pytest.raises(ValueError, match=r"different numbers of attention heads: \[3, 4\]"):
        model_garden.open_weights(write_variables(tmp_path / "heads", other))


def test_two_encoders_are_refused(tmp_path):
    pair = [make_encoder(networks.BertEncoderV2) for _ in range(2)]
    prefix = write(tmp_path, "x", one=pair[0], two=pair[1])
    with pytest.raises(ValueError, match=r"x-1 has two candidates for bert/.*: one/.* and two/.*two encoders"):
        model_garden.open_weights(prefix)

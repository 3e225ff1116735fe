"""BertModel's return_attention: the numbers, and that returning them changes no other outputs."""

import keras
import numpy as np
import pytest
from helpers.tiny import TINY_CONFIG

from bert_tf import BertConfig, BertModel
from bert_tf.models.dropout import dropout_scope

LENGTH = 7


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(5)
    model = BertModel(BertConfig.from_dict({**TINY_CONFIG, "initializer_range": 0.5}), seed=1)
    model.build()
    return model


@pytest.fixture(scope="module")
def inputs():
    ids = np.random.default_rng(0).integers(5, 100, (3, LENGTH)).astype("int32")
    mask = np.ones_like(ids)
    mask[1, 4:] = 0
    return {"input_ids": ids, "input_mask": mask, "segment_ids": (np.arange(LENGTH) > 3) * np.ones_like(ids)}


def by_hand(model, x, mask, layer):
    """softmax(q kᵀ / sqrt(D)) of a block's input, in float64, head by head."""
    part = model.blocks[layer].attention
    q, k = (x @ np.float64(layer.kernel.numpy()) + layer.bias.numpy() for layer in (part.query, part.key))
    heads, size = TINY_CONFIG["num_attention_heads"], TINY_CONFIG["hidden_size"] // TINY_CONFIG["num_attention_heads"]
    result = np.zeros((len(x), heads, LENGTH, LENGTH))
    for example in range(len(x)):
        seen = mask[example].astype(bool)
        for head in range(heads):
            columns = slice(head * size, (head + 1) * size)
            scores = q[example, :, columns] @ k[example, :, columns].T / np.sqrt(size)
            powers = np.where(seen, np.exp(scores - scores.max()), 0.0)
            result[example, head] = powers / powers.sum(-1, keepdims=True)
    return result


def test_probabilities_are_those_of_the_paper(model, inputs):
    outputs = model(inputs, return_all_layers=True, return_attention=True)
    attention = [np.asarray(layer) for layer in outputs["attention_probabilities"]]
    assert [layer.shape for layer in attention] == [(3, 2, LENGTH, LENGTH)] * 2
    layer_inputs = [outputs["embedding_output"], outputs["encoder_layers"][0]]
    for number, x in enumerate(layer_inputs):
        expected = by_hand(model, np.float64(np.asarray(x)), inputs["input_mask"], number)
        np.testing.assert_allclose(attention[number], expected, atol=2e-6)
        assert expected.max() > 0.8  # far from uniform: a transposed or shuffled result would show
        np.testing.assert_allclose(attention[number].sum(-1), 1, atol=1e-6)
        assert not attention[number][1, :, :, 4:].any()


@pytest.mark.parametrize("training", [False, True])
def test_other_outputs_stay_the_same_bits(model, inputs, training):
    with dropout_scope([3, 4]):
        plain = model(inputs, training=training)
        asked = model(inputs, training=training, return_attention=True)
    assert set(asked) - set(plain) == {"attention_probabilities"}
    for name, value in plain.items():
        np.testing.assert_array_equal(value, asked[name])
    zeros = [np.mean(np.asarray(layer)[0] == 0) for layer in asked["attention_probabilities"]]
    assert all(0.02 < share < 0.25 for share in zeros) if training else not any(zeros)  # dropout of 0.1

"""Encoder and heads compared with the original's outputs (tests/golden/model), and as Keras layers."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.dropped import in_training
from helpers.outputs import assert_drawn_independently

from bert_tf.models import initialize, kernels
from bert_tf.models.config import BertConfig
from bert_tf.models.inputs import select
from bert_tf.models.layers import LayerNorm
from bert_tf.models.objectives import PretrainingObjective, cross_entropy
from bert_tf.models.task_models import BertForPreTraining, BertModel

pytestmark = pytest.mark.numbers

LAYERS, LOG_PROBABILITIES, ZERO_MASK_ROW, SCALAR = 2e-5, 5e-5, 2e-3, 5e-4
CONFIGS = ("config1", "config2")


def load(golden, name, dtype=None):
    folder = golden / "model" / name
    model = BertForPreTraining(BertConfig.from_json_file(str(folder / "bert_config.json")), dtype=dtype)
    model.build()
    initialize.initialize(initialize.model_variables(model), str(folder / "bert_model.ckpt"), must_have_all=True)
    inputs = select(np.load(folder / "inputs.npz"), model.known_inputs)  # the file has the inputs of all models
    return model, inputs, dict(np.load(folder / "outputs.npz")), folder


def assert_close(actual, expected, tolerance=LAYERS, last_rows=1):
    """The last batch row has an all-zero mask, where float32 is coarse (golden README)."""
    actual = np.asarray(actual)
    np.testing.assert_allclose(actual[:-last_rows], expected[:-last_rows], rtol=0, atol=tolerance)
    np.testing.assert_allclose(actual[-last_rows:], expected[-last_rows:], rtol=0, atol=ZERO_MASK_ROW)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_layer_equals_the_original(golden, name):
    model, inputs, outputs, _ = load(golden, name)
    encoded = model.encode(inputs, return_all_layers=True)
    assert_close(encoded["embedding_output"], outputs["embedding_output"])
    assert len(encoded["encoder_layers"]) == model.config.num_hidden_layers
    for number, layer in enumerate(encoded["encoder_layers"]):
        assert_close(layer, outputs[f"encoder_layer_{number}"])
    assert_close(encoded["sequence_output"], outputs["sequence_output"])
    assert_close(encoded["pooled_output"], outputs["pooled_output"])


@pytest.mark.parametrize("name", CONFIGS)
def test_pretraining_outputs_and_losses_equal_the_original(golden, name):
    model, inputs, outputs, _ = load(golden, name)
    result = model(inputs)
    rows = inputs["masked_lm_positions"].shape[1]
    log_probabilities = keras.ops.log_softmax(result["masked_lm_logits"]).numpy()
    flat = log_probabilities.reshape(-1, model.config.vocab_size)
    assert_close(flat, outputs["masked_lm_log_probs"], LOG_PROBABILITIES, rows)
    losses = cross_entropy(result["masked_lm_logits"], inputs["masked_lm_ids"]).numpy().reshape(-1)
    assert_close(losses, outputs["masked_lm_example_loss"], LOG_PROBABILITIES, rows)
    next_sentence = keras.ops.log_softmax(result["next_sentence_logits"]).numpy()
    assert_close(next_sentence, outputs["next_sentence_log_probs"])
    sums = PretrainingObjective.sums(result, inputs)
    masked_lm = sums["masked_lm_loss"] / (sums["masked_lm_weight"] + 1e-5)
    np.testing.assert_allclose(masked_lm, outputs["masked_lm_loss"], atol=SCALAR)
    np.testing.assert_allclose(
        sums["next_sentence_loss"] / sums["examples"], outputs["next_sentence_loss"], atol=SCALAR
    )
    np.testing.assert_allclose(PretrainingObjective.loss(sums, sums), outputs["total_loss"], atol=SCALAR)


@pytest.mark.parametrize("name", CONFIGS)
def test_full_length_without_mask(golden, name):
    """The second row has segment ids that are not in the table. Original: nothing is added."""
    model, _, _, folder = load(golden, name)
    inputs = dict(np.load(folder / "inputs_full_length.npz"))
    outputs = dict(np.load(folder / "outputs_full_length.npz"))
    full = model.encode({key: value[::2] for key, value in inputs.items()})
    np.testing.assert_allclose(full["sequence_output"], outputs["full_sequence_output"][::2], atol=LAYERS)
    np.testing.assert_allclose(full["pooled_output"], outputs["full_pooled_output"][::2], atol=LAYERS)
    with pytest.raises(ValueError, match=r"segment_ids\[1\]\[\d+\] is -?\d+, but must be less than type_vocab_size"):
        model.encode(inputs)
    defaults = model.bert(inputs["input_ids"])
    np.testing.assert_allclose(defaults["sequence_output"], outputs["defaults_sequence_output"], atol=LAYERS)


def test_initial_values_are_a_truncated_normal():
    keras.utils.set_random_seed(1)
    config = BertConfig(vocab_size=2000, hidden_size=64, num_hidden_layers=1, num_attention_heads=2)
    model = BertModel(config)
    model.build()
    table = model.get_embedding_table().numpy()
    assert np.abs(table).max() <= 2 * 0.02 + 1e-6
    assert abs(table.std() / 0.02 - 0.8796) < 0.01  # standard deviation of a normal truncated at two
    for variable in model.trainable_variables:
        if "bias" in variable.path or "beta" in variable.path:
            assert not variable.numpy().any()
    assert_drawn_independently(model)


# --- plain and fused kernels, dropout --------------------------------------------------------------------------------


def gradients(model, inputs, seed):
    with tf.GradientTape() as tape:
        sums = PretrainingObjective.sums(in_training(model, inputs, seed), inputs)
        loss = PretrainingObjective.loss(sums, sums)
    values = tape.gradient(loss, [v.value for v in model.trainable_variables])
    return float(loss), [tf.convert_to_tensor(value).numpy() for value in values]


@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_erf", "relu"])
def test_fused_and_plain_kernels_give_the_same_numbers(golden, hidden_act):
    model, inputs, _, _ = load(golden, "config1")
    model.config.hidden_act = hidden_act
    inputs = {**inputs, "input_mask": np.copy(inputs["input_mask"])}
    inputs["input_mask"][-1] = 1  # float32 is coarse in a row whose keys are all masked
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = 0.1
    seed = np.array([5, 7], "int32")
    assert kernels.fused_enabled()
    loss, fused = gradients(model, inputs, seed)
    try:
        kernels.set_fused(False)
        plain_loss, plain = gradients(model, inputs, seed)
    finally:
        kernels.set_fused(True)
    np.testing.assert_allclose(loss, plain_loss, atol=1e-5)
    for one, other in zip(fused, plain, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_every_layer_norm_has_the_epsilon_of_the_config(golden):
    model, inputs, _, _ = load(golden, "config1")
    config = BertConfig(**{**model.config.to_dict(), "layer_norm_eps": 1e-3})
    other = BertForPreTraining(config)
    other.build()
    layers = [layer for layer in other._flatten_layers() if isinstance(layer, LayerNorm)]
    assert len(layers) == 2 + 2 * config.num_hidden_layers
    assert {layer.epsilon for layer in layers} == {1e-3}
    other.set_weights(model.get_weights())
    difference = np.abs(other.encode(inputs)["sequence_output"] - model.encode(inputs)["sequence_output"]).max()
    assert 1e-5 < difference < 0.2


# --- Keras -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "computed"), [((4, None, 6), 0), ((None, 3, 6), 0), ((None, None, 6), 1), ((None, 0, 6), 1)]
)
def test_only_what_is_unknown_is_computed(shape, computed):
    @tf.function(input_signature=[tf.TensorSpec(shape)])
    def halves(x):
        return tf.reshape(x, (*kernels.leading_sizes(x, 2), 2, 3))

    graph = halves.get_concrete_function().graph
    assert sum(operation.type == "Shape" for operation in graph.get_operations()) == computed
    assert graph.outputs[0].shape.as_list() == [*shape[:2], 2, 3]
    for batch, length in ((4, 3), (4, 0), (0, 3)):
        if all(size in (None, given) for size, given in zip(shape, (batch, length), strict=False)):
            assert halves(tf.ones((batch, length, 6))).shape == (batch, length, 2, 3)
    assert kernels.leading_sizes(tf.ones((2, 0, 6)), 2) == (2, 0)

"""Encoder and heads compared with the original's outputs (tests/golden/model), and as Keras layers."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.outputs import assert_drawn_independently

from bert_tf import BertConfig, BertForPreTraining, BertForQuestionAnswering, BertForSequenceClassification, BertModel
from bert_tf.models import initialize
from bert_tf.models.inputs import select
from bert_tf.models.layers import LayerNorm
from bert_tf.models.objectives import PretrainingObjective, cross_entropy
from bert_tf.training.step import make_evaluate_function

pytestmark = pytest.mark.numbers

LAYERS, LOG_PROBABILITIES, ZERO_MASK_ROW, SCALAR = 2e-5, 5e-5, 2e-3, 5e-4
CONFIGS = ("config1", "config2")


def load(golden, name, checkpoint="bert_model.ckpt", kind=BertForPreTraining, **arguments):
    """A model with the original's weights; inputs and outputs of all its models."""
    folder = golden / "model" / name
    model = kind(BertConfig.from_json_file(str(folder / "bert_config.json")), **arguments)
    assert not initialize.load_weights(model, str(folder / checkpoint)).missing
    return model, select(np.load(folder / "inputs.npz"), model.known_inputs), dict(np.load(folder / "outputs.npz"))


def assert_close(actual, expected, tolerance=LAYERS, last_rows=1):
    """The last batch row has an all-zero mask, where float32 is coarse (golden README)."""
    actual = np.asarray(actual)
    np.testing.assert_allclose(actual[:-last_rows], expected[:-last_rows], rtol=0, atol=tolerance)
    np.testing.assert_allclose(actual[-last_rows:], expected[-last_rows:], rtol=0, atol=ZERO_MASK_ROW)


def evaluated(golden, name, head, model, inputs) -> tuple[dict, dict]:
    """The results of an evaluation: the original's, and ours."""
    evaluate = make_evaluate_function(model, model.objective, tf.distribute.OneDeviceStrategy("/cpu:0"))
    results = evaluate([{key: tf.constant(value) for key, value in inputs.items()}])
    return json.loads((golden / "model" / name / "eval_metrics.json").read_text())[head], results


@pytest.mark.parametrize("name", CONFIGS)
def test_every_layer_and_pretraining_equal_the_original(golden, name):
    model, inputs, outputs = load(golden, name)
    encoded = model.encode(inputs, return_all_layers=True)
    assert_close(encoded["embedding_output"], outputs["embedding_output"])
    assert len(encoded["encoder_layers"]) == model.config.num_hidden_layers
    for number, layer in enumerate(encoded["encoder_layers"]):
        assert_close(layer, outputs[f"encoder_layer_{number}"])
    assert_close(encoded["sequence_output"], outputs["sequence_output"])
    assert_close(encoded["pooled_output"], outputs["pooled_output"])
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
    mean = sums["next_sentence_loss"] / sums["examples"]
    np.testing.assert_allclose(mean, outputs["next_sentence_loss"], atol=SCALAR)
    np.testing.assert_allclose(PretrainingObjective.loss(sums, sums), outputs["total_loss"], atol=SCALAR)
    expected, results = evaluated(golden, name, "pretraining", model, inputs)
    assert set(expected) - {"global_step"} == set(results)
    for key, value in results.items():
        np.testing.assert_allclose(value, expected[key], atol=SCALAR, err_msg=key)


@pytest.mark.parametrize("name", CONFIGS)
def test_classifier_equals_the_original(golden, name):
    model, inputs, outputs = load(golden, name, "classifier.ckpt", BertForSequenceClassification, num_labels=3)
    logits = model(inputs)
    assert_close(logits, outputs["classifier_logits"])
    assert_close(keras.ops.softmax(logits), outputs["classifier_probabilities"])
    losses, _ = model.objective.values(logits, inputs)
    assert_close(losses, outputs["classifier_example_loss"])
    sums = model.objective.sums(logits, inputs)
    np.testing.assert_allclose(model.objective.loss(sums, sums), outputs["classifier_loss"], atol=SCALAR)
    # A padding example counts in the original's loss, but in neither of its metrics.
    assert not inputs["is_real_example"].all()
    expected, actual = evaluated(golden, name, "classifier", model, inputs)
    np.testing.assert_allclose(actual["accuracy"], expected["eval_accuracy"], atol=1e-6)
    np.testing.assert_allclose(actual["example_loss"], expected["eval_loss"], atol=2e-5)
    np.testing.assert_allclose(actual["loss"], expected["loss"], atol=SCALAR)
    assert abs(actual["loss"] - actual["example_loss"]) > 0.005


@pytest.mark.parametrize("name", CONFIGS)
def test_question_answering_equals_the_original(golden, name):
    model, inputs, outputs = load(golden, name, "squad.ckpt", BertForQuestionAnswering)
    result = model(inputs)
    assert_close(result["start_logits"], outputs["squad_start_logits"])
    assert_close(result["end_logits"], outputs["squad_end_logits"])
    if name == "config1":
        sums = model.objective.sums(result, inputs)
        loss = model.objective.loss(sums, sums)
    else:  # has positions outside of the rows, which cost the original nothing; here they are errors
        with pytest.raises(ValueError, match=r"start_positions\[1\] is 43, but must be a place in the row"):
            model.objective.sums(result, inputs)
        losses = [cross_entropy(result[f"{end}_logits"], inputs[f"{end}_positions"]) for end in ("start", "end")]
        loss = np.mean(losses)
    np.testing.assert_allclose(loss, outputs["squad_loss"], atol=SCALAR)


@pytest.mark.parametrize("name", CONFIGS)
def test_full_length_without_mask(golden, name):
    """The second row has segment ids that are not in the table. Original: nothing is added."""
    model, _, _ = load(golden, name)
    folder = golden / "model" / name
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


def test_every_layer_norm_has_the_epsilon_of_the_config(golden):
    model, inputs, _ = load(golden, "config1")
    config = BertConfig(**{**model.config.to_dict(), "layer_norm_eps": 1e-3})
    other = BertForPreTraining(config)
    other.build()
    layers = [layer for layer in other._flatten_layers() if isinstance(layer, LayerNorm)]
    assert len(layers) == 2 + 2 * config.num_hidden_layers and {layer.epsilon for layer in layers} == {1e-3}
    other.set_weights(model.get_weights())
    difference = np.abs(other.encode(inputs)["sequence_output"] - model.encode(inputs)["sequence_output"]).max()
    assert 1e-5 < difference < 0.2

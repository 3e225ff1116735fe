"""RoBERTa and DistilBERT: the weights that pre-training begins with, and its loss."""

import json
import shutil

import keras
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
from helpers.outputs import assert_drawn_independently
from helpers.slow import slow
from helpers.training_steps import trainer_of

from bert_tf import AdamWeightDecay, BertConfig, BertForMaskedLM, BertForPreTraining, Lamb, WarmupLinearDecay
from bert_tf.families.distilbert import DistilBertConfig
from bert_tf.families.roberta import RobertaConfig
from bert_tf.models import initialize
from bert_tf.models.objectives import MaskedLanguageModelObjective, MeanMaskedLanguageModelObjective
from bert_tf.store.open import open_weights

pytestmark = pytest.mark.numbers


@pytest.mark.parametrize("config, pads", [
    (RobertaConfig(2000, 64, 2, 2, 128, max_position_embeddings=50), ([1], [1])),
    (DistilBertConfig(2000, 64, 2, 2, 128, max_position_embeddings=50), ([0], [])),
])  # fmt: skip
def test_weights_are_drawn_from_a_normal(config, pads):
    """It is not truncated at two deviations; biases and rows of padding are 0."""
    assert config.draws_normal_weights and not BertConfig.draws_normal_weights
    keras.utils.set_random_seed(3)
    model = BertForMaskedLM(config)
    model.build()
    initialize.draw_normal_weights(model)
    assert_drawn_independently(model)
    weights = {variable.path: variable.numpy() for variable in model.trainable_variables}
    values = np.concatenate([value.ravel() for value in weights.values() if value.ndim > 1])
    assert abs(values.std() - 0.02) < 1e-4 and abs(values).max() > 0.08
    for name, value in weights.items():
        assert value.ndim > 1 or (value == ("gamma" in name)).all(), name
    words, positions = (model.bert.embeddings.word_embeddings, model.bert.embeddings.position_embeddings)
    for table, rows in zip((words, positions), pads, strict=True):
        empty = np.nonzero((table.numpy() == 0).all(axis=1))[0]
        assert empty.tolist() == rows
    again = words.numpy()
    keras.utils.set_random_seed(3)
    other = BertForMaskedLM(model.config)
    other.build()
    initialize.draw_normal_weights(other)
    np.testing.assert_array_equal(other.bert.embeddings.word_embeddings.numpy(), again)


def test_loss_is_the_plain_mean():
    """Also of one prediction, where BERT's epsilon would show; without any it is 0."""
    logits = np.random.default_rng(1).normal(size=(3, 2, 7)).astype("float32") * 3
    ids = np.array([[1, 2], [3, 0], [5, 6]])
    weights = np.array([[0, 1], [0, 0], [0, 0]], "float32")
    for kept in (weights, np.ones((3, 2), "float32"), np.zeros((3, 2), "float32")):
        features = {"masked_lm_ids": ids, "masked_lm_weights": kept}
        totals = MeanMaskedLanguageModelObjective.totals(features)
        sums = MeanMaskedLanguageModelObjective.sums(logits, features)
        nll = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, ids[..., None], -1)[..., 0]
        wanted = (nll * kept).sum() / max(kept.sum(), 1e-9)
        found = float(MeanMaskedLanguageModelObjective.loss(sums, totals))
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
        assert (found > float(MaskedLanguageModelObjective.loss(sums, totals))) == (kept.sum() > 0)


def test_loss_is_the_oracles(golden, shared, tmp_path):
    source = golden / "descendants" / "roberta"
    tensors = safetensors.numpy.load_file(source / "encoder.safetensors")
    tensors |= safetensors.numpy.load_file(source / "masked_lm" / "head.safetensors")
    safetensors.numpy.save_file(tensors, str(tmp_path / "model.safetensors"), {"format": "pt"})
    shutil.copy(source / "masked_lm" / "config.json", tmp_path)
    inputs, outputs = (
        np.load(shared / "golden" / "roberta" / name) for name in ("inputs.npz", "masked_lm_outputs.npz")
    )
    model = BertForMaskedLM.from_pretrained(str(tmp_path))
    logits = model({"input_ids": inputs["input_ids"], "input_mask": inputs["attention_mask"]})
    features = {"masked_lm_ids": np.where(inputs["labels"] < 0, -1, inputs["labels"])}
    objective = MeanMaskedLanguageModelObjective
    loss = objective.loss(objective.sums(logits, features), objective.totals(features))
    np.testing.assert_allclose(float(loss), float(outputs["loss"]), rtol=1e-5)


@pytest.mark.parametrize(
    "name, optimizer_class, tolerance", [("adamw", AdamWeightDecay, 2e-5), *slow(("lamb", Lamb, 5e-5))]
)
def test_six_steps(golden, name, optimizer_class, tolerance):
    folder = golden / "albert" / "training"
    expected, batches = json.loads((folder / f"{name}_steps.json").read_text()), dict(np.load(folder / "batches.npz"))
    model = BertForPreTraining.from_pretrained(str(golden / "albert" / "config1" / "model.ckpt"))
    schedule = (expected[key] for key in ("learning_rate", "num_train_steps", "num_warmup_steps"))
    optimizer = optimizer_class(WarmupLinearDecay(*schedule), bias_correction=False)
    optimizer.build(model.trainable_variables)
    train = trainer_of(model, optimizer, batch_size=batches["input_ids"].shape[1]).steps
    data = iter(tf.data.Dataset.from_tensor_slices(batches))
    for step in expected["steps"]:
        result = train(data, tf.constant(1))
        np.testing.assert_allclose(result["loss"], step["loss"], atol=2e-5)
        np.testing.assert_allclose(result["gradient_norm"], step["global_norm"], rtol=1e-5)
    weights = open_weights(str(folder / f"{name}.ckpt-6"))
    variables = initialize.training_variables(model, optimizer)
    assert set(variables) == set(weights)
    for variable, value in variables.items():
        allowed = 2e-4 if "key/bias" in variable else tolerance
        np.testing.assert_allclose(value.numpy(), weights[variable], atol=allowed, err_msg=variable)

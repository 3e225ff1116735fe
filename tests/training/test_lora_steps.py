"""Training steps with LoRA: what they change, in parts, on two replicas, computed again, in other precisions."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.slow import slow
from helpers.training_steps import feed, mirrored, one_device, trainer_of

from bert_tf.models import initialize, kernels, lora
from bert_tf.models.config import BertConfig
from bert_tf.models.families import is_encoder_variable
from bert_tf.models.task_models import BertForSequenceClassification
from bert_tf.training.optimization import create_optimizer

CONFIG = {
    "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 16, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
}  # fmt: skip
STEPS = 3


def train(strategy=None, *, dtype=None, scale=None, **settings):
    """All variables by name before and after some steps, with the moments after them."""
    keras.utils.set_random_seed(4)
    strategy = strategy or one_device()
    with strategy.scope():
        model = BertForSequenceClassification(BertConfig(**CONFIG), 2, dtype=dtype)
        model.bert.add_lora(4, 8.0, train_pooler=True)
        model.build()
        optimizer = create_optimizer("adamw", 1e-2, 100, 0)
        optimizer.build(model.trainable_variables)
    before = {name: variable.numpy() for name, variable in initialize.all_variables(model).items()}
    trainer = trainer_of(model, optimizer, strategy=strategy, batch_size=8, seed=3, scale=scale, **settings)
    generator = np.random.default_rng(0)
    rows = {"input_ids": generator.integers(1, 50, (STEPS, 8, 12)), "label_ids": generator.integers(0, 2, (STEPS, 8))}
    data = tf.data.Dataset.from_tensor_slices({name: value.astype("int32") for name, value in rows.items()})
    result = trainer.steps(feed(strategy, data), tf.constant(STEPS))
    assert int(result["steps"]) == STEPS
    after = {name: value.numpy() for name, value in initialize.training_variables(model, optimizer).items()}
    return before, after


def assert_close(one, other, tolerance):
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_allclose(other[name], value, rtol=0, atol=tolerance, err_msg=name)


@pytest.fixture(scope="module")
def whole():
    return train()


@pytest.mark.parametrize(
    "options",
    [{}, *slow({"dtype": "mixed_bfloat16"}, {"dtype": "mixed_float16", "scale": 1024.0})],
)
def test_adapters_and_head_learn_and_nothing_else(whole, options):
    before, after = train(**options) if options else whole
    trained = {name for name in before if name.endswith((lora.A, lora.B)) or not is_encoder_variable(name)}
    trained |= {name for name in before if "/pooler/" in name}
    assert len(trained) == 2 * 6 * 2 + 4
    for name, value in before.items():
        assert np.array_equal(after[name], value) == (name not in trained), name
    assert {name for name in after if "adam" in name} == {
        f"{name}/{m}" for name in trained for m in ("adam_m", "adam_v")
    }


@pytest.mark.slow
def test_micro_batches_and_recomputation_make_the_same_steps(whole):
    _, parts = train(gradient_accumulation_steps=2)
    assert_close(whole[1], parts, 1e-5)
    _, again = train(gradient_accumulation_steps=2, recompute=True)
    np.testing.assert_equal(again, parts)


@pytest.mark.slow
def test_two_replicas_make_the_same_steps(whole):
    assert_close(whole[1], train(mirrored(2))[1], 1e-5)


@pytest.mark.slow
def test_the_plain_forms_make_the_same_steps(whole):
    kernels.set_fused(False)
    try:
        _, plain = train()
    finally:
        kernels.set_fused(True)
    assert_close(whole[1], plain, 1e-5)

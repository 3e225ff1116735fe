"""Layers that the backward pass computes again: the same steps."""

import numpy as np
import pytest
import tensorflow as tf
from helpers.dropped import in_training
from helpers.outputs import enlarge
from helpers.slow import slow
from helpers.tiny import TINY_CONFIG
from helpers.training_steps import assert_same, build, make_batches, mirrored, one_device, run, trainer_of

from bert_tf.models import kernels
from bert_tf.models.config import BertConfig
from bert_tf.models.families import AlbertConfig
from bert_tf.models.objectives import PretrainingObjective
from bert_tf.models.task_models import BertForSequenceClassification

PRODUCTS_PER_LAYER = 8  # query, key, value, scores, context, output, and the two of the feed-forward network


@pytest.fixture
def nested_sums():
    """Sums are added as the graph has them, as in runs with --deterministic; see `loop.set_seed`."""
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    yield
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": True})


@pytest.mark.parametrize(
    ("replicas", "parts", "use_xla", "dtype"),
    [
        *slow((1, 1, False, None), (2, 2, False, "mixed_bfloat16"), (1, 2, True, None), (2, 1, True, "mixed_bfloat16")),
    ],
)
def test_steps_are_the_same(nested_sums, replicas, parts, use_xla, dtype):
    """Bit for bit, with dropout; XLA rounds as it fuses."""
    batches, strategy = make_batches(batch_size=8, steps=3), one_device() if replicas == 1 else mirrored(replicas)
    options = {"parts": parts, "use_xla": use_xla, "dtype": dtype, "dropout": 0.1, "layers": 3, "rate": 1e-3}
    kept, _ = run(strategy, batches, **options)
    recomputed, _ = run(strategy, batches, recompute=True, **options)
    if use_xla:
        assert_same(kept, recomputed, 1e-5)
    else:
        np.testing.assert_equal(recomputed, kept)


def products(config, recompute: bool) -> tuple[int, list]:
    """The number of matrix products in the graph of a classifier's gradients, and the gradients of one batch."""
    model = enlarge(BertForSequenceClassification(config, 2))
    ids = np.random.default_rng(0).integers(5, config.vocab_size, (4, 16)).astype("int32")

    @tf.function(autograph=False)
    def gradients():
        with tf.GradientTape() as tape, kernels.recomputation(recompute):
            logits = in_training(model, {"input_ids": ids})
            loss = tf.reduce_mean(tf.square(logits - [1.0, 3.0]))
        return tape.gradient(loss, [variable.value for variable in model.trainable_variables])

    operations = gradients.get_concrete_function().graph.get_operations()
    found = [tf.convert_to_tensor(gradient).numpy() for gradient in gradients()]
    return sum(operation.type in ("MatMul", "BatchMatMulV2") for operation in operations), found


@pytest.mark.parametrize("kind", [BertConfig, *slow(AlbertConfig)])
def test_each_layer_is_computed_once_more(kind):
    config = kind(**{**TINY_CONFIG, "num_hidden_layers": 3})
    count, expected = products(config, False)
    more, found = products(config, True)
    assert more == count + 3 * PRODUCTS_PER_LAYER
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-7)


def test_the_flag_reaches_the_step():
    model, optimizer = build(one_device())
    batch = tf.data.Dataset.from_tensor_slices(make_batches(2, 1))

    def products_of_a_step(**settings):
        steps = trainer_of(model, optimizer, PretrainingObjective, batch_size=2, **settings).steps
        functions = steps.get_concrete_function(iter(batch), tf.constant(1)).graph.as_graph_def().library.function
        return sum(node.op in ("MatMul", "BatchMatMulV2") for function in functions for node in function.node_def)

    assert products_of_a_step(recompute=True) == products_of_a_step() + PRODUCTS_PER_LAYER


def test_only_in_its_context():
    assert not kernels.recomputes()
    with kernels.recomputation(), pytest.raises(KeyError):
        assert kernels.recomputes()
        raise KeyError
    assert not kernels.recomputes()

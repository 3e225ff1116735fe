"""Steps that must end equal: on replicas, in parts of a batch, compiled, in half precision, with recomputation, and in
whatever order TensorFlow's threads compute the parts of a sum.
"""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
from helpers.basics import slow
from helpers.every_model import CASES, GENERATED, MODELS, PREDICTED, adapted, inputs, trained
from helpers.outputs import enlarge, in_training
from helpers.tiny import TINY_CONFIG
from helpers.training_steps import feed, fresh_trainer, make_batches, mirrored, one_device, prepared, run, trainer_of

from bert_tf import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    PretrainingObjective,
)
from bert_tf.families.albert import AlbertConfig
from bert_tf.families.distilbert import DistilBertConfig
from bert_tf.families.electra import ElectraConfig
from bert_tf.families.recipe import Recipe
from bert_tf.families.roberta import RobertaConfig
from bert_tf.models import initialize, kernels
from bert_tf.models.dropout import dropout_scope
from bert_tf.models.electra import ElectraPretrainer
from bert_tf.models.encoder import BertEncoder
from bert_tf.training import loop

PRODUCTS_PER_LAYER = 8  # query, key, value, scores, context, output, and the two of the feed-forward network


@pytest.fixture
def nested_sums():
    """Sums are added as the graph has them, as in runs with --deterministic; see `loop.set_seed`."""
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    yield
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": True})


def three_steps(replicas=1, lengths=False, **changes) -> tuple[dict, dict, dict]:
    """Weights and moments by name, before and after; the sums of the metrics."""
    options = {"dropout": 0.3, "rate": 1e-3, **changes}
    strategy = one_device() if replicas == 1 else mirrored(replicas)
    trainer = fresh_trainer(strategy, 8, **options)
    before = {name: v.numpy() for name, v in initialize.training_variables(trainer.model, trainer.optimizer).items()}
    after, (result,) = run(strategy, make_batches(batch_size=8, steps=3), lengths=lengths, **options)
    return before, after, result


LENGTHS, LORA, DEEP, BFLOAT16 = {"lengths": True}, {"lora": True}, {"layers": 3}, {"dtype": "mixed_bfloat16"}
FLOAT16 = {"dtype": "mixed_float16", "scale": 1024.0}
AGAIN = {"recompute": True}


# A run, what another does differently, and how much of a step's change they may differ by; 0: bit for bit.
@pytest.mark.parametrize(("one", "other", "tolerance"), [
    # Masks of dropout follow the row, and the gradient of a table has as many rows as a batch has tokens.
    (LENGTHS, {"replicas": 2}, 1e-3),
    *slow(
        (LENGTHS, {"replicas": 2, "parts": 2}, 1e-3),
        (LENGTHS, {"use_xla": True}, 1e-3),
        (LENGTHS, {"replicas": 2, "parts": 2, "use_xla": True}, 1e-3),
        ({}, {"replicas": 2, "parts": 4}, 1e-3),
        ({}, FLOAT16, 0.1),
        (BFLOAT16, {"replicas": 2, "parts": 2}, 0.1),
        (BFLOAT16, {"parts": 4, "use_xla": True}, 0.1),
        (LORA, {"replicas": 2, "parts": 2}, 1e-3),
        (LORA, FLOAT16, 0.1),
        (LORA | {"parts": 2}, AGAIN, 0),
        (DEEP, AGAIN, 0),
        (DEEP | BFLOAT16 | {"replicas": 2, "parts": 2}, AGAIN, 0),
        (DEEP | {"parts": 2, "use_xla": True}, AGAIN, 1e-3),
    ),
])  # fmt: skip
def test_runs_end_equal(nested_sums, monkeypatch, one, other, tolerance):
    monkeypatch.setitem(kernels._switches, "fused", one is not LENGTHS)  # the fused forms take longest to compile
    before, expected, whole = three_steps(**one)
    _, actual, cut = three_steps(**one | other)
    if tolerance == 0:
        return np.testing.assert_equal(actual, expected)
    for kind in ("weights", "adam_m", "adam_v"):
        names = [name for name in before if ("adam" not in name if kind == "weights" else name.endswith(kind))]
        change, found = (np.concatenate([np.ravel(v[n] - before[n]) for n in names]) for v in (expected, actual))
        assert np.linalg.norm(found - change) < tolerance * np.linalg.norm(change), kind
    for name in (*PretrainingObjective.sum_names, "loss"):
        np.testing.assert_allclose(cut[name], whole[name], rtol=tolerance / 10, err_msg=name)


def step_of(config, **settings) -> tuple[int, list]:
    """The number of matrix products in the graph of a classifier's step, and its variables afterwards."""
    model = enlarge(BertForSequenceClassification(config, 2, seed=1))
    trainer = trainer_of(*prepared(model), batch_size=4, **settings)
    ids = np.random.default_rng(0).integers(5, config.vocab_size, (4, 16)).astype("int32")
    batches = iter(tf.data.Dataset.from_tensors({"input_ids": ids, "label_ids": ids[:, 0] % 2}))
    library = trainer.steps.get_concrete_function(batches, tf.constant(1)).graph.as_graph_def().library
    trainer.steps(batches, tf.constant(1))
    operations = [node.op for function in library.function for node in function.node_def]
    return sum(op in ("MatMul", "BatchMatMulV2") for op in operations), [v.numpy() for v in model.weights]


@pytest.mark.parametrize("kind", [BertConfig, *slow(AlbertConfig)])
def test_each_layer_is_computed_once_more(kind):
    config = kind(**{**TINY_CONFIG, "num_hidden_layers": 2})
    (count, expected), (more, found) = (step_of(config, **options) for options in ({}, AGAIN))
    assert more == count + 2 * PRODUCTS_PER_LAYER
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-5)  # a step is 3e-3
    assert not kernels.recomputes()


@pytest.mark.parametrize(("case", "options"), [
    ("taught", {}), *slow(("electra", {}), ("taught", {"restrict_ce_to_mask": True, "alpha_mse": 0.01})),
])  # fmt: skip
def test_gradients_are_added_in_one_order(case, options):
    model, _, features = trained(one_device(), case)
    model.objective = dataclasses.replace(model.objective, **options)
    variables = [variable.value for variable in model.trainable_variables]

    @tf.function(autograph=False)
    def gradients(features):
        with tf.GradientTape() as tape:
            outputs = in_training(model, features)
            sums = model.objective.sums(outputs, features)
            loss = model.objective.loss(sums, model.objective.totals(features))
        return tape.gradient(loss, variables)

    graph = gradients.get_concrete_function(features).graph
    sums = [op for op in graph.get_operations() if op.type == "AddN" and len(op.inputs) > 2]
    # TensorFlow begins with the first part whose memory nobody else uses at the moment, which is always so for the
    # results of these operations.
    free = ("PartitionedCall", "StatefulPartitionedCall", "UnsortedSegmentSum", "Transpose")
    assert [op.name for op in sums if op.inputs[0].op.type not in free] == []


def test_nested_sums_stay_nested(monkeypatch):
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: None)  # there is no way back
    try:
        loop.set_seed(1, deterministic=True)
        assert tf.config.optimizer.get_experimental_options()["arithmetic_optimization"] is False
    finally:
        tf.config.optimizer.set_experimental_options({"arithmetic_optimization": True})


SIZES = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 32}
LOOP_CONFIG = BertConfig(40, **SIZES, max_position_embeddings=8)
ALBERT = AlbertConfig(40, embedding_size=8, **SIZES, max_position_embeddings=8, hidden_dropout_prob=0.1)
ELECTRA = ElectraConfig(40, 16, 4, 2, 32, embedding_size=16, max_position_embeddings=8)
CLASSES, TAGS, MASKED = MODELS["classifier"][1], MODELS["tagger"][1], inputs(**PREDICTED)


def frozen(count: int):
    model = BertForSequenceClassification(LOOP_CONFIG, 5)
    model.bert.freeze_layers(count)
    return model


# The model, its batch, and settings of the run.
LOOP_CASES = {
    **{name: (*case, {}) for name, case in CASES.items()},
    "classifier": (lambda: BertForSequenceClassification(LOOP_CONFIG, 5), CLASSES, {}),
    "every token": (lambda: BertForTokenClassification(LOOP_CONFIG, 5), TAGS, {}),
    "recomputed": (lambda: BertForTokenClassification(LOOP_CONFIG, 5), TAGS, {"recompute": True}),
    "micro-batches": (lambda: BertForTokenClassification(LOOP_CONFIG, 5), TAGS, {"gradient_accumulation_steps": 2}),
    "albert": (lambda: BertForTokenClassification(ALBERT, 5), TAGS, {}),
    "frozen embeddings": (lambda: frozen(0), CLASSES, {}),
    "frozen layers": (lambda: frozen(2), CLASSES, {}),
    "frozen encoder": (lambda: frozen(4), CLASSES, {}),
    "frozen but the last": (lambda: frozen(3), CLASSES, {}),
    "adapted": (lambda: adapted(LOOP_CONFIG), CLASSES, {}),
    "electra": (lambda: ElectraPretrainer(ELECTRA, ELECTRA), inputs(**GENERATED), {}),
    "roberta": (lambda: BertForMaskedLM(RobertaConfig(40, **SIZES, max_position_embeddings=12)), MASKED, {}),
    "distilbert": (lambda: BertForMaskedLM(DistilBertConfig(40, **SIZES, max_position_embeddings=8)), MASKED, {}),
    "layers' rates": (lambda: BertForTokenClassification(LOOP_CONFIG, 5), TAGS, {"decay": 0.5}),
}


def ended(case: str, **compiled) -> tuple[dict, dict]:
    make, batch, settings = LOOP_CASES[case]
    settings, strategy = dict(settings), one_device()
    recipe = Recipe(layerwise_lr_decay=settings.pop("decay", 1.0))
    tf.keras.utils.set_random_seed(1)
    model, optimizer = prepared(make(), 1e-2, recipe=recipe)
    for variable in model.weights:  # clearly different from each other, so that layers can't be confused
        variable.assign(variable + 0.1 * tf.random.stateless_normal(variable.shape, [len(variable.path), 7]))
    trainer = trainer_of(model, optimizer, strategy=strategy, batch_size=4, **settings, **compiled)
    results = trainer.steps(feed(strategy, tf.data.Dataset.from_tensors(batch).repeat()), tf.constant(3))
    return {v.path: v.numpy() for v in model.weights}, {name: float(value) for name, value in results.items()}


@pytest.mark.parametrize("case", ["every token", *slow(*sorted(LOOP_CASES.keys() - {"every token"}))])
def test_steps_end_as_those_of_unrolled_layers(case):
    loop, plain = ended(case, use_xla=True), ended(case, use_xla=False)
    assert loop[1] == pytest.approx(plain[1], rel=2e-5, abs=1e-6)
    for path, value in plain[0].items():
        # The true gradient of a key bias is zero: Adam turns its rounding noise into steps.
        np.testing.assert_allclose(loop[0][path], value, atol=1 if "key/bias" in path else 2e-4, err_msg=path)


@pytest.mark.parametrize("config", [ALBERT, *slow(LOOP_CONFIG, dataclasses.replace(LOOP_CONFIG, attention="causal"))])
def test_outputs_of_all_layers_and_their_gradients(config):
    encoder, features = BertEncoder(config), inputs()
    encoder.build()
    variables = [variable.value for variable in encoder.trainable_variables if "pooler" not in variable.path]

    def outputs():
        with dropout_scope((1, 2)), tf.GradientTape() as tape:
            found = encoder(features, training=True, return_all_layers=True)
            layers = enumerate(found["encoder_layers"], start=1)
            loss = sum(tf.reduce_sum(layer[:, :, number]) for number, layer in layers)
        return found, [tf.convert_to_tensor(value) for value in tape.gradient(loss, variables)]

    def looped():
        with kernels.one_program():
            return outputs()

    plain, program = outputs(), tf.function(looped, jit_compile=True, autograph=False)()
    assert len(program[0]["encoder_layers"]) == 4
    assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    tf.nest.map_structure(assert_close, plain, program)

"""LoRA: an encoder that stays as it is, and the small matrices that are trained beside it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.outputs import in_training
from helpers.slow import slow

from bert_tf import BertForSequenceClassification, BertForTokenClassification, create_optimizer
from bert_tf.families import family_named, is_encoder_variable
from bert_tf.models import initialize, kernels, lora_file
from bert_tf.store import variable_names
from bert_tf.store.open import open_weights
from bert_tf.store.tensor_files import open_safetensors, write_safetensors
from bert_tf.training import checkpoints

FAMILIES = ["bert", *slow("distilbert", "electra", "roberta", "albert", "xlm-roberta")]
RANK, ALPHA, HIDDEN, INNER = 3, 4.5, 32, 64
INPUTS = {"input_ids": np.random.default_rng(0).integers(5, 50, (4, 10)).astype("int32")}
SEED = np.array([5, 7], "int32")
ADAPTED = ("query/kernel", "key/kernel", "value/kernel", "dense/kernel")


def make(family="bert", rank=None, *, dropout=0.0, dtype=None, kind=BertForSequenceClassification, classes=2):
    """A model of two layers whose variables are large enough to matter; its adapters are as at the start."""
    sizes = {"hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": INNER}
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    width = {"embedding_size": 24} if family in ("electra", "albert") else {}
    config = family_named(family).config_class(vocab_size=50, max_position_embeddings=20, **sizes, **width, **rates)
    model = kind(config, classes, dropout_rate=dropout, dtype=dtype)
    if rank:
        model.bert.add_lora(rank, ALPHA, lora_file.reads_pooler(model))
    model.build()
    generator = np.random.default_rng(1)
    for _, variable in sorted(initialize.model_variables(model).items()):
        noise = generator.normal(size=variable.shape) * (0.2 if len(variable.shape) > 1 else 0.05)
        variable.assign(noise + (1 if variable.name == "gamma" else 0))
    return model


def train_a_little(model):
    generator = np.random.default_rng(2)
    for variable in model.trainable_variables:
        variable.assign(variable.numpy() + generator.normal(size=variable.shape) * 0.1)


def outputs_of(model, training: bool) -> np.ndarray:
    return np.asarray(in_training(model, INPUTS, SEED) if training else model(INPUTS))


def values_of(model) -> dict:
    return {name: variable.numpy() for name, variable in initialize.all_variables(model).items()}


@pytest.fixture(params=[True, *slow(False)], ids=["fused", "plain"])
def fused(request):
    kernels.set_fused(request.param)
    yield request.param
    kernels.set_fused(True)


@pytest.mark.parametrize("dtype", ["float32", *slow("mixed_bfloat16", "mixed_float16")])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.usefixtures("fused")
def test_at_the_start_the_model_is_the_one_that_was_given(family, dtype):
    base, adapted = (make(family, rank, dropout=0.1, dtype=dtype) for rank in (None, RANK))
    for training in (False, True):
        np.testing.assert_array_equal(outputs_of(adapted, training), outputs_of(base, training))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.usefixtures("fused")
def test_the_merged_model_computes_the_same(family):
    adapted, base = make(family, RANK), make(family)
    before = values_of(adapted)
    train_a_little(adapted)
    stored, weights = values_of(adapted), initialize.model_weights(adapted)
    changed = {name for name in weights if not np.array_equal(weights[name], before[name])}
    kept = set(lora_file.base_variables(adapted))
    assert all(np.array_equal(stored[name], before[name]) for name in kept)
    blocks = 1 if family == "albert" else 2
    adapted_kernels = [name for name in changed if "/encoder/layer_" in name]
    assert len(adapted_kernels) == 6 * blocks
    assert {name.split("/")[1] for name in changed if is_encoder_variable(name)} <= {"encoder", "pooler"}
    for name in adapted_kernels:
        assert name.endswith(ADAPTED)
        a, b = (stored[name.removesuffix("kernel") + factor].astype("float64") for factor in ("lora_a", "lora_b"))
        assert a.shape[1] == b.shape[0] == RANK and np.abs(b).max() > 0.01
        np.testing.assert_allclose(weights[name], before[name] + ALPHA / RANK * a @ b, rtol=0, atol=1e-6)
    initialize.initialize(initialize.model_variables(base), weights, must_have_all=True)
    np.testing.assert_allclose(outputs_of(adapted, False), outputs_of(base, False), rtol=0, atol=2e-6)
    np.testing.assert_allclose(outputs_of(adapted, True), outputs_of(base, True), rtol=0, atol=5e-5)
    assert np.abs(outputs_of(adapted, True) - outputs_of(make(family), True)).max() > 0.01


def gradients_of(rank):
    """The model, names of the variables with a gradient, and the shapes of all matrix products."""
    model = make("bert", rank, dropout=0.1)
    variables, found = initialize.all_variables(model), {}

    @tf.function(autograph=False)
    def gradients():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(in_training(model, INPUTS, SEED)))
        values = tape.gradient(loss, [variable.value for variable in variables.values()])
        found.update((name, value) for name, value in zip(variables, values, strict=True) if value is not None)
        return list(found.values())

    operations = gradients.get_concrete_function().graph.get_operations()
    return model, set(found), [tuple(one.outputs[0].shape) for one in operations if one.type == "MatMul"]


@pytest.mark.usefixtures("fused")
def test_only_what_is_trained_has_gradients():
    kernel_shapes, square = {(HIDDEN, INNER), (INNER, HIDDEN)}, (HIDDEN, HIDDEN)
    model, names, shapes = gradients_of(RANK)
    trained = values_of(model).keys() - lora_file.base_variables(model).keys() - {"bert/lora_alpha"}
    assert names == trained == set(map(initialize.checkpoint_name, model.trainable_variables))
    assert len(trained) == 2 * 6 * 2 + 4  # two of the pooler, two of the head
    assert not set(shapes) & kernel_shapes and {(HIDDEN, RANK), (RANK, INNER)} <= set(shapes)
    assert shapes.count(square) == 1  # the pooler's
    _, names, shapes = gradients_of(None)
    assert shapes.count(square) == 2 * 4 + 1
    assert "bert/encoder/layer_0/output/dense/kernel" in names and kernel_shapes <= set(shapes)


def test_what_is_opened_from_a_checkpoint_has_the_adapters_in_it(tmp_path):
    model = make("bert", RANK)
    optimizer = create_optimizer("adamw", 1e-3, 10, 0)
    optimizer.build(model.trainable_variables)
    train_a_little(model)
    prefix = checkpoints.save(str(tmp_path), 3, initialize.training_variables(model, optimizer))
    stored, opened = open_weights(prefix, merge=False), open_weights(prefix)
    moments = {name for name in stored if name.endswith("/adam_m")}
    assert moments == {initialize.checkpoint_name(variable) + "/adam_m" for variable in model.trainable_variables}
    assert {"bert/lora_alpha", "bert/encoder/layer_1/output/dense/lora_b"} <= set(stored)
    assert not [name for name in opened if "lora" in name]
    merged = initialize.model_weights(model)
    assert set(merged) == {name for name in opened if "adam" not in name and name != "global_step"}
    for name in merged:
        np.testing.assert_array_equal(opened[name], merged[name])
    variable_names.clear_adapters(model)
    base = make("bert")  # a model without adapters, with the kernels and the head of the other
    kept = initialize.variables_as_weights("kept", initialize.model_variables(model))
    initialize.initialize(initialize.model_variables(base), kept)
    np.testing.assert_array_equal(outputs_of(model, True), outputs_of(base, True))


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_come_back_on_their_base(tmp_path, family):
    model = make(family, RANK)
    train_a_little(model)
    lora_file.write_lora(str(tmp_path / lora_file.FILE), model)
    assert (tmp_path / lora_file.FILE).stat().st_size < sum(value.nbytes for value in values_of(model).values()) / 2
    for path in (tmp_path, tmp_path / lora_file.FILE):
        again = make(family)
        lora_file.load_lora(again, str(path))
        expected, found = initialize.model_weights(model), initialize.model_weights(again)
        assert set(expected) == set(found)
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def test_another_base(tmp_path):
    path, model, other, again = str(tmp_path / "mine.safetensors"), *(make("bert", rank) for rank in (RANK, None, None))
    train_a_little(model)
    lora_file.write_lora(path, model)
    changed = initialize.model_variables(other)["bert/encoder/layer_1/intermediate/dense/bias"]
    changed.assign(changed.numpy() + 1e-3)
    assert_raises(other, path, "mine.safetensors was trained on another encoder")
    lora_file.load_lora(again, path)
    assert_raises(again, path, "without another adapter")
    assert_raises(make("bert", classes=3), path, "output_weights: [2, 32] in the checkpoint, [3, 32] in the model")
    assert_raises(make("distilbert"), path, "another kind of model: only one of the two has")


def assert_raises(model, path, message, kind=ValueError):
    before = values_of(model)
    with pytest.raises(kind, match="^[^\n]*$") as caught:
        lora_file.load_lora(model, path)
    assert message in str(caught.value)
    for name, value in values_of(model).items():
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.parametrize("kind", [BertForSequenceClassification, BertForTokenClassification])
def test_a_pooler_that_is_read_is_trained_and_kept(tmp_path, kind):
    """It is no part of the base: many weights lack one, and each model then has another."""
    path, name = str(tmp_path / lora_file.FILE), "bert/pooler/dense/bias"
    model, other = make("bert", RANK, kind=kind), make("bert", kind=kind)
    train_a_little(model)
    lora_file.write_lora(path, model)
    initialize.model_variables(other)[name].assign(np.ones(HIDDEN))
    lora_file.load_lora(other, path)
    expected = initialize.model_weights(model)[name] if kind is BertForSequenceClassification else np.ones(HIDDEN)
    np.testing.assert_array_equal(initialize.model_weights(other)[name], expected)


KERNEL = "bert/encoder/layer_0/output/dense/"
DAMAGES = {
    "no B": ({KERNEL + "lora_b": None}, KeyError, "output/dense/lora_b"),
    "another layer": ({"bert/encoder/layer_9/output/dense/lora_b": np.zeros((RANK, HIDDEN))}, ValueError, "of another"),
    "an infinite product": (
        {KERNEL + "lora_a": np.full((INNER, RANK), 3e38), KERNEL + "lora_b": np.full((RANK, HIDDEN), 3e38)},
        ValueError, "output/dense/kernel has NaN or infinite values",
    ),
    "NaN in the head, which comes last": ({"output_bias": np.full(2, np.nan)}, ValueError, "output_bias has NaN"),
    "no alpha": ({"alpha": "much"}, ValueError, "much"),
}  # fmt: skip


def test_all_or_nothing_is_loaded(tmp_path):
    path, model, target = str(tmp_path / lora_file.FILE), make("bert", RANK), make("bert")
    train_a_little(model)
    lora_file.write_lora(path, model)
    shapes, metadata, read = open_safetensors(path)
    good = {name: read(name) for name in shapes}
    for changes, kind, message in DAMAGES.values():
        tensors, told = dict(good), dict(metadata)
        for name, value in changes.items():
            if isinstance(value, str):
                told[name] = value
            else:
                tensors.pop(name, None)
                tensors |= {} if value is None else {name: value.astype(np.float32)}
        write_safetensors(path, tensors, told)
        assert_raises(target, path, message, kind)


def test_adapters_start_as_in_the_paper():
    """A normal, B zero; A's deviation is that of the authors' code, 1 / sqrt(3 in)."""
    keras.utils.set_random_seed(3)
    values = values_of(make("bert", HIDDEN))
    for name, value in values.items():
        if name.endswith(variable_names.ADAPTER_B):
            assert not value.any()
        elif name.endswith(variable_names.ADAPTER_A):
            assert 0.85 < value.std() * np.sqrt(3 * len(value)) < 1.15 and abs(value.mean()) < 0.2 * value.std()
    assert float(values["bert/lora_alpha"]) == ALPHA

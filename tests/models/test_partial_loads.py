"""What weights lack is warned of; a model answers nothing until trained. LoRA: small matrices beside an encoder."""

import dataclasses
import json
import logging
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.basics import slow
from helpers.every_model import ALBERT, CONFIG, ELECTRA
from helpers.outputs import assert_same_bits, in_training
from helpers.tiny import NAMES, ONE_LAYER, PIECES, TINY_CONFIG, tiny_config

import bert_tf
from bert_tf import BertConfig, BertForSequenceClassification, BertForTokenClassification, PartialLoadWarning
from bert_tf.conversion.convert import convert
from bert_tf.families import is_encoder_variable
from bert_tf.models import initialize, kernels, lora_file, task_models
from bert_tf.serving.export import create_served_model, open_for
from bert_tf.store import bundle, variable_names
from bert_tf.store.open import open_weights
from bert_tf.store.tensor_files import open_safetensors, write_safetensors
from bert_tf.training import checkpoints
from bert_tf.training.settings import FineTuningSettings
from bert_tf.training.starting_model import describe_model

POOLER = ("bert/pooler/dense/kernel", "bert/pooler/dense/bias")


def save(folder, kind=task_models.BertModel, without=(), config=ONE_LAYER, **arguments) -> str:
    """A random model's directory, whose weights lack some of the variables."""
    (folder.parent / "vocab.txt").write_text("".join(piece + "\n" for piece in PIECES))
    keras.utils.set_random_seed(0)
    model = kind(BertConfig.from_dict(config), **arguments)
    model.save_pretrained(str(folder), vocab_file=str(folder.parent / "vocab.txt"), do_lower_case=True)
    if without:
        variables = initialize.model_variables(model)
        assert set(without) <= set(variables)
        kept = {name: variable for name, variable in variables.items() if name not in without}
        file = str(folder / "bert_model.safetensors")
        write_safetensors(file, initialize.variables_as_weights("", kept), open_safetensors(file)[1])
    return str(folder)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> str:
    return save(tmp_path_factory.mktemp("partial") / "encoder")


def said(action) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    found = [one for one in caught if issubclass(one.category, PartialLoadWarning)]
    assert all(one.filename == __file__ for one in found)  # the user's line
    return [str(one.message) for one in found]


@pytest.mark.parametrize(("kind", "arguments", "new"), [
    (task_models.BertForSequenceClassification, {"labels": ["a", "b"]}, "output_weights, output_bias"),
    (task_models.BertForQuestionAnswering, {}, "cls/squad/output_weights, cls/squad/output_bias"),
    (task_models.BertForMaskedLM, {}, "cls/predictions/output_bias, cls/predictions/transform/dense/kernel, cls/pred"),
])  # fmt: skip
def test_a_new_head_is_warned_of(tmp_path, encoder, kind, arguments, new):
    [message] = said(lambda: kind.from_pretrained(encoder, **arguments))
    assert f"variables of {kind.__name__} are not in {encoder}/bert_model.safetensors and are random: {new}" in message
    assert "bert/pooler" not in message and message.endswith("Train it before you use it.")
    [of_load] = said(lambda: bert_tf.load_weights(kind(BertConfig.from_dict(ONE_LAYER), **arguments), encoder))
    assert of_load == message
    saved = save(tmp_path / "whole", kind, **arguments)
    assert not said(lambda: kind.from_pretrained(saved))


def test_a_pooler_counts_where_it_is_read(tmp_path):
    path = save(tmp_path / "encoder", without=POOLER)
    [message] = said(lambda: task_models.BertModel.from_pretrained(path))
    assert message.startswith("2 variables of BertModel are not in") and "bert/pooler/dense/kernel" in message
    [message] = said(lambda: task_models.BertForSequenceClassification.from_pretrained(path))
    assert message.startswith("4 variables") and "bert/pooler/dense/kernel" in message
    [message] = said(lambda: task_models.BertForTokenClassification.from_pretrained(path, num_labels=2))
    assert message.startswith("2 variables") and "bert/pooler" not in message
    whole = save(tmp_path / "tagger", task_models.BertForTokenClassification, without=POOLER, num_labels=2)
    assert not said(lambda: task_models.BertForTokenClassification.from_pretrained(whole))
    assert not said(lambda: bert_tf.Embedder(path)) and bert_tf.Embedder(path)("good").shape == (32,)


def test_a_part_of_the_encoder_that_is_not_used_is_warned_of(tmp_path):
    one, two = (save(tmp_path / name, config=config) for name, config in (("one", ONE_LAYER), ("two", TINY_CONFIG)))
    [message] = said(lambda: task_models.BertModel.from_pretrained(two, config=BertConfig.from_dict(ONE_LAYER)))
    assert message.startswith(f"16 variables of the encoder in {two}/bert_model.safetensors are not used by the model")
    assert "bert/encoder/layer_1/attention" in message
    [message] = said(lambda: task_models.BertModel.from_pretrained(one, config=BertConfig.from_dict(TINY_CONFIG)))
    assert message.startswith("16 variables of BertModel are not in") and "bert/encoder/layer_1/" in message


def test_fill_mask_wants_a_trained_head(tmp_path, encoder):
    tokenizer = bert_tf.FullTokenizer.from_pretrained(encoder)
    for kind in (task_models.BertForMaskedLM, task_models.BertForPreTraining):
        with pytest.warns(PartialLoadWarning, match="cls/predictions/transform/dense/kernel"):
            model = kind.from_pretrained(encoder)
        message = r"variables of BertFor\w+ are still random, .*: cls/predictions/output_bias, cls/predictions/trans"
        with pytest.raises(ValueError, match=message):
            bert_tf.fill_mask(model, tokenizer, ["good [MASK]"])
        with pytest.raises(ValueError, match="are still random"):
            model.export(str(tmp_path / "exported"))
    for variable in model.trainable_variables:  # as training does
        variable.assign(variable + 1e-3)
    assert len(bert_tf.fill_mask(model, tokenizer, ["good [MASK]"])[0][0]) == 5
    # A model without next-sentence head guesses as well.
    masked = save(tmp_path / "masked", task_models.BertForMaskedLM)
    with pytest.warns(PartialLoadWarning, match="2 variables of BertForPreTraining .*cls/seq_relationship/output_bias"):
        model = task_models.BertForPreTraining.from_pretrained(masked)
    assert bert_tf.fill_mask(model, tokenizer, ["good [MASK]"])


@pytest.mark.parametrize(("answerer", "kind", "missing", "arguments"), [
    (bert_tf.Predictor, task_models.BertForSequenceClassification, POOLER, {"labels": ["a", "b"]}),
    (bert_tf.QuestionAnswerer, task_models.BertForQuestionAnswering, ["cls/squad/output_bias"], {}),
    (bert_tf.Tagger, task_models.BertForTokenClassification, ["output_bias"], {"num_labels": 1, "labels": ["O"]}),
    (bert_tf.ChoicePredictor, task_models.BertForMultipleChoice, POOLER, {}),
])  # fmt: skip
def test_random_weights_answer_nothing(tmp_path, answerer, kind, missing, arguments):
    path = save(tmp_path / "model", kind, without=missing, **arguments)
    message = rf"lacks {len(missing)} of the model's variables, so that its answers would be random: {missing[0]}"
    for action in (answerer, lambda path: create_served_model(*open_for(path, None))):
        with pytest.raises(ValueError, match=message):
            assert not said(lambda action=action: action(path))
    assert not said(lambda: answerer(save(tmp_path / "whole", kind, **arguments)))


@pytest.mark.parametrize("format", ["bert_tf", *slow("huggingface")])
def test_a_head_that_was_saved_untrained_stays_untrained(tmp_path, encoder, format):
    with pytest.warns(PartialLoadWarning):
        model = task_models.BertForSequenceClassification.from_pretrained(encoder, labels=["a", "b"])
    path = str(tmp_path / "saved")
    model.save_pretrained(path, format=format)
    with pytest.raises(ValueError, match="holds, but untrained, 2 of the model's variables, .*: output_weights"):
        bert_tf.Predictor(path)
    with pytest.warns(PartialLoadWarning, match="2 variables of BertForSequenceClassification are untrained in .*"):
        model = task_models.BertForSequenceClassification.from_pretrained(path)
    for variable in model.head.weights:
        variable.assign(variable + 1)
    model.save_pretrained(path, format=format, overwrite=True)
    assert not said(lambda: bert_tf.Predictor(path))


def test_a_run_takes_no_layers_that_are_not_there_and_no_head_that_was_saved_untrained(tmp_path, encoder, caplog):
    with pytest.warns(PartialLoadWarning):
        model = task_models.BertForSequenceClassification.from_pretrained(encoder, labels=["a", "b"])
    model.save_pretrained(str(tmp_path / "saved"))
    run = FineTuningSettings(output_dir="out", do_eval=True, init_checkpoint=str(tmp_path / "saved"), max_seq_length=16)
    with pytest.raises(ValueError, match=r"--init_checkpoint: the output layer \(output_weights\) was saved untrained"):
        describe_model(run, None, "output_weights")
    run = dataclasses.replace(run, do_train=True)
    assert describe_model(run, None, "output_weights")[0].head.untrained == ()
    file = tmp_path / "saved" / "bert_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "num_hidden_layers": 2}))
    with pytest.raises(ValueError, match="--init_checkpoint: .*num_hidden_layers is 2, but they have 1 layers"):
        describe_model(run, None, "output_weights")
    deep = save(tmp_path / "deep", config={**ONE_LAYER, "num_hidden_layers": 3})
    BertConfig.from_dict(ONE_LAYER).save(f"{deep}/bert_config.json")
    describe_model(dataclasses.replace(run, init_checkpoint=deep), None, "output_weights")
    assert f"num_hidden_layers is 1, but the weights of {deep}/bert_model.safetensors have 3 layers" in caplog.text


def test_a_run_that_only_evaluates_needs_trained_weights(tmp_path, encoder, caplog):
    """`checkpoints.restore`, which all training scripts call; with an optimizer they train what is new, and log it."""
    caplog.set_level(logging.INFO, logger="absl")
    model = task_models.BertForPreTraining(BertConfig.from_dict(ONE_LAYER))
    model.build()
    with pytest.raises(ValueError, match=r"lacks 7 of the model's variables.*cls/predictions"):
        checkpoints.restore(model, None, str(tmp_path / "out"), open_weights(encoder))
    masked = open_weights(save(tmp_path / "masked", task_models.BertForMaskedLM))
    with pytest.raises(ValueError, match=r"lacks 2 of the model's variables.*cls/seq_relationship"):
        checkpoints.restore(model, None, str(tmp_path / "out"), masked)
    assert checkpoints.restore(model, None, str(tmp_path / "out"), masked, unread=("cls/seq_relationship/",)) == 0
    optimizer = bert_tf.AdamWeightDecay(1e-3)
    optimizer.build(model.trainable_variables)
    caplog.clear()
    assert not said(lambda: checkpoints.restore(model, optimizer, str(tmp_path / "out"), open_weights(encoder)))
    [line] = [one for one in caplog.records if "keep their random initial values" in one.getMessage()]
    assert line.levelno == logging.INFO


@pytest.mark.parametrize("config", [CONFIG, ALBERT, ELECTRA], ids=lambda config: config.title)
def test_what_other_optimizers_keep_is_left_out(tmp_path, config):
    """Of a TF1 checkpoint with Adam's, Momentum's and LAMB's values, and an average of each variable."""
    folder, slots = tmp_path / "model", ("Adam", "Adam_1", "Momentum", "lamb_m", "ExponentialMovingAverage")
    task_models.BertModel(config).save_pretrained(str(folder), format="tf1")
    prefix, before = str(folder / "bert_model.ckpt"), open_weights(str(folder))
    values = dict(before)
    stored = {before.origins[name]: values[name] for name in values}
    others = {f"{name}/{slot}": 0 * value for name, value in stored.items() for slot in slots}
    bundle.write_bundle(prefix, {**stored, **others, "beta1_power": np.float32(0.9)})
    weights = open_weights(prefix)
    assert set(weights) == {*values, "beta1_power"} and weights.unused == dict.fromkeys(others, "of an optimizer")
    assert all((weights[name] == values[name]).all() for name in values)
    assert said(lambda: task_models.BertModel.from_pretrained(str(folder))) == []
    convert(str(folder), str(tmp_path / "there"), "huggingface")  # checks names and shapes, too


FAMILIES = [NAMES[0], *slow(*NAMES[1:])]
RANK, ALPHA, HIDDEN, INNER = 3, 4.5, 32, 64
INPUTS = {"input_ids": np.random.default_rng(0).integers(5, 50, (4, 10)).astype("int32")}
SEED = np.array([5, 7], "int32")
ADAPTED = ("query/kernel", "key/kernel", "value/kernel", "dense/kernel")


def make(family="bert", rank=None, *, dropout=0.0, kind=BertForSequenceClassification, classes=2):
    """A model of two layers whose variables are large enough to matter; its adapters are as at the start."""
    model = kind(tiny_config(family, 50, dropout=dropout), classes, dropout_rate=dropout)
    if rank:
        model.bert.add_lora(rank, ALPHA, model.reads_pooler)
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


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.usefixtures("fused")
def test_the_model_is_at_first_the_one_that_was_given_and_then_the_merged_one(family):
    adapted, base = (make(family, rank, dropout=0.1) for rank in (RANK, None))
    before = values_of(adapted)
    for training in (False, True):
        np.testing.assert_array_equal(outputs_of(adapted, training), outputs_of(base, training))
    given = outputs_of(base, True)
    train_a_little(adapted)
    stored, weights = values_of(adapted), initialize.model_weights(adapted)
    changed = {name for name in weights if not np.array_equal(weights[name], before[name])}
    kept = set(lora_file.base_variables(adapted))
    assert all(np.array_equal(stored[name], before[name]) for name in kept)
    adapted_kernels = [name for name in changed if "/encoder/layer_" in name]
    assert len(adapted_kernels) == 6 * (1 if family == "albert" else 2)
    with pytest.raises(ValueError, match="add_lora must come before build"):
        base.bert.add_lora(RANK, ALPHA)
    assert {name.split("/")[1] for name in changed if is_encoder_variable(name)} <= {"encoder", "pooler"}
    for name in adapted_kernels:
        assert name.endswith(ADAPTED)
        a, b = (stored[name.removesuffix("kernel") + factor].astype("float64") for factor in ("lora_a", "lora_b"))
        assert a.shape[1] == b.shape[0] == RANK and np.abs(b).max() > 0.01
        np.testing.assert_allclose(weights[name], before[name] + ALPHA / RANK * a @ b, rtol=0, atol=1e-6)
    initialize.initialize(initialize.model_variables(base), weights, must_have_all=True)
    np.testing.assert_allclose(outputs_of(adapted, False), outputs_of(base, False), rtol=0, atol=2e-6)
    np.testing.assert_allclose(outputs_of(adapted, True), outputs_of(base, True), rtol=0, atol=5e-5)
    assert np.abs(outputs_of(adapted, True) - given).max() > 0.01


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
    optimizer = bert_tf.create_optimizer("adamw", 1e-3, 10, 0)
    optimizer.build(model.trainable_variables)
    train_a_little(model)
    prefix = checkpoints.save(str(tmp_path), 3, initialize.training_variables(model, optimizer))
    stored, opened = open_weights(prefix, merge=False), open_weights(prefix)
    moments = {name for name in stored if name.endswith("/adam_m")}
    assert moments == {initialize.checkpoint_name(variable) + "/adam_m" for variable in model.trainable_variables}
    assert {"bert/lora_alpha", "bert/encoder/layer_1/output/dense/lora_b"} <= set(stored)
    assert not [name for name in opened if "lora" in name]
    merged = initialize.model_weights(model)
    kept = {name: value for name, value in opened.items() if "adam" not in name and name != "global_step"}
    assert_same_bits(kept, merged)
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
        assert_same_bits(initialize.model_weights(again), initialize.model_weights(model))


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


def assert_raises(model, path, message):
    before = values_of(model)
    with pytest.raises((KeyError, ValueError), match="^[^\n]*$") as caught:
        lora_file.load_lora(model, path)
    assert message in str(caught.value)
    assert_same_bits(values_of(model), before)


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
    "no B": ({KERNEL + "lora_b": None}, "output/dense/lora_b"),
    "another layer": ({"bert/encoder/layer_9/output/dense/lora_b": np.zeros((RANK, HIDDEN))}, "of another"),
    "an infinite product": (
        {KERNEL + "lora_a": np.full((INNER, RANK), 3e38), KERNEL + "lora_b": np.full((RANK, HIDDEN), 3e38)},
        "output/dense/kernel has NaN or infinite values",
    ),
    "NaN in the head, which comes last": ({"output_bias": np.full(2, np.nan)}, "output_bias has NaN"),
    "no alpha": ({"alpha": "much"}, "much"),
}  # fmt: skip


def test_all_or_nothing_is_loaded(tmp_path):
    path, model, target = str(tmp_path / lora_file.FILE), make("bert", RANK), make("bert")
    train_a_little(model)
    lora_file.write_lora(path, model)
    shapes, metadata, read = open_safetensors(path)
    good = {name: read(name) for name in shapes}
    for changes, message in DAMAGES.values():
        tensors, told = dict(good), dict(metadata)
        for name, value in changes.items():
            if isinstance(value, str):
                told[name] = value
            else:
                tensors.pop(name, None)
                tensors |= {} if value is None else {name: value.astype(np.float32)}
        write_safetensors(path, tensors, told)
        assert_raises(target, path, message)


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

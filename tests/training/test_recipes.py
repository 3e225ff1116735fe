"""Optimizers, schedules and the families' recipes, compared with what the originals computed."""

import dataclasses
import json
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.basics import slow
from helpers.training_steps import assert_variables, feed, follow, mirrored, one_device, prepared, trainer_of

from bert_tf import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    PretrainingObjective,
)
from bert_tf.families.distilbert import DistilBertConfig
from bert_tf.families.electra import ElectraConfig
from bert_tf.families.recipe import Recipe
from bert_tf.families.roberta import RobertaConfig
from bert_tf.models import initialize, kernels
from bert_tf.models.inputs import select
from bert_tf.store.open import open_weights
from bert_tf.tasks import script
from bert_tf.training import checkpoints, pretraining_run
from bert_tf.training.optimization import AdamWeightDecay, Lamb, WarmupLinearDecay, create_optimizer, layer_rates
from bert_tf.training.pretraining_settings import PretrainingSettings
from bert_tf.training.settings import FineTuningSettings

pytestmark = pytest.mark.numbers

TINY = {"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2}
TINY |= {"intermediate_size": 16, "max_position_embeddings": 16, "type_vocab_size": 2}


def test_electras_schedule(golden):
    for case in json.loads((golden / "recipes" / "electra_lr_schedule.json").read_text()):
        steps = case["num_train_steps"]
        warmup = case["warmup_steps"] if "warmup_steps" in case else steps * case["warmup_proportion"]
        schedule = WarmupLinearDecay(case["init_lr"], steps, warmup, "multiplies", case.get("lr_decay_power", 1.0))
        decay = case.get("layerwise_lr_decay_power", 1.0)
        for step, expected in case["step_and_lr"]:
            rate = float(schedule(step))
            if decay == 1:
                np.testing.assert_allclose(rate, expected, rtol=2e-6, atol=1e-10)  # 1 - step / steps cancels
                continue
            paths = [f"m/electra{key if key[0] == '/' else '/' + key}x" for key in expected]
            rates = [rate * factor for factor in layer_rates(paths, decay)]
            np.testing.assert_allclose(rates, list(expected.values()), rtol=2e-6, atol=1e-10)


def test_alberts_schedule(golden):
    powers = set()
    for case in json.loads((golden / "recipes" / "albert_lr_schedule.json").read_text()):
        if "start_warmup_step" not in case:  # no such setting here
            arguments = (case[name] for name in ("init_lr", "num_train_steps", "num_warmup_steps"))
            schedule = WarmupLinearDecay(*arguments, power=case.get("poly_power", 1.0))
            schedule = WarmupLinearDecay.from_config(schedule.get_config())
            powers.add(schedule.power)
            for step, rate in case["step_and_lr"]:  # 1 - step / steps cancels
                np.testing.assert_allclose(float(schedule(step)), rate, rtol=2e-6, atol=1e-7 * case["init_lr"])
    assert powers == {1, 2}


def test_robertas_schedule(golden):
    for case in json.loads((golden / "recipes" / "fairseq_lr_schedule.json").read_text()):
        if case["power"] != 1 or case["end_learning_rate"]:
            continue
        schedule = WarmupLinearDecay(case["lr"], case["total_num_update"], case["warmup_updates"], "precedes")
        np.testing.assert_allclose(float(schedule(0)), case["rate_of_first_update"], rtol=1e-6)
        arguments = (case[name] for name in ("lr", "total_num_update", "warmup_updates"))
        from_zero = WarmupLinearDecay(*arguments, "precedes_from_zero")
        assert float(from_zero(0)) == (0 if case["warmup_updates"] else float(schedule(0)))
        for update, rate in case["rate_set_after_update"]:
            np.testing.assert_allclose(float(schedule(update)), rate, rtol=2e-6, atol=1e-10)


def test_warmups_as_runs_make_them(tmp_path):
    """A share of 15 steps is a whole number of them, but not ELECTRA's; that of its pre-training is rounded up."""
    settings = {"warmup_proportion": 0.1, "learning_rate": 1.0, "optimizer": "adamw"}
    for kind, rate in ((ElectraConfig, 14 / 15 / 1.5), (BertConfig, 14 / 15)):
        config = kind.from_dict({**TINY, "num_hidden_layers": 1})
        for dropout in (None, 0.3):
            run = FineTuningSettings(**settings, output_dir=str(tmp_path), do_train=True, classifier_dropout=dropout)
            task = mock.Mock(dev_sets=[], files=mock.Mock(config=config))
            task.create_model.return_value = BertForSequenceClassification(config, 2)
            model, optimizer, _ = script._Run(task, run, one_device(), 15).build_and_restore()
            assert model.dropout_rate == (dropout or 0.1)
        assert float(optimizer.learning_rate_at(tf.constant(1))) == pytest.approx(rate)
    BertForMaskedLM(BertConfig.from_dict({**TINY, "num_hidden_layers": 1})).save_pretrained(str(tmp_path / "teacher"))
    taught, plain = {"teacher": str(tmp_path / "teacher"), "bert_size": "tiny"}, {"bert_size": "tiny"}
    electra = {"objective": "electra", "bert_size": "electra_small"}
    for warmup, nsp, given in ((2, False, electra), (6, False, taught), (10000, True, plain)):
        settings = PretrainingSettings("records", str(tmp_path), do_train=True, num_train_steps=101, **given)
        settings, *_ = pretraining_run._resolve(settings)
        assert (settings.num_warmup_steps, settings.nsp) == (warmup, nsp)
    assert BertConfig.recipe == BertConfig.pretraining_recipe == Recipe()
    kinds = {ElectraConfig: "multiplies", RobertaConfig: "precedes", DistilBertConfig: "precedes_from_zero"}
    assert {kind: kind(30).pretraining_recipe.warmup for kind in kinds} == kinds


@pytest.mark.parametrize("fused", [True, False])
def test_robertas_adam(golden, fused, monkeypatch):
    values = np.load(golden / "recipes" / "fairseq_adam.npz")
    recipe = RobertaConfig.recipe
    assert (0.9, recipe.adam_beta_2) == tuple(values["betas"])
    assert values["eps"] == 1e-6 and recipe.weight_decay_rate == values["weight_decay"]
    variables = [keras.Variable(values[name], name=f"{name}_bias") for name in ("p0", "q0")]
    monkeypatch.setitem(kernels._switches, "fused", fused)
    optimizer = create_optimizer("adamw", 1.0, 10, 0, recipe)
    optimizer.build(variables)
    for step, rate in enumerate(values["lr"]):
        for variable, name in zip(variables, "pq", strict=True):
            gradient = tf.constant(values[f"grads_{name}"][step])
            optimizer.update_step(gradient, variable, tf.constant(rate, "float32"))
            np.testing.assert_allclose(variable.numpy(), values[name][step], rtol=0, atol=1e-6)
        optimizer.iterations.assign_add(1)


def test_layers_have_their_rates():
    """With equal gradients, variables move in proportion to their layer's rate."""
    model = BertForSequenceClassification(BertConfig(**TINY), 2)
    model.build()
    optimizer = AdamWeightDecay(0.1, weight_decay_rate=0.0, layerwise_lr_decay=0.5)
    optimizer.build(model.trainable_variables)
    moved = {}
    for variable in model.trainable_variables:
        before = variable.numpy()
        optimizer.update_step(tf.ones(variable.shape), variable, tf.constant(0.1))
        moved[variable.path] = float(np.mean(before - variable.numpy()))
    step = next(distance for path, distance in moved.items() if path.endswith("classifier/output_bias"))
    depths = {"/embeddings/": 5, "/layer_0/": 4, "/layer_1/": 3, "/layer_2/": 2, "/pooler/": 1, "classifier/output": 0}
    for path, distance in moved.items():
        (depth,) = [depth for part, depth in depths.items() if part in path]
        np.testing.assert_allclose(distance, step * 0.5**depth, rtol=1e-3, err_msg=path)
    again = AdamWeightDecay.from_config(optimizer.get_config())
    assert again.layerwise_lr_decay == 0.5


@pytest.mark.parametrize("count", [2, 3, *slow(0)])
def test_frozen_layers_stay(count, monkeypatch):
    keras.utils.set_random_seed(3)
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = BertForSequenceClassification(BertConfig(**TINY, **rates), 2, dropout_rate=0.0)
    model.build()
    model.bert.freeze_layers(count)
    model, optimizer = prepared(model, 0.1, 10**6)
    before = {v.path: v.numpy() for v in model.trainable_variables}
    rng = np.random.default_rng(0)
    batch = {"input_ids": rng.integers(1, 30, (4, 8)), "label_ids": np.array([0, 1, 1, 0])}
    data = tf.data.Dataset.from_tensors({name: value.astype("int32") for name, value in batch.items()})
    monkeypatch.setitem(kernels._switches, "fused", False)  # the fused forms take longest to compile
    trainer_of(model, optimizer, batch_size=4).steps(iter(data), tf.constant(1))
    moments = dict(zip(before, [m.numpy() for m in optimizer.first_moments], strict=True))
    changed = {v.path for v in model.trainable_variables if not np.array_equal(v.numpy(), before[v.path])}
    frozen = {name for name in before if "/embeddings/" in name}
    frozen |= {name for name in before for number in range(count) if f"/layer_{number}/" in name}
    # key biases have no gradient; half of the words don't occur
    assert not changed & frozen
    assert {name for name in before.keys() - frozen if "key/bias" not in name} <= changed
    assert all(not moments[name].any() for name in frozen)


def test_sum_of_losses_of_words():
    """run_ner.py's loss is a mean over words; ELECTRA's is their sum."""
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = ElectraConfig(30, 8, 1, 2, 16, embedding_size=8, max_position_embeddings=8, **rates)
    recipe = dataclasses.replace(config.recipe, clip_norm=1e6)
    model, optimizer = prepared(BertForTokenClassification(config, 3, dropout_rate=0.0, seed=0), recipe=recipe)
    batch = {"input_ids": [[1, 2, 3, 4], [5, 6, 0, 0]], "label_ids": [[-1, 0, 2, 1], [1, -1, -1, -1]]}
    batch = {name: tf.constant(rows) for name, rows in batch.items()}
    with tf.GradientTape() as tape:
        losses = model.objective.sums(model(batch, training=True), batch)["loss_sum"]
    gradients = tape.gradient(losses, [variable.value for variable in model.trainable_variables])
    train = trainer_of(model, optimizer, batch_size=2, sum_loss=True).steps
    data = iter(tf.data.Dataset.from_tensors(batch))
    result = train(data, tf.constant(1))
    np.testing.assert_allclose(result["gradient_norm"], tf.linalg.global_norm(gradients), rtol=1e-5)
    np.testing.assert_allclose(4 * result["loss"], losses, rtol=1e-6)
    for moment, gradient in zip(optimizer.first_moments, gradients, strict=True):  # whose norm is not clipped
        if gradient is not None:
            np.testing.assert_allclose(moment, 0.1 * tf.convert_to_tensor(gradient), rtol=1e-4, atol=1e-7)


def made(folder, kind, steps, warmup):
    return prepared(kind(BertConfig.from_json_file(str(folder / "bert_config.json"))), 0.001, steps, warmup)


def batch_for(model, folder):
    features = select(np.load(folder / "inputs.npz"), model.known_inputs)
    return {name: tf.constant(value) for name, value in features.items()}


MOMENTS = {"/adam_m": 2e-6, "/adam_v": 1e-8}


@pytest.mark.parametrize(("start", "fused", "accumulation"), [
    (0, True, 1), (6, True, 1), *slow((0, True, 2), (0, False, 1), (0, False, 2)),
])  # fmt: skip
def test_pretraining_steps_equal_the_original(golden, monkeypatch, start, fused, accumulation):
    """Also those that go on from the original's weights, moments and step."""
    monkeypatch.setitem(kernels._switches, "fused", fused)
    folder = golden / "optimizer"
    model, optimizer = made(folder, BertForPreTraining, 20, 5)
    variables = initialize.training_variables(model, optimizer)
    initialize.initialize(variables, open_weights(str(folder / f"pretraining.ckpt-{start}")), must_have_all=True)
    options = {"batch_size": 4, "gradient_accumulation_steps": accumulation}
    trainer = trainer_of(model, optimizer, PretrainingObjective, **options)
    iterator = iter(tf.data.Dataset.from_tensors(batch_for(model, folder)).repeat())
    steps = json.loads((folder / "pretraining_steps.json").read_text())["steps"]
    taken = follow(trainer, iterator, steps[start:], atol=2e-4, rtol=2e-4)
    for number, (expected, _) in enumerate(taken, start + 1):
        assert trainer.step == number == expected["global_step_before"] + 1
        if number in (6, 12):
            assert_variables(variables, folder / f"pretraining.ckpt-{number}", 5e-5, MOMENTS)
    assert number == 12


@pytest.mark.parametrize(
    ("replicas", "parts", "use_xla"), [(1, 1, False), *slow((1, 2, False), (2, 1, False), (2, 2, True), (1, 4, True))]
)
def test_eight_squad_steps_equal_the_original(golden, replicas, parts, use_xla):
    """However a batch is cut: every norm is above 1 and counts the rows of the word table's gradient separately.

    The pooler gets no gradient.
    """
    folder = golden / "optimizer"
    strategy = one_device() if replicas == 1 else mirrored(replicas)
    with strategy.scope():
        model, optimizer = made(folder, BertForQuestionAnswering, 10, 2)
    variables = initialize.model_variables(model)
    start = golden / "model" / "config1" / "squad.ckpt"
    initialize.initialize(variables, open_weights(str(start)), must_have_all=True)
    inputs = batch_for(model, folder)
    options = {"batch_size": 4, "gradient_accumulation_steps": parts, "use_xla": use_xla}
    trainer = trainer_of(model, optimizer, strategy=strategy, **options)
    iterator = feed(strategy, tf.data.Dataset.from_tensors(inputs).repeat())
    steps = json.loads((folder / "squad_steps.json").read_text())["steps"]
    for expected, _ in follow(trainer, iterator, steps, atol=2e-4, rtol=2e-4):
        assert expected["global_norm"] > 1
    assert len(steps) == 8
    saved = initialize.training_variables(model, optimizer)
    moments = [name for name in saved if name.startswith("bert/pooler") and name.endswith(("adam_m", "adam_v"))]
    assert len(moments) == 4
    for name in moments:  # the original has none: they stay zero here
        assert not saved.pop(name).numpy().any()
    assert_variables(saved, folder / "squad.ckpt-8", 5e-5, MOMENTS)


def test_a_run_resumes_from_the_originals_squad_checkpoint(golden, tmp_path, caplog):
    """It has no moments of the pooler, which gets no gradient; a checkpoint without any moments is still an error."""
    folder = golden / "optimizer"
    for path in folder.glob("squad.ckpt-8.*"):
        (tmp_path / path.name.replace("squad", "model")).write_bytes(path.read_bytes())
    model, optimizer = made(folder, BertForQuestionAnswering, 10, 2)
    variables = initialize.training_variables(model, optimizer)
    variables["bert/pooler/dense/kernel/adam_m"].assign(np.ones(variables["bert/pooler/dense/kernel/adam_m"].shape))
    with caplog.at_level("INFO"):
        assert checkpoints.restore(model, optimizer, str(tmp_path), None) == 8
    missing = "has no Adam moments of bert/pooler/dense/bias, bert/pooler/dense/kernel: they start at zero."
    assert missing in caplog.text and "Resuming at step 8" in caplog.text
    saved = dict(variables)
    for name in [name for name in saved if name.startswith("bert/pooler") and "adam" in name]:
        assert not saved.pop(name).numpy().any()
    assert_variables(saved, folder / "squad.ckpt-8", 5e-5, MOMENTS)
    new = str(tmp_path / "new")
    for variable in variables.values():
        variable.assign(np.zeros(variable.shape))
    assert checkpoints.restore(model, optimizer, new, open_weights(str(folder / "squad.ckpt-8")), True) == 8
    assert_variables(saved, folder / "squad.ckpt-8", 5e-5, MOMENTS)  # its moments and step, too
    with pytest.raises(ValueError, match="squad.ckpt lacks"):
        checkpoints.restore(model, optimizer, new, open_weights(str(golden / "model" / "config1" / "squad.ckpt")), True)
    lost = "bert/pooler/dense/kernel/adam_v"  # with its adam_m still there, the checkpoint is damaged
    half = {name: variable.numpy() for name, variable in variables.items() if name != lost}
    checkpoints.save(str(tmp_path / "half"), 8, half)
    with pytest.raises(ValueError, match=f"lacks 1 of the run's .*{lost}"):
        checkpoints.restore(model, optimizer, str(tmp_path / "half"), None)


def test_decay_is_excluded_by_name():
    names = ["bert/LayerNorm/gamma", "x/output_bias", "x/layer_norm/scale", "x/kernel", "bert/word_embeddings"]
    variables = []
    for name in names:
        with keras.name_scope(name.rsplit("/", 1)[0].replace("/", "_")):
            variables.append(keras.Variable([1.0], name=name.rsplit("/", 1)[1]))
    optimizer = AdamWeightDecay(learning_rate=0.1, global_clipnorm=None)
    optimizer.apply([tf.constant([0.0])] * len(variables), variables)
    # Without a gradient only decay moves a variable: 1 - 0.1 * 0.01.
    np.testing.assert_allclose([float(v.numpy()[0]) for v in variables], [1.0, 1.0, 1.0, 0.999, 0.999], rtol=1e-6)


@pytest.mark.parametrize(("name", "decayed"), [("kernel", True), ("bias", False)])
def test_lamb(name, decayed):
    """As in NumPy, float64 (You et al. 2019, algorithm 2)."""
    generator = np.random.default_rng(0)
    p, m, v = generator.normal(size=(4, 3)), 0.0, 0.0
    variable = keras.Variable(p, name=name, dtype="float32")
    optimizer = Lamb(learning_rate=0.01, global_clipnorm=None)
    for t, g in enumerate(generator.normal(size=(5, 4, 3)), 1):
        optimizer.apply([tf.constant(g, tf.float32)], [variable])
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        u = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-6)
        if decayed:
            u = u + 0.01 * p
            u = u * np.linalg.norm(p) / np.linalg.norm(u)
        p = p - 0.01 * u
    np.testing.assert_allclose(variable.numpy(), p, rtol=2e-5, atol=1e-6)


def test_optimizers_serialise():
    for optimizer in (
        create_optimizer("adamw", 1e-4, 100, 10),
        create_optimizer("lamb", 1e-4, 100, 10),
        AdamWeightDecay(3e-5, weight_decay_rate=0.1, exclude_from_weight_decay=["bias"]),
    ):
        copy = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
        assert type(copy) is type(optimizer) and copy.get_config() == optimizer.get_config()
        variables = [keras.Variable([1.0], name=name) for name in ("kernel", "bias")]
        copy.build(variables)
        assert copy.decayed == [True, False]


@pytest.mark.parametrize(("arguments", "message"), [
    (("adamw", "1e-5", 100, 10), "learning_rate='1e-5' must be a number"),
    (("adamw", 1e-5, 2.5, 1), "num_train_steps=2.5 must be a whole number"),
    (("adamw", 1e-5, 100, -1), "num_warmup_steps=-1 must be a number, at least 0"),
    (("AdamW", 1e-5, 100, 10), "optimizer=AdamW is not known; choose one of adamw, lamb"),
])  # fmt: skip
def test_arguments_that_are_none(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        create_optimizer(*arguments)

"""A tiny pre-training model, and steps of it on one replica or several."""

import dataclasses
import functools

import keras
import numpy as np
import tensorflow as tf

from bert_tf import BertConfig, BertForPreTraining, PretrainingObjective, create_optimizer
from bert_tf.data.records import parts_of_batches
from bert_tf.models import initialize
from bert_tf.store.bundle import CheckpointReader
from bert_tf.training import distribution, loop
from bert_tf.training.settings import TrainingSettings
from bert_tf.training.step import Trainer
from helpers.tiny import ONE_LAYER

CONFIG = {**ONE_LAYER, "vocab_size": 120}


def one_device():
    return tf.distribute.OneDeviceStrategy("/cpu:0")


def mirrored(replicas):
    names = [f"/device:CPU:{number}" for number in range(replicas)]
    if replicas == 2:  # a process can't have collectives for groups of two sizes, so only pairs use them here
        return distribution._only(tf.distribute.MirroredStrategy, *names)
    return tf.distribute.MirroredStrategy(names, cross_device_ops=tf.distribute.ReductionToOneDevice())


def make_batches(batch_size, steps, seed=0):
    """Batches whose rows have different numbers of predictions, so that a mean of means would be wrong."""
    generator = np.random.default_rng(seed)
    shape, length, predictions = (steps, batch_size), 16, 4
    ids = generator.integers(5, CONFIG["vocab_size"], (*shape, length))
    lengths = generator.integers(8, length + 1, shape)[..., None]
    positions = np.sort(generator.integers(1, 8, (*shape, predictions)))
    counts = generator.integers(0, predictions + 1, shape)[..., None]
    features = {"input_ids": ids, "input_mask": np.arange(length) < lengths}
    features |= {"segment_ids": np.broadcast_to(np.arange(length) > 5, ids.shape)}
    features |= {"masked_lm_positions": positions, "masked_lm_ids": np.take_along_axis(ids, positions, -1)}
    features |= {"next_sentence_labels": generator.integers(0, 2, (*shape, 1))}
    features = {name: value.astype("int32") for name, value in features.items()}
    return {**features, "masked_lm_weights": (np.arange(predictions) < counts).astype("float32")}


def prepared(model, rate=1e-3, steps=10, warmup=0, recipe=BertConfig.recipe, name="adamw") -> tuple:
    """A model that is built, and its optimizer."""
    if isinstance(model, keras.Model) and not model.built:
        model.build()
    optimizer = create_optimizer(name, rate, steps, warmup, recipe)
    optimizer.build(model.trainable_variables)
    return model, optimizer


def build(strategy, dropout=0.0, dtype=None, rate=1e-2, layers=1, lora=False):
    keras.utils.set_random_seed(1)
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    config = BertConfig.from_dict({**CONFIG, **rates, "num_hidden_layers": layers})
    with strategy.scope():
        model = BertForPreTraining(config, dtype=dtype)
        if lora:
            model.bert.add_lora(4, 8.0, train_pooler=True)
        return prepared(model, rate, 100, 2)


def feed(strategy, batches: tf.data.Dataset):
    return iter(distribution.distribute(strategy, functools.partial(parts_of_batches, batches)))


def trainer_of(model, optimizer, objective=None, strategy=None, *, batch_size, scale=None, **options) -> Trainer:
    sum_loss = options.pop("sum_loss", False)
    settings = TrainingSettings(train_batch_size=batch_size, dtype="float16" if scale else "float32", **options)
    trainer = Trainer(model, optimizer, objective or model.objective, strategy or one_device(), settings, sum_loss)
    if scale:
        trainer.loss_scale.assign(scale)
    return trainer


@functools.cache
def _traced(replicas, batch_size, parts, scale, options) -> tuple[Trainer, list]:
    options, strategy = dict(options), one_device() if replicas == 1 else mirrored(replicas)
    extra = {name: options.pop(name) for name in ("use_xla", "recompute", "skip_nonfinite_steps") if name in options}
    trainer = trainer_of(
        *build(strategy, **options), PretrainingObjective, strategy, batch_size=batch_size, scale=scale,
        gradient_accumulation_steps=parts, seed=3, log_every_steps=2, **extra,
    )  # fmt: skip
    return trainer, [variable.numpy() for variable in _variables(trainer)]


def _variables(trainer) -> list:
    return [*trainer.tensors.values(), trainer.loss_scale, trainer.good_steps]


def fresh_trainer(strategy, batch_size, parts=1, scale=None, **options) -> Trainer:
    trainer, start = _traced(strategy.num_replicas_in_sync, batch_size, parts, scale, tuple(sorted(options.items())))
    for variable, value in zip(_variables(trainer), start, strict=True):
        variable.assign(value)
    return trainer


def cut_to_lengths(number, batch: dict) -> dict:
    width = tf.where(number % 2 == 0, 8, 16)
    rows = ("input_ids", "input_mask", "segment_ids")
    return {name: value[:, :width] if name in rows else value for name, value in batch.items()}


def run(strategy, batches, *, parts=1, scale=None, calls=1, lengths=False, **options):
    """Trains on all batches; returns the values by name and the results of each call."""
    steps, batch_size = batches["input_ids"].shape[:2]
    trainer = fresh_trainer(strategy, batch_size, parts, scale, **options)
    data = tf.data.Dataset.from_tensor_slices(batches)
    iterator, results = feed(trainer.strategy, (data.enumerate().map(cut_to_lengths) if lengths else data).repeat()), []
    trainer.own_memory()
    for _ in range(calls):
        result = trainer.steps(iterator, tf.constant(steps // calls))
        state = {"loss_scale": trainer.loss_scale, "good_steps": trainer.good_steps}
        results.append({name: float(value) for name, value in {**result, **state}.items()})
    variables = initialize.training_variables(trainer.model, trainer.optimizer)
    return {name: v.numpy() for name, v in variables.items()}, results


def train_loop(folder, batches, evaluate=lambda step: None, should_stop=lambda: False, **settings) -> int:
    """`loop.train` on all batches, but for those before the trainer's step."""
    steps, batch_size = batches["input_ids"].shape[:2]
    trainer = fresh_trainer(one_device(), batch_size)
    usual, data = trainer.settings, tf.data.Dataset.from_tensor_slices(batches)
    trainer.settings = dataclasses.replace(usual, **settings)
    options = {"eval_every_steps": trainer.settings.eval_every_steps, "should_stop": should_stop}
    try:
        return loop.train(trainer, steps, data.skip(trainer.step), str(folder), evaluate=evaluate, **options)
    finally:
        trainer.settings = usual


def follow(trainer, data, steps, *, atol, rtol=1e-5, factor=1.0):
    """Takes the original's steps, with its rates, losses and norms; yields what it noted of each, and our results."""
    for step in steps:
        if "learning_rate" in step:
            np.testing.assert_allclose(float(trainer.optimizer.learning_rate), step["learning_rate"], rtol=1e-6)
        result = trainer.steps(data, tf.constant(1))
        np.testing.assert_allclose(factor * float(result["loss"]), step["loss"], atol=atol)
        np.testing.assert_allclose(result["gradient_norm"], step["global_norm"], rtol=rtol)
        yield step, result


def same(name: str, value) -> tuple:
    return name, value


def assert_variables(variables, path, atol, exceptions, there=same) -> None:
    """All are those of the original's checkpoint. exceptions: part of a name -> atol. there: name and value in it."""
    reader, found = CheckpointReader(str(path)), dict(there(name, v.value) for name, v in variables.items())
    assert found.keys() | {"global_step"} == reader.get_variable_to_shape_map().keys() | {"global_step"}
    for name, value in found.items():
        allowed = next((tolerance for part, tolerance in exceptions.items() if part in name), atol)
        np.testing.assert_allclose(value, reader.get_tensor(name), rtol=0, atol=allowed, err_msg=name)

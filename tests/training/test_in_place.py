"""Adam's update in the variables' own memory."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.training_steps import build, feed, make_batches, one_device, trainer_of

from bert_tf.models import initialize
from bert_tf.system.numba_compile import compiled
from bert_tf.training import in_place
from bert_tf.training.optimization import AdamWeightDecay

# In an update: of both threads' halves of the table, one of them three times; some in one update only; none at all.
TOKENS = [3, 0, 119, 3, 60, 3], [0, 1, 2, 3, 4, 5], [], [119, 118, 118, 119, 0, 0]


def updated(is_in_place: bool, counts: list[bool], **options) -> dict[str, np.ndarray]:
    """Variables and moments after updates, by the optimizer or in place. counts: for each whether it is applied."""
    model, _ = build(one_device())
    optimizer, variables, random = AdamWeightDecay(**options), model.trainable_variables, np.random.default_rng(1)
    optimizer.build(variables)
    gradients = [tf.constant(random.normal(size=variable.shape), "float32") for variable in variables]
    table = next(number for number, variable in enumerate(variables) if variable.path.endswith("word_embeddings"))
    updater = in_place.InPlaceAdam(optimizer, variables) if is_in_place else optimizer

    @tf.function(autograph=False)
    def update(tokens, counts, step):
        slices = tf.IndexedSlices(gradients[table][: tokens.shape[0]], tokens, gradients[table].shape)
        of_all = [*gradients[:table], slices, *gradients[table + 1 :]]
        updater.update_steps(of_all, variables, 0.1, tf.constant(0.5), counts, step)

    for step, (tokens, applies) in enumerate(zip(TOKENS, counts, strict=True), 1):
        if is_in_place and step != 2:  # in the second update the memory is still that of the first
            updater.addresses.clear()
            updater.own_memory()
        update(tf.constant(tokens, tf.int32), tf.constant(applies), tf.constant(step, "float32"))
    return {name: value.numpy() for name, value in initialize.training_variables(model, optimizer).items()}


@pytest.mark.parametrize("counts", [[True, True, True, True], [False, True, True, False]])
@pytest.mark.parametrize("options", [
    {},
    {"bias_correction": True, "weight_decay_rate": 0.1},
    {"bias_correction": True, "epsilon_after_correction": True, "epsilon": 1e-2, "layerwise_lr_decay": 0.8},
])  # fmt: skip
def test_the_update_is_the_optimizers(options, counts, monkeypatch):
    monkeypatch.setattr(in_place, "_SMALL", 100)
    expected, actual = (updated(is_in_place, counts, **options) for is_in_place in (False, True))
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=2e-6, atol=1e-8, err_msg=name)


def test_moments_that_are_too_small_become_zero():
    assert isinstance(in_place._move, type(compiled(in_place._move.py_func)))  # its cache may be damaged
    m, v = (np.float32([1e-38, -1e-38, 1e-37, np.nan]) for _ in range(2))
    numbers = np.float32([0.1, 1.0, 1.0, 1e-6, 0.9, 0.1, 0.9, 0.1])  # the third of m stays a normal number
    in_place._move(np.ones(4, np.float32), m, v, np.zeros(4, np.float32), numbers, np.zeros(2, np.float32))
    np.testing.assert_array_equal(m, np.float32([0, 0, np.float32(0.9) * np.float32(1e-37), np.nan]))
    np.testing.assert_array_equal(v[[0, 1]], 0)


def trainer_and_batches():
    trainer = trainer_of(*build(one_device()), batch_size=4)
    return trainer, feed(one_device(), tf.data.Dataset.from_tensor_slices(make_batches(4, 8)))


def test_what_is_held_of_a_variable_keeps_its_value():
    trainer, batches = trainer_and_batches()
    for _ in range(2):
        held = {name: tf.identity(variable.value) for name, variable in trainer.tensors.items()}
        values = {name: value.numpy() for name, value in held.items()}
        trainer.own_memory()
        trainer.steps(batches, tf.constant(2))
        for name, value in held.items():
            np.testing.assert_array_equal(value, values[name], err_msg=name)
    assert any((trainer.tensors[name].numpy() != value).any() for name, value in values.items())


@pytest.mark.parametrize("row", [-1, 120])
def test_a_row_outside_the_table_is_an_error(row):
    (table,) = variables = [keras.Variable(np.ones((120, 2), "float32"), name="table")]
    optimizer = AdamWeightDecay()
    optimizer.build(variables)
    updater = in_place.InPlaceAdam(optimizer, variables)
    updater.own_memory()
    slices = tf.IndexedSlices(tf.ones((2, 2)), tf.constant([3, row]), tf.constant([120, 2]))
    update = tf.function(lambda: updater.update_steps([slices], variables, 0.1, 0.5, tf.constant(True), 1.0))
    with pytest.raises(tf.errors.InvalidArgumentError, match="not all in a table of 120"):
        update()
    np.testing.assert_array_equal(table, 1)


def test_an_optimizer_with_its_own_direction_is_left_alone():
    model, optimizer = build(one_device())
    own = type("Own", (AdamWeightDecay,), {})()
    own.build(model.trainable_variables)
    trainers = [trainer_of(model, one, batch_size=4) for one in (optimizer, own)]
    assert [trainer._in_place is None for trainer in trainers] == [False, True]


def test_memory_that_is_not_the_trainers_is_not_written_to():
    """Whatever was done to a table; and the refused call takes no batch."""
    trainer, batches = trainer_and_batches()
    trainer.steps(batches, tf.constant(1))
    table, optimizer = trainer.model.bert.embeddings.trainable_variables[0], trainer.optimizer
    held = [tf.fill(table.shape, 1.0)]
    changes = [
        lambda: table.assign(held[0]),
        lambda: (
            held.append(tf.fill(table.shape, 2.0)) or table.assign(held[1])
        ),  # in what was the table's, were it free
        lambda: optimizer.first_moments[0].value.assign_add(tf.zeros(table.shape)),
        lambda: optimizer.first_moments[0].assign(optimizer.second_moments[0].value),
        lambda: table.value.scatter_update(tf.IndexedSlices(tf.ones((1, table.shape[1])), [3])),
    ]
    for number, change in enumerate(changes, 1):
        change()
        with pytest.raises(tf.errors.UnknownError, match="A variable's memory is not its own"):
            trainer.steps(batches, tf.constant(1))
        if number > 1:
            trainer.own_memory()
            trainer.steps(batches, tf.constant(1))
    assert trainer.step == 5 and len(list(batches)) == 3
    assert [np.unique(value).tolist() for value in held] == [[1], [2]]

"""Checkpoints are written while training goes on: with the values of their step, and no error is lost."""

import os
import signal
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.events import wait_until
from helpers.training_steps import build, make_batches, one_device, trainer_of
from helpers.warm import HANG_SECONDS

from bert_tf.models.objectives import PretrainingObjective
from bert_tf.training import checkpoints, loop
from bert_tf.weights.bundle import CheckpointReader


@pytest.fixture
def held(monkeypatch):
    """An event without which no checkpoint is written."""
    event, save = threading.Event(), checkpoints.save

    def held_save(*arguments):
        assert event.wait(HANG_SECONDS), "training waits for the checkpoint"
        return save(*arguments)

    monkeypatch.setattr(checkpoints, "save", held_save)
    yield event
    event.set()


def changes(variable: tf.Variable) -> dict:
    """Ways in which TensorFlow changes a variable's memory."""
    rows = tf.IndexedSlices(tf.ones([1, 3]), tf.constant([1]), tf.constant([4, 3]))
    ones = tf.ones_like(variable)
    return {
        "assign": lambda: variable.assign(tf.zeros_like(variable)),
        "assign_add": lambda: variable.assign_add(ones),
        "rows": lambda: variable.scatter_add(rows),
        "descent": lambda: tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=1.0, delta=ones),
    }


@pytest.mark.parametrize("kind", ["assign", "assign_add", "rows", "descent"])
@pytest.mark.parametrize("in_a_graph", [False, True])
def test_the_values_are_those_of_the_step(kind, in_a_graph, held, tmp_path):
    variable = keras.Variable(np.arange(12, dtype=np.float32).reshape(4, 3))
    change = changes(variable.value)[kind]
    with checkpoints.Writer(str(tmp_path), 5) as writer:
        writer.save(1, {"a": variable, "global_step": np.int64(1)})
        (tf.function(lambda: [change(), 0][1]) if in_a_graph else change)()
        assert not np.array_equal(variable.numpy(), np.arange(12).reshape(4, 3))
        held.set()
    saved = CheckpointReader(f"{tmp_path}/model.ckpt-1").get_tensor("a")
    np.testing.assert_array_equal(saved, np.arange(12).reshape(4, 3))


def test_one_after_the_other(held, tmp_path):
    with checkpoints.Writer(str(tmp_path), 2) as writer:
        writer.save(1, {"a": np.ones(2, np.float32)})
        assert checkpoints.latest_checkpoint(str(tmp_path)) is None
        held.set()
        for step in (2, 3):
            writer.save(step, {"a": np.ones(2, np.float32)})
            assert f"{tmp_path}/model.ckpt-{step - 1}" in checkpoints.saved_steps(str(tmp_path)).values()
    assert sorted(checkpoints.saved_steps(str(tmp_path))) == [2, 3]


def test_an_error_ends_the_run_at_the_next_save_or_at_the_end(monkeypatch, tmp_path, caplog):
    def failing(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(checkpoints, "save", failing)
    with checkpoints.Writer(str(tmp_path), 5) as writer:
        writer.save(1, {"a": np.ones(2, np.float32)})
        with pytest.raises(OSError, match="the disk is full"):
            writer.save(2, {"a": np.ones(2, np.float32)})
    with pytest.raises(OSError, match="the disk is full"), checkpoints.Writer(str(tmp_path), 5) as writer:
        writer.save(1, {"a": np.ones(2, np.float32)})
    assert "the disk is full" not in caplog.text
    with pytest.raises(KeyError), checkpoints.Writer(str(tmp_path), 5) as writer:
        writer.save(1, {"a": np.ones(2, np.float32)})
        raise KeyError
    assert "the disk is full" in caplog.text


def train(folder, steps: int, **options) -> None:
    """Four steps, saved after each."""
    batches, (model, optimizer) = make_batches(batch_size=4, steps=4), build(one_device())
    periods = {"log_every_steps": 1, "save_checkpoints_steps": 2}
    trainer = trainer_of(model, optimizer, PretrainingObjective, batch_size=4, **periods)
    data = tf.data.Dataset.from_tensor_slices(batches).repeat()
    loop.train(trainer, steps, data, str(folder), eval_every_steps=3, **options)


def test_training_does_not_wait(held, tmp_path):
    """The checkpoint of step 2 is written when step 3 is evaluated."""
    log = tmp_path / "train_log.jsonl"

    def release_when_a_step_is_done():
        wait_until(lambda: log.exists() and log.read_text())
        held.set()

    threading.Thread(target=release_when_a_step_is_done, daemon=True).start()
    train(tmp_path, 4, evaluate=lambda step: {})
    assert sorted(checkpoints.saved_steps(str(tmp_path))) == [2, 4]


def test_after_sigterm_the_checkpoint_is_there_before_the_end(held, tmp_path):
    def terminate(step):
        held.set()
        os.kill(os.getpid(), signal.SIGTERM)
        return {}

    with pytest.raises(SystemExit) as raised:
        held.set()
        train(tmp_path, 8, evaluate=terminate)
    assert raised.value.code == loop.EXIT_CODE_TERMINATED
    assert max(checkpoints.saved_steps(str(tmp_path))) == 4

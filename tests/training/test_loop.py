"""The loop: replicas, micro-batches, precision, XLA, bad losses, evaluation. Resume is in test_run_pretraining.py."""

import json
import math
import re
import signal

import numpy as np
import pytest
import tensorflow as tf
from helpers.basics import slow
from helpers.training_steps import build, fresh_trainer, make_batches, mirrored, one_device, run, train_loop

from bert_tf.models import kernels
from bert_tf.store.bundle import latest_checkpoint
from bert_tf.training import checkpoints, loop


@pytest.fixture(autouse=True)
def plain_forms(monkeypatch):
    """The fused forms take longest to compile; they are compared with the plain ones elsewhere."""
    monkeypatch.setitem(kernels._switches, "fused", False)


@pytest.mark.parametrize("replicas", [1, *slow(2)])
def test_loss_scale_halves_on_overflow_and_the_step_is_left_out(replicas, tmp_path):
    batches, strategy = make_batches(batch_size=4, steps=3), one_device() if replicas == 1 else mirrored(2)
    _, (result,) = run(strategy, batches, dtype="mixed_float16", scale=2.0**40)
    assert (result["steps"], result["skipped"]) == (0, 3)
    assert result["loss_scale"] == 2.0**37 and not result["failed"]
    # It doubles after 2,000 good steps, which an overflow begins to count anew; both go on with a checkpoint.
    trainer, found = fresh_trainer(strategy, 4, dtype="mixed_float16", scale=2.0**40), []
    counts = {"loss_scale": np.float32(8.0), "loss_scale_good_steps": np.int64(1998)}
    trainer.read_loss_scale(checkpoints.save(str(tmp_path), 1, counts))
    state, zeros = trainer.first_state(), dict.fromkeys((*trainer.objective.sum_names, "loss"), 0.0)
    for finite in (True, True, True, False, True):
        state = trainer._next_state(state, zeros, 1.0, tf.constant(finite))
        found.append((float(state.loss_scale), int(state.good_steps)))
    assert found == [(8.0, 1999), (16.0, 0), (16.0, 1), (8.0, 0), (8.0, 1)]


def with_bad_batch(bad):
    batches = make_batches(batch_size=4, steps=6)
    batches["masked_lm_weights"][bad] = np.nan
    return batches


@pytest.mark.parametrize("replicas", [1, *slow(2)])
def test_a_nan_step_stops_before_it_changes_anything(replicas):
    strategy = one_device() if replicas == 1 else mirrored(2)
    batches = with_bad_batch(2)
    good, _ = run(strategy, {name: value[:2] for name, value in batches.items()})
    stopped, (result,) = run(strategy, batches)
    assert result["failed"] and (result["steps"], result["skipped"]) == (2, 1)
    for name, value in good.items():
        np.testing.assert_array_equal(stopped[name], value, err_msg=name)


def test_a_nan_step_can_be_skipped_and_counted():
    values, (result,) = run(one_device(), with_bad_batch(2), skip_nonfinite_steps=True)
    assert (result["steps"], result["skipped"]) == (5, 1)
    assert values["global_step"] == 6 and all(np.isfinite(value).all() for value in values.values())


def test_the_loop_names_the_step_of_a_nan_and_keeps_the_last_checkpoint(tmp_path):
    with pytest.raises(loop.NonFiniteLossError, match=r"step 4 .*model\.ckpt-3"):
        train_loop(tmp_path, with_bad_batch(4), save_checkpoints_steps=3)
    assert latest_checkpoint(str(tmp_path)).endswith("model.ckpt-3")


def test_ctrl_c_saves_a_checkpoint_and_a_second_one_ends_at_once(request, tmp_path, caplog):
    # Python's handler is missing where Python was started with the signal ignored, as by a shell's &.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))

    def interrupt(step):
        signal.raise_signal(signal.SIGINT)
        if step == 4:
            signal.raise_signal(signal.SIGINT)
        return {}

    for every in (2, 4, 6):
        with pytest.raises(KeyboardInterrupt):
            train_loop(tmp_path / str(every), make_batches(4, 6), interrupt, eval_every_steps=every)
    assert latest_checkpoint(str(tmp_path / "2")).endswith("model.ckpt-3")
    assert "Interrupted: saved step 3; the same command resumes there." in caplog.text
    assert latest_checkpoint(str(tmp_path / "4")) is None
    # In the evaluation after the last step: there is no further step to end after.
    assert latest_checkpoint(str(tmp_path / "6")).endswith("model.ckpt-6")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_no_call_takes_long():
    """A step of unknown length is a call of its own; and a call ends where something is due."""
    pace, counts = loop._StepsPerCall(fresh_trainer(one_device(), 4), (100, 0, 30), (), list), []
    for pace._seconds, step in ((math.inf, 0), (1.0, 1), (60.0, 6), (1e-3, 25), (1e-3, 90)):
        counts.append(int(pace.count(step)))
    assert counts == [1, 5, 1, 5, 10]


def test_the_loop_writes_checkpoints_and_logs(tmp_path):
    (tmp_path / "train_log.jsonl").write_text('{"kind": "train", "step": 4, "lo')  # torn by a kill
    assert train_loop(tmp_path, make_batches(4, 6), save_checkpoints_steps=2, keep_checkpoint_max=2) == 6
    assert {path.stem for path in tmp_path.glob("model.ckpt-*.index")} == {"model.ckpt-4", "model.ckpt-6"}
    lines = [json.loads(line) for line in (tmp_path / "train_log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]  # too few for every second one
    assert all({"loss", "masked_lm_accuracy", "next_sentence_accuracy", "learning_rate"} <= {*line} for line in lines)
    (events,) = map(str, tmp_path.glob("events.out.tfevents.*"))
    drawn = {event.step: event.summary.value for event in tf.compat.v1.train.summary_iterator(events)}
    assert [value.simple_value for value in drawn[6] if value.tag == "loss"] == [pytest.approx(lines[5]["loss"])]


def test_an_early_stop_saves_its_step_and_is_heeded_by_the_next_start(tmp_path, caplog):
    steps = []
    options = {"eval_every_steps": 2, "should_stop": lambda: len(steps) == 2}
    assert train_loop(tmp_path, make_batches(4, 6), lambda step: steps.append(step) or {}, **options) == 4 == steps[-1]
    assert latest_checkpoint(str(tmp_path)).endswith("model.ckpt-4")
    with caplog.at_level("INFO"):
        assert train_loop(tmp_path, make_batches(4, 6), **options) == 0  # nothing was restored
    assert "Nothing to train: step 0 is reached, and the run was stopped early." in caplog.text


def test_points_of_the_log_are_means(tmp_path, caplog):
    """Of each pair of steps the mean, not the sum; only a fifth of them is a line, too."""
    with caplog.at_level("INFO"):
        train_loop(tmp_path, make_batches(4, 100), log_every_steps=100)
    assert re.findall(r"train step (\d+):", caplog.text) == list(map(str, range(10, 101, 10)))
    lines = [json.loads(line) for line in (tmp_path / "train_log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(2, 101, 2))
    _, pairs = run(one_device(), make_batches(4, 100), calls=50)
    expected = [pair["loss"] / 2 for pair in pairs[:10]]  # later, rounding has added up
    assert [line["loss"] for line in lines[:10]] == pytest.approx(expected, rel=1e-5)


def test_keras_fit_on_replicas_draws_different_masks():
    strategy = mirrored(2)
    model, _ = build(strategy, dropout=0.5)
    batch = {name: tf.constant(value[0]) for name, value in make_batches(batch_size=4, steps=1).items()}
    outputs = strategy.run(lambda: model(batch, training=True)["next_sentence_logits"])
    first, second = strategy.experimental_local_results(outputs)
    assert np.abs(first.numpy() - second.numpy()).max() > 1e-4

"""Runs that are killed leave the files of undisturbed ones, bit for bit; runs cut in other ways take the same steps.

A run also goes on with other replicas and workers.
"""

import json
import os
import re
import signal

import kill_campaign
import numpy as np
import pytest
from helpers import warm
from helpers.basics import exhaustive, slow
from helpers.cluster import workers
from helpers.scenarios import (
    FINE_TUNING,
    PRETRAINING,
    SCENARIOS,
    SEVERAL_WORKERS,
    TWO_REPLICAS,
    command,
    run,
    values,
    write_inputs,
)
from helpers.script_cases import command_of, outputs, results_of, run_cases, weights_of

from bert_tf.store.bundle import latest_checkpoint
from bert_tf.training import loop

KILLED = (*FINE_TUNING, *PRETRAINING, "classifier without optimizer state", "classifier with seeds",
          "classifier with a search", "shards", "conversion")  # fmt: skip
# Like others of their kind; adapters in parts of a batch also in training/test_equal_steps.py.
ALIKE = {"pretraining of ALBERT", "pretraining of RoBERTa", "pretraining left to right"}
CUT_ALIKE = {*ALIKE, "classifier with LoRA"}


# In small: test_run_pretraining.py, where a run is killed, and test_fine_tuning_runs.py, where runs go on.
@pytest.mark.parametrize("name", [*slow(*(name for name in KILLED if name not in ALIKE)), *exhaustive(*sorted(ALIKE))])
def test_a_killed_run_goes_on_to_the_same_files(name, tmp_path):
    """Killed before a change of a file about the middle of its work; the campaign has all moments."""
    campaign = kill_campaign.Campaign(name, tmp_path / "run")
    assert campaign.expected and campaign.changes > 5
    assert campaign.kill([{"limit": 2 * campaign.changes // 3}]) == (1, "")
    if campaign.script.startswith("run_"):
        assert "Resuming at step" in (tmp_path / "run" / "log.txt").read_text()


def assert_same_steps(one, other, tolerance, rtol=1e-3) -> None:
    """Weights at two paths are equal but for rounding, without rtol also moments; these are not those of the start."""
    one, other = weights_of(one), weights_of(other)
    assert one.keys() == other.keys() and one["global_step"] == other["global_step"]
    assert any(name.endswith("adam_m") and value.any() for name, value in one.items())
    for name, value in one.items():
        # The true gradient of a key bias is 0, and Adam makes steps of its rounding.
        if "key/bias" not in name and not (rtol and "adam" in name):
            np.testing.assert_allclose(other[name], value, rtol=rtol, atol=tolerance, err_msg=name)


CUT = [name for name in (*FINE_TUNING, *PRETRAINING) if name not in CUT_ALIKE]


# In small: training/test_equal_steps.py, training/test_recipes.py.
@pytest.mark.parametrize("name", [*slow(*CUT), *exhaustive(*sorted(CUT_ALIKE))])
def test_two_replicas_take_the_steps_of_two_parts_of_a_batch(name, tmp_path):
    """With dropout, whose masks follow the place in the batch."""
    script, flags = SCENARIOS[name](tmp_path)
    flags |= {"num_train_epochs": 1, "do_predict": False} if name in FINE_TUNING else {"num_train_steps": 4}
    flags |= {"num_warmup_steps": 1} if name in PRETRAINING else {}
    flags |= {"num_virtual_cpus": 2, "do_eval": False, "eval_every_steps": 0}
    cases = {"parts": {"gradient_accumulation_steps": 2}, "replicas": TWO_REPLICAS}
    cases = {case: {**flags, **own, "output_dir": tmp_path / case} for case, own in cases.items()}
    outcomes, logs = run_cases(script, cases)
    assert outcomes == dict.fromkeys(cases, "done"), logs
    assert "replicas: 2" in logs["replicas"]
    assert_same_steps(tmp_path / "parts", tmp_path / "replicas", 1e-3 if name in FINE_TUNING else 5e-5)


@pytest.mark.slow
def test_two_workers_take_the_steps_of_two_replicas(tmp_path):
    script, flags = SCENARIOS["classifier"](tmp_path)
    run(command_of(script, {**flags, **TWO_REPLICAS, "output_dir": tmp_path / "local"}))
    flags |= {**SEVERAL_WORKERS, "output_dir": tmp_path / "cluster"}
    with workers([command_of(script, flags)] * 2, tmp_path) as processes:
        codes = [process.wait() for process in processes]
    logs = [(tmp_path / f"worker-{number}.log").read_text() for number in range(2)]
    assert codes == [0, 0], logs[0][-3000:]
    assert ["Saved" in log for log in logs] == [True, False]
    assert_same_steps(tmp_path / "local", tmp_path / "cluster", 1e-5)
    assert results_of(tmp_path / "cluster") == pytest.approx(results_of(tmp_path / "local"), abs=1e-4)


@pytest.mark.slow  # in small: test_equal_steps.py's replicas, and test_dropout.py's parts of a batch
def test_killed_on_two_replicas_gone_on_with_four_and_ended_on_one_in_four_parts(tmp_path):
    script, flags = SCENARIOS["pretraining on packed rows"](tmp_path)
    flags |= {"num_train_steps": 20, "save_checkpoints_steps": 2, "keep_checkpoint_max": 0, "do_eval": False}
    folder = tmp_path / "lr=[1e-4]? {a,b} ü"
    elastic = {**flags, "output_dir": folder}
    warm.kill_after_rename(folder / "model.ckpt-6.index", command_of(script, {**elastic, **TWO_REPLICAS}))
    for given, line in (
        (flags, "starting from random weights"),
        ({**elastic, **TWO_REPLICAS, "num_virtual_cpus": 4, "stop_at_step": 14}, "Resuming at step"),
        ({**elastic, "gradient_accumulation_steps": 4}, "Resuming at step 14"),
    ):
        assert line in run(command_of(script, given))
    assert weights_of(folder)["global_step"] == 20
    assert_same_steps(tmp_path / "out", folder, 1e-5, rtol=0)


def wait_for_steps(folder, processes):
    warm.wait_until((folder / "train_log.jsonl").exists, *processes, log=(folder.parent / "worker-0.log").read_text)


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_sigterm_on_one_of_two_workers_stops_both_at_the_same_step(number, tmp_path):
    flags = {"num_train_steps": 1_000_000, "save_checkpoints_steps": 1_000_000, "log_every_steps": 20}
    arguments = command(write_inputs(tmp_path), tmp_path / "out", **flags, **SEVERAL_WORKERS)
    with workers([arguments] * 2, tmp_path) as processes:
        wait_for_steps(tmp_path / "out", processes)
        processes[number].send_signal(signal.SIGTERM)
        codes = [process.wait() for process in processes]
    logs = [(tmp_path / f"worker-{number}.log").read_text() for number in range(2)]
    assert codes == [loop.EXIT_CODE_TERMINATED] * 2, "".join(logs)[-3000:]
    saved = [re.search(r"SIGTERM: saved step (\d+), leaving with exit code 143", log)[1] for log in logs]
    assert saved[0] == saved[1] and values(tmp_path / "out", int(saved[0]))["global_step"] == int(saved[0])


@pytest.mark.slow
@pytest.mark.parametrize(("number", "how"), [(0, signal.SIGKILL), (1, signal.SIGSTOP)])
def test_the_others_end_when_a_worker_is_lost_and_the_same_command_goes_on(number, how, tmp_path):
    data = write_inputs(tmp_path)
    flags = {"num_train_steps": 100_000, "save_checkpoints_steps": 10, "log_every_steps": 10, **SEVERAL_WORKERS}
    with workers([command(data, tmp_path / "out", **flags)] * 2, tmp_path) as processes:
        wait_for_steps(tmp_path / "out", processes)
        processes[number].send_signal(how)
        assert processes[1 - number].wait() == 1
    last = (tmp_path / f"worker-{1 - number}.log").read_text().splitlines()[-1]
    assert re.search(rf"error: worker {number} \(localhost:\d+\) has ended or can't be reached: start all", last), last
    # Not the largest of saved_steps: the chief may have been killed between writing a checkpoint and naming it.
    step = int(latest_checkpoint(str(tmp_path / "out")).rpartition("-")[2])
    with workers([command(data, tmp_path / "out", **flags, stop_at_step=step + 5)] * 2, tmp_path) as processes:
        assert [process.wait() for process in processes] == [0, 0]
    log = (tmp_path / "worker-0.log").read_text()
    assert f"Resuming at step {step} from" in log
    assert values(tmp_path / "out", step + 5)["global_step"] == step + 5


@pytest.mark.slow
def test_two_workers_then_one_then_three_take_the_steps_of_one(tmp_path):
    flags = {"num_train_steps": 9, "train_batch_size": 12, "eval_batch_size": 12, "save_checkpoints_steps": 3}
    data = write_inputs(tmp_path)
    run(command(data, tmp_path / "one", **flags))
    for count, step in ((2, 3), (1, 6), (3, 9)):
        arguments = command(data, tmp_path / "out", **flags, **SEVERAL_WORKERS, stop_at_step=step)
        with workers([arguments] * count, tmp_path) as processes:
            assert [process.wait() for process in processes] == [0] * count
    assert_same_steps(tmp_path / "one" / "model.ckpt-9", tmp_path / "out" / "model.ckpt-9", 1e-6, rtol=0)


@pytest.mark.slow
def test_a_worker_that_refuses_its_flags_is_named_by_the_other(tmp_path):
    data = write_inputs(tmp_path)
    several = {**SEVERAL_WORKERS, "num_train_steps": 10}
    commands = [command(data, tmp_path / "out", **several, train_batch_size=size) for size in (8, 7)]
    with workers(commands, tmp_path) as processes:
        assert [process.wait() for process in processes] == [1, 1]
    last = [(tmp_path / f"worker-{number}.log").read_text().splitlines()[-1] for number in range(2)]
    assert "error: worker 1 (localhost:" in last[0] and "--train_batch_size=7 can't be divided" in last[1]
    assert not (tmp_path / "out" / "checkpoint").exists()


@pytest.mark.slow
def test_what_a_killed_run_left_is_removed_by_the_next_start(tmp_path_factory, tmp_path):
    data = write_inputs(tmp_path_factory.mktemp("data"))
    steps = {"num_train_steps": 4, "save_checkpoints_steps": 1, "keep_checkpoint_max": 2, "log_every_steps": 1}
    run(command(data, tmp_path, **steps, stop_at_step=3))
    whole = outputs(tmp_path)
    for suffix in ("index", "data-00000-of-00001"):  # killed before it was removed, or halfway
        (tmp_path / f"model.ckpt-1.{suffix}").write_bytes((tmp_path / f"model.ckpt-2.{suffix}").read_bytes())
    (tmp_path / "model.ckpt-0.data-00000-of-00001").write_text("without an index")
    for name in (".run.json.0123456789ab.tmp", ".run.lock.0123456789ab.tmp", "notes.tmp", "model.ckpt-1 of mine.index"):
        (tmp_path / name).write_text("")
    for name in ("model.ckpt-4.writing", "best_model.123.writing", "best_model/bert_tf_private_of_it"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text("")
        os.utime(tmp_path / name, (0, 0))
    for name in ("1_Pooling", "best_model/1_Pooling", "mine"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / ".config.json.0123456789ab.tmp").touch()
    log = (tmp_path / "train_log.jsonl").read_text()
    (tmp_path / "train_log.jsonl").write_text(log + '{"kind": "train", "step": 4, "lo')
    assert "its last line was torn" in run(command(data, tmp_path, **steps))
    renamed = {name.replace("-3.", "-4.").replace("-2.", "-3.") for name in whole}
    kept = {"notes.tmp", "model.ckpt-1 of mine.index", "mine", "mine/.config.json.0123456789ab.tmp"}
    assert outputs(tmp_path) == renamed | kept | {"1_Pooling", "best_model", "best_model/1_Pooling"}
    text = (tmp_path / "train_log.jsonl").read_text()
    assert text.startswith(log) and [json.loads(line)["step"] for line in text.splitlines()] == [1, 2, 3, 4]

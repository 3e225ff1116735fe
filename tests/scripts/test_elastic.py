"""A run goes on with other replicas, after a kill, and after a disk was full at any file."""

import json
import os
import pathlib
import re
import signal
import sys

import numpy as np
import pytest
from helpers import warm
from helpers.cluster import workers
from helpers.pretraining_runs import command, run, values, write_inputs
from helpers.scenarios import SCENARIOS, SEVERAL_WORKERS, TWO_REPLICAS
from helpers.script_cases import command_of, weights_of
from helpers.slow import slow

from bert_tf.store.bundle import latest_checkpoint
from bert_tf.training import loop

STEPS = 20


def assert_same(found, expected, tolerance):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if "key/bias" not in name:  # its true gradient is 0, and Adam makes steps of its rounding
            np.testing.assert_allclose(found[name], value, rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.slow  # in small: test_equal_steps.py's replicas, and test_dropout.py's parts of a batch
def test_killed_on_two_replicas_gone_on_with_four_and_ended_on_one_in_four_parts(tmp_path):
    script, flags = SCENARIOS["pretraining on packed rows"](tmp_path)
    flags |= {"num_train_steps": STEPS, "save_checkpoints_steps": 2, "keep_checkpoint_max": 0, "do_eval": False}
    folder = tmp_path / "lr=[1e-4]? {a,b} ü"
    elastic = {**flags, "output_dir": folder}
    warm.kill_after_rename(folder / "model.ckpt-6.index", command_of(script, {**elastic, **TWO_REPLICAS}))
    for given, line in (
        (flags, "starting from random weights"),
        ({**elastic, **TWO_REPLICAS, "num_virtual_cpus": 4, "stop_at_step": 14}, "Resuming at step"),
        ({**elastic, "gradient_accumulation_steps": 4}, "Resuming at step 14"),
    ):
        assert line in run(command_of(script, given))
    expected, found = weights_of(tmp_path / "out"), weights_of(folder)
    assert expected["global_step"] == found["global_step"] == STEPS
    assert_same(found, expected, 1e-5)


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
    assert_same(values(tmp_path / "out", 9), values(tmp_path / "one", 9), 1e-6)


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


def outputs(folder: pathlib.Path) -> set[str]:
    """What is in a folder; each start has files for TensorBoard of its own."""
    files = (str(path.relative_to(folder)) for path in folder.rglob("*"))
    return {path for path in files if "events.out.tfevents" not in path}


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


# A limit on the size of files simulates a full disk.
_LIMITED = """
import resource, runpy, sys
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# run_ner.py and run_swag.py write with the code of run_classifier.py.
CASES = ("one file", "pretraining", "classifier", "squad", "conversion", "export", "features")
SHORT = {"num_train_epochs": 1, "num_train_steps": 2, "num_warmup_steps": 1, "eval_every_steps": None}
# What may be named: an output, the scratch directory, the folder of XLA's programs that all tests share (of their own
# such folder, scripts check the room before).
NAMED = ("/limited/", "--scratch_dir", "/xla_compile_cache")


def run_limited(arguments: list[str], limit: int) -> tuple[str, int]:
    """Runs a script while no file can be longer than this; returns what it wrote to stderr, and its exit code."""
    # Without a cache of XLA's programs: the limit is meant for outputs.
    environment = {**os.environ, "BERT_TF_COMPILED": ""}
    command = [sys.executable, "-c", _LIMITED, str(limit), *arguments]
    reader, writer = map(open, os.pipe(), "rw")  # a pipe, which has no size
    with reader:
        with writer:
            process = warm.Popen(command, stdout=warm.DEVNULL, stderr=writer, env=environment)
        return reader.read(), process.wait()


@pytest.mark.parametrize("case", ["vocabulary", *slow(*CASES)])
def test_a_full_disk_is_one_line(case, tmp_path):
    folders = [tmp_path / name for name in ("whole", "limited")]
    commands, before = [], []
    for folder in folders:
        (folder / "out").mkdir(parents=True)
        script, flags = SCENARIOS[case](folder)
        flags = {flag: SHORT.get(flag, value) for flag, value in flags.items()}
        flags = {flag: value for flag, value in flags.items() if value is not None}
        commands.append(command_of(script, flags)[1:])
        before.append(outputs(folder))
    log, code = run_limited(commands[0], 1 << 30)
    assert code == 0, log[-3000:]
    written = {folders[0] / path for path in outputs(folders[0]) - before[0]}
    sizes = sorted({path.stat().st_size for path in written if path.is_file()}, reverse=True)
    wrong = []
    for size in sizes:
        log, code = run_limited(commands[1], size - 1)
        last = log.strip().split("\n")[-1]
        named = any(name in last for name in NAMED)
        left = [path for path in outputs(folders[1]) if path.endswith((".tmp", ".writing", ".lock"))]
        if code == 0 or "Traceback" in log or not named or left:
            wrong.append((size, code, "Traceback" in log, left, last[-400:]))
    assert not wrong, "\n".join(map(str, [len(sizes), *wrong]))
    log, code = run_limited(commands[1], 1 << 30)
    assert code == 0, log[-3000:]
    assert outputs(folders[1]) - before[1] == outputs(folders[0]) - before[0]

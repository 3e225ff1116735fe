"""run_pretraining.py as users run it: resuming after any end, two phases, bad input."""

import json
import signal

import numpy as np
import pytest
from helpers.events import after_rename, run_that
from helpers.pretraining_runs import STEPS, assert_bit_identical, command, flags_of, run, values
from helpers.script_cases import arguments_of, assert_in_order, run_cases
from helpers.tiny import ONE_LAYER, write_pretraining_records

from bert_tf.training import checkpoints


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "bert_config.json").write_text(json.dumps(ONE_LAYER))
    for number, count in enumerate((70, 45)):
        write_pretraining_records(folder / f"train-{number}.tfrecord", count, seed=number)
    write_pretraining_records(folder / "heldout.tfrecord", 21, seed=9)
    return folder


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """An undisturbed run, with evaluation on held-out records at its end: its folder, and what it wrote to stderr."""
    output_dir = tmp_path_factory.mktemp("finished")
    return output_dir, run(command(data, output_dir, do_eval=True, eval_input_file=f"{data}/heldout.tfrecord"))


def test_a_run_says_what_it_decided_and_writes_its_files(finished):
    output_dir, log = finished
    assert "starting from random weights" in log and "115 records in 2 files" in log
    lines = (output_dir / "eval_results.txt").read_text().splitlines()
    keys = [line.split(" = ")[0] for line in lines]
    metrics = [f"{task}_{metric}" for task in ("masked_lm", "next_sentence") for metric in ("accuracy", "loss")]
    assert keys == ["global_step", "loss", *metrics] and lines[0] == f"global_step = {STEPS}"
    kept = {path.name for path in output_dir.glob("model.ckpt-*.index")}
    assert kept == {f"model.ckpt-{step}.index" for step in (20, 30, 40, 50, 60)}
    assert json.loads((output_dir / "bert_config.json").read_text()) == ONE_LAYER


def test_run_that_is_killed_resumes_bit_for_bit(finished, data, tmp_path):
    output_dir, _ = finished
    # Killed when the next checkpoint is there, but not yet named.
    kill = after_rename(tmp_path / "model.ckpt-20.index", "os.kill(os.getpid(), signal.SIGKILL)")
    assert run_that(kill, "run_pretraining", arguments_of(flags_of(data, tmp_path))).wait() == -signal.SIGKILL
    # Half-written files after the kill must do no harm.
    (tmp_path / "model.ckpt-999.writing").mkdir()
    assert "Resuming at step 10" in run(command(data, tmp_path))
    assert_bit_identical(values(output_dir), values(tmp_path))


def test_finished_run_started_again_only_evaluates(finished, data):
    output_dir, _ = finished
    before = values(output_dir)
    log = run(command(data, output_dir, do_eval=True, max_eval_steps=2, init_checkpoint="elsewhere"))
    assert f"Nothing to train: step {STEPS}" in log and "so --init_checkpoint=elsewhere is not used" in log
    assert_bit_identical(before, values(output_dir))


@pytest.mark.slow  # in small: the resumed run above, and test_optimization.py
def test_short_sequences_then_long_ones_are_one_run_with_one_schedule(data, tmp_path):
    for length in (16, 32):
        write_pretraining_records(tmp_path / f"{length}.tfrecord", 40, max_seq_length=length, seed=length)
    shared = {"num_train_steps": 5, "num_warmup_steps": 2, "log_every_steps": 1, "gradient_accumulation_steps": 2}
    short = {"input_file": tmp_path / "16.tfrecord", "stop_at_step": 4, **shared}
    long = {"input_file": tmp_path / "32.tfrecord", "max_seq_length": 32, **shared}
    folder = tmp_path / "run"
    cases = {"short": flags_of(data, folder, **short), "long": flags_of(data, folder, **long)}
    outcomes, logs = run_cases("run_pretraining", {**cases, "short again": cases["short"]})
    assert set(outcomes.values()) == {"done"}, outcomes
    assert "Resuming at step 4" in logs["long"]
    assert "max_seq_length 16 -> 32" in logs["long"] and "stop_at_step" not in logs["long"].split("Not as in")[1]
    assert "Nothing to train: step 5 is reached, and the run ends at step 4" in logs["short again"]
    lines = [json.loads(line) for line in (folder / "train_log.jsonl").read_text().splitlines()]
    # The original's: warm-up from 0, then the line from the peak at step 0; the log has the rate of the next update.
    rates = [line["learning_rate"] for line in lines if line["kind"] == "train"]
    assert rates == pytest.approx([1e-3 * (step / 2 if step < 2 else 1 - step / 5) for step in range(1, 6)], abs=1e-9)
    # Positions that only long sequences have begin to learn.
    before, after = (values(folder, step)["bert/embeddings/position_embeddings/adam_m"] for step in (4, 5))
    assert not before[16:].any() and (after[16:32] != 0).any(axis=1).all()


def cases_of(data, folder) -> dict:
    from bert_tf.families.distilbert import DistilBertConfig

    write_pretraining_records(folder / "odd.tfrecord", 40, mask_of_last=2)
    damaged = bytearray((folder / "odd.tfrecord").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (folder / "damaged.tfrecord").write_bytes(bytes(damaged))
    DistilBertConfig(100).save(str(folder / "distilbert_config.json"))
    checkpoints.save(str(folder), 3, {"bert/pooler/dense/bias": np.full(32, np.nan, "float32")})
    return {
        "other predictions": ({"max_predictions_per_seq": 4}, "train-0.tfrecord*3*4*max_predictions_per_seq"),
        "another family": ({"nsp": True, "bert_config_file": folder / "distilbert_config.json"},
                           "--nsp needs a model with a pooler*distilbert_config.json is that of DistilBERT"),
        "NaN in a checkpoint": ({"init_checkpoint": folder / "model.ckpt-3"},
                                "model.ckpt-3: bert/pooler/dense/bias has NaN or infinite values"),
        "a value out of range": ({"input_file": folder / "odd.tfrecord", "train_batch_size": 40},
                                 "--input_file: *odd.tfrecord: record 39 (at byte*has 2 in feature 'input_mask', exp"),
        "a flipped bit": ({"input_file": folder / "damaged.tfrecord"},
                          "--input_file: *damaged.tfrecord: record *is damaged or cut off*"),
    }  # fmt: skip


def test_bad_input_is_named(data, tmp_path):
    cases = cases_of(data, tmp_path)
    flags = {
        name: {key: str(value) for key, value in flags_of(data, tmp_path / name).items()} | change
        for name, (change, _) in cases.items()
    }
    outcomes, _ = run_cases("run_pretraining", flags)
    for name, (_, message) in cases.items():
        assert_in_order(message, outcomes[name])
        assert "Error: " in outcomes[name] and not list((tmp_path / name).glob("model.ckpt-*")), outcomes[name]

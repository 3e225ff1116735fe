"""run_pretraining.py as users run it: resuming after any end, several devices, bad input."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from helpers.events import after_rename, run_that
from helpers.paths import ROOT
from helpers.pretraining_runs import STEPS, assert_bit_identical, command, flags_of, run, two_workers, values
from helpers.script_cases import arguments_of, run_cases, selected_cases
from helpers.slow import slow
from helpers.tiny import ONE_LAYER, write_pretraining_records


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "bert_config.json").write_text(json.dumps(ONE_LAYER))
    for number, count in enumerate((70, 45)):
        write_pretraining_records(folder / f"train-{number}.tfrecord", count, seed=number)
    write_pretraining_records(folder / "heldout.tfrecord", 21, seed=9)
    return folder


_TERMINATED_AT_ITS_FIRST_LINE = """
from bert_tf.training.log import TrainingLog
write = TrainingLog.write
def write_and_terminate(*arguments):
    write(*arguments)
    os.kill(os.getpid(), signal.SIGTERM)
TrainingLog.write = write_and_terminate
"""

DEVICES = {
    "one_device": {},
    "mirrored": {"distribution_strategy": "mirrored", "num_virtual_cpus": 2},
}


@pytest.fixture(scope="module", params=["one_device", *slow("mirrored")])
def finished(request, data, tmp_path_factory):
    """An undisturbed run, with evaluation on held-out records at its end."""
    output_dir = tmp_path_factory.mktemp(request.param)
    extra = {**DEVICES[request.param], "do_eval": True, "eval_input_file": f"{data}/heldout.tfrecord"}
    result = run(command(data, output_dir, **extra))
    assert result.returncode == 0, result.stderr[-3000:]
    return DEVICES[request.param], output_dir, result.stderr


def test_a_run_says_what_it_decided_and_writes_its_files(finished):
    _, output_dir, log = finished
    assert "starting from random weights" in log
    assert "115 records in 2 files" in log
    lines = (output_dir / "eval_results.txt").read_text().splitlines()
    keys = [line.split(" = ")[0] for line in lines]
    assert keys == [
        "global_step",
        "loss",
        "masked_lm_accuracy",
        "masked_lm_loss",
        "next_sentence_accuracy",
        "next_sentence_loss",
    ]
    assert lines[0] == f"global_step = {STEPS}"
    kept = {path.name for path in output_dir.glob("model.ckpt-*.index")}
    assert kept == {f"model.ckpt-{step}.index" for step in (20, 30, 40, 50, 60)}
    assert json.loads((output_dir / "bert_config.json").read_text()) == ONE_LAYER


def test_run_that_is_stopped_and_killed_resumes_bit_for_bit(finished, data, tmp_path):
    devices, output_dir, _ = finished
    # No checkpoint is due before the end: the one found there was saved on the signal.
    arguments = arguments_of(flags_of(data, tmp_path, **devices, save_checkpoints_steps=1000, log_every_steps=1))
    assert run_that(_TERMINATED_AT_ITS_FIRST_LINE, "run_pretraining", arguments).wait() == 143
    step = int((tmp_path / "checkpoint").read_text().split('"')[1].rsplit("-", 1)[1])
    # All workers agreed on the end of step 1 before its line was written, so they stop together after the next one.
    assert step == 2
    saved = [int(path.stem.rsplit("-", 1)[1]) for path in tmp_path.glob("model.ckpt-*.index")]
    assert sorted(saved) == sorted({0, step})
    # Killed when the next checkpoint is there, but not yet named.
    kill = after_rename(tmp_path / f"model.ckpt-{10 * (step // 10 + 1)}.index", "os.kill(os.getpid(), signal.SIGKILL)")
    again = flags_of(data, tmp_path, **devices)
    assert run_that(kill, "run_pretraining", arguments_of(again)).wait() == -signal.SIGKILL
    # Half-written files after the kill must do no harm.
    (tmp_path / "model.ckpt-999.writing").mkdir()
    result = run(command(data, tmp_path, **devices))
    assert result.returncode == 0, result.stderr[-3000:]
    assert f"Resuming at step {step}" in result.stderr
    assert_bit_identical(values(output_dir), values(tmp_path))


@pytest.mark.parametrize("finished", ["one_device", *slow("mirrored")], indirect=True)
def test_finished_run_started_again_only_evaluates(finished, data):
    devices, output_dir, _ = finished
    before = values(output_dir)
    result = run(command(data, output_dir, **devices, do_eval=True, max_eval_steps=2, init_checkpoint="elsewhere"))
    assert result.returncode == 0, result.stderr[-3000:]
    assert f"Nothing to train: step {STEPS}" in result.stderr
    assert "so --init_checkpoint=elsewhere is not used" in result.stderr
    assert_bit_identical(before, values(output_dir))


@pytest.mark.slow
def test_full_disk_leaves_the_previous_checkpoint_valid(data, tmp_path):
    arguments = command(data, tmp_path, num_train_steps=20)
    assert run(arguments).returncode == 0
    # A limit on file sizes simulates a full disk.
    limit = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)); "
    limit += "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    longer = command(data, tmp_path, num_train_steps=40)
    # Without a cache of XLA's programs: the limit is meant for checkpoints.
    environment = {**os.environ, "TF_XLA_FLAGS": "", "BERT_TF_COMPILED": ""}
    result = subprocess.run([longer[0], "-c", limit, *longer[1:]], capture_output=True, text=True, env=environment)
    assert result.returncode != 0
    assert "model.ckpt-30 could not be written" in result.stderr, result.stderr[-3000:]
    assert "checkpoints before it are untouched" in result.stderr
    assert not list(tmp_path.glob("model.ckpt-30*"))
    again = run(longer)
    assert again.returncode == 0, again.stderr[-3000:]
    assert "Resuming at step 20 from" in again.stderr
    assert values(tmp_path, 40)["global_step"] == 40


@pytest.mark.slow
def test_two_workers_equal_two_replicas_of_one(data, tmp_path):
    """Two processes in one cluster: the first writes the files, and the weights are those of two local replicas."""
    flags = {"num_train_steps": 10, "do_eval": True, "eval_input_file": f"{data}/heldout.tfrecord", "max_eval_steps": 9}
    local = run(command(data, tmp_path / "local", distribution_strategy="mirrored", num_virtual_cpus=2, **flags))
    assert local.returncode == 0, local.stderr[-3000:]
    arguments = command(data, tmp_path / "cluster", distribution_strategy="multi_worker_mirrored", **flags)
    with two_workers(arguments, tmp_path) as processes:
        codes = [process.wait() for process in processes]
    assert codes == [0, 0], (tmp_path / "worker-0.log").read_text()[-3000:]
    expected, actual = values(tmp_path / "local", 10), values(tmp_path / "cluster", 10)
    assert expected.keys() == actual.keys()
    for name, value in expected.items():
        allowed = 1e-2 if "key/bias" in name else 1e-5
        np.testing.assert_allclose(actual[name], value, rtol=0, atol=allowed, err_msg=name)
    assert "Saved" in (tmp_path / "worker-0.log").read_text()
    assert "Saved" not in (tmp_path / "worker-1.log").read_text()

    def results(name):
        lines = (tmp_path / name / "eval_results.txt").read_text().splitlines()
        return {key: float(value) for key, value in (line.split(" = ") for line in lines)}

    assert results("cluster") == pytest.approx(results("local"), abs=1e-4)


# --- bad input: every case in one process, each with a fresh set of flags ---------------------------------------------


DONE = {"float16", "everything", "misspelt key and corrupt record allowed"}  # odd flags that are not refused; slow


@pytest.fixture(scope="module")
def errors(request, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    whole = (data / "train-0.tfrecord").read_bytes()
    (folder / "truncated.tfrecord").write_bytes(whole[:-10])
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    (folder / "corrupt.tfrecord").write_bytes(bytes(damaged))
    write_pretraining_records(folder / "long.tfrecord", 5, max_seq_length=24)
    (folder / "empty.tfrecord").write_bytes(b"")
    (folder / "other_run").mkdir()
    (folder / "other_run" / "bert_config.json").write_text(json.dumps({**ONE_LAYER, "hidden_size": 64}))
    (folder / "small_vocabulary.json").write_text(json.dumps({**ONE_LAYER, "vocab_size": 50}))
    (folder / "unknown.json").write_text(json.dumps({**ONE_LAYER, "hiden_size": 64}))
    from bert_tf.models.distilbert.config import DistilBertConfig
    from bert_tf.training import checkpoints

    DistilBertConfig(100).save(str(folder / "distilbert_config.json"))
    checkpoints.save(str(folder / "other_run"), 7, {"global_step": np.int64(7)})
    checkpoints.save(str(folder), 1, {"bert/pooler/dense/kernel": np.zeros((3, 3), "float32")})
    checkpoints.save(str(folder), 2, {"something/else": np.zeros(3, "float32")})
    checkpoints.save(str(folder), 3, {"bert/pooler/dense/bias": np.full(32, np.nan, "float32")})
    write_pretraining_records(folder / "odd.tfrecord", 40, mask_of_last=2)
    changes = {
        "nothing to do": {"do_train": False},
        "nothing to evaluate": {"do_train": False, "do_eval": True},
        "no such input": {"input_file": f"{folder}/none-*.tfrecord"},
        "truncated": {"input_file": f"{folder}/truncated.tfrecord"},
        "corrupt": {"input_file": f"{folder}/corrupt.tfrecord"},
        "empty": {"input_file": f"{folder}/empty.tfrecord"},
        "other length": {"input_file": f"{folder}/long.tfrecord"},
        "other predictions": {"max_predictions_per_seq": 4},
        "too long": {"max_seq_length": 64},
        "small vocabulary": {"bert_config_file": f"{folder}/small_vocabulary.json"},
        "other run": {"output_dir": f"{folder}/other_run"},
        "misspelt key": {"bert_config_file": f"{folder}/unknown.json"},
        "no config": {"bert_config_file": f"{folder}/none.json"},
        "another family": {"nsp": True, "bert_config_file": f"{folder}/distilbert_config.json"},
        "no checkpoint": {"init_checkpoint": f"{folder}/none.ckpt"},
        "wrong shape": {"init_checkpoint": f"{folder}/model.ckpt-1"},
        "nothing matches": {"init_checkpoint": f"{folder}/model.ckpt-2"},
        "NaN in a checkpoint": {"init_checkpoint": f"{folder}/model.ckpt-3"},
        "a value out of range": {"input_file": f"{folder}/odd.tfrecord", "train_batch_size": 40},
        "batch": {"train_batch_size": 9, "gradient_accumulation_steps": 2},
        "no steps": {"num_train_steps": 0},
        "float16": {"dtype": "float16", "num_train_steps": 3},
        "everything": {
            "dtype": "bfloat16",
            "optimizer": "lamb",
            "use_xla": True,
            "gradient_accumulation_steps": 2,
            "num_train_steps": 3,
            "iterations_per_loop": 2,
            "eval_every_steps": 2,
            "do_eval": True,
            "max_eval_steps": 2,
        },
        "misspelt key and corrupt record allowed": {
            "bert_config_file": f"{folder}/unknown.json",
            "allow_unknown_config_keys": True,
            "input_file": f"{folder}/corrupt.tfrecord",
            "skip_corrupt_records": True,
            "num_train_steps": 1,
        },
    }
    cases = {
        name: flags_of(data, **{"output_dir": folder / name, "deterministic": False, **change})
        for name, change in selected_cases(request, changes, DONE).items()
    }
    return folder, run_cases("run_pretraining", cases)[0]


@pytest.mark.parametrize(
    ("case", "parts"),
    [
        ("nothing to do", ["ValueError", "--do_train"]),
        ("nothing to evaluate", ["ValueError", "--output_dir", "--init_checkpoint"]),
        ("no such input", ["--input_file", "none-*.tfrecord"]),
        ("truncated", ["truncated.tfrecord", "record 69", "byte"]),
        ("corrupt", ["corrupt.tfrecord", "byte", "--skip_corrupt_records"]),
        ("empty", ["--input_file", "empty.tfrecord is empty"]),
        ("other length", ["long.tfrecord", "24", "16", "max_seq_length"]),
        ("other predictions", ["train-0.tfrecord", "3", "4", "max_predictions_per_seq"]),
        ("too long", ["--max_seq_length=64", "max_position_embeddings=32"]),
        (
            "small vocabulary",
            [
                "train-0.tfrecord: the first record",
                "'input_ids', expected 0 to 49 (vocab_size=50",
                "small_vocabulary.json: ",
            ],
        ),
        ("other run", ["--output_dir", "hidden_size: 64 there, 32 now"]),
        ("misspelt key", ["unknown.json", "hiden_size"]),
        ("no config", ["none.json"]),
        ("another family", ["--nsp needs a model with a pooler", "distilbert_config.json is that of DistilBERT"]),
        ("no checkpoint", ["--init_checkpoint", "none.ckpt"]),
        ("wrong shape", ["model.ckpt-1", "bert/pooler/dense/kernel: [3, 3] in the checkpoint, [32, 32] in the model"]),
        ("nothing matches", ["model.ckpt-2", "something/else", "random weights"]),
        ("NaN in a checkpoint", ["model.ckpt-3: bert/pooler/dense/bias has NaN or infinite values"]),
        ("a value out of range", ["odd.tfrecord: record 39 (byte", "has 2 in feature 'input_mask', expected 0 to 1"]),
        ("batch", ["--train_batch_size=9", "--gradient_accumulation_steps=2"]),
        ("no steps", ["--num_train_steps=0"]),
        *slow(*((case, ["done"]) for case in sorted(DONE))),
    ],
)
def test_bad_input_is_named(errors, case, parts):
    folder, outcomes = errors
    for part in parts:
        assert part in outcomes[case], outcomes[case]
    if outcomes[case] != "done":
        assert not list((folder / case).glob("model.ckpt-*"))
        assert not (folder / case / "bert_config.json").exists() or "checkpoint" in outcomes[case]


# --- answered at once: TensorFlow can't be imported here --------------------------------------------------------------

WITHOUT_TENSORFLOW = "import runpy, sys; sys.modules['tensorflow'] = None; sys.argv = sys.argv[1:]; "
WITHOUT_TENSORFLOW += "runpy.run_path(sys.argv[0], run_name='__main__')"


@pytest.mark.parametrize(
    ("script", "change", "message"),
    [
        ("run_pretraining", {"do_train": False}, "Nothing to do: give --do_train, --do_eval or both."),
        ("run_pretraining", {"num_train_steps": 0}, "--num_train_steps=0 must be positive."),
        ("run_pretraining", {"lr_decay_power": 0.0}, "--lr_decay_power=0 must be more than 0."),
        ("run_pretraining", {"lr_decay_power": "nan"}, "--lr_decay_power=nan must be a finite number."),
        ("run_pretraining", {"num_warmup_steps": -1}, "--num_warmup_steps=-1 must be from 0 to --num_train_steps=1000"),
        ("run_pretraining", {"num_train_steps": 5, "num_warmup_steps": 6}, "--num_warmup_steps=6 must be from 0 to "),
        ("run_pretraining", {"learning_rate": -1e-4}, "--learning_rate=-0.0001 must be from 0 to 1."),
        ("run_pretraining", {"learning_rate": 1e4}, "--learning_rate=10000 must be from 0 to 1."),
        ("run_pretraining", {"output_dir": None}, "--output_dir is empty: did the command that should have printed"),
        ("run_pretraining", {"num_train_steps": "x"}, "flag --num_train_steps=x: invalid literal"),
        ("run_pretraining", {"input_file": "none*"}, "--input_file: no file matches 'none*'"),
        ("run_pretraining", {"eval_input_file": "none"}, "--eval_input_file: no file matches 'none'"),
        ("run_pretraining", {"bert_config_file": "none"}, "--bert_config_file=none: there is no such file."),
        ("run_pretraining", {"bert_config_file": ""}, "Give --bert_config_file, or --init_checkpoint with a "),
        ("run_pretraining", {"bert_size": "tiny"}, "--bert_size=tiny and --bert_config_file="),
        ("run_pretraining", {"bert_size": "huge", "bert_config_file": ""}, "--bert_size=huge is not one of tiny, "),
        ("run_pretraining", {"vocab_file": "none"}, "--vocab_file=none: there is no such file."),
        ("run_pretraining", {"mask_rate": 0.5}, "--mask_rate=0.5, --random_rate=0.1, --keep_rate=0.1 must add up"),
        (
            "run_pretraining",
            {"objective": "ltr", "mask_rate": 1.0, "random_rate": 0.0, "keep_rate": 0.0},
            "--mask_rate is",
        ),
        ("run_pretraining", {"output_dir": f"{ROOT}/README.md/x"}, "--output_dir="),
        ("create_pretraining_data", {"input_file": "none"}, "--input_file: no file matches 'none'"),
        ("create_pretraining_data", {"vocab_file": "none"}, "--vocab_file=none: there is no such file."),
        ("create_pretraining_data", {"output_file": str(ROOT)}, f"--output_file={ROOT} is a directory; name a file in"),
        ("create_pretraining_data", {"output_file": f"{ROOT}/README.md/x"}, "--output_file="),
        ("create_pretraining_data", {"masked_lm_prob": 2}, "--masked_lm_prob=2.0 must be a probability above 0"),
        ("create_pretraining_data", {"dupe_factor": 0}, "--dupe_factor=0 must be at least 1"),
        ("create_pretraining_data", {"pack_sequences": True}, "--pack_sequences needs --masking=dynamic"),
        (
            "create_pretraining_data",
            {"masking": "dynamic", "keep_rate": 0, "mask_rate": 0.9},
            "--masked_lm_prob, --mask_rate",
        ),
        ("create_vocab", {"input_file": "none"}, "--input_file: no file matches 'none'"),
        ("create_vocab", {"output_file": str(ROOT)}, f"--output_file={ROOT} is a directory"),
    ],
)
def test_bad_flags_are_answered_before_tensorflow_is_imported(data, tmp_path, script, change, message):
    text, vocab = ROOT / "sample_text.txt", ROOT / "tests" / "golden" / "vocab.txt"
    good = {
        "run_pretraining": {
            "input_file": f"{data}/train-*.tfrecord", "output_dir": tmp_path / "out", "do_train": True,
            "bert_config_file": f"{data}/bert_config.json",
        },
        "create_pretraining_data": {"input_file": text, "output_file": tmp_path / "out", "vocab_file": vocab},
        "create_vocab": {"input_file": text, "output_file": tmp_path / "out"},
    }[script]  # fmt: skip
    given = {name: "" if value is None else value for name, value in {**good, **change}.items() if value != ""}
    flags = arguments_of(given)
    command = [sys.executable, "-c", WITHOUT_TENSORFLOW, str(ROOT / f"{script}.py"), *flags]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"{script}.py: error: {message}"), line
    assert not list(tmp_path.iterdir())

"""The demo in its small form, as `make demo` runs it: every file is there, and the model learned something."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]


def demo(output_dir, *arguments):
    command = [sys.executable, "-m", "demo", f"--output_dir={output_dir}", "--quick", *arguments]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_demo_makes_its_files_and_learns(tmp_path):
    result = demo(tmp_path / "out")
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-3000:]
    for script in ("create_vocab.py", "create_pretraining_data.py", "run_pretraining.py"):
        assert script in result.stdout  # the user sees the commands
    for name in ("vocab.txt", "train.tfrecord", "heldout.tfrecord", "model/eval_results.txt", "results.json"):
        assert (tmp_path / "out" / name).exists(), name
    assert (tmp_path / "out" / "loss_curve.png").read_bytes().startswith(b"\x89PNG")
    log = [json.loads(line) for line in (tmp_path / "out" / "model" / "train_log.jsonl").read_text().splitlines()]
    losses = [line["masked_lm_loss"] for line in log if line["kind"] == "eval"]
    assert len(losses) >= 2
    # Random weights start at ln(1500) = 7.3.
    assert losses[-1] < losses[0] < 7.2
    assert losses[-1] < 6.2
    assert "[MASK]" in result.stdout


def test_demo_says_what_is_wrong_with_the_text(tmp_path):
    missing = demo(tmp_path / "out", f"--text={tmp_path}/nothing-*.txt")
    assert missing.returncode != 0
    assert "nothing-*.txt" in missing.stdout + missing.stderr
    (tmp_path / "short.txt").write_text("One sentence.\n\nAnd another.\n")
    short = demo(tmp_path / "out", f"--text={tmp_path}/short.txt")
    assert short.returncode != 0
    assert "too little text" in short.stdout + short.stderr
    assert not (tmp_path / "out" / "train.tfrecord").exists()

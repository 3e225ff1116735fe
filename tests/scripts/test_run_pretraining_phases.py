"""The paper's recipe in small: short sequences, then long ones, as one run with one schedule."""

import json

import numpy as np
import pytest
from helpers.pretraining_runs import flags_of, values
from helpers.script_cases import run_cases
from helpers.tiny import ONE_LAYER, write_pretraining_records

pytestmark = pytest.mark.slow  # in small: the resumed run of test_run_pretraining.py

SHORT, LAST = 9, 10
SCHEDULE = {"num_train_steps": LAST, "num_warmup_steps": 2, "learning_rate": 1e-3, "log_every_steps": 1}


@pytest.fixture(scope="module")
def phases(tmp_path_factory):
    """The pair of commands, the first once more, and a wrong one: (directory of the run, outcomes, stderr)."""
    folder = tmp_path_factory.mktemp("phases")
    (folder / "bert_config.json").write_text(json.dumps(ONE_LAYER))
    for length in (16, 32):
        write_pretraining_records(folder / f"{length}.tfrecord", 40, max_seq_length=length, seed=length)
    shared = {**SCHEDULE, "gradient_accumulation_steps": 2}
    short = {"input_file": folder / "16.tfrecord", "max_seq_length": 16, "stop_at_step": SHORT, **shared}
    long = {"input_file": folder / "32.tfrecord", "max_seq_length": 32, **shared}
    output_dir = folder / "run"
    cases = {
        "short": flags_of(folder, output_dir, **short),
        "long": flags_of(folder, output_dir, **long),
        "short again": flags_of(folder, output_dir, **short),
        "too late": flags_of(folder, folder / "none", **short | {"stop_at_step": LAST + 1}),
    }
    outcomes, errors = run_cases("run_pretraining", cases)
    assert not (folder / "none").exists()
    return output_dir, outcomes, errors


def log_of(output_dir) -> list[dict]:
    lines = [json.loads(line) for line in (output_dir / "train_log.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "train"]


def test_the_second_command_goes_on_where_the_first_stopped(phases):
    output_dir, outcomes, errors = phases
    assert outcomes["short"] == outcomes["long"] == outcomes["short again"] == "done", errors
    assert [line["step"] for line in log_of(output_dir)] == list(range(1, LAST + 1))
    assert f"Resuming at step {SHORT}" in errors["long"]
    assert "max_seq_length 16 -> 32" in errors["long"] and "stop_at_step" not in errors["long"].split("Not as in")[1]
    assert f"Nothing to train: step {LAST} of --stop_at_step={SHORT} is reached" in errors["short again"]
    settings = json.loads((output_dir / "run.json").read_text())
    assert settings["max_seq_length"] == 32
    assert outcomes["too late"].startswith("ValueError: --stop_at_step=11 must be from 1 to --num_train_steps=10")


def test_the_learning_rate_is_one_schedule_over_both(phases):
    """The original's: warm-up from 0, then the line from the peak at step 0 to zero at the last step of all."""
    rates = [line["learning_rate"] for line in log_of(phases[0])]
    # The log of step n has the rate of the next update.
    expected = [1e-3 * (step / 2 if step < 2 else 1 - step / LAST) for step in range(1, LAST + 1)]
    np.testing.assert_allclose(rates, expected, rtol=1e-5, atol=1e-10)


def test_the_second_phase_keeps_weights_and_moments(phases):
    """The first step on long sequences is Adam's update of what the short ones left, with its rate of 1e-4."""
    output_dir = phases[0]
    before, after = values(output_dir, SHORT), values(output_dir, LAST)
    names = [name.removesuffix("/adam_m") for name in before if name.endswith("/adam_m")]
    squares = 0.0
    for name in names:
        moment, square = after[f"{name}/adam_m"], after[f"{name}/adam_v"]
        gradient = (moment - 0.9 * before[f"{name}/adam_m"]) / 0.1
        squares += float(np.sum(np.square(gradient, dtype=np.float64)))
        expected = 0.999 * before[f"{name}/adam_v"] + 0.001 * np.square(gradient)
        np.testing.assert_allclose(square, expected, rtol=1e-3, atol=1e-9, err_msg=name)
        decayed = not ("LayerNorm" in name or "layer_norm" in name or name.endswith("bias"))
        update = moment / (np.sqrt(square) + 1e-6) + 0.01 * decayed * before[name]
        np.testing.assert_allclose(after[name], before[name] - 1e-4 * update, rtol=1e-5, atol=1e-7, err_msg=name)
    # What was added to the moments is the clipped gradient: with moments that began anew this norm would be another.
    norm = log_of(output_dir)[-1]["gradient_norm"]
    assert np.sqrt(squares) == pytest.approx(min(norm, 1.0), rel=0.02)
    # Positions that only long sequences have begin to learn.
    positions = "bert/embeddings/position_embeddings/adam_m"
    assert not np.any(before[positions][16:]) and np.all(np.any(after[positions][16:32] != 0, axis=1))

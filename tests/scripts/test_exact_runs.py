"""Runs that are killed leave the files of undisturbed ones, bit for bit; runs cut in other ways take the same steps."""

import kill_campaign
import numpy as np
import pytest
from helpers.cluster import workers
from helpers.pretraining_runs import run
from helpers.scenarios import FINE_TUNING, PRETRAINING, SCENARIOS, SEVERAL_WORKERS, TWO_REPLICAS
from helpers.script_cases import command_of, results_of, run_cases, weights_of
from helpers.slow import exhaustive, slow

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


def assert_same_steps(one, other, tolerance) -> None:
    """Weights at two paths are equal but for rounding, and moments are not those of the beginning."""
    one, other = weights_of(one), weights_of(other)
    assert one.keys() == other.keys() and one["global_step"] == other["global_step"]
    assert any(name.endswith("adam_m") and value.any() for name, value in one.items())
    for name, value in one.items():
        # The true gradient of a key bias is 0, and Adam makes steps of its rounding.
        if "key/bias" not in name and "adam" not in name:
            np.testing.assert_allclose(other[name], value, rtol=1e-3, atol=tolerance, err_msg=name)


CUT = [name for name in (*FINE_TUNING, *PRETRAINING) if name not in CUT_ALIKE]


# In small: training/test_equal_steps.py, training/test_recipes.py.
@pytest.mark.parametrize("name", [*slow(*CUT), *exhaustive(*sorted(CUT_ALIKE))])
def test_two_replicas_take_the_steps_of_two_parts_of_a_batch(name, tmp_path):
    """With dropout, whose masks follow the place in the batch."""
    script, flags = SCENARIOS[name](tmp_path)
    flags |= {"num_train_epochs": 1, "do_predict": False} if name in FINE_TUNING else {"num_train_steps": 4}
    flags |= {"num_warmup_steps": 1} if name in PRETRAINING else {}
    flags |= {"num_virtual_cpus": 2, "do_eval": False}
    cases = {"parts": {"gradient_accumulation_steps": 2}, "replicas": TWO_REPLICAS}
    cases = {case: {**flags, **own, "output_dir": tmp_path / case} for case, own in cases.items()}
    outcomes, logs = run_cases(script, cases)
    assert outcomes == dict.fromkeys(cases, "done"), logs
    assert "replicas: 2" in logs["replicas"]
    assert_same_steps(tmp_path / "parts", tmp_path / "replicas", 1e-3 if name in FINE_TUNING else 5e-5)


@pytest.mark.slow
def test_two_workers_take_the_steps_of_two_replicas(tmp_path):
    """Of pre-training test_elastic.py shows it."""
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

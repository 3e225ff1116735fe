"""Runs of --search: each combination in its own folder, not trained again, the best one kept."""

import json

import numpy as np
import pytest
from helpers.scenarios import fine_tuning_flags
from helpers.script_cases import results_of, run_and_refuse, weights_of

pytestmark = pytest.mark.slow  # in small: tasks/test_script.py, training/test_search.py

GRID = "learning_rate=1e-3,3e-3;train_batch_size=16"
FOLDERS = [f"search-learning_rate={rate}-train_batch_size=16" for rate in ("0.001", "0.003")]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The folder of the output directories, flags without a search, outcomes and stderr by case."""
    folder = tmp_path_factory.mktemp("search")
    out = folder / "out"
    flags = fine_tuning_flags("run_classifier", folder, output_dir=None, train_batch_size=None, learning_rate=None)
    searched = {**flags, "search": GRID}
    return out, flags, *run_and_refuse("run_classifier", out, {"grid": searched}, {})[:2]


def test_each_combination_is_a_run_and_the_best_is_kept(ran):
    out, _, _, logs = ran
    assert "Combination 2 of 2: learning_rate=0.003, train_batch_size=16." in logs["grid"]
    grid = out / "grid"
    names = {str(path.relative_to(grid)) for path in grid.rglob("*")}
    assert {"search.json", "search.md", "eval_results.txt", "best_model/README.md"} < names
    for name in FOLDERS:
        assert {f"{name}/run.json", f"{name}/best_model/bert_model.safetensors", f"{name}/README.md"} < names
    content = json.loads((grid / "search.json").read_text())
    scores = [one["seeds"]["3"][content["metric"]] for one in content["combinations"]]
    best = FOLDERS[int(np.argmax(scores))]
    for name in ("eval_results.txt", "best_model/bert_model.safetensors", "best_model/README.md"):
        assert (grid / name).read_bytes() == (grid / best / name).read_bytes()
    assert "It is one of 2 combinations of settings that were tried." in (grid / "best_model" / "README.md").read_text()
    assert f"Best model: {grid}/best_model (step " in logs["grid"]


def test_a_combination_is_the_run_that_its_settings_alone_make_and_is_not_trained_again(ran):
    out, flags, *_ = ran
    before = {path: path.read_bytes() for path in (out / "grid").rglob("*") if path.is_file()}
    done = {
        "again": {**flags, "search": GRID.replace("3e-3", "3e-3,5e-3"), "output_dir": out / "grid"},
        "alone": {**flags, "learning_rate": 3e-3, "train_batch_size": 16},
    }
    _, logs, _ = run_and_refuse("run_classifier", out, done, {})
    alone, combination = out / "alone", out / "grid" / FOLDERS[1]
    assert results_of(alone) == results_of(combination)
    for name, value in weights_of(alone / "best_model").items():
        np.testing.assert_array_equal(value, weights_of(combination / "best_model")[name], err_msg=name)
    assert [logs["again"].count(f"the run in {out}/grid/{name} finished at step 2") for name in FOLDERS] == [1, 1]
    kept = [path for path in before if path.name in ("run.json", "bert_model.safetensors", "README.md")]
    kept = [path for path in kept if path.parent != out / "grid" / "best_model"]
    assert len(kept) > 6 and all(path.read_bytes() == before[path] for path in kept)
    content = json.loads((out / "grid" / "search.json").read_text())
    assert [one["settings"]["learning_rate"] for one in content["combinations"]] == [1e-3, 3e-3, 5e-3]

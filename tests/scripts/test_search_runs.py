"""Runs of --search: each combination in its own folder, resumed after a kill, the best one kept."""

import json
import shutil

import numpy as np
import pytest
from helpers.script_cases import assert_in_order, kill_at_checkpoint, results_of, run_cases, selected_cases, weights_of
from helpers.small_data import PIECES, WORLDS, texts_of
from helpers.tiny import write_encoder

from bert_tf.training import run_directory

GRID = "learning_rate=1e-3,3e-3;train_batch_size=16"
FOLDERS = [f"search-learning_rate={rate}-train_batch_size=16" for rate in ("0.001", "0.003")]
LARGER = "train_batch_size=4,8;num_train_epochs=1,2"
SLOW = {"again", "alone", "killed", "undisturbed"}


def flags_of(script, folder, **changes) -> dict:
    """Writes a script's data into the folder; returns flags of a run on it, of two steps with a batch of 16."""
    write, ending, own = WORLDS[script]
    write_encoder(folder, PIECES)
    for seed, (name, count) in enumerate((("train", 32), ("dev", 11))):
        write(folder / f"{name}.{ending}", list(texts_of(count, seed)))
    return {
        **own, "init_checkpoint": folder / "encoder", "do_train": True, "do_eval": True,
        "train_file": folder / f"train.{ending}", "dev_file": folder / f"dev.{ending}", "max_seq_length": 24,
        "num_train_epochs": 1, "seed": 3, "deterministic": True, "write_tf_records": False, **changes,
    }  # fmt: skip


def cases_of(folder) -> dict:
    """Case -> flags, in the order in which they run."""
    given, out = flags_of("run_classifier", folder), folder / "out"
    several = {**given, "search": LARGER, "num_seeds": 2, "learning_rate": 3e-3, "save_checkpoints_steps": 2,
               "iterations_per_loop": 2}  # fmt: skip
    several.pop("num_train_epochs")
    without_dev_set = {**given, "search": GRID, "do_eval": False}
    without_dev_set.pop("dev_file")
    return {
        "grid": {**given, "search": GRID},
        "again": {**given, "search": GRID.replace("3e-3", "3e-3,5e-3"), "output_dir": out / "grid"},
        "alone": {**given, "learning_rate": 3e-3, "train_batch_size": 16},
        "killed": several,
        "undisturbed": several,
        # --- refused
        "in a run": {**given, "search": GRID, "output_dir": out / "grid" / FOLDERS[0]},
        "no step": {**given, "search": "train_batch_size=8,64"},
        "no dev set": without_dev_set,
    }


@pytest.fixture(scope="module")
def ran(request, tmp_path_factory):
    """The folder of the output directories, outcomes by case, what each wrote to stderr, the grid's files at first."""
    folder = tmp_path_factory.mktemp("search")
    out = folder / "out"
    cases = selected_cases(request, cases_of(folder), SLOW)
    cases = {name: {"output_dir": out / name, **values} for name, values in cases.items()}
    if "killed" in cases:
        # The second seed of the second combination.
        place = out / "killed" / "search-train_batch_size=4-num_train_epochs=2" / "seed-4"
        kill_at_checkpoint("run_classifier", cases["killed"], step=4, folder=place)
        assert (place / "model.ckpt-4.index").exists() and not (place / "model.ckpt-16.index").exists()
    outcomes, logs = run_cases("run_classifier", {"grid": cases.pop("grid")})
    before = {path: path.read_bytes() for path in (out / "grid").rglob("*") if path.is_file()}
    further = run_cases("run_classifier", cases)
    return out, outcomes | further[0], logs | further[1], before


def contents_of(folder) -> dict:
    """Name of each file -> its bytes; without TensorBoard's files, whose names have the time."""
    paths = (path for path in folder.rglob("*") if path.is_file() and ".tfevents." not in path.name)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_each_combination_is_a_run_and_the_best_is_kept(ran):
    out, outcomes, logs, before = ran
    assert outcomes["grid"] == "done"
    assert "Combination 2 of 2: learning_rate=0.003, train_batch_size=16." in logs["grid"]
    names = {str(path.relative_to(out / "grid")) for path in before}
    assert {"search.json", "search.md", "search.png", "eval_results.txt", "best_model/README.md"} < names
    for name in FOLDERS:
        assert {f"{name}/run.json", f"{name}/best_model/bert_model.safetensors", f"{name}/README.md"} < names
    content = json.loads(before[out / "grid" / "search.json"])
    scores = [one["seeds"]["3"][content["metric"]] for one in content["combinations"]]
    best = FOLDERS[int(np.argmax(scores))]
    for name in ("eval_results.txt", "best_model/bert_model.safetensors", "best_model/README.md"):
        assert before[out / "grid" / name] == before[out / "grid" / best / name]
    card = before[out / "grid" / "best_model" / "README.md"].decode()
    assert "It is one of 2 combinations of settings that were tried." in card
    assert f"Best model: {out}/grid/best_model (step " in logs["grid"]


@pytest.mark.slow
def test_a_combination_is_the_run_that_its_settings_alone_make(ran):
    out, outcomes, *_ = ran
    assert outcomes["alone"] == "done"
    alone, combination = out / "alone", out / "grid" / FOLDERS[1]
    assert results_of(alone) == results_of(combination)
    for name, value in weights_of(alone / "best_model").items():
        np.testing.assert_array_equal(value, weights_of(combination / "best_model")[name], err_msg=name)


@pytest.mark.slow
def test_a_finished_combination_is_not_trained_again(ran):
    out, outcomes, logs, before = ran
    assert outcomes["again"] == "done"
    assert [logs["again"].count(f"the run in {out}/grid/{name} finished at step 2") for name in FOLDERS] == [1, 1]
    kept = [path for path in before if path.name in ("run.json", "bert_model.safetensors", "README.md")]
    kept = [path for path in kept if path.parent != out / "grid" / "best_model"]
    assert len(kept) > 6 and all(path.read_bytes() == before[path] for path in kept)
    content = json.loads((out / "grid" / "search.json").read_text())
    assert [one["settings"]["learning_rate"] for one in content["combinations"]] == [1e-3, 3e-3, 5e-3]


REFUSED = {
    "in a run": "ValueError: --output_dir=*grid/search-*holds a run of its own: choose another one for --search.",
    "no step": "ValueError: 32 training examples, --train_batch_size=64 and --num_train_epochs=1.0 give less than one",
    "no dev set": "ValueError: --search chooses by the results on a dev set",
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(ran, case):
    out, outcomes, *_ = ran
    assert_in_order(REFUSED[case], outcomes[case])
    assert "\n" not in outcomes[case] and (case == "in a run" or not (out / case).exists())


@pytest.mark.slow
def test_a_killed_search_goes_on_bit_for_bit(ran):
    out, outcomes, logs, _ = ran
    assert outcomes["killed"] == outcomes["undisturbed"] == "done"
    assert logs["killed"].count("Nothing to train") == 3 and "Resuming at step" in logs["killed"]
    one, other = (contents_of(out / name) for name in ("killed", "undisturbed"))
    assert set(one) == set(other) and len([name for name in one if name.endswith("run.json")]) == 8
    times = ("train_log.jsonl", "loss.png", "run.json", "confusion_matrix.png")
    different = [name for name in one if one[name] != other[name] and not name.endswith(times)]
    assert not different, different
    content = json.loads(one["search.json"])
    assert [len(combination["seeds"]) for combination in content["combinations"]] == [2, 2, 2, 2]


@pytest.mark.slow
def test_the_negatives_follow_the_batch_of_each_combination(tmp_path):
    out = tmp_path / "out"
    flags = flags_of("run_similarity", tmp_path, search="train_batch_size=8,16", output_dir=out)
    flags.pop("negatives_batch_size")
    outcomes, logs = run_cases("run_similarity", {"ranking": flags})
    assert outcomes["ranking"] == "done", logs["ranking"][-3000:]
    for size in (8, 16):
        settings = json.loads((out / f"search-train_batch_size={size}" / "run.json").read_text())
        assert settings["negatives_batch_size"] == settings["train_batch_size"] == size
    assert (out / "best_model" / "1_Pooling" / "config.json").exists()


def test_every_file_is_removed_again(ran, tmp_path):
    shutil.copytree(ran[0] / "grid", tmp_path / "grid")
    run_directory.check_removable(str(tmp_path / "grid"), {})
    run_directory.remove_run(str(tmp_path / "grid"))
    assert [path.name for path in (tmp_path / "grid").iterdir()] == []

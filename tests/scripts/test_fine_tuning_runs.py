"""Runs of all fine-tuning scripts: killed and resumed, on two devices, repeated, started over, with seeds."""

import json
import os
import shutil

import numpy as np
import pytest
from helpers.locks import leave_lock
from helpers.script_cases import kill_at_checkpoint, results_of, run_cases, selected_cases, weights_of
from helpers.small_data import PIECES, WORLDS, texts_of
from helpers.tiny import write_encoder

from bert_tf.tasks.table import TASKS

SCRIPTS = {
    "run_classifier": "classification", "run_squad": "squad", "run_ner": "ner", "run_swag": "multiple_choice",
    "run_similarity": "encoder",
}  # fmt: skip
STEPS, KILLED_AT = 24, 10  # 32 examples, 8 per step, 6 epochs
EVALUATED = [8, 16, 24]


def cases_of(script, folder) -> dict:
    """Case -> flags, in the order in which they run; later cases build on earlier ones."""
    _, ending, own = WORLDS[script]
    out = folder / "out"
    test = "predict_file" if script == "run_squad" else "test_file"
    training = {
        **own, "init_checkpoint": folder / "encoder", "do_train": True, "do_eval": True, "max_seq_length": 24,
        "train_file": folder / f"train.{ending}", "dev_file": folder / f"dev.{ending}", "train_batch_size": 8,
        "predict_batch_size": 4, "num_train_epochs": 6, "learning_rate": 3e-3, "eval_every_steps": 8, "seed": 3,
        "deterministic": True, "num_virtual_cpus": 2,
    }  # fmt: skip
    kept = {"keep_checkpoint_max": 2}
    short = {**training, "num_train_epochs": 1, "write_tf_records": False}
    whole = {**training, "output_dir": out / "whole"}
    predict = {key: value for key, value in training.items() if key not in ("do_train", "do_eval", "init_checkpoint")}
    predict |= {"do_predict": True, test: folder / f"test.{ending}"}
    return {
        "whole": whole,
        "kept": {**training, **kept},
        "killed": {**training, **kept, "save_checkpoints_steps": 5, "iterations_per_loop": 1},
        # Dropout depends on the micro-batch: two micro-batches on one device have the masks of two devices.
        "one device": {**short, **kept, "gradient_accumulation_steps": 2},
        "two devices": {**short, **kept, "distribution_strategy": "mirrored"},
        "seeds": {**short, "num_seeds": 2},
        "again": {**whole, "predict_batch_size": 8, "log_every_steps": 7},
        "predicted": {**predict, "output_dir": out / "whole"},
        "longer": {**short, **kept, "num_train_epochs": 2, "gradient_accumulation_steps": 2,
                   "output_dir": out / "one device"},
        "overwritten": {**short, "learning_rate": 1e-3, "overwrite_output_dir": True, "output_dir": out / "seeds"},
        # --- refused
        "in use": {**short, "output_dir": out / "in use"},
        "other flags": {**whole, "learning_rate": 1e-3, "train_batch_size": 4},
        "no optimizer state": {**whole, "num_train_epochs": 7},
        "not a run": {**short, "overwrite_output_dir": True, "output_dir": folder / "encoder",
                      "init_checkpoint": folder / "copy"},
        "needed": {**short, "overwrite_output_dir": True, "output_dir": out / "whole",
                   "init_checkpoint": out / "whole" / "best_model"},
        "foreign weights": {**short, "overwrite_output_dir": True, "output_dir": out / "foreign"},
        "nothing to overwrite for": {**predict, "overwrite_output_dir": True, "output_dir": out / "whole"},
    }  # fmt: skip


# Two devices and further epochs of one script are in test_run_classifier_cases.py and test_loop.py, too.
SLOW = {"one device", "two devices", "longer"}
# The tests share a run. Each script's own tests cover what is specific to its task.
OFTEN = "run_classifier"


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[pytest.mark.slow] * (name != OFTEN)) for name in WORLDS]
)
def ran(request, tmp_path_factory):
    """Script, folder of the output directories, outcomes by case, what each wrote to stderr."""
    script, folder = request.param, tmp_path_factory.mktemp(request.param)
    write, ending, _ = WORLDS[script]
    write_encoder(folder, PIECES)
    shutil.copytree(folder / "encoder", folder / "copy")
    for seed, (name, count) in enumerate((("train", 32), ("dev", 11), ("test", 7))):
        write(folder / f"{name}.{ending}", list(texts_of(count, seed)))
    out = folder / "out"
    (out / "foreign").mkdir(parents=True)
    (out / "foreign" / "run.json").write_text("{}")
    (out / "foreign" / "bert_model.ckpt.index").write_text("")
    leave_lock(out / "in use" / "run.lock")
    (out / "seeds").mkdir()
    (out / "seeds" / "notes.txt").write_text("mine")
    cases = selected_cases(request, cases_of(script, folder), SLOW)
    cases = {name: {"output_dir": out / name, **values} for name, values in cases.items()}
    killed_at = kill_at_checkpoint(script, cases["killed"], step=KILLED_AT)
    before, after = {}, {}
    names = list(cases)
    split = names.index("again")
    first = run_cases(script, {name: cases[name] for name in names[:split]})
    for name in ("whole", "seeds"):
        before[name] = contents_of(out / name)
    second = run_cases(script, {name: cases[name] for name in names[split:]})
    for name in ("whole", "seeds", "foreign"):
        after[name] = contents_of(out / name)
    outcomes, logs = first[0] | second[0], first[1] | second[1]
    return script, out, outcomes | {"checkpoints at the kill": killed_at}, logs, before, after


def contents_of(folder) -> dict:
    """Name of each file -> its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def steps_of(folder) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "evaluations.jsonl").read_text().splitlines()]


def assert_same_bits(one, other):
    one, other = weights_of(one), weights_of(other)
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


def test_a_killed_run_resumes_bit_for_bit(ran):
    _, out, outcomes, logs, *_ = ran
    names = outcomes["checkpoints at the kill"]
    assert f"model.ckpt-{KILLED_AT}.index" in names, names
    assert f"model.ckpt-{STEPS}.index" not in names, "too late to test anything"
    assert outcomes["kept"] == outcomes["killed"] == "done"
    assert (
        "start over" not in logs["killed"] and f"--init_checkpoint={out.parent}/encoder is not used" in logs["killed"]
    )
    whole, resumed = (out / name / f"model.ckpt-{STEPS}" for name in ("kept", "killed"))
    assert any("adam_m" in name for name in weights_of(whole))
    assert_same_bits(whole, resumed)
    assert_same_bits(out / "kept" / "best_model", out / "killed" / "best_model")
    assert results_of(out / "kept") == results_of(out / "killed")
    further = TASKS[SCRIPTS[ran[0]]].settings_file
    cards = ("README.md", "best_model/README.md")
    for name in ("eval_results.txt", "evaluations.jsonl", *cards, *([further] if further else [])):
        assert (out / "kept" / name).read_bytes() == (out / "killed" / name).read_bytes(), name


def test_a_folder_in_use_is_refused(ran):
    _, out, outcomes, logs, *_ = ran
    message = f"LockedError: --output_dir={out}/in use is in use by process {os.getpid()} on "
    assert outcomes["in use"].startswith(message)
    assert "examples" not in logs["in use"]  # before the data is read
    assert os.listdir(out / "in use") == ["run.lock"]


def test_a_run_leaves_the_best_model_and_the_weights_of_the_last_step(ran):
    script, out, outcomes, logs, before, _ = ran
    assert outcomes["whole"] == "done" and steps_of(out / "whole") == EVALUATED
    checkpoints = {name for name in before["whole"] if "ckpt" in name}
    assert checkpoints == {f"model.ckpt-{STEPS}.index", f"model.ckpt-{STEPS}.data-00000-of-00001"}
    left, kept = weights_of(out / "whole"), weights_of(out / "kept")
    assert set(left) == {name for name in kept if "adam" not in name} and int(left["global_step"]) == STEPS
    for name, value in left.items():
        np.testing.assert_array_equal(value, kept[name], err_msg=name)
    assert not list((out / "kept").glob("model.ckpt-0*"))  # the initial weights are not saved again
    assert before["whole"]["loss.png"][:4] == b"\x89PNG"
    assert ("confusion_matrix.png" in before["whole"]) == (script not in ("run_squad", "run_similarity"))
    assert json.loads(before["whole"]["run.json"])["finished_step"] == STEPS
    # The end of the log gives the results, the model's place and how to use it in Python.
    end = logs["whole"]
    assert f"Best model: {out}/whole/best_model (step " in end
    assert f"Results of step {STEPS}, the last one: eval_" in end
    assert f"from bert_tf import {TASKS[SCRIPTS[script]].answerer}" in end
    assert f'{TASKS[SCRIPTS[script]].answerer}("{out}/whole/best_model")' in end
    assert TASKS[SCRIPTS[script]].answers.format(path=f"{out}/whole/best_model") not in end  # but texts of the data


def test_a_run_leaves_a_card_of_each_model(ran):
    script, out, _, _, before, _ = ran
    settings = json.loads(before["whole"]["run.json"])
    for name, step in (("README.md", STEPS), ("best_model/README.md", None)):
        card = before["whole"][name].decode()
        step = step or json.loads(before["whole"]["best_model/eval_results.json"])["step"]
        assert f"After step {step}:" in card and "learning_rate: 0.003\n" in card
        start = settings["init_weights"]
        assert f"weights at the start: encoder\nchecksum: {start['checksum']}\n" in card.replace("'", "")
        assert f"training data: {settings['training_data']}\n" in card
        assert TASKS[SCRIPTS[script]].answers.format(path="path/to/this/folder") in card
        assert str(out) not in card


@pytest.mark.slow
def test_two_devices_make_the_same_steps(ran):
    _, out, outcomes, logs, *_ = ran
    assert outcomes["one device"] == outcomes["two devices"] == "done" and "2 replicas" in logs["two devices"]
    one, two = (weights_of(out / name / "model.ckpt-4") for name in ("one device", "two devices"))
    start = weights_of(out.parent / "encoder")
    assert one.keys() == two.keys()
    name = "bert/encoder/layer_0/attention/self/value/kernel"
    assert np.abs(one[name] - start[name]).max() > 3e-3
    for name, value in one.items():
        if "adam" not in name and "key/bias" not in name:  # the gradient of key biases is only rounding errors
            difference = np.abs(two[name] - value)
            # A norm that is clipped is the same, too, however the batch is cut.
            assert difference.max() < 1e-3, (name, difference.max())


def test_a_finished_run_stays_as_it_is(ran):
    script, _, outcomes, logs, before, after = ran
    assert outcomes["again"] == outcomes["predicted"] == "done"
    assert f"finished at step {STEPS}" in logs["again"]
    assert "finished at step" not in logs["predicted"]  # there was nothing to train
    # Results of an evaluation that it did not make are not shown.
    assert "Results" not in logs["predicted"] and f"Predictions of step {STEPS}:" in logs["predicted"]
    assert f"Results of step {STEPS}, the last one: " in logs["again"]
    new = {name for name in after["whole"] if name not in before["whole"]}
    assert {name for name in new if "predictions" in name}
    changed = {name for name, value in before["whole"].items() if after["whole"].get(name) != value}
    assert not {name for name in changed if "ckpt" in name or name.startswith("best_model/")}
    assert not changed & {"evaluations.jsonl", "run.json", "train.tf_record"}
    # run_squad.py writes the results for --predict_file there, like the original's tools, if nothing else is evaluated.
    # The `loss` of run_swag.py is a mean over batches, as in the original, and their size has changed.
    assert "eval_results.txt" not in changed or script in ("run_squad", "run_swag")


@pytest.mark.slow
def test_more_epochs_train_further_where_the_optimizer_state_is_kept(ran):
    _, out, outcomes, _, *_ = ran
    assert outcomes["longer"] == "done" and results_of(out / "one device")["global_step"] == 8
    assert json.loads((out / "one device" / "run.json").read_text())["finished_step"] == 8


def test_seeds_are_runs_of_their_own(ran):
    _, out, outcomes, logs, before, _ = ran
    assert outcomes["seeds"] == "done"
    summary = json.loads(before["seeds"]["seeds.json"])
    assert list(summary["seeds"]) == ["3", "4"]
    best = summary["best_seed"]
    for name in ("eval_results.txt", "best_model/bert_model.safetensors"):
        assert before["seeds"][name] == before["seeds"][f"seed-{best}/{name}"]
    # Results can be equal, perfect ones above all; weights can't.
    weights = "best_model/bert_model.safetensors"
    assert before["seeds"][f"seed-3/{weights}"] != before["seeds"][f"seed-4/{weights}"]
    assert f"Best model: {out}/seeds/best_model (step " in logs["seeds"]
    assert f", the last one, with seed {best}: eval_" in logs["seeds"]


def test_overwriting_starts_anew_and_removes_nothing_else(ran):
    _, out, outcomes, logs, _, after = ran
    assert outcomes["overwritten"] == "done" and "--overwrite_output_dir: removed " in logs["overwritten"]
    assert after["seeds"].pop("notes.txt") == b"mine"
    assert not [name for name in after["seeds"] if name.startswith("seed")]
    assert json.loads(after["seeds"]["run.json"])["learning_rate"] == 1e-3
    assert "Initialised" in logs["overwritten"] and results_of(out / "seeds")["global_step"] == 4


REFUSED = {
    "other flags": ["finished run", "--learning_rate: 0.003 there, 0.001 now", "--train_batch_size: 8 there, 4 now",
                    "--overwrite_output_dir"],
    "no optimizer state": [f"finished at step {STEPS}", "--num_train_epochs=7", "--keep_checkpoint_max"],
    "not a run": ["--overwrite_output_dir", "encoder is not the directory of a run", "nothing is removed"],
    "needed": ["--overwrite_output_dir", "--init_checkpoint=", "nothing is removed"],
    "foreign weights": ["--overwrite_output_dir", "bert_model.ckpt.index", "nothing is removed"],
    "nothing to overwrite for": ["--overwrite_output_dir", "--do_train"],
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(ran, case):
    _, out, outcomes, _, _, after = ran
    assert outcomes[case].startswith("ValueError: ") and "\n" not in outcomes[case], outcomes[case]
    for part in REFUSED[case]:
        assert part in outcomes[case], outcomes[case]
    assert set(after["foreign"]) == {"run.json", "bert_model.ckpt.index"}
    assert (out.parent / "encoder" / "vocab.txt").exists() and (out / "whole" / "best_model" / "vocab.txt").exists()


def test_every_case_is_looked_at(ran):
    done = {"whole", "kept", "killed", "seeds", "again", "predicted", "overwritten", "checkpoints at the kill"}
    assert set(ran[2]) - SLOW == done | set(REFUSED) | {"in use"}

"""Runs of run_classifier.py, as of all fine-tuning scripts: what they leave, started again, LoRA, refusals."""

import json
import re
import shutil

import numpy as np
import pytest
from helpers.mains import run_mains
from helpers.scenarios import fine_tuning_flags
from helpers.script_cases import results_of, run_cases, selected_cases, weights_of
from helpers.slow import slow

from bert_tf import Predictor
from bert_tf.store import open_weights
from bert_tf.system.declare import declared_in
from bert_tf.tasks.classification.settings import ClassificationSettings
from bert_tf.tasks.table import TASKS
from bert_tf.training import run_directory
from bert_tf.training.settings import FineTuningSettings

STEPS, RANK = 12, 4  # 32 examples, 8 per step, 3 epochs
DONE = {"whole", "again", "predicted", "adapters", "unfinished", "adapters longer", "best"}
REFUSED = {
    "in use": ["LockedError", "is in use by another run"],
    "other flags": ["finished run", "--learning_rate: 0.003 there, 0.001 now", "--train_batch_size: 8 there, 4 now",
                    "begin anew: rm -r "],
    "no optimizer state": ["finished run", "--num_train_epochs: 3.0 there, 4.0 now"],
    "random": ["--lora_rank adapts a trained encoder: give --init_checkpoint"],
    "adapters alone": ["lora.safetensors"],
}  # fmt: skip

SLOW = {"adapters", "unfinished", "adapters alone", "adapters longer", "best"}


def without(values: dict, *names) -> dict:
    return {name: value for name, value in values.items() if name not in names}


def cases_of(folder) -> tuple[dict, dict]:
    """Case -> flags, in the order in which they run: those that train first, and what builds on them."""
    out = folder / "out"
    whole = fine_tuning_flags("run_classifier", folder, num_train_epochs=3, eval_every_steps=4, write_tf_records=None)
    whole["output_dir"] = out / "whole"
    short = {**without(whole, "output_dir"), "num_train_epochs": 1, "write_tf_records": False}
    predict = without(whole, "do_train", "do_eval", "init_checkpoint") | {"do_predict": True}
    lora = {**short, "lora_rank": RANK, "learning_rate": 1e-2}
    longer = {**lora, "num_train_epochs": 2, "output_dir": out / "adapters"}
    evaluate = without(lora, "do_train", "lora_rank", "init_checkpoint", "num_train_epochs")
    return {"whole": whole}, {
        "again": {**whole, "log_every_steps": 7},
        "predicted": predict,
        "adapters": {**lora, "keep_checkpoint_max": 1},
        "unfinished": {**evaluate, "output_dir": out / "adapters"},
        # --- refused
        "in use": short,
        "other flags": {**whole, "learning_rate": 1e-3, "train_batch_size": 4},
        "no optimizer state": {**whole, "num_train_epochs": 4},
        "random": {**without(lora, "init_checkpoint"), "vocab_file": folder / "vocab.txt",
                   "bert_config_file": folder / "encoder" / "bert_config.json"},
        "adapters alone": {**evaluate, "init_checkpoint": out / "adapters" / "lora.safetensors"},
        # --- and on with the adapters
        "adapters longer": {**longer, "use_best_model": True},
        "best": {**evaluate, "init_checkpoint": out / "adapters" / "best_model"},
    }  # fmt: skip


@pytest.fixture(scope="module")
def ran(request, tmp_path_factory):
    """Folder of the output directories, outcomes by case, what each wrote to stderr, files before and after."""
    folder = tmp_path_factory.mktemp("runs")
    first, second = cases_of(folder)
    out = folder / "out"
    outcomes, logs, contents = {}, {}, []
    for cases in (first, second):
        cases = selected_cases(request, cases, SLOW & cases.keys())
        cases = {name: {"output_dir": out / name, **values} for name, values in cases.items()}
        with run_directory.lock_output_dir(str(out / "in use"), 1):
            ended = run_cases("run_classifier", cases)
        for all_of_it, more in zip((outcomes, logs), ended, strict=True):
            all_of_it |= more
        files = [path for path in (out / "whole").rglob("*") if path.is_file()]
        contents.append({str(path.relative_to(out / "whole")): path.read_bytes() for path in files})
        if "whole" in cases:  # as if a kill had come before the evaluation of the last step
            lines = contents[0]["evaluations.jsonl"].splitlines(keepends=True)
            (out / "whole" / "evaluations.jsonl").write_bytes(b"".join(lines[:-1]))
    return out, outcomes, logs, *contents


def test_all_cases_end_as_they_should(ran):
    _, outcomes, logs, *_ = ran
    assert {name for name, outcome in outcomes.items() if outcome == "done"} == DONE & outcomes.keys(), outcomes
    assert outcomes.keys() | SLOW == DONE | REFUSED.keys()
    assert "examples" not in logs["in use"]  # before the data is read


@pytest.mark.parametrize("case", [*(case for case in REFUSED if case not in SLOW), *slow("adapters alone")])
def test_runs_that_do_not_fit_end_in_one_line(ran, case):
    out, outcomes, *_ = ran
    assert "Error: " in outcomes[case] and "\n" not in outcomes[case], outcomes[case]
    for part in REFUSED[case]:
        assert part in outcomes[case], outcomes[case]
    assert not (out / case).exists()
    assert (out.parent / "encoder" / "vocab.txt").exists() and (out / "whole" / "best_model" / "vocab.txt").exists()


def test_a_run_leaves_the_best_model_and_the_weights_of_the_last_step(ran):
    out, _, logs, before, _ = ran
    evaluations = [json.loads(line) for line in before["evaluations.jsonl"].splitlines()]
    assert [values["step"] for values in evaluations] == [4, 8, 12]
    checkpoints = {name for name in before if "ckpt" in name}
    assert checkpoints == {f"model.ckpt-{STEPS}.index", f"model.ckpt-{STEPS}.data-00000-of-00001"}
    left = weights_of(out / "whole")
    assert not [name for name in left if "adam" in name] and int(left["global_step"]) == STEPS
    for name in ("loss.png", "confusion_matrix.png"):
        assert before[name][:4] == b"\x89PNG"
    assert json.loads(before["run.json"])["finished_step"] == STEPS
    # The end of the log gives the results, the model's place and how to use it in Python.
    end = logs["whole"]
    assert f"Best model: {out}/whole/best_model (step " in end
    assert f"Results of step {STEPS}, the last one: eval_" in end
    assert "from bert_tf import Predictor" in end and f'Predictor("{out}/whole/best_model")' in end
    assert TASKS["classification"].answers.format(path=f"{out}/whole/best_model") not in end  # but texts of the data


def test_a_run_leaves_a_card_of_each_model(ran):
    out, _, _, before, _ = ran
    settings = json.loads(before["run.json"])
    best = json.loads(before["best_model/eval_results.json"])
    for name, step in (("README.md", STEPS), ("best_model/README.md", best["step"])):
        card = before[name].decode()
        assert f"after step: {step}\n" in card and "learning_rate: 0.003\n" in card
        start = settings["init_weights"]
        assert f"weights at the start: encoder\nchecksum: {start['checksum']}\n" in card.replace("'", "")
        assert f"training data: {settings['training_data']}\n" in card
        assert TASKS["classification"].answers.format(path="path/to/this/folder") in card
        assert str(out) not in card


def test_a_finished_run_stays_as_it_is(ran):
    _, _, logs, before, after = ran
    assert f"finished at step {STEPS}" in logs["again"]
    assert f"Step {STEPS} was saved, but the earlier run ended before its evaluation" in logs["again"]
    assert "finished at step" not in logs["predicted"]  # there was nothing to train
    # Results of an evaluation that it did not make are not shown.
    assert "Results" not in logs["predicted"] and f"Predictions of step {STEPS}:" in logs["predicted"]
    assert f"Results of step {STEPS}, the last one: " in logs["again"]
    assert {name for name in after if name not in before and "predictions" in name}
    changed = {name for name, value in before.items() if after.get(name) != value}
    assert not {name for name in changed if "ckpt" in name or name.startswith("best_model/")}
    assert not changed & {"evaluations.jsonl", "run.json", "train.tf_record", "eval_results.txt"}


@pytest.mark.slow  # in small: models/test_lora.py, training/test_equal_steps.py
def test_adapters_leave_ordinary_models(ran):
    out, _, logs, *_ = ran
    run, start = out / "adapters", weights_of(out.parent / "encoder")
    assert "Resuming at step 4" in logs["adapters longer"] and not (run / "model.ckpt-4.index").exists()
    names = set(open_weights.open_weights(str(run / "model.ckpt-8"), merge=False))
    assert not [name for name in names if "lora" in name or "adam" in name]
    for weights in (weights_of(run / "model.ckpt-8"), weights_of(run / "best_model")):
        changed = {name for name in start if not np.array_equal(start[name], weights[name])}
        pooler = {"bert/pooler/dense/kernel", "bert/pooler/dense/bias"}
        assert pooler < changed and len(changed - pooler) == 6
        assert all(name.endswith("/kernel") and "/layer_0/" in name for name in changed - pooler)
    # --use_best_model evaluates it in the run, where the adapters are, and "best" as a model of its own.
    kept = json.loads((run / "best_model" / "eval_results.json").read_text())
    for results in (results_of(run), results_of(out / "best")):
        assert results["eval_accuracy"] == pytest.approx(kept["eval_accuracy"])
        assert results["eval_loss"] == pytest.approx(kept["eval_loss"], rel=1e-5)
    assert results_of(run)["global_step"] == kept["step"]
    assert Predictor(str(run / "best_model"))("good w1 w2")["label"] in ("down", "up")
    # Before, the run was evaluated with its adapters.
    evaluations = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
    assert evaluations[0]["step"] == 4 and f"eval_loss {evaluations[0]['eval_loss']:.6g}" in logs["unfinished"]


def test_folders_of_an_earlier_version_go_on(golden, tmp_path):
    """Of commit c2844e91: a run that was killed after step 4 of 8, and the same one undisturbed, which is finished."""
    folder = shutil.copytree(golden / "run_folder", tmp_path / "folder")
    noted = json.loads((folder / "finished" / "run.json").read_text())
    settings = {*declared_in(ClassificationSettings), *declared_in(FineTuningSettings)}
    flags = {name: value for name, value in noted.items() if name in settings and value not in (None, [], "")}
    cases = {name: ("run_classifier", {**flags, "output_dir": name}) for name in ("out", "finished")}
    ended, log = run_mains(cases, cwd=folder)
    assert [outcome for outcome, _ in ended.values()] == ["done", "done"], log
    killed, finished = log.split("CASE finished")
    assert "Resuming at step 4" in killed and "the run in finished finished at step 8" in finished
    assert not re.search("Not as in the earlier run of this directory: (?!version of)", log)
    assert json.loads((folder / "out" / "run.json").read_text())["finished_step"] == 8
    expected = weights_of(golden / "run_folder" / "finished" / "model.ckpt-8")
    for name, value in weights_of(folder / "out" / "model.ckpt-8").items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-6, err_msg=name)

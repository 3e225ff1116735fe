"""Runs of run_classifier.py, as of all fine-tuning scripts: what they leave, started again, LoRA, models of the hub."""

import dataclasses
import functools
import json
import re
import shutil

import numpy as np
import pytest
import yaml
from helpers import script_cases
from helpers.basics import lines_of
from helpers.early_mistakes import refusals
from helpers.hub_server import COMMIT, HubServer, serving
from helpers.scenarios import fine_tuning_flags, run
from helpers.script_cases import command_of, results_of, run_and_refuse, selected_cases, weights_of
from helpers.tiny import save_model, texts_of, write_classification

import bert_tf
from bert_tf import Predictor, modeling
from bert_tf.conversion.convert import convert
from bert_tf.pretraining.create import create_pretraining_data
from bert_tf.serving import onnx_export
from bert_tf.serving.export import export_saved_model
from bert_tf.store.open import open_weights
from bert_tf.system.declare import declared_in
from bert_tf.tasks.classification.settings import ClassificationSettings
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.domain.recipe import adapt
from bert_tf.tasks.domain.settings import DomainSettings
from bert_tf.tasks.features import extract
from bert_tf.tasks.features.settings import FeatureSettings
from bert_tf.tasks.script import fine_tune
from bert_tf.tasks.table import TASKS
from bert_tf.training import run_directory
from bert_tf.training.pretraining_run import pretrain
from bert_tf.training.pretraining_settings import PretrainingSettings
from bert_tf.training.settings import FineTuningSettings

STEPS, RANK = 12, 4  # 32 examples, 8 per step, 3 epochs
SLOW = {"adapters", "unfinished", "adapters alone", "adapters longer", "best"}


def contents(folder) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def ran(request, tmp_path_factory):
    """Output folder, what each case wrote to stderr, and the files of the first one before and after the others."""
    folder = tmp_path_factory.mktemp("runs")
    out, script = folder / "out", "run_classifier"
    flags = {"num_train_epochs": 3, "eval_every_steps": 4, "write_tf_records": None, "output_dir": None}
    flags = fine_tuning_flags(script, folder, **flags)
    whole = {**flags, "output_dir": out / "whole"}
    short = {**flags, "num_train_epochs": 1, "write_tf_records": False}
    lora, adapters = {**short, "lora_rank": RANK, "learning_rate": 1e-2}, {"output_dir": out / "adapters"}
    evaluate = {**short, "do_train": None, "init_checkpoint": None, "num_train_epochs": None}
    done = {
        "again": {**whole, "log_every_steps": 7},
        "predicted": {**whole, "do_train": None, "do_eval": None, "init_checkpoint": None, "do_predict": True},
        "adapters": {**lora, "keep_checkpoint_max": 1},
        "unfinished": {**evaluate, **adapters},
        "adapters longer": {**lora, **adapters, "num_train_epochs": 2, "use_best_model": True},
        "best": {**evaluate, "init_checkpoint": out / "adapters" / "best_model"},
    }
    new = {"init_checkpoint": None, "vocab_file": folder / "vocab.txt"}
    new["bert_config_file"] = folder / "encoder" / "bert_config.json"
    refused = {
        "random": ({**lora, **new}, "--lora_rank adapts a trained encoder: give --init_checkpoint"),
        "adapters alone": ({**evaluate, "init_checkpoint": out / "adapters" / "lora.safetensors"}, "lora.safetensors"),
    }
    logs = run_and_refuse(script, out, {"whole": whole}, {})
    before = contents(out / "whole")
    # As if a kill had come before the evaluation of the last step.
    lines = before["evaluations.jsonl"].splitlines(keepends=True)
    (out / "whole" / "evaluations.jsonl").write_bytes(b"".join(lines[:-1]))
    cases = (selected_cases(request, some, SLOW & some.keys()) for some in (done, refused))
    logs |= run_and_refuse(script, out, *cases)
    return out, logs, before, contents(out / "whole")


def test_a_folder_in_use_is_left_alone(tmp_path):
    flags = fine_tuning_flags("run_classifier", tmp_path)
    with run_directory.lock_output_dir(str(flags["output_dir"]), 1):
        outcomes, logs = script_cases.run_cases("run_classifier", {"in use": flags})
    assert re.match("BlockingIOError: .* is in use by another run", outcomes["in use"])
    assert "examples" not in logs["in use"] and not (tmp_path / "out").exists()  # before the data is read


def test_a_run_leaves_the_best_model_and_the_weights_of_the_last_step(ran):
    out, logs, before, _ = ran
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
    assert f"Results of step {STEPS}, the last one: eval_" in logs["whole"]
    assert f'Predictor("{out}/whole/best_model")' in logs["whole"]
    assert TASKS["classification"].answers.format(path=f"{out}/whole/best_model") not in logs["whole"]  # but the data's


def test_a_run_leaves_a_card_of_each_model(ran):
    out, _, before, _ = ran
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
    _, logs, before, after = ran
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


@pytest.mark.slow  # in small: models/test_partial_loads.py, training/test_equal_steps.py
def test_adapters_leave_ordinary_models(out, logs):
    run, start = out / "adapters", weights_of(out.parent / "encoder")
    assert "Resuming at step 4" in logs["adapters longer"] and not (run / "model.ckpt-4.index").exists()
    names = set(open_weights(str(run / "model.ckpt-8"), merge=False))
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
    ended, log = script_cases.run_mains(cases, cwd=folder)
    assert [outcome for outcome, _ in ended.values()] == ["done", "done"], log
    killed, finished = log.split("CASE finished")
    assert "Resuming at step 4" in killed and "the run in finished finished at step 8" in finished
    assert not re.search("Not as in the earlier run of this directory: (?!version of)", log)
    assert json.loads((folder / "out" / "run.json").read_text())["finished_step"] == 8
    cards = [(path / "README.md").read_text() for path in (folder / "out", golden / "run_folder" / "finished")]
    shown = [yaml.safe_load(card.split("## Training\n```yaml\n")[1].split("```")[0]) for card in cards]
    assert shown[0] == shown[1] and "learning_rate" in shown[0]
    expected = weights_of(golden / "run_folder" / "finished" / "model.ckpt-8")
    for name, value in weights_of(folder / "out" / "model.ckpt-8").items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-6, err_msg=name)


NAME, NEWER = "owner/tiny", "0b" * 20


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    form = {"format": "huggingface", "labels": ["no", "yes"]}
    save_model(folder / "model", "bert", bert_tf.BertForSequenceClassification, **form)
    with serving(HubServer()) as server:
        server.put(NAME, folder / "model")
        yield server


@pytest.fixture
def here(server, tmp_path, monkeypatch):
    server.models[NAME] = {COMMIT: server.models[NAME][COMMIT]}
    server.use_here(monkeypatch, tmp_path / "home")
    server.requests.clear()
    monkeypatch.chdir(tmp_path)
    return server.models[NAME][COMMIT]


GIVEN = {
    "task_name": "custom", "train_file": "train.csv", "text_a": "text", "label": "verdict", "do_train": True,
    "init_checkpoint": NAME, "output_dir": "out",
}  # fmt: skip


def test_what_is_wrong_with_all_else_is_said_before_a_download(server, here, tmp_path, monkeypatch):
    for name, value in server.environment(tmp_path / "cold").items():
        monkeypatch.setenv(name, value)
    write_classification(tmp_path / "train.csv", texts_of(8, 0))
    cases = {
        "--train_file=none.csv: ": {"train_file": "none.csv"},
        "--lora_alpha needs --lora_rank": {"lora_alpha": 2},
        "--test_file=none.csv: ": {"test_file": "none.csv", "do_train": False, "do_predict": True},
    }
    said = refusals("run_classifier", [script_cases.arguments_of({**GIVEN, **changed}) for changed in cases.values()])
    assert all(map(str.startswith, said, cases)), said
    assert not server.requests


def test_a_name_is_as_good_as_its_folder(here, tmp_path):
    texts = ["good film", "bad"]
    answers, *others = (bert_tf.Predictor(path).predict(texts) for path in (NAME, f"{NAME}@{COMMIT}", str(here)))
    assert others == [answers] * 2
    model = bert_tf.BertForSequenceClassification.from_pretrained(f"hf://{NAME}")
    assert [*model.labels] == ["no", "yes"] and bert_tf.read_tokenizer(NAME).tokenize("Good") == ["good"]
    np.testing.assert_array_equal(*(bert_tf.Embedder(path).encode(texts) for path in (NAME, str(here))))
    model = bert_tf.BertModel.from_pretrained(NAME)
    assert len(modeling.get_assignment_map_from_checkpoint(model.trainable_variables, NAME)[0]) == len(model.weights)
    (tmp_path / "new.csv").write_text("text\ngood film\nbad\n")
    task = ClassificationTask(ClassificationSettings(task_name="custom", test_file="new.csv", text_a="text"))
    run = FineTuningSettings(output_dir="out", do_predict=True, init_checkpoint=NAME, max_seq_length=16)
    fine_tune(task, run)
    rows = lines_of(tmp_path / "out" / "predictions.jsonl")
    assert [row["label"] for row in rows] == [answer["label"] for answer in answers]
    with pytest.raises(FileNotFoundError, match="^--init_checkpoint=owner/none: .*no such model on http"):
        fine_tune(task, dataclasses.replace(run, init_checkpoint="owner/none"))


def test_all_that_takes_a_path_says_what_is_wrong_with_a_name(here, tmp_path):
    (tmp_path / "text.txt").write_text("A good film.\n\nA bad film.\n")
    name, message = "owner/none", "no such model on http"
    texts = {"init_checkpoint": name, "input_file": "text.txt"}
    makers = (bert_tf.Predictor, bert_tf.QuestionAnswerer, bert_tf.Embedder, bert_tf.read_tokenizer)
    for program in (
        lambda: pretrain(PretrainingSettings("text.txt", "out", do_train=True, init_checkpoint=name)),
        lambda: adapt(DomainSettings(output_dir="out", **texts)),
        lambda: extract.run(FeatureSettings(output_file="out.json", **texts)),
        lambda: convert(name, "out", "bert_tf"),
        lambda: create_pretraining_data("text.txt", "out", name),
        lambda: export_saved_model(name, "out"),
        lambda: onnx_export.export_onnx(name, "out"),
        lambda: bert_tf.load_weights(bert_tf.BertModel.from_pretrained(NAME), name),
        lambda: modeling.get_assignment_map_from_checkpoint([], name),
        *(functools.partial(maker, name) for maker in makers),
    ):
        with pytest.raises((FileNotFoundError, ValueError), match=f"{name}.*{message}") as error:
            program()
        assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_run_notes_the_commit_and_goes_on_with_it(server, here, tmp_path):
    place = {"cwd": tmp_path, "env": server.environment(tmp_path / "home")}
    write_classification(tmp_path / "train.csv", texts_of(8, 0))
    given = {**GIVEN, "num_train_epochs": 1, "train_batch_size": 4, "new_head": True, "max_seq_length": 16}
    assert f"Downloading {NAME}@main, commit {COMMIT}: " in run(command_of("run_classifier", given), **place)
    noted = json.loads((tmp_path / "out" / "run.json").read_text())
    assert noted["init_checkpoint"] == noted["init_weights"]["path"] == f"{NAME}@{COMMIT}"
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"base_model: {NAME}\n" in card and f"weights at the start: {NAME}@{COMMIT}\n" in card
    # There is a newer commit by now.
    shutil.copytree(here, tmp_path / "newer")
    server.put(NAME, tmp_path / "newer", NEWER)
    assert NEWER not in run(command_of("run_classifier", given), **place)
    assert not (tmp_path / f"home/hub/models--owner--tiny/snapshots/{NEWER}").exists()
    run(command_of("convert_checkpoint", {"from": NAME, "to": "converted", "format": "bert_tf"}), **place)
    assert (tmp_path / "converted" / "bert_model.safetensors").exists()

"""The fine-tuning run as a notebook calls it, the tasks it knows, what it says at its end, and its predictions."""

import dataclasses
import json
import os
import pathlib
import re
import traceback
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.basics import ROOT, lines_of
from helpers.scenarios import flags_of, write_inputs
from helpers.tiny import WORLDS, custom_task, texts_of, write_encoder

import bert_tf
from bert_tf.data.tables import TableSettings
from bert_tf.families.recipe import number_of_steps
from bert_tf.store import card
from bert_tf.store.bundle import DATA_SUFFIX, CheckpointReader
from bert_tf.store.description import ModelFiles, SentenceSettings
from bert_tf.tasks import outcome, script
from bert_tf.tasks.choice import data as choice_data
from bert_tf.tasks.choice.task import ChoiceTask
from bert_tf.tasks.classification import data
from bert_tf.tasks.classification.settings import ClassificationSettings, declared_task
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.ner.task import NerTask
from bert_tf.tasks.similarity import data as similarity_data
from bert_tf.tasks.similarity.task import SimilarityTask
from bert_tf.tasks.squad.data import Paragraph, SquadData, SquadExample, SquadSettings
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.tasks.table import TASKS
from bert_tf.tasks.task import ExampleSet
from bert_tf.training import pretraining_run, run_directory
from bert_tf.training.fine_tuning import BestModel
from bert_tf.training.pretraining_settings import PretrainingSettings
from bert_tf.training.settings import FineTuningSettings


class CountingTask(ClassificationTask):
    computed = ()

    def outputs_of(self, predict, examples, **arguments):
        self.computed += (examples.name,)
        return super().outputs_of(predict, examples, **arguments)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("script")
    write_encoder(folder, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", *(f"w{n}" for n in range(93))])
    for name, count in (("train", 16), ("dev", 6)):
        rows = "".join(f"{('bad', 'good')[number % 2]} w{number},{number % 2}\n" for number in range(count))
        (folder / f"{name}.csv").write_text("text,label\n" + rows)
    return folder


def counting_run(folder, output_dir, epochs):
    settings = ClassificationSettings(
        task_name="custom", train_file=str(folder / "train.csv"), dev_file=str(folder / "dev.csv"), text_a="text",
        label="label",
    )  # fmt: skip
    run = FineTuningSettings(
        output_dir=str(output_dir), init_checkpoint=str(folder / "encoder"), do_train=True, do_eval=True,
        max_seq_length=8, train_batch_size=8, num_train_epochs=epochs,
    )  # fmt: skip
    return CountingTask(settings), run


def test_a_notebook_trains_and_a_step_is_evaluated_once(folder, caplog):
    task, run = counting_run(folder, folder / "run", 2)
    results = script.fine_tune(task, run)
    assert task.computed == ("dev", "dev")  # after each epoch, and not again at the end
    lines = (folder / "run" / "eval_results.txt").read_text().splitlines()
    written = {name: float(value) for name, value in (line.split(" = ") for line in lines)}
    assert results == pytest.approx(written, rel=1e-6) and results["global_step"] == 4
    best = json.loads((folder / "run" / "best_model" / "eval_results.json").read_text())["step"]
    for step, shown in ((best, best), (9, f"9 (the best is {best})")):  # of a picture
        title = task.title_of("dev", str(folder / "run"), {"eval_accuracy": 0.25, "global_step": step})
        assert title == f"dev, step {shown}: accuracy 0.250"
    settings = json.loads((folder / "run" / "run.json").read_text())
    assert settings["learning_rate"] == 5e-5 and settings["text_a"] == "text" and settings["finished_step"] == 4
    with pytest.raises(ValueError, match=r"finished run with other settings \(--num_train_epochs: 2 there, 1 now\)"):
        script.fine_tune(task, FineTuningSettings(**{**run.__dict__, "num_train_epochs": 1}))
    used = dataclasses.replace(run, do_train=False, init_checkpoint=run.output_dir, output_dir=str(folder / "used"))
    for text_b, warnings in ((None, 0), ("more", 1)):
        settings = dataclasses.replace(task.settings, text_b=text_b)
        ClassificationTask(settings).describe(used, run_directory.EarlierRun(""))
        said = "was trained on one text an example, and this run gives it two (--text_b)"
        assert caplog.text.count(said) == warnings
    # New data under the same name is not what the model was trained on.
    with (folder / "train.csv").open("a") as file:
        file.write("good news,1\n")
    with pytest.raises(ValueError, match=r"finished run with other settings \(the training data: 16 examples, checksum "
                       r"\w+ there, 17 examples, checksum \w+ now\)\. .* rm -r "):  # fmt: skip
        script.fine_tune(task, run)


@pytest.mark.parametrize(("examples", "epochs", "every", "steps"), [
    (87_594, 2, 0, [7299, 14599]), (16, 3, 0, [2, 4, 6]), (17, 8, 0, [2, 4, 6, 8, 10, 12, 14, 17]),
    (800, 2.25, 0, [100, 200, 225]), (800, 0.5, 0, [50]), (17, 8, 4, [4, 8, 12, 16, 17]),
])  # fmt: skip
def test_the_last_epoch_and_the_last_step_are_evaluated_once(examples, epochs, every, steps):
    """SQuAD's 87,594 rows in batches of 12 end their second epoch at step 14,598 of 14,599."""
    batch = 12 if examples > 1000 else 8
    run = FineTuningSettings(
        output_dir="out", do_train=True, train_batch_size=batch, num_train_epochs=epochs, eval_every_steps=every
    )
    task = types.SimpleNamespace(earlier=None, files=None, teacher=None, dev_sets=[1], train_rows=range(examples))
    count = number_of_steps(examples, batch, epochs)
    one = script._Run(task, run, tf.distribute.OneDeviceStrategy("CPU:0"), count)
    assert [step for step in range(1, count + 1) if one.is_due(step)] == steps


class KilledError(BaseException):
    """Not an error that anything would handle."""


def test_each_weight_is_saved_once_at_the_end_and_a_kill_there_loses_nothing(folder, tmp_path, monkeypatch):
    """Before the last evaluation the last checkpoint has no moments, and the same call goes on from there."""
    task, run = counting_run(folder, tmp_path / "run", 1)
    synced, sync = [], os.fsync

    def noted_sync(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    def kill(*_):
        raise KilledError

    monkeypatch.setattr(os, "fsync", noted_sync)
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(BestModel, "update", kill)
        script.fine_tune(task, run)
    prefix = str(tmp_path / "run" / "model.ckpt-2")
    saved = pathlib.Path(prefix + DATA_SUFFIX)
    content, names = saved.read_bytes(), CheckpointReader(prefix).get_variable_to_shape_map()
    assert "global_step" in names and not [name for name in names if "adam" in name]
    script.fine_tune(task, run)
    assert task.computed.count("dev") == 2 and saved.read_bytes() == content
    there = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"README.md", "loss.png", "eval_results.txt", "evaluations.jsonl", "best_model"} < there
    assert json.loads((tmp_path / "run" / "run.json").read_text())["finished_step"] == 2
    weights = [path for path in synced if re.search(r"\.data-|\.safetensors", path)]
    assert [os.path.basename(path) for path in weights] == ["model.data-00000-of-00001", "bert_model.safetensors"]
    assert len([path for path in synced if path.endswith("/whole")]) == 1  # what goes with the best model, together


def test_combinations_and_seeds_are_runs_in_folders_of_their_own(folder, tmp_path, monkeypatch, capsys):
    made = []

    class Run:
        keeper = types.SimpleNamespace(best=None)

        def __init__(self, _, run, *others):
            self.run = run
            made.append((os.path.relpath(run.output_dir, tmp_path), run.seed, run.learning_rate, run.train_batch_size))

        def check_output_dir(self):
            pass

        def execute(self):
            place = pathlib.Path(self.run.output_dir)
            for model, file in ((place.parent / "best_model", "of another run"), (place / "best_model", place.name)):
                model.mkdir(parents=True, exist_ok=True)
                (model / file).touch()
            (place / "eval_results.txt").write_text(place.name)
            score = self.run.learning_rate + self.run.seed
            return {"eval_accuracy": score, "eval_macro_f1": score, "eval_loss": 1.0, "loss": 1.5, "global_step": 4}

    monkeypatch.setattr(script, "_Run", Run)
    monkeypatch.setattr(script.outcome, "log_summary", lambda *_: None)
    task, run = counting_run(folder, tmp_path, 1)
    search = {"search": "learning_rate=1e-3,3e-3;train_batch_size=4", "train_batch_size": 32}
    results = script.fine_tune(task, dataclasses.replace(run, **search, num_seeds=2, seed=5))
    folders = [f"search-learning_rate={rate}-train_batch_size=4" for rate in ("0.001", "0.003")]
    rates = dict(zip(folders, (1e-3, 3e-3), strict=True))
    assert made == [(f"{name}/seed-{seed}", seed, rates[name], 4) for name in folders for seed in (5, 6)]
    assert results["eval_accuracy"] == 6.003 and (tmp_path / "eval_results.txt").read_text() == "seed-6"
    assert json.loads((tmp_path / "search.json").read_text())["best"]["learning_rate"] == 3e-3
    capsys.readouterr()
    seeds = {"output_dir": str(tmp_path / "seeds"), "num_seeds": 2, "seed": 5, "learning_rate": 0.25}
    script.fine_tune(task, dataclasses.replace(run, **seeds))
    content = json.loads((tmp_path / "seeds" / "seeds.json").read_text())
    assert (content["best_seed"], *content["seeds"]) == (6, "5", "6")
    summary = {"mean": 5.75, "min": 5.25, "max": 6.25, "standard_deviation": 0.5**0.5}
    assert content["summary"].pop("eval_accuracy") == pytest.approx(summary)
    assert content["summary"].keys() == {"eval_macro_f1", "eval_loss", "loss"}
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == ["eval_accuracy", "5.7500", "5.2500", "6.2500", "0.7071"]
    assert [line[0] for line in lines] == ["metric", "eval_accuracy", "eval_macro_f1", "eval_loss", "2"]
    assert os.listdir(tmp_path / "seeds" / "best_model") == ["seed-6"]  # and nothing of another run


@pytest.mark.parametrize(("name", "task", "settings"), [
    ("run_classifier", ClassificationTask, ClassificationSettings), ("run_squad", SquadTask, SquadSettings),
])  # fmt: skip
def test_a_dev_set_that_is_the_training_set_is_reported(name, task, settings, folder, tmp_path, monkeypatch, caplog):
    """SQuAD shuffles its training set."""
    write, suffix, own = WORLDS[name]
    for number, kind in enumerate(("train", "dev", "same")):
        write(tmp_path / f"{kind}.{suffix}", texts_of(8, number % 2))

    def stop(*_):
        raise InterruptedError

    monkeypatch.setattr(script, "_Run", stop)
    run = dataclasses.replace(counting_run(folder, tmp_path / "run", 1)[1], max_seq_length=16, train_batch_size=4)
    for kind in ("dev", "same"):
        assert "is the training set" not in caplog.text
        files = {"train_file": str(tmp_path / f"train.{suffix}"), "dev_file": str(tmp_path / f"{kind}.{suffix}")}
        with pytest.raises(InterruptedError):
            script.fine_tune(task(settings(**files, **own)), run)
    assert "is the training set: results on it say nothing about other texts" in caplog.text


def test_few_functions_are_between_main_and_the_model(folder, tmp_path, monkeypatch):
    """Those of ours between the start and the first call of a model in training."""
    calls, call = [], keras.layers.Layer.__call__

    def called(model, *inputs, training=False, **arguments):
        if training:
            names = [(frame.filename, frame.name) for frame in traceback.extract_stack()]
            last = max(number for number, (path, _) in enumerate(names) if "/bert_tf/training/" in path)
            calls.extend(name for path, name in names[: last + 1] if "/bert_tf/" in path)
            raise InterruptedError
        return call(model, *inputs, training=training, **arguments)

    monkeypatch.setattr(keras.layers.Layer, "__call__", called)
    settings = PretrainingSettings(**flags_of(write_inputs(tmp_path), str(tmp_path / "run")))
    for start, run in (
        ("run_task", lambda: script.run_task(*counting_run(folder, tmp_path / "tuned", 1))),
        ("run", lambda: pretraining_run.run(settings)),
    ):
        calls.clear()
        with pytest.raises(InterruptedError):
            run()
        assert calls == [start, "execute", "train", "_steps", "body", "replica_step", "_gradients"]


def test_the_table_of_tasks_names_what_there_is():
    for name, entry in TASKS.items():
        assert entry.name == name and (ROOT / entry.script).exists()
        assert entry.architecture is None or hasattr(bert_tf, entry.architecture)
        assert (entry.architecture is None) == (entry.output_layer is None)
        assert entry.answers is None or (entry.answers.startswith(entry.answerer) and "{path}" in entry.answers)
    assert {ClassificationTask.name, SquadTask.name, NerTask.name, SimilarityTask.name, ChoiceTask.name} <= TASKS.keys()


LAST = {"eval_f1": 0.0, "eval_loss": 3.0, "loss": 3.5, "global_step": 96}
BEST = {"eval_f1": 50.0, "step": 24}
TRAINED, USED = {"do_train": True, "do_predict": True}, {"use_best_model": True}
RESULTS = "eval_f1 0, eval_loss 3."
ADVICE = " To evaluate and predict with it, run the same command with --use_best_model."
PYTHON = 'In Python:\n  from bert_tf import QuestionAnswerer\n  QuestionAnswerer("out'


# Of the last run, of the best model, the settings -> what is said before the line of Python, where there is one.
@pytest.mark.parametrize(("results", "best", "settings", "said"), [
    (LAST, BEST, TRAINED, [
        f"Results of step 96, the last one: {RESULTS}", "Predictions: of step 96, the last one.",
        f"Best model: out/best_model (step 24, eval_f1 50.0000, compared with 0.0000 of step 96).{ADVICE}"]),
    (LAST | {"eval_f1": 50.0, "global_step": 24}, BEST, TRAINED | USED, [
        "Results of step 24, the best one: eval_f1 50, eval_loss 3.", "Predictions: of step 24, the best one.",
        "Best model: out/best_model (step 24, eval_f1 50.0000)."]),
    (LAST, BEST | {"step": 96}, {"do_train": True}, [
        f"Results of step 96, the last one: {RESULTS}",
        "Best model: out/best_model (step 96, eval_f1 50.0000)."]),
    (LAST, BEST, TRAINED | {"num_seeds": 2}, [
        f"Results of step 96, the last one, with seed 7: {RESULTS}",
        "Predictions: of step 96, the last one, with seed 7.",
        f"Best model: out/best_model (step 24, eval_f1 50.0000, compared with 0.0000 of step 96).{ADVICE}"]),
    ({}, None, TRAINED, ["Predictions: of step 96, the last one.",
                         "Model: out (the last step; a best_model needs a dev set)."]),
    (LAST, BEST, {"do_eval": True}, [f"Results of step 96: {RESULTS}"]),
    (LAST | {"global_step": 0}, BEST, {"do_eval": True}, [f"Results: {RESULTS}"]),
])  # fmt: skip
def test_what_is_said(tmp_path, caplog, results, best, settings, said):
    texts = ["누가?", 'Er "sagt": {path}.' + 80 * "x"] if best else []
    answers = 'QuestionAnswerer("{path}")("Who?", "Ada.")'
    task = types.SimpleNamespace(
        name="squad", dev_sets=texts, main_metric="eval_f1", known_texts=lambda: texts, answers=answers
    )
    trial = outcome.Trial({}, {7: results}, {7: best})
    with caplog.at_level("INFO"):
        outcome.log_summary(task, FineTuningSettings(output_dir=str(tmp_path), **settings), trial, 96)
    lines = [message.replace(str(tmp_path), "out") for message in caplog.messages]
    if "do_train" in settings:
        python = lines.pop()
        ending = f'/best_model")("누가?", "Er \\"sagt\\": {{path}}.{62 * "x"}...")' if best else '")("Who?", "Ada.")'
        assert python == PYTHON + ending
    assert lines == said


def test_the_loss_over_batches_is_not_shown_beside_that_over_examples():
    assert card.shown_results(LAST) == {"eval_f1": 0.0, "eval_loss": 3.0}
    assert card.shown_results({"loss": 1.0, "masked_lm_loss": 2.0, "step": 3}) == {"loss": 1.0, "masked_lm_loss": 2.0}


@pytest.mark.parametrize(("texts", "labels", "name", "expected"), [
    (["누가?", "Ada"], None, "squad", '("대한민국의 수도는 어디입니까?", "대한민국의 수도는 서울이다.")'),
    (["A film."], ["긍정", "부정"], "classification", '("대한민국의 수도는 서울이다.")'),
    (["映画です"], None, "classification", '("日本の首都は東京です。")'),
    (["电影"], None, "classification", '("中国的首都是北京。")'),
    (["Ein Film."], ["gut"], "classification", '("A text.")'),
])  # fmt: skip
def test_a_card_has_examples_in_the_script_of_the_data(texts, labels, name, expected):
    """But none of the data itself."""
    files = types.SimpleNamespace(head=types.SimpleNamespace(labels=labels))
    line = '{}("{{path}}")({})'.format(*(["QA", '"Who?", "Ada."'] if name == "squad" else ["P", '"A text."']))
    task = types.SimpleNamespace(name=name, known_texts=lambda: texts, files=files, answers=line)
    assert outcome.usage(task, card.PLACE, outcome.samples(task))[1].endswith(expected)


def test_an_answer_in_the_language_of_the_data():
    """The original's command has no dev set, but a file to predict; without that, training has its own."""
    train, predicted, dev = (
        SquadData([SquadExample("1", f"{who}?", Paragraph.from_context(f"{who} 왔다."))], [], [], "")
        for who in ("훈련", "예측", "평가")
    )
    task = SquadTask(None)
    task.train_data, task.files = train, types.SimpleNamespace(head=types.SimpleNamespace(labels=None))
    assert task.known_texts() == ["훈련?", "훈련 왔다."]
    task.test_sets = [types.SimpleNamespace(examples=predicted)]
    assert task.known_texts() == ["예측?", "예측 왔다."]
    assert outcome.samples(task)[0] == "대한민국의 수도는 어디입니까?"
    task.dev_sets = [types.SimpleNamespace(examples=dev)]
    assert task.known_texts() == ["평가?", "평가 왔다."]


CSV = '번호,text,label,date\nA-7,"good, ""really""\nvery",pos,1 May\nA-8,bad,,2 May\n'
JSON_LINES = (
    '{"번호": "A-7", "text": "good, \\"really\\"\\nvery", "label": "pos", "date": "1 May"}\n'
    '{"번호": "A-8", "text": "bad", "label": "", "date": "2 May"}\n'
)
NUMBERS = "A-7\tgood\tpos\nA-8\tbad\tneg\n"
ALL = {"번호": "A-7", "text": 'good, "really"\nvery', "input_label": "pos", "date": "1 May"}
LOGITS = np.array([[0.0, 2.0], [3.0, 0.0]], np.float32)


@pytest.mark.parametrize(("name", "content", "text_a", "copied", "guid", "columns"), [
    ("new.csv", CSV, "text", ["all"], "test-1", ALL),
    ("new.jsonl", JSON_LINES, "text", ["all"], "test-0", ALL),
    ("new.csv", CSV, "text", [" 번호"], "test-1", {"번호": "A-7"}),
    ("new.csv", CSV, "text", [], "test-1", {}),
    ("new.tsv", NUMBERS, "1", ["0", "-1"], "test-0", {"0": "A-7", "-1": "pos"}),
    ("new.tsv", NUMBERS, "1", ["all"], "test-0", {"0": "A-7", "1": "good", "2": "pos"}),
])  # fmt: skip
@pytest.mark.parametrize("several", [False, True])
def test_columns_of_a_classifiers_file(tmp_path, name, content, text_a, copied, guid, columns, several):
    (tmp_path / name).write_text(content, encoding="utf-8", newline="")
    file, labels = str(tmp_path / name), ["neg", "pos"]
    own = {"test_file": file, "text_a": text_a, "labels": labels, "multi_label": several, "copy_columns": copied}
    task = declared_task(ClassificationSettings(**own))
    run = ClassificationTask(None)
    run.task = task
    examples = data.read_examples(task, task.test["test"])
    run.write_predictions(str(tmp_path), ExampleSet("test", None, examples), LOGITS)
    first, second = lines_of(tmp_path / "predictions.jsonl")
    if several:
        columns = {{"input_label": "label"}.get(name, name): value for name, value in columns.items()}
    answer = {"labels": ["pos"]} if several else {"label": "pos"}
    assert list(first) == ["guid", *columns, *answer, "probabilities"]
    assert first == {"guid": guid, **columns, **answer, "probabilities": first["probabilities"]}
    assert second["guid"] != guid and second["labels" if several else "label"] == (["neg"] if several else "neg")


def test_pairs_and_choices(tmp_path):
    (tmp_path / "pairs.csv").write_text("id,query,positive,score\n7,a,b,0.5\n8,c,d,1\n")
    table = TableSettings(copy_columns=["id", "query", "score"])
    columns = similarity_data.Columns("query", "positive")
    examples = similarity_data.read_examples(str(tmp_path / "pairs.csv"), columns, table=table)
    vectors = np.array([[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]], np.float32)
    run = SimilarityTask(None)
    run.files = ModelFiles("", sentences=SentenceSettings(""))
    run.write_predictions(str(tmp_path), ExampleSet("test", None, examples), vectors)
    first, second = lines_of(tmp_path / "predictions.jsonl")
    assert first == {"guid": "0", "id": "7", "query": "a", "score": "0.5", "cosine": pytest.approx(1.0)}
    assert second["id"] == "8" and second["cosine"] == pytest.approx(0.0)
    (tmp_path / "choices.csv").write_text("id,context,choices0,choices1\n7,a,b,c\n8,d,e,f\n")
    table = TableSettings(copy_columns=["id", "context"])
    examples = choice_data.read_examples(str(tmp_path / "choices.csv"), labels_needed=False, table=table)
    ChoiceTask(None).write_predictions(str(tmp_path), ExampleSet("test", None, examples), LOGITS)
    rows = [(record["id"], record["context"], record["text"]) for record in lines_of(tmp_path / "predictions.jsonl")]
    assert rows == [("7", "a", "c"), ("8", "d", "e")]


def test_columns_that_are_not_there_or_not_used(tmp_path):
    path = str(tmp_path / "new.csv")
    (tmp_path / "new.csv").write_text(CSV, encoding="utf-8")
    own = {"task_name": "custom", "text_a": "text", "label": "label", "copy_columns": ["row"]}
    task = declared_task(ClassificationSettings(**own, test_file=path))
    with pytest.raises(ValueError, match=r"new\.csv, line 1: no 'row' for --copy_columns; found '번호', 'text'"):
        data.read_examples(task, task.test["test"])
    # Train and dev files need no such columns.
    task = custom_task(ClassificationSettings(**own | {"label": "date"}, train_file=path))
    assert task.labels == ("1 May", "2 May")

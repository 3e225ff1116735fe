"""The best model of a run: which one is kept, when to stop, and the state after a kill at any moment."""

import json

import pytest
from helpers.tiny import TINY_CONFIG

from bert_tf import BertConfig, BertForSequenceClassification
from bert_tf.store import save
from bert_tf.store.description import ModelFiles
from bert_tf.text.tokenizer_files import Casing
from bert_tf.training import fine_tuning
from bert_tf.training.fine_tuning import BestModel


@pytest.fixture(scope="module")
def model():
    model = BertForSequenceClassification(BertConfig.from_dict(TINY_CONFIG), num_labels=2)
    model.build()
    return model


@pytest.fixture
def make(model, tmp_path):
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("".join(f"t{number}\n" for number in range(100)))
    files = ModelFiles("", model.config, None, str(vocab), Casing(True), max_seq_length=17)
    (tmp_path / "run").mkdir()

    def make(step=0, **options) -> BestModel:
        return BestModel(str(tmp_path / "run"), files, "eval_f1", step, **options)

    return make


def evaluate(keeper, model, step, f1) -> None:
    model.head.output_bias.assign([float(step), 0.0])  # so that the saved weights say their step
    keeper.update(step, {"eval_f1": f1, "eval_loss": -f1}, model, {})


def saved_step(run) -> tuple:
    """The step according to the saved weights, and to the saved results."""
    directory = run / "best_model"
    weights = BertForSequenceClassification.from_pretrained(str(directory)).head.output_bias.numpy()[0]
    return int(weights), json.loads((directory / "eval_results.json").read_text())["step"]


def test_the_first_of_equals_is_kept_and_describes_itself(make, model, tmp_path):
    keeper = make()
    assert keeper.best is None and not keeper.should_stop()
    for step, f1 in ((10, 0.5), (20, 0.8), (30, 0.8), (40, 0.7)):
        evaluate(keeper, model, step, f1)
    assert keeper.best == {"step": 20, "eval_f1": 0.8, "eval_loss": -0.8}
    assert saved_step(tmp_path / "run") == (20, 20)
    names = {path.name for path in (tmp_path / "run" / "best_model").iterdir()}
    described = {"bert_config.json", "vocab.txt", "tokenizer_config.json", "eval_results.json", "README.md"}
    assert described < names and len(names) == 6
    card = (tmp_path / "run" / "best_model" / "README.md").read_text()
    assert "after step: 20\n" in card and "eval_f1: 0.8\n" in card
    tokenizer = json.loads((tmp_path / "run" / "best_model" / "tokenizer_config.json").read_text())
    assert tokenizer["model_max_length"] == 17 and tokenizer["do_lower_case"] is True
    lines = (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [10, 20, 30, 40]
    assert not [path for path in (tmp_path / "run").iterdir() if path.name not in ("best_model", "evaluations.jsonl")]


def test_patience_counts_evaluations_since_the_best(make, model):
    keeper = make(patience=2)
    told = []
    for step, f1 in ((1, 0.5), (2, 0.4), (3, 0.6), (4, 0.6), (5, 0.1)):
        evaluate(keeper, model, step, f1)
        told.append(keeper.should_stop())
    assert told == [False, False, False, False, True]
    assert make(5, patience=2).should_stop()  # a restarted run stays stopped
    assert not make(5, patience=3).should_stop() and not make(5).should_stop()
    assert not make(4, patience=2).should_stop()  # step 5 must be repeated


def test_workers_that_write_nothing_decide_alike(make, model, tmp_path):
    keeper = make(active=False, patience=1)
    for step, f1 in ((1, 0.5), (2, 0.4)):
        evaluate(keeper, model, step, f1)
    assert keeper.should_stop() and keeper.best["step"] == 1 and not list((tmp_path / "run").iterdir())


def test_after_a_kill_the_model_that_lies_there_stays_the_best_until_another_is_better(make, model, tmp_path):
    keeper = make()
    for step, f1 in ((10, 0.5), (20, 0.8), (30, 0.7)):
        evaluate(keeper, model, step, f1)
    again = make(15)  # the newest checkpoint was older than the best model
    assert [*again.evaluations] == [10] and again.best["step"] == 20
    evaluate(again, model, 20, 0.6)  # without deterministic kernels the same step may come out worse
    assert again.best["step"] == 20 and again.best["eval_f1"] == 0.8
    assert saved_step(tmp_path / "run") == (20, 20)
    (tmp_path / "run" / "best_model" / "bert_model.safetensors").unlink()  # a kill may leave a mix of files
    evaluate(again, model, 20, 0.8)
    assert saved_step(tmp_path / "run") == (20, 20)
    evaluate(again, model, 30, 0.81)
    assert again.best["step"] == 30 and saved_step(tmp_path / "run") == (30, 30)
    fresh = make(0)  # a run that starts anew
    assert fresh.best is None and not fresh.evaluations
    evaluate(fresh, model, 5, 0.1)
    assert saved_step(tmp_path / "run") == (5, 5)


@pytest.mark.parametrize("moment", ["before the weights", "after the weights", "before the list"])
def test_a_kill_while_the_best_model_is_written(make, model, tmp_path, monkeypatch, moment):
    """Weights and results always belong together, and the repeated evaluation ends as if undisturbed."""
    evaluate(make(), model, 10, 0.5)
    write_model, write_text_file = save.write_model, fine_tuning.write_text_file

    def write_model_or_die(*arguments, **options):
        if moment == "before the weights":
            raise KeyboardInterrupt
        write_model(*arguments, **options)

    def write_text_or_die(path, text):
        if moment == "after the weights" or path.endswith("evaluations.jsonl"):
            raise KeyboardInterrupt
        write_text_file(path, text)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(save, "write_model", write_model_or_die)
        patch.setattr(fine_tuning, "write_text_file", write_text_or_die)
        evaluate(make(10), model, 20, 0.8)
    again = make(15)
    if again.best:
        assert saved_step(tmp_path / "run") == (20, 20)
    for step, f1 in ((20, 0.8), (30, 0.7)):
        evaluate(again, model, step, f1)
    assert again.best["step"] == 20 and saved_step(tmp_path / "run") == (20, 20)
    lines = (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [10, 20, 30]

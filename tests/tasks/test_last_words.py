"""What a run says in the end: of which step results and predictions are, and what the best model has beside them."""

import json
import types

import pytest

from bert_tf.store import card
from bert_tf.tasks import outcome
from bert_tf.tasks.outcome import Trial
from bert_tf.tasks.squad.data import Paragraph, SquadData, SquadExample
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.training.settings import FineTuningSettings

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
                         "Model: out (the last step; without a dev set there is no best one)."]),
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


def test_the_loss_over_batches_is_not_shown_beside_that_over_examples(tmp_path):
    """eval_results.txt and seeds.json keep it."""
    assert card.shown_results(LAST) == {"eval_f1": 0.0, "eval_loss": 3.0}
    assert card.shown_results({"loss": 1.0, "masked_lm_loss": 2.0, "step": 3}) == {"loss": 1.0, "masked_lm_loss": 2.0}
    (tmp_path / "seed-1").mkdir()
    table = outcome.write_seeds(str(tmp_path), Trial({}, {1: LAST, 2: LAST}), "eval_f1")
    assert [line.split()[0] for line in table.splitlines()] == ["metric", "eval_f1", "eval_loss", "2"]
    assert "loss" in json.loads((tmp_path / "seeds.json").read_text())["summary"]


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

"""What a run says in the end: of which step results and predictions are, and what the best model has beside them."""

import json
import types

import pytest

from bert_tf.models import card
from bert_tf.tasks import outcome
from bert_tf.tasks.outcome import Tried
from bert_tf.tasks.squad.data import Paragraph, SquadData, SquadExample
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.training.settings import FineTuningSettings

LAST = {"eval_f1": 0.0, "eval_loss": 3.0, "loss": 3.5, "global_step": 96}
BEST = {"eval_f1": 50.0, "step": 24}


def said(tmp_path, caplog, results=LAST, best=BEST, seed=12345, **settings):
    texts = ["누가?", 'Er "sagt": {path}.' + 80 * "x"] if best else []
    answers = 'QuestionAnswerer("{path}")("Who?", "Ada.")'
    task = types.SimpleNamespace(
        name="squad", dev_sets=texts, main_metric="eval_f1", known_texts=lambda: texts, answers=answers
    )
    (tmp_path / "best_model").mkdir(exist_ok=True)
    (tmp_path / "best_model" / "eval_results.json").write_text(json.dumps(best))
    caplog.clear()
    with caplog.at_level("INFO"):
        run = FineTuningSettings(output_dir=str(tmp_path), **settings)
        outcome.tell(task, run, results, seed, 96)
    return [message.replace(str(tmp_path), "out") for message in caplog.messages]


def test_the_best_model_stands_beside_the_last_step(tmp_path, caplog):
    *lines, python = said(tmp_path, caplog, do_train=True, do_predict=True)
    assert lines == [
        "Results of step 96, the last one: eval_f1 0, eval_loss 3.",
        "Predictions: of step 96, the last one.",
        "Best model: out/best_model (step 24, eval_f1 50.0000 beside 0.0000 of step 96). To evaluate and predict with "
        "it, run the same command with --use_best_model.",
    ]
    assert python == (
        "In Python:\n  from bert_tf import QuestionAnswerer\n"
        f'  QuestionAnswerer("out/best_model")("누가?", "Er \\"sagt\\": {{path}}.{62 * "x"}...")'
    )


def test_where_both_are_one(tmp_path, caplog):
    best = {**LAST, "eval_f1": 50.0, "global_step": 24}
    lines = said(tmp_path, caplog, best, do_train=True, do_predict=True, use_best_model=True)
    assert lines[:3] == [
        "Results of step 24, the best one: eval_f1 50, eval_loss 3.",
        "Predictions: of step 24, the best one.",
        "Best model: out/best_model (step 24, eval_f1 50.0000).",
    ]
    lines = said(tmp_path, caplog, best={**BEST, "step": 96}, do_train=True)
    assert lines[1] == "Best model: out/best_model (step 96, eval_f1 50.0000)."


@pytest.mark.parametrize("search", [None, "learning_rate=1e-5,2e-5"])
def test_several_runs(tmp_path, caplog, search):
    lines = said(tmp_path, caplog, seed=7, do_train=True, do_predict=True, num_seeds=2, search=search)
    assert lines[0].startswith("Results of step 96, the last one, with seed 7: eval_f1 0")
    assert lines[1] == "Predictions: of step 96, the last one, with seed 7."
    assert "beside 0.0000 of step 96" in lines[2]


def test_without_a_dev_set_or_without_training(tmp_path, caplog):
    lines = said(tmp_path, caplog, {}, None, do_train=True, do_predict=True)
    assert lines[0] == "Predictions: of step 96, the last one."
    assert lines[1] == "Model: out (the last step; without a dev set there is no best one)."
    assert lines[2].endswith('QuestionAnswerer("out")("Who?", "Ada.")')
    assert said(tmp_path, caplog, do_eval=True) == ["Results of step 96: eval_f1 0, eval_loss 3."]
    assert said(tmp_path, caplog, {**LAST, "global_step": 0}, do_eval=True) == ["Results: eval_f1 0, eval_loss 3."]
    assert said(tmp_path, caplog, do_predict=True) == []


def test_the_loss_over_batches_is_not_shown_beside_that_over_examples(tmp_path):
    """eval_results.txt and seeds.json keep it."""
    assert card.shown_results(LAST) == {"eval_f1": 0.0, "eval_loss": 3.0}
    assert card.shown_results({"loss": 1.0, "masked_lm_loss": 2.0, "step": 3}) == {"loss": 1.0, "masked_lm_loss": 2.0}
    (tmp_path / "seed-1").mkdir()
    table = outcome.write_seeds(str(tmp_path), Tried({}, {1: LAST, 2: LAST}), "eval_f1")
    assert [line.split()[0] for line in table.splitlines()] == ["metric", "eval_f1", "eval_loss", "2"]
    assert "loss" in json.loads((tmp_path / "seeds.json").read_text())["summary"]
    values = {"learning_rate": 1e-5}
    header = outcome.table_text([Tried(values, {1: LAST})], "eval_f1").splitlines()[0]
    assert header.split("|")[1:-1] == [" learning_rate ", " eval_f1 ", " eval_loss "]


@pytest.mark.parametrize(
    ("texts", "labels", "name", "expected"),
    [
        (["누가?", "Ada"], None, "squad", '("대한민국의 수도는 어디입니까?", "대한민국의 수도는 서울이다.")'),
        (["A film."], ["긍정", "부정"], "classification", '("대한민국의 수도는 서울이다.")'),
        (["映画です"], None, "classification", '("日本の首都は東京です。")'),
        (["电影"], None, "classification", '("中国的首都是北京。")'),
        (["Ein Film."], ["gut"], "classification", '("A text.")'),
    ],
)
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
    assert outcome.usage(task, "out", task.known_texts())[1].endswith('("out")("평가?", "평가 왔다.")')

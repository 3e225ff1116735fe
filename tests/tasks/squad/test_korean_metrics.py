"""Scores by characters, against numbers of the scripts of KorQuAD 1.0 and KLUE-MRC, and by hand."""

import pytest
from helpers.squad import articles_of

from bert_tf.tasks.squad.outputs import best_threshold, evaluate, klue_scores, korquad_scores

# gold, predicted, what KorQuAD's script gives, what KLUE's gives. All were run: they also agree on 34,644 pairs made of
# KorQuAD's dev set.
PAIRS = [
    ("2일 동안", "2일", (0.0, 2 / 3), (0.0, 4 / 7)),
    ("《태백산맥》", "소설 태백산맥(1989)", (0.0, 8 / 14), (0.0, 8 / 17)),
    ("가나다라", "가나마라", (0.0, 0.75), (0.0, 0.5)),
    ("<Seoul>, Korea", "seoul korea", (1.0, 1.0), (1.0, 1.0)),
    ("1989년 2월 15일", "1989년 2월", (0.0, 14 / 17), (0.0, 16 / 20)),
    ("'", ".", (1.0, 0.0), (1.0, 1.0)),
    ("가", "", (0.0, 0.0), (0.0, 0.0)),
    ("", "", (1.0, 1.0), (1.0, 1.0)),
    ("", "가", (0.0, 0.0), (0.0, 0.0)),
]


@pytest.mark.parametrize(("gold", "predicted", "korquad", "klue"), PAIRS)
def test_scores_of_an_answer(gold, predicted, korquad, klue):
    assert korquad_scores(gold, predicted) == pytest.approx(korquad, abs=1e-15)
    assert klue_scores(gold, predicted) == pytest.approx(klue, abs=1e-15)


def test_the_best_of_several_answers_counts_and_what_is_missing_is_wrong():
    articles = articles_of({"a": ["서울 시청", "시청"], "b": ["가나다라"], "c": ["x"]})
    predictions = {"a": "시청", "b": "가나마라"}
    scores = evaluate(articles, predictions, metric="korquad")
    assert scores == pytest.approx({"exact_match": 100 / 3, "f1": 175 / 3})
    scores = evaluate(articles, predictions, metric="klue")
    assert scores == pytest.approx({"exact_match": 100 / 3, "rouge_w": 150 / 3})
    assert evaluate(articles, predictions)["f1"] == pytest.approx(100 / 3)  # by words b has nothing in common


def test_questions_without_answers_and_the_threshold():
    articles = articles_of({"a": ["가나다라"], "b": [], "c": ["시청"]})
    best, odds = {"a": "가나마라", "b": "가", "c": "시청"}, {"a": -5.0, "b": 2.0, "c": 1.0}
    scores = evaluate(articles, {"a": "가나마라", "b": "", "c": ""}, True, odds, best, metric="klue")
    assert scores == pytest.approx({
        "exact_match": 100 / 3, "rouge_w": 50.0, "HasAns_exact": 0.0, "HasAns_rouge_w": 25.0, "NoAns_exact": 100.0,
        "NoAns_rouge_w": 100.0, "best_exact": 200 / 3, "best_exact_threshold": 1.5, "best_rouge_w": 250 / 3,
        "best_rouge_w_threshold": 1.5,
    })  # fmt: skip
    assert best_threshold(articles, odds, best, "klue") == 1.5
    scores = evaluate(articles, dict.fromkeys("abc", ""), True, odds, dict.fromkeys("abc", "x"), metric="korquad")
    assert (scores["f1"], scores["best_f1"], scores["best_f1_threshold"]) == pytest.approx((100 / 3, 100 / 3, -5.5))

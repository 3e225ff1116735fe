"""Scores to answers, as the original's files have them, and exact match and F1: the official figures of systems."""

import copy
import dataclasses
import functools
import json

import numpy as np
import pytest
from helpers.basics import lines_of, slow

from bert_tf.run_squad import get_final_text
from bert_tf.tasks.squad import answers
from bert_tf.tasks.squad import metrics as squad_outputs
from bert_tf.tasks.squad.answers import Answer, Prediction, PredictionSettings, SpanScores, predict_answers
from bert_tf.tasks.squad.data import Paragraph, SquadExample, read_articles, read_squad_examples
from bert_tf.tasks.squad.metrics import best_threshold, evaluate, klue_scores, korquad_scores
from bert_tf.tasks.squad.windows import WindowSettings, build_windows

# From the README of the data: exact match, F1 and, for 2.0, each with HasAns and NoAns (F1 and exact match of
# unanswerable questions are the same).
PUBLISHED = {
    "1.1/BERT_ensemble": (86.20624, 92.19558),
    "1.1/Logistic_Regression_Baseline": (40.14191, 50.98154),  # 50.98158 there; see docs/results.md
    "1.1/Match-LSTM": (67.63482, 76.75556),
    "1.1/SLQA+_ensemble": (81.94891, 88.38386),
    "1.1/r-net+_ensemble": (82.46925, 88.47786),
    "v2.0/BERT_single_model": (78.74168, 81.77528, 74.10594, 80.18183, 83.36417),
    "v2.0/BiDAF_+_Self_Attention_+_ELMo": (65.70370, 67.87649, 61.42038, 65.77219, 69.97477),
    "v2.0/nlnet_single_model": (75.82750, 78.77777, 69.61876, 75.52774, 82.01850),
}


def articles_of(questions: dict[str, list[str]]) -> list[dict]:
    qas = [{"id": key, "is_impossible": not answers, "answers": answers} for key, answers in questions.items()]
    qas = [one | {"question": "?", "answers": [{"text": text} for text in one["answers"]]} for one in qas]
    return [{"paragraphs": [{"context": "x", "qas": qas}]}]


@functools.cache
def articles_in(path) -> list[dict]:
    return read_articles(str(path))


SOME = ("1.1/BERT_ensemble", "1.1/Logistic_Regression_Baseline", "v2.0/BERT_single_model")


@pytest.mark.parametrize("system", [*SOME, *slow(*(system for system in PUBLISHED if system not in SOME))])
def test_published_systems(shared, system):
    folder = shared / "data" / "squad"
    version, name = system.split("/")
    (path,) = [path for path in (folder / "predictions" / version).iterdir() if path.name.startswith(name)]
    articles = articles_in(folder / f"dev-v{version[-3:]}.json")
    scores = evaluate(articles, json.loads(path.read_text(encoding="utf-8")), version == "v2.0")
    names = ["exact_match", "f1"]
    if version == "v2.0":
        names += ["HasAns_exact", "HasAns_f1", "NoAns_exact"]
        assert scores["NoAns_f1"] == scores["NoAns_exact"]
    # Some of the figures there are cut off after five decimals, others rounded.
    assert [scores[name] for name in names] == pytest.approx(PUBLISHED[system], rel=0, abs=1e-5)
    assert set(scores) == set(names) | ({"NoAns_f1"} if version == "v2.0" else set())


VERSION_2 = squad_outputs.QuestionAnsweringSettings(WindowSettings(), PredictionSettings(version_2_with_negative=True))
QUESTIONS = {"a": ["ada"], "b": [], "c": ["brown"], "d": [], "e": ["ada"]}
BEST = {"a": "ada", "b": "x", "c": "brown", "d": "y", "e": "ada w w"}
ODDS = {"a": -3.0, "b": -1.0, "c": 1.0, "d": 4.0, "e": 2.0}


def test_best_threshold_by_hand():
    """Answers are let in by rising odds: none 2 right (b, d); a 3; b 2; c 3; e 3 (F1 3.5); d 2 (2.5)."""
    articles = articles_of(QUESTIONS)
    before = copy.deepcopy(articles)
    scores = evaluate(articles, dict.fromkeys(QUESTIONS, ""), True, ODDS, BEST)
    assert scores["exact_match"] == 40.0
    assert (scores["best_exact"], scores["best_exact_threshold"]) == pytest.approx((60.0, -3.0))
    assert (scores["best_f1"], scores["best_f1_threshold"]) == pytest.approx((70.0, 2.0))
    assert articles == before
    # Questions without the key answers.
    expected = evaluate(articles, BEST, True, ODDS, BEST)
    for question in articles[0]["paragraphs"][0]["qas"]:
        if not question["answers"]:
            del question["answers"]
    assert evaluate(articles, BEST, True, ODDS, BEST) == expected
    assert "answers" not in articles[0]["paragraphs"][0]["qas"][1]


def test_only_answerable_or_only_impossible_questions():
    scores = evaluate(articles_of({"a": ["x y z"]}), {"a": "x"}, True)
    assert scores == {"exact_match": 0.0, "f1": 50.0, "HasAns_exact": 0.0, "HasAns_f1": 50.0}
    scores = evaluate(articles_of({"a": [], "b": []}), {"a": "x", "b": ""}, True)
    assert scores == {"exact_match": 50.0, "f1": 50.0, "NoAns_exact": 50.0, "NoAns_f1": 50.0}


def data_of(path, questions):
    path.write_text(json.dumps({"data": articles_of(questions)}))
    return read_squad_examples([str(path)], False, True)


def test_the_chosen_threshold_reaches_the_score_it_promised(tmp_path):
    data, best = data_of(tmp_path / "dev.json", QUESTIONS), {key: Answer(text, 1.0, 1.0) for key, text in BEST.items()}
    predictions = [Prediction("", [answer], answer, ODDS[key]) for key, answer in best.items()]
    chosen = squad_outputs.choose_threshold(VERSION_2, data, predictions)
    assert chosen.predictions == dataclasses.replace(VERSION_2.predictions, null_score_diff_threshold=3.0)
    applied = squad_outputs.apply_threshold(predictions, 3.0)
    assert squad_outputs.score(data, applied, True)["eval_f1"] == pytest.approx(70.0)
    # In version 1 there is nothing to choose, and without odds there is nothing to apply a threshold to.
    version_1 = squad_outputs.QuestionAnsweringSettings(WindowSettings(), PredictionSettings())
    assert squad_outputs.choose_threshold(version_1, data, applied) is version_1
    plain = [dataclasses.replace(prediction, null_odds=None) for prediction in predictions]
    assert squad_outputs.apply_threshold(plain, 1e9) == plain
    nothing = [dataclasses.replace(prediction, best=None) for prediction in applied]
    assert {prediction.text for prediction in squad_outputs.apply_threshold(nothing, 1e9)} == {""}


INFINITE = float("inf")


@pytest.mark.parametrize(("odds", "f1", "answered"), [
    # All answers are right: answer everything.
    ((-INFINITE, 0.0, 1.7e308), 100.0, 3),
    # What has infinite odds can't be answered at any finite threshold.
    ((-1.0, 0.0, INFINITE), 200 / 3, 2),
    # No question has an answer: never answer, except at odds of minus infinity.
    ((-3.0, -2.0, -1.0, None), 100.0, 0),
    ((-INFINITE, 0.0, INFINITE, None), 200 / 3, 1),
    # The first is right, the second should not be answered, the third is right: the first alone, or all of them.
    ((-3.0, -2.0, -1.0, "x"), 200 / 3, 1),
    ((0.0, 0.0, 1.0, "x"), 200 / 3, 3),  # the first two share their odds: not the first alone
    ((1.0, 1.0 + 2**-52, 3.0, "x"), 200 / 3, 1),  # neighbours among the numbers
])  # fmt: skip
def test_the_stored_threshold_reaches_the_best_f1(tmp_path, odds, f1, answered):
    impossible = {None: "abc", "x": "b"}.get(odds[-1] if len(odds) == 4 else "", "")
    data = data_of(tmp_path / "dev.json", {key: [] if key in impossible else ["ada"] for key in "abc"})
    best = Answer("ada", 1.0, 1.0, 0.5)
    predictions = [Prediction("", [best], best, value) for value in odds[:3]]

    def score_at(threshold):
        applied = squad_outputs.apply_threshold(predictions, threshold)
        return squad_outputs.score(data, applied, True)["eval_f1"], sum(bool(each.text) for each in applied)

    content = squad_outputs.choose_threshold(VERSION_2, data, predictions).to_json()
    assert "Infinity" not in content and "NaN" not in content  # which are no JSON
    (tmp_path / squad_outputs.SETTINGS_FILE).write_text(content)
    stored = squad_outputs.QuestionAnsweringSettings.read(str(tmp_path)).predictions.null_score_diff_threshold
    assert score_at(stored) == (pytest.approx(f1), answered)
    others = [value for value in (*odds[:3], -1e308, 1e308) if abs(value) != INFINITE]
    assert max(score_at(threshold)[0] for threshold in others) <= f1 + 1e-9


def test_settings_are_kept(tmp_path):
    settings = squad_outputs.QuestionAnsweringSettings(
        WindowSettings(100, 20, 30, "offsets"), PredictionSettings(7, 8, True, -1.25, "offsets")
    )
    path = tmp_path / "question_answering.json"
    assert squad_outputs.QuestionAnsweringSettings.read(str(tmp_path)) is None
    path.write_text(settings.to_json())
    assert squad_outputs.QuestionAnsweringSettings.read(str(tmp_path)) == settings
    assert json.loads(path.read_text()) == {
        "answer_from": "offsets", "doc_stride": 20, "max_answer_length": 8, "max_query_length": 30,
        "max_seq_length": 100, "n_best_size": 7, "null_score_diff_threshold": -1.25, "version_2_with_negative": True,
    }  # fmt: skip
    path.write_text('{"doc_stride": 0}')
    with pytest.raises(ValueError, match="doc_stride"):
        squad_outputs.QuestionAnsweringSettings.read(str(tmp_path))


# What KorQuAD's script and KLUE's gave. They also agree on 34,644 pairs made of KorQuAD's dev set.
@pytest.mark.parametrize(("gold", "predicted", "korquad", "klue"), [
    ("2일 동안", "2일", (0.0, 2 / 3), (0.0, 4 / 7)),
    ("《태백산맥》", "소설 태백산맥(1989)", (0.0, 8 / 14), (0.0, 8 / 17)),
    ("가나다라", "가나마라", (0.0, 0.75), (0.0, 0.5)),
    ("<Seoul>, Korea", "seoul korea", (1.0, 1.0), (1.0, 1.0)),
    ("1989년 2월 15일", "1989년 2월", (0.0, 14 / 17), (0.0, 16 / 20)),
    ("'", ".", (1.0, 0.0), (1.0, 1.0)),
    ("가", "", (0.0, 0.0), (0.0, 0.0)),
    ("", "", (1.0, 1.0), (1.0, 1.0)),
    ("", "가", (0.0, 0.0), (0.0, 0.0)),
])  # fmt: skip
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
    assert best_threshold(articles, odds, best, "klue") == pytest.approx((250 / 3, 1.5))
    scores = evaluate(articles, dict.fromkeys("abc", ""), True, odds, dict.fromkeys("abc", "x"), metric="korquad")
    assert (scores["f1"], scores["best_f1"], scores["best_f1_threshold"]) == pytest.approx((100 / 3, 100 / 3, -5.5))


PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "which", "year", "?", "ada", "brown", "(", ")", "1801", "met"]


@pytest.mark.parametrize("version", ["v1.1", "v2.0"])
def test_final_texts_equal_the_original(golden, version):
    records = lines_of(golden / "squad" / f"final_text-{version}.jsonl.gz")
    for record in records:
        found = get_final_text(*(record[name] for name in ("pred_text", "orig_text", "do_lower_case")))
        assert found == record["result"], record
    assert len(records) == {"v1.1": 573, "v2.0": 453}[version]


def ask(*contexts, question="Which year?"):
    return [SquadExample(f"q{number}", question, Paragraph.from_context(text)) for number, text in enumerate(contexts)]


def logits(length, values, rest=-100.0):
    row = np.full(length, rest, np.float32)
    for place, value in values.items():
        row[place] = value
    return row


def predict(tokenizer, examples, starts, ends, length=16, stride=128, query=4, **settings):
    answer_from = settings.get("answer_from", "words")
    windows = build_windows(examples, tokenizer, WindowSettings(length, stride, query, answer_from), False)
    return list(predict_answers(examples, windows, SpanScores(starts, ends), tokenizer, PredictionSettings(**settings)))


STARTS, ENDS = {0: -1.57, 5: -2.61, 6: -2.92}, {0: 0.81, 5: -2.62, 6: 1.55}


@pytest.mark.parametrize("answer_from", ["words", "offsets"])
def test_scores_of_the_specification(small, answer_from):
    (prediction,) = predict(
        small, ask("ada brown"), [logits(8, STARTS)], [logits(8, ENDS)],
        version_2_with_negative=True, answer_from=answer_from,
    )  # fmt: skip
    assert [answer.text for answer in prediction.nbest] == ["", "ada brown", "brown", "ada"]
    probabilities = [answer.probability for answer in prediction.nbest]
    assert probabilities == pytest.approx([0.435613, 0.322710, 0.236691, 0.004987], abs=1e-6)
    assert sum(probabilities) == pytest.approx(1.0, abs=1e-12)
    assert prediction.text == "" and prediction.null_odds == pytest.approx(0.3, abs=1e-6)
    assert prediction.best.text == "ada brown" and prediction.best.score == pytest.approx(-1.06, abs=1e-6)
    places = [(None, None), (0, 9), (4, 9), (0, 3)]
    assert [(answer.start, answer.end) for answer in prediction.nbest] == places


@pytest.mark.parametrize("answer_from", ["words", "offsets"])
def test_candidates_are_written_with_their_places(small, tmp_path, answer_from):
    """After the original's keys; by words, other spaces count as one in the text alone."""
    context = "\t(Ada\n  brown) met"  # tokens 5 to 9 of 11
    starts, ends = [logits(11, {6: 4.0})], [logits(11, {7: 3.0, 6: 2.0, 9: 1.0})]
    (prediction,) = predict(small, ask(context), starts, ends, n_best_size=3, answer_from=answer_from)
    answers.write_predictions(str(tmp_path), ["q"], [prediction])
    rows = json.loads((tmp_path / "nbest_predictions.json").read_text())["q"]
    assert list(rows[0]) == ["text", "probability", "start_logit", "end_logit", "start", "end"]
    assert [(row["start"], row["end"]) for row in rows] == [(2, 13), (2, 5), (2, 18)]
    between = " " if answer_from == "words" else "\n  "
    assert [row["text"] for row in rows] == [f"Ada{between}brown", "Ada", f"Ada{between}brown) met"]


def test_limits(small):
    """Longest answer, number of candidates; an end before its start and tokens outside the context are not answers."""
    context = "ada brown met ada 1801"  # tokens 5 to 9 of 11
    starts, ends = logits(11, {5: 4.0, 7: 3.0, 3: 50.0}), logits(11, {6: 2.0, 9: 2.5, 10: 50.0})

    def texts(**settings):
        (prediction,) = predict(small, ask(context), [starts], [ends], **settings)
        return [answer.text for answer in prediction.nbest]

    assert texts(n_best_size=3)[:3] == ["ada brown met ada 1801", "ada brown", "met ada 1801"]
    assert texts(n_best_size=3, max_answer_length=4) == ["ada brown", "met ada 1801"]
    assert texts(n_best_size=3, max_answer_length=2) == ["ada brown"]
    assert texts(n_best_size=2) == ["ada brown met ada 1801"]  # of starts 3 and 5, of ends 10 and 9
    assert texts(n_best_size=1) == ["empty"]  # only 3 and 10: in question and [SEP], as in the original
    assert texts(n_best_size=3, answer_from="offsets", max_answer_length=1)[0] == ""


@pytest.mark.parametrize("answer_from", ["words", "offsets"])
@pytest.mark.parametrize("context", ["", " \n ", "\u200b"])
def test_empty_contexts(small, context, answer_from):
    examples = ask("ada brown", context, "brown")
    starts, ends = [logits(8, {5: 1.0}), logits(7, {5: 1.0})], [logits(8, {6: 1.0}), logits(7, {5: 1.0})]
    first, empty, last = predict(small, examples, starts, ends, answer_from=answer_from)
    assert (first.text, last.text) == ("ada brown", "brown")
    word = "empty" if answer_from == "words" else ""  # the original's word for it
    assert empty.text == word and empty.best == (empty.nbest[0] if word else None)
    assert empty.nbest == [Answer(word, 0.0, 0.0, 1.0)] and empty.null_odds is None
    version_2 = {"answer_from": answer_from, "version_2_with_negative": True, "null_score_diff_threshold": 1e9}
    first, empty, last = predict(small, examples, starts, ends, **version_2)
    assert (first.text, empty.text, last.text) == ("ada brown", "", "brown")
    assert empty.nbest == [Answer("", 0.0, 0.0, 1.0)] and empty.null_odds == answers.NO_NULL_SCORE == 1e6


@pytest.mark.parametrize(("at_once", "answer_from"), [(2048, "words"), (3, "offsets")])
def test_against_the_definition(small, monkeypatch, at_once, answer_from):
    """All spans of all windows, without shortcuts. With n_best_size 1 the best span is none of the candidates."""
    monkeypatch.setattr(answers, "_WINDOWS_AT_ONCE", at_once)
    generator = np.random.default_rng(2)
    examples = ask(*("ada brown met ( 1801 ) " * count for count in (1, 2, 3)))
    windows = build_windows(examples, small, WindowSettings(12, 3, 4), False)
    starts, ends = ([generator.normal(size=length).astype(np.float32) for length in windows.lengths] for _ in range(2))
    found = predict(small, examples, starts, ends, 12, 3, max_answer_length=3)
    for values in (*starts, *ends):
        values[0] = 99.0  # so that no other span is a candidate
    none = {"n_best_size": 1, "version_2_with_negative": True, "answer_from": answer_from}
    found_alone = predict(small, examples, starts, ends, 12, 3, max_answer_length=3, **none)
    for number, (prediction, alone) in enumerate(zip(found, found_alone, strict=True)):
        scores = []
        for row in np.flatnonzero(windows.example_index == number):
            base, length = int(windows.offsets[row]), int(windows.lengths[row])
            for first in range(5, length - 1):
                for last in range(first, min(first + 3, length - 1)):
                    if windows.max_context[base + first]:
                        scores.append(float(starts[row][first]) + float(ends[row][last]))
        assert prediction.nbest[0].score == alone.best.score == max(scores)
        assert [answer.text for answer in alone.nbest] == [""]
        assert alone.null_odds == 198.0 - alone.best.score and alone.text == ""


def test_of_equal_ids_the_last_counts_and_no_questions_make_empty_files(tmp_path):
    nbest = [Answer("x", 1.0, 1.0, 1.0)]
    predictions = [Prediction(text, nbest, nbest[0], None) for text in ("first", "other", "last")]
    for count, content in ((3, {"a": "last", "b": "other"}), (0, {})):
        answers.write_predictions(str(tmp_path), ["a", "b", "a"][:count], predictions[:count])
        assert json.loads((tmp_path / "predictions.json").read_text()) == content
        assert not (tmp_path / "null_odds.json").exists()

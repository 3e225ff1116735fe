"""Scores to answers: the original's files byte for byte, the cases in which it crashes, and answers by offsets."""

import json

import numpy as np
import pytest
from helpers.paths import lines_of
from helpers.small_data import SQUAD_SIZES

from bert_tf.tasks.squad import answers
from bert_tf.tasks.squad.answers import (
    NO_NULL_SCORE,
    Answer,
    Prediction,
    PredictionSettings,
    SpanScores,
    predict_answers,
    write_predictions,
)
from bert_tf.tasks.squad.data import Paragraph, SquadExample, read_squad_examples
from bert_tf.tasks.squad.windows import WindowSettings, build_windows
from bert_tf.text.wordpiece import BasicTokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "which", "year", "?", "ada", "brown", "(", ")", "1801", "met"]


def golden_case(folder, questions, name, tokenizer):
    version, size = name.split("-")[1:3]
    settings = json.loads((folder / name / "settings.json").read_text())
    assert settings.pop("do_lower_case")
    data = read_squad_examples([str(questions / f"predict-{version}.json")], False, version == "v2.0")
    windows = build_windows(data.examples, tokenizer, WindowSettings(*SQUAD_SIZES[size]), False)
    with np.load(folder / f"logits-{version}-{size}.npz") as logits:
        assert logits["unique_ids"].tolist() == windows.unique_ids.tolist()
        starts, ends = logits["start_logits"], logits["end_logits"]
    return data.examples, windows, starts, ends, PredictionSettings(**settings)


def test_where_the_original_crashed(shared, golden, english):
    folder, name = shared / "golden" / "squad", "output-v2.0-S384-nbest10-len8"
    assert json.loads((folder / name / "crash.json").read_text())["exception"] == "AttributeError"
    examples, windows, starts, ends, settings = golden_case(folder, golden / "squad", name, english)
    predictions = list(predict_answers(examples, windows, SpanScores(starts, ends), english, settings))
    assert len(predictions) == len(examples) == 44
    rescued = 0
    for number, prediction in enumerate(predictions):
        assert prediction.nbest and prediction.best and prediction.best.text in " ".join(examples[number].doc_tokens)
        # The text of the best span may be that of another with equal score; its score and the odds are fixed.
        rows = np.flatnonzero(windows.example_index == number)
        null = min(float(starts[row][0]) + float(ends[row][0]) for row in rows)
        assert prediction.null_odds == pytest.approx(null - prediction.best.score, abs=1e-12)
        assert prediction.text == ("" if prediction.null_odds > -1.5 else prediction.best.text)
        if all(answer.text == "" for answer in prediction.nbest):
            rescued += 1
            assert [answer.probability for answer in prediction.nbest] == [1.0]
            scores = []
            for row in rows:
                base, length = int(windows.offsets[row]), int(windows.lengths[row])
                for first in range(length):
                    for last in range(first, min(first + 8, length)):
                        if windows.max_context[base + first] and windows.words[base + last] >= 0:
                            scores.append(float(starts[row][first]) + float(ends[row][last]))
            assert prediction.best.score == max(scores)
    assert rescued >= 1


@pytest.mark.parametrize("version", ["v1.1", "v2.0"])
def test_final_texts_equal_the_original(golden, version):
    basics = {case: BasicTokenizer(case) for case in (True, False)}
    records = lines_of(golden / "squad" / f"final_text-{version}.jsonl.gz")
    for record in records:
        found = answers.get_final_text(record["pred_text"], record["orig_text"], basics[record["do_lower_case"]])
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
    write_predictions(str(tmp_path), ["q"], [prediction])
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
    one = {"version_2_with_negative": True, "n_best_size": 1, "max_answer_length": 2}  # the list has no span
    assert predict(small, ask(context), [starts], [ends], **one)[0].best.text == "ada brown"


@pytest.mark.parametrize("answer_from", ["words", "offsets"])
def test_no_candidate_but_none(small, answer_from):
    """With n_best_size 1 only [CLS] is a candidate: the best span outside the candidates counts."""
    (prediction,) = predict(
        small, ask("ada brown met"),
        [logits(9, {0: 9.0, 5: 1.0, 6: 2.0}, -5)], [logits(9, {0: 9.0, 5: 4.0, 7: 2.5}, -5)],
        n_best_size=1, version_2_with_negative=True, answer_from=answer_from,
    )  # fmt: skip
    assert [answer.text for answer in prediction.nbest] == [""] and prediction.text == ""
    assert prediction.best.text == "ada" and prediction.best.score == 5.0 and prediction.null_odds == 13.0


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
    assert empty.nbest == [Answer("", 0.0, 0.0, 1.0)] and empty.null_odds == NO_NULL_SCORE == 1e6


@pytest.mark.parametrize("at_once", [2048, 3])
def test_against_the_definition(small, monkeypatch, at_once):
    """All spans of all windows, without shortcuts."""
    monkeypatch.setattr(answers, "_WINDOWS_AT_ONCE", at_once)
    generator = np.random.default_rng(1)
    examples = ask(*("ada brown met ( 1801 ) " * count for count in (1, 2, 3)))
    windows = build_windows(examples, small, WindowSettings(12, 3, 4), False)
    starts, ends = ([generator.normal(size=length).astype(np.float32) for length in windows.lengths] for _ in range(2))
    for prediction, number in zip(
        predict(small, examples, starts, ends, 12, 3, max_answer_length=3), range(3), strict=True
    ):
        scores = []
        for row in np.flatnonzero(windows.example_index == number):
            base, length = int(windows.offsets[row]), int(windows.lengths[row])
            for first in range(5, length - 1):
                for last in range(first, min(first + 3, length - 1)):
                    if windows.max_context[base + first]:
                        scores.append(float(starts[row][first]) + float(ends[row][last]))
        assert prediction.nbest[0].score == max(scores)


def test_offsets_give_the_text_itself(small):
    context = "(Ada\u00a0 Brown)\n met"
    windows = build_windows(ask(context), small, WindowSettings(16, 128, 4, "offsets"), False)
    texts = answers.AnswerTexts(ask(context), windows, small, "offsets")
    assert texts.of(0, 6, 7) == ("Ada\u00a0 Brown", 1, 11) and texts.of(0, 5, 9) == (context, 0, len(context))


def test_of_equal_ids_the_last_counts_and_no_questions_make_empty_files(tmp_path):
    answers = [Answer("x", 1.0, 1.0, 1.0)]
    predictions = [Prediction(text, answers, answers[0], None) for text in ("first", "other", "last")]
    for count, content in ((3, {"a": "last", "b": "other"}), (0, {})):
        write_predictions(str(tmp_path), ["a", "b", "a"][:count], predictions[:count])
        assert json.loads((tmp_path / "predictions.json").read_text()) == content
        assert not (tmp_path / "null_odds.json").exists()

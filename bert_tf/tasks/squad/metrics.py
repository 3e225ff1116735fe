"""Question answering as a whole: scores of windows, predictions, the settings kept with a model, and metrics.

Exact match and F1 are SQuAD's, by the official scripts' code as tf-models-official keeps it, or those of Korean data.
"""

import collections
import copy
import dataclasses
import difflib
import itertools
import json
import math
import posixpath
import re
import string
from collections.abc import Mapping, Sequence

from absl import logging

from bert_tf.store.description import ModelFiles
from bert_tf.system.checks import check_extra
from bert_tf.system.text_files import read_json_if_there
from bert_tf.tasks.squad.answers import Prediction, PredictionSettings
from bert_tf.tasks.squad.data import SquadData, questions_of
from bert_tf.tasks.squad.windows import WindowSettings
from bert_tf.text.tokenizer import Tokenizer

SETTINGS_FILE = "question_answering.json"


@dataclasses.dataclass(frozen=True)
class QuestionAnsweringSettings:
    """The settings of a trained model that question_answering.json has."""

    windows: WindowSettings
    predictions: PredictionSettings

    def to_json(self) -> str:
        values = dataclasses.asdict(self.windows) | dataclasses.asdict(self.predictions)
        return json.dumps(values, indent=2, sort_keys=True) + "\n"

    @classmethod
    def read(cls, directory: str) -> "QuestionAnsweringSettings | None":
        values = read_json_if_there(posixpath.join(directory, SETTINGS_FILE))
        return None if values is None else cls.of(values)

    @classmethod
    def of(cls, values: Mapping) -> "QuestionAnsweringSettings":
        kinds = (WindowSettings, PredictionSettings)
        named = ([field.name for field in dataclasses.fields(kind) if field.name in values] for kind in kinds)
        return cls(*(kind(**{name: values[name] for name in names}) for kind, names in zip(kinds, named, strict=True)))


def score(
    data: SquadData, predictions: list[Prediction], version_2_with_negative: bool, metric: str = "squad"
) -> dict[str, float]:
    """eval_<metric> of predictions, as `evaluate` gives them."""
    texts = {key: prediction.text for key, prediction in _by_id(data, predictions).items()}
    odds_and_best = _odds_and_best(data, predictions) if version_2_with_negative else (None, None)
    scores = evaluate(data.articles, texts, version_2_with_negative, *odds_and_best, metric)
    return {f"eval_{name}": value for name, value in scores.items()}


def choose_threshold(
    settings: QuestionAnsweringSettings, data: SquadData, predictions: list[Prediction], metric: str = "squad"
) -> QuestionAnsweringSettings:
    """The settings with `best_threshold`, if a question may have no answer."""
    if not settings.predictions.version_2_with_negative:
        return settings
    _, threshold = best_threshold(data.articles, *_odds_and_best(data, predictions), metric)
    name = METRICS[metric][0]
    logging.info("null_score_diff_threshold %.4f gives the best %s on the dev set.", threshold, name)
    chosen = dataclasses.replace(settings.predictions, null_score_diff_threshold=threshold)
    return dataclasses.replace(settings, predictions=chosen)


def _by_id(data: SquadData, predictions: list[Prediction]) -> dict[str, Prediction]:
    return {example.qas_id: each for example, each in zip(data.examples, predictions, strict=True)}


def _odds_and_best(data: SquadData, predictions: list[Prediction]) -> tuple[dict[str, float], dict[str, str]]:
    """id -> odds of "none"; id -> best answer that is not "none", "" if there is no answer at all."""
    by_id = _by_id(data, predictions)
    best = {key: prediction.best.text if prediction.best else "" for key, prediction in by_id.items()}
    return {key: prediction.null_odds for key, prediction in by_id.items()}, best


def apply_threshold(predictions: list[Prediction], threshold: float) -> list[Prediction]:
    """Predictions with another threshold of their odds."""

    def answer_of(row: Prediction) -> str:
        return "" if row.best is None or row.null_odds > threshold else row.best.text

    return [row if row.null_odds is None else dataclasses.replace(row, text=answer_of(row)) for row in predictions]


def answer_settings(files: ModelFiles, tokenizer: Tokenizer, **settings) -> QuestionAnsweringSettings:
    """How a model splits contexts and chooses answers: as in training, but for settings that are not None."""
    names = [field.name for kind in (WindowSettings, PredictionSettings) for field in dataclasses.fields(kind)]
    if unknown := [name for name in settings if name not in names]:
        raise TypeError(f"QuestionAnswerer got unexpected keyword arguments: {', '.join(unknown)}")
    stored = QuestionAnsweringSettings.read(files.directory)
    learned = dataclasses.asdict(stored.windows) | dataclasses.asdict(stored.predictions) if stored else {}
    limit = files.needed_config().max_length
    settings = {name: value for name, value in settings.items() if value is not None}
    defaults = {"max_seq_length": min(384, limit), "max_query_length": min(64, limit // 4)} | learned
    # Callers want to know where the answer is.
    chosen = QuestionAnsweringSettings.of(defaults | settings | {"answer_from": "offsets"})
    if (length := chosen.windows.max_seq_length) > limit:
        raise ValueError(f"max_seq_length={length} is more than max_position_embeddings={limit}.")
    chosen.windows.check_room(tokenizer)
    return chosen


# --- answers in Korean, counted by characters, not by words ---------------------------------------------------------


_PUNCTUATION = str.maketrans("", "", string.punctuation)
_KORQUAD_MARKS = re.compile("['\"《》<>〈〉()‘’]")
# KLUE's pattern as it is: only a mark right before ()‘’ makes a space, which hardly ever happens.
_KLUE_MARKS = re.compile("['\"《》<>〈〉]\\(\\)‘’")


def _normalized(text: str, marks: re.Pattern) -> str:
    return " ".join(marks.sub(" ", text).lower().translate(_PUNCTUATION).split())


def korquad_scores(gold: str, predicted: str) -> tuple[float, float]:
    """Exact match and F1 of characters without spaces, from 0 to 1. gold: "" where there is no answer."""
    gold_text, text = (_normalized(answer, _KORQUAD_MARKS) for answer in (gold, predicted))
    exact = float(gold_text == text)
    if not gold:
        return exact, exact  # not in the script, as all questions there have answers; like SQuAD 2.0
    gold_text, text = gold_text.replace(" ", ""), text.replace(" ", "")
    same = (collections.Counter(gold_text) & collections.Counter(text)).total()
    return exact, 2 * same / (len(gold_text) + len(text)) if same else 0.0


def klue_scores(gold: str, predicted: str) -> tuple[float, float]:
    """Exact match, and what KLUE calls ROUGE-W: F1 by the longest run of characters in common, from 0 to 1.

    gold: "" where there is no answer.
    """
    gold_text, text = (_normalized(answer, _KLUE_MARKS) for answer in (gold, predicted))
    exact = float(gold_text == text)
    if not gold_text:
        return exact, exact
    run = difflib.SequenceMatcher(None, text, gold_text).find_longest_match(0, len(text), 0, len(gold_text)).size
    return exact, 2 * run / (len(gold_text) + len(text))


# --- all answers ----------------------------------------------------------------------------------------------------


# metric -> (the name of its other score, both scores of an answer; None: by the official script).
METRICS = {"squad": ("f1", None), "korquad": ("f1", korquad_scores), "klue": ("rouge_w", klue_scores)}


def evaluate(
    articles: Sequence[dict],
    predictions: Mapping[str, str],
    version_2_with_negative: bool = False,
    null_odds: Mapping[str, float] | None = None,
    best_texts: Mapping[str, str] | None = None,
    metric: str = "squad",
) -> dict[str, float]:
    """Scores in percent, as the official scripts give them.

    articles: the `data` lists of the files. predictions: id -> answer; "" for none. A question without prediction
      counts as wrong in 1.1; in 2.0, as in the official script, it doesn't count.
    null_odds, best_texts: id -> odds of "none", and the best answer that is not "none"; with both, the threshold of
      the odds that is best on this data is found, too.
    metric: one of METRICS.

    Returns:
      exact_match, f1; in version 2 also HasAns_exact, HasAns_f1, NoAns_exact, NoAns_f1 where there are such questions,
      and with null_odds best_exact, best_exact_threshold, best_f1, best_f1_threshold. Instead of f1 what METRICS names.
    """
    if metric != "squad":
        return _evaluate_by_answer(articles, predictions, version_2_with_negative, null_odds, best_texts, metric)
    check_extra("official", "The score of answers")
    if not version_2_with_negative:
        from official.nlp.tools import squad_evaluate_v1_1

        scores = squad_evaluate_v1_1.evaluate(articles, predictions)
        return {"exact_match": 100.0 * scores["exact_match"], "f1": 100.0 * scores["final_f1"]}
    from official.nlp.tools import squad_evaluate_v2_0

    articles = _with_answers(articles)
    scores = squad_evaluate_v2_0.evaluate(articles, predictions)
    results = {"exact_match": scores["exact"], "f1": scores["f1"]}
    names = ("HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1")
    results |= {name: scores[name] for name in names if name in scores}
    if null_odds is not None and best_texts is not None:
        # The script looks for the best threshold of a system that answers everything.
        scores = squad_evaluate_v2_0.evaluate(articles, best_texts, null_odds)
        for name in ("exact", "f1"):
            results[f"best_{name}"] = scores[f"final_{name}"]
            results[f"best_{name}_threshold"] = scores[f"final_{name}_thresh"]
    return {name: float(value) for name, value in results.items()}


def _evaluate_by_answer(articles, predictions, version_2: bool, null_odds, best_texts, metric: str) -> dict[str, float]:
    questions = {question["id"]: question for question in questions_of(articles)}
    names = ("exact", METRICS[metric][0])
    scores = _scores_of_questions(articles, predictions, metric)
    groups = {"": list(questions)}
    if version_2:
        groups["HasAns_"] = [key for key, question in questions.items() if question.get("answers")]
        groups["NoAns_"] = [key for key, question in questions.items() if not question.get("answers")]
    results = {
        prefix + name: 100.0 * sum(scores.get(key, (0.0, 0.0))[number] for key in keys) / len(keys)
        for prefix, keys in groups.items()
        for number, name in enumerate(names)
        if keys
    }
    results = {"exact_match": results.pop("exact"), **results}
    if version_2 and null_odds is not None and best_texts is not None:
        for number, name in enumerate(names):
            best = best_threshold(articles, null_odds, best_texts, metric, number)
            results[f"best_{name}"], results[f"best_{name}_threshold"] = best
    return results


def _scores_of_questions(articles, texts: Mapping[str, str], metric: str) -> dict[str, tuple[float, float]]:
    """id -> exact match and the metric's other score, from 0 to 1, of questions with a prediction."""
    if metric == "squad":
        from official.nlp.tools import squad_evaluate_v2_0

        exact, f1 = squad_evaluate_v2_0._get_raw_scores(_with_answers(articles), texts)
        return {key: (exact[key], f1[key]) for key in exact}
    scores_of, scores = METRICS[metric][1], {}
    for question in questions_of(articles):
        gold = [answer["text"] for answer in question.get("answers", ())] or [""]
        if question["id"] in texts:
            pairs = [scores_of(text, texts[question["id"]]) for text in gold]
            scores[question["id"]] = tuple(map(max, zip(*pairs, strict=True)))
    return scores


def best_threshold(
    articles: Sequence[dict],
    null_odds: Mapping[str, float],
    best_texts: Mapping[str, str],
    metric: str = "squad",
    number: int = 1,
) -> tuple[float, float]:
    """The best score in percent, and the finite threshold with it: "none" is answered to questions of greater odds.

    The official script names the odds of one question, and 0.0 for "never answer". Here the threshold is half-way to
    the next odds, or beyond the last ones, so that rounding decides on no question. Of equally good thresholds it is
    the lowest, as in the script.

    number: 0: exact match, 1: the metric's other score.
    """
    answered, none = (
        {key: scores[number] for key, scores in _scores_of_questions(articles, texts, metric).items()}
        for texts in (best_texts, dict.fromkeys(best_texts, ""))
    )
    gains = {}  # odds -> what the questions with these odds gain by being answered
    for key, score in answered.items():
        if best_texts[key]:  # otherwise no threshold matters
            gains[null_odds[key]] = gains.get(null_odds[key], 0.0) + score - none[key]
    odds = sorted(gains)
    totals = itertools.accumulate((gains[value] for value in odds), initial=sum(none.values()))
    bounds = itertools.pairwise([-math.inf, *odds, math.inf])
    cases = [(total, _between(low, high)) for total, (low, high) in zip(totals, bounds, strict=True) if low < high]
    total, threshold = max(cases, key=lambda case: case[0])
    return 100.0 * total / len(answered), threshold


def _between(low: float, high: float) -> float:
    """A finite number from low to less than high, far from both; either may be infinite."""
    if math.isinf(low) and math.isinf(high):
        return 0.0
    if math.isinf(low):
        return min(high - 0.5, math.nextafter(high, low))
    if math.isinf(high):
        return low + 0.5
    middle = low / 2 + high / 2
    return middle if middle < high else low


def _with_answers(articles: Sequence[dict]) -> list[dict]:
    articles = copy.deepcopy(list(articles))
    for question in questions_of(articles):
        question.setdefault("answers", [])
    return articles

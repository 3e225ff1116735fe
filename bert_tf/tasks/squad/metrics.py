"""Exact match and F1 of SQuAD, by the official scripts' code as tf-models-official keeps it."""

import copy
import itertools
import math
from collections.abc import Mapping, Sequence


def evaluate(
    articles: Sequence[dict],
    predictions: Mapping[str, str],
    version_2_with_negative: bool = False,
    null_odds: Mapping[str, float] | None = None,
    best_texts: Mapping[str, str] | None = None,
) -> dict[str, float]:
    """Scores in percent, as the official scripts give them.

    Args:
      articles: the `data` lists of the files. predictions: id -> answer; "" for none. A question without prediction
        counts as wrong in 1.1; in 2.0, as in the official script, it doesn't count.
      null_odds, best_texts: id -> odds of "none", and the best answer that is not "none"; with both, the threshold of
        the odds that is best on this data is found, too.

    Returns:
      exact_match, f1; in version 2 also HasAns_exact, HasAns_f1, NoAns_exact, NoAns_f1 where there are such questions,
      and with null_odds best_exact, best_exact_threshold, best_f1, best_f1_threshold.
    """
    if not version_2_with_negative:
        from official.nlp.tools import squad_evaluate_v1_1

        scores = squad_evaluate_v1_1.evaluate(articles, predictions)
        return {"exact_match": 100.0 * scores["exact_match"], "f1": 100.0 * scores["final_f1"]}
    from official.nlp.tools import squad_evaluate_v2_0

    articles = _with_answers(articles)
    scores = squad_evaluate_v2_0.evaluate(articles, predictions)
    results = {"exact_match": scores["exact"], "f1": scores["f1"]}
    results |= {
        f"{kind}_{name}": scores[f"{kind}_{name}"]
        for kind in ("HasAns", "NoAns")
        for name in ("exact", "f1")
        if f"{kind}_{name}" in scores
    }
    if null_odds is not None and best_texts is not None:
        # The script looks for the best threshold of a system that answers everything.
        scores = squad_evaluate_v2_0.evaluate(articles, best_texts, null_odds)
        for name in ("exact", "f1"):
            results[f"best_{name}"] = scores[f"final_{name}"]
            results[f"best_{name}_threshold"] = scores[f"final_{name}_thresh"]
    return {name: float(value) for name, value in results.items()}


def best_threshold(articles: Sequence[dict], null_odds: Mapping[str, float], best_texts: Mapping[str, str]) -> float:
    """The finite threshold with the best F1, where "none" is answered if the odds of a question are greater than it.

    The official script names the odds of one question, and 0.0 for "never answer". Here the threshold is half-way to
    the next odds, or beyond the last ones: rounding, which on another device or in another batch changes the last
    digits of the odds, decides on no question. Of equally good thresholds it is the lowest, as in the script.

    Args:
      articles, null_odds, best_texts: see `evaluate`.
    """
    from official.nlp.tools import squad_evaluate_v2_0

    articles = _with_answers(articles)
    answered, none = (
        squad_evaluate_v2_0._get_raw_scores(articles, texts)[1] for texts in (best_texts, dict.fromkeys(best_texts, ""))
    )
    gains = {}  # odds -> what the questions with these odds gain by being answered
    for key, score in answered.items():
        if best_texts[key]:  # otherwise no threshold matters
            gains[null_odds[key]] = gains.get(null_odds[key], 0.0) + score - none[key]
    odds = sorted(gains)
    totals = itertools.accumulate((gains[value] for value in odds), initial=0.0)
    bounds = itertools.pairwise([-math.inf, *odds, math.inf])
    cases = [(total, _between(low, high)) for total, (low, high) in zip(totals, bounds, strict=True) if low < high]
    return max(cases, key=lambda case: case[0])[1]


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
    """A copy in which a question without `answers` has an empty list of them."""
    articles = copy.deepcopy(list(articles))
    for article in articles:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                question.setdefault("answers", [])
    return articles

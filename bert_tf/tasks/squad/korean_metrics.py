"""Scores of one answer as the scripts of KorQuAD 1.0 and KLUE-MRC count them: by characters, not by words.

Sources: evaluate-v1.0.py of korquad.github.io; klue_baseline/metrics of github.com/KLUE-benchmark/KLUE-baseline.
"""

import collections
import difflib
import re
import string

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_KORQUAD_MARKS = re.compile("['\"《》<>〈〉()‘’]")
# KLUE's pattern as it is: only a mark right before ()‘’ makes a space, which hardly ever happens.
_KLUE_MARKS = re.compile("['\"《》<>〈〉]\\(\\)‘’")


def _normalized(text: str, marks: re.Pattern) -> str:
    return " ".join(marks.sub(" ", text).lower().translate(_PUNCTUATION).split())


def korquad_scores(gold: str, predicted: str) -> tuple[float, float]:
    """Exact match and F1 of characters without spaces, from 0 to 1. gold: "" where there is no answer."""
    gold_text, text = (_normalized(one, _KORQUAD_MARKS) for one in (gold, predicted))
    exact = float(gold_text == text)
    if not gold:
        return exact, exact  # not in the script, as all questions there have answers; like SQuAD 2.0
    gold_text, text = gold_text.replace(" ", ""), text.replace(" ", "")
    same = (collections.Counter(gold_text) & collections.Counter(text)).total()
    return exact, 2 * same / (len(gold_text) + len(text)) if same else 0.0


def klue_scores(gold: str, predicted: str) -> tuple[float, float]:
    """Exact match, and what KLUE calls ROUGE-W: F1 by the longest run of characters in common, from 0 to 1.

    Args:
      gold: "" where there is no answer.
    """
    gold_text, text = (_normalized(one, _KLUE_MARKS) for one in (gold, predicted))
    exact = float(gold_text == text)
    if not gold_text:
        return exact, exact
    run = difflib.SequenceMatcher(None, text, gold_text).find_longest_match(0, len(text), 0, len(gold_text)).size
    return exact, 2 * run / (len(gold_text) + len(text))

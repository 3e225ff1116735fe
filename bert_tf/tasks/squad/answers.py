"""Scores of first and last tokens to answers (original: run_squad.py, write_predictions and get_final_text).

Candidates are ranked in double precision in the original's order, so that equal logits give equal files, byte for byte.
Shape legend: W windows, S tokens, K n_best_size.
"""

import dataclasses
import functools
import json
import math
import operator
import posixpath
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from absl import logging

from bert_tf.system.checks import check_integer, true_or_false
from bert_tf.system.storage import write_text_file
from bert_tf.tasks.squad.data import SquadExample
from bert_tf.tasks.squad.windows import Windows
from bert_tf.text.tokenizer import Tokenizer

NO_NULL_SCORE = 1_000_000.0  # the original's; also the odds where nothing could be an answer
_WINDOWS_AT_ONCE = 2048


@dataclasses.dataclass(frozen=True)
class SpanScores:
    """The scores of tokens as the first and as the last of an answer; those of [CLS] mean "no answer".

    starts, ends: of windows, float32 [S]; S is at least the window's length.
    """

    starts: Sequence[np.ndarray]
    ends: Sequence[np.ndarray]

    def candidates(self, windows: Windows, n_best_size: int, max_answer_length: int) -> tuple[np.ndarray, np.ndarray]:
        """The spans from the best starts to the best ends of each window that can be answers, and their logits [.., 2].

        Rows (window, start, end) are, as in the original, by window, rank of the start, rank of the end.
        """
        spans, pairs = [np.zeros((0, 3), np.int64)], [np.zeros((0, 2), np.float32)]
        in_context = windows.words >= 0
        for begin in range(0, len(windows), _WINDOWS_AT_ONCE):
            rows = slice(begin, min(begin + _WINDOWS_AT_ONCE, len(windows)))
            starts, ends = _padded(self.starts[rows]), _padded(self.ends[rows])
            best_starts = np.argsort(-starts, axis=1, kind="stable")[:, :n_best_size]  # [W, K]
            best_ends = np.argsort(-ends, axis=1, kind="stable")[:, :n_best_size]
            width = starts.shape[1]
            start_fits = np.take_along_axis(_flags(windows.max_context, windows, rows, width), best_starts, 1)
            end_fits = np.take_along_axis(_flags(in_context, windows, rows, width), best_ends, 1)
            span = best_ends[:, None, :] - best_starts[:, :, None]  # [W, K, K]
            fits = start_fits[:, :, None] & end_fits[:, None, :] & (span >= 0) & (span < max_answer_length)
            row, first, last = np.nonzero(fits)
            first, last = best_starts[row, first], best_ends[row, last]
            spans.append(np.stack([row + begin, first, last], axis=1))
            pairs.append(np.stack([starts[row, first], ends[row, last]], axis=1))
        return np.concatenate(spans), np.concatenate(pairs)

    def best_of_all(
        self, windows: Windows, rows: range, max_answer_length: int
    ) -> tuple[tuple[int, int, int], tuple[float, float]] | None:
        """The best span of a question's windows and its logits, regardless of n-best lists."""
        best, span = -np.inf, None
        for row in rows:
            base, length = int(windows.offsets[row]), int(windows.lengths[row])
            starts = np.where(windows.max_context[base : base + length], self.starts[row][:length], -np.inf)
            ends = np.where(windows.words[base : base + length] >= 0, self.ends[row][:length], -np.inf)
            for size in range(1, min(max_answer_length, length) + 1):
                sums = starts[: length - size + 1].astype(np.float64) + ends[size - 1 :]
                first = int(sums.argmax())
                if sums[first] > best:
                    best, span = sums[first], (row, first, first + size - 1)
        if span is None:
            return None
        row, first, last = span
        return span, (float(self.starts[row][first]), float(self.ends[row][last]))


def collect_scores(outputs: Iterable[tuple[np.ndarray, dict]], lengths: np.ndarray) -> SpanScores:
    """The scores of all windows, from (numbers of windows, a model's outputs) of batches. lengths: tokens kept [n]."""
    scores = SpanScores([None] * len(lengths), [None] * len(lengths))
    for rows, output in outputs:
        for values, logits in ((scores.starts, output["start_logits"]), (scores.ends, output["end_logits"])):
            for row, value in zip(rows.tolist(), logits, strict=True):
                values[row] = value[: lengths[row]]
    return scores


def _padded(logits: Sequence[np.ndarray]) -> np.ndarray:
    values = np.full((len(logits), max(map(len, logits))), -np.inf, np.float32)
    for row, numbers in enumerate(logits):
        values[row, : len(numbers)] = numbers
    return values


def _flags(flat: np.ndarray, windows: Windows, rows: slice, width: int) -> np.ndarray:
    """[W, width] of a flat array aligned with the tokens; False beyond a window's end."""
    starts, lengths = windows.offsets[rows.start : rows.stop], windows.lengths[rows]
    positions = np.arange(width)[None, :]
    return flat[np.minimum(starts[:, None] + positions, len(flat) - 1)] & (positions < lengths[:, None])


# --- candidates, ranked ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Answer:
    """One entry of an n-best list. start, end: its characters in the context."""

    text: str
    start_logit: float
    end_logit: float
    probability: float = 0.0
    start: int | None = None
    end: int | None = None

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What is predicted for one question.

    text: the answer, "" for none. nbest: candidates, best first. best: the best answer that is not "none", if any.
    null_odds: score of "none" minus score of `best`; None where every question has an answer.
    """

    text: str
    nbest: list[Answer]
    best: Answer | None
    null_odds: float | None


@dataclasses.dataclass(frozen=True)
class PredictionSettings:
    """How answers are chosen: the flags of these names."""

    n_best_size: int = 20
    max_answer_length: int = 30
    version_2_with_negative: bool = False
    null_score_diff_threshold: float = 0.0
    answer_from: str = "words"

    def __post_init__(self):
        for name in ("n_best_size", "max_answer_length"):
            check_integer(getattr(self, name), name)
        true_or_false(version_2_with_negative=self.version_2_with_negative)


def align(pred_text: str, orig_text: str, token_text: str) -> tuple[slice, str | None]:
    """The part of orig_text, of tokens token_text, that pred_text covers; or all, and why it can't be determined.

    Texts are compared without their spaces, character by character; tokenization may have changed their number, as it
    does for Korean.
    """
    start, whole = token_text.find(pred_text), slice(0, len(orig_text))
    if start < 0 or not pred_text:
        return whole, f"not found in {token_text!r}"
    if len(orig_text) - orig_text.count(" ") != len(token_text) - token_text.count(" "):
        return whole, f"without spaces, {token_text!r} has another length"
    end = start + len(pred_text) - 1
    if token_text[start] == " " or token_text[end] == " ":
        return whole, f"begins or ends with a space in {token_text!r}"
    first = start - token_text.count(" ", 0, start)  # number among the characters that are not spaces
    last = end - token_text.count(" ", 0, end)
    return slice(_index_with_spaces(orig_text, first), _index_with_spaces(orig_text, last) + 1), None


def _index_with_spaces(text: str, number: int) -> int:
    index = number
    while True:  # the spaces before it push it to the right, which may bring in more of them
        further = number + text.count(" ", 0, index + 1)
        if further == index:
            return index
        index = further


class AnswerTexts:
    """Texts of token spans. verbose: logs those of which only the surrounding words are known."""

    def __init__(self, examples, windows: Windows, tokenizer: Tokenizer, answer_from: str, verbose: bool = False):
        self.examples, self.windows, self.tokenizer = examples, windows, tokenizer
        self.verbose = verbose
        self.by_offsets = answer_from == "offsets"
        self.normalized = functools.cache(tokenizer.normalize)

    def of(self, row: int, first: int, last: int) -> tuple[str, int | None, int | None]:
        """Text of the tokens first to last of a window, and its characters in the context, if any."""
        windows = self.windows
        base = int(windows.offsets[row])
        paragraph = self.examples[windows.example_index[row]].paragraph
        if self.by_offsets:
            start, end = int(windows.starts[base + first]), int(windows.ends[base + last])
            # A last token without characters, as a lone ▁, lies before the next word.
            text = paragraph.context[start:end].rstrip()
            return (text, start, start + len(text)) if text else ("", None, None)
        pred_text = self.tokenizer.decode(windows.ids[base + first : base + last + 1].tolist()).strip()
        first_word = int(windows.words[base + first])
        words = paragraph.words[first_word : windows.words[base + last] + 1]
        orig_text = " ".join(words)
        part, problem = align(pred_text, orig_text, " ".join(filter(None, map(self.normalized, words))))
        if problem and self.verbose:
            logging.info("Answer %r is taken as all of %r: %s.", pred_text, orig_text, problem)

        def place(index: int) -> int:
            """Of a character of orig_text in the context."""
            word = first_word + orig_text.count(" ", 0, index)
            return paragraph.word_starts[word] + index - (orig_text.rfind(" ", 0, index) + 1)

        return orig_text[part], place(part.start), place(part.stop - 1) + 1


def predict_answers(
    examples: Sequence[SquadExample],
    windows: Windows,
    scores: SpanScores,
    tokenizer: Tokenizer,
    settings: PredictionSettings,
    verbose: bool = False,
) -> Iterator[Prediction]:
    """Yields the prediction for each example.

    Where the original crashes, this continues: if no candidate but "none" is among the n-best, the best span outside
    of them counts; if there is no span at all (an empty context), the answer is "" with odds of 1000000 in version 2.

    scores: of the windows. verbose: see `AnswerTexts`.
    """
    texts = AnswerTexts(examples, windows, tokenizer, settings.answer_from, verbose)
    spans, logits = scores.candidates(windows, settings.n_best_size, settings.max_answer_length)
    of_example = np.searchsorted(windows.example_index, np.arange(len(examples) + 1))  # first window of each example
    bounds = np.searchsorted(spans[:, 0], of_example)
    for number in range(len(examples)):
        rows = range(int(of_example[number]), int(of_example[number + 1]))
        part = slice(bounds[number], bounds[number + 1])
        yield _predict_one(spans[part], logits[part], rows, windows, scores, texts, settings)


def _predict_one(spans, logits, rows: range, windows, scores, texts: AnswerTexts, settings) -> Prediction:
    row_list, firsts, lasts = spans.T.tolist()
    starts, ends = logits.T.tolist()
    null = None  # from the window with the lowest score for "no answer"
    if settings.version_2_with_negative:
        null = min(((float(scores.starts[row][0]), float(scores.ends[row][0])) for row in rows), key=sum, default=None)
    if null:
        starts.append(null[0])
        ends.append(null[1])
    sums = np.array(starts, np.float64) + np.array(ends, np.float64)
    nbest, seen = [], set()
    for number in np.argsort(-sums, kind="stable").tolist():
        if len(nbest) >= settings.n_best_size:
            break
        if number == len(row_list):  # the null candidate is last
            text, start, end = "", None, None
        else:
            text, start, end = texts.of(row_list[number], firsts[number], lasts[number])
            if text in seen:
                continue
        seen.add(text)
        nbest.append((text, starts[number], ends[number], start, end))
    if null and "" not in seen:
        nbest.append(("", *null, None, None))
    if not nbest:
        empty = settings.version_2_with_negative or settings.answer_from == "offsets"
        nbest.append(("" if empty else "empty", 0.0, 0.0, None, None))
    scores_of_nbest = [start_logit + end_logit for _, start_logit, end_logit, *_ in nbest]
    weights = [math.exp(score - max(scores_of_nbest)) for score in scores_of_nbest]
    total = functools.reduce(operator.add, weights, 0.0)  # sum() rounds otherwise
    answers = [
        Answer(text, start_logit, end_logit, weight / total, start, end)
        for (text, start_logit, end_logit, start, end), weight in zip(nbest, weights, strict=True)
    ]
    best = next((answer for answer in answers if answer.text), None)
    if not settings.version_2_with_negative:
        return Prediction(answers[0].text, answers, best, None)
    if best is None and rows:
        span = scores.best_of_all(windows, rows, settings.max_answer_length)
        if span:
            (row, first, last), pair = span
            text, start, end = texts.of(row, first, last)
            best = Answer(text, *pair, 0.0, start, end)
    odds = sum(null) - best.start_logit - best.end_logit if null and best else NO_NULL_SCORE
    chosen = "" if best is None or odds > settings.null_score_diff_threshold else best.text
    return Prediction(chosen, answers, best, odds)


# --- files ---------------------------------------------------------------------------------------------------------


def write_predictions(output_dir: str, ids: Sequence[str], predictions: Sequence[Prediction]) -> None:
    """Writes predictions.json, nbest_predictions.json and, in version 2, null_odds.json; with characters of answers."""
    names = ("predictions.json", "nbest_predictions.json", "null_odds.json")
    write_prediction_files(ids, predictions, *(posixpath.join(output_dir, name) for name in names), ("start", "end"))


def write_prediction_files(
    ids: Sequence[str],
    predictions: Sequence[Prediction],
    prediction_file: str,
    nbest_file: str,
    null_odds_file: str | None,
    more: tuple[str, ...] = (),
) -> None:
    """Writes predictions in the original's format; null_odds_file in version 2 only. more: further keys."""
    by_id = dict(zip(ids, predictions, strict=True))  # of equal ids the last

    def write(path: str, values: dict) -> None:
        write_text_file(path, json.dumps(values, indent=4) + "\n")

    write(prediction_file, {key: prediction.text for key, prediction in by_id.items()})
    names = ("text", "probability", "start_logit", "end_logit", *more)
    nbest = {
        key: [{name: getattr(answer, name) for name in names} for answer in prediction.nbest]
        for key, prediction in by_id.items()
    }
    write(nbest_file, nbest)
    if any(prediction.null_odds is not None for prediction in by_id.values()):
        write(null_odds_file, {key: prediction.null_odds for key, prediction in by_id.items()})

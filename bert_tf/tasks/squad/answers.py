"""Scores of first and last tokens to answers (original: run_squad.py, write_predictions and get_final_text).

Candidates are ranked in double precision in the original's order, so that equal logits give equal files, byte for byte.
Shape legend: W windows, K n_best_size.
"""

import dataclasses
import json
import math
import posixpath
from collections.abc import Iterator, Sequence
from json.encoder import encode_basestring_ascii

import numpy as np
from absl import logging

from bert_tf.system.atomic import write_text_file
from bert_tf.tasks.squad.data import SquadExample
from bert_tf.tasks.squad.windows import Windows
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.wordpiece import BasicTokenizer

NO_NULL_SCORE = 1_000_000.0  # the original's; also the odds where nothing could be an answer
_WINDOWS_AT_ONCE = 2048


@dataclasses.dataclass(frozen=True)
class Answer:
    """One entry of an n-best list; `start`, `end` are its characters in the context, where they are known."""

    text: str
    start_logit: float
    end_logit: float
    probability: float = 0.0
    start: int | None = None
    end: int | None = None

    @property
    def score(self) -> float:
        """Sum of both logits."""
        return self.start_logit + self.end_logit


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What is predicted for one question.

    Attributes:
      text: the answer, "" for none. nbest: candidates, best first, with their probabilities.
      best: the best answer that is not "none"; None if there is none.
      null_odds: score of "none" minus score of `best`; None where every question has an answer.
    """

    text: str
    nbest: list[Answer]
    best: Answer | None
    null_odds: float | None


@dataclasses.dataclass(frozen=True)
class PredictionSettings:
    """How answers are chosen; names and defaults are those of the original's flags.

    Attributes:
      answer_from: "words": the original's way, by the words of the context and an alignment of texts; "offsets": the
        characters that the tokens cover. null_score_diff_threshold: predict "none" if null_odds is greater.
    """

    n_best_size: int = 20
    max_answer_length: int = 30
    version_2_with_negative: bool = False
    null_score_diff_threshold: float = 0.0
    answer_from: str = "words"


def get_final_text(pred_text: str, orig_text: str, basic_tokenizer: BasicTokenizer) -> str:
    """The part of orig_text that pred_text, made of tokens, covers; all of orig_text if that can't be determined.

    Both texts are compared without their spaces, character by character; if tokenization changed their number, as it
    does for Korean, the part can't be determined.
    """
    return _align(pred_text, orig_text, " ".join(basic_tokenizer.tokenize(orig_text)))[0]


def _align(pred_text: str, orig_text: str, token_text: str) -> tuple[str, str | None]:
    """The part of orig_text, and None; or all of it, and the reason why the part can't be determined."""
    start = token_text.find(pred_text)
    if start < 0 or not pred_text:
        return orig_text, f"not found in {token_text!r}"
    if len(orig_text) - orig_text.count(" ") != len(token_text) - token_text.count(" "):
        return orig_text, f"without spaces, {token_text!r} has another length"
    end = start + len(pred_text) - 1
    if token_text[start] == " " or token_text[end] == " ":
        return orig_text, f"begins or ends with a space in {token_text!r}"
    first = start - token_text.count(" ", 0, start)  # number among the characters that are not spaces
    last = end - token_text.count(" ", 0, end)
    return orig_text[_place_without_spaces(orig_text, first) : _place_without_spaces(orig_text, last) + 1], None


def _place_without_spaces(text: str, number: int) -> int:
    """Index in text of its character `number`, spaces not counted."""
    place = number
    while True:  # the spaces before it push it to the right, which may bring in more of them
        further = number + text.count(" ", 0, place + 1)
        if further == place:
            return place
        place = further


class AnswerTexts:
    """Texts of token spans; `verbose` logs those of which only the surrounding words are known."""

    def __init__(self, examples, windows: Windows, tokenizer: Tokenizer, answer_from: str, verbose: bool = False):
        self.examples, self.windows, self.tokenizer = examples, windows, tokenizer
        self.verbose = verbose
        self.by_offsets = answer_from == "offsets"
        if self.by_offsets and windows.starts is None:
            raise ValueError("answer_from=offsets needs windows with offsets (WindowSettings.answer_from).")
        self.normalized: dict[str, str] = {}

    def of(self, row: int, first: int, last: int) -> tuple[str, int | None, int | None]:
        """Text of the tokens first to last of a window, and its characters in the context where these are known."""
        windows = self.windows
        base = int(windows.offsets[row])
        paragraph = self.examples[windows.example_index[row]].paragraph
        if self.by_offsets:
            start, end = int(windows.starts[base + first]), int(windows.ends[base + last])
            return paragraph.context[start:end], start, end
        pred_text = self.tokenizer.decode(windows.ids[base + first : base + last + 1].tolist()).strip()
        words = paragraph.words[windows.words[base + first] : windows.words[base + last] + 1]
        orig_text = " ".join(words)
        text, problem = _align(pred_text, orig_text, " ".join(filter(None, map(self._normalized, words))))
        if problem and self.verbose:
            logging.info("Answer %r is taken as all of %r: %s.", pred_text, orig_text, problem)
        return text, None, None

    def _normalized(self, word: str) -> str:
        text = self.normalized.get(word)
        if text is None:
            text = self.normalized[word] = self.tokenizer.normalize(word)
        return text


def _padded(logits: Sequence[np.ndarray]) -> np.ndarray:
    values = np.full((len(logits), max(map(len, logits))), -np.inf, np.float32)
    for row, numbers in enumerate(logits):
        values[row, : len(numbers)] = numbers
    return values


def _flags(flat: np.ndarray, windows: Windows, rows: slice, width: int) -> np.ndarray:
    """[W, width] of a flat array aligned with the tokens; False beyond a window's end."""
    starts, lengths = windows.offsets[rows.start : rows.stop], windows.lengths[rows]
    places = np.arange(width)[None, :]
    return flat[np.minimum(starts[:, None] + places, len(flat) - 1)] & (places < lengths[:, None])


def _candidates(
    windows: Windows, start_logits: Sequence, end_logits: Sequence, settings: PredictionSettings
) -> Iterator[np.ndarray]:
    """Yields for each group of windows the spans that can be answers: rows (window, start, end), as in the original by
    window, rank of the start, rank of the end."""
    in_context = windows.words >= 0
    for begin in range(0, len(windows), _WINDOWS_AT_ONCE):
        rows = slice(begin, min(begin + _WINDOWS_AT_ONCE, len(windows)))
        starts, ends = _padded(start_logits[rows]), _padded(end_logits[rows])
        best_starts = np.argsort(-starts, axis=1, kind="stable")[:, : settings.n_best_size]  # [W, K]
        best_ends = np.argsort(-ends, axis=1, kind="stable")[:, : settings.n_best_size]
        width = starts.shape[1]
        start_fits = np.take_along_axis(_flags(windows.max_context, windows, rows, width), best_starts, 1)
        end_fits = np.take_along_axis(_flags(in_context, windows, rows, width), best_ends, 1)
        span = best_ends[:, None, :] - best_starts[:, :, None]  # [W, K, K]
        fits = start_fits[:, :, None] & end_fits[:, None, :] & (span >= 0) & (span < settings.max_answer_length)
        row, first, last = np.nonzero(fits)
        yield np.stack([row + begin, best_starts[row, first], best_ends[row, last]], axis=1)


def _best_of_all(
    windows: Windows, rows: range, start_logits: Sequence, end_logits: Sequence, max_answer_length: int
) -> tuple[int, int, int] | None:
    """The best span of some windows, regardless of n-best lists."""
    best, found = -np.inf, None
    for row in rows:
        base, length = int(windows.offsets[row]), int(windows.lengths[row])
        starts = np.where(windows.max_context[base : base + length], start_logits[row][:length], -np.inf)
        ends = np.where(windows.words[base : base + length] >= 0, end_logits[row][:length], -np.inf)
        for size in range(1, min(max_answer_length, length) + 1):
            sums = starts[: length - size + 1].astype(np.float64) + ends[size - 1 :]
            first = int(sums.argmax())
            if sums[first] > best:
                best, found = sums[first], (row, first, first + size - 1)
    return found


def predict_answers(
    examples: Sequence[SquadExample],
    windows: Windows,
    start_logits: Sequence[np.ndarray],
    end_logits: Sequence[np.ndarray],
    tokenizer: Tokenizer,
    settings: PredictionSettings,
    verbose: bool = False,
) -> Iterator[Prediction]:
    """Yields the prediction for each example.

    Where the original crashes, this continues: if no candidate but "none" is among the n-best, the best span outside
    of them counts; if there is no span at all (an empty context), the answer is "" with odds of 1000000 in version 2.

    Args:
      start_logits, end_logits: for each window float32 [S]; S is at least the window's length.
      verbose: see `AnswerTexts`.
    """
    texts = AnswerTexts(examples, windows, tokenizer, settings.answer_from, verbose)
    found = list(_candidates(windows, start_logits, end_logits, settings))
    found = np.concatenate(found) if found else np.zeros((0, 3), np.int64)
    of_example = np.searchsorted(windows.example_index, np.arange(len(examples) + 1))  # first window of each example
    bounds = np.searchsorted(found[:, 0], of_example)
    for number in range(len(examples)):
        rows = range(int(of_example[number]), int(of_example[number + 1]))
        spans = found[bounds[number] : bounds[number + 1]]
        yield _predict_one(spans, rows, windows, start_logits, end_logits, texts, settings)


def _predict_one(spans, rows: range, windows, start_logits, end_logits, texts: AnswerTexts, settings) -> Prediction:
    row_list, firsts, lasts = spans.T.tolist()
    starts = [float(start_logits[row][first]) for row, first in zip(row_list, firsts, strict=True)]
    ends = [float(end_logits[row][last]) for row, last in zip(row_list, lasts, strict=True)]
    null = None
    if settings.version_2_with_negative:
        for row in rows:
            pair = float(start_logits[row][0]), float(end_logits[row][0])
            if null is None or sum(pair) < sum(null):
                null = pair
        if null:
            starts.append(null[0])
            ends.append(null[1])
    scores = np.array(starts, np.float64) + np.array(ends, np.float64)
    nbest, seen = [], set()
    for place in np.argsort(-scores, kind="stable").tolist():
        if len(nbest) >= settings.n_best_size:
            break
        if place == len(row_list):  # the null candidate is last
            text, start, end = "", None, None
        else:
            text, start, end = texts.of(row_list[place], firsts[place], lasts[place])
            if text in seen:
                continue
        seen.add(text)
        nbest.append((text, starts[place], ends[place], start, end))
    if null and "" not in seen:
        nbest.append(("", *null, None, None))
    if not nbest:
        empty = settings.version_2_with_negative or settings.answer_from == "offsets"
        nbest.append(("" if empty else "empty", 0.0, 0.0, None, None))
    answers = _with_probabilities(nbest)
    best = next((answer for answer in answers if answer.text), None)
    if not settings.version_2_with_negative:
        return Prediction(answers[0].text, answers, best, None)
    if best is None and rows:
        span = _best_of_all(windows, rows, start_logits, end_logits, settings.max_answer_length)
        if span:
            row, first, last = span
            text, start, end = texts.of(*span)
            best = Answer(text, float(start_logits[row][first]), float(end_logits[row][last]), 0.0, start, end)
    odds = sum(null) - best.start_logit - best.end_logit if null and best else NO_NULL_SCORE
    chosen = "" if best is None or odds > settings.null_score_diff_threshold else best.text
    return Prediction(chosen, answers, best, odds)


def _with_probabilities(nbest: list[tuple]) -> list[Answer]:
    scores = [start_logit + end_logit for _, start_logit, end_logit, _, _ in nbest]
    largest = max(scores)
    weights = [math.exp(score - largest) for score in scores]
    total = 0.0
    for weight in weights:
        total += weight
    return [
        Answer(text, start_logit, end_logit, weight / total, start, end)
        for (text, start_logit, end_logit, start, end), weight in zip(nbest, weights, strict=True)
    ]


# --- files -----------------------------------------------------------------------------------------------------------


def write_predictions(output_dir: str, ids: Sequence[str], predictions: Sequence[Prediction]) -> None:
    """Writes predictions.json, nbest_predictions.json and, in version 2, null_odds.json."""
    names = ("predictions.json", "nbest_predictions.json", "null_odds.json")
    write_prediction_files(ids, predictions, *(posixpath.join(output_dir, name) for name in names))


def write_prediction_files(
    ids: Sequence[str],
    predictions: Sequence[Prediction],
    prediction_file: str,
    nbest_file: str,
    null_odds_file: str | None,
) -> None:
    """Writes predictions in the original's format; null_odds_file in version 2 only."""
    by_id = dict(zip(ids, predictions, strict=True))  # of equal ids the last

    def write(path: str, values: dict) -> None:
        write_text_file(path, json.dumps(values, indent=4) + "\n")

    write(prediction_file, {key: prediction.text for key, prediction in by_id.items()})
    # The same as json.dumps(..., indent=4), which does not use the encoder written in C and is slow.
    lists = (
        f"    {encode_basestring_ascii(key)}: [\n"
        + ",\n".join(map(_entry, prediction.nbest))
        + "\n    ]"
        for key, prediction in by_id.items()
    )  # fmt: skip
    nbest = "{\n" + ",\n".join(lists) + "\n}\n" if by_id else "{}\n"
    write_text_file(nbest_file, nbest)
    if any(prediction.null_odds is not None for prediction in by_id.values()):
        write(null_odds_file, {key: prediction.null_odds for key, prediction in by_id.items()})


def _entry(answer: Answer) -> str:
    return (
        "        {\n"
        f'            "text": {encode_basestring_ascii(answer.text)},\n'
        f'            "probability": {answer.probability!r},\n'
        f'            "start_logit": {answer.start_logit!r},\n'
        f'            "end_logit": {answer.end_logit!r}\n'
        "        }"
    )

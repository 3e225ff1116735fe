"""Scores of answers as models give them, by kind of head: which spans of the windows can be answers, and "no answer".

Shape legend: n windows, S tokens, K best starts, N best ends of each.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from bert_tf.tasks.squad.windows import Windows

NO_NULL_SCORE = 1_000_000.0  # the original's; also the odds where nothing could be an answer
_WINDOWS_AT_ONCE = 2048


@dataclasses.dataclass(frozen=True)
class SpanScores:
    """Of `BertForQuestionAnswering`: first and last token have scores of their own, and "no answer" those of [CLS].

    Attributes:
      starts, ends: for each window float32 [S]; S is at least the window's length.
    """

    starts: Sequence[np.ndarray]
    ends: Sequence[np.ndarray]

    def candidates(self, windows: Windows, n_best_size: int, max_answer_length: int) -> tuple[np.ndarray, np.ndarray]:
        """The spans from the best starts to the best ends of each window that can be answers.

        Returns:
          rows (window, start, end), as in the original by window, rank of the start, rank of the end; their logits
          [.., 2].
        """
        found = list(self._candidates(windows, n_best_size, max_answer_length))
        spans = np.concatenate(found) if found else np.zeros((0, 3), np.int64)
        pairs = [(self.starts[row][first], self.ends[row][last]) for row, first, last in spans.tolist()]
        return spans, np.array(pairs, np.float32).reshape(-1, 2)

    def _candidates(self, windows: Windows, n_best_size: int, max_answer_length: int) -> Iterator[np.ndarray]:
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
            yield np.stack([row + begin, best_starts[row, first], best_ends[row, last]], axis=1)

    def null_logits(self, rows: range) -> tuple[float, float] | None:
        """Both logits of "no answer", from the window of a question with the lowest score for it; it is a candidate."""
        pairs = [(float(self.starts[row][0]), float(self.ends[row][0])) for row in rows]
        return min(pairs, key=sum, default=None)

    def null_odds(self, rows: range, best: tuple[float, float] | None) -> float:
        """Score of "no answer" minus that of the best answer, whose logits are given."""
        null = self.null_logits(rows)
        return sum(null) - best[0] - best[1] if null and best else NO_NULL_SCORE

    def best_of_all(
        self, windows: Windows, rows: range, max_answer_length: int
    ) -> tuple[tuple[int, int, int], tuple[float, float]] | None:
        """The best span of a question's windows and its logits, regardless of n-best lists."""
        best, found = -np.inf, None
        for row in rows:
            base, length = int(windows.offsets[row]), int(windows.lengths[row])
            starts = np.where(windows.max_context[base : base + length], self.starts[row][:length], -np.inf)
            ends = np.where(windows.words[base : base + length] >= 0, self.ends[row][:length], -np.inf)
            for size in range(1, min(max_answer_length, length) + 1):
                sums = starts[: length - size + 1].astype(np.float64) + ends[size - 1 :]
                first = int(sums.argmax())
                if sums[first] > best:
                    best, found = sums[first], (row, first, first + size - 1)
        if found is None:
            return None
        row, first, last = found
        return found, (float(self.starts[row][first]), float(self.ends[row][last]))


@dataclasses.dataclass(frozen=True)
class BeamScores:
    """Of a `question_heads.JointSpanModel`: ends are scored for the best starts, and "no answer" by itself.

    Attributes:
      start_log_probs, starts: [n, K], float32 and int32. end_log_probs, ends: [n, K, N].
      nulls: float32 [n], positive for "no answer".
    """

    start_log_probs: np.ndarray
    starts: np.ndarray
    end_log_probs: np.ndarray
    ends: np.ndarray
    nulls: np.ndarray

    def candidates(self, windows: Windows, n_best_size: int, max_answer_length: int) -> tuple[np.ndarray, np.ndarray]:
        """As `SpanScores.candidates`, with log-probabilities; n_best_size does not matter."""
        del n_best_size
        rows, width = slice(0, len(windows)), 1 + max(int(self.starts.max()), int(self.ends.max()))
        number = np.arange(len(windows))
        start_fits = _flags(windows.max_context, windows, rows, width)[number[:, None], self.starts]
        end_fits = _flags(windows.words >= 0, windows, rows, width)[number[:, None, None], self.ends]
        span = self.ends - self.starts[:, :, None]
        fits = start_fits[:, :, None] & end_fits & (span >= 0) & (span < max_answer_length)
        row, first, last = np.nonzero(fits)
        spans = np.stack([row, self.starts[row, first], self.ends[row, first, last]], axis=1)
        return spans, np.stack([self.start_log_probs[row, first], self.end_log_probs[row, first, last]], axis=1)

    def null_logits(self, rows: range) -> None:
        """None: "no answer" is no candidate among the spans."""

    def null_odds(self, rows: range, best: tuple[float, float] | None) -> float:
        """The lowest score of "no answer" among a question's windows, if there is an answer at all."""
        return float(self.nulls[rows.start : rows.stop].min()) if best else NO_NULL_SCORE

    def best_of_all(self, windows: Windows, rows: range, max_answer_length: int) -> None:
        """None: only the spans of the beam have scores."""


def collect_scores(outputs: Iterable[tuple[np.ndarray, dict]], lengths: np.ndarray) -> SpanScores | BeamScores:
    """The scores of all windows.

    Args:
      outputs: (numbers of windows, a model's outputs for them) of each batch. lengths: tokens kept of each window [n].
    """
    found = [[None] * len(lengths) for _ in range(5)]
    kind, names = SpanScores, ("start_logits", "end_logits")
    for rows, output in outputs:
        if "answerable_logit" in output:
            beam = ("start_top_log_probs", "start_top_index", "end_top_log_probs", "end_top_index")
            kind, names = BeamScores, (*beam, "answerable_logit")
        for name, values in zip(names, found, strict=False):
            for row, value in zip(rows.tolist(), output[name], strict=True):
                values[row] = value[: lengths[row]] if kind is SpanScores else value
    if kind is SpanScores:
        return SpanScores(*found[:2])
    return BeamScores(*map(np.array, found))


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

"""Scores of answers as models give them: which spans of the windows can be answers, and "no answer".

Shape legend: W windows, S tokens, K best starts and ends.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from bert_tf.tasks.squad.windows import Windows

NO_NULL_SCORE = 1_000_000.0  # the original's; also the odds where nothing could be an answer
_WINDOWS_AT_ONCE = 2048


@dataclasses.dataclass(frozen=True)
class SpanScores:
    """The scores of each token as the first and as the last of an answer; those of [CLS] mean "no answer".

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
        chunks = list(self._candidates(windows, n_best_size, max_answer_length))
        spans = np.concatenate(chunks) if chunks else np.zeros((0, 3), np.int64)
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
    """The scores of all windows.

    Args:
      outputs: (numbers of windows, a model's outputs for them) of each batch. lengths: tokens kept of each window [n].
    """
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

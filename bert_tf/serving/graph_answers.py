"""The choice of answers as TensorFlow ops, from the scores of windows; the rules are those of `tasks/squad/answers.py`.

Shape legend: as in `graph_squad`.
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from bert_tf.tasks.squad.outputs import QuestionAnsweringSettings
from bert_tf.tasks.squad.scores import NO_NULL_SCORE

_LOWEST = -float("inf")


class Pieces(NamedTuple):
    """Pieces of all contexts, concatenated: ids, and `starts`, `ends` as characters of the context, int32 [P];
    `splits` int64 [B+1]: where each context begins."""

    ids: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor
    splits: tf.Tensor


class Windows(NamedTuple):
    """Windows, in the order of their questions; each field is int64 [W], except `splits`.

    Attributes:
      splits: [B+1], the first window of each question. question: the question of a window.
      first: its first piece (of all P). size: number of pieces. before: tokens before them: [CLS] question [SEP].
    """

    splits: tf.Tensor
    question: tf.Tensor
    first: tf.Tensor
    size: tf.Tensor
    before: tf.Tensor


class _Spans(NamedTuple):
    """Answers: both logits [...] float64; where they start and end in the context [...] int32, -1 for none."""

    start_logits: tf.Tensor
    end_logits: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor


class Found(NamedTuple):
    """The model's outputs for all windows.

    Attributes:
      outputs: by name, [W, ...]; start_logits and end_logits are float32 [W, S], -inf beyond a window's end.
      inside, most_context: bool [W, S], see `SquadServing._in_context`.
    """

    windows: Windows
    pieces: Pieces
    outputs: dict[str, tf.Tensor]
    inside: tf.Tensor
    most_context: tf.Tensor


class _Ranked(NamedTuple):
    """Spans of each window, by rank of the start, then of the end, [W, M]: tokens int32, and scores float32."""

    firsts: tf.Tensor
    lasts: tf.Tensor
    start_scores: tf.Tensor
    end_scores: tf.Tensor


class _Candidates(NamedTuple):
    """Spans that may be the answer, followed by "no answer".

    Attributes:
      scores: float64 [B, C+1], -inf for invalid ones. number: C.
      spans_of: indices int32 [B, n] up to C, -1 for none -> `_Spans`.
      null: score of "no answer" as a candidate [B] float64, -inf where it is none. null_score: the same without that
        rule, 0 without windows.
    """

    scores: tf.Tensor
    number: tf.Tensor
    spans_of: Callable[[tf.Tensor], _Spans]
    null: tf.Tensor
    null_score: tf.Tensor


class _NBest(NamedTuple):
    """The n-best list [B, N]: spans without characters (-1) are "no answer"; `listed` marks its entries."""

    spans: _Spans
    listed: tf.Tensor
    probabilities: tf.Tensor


class AnswerChoice:
    """The choice of answers from the scores of windows.

    Args:
      settings: how answers are chosen. is_joint: the scores are those of a `joint_spans.JointSpanModel`: "no answer"
        has its own, and is not among the candidates.
    """

    def __init__(self, settings: QuestionAnsweringSettings, is_joint: bool):
        self.settings, self.is_joint = settings, is_joint

    def choose(self, found: Found, codes: tf.RaggedTensor) -> dict[str, tf.Tensor]:
        """What `SquadServing.answer` returns.

        Args:
          codes: code points of the contexts.
        """
        windows = found.windows
        candidates = self._candidates(found)
        chosen = self._best_different(candidates.scores, candidates.spans_of, codes, candidates.number)
        nbest = self._nbest(candidates, chosen)
        if self.settings.predictions.version_2_with_negative:
            start, end, score, null_score = self._best_or_none(found, candidates, nbest)
        else:
            # The first in the list, whether a span or "no answer".
            start, end, score = nbest.spans.starts[:, 0], nbest.spans.ends[:, 0], nbest.probabilities[:, 0]
            null_score = tf.zeros([tf.size(windows.splits) - 1], tf.float32)
        return {
            "answer": _texts(codes, start[:, None], end[:, None])[:, 0],
            "start": start,
            "end": end,
            "score": score,
            "null_score": null_score,
            "nbest_answers": _texts(codes, nbest.spans.starts, nbest.spans.ends),
            "nbest_scores": nbest.probabilities,
            "nbest_starts": nbest.spans.starts,
            "nbest_ends": nbest.spans.ends,
        }

    def _ranked(self, found: Found) -> _Ranked:
        """The spans from the best starts to the best ends of each window."""
        outputs = found.outputs
        if self.is_joint:
            starts, ends = (
                (outputs[f"{part}_top_log_probs"], outputs[f"{part}_top_index"]) for part in ("start", "end")
            )
            number = ends[0].shape[2]
            firsts, start_scores = (tf.repeat(values, number, axis=1) for values in (starts[1], starts[0]))
            lasts, end_scores = (tf.reshape(values, tf.shape(firsts)) for values in (ends[1], ends[0]))
            return _Ranked(firsts, lasts, start_scores, end_scores)
        k = min(self.settings.predictions.n_best_size, self.settings.windows.max_seq_length)
        starts, ends = (tf.math.top_k(outputs[name], k) for name in ("start_logits", "end_logits"))  # [W, K]
        return _Ranked(
            tf.repeat(starts.indices, k, axis=1), tf.tile(ends.indices, [1, k]),
            tf.repeat(starts.values, k, axis=1), tf.tile(ends.values, [1, k]),
        )  # fmt: skip

    def _candidates(self, found: Found) -> _Candidates:
        """The spans that can be answers, and "no answer"."""
        settings = self.settings.predictions
        windows, pieces = found.windows, found.pieces
        number_of_questions = tf.size(windows.splits) - 1
        ranked = self._ranked(found)
        size = ranked.firsts.shape[1]
        lengths = ranked.lasts - ranked.firsts  # [W, M]
        fits = tf.logical_and(lengths >= 0, lengths < settings.max_answer_length)
        for allowed, tokens in ((found.most_context, ranked.firsts), (found.inside, ranked.lasts)):
            width = allowed.shape[1]  # a beam may be wider than a window
            fits = tf.logical_and(fits, tf.gather(allowed, tf.minimum(tokens, width - 1), batch_dims=1))
            fits = tf.logical_and(fits, tokens < width)
        scores = tf.cast(ranked.start_scores, tf.float64) + tf.cast(ranked.end_scores, tf.float64)
        scores = tf.where(fits, scores, tf.constant(_LOWEST, tf.float64))
        scores = tf.RaggedTensor.from_row_splits(scores, windows.splits, validate=False).to_tensor(_LOWEST)
        number = tf.shape(scores)[1] * size
        scores = tf.reshape(scores, [number_of_questions, number])  # [B, C]
        null_score = self._null(found)  # [B]
        null = tf.fill([number_of_questions], tf.constant(_LOWEST, tf.float64))
        if self._lists_null:
            null = tf.where(windows.splits[1:] > windows.splits[:-1], null_score, null)
        scores = tf.concat([scores, null[:, None]], 1)  # [B, C+1]: on a tie "no answer" comes last

        def spans_of(chosen: tf.Tensor) -> _Spans:
            is_span = tf.logical_and(chosen >= 0, chosen < number)
            safe = tf.where(is_span, chosen, 0)
            rows = tf.where(is_span, windows.splits[:-1, None] + tf.cast(safe // size, tf.int64), 0)
            return _spans(windows, pieces, rows, *(_of_row(part, rows, safe % size) for part in ranked), is_span)

        return _Candidates(scores, number, spans_of, null, null_score)

    @property
    def _lists_null(self) -> bool:
        """Whether "no answer" is a candidate."""
        return self.settings.predictions.version_2_with_negative and not self.is_joint

    def _nbest(self, candidates: _Candidates, chosen: tf.Tensor) -> _NBest:
        """The n-best list.

        Args:
          chosen: indices of candidates, int32 [B, n_best_size], best first, padded with -1.
        """
        null = candidates.null
        is_null = tf.equal(chosen, candidates.number)
        spans = candidates.spans_of(chosen)
        values = tf.where(is_null, null[:, None], spans.start_logits + spans.end_logits)
        empty = tf.logical_and(chosen >= 0, spans.ends <= spans.starts)  # includes "no answer"
        count = tf.reduce_sum(tf.cast(chosen >= 0, tf.int32), 1)
        # If there is no candidate, "no answer" is the only entry; if it can be one, it is always in the list.
        added = tf.equal(count, 0)
        if self._lists_null:
            added = tf.logical_or(added, tf.logical_not(tf.reduce_any(empty, 1)))
            values, *parts = (
                tf.pad(part, [[0, 0], [0, 1]], constant_values=filling)
                for part, filling in zip((values, *spans), (0, 0, 0, -1, -1), strict=True)
            )
            spans = _Spans(*parts)
        columns = tf.range(tf.shape(values)[1])[None, :]
        is_added = tf.logical_and(added[:, None], tf.equal(columns, count[:, None]))
        values = tf.where(is_added, tf.where(tf.math.is_finite(null), null, 0.0)[:, None], values)
        listed = tf.logical_or(columns < count[:, None], is_added)  # [B, N]
        starts, ends = (tf.where(spans.ends > spans.starts, part, -1) for part in (spans.starts, spans.ends))
        return _NBest(spans._replace(starts=starts, ends=ends), listed, _softmax(values, listed))

    def _best_or_none(
        self, found: Found, candidates: _Candidates, nbest: _NBest
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """`start`, `end`, `score` and `null_score` [B] of the best answer, or of "no answer" if that is better."""
        splits = found.windows.splits
        is_answer = nbest.spans.starts >= 0
        best = tf.argmax(tf.cast(is_answer, tf.int32), 1, tf.int32)  # the first
        exists = tf.reduce_any(is_answer, 1)
        best_span = _Spans(*(_column(part, best) for part in nbest.spans))
        odds = candidates.null_score
        if not self.is_joint:
            best_span = tf.cond(
                tf.reduce_any(tf.logical_and(splits[1:] > splits[:-1], tf.logical_not(exists))),
                lambda: self._best_of_all(found, exists, best_span),
                lambda: best_span,
            )
            odds = odds - best_span.start_logits - best_span.end_logits
        score = tf.where(exists, _column(nbest.probabilities, best), 0)
        odds = tf.where(best_span.starts >= 0, odds, NO_NULL_SCORE)
        none = odds > self.settings.predictions.null_score_diff_threshold
        none = tf.logical_or(none, best_span.starts < 0)
        is_empty = tf.logical_and(nbest.listed, tf.logical_not(is_answer))
        score_of_none = _column(nbest.probabilities, tf.argmax(tf.cast(is_empty, tf.int32), 1, tf.int32))
        # With a joint head "no answer" need not be in the list.
        score_of_none = tf.where(tf.reduce_any(is_empty, 1), score_of_none, tf.cast(tf.sigmoid(odds), tf.float32))
        score = tf.where(none, score_of_none, score)
        start, end = (tf.where(none, -1, part) for part in (best_span.starts, best_span.ends))
        return start, end, score, tf.cast(odds, tf.float32)

    def _null(self, found: Found) -> tf.Tensor:
        """The lowest score of "no answer" among the windows of each question, float64 [B]; 0 without windows."""
        outputs, windows = found.outputs, found.windows
        parts = (
            [outputs["answerable_logit"]]
            if self.is_joint
            else [outputs[name][:, 0] for name in ("start_logits", "end_logits")]
        )
        scores = tf.add_n([tf.cast(part, tf.float64) for part in parts])
        rows, exists = _first_best(-scores, windows.question, tf.size(windows.splits, tf.int64) - 1)
        return _take_or_zero(scores, rows, exists)

    def _best_different(self, scores: tf.Tensor, spans_of, codes: tf.RaggedTensor, number: tf.Tensor) -> tf.Tensor:
        """The best candidates with different texts.

        Args:
          scores: float64 [B, C+1], -inf for what is not a candidate. number: C.

        Returns:
          Their indices, int32 [B, n_best_size], best first, padded with -1.
        """
        size = self.settings.predictions.n_best_size
        total = number + 1
        questions = tf.range(tf.shape(scores)[0])[:, None]

        def look(taken, done, chosen):
            """Looks at the `taken` best of each question. It starts with a few and takes more if too many texts are
            the same, as happens in overlapping windows."""
            del done, chosen
            taken = tf.minimum(taken, total)
            best = tf.math.top_k(scores, taken)  # on a tie the lower index comes first
            is_candidate = best.values > _LOWEST
            is_null = tf.equal(best.indices, number)
            spans = spans_of(tf.where(is_candidate, best.indices, -1))
            texts = _texts(codes, spans.starts, spans.ends)
            names = tf.broadcast_to(tf.strings.as_string(questions), tf.shape(texts))
            keys = tf.reshape(tf.strings.join([names, texts], " "), [-1])
            _, numbers = tf.unique(keys)
            places = tf.range(tf.size(keys))
            first = tf.equal(places, tf.gather(tf.math.unsorted_segment_min(places, numbers, tf.size(keys)), numbers))
            first = tf.logical_or(tf.reshape(first, tf.shape(texts)), is_null)
            kept = tf.logical_and(is_candidate, first)
            kept = tf.logical_and(kept, tf.cumsum(tf.cast(kept, tf.int32), 1) <= size)
            full = tf.equal(tf.reduce_sum(tf.cast(kept, tf.int32), 1), size)
            exhausted = tf.logical_or(tf.equal(taken, total), tf.logical_not(is_candidate[:, -1]))
            chosen = tf.ragged.boolean_mask(best.indices, kept).to_tensor(-1, shape=[None, size])
            return 4 * taken, tf.reduce_all(tf.logical_or(full, exhausted)), chosen

        nothing = tf.fill([tf.shape(scores)[0], size], -1)
        _, _, chosen = tf.while_loop(
            lambda taken, done, chosen: tf.logical_not(done),
            look,
            [tf.constant(2 * size), tf.constant(False), nothing],
            [tf.TensorShape([]), tf.TensorShape([]), tf.TensorShape([None, size])],
            parallel_iterations=1,
        )
        return chosen

    def _best_of_all(self, found: Found, exists: tf.Tensor, known: _Spans) -> _Spans:
        """`known` [B] where it `exists`; else the best span in the question's windows, whatever its rank, if any."""
        limit = min(self.settings.predictions.max_answer_length, self.settings.windows.max_seq_length)
        windows = found.windows
        start_logits, end_logits = (found.outputs[name] for name in ("start_logits", "end_logits"))
        rows = tf.where(tf.logical_not(tf.gather(exists, windows.question)))[:, 0]  # [R]
        lowest = tf.constant(_LOWEST, tf.float64)
        starts, ends = (
            tf.where(tf.gather(allowed, rows), tf.cast(tf.gather(logits, rows), tf.float64), lowest)
            for logits, allowed in ((start_logits, found.most_context), (end_logits, found.inside))
        )  # [R, S]

        def extend(length, best, first, last):
            sums = starts[:, : tf.shape(starts)[1] - length + 1] + ends[:, length - 1 :]
            largest, place = tf.reduce_max(sums, 1), tf.argmax(sums, 1, tf.int32)
            better = largest > best
            first, last = (tf.where(better, new, old) for new, old in ((place, first), (place + length - 1, last)))
            return length + 1, tf.where(better, largest, best), first, last

        nowhere = tf.zeros(tf.shape(rows), tf.int32)
        _, best, first, last = tf.while_loop(
            lambda length, *_: length <= limit,
            extend,
            [tf.constant(1), tf.fill(tf.shape(rows), lowest), nowhere, nowhere],
            parallel_iterations=1,
        )
        count = tf.size(exists, tf.int64)
        place, is_there = _first_best(best, tf.gather(windows.question, rows), count)  # [B]
        place = tf.where(is_there, place, 0)
        one_more = [tf.concat([values, [0]], 0) for values in (rows, tf.cast(first, tf.int64), tf.cast(last, tf.int64))]
        row, first, last = (tf.gather(values, place)[:, None] for values in one_more)
        row = tf.where(is_there[:, None], row, 0)
        spans = _spans(
            windows, found.pieces, row, tf.cast(first, tf.int32), tf.cast(last, tf.int32),
            _of_row(start_logits, row, first), _of_row(end_logits, row, last), is_there[:, None],
        )  # fmt: skip
        return _Spans(*(tf.where(exists, old, new[:, 0]) for old, new in zip(known, spans, strict=True)))


def take(values: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """values[places]; places out of range give arbitrary values."""
    return tf.gather(values, tf.clip_by_value(places, 0, tf.size(values, places.dtype) - 1))


def _of_row(values: tf.Tensor, rows: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
    """values [W, n] at (rows, columns), [B, m] each; 0 if there are no rows at all."""
    width = tf.shape(values, tf.int64)[1]
    flat = tf.concat([tf.reshape(values, [-1]), tf.zeros([width], values.dtype)], 0)
    return tf.gather(flat, rows * width + tf.cast(columns, tf.int64))


def _column(values: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
    """values [B, n] at one column of each row."""
    return tf.gather(values, columns, batch_dims=1)


def _take_or_zero(values: tf.Tensor, places: tf.Tensor, exists: tf.Tensor) -> tf.Tensor:
    taken = tf.gather(tf.concat([values, tf.zeros([1], values.dtype)], 0), tf.where(exists, places, 0))
    return tf.where(exists, taken, tf.zeros([], values.dtype))


def _first_best(values: tf.Tensor, groups: tf.Tensor, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The first index of the largest value of each of `count` groups, and whether the group has a finite value."""
    largest = tf.math.unsorted_segment_max(values, groups, count)
    places = tf.range(tf.size(values, tf.int64))
    is_largest = tf.logical_and(tf.equal(values, tf.gather(largest, groups)), values > _LOWEST)
    first = tf.math.unsorted_segment_min(places, tf.where(is_largest, groups, -1), count)
    return first, first < tf.size(values, tf.int64)


def _spans(windows: Windows, pieces: Pieces, rows, first, last, start_logits, end_logits, exists) -> _Spans:
    """The tokens `first` to `last` (int32) of windows `rows` (int64), [B, n] each; logits 0 and no characters where
    `exists` is False."""

    def of_token(values, tokens):
        # One entry more, so that there is one even without windows or pieces.
        begin = tf.gather(tf.concat([windows.first - windows.before, [0]], 0), rows)
        return tf.where(exists, take(tf.concat([values, [0]], 0), begin + tf.cast(tokens, tf.int64)), -1)

    logits = (tf.where(exists, tf.cast(part, tf.float64), 0) for part in (start_logits, end_logits))
    return _Spans(*logits, of_token(pieces.starts, first), of_token(pieces.ends, last))


def _softmax(values: tf.Tensor, listed: tf.Tensor) -> tf.Tensor:
    """Probabilities, float32 [B, N], of values in double precision; 0 for those not listed."""
    values = tf.where(listed, values, tf.constant(_LOWEST, tf.float64))
    weights = tf.exp(values - tf.reduce_max(values, 1, keepdims=True))
    return tf.cast(weights / tf.reduce_sum(weights, 1, keepdims=True), tf.float32)


def _texts(codes: tf.RaggedTensor, starts: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
    """Strings [B, n] of the characters starts to ends, int32 [B, n], of code points [B, None]; "" for an empty range.

    They are cut from the code points because an op on strings would copy the whole context for each.
    """
    base = codes.row_starts()[:, None]
    begins = tf.reshape(base + tf.cast(starts, base.dtype), [-1])
    sizes = tf.reshape(tf.maximum(ends - starts, 0), [-1])
    places = tf.ragged.range(begins, begins + tf.cast(sizes, begins.dtype))
    texts = tf.strings.unicode_encode(tf.ragged.map_flat_values(tf.gather, codes.values, places), "UTF-8")
    return tf.reshape(texts, tf.shape(starts))

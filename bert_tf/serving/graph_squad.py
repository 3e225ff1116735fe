"""Question answering as TensorFlow ops, for an exported graph: strings in, answers out, like `QuestionAnswerer`.

The rules are those of `tasks/squad/windows.py` (windows) and `tasks/squad/answers.py` (candidates, n-best list, no
answer), with answers from character offsets. They are written a second time because no Python runs in a server.

Shape legend: B questions, P pieces of all contexts, W windows of all questions, S max_seq_length, K n_best_size,
C candidates of one question (spans of all its windows), N length of the n-best list.
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from bert_tf.models.task_models import BertForQuestionAnswering
from bert_tf.tasks.squad.outputs import QuestionAnsweringSettings
from bert_tf.tasks.squad.scores import NO_NULL_SCORE
from bert_tf.text.tokenizer import Tokenizer

_CPU = "CPU:0"  # for strings and the many small ops around them
_LOWEST = -float("inf")


class _Pieces(NamedTuple):
    """Pieces of all contexts, concatenated: ids, and `starts`, `ends` as characters of the context, int32 [P];
    `splits` int64 [B+1]: where each context begins."""

    ids: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor
    splits: tf.Tensor


class _Windows(NamedTuple):
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


class _Found(NamedTuple):
    """The model's outputs for all windows.

    Attributes:
      start_logits, end_logits: float32 [W, S], -inf beyond a window's end.
      inside, most_context: bool [W, S], see `SquadServing._in_context`.
    """

    windows: _Windows
    pieces: _Pieces
    start_logits: tf.Tensor
    end_logits: tf.Tensor
    inside: tf.Tensor
    most_context: tf.Tensor


class _Candidates(NamedTuple):
    """Spans that may be the answer, followed by "no answer".

    Attributes:
      scores: float64 [B, C+1], -inf for invalid ones. number: C.
      spans_of: indices int32 [B, n] up to C, -1 for none -> `_Spans`.
      null: score of "no answer" [B] float64, -inf where it is not allowed. null_logits: the same without that rule, 0
        without windows.
    """

    scores: tf.Tensor
    number: tf.Tensor
    spans_of: Callable[[tf.Tensor], _Spans]
    null: tf.Tensor
    null_logits: tf.Tensor


class _NBest(NamedTuple):
    """The n-best list [B, N]: spans without characters (-1) are "no answer"; `listed` marks its entries."""

    spans: _Spans
    listed: tf.Tensor
    probabilities: tf.Tensor


class SquadServing(tf.Module):
    """A fine-tuned model with its tokenizer and settings, as functions of tensors.

        serving = SquadServing(model, tokenizer, settings)
        answer = tf.function(serving.answer)
        answer(tf.constant(["Who met Ada?"]), tf.constant(["Her teacher met Ada."]))["answer"]  # [b"Her teacher"]

    Answers are always found by character offsets, whatever the settings say. The only op from outside TensorFlow is
    tensorflow-text's FastWordpieceTokenizeWithOffsets.

    Args:
      model: built. tokenizer: the one that it was trained with.
      settings: how contexts are cut and answers chosen.
      window_batch: windows computed together; it limits the memory that long contexts take.

    Raises:
      ValueError: max_seq_length is more than the model can take, or the vocabulary lacks [CLS], [SEP] or [UNK].
    """

    def __init__(
        self,
        model: BertForQuestionAnswering,
        tokenizer: Tokenizer,
        settings: QuestionAnsweringSettings,
        window_batch: int = 32,
    ):
        super().__init__(name="squad_serving")
        settings.windows.check_room(tokenizer)
        limit = model.config.max_length
        if settings.windows.max_seq_length > limit:
            raise ValueError(
                f"max_seq_length={settings.windows.max_seq_length} is more than max_position_embeddings={limit}."
            )
        if window_batch < 1:
            raise ValueError(f"window_batch={window_batch} must be at least 1")
        for name in ("n_best_size", "max_answer_length"):
            if getattr(settings.predictions, name) < 1:
                raise ValueError(f"{name}={getattr(settings.predictions, name)} must be at least 1")
        self.model = model
        self.settings = settings
        self.window_batch = window_batch
        self._begin_ids, self._between_ids = tokenizer.begin_ids, tokenizer.between_ids
        self._end_ids = tokenizer.end_ids
        self._second_segment, self._pad_id = tokenizer.second_segment, tokenizer.pad_id
        self.tokenizer = tokenizer.to_graph(split_unknown=True)

    @tf.autograph.experimental.do_not_convert
    def answer_ids(self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """float32 `start_logits` and `end_logits` [B, S] of token ids, integers [B, S]."""
        features = {"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segment_ids}
        outputs = self.model({name: tf.cast(value, tf.int32) for name, value in features.items()}, training=False)
        return {name: tf.cast(outputs[name], tf.float32) for name in ("start_logits", "end_logits")}

    @tf.autograph.experimental.do_not_convert
    def answer(self, questions: tf.Tensor, contexts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Answers questions about contexts, string [B] each, in UTF-8; invalid bytes are left out.

        Characters are code points of the context, from 0, invalid bytes not counted. With version_2_with_negative, N is
        n_best_size + 1, to make room for "no answer"; otherwise it is n_best_size.

        Returns:
          `answer` [B] string, "" for none; `start`, `end` [B] int32, its first character and the one after the last,
          -1 for none; `score` [B] float32, its probability among the n-best (0 if it is not among them).
          `null_score` [B] float32: score of "no answer" minus that of the best answer; 1000000 if there is no possible
          answer; 0 without version_2_with_negative.
          `nbest_answers`, `nbest_scores`, `nbest_starts`, `nbest_ends` [B, N], best first, padded with "", 0, -1, -1;
          "no answer" among them is "" with a score.

          A blank context has the answer "" with score 1.

        Raises (when the graph runs):
          InvalidArgumentError: the numbers of questions and contexts differ.
        """
        with tf.device(_CPU):
            equal = tf.debugging.assert_equal(
                tf.size(questions), tf.size(contexts), "questions and contexts must be equally many"
            )
            with tf.control_dependencies([equal] if equal is not None else []):
                questions, contexts = tf.identity(questions), tf.identity(contexts)
            queries = self.tokenizer.encode(questions)[:, : self.settings.windows.max_query_length]
            ids, starts, ends = self.tokenizer.tokenize(contexts)
            pieces = _Pieces(ids.values, starts.values, ends.values, tf.cast(ids.row_splits, tf.int64))
            # Code points, from which answers are cut; the space completes a character that the end cuts off.
            codes = tf.strings.unicode_decode(tf.strings.join([contexts, " "]), "UTF-8", errors="ignore")
            windows = self._cut(queries, pieces)
        start_logits, end_logits = self._logits(windows, queries, pieces)
        with tf.device(_CPU):
            return self._choose(windows, pieces, start_logits, end_logits, codes)

    # ---- windows -----------------------------------------------------------------------------------------------------

    def _cut(self, queries: tf.RaggedTensor, pieces: _Pieces) -> _Windows:
        """The windows, as by `token_rows.document_spans`."""
        settings = self.settings.windows
        before = tf.cast(queries.row_lengths(), tf.int64) + len(self._begin_ids) + len(self._between_ids)
        counts = pieces.splits[1:] - pieces.splits[:-1]
        room = settings.max_seq_length - len(self._end_ids) - before
        step = tf.minimum(room, settings.doc_stride)
        further = tf.maximum(counts - room, 0)
        numbers = tf.where(counts > 0, 1 + (further + step - 1) // step, 0)
        splits = tf.concat([[0], tf.cumsum(numbers)], 0)
        question = tf.repeat(tf.range(tf.size(counts, tf.int64)), numbers)
        first = (tf.range(splits[-1]) - tf.gather(splits, question)) * tf.gather(step, question)
        size = tf.minimum(tf.gather(counts, question) - first, tf.gather(room, question))
        return _Windows(splits, question, tf.gather(pieces.splits, question) + first, size, tf.gather(before, question))

    def _logits(self, windows: _Windows, queries: tf.RaggedTensor, pieces: _Pieces) -> tuple[tf.Tensor, tf.Tensor]:
        """Both logits of every token, float32 [W, S]; -inf beyond a window's end."""
        width = self.settings.windows.max_seq_length
        count = tf.size(windows.size)
        with tf.device(_CPU):
            # Batches windows of similar length, for less padding.
            order = tf.argsort(-(windows.before + windows.size), stable=True)
            # One entry more than needed, so that an index is valid even without questions.
            query_ids, piece_ids = (tf.concat([values, [0]], 0) for values in (queries.values, pieces.ids))
            query_starts = tf.cast(queries.row_splits, tf.int64)

        def compute(done, starts, ends):
            with tf.device(_CPU):
                rows = order[done : done + self.window_batch]  # [R]
                of = _Windows(windows.splits, *(tf.gather(values, rows)[:, None] for values in windows[1:]))
                lengths = of.before + of.size + len(self._end_ids)  # [R, 1]
                places = tf.range(tf.reduce_max(lengths))[None, :]  # [1, L]
                inside = places < lengths
                second = tf.logical_and(inside, places >= of.before)
                from_query = _take(query_ids, tf.gather(query_starts, of.question) + places - len(self._begin_ids))
                from_context = _take(piece_ids, of.first + places - of.before)
                ids = tf.where(second, from_context, from_query)
                for first, special in (
                    (tf.zeros_like(lengths), self._begin_ids),
                    (of.before - len(self._between_ids), self._between_ids),
                    (of.before + of.size, self._end_ids),
                ):
                    for number, token in enumerate(special):
                        ids = tf.where(tf.equal(places, first + number), token, ids)
                ids = tf.where(inside, ids, self._pad_id)
            segments = tf.cast(second, tf.int32) * self._second_segment
            outputs = self.answer_ids(ids, tf.cast(inside, tf.int32), segments)
            with tf.device(_CPU):
                number = tf.size(lengths)

                def padded(logits):
                    logits = tf.where(inside, logits, _LOWEST)
                    missing = width - tf.shape(logits)[1]
                    return tf.ensure_shape(
                        tf.pad(logits, [[0, 0], [0, missing]], constant_values=_LOWEST), [None, width]
                    )

                place = done // self.window_batch
                starts = starts.write(place, padded(outputs["start_logits"]))
                ends = ends.write(place, padded(outputs["end_logits"]))
                return done + number, starts, ends

        with tf.device(_CPU):
            batches = (count + self.window_batch - 1) // self.window_batch
            arrays = [
                tf.TensorArray(tf.float32, batches, infer_shape=False, element_shape=[None, width]) for _ in range(2)
            ]
        # One batch at a time: each uses all cores, and only one takes memory.
        _, *arrays = tf.while_loop(lambda done, *_: done < count, compute, [0, *arrays], parallel_iterations=1)
        with tf.device(_CPU):
            back = tf.math.invert_permutation(order)
            starts, ends = (tf.gather(tf.reshape(array.concat(), [-1, width]), back) for array in arrays)
            return starts, ends

    def _in_context(self, windows: _Windows, number_of_pieces: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """bool [W, S] each: whether a token belongs to the context, and whether no other window has more text around
        it (as `squad.windows`: more on both sides, then the longer window, then the earlier one)."""
        places = tf.range(self.settings.windows.max_seq_length, dtype=tf.int64)[None, :] - windows.before[:, None]
        size = windows.size[:, None]
        inside = tf.logical_and(places >= 0, places < size)
        around = tf.cast(tf.minimum(places, size - 1 - places), tf.float64) + 0.01 * tf.cast(size, tf.float64)
        pieces = tf.where(inside, windows.first[:, None] + places, 0)
        count = tf.maximum(number_of_pieces, 1)  # so that piece 0 is valid
        most = tf.math.unsorted_segment_max(around, tf.where(inside, pieces, -1), count)
        best = tf.logical_and(inside, tf.equal(around, tf.gather(most, pieces)))
        rows = tf.range(tf.size(windows.size))[:, None] + tf.zeros_like(pieces, tf.int32)
        earliest = tf.math.unsorted_segment_min(rows, tf.where(best, pieces, -1), count)
        return inside, tf.logical_and(best, tf.equal(rows, tf.gather(earliest, pieces)))

    # ---- answers -----------------------------------------------------------------------------------------------------

    def _choose(
        self, windows: _Windows, pieces: _Pieces, start_logits: tf.Tensor, end_logits: tf.Tensor, codes
    ) -> dict[str, tf.Tensor]:
        """What `answer` returns, as by `tasks.squad.answers.predict_answers`."""
        found = _Found(
            windows, pieces, start_logits, end_logits, *self._in_context(windows, tf.size(pieces.ids, tf.int64))
        )
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

    def _candidates(self, found: _Found) -> _Candidates:
        """The spans from the best starts to the best ends of each window, and "no answer"."""
        settings = self.settings.predictions
        windows, pieces = found.windows, found.pieces
        number_of_questions = tf.size(windows.splits) - 1
        k = min(settings.n_best_size, self.settings.windows.max_seq_length)
        best_starts, best_ends = (
            tf.math.top_k(logits, k) for logits in (found.start_logits, found.end_logits)
        )  # [W, K]
        lengths = best_ends.indices[:, None, :] - best_starts.indices[:, :, None]  # [W, K, K]
        fits = tf.logical_and(lengths >= 0, lengths < settings.max_answer_length)
        fits = tf.logical_and(fits, tf.gather(found.most_context, best_starts.indices, batch_dims=1)[:, :, None])
        fits = tf.logical_and(fits, tf.gather(found.inside, best_ends.indices, batch_dims=1)[:, None, :])
        scores = tf.cast(best_starts.values, tf.float64)[:, :, None] + tf.cast(best_ends.values, tf.float64)[:, None, :]
        scores = tf.where(fits, scores, tf.constant(_LOWEST, tf.float64))
        scores = tf.RaggedTensor.from_row_splits(scores, windows.splits, validate=False).to_tensor(_LOWEST)
        number = tf.shape(scores)[1] * k * k
        scores = tf.reshape(scores, [number_of_questions, number])  # [B, C]
        null_starts, null_ends = self._null(windows, found.start_logits, found.end_logits)  # [B]
        null = tf.fill([number_of_questions], tf.constant(_LOWEST, tf.float64))
        if settings.version_2_with_negative:
            has_windows = windows.splits[1:] > windows.splits[:-1]
            null = tf.where(has_windows, null_starts + null_ends, null)
        scores = tf.concat([scores, null[:, None]], 1)  # [B, C+1]: on a tie "no answer" comes last

        def spans_of(chosen: tf.Tensor) -> _Spans:
            is_span = tf.logical_and(chosen >= 0, chosen < number)
            safe = tf.where(is_span, chosen, 0)
            rows = tf.where(is_span, windows.splits[:-1, None] + tf.cast(safe // (k * k), tf.int64), 0)
            ranked = (best_starts, safe // k % k), (best_ends, safe % k)
            first, last = (_of_row(best.indices, rows, rank) for best, rank in ranked)
            logits = (_of_row(best.values, rows, rank) for best, rank in ranked)
            return _spans(windows, pieces, rows, first, last, *logits, is_span)

        return _Candidates(scores, number, spans_of, null, null_starts + null_ends)

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
        # "No answer" is always in the list; if there is no candidate, it is the only entry.
        added = tf.equal(count, 0)
        if self.settings.predictions.version_2_with_negative:
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
        self, found: _Found, candidates: _Candidates, nbest: _NBest
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """`start`, `end`, `score` and `null_score` [B] of the best answer, or of "no answer" if that is better."""
        splits = found.windows.splits
        is_answer = nbest.spans.starts >= 0
        best = tf.argmax(tf.cast(is_answer, tf.int32), 1, tf.int32)  # the first
        exists = tf.reduce_any(is_answer, 1)
        best_span = _Spans(*(_column(part, best) for part in nbest.spans))
        best_span = tf.cond(
            tf.reduce_any(tf.logical_and(splits[1:] > splits[:-1], tf.logical_not(exists))),
            lambda: self._best_of_all(found, exists, best_span),
            lambda: best_span,
        )
        score = tf.where(exists, _column(nbest.probabilities, best), 0)
        odds = candidates.null_logits - best_span.start_logits - best_span.end_logits
        odds = tf.where(best_span.starts >= 0, odds, NO_NULL_SCORE)
        none = odds > self.settings.predictions.null_score_diff_threshold
        none = tf.logical_or(none, best_span.starts < 0)
        is_empty = tf.logical_and(nbest.listed, tf.logical_not(is_answer))
        first_empty = tf.argmax(tf.cast(is_empty, tf.int32), 1, tf.int32)
        score = tf.where(none, _column(nbest.probabilities, first_empty), score)
        start, end = (tf.where(none, -1, part) for part in (best_span.starts, best_span.ends))
        return start, end, score, tf.cast(odds, tf.float32)

    def _null(self, windows: _Windows, start_logits: tf.Tensor, end_logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Both logits of "no answer", float64 [B], from the window with the lowest score for it; 0 without windows."""
        count = tf.size(windows.splits, tf.int64) - 1
        starts, ends = (tf.cast(logits[:, 0], tf.float64) for logits in (start_logits, end_logits))
        rows, exists = _first_best(-(starts + ends), windows.question, count)
        return tuple(_take_or_zero(logits, rows, exists) for logits in (starts, ends))

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

    def _best_of_all(self, found: _Found, exists: tf.Tensor, known: _Spans) -> _Spans:
        """`known` [B] where it `exists`; else the best span in the question's windows, whatever its rank, if any."""
        limit = min(self.settings.predictions.max_answer_length, self.settings.windows.max_seq_length)
        windows = found.windows
        rows = tf.where(tf.logical_not(tf.gather(exists, windows.question)))[:, 0]  # [R]
        lowest = tf.constant(_LOWEST, tf.float64)
        starts, ends = (
            tf.where(tf.gather(allowed, rows), tf.cast(tf.gather(logits, rows), tf.float64), lowest)
            for logits, allowed in ((found.start_logits, found.most_context), (found.end_logits, found.inside))
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
            _of_row(found.start_logits, row, first), _of_row(found.end_logits, row, last), is_there[:, None],
        )  # fmt: skip
        return _Spans(*(tf.where(exists, old, new[:, 0]) for old, new in zip(known, spans, strict=True)))


def _take(values: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
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


def _spans(windows: _Windows, pieces: _Pieces, rows, first, last, start_logits, end_logits, exists) -> _Spans:
    """The tokens `first` to `last` (int32) of windows `rows` (int64), [B, n] each; logits 0 and no characters where
    `exists` is False."""

    def of_token(values, tokens):
        # One entry more, so that there is one even without windows or pieces.
        begin = tf.gather(tf.concat([windows.first - windows.before, [0]], 0), rows)
        return tf.where(exists, _take(tf.concat([values, [0]], 0), begin + tf.cast(tokens, tf.int64)), -1)

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

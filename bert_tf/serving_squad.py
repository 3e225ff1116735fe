"""Question answering as TensorFlow ops, for an exported graph: strings in, answers out, as by `QuestionAnswerer`.

The rules are those of `tasks/squad_features.py` (windows) and `tasks/squad_predictions.py` (candidates, n-best list, no
answer), with answers from character offsets. They are written once more because nothing of Python runs in a server.

Letters of shapes: B questions, P pieces of all contexts, W windows of all questions, S max_seq_length, K n_best_size,
C candidates of one question (spans of all its windows), N length of the n-best list.
"""

from typing import NamedTuple

import tensorflow as tf

from bert_tf.graph_tokenizer import GraphTokenizer
from bert_tf.task_models import BertForQuestionAnswering
from bert_tf.tasks.squad import QuestionAnsweringSettings
from bert_tf.tasks.squad_predictions import NO_NULL_SCORE
from bert_tf.tokenization import FullTokenizer

_CPU = "CPU:0"  # strings live there, and so do the many small ops around them
_LOWEST = -float("inf")


class _Pieces(NamedTuple):
    """Pieces of all contexts, one after the other: ids, and the characters `starts`, `ends` of the contexts, int32 [P];
    `splits` int64 [B+1]: where each context begins."""

    ids: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor
    splits: tf.Tensor


class _Windows(NamedTuple):
    """Windows, in the order of their questions; int64 [W] each but `splits`.

    Attributes:
      splits: [B+1], the first window of each question. question: which one a window belongs to.
      first: its first piece (of all P). size: how many. before: tokens before it: [CLS] question [SEP].
    """

    splits: tf.Tensor
    question: tf.Tensor
    first: tf.Tensor
    size: tf.Tensor
    before: tf.Tensor


class _Spans(NamedTuple):
    """Answers: sums of logits [...] float64 and their two parts; characters of the context [...] int32, -1 for none."""

    start_logits: tf.Tensor
    end_logits: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor


class SquadServing(tf.Module):
    """A fine-tuned model with its tokenizer and settings, as functions of tensors.

        serving = SquadServing(model, tokenizer, settings)
        answer = tf.function(serving.answer)
        answer(tf.constant(["Who met Ada?"]), tf.constant(["Her teacher met Ada."]))["answer"]  # [b"Her teacher"]

    Whatever the settings say, answers are found by character offsets. Ops beyond TensorFlow's: tensorflow-text's
    FastWordpieceTokenizeWithOffsets.

    Args:
      model: built. tokenizer: the one that it was trained with.
      settings: how contexts are cut and answers chosen.
      window_batch: windows computed together; memory does not grow with the length of a context beyond that.

    Raises:
      ValueError: max_seq_length is more than the model can take, or the vocabulary lacks [CLS], [SEP] or [UNK].
    """

    def __init__(
        self,
        model: BertForQuestionAnswering,
        tokenizer: FullTokenizer,
        settings: QuestionAnsweringSettings,
        window_batch: int = 32,
    ):
        super().__init__(name="squad_serving")
        limit = model.config.max_position_embeddings
        if settings.windows.max_seq_length > limit:
            raise ValueError(
                f"max_seq_length={settings.windows.max_seq_length} is more than max_position_embeddings={limit}."
            )
        missing = [token for token in ("[CLS]", "[SEP]") if token not in tokenizer.vocab]
        if missing:
            raise ValueError(f"the vocabulary lacks {' and '.join(missing)}, which stand around every question")
        if window_batch < 1:
            raise ValueError(f"window_batch={window_batch} must be at least 1")
        for name in ("n_best_size", "max_answer_length"):
            if getattr(settings.predictions, name) < 1:
                raise ValueError(f"{name}={getattr(settings.predictions, name)} must be at least 1")
        self.model = model
        self.settings = settings
        self.window_batch = window_batch
        self._begin, self._separator = tokenizer.vocab["[CLS]"], tokenizer.vocab["[SEP]"]
        self._tokenizer = GraphTokenizer.from_tokenizer(tokenizer, split_unknown=True)

    @tf.autograph.experimental.do_not_convert
    def answer_ids(self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """float32 `start_logits` and `end_logits` [B, S] of token ids, integers [B, S]."""
        features = {"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segment_ids}
        outputs = self.model({name: tf.cast(value, tf.int32) for name, value in features.items()}, training=False)
        return {name: tf.cast(outputs[name], tf.float32) for name in ("start_logits", "end_logits")}

    @tf.autograph.experimental.do_not_convert
    def answer(self, questions: tf.Tensor, contexts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Answers to questions on contexts, string [B] each, in UTF-8; invalid bytes are left out.

        Characters are code points of the context, from 0, invalid bytes not counted. With version_2_with_negative N is
        n_best_size + 1, as "no answer" may come on top; else n_best_size.

        Returns:
          `answer` [B] string, "" for none; `start`, `end` [B] int32, its first character and the one after the last,
          -1 for none; `score` [B] float32, its probability among the n-best (0 if it is none of them).
          `null_score` [B] float32: score of "no answer" minus that of the best answer; 1000000 where nothing could be
          an answer; 0 without version_2_with_negative.
          `nbest_answers`, `nbest_scores`, `nbest_starts`, `nbest_ends` [B, N], best first, filled up with "", 0, -1,
          -1; "no answer" among them is "" with a score.

          A blank context has the answer "" with score 1.

        Raises (when the graph runs):
          InvalidArgumentError: another number of questions than of contexts.
        """
        with tf.device(_CPU):
            equal = tf.debugging.assert_equal(
                tf.size(questions), tf.size(contexts), "as many questions as contexts are needed"
            )
            with tf.control_dependencies([equal] if equal is not None else []):
                questions, contexts = tf.identity(questions), tf.identity(contexts)
            queries = self._tokenizer.encode(questions)[:, : self.settings.windows.max_query_length]
            ids, starts, ends = self._tokenizer.tokenize(contexts)
            pieces = _Pieces(ids.values, starts.values, ends.values, tf.cast(ids.row_splits, tf.int64))
            # Code points, from which texts are made: the space is for bytes of a character that the end cuts off.
            codes = tf.strings.unicode_decode(tf.strings.join([contexts, " "]), "UTF-8", errors="ignore")
            windows = self._cut(queries, pieces)
        start_logits, end_logits = self._logits(windows, queries, pieces)
        with tf.device(_CPU):
            return self._choose(windows, pieces, start_logits, end_logits, codes)

    # ---- windows -----------------------------------------------------------------------------------------------------

    def _cut(self, queries: tf.RaggedTensor, pieces: _Pieces) -> _Windows:
        """As `squad_features.document_spans`."""
        settings = self.settings.windows
        before = tf.cast(queries.row_lengths(), tf.int64) + 2
        counts = pieces.splits[1:] - pieces.splits[:-1]
        room = settings.max_seq_length - 1 - before
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
            # Windows of like length together, as there is less to pad then.
            order = tf.argsort(-(windows.before + windows.size), stable=True)
            # One more than there are, so that an index is valid where nothing is asked.
            query_ids, piece_ids = (tf.concat([values, [0]], 0) for values in (queries.values, pieces.ids))
            query_starts = tf.cast(queries.row_splits, tf.int64)

        def compute(done, starts, ends):
            with tf.device(_CPU):
                rows = order[done : done + self.window_batch]  # [R]
                of = _Windows(windows.splits, *(tf.gather(values, rows)[:, None] for values in windows[1:]))
                lengths = of.before + of.size + 1  # [R, 1]
                places = tf.range(tf.reduce_max(lengths))[None, :]  # [1, L]
                inside = places < lengths
                second = tf.logical_and(inside, places >= of.before)
                from_query = _take(query_ids, tf.gather(query_starts, of.question) + places - 1)
                from_context = _take(piece_ids, of.first + places - of.before)
                separators = tf.logical_or(tf.equal(places, of.before - 1), tf.equal(places, lengths - 1))
                ids = tf.where(second, from_context, from_query)
                ids = tf.where(separators, self._separator, tf.where(places > 0, ids, self._begin))
                ids = tf.where(inside, ids, 0)
            outputs = self.answer_ids(ids, tf.cast(inside, tf.int32), tf.cast(second, tf.int32))
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
        # One batch after the other: each fills the processors, and memory is that of one.
        _, *arrays = tf.while_loop(lambda done, *_: done < count, compute, [0, *arrays], parallel_iterations=1)
        with tf.device(_CPU):
            back = tf.math.invert_permutation(order)
            starts, ends = (tf.gather(tf.reshape(array.concat(), [-1, width]), back) for array in arrays)
            return starts, ends

    def _in_context(self, windows: _Windows, number_of_pieces: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """bool [W, S] each: whether a token is of the context; and is in no other window with more text around it (as
        `squad_features._best_spans`: more of both sides, then the longer window, then the earlier one)."""
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
        """What `answer` returns; as `squad_predictions.predict_answers`."""
        settings = self.settings.predictions
        number_of_questions = tf.size(windows.splits) - 1
        has_windows = windows.splits[1:] > windows.splits[:-1]  # [B]
        inside, most_context = self._in_context(windows, tf.size(pieces.ids, tf.int64))
        k = min(settings.n_best_size, self.settings.windows.max_seq_length)
        best_starts, best_ends = tf.math.top_k(start_logits, k), tf.math.top_k(end_logits, k)  # [W, K]
        lengths = best_ends.indices[:, None, :] - best_starts.indices[:, :, None]  # [W, K, K]
        fits = tf.logical_and(lengths >= 0, lengths < settings.max_answer_length)
        fits = tf.logical_and(fits, tf.gather(most_context, best_starts.indices, batch_dims=1)[:, :, None])
        fits = tf.logical_and(fits, tf.gather(inside, best_ends.indices, batch_dims=1)[:, None, :])
        scores = tf.cast(best_starts.values, tf.float64)[:, :, None] + tf.cast(best_ends.values, tf.float64)[:, None, :]
        scores = tf.where(fits, scores, tf.constant(_LOWEST, tf.float64))
        scores = tf.RaggedTensor.from_row_splits(scores, windows.splits, validate=False).to_tensor(_LOWEST)
        number = tf.shape(scores)[1] * k * k
        scores = tf.reshape(scores, [number_of_questions, number])  # [B, C]
        null_starts, null_ends = self._null(windows, start_logits, end_logits)  # [B]
        null = tf.fill([number_of_questions], tf.constant(_LOWEST, tf.float64))
        if settings.version_2_with_negative:
            null = tf.where(has_windows, null_starts + null_ends, null)
        scores = tf.concat([scores, null[:, None]], 1)  # [B, C+1]: of equals "no answer" comes last

        def spans_of(chosen: tf.Tensor) -> _Spans:
            """Of candidates: int32 [B, n], numbers up to C, -1 for none."""
            is_span = tf.logical_and(chosen >= 0, chosen < number)
            safe = tf.where(is_span, chosen, 0)
            rows = tf.where(is_span, windows.splits[:-1, None] + tf.cast(safe // (k * k), tf.int64), 0)
            ranked = (best_starts, safe // k % k), (best_ends, safe % k)
            first, last = (_of_row(best.indices, rows, rank) for best, rank in ranked)
            logits = (_of_row(best.values, rows, rank) for best, rank in ranked)
            return _spans(windows, pieces, rows, first, last, *logits, is_span)

        chosen = self._best_different(scores, spans_of, codes, number)  # [B, n_best_size]
        is_null = tf.equal(chosen, number)
        spans = spans_of(chosen)
        values = tf.where(is_null, null[:, None], spans.start_logits + spans.end_logits)
        empty = tf.logical_and(chosen >= 0, spans.ends <= spans.starts)  # "no answer" is one
        count = tf.reduce_sum(tf.cast(chosen >= 0, tf.int32), 1)
        # "No answer" stands in the list in any case, or, if nothing could be one, in its place.
        added = tf.equal(count, 0)
        if settings.version_2_with_negative:
            added = tf.logical_or(added, tf.logical_not(tf.reduce_any(empty, 1)))
            values, starts, ends = (
                tf.pad(part, [[0, 0], [0, 1]], constant_values=filling)
                for part, filling in ((values, 0), (spans.starts, -1), (spans.ends, -1))
            )
        else:
            starts, ends = spans.starts, spans.ends
        columns = tf.range(tf.shape(values)[1])[None, :]
        is_added = tf.logical_and(added[:, None], tf.equal(columns, count[:, None]))
        values = tf.where(is_added, tf.where(tf.math.is_finite(null), null, 0.0)[:, None], values)
        listed = tf.logical_or(columns < count[:, None], is_added)  # [B, N]
        starts, ends = (tf.where(ends > starts, part, -1) for part in (starts, ends))
        probabilities = _softmax(values, listed)

        nbest_answers = _texts(codes, starts, ends)
        found = starts >= 0
        best = tf.argmax(tf.cast(found, tf.int32), 1, tf.int32)  # the first
        exists = tf.reduce_any(found, 1)
        if not settings.version_2_with_negative:
            # The first in the list, found or not.
            start, end, score = starts[:, 0], ends[:, 0], probabilities[:, 0]
            null_score = tf.zeros([number_of_questions], tf.float32)
        else:
            best_span = _Spans(
                *(_column(tf.pad(part, [[0, 0], [0, 1]]), best) for part in spans[:2]),
                *(_column(part, best) for part in (starts, ends)),
            )
            best_span = tf.cond(
                tf.reduce_any(tf.logical_and(has_windows, tf.logical_not(exists))),
                lambda: self._best_of_all(
                    windows, pieces, start_logits, end_logits, inside, most_context, exists, best_span
                ),
                lambda: best_span,
            )
            score = tf.where(exists, _column(probabilities, best), 0)
            odds = null_starts + null_ends - best_span.start_logits - best_span.end_logits
            odds = tf.where(best_span.starts >= 0, odds, NO_NULL_SCORE)
            none = odds > settings.null_score_diff_threshold
            none = tf.logical_or(none, best_span.starts < 0)
            first_empty = tf.argmax(tf.cast(tf.logical_and(listed, starts < 0), tf.int32), 1, tf.int32)
            score = tf.where(none, _column(probabilities, first_empty), score)
            start, end = (tf.where(none, -1, part) for part in (best_span.starts, best_span.ends))
            null_score = tf.cast(odds, tf.float32)
        answer = _texts(codes, start[:, None], end[:, None])[:, 0]
        return {
            "answer": answer,
            "start": start,
            "end": end,
            "score": score,
            "null_score": null_score,
            "nbest_answers": nbest_answers,
            "nbest_scores": probabilities,
            "nbest_starts": starts,
            "nbest_ends": ends,
        }

    def _null(self, windows: _Windows, start_logits: tf.Tensor, end_logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Both logits of "no answer", float64 [B], those of the window that thinks least of it; 0 without windows."""
        count = tf.size(windows.splits, tf.int64) - 1
        starts, ends = (tf.cast(logits[:, 0], tf.float64) for logits in (start_logits, end_logits))
        rows, exists = _first_best(-(starts + ends), windows.question, count)
        return tuple(_take_or_zero(logits, rows, exists) for logits in (starts, ends))

    def _best_different(self, scores: tf.Tensor, spans_of, codes: tf.RaggedTensor, number: tf.Tensor) -> tf.Tensor:
        """The best candidates with different texts.

        Args:
          scores: float64 [B, C+1], -inf for what is no candidate. number: C.

        Returns:
          Their numbers, int32 [B, n_best_size], best first, filled up with -1.
        """
        size = self.settings.predictions.n_best_size
        total = number + 1
        questions = tf.range(tf.shape(scores)[0])[:, None]

        def look(taken, done, chosen):
            """Looks at the `taken` best of each question, at first at a few: where a text comes again and again, as it
            does in windows that overlap, too few may be left."""
            del done, chosen
            taken = tf.minimum(taken, total)
            best = tf.math.top_k(scores, taken)  # of equals the first comes first
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

    def _best_of_all(
        self, windows: _Windows, pieces: _Pieces, start_logits, end_logits, inside, most_context, exists, known: _Spans
    ) -> _Spans:
        """`known` [B], where it `exists`; else the best span of the question's windows whatever its rank, if any."""
        limit = min(self.settings.predictions.max_answer_length, self.settings.windows.max_seq_length)
        rows = tf.where(tf.logical_not(tf.gather(exists, windows.question)))[:, 0]  # [R]
        lowest = tf.constant(_LOWEST, tf.float64)
        starts, ends = (
            tf.where(tf.gather(allowed, rows), tf.cast(tf.gather(logits, rows), tf.float64), lowest)
            for logits, allowed in ((start_logits, most_context), (end_logits, inside))
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
        place, found = _first_best(best, tf.gather(windows.question, rows), count)  # [B]
        place = tf.where(found, place, 0)
        one_more = [tf.concat([values, [0]], 0) for values in (rows, tf.cast(first, tf.int64), tf.cast(last, tf.int64))]
        row, first, last = (tf.gather(values, place)[:, None] for values in one_more)
        row = tf.where(found[:, None], row, 0)
        spans = _spans(
            windows, pieces, row, tf.cast(first, tf.int32), tf.cast(last, tf.int32),
            _of_row(start_logits, row, first), _of_row(end_logits, row, last), found[:, None],
        )  # fmt: skip
        return _Spans(*(tf.where(exists, old, new[:, 0]) for old, new in zip(known, spans, strict=True)))


def _take(values: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """values[places], where a place outside gives any value."""
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
    """Where each of `count` groups has its largest value first; and whether it has a finite one at all."""
    largest = tf.math.unsorted_segment_max(values, groups, count)
    places = tf.range(tf.size(values, tf.int64))
    is_largest = tf.logical_and(tf.equal(values, tf.gather(largest, groups)), values > _LOWEST)
    first = tf.math.unsorted_segment_min(places, tf.where(is_largest, groups, -1), count)
    return first, first < tf.size(values, tf.int64)


def _spans(windows: _Windows, pieces: _Pieces, rows, first, last, start_logits, end_logits, exists) -> _Spans:
    """Of windows `rows` int64 the tokens first to last, int32, [B, n] each; logits 0 and no characters where one does
    not `exist`."""

    def of_token(values, tokens):
        # There is always an entry, also where there are no windows or no pieces.
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

    Cut from the code points, as an op on strings would copy the whole context for each.
    """
    base = codes.row_starts()[:, None]
    begins = tf.reshape(base + tf.cast(starts, base.dtype), [-1])
    sizes = tf.reshape(tf.maximum(ends - starts, 0), [-1])
    places = tf.ragged.range(begins, begins + tf.cast(sizes, begins.dtype))
    texts = tf.strings.unicode_encode(tf.ragged.map_flat_values(tf.gather, codes.values, places), "UTF-8")
    return tf.reshape(texts, tf.shape(starts))

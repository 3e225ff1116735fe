"""Question answering as TensorFlow ops, for an exported graph: strings in, answers out, like `QuestionAnswerer`.

The rules are those of `tasks/squad/`, with answers from character offsets, since no Python runs in a server.

Shape legend: B questions, P pieces of all contexts, W windows of all questions, S max_seq_length, K n_best_size,
N length of the n-best list, M spans of a window that are looked at, V those of all windows that can be answers.
"""

from typing import NamedTuple

import tensorflow as tf

from bert_tf.serving.graph_inputs import CPU, Windows, cut, equally_many, in_batches, most_context, slices_of
from bert_tf.serving.graph_models import ServedModel, signature, strings
from bert_tf.tasks.squad.answers import NO_NULL_SCORE, PredictionSettings
from bert_tf.tasks.squad.metrics import QuestionAnsweringSettings

_LOWEST = -float("inf")
_LOGITS = ("start_logits", "end_logits")


class Outputs(NamedTuple):
    """The model's outputs for all windows, in the order of their questions, and what the answers are chosen by.

    outputs: start_logits and end_logits, float32 [W, S], -inf beyond a window's end.
    questions: int32 [W], whose windows they are. inside: bool [W, S], whether a token belongs to the context.
    most_context: bool [W, S], whether no other window has more text around it.
    starts, ends: int32 [W, S], the characters of the context that a token covers, exclusive.
    """

    outputs: dict[str, tf.Tensor]
    questions: tf.Tensor
    inside: tf.Tensor
    most_context: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor


class _Answers(NamedTuple):
    """Answers, any shape: their scores float64; their characters int32, both -1 for none; their texts string."""

    scores: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor
    texts: tf.Tensor

    def at(self, positions: tf.Tensor) -> "_Answers":
        """The answers of a list [V] at `positions`, any shape; at position V no answer, with the score -inf."""
        pairs = zip(self, (_LOWEST, -1, -1, ""), strict=True)
        longer = (tf.concat([values, tf.constant([filling], values.dtype)], 0) for values, filling in pairs)
        return _Answers(*(tf.gather(values, positions) for values in longer))


class ServedQuestionAnswering(ServedModel):
    """A model for questions: `serving_default` takes `question` and `context` [B] and returns `answer`.

    `serve_ids` and `serve_examples` return `start_logits` and `end_logits` [B, S].
    Answers are always scored by character offsets, whatever the settings say.

    encoder: with a graph that splits unknown words, and the length of the settings.
    settings: how contexts are cut and answers chosen.
    window_batch: windows computed together; it limits the memory that long contexts take.
    """

    def __init__(self, model, encoder, settings: QuestionAnsweringSettings, window_batch: int = 32):
        super().__init__(model, encoder)
        self.settings, self._window_batch = settings, window_batch

    def outputs(self, features):
        return {name: tf.cast(value, tf.float32) for name, value in self.run(features).items()}

    def text_signature(self):
        return signature(self.answer, strings("question"), strings("context"))

    def example(self):
        return {"question": "Who met Ada?", "context": "Her teacher met Ada. " * 20}

    def answer(self, question: tf.Tensor, context: tf.Tensor) -> dict[str, tf.Tensor]:
        """Answers questions about contexts, string [B] each, in UTF-8.

        Characters are code points of the context, without invalid bytes. With version_2_with_negative, N is
        n_best_size + 1, to make room for "no answer"; otherwise it is n_best_size.

        Returns:
          `answer` [B] string, "" for none; `start`, `end` [B] int32, its first character and the one after the last,
          -1 for none; `score` [B] float32, its probability among the n-best (0 if it is not among them).
          `null_score` [B] float32: score of "no answer" minus that of the best answer; 1000000 if there is no possible
          answer; 0 without version_2_with_negative.
          `nbest_answers`, `nbest_scores`, `nbest_starts`, `nbest_ends` [B, N], best first, padded with "", 0, -1, -1;
          "no answer" among them is "" with a score.

          A blank context has the answer "" with score 1.
        """
        with tf.device(CPU):
            question, context = equally_many(question, context, "questions and contexts")
            queries = self.encoder.graph.encode(question)[:, : self.settings.windows.max_query_length]
            pieces = self.encoder.graph.tokenize(context)  # (ids, starts, ends), ragged [B, None]
            # Code points, from which answers are cut; the space completes a character that the end cuts off.
            codes = tf.strings.unicode_decode(tf.strings.join([context, " "]), "UTF-8", errors="ignore")
            # The tokens before each window's context: [CLS] question [SEP].
            tokenizer = self.encoder.tokenizer
            before = queries.row_lengths() + len(tokenizer.begin_ids) + len(tokenizer.between_ids)
            room = self.encoder.max_seq_length - len(tokenizer.end_ids) - before
            windows = cut(pieces[0].row_lengths(), room, tf.minimum(room, self.settings.windows.doc_stride))
            before = tf.gather(before, windows.texts)  # int64 [W]
        outputs = self._outputs(windows, queries, pieces[0])
        with tf.device(CPU):
            return _choose(self._window_outputs(outputs, windows, before, pieces), codes, self.settings.predictions)

    def _outputs(self, windows: Windows, queries: tf.RaggedTensor, ids: tf.RaggedTensor) -> dict[str, tf.Tensor]:
        def compute(rows):
            with tf.device(CPU):
                texts, starts, sizes = (tf.gather(part, rows) for part in windows[1:])
                context = slices_of(ids.values, tf.gather(ids.row_starts(), texts) + starts, sizes)
                features = self.encoder.features_of_ids(tf.gather(queries, texts), context)
            outputs = self.outputs(features)
            with tf.device(CPU):
                wide = [[0, 0], [0, longest - tf.shape(features["input_mask"])[1]]]
                padded = (tf.where(features["input_mask"] > 0, outputs[name], _LOWEST) for name in _LOGITS)
                padded = [tf.pad(values, wide, constant_values=_LOWEST) for values in padded]
                return [tf.ensure_shape(values, [None, longest]) for values in padded]

        longest = self.encoder.max_seq_length
        with tf.device(CPU):
            lengths = tf.gather(queries.row_lengths(), windows.texts) + windows.sizes
        specs = [tf.TensorSpec([longest], tf.float32)] * len(_LOGITS)
        return dict(zip(_LOGITS, in_batches(compute, lengths, self._window_batch, specs), strict=True))

    def _window_outputs(self, outputs: dict[str, tf.Tensor], windows: Windows, before: tf.Tensor, pieces) -> Outputs:
        """A window shows more context as in `squad.windows`: more on both sides of a token, then the longer window."""
        ids, starts, ends = pieces
        positions = tf.range(self.encoder.max_seq_length, dtype=tf.int64)[None, :] - before[:, None]
        size = windows.sizes[:, None]
        inside = tf.logical_and(positions >= 0, positions < size)
        around = tf.cast(tf.minimum(positions, size - 1 - positions), tf.float64) + 0.01 * tf.cast(size, tf.float64)
        firsts = tf.gather(ids.row_starts(), windows.texts) + windows.starts
        tokens = tf.where(inside, firsts[:, None] + positions, 0)
        most = most_context(around, inside, tokens, tf.size(ids.values))
        characters = (tf.where(inside, tf.gather(part.values, tokens), -1) for part in (starts, ends))
        return Outputs(outputs, tf.cast(windows.texts, tf.int32), inside, most, *characters)


def _choose(scored: Outputs, codes: tf.RaggedTensor, settings: PredictionSettings) -> dict[str, tf.Tensor]:
    """What `ServedQuestionAnswering.answer` returns. codes: code points of the contexts [B, None]."""
    count = codes.nrows(out_type=tf.int32)
    windows = tf.math.bincount(scored.questions, minlength=count, maxlength=count)  # [B]
    # The lowest score of "no answer" among the windows of each question, float64 [B].
    nulls = tf.add_n([tf.cast(scored.outputs[name][:, 0], tf.float64) for name in _LOGITS])
    nulls = tf.math.unsorted_segment_min(nulls, scored.questions, count)
    null = tf.where(windows > 0, nulls, tf.zeros([], tf.float64))
    lists_null = settings.version_2_with_negative
    questions, spans = _candidates(scored, codes, settings)
    # "No answer", which can be listed or is all that there is, is behind the spans: on a tie it comes after them.
    of_spans = tf.math.bincount(questions, minlength=count, maxlength=count)
    asked = tf.range(count) if lists_null else tf.cast(tf.where(tf.equal(of_spans, 0))[:, 0], tf.int32)
    nothing = spans.at(tf.fill(tf.shape(asked), tf.size(questions)))
    nothing = nothing._replace(scores=tf.gather(null, asked) if lists_null else tf.zeros_like(nothing.scores))
    answers = _Answers(*(tf.concat(parts, 0) for parts in zip(spans, nothing, strict=True)))
    is_extra = tf.range(tf.size(answers.starts)) >= tf.size(questions)
    questions = tf.concat([questions, asked], 0)
    nbest = _nbest(questions, answers, is_extra, count, settings.n_best_size, lists_null)
    probabilities = tf.cast(tf.nn.softmax(nbest.scores), tf.float32)
    if settings.version_2_with_negative:
        best, score, null_score = _best_or_none(scored, codes, settings, nbest, probabilities, windows, null)
    else:
        # The first in the list, whether a span or "no answer".
        best, score = _Answers(*(part[:, 0] for part in nbest)), probabilities[:, 0]
        null_score = tf.zeros([count], tf.float32)
    lists = {"answers": nbest.texts, "scores": probabilities, "starts": nbest.starts, "ends": nbest.ends}
    answer = {"answer": best.texts, "start": best.starts, "end": best.ends, "score": score, "null_score": null_score}
    return answer | {f"nbest_{name}": values for name, values in lists.items()}


def _candidates(scored: Outputs, codes: tf.RaggedTensor, settings: PredictionSettings) -> tuple[tf.Tensor, _Answers]:
    """Questions, int32 [V], and spans that can be answers, by question, window, rank of the start and of the end."""
    k = min(settings.n_best_size, scored.outputs["start_logits"].shape[1])
    starts, ends = (tf.math.top_k(scored.outputs[name], k) for name in _LOGITS)  # [W, K]
    scores = tf.cast(starts.values, tf.float64)[:, :, None] + tf.cast(ends.values, tf.float64)[:, None, :]  # [W, K, K]
    tokens = starts.indices[:, :, None], ends.indices[:, None, :]
    firsts, lasts = (tf.reshape(tf.broadcast_to(of, tf.shape(scores)), [-1, k * k]) for of in tokens)  # [W, M]
    scores = tf.reshape(scores, [-1, k * k])
    lengths = lasts - firsts  # [W, M]
    fits = tf.logical_and(lengths >= 0, lengths < settings.max_answer_length)
    for allowed, tokens in ((scored.most_context, firsts), (scored.inside, lasts)):
        fits = tf.logical_and(fits, tf.gather(allowed, tokens, batch_dims=1))
    chosen = tf.where(fits)  # [V, 2]
    firsts, lasts, scores = (tf.gather_nd(values, chosen) for values in (firsts, lasts, scores))
    return _answers(scored, codes, tf.cast(chosen[:, 0], tf.int32), firsts, lasts, scores)


def _answers(scored: Outputs, codes: tf.RaggedTensor, windows, firsts, lasts, scores) -> tuple[tf.Tensor, _Answers]:
    """Questions and answers of the tokens firsts to lasts of windows, int32 [V]; without a character "no answer"."""
    questions = tf.gather(scored.questions, windows)
    starts = tf.gather_nd(scored.starts, tf.stack([windows, firsts], 1))
    ends = tf.gather_nd(scored.ends, tf.stack([windows, lasts], 1))
    is_text = ends > starts
    # Texts are cut from the code points because an op on strings would copy the whole context for each.
    begins = tf.gather(codes.row_starts(), questions) + tf.cast(starts, tf.int64)
    positions = tf.ragged.range(begins, begins + tf.cast(tf.maximum(ends - starts, 0), tf.int64))
    texts = tf.strings.unicode_encode(positions.with_values(tf.gather(codes.values, positions.values)), "UTF-8")
    return questions, _Answers(scores, tf.where(is_text, starts, -1), tf.where(is_text, ends, -1), texts)


def _nbest(questions, answers: _Answers, is_extra, count: tf.Tensor, size: int, lists_null: bool) -> _Answers:
    """The best `size` answers with different texts of each question, best first [B, N]; of equal scores the first.

    "No answer" is behind them if it can be listed and is not among them. Empty places have the score -inf.

    questions: of the answers, int32 [V]. is_extra: which of them are "no answer" itself, bool [V]; it counts even
    behind a span without characters.
    """
    total = tf.size(questions)
    order = tf.argsort(-answers.scores, stable=True)
    order = tf.gather(order, tf.argsort(tf.gather(questions, order), stable=True))
    names = tf.strings.join([tf.strings.as_string(tf.gather(questions, order)), tf.gather(answers.texts, order)], " ")
    _, numbers = tf.unique(names)
    positions = tf.range(total)
    is_first = tf.equal(positions, tf.gather(tf.math.unsorted_segment_min(positions, numbers, total), numbers))
    order = tf.boolean_mask(order, tf.logical_or(is_first, tf.gather(is_extra, order)))
    rows = tf.gather(questions, order)
    starts = tf.math.bincount(rows, minlength=count, maxlength=count)
    ranks = tf.range(tf.size(order)) - tf.gather(tf.cumsum(starts, exclusive=True), rows)
    listed = ranks < size
    none = tf.cast(tf.logical_and(listed, tf.gather(answers.starts, order) < 0), tf.int32)
    lacks_none = tf.math.unsorted_segment_max(none, rows, count) < 1
    listed = tf.logical_or(listed, tf.logical_and(tf.gather(is_extra, order), tf.gather(lacks_none, rows)))
    order, rows = tf.boolean_mask(order, listed), tf.boolean_mask(rows, listed)
    lists = tf.RaggedTensor.from_value_rowids(order, rows, nrows=count, validate=False)
    return answers.at(lists.to_tensor(total, shape=[None, size + lists_null]))


def _best_or_none(scored: Outputs, codes, settings, nbest: _Answers, probabilities, windows, null) -> tuple:
    """The best answer of each question, or "no answer" if that is better; its `score` and `null_score`; [B] each.

    windows: how many each question has [B]. null: scores of "no answer" [B].
    """
    is_answer = nbest.starts >= 0
    exists = tf.reduce_any(is_answer, 1)
    first = tf.argmax(tf.cast(is_answer, tf.int32), 1, tf.int32)
    best = _Answers(*(tf.gather(values, first, batch_dims=1) for values in nbest))
    has_windows = windows > 0
    best = tf.cond(
        tf.reduce_any(tf.logical_and(has_windows, tf.logical_not(exists))),
        lambda: _best_of_all(scored, codes, settings.max_answer_length, exists, best),
        lambda: best,
    )
    odds = tf.where(has_windows, null - best.scores, NO_NULL_SCORE)
    none = tf.logical_or(odds > settings.null_score_diff_threshold, best.starts < 0)
    # The first "no answer" in the list, where it always is; an answer may be outside of it.
    is_none = tf.logical_and(tf.math.is_finite(nbest.scores), tf.logical_not(is_answer))
    winner = tf.where(none, tf.argmax(tf.cast(is_none, tf.int32), 1, tf.int32), first)
    score = tf.where(tf.logical_or(none, exists), tf.gather(probabilities, winner, batch_dims=1), 0.0)
    starts, ends = (tf.where(none, -1, part) for part in (best.starts, best.ends))
    best = best._replace(starts=starts, ends=ends, texts=tf.where(none, "", best.texts))
    return best, score, tf.cast(odds, tf.float32)


def _best_of_all(scored: Outputs, codes, max_answer_length: int, exists: tf.Tensor, known: _Answers) -> _Answers:
    """`known` [B] where it `exists`; else the best span in the question's windows, whatever its rank, if any.

    On a tie it is the one in the earliest window, then the shortest, then the first.
    """
    rows = tf.cast(tf.where(tf.logical_not(tf.gather(exists, scored.questions)))[:, 0], tf.int32)  # [R]
    starts, ends = (
        tf.where(tf.gather(allowed, rows), tf.cast(tf.gather(scored.outputs[name], rows), tf.float64), _LOWEST)
        for name, allowed in (("start_logits", scored.most_context), ("end_logits", scored.inside))
    )  # [R, S]
    width = starts.shape[1]
    sizes = min(max_answer_length, width)
    ends = tf.pad(ends, [[0, 0], [0, sizes - 1]], constant_values=_LOWEST)
    sums = starts[:, None, :] + tf.gather(ends, tf.range(sizes)[:, None] + tf.range(width)[None], axis=1)
    sums = tf.reshape(sums, [-1, sizes * width])
    winner = tf.argmax(sums, 1, tf.int32)
    firsts, highest = winner % width, tf.gather(sums, winner, batch_dims=1)
    questions, spans = _answers(scored, codes, rows, firsts, firsts + winner // width, highest)
    # The first of the best windows of each question.
    count = tf.size(exists)
    best = tf.math.unsorted_segment_max(spans.scores, questions, count)
    positions = tf.range(tf.size(rows))
    is_best = tf.where(tf.equal(spans.scores, tf.gather(best, questions)), questions, -1)
    chosen = tf.minimum(tf.math.unsorted_segment_min(positions, is_best, count), tf.size(rows))
    return _Answers(*(tf.where(exists, old, new) for old, new in zip(known, spans.at(chosen), strict=True)))

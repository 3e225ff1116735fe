"""Question answering as TensorFlow ops, for an exported graph: strings in, answers out, like `QuestionAnswerer`.

The rules are those of `tasks/squad/windows.py` (windows) and `tasks/squad/answers.py` (candidates, n-best list, no
answer), with answers from character offsets. They are written a second time because no Python runs in a server.

Shape legend: B questions, P pieces of all contexts, W windows of all questions, S max_seq_length, K n_best_size,
C candidates of one question (spans of all its windows), N length of the n-best list.
"""

import tensorflow as tf

from bert_tf.models.joint_spans import JointSpanModel
from bert_tf.models.task_models import BertForQuestionAnswering
from bert_tf.serving.graph_answers import AnswerChoice, Found, Pieces, Windows, take
from bert_tf.tasks.squad.outputs import QuestionAnsweringSettings
from bert_tf.text.tokenizer import Tokenizer

_CPU = "CPU:0"  # for strings and the many small ops around them
_LOWEST = -float("inf")


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
        model: BertForQuestionAnswering | JointSpanModel,
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
        is_joint, width = isinstance(model, JointSpanModel), settings.windows.max_seq_length
        self._choice = AnswerChoice(settings, is_joint)
        # The outputs that answers are chosen by: dtype, and shape for each window.
        self._needed = dict.fromkeys(("start_logits", "end_logits"), (tf.float32, [width]))
        if is_joint:
            shapes = {"start": [model.starts], "end": [model.starts, model.ends]}
            self._needed = {"answerable_logit": (tf.float32, [])}
            self._needed |= {f"{part}_top_log_probs": (tf.float32, shape) for part, shape in shapes.items()}
            self._needed |= {f"{part}_top_index": (tf.int32, shape) for part, shape in shapes.items()}
        self._begin_ids, self._between_ids = tokenizer.begin_ids, tokenizer.between_ids
        self._end_ids = tokenizer.end_ids
        self._second_segment, self._pad_id = tokenizer.second_segment, tokenizer.pad_id
        self.tokenizer = tokenizer.to_graph(split_unknown=True)

    @tf.autograph.experimental.do_not_convert
    def answer_ids(self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """The model's outputs for token ids, integers [B, S]: float32 `start_logits` and `end_logits` [B, S], or what a
        `JointSpanModel` returns."""
        features = {"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segment_ids}
        outputs = self.model({name: tf.cast(value, tf.int32) for name, value in features.items()}, training=False)
        return {
            name: tf.cast(value, value.dtype if value.dtype.is_integer else tf.float32)
            for name, value in outputs.items()
        }

    @tf.autograph.experimental.do_not_convert
    def answer(self, questions: tf.Tensor, contexts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Answers questions about contexts, string [B] each, in UTF-8; invalid bytes are left out.

        Characters are code points of the context, from 0, invalid bytes not counted. With version_2_with_negative, N is
        n_best_size + 1, to make room for "no answer", unless the model has a joint head; otherwise it is n_best_size.

        Returns:
          `answer` [B] string, "" for none; `start`, `end` [B] int32, its first character and the one after the last,
          -1 for none; `score` [B] float32, its probability among the n-best (0 if it is not among them); of "" with a
          joint head, the probability that there is no answer, which the scores of answers leave out.
          `null_score` [B] float32: score of "no answer", minus that of the best answer unless the model has a joint
          head; 1000000 if there is no possible answer; 0 without version_2_with_negative.
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
            pieces = Pieces(ids.values, starts.values, ends.values, tf.cast(ids.row_splits, tf.int64))
            # Code points, from which answers are cut; the space completes a character that the end cuts off.
            codes = tf.strings.unicode_decode(tf.strings.join([contexts, " "]), "UTF-8", errors="ignore")
            windows = self._cut(queries, pieces)
        outputs = self._outputs(windows, queries, pieces)
        with tf.device(_CPU):
            in_context = self._in_context(windows, tf.size(pieces.ids, tf.int64))
            found = Found(windows, pieces, outputs, *in_context)
            return self._choice.choose(found, codes)

    # ---- windows -----------------------------------------------------------------------------------------------------

    def _cut(self, queries: tf.RaggedTensor, pieces: Pieces) -> Windows:
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
        return Windows(splits, question, tf.gather(pieces.splits, question) + first, size, tf.gather(before, question))

    def _outputs(self, windows: Windows, queries: tf.RaggedTensor, pieces: Pieces) -> dict[str, tf.Tensor]:
        """`Found.outputs`."""
        width = self.settings.windows.max_seq_length
        count = tf.size(windows.size)
        with tf.device(_CPU):
            # Batches windows of similar length, for less padding.
            order = tf.argsort(-(windows.before + windows.size), stable=True)
            # One entry more than needed, so that an index is valid even without questions.
            query_ids, piece_ids = (tf.concat([values, [0]], 0) for values in (queries.values, pieces.ids))
            query_starts = tf.cast(queries.row_splits, tf.int64)

        def compute(done, *arrays):
            with tf.device(_CPU):
                rows = order[done : done + self.window_batch]  # [R]
                of = Windows(windows.splits, *(tf.gather(values, rows)[:, None] for values in windows[1:]))
                lengths = of.before + of.size + len(self._end_ids)  # [R, 1]
                places = tf.range(tf.reduce_max(lengths))[None, :]  # [1, L]
                inside = places < lengths
                second = tf.logical_and(inside, places >= of.before)
                from_query = take(query_ids, tf.gather(query_starts, of.question) + places - len(self._begin_ids))
                from_context = take(piece_ids, of.first + places - of.before)
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
                found = [outputs[name] for name in self._needed]
                if not self._choice.is_joint:
                    found = map(padded, found)
                return done + number, *(array.write(place, part) for array, part in zip(arrays, found, strict=True))

        with tf.device(_CPU):
            batches = (count + self.window_batch - 1) // self.window_batch
            arrays = [
                tf.TensorArray(dtype, batches, infer_shape=False, element_shape=[None, *shape])
                for dtype, shape in self._needed.values()
            ]
        # One batch at a time: each uses all cores, and only one takes memory.
        _, *arrays = tf.while_loop(lambda done, *_: done < count, compute, [0, *arrays], parallel_iterations=1)
        with tf.device(_CPU):
            back = tf.math.invert_permutation(order)
            return {
                name: tf.gather(tf.reshape(array.concat(), [-1, *shape]), back)
                for array, (name, (_, shape)) in zip(arrays, self._needed.items(), strict=True)
            }

    def _in_context(self, windows: Windows, number_of_pieces: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
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

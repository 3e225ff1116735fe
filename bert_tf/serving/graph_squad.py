"""Question answering as TensorFlow ops, for an exported graph: strings in, answers out, like `QuestionAnswerer`.

The rules are those of `tasks/squad/windows.py`, in `graph_answers` those of `tasks/squad/answers.py`, with answers from
character offsets. They are written a second time because no Python runs in a server.

Shape legend: B questions, P pieces of all contexts, W windows of all questions, S max_seq_length, K n_best_size,
N length of the n-best list.
"""

import keras
import tensorflow as tf

from bert_tf.models.joint_spans import JointSpanModel
from bert_tf.serving.graph_answers import Found, choose
from bert_tf.serving.graph_inputs import CPU, Windows, cut, equally_many, in_batches, most_context, parts_of
from bert_tf.serving.graph_models import ServedModel, signature, strings
from bert_tf.tasks.squad.outputs import QuestionAnsweringSettings
from bert_tf.text.tokenizer import Tokenizer

_LOWEST = -float("inf")


class ServedQuestionAnswering(ServedModel):
    """A model of `question_heads`: `serving_default` takes `question` and `context` [B] and returns `answer`.

    `serve_ids` and `serve_examples` return `start_logits` and `end_logits` [B, S], or a `JointSpanModel`'s outputs.
    Answers are always found by character offsets, whatever the settings say. The only op from outside TensorFlow is
    tensorflow-text's FastWordpieceTokenizeWithOffsets.

    Args:
      settings: how contexts are cut and answers chosen.
      window_batch: windows computed together; it limits the memory that long contexts take.

    Raises:
      ValueError: windows have no room for a context, or the vocabulary lacks [CLS], [SEP] or [UNK].
    """

    def __init__(
        self,
        model: keras.Model,
        tokenizer: Tokenizer,
        settings: QuestionAnsweringSettings,
        window_batch: int = 32,
    ):
        settings.windows.check_room(tokenizer)
        super().__init__(model, tokenizer, settings.windows.max_seq_length, split_unknown=True)
        self.settings, self._window_batch = settings, window_batch
        # The outputs that answers are chosen by, of each window.
        width = self.max_seq_length
        self._needed = [tf.TensorSpec([width], tf.float32, name) for name in ("start_logits", "end_logits")]
        if isinstance(model, JointSpanModel):
            self._needed = [tf.TensorSpec([], tf.float32, "answerable_logit")]
            for part, shape in {"start": [model.starts], "end": [model.starts, model.ends]}.items():
                self._needed.append(tf.TensorSpec(shape, tf.float32, f"{part}_top_log_probs"))
                self._needed.append(tf.TensorSpec(shape, tf.int32, f"{part}_top_index"))

    def outputs(self, features):
        return {
            name: value if value.dtype.is_integer else tf.cast(value, tf.float32)
            for name, value in self.run(features).items()
        }

    def signatures(self):
        return {
            "serving_default": signature(self.answer, strings("question"), strings("context")),
            **self.id_signatures(),
        }

    def example(self):
        return {"question": "Who met Ada?", "context": "Her teacher met Ada. " * 20}

    def answer(self, question: tf.Tensor, context: tf.Tensor) -> dict[str, tf.Tensor]:
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
        with tf.device(CPU):
            question, context = equally_many(question, context, "questions and contexts")
            queries = self.encoder.tokenizer.encode(question)[:, : self.settings.windows.max_query_length]
            pieces = self.encoder.tokenizer.tokenize(context)  # ids, starts and ends, ragged [B, None]
            # Code points, from which answers are cut; the space completes a character that the end cuts off.
            codes = tf.strings.unicode_decode(tf.strings.join([context, " "]), "UTF-8", errors="ignore")
            windows, before = self._cut(queries.row_lengths(), pieces[0].row_lengths())
        outputs = self._outputs(windows, queries, pieces[0])
        with tf.device(CPU):
            return choose(self._found(outputs, windows, before, pieces), codes, self.settings.predictions)

    def _cut(self, query_lengths: tf.Tensor, lengths: tf.Tensor) -> tuple[Windows, tf.Tensor]:
        """The windows of contexts of these lengths, and the tokens before each one's context, int64 [W]: [CLS] question
        [SEP]."""
        before = query_lengths + len(self.encoder.begin_ids) + len(self.encoder.between_ids)
        room = self.max_seq_length - len(self.encoder.end_ids) - before
        windows = cut(lengths, room, tf.minimum(room, self.settings.windows.doc_stride))
        return windows, tf.gather(before, windows.texts)

    def _outputs(self, windows: Windows, queries: tf.RaggedTensor, ids: tf.RaggedTensor) -> dict[str, tf.Tensor]:
        """The model's outputs for all windows by name, see `Found`."""

        def compute(rows):
            with tf.device(CPU):
                texts, starts, sizes = (tf.gather(part, rows) for part in windows[1:])
                context = parts_of(ids.values, tf.gather(ids.row_starts(), texts) + starts, sizes)
                features = self.encoder.features_of_ids(tf.gather(queries, texts), context)
            outputs = self.outputs(features)
            with tf.device(CPU):
                return [self._widened(outputs[spec.name], features["input_mask"], spec) for spec in self._needed]

        with tf.device(CPU):
            lengths = tf.gather(queries.row_lengths(), windows.texts) + windows.sizes
        found = in_batches(compute, lengths, self._window_batch, self._needed)
        return {spec.name: values for spec, values in zip(self._needed, found, strict=True)}

    def _widened(self, values: tf.Tensor, mask: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
        """Logits of tokens with -inf beyond a window's end, [R, S]; other values as they are."""
        if not spec.name.endswith("_logits"):
            return values
        values = tf.where(mask > 0, values, _LOWEST)
        missing = self.max_seq_length - tf.shape(values)[1]
        return tf.ensure_shape(
            tf.pad(values, [[0, 0], [0, missing]], constant_values=_LOWEST), [None, self.max_seq_length]
        )

    def _found(self, outputs: dict[str, tf.Tensor], windows: Windows, before: tf.Tensor, pieces) -> Found:
        """What answers are chosen by. A window shows more of a token's context as `squad.windows` has it: more on both
        sides, then the longer window, then the earlier one."""
        ids, starts, ends = pieces
        places = tf.range(self.max_seq_length, dtype=tf.int64)[None, :] - before[:, None]
        size = windows.sizes[:, None]
        inside = tf.logical_and(places >= 0, places < size)
        around = tf.cast(tf.minimum(places, size - 1 - places), tf.float64) + 0.01 * tf.cast(size, tf.float64)
        firsts = tf.gather(ids.row_starts(), windows.texts) + windows.starts
        tokens = tf.where(inside, firsts[:, None] + places, 0)
        most = most_context(around, inside, tokens, tf.size(ids.values))
        characters = (tf.where(inside, tf.gather(part.values, tokens), -1) for part in (starts, ends))
        return Found(outputs, tf.cast(windows.texts, tf.int32), inside, most, *characters)

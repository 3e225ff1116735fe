"""Named entities as TensorFlow ops, for an exported graph: texts or words in, a tag for each word out.

The rules are those of `tasks/ner/encode.py` (pieces, windows) and `tasks/ner/data.py` (valid tags), written a second
time because no Python runs in a server.

Shape legend: B texts, N words of the longest text, P pieces of all texts, W windows of all texts, R pieces of a
window, C tags.
"""

from collections.abc import Sequence

import keras
import tensorflow as tf

from bert_tf.models.pretrained import read_tokenizer
from bert_tf.serving.detect_task import check_task, choose_max_seq_length
from bert_tf.serving.graph_models import ServedLogits, strings
from bert_tf.tasks.ner import outputs as ner_outputs
from bert_tf.tasks.ner.notation import standard_tags
from bert_tf.text import casing
from bert_tf.text.graph_words import GraphWords
from bert_tf.text.tokenizer import Tokenizer

_WINDOWS_AT_ONCE = 32


def _dense(values: tf.Tensor, splits: tf.Tensor, filling) -> tf.Tensor:
    """Values of all words as [B, N], padded; splits: int64 [B+1], the first of each text."""
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False).to_tensor(filling)


class ServedTagger(ServedLogits):
    """BertForTokenClassification.

    `serving_default` takes `text` [B] and splits it into words at spaces, with each punctuation mark, Chinese character
    and added token on its own, or into characters, if the model was trained on them (`text.words.split_words`).
    `serve_words` takes `words` [B, N] as run_ner.py does, padded with "". Both return `words`, `tags` string, `scores`
    float32 (probability of the likeliest tag), all [B, N], padded with "" and 0; `serving_default` also `starts`,
    `ends` int32, characters, padded with -1.

    Args:
      labels: the tags in the order of their ids. scheme: "iob2", "bioes" or "plain": which tags may follow each other.
      split: of `text.words.SPLITS`.
    """

    def __init__(
        self,
        model: keras.Model,
        tokenizer: Tokenizer,
        max_seq_length: int,
        labels: Sequence[str],
        scheme: str,
        split: str = "words",
    ):
        super().__init__(model, tokenizer, max_seq_length)
        self.labels, self._scheme = tuple(labels), scheme
        self._unknown_id, self._separator = tokenizer.unk_id, tokenizer.word_separator
        self._added_tokens = self.encoder.tokenizer if tokenizer.added_tokens else None
        self._split = GraphWords(split, self._added_tokens)

    @classmethod
    def from_pretrained(
        cls, path: str, dtype: str, max_seq_length: int | None = None, tokenizer: Tokenizer | None = None
    ) -> "ServedTagger":
        """The tagger in a directory that run_ner.py left.

        Args:
          tokenizer: instead of the directory's.

        Raises:
          ValueError: there is no tagger, or max_seq_length is more than the model can take.
        """
        files = check_task(path, "ner")
        length = choose_max_seq_length(files, max_seq_length)
        labels = standard_tags(files.head.labels)
        settings = ner_outputs.TaggingSettings.of_model(casing.directory_of(path), labels)
        model = ner_outputs.load_model(path, settings, dtype)
        tokenizer = tokenizer or read_tokenizer(path)
        return cls(model, tokenizer, length, labels, settings.learned_scheme, settings.split)

    def signatures(self):
        return {
            "serving_default": tf.function(self.tag_texts, [strings("text")], autograph=False),
            "serve_words": tf.function(
                self.tag_words, [tf.TensorSpec([None, None], tf.string, "words")], autograph=False
            ),
            **self.id_signatures(),
        }

    def warm_up_requests(self):
        return [("serving_default", {"text": ["Ada Lovelace lived in London."] * rows}) for rows in (1, 8)]

    def answers(self, logits, features):
        """For token ids: `tags` string, `scores` [B, S] of every piece; only those of a word's first piece count."""
        probabilities = tf.nn.softmax(tf.cast(logits, tf.float32))
        tags = tf.gather(tf.constant(self.labels), tf.argmax(probabilities, -1))
        real = features["input_mask"] > 0
        return {"tags": tf.where(real, tags, ""), "scores": tf.where(real, tf.reduce_max(probabilities, -1), 0.0)}

    def tag_texts(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """`serving_default`."""
        with tf.device("CPU:0"):
            words = self._split(text)
        outputs = self._tags_of(words.texts, words.splits)
        return {
            **outputs,
            "starts": _dense(words.starts, words.splits, -1),
            "ends": _dense(words.ends, words.splits, -1),
        }

    def tag_words(self, words: tf.Tensor) -> dict[str, tf.Tensor]:
        """`serve_words`."""
        is_word = tf.not_equal(words, "")
        splits = tf.concat([[0], tf.cumsum(tf.reduce_sum(tf.cast(is_word, tf.int64), -1))], 0)
        return self._tags_of(tf.boolean_mask(words, is_word), splits)

    def _tags_of(self, words: tf.Tensor, splits: tf.Tensor) -> dict[str, tf.Tensor]:
        """`words`, `tags` and `scores` [B, N], of all words and the first one of each text."""
        written = words
        if self._separator:
            is_first = (
                tf.scatter_nd(splits[:-1, None], tf.ones_like(splits[:-1]), [tf.size(words, tf.int64) + 1])[:-1] > 0
            )
            if self._added_tokens:  # see Tokenizer.encode_words
                starts = self._added_tokens.places(words)[0]
                is_first |= tf.equal(starts[:, :1].to_tensor(-1, shape=[None, 1])[:, 0], 0)
            written = tf.where(is_first, words, tf.strings.join([self._separator, words]))
        pieces = self.encoder.tokenizer.encode(written)
        lengths = pieces.row_lengths()
        unknown = tf.RaggedTensor.from_row_lengths(
            tf.fill([tf.reduce_sum(tf.cast(lengths < 1, tf.int64))], self._unknown_id),
            tf.cast(lengths < 1, tf.int64),
            validate=False,
        )
        pieces = tf.concat([pieces, unknown], 1)  # a word of nothing but control characters has a tag, too
        ids = tf.RaggedTensor.from_row_splits(pieces.values, tf.gather(pieces.row_splits, splits), validate=False)
        outputs = self._tags(ids, pieces.row_starts(), splits)
        return {"words": _dense(words, splits, ""), **outputs}

    def _tags(self, ids: tf.RaggedTensor, first_places: tf.Tensor, word_splits: tf.Tensor) -> dict[str, tf.Tensor]:
        """`tags` and `scores` [B, N] of words, given the index (into P) of each word's first piece."""
        logits = tf.gather(self._logits(ids), first_places)
        probabilities = tf.nn.softmax(logits)
        tags = self._valid_tags(tf.argmax(logits, -1, tf.int32), word_splits)
        return {
            "tags": _dense(tags, word_splits, ""),
            "scores": _dense(tf.reduce_max(probabilities, -1), word_splits, 0.0),
        }

    # ---- windows -----------------------------------------------------------------------------------------------------

    def _logits(self, ids: tf.RaggedTensor) -> tf.Tensor:
        """float32 [P, C]: the logits of each piece in the window that gives it the most context."""
        room = self.max_seq_length - len(self.encoder.begin_ids) - len(self.encoder.end_ids)
        stride = max(room // 2, 1)
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        counts = tf.where(lengths > room, (lengths - room + stride - 1) // stride + 1, tf.minimum(lengths, 1))
        windows = tf.reduce_sum(counts)
        texts = tf.repeat(tf.range(tf.size(counts)), counts)  # [W]
        numbers = tf.ragged.range(counts).values  # [W] within the text
        starts = numbers * stride
        sizes = tf.minimum(room, tf.gather(lengths, texts) - starts)
        firsts = tf.gather(tf.cast(ids.row_starts(), tf.int32), texts) + starts  # of all P
        width = tf.reduce_max(tf.concat([sizes, [1]], 0))
        columns = tf.range(width)[None]  # [1, R]
        inside = columns < sizes[:, None]  # [W, R]
        pieces = tf.where(inside, firsts[:, None] + columns, 0)
        tokens = tf.where(inside, tf.gather(tf.concat([ids.values, [0]], 0), pieces), self.encoder.pad_id)
        scores = tf.TensorArray(tf.float32, (windows + _WINDOWS_AT_ONCE - 1) // _WINDOWS_AT_ONCE, infer_shape=False)

        def compute(number, scores):
            rows = slice(number * _WINDOWS_AT_ONCE, (number + 1) * _WINDOWS_AT_ONCE)
            return number + 1, scores.write(number, self._window_logits(tokens[rows], sizes[rows]))

        _, scores = tf.while_loop(
            lambda number, _: number * _WINDOWS_AT_ONCE < windows, compute, (0, scores), parallel_iterations=1
        )
        empty = tf.zeros([0, width, len(self.labels)])
        found = tf.cond(
            windows > 0, lambda: tf.ensure_shape(scores.concat(), [None, None, len(self.labels)]), lambda: empty
        )
        # Choose the window of a piece whose nearer edge is farthest away, on a tie the earliest.
        distance = tf.minimum(columns, sizes[:, None] - 1 - columns)
        keys = tf.where(inside, (distance + 1) * (windows + 1) - tf.range(windows)[:, None], -1)
        total = tf.size(ids.values)
        best = tf.math.unsorted_segment_max(keys, pieces, total)
        chosen = tf.where(inside & tf.equal(keys, tf.gather(tf.concat([best, [0]], 0), pieces)))  # [P, 2]
        order = tf.argsort(tf.gather_nd(pieces, chosen), stable=True)
        return tf.gather_nd(found, tf.gather(chosen, order))

    def _window_logits(self, tokens: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
        """Pieces [W, R] of windows -> float32 [W, R, C]."""
        rows = tf.shape(tokens)[0]
        begin, end = self.encoder.begin_ids, self.encoder.end_ids
        before = tf.tile([begin], [rows, 1])
        after = tf.fill([rows, len(end)], self.encoder.pad_id)
        ids = tf.concat([before, tokens, after], 1)
        for number, token in enumerate(end):
            places = tf.stack([tf.range(rows), sizes + len(begin) + number], 1)
            ids = tf.tensor_scatter_nd_update(ids, places, tf.fill([rows], token))
        mask = tf.sequence_mask(sizes + len(begin) + len(end), tf.shape(ids)[1], tf.int32)
        logits = self.run({"input_ids": ids, "input_mask": mask, "segment_ids": tf.zeros_like(ids)})
        return tf.cast(logits, tf.float32)[:, len(begin) : -len(end)]

    # ---- tags --------------------------------------------------------------------------------------------------------

    def _valid_tags(self, numbers: tf.Tensor, word_splits: tf.Tensor) -> tf.Tensor:
        """Tags in which each entity begins as the scheme requires (see `ner.data.valid_tags`), string [words]."""
        if self._scheme == "plain":
            return tf.gather(tf.constant(self.labels), numbers)
        prefixes = [label.partition("-")[0] for label in self.labels]
        types = sorted({label.partition("-")[2] for label in self.labels} - {""})
        type_of = tf.constant([types.index(label.partition("-")[2]) if "-" in label else -1 for label in self.labels])
        begins_always = tf.constant([prefix in ("B", "S") for prefix in prefixes])
        ends_always = tf.constant([prefix in ("E", "S") for prefix in prefixes])
        rows = tf.ragged.row_splits_to_segment_ids(word_splits)
        kinds = tf.gather(type_of, numbers)
        is_entity = kinds >= 0

        def before(values, filling):
            return tf.concat([[filling], values], 0)[:-1]

        def after(values, filling):
            return tf.concat([values, [filling]], 0)[1:]

        same_row = tf.equal(before(rows, tf.constant(-1, rows.dtype)), rows)
        goes_on = same_row & tf.equal(before(kinds, -1), kinds) & ~before(tf.gather(ends_always, numbers), False)
        first = is_entity & (tf.gather(begins_always, numbers) | ~goes_on)
        last = is_entity & (after(first, True) | ~tf.equal(after(kinds, -1), kinds) | ~after(same_row, False))
        if self._scheme == "bioes":
            prefix = tf.where(first, tf.where(last, "S-", "B-"), tf.where(last, "E-", "I-"))
        else:
            prefix = tf.where(first, "B-", "I-")
        names = tf.gather(tf.constant([*types, ""]), tf.where(is_entity, kinds, len(types)))
        return tf.where(is_entity, tf.strings.join([prefix, names]), "O")

"""Named entities as TensorFlow ops, for an exported graph: texts or words in, a tag for each word out.

The rules are those of `tasks/ner/`, written again because no Python runs in a server.

Shape legend: B texts, N words of the longest text, P pieces of all texts, W windows, R pieces of a window, C tags.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from bert_tf.serving.graph_inputs import CPU, cut, in_batches, most_context, slices_of
from bert_tf.serving.graph_models import ServedModel, signature, strings
from bert_tf.tasks.ner.metrics import TaggingSettings
from bert_tf.text.characters import ALONE, DROPPED, INSIDE, SPACE, SPLITS, character_kind
from bert_tf.text.graph_characters import CodePointTable, values_of

# --- words ------------------------------------------------------------------------------------------------------------
# `characters.split_words` as TensorFlow ops. Here N are the code points of all texts, and W the words of all texts.


class Words(NamedTuple):
    """string [W]; splits: int64 [B+1], the first word of each text; starts, ends: int32 [W], characters, exclusive."""

    texts: tf.Tensor
    splits: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor


class GraphWords(tf.Module):
    """Splits texts into words, with the results of `split_words`; invalid bytes are left out. split: one of SPLITS."""

    def __init__(self, split: str = "words"):
        if split not in SPLITS:
            raise ValueError("This model tags the characters of pieces: exports need --character_tokens in training.")
        super().__init__(name="graph_words")
        with tf.device("CPU:0"):
            self._kinds = CodePointTable(values_of(functools.partial(character_kind, split=split)))

    def __call__(self, texts: tf.Tensor) -> Words:
        # The space completes a character that the end cuts off, and ends a text's last word.
        decoded = tf.strings.unicode_decode(tf.strings.join([texts, " "]), "UTF-8", errors="ignore")
        row_splits, codes = decoded.row_splits, decoded.values
        ends = tf.scatter_nd(row_splits[1:, None] - 1, tf.ones_like(row_splits[1:]), tf.shape(codes, row_splits.dtype))
        kinds = tf.where(ends > 0, SPACE, self._kinds(codes))
        row_starts = tf.cast(row_splits, tf.int32)
        positions = tf.boolean_mask(tf.range(tf.size(codes)), tf.not_equal(kinds, DROPPED))
        kinds = tf.gather(kinds, positions)
        is_inside = tf.equal(kinds, INSIDE)
        goes_on = is_inside & tf.concat([[False], is_inside[:-1]], 0)
        first = tf.not_equal(kinds, SPACE) & ~goes_on
        last = (is_inside & ~tf.concat([is_inside[1:], [False]], 0)) | tf.equal(kinds, ALONE)
        starts, ends = tf.boolean_mask(positions, first), tf.boolean_mask(positions, last) + 1  # [W], in `codes`
        splits = tf.searchsorted(starts, row_starts, out_type=tf.int64)
        offsets = tf.gather(row_starts, tf.searchsorted(row_starts, starts, "right") - 1)
        inside = tf.ragged.range(starts, ends, row_splits_dtype=tf.int64)
        words = tf.strings.unicode_encode(inside.with_values(tf.gather(codes, inside.values)), "UTF-8")
        return Words(words, splits, starts - offsets, ends - offsets)


_WINDOWS_AT_ONCE = 32


def _dense(values: tf.Tensor, splits: tf.Tensor, filling) -> tf.Tensor:
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False).to_tensor(filling)


class ServedTagger(ServedModel):
    """BertForTokenClassification.

    `serving_default` takes `text` [B] and splits it into words at spaces, with each punctuation mark and Chinese
    character on its own, or into characters, if the model was trained on them (`text.characters.split_words`).
    `serve_words` takes `words` [B, N] as run_ner.py does, padded with "". Both return `words`, `tags` string, `scores`
    float32 (probability of the likeliest tag), all [B, N], padded with "" and 0; `serving_default` also `starts`,
    `ends` int32, characters, padded with -1.

    labels: the tags in the order of their ids.
    """

    def __init__(self, model, encoder, labels: Sequence[str], settings: TaggingSettings):
        super().__init__(model, encoder)
        self.labels, self._scheme, self._split = tuple(labels), settings.learned_scheme, GraphWords(settings.split)

    def text_signature(self):
        return signature(self.tag_texts, strings("text"))

    def signatures(self):
        words = signature(self.tag_words, tf.TensorSpec([None, None], tf.string, "words"))
        return {**super().signatures(), "serve_words": words}

    def outputs(self, features):
        """For token ids: `tags` string, `scores` [B, S] of every piece; only those of a word's first piece count."""
        probabilities = tf.nn.softmax(tf.cast(self.run(features), tf.float32))
        tags = tf.gather(tf.constant(self.labels), tf.argmax(probabilities, -1))
        real = features["input_mask"] > 0
        return {"tags": tf.where(real, tags, ""), "scores": tf.where(real, tf.reduce_max(probabilities, -1), 0.0)}

    def tag_texts(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.device(CPU):
            words = self._split(text)
        tags = self._tags_of(words.texts, words.splits)
        return tags | {"starts": _dense(words.starts, words.splits, -1), "ends": _dense(words.ends, words.splits, -1)}

    def tag_words(self, words: tf.Tensor) -> dict[str, tf.Tensor]:
        is_word = tf.not_equal(words, "")
        splits = tf.concat([[0], tf.cumsum(tf.reduce_sum(tf.cast(is_word, tf.int64), -1))], 0)
        return self._tags_of(tf.boolean_mask(words, is_word), splits)

    def _tags_of(self, words: tf.Tensor, splits: tf.Tensor) -> dict[str, tf.Tensor]:
        pieces = self.encoder.graph.encode(words)
        lengths = pieces.row_lengths()
        missing = tf.cast(lengths < 1, tf.int64)  # a word of nothing but control characters has a tag, too
        unknown = tf.fill([tf.reduce_sum(missing)], self.encoder.tokenizer.unk_id)
        pieces = tf.concat([pieces, tf.RaggedTensor.from_row_lengths(unknown, missing, validate=False)], 1)
        ids = tf.RaggedTensor.from_row_splits(pieces.values, tf.gather(pieces.row_splits, splits), validate=False)
        logits = tf.gather(self._logits(ids), pieces.row_starts())  # of each word's first piece
        tags = self._valid_tags(tf.argmax(logits, -1, tf.int32), splits)
        scores = tf.reduce_max(tf.nn.softmax(logits), -1)
        columns = {"words": (words, ""), "tags": (tags, ""), "scores": (scores, 0.0)}
        return {name: _dense(values, splits, filling) for name, (values, filling) in columns.items()}

    def _logits(self, ids: tf.RaggedTensor) -> tf.Tensor:
        """float32 [P, C]: the logits of each piece in the window whose nearer edge is farthest away from it."""
        begin, end = len(self.encoder.tokenizer.begin_ids), len(self.encoder.tokenizer.end_ids)
        room = self.encoder.max_seq_length - begin - end
        windows = cut(ids.row_lengths(), room, max(room // 2, 1))
        firsts = tf.gather(ids.row_starts(), windows.texts) + windows.starts  # of all P

        def compute(rows):
            sizes = tf.gather(windows.sizes, rows)
            features = self.encoder.features_of_ids(slices_of(ids.values, tf.gather(firsts, rows), sizes))
            logits = tf.cast(self.run(features), tf.float32)[:, begin:-end]
            return [tf.pad(logits, [[0, 0], [0, room - tf.shape(logits)[1]], [0, 0]])]

        spec = tf.TensorSpec([room, len(self.labels)], tf.float32)
        (of_words,) = in_batches(compute, windows.sizes, _WINDOWS_AT_ONCE, [spec])
        columns = tf.range(room, dtype=tf.int64)[None]
        inside = columns < windows.sizes[:, None]  # [W, R]
        pieces = tf.where(inside, firsts[:, None] + columns, 0)
        distance = tf.minimum(columns, windows.sizes[:, None] - 1 - columns)
        chosen = tf.where(most_context(distance, inside, pieces, tf.size(ids.values)))  # [P, 2]
        return tf.gather_nd(of_words, tf.gather(chosen, tf.argsort(tf.gather_nd(pieces, chosen), stable=True)))

    def _valid_tags(self, numbers: tf.Tensor, word_splits: tf.Tensor) -> tf.Tensor:
        """Tags in which each entity begins as the scheme requires (see `ner.metrics.valid_tags`), string [words]."""
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

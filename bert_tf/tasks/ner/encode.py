"""Words to token ids with one label per word, on its first piece (paper: Devlin et al. 2019, section 5.3).

A sentence, or with document context a whole document, that is longer than the model is cut into windows that overlap.
Each word is learned and predicted in the one window that shows most of its context: every word gets a tag, and none
counts twice.
"""

import bisect
import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from absl import logging

from bert_tf.data import token_rows
from bert_tf.data.token_rows import TokenRows, best_spans, document_spans, flatten
from bert_tf.system.messages import warn_once
from bert_tf.tasks.ner.data import Sentence
from bert_tf.tasks.ner.metrics import OUTSIDE
from bert_tf.tasks.rows import write_token_rows
from bert_tf.text import shown, watch_unknown
from bert_tf.text.tokenizer import Tokenizer

NO_LABEL = -1
# Of words: most begin with a piece of their own; of characters others are inside a piece, a space before one, or one at
# an end of the sentence.
FIRST, INSIDE, SPACE, MARGIN = range(4)


@dataclasses.dataclass(frozen=True)
class WordRows(TokenRows):
    """Token rows [CLS] pieces [SEP]; `labels` holds `label_ids`, where there are tags: int16 [n, max_seq_length],
    NO_LABEL except for the first pieces of the words that the row is responsible for.

    word_rows, word_positions: int32 [W]: where all words, in order, are learned and predicted.
    word_kinds: int8 [W]: FIRST; INSIDE for a character that is predicted with the first one of its piece; SPACE for
      one that is predicted with the next piece; MARGIN. Only FIRST ones are learned.
    """

    word_rows: np.ndarray
    word_positions: np.ndarray
    word_kinds: np.ndarray


def encode_sentences(
    sentences: Sequence[Sentence],
    tokenizer: Tokenizer,
    max_seq_length: int,
    *,
    label_ids: Mapping[str, int] | None = None,
    doc_stride: int | None = None,
    document_context: bool = False,
    of_pieces: bool = False,
) -> WordRows:
    """Token rows of sentences.

    A word without any piece (control characters only) becomes [UNK]. Rows that are responsible for no word, which show
    only the inside of a very long one, are left out.

    label_ids: of the tags; None: no labels.
    doc_stride: tokens from the start of a window to that of the next; by default half of what a window holds.
    document_context: whether the sentences of a document are joined.
    of_pieces: whether sentences of characters are split into pieces as the texts that they are.
    """
    token_rows.check_room(tokenizer, max_seq_length)
    room = max_seq_length - tokenizer.num_special_tokens()
    stride = doc_stride or max(room // 2, 1)
    before = len(tokenizer.begin_ids)
    rows, word_rows, word_positions, word_kinds, of_words = [], [], [], [], []
    units = [[sentence] for sentence in sentences]
    if document_context:
        units = [list(unit) for _, unit in itertools.groupby(sentences, lambda sentence: sentence.document)]
    for unit in units:
        pieces, firsts, kinds, known = _pieces_of(unit, tokenizer, of_pieces)
        word_kinds += kinds
        of_words += known
        spans = document_spans(len(pieces), room, stride)
        if stride > room and len(spans) > 1:
            warn_once("doc_stride", token_rows.GAPS, stride, max_seq_length, room)
        best = best_spans(spans, np.array(firsts))
        for number, (start, size) in enumerate(spans):
            words = np.flatnonzero(best == number)
            if not len(words):
                continue
            word_positions += [firsts[word] - start + before for word in words]
            word_rows += [len(rows)] * len(words)
            rows.append(tokenizer.build_inputs(pieces[start : start + size])[0])
    ids, offsets = flatten(rows)
    watch_unknown(tokenizer, np.array(of_words))
    word_rows, word_positions = np.array(word_rows, np.int32), np.array(word_positions, np.int32)
    word_kinds, labels = np.array(word_kinds, np.int8), {}
    if label_ids is not None:
        table = np.full((len(rows), max_seq_length), NO_LABEL, np.int16)
        ids_of_tags = np.array([label_ids[tag] for sentence in sentences for tag in sentence.tags], np.int16)
        learned = word_kinds == FIRST
        table[word_rows[learned], word_positions[learned]] = ids_of_tags[learned]
        labels["label_ids"] = table
    starts = np.diff(offsets).astype(np.int32)
    return WordRows(ids, offsets, starts, labels, word_rows, word_positions, word_kinds, pad_id=tokenizer.pad_id)


def _pieces_of(unit: Sequence[Sentence], tokenizer: Tokenizer, of_pieces: bool) -> tuple[list[int], ...]:
    """The ids of sentences; for each word the number of its piece, and its kind; and the ids of words that have any."""
    pieces, numbers, kinds, ids_of_words = [], [], [], []
    if of_pieces and all(len(word) == 1 for sentence in unit for word in sentence.words):
        for sentence in unit:
            ids, of_characters, kinds_of_characters = _pieces_of_characters(sentence.words, tokenizer)
            numbers += [len(pieces) + number for number in of_characters]
            kinds += kinds_of_characters
            ids_of_words += ids if any(map(str.strip, sentence.words)) else ()
            pieces += ids
        return pieces, numbers, kinds, ids_of_words
    for ids in tokenizer.encode_words([word for sentence in unit for word in sentence.words]):
        numbers.append(len(pieces))
        pieces += ids or (tokenizer.unk_id,)
        ids_of_words += ids  # not the words that have no piece: a space that is tagged alone
    return pieces, numbers, [FIRST] * len(numbers), ids_of_words


def _pieces_of_characters(characters: Sequence[str], tokenizer: Tokenizer) -> tuple[list[int], list[int], list[int]]:
    """The ids of a text; for each of its characters the number of the piece that it is predicted with, and its kind."""
    ids, offsets = tokenizer.encode_with_offsets("".join(characters))
    ids, offsets = (ids, offsets) if ids else ([tokenizer.unk_id], [(0, len(characters))])
    starts, numbers, kinds = [start for start, _ in offsets], [], []
    for position, character in enumerate(characters):
        number = bisect.bisect_left(starts, position)
        if character.isspace():
            numbers.append(min(number, len(ids) - 1))
            kinds.append(MARGIN if number == len(ids) or not kinds or kinds[-1] == MARGIN else SPACE)
            continue
        if number == len(ids) or (starts[number] != position and number):
            number -= 1
        while number + 1 < len(ids) and starts[number + 1] == position == offsets[number][1]:
            number += 1  # the beginning of a word, which covers nothing
        kinds.append(INSIDE if numbers and numbers[-1] == number and kinds[-1] < SPACE else FIRST)
        numbers.append(number)
    return ids, numbers, kinds


def character_logits(rows: WordRows, logits: np.ndarray, labels: Sequence[str]) -> np.ndarray:
    """Logits [W, C] of words as of their pieces, with those of IOB2 in the order that a character needs.

    A character inside a piece continues what the piece begins: I-X gets the larger logit of I-X and B-X. A space is in
    an entity if what follows it continues that of what precedes it.
    """
    if not rows.word_kinds.any():
        return logits
    logits, number = logits.copy(), {label: column for column, label in enumerate(labels)}
    inside, outside = np.flatnonzero(rows.word_kinds == INSIDE), number[OUTSIDE]
    for label, begin in number.items():
        if label.startswith("B-") and "I" + label[1:] in number:
            columns = [begin, number["I" + label[1:]]]
            logits[np.ix_(inside, columns)] = np.sort(logits[np.ix_(inside, columns)], -1)
    best = logits.argmax(-1)
    for word in np.flatnonzero(rows.word_kinds >= SPACE):
        before, label = labels[best[word - 1]], labels[best[word]]
        if rows.word_kinds[word] == MARGIN or label[0] != "I" or before[1:] != label[1:]:
            logits[word, [best[word], outside]] = logits[word, [outside, best[word]]]
            best[word] = outside
    return logits


def log_rows(rows: WordRows, labels: Sequence[str], tokenizer: Tokenizer, count: int = 3) -> None:
    """Logs the first rows as the model will see them, with the tags of the pieces."""
    for row in range(min(count, len(rows))):
        ids = rows.ids[rows.offsets[row] : rows.offsets[row + 1]].tolist()
        tags = [labels[number] if number >= 0 else "" for number in rows.labels["label_ids"][row, : len(ids)].tolist()]
        pieces = (shown(tokenizer, [index]) for index in ids)
        tagged = (f"{piece}/{tag}" if tag else piece for piece, tag in zip(pieces, tags, strict=True))
        logging.info("Row %d: %s", row, " ".join(tagged))


def training_batches(rows: WordRows, **arguments):
    """`token_rows.training_batches`, with label_ids int32 [B, S] as wide as each batch was padded to."""
    import tensorflow as tf

    def cut(features: dict) -> dict:
        ids = features["input_ids"]
        labels = tf.cast(features["label_ids"], tf.int32)[:, : tf.shape(ids)[1]]
        return features | {"label_ids": tf.ensure_shape(labels, ids.shape)}

    return token_rows.training_batches(rows, **arguments).map(tf.autograph.experimental.do_not_convert(cut))


def write_records(path: str, rows: WordRows, max_seq_length: int) -> None:
    """`write_token_rows` with label_ids and label_mask int64 [S], zeros where a token has no label."""
    columns = {}
    if "label_ids" in rows.labels:
        table = rows.labels["label_ids"]
        columns = {"label_ids": np.maximum(table, 0), "label_mask": (table >= 0).astype(np.int16)}
    write_token_rows(path, rows, max_seq_length, columns)


def word_logits(rows: WordRows, outputs: Iterable[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Logits [W, C] of all words of all sentences in their order.

    outputs: (row numbers, their logits [B, S, C]) of batches that together have every row once.
    """
    order = np.argsort(rows.word_rows, kind="stable")
    bounds = np.searchsorted(rows.word_rows[order], np.arange(len(rows) + 1))
    logits = None
    for chosen, output in outputs:
        if logits is None:
            logits = np.empty((len(rows.word_rows), output.shape[-1]), np.float32)
        for position, row in enumerate(chosen.tolist()):
            words = order[bounds[row] : bounds[row + 1]]
            logits[words] = output[position, rows.word_positions[words]]
    return logits

"""What a record holds, by the data tools of each family (--rows), and which pairs share one (--pack_sequences).

  pairs           BERT's and ALBERT's: two runs of sentences, or one (`instances`)
  electra         ELECTRA's: one or two runs of sentences that follow each other, in the text's order
  full_sentences  RoBERTa's: sentences in a row, each with its end token, packed to the full length across documents
  doc_sentences   the same within documents
  lines           DistilBERT's: a line, which holds several sentences

All but pairs are unmasked, and go over the text once. Sources: Clark et al. 2020, build_pretraining_dataset.py; Liu et
al. 2019, section 4.2, fairseq's TokenBlockDataset; lm_seqs_dataset.py of DistilBERT.
"""

import random
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bert_tf.pretraining import instance_kernels as kernels
from bert_tf.pretraining.instance_kernels import NO_B, begin_of, below, drawing_from, shuffle, uniform
from bert_tf.pretraining.record_settings import InstanceSettings
from bert_tf.pretraining.token_store import TokenStore
from bert_tf.system.numba_compile import compiled, inner

WITH_SEPARATORS = ("full_sentences", "doc_sentences")
_ROW_TOKENS = 1 << 22  # at once
# The state of `plan_electra` between two calls, as an int64 array: the next sentence of the document, the first
# sentence that is in no row yet, the tokens from there on, the document, the target length.
SENTENCE, FIRST, GATHERED, DOCUMENT, TARGET = range(5)

_SINGLE_SHARE, _SHORT_SHARE, _SHORTEST = 0.1, 0.05, 5


class Plan(NamedTuple):
    """How instances are planned, some at a time.

    fill: fills in spans [n, 6] and, of masked instances, positions and replacements [n, P]; returns how many of the n.
    done: the work done so far, in any unit. left_out: how many instances were not made.
    """

    fill: Callable[..., int]
    done: Callable[[], int]
    left_out: Callable[[], int] = lambda: 0


def lines_plan(store: TokenStore, settings: InstanceSettings, unknown_id: int) -> Plan:
    cursor, length = np.zeros(3, np.int64), settings.max_seq_length

    def fill(spans, *_) -> int:
        if settings.rows == "lines":
            return plan_lines(store.tokens, store.sentence_ends, unknown_id, length, cursor, spans)
        within = settings.rows == "doc_sentences"
        return plan_sentences(store.sentence_ends, store.document_ends, length, within, cursor, spans)

    return Plan(fill, lambda: int(cursor[0]), lambda: int(cursor[2]))


def electra_plan(store: TokenStore, max_seq_length: int, path: str) -> Plan:
    """The plan of ELECTRA's rows, in the order of the text. path: a local file for the rows' tokens, end to end."""
    cursor = np.array([0, 0, 0, 0, max_seq_length], np.int64)
    tokens = np.empty(max(_ROW_TOKENS, max_seq_length), store.tokens.dtype)
    open(path, "wb").close()

    def fill(spans, *_) -> int:
        made, new = 0, 1
        with open(path, "ab") as file:
            while new and made < len(spans):
                new, filled = plan_electra(
                    store.tokens, store.sentence_ends, store.document_ends, max_seq_length, cursor,
                    file.tell() // tokens.itemsize, spans[made:], tokens,
                )  # fmt: skip
                file.write(tokens[:filled].data)
                made += new
        return made

    return Plan(fill, lambda: int(cursor[SENTENCE]))


def pack(lengths: np.ndarray, row_length: int, max_items: int, rng: random.Random) -> tuple[np.ndarray, np.ndarray]:
    """Puts items into rows, as few as best fit gives (by decreasing length; Krell et al. 2021, arXiv 2107.02027).

    lengths: integers [n], each from 1 to row_length. max_items: most items in a row. rng: for the order of the rows.

    Returns (members, row_ends), int64: row k holds the items members[row_ends[k - 1]:row_ends[k]].
    """
    order = np.argsort(-lengths, kind="stable")
    row_of, num_rows = _best_fit(lengths[order].astype(np.int64), row_length, max_items)
    rows = np.arange(num_rows, dtype=np.int64)
    with drawing_from(rng):
        shuffle(rows, num_rows)
    row_of = rows[row_of]
    members = order[np.argsort(row_of, kind="stable")]
    return members.astype(np.int64), np.cumsum(np.bincount(row_of, minlength=num_rows)).astype(np.int64)


# ---- compiled loops --------------------------------------------------------------------------------------------------
# Each goes on where its last call ended: memory does not limit the text. For spans' columns see `instance_kernels`.


@inner
def _put_span(span, a_begin, a_length, b_begin, b_length):
    span[kernels.A_BEGIN], span[kernels.A_LENGTH] = a_begin, a_length
    span[kernels.B_BEGIN], span[kernels.B_LENGTH] = b_begin, b_length
    span[kernels.LABEL] = span[kernels.NUM_MASKED] = 0


@compiled
def plan_electra(tokens, sentence_ends, document_ends, max_seq_length, cursor, used, spans, rows):
    """Makes more rows until `spans` or `rows` is full or the text ends (original: build_pretraining_dataset.py).

    cursor: int64 [5], where to continue; at first zeros, with TARGET max_seq_length. used: tokens in earlier rows.
    spans: filled in. They point into all rows end to end, since a row takes sentences out of their order.

    Returns (number of rows, tokens filled in).
    """
    made = filled = 0
    in_a = np.empty(max_seq_length + 1, np.bool_)
    while cursor[DOCUMENT] < len(document_ends):
        last = document_ends[cursor[DOCUMENT]]
        while True:
            while cursor[SENTENCE] < last and cursor[GATHERED] < cursor[TARGET]:
                begin = begin_of(sentence_ends, cursor[SENTENCE])
                cursor[GATHERED] += sentence_ends[cursor[SENTENCE]] - begin
                cursor[SENTENCE] += 1
            if cursor[FIRST] == cursor[SENTENCE]:
                break
            if made == len(spans) or filled + max_seq_length > len(rows):
                return made, filled
            ends = sentence_ends[cursor[FIRST] : cursor[SENTENCE]]
            begin = begin_of(sentence_ends, cursor[FIRST])
            _divide(begin, ends, cursor[TARGET], in_a)
            row = rows[filled:]
            a_length = _copy(tokens, begin, ends, in_a, True, max_seq_length - 2, row)
            b_length = _copy(tokens, begin, ends, in_a, False, max(0, max_seq_length - a_length - 3), row[a_length:])
            b_begin = used + filled + a_length if b_length else NO_B
            _put_span(spans[made], used + filled, a_length, b_begin, b_length)
            made += 1
            filled += a_length + b_length
            cursor[TARGET] = max_seq_length
            if uniform() < _SHORT_SHARE:
                cursor[TARGET] = _SHORTEST + below(max_seq_length - _SHORTEST + 1)
            cursor[FIRST], cursor[GATHERED] = cursor[SENTENCE], 0
        cursor[DOCUMENT] += 1
    return made, filled


@inner
def _divide(begin, ends, target, in_a):
    """Whether each of the sentences from `begin` is in A."""
    a_target = 100_000 if uniform() < _SINGLE_SHARE else (target - 3) // 2
    a_length = b_length = 0
    for number in range(len(ends)):
        length = ends[number] - begin
        begin = ends[number]
        in_a[number] = (
            a_length == 0 or a_length + length < a_target or (b_length == 0 and a_length < a_target and uniform() < 0.5)
        )
        if in_a[number]:
            a_length += length
        else:
            b_length += length


@inner
def _copy(tokens, begin, ends, in_a, wanted, most, row):
    length = 0
    for number in range(len(ends)):
        if in_a[number] == wanted:
            for at in range(begin, min(ends[number], begin + most - length)):
                row[length + at - begin] = tokens[at]
            length += max(0, min(ends[number] - begin, most - length))
        begin = ends[number]
    return length


@compiled
def plan_sentences(sentence_ends, document_ends, max_seq_length, within_documents, cursor, spans):
    """Packs whole sentences into rows until `spans` is full or the text ends (fairseq: complete, complete_doc).

    A sentence that is too long for a row stands alone, and is cut into several.

    sentence_ends, document_ends: of a store with separators (`token_store.tokenize`).
    within_documents: end a row with its document, and leave the document's separator out.
    cursor: int64 [3], where to continue: the next sentence, its document, and the tokens of the next row's sentences
      that are in rows already; at first zeros.

    Returns the number of rows; less than n only at the end.
    """
    room = max_seq_length - 1  # for sentences with their separators, the last of which ends the row
    made, total = 0, len(sentence_ends)
    while cursor[0] < total:
        first = cursor[0]
        begin = begin_of(sentence_ends, first)
        while document_ends[cursor[1]] <= first:
            cursor[1] += 1
        last = document_ends[cursor[1]] - 1 if within_documents else total
        end = first + 1
        while end < last and sentence_ends[end] - begin <= room:
            end += 1
        length = sentence_ends[end - 1] - begin - 1
        while first < last and cursor[2] < length:
            if made == len(spans):
                return made
            _put_span(spans[made], begin + cursor[2], min(room - 1, length - cursor[2]), NO_B, 0)
            cursor[2] += room - 1
            made += 1
        cursor[0], cursor[2] = end, 0
    return made


@compiled
def plan_lines(tokens, sentence_ends, unknown_id, max_seq_length, cursor, spans):
    """Makes each line a row until `spans` is full or the text ends (DistilBERT: lm_seqs_dataset.py).

    What is too long for a row, special tokens included, is cut every max_seq_length - 2 tokens, before each part gets
    the special tokens it lacks. Rows of at most 11 tokens, and those that are half unknown, are left out.

    cursor: int64 [3], where to continue: the next line, the part of it, and how many rows were left out; at first 0.

    Returns the number of rows; less than n only at the end.
    """
    made, size = 0, max_seq_length - 2
    while cursor[0] < len(sentence_ends):
        begin = begin_of(sentence_ends, cursor[0])
        length = sentence_ends[cursor[0]] - begin
        parts = 1 if length + 2 <= max_seq_length else -(-(length + 2) // size)
        while cursor[1] < parts:
            if made == len(spans):
                return made
            # Places in the line with its special tokens: one before the tokens, one after.
            first, last = 0, length
            if parts > 1:
                first, last = max(0, cursor[1] * size - 1), min(length, (cursor[1] + 1) * size - 1)
            unknown = 0
            for token in tokens[begin + first : begin + last]:
                unknown += token == unknown_id
            if last - first + 2 <= 11 or 2 * unknown >= last - first + 2:
                cursor[2] += 1
            else:
                _put_span(spans[made], begin + first, last - first, NO_B, 0)
                made += 1
            cursor[1] += 1
        cursor[0], cursor[1] = cursor[0] + 1, 0
    return made


@compiled
def _best_fit(lengths, row_length, max_items):
    """The row of each item; lengths are decreasing."""
    row_of = np.empty(len(lengths), np.int64)
    # Rows that can take more, as a linked list for each amount of room left.
    newest = np.full(row_length + 1, -1, np.int64)
    older = np.empty(len(lengths), np.int64)
    items = np.zeros(len(lengths), np.int32)
    num_rows = 0
    for k in range(len(lengths)):
        length = lengths[k]
        room = length
        while room <= row_length and newest[room] < 0:
            room += 1
        if room > row_length:
            row, room = num_rows, row_length
            num_rows += 1
        else:
            row = newest[room]
            newest[room] = older[row]
        row_of[k] = row
        items[row] += 1
        if items[row] < max_items:
            older[row] = newest[room - length]
            newest[room - length] = row
    return row_of, num_rows

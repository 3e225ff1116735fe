"""Pre-training instances to the frames of TFRecord files, thousands at a time.

Three kinds of records, all `tf.train.Example` (the bytes are described in `system.example_bytes`):

* masked (original: write_instance_to_example_files): input_ids, input_mask, segment_ids [S], masked_lm_positions,
  masked_lm_ids [P], next_sentence_labels [1] (1: random) as int64 and masked_lm_weights [P] as float, padded with 0,
  but input_ids with the tokenizer's padding id.
* unmasked, for masks drawn during training: input_ids, as long as the pairs are; segment_lengths [2 M], tokens of
  `[CLS] A [SEP]` and of `B [SEP]` of each of up to M pairs in a row; next_sentence_labels [M]; with word boundaries
  word_continuations, as long as input_ids: 1 for a token that continues a word; int64, padded with 0.
* ELECTRA's (original: build_pretraining_dataset.py): input_ids, input_mask, segment_ids [S] as int64, padded with 0.

Under --nsp=false the first two hold single sequences: no `B [SEP]`, segment ids and labels 0.

Shape legend: S max_seq_length, P max_predictions_per_seq, M pairs per row, n records, F features, W values of a record.
"""

from collections.abc import Iterator

import numpy as np

from bert_tf.data.record_files import FRAME_END, FRAME_HEAD, MASKED, RECORDS_PER_BLOCK, Block, framed
from bert_tf.pretraining.instance_kernels import A_LENGTH, B_BEGIN, B_LENGTH, LABEL, NO_B, NUM_MASKED, gather
from bert_tf.pretraining.instances import Instances
from bert_tf.system.numba_compile import compiled, inner

_ROWS_AT_ONCE = 64  # whose values stay in the cache of a core


@compiled
def _lay_out_pairs(numbers, tokens, spans, positions, replacements, settings, values):
    """The features of masked records, or without predictions those of ELECTRA's, one after the other, int32 [n, W]."""
    length, predictions, cls_id, sep_id, pad_id = settings
    for index in range(len(numbers)):
        number = numbers[index]
        span, row = spans[number], values[index]
        end = gather(tokens, span, cls_id, sep_id, row)
        row[end:] = 0
        row[end:length] = pad_id
        row[length : length + end] = 1
        row[2 * length + span[A_LENGTH] + 2 : 2 * length + end] = 1
        if predictions:
            at = 3 * length
            for k in range(span[NUM_MASKED]):
                position = positions[number, k]
                row[at + k] = position
                row[at + predictions + k] = row[position]
                row[at + 2 * predictions + k] = 1
                row[position] = replacements[number, k]
            row[at + 3 * predictions] = span[LABEL]


@compiled
def _lay_out_unmasked(row_begins, row_ends, members, tokens, continuations, spans, settings, values, counts):
    """The features of unmasked records, int32 [n, W], and the number of values of each, int64 [n, F].

    Row k holds the instances members[row_begins[k]:row_ends[k]].
    """
    length, pairs, cls_id, sep_id = settings
    for k in range(len(row_begins)):
        row, filled = values[k], 0
        row[length : length + 3 * pairs] = 0
        for position in range(row_ends[k] - row_begins[k]):
            span = spans[members[row_begins[k] + position]]
            if len(continuations):
                gather(continuations, span, 0, 0, row[length + 3 * pairs + filled :])
            filled += gather(tokens, span, cls_id, sep_id, row[filled:])
            row[length + 2 * position] = span[A_LENGTH] + 2
            row[length + 2 * position + 1] = 0 if span[B_BEGIN] == NO_B else span[B_LENGTH] + 1
            row[length + 2 * pairs + position] = span[LABEL]
        counts[k, 0] = filled
        if len(continuations):
            counts[k, 3] = filled


@inner
def _varint_size(value):
    size = 1
    while value > 0x7F:
        value >>= 7
        size += 1
    return size


@inner
def _put_varint(buffer, at, value):
    while value > 0x7F:
        buffer[at] = (value & 0x7F) | 0x80
        value >>= 7
        at += 1
    buffer[at] = value
    return at + 1


@inner
def _packed_size(values):
    """Bytes of integers below 2^35 as varints."""
    size = np.int64(len(values))
    if size and values.max() > 0x7F:
        for k in range(len(values)):
            value = values[k]
            size += np.int64(value > 0x7F) + (value > 0x3FFF) + (value > 0x1FFFFF) + (value > 0xFFFFFFF)
    return size


@inner
def _sizes(name_size, packed_size):
    """Bytes of a feature's list, of the feature, of its entry in the map of features, and of that with its head."""
    list_size = 1 + _varint_size(packed_size) + packed_size
    feature_size = 1 + _varint_size(list_size) + list_size
    entry_size = 2 + name_size + 1 + _varint_size(feature_size) + feature_size
    return list_size, feature_size, entry_size, 1 + _varint_size(entry_size) + entry_size


@inner
def _put_integers(buffer, at, values, size):
    """Integers as varints, which take `size` bytes."""
    if size == len(values):  # one byte each
        buffer[at : at + size] = values
        return at + size
    for k in range(len(values)):
        value = np.int64(values[k])
        if value >= 1 << 21:
            at = _put_varint(buffer, at, value)
            continue
        # Always three bytes; the next number overwrites those not needed, since the length of an id can't be predicted.
        second, third = np.int64(value > 0x7F), np.int64(value > 0x3FFF)
        buffer[at] = (value & 0x7F) | (second << 7)
        buffer[at + 1] = ((value >> 7) & 0x7F) | (third << 7)
        buffer[at + 2] = value >> 14
        at += 1 + second + third
    return at


@inner
def _put_ones(buffer, at, values):
    for k in range(len(values)):
        bit = values[k]  # 1.0 is 0x3F800000
        buffer[at + 4 * k] = buffer[at + 4 * k + 1] = 0
        buffer[at + 4 * k + 2] = bit * 0x80
        buffer[at + 4 * k + 3] = bit * 0x3F
    return at + 4 * len(values)


@compiled
def _encode(values, begins, counts, names, name_ends, floats, begin, buffer, ends):
    """Writes an Example for each record, one after the other, with room for its frame, and where each ends.

    begins: [F], where each feature begins in a row; counts: [n, F], its values. name_ends: [F], where each name ends.
    floats: the number of the feature of floats, or F. begin: where the first frame begins in the buffer.
    """
    sizes = np.empty(len(begins), np.int64)
    for number in range(len(values)):
        total = np.int64(0)
        for feature in range(len(begins)):
            count, name_begin = counts[number, feature], name_ends[feature - 1] if feature else 0
            part = values[number, begins[feature] : begins[feature] + count]
            sizes[feature] = 4 * count if feature == floats else _packed_size(part)
            total += _sizes(name_ends[feature] - name_begin, sizes[feature])[3]
        at = begin + FRAME_HEAD
        buffer[at] = 0x0A
        at = _put_varint(buffer, at + 1, total)
        for feature in range(len(begins)):
            count, name_begin = counts[number, feature], name_ends[feature - 1] if feature else 0
            name = names[name_begin : name_ends[feature]]
            list_size, feature_size, entry_size, _ = _sizes(len(name), sizes[feature])
            buffer[at] = 0x0A
            at = _put_varint(buffer, at + 1, entry_size)
            buffer[at] = 0x0A
            buffer[at + 1] = len(name)
            buffer[at + 2 : at + 2 + len(name)] = name
            at += 2 + len(name)
            buffer[at] = 0x12
            at = _put_varint(buffer, at + 1, feature_size)
            buffer[at] = 0x12 if feature == floats else 0x1A
            at = _put_varint(buffer, at + 1, list_size)
            buffer[at] = 0x0A
            at = _put_varint(buffer, at + 1, sizes[feature])
            part = values[number, begins[feature] : begins[feature] + count]
            at = _put_ones(buffer, at, part) if feature == floats else _put_integers(buffer, at, part, sizes[feature])
        ends[number] = at
        begin = at + FRAME_END


def blocks_of(instances: Instances, members: np.ndarray, row_ends: np.ndarray, max_pairs: int) -> Iterator[Block]:
    """Yields framed records in blocks; record k holds the instances members[row_ends[k - 1]:row_ends[k]]."""
    settings, tokenizer, store = instances.settings, instances.tokenizer, instances.store
    length, predictions = settings.max_seq_length, settings.max_predictions_per_seq
    special = tokenizer.cls_id, tokenizer.sep_id
    is_electra = settings.rows == "electra"
    if predictions:
        widths = dict(zip(MASKED, [length] * 3 + [predictions] * 3 + [1], strict=True))
    elif is_electra:
        widths = dict.fromkeys(MASKED[:3], length)
    else:
        widths = {"input_ids": length, "segment_lengths": 2 * max_pairs, "next_sentence_labels": max_pairs}
        widths |= {"word_continuations": length} if len(store.continuations) else {}
    names, name_ends = np.frombuffer("".join(widths).encode(), np.uint8), np.cumsum([*map(len, widths)])
    begins = np.cumsum([0, *widths.values()])
    floats = MASKED.index("masked_lm_weights") if predictions else len(widths)
    values = np.empty((_ROWS_AT_ONCE, begins[-1]), np.int32)
    counts = np.tile(np.array([*widths.values()], np.int64), (_ROWS_AT_ONCE, 1))
    # Numbers take five bytes at most, a feature's head 80.
    buffer = np.empty(RECORDS_PER_BLOCK * (5 * int(begins[-1]) + 80 * len(widths)), np.uint8)
    ends = np.empty(RECORDS_PER_BLOCK, np.int64)
    row_begins = np.concatenate([[0], row_ends[:-1]]).astype(np.int64)
    for block in range(0, len(row_ends), RECORDS_PER_BLOCK):
        block_end, end = min(block + RECORDS_PER_BLOCK, len(row_ends)), 0
        for first in range(block, block_end, _ROWS_AT_ONCE):
            rows = slice(first, min(first + _ROWS_AT_ONCE, block_end))
            count = rows.stop - first
            if is_electra or predictions:
                _lay_out_pairs(
                    members[rows], store.tokens, instances.spans, instances.positions, instances.replacements,
                    (length, predictions, *special, tokenizer.pad_id), values[:count],
                )  # fmt: skip
            else:
                _lay_out_unmasked(
                    row_begins[rows], row_ends[rows], members, store.tokens, store.continuations, instances.spans,
                    (length, max_pairs, *special), values[:count], counts[:count],
                )  # fmt: skip
            block_ends = ends[first - block : rows.stop - block]
            _encode(values[:count], begins[:-1], counts[:count], names, name_ends, floats, end, buffer, block_ends)
            end = int(block_ends[-1]) + FRAME_END
        yield block_end - block, framed(buffer, ends[: block_end - block])

"""Pre-training instances to TFRecord files, thousands at a time.

Two kinds of records, both `tf.train.Example` (the bytes are described in `example_encoding`, the frame around them is
TFRecord's: length, its checksum, payload, its checksum):

* masked (original: write_instance_to_example_files): input_ids, input_mask, segment_ids [S], masked_lm_positions,
  masked_lm_ids [P], next_sentence_labels [1] (1: random) as int64 and masked_lm_weights [P] as float, padded with 0.
* unmasked, for masks drawn during training: input_ids, as long as the pairs are; segment_lengths [2 M], tokens of
  `[CLS] A [SEP]` and of `B [SEP]` of each of up to M pairs in a row; next_sentence_labels [M]; int64, padded with 0.

Under --nsp=false both hold single sequences: no `B [SEP]`, segment ids and labels 0.

Dimensions: S max_seq_length, P max_predictions_per_seq, M pairs a row.
"""

import gzip
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from bert_tf.pretraining_instances import Instances
from bert_tf.pretraining_kernel import (
    A_LENGTH,
    B_BEGIN,
    B_LENGTH,
    IS_RANDOM,
    NO_B,
    NUM_MASKED,
    compiled,
    gather,
)

# Of a gzip file, each block of records is a member of its own, so that a reader can begin at any of them.
RECORDS_PER_BLOCK = 1024

_INT64_LIST, _FLOAT_LIST = 0x1A, 0x12
_FRAME_BYTES = 16
_CRC32C_POLYNOMIAL = 0x82F63B78  # Castagnoli's, bits reversed


def _checksum_tables() -> np.ndarray:
    """uint32 [8, 256]: table k gives what a byte does to the checksum k bytes further on."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_CRC32C_POLYNOMIAL), table >> 1).astype(np.uint32)
    tables = [table]
    for _ in range(7):
        tables.append(table[tables[-1] & 0xFF] ^ (tables[-1] >> 8))
    return np.stack(tables)


_TABLES = _checksum_tables()


@compiled
def _masked_checksum(data, begin, end, tables):
    """CRC-32C of data[begin:end], eight bytes at a time, rotated and shifted as TFRecord wants it."""
    crc = np.uint32(0xFFFFFFFF)
    at = begin
    while at + 8 <= end:
        crc ^= (
            np.uint32(data[at])
            | (np.uint32(data[at + 1]) << np.uint32(8))
            | (np.uint32(data[at + 2]) << np.uint32(16))
            | (np.uint32(data[at + 3]) << np.uint32(24))
        )
        crc = (
            tables[7, crc & np.uint32(0xFF)]
            ^ tables[6, (crc >> np.uint32(8)) & np.uint32(0xFF)]
            ^ tables[5, (crc >> np.uint32(16)) & np.uint32(0xFF)]
            ^ tables[4, crc >> np.uint32(24)]
            ^ tables[3, data[at + 4]]
            ^ tables[2, data[at + 5]]
            ^ tables[1, data[at + 6]]
            ^ tables[0, data[at + 7]]
        )
        at += 8
    while at < end:
        crc = tables[0, (crc ^ np.uint32(data[at])) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
        at += 1
    crc ^= np.uint32(0xFFFFFFFF)
    return np.uint32(((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8))  # wraps around


@compiled
def _put_fixed(buffer, at, value, size):
    for k in range(size):
        buffer[at + k] = (value >> (8 * k)) & 0xFF
    return at + size


@compiled
def _varint_size(value):
    size = 1
    while value > 0x7F:
        value >>= 7
        size += 1
    return size


@compiled
def _put_varint(buffer, at, value):
    while value > 0x7F:
        buffer[at] = (value & 0x7F) | 0x80
        value >>= 7
        at += 1
    buffer[at] = value
    return at + 1


@compiled
def _put_feature_head(buffer, at, name, kind, packed_size):
    """All of a feature but its packed values: an entry of the map of features."""
    list_size = 1 + _varint_size(packed_size) + packed_size
    feature_size = 1 + _varint_size(list_size) + list_size
    entry_size = 2 + len(name) + 1 + _varint_size(feature_size) + feature_size
    buffer[at] = 0x0A
    at = _put_varint(buffer, at + 1, entry_size)
    buffer[at] = 0x0A
    buffer[at + 1] = len(name)
    at += 2
    for k in range(len(name)):
        buffer[at + k] = name[k]
    at += len(name)
    buffer[at] = 0x12
    at = _put_varint(buffer, at + 1, feature_size)
    buffer[at] = kind
    at = _put_varint(buffer, at + 1, list_size)
    buffer[at] = 0x0A
    return _put_varint(buffer, at + 1, packed_size)


@compiled
def _put_integers(buffer, at, name, values, count, padded_count):
    """A feature of `count` integers, then zeros up to `padded_count`."""
    size = padded_count - count
    for k in range(count):
        size += _varint_size(values[k])
    at = _put_feature_head(buffer, at, name, _INT64_LIST, size)
    for k in range(count):
        at = _put_varint(buffer, at, values[k])
    for k in range(padded_count - count):
        buffer[at + k] = 0
    return at + padded_count - count


@compiled
def _put_ones(buffer, at, name, zeros, ones, padded_count):
    """A feature of zeros, ones, then zeros up to `padded_count`."""
    at = _put_feature_head(buffer, at, name, _INT64_LIST, padded_count)
    for k in range(padded_count):
        buffer[at + k] = zeros <= k < zeros + ones
    return at + padded_count


@compiled
def _put_weights(buffer, at, name, ones, padded_count):
    """A feature of floats 1.0, then 0.0."""
    at = _put_feature_head(buffer, at, name, _FLOAT_LIST, 4 * padded_count)
    for k in range(padded_count):
        at = _put_fixed(buffer, at, 0x3F800000 if k < ones else 0, 4)
    return at


@compiled
def _frame(buffer, begin, payload_begin, end, tables):
    """Moves a payload so that it is framed from `begin` on and a message of its own; returns the frame's end.

    The payload is the inside of the outermost field of an Example; key and length come before it.
    """
    size = end - payload_begin
    head = 1 + _varint_size(size)
    target = begin + 12 + head
    for k in range(size):  # to the left: payload_begin leaves room for the longest head
        buffer[target + k] = buffer[payload_begin + k]
    at = begin + 12
    buffer[at] = 0x0A
    _put_varint(buffer, at + 1, size)
    _put_fixed(buffer, begin, head + size, 8)
    _put_fixed(buffer, begin + 8, np.int64(_masked_checksum(buffer, begin, begin + 8, tables)), 4)
    end = target + size
    checksum = np.int64(_masked_checksum(buffer, begin + 12, end, tables))
    return _put_fixed(buffer, end, checksum, 4)


_HEAD_ROOM = 12 + 11  # of a frame and of the outermost field


@compiled
def _encode_masked(numbers, tokens, spans, positions, replacements, settings, names, tables, buffer):
    """Framed records of the instances `numbers`, one after the other in buffer; returns the bytes used."""
    max_seq_length, max_predictions, cls_id, sep_id = settings
    row = np.empty(max_seq_length, np.int32)
    labels = np.empty(max(1, max_predictions), np.int32)
    begin = 0
    for number in numbers:
        span = spans[number]
        length = gather(tokens, span, cls_id, sep_id, row)
        masked = span[NUM_MASKED]
        for k in range(masked):
            position = positions[number, k]
            labels[k] = row[position]
            row[position] = replacements[number, k]
        first = span[A_LENGTH] + 2
        at = begin + _HEAD_ROOM
        at = _put_integers(buffer, at, names[0], row, length, max_seq_length)
        at = _put_ones(buffer, at, names[1], 0, length, max_seq_length)
        at = _put_ones(buffer, at, names[2], first, length - first, max_seq_length)
        at = _put_integers(buffer, at, names[3], positions[number], masked, max_predictions)
        at = _put_integers(buffer, at, names[4], labels, masked, max_predictions)
        at = _put_weights(buffer, at, names[5], masked, max_predictions)
        at = _put_ones(buffer, at, names[6], 0, span[IS_RANDOM], 1)
        begin = _frame(buffer, begin, begin + _HEAD_ROOM, at, tables)
    return begin


@compiled
def _encode_unmasked(row_begins, row_ends, members, tokens, spans, settings, names, tables, buffer):
    """Framed records; row k holds the instances members[row_begins[k]:row_ends[k]]."""
    max_seq_length, max_pairs, cls_id, sep_id = settings
    row = np.empty(max_seq_length, np.int32)
    lengths = np.zeros(2 * max_pairs, np.int64)
    labels = np.zeros(max_pairs, np.int64)
    begin = 0
    for k in range(len(row_begins)):
        length = pairs = 0
        for member in range(row_begins[k], row_ends[k]):
            span = spans[members[member]]
            length += gather(tokens, span, cls_id, sep_id, row[length:])
            lengths[2 * pairs] = span[A_LENGTH] + 2
            lengths[2 * pairs + 1] = 0 if span[B_BEGIN] == NO_B else span[B_LENGTH] + 1
            labels[pairs] = span[IS_RANDOM]
            pairs += 1
        at = begin + _HEAD_ROOM
        at = _put_integers(buffer, at, names[0], row, length, length)
        at = _put_integers(buffer, at, names[1], lengths, 2 * pairs, 2 * max_pairs)
        at = _put_integers(buffer, at, names[2], labels, pairs, max_pairs)
        begin = _frame(buffer, begin, begin + _HEAD_ROOM, at, tables)
    return begin


def _name_arrays(*names: str) -> tuple[np.ndarray, ...]:
    return tuple(np.frombuffer(name.encode(), np.uint8) for name in names)


_MASKED_NAMES = _name_arrays(
    "input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights",
    "next_sentence_labels",
)  # fmt: skip
_UNMASKED_NAMES = _name_arrays("input_ids", "segment_lengths", "next_sentence_labels")


# ---- files -----------------------------------------------------------------------------------------------------------


def _bytes_at_most(max_seq_length: int, max_predictions: int, max_pairs: int) -> int:
    """Of one framed record: numbers take five bytes at most, heads of features sixty."""
    return 7 * max_seq_length + 14 * max_predictions + 11 * max_pairs + 600


def masked_blocks(instances: Instances, numbers: np.ndarray) -> Iterator[bytes]:
    """Masked records of the instances with these numbers, in blocks of up to 1,024."""
    settings, vocabulary = instances.settings, instances.vocabulary
    size = _bytes_at_most(settings.max_seq_length, settings.max_predictions_per_seq, 1)
    buffer = np.empty(RECORDS_PER_BLOCK * size, np.uint8)
    for begin in range(0, len(numbers), RECORDS_PER_BLOCK):
        used = _encode_masked(
            numbers[begin : begin + RECORDS_PER_BLOCK],
            instances.store.tokens,
            instances.spans,
            instances.positions,
            instances.replacements,
            (settings.max_seq_length, settings.max_predictions_per_seq, vocabulary.cls_id, vocabulary.sep_id),
            _MASKED_NAMES,
            _TABLES,
            buffer,
        )
        yield buffer[:used].tobytes()


def unmasked_blocks(instances: Instances, row_ends: np.ndarray, members: np.ndarray, max_pairs: int) -> Iterator[bytes]:
    """Unmasked records in blocks of up to 1,024; row k holds the instances members[row_ends[k - 1]:row_ends[k]]."""
    settings, vocabulary = instances.settings, instances.vocabulary
    buffer = np.empty(RECORDS_PER_BLOCK * _bytes_at_most(settings.max_seq_length, 0, max_pairs), np.uint8)
    row_begins = np.concatenate([[0], row_ends[:-1]]).astype(np.int64)
    for begin in range(0, len(row_ends), RECORDS_PER_BLOCK):
        used = _encode_unmasked(
            row_begins[begin : begin + RECORDS_PER_BLOCK],
            row_ends[begin : begin + RECORDS_PER_BLOCK],
            members,
            instances.store.tokens,
            instances.spans,
            (settings.max_seq_length, max_pairs, vocabulary.cls_id, vocabulary.sep_id),
            _UNMASKED_NAMES,
            _TABLES,
            buffer,
        )
        yield buffer[:used].tobytes()


def write_blocks(path: str, blocks: Iterator[bytes], compression: str | None = None) -> None:
    """Writes blocks of framed records to a file on any file system.

    Args:
      compression: None or "gzip": each block becomes a gzip member.

    Raises:
      tf.errors.OpError: the file can't be written.
    """
    with tf.io.gfile.GFile(path, "wb") as file:
        for block in blocks:
            file.write(gzip.compress(block, 6, mtime=0) if compression == "gzip" else block)

"""Pre-training instances to TFRecord files, thousands at a time.

Three kinds of records, all `tf.train.Example` (the bytes are described in `system.example_bytes`, the frame around them
is TFRecord's: length, its checksum, payload, its checksum):

* masked (original: write_instance_to_example_files): input_ids, input_mask, segment_ids [S], masked_lm_positions,
  masked_lm_ids [P], next_sentence_labels [1] (1: random) as int64 and masked_lm_weights [P] as float, padded with 0,
  but input_ids with the tokenizer's padding id.
* unmasked, for masks drawn during training: input_ids, as long as the pairs are; segment_lengths [2 M], tokens of
  `[CLS] A [SEP]` and of `B [SEP]` of each of up to M pairs in a row; next_sentence_labels [M]; with word boundaries
  word_continuations, as long as input_ids: 1 for a token that continues a word; int64, padded with 0.

* ELECTRA's (original: build_pretraining_dataset.py): input_ids, input_mask, segment_ids [S] as int64, padded with 0.

Under --nsp=false the first two hold single sequences: no `B [SEP]`, segment ids and labels 0.

Shape legend: S max_seq_length, P max_predictions_per_seq, M pairs per row.
"""

import gzip
from collections.abc import Callable, Iterable, Iterator

import google_crc32c
import numpy as np
import tensorflow as tf

# Of a gzip file, each block of records is a separate member, so that a reader can begin at any of them.
from bert_tf.data.written_index import RECORDS_PER_BLOCK, WrittenIndex
from bert_tf.pretraining.instance_kernels import A_LENGTH, B_BEGIN, B_LENGTH, LABEL, NO_B, NUM_MASKED, gather
from bert_tf.pretraining.instances import Instances
from bert_tf.system.numba_compile import compiled, inner

_INT64_LIST, _FLOAT_LIST = 0x1A, 0x12
_FRAME_HEAD, _FRAME_END = 12, 4  # length and its checksum; checksum of the payload


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
def _packed_size(values, count):
    """Bytes of `count` integers, from 0 to below 2^35, as varints."""
    size = np.int64(count)
    for k in range(count):
        value = values[k]
        size += np.int64(value > 0x7F) + (value > 0x3FFF) + (value > 0x1FFFFF) + (value > 0xFFFFFFF)
    return size


@inner
def _sizes(name, packed_size):
    """Bytes of a feature's list, of the feature, and of its entry in the map of features with tag and length."""
    list_size = 1 + _varint_size(packed_size) + packed_size
    feature_size = 1 + _varint_size(list_size) + list_size
    entry_size = 2 + len(name) + 1 + _varint_size(feature_size) + feature_size
    return list_size, feature_size, 1 + _varint_size(entry_size) + entry_size


@inner
def _put_feature_head(buffer, at, name, kind, packed_size):
    """All of a feature but its packed values: an entry of the map of features."""
    list_size, feature_size, _ = _sizes(name, packed_size)
    buffer[at] = 0x0A
    at = _put_varint(buffer, at + 1, 2 + len(name) + 1 + _varint_size(feature_size) + feature_size)
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


@inner
def _put_integers(buffer, at, name, values, count, size, padded_count):
    """A feature of `count` integers, which take `size` bytes, then zeros up to `padded_count`."""
    at = _put_feature_head(buffer, at, name, _INT64_LIST, size + padded_count - count)
    for k in range(count):
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
    for k in range(padded_count - count):
        buffer[at + k] = 0
    return at + padded_count - count


@inner
def _put_ones(buffer, at, name, zeros, ones, padded_count):
    """A feature of zeros, ones, then zeros up to `padded_count`."""
    at = _put_feature_head(buffer, at, name, _INT64_LIST, padded_count)
    for k in range(padded_count):
        buffer[at + k] = zeros <= k < zeros + ones
    return at + padded_count


@inner
def _put_weights(buffer, at, name, ones, padded_count):
    """A feature of floats 1.0, then 0.0."""
    at = _put_feature_head(buffer, at, name, _FLOAT_LIST, 4 * padded_count)
    for k in range(padded_count):
        one = k < ones  # 0x3F800000
        buffer[at + 4 * k] = buffer[at + 4 * k + 1] = 0
        buffer[at + 4 * k + 2] = one * 0x80
        buffer[at + 4 * k + 3] = one * 0x3F
    return at + 4 * padded_count


@inner
def _open_example(buffer, begin, features_size):
    """Writes the outermost field of the Example of a frame that begins at `begin`."""
    buffer[begin + _FRAME_HEAD] = 0x0A
    return _put_varint(buffer, begin + _FRAME_HEAD + 1, features_size)


@compiled
def _encode_masked(numbers, tokens, spans, positions, replacements, settings, names, buffer, ends):
    """Records of the instances `numbers`; buffer, ends: see `_blocks`."""
    max_seq_length, max_predictions, cls_id, sep_id, pad_id = settings
    row = np.empty(max_seq_length, np.int32)
    chosen, labels = np.empty(max_predictions, np.int32), np.empty(max_predictions, np.int32)
    fixed_size = np.int64(0)
    for name, size in ((1, max_seq_length), (2, max_seq_length), (5, 4 * max_predictions), (6, 1)):
        fixed_size += _sizes(names[name], size)[2]
    begin = 0
    for place in range(len(numbers)):
        number = numbers[place]
        span = spans[number]
        length = gather(tokens, span, cls_id, sep_id, row)
        masked = span[NUM_MASKED]
        for k in range(masked):
            chosen[k] = position = positions[number, k]
            labels[k] = row[position]
            row[position] = replacements[number, k]
        first = span[A_LENGTH] + 2
        row[length:] = pad_id
        ids_size, labels_size = _packed_size(row, max_seq_length), _packed_size(labels, masked)
        positions_size = _packed_size(chosen, masked)
        size = fixed_size + _sizes(names[0], ids_size)[2]
        size += _sizes(names[3], positions_size + max_predictions - masked)[2]
        size += _sizes(names[4], labels_size + max_predictions - masked)[2]
        at = _open_example(buffer, begin, size)
        at = _put_integers(buffer, at, names[0], row, max_seq_length, ids_size, max_seq_length)
        at = _put_ones(buffer, at, names[1], 0, length, max_seq_length)
        at = _put_ones(buffer, at, names[2], first, length - first, max_seq_length)
        at = _put_integers(buffer, at, names[3], chosen, masked, positions_size, max_predictions)
        at = _put_integers(buffer, at, names[4], labels, masked, labels_size, max_predictions)
        at = _put_weights(buffer, at, names[5], masked, max_predictions)
        at = _put_ones(buffer, at, names[6], 0, span[LABEL], 1)
        ends[place] = at
        begin = at + _FRAME_END


@compiled
def _encode_unmasked(row_begins, row_ends, members, tokens, continuations, spans, settings, names, buffer, ends):
    """Records; row k holds the instances members[row_begins[k]:row_ends[k]]; buffer, ends: see `_blocks`."""
    marked = len(continuations) > 0
    max_seq_length, max_pairs, cls_id, sep_id = settings
    row, continues = np.empty(max_seq_length, np.int32), np.empty(max_seq_length, np.int32)
    lengths = np.zeros(2 * max_pairs, np.int64)
    labels = np.zeros(max_pairs, np.int64)
    begin = 0
    for k in range(len(row_begins)):
        length = pairs = 0
        for member in range(row_begins[k], row_ends[k]):
            span = spans[members[member]]
            if marked:
                gather(continuations, span, 0, 0, continues[length:])
            length += gather(tokens, span, cls_id, sep_id, row[length:])
            lengths[2 * pairs] = span[A_LENGTH] + 2
            lengths[2 * pairs + 1] = 0 if span[B_BEGIN] == NO_B else span[B_LENGTH] + 1
            labels[pairs] = span[LABEL]
            pairs += 1
        ids_size, lengths_size = _packed_size(row, length), _packed_size(lengths, 2 * pairs)
        size = _sizes(names[0], ids_size)[2] + _sizes(names[1], lengths_size + 2 * (max_pairs - pairs))[2]
        if marked:
            size += _sizes(names[3], length)[2]
        at = _open_example(buffer, begin, size + _sizes(names[2], max_pairs)[2])
        at = _put_integers(buffer, at, names[0], row, length, ids_size, length)
        at = _put_integers(buffer, at, names[1], lengths, 2 * pairs, lengths_size, 2 * max_pairs)
        at = _put_integers(buffer, at, names[2], labels, pairs, pairs, max_pairs)
        if marked:
            at = _put_integers(buffer, at, names[3], continues, length, length, length)
        ends[k] = at
        begin = at + _FRAME_END


@compiled
def _encode_plain(numbers, tokens, spans, settings, names, buffer, ends):
    """Records in ELECTRA's form of the instances `numbers`; buffer, ends: see `_blocks`."""
    max_seq_length, cls_id, sep_id = settings
    row = np.empty(max_seq_length, np.int32)
    fixed_size = _sizes(names[1], max_seq_length)[2] + _sizes(names[2], max_seq_length)[2]
    begin = 0
    for place in range(len(numbers)):
        number = numbers[place]
        span = spans[number]
        length = gather(tokens, span, cls_id, sep_id, row)
        first = span[A_LENGTH] + 2
        ids_size = _packed_size(row, length)
        size = fixed_size + _sizes(names[0], ids_size + max_seq_length - length)[2]
        at = _open_example(buffer, begin, size)
        at = _put_integers(buffer, at, names[0], row, length, ids_size, max_seq_length)
        at = _put_ones(buffer, at, names[1], 0, length, max_seq_length)
        at = _put_ones(buffer, at, names[2], first, length - first, max_seq_length)
        ends[place] = at
        begin = at + _FRAME_END


def _name_arrays(*names: str) -> tuple[np.ndarray, ...]:
    return tuple(np.frombuffer(name.encode(), np.uint8) for name in names)


_MASKED_NAMES = _name_arrays(
    "input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights",
    "next_sentence_labels",
)  # fmt: skip
_UNMASKED_NAMES = _name_arrays("input_ids", "segment_lengths", "next_sentence_labels", "word_continuations")


# ---- files -----------------------------------------------------------------------------------------------------------


def _blocks(rows: int, size: int, encode: Callable[..., None]) -> Iterator[bytes]:
    """Framed records in blocks of up to 1,024.

    Args:
      rows: how many. size: most bytes of a framed record.
      encode: called with a slice of the rows, writes each as an Example, with room for the frame around it (12 bytes
        before, 4 behind), to uint8 buffer, one after the other; and where each Example ends to int64 ends.
    """
    buffer, ends = np.empty(RECORDS_PER_BLOCK * size, np.uint8), np.empty(RECORDS_PER_BLOCK, np.int64)
    for begin in range(0, rows, RECORDS_PER_BLOCK):
        count = min(RECORDS_PER_BLOCK, rows - begin)
        encode(slice(begin, begin + count), buffer, ends)
        yield _framed(buffer, ends[:count])


def _framed(buffer: np.ndarray, ends: np.ndarray) -> bytes:
    """Fills in what is around the Examples; returns the frames."""
    begins = np.concatenate([[0], ends[:-1] + _FRAME_END]) + _FRAME_HEAD
    lengths = (ends - begins).astype("<u8").view(np.uint8).reshape(-1, 8)
    payloads = map(buffer.__getitem__, map(slice, begins.tolist(), ends.tolist()))
    for place, content in (
        (begins - _FRAME_HEAD, lengths),
        (begins - 4, _masked_checksums(lengths)),
        (ends, _masked_checksums(payloads)),
    ):
        buffer[place[:, None] + np.arange(content.shape[1])] = content
    return buffer[: ends[-1] + _FRAME_END].tobytes()


def _masked_checksums(contents: Iterable[np.ndarray]) -> np.ndarray:
    """CRC-32C of each content, rotated and shifted as TFRecord wants it: uint8 [n, 4]."""
    crc = np.fromiter(map(google_crc32c.value, contents), np.uint32)
    crc = ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8)  # wraps around
    return crc.astype("<u4").view(np.uint8).reshape(-1, 4)


def _bytes_at_most(max_seq_length: int, max_predictions: int, max_pairs: int) -> int:
    """Of one framed record: numbers take five bytes at most, heads of features sixty."""
    return 8 * max_seq_length + 14 * max_predictions + 11 * max_pairs + 600


def masked_blocks(instances: Instances, numbers: np.ndarray) -> Iterator[bytes]:
    """Masked records of the instances with these numbers, in blocks of up to 1,024."""
    settings, vocabulary = instances.settings, instances.vocabulary
    max_seq_length, max_predictions = settings.max_seq_length, settings.max_predictions_per_seq
    sizes_and_ids = (max_seq_length, max_predictions, vocabulary.cls_id, vocabulary.sep_id, vocabulary.pad_id)
    spans, positions, replacements = instances.spans, instances.positions, instances.replacements

    def encode(part: slice, buffer: np.ndarray, ends: np.ndarray) -> None:
        _encode_masked(
            numbers[part], instances.store.tokens, spans, positions, replacements, sizes_and_ids, _MASKED_NAMES, buffer,
            ends,
        )  # fmt: skip

    return _blocks(len(numbers), _bytes_at_most(max_seq_length, max_predictions, 1), encode)


def unmasked_blocks(instances: Instances, row_ends: np.ndarray, members: np.ndarray, max_pairs: int) -> Iterator[bytes]:
    """Unmasked records in blocks of up to 1,024; row k holds the instances members[row_ends[k - 1]:row_ends[k]]."""
    max_seq_length, store = instances.settings.max_seq_length, instances.store
    sizes_and_ids = (max_seq_length, max_pairs, instances.vocabulary.cls_id, instances.vocabulary.sep_id)
    row_begins = np.concatenate([[0], row_ends[:-1]]).astype(np.int64)

    def encode(part: slice, buffer: np.ndarray, ends: np.ndarray) -> None:
        _encode_unmasked(
            row_begins[part], row_ends[part], members, store.tokens, store.continuations, instances.spans,
            sizes_and_ids, _UNMASKED_NAMES, buffer, ends,
        )  # fmt: skip

    return _blocks(len(row_ends), _bytes_at_most(max_seq_length, 0, max_pairs), encode)


def plain_blocks(instances: Instances, numbers: np.ndarray) -> Iterator[bytes]:
    """Records in ELECTRA's form of the instances with these numbers, in blocks of up to 1,024."""
    max_seq_length, store = instances.settings.max_seq_length, instances.store
    sizes_and_ids = (max_seq_length, instances.vocabulary.cls_id, instances.vocabulary.sep_id)

    def encode(part: slice, buffer: np.ndarray, ends: np.ndarray) -> None:
        _encode_plain(numbers[part], store.tokens, instances.spans, sizes_and_ids, _MASKED_NAMES[:3], buffer, ends)

    return _blocks(len(numbers), _bytes_at_most(max_seq_length, 0, 1), encode)


def write_blocks(path: str, blocks: Iterator[bytes], rows: int, compression: str | None = None) -> WrittenIndex:
    """Writes blocks of framed records to a file on any file system; returns the file's index.

    Args:
      rows: records in all blocks together; all blocks but the last have `RECORDS_PER_BLOCK`.
      compression: None or "gzip": each block becomes a gzip member.

    Raises:
      tf.errors.OpError: the file can't be written.
    """
    sizes, checksums = [], []
    with tf.io.gfile.GFile(path, "wb") as file:
        for block in blocks:
            content = gzip.compress(block, 6, mtime=0) if compression == "gzip" else block
            file.write(content)
            sizes.append(len(content))
            checksums.append(google_crc32c.value(content))
    counts = np.full(len(sizes), RECORDS_PER_BLOCK)
    counts[-1:] = rows - RECORDS_PER_BLOCK * (len(sizes) - 1)
    return WrittenIndex(
        *(np.array(column, np.int64) for column in (sizes, counts, checksums)), bool(compression and sizes)
    )

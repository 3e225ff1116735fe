"""TFRecord files byte by byte: writing them, the index of their records, what is damaged, what a record has to hold.

A record's frame is its length (8 bytes), the length's checksum (4), the payload, and the payload's checksum (4).

create_pretraining_data.py leaves an index next to each file that it writes: for `data/a.tfrecord` it is
`data/pretraining_data.a.index.npz`. It is used if it fits the file: the size, and where the last block begins. Other
files are read at each start, with all checksums.
"""

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import google_crc32c
import numpy as np
from absl import logging

from bert_tf.system import example_bytes
from bert_tf.system.example_bytes import is_frame_head, masked_crc32c
from bert_tf.system.messages import abbreviated_list, progress_bar
from bert_tf.system.storage import arrays_as_bytes, gfile, load_arrays
from bert_tf.system.text_files import open_binary, size_of
from bert_tf.system.workers import in_threads

RECORDS_PER_BLOCK = 1024
FRAME_HEAD, FRAME_END = 12, 4  # length and its checksum; checksum of the payload
FRAME_BYTES = FRAME_HEAD + FRAME_END
OTHER_ROW = "is not a text of one or two segments, then padding, by its input_mask and segment_ids"
FEWER = "a file has fewer records than when it was indexed"
_INDEX_VERSION = 2

Block = tuple[int, bytes]  # the number of its records, and their frames

# The features of the records that a run reads: with masks, unmasked ones, and those of ELECTRA's original.
ELECTRA = ("input_ids", "input_mask", "segment_ids")
MASKED = (*ELECTRA, "masked_lm_positions", "masked_lm_ids", "masked_lm_weights", "next_sentence_labels")
UNMASKED = ("input_ids", "segment_lengths", "next_sentence_labels")
_ELECTRA_KIND = "ELECTRA's unmasked rows"


class RecordError(ValueError):
    """A record file can't be used as it is; the message names file, record, byte offset and flag."""


class Feature(NamedTuple):
    """A feature of every record.

    length: the number of its values; of a padded one the most. None: not known yet. dtype: "int64" or "float32".
    is_padded: whether there may be fewer values, which are padded with 0 in a batch.
    limit: int64 values are from 0 to limit - 1, float32 ones from 0 to limit; None: any.
    reason: where the limit comes from, for messages.
    """

    length: int | None
    dtype: str = "int64"
    is_padded: bool = False
    limit: int | None = None
    reason: str = ""


Features = Mapping[str, Feature]


def read_records(name: str, size: int, begin: int = 0, most: int = RECORDS_PER_BLOCK) -> Iterator[tuple]:
    """Yields blocks of records, with all checksums verified: where each begins and ends in the file, and its payloads.

    size: of the file, bytes. begin: the byte where a record begins. most: records of a block.
    """
    number = 0
    with open_binary(name) as file:
        file.seek(begin)
        head = file.read(FRAME_HEAD)
        while begin < size:
            first, payloads = begin, []
            while begin < size and len(payloads) < most:
                length = int.from_bytes(head[:8], "little") if is_frame_head(head) else size
                end = length + FRAME_END  # what follows is the head of the next record
                content = file.read(end + FRAME_HEAD) if begin + length + FRAME_BYTES <= size else b""
                payload, checksum, head = content[:length], content[length:end], content[end:]
                if len(payload) != length or masked_crc32c(payload) != int.from_bytes(checksum, "little"):
                    where = f"{name}: record {number + len(payloads)} at byte {begin}"
                    raise RecordError(f"{where} is damaged or cut off, or the file has no records (TFRecord)")
                payloads.append(payload)
                begin += length + FRAME_BYTES
            yield first, begin, payloads
            number += len(payloads)


def pretraining_features(max_seq_length: int, max_predictions_per_seq: int | None) -> dict[str, Feature]:
    """The seven features that create_pretraining_data.py writes (run_pretraining.py of the original reads the same)."""
    lengths = [max_seq_length] * 3 + [max_predictions_per_seq] * 3 + [1]
    kinds = ["float32" if name == "masked_lm_weights" else "int64" for name in MASKED]
    return {name: Feature(length, kind) for name, length, kind in zip(MASKED, lengths, kinds, strict=True)}


def features_of(
    first_payloads: Mapping[str, tuple[int, bytes]],
    max_seq_length: int,
    max_predictions_per_seq: int | None,
    *,
    vocab_size: int | None = None,
    segments: int | None = 2,
    model_name: str = "the model",
    no_masked: str = "",
) -> tuple[Features, int | None]:
    """The features of records, by the first of each file, and the pairs per row (M) of unmasked ones, else None.

    ELECTRA's records are read as unmasked ones of one pair, without `next_sentence_labels`.

    first_payloads: file name -> byte offset and payload of its first record.
    vocab_size: the number of token ids; None: any are read. segments: that of segment ids; None: any.
    model_name: where messages say that these two come from.
    no_masked: why masked examples can't be used, if so; begins the message.
    """
    kinds = {name: _kind_of(payload) for name, (_, payload) in first_payloads.items()}
    first_name, (first_kind, pairs, has_words) = next(iter(kinds.items()))
    for name, (kind, *_) in kinds.items():
        if kind != first_kind:
            both = f"{first_name} has {first_kind}, {name} has {kind}"
            raise RecordError(f"{both}: a run can't use both; give files of one kind")
    if pairs:
        ids = Feature(max_seq_length, is_padded=True)
        features = {"word_continuations": ids} if has_words else {}
        features |= dict(zip(UNMASKED, (ids, Feature(2 * pairs), Feature(pairs)), strict=True))
    elif first_kind == _ELECTRA_KIND:
        features, pairs = dict.fromkeys(ELECTRA, Feature(max_seq_length)), 1
    elif no_masked:
        raise RecordError(f"{no_masked}: make them with create_pretraining_data.py --masking=dynamic.")
    else:
        features = pretraining_features(max_seq_length, max_predictions_per_seq)
    tokens = vocab_size, f"vocab_size={vocab_size} in {model_name}: was the data made with another vocabulary?"
    limits = {
        **({"input_ids": tokens, "masked_lm_ids": tokens} if vocab_size else {}),
        **dict.fromkeys(("input_mask", "next_sentence_labels", "word_continuations"), (2, "")),
        "segment_ids": (segments, f"type_vocab_size in {model_name}"),
        "masked_lm_positions": (max_seq_length, f"--max_seq_length={max_seq_length}"),
        "masked_lm_weights": (1, ""),
        "segment_lengths": (max_seq_length + 1, f"--max_seq_length={max_seq_length}"),
    }
    for name in features.keys() & limits.keys():
        limit, reason = limits[name]
        features[name] = features[name]._replace(limit=limit, reason=reason)
    check_first_records(first_payloads, features)
    return features, pairs


def _kind_of(payload: bytes) -> tuple[str, int | None, bool]:
    """What a record holds, for messages; the pairs of an unmasked one; and whether it marks the beginnings of words."""
    try:
        values = example_bytes.decoded_features(payload)
    except ValueError:
        values = {}
    if "segment_lengths" not in values:
        return _ELECTRA_KIND if {*values} == {*ELECTRA} else "masked examples", None, False
    pairs, has_words = max(1, len(values["segment_lengths"][1]) // 2), "word_continuations" in values
    words = " that say what a word is (--word_boundaries, --segmenter)" if has_words else ""
    return f"unmasked rows of up to {pairs} pairs{words}", pairs, has_words


def check_first_records(first_payloads: Mapping[str, tuple[int, bytes]], features: Features) -> None:
    for name, (offset, payload) in first_payloads.items():
        if problem := record_problem(payload, features):
            raise RecordError(f"{name}: the first record (byte {offset}) {problem}")


def record_problem(payload: bytes, features: Features) -> str | None:
    """How a serialized tf.train.Example differs from `features`, if it does, as the end of a sentence."""
    try:
        present = example_bytes.decoded_features(payload)
    except ValueError as error:
        return str(error)
    for name, feature in features.items():
        if name not in present:
            return f"has no feature {name!r}; it has {', '.join(present) or 'nothing'}"
        if problem := _feature_problem(name, feature, *present[name]):
            return problem
    numbers = {name: values for name, (_, values) in present.items()}
    total, tokens = sum(numbers.get("segment_lengths", ())), len(numbers.get("input_ids", ()))
    if "segment_lengths" in features and total != tokens:
        return f"has {tokens} input_ids, but its segment_lengths add up to {total}"
    if {*features} == {*ELECTRA}:
        mask, segments = numbers["input_mask"], numbers["segment_ids"]
        tokens, second = sum(mask), sum(segments)
        row = [1] * tokens + [0] * (len(mask) - tokens), [0] * (tokens - second) + [1] * second
        if mask != row[0] or segments[:tokens] != row[1] or any(segments[tokens:]):
            return OTHER_ROW
    return None


def _feature_problem(name: str, feature: Feature, stored_kind: str | None, numbers: list) -> str | None:
    kind = {"int64": "int64_list", "float32": "float_list"}[feature.dtype]
    if stored_kind not in (kind, None):
        return f"has feature {name!r} as {stored_kind}, expected {kind}"
    count, expected = len(numbers), feature.length
    if expected is not None and (count > expected or (count < expected and not feature.is_padded)):
        flag = "max_predictions_per_seq" if name.startswith("masked_lm") else "max_seq_length"
        advice = f"give --{flag} as the records were made with (pretraining_data.*.json next to them has it)"
        return f"has {count} values in feature {name!r}, expected {'at most ' * feature.is_padded}{expected}: {advice}"
    last = None if feature.limit is None else feature.limit - (feature.dtype == "int64")
    wrong = [] if last is None else [number for number in numbers if not 0 <= number <= last]
    if wrong:
        reason = f" ({feature.reason})" if feature.reason else ""
        return f"has {wrong[0]} in feature {name!r}, expected 0 to {last}{reason}"
    return None


# --- the index -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class RecordIndex:
    """Where the records are: one row for each block of at most 1024 consecutive, intact records.

    files: names, in reading order. file_sizes: bytes of each file when it was indexed.
    file_number, byte_offset, num_records: [blocks] int64; the block's file, where its first frame begins, its records.
    """

    files: tuple[str, ...]
    file_sizes: tuple[int, ...]
    file_number: np.ndarray
    byte_offset: np.ndarray
    num_records: np.ndarray

    @property
    def total_records(self) -> int:
        return int(self.num_records.sum())

    @property
    def fingerprint(self) -> str:
        """A digest of everything that the order of batches depends on, which directories are not."""
        digest = hashlib.sha256(json.dumps([[*map(os.path.basename, self.files)], list(self.file_sizes)]).encode())
        for row in self.blocks():
            digest.update(row.astype("<i8").tobytes())
        return digest.hexdigest()

    def blocks(self, order=slice(None)) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.file_number[order], self.byte_offset[order], self.num_records[order]

    def first_of(self, block: int) -> tuple[str, tuple[int, bytes]]:
        """The file of a block, and byte offset and payload of its first record."""
        number, offset = int(self.file_number[block]), int(self.byte_offset[block])
        _, _, payloads = next(read_records(self.files[number], self.file_sizes[number], offset, most=1))
        return self.files[number], (offset, payloads[0])

    def first_payloads(self) -> dict[str, tuple[int, bytes]]:
        """`first_of` each file, for files that have any."""
        return dict(in_threads(self.first_of, np.unique(self.file_number, return_index=True)[1]))


def written_index(blocks: np.ndarray) -> bytes:
    """The content of the index next to a file. blocks: int64 [blocks, 2]: bytes, and records, of adjoining blocks."""
    return arrays_as_bytes({"version": np.array(_INDEX_VERSION), "blocks": blocks.T})


def companion_path(record_file: str, ending: str) -> str:
    """The path of a file that describes a record file: `data/a.tfrecord` -> `data/pretraining_data.a<ending>`.

    The usual globs for records (data/a*, data/*.tfrecord) leave it out.
    """
    directory, name = os.path.split(record_file)
    name = re.sub(r"\.tf_?records?", "", name)
    return os.path.join(directory, f"pretraining_data.{name}{ending}")


def index_path(record_file: str) -> str:
    return companion_path(record_file, ".index.npz")


def _written_blocks(record_file: str, size: int) -> np.ndarray | None:
    """The blocks that the index next to a file names, if any; that it does not fit is logged."""
    stored = load_arrays(index_path(record_file))
    if stored is None:
        return None
    is_known = {"version", "blocks"} <= stored.keys() and stored["version"].tolist() == _INDEX_VERSION
    if is_known and stored["blocks"].shape[:-1] == (2,):
        sizes, counts = stored["blocks"].astype(np.int64)
        is_possible = (sizes > FRAME_BYTES) & (counts >= 1) & (counts <= RECORDS_PER_BLOCK)
        if sizes.sum() == size and is_possible.all():
            offsets = np.cumsum(sizes) - sizes
            with open_binary(record_file) as file:
                file.seek(int(offsets[-1]) if size else 0)
                if not size or is_frame_head(file.read(12)):
                    return np.stack([offsets, counts], axis=1)
    logging.warning("%s does not fit %s, all of which is read", index_path(record_file), record_file)
    return None


def index_records(files: str | Sequence[str], features: Features | None, *, verify: bool = False) -> RecordIndex:
    """Finds every record of `files`, and compares the first of each file with `features`.

    Of files that have an index next to them, checksums are verified when their records are used.

    Args:
      files: TFRecord files, or one, whatever their names.
      features: name -> feature that each record must have; None: not known yet, see `features_of`.
      verify: read all records of all files now, and verify all checksums.
    """
    files = [os.fspath(name) for name in ([files] if isinstance(files, str | os.PathLike) else files)]
    sizes = in_threads(size_of, files)
    of_files = _scan_files(files, sizes, verify)
    blocks = np.concatenate([np.insert(each, 0, number, axis=1) for number, each in enumerate(of_files)])
    index = RecordIndex(tuple(files), tuple(sizes), *blocks.T)
    if not index.total_records:
        raise RecordError(f"no records in {abbreviated_list(files)}")
    if empty := sorted(set(range(len(files))) - set(index.file_number.tolist())):
        logging.warning("%d of %d files have no records, the first of them %s", len(empty), len(files), files[empty[0]])
    logging.info("%d records in %d files, %.1f MB", index.total_records, len(files), sum(sizes) / 1e6)
    if features is not None:
        check_first_records(index.first_payloads(), features)
    return index


def _scan_files(files: Sequence[str], sizes: Sequence[int], verify: bool) -> list[np.ndarray]:
    """The blocks of each file (byte offset, records), int64 [blocks, 2]."""
    blocks_of_files = [None] * len(files) if verify else in_threads(_written_blocks, files, sizes)
    missing = [number for number, blocks in enumerate(blocks_of_files) if blocks is None]
    if len(missing) < len(files):
        count = f"{len(files) - len(missing)} of {len(files)} record files"
        logging.info(f"{count} have an index next to them; --verify_records reads them nevertheless")
    # The bar appears after two seconds.
    total = sum(sizes[number] for number in missing)
    with progress_bar(total=total, desc="indexing records", unit="B", unit_scale=True, delay=2) as progress:

        def scan(number: int) -> np.ndarray:
            blocks = []
            for begin, end, payloads in read_records(files[number], sizes[number], most=RECORDS_PER_BLOCK):
                blocks.append((begin, len(payloads)))
                progress.update(end - begin)
            return np.array(blocks, np.int64).reshape(-1, 2)

        scanned = dict(zip(missing, in_threads(scan, missing, threads=8), strict=True))
    return [scanned[number] if blocks is None else blocks for number, blocks in enumerate(blocks_of_files)]


# --- writing ---------------------------------------------------------------------------------------------------------


def framed(buffer: np.ndarray, ends: np.ndarray) -> bytes:
    begins = np.concatenate([[0], ends[:-1] + FRAME_END]) + FRAME_HEAD
    lengths = (ends - begins).astype("<u8").view(np.uint8).reshape(-1, 8)
    payloads = map(buffer.__getitem__, map(slice, begins.tolist(), ends.tolist()))
    for starts, content in (
        (begins - FRAME_HEAD, lengths),
        (begins - 4, _masked_checksums(lengths)),
        (ends, _masked_checksums(payloads)),
    ):
        buffer[starts[:, None] + np.arange(content.shape[1])] = content
    return buffer[: ends[-1] + FRAME_END].tobytes()


def _masked_checksums(contents: Iterable[np.ndarray]) -> np.ndarray:
    """CRC-32C of each content, rotated and shifted as TFRecord wants it: uint8 [n, 4]."""
    crc = np.fromiter(map(google_crc32c.value, contents), np.uint32)
    crc = ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8)  # wraps around
    return crc.astype("<u4").view(np.uint8).reshape(-1, 4)


def write_blocks(path: str, blocks: Iterable[Block], progress: Callable[[int], object] = lambda _: None) -> np.ndarray:
    """Writes blocks to a file; returns bytes and records of each, int64 [n, 2]. progress: gets the records of each."""
    written = []
    with gfile().GFile(path, "wb") as file:
        for count, block in blocks:
            file.write(block)
            written.append((len(block), count))
            progress(count)
    return np.array(written, np.int64).reshape(-1, 2)

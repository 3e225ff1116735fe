"""Gzip-compressed record files: same records in the same order, errors name the damage."""

import gzip
import os

import numpy as np
import pytest
import tensorflow as tf
from helpers.record_files import example_of, write_records

from bert_tf.data import record_files, record_index, records

FEATURES = {"number": record_files.Feature(1)}
COUNT = 61


def example(number: int) -> bytes:
    """A record with its own number, and incompressible bytes."""
    filling = np.random.default_rng(number).bytes(100 + 40 * (number % 9))
    return example_of({"number": [number], "ignored": [filling]})


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    for module in ("record_files", "record_index"):
        monkeypatch.setattr(f"bert_tf.data.{module}.RECORDS_PER_BLOCK", 8)


@pytest.fixture
def plain(tmp_path):
    """A file of 61 records, uncompressed."""
    write_records(tmp_path / "plain", map(example, range(COUNT)))
    return tmp_path / "plain"


def write_blocks(plain, path, records_a_block: int = 8) -> list[int]:
    """Writes the content as gzip members; returns where they begin, and the file's length."""
    content, offsets = plain.read_bytes(), [0]
    ends = np.cumsum([0, *(len(example(number)) + 16 for number in range(COUNT))])
    with open(path, "wb") as file:
        for first in range(0, COUNT, records_a_block):
            last = min(first + records_a_block, COUNT)
            file.write(gzip.compress(content[ends[first] : ends[last]], mtime=0))
            offsets.append(file.tell())
    return offsets


def numbers(dataset) -> list[list[int]]:
    return [batch["number"].numpy()[:, 0].tolist() for batch in dataset]


def in_order(files, **options) -> list[int]:
    index = record_index.index_records([str(name) for name in files], FEATURES, **options)
    batches = records.evaluation_batches(index, FEATURES, batch_size=1, repeat=False, max_steps=None)
    drawn = [batch[0] for batch in numbers(batches)]
    epoch = records.training_batches(index, FEATURES, batch_size=index.total_records, seed=0, shuffle_window=20)
    assert sorted(numbers(epoch.take(1))[0]) == sorted(drawn)
    return drawn


@pytest.mark.parametrize("chunk", [7, 1 << 16])
def test_blocks_give_the_batches_of_the_plain_file(plain, tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(record_files, "_CHUNK_BYTES", chunk)
    offsets = write_blocks(plain, tmp_path / "many")
    index = record_index.index_records([str(tmp_path / "many")], FEATURES)
    assert index.compressed == (True,)
    assert index.byte_offset.tolist() == offsets[:-1]
    assert index.num_records.tolist() == [8] * 7 + [5]
    reference = record_index.index_records([str(plain)], FEATURES)
    for start in (0, 17):
        one, other = (
            numbers(
                records.training_batches(
                    which, FEATURES, batch_size=7, seed=3, shuffle_window=20, start_step=start
                ).take(30)
            )
            for which in (index, reference)
        )
        assert one == other


def test_plain_and_compressed_files_together(plain, tmp_path):
    write_blocks(plain, tmp_path / "many", 5)
    (tmp_path / "empty").write_bytes(gzip.compress(b""))
    files = [plain, tmp_path / "many", tmp_path / "empty", plain]
    assert in_order(files) == list(range(COUNT)) * 3


def test_a_record_whose_length_looks_like_gzip(tmp_path):
    """Little-endian 0x088b1f begins with the bytes 1f 8b 08."""
    with tf.io.TFRecordWriter(str(tmp_path / "a")) as writer:
        writer.write(b"x" * 0x088B1F)
    assert (tmp_path / "a").read_bytes()[:3] == b"\x1f\x8b\x08"
    assert not record_files.is_gzip(str(tmp_path / "a"))


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "place"), [("corrupt", 200), ("corrupt", -7), ("truncated", 300)])
def test_damaged_member(plain, tmp_path, kind, place):
    path = tmp_path / "many"
    offsets = write_blocks(plain, path)
    content = bytearray(path.read_bytes())
    if kind == "truncated":
        content = content[: offsets[5] + place]
    else:
        content[(offsets[5] if place > 0 else offsets[6]) + place] ^= 0x10
    path.write_bytes(content)
    message = rf"{path}: the gzip member at byte {offsets[5]} is {kind}.*after 40 records.*--skip_corrupt_"
    with pytest.raises(record_files.RecordError, match=message):
        record_index.index_records([str(path)], FEATURES)
    write_blocks(plain, tmp_path / "sound")
    files = [str(path), str(tmp_path / "sound")]
    assert in_order(files, skip_corrupt_records=True) == [*range(40), *range(COUNT)]
    left_out = path.stat().st_size - offsets[5]
    assert record_index.index_records(files, FEATURES, skip_corrupt_records=True).skipped == (left_out, 0)


def test_files_without_blocks_are_refused(plain, tmp_path, monkeypatch):
    """Those of other programs, text, and what would fill the memory."""
    (tmp_path / "one").write_bytes(gzip.compress(plain.read_bytes()))
    (tmp_path / "text").write_bytes(gzip.compress(b"[CLS] the cat sat on the mat [SEP]\n" * 40))
    (tmp_path / "cut").write_bytes(gzip.compress(plain.read_bytes()[:300]))
    messages = {
        "one": "at byte 0 is no block of up to 8 records, as .*--compression=gzip writes them: decompress the file",
        "text": "at byte 0 is not a TFRecord file: at byte 0 of its content there is no record length",
        "cut": "at byte 0 is not a TFRecord file: it ends inside a record",
    }
    for name, message in messages.items():
        with pytest.raises(record_files.RecordError, match=f"{name}: the gzip member {message}"):
            record_index.index_records([str(tmp_path / name)], FEATURES)
    monkeypatch.setattr(record_files, "_LARGEST_MEMBER", 1000)
    with pytest.raises(record_files.RecordError, match="is no block of up to 8 records"):
        record_index.index_records([str(tmp_path / "one")], FEATURES)


def failure(index, features=FEATURES) -> str | None:
    with pytest.raises(tf.errors.OpError) as raised:
        for _ in records.training_batches(index, features, batch_size=10, seed=0, shuffle_window=10).take(20):
            pass
    return records.explain_record_error(raised.value, index, features)


def test_errors_after_indexing_name_the_record(plain, tmp_path):
    path = tmp_path / "many"
    offsets = write_blocks(plain, path)
    index = record_index.index_records([str(path)], FEATURES)
    content = bytearray(path.read_bytes())
    content[offsets[4] - 6] ^= 1  # in a checksum, so that every record of the member still looks intact
    path.write_bytes(content)
    os.utime(path, ns=(index.file_times[0], index.file_times[0]))
    text = failure(index)
    assert text.startswith(f"{path}: the gzip member at byte {offsets[3]} is corrupt")
    assert text.endswith("it was intact when indexed")
    places = write_records(plain, [example_of({"number": [n] * (1 + (n == 21))}) for n in range(24)])
    frames = plain.read_bytes()
    path.write_bytes(b"".join(gzip.compress(frames[places[k] : places[k + 8]]) for k in (0, 8, 16)))
    index = record_index.index_records([str(path)], FEATURES)
    place = index.byte_offset[2]
    assert failure(index).startswith(f"{path}: record 21 (at byte {place}) has 2 values in feature 'number'")

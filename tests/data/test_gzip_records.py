"""Gzip-compressed record files: same records in the same order, errors name the damage, any gzip file can be read."""

import gzip
import itertools
import os
import struct

import numpy as np
import pytest
import tensorflow as tf
from absl import logging
from helpers.record_files import example_of, write_records

from bert_tf.data import gzip_records, record_index, records

FEATURES = {"number": tf.io.FixedLenFeature([], tf.int64)}
COUNT = 61


def example(number: int) -> bytes:
    """A record with its own number, and incompressible bytes."""
    filling = np.random.default_rng(number).bytes(100 + 40 * (number % 9))
    return example_of({"number": [number], "ignored": [filling]})


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(record_index, "RECORDS_PER_BLOCK", 8)


@pytest.fixture
def plain(tmp_path):
    """A file of 61 records, uncompressed."""
    write_records(tmp_path / "plain", map(example, range(COUNT)))
    return tmp_path / "plain"


def frames() -> list[bytes]:
    """The 61 records as they are in a file."""
    sizes = [len(example(number)) + 16 for number in range(COUNT)]
    ends = list(itertools.accumulate(sizes))
    return list(zip([0, *ends], ends, strict=False))


def members(plain, path, cuts) -> list[int]:
    """Writes the content as gzip members that end at these bytes; returns where they begin, and the file's length."""
    content, offsets = plain.read_bytes(), [0]
    with open(path, "wb") as file:
        for begin, end in itertools.pairwise([0, *cuts, len(content)]):
            file.write(gzip.compress(content[begin:end], mtime=0))
            offsets.append(file.tell())
    return offsets


def write_blocks(plain, path) -> list[int]:
    return members(plain, path, [frames()[k][0] for k in range(8, COUNT, 8)])


def numbers(dataset) -> list[list[int]]:
    return [batch["number"].numpy().tolist() for batch in dataset]


def in_order(files, **options) -> list[int]:
    index = records.index_records([str(name) for name in files], FEATURES, **options)
    batches = records.evaluation_batches(index, FEATURES, batch_size=1, repeat=False, max_steps=None)
    drawn = [batch[0] for batch in numbers(batches)]
    epoch = records.training_batches(index, FEATURES, batch_size=index.total_records, seed=0, shuffle_window=20)
    assert sorted(numbers(epoch.take(1))[0]) == sorted(drawn)
    return drawn


def test_members_of_whole_blocks_give_the_batches_of_the_plain_file(plain, tmp_path):
    offsets = write_blocks(plain, tmp_path / "many")
    index = records.index_records([str(tmp_path / "many")], FEATURES)
    assert index.compressed == (True,)
    assert index.byte_offset.tolist() == offsets[:-1]
    assert index.inner_offset.tolist() == [0] * 8
    assert index.num_records.tolist() == [8] * 7 + [5]
    reference = records.index_records([str(plain)], FEATURES)
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


@pytest.mark.parametrize("size", [None, 1000])
def test_any_gzip_file_is_read(plain, tmp_path, size, caplog):
    """A single member, as written by TensorFlow; members that end anywhere, as written by other tools."""
    path = tmp_path / "one"
    if size is None:
        with tf.io.TFRecordWriter(str(path), options="GZIP") as writer:
            for number in range(COUNT):
                writer.write(example(number))
    else:
        members(plain, path, range(size, plain.stat().st_size, size))
    logging.set_verbosity(logging.INFO)
    with caplog.at_level("INFO", logger="absl"):
        index = records.index_records([str(path)], FEATURES)
    assert "decompress everything before it, which is slow" in caplog.text
    assert index.total_records == COUNT
    assert in_order([path]) == list(range(COUNT))
    reference = records.index_records([str(plain)], FEATURES)
    if index.num_records.tolist() == reference.num_records.tolist():
        one, other = (
            numbers(records.training_batches(w, FEATURES, batch_size=7, seed=3, shuffle_window=20).take(30))
            for w in (index, reference)
        )
        assert one == other


def test_chunks_of_the_file_may_end_anywhere(plain, tmp_path, monkeypatch):
    write_blocks(plain, tmp_path / "many")
    expected = list(gzip_records.gzip_records(str(tmp_path / "many")))
    assert [payload for *_, payload in expected] == [example(number) for number in range(COUNT)]
    for size in (1, 7, 100):
        monkeypatch.setattr(gzip_records, "_CHUNK_BYTES", size)
        assert list(gzip_records.gzip_records(str(tmp_path / "many"))) == expected


@pytest.mark.parametrize("kind", ["one member", "blocks"])
def test_blocks_may_be_asked_for_in_any_order_and_again(plain, tmp_path, kind):
    """A reader goes on where it stopped; a block that lies before this place is read from its member's start."""
    path = tmp_path / "file"
    members(plain, path, [] if kind == "one member" else [frames()[k][0] for k in range(8, COUNT, 8)])
    places = [place[:2] for place in gzip_records.gzip_records(str(path))]
    reader = gzip_records.GzipReader()
    for first in (0, 0, 8, 16, 16, 8, 0, 48, 40, 3, 5):
        expected = [example(number) for number in range(first, first + 8)]
        assert reader.read(str(path), *places[first], 8) == expected, first


def test_plain_and_compressed_files_together(plain, tmp_path):
    write_blocks(plain, tmp_path / "many")
    (tmp_path / "empty").write_bytes(gzip.compress(b""))
    files = [plain, tmp_path / "many", tmp_path / "empty", plain]
    assert in_order(files) == list(range(COUNT)) * 3


def test_kept_index(plain, tmp_path, monkeypatch):
    write_blocks(plain, tmp_path / "many")
    cache = str(tmp_path / "index.npz")
    files = [str(plain), str(tmp_path / "many")]
    first = records.index_records(files, FEATURES, cache_file=cache)
    monkeypatch.setattr(record_index, "_scan_file", None)
    again = records.index_records(files, FEATURES, cache_file=cache)
    assert again.compressed == (False, True)
    assert again.fingerprint == first.fingerprint
    np.testing.assert_array_equal(np.stack(first.blocks()), np.stack(again.blocks()))


def test_a_record_whose_length_looks_like_gzip(tmp_path):
    """Little-endian 0x088b1f begins with the bytes 1f 8b 08."""
    with tf.io.TFRecordWriter(str(tmp_path / "a")) as writer:
        writer.write(b"x" * 0x088B1F)
    assert (tmp_path / "a").read_bytes()[:3] == b"\x1f\x8b\x08"
    assert not gzip_records.is_gzip(str(tmp_path / "a"))


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "member"),
    [("content", 0), ("checksum", 7)],
)
def test_damaged_member(plain, tmp_path, member, place):
    path = tmp_path / "many"
    offsets = write_blocks(plain, path)
    content = bytearray(path.read_bytes())
    content[offsets[member] + 200 if place == "content" else offsets[member + 1] - 7] ^= 0x10
    path.write_bytes(content)
    message = (
        rf"{path}: the gzip member at byte {offsets[member]} is corrupt.*after {8 * member} records.*--skip_corrupt_"
    )
    with pytest.raises(records.RecordError, match=message):
        records.index_records([str(path)], FEATURES)
    write_blocks(plain, tmp_path / "sound")
    expected = [number for number in range(COUNT) if number // 8 < member] + list(range(COUNT))
    assert in_order([path, tmp_path / "sound"], skip_corrupt_records=True) == expected
    index = records.index_records([str(path), str(tmp_path / "sound")], FEATURES, skip_corrupt_records=True)
    assert index.skipped == (1, 0)


@pytest.mark.parametrize("chunk", [100, 1 << 16])
def test_damaged_file_of_members_that_end_anywhere(plain, tmp_path, monkeypatch, chunk):
    """A record that began in an earlier member and ends in the damaged one is lost, too, and so is the rest.

    In small chunks the records of the damaged member are found before its end shows that they are damaged.
    """
    monkeypatch.setattr(gzip_records, "_CHUNK_BYTES", chunk)
    path = tmp_path / "many"
    cuts = list(range(3000, plain.stat().st_size, 3000))
    offsets = members(plain, path, cuts)
    content = bytearray(path.read_bytes())
    content[offsets[2] + 200] ^= 0x10
    path.write_bytes(content)
    whole = [number for number, (_, end) in enumerate(frames()) if end <= 6000]
    assert in_order([path], skip_corrupt_records=True) == whole


@pytest.mark.parametrize("kind", ["many", "one"])
def test_truncated_file(plain, tmp_path, kind):
    path = tmp_path / kind
    offsets = write_blocks(plain, path) if kind == "many" else members(plain, path, [])
    size = path.stat().st_size * 2 // 3
    os.truncate(path, size)
    member = max(offset for offset in offsets if offset <= size)
    with pytest.raises(
        records.RecordError, match=rf"{path}: the gzip member at byte {member} is truncated.*at byte {size}"
    ):
        records.index_records([str(path)], FEATURES)
    kept = in_order([path], skip_corrupt_records=True)
    assert kept == list(range(len(kept)))
    assert 35 <= len(kept) <= 41


def test_compressed_text_and_a_file_that_ends_inside_a_record(plain, tmp_path):
    (tmp_path / "text").write_bytes(gzip.compress(b"[CLS] the cat sat on the mat [SEP]\n" * 40))
    with pytest.raises(
        records.RecordError, match=r"text: the gzip member at byte 0 is not a TFRecord file: at byte 0 "
    ):
        records.index_records([str(tmp_path / "text")], FEATURES)
    (tmp_path / "cut").write_bytes(gzip.compress(plain.read_bytes()[:-5]))
    with pytest.raises(records.RecordError, match=r"cut: the gzip member .* ends inside a record, after 60 records"):
        records.index_records([str(tmp_path / "cut")], FEATURES)
    assert in_order([tmp_path / "cut"], skip_corrupt_records=True) == list(range(60))


def test_a_record_that_would_fill_the_memory(tmp_path):
    length = struct.pack("<Q", 10**12)
    frame = length + struct.pack("<I", gzip_records.masked_crc32c(length))
    (tmp_path / "bomb").write_bytes(gzip.compress(frame + bytes(1 << 20)))
    with pytest.raises(
        records.RecordError, match=r"bomb: .* is no file of examples: a record has 1,000,000,000,000 by"
    ):
        records.index_records([str(tmp_path / "bomb")], FEATURES)


def failure(index, features=FEATURES) -> str | None:
    with pytest.raises(tf.errors.OpError) as raised:
        for _ in records.training_batches(index, features, batch_size=10, seed=0, shuffle_window=10).take(20):
            pass
    return records.explain_record_error(raised.value, index, features)


def test_file_that_decays_after_indexing(plain, tmp_path):
    path = tmp_path / "many"
    offsets = write_blocks(plain, path)
    index = records.index_records([str(path)], FEATURES)
    content = bytearray(path.read_bytes())
    content[offsets[4] - 6] ^= 1  # in a checksum, so that every record of the member still looks intact
    path.write_bytes(content)
    os.utime(path, ns=(index.file_times[0], index.file_times[0]))
    text = failure(index)
    assert text.startswith(f"{path}: the gzip member at byte {offsets[3]} is corrupt")
    assert text.endswith("it was intact when indexed")


def test_record_in_the_middle_differs_from_the_flags(plain, tmp_path):
    path = tmp_path / "many"
    odd = tf.train.Example().SerializeToString()
    write_records(plain, [odd if number == 21 else example(number) for number in range(COUNT)])
    content = plain.read_bytes()
    path.write_bytes(gzip.compress(content[: len(content) // 2]) + gzip.compress(content[len(content) // 2 :]))
    index = records.index_records([str(path)], FEATURES)
    assert failure(index).startswith(f"{path}: record 21 (gzip member at byte 0) has no feature 'number'")

"""The index beside a record file: as if the file had been read, and not believed where it does not fit."""

import os
import pathlib
import re

import numpy as np
import pytest
from helpers.record_files import write_records
from helpers.tiny import TINY_CONFIG, write_pretraining_records

from bert_tf.data import record_files, record_index, records
from bert_tf.data.record_files import RECORDS_PER_BLOCK
from bert_tf.data.record_index import index_path
from bert_tf.models.config import BertConfig
from bert_tf.pretraining import record_writer
from bert_tf.training import pretraining_tasks
from bert_tf.training.pretraining_settings import PretrainingSettings

FEATURES = record_files.pretraining_features(16, 3)
FRAMES = 2 * RECORDS_PER_BLOCK + 77  # in three blocks


@pytest.fixture(scope="module")
def frames(tmp_path_factory) -> list[bytes]:
    """Records with their frames."""
    path = tmp_path_factory.mktemp("frames") / "all"
    write_pretraining_records(path, FRAMES)
    content, offset, found = path.read_bytes(), 0, []
    while offset < len(content):
        size = int.from_bytes(content[offset : offset + 8], "little") + 16
        found.append(content[offset : offset + size])
        offset += size
    return found


def write(path, frames: list[bytes]) -> None:
    """A record file and its index, as create_pretraining_data.py writes them."""
    starts = range(0, len(frames), RECORDS_PER_BLOCK)
    blocks = (frames[start : start + RECORDS_PER_BLOCK] for start in starts)
    pathlib.Path(path).touch()
    written = record_writer.write_blocks(str(path), ((len(block), b"".join(block)) for block in blocks))
    with open(index_path(str(path)), "wb") as file:
        file.write(record_index.written_index(written))


@pytest.fixture
def scanned(monkeypatch) -> list[str]:
    """Names of the files that were read for an index."""
    names, scan = [], record_index._scan_file

    def note(name, *rest):
        names.append(os.path.basename(name))
        return scan(name, *rest)

    monkeypatch.setattr(record_index, "_scan_file", note)
    return names


@pytest.mark.parametrize("counts", [(FRAMES, 5, 0), (RECORDS_PER_BLOCK,)])
def test_as_if_the_files_had_been_read(tmp_path, scanned, frames, counts):
    files = [str(tmp_path / f"{number}.tfrecord") for number in range(len(counts))]
    for name, count in zip(files, counts, strict=True):
        write(name, frames[:count])
    found = record_index.index_records(files, FEATURES)
    assert scanned == []
    read = record_index.index_records(files, FEATURES, verify=True)
    assert sorted(scanned) == sorted(map(os.path.basename, files))
    assert found.fingerprint == read.fingerprint
    assert found.file_sizes == read.file_sizes
    np.testing.assert_array_equal(np.stack(found.blocks()), np.stack(read.blocks()))
    batches = [
        [batch["masked_lm_ids"].numpy() for batch in records.training_batches(
            index, FEATURES, batch_size=64, seed=3, start_step=7, shuffle_window=1500
        ).take(40)]
        for index in (found, read)
    ]  # fmt: skip
    np.testing.assert_array_equal(*batches)


def test_some_files_with_an_index_and_some_without(tmp_path, scanned, frames):
    files = [str(tmp_path / f"{number}.tfrecord") for number in range(3)]
    for number, name in enumerate(files):
        write(name, frames[: 10 + number])
    os.remove(index_path(files[1]))
    index = record_index.index_records(files, FEATURES)
    assert scanned == ["1.tfrecord"]
    np.testing.assert_array_equal(index.num_records, [10, 11, 12])
    np.testing.assert_array_equal(index.file_number, [0, 1, 2])


def other_records(path, frames):
    """Of the same size in all, but there is only one."""
    size = path.stat().st_size
    write_records(path, [bytes(size - 16)])


def cut(path, frames):
    path.write_bytes(path.read_bytes()[: -len(frames[-1])])


def other_version(path, frames):
    archive = dict(np.load(index_path(str(path))))
    np.savez(index_path(str(path)), **{**archive, "version": np.array(0)})


def damaged_index(path, frames):
    index = pathlib.Path(index_path(str(path)))
    flip(index, 4 * index.stat().st_size)


def impossible_counts(path, frames):
    archive = dict(np.load(index_path(str(path))))
    archive["blocks"][1] = 10**9
    np.savez(index_path(str(path)), **archive)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_records, "another file"),
        (cut, "which now has"),
        (other_version, "another version"),
        (damaged_index, "can't be read"),
        (impossible_counts, "is damaged"),
    ],
)
def test_an_index_that_does_not_fit_is_not_believed(tmp_path, scanned, frames, caplog, change, message):
    path = tmp_path / "a.tfrecord"
    write(path, frames)
    change(path, frames)
    index = record_index.index_records([str(path)], None)
    assert scanned == ["a.tfrecord"]
    assert index.total_records == {other_records: 1, cut: FRAMES - 1}.get(change, FRAMES)
    assert re.search(message, caplog.text)


def flip(path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


@pytest.mark.parametrize("verify", [False, True])
def test_a_run_reads_everything_if_it_is_told_to(tmp_path, scanned, frames, verify):
    path = tmp_path / "a.tfrecord"
    write(path, frames)
    settings = PretrainingSettings(
        input_file=str(path), output_dir=str(tmp_path), do_train=True, max_seq_length=16, max_predictions_per_seq=3,
        verify_records=verify,
    )  # fmt: skip
    config = BertConfig.from_dict(TINY_CONFIG)
    opened = pretraining_tasks.open_all_records(settings, config, "the configuration")
    assert scanned == (["a.tfrecord"] if verify else [])
    assert opened["input_file"].index.total_records == FRAMES

"""The index beside a record file: as if the file had been read, and not believed where it does not fit."""

import os
import pathlib

import numpy as np
import pytest
from helpers.record_files import write_records
from helpers.tiny import TINY_CONFIG, write_pretraining_records

from bert_tf.data import record_files, records
from bert_tf.data.record_files import RECORDS_PER_BLOCK, index_path
from bert_tf.families.config import BertConfig
from bert_tf.training import pretraining_tasks
from bert_tf.training.pretraining_settings import PretrainingSettings

FEATURES = record_files.pretraining_features(16, 3)
FRAMES = 2 * RECORDS_PER_BLOCK + 77  # in three blocks


@pytest.fixture(scope="module")
def frames(tmp_path_factory) -> list[bytes]:
    path = tmp_path_factory.mktemp("frames") / "all"
    write_pretraining_records(path, FRAMES)
    content, offset, found = path.read_bytes(), 0, []
    while offset < len(content):
        size = int.from_bytes(content[offset : offset + 8], "little") + 16
        found.append(content[offset : offset + size])
        offset += size
    return found


def write(path, frames: list[bytes]) -> str:
    starts = range(0, len(frames), RECORDS_PER_BLOCK)
    blocks = (frames[start : start + RECORDS_PER_BLOCK] for start in starts)
    pathlib.Path(path).touch()
    written = record_files.write_blocks(str(path), ((len(block), b"".join(block)) for block in blocks))
    pathlib.Path(index_path(str(path))).write_bytes(record_files.written_index(written))
    return str(path)


@pytest.fixture
def scanned(monkeypatch) -> list[str]:
    names, read = [], record_files.read_records

    def note(name, size, begin=0, **options):
        if options["most"] > 1:  # not of a first record
            names.append(os.path.basename(name))
        return read(name, size, begin, **options)

    monkeypatch.setattr(record_files, "read_records", note)
    return names


@pytest.mark.parametrize("counts", [(FRAMES, 5, 0), (RECORDS_PER_BLOCK,)])
def test_as_if_the_files_had_been_read(tmp_path, scanned, frames, counts):
    files = [write(tmp_path / f"{number}.tfrecord", frames[:count]) for number, count in enumerate(counts)]
    found = records.index_records(files, FEATURES)
    assert scanned == []
    read = records.index_records(files, FEATURES, verify=True)
    assert sorted(scanned) == sorted(map(os.path.basename, files))
    assert found.fingerprint == read.fingerprint and found.file_sizes == read.file_sizes
    np.testing.assert_array_equal(np.stack(found.blocks()), np.stack(read.blocks()))
    order = {"batch_size": 64, "seed": 3, "start_step": 7, "shuffle_window": 1500}
    batches = [
        [batch["masked_lm_ids"].numpy() for batch in records.training_batches(index, FEATURES, **order).take(40)]
        for index in (found, read)
    ]
    np.testing.assert_array_equal(*batches)
    os.remove(index_path(files[0]))
    scanned.clear()
    again = records.index_records(files, FEATURES)
    assert scanned == ["0.tfrecord"] and again.fingerprint == read.fingerprint


def changed(**arrays):
    """An index whose arrays are these functions of it."""

    def change(path, frames):
        archive = dict(np.load(index_path(str(path))))
        np.savez(index_path(str(path)), **archive | {name: new(archive[name]) for name, new in arrays.items()})

    return change


def damaged_index(path, frames):
    index = pathlib.Path(index_path(str(path)))
    content = bytearray(index.read_bytes())
    content[len(content) // 2] ^= 1
    index.write_bytes(content)


CHANGES = {
    "another file of this size": (lambda path, frames: write_records(path, [bytes(path.stat().st_size - 16)]), 1),
    "a shorter file": (lambda path, frames: path.write_bytes(path.read_bytes()[: -len(frames[-1])]), FRAMES - 1),
    "another version": (changed(version=lambda number: number - 1), FRAMES),
    "impossible counts": (changed(blocks=lambda blocks: blocks * [[1], [10**9]]), FRAMES),
    "a damaged index": (damaged_index, FRAMES),
}


@pytest.mark.parametrize("case", CHANGES)
def test_an_index_that_does_not_fit_is_not_believed(tmp_path, scanned, frames, caplog, case):
    change, total = CHANGES[case]
    path = tmp_path / "a.tfrecord"
    write(path, frames)
    change(path, frames)
    index = records.index_records([str(path)], None)
    assert scanned == ["a.tfrecord"] and index.total_records == total
    assert "a.index.npz does not fit" in caplog.text or "can't be read" in caplog.text


@pytest.mark.parametrize("verify", [False, True])
def test_a_run_reads_everything_with_verify_records(tmp_path, scanned, frames, verify):
    settings = PretrainingSettings(
        input_file=write(tmp_path / "a.tfrecord", frames), output_dir=str(tmp_path), do_train=True, max_seq_length=16,
        max_predictions_per_seq=3, verify_records=verify,
    )  # fmt: skip
    opened = pretraining_tasks.open_all_records(settings, BertConfig.from_dict(TINY_CONFIG), "the configuration")
    assert scanned == (["a.tfrecord"] if verify else [])
    assert opened["input_file"].index.total_records == FRAMES

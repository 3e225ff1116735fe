"""One flipped bit in a record file is noticed, or changes nothing that is read."""

import os

import numpy as np
import pytest
from helpers.slow import exhaustive
from helpers.tiny import write_pretraining_records

from bert_tf.data import record_files, record_index, records

FEATURES = record_files.pretraining_features(16, 3)
BITS = [(3, 2), *exhaustive((2, 55))]


def replace(path, content: bytes) -> None:
    """Changes a file as a failing disk does: its time stays."""
    before = os.stat(path)
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def read(path) -> list[dict]:
    """All records, twice: in order, and in the order of training."""
    index = record_index.index_records([str(path)], FEATURES)
    with records.explained_errors(index, FEATURES):
        batches = [*records.evaluation_batches(index, FEATURES, batch_size=4, repeat=False, max_steps=None)]
        trained = records.training_batches(index, FEATURES, batch_size=4, seed=0, shuffle_window=8)
        batches += trained.take(index.total_records // 4)
    return [{name: value.numpy() for name, value in batch.items()} for batch in batches]


@pytest.fixture
def whole(tmp_path, monkeypatch):
    """(file, what is read)."""
    monkeypatch.setattr(record_index, "RECORDS_PER_BLOCK", 4)
    path = tmp_path / "records.tfrecord"
    write_pretraining_records(path, 12)
    return path, read(path)


@pytest.mark.parametrize(("seed", "count"), BITS)
def test_of_a_record_file(whole, seed, count):
    path, expected = whole
    content, noticed = path.read_bytes(), 0
    for bit in np.random.default_rng(seed).integers(8 * len(content), size=count):
        replace(path, flipped(content, int(bit)))
        try:
            found = read(path)
        except record_files.RecordError as error:
            assert str(path) in str(error) and "\n" not in str(error)
            noticed += 1
        else:
            np.testing.assert_equal(found, expected)
        replace(path, content)
    assert noticed

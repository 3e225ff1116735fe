"""Records of ELECTRA's build_pretraining_dataset.py: read as unmasked rows of one or two segments."""

import numpy as np
import pytest
from helpers.record_files import example_of, write_records

from bert_tf.data import record_files, record_index, records

LENGTH = 8
# Tokens of the first and of the second segment.
ROWS = [([2, 7, 8, 3], [9, 3]), ([2, 7, 3], []), ([2, 5, 6, 7, 3], [8, 9, 3])]


def record_of(first, second, **changes) -> bytes:
    ids = [*first, *second]
    padding = [0] * (LENGTH - len(ids))
    segments = [0] * len(first) + [1] * len(second) + padding
    lists = {"input_ids": ids + padding, "input_mask": [1] * len(ids) + padding, "segment_ids": segments}
    return example_of(lists | changes)


def write(path, payloads) -> str:
    write_records(path, payloads)
    return str(path)


def test_rows(tmp_path):
    index = record_index.index_records([write(tmp_path / "a.tfrecord", [record_of(*row) for row in ROWS])], None)
    features, pairs = record_files.features_of(index.first_payloads(), LENGTH, 20)
    assert pairs == 1 and set(features) == {"input_ids", "input_mask", "segment_ids"}
    (batch,) = records.evaluation_batches(index, features, batch_size=4, repeat=False, max_steps=None)
    assert set(batch) == {"input_ids", "segment_lengths", "example_weights"}
    np.testing.assert_array_equal(batch["segment_lengths"], [[4, 2], [3, 0], [5, 3], [0, 0]])
    np.testing.assert_array_equal(batch["input_ids"][1], [2, 7, 3, 0, 0, 0, 0, 0])


ODD = {"input_mask": [1, 0, 1, 0, 0, 0, 0, 0]}, {"segment_ids": [1, 1, 0, 0, 0, 0, 0, 0]}


@pytest.mark.parametrize("changes", ODD)
def test_other_rows_are_named(tmp_path, changes):
    first = write(tmp_path / "first.tfrecord", [record_of(*ROWS[0], **changes)])
    with pytest.raises(record_files.RecordError, match=r"first.tfrecord: the first record \(byte 0\) is not a text of"):
        record_files.features_of(record_index.index_records([first], None).first_payloads(), LENGTH, 20)
    later = write(tmp_path / "later.tfrecord", [record_of(*ROWS[0]), record_of(*ROWS[0], **changes)])
    index = record_index.index_records([later], None)
    features, _ = record_files.features_of(index.first_payloads(), LENGTH, 20)
    expected = pytest.raises(record_files.RecordError, match="later.tfrecord: record 1 .* is not a text of one")
    with expected, records.explained_errors(index, features):
        list(records.evaluation_batches(index, features, batch_size=2, repeat=False, max_steps=None))

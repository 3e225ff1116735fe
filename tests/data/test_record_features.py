"""The features of records: read as the flags say, and what differs from them is named."""

import re

import pytest
import tensorflow as tf
from helpers.record_files import example_of, write_records

from bert_tf.data import record_files, records


def masked_example(**changed) -> bytes:
    ints = {
        "input_ids": [5] * 8, "input_mask": [1] * 8, "segment_ids": [0] * 8, "masked_lm_positions": [1, 2],
        "masked_lm_ids": [6, 7], "next_sentence_labels": [1],
    }  # fmt: skip
    values = {**ints, "masked_lm_weights": [1.0, 0.0], **changed}
    return example_of({name: value for name, value in values.items() if value is not None})


def unmasked_example(**changed) -> bytes:
    return example_of({"input_ids": [5] * 6, "segment_lengths": [4, 2], "next_sentence_labels": [0], **changed})


def electra_example(**changed) -> bytes:
    return example_of({"input_ids": [5] * 8, "input_mask": [1] * 8, "segment_ids": [0] * 8, **changed})


WRONG = [
    (masked_example, "input_ids", [5] * 4, "has 4 values in feature 'input_ids', expected 8: give --max_seq_length as"),
    (masked_example, "masked_lm_ids", [6], "has 1 values in feature 'masked_lm_ids', expected 2: give --max_pred"),
    (masked_example, "segment_ids", None, "has no feature 'segment_ids'; it has input_ids, input_mask"),
    (masked_example, "masked_lm_weights", [1, 1], "has feature 'masked_lm_weights' as int64_list, expected float_list"),
    (unmasked_example, "input_ids", [5] * 9, "has 9 values in feature 'input_ids', expected at most 8"),
    (masked_example, "input_ids", [5] * 7 + [100], "has 100 in feature 'input_ids', expected 0 to 99 (vocab_size="),
    (masked_example, "input_ids", [5] * 7 + [-1], "has -1 in feature 'input_ids', expected 0 to 99"),
    (masked_example, "input_ids", [5] * 7 + [2**32 + 5], "has 4294967301 in feature 'input_ids', expected 0 to 99"),
    (masked_example, "segment_ids", [2] * 8, "has 2 in feature 'segment_ids', expected 0 to 1 (type_vocab_size"),
    (masked_example, "masked_lm_positions", [1, 8], "has 8 in feature 'masked_lm_positions', expected 0 to 7 (--m"),
    (masked_example, "masked_lm_weights", [1.0, -1.0], "has -1.0 in feature 'masked_lm_weights', expected 0 to 1"),
    (masked_example, "masked_lm_weights", [float("nan"), 0.0], "has nan in feature 'masked_lm_weights', expected"),
    (masked_example, "next_sentence_labels", [2], "has 2 in feature 'next_sentence_labels', expected 0 to 1"),
    (unmasked_example, "segment_lengths", [7, -1], "has -1 in feature 'segment_lengths', expected 0 to 8"),
    (unmasked_example, "segment_lengths", [4, 1], "has 6 input_ids, but its segment_lengths add up to 5"),
    (electra_example, "input_mask", [2**32 + 1] * 8, "has 4294967297 in feature 'input_mask', expected 0 to 1"),
    (electra_example, "input_mask", [1, 0, *[1] * 6], "is not a text of one or two segments"),
    (electra_example, "segment_ids", [1, *[0] * 7], "is not a text of one or two segments"),
]  # fmt: skip


@pytest.mark.parametrize("case", WRONG, ids=lambda case: f"{case[0].__name__}-{case[1]}-{case[2]}")
def test_values_that_can_not_be_are_named(tmp_path, case):
    """In the first record, before anything is read, and in a later one when its batch is."""
    kind, name, values, message = case
    payloads = [kind(), kind(), kind(**{name: values}), kind()]
    for first in (0, 2):
        offsets = write_records(tmp_path / "a", payloads[2 - first :])
        index = records.index_records([str(tmp_path / "a")], None)
        record = f"record 2 (at byte {offsets[2]})" if first else "the first record (byte 0)"
        with pytest.raises(record_files.RecordError, match=re.escape(f"{tmp_path}/a: {record} {message}")):
            features, _ = record_files.features_of(index.first_payloads(), 8, 2, vocab_size=100)
            with records.explained_errors(index, features):
                next(iter(records.training_batches(index, features, batch_size=8, seed=0)))


def test_rows_of_electra_are_unmasked_rows(tmp_path):
    sizes = [(4, 2), (3, 0), (5, 3)]
    rows = ((([7] * (a + b), [1] * (a + b), [0] * a + [1] * b), [0] * (8 - a - b)) for a, b in sizes)
    names = ("input_ids", "input_mask", "segment_ids")
    lists = (dict(zip(names, (values + padding for values in row), strict=True)) for row, padding in rows)
    write_records(tmp_path / "a", [electra_example(**one) for one in lists])
    index = records.index_records(str(tmp_path / "a"), None)
    features, pairs = record_files.features_of(index.first_payloads(), 8, 20)
    (batch,) = records.evaluation_batches(index, features, batch_size=4, repeat=False, max_steps=None)
    assert pairs == 1 and set(batch) == {"input_ids", "segment_lengths", "example_weights"}
    assert batch["segment_lengths"].numpy().tolist() == [*map(list, sizes), [0, 0]]
    assert batch["input_ids"].numpy()[1].tolist() == [7, 7, 7, 0, 0, 0, 0, 0]


def test_features_are_read(tmp_path):
    features = record_files.pretraining_features(8, 2)
    write_records(tmp_path / "a", [b"\xff\xff not an example"])
    with pytest.raises(record_files.RecordError, match="is not a tf.train.Example"):
        records.index_records([str(tmp_path / "a")], features)
    write_records(tmp_path / "a", [masked_example()])
    batch = next(iter(records.training_batches(
        records.index_records(str(tmp_path / "a"), features), features, batch_size=2, seed=0)))  # fmt: skip
    sizes = [8, 8, 8, 2, 2, 2, 1]
    assert {name: tuple(value.shape) for name, value in batch.items()} == {
        name: (2, size) for name, size in zip(record_files.MASKED, sizes, strict=True)
    }
    assert {name for name, value in batch.items() if value.dtype == tf.float32} == {"masked_lm_weights"}
    assert batch["masked_lm_ids"].numpy().tolist() == [[6, 7]] * 2

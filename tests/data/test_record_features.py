"""The features of records: read as the flags say, and what differs from them is named."""

import re

import pytest
import tensorflow as tf
from helpers.record_files import example_of, write_records

from bert_tf.data import record_files, record_index, records


def pretraining_example(length: int, predictions: int, **changed) -> bytes:
    values = {name: list(range(length)) for name in ("input_ids", "input_mask", "segment_ids")}
    values |= {name: list(range(predictions)) for name in ("masked_lm_positions", "masked_lm_ids")}
    values |= {"masked_lm_weights": [1.0] * predictions, "next_sentence_labels": [0], **changed}
    return example_of({name: value for name, value in values.items() if value is not None})


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (pretraining_example(64, 20), "64 values in feature 'input_ids', expected 128.*--max_seq_length=64"),
        (
            pretraining_example(128, 76),
            "76 values in feature 'masked_lm_positions', expected 20.*--max_predictions_per_seq=76",
        ),
        (pretraining_example(128, 20, segment_ids=None), "no feature 'segment_ids'; it has input_ids, input_mask"),
        (
            pretraining_example(128, 20, masked_lm_weights=[1] * 20),
            "'masked_lm_weights' as int64_list, expected float_list",
        ),
        (pretraining_example(128, 20, input_mask=[]), "0 values in feature 'input_mask'"),
        (b"\xff\xff not an example", "is not a tf.train.Example"),
    ],
)
def test_first_record_of_every_file_is_compared_with_the_flags(tmp_path, payload, message):
    features = record_files.pretraining_features(128, 20)
    write_records(tmp_path / "a", [pretraining_example(128, 20)])
    write_records(tmp_path / "b", [payload])
    assert record_index.index_records([str(tmp_path / "a")], features).total_records == 1
    with pytest.raises(record_files.RecordError, match=rf"{tmp_path}/b: the first record .*{message}"):
        record_index.index_records([str(tmp_path / "a"), str(tmp_path / "b")], features)


def test_pretraining_features_are_read(tmp_path):
    features = record_files.pretraining_features(16, 4)
    write_records(tmp_path / "a", [pretraining_example(16, 4)])
    index = record_index.index_records(str(tmp_path / "a"), features)
    batch = next(iter(records.training_batches(index, features, batch_size=2, seed=0)))
    assert {name: (value.dtype, tuple(value.shape)) for name, value in batch.items()} == {
        "input_ids": (tf.int32, (2, 16)),
        "input_mask": (tf.int32, (2, 16)),
        "segment_ids": (tf.int32, (2, 16)),
        "masked_lm_positions": (tf.int32, (2, 4)),
        "masked_lm_ids": (tf.int32, (2, 4)),
        "masked_lm_weights": (tf.float32, (2, 4)),
        "next_sentence_labels": (tf.int32, (2, 1)),
    }
    assert batch["input_ids"].numpy().tolist() == [list(range(16))] * 2


def masked_example(**changed) -> bytes:
    """A record of 8 tokens and 2 predictions."""
    ints = {
        "input_ids": [5] * 8, "input_mask": [1] * 8, "segment_ids": [0] * 8, "masked_lm_positions": [1, 2],
        "masked_lm_ids": [6, 7], "next_sentence_labels": [1],
    }  # fmt: skip
    return example_of({**ints, "masked_lm_weights": [1.0, 0.0], **changed})


def unmasked_example(**changed) -> bytes:
    """A record of a pair of 6 tokens."""
    return example_of({"input_ids": [5] * 6, "segment_lengths": [4, 2], "next_sentence_labels": [0], **changed})


def electra_example(**changed) -> bytes:
    """A record of 8 tokens of ELECTRA's."""
    return example_of({"input_ids": [5] * 8, "input_mask": [1] * 8, "segment_ids": [0] * 8, **changed})


OUT_OF_RANGE = [
    (masked_example, "input_ids", [5] * 7 + [100], "has 100 in feature 'input_ids', expected 0 to 99 (vocab_size="),
    (masked_example, "input_ids", [5] * 7 + [-1], "has -1 in feature 'input_ids', expected 0 to 99"),
    (masked_example, "input_ids", [5] * 7 + [2**32 + 5], "has 4294967301 in feature 'input_ids', expected 0 to 99"),
    (masked_example, "input_mask", [2] * 8, "has 2 in feature 'input_mask', expected 0 to 1"),
    (masked_example, "segment_ids", [2] * 8, "has 2 in feature 'segment_ids', expected 0 to 1 (type_vocab_size"),
    (masked_example, "masked_lm_positions", [1, 8], "has 8 in feature 'masked_lm_positions', expected 0 to 7 (--m"),
    (masked_example, "masked_lm_ids", [6, -7], "has -7 in feature 'masked_lm_ids', expected 0 to 99"),
    (masked_example, "masked_lm_weights", [1.0, -1.0], "has -1.0 in feature 'masked_lm_weights', expected 0 to 1"),
    (masked_example, "masked_lm_weights", [float("nan"), 0.0], "has nan in feature 'masked_lm_weights', expected"),
    (masked_example, "next_sentence_labels", [2], "has 2 in feature 'next_sentence_labels', expected 0 to 1"),
    (unmasked_example, "input_ids", [5] * 5 + [100], "has 100 in feature 'input_ids', expected 0 to 99"),
    (unmasked_example, "segment_lengths", [7, -1], "has -1 in feature 'segment_lengths', expected 0 to 8"),
    (unmasked_example, "segment_lengths", [4, 1], "has 6 input_ids, but its segment_lengths add up to 5"),
    (unmasked_example, "next_sentence_labels", [-1], "has -1 in feature 'next_sentence_labels', expected 0 to 1"),
    (electra_example, "input_ids", [5] * 7 + [100], "has 100 in feature 'input_ids', expected 0 to 99"),
    (electra_example, "input_mask", [2**32 + 1] * 8, "has 4294967297 in feature 'input_mask', expected 0 to 1"),
]  # fmt: skip
CASES = [*((*case, "first") for case in OUT_OF_RANGE), *((*case, "later") for case in OUT_OF_RANGE[::2])]


@pytest.mark.parametrize(("kind", "name", "values", "message", "place"), CASES)
def test_values_out_of_range_are_named(tmp_path, kind, name, values, message, place):
    payloads = [kind(), kind(), kind(**{name: values}), kind()]
    offsets = write_records(tmp_path / "a", payloads[2:] if place == "first" else payloads)
    index = record_index.index_records([str(tmp_path / "a")], None)
    record = "the first record (byte 0)" if place == "first" else f"record 2 (at byte {offsets[2]})"
    with pytest.raises(record_files.RecordError, match=re.escape(f"{tmp_path}/a: {record} {message}")):
        features, _ = record_files.features_of(index.first_payloads(), 8, 2, vocab_size=100)
        with records.explained_errors(index, features):
            next(iter(records.training_batches(index, features, batch_size=8, seed=0)))

"""Batches in which two texts share a row."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.serving.graph_inputs import fold, unfolded


def dense(lengths: list[int]) -> dict[str, tf.Tensor]:
    """Rows of these lengths, padded to the longest; all ids differ, and segments change half-way."""
    width = max(lengths, default=1)
    inside = np.arange(width) < np.array(lengths, int).reshape(-1, 1)
    ids = np.arange(1, len(lengths) * width + 1).reshape(-1, width) * inside
    segments = (np.arange(width) >= np.array(lengths, int).reshape(-1, 1) // 2) & inside
    features = {"input_ids": ids, "input_mask": inside, "segment_ids": segments}
    return {name: tf.constant(value, tf.int32) for name, value in features.items()}


def check_each_text_is_there(features, folded, lengths) -> None:
    found = {name: value.numpy() for name, value in folded.features.items()}
    for text, (place, length) in enumerate(zip(folded.places.numpy(), lengths, strict=True)):
        row, slot = divmod(place, 2)
        start = found["pooled_positions"][row, slot]
        tokens = slice(start, start + length)
        np.testing.assert_array_equal(found["input_ids"][row, tokens], features["input_ids"][text, :length])
        np.testing.assert_array_equal(found["segment_ids"][row, tokens], features["segment_ids"][text, :length])
        np.testing.assert_array_equal(found["position_ids"][row, tokens], np.arange(length))
        seen = found["input_mask"][row, tokens]  # [length, W]: its own tokens only
        np.testing.assert_array_equal(
            seen, np.tile(np.isin(np.arange(seen.shape[1]), range(start, start + length)), (length, 1))
        )


@pytest.mark.parametrize(
    ("lengths", "rows"),
    [
        ([50, 3, 20, 8, 30, 5, 12, 9], 4),
        ([3, 50, 8], 2),  # the one of medium length has a separate row
        ([50, 50, 2, 2], 2),
        ([20, 20, 20, 20], 4),  # nothing to save
        ([20, 15, 18, 19], 4),  # almost nothing to save
        ([7], 1),
        ([2, 2], 2),
        ([], 0),
    ],
)
def test_texts_share_rows_where_that_saves_padding(lengths, rows):
    features = dense(lengths)
    folded = fold(features)
    assert folded.features["input_ids"].shape[0] == rows
    assert len(set(folded.places.numpy())) == len(lengths)
    check_each_text_is_there(features, folded, lengths)
    if rows < len(lengths):
        assert folded.features["input_ids"].shape[1] == {8: 53, 3: 53, 4: 52}[len(lengths)]


def test_sentences_of_real_lengths_leave_half_of_the_tokens():
    lengths = np.minimum(2 + np.random.default_rng(3).gamma(3.0, 8.0, 32).astype(int), 128).tolist()
    features = dense(lengths)
    folded = fold(features)
    before, after = tf.size(features["input_ids"]), tf.size(folded.features["input_ids"])
    assert sum(lengths) <= after <= 0.65 * before.numpy()
    check_each_text_is_there(features, folded, lengths)


def test_any_mask_is_kept_where_nothing_is_folded():
    features = dense([4, 2])
    features["input_mask"] = tf.constant([[1, 0, 1, 1], [0, 0, 0, 0]])
    found = unfolded(features)
    np.testing.assert_array_equal(found.features["input_mask"][0], [[1, 0, 1, 1]] * 4)
    np.testing.assert_array_equal(found.features["input_mask"][1], [[0, 0, 0, 0]] * 4)
    np.testing.assert_array_equal(found.features["position_ids"], [[0, 1, 2, 3]] * 2)
    np.testing.assert_array_equal(found.places, [0, 2])

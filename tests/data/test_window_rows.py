"""Examples of several windows each: arrays by hand, shapes of batches, and the same batches on every replica."""

import dataclasses

import numpy as np

from bert_tf.data import token_rows
from bert_tf.data.token_rows import Share, WindowRows

LENGTH = 8


def rows_of(totals, pad_id=0) -> WindowRows:
    """Examples of so many tokens in all their windows, numbered from 100 on."""
    counts = [-(-total // LENGTH) for total in totals]
    sizes = [min(LENGTH, total - LENGTH * k) for total, count in zip(totals, counts, strict=True) for k in range(count)]
    offsets = np.cumsum([0, *sizes], dtype=np.int64)
    return WindowRows(
        np.arange(100, 100 + offsets[-1], dtype=np.int32), offsets, np.array(sizes, np.int32),
        {"label_ids": np.arange(len(totals), dtype=np.int32)}, first_rows=np.cumsum([0, *counts], dtype=np.int64),
        window_length=LENGTH, pad_id=pad_id,
    )  # fmt: skip


def test_a_batch_by_hand():
    rows = rows_of([5, 19, 8], pad_id=1)
    assert (len(rows), rows.windows.tolist(), rows.lengths.tolist()) == (3, [1, 3, 1], [5, 19, 8])
    assert rows.row_lengths.tolist() == [5, 8, 8, 3, 8]
    batch = rows.batch([1, 0], 3 * LENGTH)
    assert {name: (values.shape, values.dtype) for name, values in batch.items()} == {
        **dict.fromkeys(("input_ids", "input_mask", "segment_ids"), ((2, 3, LENGTH), np.int32)),
        "label_ids": ((2,), np.int32),
    }
    ids, mask = batch["input_ids"], batch["input_mask"]
    assert ids[0].tolist() == [list(range(105, 113)), list(range(113, 121)), [121, 122, 123, 1, 1, 1, 1, 1]]
    assert mask[0].sum(-1).tolist() == [8, 8, 3]
    # The windows that the text does not have.
    assert ids[1, 0].tolist() == [100, 101, 102, 103, 104, 1, 1, 1] and mask[1].sum(-1).tolist() == [5, 0, 0]
    assert (ids[1, 1:] == 1).all() and not batch["segment_ids"].any() and batch["label_ids"].tolist() == [1, 0]
    # Texts of one window are as ordinary rows.
    alone = rows.batch([0, 2], 8)
    plain = rows.rows.batch([0, 4], 8)
    for name in ("input_ids", "input_mask", "segment_ids"):
        np.testing.assert_array_equal(alone[name][:, 0], plain[name])
    assert rows.batch([0], 5)["input_ids"].shape == (1, 1, 5)


def test_the_checksum_knows_which_windows_are_of_one_text():
    rows = rows_of([16, 8])
    other = dataclasses.replace(rows, first_rows=np.array([0, 1, 3]))
    assert rows.checksum == rows_of([16, 8]).checksum != other.checksum


def batches_of(rows, start_step, count, **arguments):
    arguments = {"batch_size": 4, "seed": 1, "max_seq_length": LENGTH, **arguments}
    batches = token_rows.training_batches(rows, start_step=start_step, **arguments)
    return [{name: value.numpy() for name, value in batch.items()} for batch in batches.take(count)]


def test_batches():
    """Alike texts go together, a resumed run goes on with the same batches, and replicas get parts of one shape."""
    totals = np.random.default_rng(0).integers(2, 70, 40)
    rows = rows_of(totals.tolist())
    whole = batches_of(rows, 0, 60)
    computed = sum(batch["input_mask"][..., 0].size for batch in whole)
    real = sum(batch["input_mask"][..., 0].sum() for batch in whole)
    assert real > 0.9 * computed
    assert {batch["input_mask"].shape[1] for batch in whole} <= {1, 2, 3, 4, 6, 8, 9}
    for batch in whole:  # every text is whole
        np.testing.assert_array_equal(batch["input_mask"].sum((1, 2)), totals[batch["label_ids"]])
    for one, other in zip(whole[7:20], batches_of(rows, 7, 13), strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in one)
    halves = [batches_of(rows, 0, 60, share=Share(2, first, 1)) for first in (0, 1)]
    for batch, *parts in zip(whole, *halves, strict=True):
        assert all(np.array_equal(np.concatenate([part[name] for part in parts]), batch[name]) for name in batch)
    static = batches_of(rows, 3, 7, static_padding=True)
    assert {batch["input_ids"].shape for batch in static} == {(4, int(rows.windows.max()), LENGTH)}
    order = np.concatenate([batch["label_ids"] for batch in static])  # as they were drawn, not by their lengths
    np.testing.assert_array_equal(order, token_rows.permutation(40, 1, 0, 0)[12:40])


def test_evaluation_gives_every_example_once():
    rows = rows_of([5, 30, 8, 17, 64, 2, 9])
    seen = []
    for batch in token_rows.evaluation_batches(rows, batch_size=3, max_seq_length=LENGTH):
        seen.append(batch["input_mask"].numpy().sum((1, 2)).astype(np.float32))
    assert token_rows.in_order(rows, 3, seen).tolist() == rows.lengths.tolist()

"""Records: the order is a function of (files, seed, step), and errors name damaged files."""

import os

import numpy as np
import pytest
import tensorflow as tf
from helpers.record_files import example_of, write_records
from helpers.slow import exhaustive
from helpers.tiny import write_pretraining_records

from bert_tf.data import record_files, records, token_rows
from bert_tf.data.token_rows import Share

FEATURES = {"number": record_files.Feature(2), "weight": record_files.Feature(1, "float32")}


def example(number: int, values: int = 2) -> bytes:
    """A record with its own number; larger numbers give longer records."""
    return example_of({"number": [number] * values, "weight": [number / 2], "ignored": [b"x" * (number % 50)]})


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(record_files, "RECORDS_PER_BLOCK", 8)


@pytest.fixture
def three_files(tmp_path, small_blocks):
    """100 consecutively numbered records: 50 in the first file, 1 in the second, 49 in the third."""
    paths = [tmp_path / f"part-{k}.tfrecord" for k in range(3)]
    for path, (first, last) in zip(paths, [(0, 50), (50, 51), (51, 100)], strict=True):
        write_records(path, [example(number) for number in range(first, last)])
    return [str(path) for path in paths]


def numbers(dataset, steps: int | None = None) -> np.ndarray:
    dataset = dataset if steps is None else dataset.take(steps)
    return np.stack([batch["number"].numpy()[:, 0] for batch in dataset])


@pytest.mark.parametrize(("window", "batch_size"), [(20, 7), (1000, 250)])
def test_resumed_run_gets_the_same_batches(three_files, window, batch_size):
    """Starts inside a window, at its border, several epochs later; batches span or contain several epochs."""
    index = records.index_records(three_files, FEATURES)

    def batches(start_step):
        return records.training_batches(
            index, FEATURES, batch_size=batch_size, seed=11, start_step=start_step, shuffle_window=window
        )

    whole = numbers(batches(0), 60)
    assert whole.shape == (60, batch_size)
    for start in (1, 13, 50):
        np.testing.assert_array_equal(numbers(batches(start), 10), whole[start : start + 10])


def test_order_is_fixed_for_all_time(three_files):
    """A new NumPy or TensorFlow must not change it: runs are resumed after an upgrade. Numbers of NumPy 2.4."""
    index = records.index_records(three_files, FEATURES)
    batches = records.training_batches(index, FEATURES, batch_size=10, seed=1234, shuffle_window=40)
    assert numbers(batches, 1)[0].tolist() == [89, 93, 62, 66, 61, 96, 56, 76, 98, 52]
    assert token_rows.permutation(8, seed=-1, epoch=2, stream=3).tolist() == [4, 6, 0, 2, 3, 7, 5, 1]
    assert len({tuple(token_rows.permutation(100, seed, 0, 0)) for seed in (0, 1, 2, -1, 2**40)}) == 5


def test_order_matches_a_plain_computation(three_files):
    """The pipeline against lists: blocks permuted, joined into windows, permuted inside."""
    index = records.index_records(three_files, FEATURES)
    starts = np.cumsum(index.num_records) - index.num_records
    expected = []
    for epoch in range(2):
        windows: dict[int, list[int]] = {}
        position = 0
        for block in token_rows.permutation(15, 9, epoch, 0):
            windows.setdefault(position // 30, []).append(int(block))
            position += int(index.num_records[block])
        for stream, blocks in enumerate(windows.values(), start=1):
            held = [starts[b] + k for b in sorted(blocks) for k in range(index.num_records[b])]
            expected += [held[k] for k in token_rows.permutation(len(held), 9, epoch, stream)]
    batches = records.training_batches(index, FEATURES, batch_size=20, seed=9, shuffle_window=30)
    assert numbers(batches, 10).ravel().tolist() == expected


def test_step_far_away(three_files):
    """Step 10 billion (epoch 2 billion) is found by arithmetic, and its epoch still has each record once."""
    index = records.index_records(three_files, FEATURES)
    batches = records.training_batches(
        index, FEATURES, batch_size=20, seed=9, shuffle_window=30, start_step=10_000_000_000
    )
    drawn = numbers(batches, 10).reshape(2, 100)
    assert [sorted(epoch.tolist()) for epoch in drawn] == [list(range(100))] * 2
    first = np.cumsum(index.num_records)[token_rows.permutation(15, 9, 2_000_000_000, 0)[0]] - 1
    assert first in drawn[0][:38]


@pytest.mark.parametrize(
    ("share", "start", "window"), [(Share(2, 1, 1), 17, 20), (Share(12, 5, 3), 0, 20), (Share(12, 5, 3), 17, 1)]
)
def test_a_share_has_its_rows_of_each_batch(three_files, share, start, window):
    """Batches span windows and epochs, or windows have no row of a share; the preparation learns which rows it has."""

    def prepare(rows, step, first):
        return {**rows, "step": step, "first": first}

    index = records.index_records(three_files, FEATURES)
    settings = {"batch_size": 12, "seed": 5, "start_step": start, "shuffle_window": window, "prepare": prepare}
    whole = numbers(records.training_batches(index, FEATURES, **settings), 20)
    batches = records.training_batches(index, FEATURES, share=share, **settings)
    size = 12 // share.parts
    assert batches.element_spec["number"] == tf.TensorSpec([size, 2], tf.int32)
    assert batches.cardinality() == tf.data.INFINITE_CARDINALITY
    parts = list(batches.take(20 * share.count))
    firsts = list(range(share.first * size, (share.first + share.count) * size, size))
    assert [int(part["step"]) for part in parts] == np.repeat(np.arange(start, start + 20), share.count).tolist()
    assert [int(part["first"]) for part in parts] == firsts * 20
    rows = np.concatenate([part["number"].numpy()[:, 0] for part in parts]).reshape(20, -1)
    np.testing.assert_array_equal(rows, whole[:, firsts[0] : firsts[-1] + size])


def test_only_the_records_of_a_share_are_parsed(three_files):
    """Those of the other workers are no examples here."""
    index = records.index_records(three_files, FEATURES)
    settings = {"batch_size": 10, "seed": 5, "shuffle_window": 40}
    epoch = numbers(records.training_batches(index, FEATURES, **settings), 10)
    own = {*epoch[:, 5:].ravel().tolist()}
    for name, (first, last) in zip(three_files, [(0, 50), (50, 51), (51, 100)], strict=True):
        payloads = {number: example(number) for number in range(first, last)}
        write_records(name, [value if number in own else b"\x07" * len(value) for number, value in payloads.items()])
    with pytest.raises(tf.errors.InvalidArgumentError, match="ParseExample"):
        numbers(records.training_batches(index, FEATURES, **settings), 10)
    half = records.training_batches(index, FEATURES, share=Share(2, 1, 1), **settings)
    np.testing.assert_array_equal(numbers(half, 10), epoch[:, 5:])


def test_a_preparation_of_whole_batches_gets_them_whatever_the_share(three_files):
    def prepare(rows, step, first):
        everything = tf.reduce_sum(rows["number"])
        return {**rows, "sum": tf.fill([rows["number"].shape[0]], everything), "first": tf.fill([12], first)}

    index = records.index_records(three_files, FEATURES)
    settings = {"batch_size": 12, "seed": 5, "prepare": prepare, "prepares_whole_batches": True}
    whole = list(records.training_batches(index, FEATURES, **settings).take(20))
    batches = records.training_batches(index, FEATURES, share=Share(4, 1, 2), **settings)
    assert batches.element_spec["number"] == tf.TensorSpec([3, 2], tf.int32)
    parts = list(batches.take(40))
    for step, batch in enumerate(whole):
        for name, value in batch.items():
            own = np.concatenate([part[name] for part in parts[2 * step : 2 * step + 2]])
            np.testing.assert_array_equal(own, value[3:9], err_msg=name)


def test_evaluation_fills_the_last_batch_with_zeros(three_files):
    index = records.index_records(three_files, FEATURES)
    batches = records.evaluation_batches(index, FEATURES, batch_size=32, repeat=False, max_steps=None)
    assert batches.element_spec["number"].shape == [32, 2] and len(batches) == 4
    drawn = list(batches)
    assert np.concatenate([b["number"].numpy()[:, 0] for b in drawn]).tolist() == list(range(100)) + [0] * 28
    weights = np.concatenate([b["example_weights"].numpy() for b in drawn])
    assert weights.dtype == np.float32 and weights.tolist() == [1.0] * 100 + [0.0] * 28
    assert drawn[-1]["weight"].numpy()[4:, 0].tolist() == [0.0] * 28
    for batch_size, max_steps, expected in ((32, 2, 2), (32, 9, 4), (25, None, 4)):
        batches = records.evaluation_batches(index, FEATURES, batch_size=batch_size, repeat=False, max_steps=max_steps)
        assert len(batches) == len(list(batches)) == expected


@pytest.mark.parametrize("batch_size", [8, 230])
def test_evaluation_repeated_as_the_original(three_files, batch_size):
    index = records.index_records(three_files, FEATURES)
    batches = records.evaluation_batches(index, FEATURES, batch_size=batch_size, repeat=True, max_steps=20)
    assert len(batches) == 20
    np.testing.assert_array_equal(numbers(batches).ravel(), np.arange(20 * batch_size) % 100)
    assert all(b["example_weights"].numpy().tolist() == [1.0] * batch_size for b in batches)


def test_damage_is_named(tmp_path, small_blocks):
    path, good = tmp_path / "bad", tmp_path / "good"
    write_records(good, [example(number) for number in range(5)])
    offsets = write_records(path, [example(100 + number) for number in range(30)])
    whole = path.read_bytes()
    flips = {number: bytearray(whole) for number in (0, 15, 29, 20)}
    for number, content in flips.items():
        content[offsets[number] + (2 if number == 20 else 14)] ^= 0x01  # in its length, or in its payload
    cases = [*flips.items(), (22, whole[: offsets[22] + 11]), (22, whole[: offsets[22] + 30])]
    cases += [(0, b"[CLS] the cat sat on the mat [SEP]\n" * 40), (0, b"\x1f\x8b\x08" + bytes(60)), (0, b"x")]
    for number, content in cases:
        path.write_bytes(content)
        with pytest.raises(record_files.RecordError, match=f"bad: record {number} at byte {offsets[number]} is"):
            records.index_records([str(good), str(path)], FEATURES)


@pytest.mark.parametrize(("seed", "count"), [(3, 2), *exhaustive((2, 55))])
def test_a_flipped_bit_is_noticed_or_changes_nothing(tmp_path, small_blocks, seed, count):
    path, features = tmp_path / "records", record_files.pretraining_features(16, 3)
    write_pretraining_records(path, 12)
    content, time, noticed = path.read_bytes(), os.stat(path).st_mtime_ns, 0

    def read() -> list[dict]:
        index = records.index_records([str(path)], features)
        with records.explained_errors(index, features):
            batches = [*records.evaluation_batches(index, features, batch_size=4, repeat=False, max_steps=None)]
            trained = records.training_batches(index, features, batch_size=4, seed=0, shuffle_window=8)
            batches += trained.take(index.total_records // 4)
        return [{name: value.numpy() for name, value in batch.items()} for batch in batches]

    expected = read()
    for bit in np.random.default_rng(seed).integers(8 * len(content), size=count).tolist():
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        os.utime(path, ns=(time, time))  # as a failing disk does
        try:
            np.testing.assert_equal(read(), expected)
        except record_files.RecordError as error:
            assert str(path) in str(error) and "\n" not in str(error)
            noticed += 1
    assert noticed


def test_damage_after_indexing_is_named(tmp_path, small_blocks):
    path = tmp_path / "a"
    offsets = write_records(path, [example(number) for number in range(40)])
    index = records.index_records([str(path)], FEATURES)
    content = bytearray(path.read_bytes())
    content[offsets[19] + 15] ^= 0x01
    for place, changed in ((19, content), (16, content[: index.byte_offset[2]])):
        path.write_bytes(changed)
        message = f"--flag: {path}: record {place} at byte {offsets[place]} is damaged.*intact when indexed"
        batches = records.training_batches(index, FEATURES, batch_size=10, seed=0, shuffle_window=10)
        with pytest.raises(record_files.RecordError, match=message), records.explained_errors(index, FEATURES, "flag"):
            list(batches.take(20))

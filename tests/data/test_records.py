"""Record files: the order is a function of (files, seed, step), errors name damage and values that can not be, and an
index next to a file is as if it had been read, and not used where it does not fit."""

import os
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf
from helpers.record_files import example_of, write_records
from helpers.tiny import TINY_CONFIG, write_pretraining_records

from bert_tf.data import record_files, records, token_rows
from bert_tf.data.record_files import RECORDS_PER_BLOCK, index_path
from bert_tf.data.token_rows import Share
from bert_tf.families.config import BertConfig
from bert_tf.training import pretraining_tasks
from bert_tf.training.pretraining_settings import PretrainingSettings

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


@pytest.fixture
def index(three_files):
    return records.index_records(three_files, FEATURES)


def numbers(dataset, steps: int | None = None) -> np.ndarray:
    dataset = dataset if steps is None else dataset.take(steps)
    return np.stack([batch["number"].numpy()[:, 0] for batch in dataset])


def plain_epoch(index, seed, shuffle_window, epoch) -> list[int]:
    """Blocks permuted, joined into windows, permuted inside."""
    starts = np.cumsum(index.num_records) - index.num_records
    windows: dict[int, list[int]] = {}
    position = 0
    for block in token_rows.permutation(len(starts), seed, epoch, 0):
        windows.setdefault(position // shuffle_window, []).append(int(block))
        position += int(index.num_records[block])
    order = []
    for stream, blocks in enumerate(windows.values(), start=1):
        held = [starts[block] + k for block in sorted(blocks) for k in range(index.num_records[block])]
        order += [held[k] for k in token_rows.permutation(len(held), seed, epoch, stream)]
    return order


@pytest.mark.parametrize(("window", "batch_size", "step"), [
    *((20, 7, step) for step in (0, 1, 13, 50)), *((1000, 250, step) for step in (0, 13)), (30, 20, 10_000_000_000),
])  # fmt: skip
def test_order_is_that_of_a_plain_computation_from_any_step(index, window, batch_size, step):
    """Starts inside a window, at its border, epochs later, by arithmetic; batches span or contain several epochs."""
    order = {"batch_size": batch_size, "seed": 9, "shuffle_window": window, "start_step": step}
    batches = records.training_batches(index, FEATURES, **order)
    epoch, skip = divmod(step * batch_size, 100)
    count = 10 * batch_size
    order = [number for k in range(-(-(skip + count) // 100)) for number in plain_epoch(index, 9, window, epoch + k)]
    assert numbers(batches, 10).ravel().tolist() == order[skip : skip + count]
    assert sorted(order[:100]) == list(range(100))


def test_order_is_fixed_for_all_time(index):
    """A new NumPy or TensorFlow must not change it: runs are resumed after an upgrade. Numbers of NumPy 2.4."""
    batches = records.training_batches(index, FEATURES, batch_size=10, seed=1234, shuffle_window=40)
    assert numbers(batches, 1)[0].tolist() == [89, 93, 62, 66, 61, 96, 56, 76, 98, 52]
    assert token_rows.permutation(8, seed=-1, epoch=2, stream=3).tolist() == [4, 6, 0, 2, 3, 7, 5, 1]
    assert len({tuple(token_rows.permutation(100, seed, 0, 0)) for seed in (0, 1, 2, -1, 2**40)}) == 5


@pytest.mark.parametrize(
    ("share", "start", "window"), [(Share(2, 1, 1), 17, 20), (Share(12, 5, 3), 0, 20), (Share(12, 5, 3), 17, 1)]
)
def test_a_share_has_its_rows_of_each_batch(index, share, start, window):
    """Batches span windows and epochs, or windows have no row of a share; the preparation learns which rows it has."""

    def prepare(rows, step, first):
        return {**rows, "step": step, "first": first}

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


def test_only_the_records_of_a_share_are_parsed(three_files, index):
    """Those of the other workers are no examples here."""
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


def test_a_preparation_of_whole_batches_gets_them_whatever_the_share(index):
    def prepare(rows, step, first):
        everything = tf.reduce_sum(rows["number"])
        return {**rows, "sum": tf.fill([rows["number"].shape[0]], everything), "first": tf.fill([12], first)}

    settings = {"batch_size": 12, "seed": 5, "prepare": prepare, "prepares_whole_batches": True}
    whole = list(records.training_batches(index, FEATURES, **settings).take(20))
    batches = records.training_batches(index, FEATURES, share=Share(4, 1, 2), **settings)
    assert batches.element_spec["number"] == tf.TensorSpec([3, 2], tf.int32)
    parts = list(batches.take(40))
    for step, batch in enumerate(whole):
        for name, value in batch.items():
            own = np.concatenate([part[name] for part in parts[2 * step : 2 * step + 2]])
            np.testing.assert_array_equal(own, value[3:9], err_msg=name)


def test_evaluation_fills_the_last_batch_with_zeros(index):
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
def test_evaluation_repeated_as_the_original(index, batch_size):
    batches = records.evaluation_batches(index, FEATURES, batch_size=batch_size, repeat=True, max_steps=20)
    assert len(batches) == 20
    np.testing.assert_array_equal(numbers(batches).ravel(), np.arange(20 * batch_size) % 100)
    assert all(b["example_weights"].numpy().tolist() == [1.0] * batch_size for b in batches)


def test_damage_is_named(tmp_path, small_blocks):
    path, good = tmp_path / "bad", tmp_path / "good"
    write_records(good, [example(number) for number in range(5)])
    offsets = write_records(path, [example(100 + number) for number in range(30)])
    whole = path.read_bytes()
    # In the length of a record, its checksum, the payload, the payload's checksum.
    flips = {20: offsets[20] + 2, 21: offsets[21] + 9, **{k: offsets[k] + 14 for k in (0, 15, 29)}, 3: offsets[4] - 2}
    cases = [(number, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]) for number, at in flips.items()]
    cases += [(22, whole[: offsets[22] + 11]), (22, whole[: offsets[22] + 30])]
    cases += [(0, b"[CLS] the cat sat on the mat [SEP]\n" * 40), (0, b"\x1f\x8b\x08" + bytes(60)), (0, b"x")]
    for number, content in cases:
        path.write_bytes(content)
        with pytest.raises(record_files.RecordError, match=f"bad: record {number} at byte {offsets[number]} is"):
            records.index_records([str(good), str(path)], FEATURES)
    write_records(path, [b"\xff\xff not an example"])
    with pytest.raises(record_files.RecordError, match="is not a tf.train.Example"):
        records.index_records([str(path)], FEATURES)


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


MASKED = record_files.pretraining_features(16, 3)
FRAMES = 2 * RECORDS_PER_BLOCK + 77  # in three blocks


@pytest.fixture(scope="module")
def payloads(tmp_path_factory) -> list[bytes]:
    path = tmp_path_factory.mktemp("payloads") / "all"
    write_pretraining_records(path, FRAMES)
    return [one for *_, block in record_files.read_records(str(path), path.stat().st_size) for one in block]


def write(path, payloads: list[bytes]) -> str:
    """Writes a file with its index."""
    offsets, starts = np.array(write_records(path, payloads)), np.arange(0, len(payloads), RECORDS_PER_BLOCK)
    ends = np.minimum(starts + RECORDS_PER_BLOCK, len(payloads))
    blocks = np.stack([offsets[ends] - offsets[starts], ends - starts], axis=1)
    pathlib.Path(index_path(str(path))).write_bytes(record_files.written_index(blocks))
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
def test_an_index_is_as_if_the_files_had_been_read(tmp_path, scanned, payloads, counts):
    files = [write(tmp_path / f"{number}.tfrecord", payloads[:count]) for number, count in enumerate(counts)]
    found = records.index_records(files, MASKED)
    assert scanned == []
    read = records.index_records(files, MASKED, verify=True)
    assert sorted(scanned) == sorted(map(os.path.basename, files))
    assert found.fingerprint == read.fingerprint and found.file_sizes == read.file_sizes
    np.testing.assert_array_equal(np.stack(found.blocks()), np.stack(read.blocks()))
    order = {"batch_size": 64, "seed": 3, "start_step": 7, "shuffle_window": 1500}
    batches = (records.training_batches(index, MASKED, **order).take(40) for index in (found, read))
    np.testing.assert_array_equal(*([batch["masked_lm_ids"].numpy() for batch in of_index] for of_index in batches))
    os.remove(index_path(files[0]))
    scanned.clear()
    again = records.index_records(files, MASKED)
    assert scanned == ["0.tfrecord"] and again.fingerprint == read.fingerprint


def changed(**arrays):
    """An index whose arrays are these functions of it."""

    def change(path, _):
        archive = dict(np.load(index_path(str(path))))
        np.savez(index_path(str(path)), **archive | {name: new(archive[name]) for name, new in arrays.items()})

    return change


def damaged_index(path, _):
    index = pathlib.Path(index_path(str(path)))
    content = bytearray(index.read_bytes())
    content[len(content) // 2] ^= 1
    index.write_bytes(content)


CHANGES = {
    "another file of this size": (lambda path, _: write_records(path, [bytes(path.stat().st_size - 16)]), 1),
    "a shorter file": (lambda path, payloads: write_records(path, payloads[:-1]), FRAMES - 1),
    "another version": (changed(version=lambda number: number - 1), FRAMES),
    "impossible counts": (changed(blocks=lambda blocks: blocks * [[1], [10**9]]), FRAMES),
    "a damaged index": (damaged_index, FRAMES),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_stale_index_is_rebuilt(tmp_path, scanned, payloads, caplog, case):
    change, total = CHANGES[case]
    path = tmp_path / "a.tfrecord"
    write(path, payloads)
    change(path, payloads)
    index = records.index_records([str(path)], None)
    assert scanned == ["a.tfrecord"] and index.total_records == total
    assert "a.index.npz does not fit" in caplog.text or "can't be read" in caplog.text


@pytest.mark.parametrize("verify", [False, True])
def test_a_run_reads_everything_with_verify_records(tmp_path, scanned, payloads, verify):
    settings = PretrainingSettings(
        input_file=write(tmp_path / "a.tfrecord", payloads), output_dir=str(tmp_path), do_train=True, max_seq_length=16,
        max_predictions_per_seq=3, verify_records=verify,
    )  # fmt: skip
    opened = pretraining_tasks.open_all_records(settings, BertConfig.from_dict(TINY_CONFIG), "the configuration")
    assert scanned == (["a.tfrecord"] if verify else [])
    assert opened["input_file"].index.total_records == FRAMES

"""Pre-training instances: the original's, the compiled code's and the plain Python's are the same."""

import random
import tempfile

import numba
import numpy as np
import pytest
from helpers import plain_pretraining as plain
from helpers.instances import store_of
from helpers.pretraining_records_read import LETTERS

from bert_tf.pretraining import instance_kernels, record_writer
from bert_tf.pretraining.instances import InstanceSettings, TrainingInstance, create_instances
from bert_tf.system.numba_compile import interpreted
from bert_tf.text.wordpiece import FullTokenizer


def compiled_instances(input_files, tokenizer, settings, rng) -> list[TrainingInstance]:
    """`plain.create_training_instances` with the compiled code."""
    with tempfile.TemporaryDirectory() as folder:
        store = store_of(input_files, tokenizer, folder)
        return create_instances(store, settings, tokenizer, rng, folder)[:]


@numba.njit
def _draw(counts):
    floats, numbers = np.empty(len(counts)), np.empty(len(counts), np.int64)
    for k in range(len(counts)):
        floats[k], numbers[k] = instance_kernels.uniform(), instance_kernels.below(counts[k])
    return floats, numbers


@pytest.mark.parametrize("compiled", [True, False])
def test_draws_are_those_of_random(compiled):
    """`random`, `randrange` and `shuffle` from the same state, over several blocks of the generator."""
    rng, plain = random.Random(3), random.Random(3)
    rng.random()  # in the middle of a block
    plain.random()
    counts = np.array([1 + turn * turn % 70_001 for turn in range(1500)] + [(1 << 32) - 1])
    before = random.getstate()
    with interpreted(not compiled), instance_kernels.drawing_from(rng):
        floats, numbers = (_draw if compiled else _draw.py_func)(counts)
        for length in (0, 1, 2, 3, 4, 7, 8, 9, 125, 128, 1000):
            items = np.arange(length)
            instance_kernels.shuffle(items, length)
            if not length:
                for number, (count, value) in enumerate(zip(counts.tolist(), floats, strict=True)):
                    assert (value, numbers[number]) == (plain.random(), plain.randrange(count))
            reference = list(range(length))
            plain.shuffle(reference)
            assert items.tolist() == reference
    assert rng.getstate() == plain.getstate() and random.getstate() == before


# max_seq_length, max_predictions_per_seq, short_seq_prob, masked_lm_prob
SIZES = [(5, 1, 1.0, 1.0), (12, 3, 0.5, 0.5), (64, 10, 0.1, 0.15), (200, 40, 0.9, 0.3)]
RANDOM_CASES = [(seed, whole, *SIZES[seed % 4]) for seed, whole in enumerate([False] * 4 + [True] * 4)]


@pytest.mark.parametrize(("seed", "whole_words", "max_seq_length", "max_predictions", "short", "prob"), RANDOM_CASES)
def test_random_corpora(seed, whole_words, max_seq_length, max_predictions, short, prob, tmp_path):
    """Documents of one sentence and of many, sentences of one token and of hundreds, a single document."""
    generator = random.Random(seed)
    (tmp_path / "vocab.txt").write_text("\n".join(LETTERS) + "\n")
    tokenizer = FullTokenizer(str(tmp_path / "vocab.txt"))
    for documents in (1, 2, 15):
        lines = []
        for _ in range(documents):
            for _ in range(generator.choice((1, 2, 30))):
                words = generator.choice((1, 2, 10, 150))
                lines.append(" ".join("".join(generator.choices("abcde.,z", k=3)) for _ in range(words)))
            lines.append("")
        (tmp_path / "text.txt").write_text("\n".join(lines))
        settings = InstanceSettings(max_seq_length, max_predictions, 3, short, prob, whole_words)
        arguments = ([str(tmp_path / "text.txt")], tokenizer, settings)
        mine, reference = random.Random(seed), random.Random(seed)
        assert compiled_instances(*arguments, mine) == plain.create_training_instances(*arguments, reference)
        assert mine.getstate() == reference.getstate()  # the stream is in the state where the original leaves it


def test_instances_go_on_where_a_call_ended(golden, tmp_path, monkeypatch):
    """Calls of three instances at a time end in the middle of documents."""
    tokenizer = FullTokenizer(str(golden / "vocab.txt"))
    files = [str(golden / "pretraining" / "corpus_0.txt")]
    arguments = (files, tokenizer, InstanceSettings(32, 5, dupe_factor=2))
    whole = compiled_instances(*arguments, random.Random(1))
    monkeypatch.setattr("bert_tf.pretraining.instances._INSTANCES_PER_CALL", 3)
    assert compiled_instances(*arguments, random.Random(1)) == whole
    assert len(whole) > 100


def test_records_are_those_of_the_plain_encoder(letters, tmp_path):
    corpus, vocab = letters
    tokenizer = FullTokenizer(vocab)
    store = store_of([corpus], tokenizer, tmp_path / "store")
    for length, predictions in ((16, 3), (5, 1), (300, 60)):
        settings = InstanceSettings(length, predictions, dupe_factor=20)
        instances = create_instances(store, settings, tokenizer, random.Random(2), str(tmp_path))
        assert len(instances) > record_writer._ROWS_AT_ONCE
        blocks = record_writer.blocks_of(instances, instances.order, np.arange(1, len(instances) + 1), 1)
        record_writer.write_blocks(str(tmp_path / "out"), blocks)
        records = [record.numpy() for record in record_writer.tf.data.TFRecordDataset(str(tmp_path / "out"))]
        encode = plain.ExampleEncoder(length, predictions).encode
        assert records == [encode(instance) for instance in instances]

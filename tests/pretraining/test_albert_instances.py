"""ALBERT's instances: sentence order, n-grams, start pieces; the original's for the same seeds."""

import gzip
import json
import random

import numba
import numpy as np
import pytest
from helpers.instances import store_of
from helpers.paths import GOLDEN
from helpers.pretraining_records_read import read_records

from bert_tf.pretraining import instance_kernels
from bert_tf.pretraining.create import create_pretraining_data
from bert_tf.pretraining.instances import InstanceSettings, create_instances, ngram_shares
from bert_tf.pretraining.model_vocabulary import read_tokenizer
from bert_tf.system.numba_compile import interpreted

FOLDER = GOLDEN / "pretraining" / "albert"
MODEL = GOLDEN / "tokenization" / "albert" / "tiny.model"


def read_setting(folder, number) -> tuple[dict, list[dict]]:
    """The description of a golden setting, and its records."""
    with gzip.open(folder / f"setting_{number}.jsonl.gz", "rt") as file:
        described, *records = map(json.loads, file)
    return described, records


def check_setting(folder, vocabularies, number, scratch) -> None:
    described, records = read_setting(folder, number)
    flags = described["flags"]
    assert not flags.pop("do_permutation")
    rng = random.Random(flags.pop("random_seed"))
    numpy_rng = np.random.RandomState(described["numpy_seed"])
    tokenizer = read_tokenizer(str(vocabularies[described["tokenizer"]]), flags.pop("do_lower_case"))
    flags["next_sentence"] = "random" if flags.pop("random_next_sentence") else "order"
    store = store_of(
        [str(folder / name) for name in ("corpus_0.txt", "corpus_1.txt")],
        tokenizer,
        scratch,
        mark_words=described["tokenizer"] == "tiny.model",
    )
    instances = create_instances(store, InstanceSettings(**flags), tokenizer, rng, str(scratch), numpy_rng=numpy_rng)
    assert len(instances) == described["instances"] == len(records)
    for instance, record in zip(instances, records, strict=True):
        length, predicted = sum(record["input_mask"]), int(sum(record["masked_lm_weights"]))
        assert instance.token_ids == record["input_ids"][:length]
        assert instance.segment_ids == record["segment_ids"][:length]
        assert instance.masked_lm_positions == record["masked_lm_positions"][:predicted]
        assert instance.masked_lm_ids == record["masked_lm_ids"][:predicted]
        assert [int(instance.is_random_next)] == record["next_sentence_labels"]
    # Every draw was the original's.
    assert rng.random() == described["next_python_random"]
    assert numpy_rng.random_sample() == described["next_numpy_random"]


def test_instances_are_the_originals(tmp_path):
    """Setting 8 is cased, so that unknown pieces continue words; the records below are of setting 1."""
    check_setting(FOLDER, {"tiny.model": MODEL}, 8, tmp_path)


@pytest.mark.parametrize("number", [2, 3, 4, 5, 7])
def test_more_instances_are_the_originals(number, shared, tmp_path):
    """Setting 6 permutes tokens, which this project does not: run_pretraining.py of the original can't read it."""
    folder = shared / "golden" / "albert"
    vocabularies = {name: folder / name for name in ("tiny.model", "wordpiece_vocab.txt")}
    check_setting(folder / "pretraining", vocabularies, number, tmp_path)


def make(folder, name="out", **flags):
    settings = {"max_seq_length": 64, "max_predictions_per_seq": 10, "dupe_factor": 2, "num_workers": 1}
    settings |= {"next_sentence": "order", "ngram": 3, "do_whole_word_mask": True, "show_progress": False}
    return create_pretraining_data(f"{FOLDER}/corpus_*.txt", f"{folder}/{name}", str(MODEL), **settings | flags)


def test_records_are_the_originals(tmp_path):
    """Both generators are seeded with --random_seed, as those of the golden data are."""
    described, expected = read_setting(FOLDER, 1)
    assert described["numpy_seed"] == described["flags"]["random_seed"] == 12345
    summary = make(tmp_path)
    names = [name for name in expected[0] if not name.startswith("_") and name != "token_boundary"]
    records = read_records(tmp_path / "out", names)
    assert records == [{name: record[name] for name in names} for record in expected]
    assert summary["not_in_order"] == sum(record["next_sentence_labels"][0] for record in expected)
    assert "random_next" not in summary
    assert summary["flags"]["ngram"] == 3 and summary["flags"]["next_sentence"] == "order"


def test_the_seed_decides(tmp_path):
    flags = {"num_shards": 2, "random_seed": 2**40}
    first, again = (make(tmp_path, name, **flags) for name in ("out", "again"))
    assert first["instances"] == again["instances"] > 100
    names = [f"-0000{shard}-of-00002" for shard in (0, 1)]
    assert all((tmp_path / f"out{n}").read_bytes() == (tmp_path / f"again{n}").read_bytes() for n in names)


def test_shares_of_ngrams():
    assert np.allclose(ngram_shares(InstanceSettings(ngram=3)), [6 / 11, 9 / 11, 1])
    assert np.allclose(ngram_shares(InstanceSettings(ngram=3, favor_shorter_ngram=False)), [2 / 11, 5 / 11, 1])
    assert ngram_shares(InstanceSettings(ngram=1)).tolist() == [1]
    assert ngram_shares(InstanceSettings()).size == 0


@numba.njit
def _draw(count):
    return np.array([instance_kernels.uniform_of_numpy() for _ in range(count)])


@pytest.mark.parametrize("compiled", [True, False])
def test_numpys_draws_are_the_same_in_compiled_code(compiled):
    rng, plain = np.random.RandomState(7), np.random.RandomState(7)
    with interpreted(not compiled), instance_kernels.drawing_from(random.Random(0), rng):
        assert (_draw if compiled else _draw.py_func)(700).tolist() == plain.random_sample(700).tolist()
    assert rng.random_sample() == plain.random_sample()

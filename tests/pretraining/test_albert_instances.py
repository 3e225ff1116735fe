"""ALBERT's instances: sentence order, n-grams, start pieces; the original's for the same seeds."""

import random

import numpy as np
import pytest
from helpers.paths import GOLDEN, lines_of
from helpers.pretraining_records_read import read_records

from bert_tf.pretraining.corpus import Corpus
from bert_tf.pretraining.create import create_pretraining_data
from bert_tf.pretraining.instances import InstanceSettings, create_instances, ngram_shares
from bert_tf.pretraining.model_vocabulary import read_tokenizer
from bert_tf.pretraining.token_store import tokenize

FOLDER = GOLDEN / "pretraining" / "albert"
MODEL = GOLDEN / "tokenization" / "albert" / "tiny.model"


def check_setting(folder, vocabularies, number, scratch) -> None:
    described, *records = lines_of(folder / f"setting_{number}.jsonl.gz")
    flags = described["flags"]
    assert not flags.pop("do_permutation")
    rng = random.Random(flags.pop("random_seed"))
    numpy_rng = np.random.RandomState(described["numpy_seed"])
    tokenizer = read_tokenizer(str(vocabularies[described["tokenizer"]]), flags.pop("do_lower_case"))
    flags["next_sentence"] = "random" if flags.pop("random_next_sentence") else "order"
    text = Corpus([str(folder / name) for name in ("corpus_0.txt", "corpus_1.txt")]).blocks()
    store = tokenize(text, tokenizer, str(scratch), mark_words=described["tokenizer"] == "tiny.model")
    instances = create_instances(store, InstanceSettings(**flags), tokenizer, rng, str(scratch), numpy_rng=numpy_rng)
    assert len(instances) == described["instances"] == len(records)
    for instance, record in zip(instances, records, strict=True):
        length, predicted = sum(record["input_mask"]), int(sum(record["masked_lm_weights"]))
        assert instance.token_ids == record["input_ids"][:length]
        assert record["segment_ids"][:length] == [0] * instance.second_start + [1] * (length - instance.second_start)
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
    described, *expected = lines_of(FOLDER / "setting_1.jsonl.gz")
    assert described["numpy_seed"] == described["flags"]["random_seed"] == 12345
    summary = make(tmp_path)
    names = [name for name in expected[0] if not name.startswith("_") and name != "token_boundary"]
    records = read_records(tmp_path / "out", names)
    assert records == [{name: record[name] for name in names} for record in expected]
    assert summary["not_in_order"] == sum(record["next_sentence_labels"][0] for record in expected)
    assert "random_next" not in summary
    assert summary["flags"]["ngram"] == 3 and summary["flags"]["next_sentence"] == "order"


def test_shares_of_ngrams():
    assert np.allclose(ngram_shares(InstanceSettings(ngram=3)), [6 / 11, 9 / 11, 1])
    assert np.allclose(ngram_shares(InstanceSettings(ngram=3, favor_shorter_ngram=False)), [2 / 11, 5 / 11, 1])
    assert ngram_shares(InstanceSettings(ngram=1)).tolist() == [1]
    assert ngram_shares(InstanceSettings()).size == 0

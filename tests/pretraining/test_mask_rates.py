"""Records for the paper's ablations: other mask rates, static and dynamic, and single sequences without pairs."""

import random

import numpy as np
import pytest
from helpers.instances import documents_of, store_of
from helpers.paths import TESTS
from helpers.pretraining_records_read import UNMASKED_FEATURES, read_records

from bert_tf.pretraining.create import create_pretraining_data
from bert_tf.pretraining.instances import InstanceSettings, create_instances
from bert_tf.text.wordpiece import FullTokenizer

MASK = "[MASK]"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, request):
    """(tokenizer, store) of the golden corpus."""
    golden = TESTS / "golden"
    tokenizer = FullTokenizer(str(golden / "vocab.txt"))
    files = sorted(map(str, (golden / "pretraining").glob("corpus_*.txt")))
    return tokenizer, store_of(files, tokenizer, tmp_path_factory.mktemp("store"))


def instances_of(corpus, folder, seed=1, **changes):
    tokenizer, store = corpus
    settings = InstanceSettings(**{"max_seq_length": 64, "max_predictions_per_seq": 20, "dupe_factor": 20} | changes)
    return create_instances(store, settings, tokenizer, random.Random(seed), str(folder))[:]


def shares(instances, tokenizer) -> tuple[float, float, float, int]:
    """Shares of the tokens to predict: masked, another token, unchanged; and their number."""
    mask_id = tokenizer.vocab[MASK]
    now = np.array([item.token_ids[place] for item in instances for place in item.masked_lm_positions])
    before = np.array([label for item in instances for label in item.masked_lm_ids])
    masked, same = now == mask_id, now == before
    return masked.mean(), 1 - masked.mean() - same.mean(), same.mean(), len(now)


RATES = [(0.8, 0.1, 0.1), (0.0, 0.8, 0.2)]


@pytest.mark.parametrize("rates", RATES)
def test_static_masks_have_the_rates(corpus, tmp_path, rates):
    names = ("mask_rate", "random_rate", "keep_rate")
    given = dict(zip(names, rates, strict=True))
    instances = instances_of(corpus, tmp_path, **given)
    *found, count = shares(instances, corpus[0])
    assert count > 1500
    for share, rate in zip(found, rates, strict=True):
        # Four standard errors; a random token is the same or [MASK] once in 30,522 times.
        assert abs(share - rate) <= 4 * np.sqrt(rate * (1 - rate) / count) + 2e-3
        assert rate or share <= 2e-3
    assert (instances == instances_of(corpus, tmp_path)) == (rates == RATES[0])


def plain_single_sequences(documents, max_seq_length, dupe_factor, short_seq_prob, rng) -> list[list[int]]:
    """The result of --nsp=false for documents, in plain Python, without [CLS] and [SEP]."""
    rng.shuffle(documents)
    limit, found = max_seq_length - 2, []
    for document in documents * dupe_factor:
        target = rng.randint(2, limit) if rng.random() < short_seq_prob else limit
        tokens = []
        for number, sentence in enumerate(document):
            tokens += sentence
            if len(tokens) < target and number + 1 < len(document):
                continue
            while len(tokens) > limit:
                del tokens[0 if rng.random() < 0.5 else -1]
            found.append(tokens)
            tokens = []
    rng.shuffle(found)
    return found


def test_single_sequences_are_those_of_plain_python(corpus, tmp_path):
    tokenizer, store = corpus
    cls_id, sep_id = (tokenizer.vocab[token] for token in ("[CLS]", "[SEP]"))
    for length, short in ((24, 0.5), (64, 0.1)):
        expected = plain_single_sequences(documents_of(store), length, 3, short, random.Random(7))
        made = instances_of(
            corpus, tmp_path, 7, max_seq_length=length, max_predictions_per_seq=0, dupe_factor=3, short_seq_prob=short,
            nsp=False,
        )  # fmt: skip
        assert [item.token_ids for item in made] == [[cls_id, *tokens, sep_id] for tokens in expected]
        assert len(made) > 50 and max(len(item.token_ids) for item in made) == length
        assert all(set(item.segment_ids) == {0} and not item.is_random_next for item in made)
    masked = instances_of(corpus, tmp_path, 7, nsp=False)
    for item in masked:
        assert len(item.masked_lm_positions) == min(20, max(1, round(0.15 * len(item.token_ids))))
        assert not {0, len(item.token_ids) - 1} & set(item.masked_lm_positions)


def test_records_of_single_sequences(tmp_path, golden):
    """Static, dynamic and packed records have the same sequences, with matching counts and features."""
    common = {
        "input_file": str(golden / "pretraining" / "corpus_*.txt"), "vocab_file": str(golden / "vocab.txt"),
        "nsp": False, "max_seq_length": 48, "dupe_factor": 2, "random_seed": 3, "show_progress": False,
        "num_workers": 1,
    }  # fmt: skip
    kinds = {"static": {}, "dynamic": {"masking": "dynamic"}, "packed": {"masking": "dynamic", "pack_sequences": True}}
    found, summaries = {}, {}
    for name, flags in kinds.items():
        path = str(tmp_path / f"{name}.tfrecord")
        summaries[name] = create_pretraining_data(output_file=path, **common, **flags)
        found[name] = read_records(path, **({} if name == "static" else {"names": UNMASKED_FEATURES}))
    for record in found["static"]:
        assert not any(record["segment_ids"]) and record["next_sentence_labels"] == [0]
    sequences = {"dynamic": [record["input_ids"] for record in found["dynamic"]], "packed": []}
    for record in found["dynamic"]:
        assert record["segment_lengths"] == [len(record["input_ids"]), 0]
    for record in found["packed"]:
        lengths = record["segment_lengths"]
        assert not any(lengths[1::2]) and sum(lengths) == len(record["input_ids"])
        begin = 0
        for length in filter(None, lengths):
            sequences["packed"].append(record["input_ids"][begin : begin + length])
            begin += length
    assert sorted(sequences["packed"]) == sorted(sequences["dynamic"])
    assert len(found["packed"]) < len(found["dynamic"]) == summaries["packed"]["instances"]
    tokens = sum(map(len, sequences["dynamic"]))
    for name in ("dynamic", "packed"):
        assert summaries[name]["instance_tokens"] == tokens and summaries[name]["random_next"] == 0
    assert summaries["packed"]["padding_share"] == pytest.approx(1 - tokens / (48 * len(found["packed"])))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"mask_rate": 0.7}, r"--mask_rate=0.7, --random_rate=0.1, --keep_rate=0.1 must add up to 1"),
        ({"random_rate": -0.1, "keep_rate": 0.3}, r"--random_rate=-0.1 must be from 0 to 1"),
        (
            {"masking": "dynamic", "mask_rate": 1.0, "random_rate": 0.0, "keep_rate": 0.0},
            "--masking=dynamic have no masks yet; give these to run_pretraining.py",
        ),
        ({"masking": "dynamic", "masked_lm_prob": 0.3}, "--masking=dynamic have no masks yet"),
        ({"rows": "electra", "do_whole_word_mask": True}, "--do_whole_word_mask: ELECTRA's masks know no words"),
    ],
)
def test_wrong_rates_are_named(letters, tmp_path, flags, message):
    text, vocab = letters
    folder = tmp_path / "out"
    with pytest.raises(ValueError, match=message):
        create_pretraining_data(text, str(folder / "a.tfrecord"), vocab, **flags)
    assert not folder.exists()

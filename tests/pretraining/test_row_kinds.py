"""Rows that are not BERT's pairs: ELECTRA's, whole sentences, lines, ALBERT's in order; the originals' rows."""

import itertools
import json
import random

import numpy as np
import pytest
from helpers.paths import GOLDEN, lines_of
from helpers.record_files import create, read_records

from bert_tf.pretraining import row_kinds
from bert_tf.pretraining.corpus import Corpus, TextSettings
from bert_tf.pretraining.instance_kernels import A_BEGIN, A_LENGTH
from bert_tf.pretraining.instances import InstanceSettings, create_instances, ngram_shares
from bert_tf.pretraining.model_vocabulary import read_tokenizer
from bert_tf.pretraining.token_store import tokenize
from bert_tf.text.library_tokenizer import ByteBpeTokenizer

FOLDER = GOLDEN / "pretraining"
UNMASKED = ["input_ids", "segment_lengths", "next_sentence_labels"]
ELECTRA = ["input_ids", "input_mask", "segment_ids"]
BYTE_BPE = str(GOLDEN / "tokenization" / "roberta" / "vocab.json")


def make(folder, text, vocab_file, rows, name="out", **flags):
    return create(folder, text, None, name, vocab_file=vocab_file, rows=rows, **{"max_seq_length": 32} | flags)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_rows_of_electra_are_the_originals(number, tmp_path, monkeypatch):
    monkeypatch.setattr(row_kinds, "_ROW_TOKENS", 1000)  # several calls
    described, *expected = lines_of(FOLDER / "electra" / f"setting_{number}.jsonl.gz")
    summary = make(
        tmp_path,
        None,
        GOLDEN / "electra" / "vocab.txt",
        "electra",
        input_file=FOLDER / "electra" / "corpus_*.txt",
        max_seq_length=described["max_seq_length"],
        random_seed=described["seed"],
        do_lower_case=described["do_lower_case"],
        strip_accents=described["strip_accents"] and described["do_lower_case"],
        text=TextSettings(blanks_separate_docs=described["blanks_separate_docs"]),
    )
    records = read_records(tmp_path / "out", ELECTRA)
    assert records == expected and summary["rows"] == described["rows"]
    assert summary["instance_tokens"] == sum(sum(record["input_mask"]) for record in records)


@pytest.mark.parametrize("kind", ["complete", "complete_doc"])
@pytest.mark.parametrize("limit", [8, 16, 31, 63])
def test_blocks_are_those_of_fairseq(kind, limit):
    expected = json.loads((FOLDER / "fairseq_blocks.json").read_text())
    sizes = np.array(expected["sizes"])
    sentence_ends, document_ends = np.cumsum(sizes), np.flatnonzero(sizes == 1) + 1
    place, spans, found = np.zeros(3, np.int64), np.zeros((3, 6), np.int64), []
    made = len(spans)
    while made == len(spans):  # a few rows a call
        made = row_kinds.plan_sentences(sentence_ends, document_ends, limit + 1, kind == "complete_doc", place, spans)
        found += spans[:made, [A_BEGIN, A_LENGTH]].tolist()
    assert all(0 < length < limit for _, length in found)
    blocks = [[begin, begin + length + 1] for begin, length in found]
    # What is cut is one block in fairseq, which leaves long lines to others.
    joined = [blocks[0]]
    for begin, end in blocks[1:]:
        if begin == joined[-1][1] - 1:
            joined[-1][1] = end
        else:
            joined.append([begin, end])
    assert joined == expected["blocks"][kind][str(limit)]


TEXT = "Hello world.\nHow are you?\n\nAnother one\n \u200b\n\n\nThe last."


@pytest.mark.parametrize("rows", ["full_sentences", "doc_sentences"])
def test_sentences_end_with_their_tokens(rows, tmp_path):
    summary = make(tmp_path, TEXT, BYTE_BPE, rows, max_seq_length=128)
    tokenizer = ByteBpeTokenizer(BYTE_BPE)
    begin, end = [tokenizer.cls_id], [tokenizer.sep_id]
    documents = [[tokenizer.encode(line.strip()) for line in text.split("\n")] for text in TEXT.split("\n\n") if text]
    documents = [list(itertools.chain.from_iterable([*line, *end] for line in lines if line)) for lines in documents]
    if rows == "full_sentences":
        expected = [begin + list(itertools.chain.from_iterable(document + end for document in documents))]
    else:
        expected = [begin + document for document in documents]
    records = read_records(tmp_path / "out", UNMASKED)
    assert sorted(record["input_ids"] for record in records) == sorted(expected)
    assert all(record["segment_lengths"] == [len(record["input_ids"]), 0] for record in records)
    counts = {name: summary[name] for name in ("documents", "sentences", "tokens", "rows", "instance_tokens")}
    assert [*counts.values()] == [3, 5, sum(map(len, documents)) - 5, len(expected), sum(map(len, expected))]
    assert summary["flags"]["nsp"] is False and summary["flags"]["masking"] == "dynamic"


def test_lines_are_cut_and_left_out_as_in_the_original():
    expected = json.loads((FOLDER / "dataset.json").read_text())
    sentences = [sequence[1:-1] for sequence in expected["sequences"]]
    tokens = np.array(list(itertools.chain.from_iterable(sentences)), np.uint16)
    ends = np.cumsum(list(map(len, sentences)))
    place, spans, rows = np.zeros(3, np.int64), np.zeros((2, 6), np.int64), []
    made = len(spans)
    while made == len(spans):
        made = row_kinds.plan_lines(tokens, ends, 1, expected["max_model_input_size"], place, spans)
        for begin, length in spans[:made, [A_BEGIN, A_LENGTH]].tolist():
            rows.append([2, *tokens[begin : begin + length].tolist(), 3])
    assert rows == expected["rows"] and place[2] > 0


def test_lines_of_a_text(tmp_path):
    line = "one two three four five six seven eight nine ten"
    text, vocab_file = f"{line}\n{line} eleven\n\nshort\n{line}", GOLDEN / "vocab.txt"
    summary = make(tmp_path, text, vocab_file, "lines")
    records = read_records(tmp_path / "out", UNMASKED)
    assert sorted(len(record["input_ids"]) for record in records) == [12, 12, 13]
    assert summary["rows_left_out"] == 1
    packed = make(tmp_path, text, vocab_file, "lines", "packed", pack_sequences=True)
    assert packed["rows"] == 2 and packed["instances"] == 3
    for shards in (1, 2):
        with pytest.raises(ValueError, match="no text to make records of in .*text.txt: every line is too short"):
            make(tmp_path, "short\n", vocab_file, "lines", "none", num_shards=shards)
    assert not list(tmp_path.glob("none*"))


ALBERT = GOLDEN / "pretraining" / "albert"
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
    check_setting(ALBERT, {"tiny.model": MODEL}, 8, tmp_path)


@pytest.mark.parametrize("number", [2, 3, 4, 5, 7])
def test_more_instances_are_the_originals(number, shared, tmp_path):
    """Setting 6 permutes tokens, which this project does not: run_pretraining.py of the original can't read it."""
    folder = shared / "golden" / "albert"
    vocabularies = {name: folder / name for name in ("tiny.model", "wordpiece_vocab.txt")}
    check_setting(folder / "pretraining", vocabularies, number, tmp_path)


def test_records_are_the_originals(tmp_path):
    """Both generators are seeded with --random_seed, as those of the golden data are."""
    described, *expected = lines_of(ALBERT / "setting_1.jsonl.gz")
    assert described["numpy_seed"] == described["flags"]["random_seed"] == 12345
    settings = {"max_seq_length": 64, "max_predictions_per_seq": 10, "dupe_factor": 2, "ngram": 3}
    settings |= {"next_sentence": "order", "do_whole_word_mask": True}
    summary = make(tmp_path, None, MODEL, "pairs", input_file=ALBERT / "corpus_*.txt", **settings)
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

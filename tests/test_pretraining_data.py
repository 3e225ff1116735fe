"""Pre-training instances and records against what the original made of the same text, flags and seed."""

import hashlib
import itertools
import json
import math
import os
import pathlib
import random
import subprocess
import sys

import pytest
import tensorflow as tf

from bert_tf import pretraining_data, pretraining_instances
from bert_tf.pretraining_data import (
    ExampleEncoder,
    create_pretraining_data,
    create_training_instances,
    read_documents,
    summary_path,
    write_instance_to_example_files,
)
from bert_tf.pretraining_instances import (
    TrainingInstance,
    VocabularyIds,
    create_instances_from_document,
    create_instances_from_documents,
    create_masked_lm_predictions,
    truncate_seq_pair,
)
from bert_tf.tokenization import FullTokenizer

ROOT = pathlib.Path(__file__).resolve().parents[1]

LETTERS = "[PAD] [UNK] [CLS] [SEP] [MASK] a ##a b ##b c ##c d ##d e ##e . ,".split()  # noqa: SIM905
LETTERS_CORPUS = "abc de.\na bb cad, e\nddd.\n\nb a c\ne e e e e e e e\ncab\n\ndead bead.\n"

FEATURES = (
    "input_ids",
    "input_mask",
    "segment_ids",
    "masked_lm_positions",
    "masked_lm_ids",
    "masked_lm_weights",
    "next_sentence_labels",
)


@pytest.fixture
def letters(tmp_path) -> tuple[str, str]:
    """(corpus, vocabulary): the original's results for them are known draw by draw."""
    corpus, vocab = tmp_path / "letters.txt", tmp_path / "letters_vocab.txt"
    corpus.write_text(LETTERS_CORPUS)
    vocab.write_text("\n".join(LETTERS) + "\n")
    return str(corpus), str(vocab)


def joined(numbers) -> str:
    return " ".join(map(str, numbers))


def digest_instances(instances, inv_vocab) -> str:
    digest = hashlib.sha256()
    for instance in instances:
        fields = (
            joined(instance.tokens(inv_vocab)),
            joined(instance.segment_ids),
            str(int(instance.is_random_next)),
            joined(instance.masked_lm_positions),
            joined(instance.masked_lm_labels(inv_vocab)),
        )
        digest.update(("|".join(fields) + "\n").encode())
    return digest.hexdigest()


def decode(record: bytes) -> dict:
    feature = tf.train.Example.FromString(record).features.feature
    assert set(feature) == set(FEATURES)
    return {
        name: list(feature[name].float_list.value if name == "masked_lm_weights" else feature[name].int64_list.value)
        for name in FEATURES
    }


def read_records(path) -> list[dict]:
    return [decode(record.numpy()) for record in tf.data.TFRecordDataset(str(path))]


def digest_records(records) -> str:
    lines = ("|".join(joined(record[name]) for name in FEATURES) + "\n" for record in records)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def contents(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


# ---- the original's results ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_records_are_the_originals(number, golden, tmp_path):
    expected = json.loads((golden / "pretraining" / f"setting_{number}.json").read_text())
    outputs = [tmp_path / f"part{k}.tfrecord" for k in range(expected["num_output_files"])]
    corpus = ",".join(str(golden / "pretraining" / name) for name in expected["input_files"])
    vocab = str(golden / "vocab.txt")
    summary = create_pretraining_data(
        corpus, ",".join(map(str, outputs)), vocab, **expected["flags"], show_progress=False
    )

    assert summary["instances"] == expected["num_instances"]
    assert summary["masked_positions"] == expected["total_masked"]
    assert summary["random_next"] == expected["num_random_next"]
    assert list(summary["output_files"].values()) == expected["instances_per_output_file"]
    files = [read_records(path) for path in outputs]
    assert [len(records) for records in files] == expected["instances_per_output_file"]
    assert [digest_records(records) for records in files] == expected["records_sha256_per_file"]
    for first in expected["first_instances"]:
        record = files[first["output_file"]][first["record"]]
        assert record == {name: first[name] for name in FEATURES}


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_instances_are_the_originals(number, golden):
    expected = json.loads((golden / "pretraining" / f"setting_{number}.json").read_text())
    flags = expected["flags"]
    tokenizer = FullTokenizer(str(golden / "vocab.txt"), flags.pop("do_lower_case"))
    rng = random.Random(flags.pop("random_seed"))
    files = [str(golden / "pretraining" / name) for name in expected["input_files"]]
    instances = create_training_instances(files, tokenizer, rng=rng, **flags)
    assert len(instances) == expected["num_instances"]
    assert digest_instances(instances, tokenizer.inv_vocab) == expected["instances_sha256"]
    for instance, first in zip(instances, expected["first_instances"], strict=False):
        assert instance.tokens(tokenizer.inv_vocab) == first["_tokens"]
        assert instance.masked_lm_labels(tokenizer.inv_vocab) == first["_masked_lm_labels"]


@pytest.mark.parametrize(
    ("seed", "whole_words", "max_seq_length", "max_predictions", "dupe", "short", "prob", "count", "sha256"),
    [
        (12345, False, 16, 3, 5, 0.1, 0.15, 24, "3061371144e3e610fe67a1b0e8ba3562812191b9a19317bdb8c106f57059e22e"),
        (12345, True, 16, 5, 5, 0.1, 0.3, 24, "3032c2bbbb4b9eb664819bdbcda30a003b8f7c6a8897799e1423093df976a521"),
        (7, True, 32, 8, 20, 0.5, 0.2, 98, "492b102e32da9e17115023d23ffdd70a49b0c6ee5fcbc7ed22ba482cf6e403e9"),
    ],
)
def test_digests_of_the_letters_corpus(
    letters, seed, whole_words, max_seq_length, max_predictions, dupe, short, prob, count, sha256
):
    corpus, vocab = letters
    tokenizer = FullTokenizer(vocab)
    instances = create_training_instances(
        [corpus],
        tokenizer,
        max_seq_length,
        dupe,
        short,
        prob,
        max_predictions,
        random.Random(seed),
        whole_words,
    )
    assert len(instances) == count
    assert digest_instances(instances, tokenizer.inv_vocab) == sha256


class RecordingRandom(random.Random):
    """Writes down each draw from the generator, whatever method asked for it."""

    def __init__(self, seed):
        super().__init__(seed)
        self.draws = []

    def random(self):
        self.draws.append(("random", super().random()))
        return self.draws[-1][1]

    def getrandbits(self, bits):
        self.draws.append((bits, super().getrandbits(bits)))
        return self.draws[-1][1]


# What the original draws for the letters corpus: S13 shuffles 13 things, r= is random(), i[0,2]=1 is randint(0, 2).
TRACE = """
S3 r=0.820175 i[0,2]=1 i[0,2]=1 r=0.931785 r=0.270245 r=0.436228 r=0.373064 S13 r=0.148146 r=0.718967 r=0.189971
i[1,1]=1 r=0.322039 i[0,2]=1 i[0,2]=1 i[0,2]=0 i[0,0]=0 r=0.003455 r=0.940239 S13 r=0.232621 r=0.523598 i[1,1]=1
r=0.807125 S12 r=0.301327 r=0.864551 r=0.009357 r=0.965010 i[1,2]=2 r=0.539138 r=0.156981 S13 r=0.480776 r=0.061525 S4
""".split()  # noqa: SIM905


def test_every_draw_is_the_originals(letters):
    corpus, vocab = letters
    expected = RecordingRandom(12345)
    for step in TRACE:
        if step.startswith("S"):
            expected.shuffle(list(range(int(step[1:]))))
        elif step.startswith("r"):
            assert expected.random() == pytest.approx(float(step[2:]), abs=1e-6)
        else:
            low, high = json.loads(step[1:].split("=")[0])
            assert expected.randint(low, high) == int(step.split("=")[1])

    rng = RecordingRandom(12345)
    tokenizer = FullTokenizer(vocab)
    instances = create_training_instances([corpus], tokenizer, 16, 1, 0.1, 0.15, 3, rng)
    assert rng.draws == expected.draws
    found = [
        (
            joined(instance.tokens(tokenizer.inv_vocab)),
            int(instance.is_random_next),
            instance.masked_lm_positions,
            joined(instance.masked_lm_labels(tokenizer.inv_vocab)),
        )
        for instance in instances
    ]
    assert found == [
        ("[CLS] ##e [MASK] ##d b ##e ##a ##d [SEP] ##b c ##a ##d [MASK] e [SEP]", 1, [2, 13], "##a ,"),
        ("[CLS] a b ##b c ##a [MASK] , e [SEP] d ##d ##d . [SEP]", 0, [6, 7], "##d ,"),
        ("[CLS] a ##b ##c [MASK] ##e . [SEP] ##e [MASK] ##d b ##e ##a ##d [SEP]", 1, [4, 9], "d ##a"),
        ("[CLS] a c e e e e [MASK] e e e [SEP] c ##a [MASK] [SEP]", 0, [7, 14], "e ##b"),
    ]


# ---- the pieces ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 7, 8, 9, 125, 128, 1000])
def test_shuffle_and_randint_are_those_of_random(length):
    ours, theirs = list(range(length)), list(range(length))
    rng, reference = random.Random(length), random.Random(length)
    pretraining_instances.shuffle(ours, rng)
    reference.shuffle(theirs)
    assert ours == theirs
    assert rng.getstate() == reference.getstate()
    for low, high in ((0, 0), (2, 2), (1, 2), (0, 7), (2, 125), (0, 30521), (5, 1 << 40)):
        assert pretraining_instances._randint(rng, low, high) == reference.randint(low, high)
    assert rng.getstate() == reference.getstate()


def letter_ids(text) -> list[int]:
    return [LETTERS.index(token) for token in text.split()]


def test_words_join_over_the_separator():
    tokens = letter_ids("[CLS] ##a b ##b [SEP] ##c d [SEP]")
    vocabulary = VocabularyIds.from_vocab({token: index for index, token in enumerate(LETTERS)})
    sets = pretraining_instances._word_sets(tokens, [1, 2, 3, 5, 6], vocabulary.continuations)
    assert sets == [[1], [2, 3, 5], [6]]
    outcomes = set()
    for seed in range(200):
        masked, positions, labels = create_masked_lm_predictions(
            tokens, 0.4, 20, vocabulary, random.Random(seed), do_whole_word_mask=True
        )
        assert len(masked) == len(tokens)
        assert labels == [tokens[position] for position in positions]
        assert all(masked[k] == tokens[k] for k in range(len(tokens)) if k not in positions)
        outcomes.add(tuple(positions))
    # Three of eight tokens: the word of three alone, or the two others together with no room left for it.
    assert outcomes == {(2, 3, 5), (1, 6)}


def test_whole_words_may_leave_nothing_to_predict():
    tokens = letter_ids("[CLS] a ##b [SEP] ##c ##d [SEP]")
    vocabulary = VocabularyIds.from_vocab({token: index for index, token in enumerate(LETTERS)})
    result = create_masked_lm_predictions(tokens, 0.15, 20, vocabulary, random.Random(1), do_whole_word_mask=True)
    assert result == (tokens, [], [])


@pytest.mark.parametrize(("length", "count"), [(4, 1), (10, 2), (30, 4), (50, 8), (70, 10), (128, 19), (512, 77)])
def test_number_of_predictions_rounds_half_to_even(length, count):
    vocabulary = VocabularyIds.from_vocab({token: index for index, token in enumerate(LETTERS)})
    tokens = [vocabulary.cls_id, *[5] * (length - 2), vocabulary.sep_id]
    for limit in (1, 5, 100):
        _, positions, _ = create_masked_lm_predictions(tokens, 0.15, limit, vocabulary, random.Random(3))
        assert len(positions) == min(count, limit)
        assert positions == sorted(set(positions))
        assert not {0, length - 1} & set(positions)


def test_truncation_shortens_the_longer_and_b_on_a_tie():
    class Front(random.Random):
        def random(self):
            return 0.49

    class Back(random.Random):
        def random(self):
            return 0.5

    for rng, kept_a, kept_b in ((Front(), [3, 4, 5], [12, 13]), (Back(), [1, 2, 3], [10, 11])):
        a, b = [1, 2, 3, 4, 5], [10, 11, 12, 13]
        truncate_seq_pair(a, b, 5, rng)
        assert (a, b) == (kept_a, kept_b)
    a, b = [1], [10, 11, 12]
    truncate_seq_pair(a, b, 4, Front())
    assert (a, b) == ([1], [10, 11, 12])


def test_target_length_is_drawn_once_a_document_and_pass():
    # One token a sentence and short_seq_prob 1: without random nexts all instances but the last are equally long.
    documents = [[[5]] * 60]
    vocabulary = VocabularyIds.from_vocab({token: index for index, token in enumerate(LETTERS)})
    lengths = set()
    for seed in range(20):
        instances = create_instances_from_document(documents, 0, 64, 1.0, 0.15, 10, vocabulary, random.Random(seed))
        follows = {len(i.token_ids) for i in instances[:-1] if not i.is_random_next}
        assert len(follows) <= 1
        lengths |= follows
    assert len(lengths) > 5


def test_documents_run_on_across_files(golden, tmp_path):
    (tmp_path / "0.txt").write_bytes("one\r\n\n\n\u200b\ntwo".encode())
    (tmp_path / "1.txt").write_text("three\n\u200b\nfour\n \t \nfive\n", encoding="utf-8")
    tokenizer = FullTokenizer(str(golden / "vocab.txt"))
    files = [str(tmp_path / name) for name in ("0.txt", "1.txt")]
    documents = read_documents(files, tokenizer, show_progress=False)
    words = [[joined(tokenizer.convert_ids_to_tokens(s)) for s in document] for document in documents]
    assert words == [["one"], ["two", "three", "four"], ["five"]]


def test_encoder_writes_what_protocol_buffers_read():
    generator = random.Random(0)
    encoder = ExampleEncoder(40, 6)
    for length, predictions in itertools.product((5, 17, 40), (0, 1, 6)):
        ids = [generator.choice((0, 1, 127, 128, 16383, 16384, 30521, 2097151, 2**31 - 1)) for _ in range(length)]
        positions = sorted(generator.sample(range(1, length), min(predictions, length - 1)))
        labels = [ids[position] for position in positions]
        instance = TrainingInstance(ids, 3, predictions > 0, positions, labels)
        assert decode(encoder.encode(instance)) == {
            "input_ids": ids + [0] * (40 - length),
            "input_mask": [1] * length + [0] * (40 - length),
            "segment_ids": [0] * 3 + [1] * (length - 3) + [0] * (40 - length),
            "masked_lm_positions": positions + [0] * (6 - len(positions)),
            "masked_lm_ids": labels + [0] * (6 - len(positions)),
            "masked_lm_weights": [1.0] * len(positions) + [0.0] * (6 - len(positions)),
            "next_sentence_labels": [int(predictions > 0)],
        }
    with pytest.raises(ValueError, match="41 tokens .* max_seq_length=40"):
        encoder.encode(TrainingInstance([7] * 41, 3, False, [], []))
    with pytest.raises(ValueError, match="7 predictions .* max_predictions_per_seq=6"):
        encoder.encode(TrainingInstance([7] * 40, 3, False, list(range(7)), [7] * 7))


# ---- shares on real text ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole_words", [False, True])
def test_shares_of_masks_and_random_nexts(golden, whole_words):
    tokenizer = FullTokenizer(str(golden / "vocab.txt"))
    corpus = [str(golden / "pretraining" / f"corpus_{k}.txt") for k in (0, 1)]
    assert_shares(corpus, tokenizer, whole_words, dupe_factor=5)


@pytest.mark.parametrize("whole_words", [False, True])
def test_shares_of_masks_and_random_nexts_on_novels(golden, shared, tmp_path, whole_words):
    slice_of_novel = tmp_path / "novel.txt"
    slice_of_novel.write_bytes((shared / "data/novels/train-00.txt").read_bytes()[:1_000_000].rsplit(b"\n", 1)[0])
    tokenizer = FullTokenizer(str(golden / "vocab.txt"))
    assert_shares([str(slice_of_novel)], tokenizer, whole_words, dupe_factor=2)


def assert_shares(corpus, tokenizer, whole_words, dupe_factor):
    """15% are predicted; of these 80% are [MASK], 10% any token, 10% themselves, within three sigma; half of the pairs
    that could follow each other don't."""
    documents = read_documents(corpus, tokenizer, show_progress=False)
    vocabulary = VocabularyIds.from_vocab(tokenizer.vocab)
    instances = create_instances_from_documents(
        documents, 128, dupe_factor, 0.1, 0.15, 20, vocabulary, random.Random(5), whole_words, show_progress=False
    )
    assert len(instances) > 1000
    hidden = kept = other = 0
    for instance in instances:
        length = len(instance.token_ids)
        target = min(20, max(1, round(length * 0.15)))
        predicted = len(instance.masked_lm_positions)
        assert predicted <= target if whole_words else predicted == min(target, length - 3)
        for position, label in zip(instance.masked_lm_positions, instance.masked_lm_ids, strict=True):
            token = instance.token_ids[position]
            hidden += token == vocabulary.mask_id
            kept += token == label
            other += token not in (label, vocabulary.mask_id)
            assert label not in (vocabulary.cls_id, vocabulary.sep_id)
    total = hidden + kept + other
    assert total / sum(len(instance.token_ids) for instance in instances) == pytest.approx(0.15, abs=0.004)
    for count, share in ((hidden, 0.8), (kept, 0.1), (other, 0.1)):
        assert abs(count - total * share) < 3 * math.sqrt(total * share * (1 - share))


# ---- files -----------------------------------------------------------------------------------------------------------


def test_summary_beside_the_records(letters, tmp_path):
    corpus, vocab = letters
    outputs = f"{tmp_path}/new/folder/a.tfrecord,{tmp_path}/elsewhere/b.tfrecord"
    create_pretraining_data(
        corpus, outputs, vocab, max_seq_length=16, max_predictions_per_seq=3, dupe_factor=5, show_progress=False
    )
    assert set(contents(tmp_path / "elsewhere")) == {"b.tfrecord"}
    assert set(contents(tmp_path / "new/folder")) == {"a.tfrecord", "pretraining_data.a.json"}
    summary = json.loads((tmp_path / "new/folder/pretraining_data.a.json").read_text())
    files = [read_records(path) for path in outputs.split(",")]
    records = files[0] + files[1]
    tokens = sum(sum(record["input_mask"]) for record in records)
    assert summary == {
        "flags": {
            "input_file": corpus,
            "output_file": outputs,
            "vocab_file": vocab,
            "do_lower_case": True,
            "strip_accents": True,
            "do_whole_word_mask": False,
            "max_seq_length": 16,
            "max_predictions_per_seq": 3,
            "random_seed": 12345,
            "dupe_factor": 5,
            "masked_lm_prob": 0.15,
            "short_seq_prob": 0.1,
        },
        "input_files": [corpus],
        "vocab_sha256": hashlib.sha256(("\n".join(LETTERS) + "\n").encode()).hexdigest(),
        "vocab_size": 17,
        "documents": 3,
        "sentences": 7,
        "tokens": 41,
        "unknown_share": 0.0,
        "instances": 24,
        "instance_tokens": tokens,
        "padding_share": pytest.approx(1 - tokens / (24 * 16)),
        "masked_positions": sum(int(sum(record["masked_lm_weights"])) for record in records),
        "random_next": sum(record["next_sentence_labels"][0] for record in records),
        "output_files": dict(zip(outputs.split(","), [12, 12], strict=True)),
    }


@pytest.mark.parametrize(
    ("output_file", "expected"),
    [
        ("a.tfrecord", "pretraining_data.a.json"),
        ("x/a.tf_record,y/b.tf_record", "x/pretraining_data.a.json"),
        ("x/wiki.tfrecord-00003-of-00010", "x/pretraining_data.wiki-00003-of-00010.json"),
        ("gs://bucket/run.1/data", "gs://bucket/run.1/pretraining_data.data.json"),
    ],
)
def test_summary_path(output_file, expected):
    assert summary_path(output_file) == expected


def test_more_files_than_instances(letters, tmp_path):
    corpus, vocab = letters
    tokenizer = FullTokenizer(vocab)
    instances = create_training_instances([corpus], tokenizer, 16, 1, 0.1, 0.15, 3, random.Random(12345))
    paths = [str(tmp_path / f"{k}.tfrecord") for k in range(6)]
    assert write_instance_to_example_files(instances, 16, 3, paths, show_progress=False) == [1, 1, 1, 1, 0, 0]
    assert [len(read_records(path)) for path in paths] == [1, 1, 1, 1, 0, 0]


def test_strip_accents_reaches_the_tokenizer(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nété\nete\n", encoding="utf-8")
    (tmp_path / "text.txt").write_text("Été Été\n\nÉté été\n", encoding="utf-8")
    words = {}
    for strip in (None, True, False):
        create_pretraining_data(
            str(tmp_path / "text.txt"),
            str(tmp_path / "out"),
            str(tmp_path / "vocab.txt"),
            strip_accents=strip,
            max_seq_length=8,
            max_predictions_per_seq=1,
            show_progress=False,
        )
        words[strip] = {record["masked_lm_ids"][0] for record in read_records(tmp_path / "out")}
    assert words == {None: {6}, True: {6}, False: {5}}


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"max_seq_length": 4}, "--max_seq_length=4 must be at least 5"),
        ({"max_seq_length": -1}, "--max_seq_length=-1 must be"),
        ({"max_predictions_per_seq": 0}, "--max_predictions_per_seq=0 must be at least 1"),
        ({"dupe_factor": 0}, "--dupe_factor=0 must be at least 1"),
        ({"short_seq_prob": 1.5}, "--short_seq_prob=1.5 must be a probability"),
        ({"short_seq_prob": -0.1}, "--short_seq_prob=-0.1 must be a probability"),
        ({"masked_lm_prob": 0.0}, "--masked_lm_prob=0.0 must be a probability"),
        ({"masked_lm_prob": 1.1}, "--masked_lm_prob=1.1 must be a probability"),
        ({"masked_lm_prob": math.nan}, "--masked_lm_prob=nan must be a probability"),
        ({"input_file": "{folder}/*.text"}, "--input_file: no file matches .*/\\*.text"),
        ({"input_file": "{folder}/letters.txt,{folder}/none/*.txt"}, "--input_file: no file matches .*/none/\\*.txt"),
        ({"input_file": ","}, "--input_file names no file"),
        ({"input_file": "{folder}/blank.txt"}, "no text .* in .*blank.txt"),
        ({"input_file": "{folder}/broken.txt"}, "broken.txt, line 3: not UTF-8 at byte offset 13 "),
        ({"output_file": ","}, "--output_file names no file"),
        ({"output_file": "{folder}"}, "--output_file=.* is a directory"),
        ({"output_file": "{folder}/./letters.txt"}, "--output_file=.*letters.txt would overwrite a file that is read"),
        ({"output_file": "{folder}/letters_vocab.txt"}, "--output_file=.*vocab.txt would overwrite"),
        ({"output_file": "{folder}/o1,{folder}/../{name}/o1"}, "--output_file=.*o1 is named twice"),
        ({"vocab_file": "{folder}/no_mask.txt"}, "no_mask.txt lacks \\[MASK\\]"),
        ({"vocab_file": "{folder}/twice.txt"}, "twice.txt: line 18 repeats 'b' of line 8"),
    ],
)
def test_bad_input_is_named_and_nothing_is_written(letters, tmp_path, flags, message):
    (tmp_path / "blank.txt").write_text("\n \n\u200b\n\n", encoding="utf-8")
    (tmp_path / "broken.txt").write_bytes(b"abc\r\n\nabc de \xff\n")
    (tmp_path / "no_mask.txt").write_text("\n".join(t for t in LETTERS if t != "[MASK]"))
    (tmp_path / "twice.txt").write_text("\n".join([*LETTERS, "b"]))
    (tmp_path / "out.tfrecord").write_text("of an earlier run")
    before = contents(tmp_path)
    arguments = {
        "input_file": letters[0],
        "output_file": f"{tmp_path}/out.tfrecord,{tmp_path}/out2.tfrecord",
        "vocab_file": letters[1],
        "show_progress": False,
    } | flags
    for name, value in arguments.items():
        if isinstance(value, str):
            arguments[name] = value.format(folder=tmp_path, name=tmp_path.name)
    with pytest.raises(ValueError, match=message):
        create_pretraining_data(**arguments)
    assert contents(tmp_path) == before


def test_smallest_settings_work(letters, tmp_path):
    summary = create_pretraining_data(
        letters[0],
        f"{tmp_path}/out",
        letters[1],
        max_seq_length=5,
        max_predictions_per_seq=1,
        dupe_factor=1,
        short_seq_prob=1.0,
        masked_lm_prob=1.0,
        show_progress=False,
    )
    records = read_records(tmp_path / "out")
    assert len(records) == summary["instances"] > 0
    assert all(record["input_mask"] == [1] * 5 for record in records)


def test_one_document_is_warned_of(letters, tmp_path, caplog):
    (tmp_path / "one.txt").write_text("abc de.\na bb cad, e\n")
    with caplog.at_level("WARNING", logger="absl"):
        create_pretraining_data(f"{tmp_path}/one.txt", f"{tmp_path}/out", letters[1], show_progress=False)
    assert "only one document" in caplog.text
    assert "[UNK]" not in caplog.text


def test_unknown_tokens_are_warned_of(letters, tmp_path, caplog):
    (tmp_path / "xyz.txt").write_text("abc xyz.\n\nxyz xyz\n")
    with caplog.at_level("WARNING", logger="absl"):
        summary = create_pretraining_data(f"{tmp_path}/xyz.txt", f"{tmp_path}/out", letters[1], show_progress=False)
    assert summary["unknown_share"] == 3 / 7
    assert "43% of the tokens are [UNK]" in caplog.text


def test_full_disk_leaves_what_was_there(golden, tmp_path):
    (tmp_path / "b.tfrecord").write_text("of an earlier run")
    # A limit on the size of any file written stands for the full disk.
    program = (
        "import resource, sys; from bert_tf import pretraining_data as p; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)); "
        "p.create_pretraining_data(*sys.argv[1:], dupe_factor=1, show_progress=False)"
    )
    outputs = f"{tmp_path}/a.tfrecord,{tmp_path}/b.tfrecord"
    corpus = str(golden / "pretraining" / "corpus_*.txt")
    command = [sys.executable, "-c", program, corpus, outputs, str(golden / "vocab.txt")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode != 0
    assert "File too large" in result.stderr
    assert contents(tmp_path) == {"b.tfrecord": b"of an earlier run"}


def test_unwritable_output_is_noticed_before_the_work(letters, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(pretraining_data, "read_documents", lambda *_: pytest.fail("read the text first"))
    with pytest.raises(tf.errors.OpError, match="file is not a directory"):
        create_pretraining_data(letters[0], f"{tmp_path}/file/out.tfrecord", letters[1], show_progress=False)


# ---- the command line ------------------------------------------------------------------------------------------------


def test_command_line(golden, tmp_path):
    expected = json.loads((golden / "pretraining" / "setting_4.json").read_text())
    flags = [f"--{name}={value}" for name, value in expected["flags"].items()]
    outputs = [tmp_path / f"{k}.tfrecord" for k in range(3)]
    command = [
        sys.executable,
        str(ROOT / "create_pretraining_data.py"),
        f"--input_file={golden}/pretraining/corpus_*.txt",
        f"--output_file={','.join(map(str, outputs))}",
        f"--vocab_file={golden}/vocab.txt",
        *flags,
    ]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, encoding="utf-8")
    assert result.returncode == 0, result.stderr
    assert [digest_records(read_records(path)) for path in outputs] == expected["records_sha256_per_file"]
    assert " ".join(expected["first_instances"][19]["_tokens"]) in result.stderr
    assert result.stderr.count(" tokens: ") == 20
    for step in ("tokenizing", "building instances", "writing"):
        assert f"{step}: 100%" in result.stderr


def test_flags_are_the_originals():
    program = (
        "import json, create_pretraining_data as script; flags = script.FLAGS; "
        "own = flags.get_key_flags_for_module('create_pretraining_data'); "
        "print(json.dumps({f.name: [f.flag_type(), f.default] for f in own}))"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(result.stdout) == {
        "input_file": ["string", None],
        "output_file": ["string", None],
        "vocab_file": ["string", None],
        "do_lower_case": ["bool", True],
        "do_whole_word_mask": ["bool", False],
        "max_seq_length": ["int", 128],
        "max_predictions_per_seq": ["int", 20],
        "random_seed": ["int", 12345],
        "dupe_factor": ["int", 10],
        "masked_lm_prob": ["float", 0.15],
        "short_seq_prob": ["float", 0.1],
        "strip_accents": ["bool", None],
    }


@pytest.mark.parametrize("missing", ["input_file", "output_file", "vocab_file"])
def test_required_flags(missing):
    given = [f"--{name}=x" for name in ("input_file", "output_file", "vocab_file") if name != missing]
    command = [sys.executable, str(ROOT / "create_pretraining_data.py"), *given]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode != 0
    assert f"--{missing}" in result.stderr

"""Pre-training instances: the original's, the compiled code's and the plain Python's are the same."""

import hashlib
import itertools
import json
import math
import random
import tempfile

import numpy as np
import pytest
from helpers import plain_pretraining as plain
from helpers.instances import documents_of, store_of
from helpers.pretraining_records_read import LETTERS, decode, joined

from bert_tf.pretraining import mersenne_twister, record_writer
from bert_tf.pretraining.instances import InstanceSettings, TrainingInstance, VocabularyIds, create_instances
from bert_tf.text.wordpiece import FullTokenizer


def compiled_instances(
    input_files,
    tokenizer,
    max_seq_length,
    dupe_factor,
    short_seq_prob,
    masked_lm_prob,
    max_predictions_per_seq,
    rng,
    do_whole_word_mask=False,
) -> list[TrainingInstance]:
    """`plain.create_training_instances` with the compiled code."""
    settings = InstanceSettings(
        max_seq_length, max_predictions_per_seq, dupe_factor, short_seq_prob, masked_lm_prob, do_whole_word_mask
    )
    with tempfile.TemporaryDirectory() as folder:
        store = store_of(input_files, tokenizer, folder)
        return create_instances(store, settings, VocabularyIds.of(tokenizer), rng, folder)[:]


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


@pytest.mark.parametrize("make", [plain.create_training_instances, compiled_instances])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_instances_are_the_originals(number, make, golden):
    expected = json.loads((golden / "pretraining" / f"setting_{number}.json").read_text())
    flags = expected["flags"]
    tokenizer = FullTokenizer(str(golden / "vocab.txt"), flags.pop("do_lower_case"))
    rng = random.Random(flags.pop("random_seed"))
    files = [str(golden / "pretraining" / name) for name in expected["input_files"]]
    instances = make(files, tokenizer, rng=rng, **flags)
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
@pytest.mark.parametrize("make", [plain.create_training_instances, compiled_instances])
def test_digests_of_the_letters_corpus(
    letters, make, seed, whole_words, max_seq_length, max_predictions, dupe, short, prob, count, sha256
):
    corpus, vocab = letters
    tokenizer = FullTokenizer(vocab)
    instances = make(
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
    """Records each draw from the generator, by whatever method."""

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
    instances = plain.create_training_instances([corpus], tokenizer, 16, 1, 0.1, 0.15, 3, rng)
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


def test_compiled_draws_are_those_of_random():
    """Words, `random`, `randrange` and `shuffle` from the same state, over several blocks of the generator."""
    rng = random.Random(3)
    state = mersenne_twister.generator_state(rng)
    for turn in range(1500):
        assert mersenne_twister._next_word(state) == rng.getrandbits(32)
        assert mersenne_twister.random_float(state) == rng.random()
        count = 1 + turn * turn % 70_001
        assert mersenne_twister.below(state, count) == rng.randrange(count)
    assert mersenne_twister.below(state, (1 << 32) - 1) == rng.randrange((1 << 32) - 1)
    for length in (0, 1, 2, 3, 4, 7, 8, 9, 125, 128, 1000):
        items, reference = np.arange(length), list(range(length))
        mersenne_twister.shuffle(state, items, length)
        rng.shuffle(reference)
        assert items.tolist() == reference
    restored = random.Random()
    mersenne_twister.restore(restored, state)
    assert restored.getstate() == rng.getstate()
    rng.random()  # in the middle of a block
    assert mersenne_twister._next_word(mersenne_twister.generator_state(rng)) == rng.getrandbits(32)


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
        arguments = ([str(tmp_path / "text.txt")], tokenizer, max_seq_length, 3, short, prob, max_predictions)
        mine, reference = random.Random(seed), random.Random(seed)
        found = compiled_instances(*arguments, mine, whole_words)
        assert found == plain.create_training_instances(*arguments, reference, whole_words)
        assert mine.getstate() == reference.getstate()  # the stream is in the state where the original leaves it


def test_instances_go_on_where_a_call_ended(golden, tmp_path, monkeypatch):
    """Calls of three instances at a time end in the middle of documents."""
    tokenizer = FullTokenizer(str(golden / "vocab.txt"))
    files = [str(golden / "pretraining" / "corpus_0.txt")]
    arguments = (files, tokenizer, 32, 2, 0.1, 0.15, 5)
    whole = compiled_instances(*arguments, random.Random(1))
    monkeypatch.setattr("bert_tf.pretraining.instances._INSTANCES_PER_CALL", 3)
    assert compiled_instances(*arguments, random.Random(1)) == whole
    assert len(whole) > 100


def test_records_are_those_of_the_plain_encoder(letters, tmp_path):
    corpus, vocab = letters
    tokenizer = FullTokenizer(vocab)
    store = store_of([corpus], tokenizer, tmp_path / "store")
    for length, predictions in ((16, 3), (5, 1), (300, 60)):
        settings = InstanceSettings(length, predictions, dupe_factor=3)
        instances = create_instances(store, settings, VocabularyIds.of(tokenizer), random.Random(2), str(tmp_path))
        record_writer.write_blocks(
            str(tmp_path / "out"), record_writer.masked_blocks(instances, instances.order), len(instances)
        )
        records = [record.numpy() for record in record_writer.tf.data.TFRecordDataset(str(tmp_path / "out"))]
        encode = plain.ExampleEncoder(length, predictions).encode
        assert records == [encode(instance) for instance in instances]


# ---- the pieces ------------------------------------------------------------------------------------------------------


def letters_vocabulary() -> VocabularyIds:
    special = (LETTERS.index(token) for token in ("[CLS]", "[SEP]", "[MASK]"))
    continuations = frozenset(index for index, token in enumerate(LETTERS) if token.startswith("##"))
    return VocabularyIds(*special, range(len(LETTERS)), continuations)


def letter_ids(text) -> list[int]:
    return [LETTERS.index(token) for token in text.split()]


def test_words_join_over_the_separator():
    tokens = letter_ids("[CLS] ##a b ##b [SEP] ##c d [SEP]")
    vocabulary = letters_vocabulary()
    sets = plain.word_sets(tokens, [1, 2, 3, 5, 6], vocabulary.continuations)
    assert sets == [[1], [2, 3, 5], [6]]
    outcomes = set()
    for seed in range(200):
        masked, positions, labels = plain.create_masked_lm_predictions(
            tokens, 0.4, 20, vocabulary, random.Random(seed), do_whole_word_mask=True
        )
        assert len(masked) == len(tokens)
        assert labels == [tokens[position] for position in positions]
        assert all(masked[k] == tokens[k] for k in range(len(tokens)) if k not in positions)
        outcomes.add(tuple(positions))
    # Three of eight tokens: either the word of three alone, or the two others, which leave no room for it.
    assert outcomes == {(2, 3, 5), (1, 6)}


def test_whole_words_may_leave_nothing_to_predict():
    tokens = letter_ids("[CLS] a ##b [SEP] ##c ##d [SEP]")
    vocabulary = letters_vocabulary()
    result = plain.create_masked_lm_predictions(tokens, 0.15, 20, vocabulary, random.Random(1), do_whole_word_mask=True)
    assert result == (tokens, [], [])


@pytest.mark.parametrize(("length", "count"), [(4, 1), (10, 2), (30, 4), (50, 8), (70, 10), (128, 19), (512, 77)])
def test_number_of_predictions_rounds_half_to_even(length, count):
    vocabulary = letters_vocabulary()
    tokens = [vocabulary.cls_id, *[5] * (length - 2), vocabulary.sep_id]
    for limit in (1, 5, 100):
        _, positions, _ = plain.create_masked_lm_predictions(tokens, 0.15, limit, vocabulary, random.Random(3))
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
        plain.truncate_seq_pair(a, b, 5, rng)
        assert (a, b) == (kept_a, kept_b)
    a, b = [1], [10, 11, 12]
    plain.truncate_seq_pair(a, b, 4, Front())
    assert (a, b) == ([1], [10, 11, 12])


def test_target_length_is_drawn_once_a_document_and_pass():
    # One token per sentence and short_seq_prob 1: without random nexts, all instances but the last have equal length.
    documents = [[[5]] * 60]
    vocabulary = letters_vocabulary()
    lengths = set()
    for seed in range(20):
        instances = plain.create_instances_from_document(
            documents, 0, 64, 1.0, 0.15, 10, vocabulary, random.Random(seed)
        )
        follows = {len(i.token_ids) for i in instances[:-1] if not i.is_random_next}
        assert len(follows) <= 1
        lengths |= follows
    assert len(lengths) > 5


def test_documents_run_on_across_files(golden, tmp_path):
    (tmp_path / "0.txt").write_bytes("one\r\n\n\n\u200b\ntwo".encode())
    (tmp_path / "1.txt").write_text("three\n\u200b\nfour\n \t \nfive\n", encoding="utf-8")
    tokenizer = FullTokenizer(str(golden / "vocab.txt"))
    files = [str(tmp_path / name) for name in ("0.txt", "1.txt")]
    documents = documents_of(store_of(files, tokenizer, tmp_path / "store"))
    words = [[joined(tokenizer.convert_ids_to_tokens(s)) for s in document] for document in documents]
    assert words == [["one"], ["two", "three", "four"], ["five"]]


def test_encoder_writes_what_protocol_buffers_read():
    generator = random.Random(0)
    encoder = plain.ExampleEncoder(40, 6)
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
    """15% are predicted; of these 80% are [MASK], 10% random, 10% unchanged, within three sigma; half of the pairs
    that could be consecutive are not."""
    vocabulary = VocabularyIds.of(tokenizer)
    instances = compiled_instances(corpus, tokenizer, 128, dupe_factor, 0.1, 0.15, 20, random.Random(5), whole_words)
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

"""Records of random texts and settings are those of plain Python, byte for byte, and the draws of compiled code."""

import dataclasses
import itertools
import random

import numba
import numpy as np
import pytest
import tensorflow as tf
from helpers import plain_pretraining as plain
from helpers.record_files import UNMASKED_FEATURES, read_records
from helpers.slow import slow

from bert_tf.pretraining import instance_kernels, instances, shard
from bert_tf.pretraining.create import create_pretraining_data
from bert_tf.pretraining.instances import InstanceSettings, TrainingInstance
from bert_tf.system.numba_compile import interpreted
from bert_tf.text import word_boundaries
from bert_tf.text.word_boundaries import WordBoundaries
from bert_tf.text.wordpiece import FullTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdAé가日😀#"
ODD = ["\0", "\u200b", "\u0301", "İ", "Σ", "\t", "\u3000", ".", ",", "a\u2028b", "z"]
CONTINUES = 1 << 20  # added by the plain code to the id of a token that continues a word


def random_vocabulary(generator: random.Random) -> list[str]:
    """Every letter, alone and with ##, and pieces that are prefixes of each other."""
    pieces = {"".join(generator.choices(LETTERS, k=generator.randint(1, 4))) for _ in range(60)}
    tokens = [*LETTERS, *("##" + char for char in LETTERS), *(generator.choice(("", "##")) + one for one in pieces)]
    tokens = sorted({*tokens, "e", "##e", ".", ","})
    generator.shuffle(tokens)
    return SPECIAL + tokens


def random_text(generator: random.Random, documents: int) -> str:
    """Documents of one sentence and of many, sentences of one token and of hundreds."""
    lines = []
    for _ in range(documents):
        for _ in range(generator.choice((1, 2, 30))):
            count = generator.choice((1, 2, 10, 120))
            words = ["".join(generator.choices(LETTERS, k=generator.randint(1, 9))) for _ in range(count)]
            for _ in range(generator.choice((0, 0, 3))):
                words.insert(generator.randrange(count), generator.choice(ODD))
            line = " ".join(words).replace(" ", "\r", count // 120)
            lines.append(generator.choice(("", " ")) + line + generator.choice(("", " ", "\r")))
        lines += [*generator.choice((["\0"], ["", " "], [""])), ""]
    return "\n".join(lines) + generator.choice(("", "\n"))


def plain_instances(files, tokenizer, settings, seed, boundaries: WordBoundaries | None) -> list[TrainingInstance]:
    """Instances of plain Python; ids of tokens that continue a word are CONTINUES larger."""

    def tokenize(line: str) -> list[int]:
        ids = tokenizer.encode(line)
        flags = boundaries.continuations(line) if boundaries else [False] * len(ids)
        return [index + CONTINUES * flag for index, flag in zip(ids, flags, strict=True)]

    vocabulary = plain.VocabularyIds.of(tokenizer)
    if boundaries:
        vocabulary = dataclasses.replace(vocabulary, continuations=frozenset(range(CONTINUES, 2 * CONTINUES)))
    documents = plain.read_documents(files, tokenize)
    return plain.create_instances_from_documents(documents, settings, vocabulary, random.Random(seed))


def encoded(instances, settings) -> list[bytes]:
    records = []
    for one in instances:
        ids = {name: [k % CONTINUES for k in getattr(one, name)] for name in ("token_ids", "masked_lm_ids")}
        plain_one = dataclasses.replace(one, **ids)
        records.append(plain.encode(plain_one, settings.max_seq_length, settings.max_predictions_per_seq))
    return records


def unmasked(one: TrainingInstance) -> tuple:
    """(ids, whether each continues a word, tokens of both segments, label)."""
    ids, flags = [index % CONTINUES for index in one.token_ids], [index // CONTINUES for index in one.token_ids]
    return ids, flags, [one.second_start, len(ids) - one.second_start], int(one.is_random_next)


def pairs_of(record: dict) -> list[tuple]:
    pairs, begin, lengths = [], 0, record["segment_lengths"]
    flags = record.get("word_continuations", [0] * len(record["input_ids"]))
    for number, label in enumerate(record["next_sentence_labels"]):
        segments = lengths[2 * number : 2 * number + 2]
        part = slice(begin, begin + sum(segments))
        pairs += [(record["input_ids"][part], flags[part], segments, label)] if segments[0] else []
        begin += sum(segments)
    assert begin == len(record["input_ids"]) == len(flags)
    return pairs


# max_seq_length, max_predictions_per_seq, dupe_factor, short_seq_prob, masked_lm_prob
SIZES = [
    (5, 1, 3, 1.0, 1.0), (12, 3, 3, 0.5, 0.5), (64, 10, 2, 0.1, 0.15), (200, 40, 3, 0.9, 0.3), (300, 60, 9, 0, 0.15),
]  # fmt: skip
WORDS = [{}, {"do_whole_word_mask": True}, {"do_whole_word_mask": True, "word_boundaries": "spaces"},
         {"do_whole_word_mask": True, "segmenter": "pairs"}]  # fmt: skip


KINDS = [
    {}, {"nsp": False, "mask_rate": 0.0, "random_rate": 0.8, "keep_rate": 0.2}, {"masking": "dynamic"},
    {"masking": "dynamic", "pack_sequences": True}, {"masking": "dynamic", "pack_sequences": True, "nsp": False},
    {"mask_rate": 1.0, "random_rate": 0.0, "keep_rate": 0.0},
]  # fmt: skip


@pytest.mark.parametrize("seed", range(24))
def test_records(seed, tmp_path, monkeypatch):
    generator = random.Random(seed)
    pairs = lambda text: [text[k : k + 2] for k in range(0, len(text), 2)]  # noqa: E731
    monkeypatch.setitem(word_boundaries.SEGMENTERS, "pairs", lambda: pairs)
    if seed % 2:  # compiled, and called again in the middle of documents
        monkeypatch.setattr(shard, "BYTES_INTERPRETED", 0)
        monkeypatch.setattr(instances, "_INSTANCES_PER_CALL", 3)
    words, kind = WORDS[seed // 6], KINDS[(seed // 2 + seed // 12) % 6]
    casing = {"do_lower_case": seed % 3 > 0, "strip_accents": (None, True, False)[seed % 4 % 3]}
    (tmp_path / "vocab.txt").write_text("\n".join(random_vocabulary(generator)), encoding="utf-8")
    files = [str(tmp_path / f"{number}.txt") for number in range(2)]
    for path, documents in zip(files, generator.choice(((1, 1), (2, 15))), strict=True):
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(random_text(generator, documents))
    outputs = [str(tmp_path / f"out{number}") for number in range(1 + seed % 3 // 2)]
    names = ("max_seq_length", "max_predictions_per_seq", "dupe_factor", "short_seq_prob", "masked_lm_prob")
    sizes, vocab_file = dict(zip(names, SIZES[seed % 5], strict=True)), str(tmp_path / "vocab.txt")
    is_dynamic, has_words = "masking" in kind, len(words) > 1
    if is_dynamic:
        del sizes["masked_lm_prob"]
    summary = create_pretraining_data(
        ",".join(files), ",".join(outputs), vocab_file, random_seed=seed, show_progress=False,
        **casing, **sizes, **words, **kind,
    )  # fmt: skip
    tokenizer = FullTokenizer(vocab_file, **casing)
    boundaries = WordBoundaries(tokenizer, words.get("segmenter")) if has_words else None
    own = {name: value for name, value in (sizes | kind).items() if name not in ("masking", "pack_sequences")}
    if is_dynamic:
        own["max_predictions_per_seq"] = 0
    settings = InstanceSettings(**own, do_whole_word_mask=bool(words))
    made = plain_instances(files, tokenizer, settings, seed, boundaries)
    tokens = sum(len(one.token_ids) for one in made)
    counts = {"instances": len(made), "instance_tokens": tokens, "random_next": sum(one.is_random_next for one in made)}
    assert counts.items() <= summary.items()
    assert summary["padding_share"] == pytest.approx(1 - tokens / (summary["rows"] * settings.max_seq_length))
    for number, path in enumerate(outputs):
        expected = made[number :: len(outputs)]
        if not is_dynamic:
            assert list(tf.data.TFRecordDataset(path).as_numpy_iterator()) == encoded(expected, settings)
            continue
        records = read_records(path, (*UNMASKED_FEATURES, *["word_continuations"] * has_words))
        read, expected = list(map(pairs_of, records)), list(map(unmasked, expected))
        if "pack_sequences" not in kind:
            assert read == [[one] for one in expected]
            continue
        assert sorted(itertools.chain.from_iterable(read)) == sorted(expected)
        assert all(
            len(row) <= 8 and len(record["input_ids"]) <= settings.max_seq_length
            for row, record in zip(read, records, strict=True)
        )
        assert len(records) < len(expected) or settings.max_seq_length < 64


@numba.njit
def _draw(counts):
    floats, numbers, of_numpy = np.empty(len(counts)), np.empty(len(counts), np.int64), np.empty(len(counts))
    for k in range(len(counts)):
        floats[k], numbers[k] = instance_kernels.uniform(), instance_kernels.below(counts[k])
        of_numpy[k] = instance_kernels.uniform_of_numpy()
    return floats, numbers, of_numpy


@pytest.mark.parametrize("compiled", [*slow(True), False])
def test_draws_are_those_of_the_generators(compiled):
    rng, plain = random.Random(3), random.Random(3)
    numpy_rng, plain_numpy = np.random.RandomState(7), np.random.RandomState(7)
    rng.random()  # in the middle of a block
    plain.random()
    counts = np.array([1 + turn * turn % 70_001 for turn in range(1500)] + [(1 << 32) - 1])
    with interpreted(not compiled), instance_kernels.drawing_from(rng, numpy_rng):
        drawn = (_draw if compiled else _draw.py_func)(counts)
        for one in zip(counts.tolist(), *(values.tolist() for values in drawn), strict=True):
            assert one[1:] == (plain.random(), plain.randrange(one[0]), plain_numpy.random_sample())
        for length in (0, 1, 2, 3, 4, 7, 8, 9, 125, 128, 1000):
            items, reference = np.arange(length), list(range(length))
            instance_kernels.shuffle(items, length)
            plain.shuffle(reference)
            assert items.tolist() == reference
    assert rng.getstate() == plain.getstate() and numpy_rng.random_sample() == plain_numpy.random_sample()

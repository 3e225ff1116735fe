"""Records of random texts and settings are, byte for byte, those of plain Python (helpers/plain_pretraining.py)."""

import dataclasses
import random

import pytest
import tensorflow as tf
from helpers import plain_pretraining as plain

from bert_tf.pretraining import instances, shard
from bert_tf.pretraining.create import create_pretraining_data
from bert_tf.pretraining.instances import InstanceSettings, TrainingInstance
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
            lines.append(generator.choice(("", " ")) + " ".join(words) + generator.choice(("", " ", "\r")))
        lines += [*generator.choice((["\0"], ["", " "], [""])), ""]
    return "\n".join(lines) + generator.choice(("", "\n"))


def plain_records(files, tokenizer, settings, seed, boundaries: WordBoundaries | None) -> list[bytes]:
    def tokenize(line: str) -> list[int]:
        ids = tokenizer.encode(line)
        flags = boundaries.continuations(line) if boundaries else [False] * len(ids)
        return [index + CONTINUES * flag for index, flag in zip(ids, flags, strict=True)]

    vocabulary = plain.VocabularyIds.of(tokenizer)
    if boundaries:
        vocabulary = dataclasses.replace(vocabulary, continuations=frozenset(range(CONTINUES, 2 * CONTINUES)))
    documents = plain.read_documents(files, tokenize)
    made = plain.create_instances_from_documents(documents, settings, vocabulary, random.Random(seed))
    encoder = plain.ExampleEncoder(settings.max_seq_length, settings.max_predictions_per_seq)
    return [
        encoder.encode(TrainingInstance(
            [index % CONTINUES for index in one.token_ids], one.second_start, one.is_random_next,
            one.masked_lm_positions, [index % CONTINUES for index in one.masked_lm_ids],
        ))
        for one in made
    ]  # fmt: skip


# max_seq_length, max_predictions_per_seq, dupe_factor, short_seq_prob, masked_lm_prob
SIZES = [
    (5, 1, 3, 1.0, 1.0),
    (12, 3, 3, 0.5, 0.5),
    (64, 10, 2, 0.1, 0.15),
    (200, 40, 3, 0.9, 0.3),
    (300, 60, 9, 0, 0.15),
]
WORDS = [{}, {"do_whole_word_mask": True}, {"do_whole_word_mask": True, "word_boundaries": "spaces"},
         {"do_whole_word_mask": True, "segmenter": "pairs"}]  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_records(seed, tmp_path, monkeypatch):
    generator = random.Random(seed)
    pairs = "chinese", lambda: lambda text: [text[k : k + 2] for k in range(0, len(text), 2)]
    monkeypatch.setitem(word_boundaries.SEGMENTERS, "pairs", pairs)
    if seed % 2:  # compiled, and called again in the middle of documents
        monkeypatch.setattr(shard, "BYTES_INTERPRETED", 0)
        monkeypatch.setattr(instances, "_INSTANCES_PER_CALL", 3)
    words = WORDS[seed // 5]
    casing = {"do_lower_case": seed % 3 > 0, "strip_accents": (None, True, False)[seed % 4 % 3]}
    (tmp_path / "vocab.txt").write_text("\n".join(random_vocabulary(generator)), encoding="utf-8")
    files = [str(tmp_path / f"{number}.txt") for number in range(2)]
    for path, documents in zip(files, generator.choice(((1, 1), (2, 15))), strict=True):
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(random_text(generator, documents))
    outputs = [str(tmp_path / f"out{number}") for number in range(1 + seed % 3 // 2)]
    names = ("max_seq_length", "max_predictions_per_seq", "dupe_factor", "short_seq_prob", "masked_lm_prob")
    sizes, vocab_file = dict(zip(names, SIZES[seed % 5], strict=True)), str(tmp_path / "vocab.txt")
    summary = create_pretraining_data(
        ",".join(files),
        ",".join(outputs),
        vocab_file,
        random_seed=seed,
        show_progress=False,
        **casing,
        **sizes,
        **words,
    )
    tokenizer = FullTokenizer(vocab_file, **casing)
    boundaries = WordBoundaries(tokenizer, words.get("segmenter")) if len(words) > 1 else None
    settings = InstanceSettings(**sizes, do_whole_word_mask=bool(words))
    expected = plain_records(files, tokenizer, settings, seed, boundaries)
    assert summary["instances"] == len(expected)
    for number, path in enumerate(outputs):
        assert list(tf.data.TFRecordDataset(path).as_numpy_iterator()) == expected[number :: len(outputs)]

"""Byte-level BPE as a graph compared with `ByteBpeTokenizer`: same ids and offsets, here and in an export."""

import gzip
import json
import random
import unicodedata

import pytest
import tensorflow as tf
import tokenizers
from helpers.odd_texts import odd_texts
from helpers.op_by_op import assert_graph_equal, op_by_op
from helpers.paths import GOLDEN
from helpers.slow import slow

from bert_tf.text.byte_bpe import ByteBpeTokenizer

ORACLE = GOLDEN / "tokenization" / "roberta"
BY_HAND = [
    "", " ", "a", "  a  ", "aaaaaaa", "''s 's'st x'll'rell d re'v'e  'S", "eeeeeeee ssssss", "'", "''''s", "x's", "1's",
    "a\u3000b", "a \u3000 b", "a\n\nb", "a \n", "\t a", "'\u00e9s", " 's", "\n's", "don't've", "'re", "'r", "'lll",
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer():
    return ByteBpeTokenizer.from_pretrained(str(ORACLE))


@pytest.fixture(scope="module")
def graph(tokenizer):
    return tokenizer.to_graph()


def golden_texts() -> list[str]:
    with gzip.open(ORACLE / "tokenization.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file]


@pytest.mark.parametrize("count", [1500, *slow(100_000)])
def test_golden_and_odd_strings(tokenizer, graph, count):
    assert_graph_equal(tokenizer, [*BY_HAND, *golden_texts(), *odd_texts(count)], graph)


def trained(path, texts, size, **settings) -> ByteBpeTokenizer:
    """A tokenizer with merges of `texts`."""
    trainer = tokenizers.ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer.train_from_iterator(texts, vocab_size=size, min_frequency=1, show_progress=False, special_tokens=special)
    path.mkdir()
    trainer.save_model(str(path))
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return ByteBpeTokenizer.from_pretrained(str(path))


def test_other_merges(tmp_path):
    """A list of merges of odd strings themselves, whose pieces span characters; with a space before each text."""
    texts = list(odd_texts(1000, seed=2))
    with op_by_op():
        assert_graph_equal(trained(tmp_path / "model", texts, 2000, add_prefix_space=True), [*BY_HAND, *texts])


@pytest.mark.parametrize("step", [23, *slow(1)])
def test_every_code_point(tokenizer, graph, step):
    """How it is split from letters, digits and spaces, by the library itself."""
    codes = [code for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF and (code < 0x3000 or code % step == 0)]
    codes = [code for code in codes if code < 0x32000 or code % 31 == 0]
    texts = [
        "".join(f"a{chr(code)}1 {chr(code)}{chr(code)}a!{chr(code)}! " for code in codes[first : first + 50])
        for first in range(0, len(codes), 50)
    ]
    assert_graph_equal(tokenizer, texts, graph)
    assert {unicodedata.category(chr(code))[0] for code in codes} == set("CLMNPSZ")


def test_long_words_and_odd_bytes(tokenizer, graph):
    letters = "".join(random.Random(1).choices("ehtsaio", k=20_000))
    assert_graph_equal(
        tokenizer, ["e" * 10_000, letters, "the " * 5000, "\u00e9" * 1000, " " * 1000, "\n" * 999 + "a"], graph
    )
    texts = [b"caf\xc3\xa9 \xff\xfehouse\xc3", b"\x00a", b"\xed\xa0\x80 b", b"\xf5"]
    assert graph.encode(tf.constant(texts)).to_list() == tokenizer.encode_batch(texts)
    for empty in (graph.encode(tf.zeros([0], tf.string)), *graph.tokenize(tf.zeros([0], tf.string))):
        assert empty.to_list() == [] and empty.dtype == tf.int32
    assert graph.encode(tf.constant(["", ""])).to_list() == [[], []]


def test_what_a_graph_cannot_follow(tmp_path):
    values = json.loads((ORACLE / "tokenizer.json").read_text(encoding="utf-8"))
    model = values["model"]
    cases = {
        "a normalizer": {**values, "normalizer": {"type": "NFC"}},
        "merges of pieces that later merges make": {**values, "model": {**model, "merges": model["merges"][::-1]}},
    }
    for number, (reason, content) in enumerate(cases.items()):
        path = tmp_path / str(number)
        path.mkdir()
        (path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(ValueError, match=f"has {reason}, which an exported graph can't follow exactly") as caught:
            ByteBpeTokenizer.from_pretrained(str(path)).to_graph()
        assert "\n" not in str(caught.value)

"""ALBERT's tokenizer as a graph compared with `SentencePieceTokenizer`: same ids and offsets, here and in an export."""

import gzip
import json
import random
import unicodedata

import pytest
import sentencepiece
import tensorflow as tf
from helpers.odd_texts import odd_texts
from helpers.op_by_op import assert_graph_equal, op_by_op
from helpers.paths import GOLDEN
from helpers.slow import slow

from bert_tf.text.graphs import graph_of
from bert_tf.text.sentence_piece import SentencePieceTokenizer

ORACLE = GOLDEN / "tokenization" / "albert"
BY_HAND = [
    "", " ", "a", " \u0301", "a \u0301", "\u0301a\u0301\u0300 b", "9,1, 2019,2019, \u200b9\u200b,", "a9,",
    "\u2581 \u25819,", "a\u03a3", "\u03a3a", "\u039f\u0394\u039f\u03a3 \u039f\u03a3.", "a\u03a3'", "a\u03a3'b",
    "\u03a3", "A\u03a3\u0301", "\ufdfa", "\u00bd,", "\u212b\u1e9b\u0323", "\ud55c\uae00", "\u1112\u1161", "[CLS] <pad>",
    "a\x00\x1cb", "  a  b  ",
]  # fmt: skip


@pytest.fixture(scope="module", params=[True, False], ids=["lower", "cased"])
def tokenizer(request):
    return SentencePieceTokenizer(str(ORACLE / "tiny.model"), do_lower_case=request.param)


@pytest.fixture(scope="module")
def graph(tokenizer):
    with op_by_op(not tokenizer.do_lower_case):
        yield graph_of(tokenizer)


@pytest.mark.parametrize("count", [1500, *slow(100_000)])
def test_golden_and_odd_strings(tokenizer, graph, count):
    with gzip.open(ORACLE / "tokenization.jsonl.gz", "rt", encoding="utf-8") as file:
        golden = [json.loads(line)["text"] for line in file]
    assert_graph_equal(tokenizer, [*BY_HAND, *golden, *odd_texts(count)], graph, ties=count // 20_000)


def test_pieces_of_equal_scores(tokenizer, graph):
    """Rounding decides between them, as in the library."""
    rng = random.Random(0)
    texts = [" ".join("".join(rng.choices("l3se9", k=rng.randrange(1, 7))) for _ in range(9)) for _ in range(1000)]
    assert graph.encode(tf.constant(texts)).to_list() == tokenizer.encode_batch(texts)
    assert graph._op.tokenize(texts).to_list() != graph._fast.tokenize(texts).to_list()


@pytest.mark.parametrize("step", [29, *slow(1)])
def test_every_code_point(tokenizer, graph, step):
    codes = [code for code in range(0x32000) if not 0xD800 <= code <= 0xDFFF and (code < 0x3000 or code % step == 0)]
    codes += [*range(0xE0000, 0xE0200, step), *range(0xF0000, 0x110000, 997)]
    texts = [
        " ".join(f"{chr(code)} a{chr(code)}b" for code in codes[first : first + 40])
        for first in range(0, len(codes), 40)
    ]
    assert_graph_equal(tokenizer, texts, graph)
    assert {unicodedata.category(chr(code))[0] for code in codes} == set("CLMNPSZ")


def test_odd_bytes_and_empty_batches(tokenizer, graph):
    texts = [b"caf\xc3\xa9 \xff\xfehouse\xc3", b"\xed\xa0\x80 b", b"\xf5", b"the " * 3000]
    assert graph.encode(tf.constant(texts)).to_list() == tokenizer.encode_batch(texts)
    for empty in (graph.encode(tf.zeros([0], tf.string)), *graph.tokenize(tf.zeros([0], tf.string))):
        assert empty.to_list() == [] and empty.dtype == tf.int32


def trained(path, texts, **settings) -> SentencePieceTokenizer:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=str(path), pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, minloglevel=2,
        pad_piece="<pad>", control_symbols=["[CLS]", "[SEP]", "[MASK]"], hard_vocab_limit=False, **settings,
    )  # fmt: skip
    return SentencePieceTokenizer(f"{path}.model")


def test_other_models(tmp_path):
    """One with pieces of odd characters; and those that a graph can't follow."""
    first = SentencePieceTokenizer(str(ORACLE / "tiny.model"))
    texts = [text.replace("\0", "") for text in odd_texts(1500, seed=3)]
    made = [first.normalize_prepared(first.preprocess(text)) for text in texts]
    # The models compose letters of Hangul, and vowel signs of India, which preprocessing takes apart.
    plain = [text for text, result in zip(texts, made, strict=True) if unicodedata.is_normalized("NFKD", result)]
    assert len(plain) > 750
    other = trained(tmp_path / "other", map(first.preprocess, plain), vocab_size=3000, character_coverage=0.98)
    with op_by_op():
        assert_graph_equal(other, [*BY_HAND, *plain], graph_of(other))
    hangul = trained(tmp_path / "hangul", ["\ud55c\uae00 \uad6d\uc5b4 a b"] * 50, vocab_size=20)
    with pytest.raises(ValueError, match="composed characters .*, which an exported graph can't follow exactly"):
        graph_of(hangul)
    spaces = trained(tmp_path / "spaces", ["the harbour  wakes"] * 50, vocab_size=20, remove_extra_whitespaces=False)
    with pytest.raises(ValueError, match="keeps repeated spaces, which an exported graph can't follow exactly"):
        graph_of(spaces)

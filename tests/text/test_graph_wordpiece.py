"""Word pieces in TensorFlow graphs give what Python gives; words for whole-word masking, by spaces and segmenters."""

import importlib.util
import itertools
import marshal
import random
import unicodedata

import pytest
import tensorflow as tf
from helpers.basics import slow
from helpers.outputs import assert_graph_equal, op_by_op

from bert_tf.text.graph_wordpiece import graph_of
from bert_tf.text.word_boundaries import SEGMENTERS, WordBoundaries
from bert_tf.text.wordpiece import BasicTokenizer, FullTokenizer

MODES = {"uncased": (True, None), "cased": (False, None), "lower": (True, False), "stripped": (False, True)}
VARIANTS = [("uncased", True), ("cased", False)]
OTHERS = [(mode, split) for mode in MODES for split in (False, True) if (mode, split) not in VARIANTS]


def tokenizer_of(path, tokens, mode) -> FullTokenizer:
    path.write_text("".join(token + "\n" for token in tokens), encoding="utf-8")
    return FullTokenizer(str(path), *MODES[mode])


@pytest.fixture
def untraced(request):
    """Small forms run the graph's ops one by one; tests without this fixture trace the graph."""
    with op_by_op(request.node.get_closest_marker("slow") is None):
        yield


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize(("mode", "thinned"), [("uncased", True), *slow(*((mode, False) for mode in MODES))])
def test_every_code_point(tmp_path, mode, thinned):
    """Alone and between letters, with a vocabulary that distinguishes all characters that a token can contain.

    Ideographs, Hangul and unassigned code points, which fill whole blocks of equals, can be thinned out."""
    codes = [code for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF and (code < 0x1F000 or code % 97 < 2)]
    codes += [code for code in range(0xE0000, 0xE0200) if code % 97 >= 2]
    if thinned:
        alike = ("Lo", "Cn", "Co")
        codes = [c for c in codes if c < 0x3400 or c % 7 == 0 or unicodedata.category(chr(c)) not in alike]
    basic = BasicTokenizer(*MODES[mode])
    held = {char for token in basic.tokenize(" ".join(map(chr, codes))) for char in token}
    known = sorted(char for char in held if unicodedata.category(char) not in ("Cn", "Co") and ord(char) % 16)
    tokens = ["[UNK]", *known, *("##" + char for char in known), *("A##B" if mode == "cased" else "a##b").split("B")]
    tokenizer = tokenizer_of(tmp_path / "vocab.txt", dict.fromkeys(tokens), mode)
    words = [f"{chr(code)} A{chr(code)}B" for code in codes]
    texts = [" ".join(words[first : first + 200]) for first in range(0, len(codes), 200)]
    assert assert_graph_equal(tokenizer, texts) > 2 * len(codes)


SPECIAL = list("ABab.,'#$: \t\n\0\ufffd\u200b\u00ad\u200d\u0130\u03a3\u03c3\u00df\u1e9e\u2260\u212b\ud55c\uae00\u4e00")
SPECIAL += list("\u0344\u0f73\u034f\u0345\u2019\u3042\U0002f800\U0001d15f\U0001f4a9")
ASSIGNED = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) not in ("Cn", "Co", "Cs")]
MARKS = [char for char in ASSIGNED if unicodedata.category(char)[0] == "M"]
# Marks that accent stripping keeps and that are reordered.
MOVING = [char for char in MARKS if unicodedata.combining(char) and unicodedata.category(char) != "Mn"]


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize(("mode", "split_unknown"), [*VARIANTS, *slow(*OTHERS)])
def test_odd_texts_and_vocabularies(tmp_path, mode, split_unknown):
    """Also characters of ASCII in pairs: rows of these the op splits by itself, unless control characters send them
    along the other path."""
    rng = random.Random(f"{mode} {split_unknown}")
    chars = [chr(code) for code in range(128)]
    pairs = [f"{''.join(pair)} x{''.join(pair)}Y" for pair in itertools.product(chars, chars) if rng.random() < 0.2]
    kinds = [*[SPECIAL] * 5, *[MARKS] * 2, *[MOVING] * 2, "\u0391\u0392\u03a3", ASSIGNED]
    for size in (100, 5000):
        lengths = (rng.choice([3, 8, 40]) for _ in range(1000))
        texts = ["".join(map(rng.choice, rng.choices(kinds, k=rng.randrange(length)))) for length in lengths]
        basic = BasicTokenizer(*MODES[mode])
        if basic.strip_accents:  # the test has marks that are reordered inside a token
            moved = [places for text in texts for _, places in basic.tokenize_with_origins(text)]
            assert sum(places != sorted(places) for places in moved) > 50
        parts = set()
        for token in itertools.chain.from_iterable(map(basic.tokenize, texts)):
            first = rng.randrange(len(token))
            part = token[first : first + rng.randrange(1, 5)]
            parts |= {"##" + part if first else part, token[:2], "##" + token[-1]}
        parts = rng.sample(sorted(parts), min(size, len(parts)))
        tokens = ["[UNK]", "A", "", "##", "#", "[UNK]x", "b", "A", "##b", *parts]  # as in published ones
        tokens += [*"xY0.", "##a", "##Y", "##xy", "xa", "##.", "[CLS]", "##[UNK]"]
        tokenizer = tokenizer_of(tmp_path / "vocab.txt", tokens, mode)
        assert assert_graph_equal(tokenizer, [*texts, *pairs], None, split_unknown) > 2000


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("split_unknown", [True, *slow(False)])
def test_long_words_and_texts(tmp_path, split_unknown):
    tokens = ["[UNK]", "a", "##a", "i", "##i", "\u1112", "##\u1161", "##\u11ab", "##\u1112", "e", "##e", ".", "b"]
    tokenizer = tokenizer_of(tmp_path / "vocab.txt", tokens, "uncased")
    words = ["a" * 200, "a" * 201, "\u0130" * 200, "\u0130" * 201, "\ud55c" * 66 + "aa", "\ud55c" * 67, "\u00e9" * 201]
    words += ["a" * 150 + "." + "a" * 150, "." + "a" * 201 + ".b"]
    letters = "".join(random.Random(1).choices("ab\u00e9", k=20_000))
    texts = [*words, " ".join(words), letters, "a" * 20_000, "a " * 10_000, "\u03a3" * 1000, "\u00e9 " * 10_000]
    graph = graph_of(tokenizer, split_unknown)
    assert_graph_equal(tokenizer, texts, graph, split_unknown)
    ids = graph.encode(tf.constant(words)).to_list()
    assert ids[0] == [1] + [2] * 199 and ids[1] == ([1] + [2] * 200 if split_unknown else [0])
    assert ids[2] == [3] + [4] * 199 and len(ids[4]) == 200


def test_invalid_bytes_are_left_out_as_by_python(english):
    english_graph = graph_of(english)
    starts = bytes.fromhex("41 80 9F A0 BF C0 C1 C3 E0 E5 ED EF F0 F1 F4 F5 FE FF")
    texts = [bytes(parts) for length in (1, 2) for parts in itertools.product(starts, repeat=length)]
    rng = random.Random(1)
    texts += [bytes(rng.choices([*starts, 0x8F, 0x90, 0x20], k=rng.randrange(3, 12))) for _ in range(1000)]
    texts = [b"x" + text + b"y" if number % 2 else text for number, text in enumerate(texts)]
    assert_graph_equal(english, texts, graph=english_graph)
    assert english_graph.encode(tf.constant([b"caf\xc3\xa9 \xff\xfehouse\xc3"])).to_list() == [[7668, 2160]]
    for empty in (english_graph.encode(tf.zeros([0], tf.string)), *english_graph.tokenize(tf.zeros([0], tf.string))):
        assert empty.to_list() == [] and empty.dtype == tf.int32


@pytest.mark.usefixtures("untraced")
def test_vocabularies_that_do_not_fit(tmp_path):
    long = "\u00e9" * 128
    for tokens, message in (
        (["text,label", "a film,1"], r"vocab\.txt has texts and no \[CLS\], \[SEP\], .*: it is not a vocabulary"),
        (["a"], r"vocab\.txt: .*\. Exports of this model take ids"),
        (["[UNK]", f"##{long}\u00e9"], r"vocab\.txt: .*\. Exports of this model take ids"),
    ):
        with pytest.raises(ValueError, match=message):
            graph_of(tokenizer_of(tmp_path / "vocab.txt", tokens, "lower"))
    graph = graph_of(tokenizer_of(tmp_path / "vocab.txt", ["x", f"##{long}", "[UNK]"], "lower"))
    assert graph.encode(tf.constant([f"x{long}", "q"])).to_list() == [[0, 1], [2]]


PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"我来到北京清华大学他毕业于。，.'-abde今日は都に行きました"]
PIECES += ["##b", "##c", "cafe", "##まし", "##た", "가", "##ᆨ", *unicodedata.normalize("NFD", "각"), "##ᅡ", "##고"]


def words_of(text, tokenizer, boundaries) -> list[list[str]]:
    words, flags = [], boundaries.continuations(text)
    for piece, continues in zip(tokenizer.tokenize(text), flags, strict=True):
        words.append([*words.pop(), piece] if continues else [piece])
    return words


def pieces(words) -> list[list[str]]:
    return [word.split("+") for word in words.split()]


@pytest.mark.parametrize(("text", "words"), [
    ("我 来到 北京", "我 来+到 北+京"),
    ("我来到\t北京\u3000清华", "我+来+到 北+京 清+华"),
    # Punctuation marks are words of their own, as in the original, and so is what follows them.
    ("来到。北京，", "来+到 。 北+京 ，"),
    ("ab-ab ab's.", "a+##b - a+##b a+##b ' [UNK] ."),
    # Characters that are dropped, accents, letters that become several.
    ("来\u200b到\u0007 caf\u00e9 CAFE\u0301", "来+到 cafe cafe"),
    ("abcz 来xz到", "[UNK] 来+[UNK]+到"),
    # A decomposed Korean syllable, and a mark after it.
    ("각고.", "[UNK] ."),
    ("각 각", f"{'+'.join(['ᄀ', '##ᅡ', '##ᆨ'])} {'+'.join(['ᄀ', '##ᅡ', '##ᆨ'])}"),
    ("", ""),
    (" \u0007 ", ""),
])  # fmt: skip
def test_words_between_spaces(small, text, words):
    assert words_of(text, small, WordBoundaries(small, None)) == pieces(words)


def test_a_segmenter_divides_what_spaces_separate(small, monkeypatch):
    seen = []

    def segment(text):
        seen.append(text)
        return {"我来到北京": ["我", "来到", "北京"], "abb": ["a", "bb"], "来xx到京": ["来", "到"]}[text]

    monkeypatch.setitem(SEGMENTERS, "ours", lambda: segment)
    boundaries = WordBoundaries(small, "ours")
    # "##b" has no meaning: a piece that begins a segment begins a word. What a segmenter leaves out is a word.
    found = words_of("我来到北京  abb\u3000来xx到京", small, boundaries)
    assert found == pieces("我 来+到 北+京 a ##b+##b 来 [UNK] 到 京")
    assert seen == ["我来到北京", "abb", "来xx到京"]
    # A piece in two segments joins them.
    monkeypatch.setitem(SEGMENTERS, "ours", lambda: {"cafec": ["ca", "fec"], "来cafe到": ["来ca", "fe到"]}.get)
    boundaries = WordBoundaries(small, "ours")
    assert words_of("cafec", small, boundaries) == pieces("cafe+##c")
    assert words_of("来cafe到", small, boundaries) == pieces("来+cafe+到")


@pytest.mark.skipif(not importlib.util.find_spec("jieba"), reason="jieba is not installed")
def test_jieba_finds_chinese_words_and_trusts_no_file(small, monkeypatch, tmp_path):
    def no_marshal(*_):
        raise AssertionError("a dictionary of somebody else was loaded")

    monkeypatch.setattr(marshal, "load", no_marshal)
    monkeypatch.setattr(marshal, "dump", no_marshal)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    boundaries = WordBoundaries(small, "jieba")
    assert words_of("我来到北京清华大学。", small, boundaries) == pieces("我 来+到 北+京 清+华+大+学 。")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not importlib.util.find_spec("fugashi"), reason="fugashi is not installed")
def test_fugashi_finds_japanese_words(small):
    boundaries = WordBoundaries(small, "fugashi")
    expected = pieces("今+日 は 京+都 に 行+き ##まし ##た 。")
    assert words_of("今日は京都に行きました。", small, boundaries) == expected
    # A voicing mark begins no word, whether it can be composed with its letter or not.
    for text, starts in (("学校がある", [0, 2, 4]), ("か\u309aき", [0]), ("が \u3099", [0, 3])):
        assert boundaries.segment_starts(unicodedata.normalize("NFD", text)) == starts

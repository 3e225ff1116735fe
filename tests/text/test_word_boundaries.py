"""Words for whole-word masking: by spaces, by segmenters, and what a segmenter may not do."""

import importlib.util
import marshal
import unicodedata

import pytest

from bert_tf.text.word_boundaries import SEGMENTERS, WordBoundaries

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


def with_segmenter(monkeypatch, segment) -> None:
    monkeypatch.setitem(SEGMENTERS, "ours", lambda: segment)


def test_a_segmenter_divides_what_spaces_separate(small, monkeypatch):
    seen = []

    def segment(text):
        seen.append(text)
        return {"我来到北京": ["我", "来到", "北京"], "abb": ["a", "bb"], "来xx到京": ["来", "到"]}[text]

    with_segmenter(monkeypatch, segment)
    boundaries = WordBoundaries(small, "ours")
    # "##b" has no meaning: a piece that begins a segment begins a word. What a segmenter leaves out is a word.
    found = words_of("我来到北京  abb\u3000来xx到京", small, boundaries)
    assert found == pieces("我 来+到 北+京 a ##b+##b 来 [UNK] 到 京")
    assert seen == ["我来到北京", "abb", "来xx到京"]


def test_a_piece_in_two_segments_joins_them(small, monkeypatch):
    with_segmenter(monkeypatch, {"cafec": ["ca", "fec"], "来cafe到": ["来ca", "fe到"]}.get)
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

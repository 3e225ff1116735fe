"""Windows of contexts: the original's numbers, the order and content of its records, offsets, and the cache."""

import concurrent.futures
import dataclasses
import json
import random

import numpy as np
import pytest
from helpers.basics import slow
from helpers.texts import write_xlm_roberta_pieces

from bert_tf.data.token_rows import best_spans, document_spans
from bert_tf.families.xlm_roberta import FairseqSentencePiece
from bert_tf.tasks.squad import windows as squad_windows
from bert_tf.tasks.squad.answers import AnswerTexts
from bert_tf.tasks.squad.data import Paragraph, SquadExample, read_articles, read_squad_examples
from bert_tf.tasks.squad.windows import WindowSettings, build_windows, describe_windows
from bert_tf.text.wordpiece import FullTokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "her", "teacher", "met", "ada", "brown", "(", "1801", "-"]
PIECES += ["1852", ")", ".", "which", "year", "?", "##s", "##a"]
CONTEXT = "Her teacher met Ada Brown (1801-1852)."


def example(context=CONTEXT, answer="1801", start=None, question="Which year?", number=0):
    paragraph = Paragraph.from_context(context)
    if answer is None:
        return SquadExample(str(number), question, paragraph, "", -1, -1, True)
    start = context.index(answer) if start is None else start
    first, last = paragraph.word_at(start), paragraph.word_at(start + len(answer) - 1)
    return SquadExample(str(number), question, paragraph, answer, first, last, False, start)


def labels_of(windows):
    return list(zip(*(windows.labels[name].tolist() for name in ("start_positions", "end_positions")), strict=True))


def assert_windows_equal(one, other):
    np.testing.assert_equal(dataclasses.asdict(one), dataclasses.asdict(other))


@pytest.mark.parametrize("answer_from", ["words", "offsets"])
@pytest.mark.parametrize(("length", "stride", "pieces", "labels", "best"), [
    (32, 128, [11], [(11, 11)], [range(5, 16)]),
    (12, 3, [6, 6, 5], [(0, 0), (8, 8), (5, 5)], [range(5, 10), range(7, 10), range(7, 10)]),
    (14, 128, [8, 3], [(11, 11), (0, 0)], [range(5, 13), range(5, 8)]),
])  # fmt: skip
def test_windows_of_the_specification(small, length, stride, pieces, labels, best, answer_from):
    settings = WindowSettings(length, stride, 4, answer_from)
    windows = build_windows([example()], small, settings, True)
    assert (windows.lengths - 6).tolist() == pieces and labels_of(windows) == labels
    descriptions = list(describe_windows(windows, small, range(len(windows))))
    for description, places in zip(descriptions, best, strict=True):
        flags = description["token_is_max_context"]
        assert [place for place, flag in flags.items() if flag] == list(places)
    if length == 32:
        tokens = "[CLS] which year ? [SEP] her teacher met ada brown ( 1801 - 1852 ) . [SEP]"
        assert " ".join(descriptions[0]["tokens"]) == tokens
        assert list(descriptions[0]["token_to_orig_map"].values()) == [0, 1, 2, 3, 4, 5, 5, 5, 5, 5, 5]


def test_best_windows_against_the_definition():
    generator = random.Random(0)
    for _ in range(200):
        length, room, stride = generator.randint(1, 60), generator.randint(1, 30), generator.randint(1, 30)
        spans, step = document_spans(length, room, stride), min(stride, room)  # a wider one would leave gaps
        assert spans == [(step * number, min(room, length - step * number)) for number in range(len(spans))]
        assert [start + size == length for start, size in spans] == [False] * (len(spans) - 1) + [True]
        best = best_spans(spans, np.arange(length), 0.01).tolist()
        for piece in range(length):
            scores = [
                min(piece - start, start + size - 1 - piece) + 0.01 * size if start <= piece < start + size else -1
                for start, size in spans
            ]
            assert best[piece] == scores.index(max(scores))
    assert document_spans(0, 6, 3) == []
    # A long window wins over a little more text around a token, by 0.01 for each token of it: here 2.0 and 0.6.
    best = best_spans([(0, 200), (150, 60)], np.arange(210), 0.01).tolist()
    assert best[170:180] == [0] * 6 + [1] * 4  # at 175 24 + 2.0 beats 25 + 0.6, at 176 26 + 0.6 beats 23 + 2.0


def test_an_answer_is_narrowed_down_to_its_own_pieces(small):
    settings = WindowSettings(32, 128, 4)
    windows = build_windows([example("Met teachers (1801-1801).", "1801", 19)], small, settings, True)
    assert labels_of(windows) == [(9, 9)]  # by the words it is the first of the two, as in the original
    offsets = dataclasses.replace(settings, answer_from="offsets")
    windows = build_windows([example("Met teachers (1801-1801).", "1801", 19)], small, offsets, True)
    assert labels_of(windows) == [(11, 11)]
    # An answer that is not a sequence of pieces becomes the whole word, or the pieces that its characters are part of.
    for way, labels in ((settings, (6, 12)), (offsets, (7, 9))):
        windows = build_windows([example("met teachers(1801-1852)", "s(18")], small, way, True)
        assert labels_of(windows) == [labels]
    for entry in (example(" \n Ada Brown", " \n Ada", 0), example("Ada  Brown", "Ada ", 0)):  # spaces around it
        assert labels_of(build_windows([entry], small, offsets, True)) == [(5, 5)]


@pytest.mark.parametrize("answer_from", ["words", "offsets"])
def test_spaces_of_all_kinds(small, answer_from):
    """A word of nothing but unusual spaces has no pieces; the words around it keep their places."""
    context = " \u3000 her\u00a0teacher \u00a0 met\u202fada\u2003brown \u200b"
    paragraph = Paragraph.from_context(context)
    settings = WindowSettings(32, 128, 4, answer_from)
    examples = [example(context, answer) for answer in ("her", "her\u00a0teacher", "met", "ada\u2003brown", "brown")]
    windows = build_windows(examples, small, settings, True)
    assert [(first - 5, last - 5) for first, last in labels_of(windows)] == [(0, 0), (0, 1), (2, 2), (3, 4), (4, 4)]
    (description,) = describe_windows(windows, small, [0])
    assert description["tokens"][5:] == ["her", "teacher", "met", "ada", "brown", "[SEP]"]
    words = [paragraph.words[number] for number in description["token_to_orig_map"].values()]
    assert words == ["her\u00a0teacher"] * 2 + ["met"] + ["ada\u2003brown"] * 2


@pytest.mark.parametrize("answer_from", ["words", "offsets"])
def test_contexts_without_text_have_no_windows(small, answer_from):
    settings = WindowSettings(32, 128, 4, answer_from)
    empty = [example(context, None) for context in ("", " \n", "\u200b\u00a0")]
    examples = [empty[0], example(), *empty[1:], example(answer=None)]
    for is_training in (True, False):
        windows = build_windows(examples, small, settings, is_training)
        assert windows.example_index.tolist() == [1, 4] and len(windows.offsets) == 3
        none = build_windows(empty, small, settings, is_training)
        assert len(none) == 0 and none.offsets.tolist() == [0] and len(none.of_examples([2, 0, 1])) == 0
        assert len(build_windows([], small, settings, is_training)) == 0


def test_two_processes_make_the_same_windows(small, monkeypatch):
    monkeypatch.setattr(squad_windows, "_CHARACTERS_FOR_PROCESSES", 0)
    monkeypatch.setattr(squad_windows, "_QUESTIONS_PER_CHUNK", 7)
    examples = [example("met " * (number % 9) + CONTEXT, number=number) for number in range(25)]
    settings = WindowSettings(16, 3, 4, "offsets")
    used = []
    pool = concurrent.futures.ProcessPoolExecutor
    monkeypatch.setattr(concurrent.futures, "ProcessPoolExecutor", lambda *given: used.append(given[0]) or pool(*given))
    one = build_windows(examples, small, settings, True, num_processes=1)
    assert not used
    assert_windows_equal(one, build_windows(examples, small, settings, True, num_processes=2))
    assert used == [2] and one.example_index[-1] == 24 and len(one) > 40


def test_whatever_the_windows_depend_on_makes_another_file(small, tmp_path, monkeypatch):
    folder = tmp_path / "cache"

    def number_of_files(examples, tokenizer=small, is_training=True, **changes):
        given = examples, tokenizer, dataclasses.replace(WindowSettings(12, 3, 4), **changes), is_training
        built = build_windows(*given)
        assert_windows_equal(build_windows(*given, cache_dir=str(folder)), built)
        with monkeypatch.context() as patched:
            patched.setattr(squad_windows, "_arrays_of", None)  # now they are read
            assert_windows_equal(build_windows(*given, cache_dir=str(folder)), built)
        return len([*folder.glob("windows-*.npz")])

    assert number_of_files([example()]) == number_of_files([example(number="another id")]) == 1
    assert number_of_files([example()], is_training=False) == 2
    others = ({"question": "Which year"}, {"context": CONTEXT + " Her"}, {"answer": "1852"}, {"answer": None})
    assert [number_of_files([example(**other)]) for other in others] == [3, 4, 5, 6]
    assert number_of_files([example(), example()]) == 7
    changes = ({"max_seq_length": 13}, {"doc_stride": 4}, {"max_query_length": 2}, {"answer_from": "offsets"})
    assert [number_of_files([example()], **change) for change in changes] == [8, 9, 10, 11]
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join([*PIECES[:-1], "##b"]) + "\n")
    assert number_of_files([example()], FullTokenizer(str(vocab))) == 12
    assert number_of_files([example()], FullTokenizer(str(vocab), do_lower_case=False)) == 13


def sentence_pieces(folder, contexts):
    return FairseqSentencePiece(write_xlm_roberta_pieces(folder, contexts, 6000, character_coverage=1.0))


def share_that_comes_back(examples, tokenizer, settings):
    """(answers complete in a window, how many of them their labels give back, and how many within other letters)"""
    windows = build_windows(examples, tokenizer, settings, True, num_processes=1)
    texts = AnswerTexts(examples, windows, tokenizer, settings.answer_from)
    found = {}
    for row, (first, last) in enumerate(labels_of(windows)):
        if first:
            found.setdefault(int(windows.example_index[row]), texts.of(row, first, last)[0])
    pairs = [(text, examples[number].orig_answer_text) for number, text in found.items()]
    right = sum(text.split() == answer.split() for text, answer in pairs)
    return len(found), right, sum(answer.strip() in text for text, answer in pairs)


@pytest.mark.parametrize("kind", ["word pieces", "SentencePiece"])
@pytest.mark.parametrize(("context", "answers"), [
    ("세종대왕은 1443년에 한글을 만들었다.", ["세종대왕", "1443년", "한글", "만들었다"]),
    ("富士山は日本一高い山で、標高は3776メートルです。", ["富士山", "日本一高い山", "3776メートル", "標高"]),
    ("《战国无双3》是由光荣和ω-force开发的战国无双系列的正统第三续作。", ["光荣和ω-force", "战国无双3", "第三"]),
    ("กรุงเทพมหานครเป็นเมืองหลวงของไทย", ["ไทย", "เมืองหลวง"]),
    ("Die Straße in Köln\u00a0(NRW) heißt „Hohe Straße“.", ["Köln", "NRW", "Hohe Straße", "Straße in"]),
    ("高さ３７７６ｍ、ｶﾞｲﾄﾞは㍿山岳社。①番に着いた。", ["３７７６ｍ", "ｶﾞｲﾄﾞ", "㍿山岳社", "①番"]),
    ("القاهرة عاصمة مصر، وعدد سكّانها ١٠ ملايين.", ["مصر", "١٠ ملايين"]),
])  # fmt: skip
def test_answers_in_scripts_without_spaces_come_back(english, tmp_path, kind, context, answers):
    settings = WindowSettings(64, 32, 16, "offsets")
    examples = [example(context, answer, question="?", number=number) for number, answer in enumerate(answers)]
    tokenizer = english if kind == "word pieces" else sentence_pieces(tmp_path, context)
    assert share_that_comes_back(examples, tokenizer, settings) == (len(answers),) * 3


@pytest.mark.parametrize("kind", ["word pieces", *slow("SentencePiece")])
@pytest.mark.parametrize("name", ["jsquad_valid", *slow("korquad_dev", "cmrc2018_dev")])
def test_at_least_995_of_1000_answers_come_back(shared, english, name, kind, tmp_path):
    """Of SentencePiece, whose pieces go beyond answers, all within their pieces."""
    articles = read_articles(str(shared / "data" / "squad_multilingual" / f"{name}.json"))
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]][::4]
    for paragraph in paragraphs:
        paragraph["qas"] = [{**question, "answers": question["answers"][:1]} for question in paragraph["qas"]]
    path = tmp_path / "quarter.json"
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    data = read_squad_examples([str(path)], True, answer_from="offsets")
    assert len(data.examples) > 700 and len(data.skipped) < 0.01 * len(data.examples)
    settings, contexts = WindowSettings(answer_from="offsets"), (paragraph["context"] for paragraph in paragraphs)
    tokenizer = english if kind == "word pieces" else sentence_pieces(tmp_path, contexts)
    survived, right, within = share_that_comes_back(data.examples, tokenizer, settings)
    assert survived >= 0.95 * len(data.examples)
    assert right >= 0.995 * survived if tokenizer is english else within == survived


def test_long_questions_are_cut_and_counted_and_need_room(small, caplog):
    windows = build_windows([example(question="her " * 50)], small, WindowSettings(32, 128, 4), True)
    (description,) = describe_windows(windows, small, [0])
    assert description["tokens"][:7] == ["[CLS]", "her", "her", "her", "her", "[SEP]", "her"]
    examples = [example(question=" ".join(["year"] * count)) for count in (2, 3, 4, 5)]
    for most in (5, 3):
        squad_windows.warn_of_cut_questions(examples, small, WindowSettings(30, 5, most, "offsets"))
    told = "Longer than max_query_length=3 tokens, of which the last are lost: 2 of 4 questions."
    assert [record.getMessage() for record in caplog.records] == [told]
    WindowSettings(21, 8, 17).check_room(small)
    with pytest.raises(ValueError, match=r"^max_seq_length=20 must be greater than max_.*=17 \+ 3"):
        WindowSettings(20, 8, 17).check_room(small)


def test_a_stride_that_leaves_no_overlap_is_reported(small, caplog):
    """A window of 16 tokens holds 10 of a context beside a question of 3."""
    examples = [example("Her teacher met Ada.", "Ada"), example()]
    for length, stride, told in ((384, 128, 0), (16, 10, 0), (16, 11, 1), (16, 128, 1)):
        settings = WindowSettings(length, stride, 64)
        squad_windows.warn_of_gaps(build_windows(examples, small, settings, True), settings)
        assert len(caplog.records) == told, (length, stride)
    assert "doc_stride=11 is more than a window holds: of max_seq_length=16 tokens, 10 are left for the" in caplog.text

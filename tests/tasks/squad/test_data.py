"""Files in SQuAD's format: the original's examples, answers that are not found, and other files."""

import json
import logging as python_logging
import re

import pytest
from helpers.basics import lines_of

from bert_tf.tasks.squad import metrics as metrics
from bert_tf.tasks.squad.data import Paragraph, read_squad_examples

CONTEXT = "Her teacher met Ada Brown (1801-1852)."


def question(key="q1", text="Which year?", answers=(("1801", 27),), **further):
    listed = [{"text": answer, "answer_start": start} for answer, start in answers]
    return {"id": key, "question": text, "answers": listed, **further}


def write(path, *questions, context=CONTEXT):
    content = {"version": "x", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": list(questions)}]}]}
    path.write_text(json.dumps(content), encoding="utf-8")
    return str(path)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "squad.json"


@pytest.mark.parametrize("mode", ["train", "predict"])
@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_examples_equal_the_original(golden, mode, version):
    folder = golden / "squad"
    data = read_squad_examples([str(folder / f"{mode}-v{version}.json")], mode == "train", version == "2.0")
    expected = lines_of(folder / f"examples-{mode}-v{version}.jsonl.gz")
    assert len(data.examples) == len(expected) == {"1.1": 42, "2.0": 44}[version] + (mode == "train")
    for example, record in zip(data.examples, expected, strict=True):
        assert {name: getattr(example, name) for name in record} == record
    assert data.unanswered == ""
    assert [entry["id"] for entry in data.skipped] == (["misaligned-0"] if mode == "train" else [])
    impossible = sum(example.is_impossible for example in data.examples)
    assert (impossible > 0) == (mode == "train" and version == "2.0")


def test_words_are_split_where_the_original_splits_them():
    paragraph = Paragraph.from_context(" \tone\u202ftwo\u00a0three\r\n\u3000 four\u2003five")
    assert paragraph.words == ["one", "two\u00a0three", "\u3000", "four\u2003five"]
    assert paragraph.word_starts == [2, 6, 17, 19]
    # A space belongs to the word before it; spaces before the first word belong to none.
    assert [paragraph.word_at(place) for place in (0, 1, 2, 4, 5, 6, 15, 16, 17, 18, 19, 27)] == [
        -1, -1, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3,
    ]  # fmt: skip
    assert Paragraph.from_context("").words == Paragraph.from_context(" \n").words == []


def test_in_prediction_answers_are_not_read(file):
    data = read_squad_examples([write(file, question(answers=[("wrong", 5), ("1801", 0)]))], False)
    (example,) = data.examples
    assert example.orig_answer_text is example.start_position is example.end_position is example.answer_start is None
    assert not data.unanswered and not data.skipped and not example.is_impossible
    assert read_squad_examples([write(file, question(answers=[]))], False).unanswered
    bare = {"id": "a", "question": "b"}
    assert read_squad_examples([write(file, bare)], False, True).unanswered
    assert read_squad_examples([write(file, question(answers=[], is_impossible=True))], False, True).unanswered == ""


@pytest.mark.parametrize("answer_from", ["words", "offsets"])
@pytest.mark.parametrize("answer", [("1801", 3), ("1801", 1000), ("1801", -2), ("(1801-1852). More", 26)])
def test_answers_elsewhere_are_counted_and_listed(file, caplog, answer, answer_from):
    path = write(file, question("bad", answers=[answer]), question("good"))
    with caplog.at_level(python_logging.WARNING, logger="absl"):
        data = read_squad_examples([path], True, answer_from=answer_from)
    assert [example.qas_id for example in data.examples] == ["good"]
    (skipped,) = data.skipped
    assert skipped["file"] == path and skipped["id"] == "bad" and skipped["answer"] == answer[0]
    assert isinstance(skipped["found"], str)
    assert "1 of 2 questions are left out" in caplog.text and f"bad: {answer[0]!r} vs." in caplog.text


def test_how_exact_an_answer_must_stand_there(file):
    """Words: anywhere in the words it touches, ignoring spaces. Offsets: exactly there."""

    def kept(answer, answer_from, context=CONTEXT):
        path = write(file, question(answers=[answer]), context=context)
        return bool(read_squad_examples([path], True, answer_from=answer_from).examples)

    assert kept(("1801", 26), "words") and not kept(("1801", 26), "offsets")
    assert kept(("Ada  Brown", 15), "words")
    spaced = "Ada \n Brown lived"
    assert kept(("Ada \n Brown", 0), "words", spaced) and kept(("Ada \n Brown", 0), "offsets", spaced)
    # An answer that begins in the spaces before the first word: lost in the original.
    assert not kept((" Ada", 0), "words", " Ada Brown") and kept((" Ada", 0), "offsets", " Ada Brown")
    assert kept(("Ada ", 0), "words", "Ada Brown") and kept(("Ada ", 0), "offsets", "Ada Brown")
    # Characters, not words, if a no-break space joins two words, or nothing separates them.
    assert kept(("Brown", 4), "words", "Ada\u00a0Brown") and kept(("Brown", 4), "offsets", "Ada\u00a0Brown")
    assert kept(("京都", 2), "words", "私は京都に") is kept(("私は", 0), "offsets", "私は京都に") is True
    assert not kept((" ", 1), "words", "a b")
    assert kept(("京", 0), "words", "私は京都に") and not kept(("京", 0), "offsets", "私は京都に")


def test_several_files_numbers_as_ids_and_a_byte_order_mark(file):
    paths = [write(file.with_name(f"{name}.json"), question(name)) for name in "ba"]
    data = read_squad_examples(paths, True)
    assert [example.qas_id for example in data.examples] == ["b", "a"] and len(data.articles) == 2
    content = json.dumps({"data": [{"paragraphs": [{"context": CONTEXT, "qas": [question(7)]}]}]})
    file.write_bytes(b"\xef\xbb\xbf" + content.encode())
    data = read_squad_examples([str(file)], False)
    assert [example.qas_id for example in data.examples] == ["7"]
    assert data.articles[0]["paragraphs"][0]["qas"][0]["id"] == "7"  # as the metrics expect it


def test_questions_without_text_and_answers_that_are_not_found_are_counted(file, caplog):
    read_squad_examples([write(file, question(text=" \n"), question("q2"))], False)
    read_squad_examples([write(file, *(question(f"bad{number}", answers=[("x", 0)]) for number in range(13)))], True)
    assert "Of 2 questions 1 have no text, or an empty context" in caplog.text and "\n  and 3 more" in caplog.text


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
@pytest.mark.parametrize(("answers", "expected"), [
    ({"text": ["1801"], "answer_start": [27]}, 27),
    ({"text": "1801", "answer_start": "27"}, 27),
    ([{"text": "1801", "answer_start": 27.0}], 27),
    ([{"text": "1801"}], "its answer has no answer_start"),
    ({"text": ["1801"], "answer_start": [None]}, "its answer has no answer_start"),
    (None, "question 'q1' has 0 answers; to train on, it should have exactly 1"),
    ([{"text": "1801", "answer_start": 27}] * 2, "question 'q1' has 2 answers; to train on, it should have exactly 1"),
    ([{"text": "1801", "answer_start": 27.5}], "question 'q1': the answer_start 27.5 is not a whole number"),
    ([{"text": "1801", "answer_start": True}], "question 'q1': the answer_start True is not a whole number"),
    ([{"text": None, "answer_start": 27}], "question 'q1': the answer {'text': None"),
    (["1801"], "question 'q1': the answer '1801' is no object with a text"),
    ("1801", "its answers are '1801'"),
    ({"text": ["1801", "1852"], "answer_start": [27]}, "its answers have 2 texts, but not as many answer_start"),
])  # fmt: skip
def test_forms_of_answers(tmp_path, suffix, answers, expected):
    path, asked = tmp_path / f"squad.{suffix}", {**question(), "answers": answers}
    path.write_text(json.dumps({"context": CONTEXT, **asked})) if suffix == "jsonl" else write(path, asked)
    if expected == 27:
        assert [example.answer_start for example in read_squad_examples([str(path)], True).examples] == [27]
    else:
        with pytest.raises(ValueError, match=rf"squad\.{suffix}.*{re.escape(expected)}"):
            read_squad_examples([str(path)], True)
    if expected == 27 or " has " in expected:  # evaluation needs the texts alone
        assert bool(read_squad_examples([str(path)], False).unanswered) == (answers is None)


EITHER = (True, False)


@pytest.mark.parametrize(("content", "modes", "version_2", "message"), [
    *(({"data": data}, EITHER, False, " is not a SQuAD file, {\"data\"") for data in (
        None, 1, [1], [{"paragraphs": [{"context": "x"}]}],
        [{"paragraphs": [{"context": "x", "qas": [{"is_impossible": "no"}]}]}],
    )),
    ({"data": [{"paragraphs": [{"context": None, "qas": [question()]}]}]}, EITHER, False,
     ": question 'q1': its context is None, not a text"),
    ([], EITHER, False, " is not a SQuAD file, {\"data\""),
    ([{"question": "Who?", "answers": []}], (False,), False,
     r" is not a SQuAD file, .*\(the question 'Who\?' has no id\)"),
    ([question(text=None)], EITHER, True, ": question 'q1': its question is None, not a text"),
    ([question(is_impossible="false")], EITHER, True,
     ": question 'q1': is_impossible is 'false', neither true nor false"),
    ([question(text="Who?"), question()], (False,), False, ": the id 'q1' is used for two different questions"),
    ([question(answers=[], is_impossible=True), question("q2", is_impossible=False)], EITHER, False,
     " has 1 questions without answer: give --version_2_with_negative"),
    ([question(), question("q2")], EITHER, True, ": each question has an answer: leave out --version_2_with_negative"),
])  # fmt: skip
def test_squad_reader_rejects(file, content, modes, version_2, message):
    if isinstance(content, list) and content:
        write(file, *content)
    else:
        file.write_text(json.dumps(content))
    for is_training in modes:
        with pytest.raises(ValueError, match=rf"squad\.json{message}"):
            read_squad_examples([str(file)], is_training, version_2)


def test_equal_ids_and_both_versions_where_nothing_contradicts(file):
    assert len(read_squad_examples([write(file, question(text="Who?"), question())], True).examples) == 2
    path = write(file, question(answers=[]), question("q2", is_impossible=False))  # the first is impossible, too
    assert [example.is_impossible for example in read_squad_examples([path], True, True).examples] == [True, False]
    for flag in EITHER:
        assert read_squad_examples([write(file, question(is_impossible=False))], True, flag).examples
        assert read_squad_examples([write(file, {"id": "1", "question": "2"})], False, flag).examples


def test_lone_surrogates_are_characters_like_others(file):
    path = write(file, question(text="\ud800?", answers=[("\udfff", 4)]), context="Ada \udfff")
    (example,) = read_squad_examples([path], True).examples
    assert (example.start_position, example.question_text) == (1, "\ud800?")


def test_the_layout_of_klue_mrc(file, caplog):
    """Its questions have a guid instead of an id, plausible answers, and several answers to train on."""
    caplog.set_level(python_logging.INFO)

    def klue(guid, is_impossible=False, **further):
        made = question(guid, is_impossible=is_impossible, question_type=3 if is_impossible else 1, **further)
        return {"guid": made.pop("id"), **made}

    several = klue("klue-mrc-v1_train_00000", answers=[("1801", 27), ("1801-1852", 27)])
    plausible = {"plausible_answers": [{"text": "1852", "answer_start": 32}]}
    path = write(file, several, klue("klue-mrc-v1_train_00001", True, answers=[], **plausible))
    data = read_squad_examples([path], True, True)
    found = [(one.qas_id, one.orig_answer_text, one.is_impossible) for one in data.examples]
    assert found == [("klue-mrc-v1_train_00000", "1801", False), ("klue-mrc-v1_train_00001", "", True)]
    assert "Of 2 questions 1 have several answers: the first one of each is trained on." in caplog.text
    answers = {"klue-mrc-v1_train_00000": "1801-1852", "klue-mrc-v1_train_00001": ""}
    assert metrics.evaluate(data.articles, answers, True)["exact_match"] == 100.0
    # An id of its own comes first.
    assert read_squad_examples([write(file, question(guid="other"))], False).examples[0].qas_id == "q1"


def test_real_files_of_other_data_sets(shared):
    folder = shared / "data" / "squad_multilingual"
    counts = {"korquad_dev": 5774, "jsquad_valid": 4442, "cmrc2018_dev": 3219}
    for name, count in counts.items():
        data = read_squad_examples([str(folder / f"{name}.json")], False)
        assert len(data.examples) == count and not data.unanswered, name
    data = read_squad_examples([str(folder / "vi" / "dev-v2.0.json")], False, True)
    assert len(data.examples) == 478 and not data.unanswered


def test_answers_that_are_parts_of_words_are_counted(tmp_path, caplog):
    context = "서울은 수도이다. 부산은 항구이다."
    asked = [question(str(start), answers=((context[start:][:2], start),)) for start in (0, 4, 10)]
    path = write(tmp_path / "korean.json", *asked, question("4", answers=(("수도이다.", 4),)), context=context)
    read_squad_examples([path], False)
    assert "3 of 4 answers (75 %) begin or end inside a word" in caplog.text
    caplog.clear()
    read_squad_examples([path], False, answer_from="offsets")
    read_squad_examples([write(tmp_path / "english.json", question())], False)
    assert "inside a word" not in caplog.text

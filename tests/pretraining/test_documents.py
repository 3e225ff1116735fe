"""Sentences and documents from a user's text."""

import pytest

from bert_tf.pretraining.documents import split_sentences, to_text
from demo.sample_text import split_held_out, text_documents


@pytest.mark.parametrize(("text", "sentences"), [
    ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
    ("Use it, e.g. Adam. Then J. R. Smith came.", ["Use it, e.g. Adam.", "Then J. R. Smith came."]),
    ("It took 3.5 m. and 2 s. He left.", ["It took 3.5 m. and 2 s.", "He left."]),
    ('He said "No." She left.', ['He said "No."', "She left."]),
    ("これは本です。あれは「犬です。」そう", ["これは本です。", "あれは「犬です。」", "そう"]),
    ("이것은 책입니다. 저것은 개입니다.", ["이것은 책입니다.", "저것은 개입니다."]),
    ("   ", []),
])  # fmt: skip
def test_split_sentences(text, sentences):
    assert split_sentences(text) == sentences


def read(tmp_path, *contents, max_bytes=10**9):
    files = []
    for number, content in enumerate(contents):
        (tmp_path / f"{number}.txt").write_text(content, encoding="utf-8")
        files.append(str(tmp_path / f"{number}.txt"))
    return text_documents(files, max_bytes)


def test_broken_lines_are_joined_and_others_stay_apart(tmp_path):
    broken = (
        "It was the best of times, it was the\nworst of times, it was the age of wit,\n"
        "it was. And then came the winter of\ndespair.\n\nA new one begins here and it goes on\nto the end.\n"
    )
    first = "It was the best of times, it was the worst of times, it was the age of wit, it was."
    joined = [first, "And then came the winter of despair.", "A new one begins here and it goes on to the end."]
    lines = "A title without a full stop\nThe first paragraph. It has two sentences.\nroses are red\n"
    apart = ["A title without a full stop", "The first paragraph.", "It has two sentences.", "roses are red"]
    assert read(tmp_path, broken) == [joined] and read(tmp_path, lines) == [apart]


def test_documents_end_at_files_and_blank_lines_once_long_enough(tmp_path):
    short, long = "Five words are in here.\n" * 7 + "\n", "Five words are in here.\n" * 450
    assert [len(document) for document in read(tmp_path, short * 4, long, "\n\n")] == [21, 7, 200, 200, 50]

    # A short file leaves its share to the long ones; the beginning of each is kept.
    line = "Nine bytes.\n"
    documents = read(tmp_path, line * 2, line * 100, line * 100, max_bytes=len(line) * 42)
    assert sorted(map(len, documents)) == [2, 20, 20]


def test_split_held_out():
    documents = [[str(number)] for number in range(41)]
    training, heldout = split_held_out(documents)
    assert heldout == [["19"], ["39"]]
    assert len(training) == 39 and split_held_out(documents[:3]) == (documents[:2], documents[2:3])
    assert to_text([["a", "b"], ["c"]]) == "a\nb\n\nc\n\n"
    with pytest.raises(ValueError, match="1 documents can't be split"):
        split_held_out(documents[:1])

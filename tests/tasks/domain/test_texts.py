"""A domain's texts in training and held-out parts, and the words that are added to a vocabulary for them."""

import json

from bert_tf.tasks.domain.recipe import find_new_words, make_texts, make_words, pieces_per_word
from bert_tf.tasks.domain.settings import DomainSettings

# Of the fixture `small`.
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "a", "##b", "##c", "1", "##9", "##s"]


def settings_of(folder, **changes) -> DomainSettings:
    values = {"init_checkpoint": "model", "input_file": f"{folder}/in*", "output_dir": str(folder / "out"), **changes}
    return DomainSettings(**values)


def write_documents(path, count, first=0):
    texts = (f"Number {number} is here. It is the zyx of {number}." for number in range(first, first + count))
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def test_texts_are_split(tmp_path):
    write_documents(tmp_path / "in.jsonl", 45)
    write_documents(tmp_path / "news.jsonl", 3, first=100)
    counts = make_texts(settings_of(tmp_path, other_text=f"{tmp_path}/news.jsonl"))
    assert {name: values["documents"] for name, values in counts.items()} == {"train": 43, "heldout": 2, "other": 3}
    text = tmp_path / "out" / "text"
    assert (text / "heldout.txt").read_text() == (
        "Number 19 is here.\nIt is the zyx of 19.\n\nNumber 39 is here.\nIt is the zyx of 39.\n\n"
    )
    assert sum((text / f"{name}.txt").stat().st_size for name in counts) == sum(one["bytes"] for one in counts.values())
    assert counts["train"]["sentences"] == 86
    (tmp_path / "own.txt").write_bytes("서울은 수도다. 부산은 항구다.\n".encode("cp949"))
    counts = make_texts(settings_of(tmp_path, heldout_file=f"{tmp_path}/own.txt", encoding="cp949"))
    assert {name: values["documents"] for name, values in counts.items()} == {"train": 45, "heldout": 1}
    assert (text / "heldout.txt").read_text() == "서울은 수도다.\n부산은 항구다.\n\n"


def test_the_words_that_save_most_come_first(small):
    counts = {
        "the": 500,  # is a piece already
        "abc": 30,  # three pieces: saves 60
        "ab": 50,  # saves 50
        "abs": 25,  # saves 50 as well: by name
        "µm": 45,  # unknown as a whole: counts as two pieces
        "19": 900,  # a number
        "ac": 4,  # too rare
    }
    words = find_new_words(counts, small, 10)
    expected = {"abc": "a ##b ##c", "ab": "a ##b", "abs": "a ##b ##s", "µm": "[UNK]"}
    assert {new["word"]: " ".join(new["pieces"]) for new in words} == expected
    assert [(new["word"], new["count"]) for new in words] == [(word, counts[word]) for word in expected]
    assert find_new_words(counts, small, 2) == words[:2]
    # What the tokenizer never gives.
    assert find_new_words(dict.fromkeys(["Ab", "a-b", "a b", "é", "a" * 61], 100), small, 10) == []
    # A new word also begins longer ones.
    assert pieces_per_word({"the": 6, "abc": 2, "abcs": 2}, small, ["abc"]) == (6 + 2 + 2 * 2) / 10


def test_words_of_a_text(tmp_path, small):
    (tmp_path / "in.txt").write_text("The 1 zyxw the.\n" * 60 + "A qrs a.\n" * 9 + "The xyz.\n")
    settings = settings_of(tmp_path, new_words=10, heldout_file=f"{tmp_path}/in.txt")
    make_texts(settings)
    words = make_words(settings, small, "BERT")
    assert [(new["word"], new["count"]) for new in words["new_words"]] == [("zyxw", 60), ("qrs", 9)]
    assert (tmp_path / "out" / "words.txt").read_text() == "zyxw\nqrs\n"
    none = {"new_words": [], "pieces_per_word": {"before": None, "after": None}}
    assert make_words(settings_of(tmp_path, new_words=0), small, "BERT") == none
    assert make_words(settings_of(tmp_path), object(), "RoBERTa") == none

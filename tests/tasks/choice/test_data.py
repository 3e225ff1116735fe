"""Multiple choice: rows of files in SWAG's layout and others, errors, and token rows."""

import itertools
import json

import pytest

from bert_tf.tasks.choice.data import ChoiceExample, Columns, encode_examples, read_examples

SWAG = """,video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label
0,anet_1,7,On stage he sits,On stage.,He,gold,sits.,"says ""no"", and
goes.",sings,stands.,1
1,anet_2,8,She She,"She, too.",,gen,a,b,c,d,3
"""
NUMBERED = Columns("1", None, ("2", "3"), "-1")


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def write(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_swag(tmp_path):
    first, second = read_examples(write(tmp_path, "val.csv", SWAG))
    assert first == ChoiceExample("0", "On stage.", "He", ("sits.", 'says "no", and\ngoes.', "sings", "stands."), 1)
    assert second == ChoiceExample("1", "She, too.", "", ("a", "b", "c", "d"), 3)
    unlabeled = "".join(line.rpartition(",")[0] + "\n" for line in SWAG.replace("\ngoes", "goes").splitlines())
    test = read_examples(write(tmp_path, "test.csv", unlabeled), labels_needed=False)
    assert [example.label for example in test] == [None, None] and test[1].choices == second.choices


@pytest.mark.parametrize(("record", "columns", "expected"), [
    ({"context": "c", "question": None, "choices": ["x", "y", "z"], "label": 2}, None, ("c", "", "xyz", 2)),
    ({"context": "c", "choices": ["x", "y"], "label": "1"}, None, ("c", "", "xy", 1)),
    ({"question": "q", "choices": ["x", "y"], "label": 1.0}, None, ("q", "", "xy", 1)),
    ({"question": "q", "choice0": "x", "choice1": "y", "label": 1}, None, ("q", "", "xy", 1)),
    ({"sent1": "c", "sent2": "q", "ending1": "y", "ending0": "x", "label": 0}, None, ("c", "q", "xy", 0)),
    ({"p": "c", "k1": "x", "k2": "y", "label": 1}, Columns("p", None, ("k",), "label"), ("c", "", "xy", 1)),
    ({"g": "c", "b": "x", "a": "y", "key": 1}, Columns("g", None, ("b", "a"), "key"), ("c", "", "xy", 1)),
    ({"question": "q", "label": 10, **{f"choice{k}": str(k) for k in range(11)}}, None,
     ("q", "", map(str, range(11)), 10)),
])  # fmt: skip
def test_json_lines(tmp_path, record, columns, expected):
    [example] = read_examples(write(tmp_path, "data.jsonl", lines(record)), columns)
    context, question, choices, label = expected
    assert example == ChoiceExample("0", context, question, tuple(choices), label)


@pytest.mark.parametrize(
    ("first", "labels", "expected"), [("0", "01", [0, 1]), ("1", "21", [1, 0]), ("A", "AB", [0, 1])]
)
def test_numbered_columns_and_other_labels(tmp_path, first, labels, expected):
    text = "".join(f"x\tc {label}\tone\ttwo\t{label}\n" for label in labels)
    examples = read_examples(write(tmp_path, "data.tsv", text), NUMBERED, first_label=first)
    assert [example.label for example in examples] == expected
    assert examples[0] == ChoiceExample("0", f"c {labels[0]}", "", ("one", "two"), expected[0])


def test_labels_that_stand_for_none(tmp_path):
    for missing in ("", None, -1, "-1"):
        path = write(tmp_path, "test.jsonl", lines(*[record(label=missing)] * 2))
        assert [example.label for example in read_examples(path, labels_needed=False)] == [None, None]
        with pytest.raises(ValueError, match=r"test\.jsonl, line 1: there is no label"):
            read_examples(path)


def record(**changes):
    return {"context": "c", "choices": ["x", "y"], "label": 0} | changes


def test_real_files(shared):
    folder = shared / "data" / "choice"
    codah = Columns("1", None, ("2", "3", "4", "5"), "6")
    for path, columns, count, choices, labels in (
        ("swag_layout/val.csv", None, 5000, 4, [1205, 1271, 1247, 1277]),
        ("swag_layout/sample.json", None, 10, 4, None),
        ("jcommonsenseqa/valid.jsonl", None, 1119, 5, [216, 237, 240, 228, 198]),
        ("codah/train.tsv", codah, 1665, 4, [426, 402, 404, 433]),
    ):
        examples = read_examples(str(folder / path), columns)
        assert (len(examples), {len(example.choices) for example in examples}) == (count, {choices}), path
        if labels:
            assert [sum(example.label == k for example in examples) for k in range(choices)] == labels, path


@pytest.mark.parametrize(("name", "text", "columns", "message"), [
    ("a.jsonl", lines(record(), record(choices=["x", "y", "z"])), None, "line 2: 3 choices, but the first row has"),
    ("a.csv", SWAG + "2,a,7,s,s,s,gold,a,b,c,,1\n", None, "line 5: two choices are needed at least, and none"),
    ("a.csv", SWAG + "2,a,7,s,s,s,gold,a,b,c,d,4\n", None, "line 5: the label '4' is not one of the 4 choices"),
    ("a.csv", SWAG + "2,a,7,s,s,s,gold,a,b,c,d,B\n", None, "the first of which is called 'first' (--first_label)."),
    ("a.jsonl", lines(record(label=True)), None, "line 1: the label True is not one of the 2 choices"),
    ("a.jsonl", lines(record(label=[0, 1])), None, "line 1: the label [0, 1] is not one of the 2 choices"),
    ("a.csv", SWAG.replace(",label", ",gold"), None, "a.csv has no known columns"),
    ("a.csv", SWAG.replace("ending2", "ending7"), None, "'ending0', 'ending1', 'ending3', 'ending7': a number is"),
    ("a.csv", SWAG, Columns("sent1", None, ("ending0",), "label"), "line 2: no list 'ending0', nor ending00"),
    ("a.csv", SWAG, Columns("sent1", None, ("ending0", "ending9"), "label"), "line 2: no 'ending9'"),
    ("a.csv", SWAG, Columns("sent1", None, ("ending",), "gold"), "line 2: no 'gold'"),
    ("a.jsonl", lines(record(choices=["x", None])), None, "line 1: expected a string, found None"),
])  # fmt: skip
def test_choices_reader_rejects(tmp_path, name, text, columns, message):
    with pytest.raises(ValueError) as error:
        read_examples(write(tmp_path, name, text), columns, first_label="first" if "'first'" in message else "0")
    assert message in str(error.value) and name in str(error.value)


def test_odd_labels(tmp_path, caplog):
    for labels in ("12" * 3, "12" * 4 + "0", "12" * 4):
        rows = (record(choices=["x", "y", "z"], label=int(one)) for one in labels)
        assert not caplog.text
        read_examples(write(tmp_path, "a.jsonl", lines(*rows)))
    assert "a.jsonl: no row has the label 0, the first choice; with labels from 1, give --first_label=1" in caplog.text


PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"]
A, B, C, D, E = range(5, 10)

EXAMPLES = [
    ChoiceExample("0", "a b", "c", ("d", "d e a a"), 1),
    ChoiceExample("1", "a b c d e", "", ("\u0001", "e"), 0),
]


def test_rows(small):
    rows = encode_examples(EXAMPLES, small, 16)
    expected = [
        [2, A, B, 3, C, D, 3],
        [2, A, B, 3, C, D, E, A, A, 3],
        [2, A, B, C, D, E, 3],  # a choice without any token
        [2, A, B, C, D, E, 3, E, 3],
    ]
    assert rows.ids.tolist() == list(itertools.chain(*expected)) and rows.second_starts.tolist() == [4, 4, 7, 7]
    assert (len(rows), rows.rows_per_example, rows.lengths.tolist()) == (2, 2, [10, 9])
    batch = rows.batch([1, 0, 1], 12)
    chosen = [expected[2:], expected[:2], expected[2:]]
    assert batch["label_ids"].tolist() == [0, 1, 0]
    assert batch["input_ids"].tolist() == [[row + [0] * (12 - len(row)) for row in pair] for pair in chosen]
    assert batch["input_mask"].tolist() == [[[1] * len(row) + [0] * (12 - len(row)) for row in pair] for pair in chosen]
    assert batch["segment_ids"][1].tolist() == [[0] * 4 + [1] * 3 + [0] * 5, [0] * 4 + [1] * 6 + [0] * 2]
    assert not batch["segment_ids"][0, 0].any()


def test_long_rows_lose_the_end_of_what_is_longer(small, caplog):
    rows = encode_examples(EXAMPLES, small, 7)
    expected = [[2, A, B, 3, C, D, 3], [2, A, B, 3, C, D, 3], [2, A, B, C, D, E, 3], [2, A, B, C, 3, E, 3]]
    assert rows.ids.tolist() == list(itertools.chain(*expected))
    assert "of which the last are lost: 2 of 4 choices" in caplog.text
    with pytest.raises(ValueError, match="^max_seq_length=4 has no room for two texts"):
        encode_examples(EXAMPLES, small, 4)

"""Reading multiple-choice examples: SWAG's layout, others, and errors."""

import json

import pytest

from bert_tf.tasks.choice.data import ChoiceExample, Columns, read_examples

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


@pytest.mark.parametrize(
    ("record", "columns", "expected"),
    [
        ({"context": "c", "question": None, "choices": ["x", "y", "z"], "label": 2}, None, ("c", "", "xyz", 2)),
        ({"context": "c", "choices": ["x", "y"], "label": "1"}, None, ("c", "", "xy", 1)),
        ({"question": "q", "choices": ["x", "y"], "label": 0}, None, ("q", "", "xy", 0)),
        ({"question": "q", "choice0": "x", "choice1": "y", "label": 1}, None, ("q", "", "xy", 1)),
        ({"sent1": "c", "sent2": "q", "ending1": "y", "ending0": "x", "label": 0}, None, ("c", "q", "xy", 0)),
        ({"p": "c", "k1": "x", "k2": "y", "label": 1}, Columns("p", None, ("k",), "label"), ("c", "", "xy", 1)),
        ({"g": "c", "b": "x", "a": "y", "key": 1}, Columns("g", None, ("b", "a"), "key"), ("c", "", "xy", 1)),
    ],
)  # fmt: skip
def test_json_lines(tmp_path, record, columns, expected):
    [example] = read_examples(write(tmp_path, "data.jsonl", lines(record)), columns)
    context, question, choices, label = expected
    assert example == ChoiceExample("0", context, question, tuple(choices), label)


def test_rows_with_a_choice_twice_or_two_labels_are_counted(tmp_path, caplog):
    path = write(tmp_path, "a.csv", "context,a,b,label\nx,y,z,0\nx,y,y,0\nx, z,z,1\nx,y,z,1\n")
    read_examples(path, Columns("context", None, ("a", "b"), "label"))
    assert "a.csv: rows with the same choice twice: 2, the first in line 3" in caplog.text
    assert "another label: 1; the first are line 2 ('0') and line 5 ('1')" in caplog.text


def test_eleven_choices_are_in_the_order_of_their_numbers(tmp_path):
    record = {"question": "q", "label": 10, **{f"choice{number}": str(number) for number in range(11)}}
    [example] = read_examples(write(tmp_path, "data.jsonl", lines(record)))
    assert example.choices == tuple(map(str, range(11))) and example.label == 10


@pytest.mark.parametrize(
    ("first", "labels", "expected"), [("0", "01", [0, 1]), ("1", "21", [1, 0]), ("A", "AB", [0, 1])]
)
def test_numbered_columns_and_other_labels(tmp_path, first, labels, expected):
    text = "".join(f"x\tc {label}\tone\ttwo\t{label}\n" for label in labels)
    examples = read_examples(write(tmp_path, "data.tsv", text), NUMBERED, first_label=first)
    assert [example.label for example in examples] == expected
    assert examples[0] == ChoiceExample("0", f"c {labels[0]}", "", ("one", "two"), expected[0])


@pytest.mark.parametrize(
    ("labels", "told"), [("12" * 4, True), ("12" * 3, False), ("12" * 4 + "0", False), ("1" * 8, True)]
)
def test_labels_from_1_that_are_all_in_range_are_told(tmp_path, caplog, labels, told):
    path = write(tmp_path, "a.jsonl", lines(*(record(choices=["x", "y", "z"], label=int(one)) for one in labels)))
    read_examples(path)
    assert (
        "a.jsonl: no row has the label 0, the first choice; with labels from 1, give --first_" in caplog.text
    ) == told


@pytest.mark.parametrize("missing", ["", None, -1, "-1"])
def test_labels_that_stand_for_none(tmp_path, missing):
    text = lines(*({"context": "c", "choices": ["x", "y"], "label": missing} for _ in range(2)))
    path = write(tmp_path, "test.jsonl", text)
    assert [example.label for example in read_examples(path, labels_needed=False)] == [None, None]
    with pytest.raises(ValueError, match=r"test\.jsonl, line 1: there is no label"):
        read_examples(path)


def record(**changes):
    return {"context": "c", "choices": ["x", "y"], "label": 0} | changes


@pytest.mark.parametrize(
    ("name", "text", "columns", "message"),
    [
        ("a.jsonl", lines(record(), record(choices=["x", "y", "z"])), None,
         "line 2: 3 choices, but line 1 has 2: every row must have as many as the others"),
        ("a.jsonl", lines(*({"question": "q", "label": 0, **dict.fromkeys(keys, "x")} for keys in
                            (("choice0", "choice1", "choice2"), ("choice0", "choice1")))), None,
         "line 2: 2 choices, but line 1 has 3"),
        ("a.csv", SWAG + "2,a,7,s,s,s,gold,a,b,c,d,e,1\n", None, "line 5: 13 columns, but line 1 has 12"),
        ("a.csv", SWAG + "2,a,7,s,s,s,gold,a,b,c,,1\n", None, "line 5: choice 4 of 4 is empty"),
        ("a.tsv", "x\tc\tone\ttwo\t0\nx\tc\tone\ttwo\tthree\t0\n", NUMBERED, "line 2: 6 columns, but line 1 has 5"),
        ("a.csv", SWAG + "2,a,7,s,s,s,gold,a,b,c,d,4\n", None, "; with labels from 1, give --first_label=1."),
        ("a.csv", SWAG + "2,a,7,s,s,s,gold,a,b,c,d,5\n", None, "the first of which is called '0' (--first_label)."),
        ("a.csv", SWAG + "2,a,7,s,s,s,gold,a,b,c,d,B\n", None, "line 5: the label 'B' is not one of the 4 choices"),
        ("a.csv", SWAG + "2,a,7,s,s,s,gold,a,b,c,d,d\n", None, "; with labels from a, give --first_label=a."),
        ("a.jsonl", lines(record(label=True)), None, "line 1: the label True is not one of the 2 choices"),
        ("a.jsonl", lines(record(label=1.0)), None, "line 1: the label 1.0 is not one of the 2 choices"),
        ("a.jsonl", lines(record(), record(label="")), None, "line 2: there is no label"),
        ("a.csv", SWAG.replace(",label", ",gold"), None, "a.csv: which column is what? There are '', 'video-id'"),
        ("a.csv", SWAG.replace("ending2", "ending7"), None, "'ending0', 'ending1', 'ending3', 'ending7': a number is"),
        ("a.csv", SWAG, Columns("sent1", "sent3", ("ending",), "label"), "line 2: no 'sent3'"),
        ("a.csv", SWAG, Columns("sent1", None, ("end",), "label"), "line 2: no list 'end', nor end0, end1"),
        ("a.csv", SWAG, Columns("sent1", None, ("ending0",), "label"), "line 2: 'ending0' alone is one choice, of at"),
        ("a.csv", SWAG, Columns("sent1", None, ("ending0", "ending9"), "label"), "line 2: no 'ending9'"),
        ("a.csv", SWAG, Columns("sent1", None, ("ending",), "gold"), "line 2: no 'gold'"),
        ("a.csv", SWAG.replace("sent2", "sent1"), None, "line 1: the column 'sent1' appears twice"),
        ("a.jsonl", lines(record()), NUMBERED, "line 1: columns with names have no numbers"),
        ("a.jsonl", lines(record(choices=["x"])), None, "line 1: at least two choices are needed; found 1"),
        ("a.jsonl", lines(record(choices=["x", None])), None, "line 1: expected a string, found None"),
        ("a.jsonl", lines(record(context=3)), None, "line 1: expected a string, found 3"),
        ("a.jsonl", "{", None, "line 1, column 2: not JSON"),
        ("a.csv", SWAG.splitlines()[0], None, "a.csv has no example"),
        ("a.csv", 'sent1,sent2,ending0,ending1,label\na,"b,c,d,0\n', None, "line 2: not CSV"),
    ],
)  # fmt: skip
def test_refused(tmp_path, name, text, columns, message):
    with pytest.raises(ValueError) as error:
        read_examples(write(tmp_path, name, text), columns)
    assert message in str(error.value) and name in str(error.value)


def test_some_labels_in_a_test_file(tmp_path):
    path = write(tmp_path, "test.jsonl", lines(record(label=-1), record(label=-1), record()))
    with pytest.raises(ValueError, match=r"test\.jsonl, line 3: a label, but line 1 has none"):
        read_examples(path, labels_needed=False)
    with pytest.raises(FileNotFoundError, match="nothing.csv does not exist"):
        read_examples(str(tmp_path / "nothing.csv"))


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


def test_cells_mean_what_they_look_like_and_a_header_is_named(tmp_path, caplog):
    path = tmp_path / "a.csv"
    path.write_text("\ufeffcontext ,choices0,choices1,label\u00a0\n c\u00a0, a ,\ufeffb, 1\u00a0\n", encoding="utf-8")
    assert read_examples(str(path)) == [ChoiceExample("0", "c", "", ("a", "b"), 1)]
    by_number = Columns("0", None, ("1", "2"), "3")
    advice = "if it is a header, name the columns by it: --context=context --label=label"
    with pytest.raises(ValueError, match=f"line 1: the label 'label' .*; {advice} --choices=choices0,choices1"):
        read_examples(str(path), by_number)
    path.write_text("context,choices0,choices1,\nc,a,b,\n")
    read_examples(str(path), by_number, labels_needed=False)
    assert "a.csv, line 1 is read as an example; if it is a header" in caplog.text

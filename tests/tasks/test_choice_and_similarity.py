"""Rows of choices and of texts that are compared: files in all layouts, errors, token rows, metrics, hard negatives."""

import itertools
import json
import re

import numpy as np
import pytest
from helpers.script_cases import pattern_of

from bert_tf.system.declare import check_values
from bert_tf.tasks.choice import data as choice_data
from bert_tf.tasks.choice.data import ChoiceExample, Columns
from bert_tf.tasks.similarity import data as similarity_data
from bert_tf.tasks.similarity import metrics as similarity_metrics
from bert_tf.tasks.similarity.data import SimilarityExample, SimilaritySettings
from bert_tf.tasks.similarity.metrics import write_hard_negatives
from bert_tf.training.settings import FineTuningSettings

read_choices, read_pairs, Pair = choice_data.read_examples, similarity_data.read_examples, similarity_data.Columns

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
    first, second = read_choices(write(tmp_path, "val.csv", SWAG))
    assert first == ChoiceExample("0", "On stage.", "He", ("sits.", 'says "no", and\ngoes.', "sings", "stands."), 1)
    assert second == ChoiceExample("1", "She, too.", "", ("a", "b", "c", "d"), 3)
    unlabeled = "".join(line.rpartition(",")[0] + "\n" for line in SWAG.replace("\ngoes", "goes").splitlines())
    test = read_choices(write(tmp_path, "test.csv", unlabeled), labels_needed=False)
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
    [example] = read_choices(write(tmp_path, "data.jsonl", lines(record)), columns)
    context, question, choices, label = expected
    assert example == ChoiceExample("0", context, question, tuple(choices), label)


@pytest.mark.parametrize(
    ("first", "labels", "expected"), [("0", "01", [0, 1]), ("1", "21", [1, 0]), ("A", "AB", [0, 1])]
)
def test_numbered_columns_and_other_labels(tmp_path, first, labels, expected):
    text = "".join(f"x\tc {label}\tone\ttwo\t{label}\n" for label in labels)
    examples = read_choices(write(tmp_path, "data.tsv", text), NUMBERED, first_label=first)
    assert [example.label for example in examples] == expected
    assert examples[0] == ChoiceExample("0", f"c {labels[0]}", "", ("one", "two"), expected[0])


def test_labels_that_stand_for_none(tmp_path):
    for missing in ("", None, -1, "-1"):
        path = write(tmp_path, "test.jsonl", lines(*[record(label=missing)] * 2))
        assert [example.label for example in read_choices(path, labels_needed=False)] == [None, None]
        with pytest.raises(ValueError, match=r"test\.jsonl, line 1: there is no label"):
            read_choices(path)


def record(**changes):
    return {"context": "c", "choices": ["x", "y"], "label": 0} | changes


def test_real_files_of_choices(shared):
    codah = Columns("1", None, ("2", "3", "4", "5"), "6")
    for path, columns, labels in (
        ("swag_layout/val.csv", None, [1205, 1271, 1247, 1277]), ("swag_layout/sample.json", None, [3, 2, 0, 5]),
        ("jcommonsenseqa/valid.jsonl", None, [216, 237, 240, 228, 198]),
        ("codah/train.tsv", codah, [426, 402, 404, 433]),
    ):  # fmt: skip
        examples = read_choices(str(shared / "data" / "choice" / path), columns)
        assert {len(example.choices) for example in examples} == {len(labels)}, path
        assert [sum(example.label == k for example in examples) for k in range(len(labels))] == labels, path


def test_odd_labels(tmp_path, caplog):
    for labels in ("12" * 3, "12" * 4 + "0", "12" * 4):
        rows = (record(choices=["x", "y", "z"], label=int(one)) for one in labels)
        assert not caplog.text
        read_choices(write(tmp_path, "a.jsonl", lines(*rows)))
    assert "a.jsonl: no row has the label 0, the first choice; with labels from 1, give --first_label=1" in caplog.text


PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"]
A, B, C, D, E = range(5, 10)

EXAMPLES = [
    ChoiceExample("0", "a b", "c", ("d", "d e a a"), 1),
    ChoiceExample("1", "a b c d e", "", ("\u0001", "e"), 0),
]


def test_rows_of_choices(small):
    rows = choice_data.encode_examples(EXAMPLES, small, 16)
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
    rows = choice_data.encode_examples(EXAMPLES, small, 7)
    expected = [[2, A, B, 3, C, D, 3], [2, A, B, 3, C, D, 3], [2, A, B, C, D, E, 3], [2, A, B, C, 3, E, 3]]
    assert rows.ids.tolist() == list(itertools.chain(*expected))
    assert "of which the last are lost: 2 of 4 choices" in caplog.text
    with pytest.raises(ValueError, match="^max_seq_length=4 has no room for two texts"):
        choice_data.encode_examples(EXAMPLES, small, 4)


FILES = {
    "sts.tsv": 'index\tgenre\tsentence1\tsentence2\tscore\n0\tx\tA "man.\tA man.\t5.000\n1\tx\t개가 짖는다\tДа\t0.0\n',
    "pairs.csv": 'question,answer\n"Who, then?",Ada\nWhere?,"In \n Rome"\n',
    "triplets.jsonl": json.dumps({"anchor": "a", "positive": "b", "negative": "c", "more": 1}) + "\n",
    "numbers.csv": "a,b,3\nc,d,4\n",
}


def test_known_layouts(tmp_path):
    def texts(name, **arguments):
        path = write(tmp_path, name, FILES[name])
        return [(*example.texts, example.score) for example in read_pairs(path, **arguments)]

    assert texts("sts.tsv", score_range=(0, 5)) == [('A "man.', "A man.", 1.0), ("개가 짖는다", "Да", 0.0)]
    assert texts("pairs.csv") == [("Who, then?", "Ada", None), ("Where?", "In \n Rome", None)]
    assert texts("triplets.jsonl") == [("a", "b", "c", None)]
    by_number = {"columns": Pair("0", "1", score="-1"), "score_range": (2, 6)}
    assert texts("numbers.csv", **by_number) == [("a", "b", 0.25), ("c", "d", 0.5)]
    swapped = [("A man.", 'A "man.', None), ("Да", "개가 짖는다", None)]
    assert texts("sts.tsv", columns=Pair("sentence2", "sentence1")) == swapped


def test_rows_of_pairs(small, caplog):
    examples = [SimilarityExample("0", ("a", "b c"), 0.5), SimilarityExample("1", (" b c ", "a b c a b c"), 1.0)]
    rows = similarity_data.encode_examples(examples, small, 6)
    assert (len(rows), rows.rows_per_example, rows.lengths.tolist()) == (2, 2, [4, 6])
    assert "of which the last are lost: 1 of 4 texts" in caplog.text
    batch = rows.batch([1, 0], 6)
    expected = [[[2, 6, 7, 3, 0, 0], [2, 5, 6, 7, 5, 3]], [[2, 5, 3, 0, 0, 0], [2, 6, 7, 3, 0, 0]]]
    assert batch["input_ids"].tolist() == expected
    assert batch["segment_ids"].max() == 0 and batch["scores"].tolist() == [1.0, 0.5]
    assert rows.labels["text_ids"].tolist() == [[0, 1], [1, 2]]
    asked = similarity_data.encode_examples(examples, small, 8, prompt="a ").ids.tolist()
    assert asked[:9] == [2, 5, 5, 3, 2, 5, 6, 7, 3]  # before the text


def test_retrieval_beside_a_ranking_by_hand():
    generator = np.random.default_rng(0)
    count, size = 60, 4
    first = generator.normal(size=(count, size))
    vectors = np.stack([first, first + generator.normal(size=first.shape), generator.normal(size=first.shape)], axis=1)
    ids = np.arange(3 * count).reshape(count, 3)
    for copy, of in ((7, 3), (21, 3)):  # a text with three partners
        ids[copy, 0], vectors[copy, 0] = ids[of, 0], vectors[of, 0]
    ids[9, 1], vectors[9, 1] = ids[5, 1], vectors[5, 1]  # a partner of two texts
    normal = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    texts = {int(ids[row, text]): normal[row, text] for row in range(count) for text in (1, 2)}
    names = ("accuracy_1", "accuracy_5", "accuracy_10", "mrr_10", "ndcg_10")
    expected = {f"eval_{name}": [] for name in names}
    for query in dict.fromkeys(ids[:, 0].tolist()):
        rows = np.flatnonzero(ids[:, 0] == query)
        partners = set(ids[rows, 1].tolist())
        order = sorted(texts, key=lambda text: -float(texts[text] @ normal[rows[0], 0]))[:10]
        found = [text in partners for text in order]
        for rank in (1, 5, 10):
            expected[f"eval_accuracy_{rank}"].append(any(found[:rank]))
        expected["eval_mrr_10"].append(1 / (1 + found.index(True)) if any(found) else 0.0)
        gains = sum(1 / np.log2(2 + rank) for rank in range(10) if found[rank])
        expected["eval_ndcg_10"].append(gains / sum(1 / np.log2(2 + rank) for rank in range(len(partners))))
    results = similarity_metrics.retrieval(normal.astype(np.float32), ids)
    assert results == {name: pytest.approx(float(np.mean(values)), abs=1e-6) for name, values in expected.items()}
    few = similarity_metrics.retrieval(normal[:2, :2].astype(np.float32), ids[:2, :2])  # fewer texts than ranks
    assert few["eval_accuracy_5"] == few["eval_accuracy_10"] == 1.0


def test_what_is_odd_in_pairs_is_reported(tmp_path, caplog):
    def read(content, *columns, **arguments):
        return read_pairs(write(tmp_path, "a.csv", content), *columns, **arguments)

    judged = "q,a,label\na,b,yes\nc,d,no\n"
    read(judged, Pair("q", "a"), partners=False)  # a test set
    read("query,positive,label\na,b,1\nc,d,1\n")
    read("anchor,positive,negative,label\na,b,c,1\nd,e,f,0\n")
    scored = "sentence1,sentence2,score\na,b, 0\u00a0\nb,c,1\n"
    assert [one.score for one in read(scored)] == [0.0, 1.0] and not caplog.text
    read(judged, Pair("q", "a"))
    read(scored, score_range=(0, 5))
    assert "the column 'label' ('yes' before, 'no' here) is not used" in caplog.text
    assert "a.csv: all scores are from 0 to 1, of --score_range=0,5: are these the lowest" in caplog.text


@pytest.mark.parametrize(("changes", "texts", "scored", "expected"), [
    ({}, 2, True, "cosine"), ({}, 3, False, "ranking"), ({"loss": "triplet"}, 3, False, "triplet"),
    ({"loss": "triplet", "mine_hard_negatives": 2}, 2, False, "triplet"),
    ({"loss": "triplet", "ranking_scale": 3.0}, 3, False, "--ranking_scale is for --loss=ranking; this is"),
    ({"loss": "cosine"}, 3, True, "--loss=cosine is for two texts and a score; --train_file has 3 texts"),
    ({"loss": "ranking"}, 2, True, "--loss=ranking is for two or three texts without a score"),
    ({"mine_hard_negatives": 1}, 3, False, "--mine_hard_negatives is for pairs without --score and --negative"),
    ({"text_a": "title"}, 2, False, "--text_a and --text_b: name both columns"),
    ({"score": "score"}, 2, False, "--score needs --text_a and --text_b, too."),
    ({"score_range": ("5", "0")}, 2, False, "--score_range=5,0 must be two numbers, the lower one first"),
])  # fmt: skip
def test_losses_and_those_that_do_not_fit(changes, texts, scored, expected):
    if not expected.startswith("--"):
        assert SimilaritySettings(**changes).loss_of(texts, scored) == expected
        return
    with pytest.raises(ValueError, match=expected):
        settings = SimilaritySettings(train_file="a.csv", **changes)
        settings.loss_of(texts, scored)
        check_values(settings)
        settings.check(FineTuningSettings(output_dir="out", do_train=True))


# Text -> its vector. "a" has two partners, of which "far" counts for the margin.
ANGLES = {"a": 0, "near": 10, "far": 40, "b": 90, "of b": 95, "c": 70, "of c": 60, "itself": 180}
ANGLES["twin"] = ANGLES["near"]
PAIRS = [("a", "near"), ("a", "far"), ("b", "of b"), ("c", "of c"), ("itself", "itself"), ("b", "of b")]
PAIRS += [("near", "twin")]


def vectors_of(texts):
    angles = np.deg2rad([ANGLES[text] for text in texts])
    return np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32)


def mined(path, count, margin):
    examples = [SimilarityExample(str(number), pair) for number, pair in enumerate(PAIRS)]
    write_hard_negatives(str(path), examples, vectors_of, count, margin)
    return [tuple(json.loads(line).values()) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("margin", [0.0, 0.05, 0.3])
def test_negatives_are_those_of_the_definition(tmp_path, count, margin, monkeypatch):
    monkeypatch.setattr(similarity_metrics, "_AT_ONCE", 2)
    expected, corpus = [], list(dict.fromkeys(pair[1] for pair in PAIRS))
    for anchor in dict.fromkeys(pair[0] for pair in PAIRS):
        own = list(dict.fromkeys(pair[1] for pair in PAIRS if pair[0] == anchor))
        cosine = {text: float((vectors_of([anchor]) @ vectors_of([text]).T)[0, 0]) for text in corpus}
        farthest = min(cosine[text] for text in own)
        allowed = [text for text in corpus if text not in (*own, anchor) and cosine[text] <= farthest * (1 - margin)]
        best = sorted(allowed, key=cosine.get, reverse=True)[:count]
        expected += [(anchor, positive, negative) for positive in own for negative in best]
    assert mined(tmp_path / "mined.jsonl", count, margin) == expected
    assert {line[0] for line in expected} == {"a", "b", "c", "itself", "near"}


def test_hard_negatives_reject_a_margin_that_leaves_none(tmp_path):
    with pytest.raises(ValueError, match="farther than the partner by --negatives_margin=3 in any of 6 pairs"):
        mined(tmp_path / "mined.jsonl", 1, 3)
    with pytest.raises(ValueError, match="^--mine_hard_negatives=6: --train_file has only 6 different second texts"):
        mined(tmp_path / "mined.jsonl", 6, 0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("read", "name", "text", "arguments", "message"), [
    *((read_choices, *row) for row in (
        ("a.jsonl", lines(record(), record(choices=["x", "y", "z"])), {}, "line 2: 3 choices, but the first row has"),
        ("a.csv", SWAG + "2,a,7,s,s,s,gold,a,b,c,,1\n", {}, "line 5: two choices are needed at least, and none"),
        ("a.csv", SWAG + "2,a,7,s,s,s,gold,a,b,c,d,4\n", {}, "line 5: the label '4' is not one of the 4 choices"),
        ("a.csv", SWAG + "2,a,7,s,s,s,gold,a,b,c,d,B\n", {"first_label": "first"},
         "the first of which is called 'first' (--first_label)."),
        ("a.jsonl", lines(record(label=True)), {}, "line 1: the label True is not one of the 2 choices"),
        ("a.jsonl", lines(record(label=[0, 1])), {}, "line 1: the label [0, 1] is not one of the 2 choices"),
        ("a.csv", SWAG.replace(",label", ",gold"), {}, " has no known columns"),
        ("a.csv", SWAG.replace("ending2", "ending7"), {}, "'ending0', 'ending1', 'ending3', 'ending7': a number is"),
        *(("a.csv", SWAG, {"columns": Columns("sent1", None, choices, label)}, message) for choices, label, message in (
            (("ending0",), "label", "line 2: no list 'ending0', nor ending00"),
            (("ending0", "ending9"), "label", "line 2: no 'ending9'"), (("ending",), "gold", "line 2: no 'gold'"))),
        ("a.jsonl", lines(record(choices=["x", None])), {}, "line 1: expected a string, found None"),
    )),
    *((read_pairs, *row) for row in (
        ("x.csv", "a,b\n1,2\n", {}, ": which column is what? There are 'a', 'b': name them by --text_a"),
        ("x.csv", "question,answer\nq, \n", {}, ", line 2: answer is empty"),
        ("x.csv", "sentence1,sentence2,score\na,b,6\n", {"score_range": (0, 5)},
         "line 2: the score 6 is not in --score_range=0,5"),
        ("x.csv", "sentence1;sentence2;score\na;b;0,5\n", {}, "line 2: a number is expected as score, found '0,5'"),
        ("x.jsonl", '{"text_a": "a", "text_b": "b", "score": true}\n', {}, "line 1: a number is expected as score"),
        ("x.csv", "sentence1,sentence2,label\na,b,1\nc,d,1\ne,f,0\n", {}, ", line 4: the column 'label' ('1' before, "
         "'0' here) is not used: *--text_a=sentence1 --text_b=sentence2 --score=label --score_range="),
    )),
])  # fmt: skip
def test_readers_reject(tmp_path, read, name, text, arguments, message):
    with pytest.raises(ValueError, match=f"{re.escape(name)}.*{pattern_of(message)}"):
        read(write(tmp_path, name, text), **arguments)

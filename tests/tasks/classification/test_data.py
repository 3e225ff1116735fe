"""Reading classification examples: official layouts, their pitfalls, users' own files, and errors."""

import json
import re

import numpy as np
import pytest

from bert_tf.data.tables import TableSettings
from bert_tf.models.directory import ModelFiles
from bert_tf.models.head_config import HeadConfig
from bert_tf.tasks.classification import data, glue, label_checks
from bert_tf.tasks.classification.settings import ClassificationSettings
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.training.settings import FineTuningSettings

STS_B = ["index", "genre", "filename", "year", "old_index", "source1", "source2", "sentence1", "sentence2"]
GLUE_LAYOUTS = {
    # task: {file: (header, rows)}, as in the official downloads
    "cola": {
        "train.tsv": (None, [["gj04", "1", "", 'An "unbalanced one.'], ["bc01", "0", "*", "Two"]]),
        "dev.tsv": (None, [["gj04", "0", "*", "Three"]]),
        "test.tsv": (["index", "sentence"], [["0", "Four"]]),
    },
    "sst-2": {
        "train.tsv": (["sentence", "label"], [["fine ", "1"]]),
        "dev.tsv": (["sentence", "label"], [["bad", "0"]]),
        "test.tsv": (["index", "sentence"], [["0", "so so"]]),
    },
    "sts-b": {
        "train.tsv": (
            [*STS_B, "score"],
            [["0", "g", "f", "2012", "1", "none", "none", "A plane.", "An air plane.", "4.250"]],
        ),
        "dev.tsv": ([*STS_B, "score"], [["0", "g", "f", "2012", "1", "none", "none", "A", "B", "0"]]),
        "test.tsv": (STS_B, [["0", "g", "f", "2012", "1", "none", "none", "A", "B"]]),
    },
    "qqp": {
        "train.tsv": (
            ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"],
            [["1", "2", "3", "Why?", "How?", "0"], ["4", "5", "6", "cut off"], ["7", "8", "9", "Who?", "Who?", "1"]],
        ),
        "dev.tsv": (["id", "qid1", "qid2", "question1", "question2", "is_duplicate"], [["1", "2", "3", "a", "b", "0"]]),
        "test.tsv": (["id", "question1", "question2"], [["0", "Why?", "How?"]]),
    },
    "qnli": {
        "train.tsv": (["index", "question", "sentence", "label"], [["0", "Q?", "S.", "entailment"]]),
        "dev.tsv": (["index", "question", "sentence", "label"], [["0", "Q?", "S.", "not_entailment"]]),
        "test.tsv": (["index", "question", "sentence"], [["0", "Q?", "S."]]),
    },
    "rte": {
        "train.tsv": (["index", "sentence1", "sentence2", "label"], [["0", "A", "B", "not_entailment"]]),
        "dev.tsv": (["index", "sentence1", "sentence2", "label"], [["0", "A", "B", "entailment"]]),
        "test.tsv": (["index", "sentence1", "sentence2"], [["0", "A", "B"]]),
    },
    "wnli": {
        "train.tsv": (["index", "sentence1", "sentence2", "label"], [["0", "A", "B", "1"]]),
        "dev.tsv": (["index", "sentence1", "sentence2", "label"], [["0", "A", "B", "0"]]),
        "test.tsv": (["index", "sentence1", "sentence2"], [["0", "A", "B"]]),
    },
    "ax": {"diagnostic.tsv": (["index", "sentence1", "sentence2"], [["0", "A", "B"]])},
}

# task: (text_a, text_b, label, guid) of the first training example; test examples for ax
FIRST = {
    "cola": ('An "unbalanced one.', None, "1", "train-0"),
    "sst-2": ("fine ", None, "1", "train-1"),
    "sts-b": ("A plane.", "An air plane.", 4.25, "train-1"),
    "qqp": ("Why?", "How?", "0", "train-1"),
    "qnli": ("Q?", "S.", "entailment", "train-1"),
    "rte": ("A", "B", "not_entailment", "train-1"),
    "wnli": ("A", "B", "1", "train-1"),
    "ax": ("A", "B", None, "test-1"),
}


def write_rows(path, header, rows, bom="", newline="\r\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(row) + newline for row in ([header] if header else []) + rows]
    path.write_bytes((bom + "".join(lines)).encode("utf-8"))


@pytest.mark.parametrize("name", GLUE_LAYOUTS)
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_official_layouts(tmp_path, name, bom):
    for file, (header, rows) in GLUE_LAYOUTS[name].items():
        write_rows(tmp_path / file, header, rows, bom if header else "")
    task = glue.find_task(name)
    splits = {"train": task.train, **task.dev, **task.test}
    examples = {
        split: data.read_examples(task, where, str(tmp_path)) for split, where in splits.items() if where is not None
    }
    first = examples["train" if task.train else "test"][0]
    assert (first.text_a, first.text_b, first.label, first.guid) == FIRST[name]
    assert [example.label for example in examples["test"]] == [None]
    if name == "qqp":  # the short row is left out and the others keep their numbers
        assert [example.guid for example in examples["train"]] == ["train-1", "train-3"]


def test_mnli_mismatched_and_xnli_in_another_language(tmp_path):
    header = ["index", *(f"c{number}" for number in range(1, 8)), "sentence1", "sentence2", "label1", "gold_label"]
    row = [*map(str, range(31, 39)), "P", "H", "neutral", "entailment"]
    write_rows(tmp_path / "dev_mismatched.tsv", header, [row])
    task = glue.find_task("MNLI")
    example = data.read_examples(task, task.dev["dev_mismatched"], str(tmp_path))[0]
    assert example == data.InputExample("dev_mismatched-31", "P", "H", "entailment")
    write_rows(
        tmp_path / "multinli" / "multinli.train.ko.tsv", ["premise", "hypo", "label"], [["가", "나", "contradictory"]]
    )
    header = ["language", "gold_label", "a", "b", "c", "d", "sentence1", "sentence2"]
    rows = [["zh", "neutral", *"abcd", "一", "二"], ["ko", "neutral", *"abcd", "하나", "둘"]]
    write_rows(tmp_path / "xnli.dev.tsv", header, rows)
    task = glue.find_task("xnli", "ko")
    assert data.read_examples(task, task.train, str(tmp_path))[0].label == "contradiction"
    dev = data.read_examples(task, task.dev["dev"], str(tmp_path))
    assert dev == [data.InputExample("dev-2", "하나", "둘", "neutral")]
    write_rows(tmp_path / "xnli.test.tsv", header, rows)
    assert data.read_examples(task, task.test["test"], str(tmp_path))[0].label == "neutral"
    with pytest.raises(ValueError, match=r"xnli\.dev\.tsv has no example with 'de' in column 0"):
        german = glue.find_task("xnli", "de")
        data.read_examples(german, german.dev["dev"], str(tmp_path))


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("MRPC", (3668, 408, 1725)), ("CoLA", (8551, 1043, None)), ("RTE", (2490, 277, None)),
        ("SST-2", (67349, 872, None)), ("STS-B", (5749, 1500, None)), ("WNLI", (635, 71, None)),
    ],
)  # fmt: skip
def test_real_files(shared, name, counts):
    task = glue.find_task(name)
    directory = str(shared / "data" / "glue" / name)
    for split, count in zip((task.train, task.dev["dev"], task.test["test"]), counts, strict=True):
        if count:
            assert len(data.read_examples(task, split, directory)) == count


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"index\tsentence1\tsentence2\tlabel\n0\tA\tB\n", r"train\.tsv, line 2: 3 columns, but column 3"),
        (
            b"index\tsentence1\tsentence2\tlabel\n0\tA\tB\tmaybe\n",
            r"line 2: the label 'maybe' is not one of 'entailment'",
        ),
        (b"index\tquestion\tsentence\tlabel\n0\tA\tB\tentailment\n", r"line 1: column 1 should be 'sentence1' and is"),
        (b"index\tsentence1\tsentence2\tlabel\n", r"train\.tsv has no example"),
        (b"", r"train\.tsv has no example"),
        (b"index\tsentence1\tsentence2\tlabel\n0\tA\t\xff\tentailment\n", r"train\.tsv, line 2: not UTF-8"),
    ],
)
def test_bad_files_are_named(tmp_path, content, message):
    (tmp_path / "train.tsv").write_bytes(content)
    task = glue.find_task("rte")
    with pytest.raises(ValueError, match=message):
        data.read_examples(task, task.train, str(tmp_path))


def test_missing_file_and_unknown_task(tmp_path):
    task = glue.find_task("sts_b")
    with pytest.raises(FileNotFoundError, match=r"train\.tsv does not exist: --task_name=sts-b"):
        data.read_examples(task, task.train, str(tmp_path))
    with pytest.raises(ValueError, match=r"--task_name=sst is not one of cola, sst-2, .*custom"):
        glue.find_task("sst")


CUSTOM = {
    "tsv": 'text\tstars\tmore\nso "so\t3\tx\nfine\t10\ty\n',
    "csv": 'text,stars,more\n"so ""so",3,x\nfine,10,y\n',
    "jsonl": '{"text": "so \\"so", "stars": 3}\n\n{"text": "fine", "stars": "10"}\n',
}


@pytest.mark.parametrize("kind", CUSTOM)
def test_custom_files_by_name(tmp_path, kind):
    path = tmp_path / f"train.{kind}"
    path.write_text(CUSTOM[kind])
    task = data.custom_task(str(path), None, str(path), text_a="text", label="stars")
    assert task.labels == ("3", "10")  # sorted as numbers
    examples = data.read_examples(task, task.train)
    assert [(example.text_a, example.label) for example in examples] == [('so "so', "3"), ("fine", "10")]
    assert data.read_examples(task, task.test["test"])[0].label is None
    regression = data.custom_task(str(path), None, None, text_a="text", label="stars", regression=True)
    assert [example.label for example in data.read_examples(regression, regression.train)] == [3.0, 10.0]


def test_custom_files_by_number_have_no_header(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text('b,"first, of\ntwo lines",second\na,x,y\n')
    task = data.custom_task(str(path), None, None, text_a="1", text_b="-1", label="0")
    assert task.labels == ("a", "b")
    assert data.read_examples(task, task.train)[0] == data.InputExample(
        "train-0", "first, of\ntwo lines", "second", "b"
    )


def test_custom_multi_label(tmp_path):
    path = tmp_path / "train.jsonl"
    rows = [{"t": "x", "l": ["red", "big"]}, {"t": "y", "l": []}, {"t": "z", "l": "big, blue"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = data.custom_task(str(path), None, None, text_a="t", label="l", multi_label=True)
    assert task.labels == ("big", "blue", "red")
    labels = [example.label for example in data.read_examples(task, task.train)]
    assert labels == [("red", "big"), (), ("big", "blue")]


@pytest.mark.parametrize(
    ("name", "content", "arguments", "message"),
    [
        ("a.csv", "text,label\nx,1\n", {"text_a": "words", "label": "label"}, r"a\.csv, line 1: no column 'words'"),
        ("a.csv", 'text,label\n"x,1\n', {"text_a": "text", "label": "label"}, r"a\.csv, line \d: not CSV"),
        ("a.jsonl", '{"text": "x"}\n', {"text_a": "text", "label": "label"}, r"a\.jsonl, line 1: no 'label'"),
        ("a.jsonl", '{"text": 1, "label": "x"}\n', {"text_a": "text", "label": "label"}, r"line 1: expected a string"),
        ("a.jsonl", '{"text": null, "label": "x"}\n', {"text_a": "text", "label": "label"}, "found None in 'text'$"),
        (
            "a.json",
            '{"text": ["x", "y"], "label": ["1", "2"]}',
            {"text_a": "text", "label": "label"},
            r"found \['x', 'y'\] in 'text'; each row must be an object \(pandas: orient=\"records\"\)",
        ),
        (
            "a.json",
            '{"text": {"0": "x"}, "label": {"0": "1"}}',
            {"text_a": "text", "label": "label"},
            r"found \{'0': 'x'\} in 'text'; each row must be an object",
        ),
        (
            "a.csv",
            "text,label\nx,1\n",
            {"text_a": "Text", "label": "label"},
            "'Text'.*; did you mean 'text'?",
        ),
        (
            "a.jsonl",
            '{"text": "x"}\n',
            {"text_a": "txt", "label": "text"},
            "no 'txt'; .*; did you mean 'text'?",
        ),
        ("a.jsonl", "[1]\n", {"text_a": "text", "label": "label"}, r"line 1: expected a JSON object"),
        ("a.jsonl", "{\n", {"text_a": "text", "label": "label"}, r"a\.jsonl, line 1, column 2: not JSON"),
        ("a.tsv", "text\tlabel\nx\t1\ny\t1\n", {"text_a": "text", "label": "label"}, "only one class, '1'"),
        ("a.tsv", "text\tlabel\nx\t1\n", {"text_a": "text", "label": "1"}, "all columns by name, or all by number"),
    ],
)
def test_custom_mistakes(tmp_path, name, content, arguments, message):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        data.custom_task(str(path), None, None, **arguments)


def test_numbers_are_expected_for_a_regression(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("text\tscore\nx\tmany\n")
    task = data.custom_task(str(path), None, None, text_a="text", label="score", regression=True)
    with pytest.raises(ValueError, match=r"a\.tsv, line 2: a number is expected as label, found 'many'"):
        data.read_examples(task, task.train)


def test_data_of_another_task_are_noticed(tmp_path):
    """Every training file read as every other task is refused, unless layout and labels are the same."""
    for name, layout in GLUE_LAYOUTS.items():
        for file, (header, rows) in layout.items():
            write_rows(tmp_path / name / file, header, rows)
    taken = set()
    for name in GLUE_LAYOUTS:
        for reader in GLUE_LAYOUTS:
            task = glue.find_task(reader)
            if name == reader or "ax" in (name, reader):
                continue
            try:
                data.read_examples(task, task.train, str(tmp_path / name))
            except ValueError as error:
                assert f"{tmp_path / name}/train.tsv, line " in str(error)
            else:
                taken.add((name, reader))
    assert taken == set()
    write_rows(tmp_path / "sst-2" / "test.tsv", *GLUE_LAYOUTS["sst-2"]["dev.tsv"])
    task = glue.find_task("sst-2")
    with pytest.raises(ValueError, match=r"test\.tsv, line 1: column 1 should be 'sentence' and is 'label'"):
        data.read_examples(task, task.test["test"], str(tmp_path / "sst-2"))


@pytest.mark.parametrize("name", ["cola", "sst-2", "sts-b", "qnli", "rte", "wnli"])
def test_a_row_without_its_last_column_is_named(tmp_path, name):
    header, rows = GLUE_LAYOUTS[name]["train.tsv"]
    short = rows[0][:3] if name == "cola" else rows[0][:-1]
    write_rows(tmp_path / "train.tsv", header, [*rows, short, *rows])
    task = glue.find_task(name)
    line = len(rows) + (2 if header else 1)
    with pytest.raises(ValueError, match=rf"train\.tsv, line {line}: {len(short)} columns, but column {len(short)} "):
        data.read_examples(task, task.train, str(tmp_path))


def test_qqp_with_an_unknown_label_is_no_short_row(tmp_path):
    header, rows = GLUE_LAYOUTS["qqp"]["train.tsv"]
    write_rows(tmp_path / "train.tsv", header, [*rows, ["8", "9", "9", "a", "b", "2"]])
    task = glue.find_task("qqp")
    with pytest.raises(ValueError, match=r"train\.tsv, line 5: the label '2' is not one of '0', '1'"):
        data.read_examples(task, task.train, str(tmp_path))


def test_a_file_beside_the_directory():
    split = data.Split("../diagnostic/diagnostic.tsv", 1)
    task = glue.find_task("mnli")
    assert data.split_path(task, split, "glue/MNLI") == "glue/MNLI/../diagnostic/diagnostic.tsv"
    assert data.split_path(task, split, "gs://bucket/glue/MNLI/") == "gs://bucket/glue/diagnostic/diagnostic.tsv"


def test_one_language_only():
    with pytest.raises(ValueError, match="--language=de: --task_name=MRPC has one language only"):
        glue.find_task("MRPC", "de")


def test_a_byte_order_mark_is_no_text(tmp_path):
    for kind in CUSTOM:
        path = tmp_path / f"bom.{kind}"
        path.write_text("\ufeff" + CUSTOM[kind], encoding="utf-8")
        task = data.custom_task(str(path), None, None, text_a="text", label="stars")
        assert [example.text_a for example in data.read_examples(task, task.train)] == ['so "so', "fine"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        # The row with the mistake begins in line 4, since a field spans lines 2 and 3.
        ("a.csv", 'text,label\n"x\ny",1\n"z\nz"\n', r"a\.csv, line 4: 1 columns, but column 1"),
        ("a.csv", 'text,label\n"x\ny",1\n"z\nz" z,2\n', r"a\.csv, line 4: not CSV"),
        ("a.csv", "text,label\nx,1\ny,\n", r"a\.csv, line 3: there is no label"),
        ("a.jsonl", '{"text": "x", "label": null}\n', r"a\.jsonl, line 1: there is no label"),
        ("a.tsv", "text\tlabel\n", r"a\.tsv has no example"),
    ],
)
def test_custom_rows_with_mistakes(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        data.custom_task(str(path), None, None, text_a="text", label="label")


def test_numbers_for_columns_that_have_names_only(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "x", "label": 1}\n')
    with pytest.raises(ValueError, match=r"a\.jsonl, line 1: JSON lines have no numbered columns; .*'text', 'label'"):
        data.custom_task(str(path), None, None, text_a="0", label="1")


def test_what_is_no_number_is_no_label_of_a_regression(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("text\tscore\nx\t1e3\ny\tnan\n")
    task = data.custom_task(str(path), None, None, text_a="text", label="score", regression=True)
    with pytest.raises(ValueError, match=r"a\.tsv, line 3: a number is expected as label, found 'nan'"):
        data.read_examples(task, task.train)
    with pytest.raises(ValueError, match="--regression has no classes"):
        data.custom_task(str(path), None, None, text_a="text", label="score", regression=True, labels=["a"])


def test_given_classes_keep_their_order_and_nothing_else_is_taken(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("x\tyes\ny\tno\nz\tmaybe\n")
    task = data.custom_task(str(path), None, None, text_a="0", label="1", labels=["yes", "no"])
    assert task.labels == ("yes", "no")
    with pytest.raises(ValueError, match=r"a\.tsv, line 3: the label 'maybe' is not one of 'yes', 'no'"):
        data.read_examples(task, task.train)
    with pytest.raises(ValueError, match="--train_file, or --labels"):
        data.custom_task(None, None, str(path), text_a="0")
    with pytest.raises(ValueError, match=r"a\.tsv: no example has any label"):
        path.write_text("x\t\n")
        data.custom_task(str(path), None, None, text_a="0", label="1", multi_label=True)


def test_what_only_the_whole_file_shows_is_named_by_its_flag(tmp_path):
    (tmp_path / "dev.csv").write_text("text,score\nx,high\n")
    columns = {"task_name": "custom", "text_a": "text", "label": "score", "dev_file": str(tmp_path / "dev.csv")}
    task = ClassificationTask(ClassificationSettings(**columns, regression=True))
    run = FineTuningSettings(output_dir=str(tmp_path), do_eval=True)
    with pytest.raises(ValueError, match=r"^--dev_file: .*dev\.csv, line 2: a number is expected"):
        task.load(run, ModelFiles("", head=HeadConfig()), None, None)


# --- tensorflow-datasets ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def entailment_data_set(tmp_path_factory):
    """A dataset as tensorflow-datasets stores it on disk; for an existing one it does not use the network."""
    import tensorflow_datasets as tfds

    class TinyEntailment(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = {
                "hypothesis": tfds.features.Text(),
                "premise": tfds.features.Text(),
                "label": tfds.features.ClassLabel(names=["no", "yes"]),
                "score": np.float32,
            }
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

        def _split_generators(self, _):
            labels = {"train": [0, 1, 1, -1], "validation_matched": [1, 0], "test": [-1]}
            return {split: self._generate_examples(numbers) for split, numbers in labels.items()}

        def _generate_examples(self, labels):
            for number, label in enumerate(labels):
                texts = {"premise": f"é {number} {label}", "hypothesis": f"H {number}"}
                yield number, {**texts, "label": label, "score": number / 2}

    folder, load = str(tmp_path_factory.mktemp("tensorflow_datasets")), tfds.load
    TinyEntailment(data_dir=folder).download_and_prepare()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tfds, "load", lambda name, **options: load(name, data_dir=folder, **options))
        yield "tiny_entailment"


def test_tensorflow_datasets(entailment_data_set):
    task, examples = data.tfds_task(entailment_data_set)
    assert task.labels == ("no", "yes") and list(examples) == ["train", "dev_matched", "test"]
    # The premise comes first whatever the order in the dataset, and training skips rows without label.
    labels = {"0": "no", "1": "yes"}
    assert len(examples["train"]) == 3
    for example in examples["train"] + examples["dev_matched"]:
        _, number, label = example.text_a.split()
        assert example.text_a[0] == "é" and example.text_b == f"H {number}" and example.label == labels[label]
    assert examples["test"] == [data.InputExample("test-0", "é 0 -1", "H 0", None)]
    task, examples = data.tfds_task(entailment_data_set, text_a="hypothesis", label="score")
    assert task.is_regression and task.metrics == ("pearson", "spearman")
    assert all(example.text_b is None for example in examples["train"])
    assert {example.text_a: example.label for example in examples["train"]} == {f"H {n}": n / 2 for n in range(4)}
    task, examples = data.tfds_task(entailment_data_set, ["nein", "ja"])
    assert {example.label for example in examples["dev_matched"]} == {"nein", "ja"}


def test_tensorflow_datasets_that_are_refused(entailment_data_set):
    for columns in ({"text_a": "nope"}, {"text_a": "premise", "text_b": "score"}, {"label": "premise"}):
        with pytest.raises(ValueError, match="--tfds_name=tiny_entailment has the texts 'premise', 'hypothesis' among"):
            data.tfds_task(entailment_data_set, **columns)
    with pytest.raises(ValueError, match="--labels: 3 names for the classes 'no', 'yes'"):
        data.tfds_task(entailment_data_set, ["a", "b", "c"])
    with pytest.raises(ValueError, match="--tfds_name=no_such_data_set is not a dataset"):
        data.tfds_task("no_such_data_set")


def test_labels_in_a_test_set_and_blank_lines_are_told(tmp_path, caplog):
    task = glue.find_task("rte")
    rows = "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n\n1\tc\td\tnot_entailment\n"
    (tmp_path / "test.tsv").write_text(rows)
    with caplog.at_level("INFO", logger="absl"):
        examples = data.read_examples(task, task.test["test"], str(tmp_path))
    assert [(example.guid, example.label) for example in examples] == [("test-1", None), ("test-2", None)]
    assert "test.tsv, line 1: a test set has no labels; 'label' is not used" in caplog.text
    assert "test.tsv: skipped 1 blank lines" in caplog.text


def test_labels_in_a_test_set_of_ones_own_are_told(tmp_path, caplog):
    (tmp_path / "new.csv").write_text("text,label\na,good\n")
    task = data.custom_task(None, None, str(tmp_path / "new.csv"), text_a="text", label="label", labels=["good", "bad"])
    data.read_examples(task, task.test["test"])
    assert "'label' is not used; as --dev_file with --do_eval the file is scored" in caplog.text


def test_semicolons(tmp_path, caplog):
    """CSV as spreadsheets write it in locales with a decimal comma."""
    text = '\ufefftext;score\r\n"Gut; sehr gut";1\r\nFür 3,50 Euro, nun ja;0\r\n'
    (tmp_path / "train.csv").write_text(text, encoding="utf-8", newline="")
    columns = {"text_a": "text", "label": "score"}
    with caplog.at_level("INFO", logger="absl"):
        task = data.custom_task(str(tmp_path / "train.csv"), None, None, **columns)
        examples = data.read_examples(task, task.train)
    assert [(example.text_a, example.label) for example in examples] == [
        ("Gut; sehr gut", "1"),
        ("Für 3,50 Euro, nun ja", "0"),
    ]
    assert "train.csv: the delimiter is the semicolon, according to the header." in caplog.text
    (tmp_path / "numbers.csv").write_text("gut;1\nschlecht;0\n")
    with pytest.raises(ValueError, match=r"numbers\.csv, line 1: the delimiter is ambiguous: give --csv_del"):
        data.custom_task(str(tmp_path / "numbers.csv"), None, None, text_a="0", label="1")
    task = data.custom_task(
        str(tmp_path / "numbers.csv"), None, None, text_a="0", label="1", table=TableSettings(csv_delimiter=";")
    )
    assert [example.label for example in data.read_examples(task, task.train)] == ["1", "0"]
    (tmp_path / "scores.csv").write_text("text;score\ngut;4,5\n")
    task = data.custom_task(str(tmp_path / "scores.csv"), None, None, **columns, regression=True)
    with pytest.raises(ValueError, match=r"scores\.csv, line 2: a number is expected .*'4,5' \(write .* decimal point"):
        data.read_examples(task, task.train)


def own_task(tmp_path, content, name="train.csv", **arguments):
    (tmp_path / name).write_text(content, encoding="utf-8")
    by_name = {"text_a": "text", "label": "label"}
    return data.custom_task(str(tmp_path / name), None, None, **{**by_name, **arguments})


BY_NUMBER = {"text_a": "0", "label": "1"}


def test_labels_and_columns_that_look_alike_are_the_same(tmp_path):
    content = (
        "\ufefftext ,label\u00a0\na,very good \nb,\ufeffvery\u00a0good\nc, 나쁨\nd,\u1102\u1161\u1108\u1173\u11b7\n"
    )
    task = own_task(tmp_path, content, text_a="text\u00a0", label=" label")
    assert task.labels == ("very good", "나쁨")
    labels = [example.label for example in data.read_examples(task, task.train)]
    assert labels == ["very good", "very good", "나쁨", "나쁨"]
    task = own_task(tmp_path, content, labels=["나쁨\u200b", "very\u00a0good "])
    assert task.labels == ("나쁨", "very good")
    several = own_task(tmp_path, 'text,label\na,"x,\u00a0y"\nb,"y ,\ufeffx"\n', multi_label=True)
    assert several.labels == ("x", "y")


def test_glue_is_read_to_the_letter(tmp_path):
    rows = "sentence\tlabel\nfine \t1\n\u00a0bad\t0\n"
    (tmp_path / "train.tsv").write_text(rows, encoding="utf-8")
    task = glue.find_task("sst-2")
    assert [example.text_a for example in data.read_examples(task, task.train, str(tmp_path))] == ["fine ", "\u00a0bad"]
    (tmp_path / "train.tsv").write_text("sentence\tlabel\nfine\t1 \n")
    with pytest.raises(ValueError, match="line 2: the label '1 ' is not one of"):
        data.read_examples(task, task.train, str(tmp_path))


@pytest.mark.parametrize(
    ("header", "labels", "expected"),
    [
        ("text,label", ["good", "bad"], "error"),
        ("Review,Sentiment", ["good", "bad"], "error"),
        ("내용,평가", ["0", "1"], "error"),  # the others are numbers
        ("내용,평가", ["good", "bad"], "warning"),
        ("so la la,average", ["good", "bad"], "warning"),
        ("a film,good", ["good", "bad"], None),
    ],
)
def test_a_header_that_is_read_as_an_example_is_named(tmp_path, caplog, header, labels, expected):
    content = header + "\n" + "".join(f"text {number},{labels[number % 2]}\n" for number in range(8))
    text, label = header.split(",")
    advice = f"if the row is a header, name the columns by it: --text_a={text} --label={label}"
    if expected == "error":
        with pytest.raises(ValueError, match=rf"train\.csv: the label of the first row, '{label}', .* {advice}"):
            own_task(tmp_path, content, **BY_NUMBER)
    else:
        own_task(tmp_path, content, **BY_NUMBER)
        assert (advice in caplog.text) == (expected == "warning")


def test_a_header_in_other_files_without_one_is_named(tmp_path, caplog):
    path = tmp_path / "dev.csv"
    path.write_text("text,label\na,good\n")
    task = data.custom_task(None, str(path), str(path), **BY_NUMBER, labels=["good", "bad"])
    advice = "if it is a header, name the columns by it: --text_a=text"
    with pytest.raises(ValueError, match=rf"line 1: the label 'label' is not one of .*; {advice} --label=label"):
        data.read_examples(task, task.dev["dev"])
    data.read_examples(task, task.test["test"])
    assert f"dev.csv, line 1 is read as an example; {advice}" in caplog.text
    with pytest.raises(ValueError, match=rf"line 1: a number is expected as label, found 'label'; {advice}"):
        scores = data.custom_task(str(path), None, None, **BY_NUMBER, regression=True)
        data.read_examples(scores, scores.train)


def test_classes_that_look_like_missing_values_are_named(tmp_path, caplog):
    own_task(tmp_path, "text,label\na,up\nb,down\nc,nan\nd,nan\ne,None\nf,up\n")
    assert "train.csv: 2 rows have the class 'nan': if their label is missing, leave them out." in caplog.text
    assert "1 rows have the class 'None'" in caplog.text
    caplog.clear()
    own_task(tmp_path, "text,label\na,up\nb,none\nc,up\n")
    assert "missing" not in caplog.text


def test_labels_that_differ_in_case_are_named(tmp_path, caplog):
    content = "text,label\na,Positive\nb,positive\nc,negative\nd,NEGATIVE\ne,negative\n"
    assert len(own_task(tmp_path, content).labels) == 4
    assert "labels that differ in case only are different classes: 2 ('Positive' and 'positive', " in caplog.text
    assert "--labels=... with one spelling of each" in caplog.text
    task = own_task(tmp_path, content, labels=["negative", "positive"])
    found = [example.label for example in data.read_examples(task, task.train)]
    assert found == ["positive", "positive", "negative", "negative", "negative"]
    assert caplog.text.count("the label 'Positive' is read as 'positive'") == 1
    found = own_task(tmp_path, "text,label\na,positive\nb,negative\n")
    (tmp_path / "dev.csv").write_text("text,label\na,Positive\n")
    split = data.custom_split(str(tmp_path / "dev.csv"), "dev", "text", None, "label")
    with pytest.raises(
        ValueError, match="'Positive' is not one of .*; --labels=negative,positive reads it as 'positive'"
    ):
        data.read_examples(found, split)


def test_labels_that_mean_the_same_are_named(tmp_path, caplog):
    own_task(tmp_path, "text,label\na,1\nb,true\nc,No\nd,0\ne,true\nf,2\n")
    told = "labels that may mean the same are different classes: '1' and 'true', '0' and 'No'; use one spelling of each"
    assert told in caplog.text
    caplog.clear()
    own_task(tmp_path, "text,label\na,1\nb,0\nc,yes we can\nd,2.5\n")
    assert "different classes" not in caplog.text


def test_equal_texts_with_other_labels_are_counted(tmp_path, caplog):
    content = 'text,label\na,up\nb,down\na,up\n a ,down\nA,down\na,down\n"",up\n"",down\n'
    task = own_task(tmp_path, content)
    data.read_examples(task, task.train)
    told = "rows with the text of an earlier row and another label: 2; the first are line 2 ('up') and line 5 ('down')"
    assert caplog.text.count(told) == 1
    caplog.clear()
    tags = own_task(tmp_path, 'text,label\na,"x,y"\na,"y,x"\nb,x\n', "tags.csv", multi_label=True)
    data.read_examples(tags, tags.train)
    scores = own_task(tmp_path, "text,label\na,1.5\na,2.5\n", "scores.csv", regression=True)
    data.read_examples(scores, scores.train)
    assert "earlier row" not in caplog.text


def test_labels_that_are_several_are_named(tmp_path, caplog):
    own_task(tmp_path, "text,label\na,x;y\nb,y\nc,y\nd,x;y\n")
    told = "train.csv: labels that seem to be several ones: 'x;y'; if they are, "
    assert f"{told}give --multi_label, which expects commas between them." in caplog.text
    own_task(tmp_path, 'text,label\na,x;y\nb,"y,z"\nc,y\n', multi_label=True)
    assert f"{told}--multi_label expects commas between them." in caplog.text
    caplog.clear()
    own_task(tmp_path, "text,label\na,books\nb,books/crime\nc,books/crime\nd,a|b\ne,a|b\n")
    assert "several" not in caplog.text


def test_a_dev_set_with_texts_of_the_training_set_is_told(caplog):
    rows = [data.InputExample(str(number), f"text {number}", label="x") for number in range(300)]
    for dev in (rows, rows[:1] + rows[:200:2], [data.InputExample("0", "text 0", "pair")], rows[:1]):
        label_checks.warn_of_known_texts(rows[:200], dev)
    assert [record.args for record in caplog.records] == [(300, 200), (101, 101), (1, 1)]
    caplog.clear()
    for dev in (rows[:200], rows[199:], []):
        label_checks.warn_of_known_texts(rows[:200], dev)
    assert not caplog.records


def table_of(labels) -> str:
    return "text,label\n" + "".join(f"text {number},{label}\n" for number, label in enumerate(labels))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (range(100, 130), "each of the 30 rows has a label of its own, as '100': .*--regression"),
        (
            [f"user-{number}" for number in range(6)],
            "each of the 6 rows has a label of its own, as 'user-0': is --label a",
        ),
        ([number / 8 for number in range(300)] * 2, "300 numbers as classes, such as '0.125': for scores give --regr"),
        (
            [0.25, 0.5, 0.5, 1.25],
            "3 numbers as classes, such as '0.25': if they are scores, give --regression",
        ),
        ([*range(60)] * 2, "60 numbers as classes, such as '0': if they are scores, give --regression"),
        (
            ["positive", "negative"] * 2 + ["positve"],
            r"labels of one row only .* another's: 'positve' \('positive'\?\)\.",
        ),
        ([*map(str, range(25)), *"ab" * 2], "27 classes in 29 rows: is --label the column of the classes"),
    ],
)
def test_labels_that_are_no_classes_are_named(tmp_path, caplog, labels, message):
    said = ""
    try:
        own_task(tmp_path, table_of(labels))
    except ValueError as error:
        said = str(error)
    assert re.search(rf"train\.csv: ({message})", said + caplog.text)


def test_usual_classes_are_not_complained_of(tmp_path, caplog):
    for labels in (["good", "bad"], [*range(1, 6)] * 3, ["1.0", "0.0", "1.0"], [f"intent {n}" for n in range(150)] * 3):
        own_task(tmp_path, table_of(labels))
    assert not [record for record in caplog.records if record.levelname == "WARNING"]

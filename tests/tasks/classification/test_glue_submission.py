"""A submission to GLUE's leaderboard: each task's file, the zip file, and files that it would refuse; the average."""

import zipfile

import numpy as np
import pytest

from bert_tf.tasks.classification import glue

# What the leaderboard takes: file -> number of predictions, and what they are.
BINARY, ENTAILMENT = {"0", "1"}, {"entailment", "not_entailment"}
NLI = {"contradiction", "entailment", "neutral"}
RULES = {
    "CoLA.tsv": (1063, BINARY), "SST-2.tsv": (1821, BINARY), "MRPC.tsv": (1725, BINARY), "STS-B.tsv": (1379, None),
    "QQP.tsv": (390965, BINARY), "MNLI-m.tsv": (9796, NLI), "MNLI-mm.tsv": (9847, NLI), "QNLI.tsv": (5463, ENTAILMENT),
    "RTE.tsv": (3000, ENTAILMENT), "WNLI.tsv": (146, BINARY), "AX.tsv": (1104, NLI),
}  # fmt: skip


def write(folder, name, test_set="test", seed=0):
    """Random predictions for a test set; returns them as class numbers or, for STS-B, numbers."""
    task = glue.find_task(name)
    count = glue.FILES[task.name, test_set].rows
    generator = np.random.default_rng(seed)
    if task.is_regression:
        logits = generator.uniform(-1, 6, (count, 1)).astype(np.float32)
        predicted = np.clip(logits[:, 0], 0, 5)
    else:
        logits = generator.normal(size=(count, len(task.labels))).astype(np.float32)
        predicted = logits.argmax(1)
    glue.write_submission(str(folder), task, test_set, logits)
    return predicted


@pytest.fixture(scope="module")
def submission(tmp_path_factory):
    """(folder, predictions by file, what `finish` returned after the first file and after each of the last three)."""
    folder = tmp_path_factory.mktemp("glue") / "new" / "submission"
    predicted, finished = {}, []
    for number, (task, test_set) in enumerate(glue.FILES):
        name = glue.FILES[task, test_set].name
        predicted[name] = write(folder, task, test_set)
        if number in (0, 9, 10, 11):
            finished.append(glue.finish_submission(str(folder)))
    return folder, predicted, finished


def test_all_test_sets_have_a_file(submission):
    folder, _, finished = submission
    assert {path.name for path in folder.iterdir()} == {*RULES, "submission.zip"}
    sets = {(task.name, name) for task in glue.TASKS.values() for name in task.test if task.name != "xnli"}
    assert sets | {("mnli", "diagnostic")} == set(glue.FILES)
    assert finished == [None] * 2 + [str(folder / "submission.zip")] * 2


@pytest.mark.parametrize("name", RULES)
def test_a_file_has_the_leaderboards_form(submission, name):
    folder, predicted, _ = submission
    count, labels = RULES[name]
    header, *lines, end = (folder / name).read_bytes().decode("ascii").split("\n")
    assert (header, end, len(lines)) == ("index\tprediction", "", count)
    indices, values = zip(*(line.split("\t") for line in lines), strict=True)
    assert list(indices) == [str(number) for number in range(count)]
    if labels is None:
        numbers = np.array(values, float)
        assert numbers.min() == 0.0 and numbers.max() == 5.0
        np.testing.assert_allclose(numbers, predicted[name], atol=1e-6)
    else:
        assert set(values) == labels
        file = next(file for file in glue.FILES.values() if file.name == name)
        assert list(values) == [glue.TASKS[file.task].labels[number] for number in predicted[name]]


def test_the_zip_file_has_the_files_and_nothing_else(submission):
    folder, _, _ = submission
    with zipfile.ZipFile(folder / "submission.zip") as archive:
        assert archive.testzip() is None and sorted(archive.namelist()) == sorted(RULES)
        for name in RULES:
            assert archive.read(name) == (folder / name).read_bytes()


WRONG = {
    "a prediction less": (lambda lines: lines[:-1], "WNLI.tsv has 145 predictions, not 146"),
    "one more": (lambda lines: [*lines, "146\t1"], "WNLI.tsv has 147 predictions, not 146"),
    "empty": (lambda lines: [], "WNLI.tsv, line 1: the header is ''"),
    "another header": (lambda lines: ["id\tlabel", *lines[1:]], "line 1: the header is 'id\\tlabel'"),
    "from 1": (lambda lines: [lines[0], "1\t0", *lines[2:]], "line 2: the index is '1', not 0"),
    "another label": (
        lambda lines: [*lines[:2], "1\tentailment", *lines[3:]],
        "line 3: the prediction is 'entailment', not 0 or 1",
    ),
    "no label": (lambda lines: [*lines[:2], "1", *lines[3:]], "line 3: the prediction is '', not 0 or 1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_named_and_not_sent(tmp_path, caplog, case):
    write(tmp_path, "wnli")
    change, message = WRONG[case]
    path = tmp_path / "WNLI.tsv"
    path.write_text("".join(line + "\n" for line in change(path.read_text().splitlines())))
    with caplog.at_level("INFO"):
        assert glue.finish_submission(str(tmp_path)) is None
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1 and message in warnings[0] and warnings[0].startswith(str(path))
    assert "has 1 of the 11 files of a submission; missing: AX.tsv, CoLA.tsv" in caplog.text


@pytest.mark.parametrize("value", ["5.1", "-0.5", "nan", "much"])
def test_scores_are_from_0_to_5(tmp_path, value):
    write(tmp_path, "sts-b")
    path = tmp_path / "STS-B.tsv"
    assert glue.problem_of(str(tmp_path), glue.FILES["sts-b", "test"]) is None
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:4], f"3\t{value}", *lines[5:]]) + "\n")
    problem = glue.problem_of(str(tmp_path), glue.FILES["sts-b", "test"])
    assert problem == f"{path}, line 5: the prediction is {value!r}, not a number from 0 to 5"


def test_a_wrong_file_among_all_keeps_the_zip_file_from_being_written(submission, tmp_path):
    folder, _, _ = submission
    for name in RULES:
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "RTE.tsv").write_bytes(b"index\tprediction\n0\t\xff\n")
    assert glue.finish_submission(str(tmp_path)) is None
    assert not (tmp_path / "submission.zip").exists()


def test_the_average_of_the_papers_table(tmp_path):
    """BERT-Base's line of Table 1, whose average is 79.6."""
    paper = {
        "MNLI": 84.6,
        "QQP": 71.2,
        "qnli": 90.5,
        "sst_2": 93.5,
        "CoLA": 52.1,
        "STS-B": 85.8,
        "MRPC": 88.9,
        "RTE": 66.4,
    }
    metrics = {"QQP": "f1", "CoLA": "matthews", "STS-B": "spearman", "MRPC": "f1"}
    for name, value in {**paper, "WNLI": 11.0, "notes": 12.0}.items():
        (tmp_path / name).mkdir()
        lines = f"eval_{metrics.get(name, 'accuracy')} = {value / 100:.3f}\neval_loss = 0.5\nglobal_step = 9\n"
        (tmp_path / name / "eval_results.txt").write_text(lines)
    assert "| MNLI-mm | accuracy | no results |\n" in (table := glue.average(str(tmp_path)))
    assert table.endswith("| mean of 8 | | 79.1 |\n")
    (tmp_path / "MNLI" / "eval_results_dev_mismatched.txt").write_text("eval_accuracy = 0.834\n")
    table = glue.average(str(tmp_path))
    assert "| SST-2 | accuracy | 93.5 |\n| CoLA | matthews | 52.1 |\n" in table
    assert table.endswith("| mean of 9 | | 79.6 |\n")
    (tmp_path / "CoLA" / "eval_results.txt").write_text("eval_accuracy = 0.8\n")
    with pytest.raises(ValueError, match=r"CoLA/eval_results.txt has no eval_matthews: it is not of a run of CoLA"):
        glue.average(str(tmp_path))
    with pytest.raises(ValueError, match="CoLA has no results of GLUE's tasks"):
        glue.average(str(tmp_path / "CoLA"))

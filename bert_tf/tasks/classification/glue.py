"""The tasks of the paper's Table 1 and of the original's run_classifier.py, each as one declaration, and the files of a
submission to GLUE's leaderboard.

The columns are those of the official downloads. A task of your own that you use often is one more entry of TASKS; for
one that you use once there is --task_name=custom.
"""

import dataclasses
import io
import posixpath
import re
import zipfile
from collections.abc import Sequence

import numpy as np
from absl import logging

from bert_tf.system.storage import names_in, write_file, write_text_file
from bert_tf.system.text_files import read_text_lines
from bert_tf.tasks.classification.data import Split, Task

NLI_LABELS = ("contradiction", "entailment", "neutral")
ENTAILMENT_LABELS = ("entailment", "not_entailment")
BINARY_LABELS = ("0", "1")


def _mnli(file: str, set_name: str, label: int | None = -1) -> Split:
    # Guids are made of the first column; the number of annotators' labels before the last column differs.
    names = {8: "sentence1", 9: "sentence2"}
    return Split(file, 8, 9, label, set_name, guid=0, header_names=names)


def _pairs(
    label_names: tuple, columns: tuple[int, int], names: tuple[str, str], task: str, metrics=("accuracy",)
) -> Task:
    """A task with an index, two texts and a label, and a test file without label."""
    first, second = columns
    header = dict(zip(columns, names, strict=True))
    return Task(
        task,
        label_names,
        Split("train.tsv", first, second, second + 1, "train", header_names=header),
        {"dev": Split("dev.tsv", first, second, second + 1, "dev", header_names=header)},
        {"test": Split("test.tsv", first, second, None, "test", header_names=header)},
        metrics,
    )


_MRPC_NAMES = {3: "#1 String", 4: "#2 String"}
_QQP_NAMES = {3: "question1", 4: "question2"}
_SENTENCES = ("sentence1", "sentence2")
_XNLI_NAMES = {0: "language", 6: "sentence1", 7: "sentence2"}

TASKS = {
    "cola": Task(
        "cola",
        BINARY_LABELS,
        Split("train.tsv", 3, None, 1, "train", has_header=False),
        {"dev": Split("dev.tsv", 3, None, 1, "dev", has_header=False)},
        {"test": Split("test.tsv", 1, None, None, "test", header_names={1: "sentence"})},
        ("matthews", "accuracy"),
        other_names=("unacceptable", "acceptable"),
    ),
    "sst-2": Task(
        "sst-2",
        BINARY_LABELS,
        Split("train.tsv", 0, None, 1, "train", header_names={0: "sentence", 1: "label"}),
        {"dev": Split("dev.tsv", 0, None, 1, "dev", header_names={0: "sentence", 1: "label"})},
        {"test": Split("test.tsv", 1, None, None, "test", header_names={1: "sentence"})},
        other_names=("negative", "positive"),
    ),
    "mrpc": Task(
        "mrpc",
        BINARY_LABELS,
        Split("train.tsv", 3, 4, 0, "train", header_names=_MRPC_NAMES),
        {"dev": Split("dev.tsv", 3, 4, 0, "dev", header_names=_MRPC_NAMES)},
        {"test": Split("test.tsv", 3, 4, None, "test", header_names=_MRPC_NAMES)},
        ("accuracy", "f1"),
        other_names=("not_equivalent", "equivalent"),
    ),
    "sts-b": _pairs(None, (7, 8), _SENTENCES, "sts-b", ("pearson", "spearman")),
    "qqp": Task(
        "qqp",
        BINARY_LABELS,
        Split("train.tsv", 3, 4, 5, "train", header_names=_QQP_NAMES, skip_short_rows=True),
        {"dev": Split("dev.tsv", 3, 4, 5, "dev", header_names=_QQP_NAMES, skip_short_rows=True)},
        {"test": Split("test.tsv", 1, 2, None, "test", header_names={1: "question1", 2: "question2"})},
        ("accuracy", "f1"),
        other_names=("not_duplicate", "duplicate"),
    ),
    "mnli": Task(
        "mnli",
        NLI_LABELS,
        _mnli("train.tsv", "train"),
        {
            "dev_matched": _mnli("dev_matched.tsv", "dev_matched"),
            "dev_mismatched": _mnli("dev_mismatched.tsv", "dev_mismatched"),
        },
        {
            "test_matched": _mnli("test_matched.tsv", "test", None),
            "test_mismatched": _mnli("test_mismatched.tsv", "test_mismatched", None),
        },
    ),
    "qnli": _pairs(ENTAILMENT_LABELS, (1, 2), ("question", "sentence"), "qnli"),
    "rte": _pairs(ENTAILMENT_LABELS, (1, 2), _SENTENCES, "rte"),
    "wnli": dataclasses.replace(
        _pairs(BINARY_LABELS, (1, 2), _SENTENCES, "wnli"), other_names=("not_entailment", "entailment")
    ),
    # Diagnostics for a model trained on MNLI: nothing to train on, no labels.
    "ax": Task(
        "ax",
        NLI_LABELS,
        None,
        {},
        {"test": Split("diagnostic.tsv", 1, 2, None, "test", header_names={1: "sentence1", 2: "sentence2"})},
    ),
    "xnli": Task(
        "xnli",
        NLI_LABELS,
        Split("multinli/multinli.train.{language}.tsv", 0, 1, 2, "train", header_names={0: "premise", 2: "label"}),
        {"dev": Split("xnli.dev.tsv", 6, 7, 1, "dev", header_names=_XNLI_NAMES, keep=(0, "{language}"))},
        {"test": Split("xnli.test.tsv", 6, 7, 1, "test", header_names=_XNLI_NAMES, keep=(0, "{language}"))},
        label_aliases={"contradictory": "contradiction"},
        language="zh",  # the only one of the original
    ),
}


def find_task(name: str, language: str = "") -> Task:
    """The task of a name, in any case; "sts_b" and "stsb" are "sts-b".

    Raises:
      ValueError: there is no such task (lists all), or it has only one language.
    """
    wanted = name.lower().replace("_", "-")
    for key, task in TASKS.items():
        if wanted in (key, key.replace("-", "")):
            if language and not task.language:
                raise ValueError(f"--language={language}: --task_name={name} has one language only.")
            return dataclasses.replace(task, language=language or task.language)
    raise ValueError(f"--task_name={name} is not one of {', '.join(TASKS)}, custom.")


# --- the average ------------------------------------------------------------------------------------------------------

# Table 1 of the paper, which leaves WNLI out; what is not accuracy.
_TABLE_1 = ("MNLI-m", "MNLI-mm", "QQP", "QNLI", "SST-2", "CoLA", "STS-B", "MRPC", "RTE")
_METRICS_OF_TABLE_1 = {"QQP": "f1", "CoLA": "matthews", "STS-B": "spearman", "MRPC": "f1"}


def average(folder: str) -> str:
    """The results of the runs in a folder in percent, as the paper's Table 1 has them, and their mean: a table of text.

    Args:
      folder: of output directories called as their tasks, in any spelling.

    Raises:
      ValueError: a file of results lacks the metric, or there is none at all; names it.
    """

    def plain(name: str) -> str:
        return re.sub("-m+$|[-_]", "", name.lower())

    folders = {plain(name): posixpath.join(folder, name) for name in names_in(folder)}
    lines, scores = ["| set | metric | % |", "|---|---|---|"], []
    for title in _TABLE_1:
        metric, shown = _METRICS_OF_TABLE_1.get(title, "accuracy"), "no results"
        own, name = folders.get(plain(title)), f"eval_results{'_dev_mismatched' if title == 'MNLI-mm' else ''}.txt"
        if own and name in names_in(own):
            path = posixpath.join(own, name)
            results = dict(line.partition(" = ")[::2] for line in read_text_lines(path))
            if f"eval_{metric}" not in results:
                raise ValueError(f"{path} has no eval_{metric}: it is not of a run of {title}.")
            scores.append(100.0 * float(results[f"eval_{metric}"]))
            shown = f"{scores[-1]:.1f}"
        lines.append(f"| {title} | {metric} | {shown} |")
    if not scores:
        raise ValueError(f"{folder} has no results of GLUE's tasks: their output directories belong there.")
    return "\n".join([*lines, f"| mean of {len(scores)} | | {np.mean(scores):.1f} |"]) + "\n"


# --- submissions -----------------------------------------------------------------------------------------------------

# One file for each test set, with the header `index`, `prediction` and a line for each example in the order of the test
# file: its number from 0, and the name of its class as in the training data, or a number from 0 to 5 for STS-B
# (https://gluebenchmark.com).
ZIP_FILE = "submission.zip"
DIAGNOSTIC = "diagnostic"  # the test set of AX, as MNLI predicts it
_HEADER = "index\tprediction"
_HIGHEST = 5.0  # of STS-B's scores, from 0


@dataclasses.dataclass(frozen=True)
class SubmissionFile:
    """The predictions for one test set: `rows` examples, the classes or numbers of the task in TASKS."""

    name: str
    task: str
    rows: int


# (task, test set) -> its file.
_FILES = {
    ("cola", "test"): SubmissionFile("CoLA.tsv", "cola", 1063),
    ("sst-2", "test"): SubmissionFile("SST-2.tsv", "sst-2", 1821),
    ("mrpc", "test"): SubmissionFile("MRPC.tsv", "mrpc", 1725),
    ("sts-b", "test"): SubmissionFile("STS-B.tsv", "sts-b", 1379),
    ("qqp", "test"): SubmissionFile("QQP.tsv", "qqp", 390965),
    ("mnli", "test_matched"): SubmissionFile("MNLI-m.tsv", "mnli", 9796),
    ("mnli", "test_mismatched"): SubmissionFile("MNLI-mm.tsv", "mnli", 9847),
    ("qnli", "test"): SubmissionFile("QNLI.tsv", "qnli", 5463),
    ("rte", "test"): SubmissionFile("RTE.tsv", "rte", 3000),
    ("wnli", "test"): SubmissionFile("WNLI.tsv", "wnli", 146),
    ("ax", "test"): SubmissionFile("AX.tsv", "ax", 1104),
}
FILES = {**_FILES, ("mnli", DIAGNOSTIC): _FILES["ax", "test"]}


def check_submission(name: str | None) -> None:
    """Refuses a task that is no part of GLUE; None stands for data from elsewhere.

    Raises:
      ValueError: names the flag and the tasks.
    """
    tasks = sorted({task for task, _ in FILES})
    known = name and name.lower() != "custom" and find_task(name).name
    if known not in tasks:
        raise ValueError(f"--glue_submission is for --task_name={', '.join(tasks)}, not for {name or '--tfds_name'}.")


def with_diagnostic_set(task: Task, data_dir: str) -> Task:
    """A task; MNLI with the test set of AX, from `diagnostic.tsv` in data_dir or `diagnostic/` beside it."""
    import tensorflow as tf

    if task.name != "mnli":
        return task
    split = dataclasses.replace(TASKS["ax"].test["test"], set_name=DIAGNOSTIC)
    if not tf.io.gfile.exists(posixpath.join(data_dir, split.file)):
        split = dataclasses.replace(split, file=f"../{DIAGNOSTIC}/{split.file}")
    return dataclasses.replace(task, test={**task.test, DIAGNOSTIC: split})


def check_submission_count(task: str, test_set: str, count: int, path: str) -> None:
    """Refuses another number of examples than the leaderboard's test set has.

    Args:
      path: the file they were read from.

    Raises:
      ValueError: names the path and both numbers.
    """
    file = FILES[task, test_set]
    if count != file.rows:
        raise ValueError(
            f"--glue_submission: {path} has {count} examples, but {file.name} needs {file.rows} predictions: "
            "use the test file of the GLUE download as it is."
        )


def write_submission(directory: str, task: Task, test_set: str, logits: np.ndarray) -> None:
    """Writes a test set's file, complete or not at all; logits [n, C] in the order of the test file."""
    import tensorflow as tf

    from bert_tf.tasks.classification.encode import predictions_of

    predicted = predictions_of(task, logits)
    if task.is_regression:
        values = [f"{value:.6f}" for value in np.clip(predicted, 0.0, _HIGHEST)]
    else:
        values = [task.labels[number] for number in predicted]
    lines = [_HEADER, *(f"{number}\t{value}" for number, value in enumerate(values))]
    tf.io.gfile.makedirs(directory)
    path = posixpath.join(directory, FILES[task.name, test_set].name)
    write_text_file(path, "".join(line + "\n" for line in lines))
    logging.info("Wrote %d predictions to %s.", len(values), path)


def finish_submission(directory: str) -> str | None:
    """Writes submission.zip if the directory has all files, else logs what is missing or wrong; returns its path."""
    import tensorflow as tf

    files = sorted(_FILES.values(), key=lambda file: file.name)
    there = [file for file in files if tf.io.gfile.exists(posixpath.join(directory, file.name))]
    missing = [file.name for file in files if file not in there]
    wrong = [problem for file in there if (problem := problem_of(directory, file))]
    for problem in wrong:
        logging.warning("%s: write it again.", problem)
    if missing:
        logging.info(
            "%s has %d of the %d files of a submission; missing: %s.",
            directory, len(there), len(files), ", ".join(missing),
        )  # fmt: skip
    if missing or wrong:
        return None
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            with tf.io.gfile.GFile(posixpath.join(directory, file.name), "rb") as content:
                archive.writestr(zipfile.ZipInfo(file.name), content.read(), zipfile.ZIP_DEFLATED)
    path = posixpath.join(directory, ZIP_FILE)
    write_file(path, buffer.getvalue())
    logging.info("All %d files are there: upload %s at https://gluebenchmark.com.", len(files), path)
    return path


def problem_of(directory: str, file: SubmissionFile) -> str | None:
    """What is wrong with a file of a submission, in one line with its path; None if nothing is."""
    path = posixpath.join(directory, file.name)
    try:
        header, *lines = list(read_text_lines(path)) or [""]
    except ValueError as error:  # not UTF-8
        return str(error)
    if header != _HEADER:
        return f"{path}, line 1: the header is {header!r}, not {_HEADER!r}"
    if len(lines) != file.rows:
        return f"{path} has {len(lines)} predictions, not {file.rows}"
    labels = TASKS[file.task].labels
    for number, line in enumerate(lines):
        index, _, value = line.partition("\t")
        if index != str(number):
            return f"{path}, line {number + 2}: the index is {index!r}, not {number}"
        if not _is_prediction(value, labels):
            expected = " or ".join(labels) if labels else f"a number from 0 to {_HIGHEST:g}"
            return f"{path}, line {number + 2}: the prediction is {value!r}, not {expected}"
    return None


def _is_prediction(value: str, labels: Sequence[str] | None) -> bool:
    if labels:
        return value in labels
    return bool(re.fullmatch(r"\d+(\.\d+)?", value)) and 0.0 <= float(value) <= _HIGHEST

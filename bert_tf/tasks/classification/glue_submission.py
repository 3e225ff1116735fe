"""The files of a submission to the leaderboard of GLUE (https://gluebenchmark.com), and the zip file of them all.

One file for each test set, with the header `index`, `prediction` and a line for each example in the order of the test
file: its number from 0, and the name of its class as in the training data, or a number from 0 to 5 for STS-B.
"""

import dataclasses
import io
import posixpath
import re
import zipfile
from collections.abc import Sequence

import numpy as np
from absl import logging

from bert_tf.system.atomic import write_file, write_text_file
from bert_tf.system.text_files import read_text_lines
from bert_tf.tasks.classification import glue, metrics
from bert_tf.tasks.classification.data import Task

ZIP_FILE = "submission.zip"
DIAGNOSTIC = "diagnostic"  # the test set of AX, as MNLI predicts it
_HEADER = "index\tprediction"
_HIGHEST = 5.0  # of STS-B's scores, from 0


@dataclasses.dataclass(frozen=True)
class SubmissionFile:
    """The predictions for one test set: `rows` examples, the classes or numbers of the task in glue.TASKS."""

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


def check_task(name: str | None) -> None:
    """Refuses a task that is no part of GLUE; None stands for data from elsewhere.

    Raises:
      ValueError: names the flag and the tasks.
    """
    tasks = sorted({task for task, _ in FILES})
    known = name and name.lower() != "custom" and glue.find_task(name).name
    if known not in tasks:
        raise ValueError(f"--glue_submission is for --task_name={', '.join(tasks)}, not for {name or '--tfds_name'}.")


def with_diagnostic_set(task: Task, data_dir: str) -> Task:
    """A task; MNLI with the test set of AX, from `diagnostic.tsv` in data_dir or `diagnostic/` beside it."""
    import tensorflow as tf

    if task.name != "mnli":
        return task
    split = dataclasses.replace(glue.TASKS["ax"].test["test"], set_name=DIAGNOSTIC)
    if not tf.io.gfile.exists(posixpath.join(data_dir, split.file)):
        split = dataclasses.replace(split, file=f"../{DIAGNOSTIC}/{split.file}")
    return dataclasses.replace(task, test={**task.test, DIAGNOSTIC: split})


def check_count(task: str, test_set: str, count: int, path: str) -> None:
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


def write_predictions(directory: str, task: Task, test_set: str, logits: np.ndarray) -> None:
    """Writes a test set's file, complete or not at all; logits [n, C] in the order of the test file."""
    import tensorflow as tf

    predicted = metrics.predictions_of(task, logits)
    if task.is_regression:
        values = [f"{value:.6f}" for value in np.clip(predicted, 0.0, _HIGHEST)]
    else:
        values = [task.labels[number] for number in predicted]
    lines = [_HEADER, *(f"{number}\t{value}" for number, value in enumerate(values))]
    tf.io.gfile.makedirs(directory)
    path = posixpath.join(directory, FILES[task.name, test_set].name)
    write_text_file(path, "".join(line + "\n" for line in lines))
    logging.info("Wrote %d predictions to %s.", len(values), path)


def finish(directory: str) -> str | None:
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
    labels = glue.TASKS[file.task].labels
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

"""Examples of classification tasks from files: TSV as in GLUE, CSV, JSON lines, and the user's own columns.

A task is a declaration of files, columns and labels (TASKS lists them); reading is the same for all.
Original: run_classifier.py, DataProcessor and its subclasses.
"""

import dataclasses
import math
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from absl import logging

from bert_tf.data.tables import (
    Column,
    TableSettings,
    all_examples,
    by_name,
    class_name,
    copied_columns,
    field_of,
    is_bracketed,
    number_of,
    plain_label,
    quoted,
    read_rows,
    text_of,
    warn_of_left_out,
)
from bert_tf.system.messages import abbreviated_list, is_first
from bert_tf.text.characters import plain_name


@dataclasses.dataclass(frozen=True)
class InputExample:
    """One text or two, and a label, if known: a string, a float for regression, a tuple where several may hold.

    source: the columns of its row that go into predictions. line: where it begins in the file.
    """

    guid: str
    text_a: str
    text_b: str | None = None
    label: str | float | tuple[str, ...] | None = None
    source: Mapping[str, object] | None = None
    line: int | None = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass(frozen=True)
class Split:
    """The file of a set of examples, and its columns.

    Attributes:
      file: name below the data directory; {language} is filled in where a task has one.
      text_a, text_b, label: columns, by number from 0 (negative ones count from the end) or by name in the header.
        Several columns of labels have 0 or 1 each, in the order of the task's labels.
      set_name: first part of every guid. guid: column of the other part; None: the number of the row in the file.
      header_names: column number -> name that the header must have there, to detect files of another task.
      keep: (column, value): rows with another value there are left out.
      skip_short_rows: rows that lack a column are left out (released files of QQP).
      table: how a user's file is read; None: to the letter, as the files of GLUE.
    """

    file: str
    text_a: Column
    text_b: Column | None = None
    label: Column | tuple[Column, ...] | None = None
    set_name: str = "train"
    has_header: bool = True
    guid: Column | None = None
    header_names: Mapping[int, str] = dataclasses.field(default_factory=dict)
    keep: tuple[int, str] | None = None
    skip_short_rows: bool = False
    table: TableSettings | None = None

    @property
    def columns(self) -> tuple[Column | None, ...]:
        return self.text_a, self.text_b, *(self.label if isinstance(self.label, tuple) else (self.label,))


@dataclasses.dataclass(frozen=True)
class Task:
    """A classification or regression task.

    Attributes:
      labels: in the order of their ids; None for a regression.
      train, dev, test: the files; the first dev and test set are the main ones.
      metrics: names of `metrics.METRICS`; the first chooses the best model.
      label_aliases: other spellings of labels in the files. any_case: labels may differ in case.
      other_names: what Hugging Face and models trained there call the labels.
      multi_label: several labels of an example may hold.
      marks: whether lists of 0 and 1 mark labels, as in the training file; None: each file's lists say it.
      language: fills {language} in file names and `keep`.
    """

    name: str
    labels: tuple[str, ...] | None
    train: Split | None
    dev: Mapping[str, Split] = dataclasses.field(default_factory=dict)
    test: Mapping[str, Split] = dataclasses.field(default_factory=dict)
    metrics: tuple[str, ...] = ("accuracy",)
    label_aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    any_case: bool = False
    other_names: tuple[str, ...] = ()
    multi_label: bool = False
    language: str = ""
    marks: bool | None = None

    @property
    def is_regression(self) -> bool:
        return self.labels is None

    @property
    def problem_type(self) -> str:
        if self.is_regression:
            return "regression"
        return "multi_label_classification" if self.multi_label else "single_label_classification"

    def label_ids(self, labels: Sequence) -> np.ndarray:
        """Class numbers int32 [n] of examples; numbers float32 [n]; or zeros and ones float32 [n, C]."""
        if self.is_regression:
            return np.array(labels, np.float32)
        ids = {label: number for number, label in enumerate(self.labels)}
        if not self.multi_label:
            return np.array([ids[label] for label in labels], np.int32)
        table = np.zeros((len(labels), len(ids)), np.float32)
        for row, held in zip(table, labels, strict=True):
            row[[ids[label] for label in held]] = 1.0
        return table


# --- rows ------------------------------------------------------------------------------------------------------------


_LABEL_NAMES = {"label", "gold_label", "Quality", "score", "is_duplicate"}


def split_path(task: Task, split: Split, directory: str = "") -> str:
    return posixpath.join(directory, split.file.format(language=task.language))


def _find_columns(task: Task, split: Split, row: list | dict, path: str, line: int) -> tuple[list, list | None]:
    """Where a file's rows have text_a, text_b, label and guid, by its first row; and that row if it is a header."""
    named = isinstance(row, dict)
    header = row if split.has_header and not named else None
    if header is not None:
        for column, name in split.header_names.items():
            other = header[column] if -len(header) <= column < len(header) else None
            if other != name:
                raise ValueError(
                    f"{path}, line 1: column {column} should be {name!r} and is {other!r}: not a file of --task_name="
                    f"{task.name}. The header is {quoted(header)}."
                )
        names = _LABEL_NAMES.intersection(header) - {split.text_a, split.text_b}
        if split.label is None and names:
            logging.warning("%s, line 1: a test set has no labels; %s is not used.", path, quoted(names))
    copied_columns(by_name(row, header), split.table, path, line, not split.has_header)  # the first row has all names

    def resolved(column):
        if isinstance(column, tuple):
            return tuple(map(resolved, column))
        if named or not isinstance(column, str):
            return column
        if column not in header:
            raise ValueError(f"{path}, line 1: no column {column!r}; the header has {quoted(header)}")
        return header.index(column)

    return [*map(resolved, (split.text_a, split.text_b, split.label, split.guid))], header


def read_examples(task: Task, split: Split, directory: str = "") -> list[InputExample]:
    """The examples of a split, in the order of the file."""
    return read_file(task, split, split_path(task, split, directory))[0]


def read_file(task: Task, split: Split, path: str) -> tuple[list[InputExample], Sequence[str]]:
    """The examples of a file, and the labels that its values mark with 0 or 1, see `read_labels`."""
    rows = all_examples(path, _rows(task, split, path))
    labels, marked = [row[3] for row in rows], ()
    if split.label is not None:
        labels, marked = read_labels(labels, task, lambda number: f"{path}, line {rows[number][5]}")
    return [InputExample(*row[:3], label, *row[4:]) for row, label in zip(rows, labels, strict=True)], marked


def _rows(task: Task, split: Split, path: str) -> Iterator[tuple]:
    """The fields of each `InputExample`, with the label as the file has it."""
    columns, header, left_out = None, None, {}
    names = [name for name in split.columns if isinstance(name, str)] or None
    for index, (line, row) in enumerate(read_rows(path, split.table, names)):
        if columns is None:
            columns, header = _find_columns(task, split, row, path, line)
            if header is not None:
                continue
        if split.keep and isinstance(row, list):
            column, value = split.keep
            if column >= len(row) or row[column] != value.format(language=task.language):
                continue
        try:
            text_a, text_b, label, guid = (
                dict(zip(task.labels, (field_of(row, part, path, line) for part in column), strict=True))
                if isinstance(column, tuple)
                else field_of(row, column, path, line)
                for column in columns
            )
        except ValueError:
            if not split.skip_short_rows:
                raise
            left_out.setdefault("lack a column", []).append(line)
            continue
        label = plain_label(label, task.multi_label)
        if columns[2] is not None and task.any_case and label in (None, "-") and "-" not in task.labels:
            left_out.setdefault("have no label ('-' or null)", []).append(line)
            continue
        second = None if text_b is None else text_of(text_b, path, line, columns[1])
        texts = (text_of(text_a, path, line, columns[0]), second)
        source = copied_columns(by_name(row, header), split.table, path, line, not split.has_header)
        yield f"{split.set_name}-{index if guid is None else guid}", *texts, label, source, line
    warn_of_left_out(path, left_out)


_MARKS = {"0": False, "false": False, "1": True, "true": True}


def read_labels(values: Sequence, task: Task, place: Callable[[int], str]) -> tuple[list, Sequence[str]]:
    """The labels of a column of `plain_label`s, in the form that the task uses, and `_marked_labels`.

    place: names a value in errors, by its number.
    """
    marked = () if task.is_regression else _marked_labels(values, task)
    labels = []
    for number, value in enumerate(values):
        try:
            labels.append(_label(value, task, marked))
        except ValueError as error:
            raise ValueError(f"{place(number)}: {error}") from None
    return labels, marked


def _marked_labels(values: Sequence, task: Task) -> Sequence[str]:
    """The labels that each value of a column marks with 0 or 1: in an object, or by their order, in a list.

    Empty: the values are names. 0 and 1 may be names in a list, too, but integers, and not twice in one.
    """
    if any(isinstance(value, dict) for value in values):
        names = (name for value in values if isinstance(value, dict) for name in value)
        return task.labels or tuple(dict.fromkeys(_known_label(name, task) for name in names))
    lists = [value for value in values if isinstance(value, list)]
    rows = [value for value in lists if value and all(item in (0, 1) for item in value)]
    if task.marks is False:
        return ()
    sure = task.marks or any(len({*row}) < len(row) or {*map(type, row)} != {int} for row in rows)
    if not (sure or (rows and rows == lists and {*map(len, rows)} == {len(task.labels) or 2})):
        return ()
    labels = task.labels or tuple(map(str, range(len(rows[0]))))
    if is_first("marks", labels):
        logging.info("Each row has 0 or 1 for each of %d labels: %s.", len(labels), abbreviated_list(labels))
    return labels


def _label(value, task: Task, marked: Sequence[str]) -> str | float | tuple[str, ...]:
    if task.is_regression:
        if math.isnan(number := number_of(value)):
            raise ValueError(f"a number is expected as label, found {value!r}")
        return number
    if value is None or (value == "" and not task.multi_label):
        raise ValueError("there is no label")
    names = () if value in ("", []) else tuple(_names_in(value, task, marked))
    if not task.multi_label and len(names) != 1:
        raise ValueError(f"one label is expected (or --multi_label), found {value!r:.80}")
    return names if task.multi_label else names[0]


def _names_in(value, task: Task, marked: Sequence[str]) -> Iterator[str]:
    """The labels that hold in a value."""
    if isinstance(value, dict):
        marks = {_known_label(name, task): mark for name, mark in value.items()}
        value = [marks.get(name) for name in marked]
    if marked:
        if not isinstance(value, list) or len(value) != len(marked):
            raise ValueError(f"0 or 1 is expected for each of {len(marked)} labels, found {value!r:.80}")
        for name, mark in zip(marked, value, strict=True):
            if (holds := _MARKS.get(class_name(mark))) is None:
                raise ValueError(f"the label {name!r} is {mark!r:.80}, where 0 or 1 is expected")
            if holds:
                yield name
        return
    items, kinds = (value, (str, int)) if isinstance(value, list) else ([value], (str, int, float, bool))
    if any(type(item) not in kinds or item in (math.inf, -math.inf) for item in items) or len({*items}) < len(items):
        raise ValueError(f"{value!r:.80} is neither a label nor a list of different labels")
    if isinstance(value, str) and task.multi_label:
        if is_bracketed(value) and value not in task.labels:
            raise ValueError(f"{value!r:.80} can't be read as a list")
        items = value.split(",")
    yield from (_known_label(item, task) for item in items if plain_name(str(item)))


def _known_label(value, task: Task) -> str:
    label = task.label_aliases.get(str(value), str(value))
    if task.name == "custom" and label not in task.labels:
        label = plain_name(class_name(label))
    if not task.labels or label in task.labels:
        return label
    alike = [known for known in task.labels if class_name(known).casefold() == label.casefold()]
    if len(alike) == 1 and task.any_case:
        if is_first("case", label):
            logging.warning("--labels: the label %r is read as %r.", label, alike[0])
        return alike[0]
    raise ValueError(f"the label {label!r} is not one of {quoted(task.labels)}")


def task_of(model) -> Task:
    """The task of a `BertForSequenceClassification` that is trained; labels without names are numbers."""
    labels = tuple(model.labels or map(str, range(model.num_labels)))
    several = model.problem_type == "multi_label_classification"
    return Task("", None if model.problem_type == "regression" else labels, None, multi_label=several)


NLI_LABELS = ("contradiction", "entailment", "neutral")
ENTAILMENT_LABELS = ("entailment", "not_entailment")
BINARY_LABELS = ("0", "1")


def _mnli(file: str, set_name: str, label: int | None = -1) -> Split:
    # Guids are made of the first column; the number of annotators' labels before the last column differs.
    names = {8: "sentence1", 9: "sentence2"}
    return Split(file, 8, 9, label, set_name, guid=0, header_names=names)


def _pairs(label_names: tuple, columns: tuple, names: tuple, task: str, label: int | None = None, **further) -> Task:
    """A task with two texts and a label, usually behind them, and a test file without label."""
    label, header = columns[1] + 1 if label is None else label, dict(zip(columns, names, strict=True))

    def split(name: str, label: int | None) -> Split:
        return Split(f"{name}.tsv", *columns, label, name, header_names=header)

    sets = split("train", label), {"dev": split("dev", label)}, {"test": split("test", None)}
    return Task(task, label_names, *sets, **further)


_MRPC = {"metrics": ("accuracy", "f1"), "other_names": ("not_equivalent", "equivalent")}
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
    "mrpc": _pairs(BINARY_LABELS, (3, 4), ("#1 String", "#2 String"), "mrpc", 0, **_MRPC),
    "sts-b": _pairs(None, (7, 8), _SENTENCES, "sts-b", metrics=("pearson", "spearman")),
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
    "wnli": _pairs(BINARY_LABELS, (1, 2), _SENTENCES, "wnli", other_names=("not_entailment", "entailment")),
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
    """The task of a name, in any case; "sts_b" and "stsb" are "sts-b"."""
    wanted = name.lower().replace("_", "-")
    for key, task in TASKS.items():
        if wanted in (key, key.replace("-", "")):
            if language and not task.language:
                raise ValueError(f"--language={language}: --task_name={name} has one language only.")
            return dataclasses.replace(task, language=language or task.language)
    raise ValueError(f"--task_name={name} is not one of {', '.join(TASKS)}, custom.")

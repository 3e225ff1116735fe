"""Examples of classification tasks from files: TSV as in GLUE, CSV, JSON lines, and the user's own columns.

A task is a declaration of files, columns and labels (glue.py lists them); reading is the same for all.
Original: run_classifier.py, DataProcessor and its subclasses.
"""

import dataclasses
import math
import posixpath
from collections.abc import Iterator, Mapping, Sequence

from absl import logging

from bert_tf.data.tables import (
    INTEGER,
    USUAL_TABLE,
    Column,
    TableSettings,
    all_examples,
    by_name,
    copied_columns,
    field_of,
    quoted,
    read_rows,
    text_of,
    warn_of_left_out,
)
from bert_tf.system import checks
from bert_tf.system.messages import is_first, naming_flag
from bert_tf.text.characters import plain_name


@dataclasses.dataclass(frozen=True)
class InputExample:
    """One example: an id, one text or two, and a label (None where there is none).

    The label is a string, a float for regression, or a tuple of strings where several may hold. `source` has the
    columns of the example's row that go into predictions, `line` is where it begins in the file.
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
      set_name: first part of every guid.
      has_header: the first row names the columns.
      guid: column that makes the guid unique; None: the number of the row in the file, from 0, header included.
      header_names: column number -> name that the header must have there, to detect files of another task.
      keep: (column, value): rows with another value there are left out.
      skip_short_rows: count and leave out rows that lack a column, instead of stopping (released files of QQP).
      table: how a user's own file is read; None: to the letter, as the files of GLUE.
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
        """The columns of texts and labels."""
        return self.text_a, self.text_b, *(self.label if isinstance(self.label, tuple) else (self.label,))


@dataclasses.dataclass(frozen=True)
class Task:
    """A classification or regression task.

    Attributes:
      name: in lower case.
      labels: in the order of their ids; None for a regression.
      train: where the training examples are. dev, test: by name, the first one is the task's main set.
      metrics: names of `encode.METRICS`; the first is the main one, by which a best checkpoint is kept.
      label_aliases: other spellings of labels in the files.
      any_case: a label that differs from one of `labels` only in case is that one; each such spelling is logged.
      other_names: what Hugging Face and models trained there call the labels.
      multi_label: several labels of an example may hold.
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

    @property
    def is_regression(self) -> bool:
        return self.labels is None

    @property
    def problem_type(self) -> str:
        """As `HeadConfig` has it."""
        if self.is_regression:
            return "regression"
        return "multi_label_classification" if self.multi_label else "single_label_classification"


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
    path = split_path(task, split, directory)
    return all_examples(path, _examples(task, split, path))


def _examples(task: Task, split: Split, path: str) -> Iterator[InputExample]:
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
                tuple(field_of(row, part, path, line) for part in column)
                if isinstance(column, tuple)
                else field_of(row, column, path, line)
                for column in columns
            )
        except ValueError:
            if not split.skip_short_rows:
                raise
            left_out.setdefault("lack a column", []).append(line)
            continue
        if columns[2] is not None and task.any_case and label in (None, "-") and "-" not in task.labels:
            left_out.setdefault("have no label ('-' or null)", []).append(line)
            continue
        label = None if columns[2] is None else _label(task, label, path, line)
        second = None if text_b is None else text_of(text_b, path, line, columns[1])
        texts = (text_of(text_a, path, line, columns[0]), second)
        source = copied_columns(by_name(row, header), split.table, path, line, not split.has_header)
        yield InputExample(f"{split.set_name}-{index if guid is None else guid}", *texts, label, source, line)
    warn_of_left_out(path, left_out)


# What a cell of a label's own column says.
_MARKS = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}


def _label(task: Task, value, path: str, line: int):
    """A label in the form the task uses."""
    if task.is_regression:
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"{path}, line {line}: a number is expected as label, found {value!r}")
        return number
    if isinstance(value, tuple):
        marks = [_MARKS.get(str(cell).lower()) for cell in value]
        if None in marks:
            name, cell = task.labels[marks.index(None)], value[marks.index(None)]
            raise ValueError(f"{path}, line {line}: the label {name!r} is {cell!r}, where 0 or 1 is expected")
        return tuple(name for name, mark in zip(task.labels, marks, strict=True) if mark)
    if task.multi_label:
        parts = map(str, value) if isinstance(value, list) else str(value).split(",")
        return tuple(_known_label(task, part, path, line) for part in map(plain_name, parts) if part)
    if value is None or value == "":
        raise ValueError(f"{path}, line {line}: there is no label")
    return _known_label(task, str(value), path, line)


def _known_label(task: Task, label: str, path: str, line: int) -> str:
    label = task.label_aliases.get(label, label)
    if task.name == "custom":
        label = plain_name(label)
    if not task.labels or label in task.labels:
        return label
    alike = [known for known in task.labels if known.casefold() == label.casefold()]
    if len(alike) == 1 and task.any_case:
        if is_first("case", path, label):
            logging.warning("%s: the label %r is read as %r.", path, label, alike[0])
        return alike[0]
    raise ValueError(f"{path}, line {line}: the label {label!r} is not one of {quoted(task.labels)}")


# --- the user's own files --------------------------------------------------------------------------------------------


def custom_split(
    file: str | None,
    set_name: str,
    text_a: str,
    text_b: str | None,
    label: str | None,
    table: TableSettings = USUAL_TABLE,
    several: bool = False,
) -> Split | None:
    """One of the user's own files, None for none; columns by name, or all by number.

    Args:
      several: whether label may be several columns, with commas between them.
    """

    def column(name: str | None) -> Column | None:
        name = None if name is None else plain_name(name)
        return int(name) if name is not None and INTEGER.fullmatch(name) else name

    labels = label.split(",") if several and label else [label]
    columns = [*map(column, (text_a, text_b, *labels))]
    by_name = not all(isinstance(column, int | None) for column in columns)
    if by_name and any(isinstance(column, int) for column in columns):
        raise ValueError("--text_a, --text_b and --label: give all columns by name, or all by number.")
    if not file:
        return None
    file = file.replace("{", "{{").replace("}", "}}")
    of_labels = tuple(columns[2:]) if len(labels) > 1 else columns[2]
    return Split(file, *columns[:2], of_labels, set_name, by_name, table=table.of_set(set_name))


def declared_task(
    train_file: str | None,
    dev_file: str | None,
    test_file: str | None,
    *,
    text_a: str,
    text_b: str | None = None,
    label: str | None = None,
    labels: Sequence[str] | None = None,
    regression: bool = False,
    multi_label: bool = False,
    table: TableSettings = USUAL_TABLE,
) -> Task:
    """A task on the user's own files: TSV, CSV or JSON lines, by the end of their names. No file is read.

    Args:
      text_a, text_b, label: columns, by name (the files then have a header) or by number from 0 (they then have none).
      labels: in the order of their ids, found in any case; None: the task has none yet, see `custom_task`.
      table: how the files are read.
    """
    checks.check_different({"--text_a": text_a, "--text_b": text_b, "--label": label})
    if regression and (multi_label or labels):
        raise ValueError("--regression has no classes: leave --multi_label and --labels out.")
    train, dev, test = (
        custom_split(file, set_name, text_a, text_b, None if set_name == "test" else label, table, multi_label)
        for file, set_name in ((train_file, "train"), (dev_file, "dev"), (test_file, "test"))
    )
    columns = label.split(",") if multi_label and label and "," in label else []
    labels = labels or columns
    several = ("micro_f1", "macro_f1") if multi_label else ("accuracy", "macro_f1")
    return Task(
        name="custom",
        labels=None if regression else tuple(map(plain_name, labels or ())),
        any_case=bool(labels),
        train=train,
        dev={"dev": dev} if dev else {},
        test={"test": test} if test else {},
        metrics=("pearson", "spearman") if regression else several,
        multi_label=multi_label,
    )


def custom_task(train_file: str | None, dev_file: str | None, test_file: str | None, **declared) -> Task:
    """`declared_task`; its labels are by default those found in the training file, numbers by size, others by name."""
    task = declared_task(train_file, dev_file, test_file, **declared)
    if task.is_regression or task.labels:
        return task
    if task.train is None:
        raise ValueError("Which classes are there? Give --train_file, or --labels=first,second,...")
    from bert_tf.tasks.classification.label_checks import check_training_labels

    with naming_flag("--train_file"):
        examples = read_examples(task, task.train)
        check_training_labels(train_file, examples, by_number=not task.train.has_header)
    labels = {label for row in examples for label in (row.label if task.multi_label else (row.label,))}
    ordered = sorted(labels, key=int if all(map(INTEGER.fullmatch, labels)) else None)
    if len(ordered) < (1 if task.multi_label else 2):
        raise ValueError(
            f"--train_file: {train_file}: {len(ordered)} classes in the column {declared['label']!r}: there is nothing "
            "to learn."
        )
    logging.info("%d classes in %s: %s", len(ordered), train_file, ", ".join(ordered[:20]))
    return dataclasses.replace(task, labels=tuple(ordered))


def task_of(model) -> Task:
    """The task of a `BertForSequenceClassification` that is trained; labels without names are numbers."""
    labels = tuple(model.labels or map(str, range(model.num_labels)))
    several = model.problem_type == "multi_label_classification"
    return Task("", None if model.problem_type == "regression" else labels, None, multi_label=several)

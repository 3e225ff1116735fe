"""Rows of texts for all tasks: examples, token rows, records, logs, and the labels in a column."""

import ast
import contextlib
import dataclasses
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from absl import logging

from bert_tf.data import token_rows
from bert_tf.data.tables import Column, TableSettings, quoted
from bert_tf.data.token_rows import GroupedRows, TokenRows, WindowRows
from bert_tf.store.head_config import MAX_WINDOWS, HeadConfig
from bert_tf.system import example_bytes
from bert_tf.system.example_bytes import float_feature, int64_feature, pack
from bert_tf.system.messages import abbreviated_list, is_first
from bert_tf.system.storage import written
from bert_tf.text import shown
from bert_tf.text.characters import plain_name
from bert_tf.text.tokenizer import Tokenizer

# Starting processes takes seconds; one core tokenizes this much text (characters) meanwhile.
_CHARACTERS_FOR_PROCESSES = 30_000_000
_TEXTS_PER_CHUNK = 20_000


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


@dataclasses.dataclass(frozen=True)
class Task:
    """A classification or regression task.

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

    @classmethod
    def of_model(cls, head: HeadConfig, outputs: int) -> "Task":
        """That of a trained classifier with so many outputs; labels without names are numbers."""
        labels = head.labels if len(head.labels or ()) == outputs else map(str, range(outputs))
        is_regression = head.problem_type == "regression" or (outputs == 1 and not head.problem_type)
        several = head.problem_type == "multi_label_classification"
        return cls("", None if is_regression else tuple(labels), None, multi_label=several)

    @property
    def is_regression(self) -> bool:
        return self.labels is None

    @property
    def problem_type(self) -> str:
        if self.is_regression:
            return "regression"
        return "multi_label_classification" if self.multi_label else "single_label_classification"


@dataclasses.dataclass(frozen=True)
class TextWindows:
    """How the windows of a text lie.

    stride: tokens of the text from the start of a window to that of the next.
    most: windows of a text; what comes after them is lost.
    """

    stride: int
    most: int = MAX_WINDOWS


def windows_of(stride: int | None, most: int | None, tokenizer: Tokenizer, max_seq_length: int) -> TextWindows:
    """The windows for a tokenizer and a length, with the defaults for what is None: half a window, MAX_WINDOWS."""
    token_rows.check_room(tokenizer, max_seq_length)
    room = max_seq_length - tokenizer.num_special_tokens(pair=False)
    stride = max(room // 2, 1) if stride is None else stride
    if stride > room:
        raise ValueError(
            f"window_stride={stride}: a window of max_seq_length={max_seq_length} has {room} tokens of the text, so "
            "that those between two windows would be lost."
        )
    return TextWindows(stride, MAX_WINDOWS if most is None else most)


def windows_of_model(head: HeadConfig, tokenizer: Tokenizer, max_seq_length: int) -> TextWindows | None:
    """The windows in which a trained model reads texts; None for a model that reads each as one row."""
    if not head.window_pooling:
        return None
    return windows_of(head.window_stride, head.max_windows, tokenizer, max_seq_length)


def encode_examples(
    examples: Sequence[InputExample],
    task: Task,
    tokenizer: Tokenizer,
    max_seq_length: int,
    num_processes: int | None = None,
    windows: TextWindows | None = None,
    warn: Callable = logging.warning,
) -> TokenRows:
    """Tokenizes examples: [CLS] a [SEP], or [CLS] a [SEP] b [SEP] where b has any token.

    Where all examples have labels, `labels` has label_ids, see `label_ids`.

    num_processes: processes for large data; by default one for each core.
    windows: a text of more tokens than max_seq_length becomes several rows of that length (`WindowRows`).
    warn: logs a message and its arguments: how many examples were truncated, and how many have a text without any
      token.
    """
    token_rows.check_room(tokenizer, max_seq_length)
    if windows and (pair := next((example for example in examples if example.text_b), None)):
        raise ValueError(f"Example {pair.guid} is a pair; a model of windows (--long_texts) takes single texts.")
    labels = [example.label for example in examples]
    labels = {} if None in labels else {"label_ids": label_ids(task, labels)}
    texts = [text for example in examples for text in (example.text_a, example.text_b) if text is not None]
    encoded = iter(encode_texts(texts, tokenizer, num_processes))
    pairs = [(next(encoded), () if example.text_b is None else next(encoded)) for example in examples]
    empty = [
        example
        for example, (first, second) in zip(examples, pairs, strict=True)
        if not len(first) or (example.text_b is not None and not len(second))
    ]
    if empty:
        line = f", line {empty[0].line} of its file" if empty[0].line else ""
        message = "A text without any token (empty, or of dropped characters) is in %d of %d examples; the first is "
        warn(message + "%s%s.", len(empty), len(examples), empty[0].guid, line)
    if windows:
        texts = [first for first, _ in pairs]
        rows = token_rows.rows_of_windows(texts, tokenizer, max_seq_length, windows.stride, windows.most, warn)
        return dataclasses.replace(rows, labels=labels)
    rows, truncated = token_rows.rows_of_pairs(pairs, tokenizer, max_seq_length)
    if truncated:
        message = "Longer than the maximum sequence length, %d tokens, of which the %s are lost: %d of %d examples."
        warn(message, max_seq_length, tokenizer.lost, truncated, len(examples))
    return dataclasses.replace(rows, labels=labels)


def label_ids(task: Task, labels: Sequence) -> np.ndarray:
    """Class numbers int32 [n] of examples; numbers float32 [n]; or zeros and ones float32 [n, C]."""
    if task.is_regression:
        return np.array(labels, np.float32)
    ids = {label: number for number, label in enumerate(task.labels)}
    if not task.multi_label:
        return np.array([ids[label] for label in labels], np.int32)
    table = np.zeros((len(labels), len(ids)), np.float32)
    for row, held in zip(table, labels, strict=True):
        row[[ids[label] for label in held]] = 1.0
    return table


def encode_texts(texts: list[str], tokenizer: Tokenizer, num_processes: int | None = None) -> list[list[int]]:
    """The token ids of texts; of large data by several processes, by default one for each core."""
    num_processes = num_processes or os.cpu_count() or 1
    if num_processes == 1 or sum(map(len, texts)) < _CHARACTERS_FOR_PROCESSES:
        return tokenizer.encode_batch(texts)
    from bert_tf.system.workers import map_tasks

    chunks = [(texts[start : start + _TEXTS_PER_CHUNK],) for start in range(0, len(texts), _TEXTS_PER_CHUNK)]
    encoded = map_tasks(encode_texts, chunks, num_processes, shared=(tokenizer, 1))
    return [ids for chunk in encoded for ids in chunk]


# --- the original's record files -------------------------------------------------------------------------------------


def write_token_rows(path: str, rows: TokenRows, max_seq_length: int, columns: Mapping[str, np.ndarray]) -> None:
    """Writes a TFRecord file as the original's scripts do, complete or not at all.

    columns: further feature name -> values [n] or [n, C]: non-negative integers, or floats.
    """
    import tensorflow as tf

    flat, offsets, starts = rows.ids.tolist(), rows.offsets.tolist(), rows.second_starts.tolist()
    further = [(name.encode(), values.dtype.kind == "f", values.reshape(len(rows), -1).tolist())
               for name, values in columns.items()]  # fmt: skip
    with written(path) as temporary, tf.io.TFRecordWriter(temporary) as writer:
        for row in range(len(rows)):
            ids = flat[offsets[row] : offsets[row + 1]]
            length, zeros = len(ids), bytes(max_seq_length - len(ids))
            features = [
                int64_feature(b"input_ids", pack(ids + [rows.pad_id] * len(zeros))),
                int64_feature(b"input_mask", b"\x01" * length + zeros),
                int64_feature(b"segment_ids", bytes(starts[row]) + b"\x01" * (length - starts[row]) + zeros),
            ]
            for name, floats, values in further:
                value = values[row]
                features.append(float_feature(name, value) if floats else int64_feature(name, pack(value)))
            writer.write(example_bytes.example(features))


def write_records(path: str, rows: TokenRows, max_seq_length: int) -> None:
    """Writes the TFRecord file that the original's script writes (train.tf_record and the like).

    Features: those of `write_token_rows`, and label_ids, is_real_example, int64 scalars; the label of a
    regression is a float, that of examples without label 0. Of windows, each is a record, an example's one after the
    other, with the int64 scalars example and window.
    """
    none = np.zeros(len(rows), np.int32)
    columns = {"label_ids": rows.labels.get("label_ids", none), "is_real_example": none + 1}
    if isinstance(rows, WindowRows):
        numbers = np.repeat(np.arange(len(rows)), rows.windows)
        columns = {name: values[numbers] for name, values in columns.items()}
        columns |= {"example": numbers, "window": np.arange(len(numbers)) - rows.first_rows[numbers]}
    write_token_rows(path, rows.rows, max_seq_length, columns)


def write_group_records(path: str, rows: GroupedRows, max_seq_length: int, row: str = "choice") -> None:
    """Writes a TFRecord file, a record for each row, the N of an example one after the other.

    Features: those of `write_token_rows`; int64 scalars example and, named by `row`, the position in it;
    where there are labels, int64 label_ids, the number of the right choice, or float score.
    """
    numbers = np.arange(len(rows.second_starts))
    columns = {"example": numbers // rows.rows_per_example, row: numbers % rows.rows_per_example}
    for label, values in rows.labels.items():
        if label != "text_ids":
            columns["score" if label == "scores" else label] = np.repeat(values, rows.rows_per_example)
    write_token_rows(path, rows.rows, max_seq_length, columns)


def log_examples(examples: Sequence[InputExample], rows: TokenRows, tokenizer: Tokenizer) -> None:
    """Logs the first examples as the model will see them, as the original does; of long texts the first window."""
    for number, example in enumerate(examples):
        first = rows.first_rows[number] if isinstance(rows, WindowRows) else number
        logging.info("Example %s, label %s: %s", example.guid, example.label, _row_text(rows, first, tokenizer))


def log_groups(rows: GroupedRows, tokenizer: Tokenizer, count: int, row: str = "choice") -> None:
    """Logs the first `count` examples as the model will see them. row: what a row is called."""
    for number in range(min(count, len(rows)) * rows.rows_per_example):
        example, position = divmod(number, rows.rows_per_example)
        label = " (right)" if "label_ids" in rows.labels and rows.labels["label_ids"][example] == position else ""
        label = f", score {rows.labels['scores'][example]:.3f}" if "scores" in rows.labels else label
        logging.info("Example %d, %s %d%s: %s", example, row, position, label, _row_text(rows, number, tokenizer))


def _row_text(rows: TokenRows, number: int, tokenizer: Tokenizer) -> str:
    return shown(tokenizer, rows.ids[rows.offsets[number] : rows.offsets[number + 1]].tolist())


# --- labels -----------------------------------------------------------------------------------------------------------


def class_name(value) -> str:
    """The name of a class, by a number, a boolean or their text: 1.0 is 1, and TRUE is true."""
    name = re.sub(r"^(-?[0-9]+)\.0+\Z", r"\1", str(value))
    return name.lower() if name.lower() in ("true", "false") else name


def is_bracketed(text: str) -> bool:
    return text[:1] + text[-1:] in ("[]", "{}", "()")


def _read_list(text: str):
    """The list, tuple or object of a cell, as JSON, Python or (without commas) NumPy writes it; else the text."""
    tokens = re.findall(r"'[^']*'|\"[^\"]*\"|[^\s'\"]+", text[1:-1])
    has_commas = text[0] != "[" or any("," in token for token in tokens if token[0] not in "'\"")
    written = text if has_commas else f"[{','.join(tokens)}]"
    for read in (json.loads, ast.literal_eval):
        with contextlib.suppress(MemoryError, RecursionError, SyntaxError, TypeError, ValueError):
            if isinstance(value := read(written), list | tuple | set | dict):
                return value
    return text


def plain_label(value, several: bool = False):
    """A label as a plain value: a list for an array, or for the text of a list; None for NaN.

    A list of one is its item, and an empty one None, unless several labels may hold.
    """
    if isinstance(value, str) and is_bracketed(value):
        value = _read_list(value)
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, list | tuple | set):
        value = [str(item) if isinstance(item, str) else plain_label(item, True) for item in value]
        if not several and len(value) < 2:
            value = value[0] if value else None
    return None if isinstance(value, float) and math.isnan(value) else value


def number_of(value) -> float:
    """A finite number; NaN for any other value, such as a boolean."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (OverflowError, TypeError, ValueError):
        return math.nan
    return number if math.isfinite(number) else math.nan


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

"""Examples of classification tasks from files: TSV as in GLUE, CSV, JSON lines, and the user's columns.

A task is a declaration of files, columns and labels (TASKS lists them); reading is the same for all.
Original: run_classifier.py, DataProcessor and its subclasses.
"""

import dataclasses
import itertools
import posixpath
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from absl import logging

from bert_tf.data import tables, token_rows
from bert_tf.data.token_rows import TokenRows, check_tokenizer, permutation
from bert_tf.system.checks import check_list, list_of_names, list_of_strings
from bert_tf.tasks.rows import InputExample, Split, Task, encode_examples, label_ids, plain_label, read_labels
from bert_tf.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import tensorflow as tf

_LABEL_NAMES = {"label", "gold_label", "Quality", "score", "is_duplicate"}


def split_path(task: Task, split: Split, directory: str = "") -> str:
    return posixpath.join(directory, split.file.format(language=task.language))


def read_examples(task: Task, split: Split, directory: str = "") -> list[InputExample]:
    return read_split(task, split, directory)[0]


def read_split(task: Task, split: Split, directory: str = "") -> tuple[list[InputExample], Sequence[str]]:
    """`read_examples`, and the labels that the file marks with 0 or 1, see `read_labels`."""
    path = split_path(task, split, directory)
    rows = tables.all_examples(path, _rows(task, split, path))
    labels, marked = [row[3] for row in rows], ()
    if split.label is not None:
        labels, marked = read_labels(labels, task, lambda number: f"{path}, line {rows[number][5]}")
    return [InputExample(*row[:3], label, *row[4:]) for row, label in zip(rows, labels, strict=True)], marked


def _rows(task: Task, split: Split, path: str) -> Iterator[tuple]:
    """The fields of each `InputExample`, with the label as the file has it."""
    header, left_out = None, {}
    labels = split.label if isinstance(split.label, tuple) else (split.label,)
    names = [name for name in (split.text_a, split.text_b, *labels) if isinstance(name, str)] or None
    for index, (line, row) in enumerate(tables.read_rows(path, split.table, names)):
        if index == 0:
            header = row if split.has_header and isinstance(row, list) else None
            for column, name in split.header_names.items() if header else ():
                other = header[column] if column < len(header) else None
                if other != name:
                    raise ValueError(
                        f"{path}, line 1: column {column} should be {name!r} and is {other!r}: not a file of "
                        f"--task_name={task.name}. The header is {tables.quoted(header)}."
                    )
            unused = _LABEL_NAMES.intersection(header or ()) - {split.text_a, split.text_b}
            if split.label is None and unused:
                logging.warning("%s, line 1: a test set has no labels; %s is not used.", path, tables.quoted(unused))
        cells = tables.by_name(row, header if names else None)
        source = tables.copied_columns(cells, split.table, path, line, not split.has_header)
        if split.keep and isinstance(row, list):
            column, value = split.keep
            if column >= len(row) or row[column] != value.format(language=task.language):
                continue
        try:
            text_a, text_b, guid, *values = (
                tables.field_of(cells, column, path, line)
                for column in (split.text_a, split.text_b, split.guid, *labels)
            )
        except ValueError:
            if not split.skip_short_rows:
                raise
            left_out.setdefault("lack a column", []).append(line)
            continue
        if row is header:  # which has all names
            continue
        label = dict(zip(task.labels, values, strict=True)) if labels is split.label else values[0]
        label = plain_label(label, task.multi_label)
        if split.label is not None and task.any_case and label in (None, "-") and "-" not in task.labels:
            left_out.setdefault("have no label ('-' or null)", []).append(line)
            continue
        text_a = tables.text_of(text_a, path, line, split.text_a)
        text_b = None if text_b is None else tables.text_of(text_b, path, line, split.text_b)
        yield f"{split.set_name}-{index if guid is None else guid}", text_a, text_b, label, source, line
    tables.warn_of_left_out(path, left_out)


NLI_LABELS = ("contradiction", "entailment", "neutral")
ENTAILMENT_LABELS = ("entailment", "not_entailment")
BINARY_LABELS = ("0", "1")


def _mnli(file: str, set_name: str, label: int | None = -1) -> Split:
    # Guids are made of the first column; the number of annotators' labels before the last column differs.
    names = {8: "sentence1", 9: "sentence2"}
    return Split(file, 8, 9, label, set_name, guid=0, header_names=names)


# The first chooses the best model; accuracy, if nothing is said.
_METRICS = {"cola": ("matthews", "accuracy"), "sts-b": ("pearson", "spearman")}
_METRICS |= dict.fromkeys(("mrpc", "qqp"), ("accuracy", "f1"))


def _glue(name: str, labels, columns: dict, label: int, test: dict | None = None, other_names=(), **options) -> Task:
    """A task of GLUE. columns, test: number -> name of the columns of texts, and perhaps of the label; by default
    test.tsv has the same. options: of the other two files."""

    def split(kind: str, columns: dict, label: int | None, **options) -> Split:
        texts = [*(column for column in columns if column != label), None]
        return Split(f"{kind}.tsv", *texts[:2], label, kind, header_names=columns, **options)

    train, dev = (split(kind, columns, label, **options) for kind in ("train", "dev"))
    sets = train, {"dev": dev}, {"test": split("test", test or columns, None)}
    return Task(name, labels, *sets, _METRICS.get(name, ("accuracy",)), other_names=other_names)


_SENTENCE, _PAIR = {1: "sentence"}, {1: "sentence1", 2: "sentence2"}
_QQP = {"test": {1: "question1", 2: "question2"}, "other_names": ("not_duplicate", "duplicate")}
_XNLI = {"header_names": {0: "language", 6: "sentence1", 7: "sentence2"}, "keep": (0, "{language}")}
_GLUE = (
    _glue("cola", BINARY_LABELS, {3: "sentence"}, 1, _SENTENCE, ("unacceptable", "acceptable"), has_header=False),
    _glue("sst-2", BINARY_LABELS, {0: "sentence", 1: "label"}, 1, _SENTENCE, ("negative", "positive")),
    _glue("mrpc", BINARY_LABELS, {3: "#1 String", 4: "#2 String"}, 0, other_names=("not_equivalent", "equivalent")),
    _glue("sts-b", None, {7: "sentence1", 8: "sentence2"}, 9),
    _glue("qqp", BINARY_LABELS, {3: "question1", 4: "question2"}, 5, skip_short_rows=True, **_QQP),
    Task(
        "mnli",
        NLI_LABELS,
        _mnli("train.tsv", "train"),
        {name: _mnli(f"{name}.tsv", name) for name in ("dev_matched", "dev_mismatched")},
        {
            "test_matched": _mnli("test_matched.tsv", "test", None),
            "test_mismatched": _mnli("test_mismatched.tsv", "test_mismatched", None),
        },
    ),
    _glue("qnli", ENTAILMENT_LABELS, {1: "question", 2: "sentence"}, 3),
    _glue("rte", ENTAILMENT_LABELS, _PAIR, 3),
    _glue("wnli", BINARY_LABELS, _PAIR, 3, other_names=("not_entailment", "entailment")),
    # Diagnostics for a model trained on MNLI: nothing to train on, no labels.
    Task("ax", NLI_LABELS, None, {}, {"test": Split("diagnostic.tsv", 1, 2, None, "test", header_names=_PAIR)}),
    Task(
        "xnli",
        NLI_LABELS,
        Split("multinli/multinli.train.{language}.tsv", 0, 1, 2, "train", header_names={0: "premise", 2: "label"}),
        {"dev": Split("xnli.dev.tsv", 6, 7, 1, "dev", **_XNLI)},
        {"test": Split("xnli.test.tsv", 6, 7, 1, "test", **_XNLI)},
        label_aliases={"contradictory": "contradiction"},
        language="zh",  # the only one of the original
    ),
)
TASKS = {task.name: task for task in _GLUE}


def find_task(name: str, language: str = "") -> Task:
    """The task of a name, in any case; "sts_b" and "stsb" are "sts-b"."""
    wanted = name.lower().replace("_", "-")
    for key, task in TASKS.items():
        if wanted in (key, key.replace("-", "")):
            if language and not task.language:
                raise ValueError(f"--language={language}: --task_name={name} has one language only.")
            return dataclasses.replace(task, language=language or task.language)
    raise ValueError(f"--task_name={name} is not one of {', '.join(TASKS)}, custom.")


# --- texts and labels in memory ---------------------------------------------------------------------------------------


_SORTED_BATCHES = 50  # within this many batches, texts padded to one length are batched together


def as_dataset(
    texts: Sequence[str],
    labels: Sequence | None = None,
    pairs: Sequence[str] | None = None,
    *,
    tokenizer: Tokenizer,
    label_names: Sequence[str] | None = None,
    batch_size: int = 32,
    max_length: int = 128,
    seed: int | None = None,
) -> "tf.data.Dataset":
    """A tf.data.Dataset of texts for a model's `fit`, `evaluate` and `predict`.

    A CSV file with the columns text and label, fine-tuned in ten lines:

        import pandas
        import bert_tf
        table = pandas.read_csv("reviews.csv")
        folder = bert_tf.download("uncased_L-4_H-256_A-4")
        tokenizer = bert_tf.FullTokenizer.from_pretrained(folder)
        model = bert_tf.BertForSequenceClassification.from_pretrained(folder, labels=["negative", "positive"])
        data = bert_tf.as_dataset(table.text, table.label, tokenizer=tokenizer, label_names=model.labels, seed=1)
        model.compile(optimizer=bert_tf.create_optimizer("adamw", 2e-5, 3 * len(data), num_warmup_steps=len(data) // 3))
        model.fit(data, epochs=3)
        model.save_pretrained("reviews_model")

    After it, `bert_tf.Predictor("reviews_model")("A lovely film.")` gives a label and probabilities.

    Args:
      texts: strings: a list, an array, a column of a table; or a table of one or two such columns.
      labels: one for each text, or their column's name. With label_names names, or lists of names, or of 0 and 1 for
        each name, where several may hold; without, class numbers from 0, or floats for a regression. None: no labels.
      pairs: the second text of each, "" for none.
      tokenizer: that of the model. batch_size: texts a batch; the last batch may be short.
      label_names: in the order of the classes, as `model.labels`; `fit` compares both, also after take or shuffle.
      max_length: tokens of a text or pair, special ones included; longer ones lose their last; how many is logged.
      seed: shuffle the texts with this seed, differently in each epoch. None keeps their order, as `predict` needs.

    Returns:
      batches of a dict of int32 [B, S], input_ids, input_mask and segment_ids; or of such a dict and labels: int32 [B],
      float32 [B] for a regression, float32 [B, C] where several may hold. `len` is the number of batches.

    Raises:
      TypeError: something that is not a string (None and NaN of a table with gaps are not); names its place.
      ValueError: no texts, more or fewer labels or pairs, an unknown label, a number out of range; names the place.
    """
    check_tokenizer(tokenizer)
    texts, labels, pairs = _columns_of(texts, labels, pairs)
    if not (texts := list_of_strings(texts, "texts")):
        raise ValueError("texts is empty")
    pairs = [None] * len(texts) if pairs is None else list_of_strings(pairs, "pairs")
    examples = [InputExample(str(number), *parts) for number, parts in enumerate(zip(texts, pairs, strict=True))]
    names = None if label_names is None else list_of_names(label_names, "label_names")
    y = None if labels is None else _label_array(check_list(labels, "labels", "labels"), names)
    if y is not None and len(y) != len(examples):
        raise ValueError(f"{len(examples)} texts and {len(y)} labels: there must be as many of both")
    encoded = encode_examples(examples, Task("", (), None), tokenizer, max_length)
    dataset = _dataset(encoded, y, batch_size, token_rows.padded_lengths(max_length), seed)
    dataset.label_names = names  # `fit` compares them with the model's
    return dataset


def _columns_of(table, labels: Sequence | str | None, pairs: Sequence[str] | None) -> tuple:
    """The texts, labels and pairs of a pandas table; anything else is returned as it is."""
    if not hasattr(table, "columns"):
        return table, labels, pairs
    names = list(table.columns)
    if isinstance(labels, str):
        labels = table[labels]
        names.remove(labels.name)
    if not 1 <= len(names) <= 2 or (pairs is not None and len(names) > 1):
        raise ValueError(f"the table has the columns {names} besides the labels: choose one or two of texts")
    return table[names[0]], labels, table[names[1]] if len(names) == 2 else pairs


def _dataset(encoded: TokenRows, y, batch_size: int, widths, seed: int | None) -> "tf.data.Dataset":
    import tensorflow as tf

    epochs = itertools.count()

    def batches() -> Iterator:
        for rows in _order(encoded, batch_size, widths, seed, next(epochs)):
            features = encoded.batch(rows, token_rows.padded_length(int(encoded.lengths[rows].max()), widths))
            yield features if y is None else (features, y[rows])

    specs = {name: tf.TensorSpec([None, None], tf.int32) for name in encoded.batch([0], 1)}
    if y is not None:
        specs = (specs, tf.TensorSpec([None, *y.shape[1:]], tf.as_dtype(y.dtype)))
    dataset = tf.data.Dataset.from_generator(batches, output_signature=specs)
    return token_rows.finished(dataset, -(-len(encoded) // batch_size), 4)


def _order(encoded: TokenRows, batch_size: int, widths, seed: int | None, epoch: int) -> list[np.ndarray]:
    count = len(encoded)
    if seed is None:
        return [np.arange(start, min(start + batch_size, count)) for start in range(0, count, batch_size)]
    rows = permutation(count, seed, epoch, 0)
    window = _SORTED_BATCHES * batch_size
    for start in range(0, count, window):
        part = rows[start : start + window]
        # By the padded length only: by the exact one a batch might have examples of one class.
        padded = np.searchsorted(widths, encoded.lengths[part])
        rows[start : start + window] = part[np.argsort(padded, kind="stable")]
    batches = [rows[start : start + batch_size] for start in range(0, count, batch_size)]
    return [batches[number] for number in permutation(len(batches), seed, epoch, 1)]


def _label_array(labels: list, names: Sequence[str] | None) -> np.ndarray:
    """Class numbers int32 [n]; numbers float32 [n]; or float32 [n, C] of zeros and ones."""
    labels = [plain_label(label, several=True) for label in labels]
    several = any(isinstance(label, list | dict) for label in labels)
    if names is None and not several:
        values = np.asarray(labels)
        if values.ndim == 1 and values.dtype.kind in "iub" and (values >= 0).all() and (values < 2**31).all():
            return values.astype(np.int32)
        if values.ndim == 1 and values.dtype.kind == "f" and np.isfinite(values).all():
            return values.astype(np.float32)
    task = Task("custom", tuple(names or ()), None, multi_label=several)
    found, marked = read_labels(labels, task, "labels[{}]".format)
    if not (names or marked):
        raise ValueError(
            f"labels={labels!r:.80}: give class numbers from 0, floats for a regression, or names and "
            "label_names=model.labels"
        )
    return label_ids(dataclasses.replace(task, labels=tuple(names or marked)), found)

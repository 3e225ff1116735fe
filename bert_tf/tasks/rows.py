"""Rows of texts for all tasks: token rows, records, logs, predictions, class weights, and a dataset for Keras."""

import dataclasses
import itertools
import json
import math
import os
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from absl import logging

from bert_tf.data import token_rows
from bert_tf.data.tables import plain_label
from bert_tf.data.token_rows import (
    GroupedRows,
    TokenRows,
    WindowRows,
    check_tokenizer,
    document_spans,
    flatten,
    permutation,
)
from bert_tf.store.head_config import MAX_WINDOWS, HeadConfig
from bert_tf.system.checks import check_list, list_of_names, list_of_strings
from bert_tf.system.declare import setting
from bert_tf.system.messages import abbreviated_list
from bert_tf.system.storage import write_text_file
from bert_tf.tasks.classification.data import InputExample, Task, read_labels
from bert_tf.text import shown, watch_unknown
from bert_tf.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import tensorflow as tf

# Starting processes takes seconds; one core tokenizes this much text (characters) meanwhile.
_CHARACTERS_FOR_PROCESSES = 30_000_000
_TEXTS_PER_CHUNK = 20_000


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


def rows_of_pairs(
    pairs: Iterable[tuple[Sequence[int], Sequence[int]]], tokenizer: Tokenizer, max_seq_length: int
) -> tuple[TokenRows, int]:
    """A row for each pair of texts, given by their token ids (of a single text the second is empty), and how many of
    the rows lost tokens, as in the original."""
    rows, starts, truncated = [], [], 0
    for first, second in pairs:
        ids, segments = tokenizer.build_inputs(first, second, max_seq_length)
        truncated += len(first) + len(second) + tokenizer.num_special_tokens(pair=bool(second)) > max_seq_length
        starts.append(segments.count(0))
        rows.append(ids)
    ids, offsets = flatten(rows)
    watch_unknown(tokenizer, ids)
    return TokenRows(ids, offsets, np.array(starts, np.int32), {}, pad_id=tokenizer.pad_id), truncated


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

    Where all examples have labels, `labels` has label_ids, see `Task.label_ids`.

    Args:
      num_processes: processes for large data; by default one for each core.
      windows: a text of more tokens than max_seq_length becomes several rows of that length (`WindowRows`).
      warn: logs a message and its arguments: how many examples were truncated, and how many have a text without any
        token.
    """
    token_rows.check_room(tokenizer, max_seq_length)
    if windows and (pair := next((example for example in examples if example.text_b), None)):
        raise ValueError(
            f"Example {pair.guid} is a pair; a model that reads windows (--long_texts) takes single texts."
        )
    encoded = iter(encode_texts(
        [text for example in examples for text in (example.text_a, example.text_b) if text is not None],
        tokenizer, num_processes,
    ))  # fmt: skip
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
    labels = [example.label for example in examples]
    labels = {} if None in labels else {"label_ids": task.label_ids(labels)}
    if windows:
        return _rows_of_windows([first for first, _ in pairs], labels, tokenizer, max_seq_length, windows, warn)
    rows, truncated = rows_of_pairs(pairs, tokenizer, max_seq_length)
    if truncated:
        message = "Longer than the maximum sequence length, %d tokens, of which the %s are lost: %d of %d examples."
        warn(message, max_seq_length, tokenizer.lost, truncated, len(examples))
    return dataclasses.replace(rows, labels=labels)


def _rows_of_windows(
    texts: Sequence, labels: dict, tokenizer: Tokenizer, length: int, windows: TextWindows, warn: Callable
) -> WindowRows:
    room = length - tokenizer.num_special_tokens(pair=False)
    rows, counts, truncated, lost, total = [], [], 0, 0, 0
    for ids in texts:
        spans = document_spans(len(ids), room, windows.stride)[: windows.most] or [(0, 0)]
        rows += [tokenizer.build_inputs(ids[start : start + size])[0] for start, size in spans]
        counts.append(len(spans))
        beyond = len(ids) - sum(spans[-1])
        truncated, lost, total = truncated + (beyond > 0), lost + beyond, total + len(ids)
    message = "%d of %d texts are longer than --max_seq_length=%d; all texts together make %d windows, at most %d each."
    longer, most = sum(count > 1 for count in counts), max(counts, default=0)
    logging.info(message, longer, len(counts), length, len(rows), most)
    if truncated:
        message = "%d of %d texts need more than max_windows=%d windows and lost their ends: %d of %d tokens (%.1f %%)."
        warn(message, truncated, len(counts), windows.most, lost, total, 100 * lost / total)
    ids, offsets = flatten(rows)
    watch_unknown(tokenizer, ids)
    starts, first_rows = np.diff(offsets).astype(np.int32), np.cumsum([0, *counts], dtype=np.int64)
    more = {"first_rows": first_rows, "window_length": length, "pad_id": tokenizer.pad_id}
    return WindowRows(ids, offsets, starts, labels, **more)


def _encode_chunk(texts: list[str], tokenizer: Tokenizer) -> list[list[int]]:
    return tokenizer.encode_batch(texts)


def encode_texts(texts: list[str], tokenizer: Tokenizer, num_processes: int | None = None) -> list[list[int]]:
    """The token ids of texts; of large data by several processes, by default one for each core."""
    num_processes = num_processes or os.cpu_count() or 1
    if num_processes == 1 or sum(map(len, texts)) < _CHARACTERS_FOR_PROCESSES:
        return tokenizer.encode_batch(texts)
    from bert_tf.system.workers import map_tasks

    chunks = [(texts[start : start + _TEXTS_PER_CHUNK],) for start in range(0, len(texts), _TEXTS_PER_CHUNK)]
    encoded = map_tasks(_encode_chunk, chunks, num_processes, shared=(tokenizer,))
    return [ids for chunk in encoded for ids in chunk]


# --- the original's record files -------------------------------------------------------------------------------------


def write_records(path: str, rows: TokenRows, max_seq_length: int) -> None:
    """Writes the TFRecord file that the original's script writes (train.tf_record and the like).

    Features: those of `token_rows.write_records`, and label_ids, is_real_example, int64 scalars; the label of a
    regression is a float, that of examples without label 0. Of windows, each is a record, an example's one after the
    other, with the int64 scalars example and window.
    """
    none = np.zeros(len(rows), np.int32)
    columns = {"label_ids": rows.labels.get("label_ids", none), "is_real_example": none + 1}
    if isinstance(rows, WindowRows):
        numbers = np.repeat(np.arange(len(rows)), rows.windows)
        columns = {name: values[numbers] for name, values in columns.items()}
        columns |= {"example": numbers, "window": np.arange(len(numbers)) - rows.first_rows[numbers]}
    token_rows.write_records(path, rows.rows, max_seq_length, columns)


def write_group_records(path: str, rows: GroupedRows, max_seq_length: int, row: str = "choice") -> None:
    """Writes a TFRecord file, a record for each row, the N of an example one after the other.

    Features: those of `token_rows.write_records`; int64 scalars example and, named by `row`, the position in it; where
    there are labels, int64 label_ids, the number of the right choice, or float score.
    """
    numbers = np.arange(len(rows.second_starts))
    columns = {"example": numbers // rows.rows_per_example, row: numbers % rows.rows_per_example}
    for label, values in rows.labels.items():
        if label != "text_ids":
            columns["score" if label == "scores" else label] = np.repeat(values, rows.rows_per_example)
    token_rows.write_records(path, rows.rows, max_seq_length, columns)


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


# --- predictions of a test file --------------------------------------------------------------------------------------


def write_predictions(
    output_dir: str, name: str, examples: Sequence, described: Sequence[Mapping], numbers: Iterable[Iterable[float]]
) -> list[str]:
    """Writes predictions<name>.jsonl, one object an example, and test_results<name>.tsv; returns their paths.

    Args:
      examples: with a `guid`, and in `source` columns of the row or None. A column that is called as a part of a
        prediction gets `input_` before its name.
      described: the prediction of each example. numbers: its line in the second file, as the original writes it.
    """
    lines = []
    for example, prediction in zip(examples, described, strict=True):
        taken, source = {"guid", *prediction}, example.source or {}
        columns = {f"input_{name}" if name in taken else name: value for name, value in source.items()}
        record = {"guid": example.guid, **columns, **prediction}
        lines.append(json.dumps(record, ensure_ascii=False) + "\n")
    paths = [posixpath.join(output_dir, file) for file in (f"predictions{name}.jsonl", f"test_results{name}.tsv")]
    write_text_file(paths[0], "".join(lines))
    write_text_file(paths[1], "".join("\t".join(map(str, row)) + "\n" for row in numbers))
    return paths


def is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


# --- --class_weights --------------------------------------------------------------------------------------------------


BALANCED = "balanced"


def class_weights_setting(of: str):
    """The setting `class_weights`; of: what has a class."""
    return setting(
        None,
        f"Weights of the classes in the loss, LABEL=WEIGHT,LABEL=WEIGHT (1 for the others), or balanced: the number of "
        f"{of} divided by the number of classes and by the {of} of the class, so that rare classes count as much as "
        "frequent ones. The loss is the sum of the weighted losses divided by the sum of their weights.",
        heading="What is trained",
        check=lambda text, _: parse_class_weights(text),
    )


def parse_class_weights(text: str) -> dict[str, float]:
    """Label -> weight; empty for "balanced"."""
    weights = {}
    for part in [] if text == BALANCED else text.split(","):
        label, _, number = (value.strip() for value in part.rpartition("="))
        if not label or label in weights or not is_number(number) or float(number) <= 0:
            raise ValueError(
                f"--class_weights={text}: {part!r} is not LABEL=WEIGHT with a label of its own and a positive number; "
                f"or give {BALANCED}."
            )
        weights[label] = float(number)
    return weights


def class_weights(text: str, labels: Sequence[str], label_ids: np.ndarray) -> list[float]:
    """The weights of the classes, which are logged.

    text: --class_weights. labels: the names of the classes. label_ids: the class of all that is trained on, from 0.
    """
    weights_by_label = parse_class_weights(text)
    if unknown := [label for label in weights_by_label if label not in labels]:
        raise ValueError(
            f"--class_weights={text}: no such label: {abbreviated_list(unknown)}. "
            f"The labels are {abbreviated_list(labels)}."
        )
    counts = np.bincount(np.asarray(label_ids).reshape(-1), minlength=len(labels))
    if text == BALANCED:
        weights = counts.sum() / (np.count_nonzero(counts) * np.maximum(counts, 1))
        without = [label for label, count in zip(labels, counts, strict=True) if not count]
        weights = [float(weight) if count else 1.0 for weight, count in zip(weights, counts, strict=True)]
        reason = "occur nowhere in the training data"
    else:
        weights = [weights_by_label.get(label, 1.0) for label in labels]
        without = [label for label in labels if label not in weights_by_label]
        reason = "are not named"
    if without:
        logging.warning("--class_weights: these labels %s and have weight 1: %s.", reason, abbreviated_list(without))
    shown = ", ".join(f"{label} {weight:.4g}" for label, weight in zip(labels, weights, strict=True))
    logging.info("--class_weights: %s", shown)
    return weights


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
        raise ValueError(f"the table has the columns {names} beside the labels: choose one or two of texts")
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
    count = -(-len(encoded) // batch_size)
    return dataset.apply(tf.data.experimental.assert_cardinality(count)).prefetch(4)


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
    return dataclasses.replace(task, labels=tuple(names or marked)).label_ids(found)

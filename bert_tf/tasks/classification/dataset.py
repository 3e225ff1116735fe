"""Texts and labels, from a table or from lists, as a dataset for Keras `fit`, `evaluate` and `predict`."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from bert_tf.data import token_rows
from bert_tf.data.tables import plain_label
from bert_tf.data.token_rows import check_tokenizer, permutation
from bert_tf.system.checks import check_list, list_of_names, list_of_strings
from bert_tf.tasks.classification.data import InputExample, Task, read_labels
from bert_tf.tasks.classification.encode import EncodedExamples, encode_examples
from bert_tf.text.tokenizer import Tokenizer

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
) -> tf.data.Dataset:
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


def _dataset(encoded: EncodedExamples, y, batch_size: int, widths, seed: int | None) -> tf.data.Dataset:
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


def _order(encoded: EncodedExamples, batch_size: int, widths, seed: int | None, epoch: int) -> list[np.ndarray]:
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
    ids = {name: number for number, name in enumerate(names or marked)}
    if not several:
        return np.array([ids[name] for name in found], np.int32)
    table = np.zeros((len(labels), len(ids)), np.float32)
    for row, held in zip(table, found, strict=True):
        row[[ids[name] for name in held]] = 1.0
    return table

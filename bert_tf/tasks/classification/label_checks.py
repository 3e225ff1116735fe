"""Labels of a training file that are probably not what its author meant (headers, ids, scores); class weights."""

import collections
import math
from collections.abc import Sequence

import numpy as np
from absl import logging

from bert_tf.data.tables import NAMES_OF_TEXTS
from bert_tf.system.declare import setting
from bert_tf.system.messages import abbreviated_list

_NAMES_OF_LABELS = {"category", "class", "gold_label", "label", "labels", "score", "sentiment", "target"}

_FEWEST_ROWS = 5  # fewer rows may well have a class each
_MANY_NUMBERS = 20  # more numbers than this are probably not classes
_MANY_KNOWN = 0.01  # of the rows of a dev set; short texts are often the same by chance


def check_training_labels(path: str, examples: Sequence, by_number: bool) -> None:
    """Raises for, or warns about, labels of a training file that are probably not classes.

    examples: `InputExample`s in the order of the file. by_number: its columns are given by number, without header.
    """
    label_sets = [row.label if isinstance(row.label, tuple) else (row.label,) for row in examples]
    labels = [label for label_set in label_sets for label in label_set]
    counts = collections.Counter(labels)
    if by_number and isinstance(examples[0].label, str):
        _check_first_row(path, examples[0], counts)
    known = {}  # hash of texts -> labels of the first row that has them
    rows = zip((hash((row.text_a, row.text_b)) for row in examples), map(set, label_sets), strict=True)
    if different := sum(known.setdefault(texts, label_set) != label_set for texts, label_set in rows):
        logging.warning("%s: rows with the text of an earlier row and another label: %d.", path, different)
    if "-" in counts:  # as SNLI has where its annotators disagreed
        logging.warning("%s: '-' is taken for a class; --labels=first,second,... leaves its rows out.", path)
    numbers = isinstance(examples[0].label, str) and all(map(is_number, counts))
    if len(counts) == len(labels) >= _FEWEST_ROWS and len(labels) == len(examples):
        raise ValueError(
            f"{path}: each of the {len(labels)} rows has a label of its own, as {examples[0].label!r}: is --label the "
            f"column of the classes?{' For scores give --regression.' if numbers else ''}"
        )
    fractions = [label for label in counts if not float(label).is_integer()] if numbers else []
    if fractions or (numbers and len(counts) > _MANY_NUMBERS):
        message = "%s: %d numbers as classes, such as %r: if they are scores, give --regression."
        logging.warning(message, path, len(counts), (fractions or [*counts])[0])


def _check_first_row(path: str, first, counts: collections.Counter) -> None:
    others = [label for label in counts if label != first.label]
    if counts[first.label] > 1 or not others:
        return
    message = (
        f"{path}: the label of the first row, {first.label!r}, is not found in any other row; if the row is a header, "
        f"name the columns by it: --text_a={first.text_a} --label={first.label}"
    )
    differs = all(map(is_number, others)) and not is_number(first.label)
    if differs or first.label.casefold() in _NAMES_OF_LABELS or first.text_a.casefold() in NAMES_OF_TEXTS:
        raise ValueError(message)
    if all(counts[label] > 1 for label in others):
        logging.warning("%s", message)


def warn_of_known_texts(train: Sequence, dev: Sequence) -> None:
    """Warns if `InputExample`s of a dev set share texts with others; `is_trained_on` of the task handles equal sets."""
    trained, others = ([hash((row.text_a, row.text_b)) for row in rows] for rows in (train, dev))
    known = set(trained)
    shared = sum(text in known for text in others)
    if shared > _MANY_KNOWN * len(dev) and trained != others:
        message = "Of %d rows of --dev_file %d are also in --train_file: results on them say nothing about other texts."
        logging.warning(message, len(dev), shared)


def is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


# --- --class_weights --------------------------------------------------------------------------------------------------
# How much each class counts in the loss, so that rare ones are learned, too.

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

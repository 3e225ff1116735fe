"""Labels of a training file that are hardly what its author means: headers, ids, scores; class weights."""

import collections
import contextlib
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence

import numpy as np
from absl import logging

from bert_tf.system.declare import setting
from bert_tf.system.messages import is_first, some

# What columns are usually called; in the first row of a file without header they are hardly examples.
_NAMES_OF_TEXTS = {
    "anchor", "content", "context", "document", "query", "question", "review", "sent1", "sentence", "sentence1", "text",
    "text_a", "title",
}  # fmt: skip
_NAMES_OF_LABELS = {"category", "class", "gold_label", "label", "labels", "score", "sentiment", "target"}

# What to do with a label that is none of the known ones; whether there is a training file.
ADVICE_OF_UNKNOWN = {
    True: "; if it is a class, list it in --labels",
    False: "; the model can't predict it: leave such rows out, or learn it by --do_train with --new_head",
}
_FEWEST_ROWS = 5  # of fewer rows, each may well have a class of its own
_MANY_NUMBERS = 20  # more numbers than this are hardly classes
_MANY_KNOWN = 0.01  # of the rows of a dev set; short texts are often the same by chance


def check_found_labels(path: str, examples: Sequence, by_number: bool) -> None:
    """Refuses or warns of classes found in a training file that are none.

    Args:
      examples: `InputExample`s in the order of the file. by_number: its columns are given by number, without header.
    """
    labels = [label for one in examples for label in (one.label if isinstance(one.label, tuple) else (one.label,))]
    counts = collections.Counter(labels)
    if by_number and isinstance(examples[0].label, str):
        _check_first_row(path, examples[0], counts)
    if len(counts) == len(labels) >= _FEWEST_ROWS and len(labels) == len(examples):
        scores = "; for scores give --regression" if all(map(is_number, counts)) else ""
        raise ValueError(
            f"{path}: each of the {len(labels)} rows has a label of its own, as {examples[0].label!r}: is --label a "
            f"column of ids or texts? It is the column of the classes{scores}."
        )
    _check_numbers(path, counts)
    if len(counts) > max(len(labels) / 2, _MANY_NUMBERS):
        told = "%s: %d classes in %d rows: is --label the column of the classes?"
        logging.warning(told, path, len(counts), len(labels))


def _check_first_row(path: str, first, counts: collections.Counter) -> None:
    others = [label for label in counts if label != first.label]
    if counts[first.label] > 1 or not others:
        return
    message = (
        f"{path}: the label of the first row, {first.label!r}, is not found in any other row; if the row is a header, "
        f"name the columns by it: --text_a={first.text_a} --label={first.label}"
    )
    differs = all(map(is_number, others)) and not is_number(first.label)
    if differs or first.label.casefold() in _NAMES_OF_LABELS or _is_name_of_text(first.text_a):
        raise ValueError(message)
    if all(counts[label] > 1 for label in others):
        logging.warning("%s", message)


def _check_numbers(path: str, counts: collections.Counter) -> None:
    if not all(map(is_number, counts)):
        return
    fractions = [label for label in counts if not float(label).is_integer()]
    if fractions and len(counts) > _MANY_NUMBERS:
        raise ValueError(
            f"{path}: {len(counts)} numbers as classes, such as {fractions[0]!r}: for scores give --regression; to "
            "take them as classes all the same, list them with --labels."
        )
    if fractions or len(counts) > _MANY_NUMBERS:
        shown = (fractions or sorted(counts, key=float))[0]
        told = "%s: %d numbers as classes, such as %r: if they are scores, give --regression."
        logging.warning(told, path, len(counts), shown)


class EqualTexts:
    """Finds the rows of a file that have the texts of an earlier row, but not its label; empty ones do not count.

    Texts are compared by their hashes, which are all that is kept of them.

    Args:
      active: False: nothing is compared.
    """

    def __init__(self, path: str, active: bool = True):
        self.path, self.active = path, active
        self._first: dict[int, tuple[int, Hashable]] = {}  # of texts -> line and label of the first row that has them
        self._different: list[tuple[int, Hashable, int, Hashable]] = []

    def add(self, texts: Sequence[str | None], label: str | tuple[str, ...] | None, line: int) -> None:
        """Takes a row; several labels of one are taken in any order."""
        if not self.active or not any(texts):
            return
        label = tuple(sorted(label)) if isinstance(label, tuple) else label
        first_line, first = self._first.setdefault(hash(texts), (line, label))
        if first != label:
            self._different.append((first_line, first, line, label))

    def warn(self) -> None:
        """Tells, at the end of the file, how many rows there are, and two of them."""
        if self._different and is_first("equal texts", self.path):
            told = "%s: rows with the text of an earlier row and another label: %d; the first are line %d (%r) and "
            logging.warning(told + "line %d (%r).", self.path, len(self._different), *self._different[0])


def warn_of_known_texts(train: Sequence, dev: Sequence) -> None:
    """Warns of a dev set with texts of the training set, but not of the set itself: see `is_trained_on` of the task.

    Args:
      train, dev: `InputExample`s.
    """
    trained = {hash((one.text_a, one.text_b)) for one in train}
    known = sum(hash((one.text_a, one.text_b)) in trained for one in dev)
    if known > _MANY_KNOWN * len(dev) and not known == len(dev) == len(train):
        told = "Of %d rows of --dev_file %d are also in --train_file: results on them say nothing about other texts."
        logging.warning(told, len(dev), known)


def warn_of_case(path: str, label: str, known: str) -> None:
    """Tells, once for each spelling in a file, that a label is read as one that differs in case only."""
    if is_first("case", path, label):
        logging.warning("%s: the label %r is read as %r.", path, label, known)


def is_number(text: str) -> bool:
    """Whether a label is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


# --- headers that are read as rows ------------------------------------------------------------------------------------


@contextlib.contextmanager
def maybe_header(is_first: bool, cells: Mapping[str, object]) -> Iterator[None]:
    """Says, in an error about the first row of a file whose columns are given by number, that it may be a header.

    Args:
      is_first: whether the row is that. cells: flag -> the row's cell in the column that the flag names.
    """
    try:
        yield
    except ValueError as error:
        if not is_first:
            raise
        raise ValueError(f"{str(error).removesuffix('.')}; {_named_by_header(cells)}") from None


def _named_by_header(cells: Mapping[str, object]) -> str:
    return "if it is a header, name the columns by it: " + " ".join(f"--{name}={cell}" for name, cell in cells.items())


def warn_of_header(path: str, line: int, cells: Mapping[str, object]) -> None:
    """Warns of a first row, read as an example since columns are given by number, that is probably a header.

    Args:
      cells: see `maybe_header`.
    """
    if _is_name_of_text(cells.get("text_a", cells.get("context"))):
        logging.warning("%s, line %d is read as an example; %s.", path, line, _named_by_header(cells))


def _is_name_of_text(cell) -> bool:
    """Whether a cell is what a column of texts is usually called."""
    return isinstance(cell, str) and cell.casefold() in _NAMES_OF_TEXTS


# --- --class_weights --------------------------------------------------------------------------------------------------
# How much the classes count in the loss, so that rare ones are learned, too.

BALANCED = "balanced"


def class_weights_setting(of: str):
    """The setting `class_weights`; of: what has a class."""
    return setting(
        None,
        f"Weights of the classes in the loss, LABEL=WEIGHT,LABEL=WEIGHT (1 for the others), or balanced: the number of "
        f"{of} divided by the number of classes and by the {of} of the class, so that rare classes count as much as "
        "frequent ones. The loss is the sum of the weighted losses divided by the sum of their weights.",
        heading="What is trained",
        check=lambda text, _: parsed(text),
    )


def parsed(text: str) -> dict[str, float]:
    """Label -> weight; empty for "balanced"."""
    weights = {}
    for part in [] if text == BALANCED else text.split(","):
        label, equals, number = (value.strip() for value in part.rpartition("="))
        if not equals or not label:
            raise ValueError(f"--class_weights={text}: {part!r} is not LABEL=WEIGHT; or give {BALANCED}.")
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        if not 0 < weight < math.inf:
            raise ValueError(
                f"--class_weights={text}: the weight of {label!r} must be a positive number, not {number!r}."
            )
        if label in weights:
            raise ValueError(f"--class_weights={text}: {label!r} has two weights.")
        weights[label] = weight
    return weights


def check_labels_of(text: str | None, labels: Sequence[str]) -> None:
    """Refuses --class_weights that names none of the classes."""
    if unknown := [label for label in parsed(text or BALANCED) if label not in labels]:
        raise ValueError(f"--class_weights={text}: no such label: {some(unknown)}. The labels are {some(labels)}.")


def check_class_weights(text: str | None, trains: bool) -> None:
    """Refuses --class_weights for a run that does not train."""
    if text is not None and not trains:
        raise ValueError("--class_weights is for training: give --do_train.")


def class_weights(text: str, labels: Sequence[str], label_ids: np.ndarray) -> list[float]:
    """The weights of the classes, which are logged.

    Args:
      text: --class_weights. labels: the names of the classes. label_ids: the class of all that is trained on, from 0.
    """
    check_labels_of(text, labels)
    given = parsed(text)
    counts = np.bincount(np.asarray(label_ids).reshape(-1), minlength=len(labels))
    if text == BALANCED:
        weights = counts.sum() / (np.count_nonzero(counts) * np.maximum(counts, 1))
        without = [label for label, count in zip(labels, counts, strict=True) if not count]
        weights = [float(weight) if count else 1.0 for weight, count in zip(weights, counts, strict=True)]
        reason = "occur nowhere in the training data"
    else:
        weights = [given.get(label, 1.0) for label in labels]
        without = [label for label in labels if label not in given]
        reason = "are not named"
    if without:
        logging.warning("--class_weights: these labels %s and have weight 1: %s.", reason, some(without))
    shown = ", ".join(f"{label} {weight:.4g}" for label, weight in zip(labels, weights, strict=True))
    logging.info("--class_weights: %s", shown)
    return weights

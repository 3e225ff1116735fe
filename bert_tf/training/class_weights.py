"""--class_weights: how much the classes count in the loss, so that rare ones are learned, too."""

import math
from collections.abc import Sequence

import numpy as np
from absl import logging

from bert_tf.system.declare import setting
from bert_tf.system.messages import some

BALANCED = "balanced"


def class_weights_setting(of: str):
    """The setting `class_weights`; of: what has a class."""
    return setting(
        None,
        f"Weights of the classes in the loss, LABEL=WEIGHT,LABEL=WEIGHT (1 for the others), or balanced: the number of "
        f"{of} divided by the number of classes and by the {of} of the class, so that rare classes count as much as "
        "frequent ones. The loss is the sum of the weighted losses divided by the sum of their weights.",
        check=lambda text, _: parsed(text),
    )


def parsed(text: str) -> dict[str, float]:
    """Label -> weight; empty for "balanced".

    Raises:
      ValueError: neither of the two forms, a label appears twice, or a weight is not a positive number.
    """
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
    """Refuses --class_weights that names none of the classes.

    Raises:
      ValueError: names the label.
    """
    if unknown := [label for label in parsed(text or BALANCED) if label not in labels]:
        raise ValueError(f"--class_weights={text}: no such label: {some(unknown)}. The labels are {some(labels)}.")


def check_class_weights(text: str | None, trains: bool) -> None:
    """Refuses --class_weights for a run that does not train.

    Raises:
      ValueError: nothing is trained.
    """
    if text is not None and not trains:
        raise ValueError("--class_weights is for training: give --do_train.")


def class_weights(text: str, labels: Sequence[str], label_ids: np.ndarray) -> list[float]:
    """The weights of the classes, which are logged.

    Args:
      text: --class_weights. labels: the names of the classes. label_ids: the class of all that is trained on, from 0.

    Raises:
      ValueError: see `parsed`; or a label is none of the classes.
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

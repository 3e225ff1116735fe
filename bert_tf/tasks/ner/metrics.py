"""Precision, recall and F1 of whole entities, by seqeval, which counts as conlleval does."""

import warnings
from collections.abc import Sequence

import numpy as np

Tags = Sequence[Sequence[str]]  # sentences of tags


def evaluate(gold: Tags, predicted: Tags, *, plain: bool = False) -> dict[str, float]:
    """Scores from 0 to 1: precision, recall, f1 of entities (type and both ends right), and accuracy of words.

    Args:
      gold, predicted: tags in IOB2 or BIOES. plain: tags that do not form entities; only accuracy is computed.

    Raises:
      ValueError: a sentence has different numbers of gold and predicted tags.
    """
    _check(gold, predicted)
    pairs = [(one, other) for tags in zip(gold, predicted, strict=True) for one, other in zip(*tags, strict=True)]
    accuracy = float(np.mean([one == other for one, other in pairs])) if pairs else 0.0
    if plain:
        return {"accuracy": accuracy}
    from seqeval.metrics.sequence_labeling import precision_recall_fscore_support

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about tags with unknown letters: there are none
        values = precision_recall_fscore_support(gold, predicted, average="micro", zero_division=0)
    precision, recall, f1 = map(float, values[:3])
    return {"precision": precision, "recall": recall, "f1": f1, "accuracy": accuracy}


def klue(gold: Tags, predicted: Tags, labels: Sequence[str]) -> dict[str, float]:
    """The scores of KLUE-NER, from 0 to 1: the mean of the F1 of each type of entity, and of each tag ("O" included).

    As in KLUE-baseline (klue_baseline/metrics/functional.py), except that [CLS] and [SEP] don't count.

    Args:
      gold, predicted: tags of characters without spaces, in IOB2. labels: the tags that there are; one that neither
        occurs nor is predicted counts as 1.
    """
    from seqeval.metrics import f1_score
    from seqeval.scheme import IOB2
    from sklearn.metrics import f1_score as f1_of_classes

    _check(gold, predicted)
    by_entity = f1_score(gold, predicted, average="macro", mode="strict", scheme=IOB2, zero_division=0)
    flat = ([tag for tags in sentences for tag in tags] for sentences in (gold, predicted))
    by_tag = f1_of_classes(*flat, labels=list(labels), average="macro", zero_division=1)
    return {"entity_macro_f1": float(by_entity), "character_macro_f1": float(by_tag)}


def report(gold: Tags, predicted: Tags, *, plain: bool = False) -> str:
    """A table: precision, recall, F1 and number of each type of entities, or of each tag if `plain`."""
    _check(gold, predicted)
    if plain:
        from sklearn.metrics import classification_report

        flat = ([tag for tags in sentences for tag in tags] for sentences in (gold, predicted))
        return classification_report(*flat, digits=4, zero_division=0)
    from seqeval.metrics import classification_report

    if not any(tag != "O" for sentences in (gold, predicted) for tags in sentences for tag in tags):
        return "No entities, neither gold nor predicted.\n"
    return classification_report(gold, predicted, digits=4, zero_division=0)


def _check(gold: Tags, predicted: Tags) -> None:
    if list(map(len, gold)) != list(map(len, predicted)):
        raise ValueError("Gold and predicted tags are not of the same sentences.")

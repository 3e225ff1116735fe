"""Scores of tags: whole entities as conlleval counts them, words, and the two scores of KLUE-NER."""

from collections.abc import Callable, Sequence

import numpy as np

from bert_tf.tasks.ner.tags import Entity, lenient_entities, strict_entities

Tags = Sequence[Sequence[str]]  # sentences of tags
_AVERAGES = ("micro avg", "macro avg", "weighted avg")


def evaluate(gold: Tags, predicted: Tags, *, plain: bool = False) -> dict[str, float]:
    """Scores from 0 to 1: precision, recall, f1 of entities (type and both ends right), and accuracy of words.

    Args:
      gold, predicted: tags of any scheme, also broken ones. plain: they form no entities; only accuracy is computed.
    """
    right = [tag == other for tags in zip(gold, predicted, strict=True) for tag, other in zip(*tags, strict=True)]
    accuracy = {"accuracy": float(np.mean(right)) if right else 0.0}
    if plain:
        return accuracy
    scores = _scores(np.sum([*_counts(gold, predicted, lenient_entities).values(), (0, 0, 0)], axis=0))
    return dict(zip(("precision", "recall", "f1"), scores, strict=True)) | accuracy


def klue(gold: Tags, predicted: Tags, labels: Sequence[str]) -> dict[str, float]:
    """The scores of KLUE-NER, from 0 to 1: the mean of the F1 of each type of entity, and of each tag ("O" included).

    As in KLUE-baseline (klue_baseline/metrics/functional.py), except that [CLS] and [SEP] don't count.

    Args:
      gold, predicted: tags of characters without spaces, as they are: an entity is what is strictly IOB2.
      labels: the tags that there are; one that neither occurs nor is predicted counts as 1.
    """
    from sklearn.metrics import f1_score

    by_entity = [_scores(counts)[2] for counts in _counts(gold, predicted, strict_entities).values()]
    flat = ([tag for tags in sentences for tag in tags] for sentences in (gold, predicted))
    by_tag = f1_score(*flat, labels=list(labels), average="macro", zero_division=1)
    return {"entity_macro_f1": float(np.mean(by_entity)) if by_entity else 0.0, "character_macro_f1": float(by_tag)}


def report(gold: Tags, predicted: Tags, *, plain: bool = False) -> str:
    """A table: precision, recall, F1 and number of each type of entities, or of each tag if `plain`."""
    if plain:
        from sklearn.metrics import classification_report

        flat = ([tag for tags in sentences for tag in tags] for sentences in (gold, predicted))
        return classification_report(*flat, digits=4, zero_division=0)
    counts = _counts(gold, predicted, lenient_entities)
    if not counts:
        return "No entities, neither gold nor predicted.\n"
    scores, support = np.array([_scores(of) for of in counts.values()]), np.array([of[2] for of in counts.values()])
    weighted = (scores * support[:, None]).sum(0) / max(support.sum(), 1)
    means = (_scores(np.sum(list(counts.values()), axis=0)), scores.mean(0), weighted)
    width = max(map(len, (*counts, *_AVERAGES)))

    def row(name: str, values: Sequence[float], number: int) -> str:
        return f"{name:>{width}} " + "".join(f" {value:>9.4f}" for value in values) + f" {number:>9}\n"

    header = "".join(f" {name:>9}" for name in ("precision", "recall", "f1-score", "support"))
    types = "".join(map(row, counts, scores, support.tolist()))
    averages = "".join(row(name, values, support.sum()) for name, values in zip(_AVERAGES, means, strict=True))
    return f"{'':>{width}} {header}\n\n{types}\n{averages}"


def _counts(gold: Tags, predicted: Tags, entities_of: Callable[[Sequence[str]], list[Entity]]) -> dict:
    """type -> numbers of entities that are right, predicted, and gold; sorted by type."""
    truth, guesses = (
        {(number, entity) for number, tags in enumerate(sentences) for entity in entities_of(tags)}
        for sentences in (gold, predicted)
    )
    types = sorted({entity.type for _, entity in truth | guesses})
    return {
        type_: tuple(sum(entity.type == type_ for _, entity in some) for some in (truth & guesses, guesses, truth))
        for type_ in types
    }


def _scores(counts: Sequence[int]) -> tuple[float, float, float]:
    """Precision, recall and F1, 0 where nothing is predicted or there."""
    right, predicted, gold = map(int, counts)
    precision, recall = right / predicted if predicted else 0.0, right / gold if gold else 0.0
    return precision, recall, 2 * precision * recall / (precision + recall) if right else 0.0

"""The tagger as a whole: its model, predictions and scores, and the settings kept with a trained one."""

import dataclasses
import json
import posixpath
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from absl import logging

from bert_tf.data import token_rows
from bert_tf.store.head_config import softmax
from bert_tf.system.storage import write_text_file
from bert_tf.tasks.ner import data as ner_data
from bert_tf.tasks.ner import tags as ner_tags
from bert_tf.tasks.ner.data import ConllFile, Layout, Sentence
from bert_tf.tasks.ner.encode import WordRows
from bert_tf.tasks.ner.tags import Entity, TaggingSettings, lenient_entities, strict_entities

_FEWEST_WORDS = 5  # of fewer words, each may well have a tag of its own


def labels_of(sentences: Sequence[Sentence], scheme: str) -> list[str]:
    """The tags to learn: for entities all tags of the types in the data, also those that happen not to occur."""
    every = [tag for sentence in sentences for tag in sentence.tags]
    tags = set(every)
    if scheme == "plain" and len(tags) == len(every) >= _FEWEST_WORDS:
        raise ValueError(f"--tag_column: each of the {len(every)} words has a tag of its own, as {every[0]!r}.")
    if len(tags) == 1:
        raise ValueError(f"all words have the same tag, {tags.pop()!r}: there is nothing to learn.")
    if scheme == "plain":
        return sorted(tags)
    return ner_tags.tag_set(scheme, ner_tags.types_of(tags))


def predict_logits(predict: Callable, rows: WordRows, *, batch_size: int, **padding) -> np.ndarray:
    """Logits [W, C] of all words of all sentences in their order; see `FineTuningTask.outputs_of`."""
    rows = dataclasses.replace(rows, labels={})
    batches = token_rows.evaluation_batches(rows, batch_size=batch_size, **padding)
    return word_logits(rows, token_rows.rows_and_outputs(rows, batch_size, predict(batches)))


def word_logits(rows: WordRows, outputs: Iterable[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Logits [W, C] of all words of all sentences in their order.

    outputs: (row numbers, their logits [B, S, C]) of batches that together have every row once.
    """
    order = np.argsort(rows.word_rows, kind="stable")
    bounds = np.searchsorted(rows.word_rows[order], np.arange(len(rows) + 1))
    logits = None
    for chosen, output in outputs:
        if logits is None:
            logits = np.empty((len(rows.word_rows), output.shape[-1]), np.float32)
        for position, row in enumerate(chosen.tolist()):
            words = order[bounds[row] : bounds[row + 1]]
            logits[words] = output[position, rows.word_positions[words]]
    return logits


def tags_by_sentence(sentences: Sequence[Sentence], tags: Sequence[str]) -> list[list[str]]:
    """The tags of all words one after the other, cut into sentences."""
    ends = np.cumsum([len(sentence.words) for sentence in sentences]).tolist()
    return [list(tags[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def raw_tags(sentences: Sequence[Sentence], logits: np.ndarray, labels: Sequence[str]) -> list[list[str]]:
    """The most probable tag of each word, by sentence; together they may break the scheme."""
    return tags_by_sentence(sentences, [labels[number] for number in logits.argmax(-1)])


def predicted_tags(
    sentences: Sequence[Sentence], logits: np.ndarray, labels: Sequence[str], scheme: str
) -> list[list[str]]:
    """`raw_tags` as valid tags of `scheme`; incomplete entities are read as conlleval reads them."""
    return [ner_tags.valid_tags(tags, scheme) for tags in raw_tags(sentences, logits, labels)]


def score(
    sentences: Sequence[Sentence],
    logits: np.ndarray,
    labels: Sequence[str],
    settings: TaggingSettings,
    metric: str = "entities",
) -> tuple[dict[str, float], str]:
    """Scores of `evaluate` and loss (mean negative log-likelihood of the words' tags), and a table by type.

    Tags are scored as they are in the file and as they are predicted, also broken ones. A tag that the model does not
    know counts as wrong; the loss leaves it out.

    metric: "klue" adds the scores of `klue`.
    """
    plain = settings.learned_scheme == "plain"
    gold = [sentence.raw_tags or sentence.tags for sentence in sentences]
    predicted = raw_tags(sentences, logits, labels)
    results = evaluate(gold, predicted, plain=plain)
    if metric == "klue":

        def without_spaces(every: Tags) -> Tags:
            words = (zip(sentence.words, tags, strict=True) for sentence, tags in zip(sentences, every, strict=True))
            return [[tag for word, tag in pairs if not word.isspace()] for pairs in words]

        known = ner_tags.tag_set("iob2", ner_tags.types_of(labels))
        results |= klue(without_spaces(gold), without_spaces(predicted), known)
    number = {label: index for index, label in enumerate(labels)}
    ids = np.array([number.get(tag, -1) for sentence in sentences for tag in sentence.tags])
    has_id = ids >= 0
    losses = -np.log(np.maximum(softmax(logits[has_id])[np.arange(has_id.sum()), ids[has_id]], 1e-30))
    results["loss"] = float(losses.mean()) if len(losses) else 0.0
    return results, report(gold, predicted, plain=plain)


def write_confusion_matrix(
    output_dir: str, sentences: Sequence[Sentence], logits: np.ndarray, labels: Sequence[str], plain: bool, title: str
) -> None:
    """Writes confusion_matrix.png: how often words of each type of entity (or plain tag) were given each type."""
    from bert_tf.training import plots

    def kinds(tags_of_sentences) -> list[str]:
        return [tag if plain else tag.partition("-")[2] or tag for tags in tags_of_sentences for tag in tags]

    gold, predicted = kinds([sentence.tags for sentence in sentences]), kinds(raw_tags(sentences, logits, labels))
    if len({*predicted}) == 1 < len({*gold}):
        logging.warning("All %d words are tagged %r: the model tells none apart.", len(predicted), predicted[0])
    names = sorted({*gold, *predicted}, key=lambda name: (name == ner_tags.OUTSIDE, name))
    number = {name: index for index, name in enumerate(names)}
    numbers = ([number[name] for name in of_words] for of_words in (gold, predicted))
    plots.plot_confusion_matrix(*numbers, names, posixpath.join(output_dir, "confusion_matrix.png"), title=title)


def write_predictions(
    output_dir: str, file: ConllFile, layout: Layout, logits: np.ndarray, labels: Sequence[str]
) -> list[str]:
    """Writes predictions.conll, the file with one more column, and predictions.jsonl; returns their paths.

    The second has a line for each sentence: words, tags, and entities: type, start, end (words, from 0, the one after
    the last), text, score (mean probability of the likeliest tags of its words).
    """
    between = " " if ner_data.split_of(file.sentences) == "words" else ""
    tags = predicted_tags(file.sentences, logits, labels, layout.tag_scheme)
    paths = [posixpath.join(output_dir, f"predictions.{suffix}") for suffix in ("conll", "jsonl")]
    ner_data.write_conll(paths[0], file, tags, layout)
    best = tags_by_sentence(file.sentences, softmax(logits).max(-1).tolist())
    lines = []
    for sentence, of_words, probabilities in zip(file.sentences, tags, best, strict=True):
        record = {"words": sentence.words, "tags": of_words}
        if layout.tag_scheme != "plain":
            record["entities"] = []
            for type_, start, end in map(dataclasses.astuple, ner_tags.entities_of(of_words, layout.tag_scheme)):
                text, score = between.join(sentence.words[start:end]), float(np.mean(probabilities[start:end]))
                entity = {"type": type_, "start": start, "end": end, "text": text, "score": round(score, 4)}
                record["entities"].append(entity)
        lines.append(json.dumps(record, ensure_ascii=False) + "\n")
    write_text_file(paths[1], "".join(lines))
    return paths


# --- scores -----------------------------------------------------------------------------------------------------------


Tags = Sequence[Sequence[str]]  # sentences of tags
_AVERAGES = ("micro avg", "macro avg", "weighted avg")


def evaluate(gold: Tags, predicted: Tags, *, plain: bool = False) -> dict[str, float]:
    """Scores from 0 to 1: precision, recall, f1 of entities (type and both ends right), and accuracy of words.

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
    right, predicted, gold = map(int, counts)
    precision, recall = right / predicted if predicted else 0.0, right / gold if gold else 0.0
    return precision, recall, 2 * precision * recall / (precision + recall) if right else 0.0

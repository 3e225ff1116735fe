"""Texts that are compared, from files: pairs with a score, pairs that belong together, and triplets.

CSV, TSV or JSON lines. Pairs that belong together may have a third text, which does not belong to the first.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from absl import logging

from bert_tf.data import tables
from bert_tf.data.tables import USUAL_TABLE, TableSettings, all_examples, field_of, named_rows, quoted, text_of
from bert_tf.system.messages import warn_once

# Columns that say whether, or how well, two texts belong together.
_JUDGEMENTS = {"label", "labels", "gold_label", "score", "scores", "similarity", "similarity_score", "target"}
_JUDGEMENTS |= {"relatedness_score", "is_duplicate", "is_paraphrase"}
_NARROW = 0.3  # of the range of scores; 0..1 for 0..5 is less


@dataclasses.dataclass(frozen=True)
class SimilarityExample:
    """Two texts, or three of which the last does not belong to the first; and how alike the two are, if known.

    `source` has the columns of the example's row that go into predictions.
    """

    guid: str
    texts: tuple[str, ...]
    score: float | None = None
    source: Mapping[str, object] | None = None


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns of a file: names, or, for a file without header, numbers from 0 as text; None: there is none.

    text_a, text_b: the texts. negative: the text that does not belong to the first. score: a number.
    """

    text_a: str
    text_b: str
    negative: str | None = None
    score: str | None = None

    @property
    def texts(self) -> list[str]:
        return [name for name in (self.text_a, self.text_b, self.negative) if name]

    @property
    def all(self) -> list[str]:
        return [*self.texts, *([self.score] if self.score else ())]


# Used if no column is named: the first layout that fits the file.
KNOWN_LAYOUTS = (
    Columns("sentence1", "sentence2", score="score"),  # STS-B
    Columns("text_a", "text_b", score="score"),
    Columns("anchor", "positive", "negative"),
    Columns("anchor", "positive"),
    Columns("query", "positive", "negative"),
    Columns("query", "positive"),
    Columns("question", "answer"),
    Columns("sentence1", "sentence2"),
    Columns("text_a", "text_b"),
)


def read_examples(
    path: str,
    columns: Columns | None = None,
    *,
    score_range: tuple[float, float] = (0.0, 1.0),
    table: TableSettings = USUAL_TABLE,
    partners: bool = True,
) -> list[SimilarityExample]:
    """The examples of a file, in its order; scores are mapped from score_range to 0..1.

    Args:
      path: .csv, .jsonl, or else TSV; the first row of CSV and TSV is the header, unless columns are numbers.
      columns: None: those of KNOWN_LAYOUTS that the file has.
      table: how the file is read.
      partners: two texts without a score are taken to belong together: not in a test set.
    """
    names, is_named, judged, examples = columns.all if columns else [], columns is not None, {}, []
    for number, (line, row, source) in enumerate(named_rows(path, names, table)):
        columns = columns or _known_layout(list(row), path)
        texts = tuple(text_of(field_of(row, name, path, line), path, line, name) for name in columns.texts)
        if "" in texts:
            raise ValueError(f"{path}, line {line}: {columns.texts[texts.index('')]} is empty.")
        score = _score(field_of(row, columns.score, path, line), score_range, path, line) if columns.score else None
        if partners and not (columns.score or columns.negative):
            _check_judgements(row, columns, judged, path, line, is_named)
        examples.append(SimilarityExample(str(number), texts, score, source))
    scores = [example.score for example in all_examples(path, examples) if example.score is not None]
    if len(scores) > 1 and max(scores) - min(scores) < _NARROW:
        low, high = score_range
        shown = (low + (high - low) * score for score in (min(scores), max(scores)))
        message = "%s: all scores are from %g to %g, of --score_range=%g,%g: are these the lowest and the highest "
        logging.warning(message + "possible?", path, *shown, low, high)
    return examples


def _check_judgements(row: Mapping, columns: Columns, judged: dict, path: str, line: int, is_named: bool) -> None:
    """Raises, or warns if columns are named, where unused labels differ from those of the first row (`judged`)."""
    for name in (name for name in row if name not in columns.texts and name.casefold() in _JUDGEMENTS):
        if row[name] == judged.setdefault(name, row[name]):
            continue
        message = (
            f"{path}, line {line}: the column {name!r} ({judged[name]!r} before, {row[name]!r} here) is not used: each "
            f"row counts as two texts that belong together. If it says whether they do, give --text_a={columns.text_a} "
            f"--text_b={columns.text_b} --score={name} --score_range=lowest,highest; if not, the first two alone."
        )
        if not is_named:
            raise ValueError(message)
        warn_once((path, name), "%s", message)


def _known_layout(names: Sequence[str], path: str) -> Columns:
    """The first of KNOWN_LAYOUTS whose columns are all among `names`."""
    for layout in KNOWN_LAYOUTS:
        if set(layout.all) <= set(names):
            logging.info("%s: its columns are %s.", path, quoted(layout.all))
            return layout
    raise ValueError(
        f"{path}: which column is what? There are {quoted(names)}: name them by --text_a, --text_b, --negative and "
        "--score."
    )


def _score(value, score_range: tuple[float, float], path: str, line: int) -> float:
    """A score, mapped to 0..1."""
    if math.isnan(score := tables.number_of(tables.plain_label(value))):
        raise ValueError(f"{path}, line {line}: a number is expected as score, found {value!r}")
    low, high = score_range
    if not low <= score <= high:
        raise ValueError(f"{path}, line {line}: the score {score:g} is not in --score_range={low:g},{high:g}.")
    return (score - low) / (high - low)

"""Texts that are compared, from files: pairs with a score, pairs that belong together, and triplets.

CSV, TSV or JSON lines. Pairs that belong together may have a third text, which does not belong to the first.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

from absl import logging

from bert_tf.data.tables import USUAL_TABLE, TableSettings, all_examples, field_of, named_rows, quoted, text_of
from bert_tf.tasks.classification.label_checks import maybe_header, warn_of_header

# Columns that say whether, or how well, two texts belong together.
_JUDGEMENTS = {"label", "labels", "gold_label", "score", "scores", "similarity", "similarity_score", "target"}
_JUDGEMENTS |= {"relatedness_score", "is_duplicate", "is_paraphrase"}
_NARROW = 0.3  # of the range of scores; 0..1 for 0..5 is less
_CLASSES = "write 1 in it for the class of texts that belong together, and 0 for the other"
_INTEGER = re.compile(r"-?[0-9]+")


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

    Attributes:
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
    examples = all_examples(path, examples_of(path, columns, score_range, table, partners))
    scores = [example.score for example in examples if example.score is not None]
    if len(scores) > 1 and max(scores) - min(scores) < _NARROW:
        low, high = score_range
        logging.warning(
            "%s: all scores are from %g to %g, of --score_range=%g,%g: are these the lowest and the highest possible?",
            path,
            *(low + (high - low) * score for score in (min(scores), max(scores))),
            low,
            high,
        )
    if partners and not scores and len(examples) > 1:
        for place, which in enumerate(("first", "second")):
            if len({example.texts[place] for example in examples}) == 1:
                logging.warning(
                    "%s: the %s text of all %d rows is the same, so that the others of a batch are no negatives.",
                    path,
                    which,
                    len(examples),
                )
    return examples


def examples_of(
    path: str, columns: Columns | None, score_range: tuple[float, float], table: TableSettings, partners: bool
) -> Iterator[SimilarityExample]:
    """The examples one by one; arguments as of `read_examples`."""
    by_number = columns is not None and bool(_INTEGER.fullmatch(columns.text_a))
    names, number, equal, is_named, judged = columns.all if columns else [], 0, {}, columns is not None, {}
    for number, (line, row, source) in enumerate(named_rows(path, None if by_number else names, table)):
        columns = columns or _known_layout(list(row), path)
        cells = {name: row.get(column) for name, column in vars(columns).items() if column}
        texts = tuple(text_of(field_of(row, name, path, line), path, line, name) for name in columns.texts)
        for name, text in zip(columns.texts, texts, strict=True):
            if not text:
                raise ValueError(f"{path}, line {line}: {name} is empty.")
        score = None
        if columns.score:
            with maybe_header(by_number and not number, cells):
                score = _score(field_of(row, columns.score, path, line), score_range, path, line, by_number)
        elif by_number and not number:
            warn_of_header(path, line, cells)
        if partners and not (columns.score or columns.negative):
            _check_judgements(row, columns, judged, path, line, is_named)
        for a, b in itertools.combinations(range(len(texts)), 2) if score is None else ():
            if texts[a] == texts[b]:
                equal.setdefault((columns.texts[a], columns.texts[b]), []).append(line)
        yield SimilarityExample(str(number), texts, score, source)
    for (one, other), lines in equal.items():
        if len(lines) <= number:  # not in all rows, which are meant: each text is to be near itself after dropout
            logging.warning(
                f"%s: rows whose {one} and {other} are the same text: %d, the first in line %d.",
                path,
                len(lines),
                lines[0],
            )
    for name, (first, line, *others) in judged.items():
        if others:
            logging.warning("%s", _not_used(path, name, columns, first, line, *others))


def _check_judgements(
    row: Mapping, columns: Columns, judged: dict[str, tuple], path: str, line: int, is_named: bool
) -> None:
    """Refuses, unless columns are named, a column of labels or scores that is not used and differs between rows.

    judged: for each such column the first row's value and line, and those of the first row with another one.
    """
    for name in row:
        if name in columns.texts or name.casefold() not in _JUDGEMENTS:
            continue
        first = judged.setdefault(name, (row[name], line))
        if len(first) == 2 and first[0] != row[name]:
            judged[name] = (*first, row[name], line)
            if not is_named:
                raise ValueError(_not_used(path, name, columns, *judged[name]))


def _not_used(path: str, name: str, columns: Columns, first, line: int, second, other_line: int) -> str:
    named = f"--text_a={columns.text_a} --text_b={columns.text_b}"
    lowest = _CLASSES if _is_class(first) else "its lowest and highest number"
    return (
        f"{path}: the column {name!r} ({first!r} in line {line}, {second!r} in line {other_line}) is not used: each "
        f"row counts as two texts that belong together. If it says whether they do, give {named} --score={name} "
        f"--score_range=0,1 ({lowest}), or keep only those rows that do; if not, {named} alone."
    )


def _is_class(value) -> bool:
    """Whether a value is the name of a class, as "duplicate", and no number."""
    return isinstance(value, str) and value.strip()[:1].isalpha()


def _known_layout(names: Sequence[str], path: str) -> Columns:
    """The first of KNOWN_LAYOUTS whose columns are all among `names`."""
    for layout in KNOWN_LAYOUTS:
        if set(layout.all) <= set(names):
            logging.info("%s: its columns are %s.", path, quoted(layout.all))
            return layout
    raise ValueError(
        f"{path}: which column is what? There are {quoted(names)}, and not sentence1, sentence2 and score, nor anchor, "
        "positive and negative: name them by --text_a, --text_b, --negative and --score."
    )


def _score(value, score_range: tuple[float, float], path: str, line: int, may_be_header: bool) -> float:
    """A score, mapped to 0..1."""
    try:
        score = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        score = math.nan
    if not math.isfinite(score):
        hint = " (write numbers with a decimal point)" if "," in str(value) else ""
        hint = hint or (f" ({_CLASSES})" if _is_class(value) and not may_be_header else "")
        raise ValueError(f"{path}, line {line}: a number is expected as score, found {value!r}{hint}")
    low, high = score_range
    if not low <= score <= high:
        raise ValueError(
            f"{path}, line {line}: the score {score:g} is not in --score_range={low:g},{high:g}. Say what the lowest "
            "and the highest score mean: nothing in common and the same, for STS-B 0,5."
        )
    return (score - low) / (high - low)

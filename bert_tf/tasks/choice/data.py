"""Examples of multiple choice from files: SWAG's CSV, and TSV, CSV or JSON lines with any number of choices.

Paper: Devlin et al. 2019, section 4.4; SWAG: Zellers et al. 2018.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from string import ascii_lowercase, ascii_uppercase

from absl import logging

from bert_tf.data.tables import USUAL_TABLE, TableSettings, all_examples, field_of, named_rows, quoted, text_of
from bert_tf.tasks.classification.label_checks import EqualTexts, maybe_header, warn_of_header

_CHANCE = 0.05  # that no first choice is right in any row; if it is less, labels are counted otherwise
_INTEGER = re.compile(r"-?[0-9]+")


@dataclasses.dataclass(frozen=True)
class ChoiceExample:
    """A context, the beginning that all choices have in common (may be empty), the choices, and the right one's number.

    `label` counts from 0; None where it is not known. `source` has the columns of the example's row that go into
    predictions.
    """

    guid: str
    context: str
    question: str
    choices: tuple[str, ...]
    label: int | None = None
    source: Mapping[str, object] | None = None


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns of a file: names, or, for a file without header, numbers from 0 as text.

    Attributes:
      context: the text that comes first. question: the beginning of every choice; None: no such column.
      choices: a column each; or one name: that of a list in JSON, or what the columns are called before their numbers
        (`ending` for ending0, ending1, ...).
      label: the right choice.
    """

    context: str
    question: str | None
    choices: tuple[str, ...]
    label: str

    def header_names(self, with_label: bool) -> list[str]:
        """The names that a header must have; one name of choices may be what they are called before their numbers."""
        choices = self.choices if len(self.choices) > 1 else ()
        return [name for name in (self.context, self.question, *choices, self.label if with_label else None) if name]


# Used if no column is named: the first layout that fits the file.
KNOWN_LAYOUTS = (
    Columns("sent1", "sent2", ("ending",), "label"),  # SWAG
    Columns("context", "question", ("choices",), "label"),
    Columns("context", None, ("choices",), "label"),
    Columns("question", None, ("choices",), "label"),
    Columns("question", None, ("choice",), "label"),  # JCommonsenseQA
)


def read_examples(
    path: str,
    columns: Columns | None = None,
    *,
    first_label: str = "0",
    labels_needed: bool = True,
    table: TableSettings = USUAL_TABLE,
) -> list[ChoiceExample]:
    """The examples of a file, in its order; all of them have the same number of choices.

    Args:
      path: .csv, .jsonl, or else TSV; the first row of CSV and TSV is the header, unless columns are numbers.
      columns: None: those of KNOWN_LAYOUTS that the file has.
      first_label: what the label column has for the first choice: a number, or a letter.
      labels_needed: False: the file may have none, or in every row "", -1 or null.
      table: how the file is read.
    """
    return all_examples(path, examples_of(path, columns, first_label, labels_needed, table))


def examples_of(
    path: str, columns: Columns | None, first_label: str, labels_needed: bool, table: TableSettings
) -> Iterator[ChoiceExample]:
    """The examples one by one; arguments as of `read_examples`."""
    first, first_line, twice, equal, first_is_right = None, 0, [], EqualTexts(path, labels_needed), []
    by_number = columns is not None and bool(_INTEGER.fullmatch(columns.context))
    names = columns.header_names(labels_needed) if columns else []
    for number, (line, row, source) in enumerate(named_rows(path, None if by_number else names, table)):
        columns = columns or _known_layout(list(row), path, labels_needed)
        is_first = by_number and not number
        cells = {"context": row.get(columns.context), "label": row.get(columns.label)}
        with maybe_header(is_first, {**cells, "choices": ",".join(str(row.get(name)) for name in columns.choices)}):
            example = _example(row, columns, first_label, number, path, line)
        if is_first and example.label is None:
            warn_of_header(path, line, cells)
        if labels_needed and example.label is None:
            field_of(row, columns.label, path, line)  # raises if the whole column is missing
            raise ValueError(f"{path}, line {line}: there is no label.")
        first_line = first_line or line
        first = first or example
        if len(example.choices) != len(first.choices):
            raise ValueError(
                f"{path}, line {line}: {len(example.choices)} choices, but line {first_line} has {len(first.choices)}: "
                "every row must have as many as the others."
            )
        if (example.label is None) != (first.label is None):
            here, there = ("no", "one") if example.label is None else ("a", "none")
            raise ValueError(f"{path}, line {line}: {here} label, but line {first_line} has {there}.")
        if len({*example.choices}) < len(example.choices):
            twice.append(line)
        first_is_right.append(example.label == 0)
        equal.add((example.context, example.question, *example.choices), row.get(columns.label), line)
        yield dataclasses.replace(example, source=source)
    equal.warn()
    is_odd = first and (1 - 1 / len(first.choices)) ** len(first_is_right) < _CHANCE and not any(first_is_right)
    if is_odd and labels_needed and first_label == "0":
        logging.warning("%s: no row has the label 0, the first choice; with labels from 1, give --first_label=1.", path)
    if twice:
        logging.warning("%s: rows with the same choice twice: %d, the first in line %d.", path, len(twice), twice[0])


def _known_layout(names: Sequence[str], path: str, labels_needed: bool) -> Columns:
    """The first of KNOWN_LAYOUTS whose columns are all among `names`."""
    for layout in KNOWN_LAYOUTS:
        needed = {layout.context, layout.question, layout.label if labels_needed else None} - {None}
        prefix = layout.choices[0]
        if needed <= set(names) and (prefix in names or _numbered(prefix, names)):
            logging.info(
                "%s: context in %r, question in %r, choices in %r, label in %r.",
                path,
                layout.context,
                layout.question,
                prefix,
                layout.label,
            )
            return layout
    raise ValueError(
        f"{path}: which column is what? There are {quoted(names)}, and not SWAG's sent1, sent2, ending0, ... and "
        "label, nor context, question, choices and label: name them by --context, --question, --choices and --label."
    )


def _numbered(prefix: str, names: Sequence[str]) -> list[str]:
    """The names that are `prefix` and a number, by number."""
    found = [name for name in names if re.fullmatch(re.escape(prefix) + "[0-9]{1,3}", name)]
    return sorted(found, key=lambda name: int(name[len(prefix) :]))


def _example(row: dict, columns: Columns, first_label: str, number: int, path: str, line: int) -> ChoiceExample:
    context = text_of(field_of(row, columns.context, path, line), path, line, columns.context)
    # A context alone has null in JSON.
    question = text_of(field_of(row, columns.question, path, line) or "", path, line, columns.question)
    named = ", ".join(columns.choices)
    choices = tuple(text_of(choice, path, line, named) for choice in _choices_of(row, columns.choices, path, line))
    if len(choices) < 2:
        raise ValueError(f"{path}, line {line}: at least two choices are needed; found {len(choices)}.")
    for place, choice in enumerate(choices):
        if not choice:
            raise ValueError(
                f"{path}, line {line}: choice {place + 1} of {len(choices)} is empty: every row must have as many "
                "choices as the others."
            )
    label = row.get(columns.label)
    unknown = label is None or str(label).strip() in ("", "-1")
    label = None if unknown else _label_of(label, first_label, len(choices), path, line)
    return ChoiceExample(str(number), context, question, choices, label)


def _choices_of(row: dict, names: Sequence[str], path: str, line: int) -> list:
    if len(names) > 1:
        return [field_of(row, name, path, line) for name in names]
    prefix = names[0]
    if isinstance(row.get(prefix), list):
        return row[prefix]
    numbered = _numbered(prefix, list(row))
    if not numbered and prefix in row:
        raise ValueError(f"{path}, line {line}: {prefix!r} alone is one choice, of at least two: --choices names all.")
    if not numbered:
        raise ValueError(f"{path}, line {line}: no list {prefix!r}, nor {prefix}0, {prefix}1, ... in {quoted(row)}.")
    numbers = [int(name[len(prefix) :]) for name in numbered]
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))) or numbers[0] > 1:
        raise ValueError(f"{path}, line {line}: the choices are {quoted(numbered)}: a number is missing.")
    return [row[name] for name in numbered]


def _label_of(value, first: str, count: int, path: str, line: int) -> int:
    text, number = str(value).strip(), None
    if _INTEGER.fullmatch(first):
        if _INTEGER.fullmatch(text):
            number = int(text) - int(first)
    elif len(text) == 1:
        number = ord(text) - ord(first)
    if number is None or not 0 <= number < count:
        letters = {letter: names[0] for names in (ascii_uppercase, ascii_lowercase) for letter in names[:count]}
        begins = ({str(count): "1"} | letters).get(text) if first == "0" else None
        advice = f"; with labels from {begins}, give --first_label={begins}." if begins else " (--first_label)."
        raise ValueError(
            f"{path}, line {line}: the label {value!r} is not one of the {count} choices, the first of which is called "
            f"{first!r}{advice}"
        )
    return number

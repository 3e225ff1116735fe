"""Examples of multiple choice from files: SWAG's CSV, and TSV, CSV or JSON lines with any number of choices.

Paper: Devlin et al. 2019, section 4.4; SWAG: Zellers et al. 2018.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from absl import logging

from bert_tf.data import tables, token_rows
from bert_tf.data.token_rows import GroupedRows
from bert_tf.system.checks import check_different
from bert_tf.system.declare import setting
from bert_tf.tasks.rows import class_name, encode_texts, plain_label
from bert_tf.text.characters import plain_name
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.training.settings import FineTuningSettings

_LETTER = re.compile(".")
_CHANCE = 0.05  # that no first choice is right in any row; if it is less, labels are counted otherwise


@dataclasses.dataclass(frozen=True)
class ChoiceExample:
    """A context, the beginning that all choices have in common (may be empty), the choices, and the right one's number.

    label: from 0, if known. source: the columns of its row that go into predictions.
    """

    guid: str
    context: str
    question: str
    choices: tuple[str, ...]
    label: int | None = None
    source: Mapping[str, object] | None = None


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns of a file: names, or, of a file without header, numbers from 0 as text.

    question: the beginning of every choice, if any. choices: a column each; or one name: that of a list in JSON, or
    what the columns are called before their numbers (`ending` for ending0, ending1, ...).
    """

    context: str
    question: str | None
    choices: tuple[str, ...]
    label: str

    def header_names(self, with_label: bool) -> list[str]:
        """The names that a header must have, without the only name of choices, which may have numbers there."""
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
    table: tables.TableSettings = tables.USUAL_TABLE,
) -> list[ChoiceExample]:
    """The examples of a file, in its order; all of them have the same number of choices.

    columns: by default those of KNOWN_LAYOUTS that the file has.
    first_label: what the label column has for the first choice: a number, or a letter.
    labels_needed: whether labels must not be missing, "", -1 or null.
    """
    names, examples = columns.header_names(labels_needed) if columns else [], []
    for number, (line, row, source) in enumerate(tables.named_rows(path, names, table)):
        columns = columns or _known_layout(list(row), path, labels_needed)
        example = _example(row, columns, first_label, number, path, line)
        if labels_needed and example.label is None:
            tables.field_of(row, columns.label, path, line)  # raises if the whole column is missing
            raise ValueError(f"{path}, line {line}: there is no label.")
        examples.append(dataclasses.replace(example, source=source))
        if (count := len(example.choices)) != (first_count := len(examples[0].choices)):
            raise ValueError(f"{path}, line {line}: {count} choices, but the first row has {first_count}.")
    rights = [example.label for example in tables.all_examples(path, examples)]
    is_odd = (1 - 1 / len(examples[0].choices)) ** len(rights) < _CHANCE and 0 not in rights
    if is_odd and labels_needed and first_label == "0":
        logging.warning("%s: no row has the label 0, the first choice; with labels from 1, give --first_label=1.", path)
    return examples


def _known_layout(names: Sequence[str], path: str, labels_needed: bool) -> Columns:
    for layout in KNOWN_LAYOUTS:
        needed, prefix = layout.header_names(labels_needed), layout.choices[0]
        if {*needed} <= {*names} and (prefix in names or _numbered(prefix, names)):
            logging.info("%s: its columns are %s.", path, tables.quoted([*needed, prefix]))
            return layout
    raise ValueError(f"{path} has no known columns: name them by --context, --question, --choices and --label.")


def _numbered(prefix: str, names: Sequence[str]) -> list[str]:
    numbered = [name for name in names if re.fullmatch(re.escape(prefix) + "[0-9]{1,3}", name)]
    return sorted(numbered, key=lambda name: int(name[len(prefix) :]))


def _example(row: dict, columns: Columns, first_label: str, number: int, path: str, line: int) -> ChoiceExample:
    context = tables.text_of(tables.field_of(row, columns.context, path, line), path, line, columns.context)
    # A context alone has null in JSON.
    question = tables.text_of(tables.field_of(row, columns.question, path, line) or "", path, line, columns.question)
    named = ", ".join(columns.choices)
    choices = tuple(tables.text_of(text, path, line, named) for text in _choices_of(row, columns.choices, path, line))
    if len(choices) < 2 or "" in choices:
        raise ValueError(f"{path}, line {line}: two choices are needed at least, and none may be empty.")
    cell, right = plain_label(row.get(columns.label)), None
    label = "" if cell is None else class_name(cell).strip()
    if label not in ("", "-1"):
        form, number_in = (tables.INTEGER, int) if tables.INTEGER.fullmatch(first_label) else (_LETTER, ord)
        is_one = form.fullmatch(label) and form.fullmatch(first_label)
        right = number_in(label) - number_in(first_label) if is_one else -1
        if not 0 <= right < len(choices):
            raise ValueError(
                f"{path}, line {line}: the label {cell!r} is not one of the {len(choices)} choices, the first of which "
                f"is called {first_label!r} (--first_label)."
            )
    return ChoiceExample(str(number), context, question, choices, right)


def _choices_of(row: dict, names: Sequence[str], path: str, line: int) -> list:
    if len(names) > 1:
        return [tables.field_of(row, name, path, line) for name in names]
    prefix = names[0]
    if isinstance(row.get(prefix), list):
        return row[prefix]
    numbered = _numbered(prefix, list(row))
    if not numbered:
        raise ValueError(
            f"{path}, line {line}: no list {prefix!r}, nor {prefix}0, {prefix}1, ... in {tables.quoted(row)}."
        )
    numbers = [int(name[len(prefix) :]) for name in numbered]
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))) or numbers[0] > 1:
        raise ValueError(f"{path}, line {line}: the choices are {tables.quoted(numbered)}: a number is missing.")
    return [row[name] for name in numbered]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoiceSettings(tables.TableSettings):
    context: str | None = setting(
        None,
        "Column of the context, by name, or by number from 0 if the file has no header. If no columns are named: "
        "SWAG's, or context, question, choices and label.",
        heading="Your files",
    )
    question: str | None = setting(None, "Column of the text that every choice begins with, if any.")
    choices: list[str] | None = setting(
        None,
        "Columns of the choices, separated by commas; or one name: of a list in JSON lines, or the prefix of numbered "
        "columns (ending for ending0, ending1, ...).",
    )
    label: str | None = setting(None, "Column of the correct choice. If unset, and other columns are named, label.")
    first_label: str = setting("0", "The label of the first choice: 0, 1, A or the like.")

    @property
    def columns(self) -> Columns | None:
        if not self.context:
            return None
        context, question, label = (plain_name(name or "") for name in (self.context, self.question, self.label))
        return Columns(context, question or None, tuple(map(plain_name, self.choices)), label or "label")

    def check(self, run: FineTuningSettings) -> None:
        run.check(self)
        if bool(self.context) != bool(self.choices):
            given, missing = ("context", "choices") if self.context else ("choices", "context")
            raise ValueError(f"--{given} needs --{missing}, too; without both, the columns are SWAG's.")
        if columns := self.columns:
            flags = {"--context": columns.context, "--question": columns.question, "--label": columns.label}
            choices = {f"--choices ({number})": name for number, name in enumerate(columns.choices, start=1)}
            check_different(flags | choices)
        for name in ("question", "label"):
            if getattr(self, name) and not self.context:
                raise ValueError(f"--{name} needs --context and --choices, too.")
        run.check_sets(self)


def encode_examples(
    examples: Sequence[ChoiceExample], tokenizer: Tokenizer, max_seq_length: int, warn: Callable = logging.warning
) -> GroupedRows:
    """Token rows of examples with the same number of choices. warn: logs a message and its arguments."""
    special = tokenizer.num_special_tokens(pair=True)
    if max_seq_length < special + 2:
        raise ValueError(f"max_seq_length={max_seq_length} has no room for two texts and {special} special tokens.")
    num_choices = len(examples[0].choices)
    texts = []
    for example in examples:
        # A choice follows its question as a word follows another.
        separator = tokenizer.word_separator if example.question else ""
        texts += [example.context, example.question, *(separator + choice for choice in example.choices)]
    encoded, pairs = iter(encode_texts(texts, tokenizer)), []
    for _ in examples:
        context, question = next(encoded), next(encoded)
        # As in classification, a choice without any token (control characters only) does not count as a text.
        pairs += [(context, [*question, *next(encoded)]) for _ in range(num_choices)]
    rows, truncated = token_rows.rows_of_pairs(pairs, tokenizer, max_seq_length)
    if truncated:
        message = "Longer than max_seq_length=%d tokens, of which the %s are lost: %d of %d choices with their context."
        warn(message, max_seq_length, tokenizer.lost, truncated, len(rows))
    rights = [example.label for example in examples]
    labels = {} if None in rights else {"label_ids": np.array(rights, np.int32)}
    return GroupedRows(rows.ids, rows.offsets, rows.second_starts, labels, num_choices, pad_id=rows.pad_id)


def describe(example: ChoiceExample, probabilities: np.ndarray) -> dict:
    """`choice`, the likeliest one's number, its `text`, and all `probabilities` [N]."""
    choice = int(probabilities.argmax())
    return {"choice": choice, "text": example.choices[choice], "probabilities": probabilities.tolist()}

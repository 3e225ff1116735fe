"""Reads rows of TSV, CSV, JSON and Parquet files, and cells of named or numbered columns."""

import contextlib
import dataclasses
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeVar

from absl import logging

from bert_tf.data.row_formats import CSV_DELIMITERS, has_names, kind_of, quoted, raw_rows, rows_at_beginning
from bert_tf.system.declare import check_values, setting
from bert_tf.system.messages import did_you_mean
from bert_tf.system.text_files import encoding_setting, exists
from bert_tf.text.characters import plain_name, trimmed

Column = int | str
Example = TypeVar("Example")

# What columns are usually called; in the first row of a file without header they are hardly examples.
_NAMES_OF_TEXTS = {
    "anchor", "content", "context", "document", "query", "question", "review", "sent1", "sentence", "sentence1", "text",
    "text_a", "title",
}  # fmt: skip
NAMES_OF_LABELS = {"category", "class", "gold_label", "label", "labels", "score", "sentiment", "target"}


def parse_csv_delimiter(value: str | None, flag: str = "--csv_delimiter") -> str | None:
    """The character that a --csv_delimiter means: itself, or tab for "tab" and "\\t"; None for None.

    Raises:
      ValueError: it is not one character, or one that has another meaning in CSV.
    """
    if value is None:
        return None
    delimiter = "\t" if value in ("tab", "\\t") else value
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise ValueError(f"{flag}={value!r} must be one character, such as ';' or '|', or the word tab.")
    return delimiter


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableSettings:
    """How files of rows are read.

    Raises:
      ValueError: see `declare.check_values`.
    """

    csv_delimiter: str | None = setting(
        None,
        "The field separator of .csv files: a character such as ';' or '|', or the word tab. If unset, it is detected "
        "from the header.",
        heading="How your files are read",
        check=parse_csv_delimiter,
    )
    encoding: str = encoding_setting("your files")
    id_column: str | None = setting(
        None,
        "Column of --test_file, by name or number, that names its rows; it goes into predictions.jsonl. A repeated id "
        "is told.",
    )
    copy_columns: Sequence[str] = setting(
        (),
        "Further columns of --test_file that go into predictions.jsonl, such as the text; all: all of them. One that "
        "is called like a part of a prediction gets input_ before its name.",
    )
    predictions_csv: bool = setting(False, "Also write the predictions as predictions.csv.")

    def __post_init__(self):
        check_values(self)

    def of_set(self, kind: str) -> "TableSettings":
        """How the file of a set is read: only of the "test" set columns go into predictions."""
        return self if kind == "test" else dataclasses.replace(self, id_column=None, copy_columns=())

    def check_predictions(self, do_predict: bool) -> None:
        """Refuses what is for predictions where there are none.

        Raises:
          ValueError: names the flag.
        """
        for name in () if do_predict else ("id_column", "copy_columns", "predictions_csv"):
            if getattr(self, name):
                raise ValueError(f"--{name} is for predictions: give --do_predict.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileSettings:
    """A user's files of rows."""

    train_file: str | None = setting(
        None,
        "Examples to train on: .csv, .tsv, .jsonl, .json or .parquet, or an address on the hub: "
        "hf://datasets/OWNER/NAME/FILE.",
        heading="Your files",
    )
    dev_file: str | None = setting(None, "Examples to evaluate on.")
    test_file: str | None = setting(
        None, "Examples to predict. They need no label or score; if they have some, the predictions are scored."
    )


USUAL_TABLE = TableSettings()


def read_rows(
    path: str, table: TableSettings | None = None, columns: Collection[str] | None = None
) -> Iterator[tuple[int, list[str] | dict]]:
    """Yields line number (from 1) and fields of each row: a list, or a dict for JSON and Parquet. Skips blank lines.

    If a CSV row spans several lines, the number is that of the first. Of Parquet it is the number of the row.

    Args:
      table: of a user's own file, whose cells mean what they look like: without blanks and byte order marks at their
        ends, names also without such marks inside. Rows of blank cells, and rows that repeat the header, are left out,
        with a warning. None: every character counts, as in the files of GLUE.
      columns: names that the header must have; empty: there is a header with unknown names; None: there may be no
        header, since columns are given by number.

    Raises:
      ValueError: the format is not supported, bytes are not in the encoding, CSV or JSON is malformed, a CSV row has
        more fields than the first one, the delimiter can't be detected, or one is given for a file that is not .csv.
        Names file and line.
    """
    if table is None:
        return raw_rows(path, None, columns, None)
    rows = raw_rows(path, parse_csv_delimiter(table.csv_delimiter), columns, table.encoding)
    return _as_they_look(rows, path, columns is not None)


def _as_they_look(
    rows: Iterator[tuple[int, list[str] | dict]], path: str, has_header: bool
) -> Iterator[tuple[int, list[str] | dict]]:
    """Rows of a user's file as a reader sees them; see `read_rows`."""
    header, blank, repeated = None, [], []
    for line, row in rows:
        if isinstance(row, dict):
            yield line, {plain_name(name): _trimmed(value) for name, value in row.items()}
            continue
        cells = [trimmed(cell) for cell in row]
        if not any(cells):
            blank.append(line)
        elif has_header and header is None:
            header, names = cells, [plain_name(cell) for cell in row]
            if repeated_names := {name for name in names if name and names.count(name) > 1}:
                raise ValueError(f"{path}, line {line}: the column {min(repeated_names)!r} appears twice.")
            yield line, names
        elif cells == header:
            repeated.append(line)
        else:
            yield line, cells
    for lines, what in ((blank, "have no text in any column"), (repeated, "repeat the header")):
        if lines:
            logging.warning("%s: left out rows that %s: %d, the first in line %d.", path, what, len(lines), lines[0])


class JoinedColumns:
    """Collects, of each row of a test file, the columns that go with its prediction; see `TableSettings`.

    Args:
      by_number: the columns of the rows are named "0", "1", ... and also "-1", "-2", ...
    """

    def __init__(self, path: str, table: TableSettings | None, by_number: bool):
        table = table or USUAL_TABLE
        self.path, self.by_number = path, by_number
        self.id_column = table.id_column and plain_name(table.id_column)
        self.names = list(map(plain_name, table.copy_columns))
        self._first_lines: dict[str, int] = {}
        self._repeated: list[tuple[object, int, int]] = []

    def of(self, row: Mapping, line: int) -> dict | None:
        """The chosen columns of a row; None if none are.

        Raises:
          ValueError: a column is not there, or the id is empty; names file and line.
        """
        if not (self.id_column or self.names):
            return None
        names = self.names
        if names == ["all"]:
            names = [name for name in row if not (self.by_number and name.startswith("-"))]
        flags = {self.id_column: " for --id_column"} if self.id_column else {}
        flags |= dict.fromkeys((name for name in names if name not in flags), " for --copy_columns")
        found = {name: field_of(row, name, self.path, line, flag) for name, flag in flags.items()}
        if self.id_column:
            own = found[self.id_column]
            if own is None or own == "":
                raise ValueError(f"{self.path}, line {line}: --id_column={self.id_column} is empty.")
            if (first := self._first_lines.setdefault(str(own), line)) != line:
                self._repeated.append((own, first, line))
        return found

    def warn_of_repeated_ids(self) -> None:
        """Tells, at the end of the file, how many rows have the id of an earlier one."""
        if self._repeated:
            logging.warning(
                "%s: rows with the --id_column of an earlier row: %d; the first is %r in lines %d and %d.",
                self.path, len(self._repeated), *self._repeated[0],
            )  # fmt: skip


def _trimmed(value):
    """A value of JSON, with `trimmed` strings."""
    if isinstance(value, list):
        return [_trimmed(one) for one in value]
    return trimmed(value) if isinstance(value, str) else value


def named_rows(path: str, names: Sequence[str] | None, table: TableSettings) -> Iterator[tuple[int, dict, dict | None]]:
    """Line number (from 1), fields by name, and `JoinedColumns` of each row of a user's file; see `read_rows`.

    Args:
      names: that the header must have; None: there is no header, and fields are named "0", "1", ... and also "-1",
        "-2", ...
    """
    by_number = names is None
    joined = JoinedColumns(path, table, by_number)
    header, first_line, width = None, 0, 0
    for line, row in read_rows(path, table, names):
        if isinstance(row, dict):
            if by_number:
                raise ValueError(f"{path}, line {line}: columns with names have no numbers; there are {quoted(row)}.")
            yield line, row, joined.of(row, line)
            continue
        if not first_line:
            first_line, width = line, len(row)
            if not by_number:
                header = row
                continue
        if len(row) != width:
            raise ValueError(
                f"{path}, line {line}: {len(row)} columns, but line {first_line} has {width}: every row must have as "
                "many as the others."
            )
        if header is not None:
            cells = dict(zip(header, row, strict=True))
        else:
            cells = {str(place): value for k, value in enumerate(row) for place in (k, k - width)}
        yield line, cells, joined.of(cells, line)
    joined.warn_of_repeated_ids()


def all_examples(path: str, examples: Iterator[Example]) -> list[Example]:
    """The examples of a file.

    Args:
      examples: made from the rows of the file, one from each.

    Raises:
      FileNotFoundError: there is no such file. ValueError: there is no example; names the file. Or as the reader does.
    """
    if not exists(path):
        raise FileNotFoundError(f"{path} does not exist.")
    found = list(examples)
    if not found:
        raise ValueError(f"{path} has no example.")
    return found


def beginning(path: str, examples: Iterator[Example]) -> tuple[list[Example], bool]:
    """The examples at a local file's beginning, and whether these are all: what is checked before a run starts.

    Args:
      examples: made from the rows of the file, one from each.

    Raises:
      ValueError: there is none; names the file. Or as the reader does.
    """
    count = rows_at_beginning(path)
    found = list(itertools.islice(examples, count))
    if not found and count is None:
        raise ValueError(f"{path} has no example.")
    return found, count is None


def field_of(row: list | dict, column: Column | None, path: str, line: int, flag: str = ""):
    """A row's value in a column; None for no column. Raises ValueError with file and line if the row lacks it."""
    if column is None:
        return None
    if isinstance(row, dict):
        if column not in row:
            has = [name for name in row if not name.startswith("-")]  # column numbers can also count from the end
            advice = other_delimiter(path, [row["0"]] if has == ["0"] else has) or did_you_mean(str(column), has)
            raise ValueError(f"{path}, line {line}: no {column!r}{flag}; found {quoted(has)}{advice}")
        return row[column]
    if not -len(row) <= column < len(row):
        advice = other_delimiter(path, row)
        raise ValueError(f"{path}, line {line}: {len(row)} columns, but column {column} (from 0) is needed{advice}")
    return row[column]


def other_delimiter(path: str, cells: Sequence) -> str:
    """The end of a message about a missing column, if a row's only cell seems to be several with another delimiter."""
    found = [name for mark, name in CSV_DELIMITERS.items() if len(cells) == 1 and mark in str(cells[0])]
    if not found or has_names(path):
        return ""
    if kind_of(path) == "csv":
        return f"; the line has the {found[0]}: give --csv_delimiter"
    return f"; the line has no tab, but the {found[0]}: name the file .csv, as others are separated by tabs"


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
    if is_name_of_text(cells.get("text_a", cells.get("context"))):
        logging.warning("%s, line %d is read as an example; %s.", path, line, _named_by_header(cells))


def is_name_of_text(cell) -> bool:
    """Whether a cell is what a column of texts is usually called."""
    return isinstance(cell, str) and cell.casefold() in _NAMES_OF_TEXTS


def text_of(value, path: str, line: int, column: Column) -> str:
    """The value, which must be a string; otherwise ValueError with file, line and column."""
    if not isinstance(value, str):
        form = '; each row must be an object (pandas: orient="records")' if isinstance(value, list | dict) else ""
        raise ValueError(f"{path}, line {line}: expected a string, found {value!r:.80} in {column!r}{form}")
    return value

"""Rows of TSV, CSV and JSON lines, and cells of named or numbered columns."""

import csv
from collections.abc import Collection, Iterator

from absl import logging

from bert_tf.system.text_files import parse_json, read_text_lines

Column = int | str

CSV_DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "vertical bar"}
_NOT_READ = ("parquet", "xlsx", "xls", "arrow", "npz", "gz", "zip")
_JSON_LINES = ("jsonl", "json", "ndjson")


def read_rows(
    path: str, csv_delimiter: str | None = None, columns: Collection[str] | None = None
) -> Iterator[tuple[int, list[str] | dict]]:
    """Line number (from 1) and fields of each row: a list, or a dict for JSON lines. Blank lines are left out.

    The line of a CSV row with newlines in its fields is its first one.

    Args:
      csv_delimiter: what stands between the fields of a .csv file (--csv_delimiter). None: `find_csv_delimiter`.
      columns: names that the header must have; empty: there is a header, of which nothing is known; None: there may be
        none, as columns are given by number.

    Raises:
      ValueError: a format that is not read, bytes that are not UTF-8, bad CSV or JSON; or a delimiter that can't be
        told, or is given for a file that is not .csv. Names file and line.
    """
    kind = _kind(path)
    if kind in _NOT_READ:
        raise ValueError(
            f"{path}: .{kind} is not read. Known are .tsv, .csv and .jsonl; all others are treated as TSV."
        )
    if csv_delimiter and kind != "csv":
        raise ValueError(f"{path}: --csv_delimiter is for .csv files; a .{kind} file is not one.")
    if kind in _JSON_LINES:
        for number, line in enumerate(_lines(path), start=1):
            if line.strip():
                yield number, _json_object(line, path, number)
    elif kind == "csv":
        yield from _csv_rows(path, csv_delimiter or find_csv_delimiter(path, columns))
    else:
        blank = 0
        for number, line in enumerate(_lines(path), start=1):
            if line:
                yield number, line.split("\t")  # quotes mean nothing: GLUE has unbalanced ones
            blank += not line
        if blank:
            logging.info("%s: left out %d blank lines.", path, blank)


def parse_csv_delimiter(value: str | None) -> str | None:
    """The character that a --csv_delimiter means: itself, or tab for "tab" and "\\t"; None for None.

    Raises:
      ValueError: it is not one character, or one that CSV gives another meaning.
    """
    if value is None:
        return None
    delimiter = "\t" if value in ("tab", "\\t") else value
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise ValueError(f"--csv_delimiter={value!r} must be one character, such as ';' or '|', or the word tab.")
    return delimiter


def find_csv_delimiter(path: str, columns: Collection[str] | None) -> str:
    """The delimiter of a .csv file, if its first row leaves no doubt; one other than the comma is logged.

    Args:
      path, columns: see `read_rows`.

    Raises:
      ValueError: the comma gives a single column, and it is not clear which other character is meant; or the named
        columns are there under several. Says what was tried.
    """
    first = {delimiter: _first_row(path, delimiter) for delimiter in CSV_DELIMITERS}
    cut = [delimiter for delimiter, fields in first.items() if len(fields) > 1]
    found = [delimiter for delimiter in cut if columns and set(columns) <= set(first[delimiter])]
    if not cut or (not found and "," in cut):
        return ","  # a single column; or one of those wanted is missing, which the caller finds out
    if columns is not None and not columns:
        found = cut
    if len(found) == 1:
        if found != [","]:
            logging.info("%s: the delimiter is the %s, by the header.", path, CSV_DELIMITERS[found[0]])
        return found[0]
    tried = "; ".join(f"{CSV_DELIMITERS[delimiter]}: {quoted(fields)}" for delimiter, fields in first.items())
    raise ValueError(f"{path}, line 1: it is not clear what the delimiter is: give --csv_delimiter. Tried: {tried}.")


def _first_row(path: str, delimiter: str) -> list[str]:
    """The first row under a delimiter, which may be wrong; nothing if there is none."""
    lines = (line + "\n" for line in _lines(path))
    try:
        return next(filter(None, csv.reader(lines, delimiter=delimiter)), [])
    except csv.Error:
        return []


def _kind(path: str) -> str:
    return path.rsplit(".", 1)[-1].lower()


def _lines(path: str) -> Iterator[str]:
    for number, line in enumerate(read_text_lines(path)):
        yield line.removeprefix("\ufeff") if number == 0 else line


def _csv_rows(path: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((line + "\n" for line in _lines(path)), delimiter=delimiter, strict=True)
    first = 1
    try:
        for row in reader:
            if row:
                yield first, row
            first = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{path}, line {first}: not CSV: {error}") from None


def _json_object(line: str, path: str, number: int) -> dict:
    value = parse_json(line, path, number)
    if not isinstance(value, dict):
        raise ValueError(f"{path}, line {number}: a JSON object is expected, found {type(value).__name__}")
    return value


def quoted(names) -> str:
    """Names as an error lists them."""
    return ", ".join(map(repr, names))


def field_of(row: list | dict, column: Column | None, path: str, line: int):
    """What a row has in a column, None for no column. Raises ValueError, naming file and line, where it lacks it."""
    if column is None:
        return None
    if isinstance(row, dict):
        if column not in row:
            has = [
                name for name in row if not name.startswith("-")
            ]  # columns by number can be counted from the end, too
            raise ValueError(f"{path}, line {line}: no {column!r}; there is {quoted(has)}")
        return row[column]
    if not -len(row) <= column < len(row):
        raise ValueError(f"{path}, line {line}: {len(row)} columns, but column {column} (from 0) is needed")
    return row[column]


def text_of(value, path: str, line: int) -> str:
    """The value, which must be a text: ValueError names file and line."""
    if not isinstance(value, str):
        raise ValueError(f"{path}, line {line}: a text is expected, found {value!r}")
    return value

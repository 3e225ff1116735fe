"""Reads rows of TSV, CSV and JSON lines files, and cells of named or numbered columns."""

import csv
import functools
from collections.abc import Collection, Iterator, Sequence

from absl import logging

from bert_tf.system.text_files import parse_json, read_text_lines

Column = int | str

CSV_DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "vertical bar"}
_NOT_READ = ("parquet", "xlsx", "xls", "arrow", "npz", "gz", "zip")
_JSON_LINES = ("jsonl", "json", "ndjson")


def read_rows(
    path: str, csv_delimiter: str | None = None, columns: Collection[str] | None = None
) -> Iterator[tuple[int, list[str] | dict]]:
    """Yields line number (from 1) and fields of each row: a list, or a dict for JSON lines. Skips blank lines.

    If a CSV row spans several lines, the number is that of the first.

    Args:
      csv_delimiter: the field separator of a .csv file (--csv_delimiter). None: `find_csv_delimiter`.
      columns: names that the header must have; empty: there is a header with unknown names; None: there may be no
        header, since columns are given by number.

    Raises:
      ValueError: the format is not supported, bytes are not UTF-8, CSV or JSON is malformed, a CSV row has more fields
        than the first one, the delimiter can't be detected, or one is given for a file that is not .csv. Names file
        and line.
    """
    kind = _kind(path)
    if kind in _NOT_READ:
        raise ValueError(f"{path}: .{kind} is not supported. Use .tsv, .csv or .jsonl; other names are read as TSV.")
    if csv_delimiter and kind != "csv":
        raise ValueError(f"{path}: --csv_delimiter is for .csv files, not for .{kind}.")
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
                yield number, line.split("\t")  # quotes have no meaning: GLUE has unbalanced ones
            blank += not line
        if blank:
            logging.info("%s: skipped %d blank lines.", path, blank)


def named_rows(path: str, names: Sequence[str] | None, csv_delimiter: str | None) -> Iterator[tuple[int, dict]]:
    """Line number (from 1) and fields by name of each row.

    Args:
      names: that the header must have; None: there is no header, and fields are named "0", "1", ... and also "-1",
        "-2", ...
    """
    by_number = names is None
    header, first_line, width = None, 0, 0
    for line, row in read_rows(path, csv_delimiter, names):
        if isinstance(row, dict):
            if by_number:
                raise ValueError(f"{path}, line {line}: JSON lines have no numbered columns; there are {quoted(row)}.")
            yield line, row
            continue
        if not first_line:
            first_line, width = line, len(row)
            if not by_number:
                header = row
                repeated = {name for name in header if name and header.count(name) > 1}
                if repeated:
                    raise ValueError(f"{path}, line {line}: the column {min(repeated)!r} appears twice.")
                continue
        if len(row) != width:
            raise ValueError(
                f"{path}, line {line}: {len(row)} columns, but line {first_line} has {width}: every row must have as "
                "many as the others."
            )
        if header is not None:
            yield line, dict(zip(header, row, strict=True))
        else:
            yield line, {str(place): value for k, value in enumerate(row) for place in (k, k - width)}


def parse_csv_delimiter(value: str | None) -> str | None:
    """The character that a --csv_delimiter means: itself, or tab for "tab" and "\\t"; None for None.

    Raises:
      ValueError: it is not one character, or one that has another meaning in CSV.
    """
    if value is None:
        return None
    delimiter = "\t" if value in ("tab", "\\t") else value
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise ValueError(f"--csv_delimiter={value!r} must be one character, such as ';' or '|', or the word tab.")
    return delimiter


def find_csv_delimiter(path: str, columns: Collection[str] | None) -> str:
    """Detects the delimiter of a .csv file from its first row; one other than the comma is logged, once a file.

    Args:
      path, columns: see `read_rows`.

    Raises:
      ValueError: it is ambiguous: the comma gives a single column and no other delimiter is certain, or several
        delimiters give the named columns. Says what was tried.
    """
    first = {delimiter: _first_row(path, delimiter) for delimiter in CSV_DELIMITERS}
    cut = [delimiter for delimiter, fields in first.items() if len(fields) > 1]
    found = [delimiter for delimiter in cut if columns and set(columns) <= set(first[delimiter])]
    if not cut or (not found and "," in cut):
        return ","  # a single column; or a required column is missing, which the caller reports
    if columns is not None and not found:
        found = cut
    if len(found) == 1:
        if found != [","]:
            _log_delimiter(path, CSV_DELIMITERS[found[0]])
        return found[0]
    tried = "; ".join(f"{CSV_DELIMITERS[delimiter]}: {quoted(fields)}" for delimiter, fields in first.items())
    raise ValueError(f"{path}, line 1: the delimiter is ambiguous: give --csv_delimiter. Tried: {tried}.")


@functools.cache
def _log_delimiter(path: str, name: str) -> None:
    logging.info("%s: the delimiter is the %s, according to the header.", path, name)


def _first_row(path: str, delimiter: str) -> list[str]:
    """The first row as split by a delimiter, which may be the wrong one; empty if there is none."""
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
    first, header, width = 1, 0, 0
    try:
        for row in reader:
            if row:
                header, width = header or first, width or len(row)
                if len(row) > width:  # read on, it would give a text its first half and a class the second
                    raise ValueError(
                        f"{path}, line {first}: {len(row)} columns, but line {header} has {width}. A field that "
                        f"contains the delimiter {delimiter!r} must be in double quotes."
                    )
                yield first, row
            first = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{path}, line {first}: not CSV: {error}") from None


def _json_object(line: str, path: str, number: int) -> dict:
    value = parse_json(line, path, number)
    if not isinstance(value, dict):
        raise ValueError(f"{path}, line {number}: expected a JSON object, found {type(value).__name__}")
    return value


def quoted(names) -> str:
    """Names as listed in error messages."""
    return ", ".join(map(repr, names))


def field_of(row: list | dict, column: Column | None, path: str, line: int):
    """A row's value in a column; None for no column. Raises ValueError with file and line if the row lacks it."""
    if column is None:
        return None
    if isinstance(row, dict):
        if column not in row:
            has = [name for name in row if not name.startswith("-")]  # column numbers can also count from the end
            raise ValueError(f"{path}, line {line}: no {column!r}; found {quoted(has)}")
        return row[column]
    if not -len(row) <= column < len(row):
        raise ValueError(f"{path}, line {line}: {len(row)} columns, but column {column} (from 0) is needed")
    return row[column]


def text_of(value, path: str, line: int) -> str:
    """The value, which must be a string; otherwise ValueError with file and line."""
    if not isinstance(value, str):
        raise ValueError(f"{path}, line {line}: expected a string, found {value!r}")
    return value

"""The rows of files of one format each: CSV, TSV, JSON and Parquet."""

import csv
import itertools
import json
import re
from collections.abc import Collection, Iterator

from absl import logging

from bert_tf.system.messages import is_first
from bert_tf.system.text_files import UTF_8, lines_at_beginning, parse_json, parts_of, read_text_lines
from bert_tf.text.characters import plain_name

CSV_DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "vertical bar"}
_NOT_READ = ("xlsx", "xls", "arrow", "npz", "gz", "zip")
_JSON_LINES = ("jsonl", "json", "ndjson")
_BETWEEN = re.compile(r"[\s,]*")  # of the values of a JSON array
_CHECKED = 10_000  # rows of Parquet
_LONGEST_CELL = (1 << 31) - 1  # characters; by default Python's reader takes 131,072


def raw_rows(
    path: str, csv_delimiter: str | None, columns: Collection[str] | None, encoding: str | None
) -> Iterator[tuple[int, list[str] | dict]]:
    """Line number (from 1; of Parquet that of the row) and fields of each row; see `tables.read_rows`."""
    kind = kind_of(path)
    if kind in _NOT_READ:
        advice = "Save it as CSV" if kind.startswith("xls") else "Use .tsv, .csv, .jsonl, .json or .parquet"
        raise ValueError(f"{path}: .{kind} is not supported. {advice}; files with other names are read as TSV.")
    if csv_delimiter and kind != "csv":
        raise ValueError(f"{path}: --csv_delimiter is for .csv files, not for .{kind}.")
    if kind == "parquet":
        from bert_tf.data import parquet

        rows = itertools.chain.from_iterable(map(parquet.rows, parts_of(path)))
        yield from ((number, _json_row(row, path, number)) for number, row in enumerate(rows, start=1))
    elif kind in _JSON_LINES:
        yield from _json_rows(_lines(path, encoding), path)
    elif kind == "csv":
        yield from _csv_rows(path, csv_delimiter or find_csv_delimiter(path, columns, encoding), encoding)
    else:
        blank = 0
        for number, line in enumerate(_lines(path, encoding), start=1):
            if line:
                yield number, line.split("\t")  # quotes have no meaning: GLUE has unbalanced ones
            blank += not line
        if blank:
            logging.info("%s: skipped %d blank lines.", path, blank)


def find_csv_delimiter(path: str, columns: Collection[str] | None, encoding: str | None = UTF_8) -> str:
    """Detects the delimiter of a .csv file from its first row; one other than the comma is logged, once a file.

    Args:
      path, columns, encoding: see `read_rows`.

    Raises:
      ValueError: it is ambiguous: the comma gives a single column and no other delimiter is certain, or several
        delimiters give the named columns. Says what was tried.
    """
    first = {delimiter: _first_row(path, delimiter, encoding) for delimiter in CSV_DELIMITERS}
    cut = [delimiter for delimiter, fields in first.items() if len(fields) > 1]
    found = [delimiter for delimiter in cut if columns and set(columns) <= set(first[delimiter])]
    if not cut or (not found and "," in cut):
        return ","  # a single column; or a required column is missing, which the caller reports
    if columns is not None and not found:
        found = cut
    if len(found) == 1:
        if found != [","] and is_first("delimiter", path, found[0]):
            logging.info("%s: the delimiter is the %s, according to the header.", path, CSV_DELIMITERS[found[0]])
        return found[0]
    tried = "; ".join(f"{CSV_DELIMITERS[delimiter]}: {quoted(fields)}" for delimiter, fields in first.items())
    raise ValueError(f"{path}, line 1: the delimiter is ambiguous: give --csv_delimiter. Tried: {tried}.")


def _first_row(path: str, delimiter: str, encoding: str | None) -> list[str]:
    """The first row as split by a delimiter, which may be the wrong one; empty if there is none."""
    lines = (line + "\n" for line in _lines(path, encoding))
    try:
        row = next(filter(None, csv.reader(lines, delimiter=delimiter)), [])
    except csv.Error:
        return []
    return [plain_name(cell) for cell in row]


def has_names(path: str) -> bool:
    """Whether each row of a file has the names of its columns, so that there are no numbers of columns."""
    return kind_of(path) in (*_JSON_LINES, "parquet")


def rows_at_beginning(path: str) -> int | None:
    """How many rows of a local file are checked before a run starts; None if that is all of it.

    Of text it is how many lines begin in its first megabyte.
    """
    if kind_of(path) != "parquet":
        return lines_at_beginning(path)
    from bert_tf.data import parquet

    return _CHECKED if sum(map(parquet.count, parts_of(path))) > _CHECKED else None


def kind_of(path: str) -> str:
    """The end of a file's name, which says how it is read, in lower case."""
    return path.rsplit(".", 1)[-1].lower()


def _lines(path: str, encoding: str | None) -> Iterator[str]:
    for number, line in enumerate(read_text_lines(path, encoding=encoding)):
        yield line.removeprefix("\ufeff") if number == 0 else line


def _csv_rows(path: str, delimiter: str, encoding: str | None) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(_LONGEST_CELL)
    # Files that were joined have byte order marks inside, which must not hide a quotation mark.
    opened = was_opened = None  # the line of the quotation mark that is not closed so far, and before the last line

    def lines() -> Iterator[str]:
        nonlocal opened, was_opened
        for number, line in enumerate(_lines(path, encoding), start=1):
            was_opened = opened
            if marks := line.replace('""', "").count('"'):
                opened = number if (marks % 2 == 1) != bool(opened) else None
            yield line.lstrip("\ufeff") + "\n"
        was_opened = opened

    reader = csv.reader(lines(), delimiter=delimiter, strict=True)
    first, header, width = 1, 0, 0
    try:
        for row in reader:
            if row and (len(row) > 1 or row[0].strip()):
                header, width = header or first, width or len(row)
                if len(row) > width:  # read on, it would give a text its first half and a class the second
                    raise ValueError(
                        f"{path}, line {first}: {len(row)} columns, but line {header} has {width}. A field that "
                        f"contains the delimiter {delimiter!r} must be in double quotes."
                    )
                yield first, row
            first = reader.line_num + 1
    except csv.Error as error:
        if was_opened is None:
            raise ValueError(f"{path}, line {first}: not CSV: {error}; write a quotation mark inside twice.") from None
        raise ValueError(
            f"{path}, line {was_opened}: not CSV: the quotation mark that opens here is not closed; one that "
            "belongs to the text is written twice."
        ) from None


def _json_rows(lines: Iterator[str], path: str) -> Iterator[tuple[int, dict]]:
    """Line number (from 1, of the row's first line) and values of each row.

    A value inside of an object has a name of both: {"labels": {"label": 4.9}} also has "labels.label".

    Args:
      lines: of the file, without line breaks. path: its name in errors.

    Raises:
      ValueError: not JSON, or a row is not an object; names file and line.
    """
    stripped = (line.lstrip("\ufeff").strip() for line in lines)
    numbered = ((number, line) for number, line in enumerate(stripped, start=1) if line)
    first = next(numbered, (1, ""))
    if first[1].startswith("["):
        yield from _rows_of_array("\n".join([first[1], *lines]), first[0], path)
        return
    for number, line in itertools.chain([first] if first[1] else [], numbered):
        yield number, _json_row(parse_json(line, path, number), path, number)


def _rows_of_array(text: str, line: int, path: str) -> Iterator[tuple[int, dict]]:
    """The objects of an array. line: that of the text's beginning."""
    values = parse_json("\n" * (line - 1) + text, path)  # counts from the file's first line
    decoder, place, counted = json.JSONDecoder(), text.index("[") + 1, 0
    for value in values:
        place = _BETWEEN.match(text, place).end()
        line, counted = line + text.count("\n", counted, place), place
        yield line, _json_row(value, path, line)
        place = decoder.raw_decode(text, place)[1]


def _json_row(value, path: str, line: int) -> dict:
    if not isinstance(value, dict):
        raise ValueError(f"{path}, line {line}: expected a JSON object, found {type(value).__name__}")
    return value | dict(_inner_values(value, ""))


def _inner_values(value: dict, prefix: str) -> Iterator[tuple[str, object]]:
    for name, inner in value.items():
        if isinstance(inner, dict):
            yield from _inner_values(inner, f"{prefix}{name}.")
        elif prefix:
            yield prefix + name, inner


def quoted(names) -> str:
    """Names as listed in error messages."""
    return ", ".join(map(repr, names))

"""Reads rows of TSV, CSV, JSON and Parquet files, and cells of named or numbered columns."""

import contextlib
import csv
import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from typing import TypeVar

from absl import logging

from bert_tf.system import text_files
from bert_tf.system.checks import check_extra
from bert_tf.system.declare import changeable_setting, check_values, setting
from bert_tf.system.messages import abbreviated_list, did_you_mean, is_first
from bert_tf.system.storage import is_remote
from bert_tf.text.characters import plain_name, trimmed

Column = int | str
Rows = Iterator[tuple[int, list[str] | dict]]  # line numbers and fields
Example = TypeVar("Example")

CSV_DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "vertical bar"}
_EXCEL_DELIMITER = re.compile(r'"?sep=([^"])\1*"?\s*', re.IGNORECASE)  # what the first line may be for Excel
_JSON_LINES = ("jsonl", "json", "ndjson")
INTEGER = re.compile(r"-?[0-9]+")  # a column may have a number instead of a name
_BETWEEN = re.compile(r"[\s,]*")  # of the values of a JSON array
# What columns of texts are usually called; in the first row of a file without header they are hardly examples.
NAMES_OF_TEXTS = {
    "anchor", "content", "context", "document", "query", "question", "review", "sent1", "sentence", "sentence1", "text",
    "text_a", "title",
}  # fmt: skip


def parse_csv_delimiter(value: str | None, flag: str = "--csv_delimiter") -> str | None:
    """The character that a --csv_delimiter means: itself, or tab for "tab" and "\\t"; None for None."""
    delimiter = "\t" if value in ("tab", "\\t") else value
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n'):
        raise ValueError(f"{flag}={value!r} must be one character, such as ';' or '|', or the word tab.")
    return delimiter


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableSettings:
    """A user's files of rows, and how they are read."""

    train_file: str | None = setting(
        None,
        "Examples to train on: .csv, .tsv, .jsonl, .json or .parquet, or an address on the hub: "
        "hf://datasets/OWNER/NAME/FILE.",
        heading="Your files",
    )
    dev_file: str | None = setting(None, "Examples to evaluate on.")
    test_file: str | None = changeable_setting(
        None, "Examples to predict. They need no label or score; if they have some, the predictions are scored."
    )
    csv_delimiter: str | None = setting(
        None,
        "The field separator of .csv files: a character such as ';' or '|', or the word tab. If unset, by the header.",
        heading="How your files are read",
        check=parse_csv_delimiter,
    )
    encoding: str = text_files.encoding_setting("your files")
    skip_short_rows: bool = setting(False, "Leave out, and count, rows that lack columns; not in --test_file.")
    copy_columns: Sequence[str] = changeable_setting(
        (),
        "Columns of --test_file, by name or number, that go into predictions.jsonl, such as an id and the text; all: "
        "all of them. A column named like a field of a prediction is prefixed with input_.",
    )

    def __post_init__(self):
        check_values(self)

    def of_set(self, kind: str) -> "TableSettings":
        """How the file of a set is read: only of the "test" set columns go into predictions."""
        unused = {"skip_short_rows": False} if kind == "test" else {"copy_columns": ()}
        return dataclasses.replace(self, **unused)


USUAL_TABLE = TableSettings()


def read_rows(path: str, table: TableSettings | None = None, columns: Collection[str] | None = None) -> Rows:
    """Yields (first) line number from 1, of Parquet that of the row, and fields of each row that is not blank.

    Fields are a list, or a dict for JSON and Parquet.

    table: of a user's own file, whose cells are trimmed. Rows of blank cells, and rows that repeat the header, are left
      out, with a warning. None: every character counts, as in the files of GLUE.
    columns: names that the header must have; empty: there is a header with unknown names; None: there may be no header,
      since columns are given by number.
    """
    if table is None:
        return raw_rows(path, None, columns, None)
    rows = raw_rows(path, parse_csv_delimiter(table.csv_delimiter), columns, table.encoding)
    return _cleaned_rows(rows, path, columns is not None, table.skip_short_rows)


def _cleaned_rows(rows: Rows, path: str, has_header: bool, skips: bool) -> Rows:
    header, first, width, left_out = None, 0, 0, {}
    for line, row in rows:
        if isinstance(row, dict):
            yield line, {plain_name(name): _trimmed(value) for name, value in row.items()}
            continue
        cells = [trimmed(cell) for cell in row]
        if not any(cells):
            left_out.setdefault("have no text in any column", []).append(line)
            continue
        first, width = (first, width) if first else (line, len(cells))
        if line == first and not has_header and NAMES_OF_TEXTS.intersection(map(str.casefold, cells)):
            logging.warning("%s, line %d is read as a row; if it is a header, name columns, not numbers.", path, line)
        if len(cells) > width:  # read on, it would give a text its first half and a class the second
            advice = "A field that contains the delimiter must be in double quotes, in a .csv file."
            raise ValueError(f"{path}, line {line}: {len(cells)} columns, but line {first} has {width}. {advice}")
        if skips and len(cells) < width:
            left_out.setdefault(f"have fewer than {width} columns", []).append(line)
        elif has_header and header is None:
            header, names = cells, [plain_name(cell) for cell in row]
            if repeated_names := {name for name in names if name and names.count(name) > 1}:
                raise ValueError(f"{path}, line {line}: the column {min(repeated_names)!r} appears twice.")
            yield line, names
        elif cells == header:
            left_out.setdefault("repeat the header", []).append(line)
        else:
            yield line, cells
    warn_of_left_out(path, left_out)


def warn_of_left_out(path: str, rows: Mapping[str, Sequence[int]]) -> None:
    for what, lines in rows.items():
        logging.warning("%s: left out rows that %s: %d, the first in line %d.", path, what, len(lines), lines[0])


def copied_columns(row: dict, table: TableSettings | None, path: str, line: int, by_number: bool) -> dict | None:
    """The --copy_columns of a row, if any. by_number: its columns are named "0", "1", ... and also "-1", "-2", ..."""
    names = list(map(plain_name, table.copy_columns)) if table else []
    if names == ["all"]:
        names = [name for name in row if not (by_number and name.startswith("-"))]
    return {name: field_of(row, name, path, line, " for --copy_columns") for name in names} or None


def _trimmed(value):
    if isinstance(value, list):
        return [_trimmed(item) for item in value]
    return trimmed(value) if isinstance(value, str) else value


def named_rows(path: str, names: Sequence[str], table: TableSettings) -> Iterator[tuple[int, dict, dict | None]]:
    """Line number (from 1), fields by name, and `copied_columns` of each row of a user's file; see `read_rows`.

    names: that the header must have. If the first is a number, there is no header, and fields are named "0", "1", ...
    and also "-1", "-2", ...
    """
    by_number = bool(names and INTEGER.fullmatch(names[0]))
    header, first_line, width = None, 0, 0
    for line, row in read_rows(path, table, None if by_number else names):
        if isinstance(row, dict):
            if by_number:
                raise ValueError(f"{path}, line {line}: columns with names have no numbers; there are {quoted(row)}.")
        elif not first_line:
            first_line, width = line, len(row)
            if not by_number:
                header = row
                continue
        elif len(row) != width:
            differs = f"{len(row)} columns, but line {first_line} has {width}"
            raise ValueError(f"{path}, line {line}: {differs}. See --skip_short_rows.")
        cells = by_name(row, header)
        yield line, cells, copied_columns(cells, table, path, line, by_number)


def by_name(row: list | dict, header: Sequence[str] | None) -> dict:
    """The cells of a row by names of columns, or else by their numbers, from 0 and from the end."""
    if isinstance(row, dict):
        return row
    if header is not None:
        return dict(zip(header, row, strict=False))
    return {str(position): cell for k, cell in enumerate(row) for position in (k, k - len(row))}


def all_examples(path: str, examples: Iterator[Example]) -> list[Example]:
    listed = list(examples)
    if not listed:
        raise ValueError(f"{path} has no example.")
    return listed


def field_of(row: dict, column: Column | None, path: str, line: int, flag: str = ""):
    """The value of a column in a row `by_name`."""
    if column is None:
        return None
    if (name := str(column)) not in row:
        has = [name for name in row if not name.startswith("-")]  # column numbers can also count from the end
        advice = did_you_mean(name, has)
        if of_objects := [name for name in has if str(row[name])[:2] == "[{"]:
            advice = f"; if {of_objects[0]!r} has the rows, the file must be that list alone"
        raise ValueError(f"{path}, line {line}: no {name!r}{flag}; found {quoted(has)}{advice}")
    return row[name]


def text_of(value, path: str, line: int, column: Column) -> str:
    if not isinstance(value, str):
        form = '; each row must be an object (pandas: orient="records")' if isinstance(value, list | dict) else ""
        raise ValueError(f"{path}, line {line}: expected a string, found {value!r:.80} in {column!r}{form}")
    return value


# --- the rows of files of one format each: CSV, TSV, JSON and Parquet -------------------------------------------------


def raw_rows(path: str, csv_delimiter: str | None, columns: Collection[str] | None, encoding: str | None) -> Rows:
    """As `read_rows`, but of cells as they are in the file."""
    kind = extension_of(path)
    if csv_delimiter and kind != "csv":
        raise ValueError(f"{path}: --csv_delimiter is for .csv files, not for .{kind}.")
    if kind == "csv":
        yield from _csv_rows(path, csv_delimiter or find_csv_delimiter(path, columns, encoding), encoding)
    elif kind == "parquet":
        rows = itertools.chain.from_iterable(map(parquet_rows, text_files.matching_files(path)))
        yield from ((number, _json_row(row, path, number)) for number, row in enumerate(rows, start=1))
    elif kind in _JSON_LINES:
        lines = _lines(path, encoding)
        stripped = (line.lstrip("\ufeff").strip() for line in lines)
        numbered = ((number, line) for number, line in enumerate(stripped, start=1) if line)
        start, first = next(numbered, (1, ""))
        if not first or (first.startswith("{") and first.endswith("}")):  # a row a line
            rows = itertools.chain([(start, first)] if first else [], numbered)
            values = ((number, text_files.parse_json(line, path, number)) for number, line in rows)
        else:  # messages count from the file's first line
            text = "\n" * (start - 1) + "\n".join([first, *lines]).rstrip()
            if first.startswith("["):
                text_files.parse_json(text, path)
            values = _values_in(text, start - 1, path)
        yield from ((number, _json_row(value, path, number)) for number, value in values)
    else:
        blank = 0
        for number, line in enumerate(_lines(path, encoding), start=1):
            if line:
                yield number, line.split("\t")  # quotes have no meaning: GLUE has unbalanced ones
            blank += not line
        if blank:
            logging.info("%s: skipped %d blank lines.", path, blank)


def find_csv_delimiter(path: str, columns: Collection[str] | None, encoding: str | None) -> str:
    """Detects the delimiter of a .csv file from its first row; one other than the comma is logged, once a file."""
    if excel := _EXCEL_DELIMITER.fullmatch(next(_lines(path, encoding), "")):
        return excel[1]
    first = {}
    for delimiter in CSV_DELIMITERS:
        with contextlib.suppress(csv.Error):
            rows = csv.reader((line + "\n" for line in _lines(path, encoding)), delimiter=delimiter)
            first[delimiter] = [*map(plain_name, next(filter(None, rows), []))]
    cut = [delimiter for delimiter, fields in first.items() if len(fields) > 1]
    fitting = [delimiter for delimiter in cut if columns and set(columns) <= set(first[delimiter])]
    if not cut or (not fitting and "," in cut):
        return ","  # a single column; or a required column is missing, which the caller reports
    if columns is not None and not fitting:
        fitting = cut
    if len(fitting) == 1:
        if fitting != [","] and is_first("delimiter", path, fitting[0]):
            logging.info("%s: the delimiter is the %s, according to the header.", path, CSV_DELIMITERS[fitting[0]])
        return fitting[0]
    raise ValueError(f"{path}, line 1: the delimiter is ambiguous: give --csv_delimiter.")


def has_names(path: str) -> bool:
    return extension_of(path) in (*_JSON_LINES, "parquet")


def extension_of(path: str) -> str:
    return path.removesuffix("?download=true").rsplit(".", 1)[-1].lower()


def _lines(path: str, encoding: str | None) -> Iterator[str]:
    for number, line in enumerate(text_files.read_text_lines(path, encoding=encoding)):
        yield line.removeprefix("\ufeff") if number == 0 else line


def _csv_rows(path: str, delimiter: str, encoding: str | None) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit((1 << 31) - 1)  # characters; by default 131,072
    # Files that were joined have byte order marks inside, which must not hide a quotation mark.
    lines = (line.lstrip("\ufeff") + "\n" for line in _lines(path, encoding))
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    first = 1
    try:
        for row in reader:
            is_excel = first == 1 and _EXCEL_DELIMITER.fullmatch(delimiter.join(row))
            if row and (len(row) > 1 or row[0].strip()) and not is_excel:
                yield first, row
            first = reader.line_num + 1
    except csv.Error as error:
        advice = "a quotation mark that belongs to the text is written twice"
        if "new-line character" in str(error):
            error, advice = "a carriage return outside of quotation marks", "a line ends with a newline"
        raise ValueError(f"{path}, line {first}: not CSV: {error}; {advice}.") from None


def _values_in(text: str, at: int, path: str) -> Iterator[tuple[int, object]]:
    """The values of an array, or one after the other, on any number of lines, and the line of each. at: their start."""
    end, decoder, line, counted = len(text), json.JSONDecoder(), 1, 0
    if text[at] == "[":
        at, end = at + 1, end - 1
    while (at := next(_BETWEEN.finditer(text, at)).end()) < end:
        line, counted = line + text.count("\n", counted, at), at
        try:
            value, at = decoder.raw_decode(text, at)
        except (RecursionError, ValueError) as error:
            raise ValueError(f"{path}, line {line}: not JSON: {error}") from None
        yield line, value


def _json_row(value, path: str, line: int) -> dict:
    """{"labels": {"label": 4.9}} also has "labels.label"."""
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
    return ", ".join(map(repr, names))


# --- Parquet, with the names of classes that `datasets` writes --------------------------------------------------------

_MOST_PARQUET_ROWS = 1_000_000  # rows, of a file with fewer bytes than rows: it would fill the memory
_OF_JSON = re.compile("u?int|float|double|halffloat|bool|large_string|string|null")


def parquet_rows(path: str) -> Iterator[dict]:
    """The rows by the names of their columns, in the values of JSON; dates and the like are strings.

    Columns of bytes, such as images, are left out. A number that `datasets` takes for a class (ClassLabel) becomes the
    name that the file's metadata give it, and -1, which stands for none, becomes None.
    """
    with _opened_parquet(path) as file, text_files.naming_file(path):
        schema = file.schema_arrow
        kinds = {field.name: list(map(str, _leaves(field.type))) for field in schema}
        left_out = [name for name, leaves in kinds.items() if any("binary" in leaf for leaf in leaves)]
        if left_out and is_first("bytes", path):
            logging.info("%s: left out columns of bytes: %s.", path, abbreviated_list(left_out))
        changed = {name: str for name, leaves in kinds.items() if not all(map(_OF_JSON.match, leaves))}
        changed |= _named_classes(schema, path)
        columns = [name for name in kinds if name not in left_out] if left_out else None
        for batch in file.iter_batches(1000, columns=columns):
            for row in batch.to_pylist():
                for name, change in changed.items():
                    if row.get(name) is not None:
                        row[name] = change(row[name])
                yield row


@contextlib.contextmanager
def _opened_parquet(path: str) -> Generator:
    """The file for pyarrow, whose errors become a ValueError that names it."""
    check_extra("parquet", path)
    import pyarrow
    from pyarrow import parquet

    try:
        remote = pyarrow.BufferReader(text_files.read_bytes(path)) if is_remote(path) else None
        source = remote or pyarrow.OSFile(text_files.local_file(path))
        with parquet.ParquetFile(source) as file:
            if (count := file.metadata.num_rows) > max(_MOST_PARQUET_ROWS, source.size()):
                raise ValueError(f"{path} has {count:,} rows in {source.size():,} bytes: no texts are that much alike.")
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path} can't be read as Parquet: {' '.join(str(error).split()):.200}") from None


def _leaves(kind) -> list:
    kind = getattr(kind, "value_type", kind) if not kind.num_fields else kind  # of a dictionary
    return [leaf for k in range(kind.num_fields) for leaf in _leaves(kind.field(k).type)] or [kind]


def _named_classes(schema, path: str) -> dict[str, Callable]:
    """The columns of classes, and what turns their numbers into names."""
    text = (schema.metadata or {}).get(b"huggingface")
    features = text_files.parse_json(text.decode(), path)["info"]["features"] if text else {}
    namers = {}
    for column, feature in features.items():
        names: list[str] = []
        if column in schema.names and (namer := _namer(feature, names)):
            namers[column] = namer
            shown = abbreviated_list([f"{number} {name}" for number, name in enumerate(names)])
            if is_first("classes", column, shown):
                logging.info("%s: the file names the numbers in %r, and the names are read: %s.", path, column, shown)
    return namers


def _namer(feature, all_names: list[str]) -> Callable | None:
    """A function that puts names for the numbers of classes in a value, if it has some; appends them to all_names."""
    if isinstance(feature, list):  # as older versions write a list
        feature = {"feature": feature[0]}
    if feature.get("_type") == "ClassLabel":
        names = feature["names"]
        all_names += names
        return lambda value: None if value in (None, -1) else names[value]
    if "_type" not in feature and "feature" not in feature:  # an object
        inner = {name: namer for name, of_item in feature.items() if (namer := _namer(of_item, all_names))}
        if not inner:
            return None
        return lambda value: value and value | {name: namer(value[name]) for name, namer in inner.items()}
    of_item = _namer(feature["feature"], all_names) if isinstance(feature.get("feature"), dict) else None
    return of_item and (lambda values: values and list(map(of_item, values)))

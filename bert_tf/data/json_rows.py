"""Rows of JSON files: a line for each, or one array of all of them, as KLUE publishes its data."""

import itertools
import json
import re
from collections.abc import Iterator

from bert_tf.system.text_files import parse_json

_BETWEEN = re.compile(r"[\s,]*")


def json_rows(lines: Iterator[str], path: str) -> Iterator[tuple[int, dict]]:
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
        yield number, _row(parse_json(line, path, number), path, number)


def _rows_of_array(text: str, line: int, path: str) -> Iterator[tuple[int, dict]]:
    """The objects of an array. line: that of the text's beginning."""
    values = parse_json("\n" * (line - 1) + text, path)  # counts from the file's first line
    decoder, place, counted = json.JSONDecoder(), text.index("[") + 1, 0
    for value in values:
        place = _BETWEEN.match(text, place).end()
        line, counted = line + text.count("\n", counted, place), place
        yield line, _row(value, path, line)
        place = decoder.raw_decode(text, place)[1]


def _row(value, path: str, line: int) -> dict:
    if not isinstance(value, dict):
        raise ValueError(f"{path}, line {line}: expected a JSON object, found {type(value).__name__}")
    return value | dict(_inner(value, ""))


def _inner(value: dict, prefix: str) -> Iterator[tuple[str, object]]:
    for name, inner in value.items():
        if isinstance(inner, dict):
            yield from _inner(inner, f"{prefix}{name}.")
        elif prefix:
            yield prefix + name, inner

"""Predictions of a test file, one JSON object or row an example, with the columns of its row that are asked for."""

import csv
import io
import json
import posixpath
from collections.abc import Mapping, Sequence

import numpy as np

from bert_tf.system.storage import write_text_file


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities over the last axis: SciPy's formula, without its import, which takes a third of a second."""
    powers = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
    return powers / np.sum(powers, axis=-1, keepdims=True)


def write(output_dir: str, name: str, examples: Sequence, described: Sequence[Mapping], as_csv: bool) -> list[str]:
    """Writes predictions<name>.jsonl and, if that is asked for, predictions<name>.csv; returns their paths.

    Args:
      examples: with a `guid`, and in `source` columns of the row or None. A column that is called as a part of a
        prediction gets `input_` before its name.
      described: the prediction of each example. In CSV, probabilities have a column each: probability_<label>.
    """
    records = []
    for example, prediction in zip(examples, described, strict=True):
        taken, source = {"guid", *prediction}, example.source or {}
        columns = {f"input_{name}" if name in taken else name: value for name, value in source.items()}
        records.append({"guid": example.guid, **columns, **prediction})
    stem = posixpath.join(output_dir, f"predictions{name}")
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    contents = {f"{stem}.jsonl": lines, **({f"{stem}.csv": _table(records)} if as_csv else {})}
    for path, content in contents.items():
        write_text_file(path, content)
    return list(contents)


def _table(records: Sequence[Mapping]) -> str:
    """Records as CSV: a header of all names, and a row each.

    Excel needs the byte order mark to read UTF-8; our own reader and pandas skip it.
    """
    rows = [_cells(record) for record in records]
    names = list(dict.fromkeys(name for row in rows for name in row))
    content = io.StringIO()
    writer = csv.DictWriter(content, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return "\ufeff" + content.getvalue()


def _cells(record: Mapping) -> dict[str, object]:
    """The cells of a row: probabilities one by one, labels with commas between them, other values of JSON as JSON."""
    cells = {}
    for name, value in record.items():
        if name == "probabilities":
            numbered = value.items() if isinstance(value, Mapping) else enumerate(value)
            cells |= {f"probability_{label}": number for label, number in numbered}
        elif name == "labels" and all(isinstance(label, str) for label in value):
            cells[name] = ",".join(value)
        else:
            cells[name] = json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
    return cells

"""CSV as the fine-tuning scripts read it."""

import csv
import io
from collections.abc import Iterable, Sequence


def csv_text(names: Sequence[str], rows: Iterable[Sequence]) -> str:
    """A line with the columns' names, then a line for each row."""
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    return content.getvalue()

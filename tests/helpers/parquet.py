"""Parquet files as Hugging Face's `datasets` writes them."""

import io
import json
from collections.abc import Sequence

import pyarrow
from pyarrow import parquet


def parquet_of(rows: Sequence[dict], **classes) -> bytes:
    """The bytes of a Parquet file. classes: column -> names of a ClassLabel, or the feature as JSON."""
    features = {name: {"dtype": "string", "_type": "Value"} for name in rows[0]} if rows else {}
    for name, of in classes.items():
        features[name] = {"names": of, "_type": "ClassLabel"} if isinstance(of, list) else of
    table = pyarrow.Table.from_pylist(list(rows))
    if classes:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    content = io.BytesIO()
    parquet.write_table(table, content)
    return content.getvalue()

#!/usr/bin/env bash
# Guess: ids of 64 bits, such as hashes, become UInt64 in polars, and a Parquet file of them opens everywhere.
# Seen 2026-11-28, polars 2.1.0, pyarrow 26.0.1, pandas 3.1.1:
#   a column with a value of 2**63 or more is Int128, from CSV, JSON lines and Python alike;
#   pyarrow and pandas raise "Integers with more than 64 bits not implemented" when they open the file, whichever
#   columns are asked for: texts and labels beside the ids can't be read either.
# One id in two of a uniform 64-bit hash is that large, but a small file may have none, so the next file of the same
# data fails. Cast the column (`pl.col("id").cast(pl.UInt64)`, or to String) before `write_parquet`.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q polars==2.1.0 pyarrow==26.0.1 pandas==3.1.1
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import io
import json
import sys

import pandas
import polars
import pyarrow
import pyarrow.parquet

rows = [{"id": 2**63 + 7, "text": "a warm film", "label": "positive"}, {"id": 5, "text": "no fun", "label": "negative"}]
comma_separated = "id,text,label\n" + "".join(",".join(map(str, row.values())) + "\n" for row in rows)
frames = {
    "Python": polars.DataFrame(rows),
    "JSON lines": polars.read_ndjson(io.StringIO("".join(json.dumps(row) + "\n" for row in rows))),
    "CSV": polars.read_csv(io.StringIO(comma_separated)),
}
as_guessed = []
for source, frame in frames.items():
    frame.write_parquet("ids.parquet")
    print(f"{source}: the ids are {frame.schema['id']}")
    as_guessed.append(frame.schema["id"] == polars.UInt64)
    for library, read in (("pyarrow", pyarrow.parquet.read_table), ("pandas", pandas.read_parquet)):
        try:
            read("ids.parquet", columns=["text", "label"])
            as_guessed.append(True)
        except pyarrow.ArrowNotImplementedError as error:
            print(f"  {library}, the two other columns: {error}")
frames["CSV"].with_columns(polars.col("id").cast(polars.UInt64)).write_parquet("cast.parquet")
print("cast to UInt64:", pandas.read_parquet("cast.parquet")["id"].tolist())
sys.exit("the behaviour has changed" if any(as_guessed) else 0)
PYTHON

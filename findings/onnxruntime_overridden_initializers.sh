#!/usr/bin/env bash
# Guess: a weight that `SessionOptions.add_initializer` hands over takes the place of the one in the model everywhere.
# Seen 2026-11-29, onnxruntime 1.32.0, onnx 1.23.2, numpy 2.4.6, x86-64: words are looked up in a table, and scored by
# the same table transposed, as in a masked language model with tied weights; the model's table is [[1, 2], [3, 4]], the
# one handed over ten times that.
#   optimizations off      rows of the new table, scores of the new table
#   basic, or the default  rows of the new table, scores of the old table, without a warning
# Constants are folded before the handed-over values count: what follows from a weight alone (its transpose, a sum with
# another one, a cast) is computed of the model's own values. So sessions that share weights, or get those of a
# fine-tuned model, mix both. Hand over only weights that a node with other inputs reads, or fold them beforehand.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
cat > "$folder/tied.py" <<'PYTHON'
import sys

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

old = np.array([[1, 2], [3, 4]], np.float32)
new = 10 * old
nodes = [
    helper.make_node("Gather", ["table", "ids"], ["rows"]),
    helper.make_node("Transpose", ["table"], ["columns"]),
    helper.make_node("MatMul", ["rows", "columns"], ["scores"]),
]
ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])
outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in ("rows", "scores")]
graph = helper.make_graph(nodes, "tied", [ids], outputs, [numpy_helper.from_array(old, "table")])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()

levels = onnxruntime.GraphOptimizationLevel
for level in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_BASIC, None):
    options = onnxruntime.SessionOptions()
    value = onnxruntime.OrtValue.ortvalue_from_numpy(new)
    options.add_initializer("table", value)
    if level is not None:
        options.graph_optimization_level = level
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    rows, scores = session.run(["rows", "scores"], {"ids": np.array([0], np.int64)})
    of = {name: np.array_equal(scores, rows @ table.T) for name, table in (("new", new), ("old", old))}
    print(level or "default:", "rows", rows.tolist(), "scores", scores.tolist())
    expected = "new" if level == levels.ORT_DISABLE_ALL else "old"
    if not np.array_equal(rows, new[:1]) or not of[expected]:
        sys.exit("the behaviour has changed")
PYTHON
"$folder/venv/bin/python" "$folder/tied.py" 2> >(grep -v GPU >&2)

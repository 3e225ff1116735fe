#!/usr/bin/env bash
# Guess: with weights in 8 bits (`quantize_dynamic`, a scale for each column) a text gets the same answer in any batch.
# Seen 2026-11-28, onnxruntime 1.32.0, onnx 1.23.2, numpy 2.4.6:
#   the row alone                            largest error 0.33
#   beside a row of values 50 times larger   largest error 4.25, of values of up to 18.5
# Weights have a scale for each column, but activations one for the whole batch (DynamicQuantizeLinear reduces over
# everything): what else is in a batch, padding included, chooses how finely a text is seen. Scores change with the
# size of the batch and the order of texts, in tests of equality as well as in production.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" 2> >(grep -v -e WARNING -e GPU >&2) - <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

random = np.random.default_rng(0)
weight = random.normal(size=(64, 8)).astype(np.float32)
rows = random.normal(size=(2, 64)).astype(np.float32)
graph = helper.make_graph(
    [helper.make_node("MatMul", ["x", "w"], ["y"])],
    "graph",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 64])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 8])],
    [numpy_helper.from_array(weight, "w")],
)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), "float.onnx")
# Weights in 7 bits, which no processor's 16-bit sums can overflow: this is about activations alone.
quantize_dynamic("float.onnx", "int8.onnx", per_channel=True, reduce_range=True, weight_type=QuantType.QInt8)
session = onnxruntime.InferenceSession("int8.onnx")
exact = rows[:1] @ weight
alone = session.run(None, {"x": rows[:1]})[0]
beside = session.run(None, {"x": rows * np.array([[1], [50]], np.float32)})[0][:1]
errors = [float(np.abs(answer - exact).max()) for answer in (alone, beside)]
print(f"alone: largest error {errors[0]:.2f}; beside a row of larger values: {errors[1]:.2f}; values up to {np.abs(exact).max():.1f}")
sys.exit(0 if errors[0] < 0.5 and errors[1] > 5 * errors[0] else "the behaviour has changed")
PYTHON

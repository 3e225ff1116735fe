#!/usr/bin/env bash
# Guess: on a CPU ONNX Runtime computes models of both 16-bit types, or of neither.
# Seen 2026-11-28, onnxruntime 1.32.0, onnx 1.23.2, numpy 2.4.6, x86-64:
#   float16    MatMul, Gemm, Add, Softmax, Erf, Gelu, LayerNormalization, Gather: computed (with casts to float32)
#   bfloat16   LayerNormalization, Gather: computed; the other six: NOT_IMPLEMENTED when the session is made
# Both pass `onnx.checker`. So a model that was trained in bfloat16 and is exported as it is answers nowhere on a CPU,
# though its norms alone would, while its float16 twin does, not faster than float32.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
"$folder/venv/bin/python" 2> >(grep -v -e WARNING -e GPU >&2) - <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

TWO_INPUTS = {"MatMul": [4, 4], "Gemm": [4, 4], "Add": [4, 4], "LayerNormalization": [4]}


def computes(kind: int, operator: str) -> bool:
    """Whether a session of one operator, between casts from and to float32, can be made and run."""
    constants, names = [], ["x"]
    if operator in TWO_INPUTS:
        shape = TWO_INPUTS[operator]
        constants, names = [helper.make_tensor("w", kind, shape, [1.0] * int(np.prod(shape)))], ["x", "w"]
    elif operator == "Gather":
        constants, names = [numpy_helper.from_array(np.array([0, 1, 2, 3]), "i")], ["x", "i"]
    nodes = [
        helper.make_node("Cast", ["input"], ["x"], to=kind),
        helper.make_node(operator, names, ["y"]),
        helper.make_node("Cast", ["y"], ["output"], to=TensorProto.FLOAT),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4]) for name in ("input", "output")]
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    onnx.checker.check_model(model)
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
        return False
    return bool(np.isfinite(session.run(None, {"input": np.full((4, 4), 0.3, np.float32)})[0]).all())


operators = ("MatMul", "Gemm", "Add", "Softmax", "Erf", "Gelu", "LayerNormalization", "Gather")
halves = {operator: computes(TensorProto.FLOAT16, operator) for operator in operators}
brains = {operator: computes(TensorProto.BFLOAT16, operator) for operator in operators}
print("float16: ", halves)
print("bfloat16:", brains)
expected = {operator: operator in ("LayerNormalization", "Gather") for operator in operators}
sys.exit(0 if all(halves.values()) and brains == expected else "the behaviour has changed")
PYTHON

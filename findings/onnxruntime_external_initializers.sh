#!/usr/bin/env bash
# Guess: weights that `SessionOptions.add_external_initializers` takes from a mapped file are used where they lie.
# Seen 2026-11-28, onnxruntime 1.32.0, onnx 1.23.2, numpy 2.4.6, x86-64 (256 MiB of weights, all of MatMul):
#   a path to external data, no packing     0 MiB copied
#   a path to external data               256 MiB copied
#   add_initializer, no packing             0 MiB copied
#   add_initializer                       256 MiB copied
#   add_external_initializers, no packing 256 MiB copied
#   add_external_initializers             256 MiB copied
# So the call that is meant for large models copies all of them, whatever the session's options are, while the older
# `add_initializer` and a path to external data copy none: what they cost is the packing of MatMul's weights alone,
# which `session.disable_prepacking` switches off. A table of embeddings, which is not packed, is then never copied.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
cd "$folder"
cat > measure.py <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

SIZE, LAYERS, MIB = 2048, 16, 2**20


def anonymous_memory() -> int:
    """MiB of the process that no file backs: what was copied."""
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) // 1024 for line in file if line.startswith("Anonymous"))


way, packed = sys.argv[1:]
weights = np.memmap("weights.bin", np.float32, "r", shape=(LAYERS, SIZE, SIZE))
tensors, nodes = [], []
for number in range(LAYERS):
    tensor = TensorProto(name=f"w{number}", data_type=TensorProto.FLOAT, dims=[SIZE, SIZE])
    tensor.data_location = TensorProto.EXTERNAL
    places = {"location": "weights.bin", "offset": number * SIZE * SIZE * 4, "length": SIZE * SIZE * 4}
    for key, value in places.items():
        tensor.external_data.add(key=key, value=str(value))
    tensors.append(tensor)
    nodes.append(helper.make_node("MatMul", [f"h{number}", f"w{number}"], [f"h{number + 1}"]))
first, last = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", SIZE]) for name in ("h0", f"h{LAYERS}"))
graph = helper.make_graph(nodes, "graph", [first], [last], tensors)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
onnx.save(model, "model.onnx")

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
options.add_session_config_entry("session.disable_prepacking", "0" if packed == "packed" else "1")
values = [onnxruntime.OrtValue.ortvalue_from_numpy(weight) for weight in weights]
names = [tensor.name for tensor in tensors]
before = anonymous_memory()
if way == "path":
    session = onnxruntime.InferenceSession("model.onnx", options)
else:
    if way == "add_external_initializers":
        options.add_external_initializers(names, values)
    else:
        for name, value in zip(names, values, strict=True):
            options.add_initializer(name, value)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
session.run(None, {"h0": np.ones((1, SIZE), np.float32)})
copied = anonymous_memory() - before
print(f"{way}, {packed}: {copied} MiB copied of {weights.nbytes // MIB}")
everything = copied > 0.9 * weights.nbytes / MIB
nothing = copied < 0.1 * weights.nbytes / MIB
expected = everything if packed == "packed" or way == "add_external_initializers" else nothing
sys.exit(0 if expected else "the behaviour has changed")
PYTHON
"$folder/venv/bin/python" -c "
import numpy
numpy.random.default_rng(0).normal(0, 0.02, (16, 2048, 2048)).astype('float32').tofile('weights.bin')"
for way in path add_initializer add_external_initializers; do
  for packed in unpacked packed; do
    "$folder/venv/bin/python" measure.py "$way" "$packed" 2> >(grep -v GPU >&2)
  done
done

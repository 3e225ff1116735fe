#!/usr/bin/env bash
# Guess: safetensors reads without copies, so a tensor that is opened as NumPy's array lies in the mapped file.
# Seen 2026-11-29, safetensors 0.8.0, numpy 2.4.6, Linux x86-64, a tensor of 256 MiB; MiB that the process gained:
#                             memory of its own   peak
#   safe_open, framework="np"       256            512   the mapped pages and their copy
#   load_file of .numpy             256            512
#   a map at the header's offset      0              0   pages come when they are read, and count as the file's
# With PyTorch the same file is mapped. So an encoder with a large vocabulary costs a NumPy program its table twice when
# it is opened, and several processes that serve one model do not share it. Read the offset from the header (8 bytes of
# its size, JSON with `data_offsets`) and map the file; `get_slice` reads parts.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q safetensors==0.8.0 numpy==2.4.6
cat > "$folder/memory.py" <<'PYTHON'
import json
import subprocess
import sys

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

PATH, SHAPE = sys.argv[1], (64, 1 << 20)


def mebibytes(name):
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith(name)).split()[1]) / 1024


def opened():
    with safe_open(PATH, "np") as file:
        return file.get_tensor("table")


def mapped():
    with open(PATH, "rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        begin = json.loads(file.read(start - 8))["table"]["data_offsets"][0]
    return np.memmap(PATH, "<f4", "r", start + begin, SHAPE)


WAYS = {"safe_open": opened, "load_file": lambda: load_file(PATH)["table"], "map": mapped}
if len(sys.argv) > 2:
    before = [mebibytes("RssAnon"), mebibytes("VmHWM")]
    table = WAYS[sys.argv[2]]()
    print(*(round(mebibytes(name) - value) for name, value in zip(("RssAnon", "VmHWM"), before)))
    sys.exit()
save_file({"table": np.ones(SHAPE, np.float32)}, PATH)
for way in WAYS:  # in processes of their own: a peak does not fall
    own, peak = map(int, subprocess.check_output([sys.executable, __file__, PATH, way]).split())
    print(f"{way}: own memory +{own} MiB, peak +{peak} MiB")
    expected = (0, 0) if way == "map" else (256, 512)
    if abs(own - expected[0]) > 30 or abs(peak - expected[1]) > 30:
        sys.exit("the behaviour has changed")
PYTHON
"$folder/venv/bin/python" "$folder/memory.py" "$folder/model.safetensors"

#!/usr/bin/env bash
# Guess: if Numba can't write a file of its cache, since the disk is full or the process is killed, the next start
# finds nothing usable and compiles again.
# Seen 2026-11-28, Numba 0.68.1, llvmlite 0.50.0, NumPy 2.4.6:
#   a function that adds 1 is compiled with cache=True, then its source is changed to add 2
#   the first start after that can't write the code (too large for what is left), which raises OSError
#   every later start, with room again, returns the old function's result, silently, until the source changes again
# Numba writes the index, which says for which source the code is, before the code itself, and names the new code's file
# as the old one was named. So after a change of a cached function remove its folder __pycache__ if a start failed or was
# killed; NUMBA_CACHE_DIR can't help. Who ships cached functions should compare the code with its source on their own.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q numba==0.68.1 llvmlite==0.50.0 numpy==2.4.6
cd "$folder"
source_adding() { printf 'import numba\n\n\n@numba.njit(cache=True)\ndef added(x):\n    return x + %d\n' "$1" >loop.py; }
cat >start.py <<'PYTHON'
"""Prints added(1); with an argument, files can't grow beyond so many bytes, as on a disk that is nearly full."""
import resource
import signal
import sys

if sys.argv[1:]:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
import loop

try:
    print(loop.added(1))
except OSError as error:
    print(f"OSError: {error}")
PYTHON
source_adding 1
seen="$(venv/bin/python start.py)"
sleep 2  # another second in the time of the file's change
source_adding 2
seen="$seen, $(venv/bin/python start.py 4096), $(venv/bin/python start.py), $(venv/bin/python start.py)"
echo "x + 1: ${seen/,/; then x + 2:}"
[[ $seen == "2, OSError: "*", 2, 2" ]] || { echo "the behaviour has changed"; exit 1; }

#!/usr/bin/env bash
# Guess: what pip resolves for TensorFlow and TensorFlow Hub in an empty environment can be imported.
# Seen 2026-11-28, tensorflow-hub 0.16.1, tensorflow 2.20.0, tf-keras 2.20.1, setuptools 84.2.1:
#   `pip check` finds nothing wrong; `import tensorflow_hub` raises ModuleNotFoundError: pkg_resources;
#   with setuptools 81.0.0 in the same environment it is imported.
# TensorFlow requires setuptools of any version, which from 82 on has no pkg_resources; TensorFlow Hub imports it and
# does not require it. tf-models-official brings TensorFlow Hub along, so its modules that load from there fail too.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install -q tensorflow==2.20.0 tensorflow-hub==0.16.1 tf-keras==2.20.1 setuptools==84.2.1
"$python" -m pip check
import_hub() { TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES= "$python" -c 'import tensorflow_hub; print("imported", tensorflow_hub.__version__)' 2>&1 | tail -n 1; }
newest=$(import_hub || true)
echo "setuptools 84.2.1: $newest"
"$python" -m pip install -q setuptools==81.0.0
older=$(import_hub || true)
echo "setuptools 81.0.0: $older"
[ "$newest" = "ModuleNotFoundError: No module named 'pkg_resources'" ] && [ "$older" = "imported 0.16.1" ] || { echo "the behaviour has changed"; exit 1; }

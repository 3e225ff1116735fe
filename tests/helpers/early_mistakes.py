"""Runs a script's main with wrong flags, to see what it says and whether TensorFlow was imported before."""

import json
import subprocess
import sys
from collections.abc import Sequence

from helpers.paths import ROOT

# Each main runs in a fork, since flags and messages that are told once stay.
_PROGRAM = """
import importlib, json, os, sys
sys.path.insert(0, sys.argv[2])
module = importlib.import_module(sys.argv[1])
for arguments in json.load(sys.stdin):
    if os.fork():
        os.wait()
        continue
    outcome = "done"
    try:
        module.FLAGS([sys.argv[1], *arguments])
        module.main([])
    except BaseException as error:
        outcome = type(error).__name__ + ": " + str(error)
    print(json.dumps([outcome, "tensorflow" in sys.modules or "keras" in sys.modules]), flush=True)
    os._exit(0)
"""


def outcomes(script: str, commands: Sequence[Sequence[str]]) -> list[tuple[str, bool]]:
    """For each command, a list of flags: the error as `Kind: message`, and whether TensorFlow was imported."""
    command = [sys.executable, "-c", _PROGRAM, script, str(ROOT)]
    result = subprocess.run(command, input=json.dumps(commands), capture_output=True, text=True, check=True)
    return [tuple(json.loads(line)) for line in result.stdout.splitlines()]

"""A disk that is full at any file that a script writes: one line, no half-written file, and the command goes on."""

import os
import pathlib
import sys

import pytest
from helpers import warm
from helpers.paths import ROOT
from helpers.scenarios import SCENARIOS
from helpers.script_cases import arguments_of
from helpers.slow import slow

# A limit on the size of files simulates a full disk.
_LIMITED = """
import resource, runpy, sys
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# run_ner.py and run_swag.py write with the code of run_classifier.py.
CASES = ("one file", "pretraining", "classifier", "squad", "conversion", "export", "features")
SHORT = {"num_train_epochs": 1, "num_train_steps": 2, "num_warmup_steps": 1, "eval_every_steps": None}
# What may be named: an output, the scratch directory, the folder of XLA's programs that all tests share (of their own
# such folder, scripts check the room before).
NAMED = ("/limited/", "--scratch_dir", "/xla_compile_cache")


def outputs(folder: pathlib.Path) -> set[str]:
    """What is in a folder; each start has files for TensorBoard of its own."""
    files = (str(path.relative_to(folder)) for path in folder.rglob("*"))
    return {path for path in files if "events.out.tfevents" not in path}


def run(arguments: list[str], limit: int) -> tuple[str, int]:
    """Runs a script while no file can be longer than this; returns what it wrote to stderr, and its exit code."""
    # Without a cache of XLA's programs: the limit is meant for outputs.
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "BERT_TF_COMPILED": ""}
    command = [sys.executable, "-c", _LIMITED, str(limit), *arguments]
    # Through a pipe, which has no size.
    process = warm.Popen(command, stdout=warm.DEVNULL, stderr=warm.PIPE, text=True, env=environment)
    return process.communicate()[1], process.returncode


@pytest.mark.parametrize("case", ["vocabulary", *slow(*CASES)])
def test_a_full_disk_is_one_line(case, tmp_path):
    folders = [tmp_path / name for name in ("whole", "limited")]
    commands, before = [], []
    for folder in folders:
        (folder / "out").mkdir(parents=True)
        script, flags = SCENARIOS[case](folder)
        flags = {flag: SHORT.get(flag, value) for flag, value in flags.items()}
        given = arguments_of({flag: value for flag, value in flags.items() if value is not None})
        commands.append([str(ROOT / f"{script}.py"), *given])
        before.append(outputs(folder))
    log, code = run(commands[0], 1 << 30)
    assert code == 0, log[-3000:]
    written = {folders[0] / path for path in outputs(folders[0]) - before[0]}
    sizes = sorted({path.stat().st_size for path in written if path.is_file()}, reverse=True)
    wrong = []
    for size in sizes:
        log, code = run(commands[1], size - 1)
        last = log.strip().split("\n")[-1]
        named = any(name in last for name in NAMED)
        left = [path for path in outputs(folders[1]) if path.endswith((".tmp", ".writing", ".lock"))]
        if code == 0 or "Traceback" in log or not named or left:
            wrong.append((size, code, "Traceback" in log, left, last[-400:]))
    assert not wrong, "\n".join(map(str, [len(sizes), *wrong]))
    log, code = run(commands[1], 1 << 30)
    assert code == 0, log[-3000:]
    assert outputs(folders[1]) - before[1] == outputs(folders[0]) - before[0]

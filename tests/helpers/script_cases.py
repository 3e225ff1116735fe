"""Runs of scripts, what they say and leave; mains run one after the other in one process, as starting a script takes
longer than a tiny run.
"""

import importlib
import json
import os
import pathlib
import re
import sys

from absl import flags, logging

from bert_tf.store.open import open_weights
from helpers import warm
from helpers.basics import ROOT, TESTS

_OWN_FLAGS = set(flags.FLAGS)
PROGRAM = """
import sys
prepare, *sys.path[:2] = sys.argv[1:]
sys.argv = sys.argv[:1]
from helpers import script_cases
script_cases.serve(prepare)
"""


def arguments_of(values: dict) -> list[str]:
    return [f"--{flag}={value}" for flag, value in values.items()]


def command_of(script: str, flags: dict) -> list[str]:
    return [sys.executable, str(ROOT / f"{script}.py"), *arguments_of(flags)]


def run_mains(steps: dict[str, tuple[str, dict]], prepare: str = "", cwd=None, **environment: str) -> tuple[dict, str]:
    """Runs scripts' mains in one process. Gives ("done" or "ValueError: ...", the report) by name, and stderr.

    steps: name -> (script without ".py", {flag: value}). prepare: a module, e.g. "helpers.remote", whose function
    `prepare` the process calls first, and `report`, if any, after each step.
    """
    lines = [json.dumps([name, script, arguments_of(given)]) + "\n" for name, (script, given) in steps.items()]
    command, environment = [sys.executable, "-c", PROGRAM, prepare, str(TESTS), str(ROOT)], os.environ | environment
    result = warm.run(command, input="".join(lines), capture_output=True, text=True, cwd=cwd, env=environment)
    ended = [json.loads(line) for line in result.stdout.splitlines() if line.startswith('["')]
    assert [name for name, *_ in ended] == list(steps), result.stderr[-3000:]
    return {name: (outcome, report) for name, outcome, report in ended}, result.stderr


def run_cases(script: str, cases: dict[str, dict]) -> tuple[dict, dict]:
    ended, log = run_mains({name: (script, values) for name, values in cases.items()})
    logs = dict(part.split("\n", 1) for part in log.split("CASE ")[1:])
    return {name: outcome for name, (outcome, _) in ended.items()}, logs


def serve(prepare: str) -> None:
    """The program of `run_mains`: reads steps from stdin, and writes [name, outcome, report] for each to stdout."""
    module = importlib.import_module(prepare) if prepare else None
    if module:
        module.prepare()
    for line in sys.stdin:
        name, script, arguments = json.loads(line)
        print("CASE", name, file=sys.stderr, flush=True)
        try:
            run_main(script, arguments)
            outcome = "done"
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
        report = module.report() if hasattr(module, "report") else None
        print(json.dumps([name, outcome, report]), flush=True)


def run_main(script: str, arguments: list[str]) -> None:
    """Runs the main of a script with only its own flags: `create_vocab`, say, or `experiments.ablations`."""
    outer = _remove_flags()
    try:
        for name in [name for name in sys.modules if name.startswith("bert_tf.cli.")]:  # importing them defines flags
            del sys.modules[name]
        module = importlib.import_module(script if "." in script else f"bert_tf.cli.{script}")
        if hasattr(module, "define_flags"):
            module.define_flags()
        flags.FLAGS([f"{script}.py", *arguments])
        logging.set_verbosity(logging.INFO)
        module.main([])
    finally:
        _remove_flags()
        for name, flag in outer.items():
            flags.FLAGS[name] = flag


def _remove_flags() -> dict:
    removed = {name: flags.FLAGS[name] for name in set(flags.FLAGS) - _OWN_FLAGS}
    for name in removed:
        delattr(flags.FLAGS, name)
    return removed


def run_and_refuse(script: str, out: pathlib.Path, done: dict, refused: dict) -> dict:
    """`run_cases` with an output directory for each case: those that end well, on which later ones may be built, then
    those that are refused.

    A refused one ends in one line with the parts of its message, separated by "*", in order; it writes nothing.
    done: name -> {flag: value}. refused: name -> ({flag: value}, message). Returns what each case wrote to stderr.
    """
    cases = {**done, **{name: values for name, (values, _) in refused.items()}}
    for name, values in cases.items():
        usual = {} if "output_file" in values else {"output_dir": out / name}
        cases[name] = {flag: value for flag, value in (usual | values).items() if value is not None}
    outcomes, logs = run_cases(script, cases)
    wrong = {name: (outcomes[name], logs[name][-2000:]) for name in done if outcomes[name] != "done"}
    for name, (_, message) in refused.items():
        is_said = re.fullmatch(rf"\w*Error: .*{pattern_of(message)}.*", outcomes[name])
        if not is_said or any((out / name).glob("*")):
            wrong[name] = outcomes[name]
    assert not wrong, wrong
    return logs


def pattern_of(message: str) -> str:
    """A regular expression for the parts of a message, separated by "*", in order."""
    return ".*".join(map(re.escape, message.split("*")))


def selected_cases(request, cases: dict, slow: set) -> dict:
    """The cases without the slow ones, unless slow tests of the module are run."""
    assert slow <= set(cases), slow - set(cases)
    tests = (item for item in request.session.items if item.path == request.path)
    is_slow = any(test.get_closest_marker("slow") for test in tests)
    return {name: values for name, values in cases.items() if is_slow or name not in slow}


def outputs(folder: pathlib.Path) -> set[str]:
    """What is in a folder; each start has files for TensorBoard of its own."""
    files = (str(path.relative_to(folder)) for path in folder.rglob("*"))
    return {path for path in files if "events.out.tfevents" not in path}


def results_of(folder, file="eval_results.txt") -> dict[str, float]:
    lines = (folder / file).read_text().splitlines()
    return {key: float(value) for key, value in (line.split(" = ") for line in lines)}


def weights_of(path) -> dict:
    return dict(open_weights(str(path)))

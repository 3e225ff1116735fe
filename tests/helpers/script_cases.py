"""What runs of a script say and leave."""

import pathlib
import re
import sys

from bert_tf.store.open import open_weights
from helpers.mains import arguments_of, run_cases
from helpers.paths import ROOT


def command_of(script: str, flags: dict) -> list[str]:
    return [sys.executable, str(ROOT / f"{script}.py"), *arguments_of(flags)]


def run_and_refuse(script: str, out: pathlib.Path, done: dict, refused: dict) -> dict:
    """`run_cases` with an output directory for each case: those that end well, on which later ones may be built, then
    those that are refused.

    A refused one ends in one line with the parts of its message, separated by "*", in order; it writes nothing.
    done: name -> {flag: value}. refused: name -> ({flag: value}, message). Returns what each case wrote to stderr.
    """
    cases = {**done, **{name: flags for name, (flags, _) in refused.items()}}
    for name, flags in cases.items():
        usual = {} if "output_file" in flags else {"output_dir": out / name}
        cases[name] = {flag: value for flag, value in (usual | flags).items() if value is not None}
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


def results_of(folder, file="eval_results.txt") -> dict[str, float]:
    lines = (folder / file).read_text().splitlines()
    return {key: float(value) for key, value in (line.split(" = ") for line in lines)}


def weights_of(path) -> dict:
    return dict(open_weights(str(path)))

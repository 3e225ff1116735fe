"""What runs of a script say and leave."""

import pathlib
import re
import signal

from bert_tf.store.open import open_weights
from helpers import events, warm
from helpers.mains import arguments_of, run_cases


def run_and_refuse(script: str, out: pathlib.Path, done: dict, refused: dict) -> dict:
    """`run_cases` with an output directory for each case: those that end well, then those that are refused.

    A refused one ends in one line with the parts of its message, separated by "*", in order; it writes nothing.
    done: name -> {flag: value}. refused: name -> ({flag: value}, message). Returns what each case wrote to stderr.
    """
    cases = {**done, **{name: flags for name, (flags, _) in refused.items()}}
    cases = {
        name: {flag: value for flag, value in ({"output_dir": out / name} | flags).items() if value is not None}
        for name, flags in cases.items()
    }
    outcomes, logs = run_cases(script, cases)
    wrong = {name: (outcomes[name], logs[name][-2000:]) for name in done if outcomes[name] != "done"}
    for name, (_, message) in refused.items():
        pattern = ".*".join(map(re.escape, message.split("*")))
        is_said = re.fullmatch(rf"\w*Error: .*{pattern}.*", outcomes[name])
        if not is_said or ((out / name).exists() and list((out / name).iterdir())):
            wrong[name] = outcomes[name]
    assert not wrong, wrong
    return logs


def selected_cases(request, cases: dict, slow: set, marker: str = "slow") -> dict:
    assert slow <= set(cases), slow - set(cases)
    tests = (item for item in request.session.items if item.path == request.path)
    if any(test.get_closest_marker(marker) for test in tests):
        return cases
    return {name: values for name, values in cases.items() if name not in slow}


def results_of(folder, file="eval_results.txt") -> dict[str, float]:
    lines = (folder / file).read_text().splitlines()
    return {key: float(value) for key, value in (line.split(" = ") for line in lines)}


def assert_in_order(message: str, outcome: str) -> None:
    start = 0
    for part in message.split("*"):
        assert part in outcome[start:], outcome
        start = outcome.index(part, start) + len(part)


def kill_at_checkpoint(script: str, arguments: dict, step: int, folder: pathlib.Path | None = None) -> list[str]:
    """Runs a script that kills itself when the file `checkpoint` (in output_dir, or folder) names this step or a later
    one, so that the next start goes on there; returns the index files of the checkpoints it left.
    """
    folder = folder or pathlib.Path(arguments["output_dir"])
    named = r"""max(map(int, re.findall(r'model\.ckpt-(\d+)"', text)))"""
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    change = "import re\n" + events.after_rename(folder / "checkpoint", kill, f"{named} >= {step}")
    process = events.run_that(change, script, arguments_of(arguments), stderr=warm.DEVNULL)
    assert process.wait() == -signal.SIGKILL, "it ended before"
    return sorted(path.name for path in folder.glob("*.index"))


def weights_of(path) -> dict:
    weights = open_weights(str(path))
    return {name: weights[name] for name in weights}

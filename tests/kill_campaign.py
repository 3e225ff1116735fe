"""Kills scripts at random moments, starts them again until they end, and compares what they and undisturbed runs leave.

    make test-kill                                                    # 500 kills, an hour or more on two cores
    python tests/kill_campaign.py --kills=20 --scenarios=ner --scenarios=shards --seed=3

A moment is a random time, or a random change of a file (written, closed, renamed, removed, a folder made), before or
after it. Of several workers any one is killed, and all are started again. All files that a run leaves must be there
with the same bytes, but for those that tell times. Kills take turns over the scenarios; each run is killed up to three
times. What differs is kept, and the exit code is 1.
"""

import collections
import contextlib
import json
import pathlib
import random
import re
import shutil
import signal
import sys
import tempfile
import time

from absl import app, flags

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from helpers import warm  # noqa: E402
from helpers.cluster import workers  # noqa: E402
from helpers.scenarios import SCENARIOS  # noqa: E402
from helpers.script_cases import arguments_of  # noqa: E402

FLAGS = flags.FLAGS
MOST_KILLS = 3  # of one run
# They hold times, speeds, drawings of them, or a random number of TensorFlow's.
UNEQUAL = re.compile(r"train_log\.jsonl|loss\.png|run\.json|\w+\.data\.json|fingerprint\.pb|events\.out\..*")

# Runs a script whose process kills itself before or after its n-th change of a file; the changes are counted in a file.
_PRELUDE = """
import builtins, functools, os, runpy, signal, sys
script, limit, after, counted = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "after", sys.argv[4]
sys.argv = [script, *sys.argv[5:]]
import tensorflow as tf
changes, main = 0, os.getpid()

def counting(call):
    @functools.wraps(call)
    def counted_call(*arguments, **named):
        global changes
        if os.getpid() == main:
            changes += 1
            if changes == limit and not after:
                os.kill(main, signal.SIGKILL)
        result = call(*arguments, **named)
        if os.getpid() == main and changes == limit and after:
            os.kill(main, signal.SIGKILL)
        return result
    return counted_call

places = [(os, name) for name in ("replace", "rename", "remove", "unlink", "mkdir", "rmdir", "fsync")]
places += [(tf.io.gfile, name) for name in ("rename", "remove", "makedirs", "rmtree", "copy")]
places += [(tf.io.gfile.GFile, name) for name in ("write", "flush", "close")] + [(tf.io.TFRecordWriter, "write")]
for place, name in places:
    setattr(place, name, counting(getattr(place, name)))
try:
    runpy.run_path(script, run_name="__main__")
finally:
    with open(counted, "w") as file:
        file.write(str(changes))
"""


def run_once(scenario, script, values: dict, folder, seconds=warm.HANG_SECONDS, limit=0, after=False, number=0) -> int:
    """Runs a script, killed after some seconds or at its change number `limit`; returns the exit code.

    number: of the worker that is killed after some seconds; its exit code is that of all. The first makes the changes.
    """
    program = [str(ROOT / f"{script}.py"), *arguments_of(values)]
    if "output_file" in values:
        (folder / "out").mkdir(exist_ok=True)
    counted = ["after" if after else "before", str(folder / "changes"), *program[1:]]
    command = [sys.executable, "-c", _PRELUDE, program[0], str(limit), *counted]
    if count := _count_of(scenario):
        with workers([command, *[[sys.executable, *program]] * (count - 1)], folder) as processes:
            with contextlib.suppress(warm.TimeoutExpired):
                processes[number].wait(seconds)
            processes[number].kill()
            lost = processes[number].wait() == -signal.SIGKILL
            for other, process in enumerate(processes):  # one that is connected ends by itself
                log = (folder / f"worker-{other}.log").read_text()
                if lost and "distribution strategy multi_worker_mirrored" not in log:
                    process.kill()  # as an operator does: it waits for the one that was lost to come
            codes = [process.wait() for process in processes]
            return codes[number] or max(codes)
    with open(folder / "log.txt", "w") as log:
        process = warm.Popen(command, stdout=log, stderr=log)
        with contextlib.suppress(warm.TimeoutExpired):
            process.wait(seconds)
        process.kill()
        return process.wait()


def _count_of(scenario: str) -> int | None:
    return {"two workers": 2, "three workers": 3}.get(" ".join(scenario.split()[-2:]))


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and not UNEQUAL.fullmatch(path.name))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


class Campaign:
    def __init__(self, name: str, folder: pathlib.Path):
        self.name, self.folder = name, folder
        folder.mkdir(parents=True)
        self.script, self.values = SCENARIOS[name](folder)
        begin = time.monotonic()
        code = run_once(name, self.script, self.values, folder)
        if code:
            raise RuntimeError(f"{name}: the undisturbed run ended with {code}; see {folder}")
        self.seconds = time.monotonic() - begin
        counted = folder / "changes"
        self.changes = int(counted.read_text()) if counted.exists() else 0
        self.expected = contents(folder / "out")
        shutil.rmtree(folder / "out")

    def moments(self, generator: random.Random) -> list[dict]:
        """When a run and those that go on with it are killed: arguments of `run_once`."""
        moments = []
        for _ in range(generator.randint(1, MOST_KILLS)):
            if self.changes and generator.random() < 0.5:
                moments.append({"limit": generator.randint(1, self.changes), "after": generator.random() < 0.5})
            else:
                number = generator.randrange(_count_of(self.name) or 1)
                moments.append({"seconds": generator.uniform(0, self.seconds), "number": number})
        return moments

    def kill(self, moments: list[dict]) -> tuple[int, str]:
        """Kills a new run at these moments and lets it end; returns the number of kills, and what is wrong, if any."""
        codes = []
        for moment in (*moments, {}):
            codes.append(run_once(self.name, self.script, self.values, self.folder, **moment))
            if codes[-1] != -9:
                break
        kills, told = codes.count(-9), moments[: len(codes)]
        if codes[-1]:
            return kills, f"{self.name}, killed at {told}: it ended with {codes[-1]}"
        found = contents(self.folder / "out")
        if found == self.expected:
            shutil.rmtree(self.folder / "out")
            return kills, ""
        names = sorted(name for name in found.keys() | self.expected if found.get(name) != self.expected.get(name))
        return kills, f"{self.name}, killed at {told}: other files: {', '.join(names)}"


def main(_):
    generator = random.Random(FLAGS.seed)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="kills-"))
    campaigns = {name: Campaign(name, folder / str(number)) for number, name in enumerate(FLAGS.scenarios)}
    kills = collections.Counter()
    while kills.total() < FLAGS.kills:
        for name, campaign in campaigns.items():
            count, problem = campaign.kill(campaign.moments(generator))
            kills[name] += count
            if problem:
                sys.exit(f"{problem}; see {campaign.folder}")
        print(json.dumps({"kills": kills.total(), **kills}), flush=True)
    shutil.rmtree(folder)
    print(f"{kills.total()} kills in {len(kills)} scenarios: all runs ended with the same files.")


if __name__ == "__main__":
    flags.DEFINE_integer("kills", 500, "Kills in total; a few more may come.", lower_bound=1)
    flags.DEFINE_integer("seed", 1, "Of the moments.")
    flags.DEFINE_multi_enum("scenarios", list(SCENARIOS), list(SCENARIOS), "Scenarios to run; can be repeated.")
    app.run(main)

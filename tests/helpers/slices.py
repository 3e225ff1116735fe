"""A part of the tests, for a machine or a time that does not suffice for all of them: `--slice`, `--touched-by`.

Files stay whole, as the tests of a file share what they prepare. `slow_seconds.txt` says how long the slow tests of
each take, for one process on a fast machine; a file that is not there is taken to need
`SECONDS_OF_A_NEW_FILE`.
"""

import argparse
import pathlib
import re
import subprocess
from collections.abc import Iterable, Sequence

from helpers.basics import ROOT, TESTS

SECONDS_OF_A_NEW_FILE = 30
# Of the files that commits touched, at most so many seconds besides the slice.
MOST_SECONDS = 240


def recorded() -> dict[str, int]:
    lines = (TESTS / "slow_seconds.txt").read_text().splitlines()
    pairs = (line.split() for line in lines if not line.startswith("#"))
    return {file: int(seconds) for seconds, file in pairs if (ROOT / file).is_file()}


def parse(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    number, count = map(int, match.groups()) if match else (0, 0)
    if not 1 <= number <= count:
        raise argparse.ArgumentTypeError(f"{text}: expected a slice and their number, as in 2/4")
    return number, count


def divide(files: Iterable[str], seconds: dict[str, int], count: int) -> list[set[str]]:
    """Divides files into slices that take about the same time.

    Each file goes to the slice that has least so far, the longest file first. The recorded ones go first, whether they
    are among the files or not, so that a new file or a selection of tests moves none of them.
    """
    slices, sums, files = [set() for _ in range(count)], [0] * count, set(files)
    recorded = sorted(seconds, key=lambda file: (-seconds[file], file))
    for file in [*recorded, *sorted(files - seconds.keys())]:
        least = sums.index(min(sums))
        sums[least] += seconds.get(file, SECONDS_OF_A_NEW_FILE)
        slices[least].add(file)
    return [group & files for group in slices]


def room_of(path: str) -> pathlib.Path:
    """The folder of tests that mirrors the folder of a file, or the nearest above it."""
    top, *rest = pathlib.PurePosixPath(path.replace("bert_tf/cli/", "scripts/")).parts
    room = TESTS.joinpath(*([] if top in ("bert_tf", "tests") else [top]), *rest).parent
    while not room.is_dir():  # a family of models, say, whose tests are those of all models
        room = room.parent
    return room


def touched(files: Iterable[str], seconds: dict[str, int], paths: Sequence[str]) -> set[str]:
    """The files of tests in the rooms that changed files belong to, as many as fit into `MOST_SECONDS`.

    First those that were changed, or that mirror a changed module, then the others; the short ones first.
    """
    rooms, names = {*map(room_of, paths)}, {pathlib.PurePosixPath(path).stem.removeprefix("test_") for path in paths}
    near = [file for file in files if (ROOT / file).parent in rooms]
    is_other = {file: pathlib.PurePosixPath(file).stem.removeprefix("test_") not in names for file in near}
    chosen, total = set(), 0
    for file in sorted(near, key=lambda file: (is_other[file], seconds.get(file, SECONDS_OF_A_NEW_FILE), file)):
        if total + (time := seconds.get(file, SECONDS_OF_A_NEW_FILE)) <= MOST_SECONDS:
            total += time
            chosen.add(file)
    return chosen


def changed_files(commits: int) -> list[str]:
    command = ["git", "log", f"--max-count={commits}", "--format=", "--name-only", "-m", "--first-parent"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return sorted(set(result.stdout.split("\n")) - {""})


def chosen(files: Iterable[str], part: tuple[int, int], commits: int) -> set[str]:
    seconds, (number, count) = recorded(), part
    mine = divide(files, seconds, count)[number - 1]
    return mine | (touched({*files} - mine, seconds, changed_files(commits)) if commits else set())

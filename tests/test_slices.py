"""Slices of the long tests: disjoint, complete, of about the same time; and what commits add to one."""

import argparse
import re
import sys

import pytest
from helpers import slices, warm
from helpers.paths import ROOT

NEW = {"tests/test_new.py": 7, "tests/models/test_new.py": 2}


@pytest.mark.parametrize("count", [1, 4, 11])
def test_they_are_all_tests_once_and_take_about_the_same_time(count):
    """A new file, or a selection of tests, moves no other file."""
    seconds = slices.recorded()
    tests = dict.fromkeys(seconds, 3) | NEW
    parts = slices.divide(tests, seconds, count)
    assert len(parts) == count and sorted(file for part in parts for file in part) == sorted(tests)
    sums = [sum(seconds.get(file, 5 * tests[file]) for file in part) for part in parts]
    assert max(sums) <= 1.1 * sum(sums) / count
    few = dict.fromkeys(list(seconds)[::3], 1)
    assert slices.divide(few, seconds, count) == [part & few.keys() for part in parts]


def test_pytest_collects_the_tests_of_a_slice():
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "--collect-only", "-q", "tests/store", "--slice=1/2"]
    result = warm.run(command, cwd=ROOT, capture_output=True, text=True)
    found = {*re.findall(r"^(tests/\S+)::", result.stdout, re.MULTILINE)}
    assert {f"tests/store/{path.name}" for path in (ROOT / "tests" / "store").glob("test_*.py")} > found != set()
    with pytest.raises(argparse.ArgumentTypeError, match="3/2: expected a slice and their number, as in 2/4"):
        slices.parse("3/2")


def test_commits_add_what_mirrors_their_files_and_never_too_much():
    rooms = {
        "bert_tf/models/albert/layers.py": "tests/models",  # there is no such folder of tests
        "bert_tf/models/bert/layers.py": "tests/models/bert", "tests/serving/test_export.py": "tests/serving",
        "run_classifier.py": "tests/scripts", "demo/__main__.py": "tests/demo", "docs/data.md": "tests",
    }  # fmt: skip
    assert {path: slices.rooms_of([path]) for path in rooms} == {path: {room} for path, room in rooms.items()}
    files = {f"tests/models/test_{name}.py": 1 for name in ("long", "changed", "short")}
    seconds = {
        "tests/models/test_long.py": slices.MOST_SECONDS,
        "tests/models/test_changed.py": slices.MOST_SECONDS - 9,
    }
    both = {"tests/models/test_changed.py", "tests/models/test_short.py"}
    assert slices.touched(files | {"tests/text/test_other.py": 1}, seconds, ["bert_tf/models/changed.py"]) == both


def test_a_slice_and_what_commits_add_to_it(monkeypatch):
    files = list(slices.recorded())
    monkeypatch.setattr(slices, "changed_files", lambda commits: ["bert_tf/text/wordpiece.py"] if commits == 3 else [])
    alone, more = slices.chosen(files, (2, 7), 0), slices.chosen(files, (2, 7), 3)
    assert alone < more and {file for file in more - alone if not file.startswith("tests/text/")} == set()
    assert slices.chosen(files, (2, 7), 9) == alone and slices.chosen(files, None, 3) == set(files)
    monkeypatch.undo()
    assert set(slices.changed_files(2)) >= set(slices.changed_files(1)) != set()

"""Slices of the long tests: disjoint, complete, of about the same time; and what commits add to one."""

import argparse
import re
import sys

import pytest
from helpers import slices, warm
from helpers.paths import ROOT

NEW = {"tests/test_new.py": 7, "tests/models/test_new.py": 2}


@pytest.mark.parametrize("count", [1, 2, 4, 7])
def test_they_are_all_tests_once_and_take_about_the_same_time(count):
    seconds = slices.recorded()
    tests = dict.fromkeys(seconds, 3) | NEW
    parts = slices.divide(tests, seconds, count)
    assert len(parts) == count and sorted(file for part in parts for file in part) == sorted(tests)
    sums = [sum(seconds.get(file, 5 * tests[file]) for file in part) for part in parts]
    assert max(sums) <= 1.1 * sum(sums) / count


def test_neither_a_new_file_nor_a_selection_moves_another_file():
    seconds = slices.recorded()
    whole, few = (dict.fromkeys(files, 1) for files in (seconds, list(seconds)[::3]))
    expected = slices.divide(whole, seconds, 5)
    with_new = slices.divide(whole | NEW, seconds, 5)
    assert [part - NEW.keys() for part in with_new] == expected
    assert slices.divide(few, seconds, 5) == [part & few.keys() for part in expected]


def test_pytest_collects_the_tests_of_a_slice():
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "--collect-only", "-q", "tests/weights", "--slice=1/2"]
    result = warm.run(command, cwd=ROOT, capture_output=True, text=True)
    found = {*re.findall(r"^(tests/\S+)::", result.stdout, re.MULTILINE)}
    assert {f"tests/weights/{path.name}" for path in (ROOT / "tests" / "weights").glob("test_*.py")} > found != set()
    for wrong in ("0/2", "3/2", "2", "a/b"):
        with pytest.raises(argparse.ArgumentTypeError, match=f"{wrong}: expected a slice and their number, as in 2/4"):
            slices.parse(wrong)


def test_rooms_mirror_folders():
    rooms = {
        "bert_tf/training/loop.py": "tests/training",
        "bert_tf/models/albert/layers.py": "tests/models",  # there is no such folder of tests
        "bert_tf/models/bert/layers.py": "tests/models/bert",
        "bert_tf/tasks/squad/answers.py": "tests/tasks/squad",
        "tests/serving/test_export.py": "tests/serving",
        "run_classifier.py": "tests/scripts",
        "demo/__main__.py": "tests/demo",
        "experiments/ablations.py": "tests/experiments",
        "docs/data.md": "tests",
        "notebooks/look_inside.ipynb": "tests",
    }
    for path, room in rooms.items():
        assert slices.rooms_of([path]) == {room}
    assert slices.rooms_of([".ci/run", "Makefile", "requirements.txt"]) == set()


def test_commits_add_what_mirrors_their_files_and_never_too_much():
    files = {f"tests/models/test_{name}.py": 1 for name in ("long", "changed", "short")}
    most = slices.MOST_SECONDS
    seconds = {"tests/models/test_long.py": most, "tests/models/test_changed.py": most - 9}
    paths = ["bert_tf/models/changed.py"]
    both = {"tests/models/test_changed.py", "tests/models/test_short.py"}
    assert slices.touched(files | {"tests/text/test_other.py": 1}, seconds, paths) == both
    everything = slices.recorded()
    found = slices.touched(dict.fromkeys(everything, 1), everything, [path.replace("test_", "") for path in everything])
    assert 0.8 * most < sum(everything[file] for file in found) <= most


def test_a_slice_and_what_commits_add_to_it(monkeypatch):
    files = list(slices.recorded())
    monkeypatch.setattr(slices, "changed_files", lambda commits: ["bert_tf/text/wordpiece.py"] if commits == 3 else [])
    alone, more = slices.chosen(files, (2, 7), 0), slices.chosen(files, (2, 7), 3)
    assert alone < more and {file for file in more - alone if not file.startswith("tests/text/")} == set()
    assert slices.chosen(files, (2, 7), 9) == alone and slices.chosen(files, None, 3) == set(files)
    monkeypatch.undo()
    assert set(slices.changed_files(2)) >= set(slices.changed_files(1)) != set()

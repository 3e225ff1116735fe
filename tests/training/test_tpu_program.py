"""Steps as TensorFlow's TPUStrategy traces them for several cores: static shapes, no strings, no work for the host."""

import json
import sys

import pytest
from helpers import warm
from helpers.every_model import CASES
from helpers.paths import TESTS
from helpers.slow import slow


@pytest.mark.parametrize(("cores", "cases"), [(2, ["classifier"]), *slow((8, sorted(CASES)))])
def test_steps_on_the_cores_of_a_tpu(cores, cases):
    """In its own process, whose CPUs stand for the cores. Each script's whole program: scripts/test_one_program.py."""
    pytest.importorskip("tensorflow.python.distribute.tpu_strategy", reason="leans on names of TensorFlow 2.20")
    command = [sys.executable, "-m", "helpers.eight_cores", str(cores), *cases, "values"]
    done = warm.run(command, cwd=str(TESTS), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    count, wrong = found.pop("values")
    assert count and wrong, "the check itself sees a shape that depends on values, and text"
    assert all(count > 1000 for count, _ in found.values())
    assert {case: wrong for case, (_, wrong) in found.items() if wrong} == {}

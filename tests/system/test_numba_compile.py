"""What Numba keeps on disk follows the sources."""

import os
import subprocess
import sys

from helpers.paths import ROOT

CALLED = """
from bert_tf.system.numba_compile import compiled

@compiled
def called(x):
    return x + {number}
"""
CALLER = """
from bert_tf.system.numba_compile import compiled
from called import called

@compiled
def caller(x):
    return 10 * called(x)

print(caller(1), sum(caller.stats.cache_hits.values()))
"""


def test_a_change_of_what_a_function_calls_compiles_it_again(tmp_path):
    (tmp_path / "caller.py").write_text(CALLER)

    def result() -> str:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.check_output([sys.executable, str(tmp_path / "caller.py")], env=environment, text=True)

    (tmp_path / "called.py").write_text(CALLED.format(number=1))
    assert [result(), result()] == ["20 0\n", "20 1\n"]  # the result, and how many functions came from the disk
    (tmp_path / "called.py").write_text(CALLED.format(number=2))
    assert result() == "30 0\n"

"""What Numba keeps on disk follows the sources, and can be damaged."""

import errno
import hashlib
import importlib
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from helpers.paths import ROOT
from helpers.warm import HANG_SECONDS
from numba.core import caching

from bert_tf.system import messages, numba_compile
from bert_tf.system.numba_compile import compiled

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


LOOP = """
from bert_tf.system.numba_compile import compiled

@compiled
def advance(at, step):
    return at + step

@compiled
def advance_twice(step):
    at = 0
    for _ in range(2):
        at = advance(at, step)
    return advance(at, 1)
"""


def test_constants_and_variables_share_what_is_compiled(monkeypatch, tmp_path):
    (tmp_path / "loop.py").write_text(LOOP)
    monkeypatch.syspath_prepend(tmp_path)
    loop = importlib.import_module("loop")
    assert loop.advance_twice(3) == 7 and len(loop.advance.signatures) == 1


INNER = """
import numpy as np
from bert_tf.system.numba_compile import compiled, inner

@inner
def doubled(x):
    return np.uint64(2) * x

@compiled
def wrapped(x):
    return doubled(x) + np.uint64(1)
"""


def test_interpreted_and_inner_functions_compile_nothing(monkeypatch, tmp_path):
    (tmp_path / "inner.py").write_text(INNER)
    monkeypatch.syspath_prepend(tmp_path)
    inner = importlib.import_module("inner")
    assert inner.doubled(np.uint64(3)) == 6
    with numba_compile.interpreted():
        assert inner.wrapped(np.uint64(1 << 63)) == 1  # as compiled code does, without a warning of the overflow
        with numba_compile.interpreted(False):
            assert not numba_compile.is_interpreting()
    assert not inner.doubled.signatures and not inner.wrapped.signatures
    assert inner.wrapped(np.uint64(1 << 63)) == 1
    assert len(inner.doubled.signatures) == len(inner.wrapped.signatures) == 1
    assert [path.name.partition("-")[0] for path in (tmp_path / "__pycache__").glob("*.nbc")] == ["inner.wrapped"]


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs a function as a new process would; its result, and how many functions came from the disk."""
    (tmp_path / "kept.py").write_text(LOOP)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(messages, "_logged_topics", set())
    monkeypatch.delitem(sys.modules, "kept", raising=False)
    function = importlib.import_module("kept").advance.py_func

    def once() -> tuple[int, int]:
        loop = compiled(function)
        return loop(1, 2), sum(loop.stats.cache_hits.values())

    return once


@pytest.mark.parametrize("damage", [
    lambda content: b"",
    lambda content: content[: len(content) // 2],
    lambda content: content[: len(content) // 2] + bytes(len(content) - len(content) // 2),
    lambda content: content[:999] + bytes([content[999] ^ 1]) + content[1000:],
    lambda content: content[:32] + hashlib.sha256(b"no pickle").digest() + b"no pickle",
], ids=["empty", "cut off", "zeros", "a bit", "of another Numba"])  # fmt: skip
def test_a_damaged_file_is_compiled_again_and_replaced(run, tmp_path, caplog, damage):
    assert [run(), run()] == [(3, 0), (3, 1)]
    (file,) = tmp_path.rglob("*.nbc")
    file.write_bytes(damage(file.read_bytes()))
    assert [run(), run()] == [(3, 0), (3, 1)]
    assert [record.getMessage().startswith(f"{file} is damaged (") for record in caplog.records] == [True]


@pytest.mark.parametrize("is_full", [True, False])
def test_where_nothing_can_be_written_it_is_compiled_in_memory(run, monkeypatch, tmp_path, is_full):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    if is_full:
        monkeypatch.setattr(caching.IndexDataCacheFile, "_open_for_write", fail)
    else:  # neither the module's folder nor that of the user
        monkeypatch.setattr(caching._CacheLocator, "ensure_cache_path", fail)
    assert [run(), run()] == [(3, 0), (3, 0)] and not [*tmp_path.rglob("*.nbc")]


def test_what_takes_long_is_announced_and_nothing_else(monkeypatch):
    said = threading.Event()
    monkeypatch.setattr(messages.logging, "info", lambda form, message: message == "slow" and said.set())
    with messages.announced("slow", HANG_SECONDS):
        pass
    assert not said.is_set()
    with messages.announced("slow", 0.001):
        assert said.wait(HANG_SECONDS)

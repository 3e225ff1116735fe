"""What a script says while it runs, and at its end, to those who started it."""

import contextlib
import logging
import os
import select
import signal
import sys

import pytest
from helpers import warm
from helpers.paths import ROOT

from experiments import script_runs
from experiments.script_runs import Run

BAR = "train:  40%|████      | 40/100 [00:10<00:15,  4.0step/s, loss=7.56]"
SCRIPT = """
import sys
sys.stderr.write("W1125 06:33:25.632243 140062272501440 script.py:343] Only 3 training steps.\\n")
sys.stderr.write("W0000 00:00:1795587920.719 4711 cpu.cc:12] Nothing that anyone can change.\\n")
sys.stderr.write("W1125 06:33:26.632243 140062272501440 script.py:343] Only 3 training steps.\\n")
sys.exit(len(sys.argv) - 1)
"""


@pytest.fixture
def script(tmp_path, monkeypatch) -> str:
    """A script that warns twice of one thing, and fails if it gets an argument."""
    (tmp_path / "warns.py").write_text(SCRIPT)
    monkeypatch.setattr(script_runs, "SCRIPTS", tmp_path)
    return "warns.py"


@pytest.mark.parametrize(
    ("log", "progress"),
    [
        ("", ""),
        (f"{BAR}\r{BAR.replace('40', '41')}\nI1125 Saved\n", "train 41/100, 00:15 left"),
        ("train:   0%|          | 0/700 [00:00<?, ?step/s]", ""),
        ("write records: 100%|██████████| 8/8 [1:02:03<00:00]", "write records 8/8, 00:00 left"),
    ],
)
def test_the_last_bar_of_a_log_is_its_progress(log, progress):
    assert script_runs.progress_in(log) == progress


def test_warnings_of_a_script_are_repeated_once(script, tmp_path, caplog):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "one.log").write_text("W1125 06:33:25.632243 140062272501440 old.py:1] Of an earlier start.\n")
    with caplog.at_level(logging.WARNING):
        script_runs.do_runs([Run("one", script, {})], str(tmp_path))
    assert [record.getMessage() for record in caplog.records] == ["one: Only 3 training steps."]


def test_a_failure_shows_the_end_of_this_starts_log(script, tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "one.log").write_text("an earlier start\n")
    with pytest.raises(ChildProcessError, match="exit code 1 in the run one") as raised:
        script_runs.do_run(Run("one", script, {"a": 1}), str(tmp_path))
    assert "Only 3" in str(raised.value) and "earlier" not in str(raised.value)
    assert script_runs.result_of(Run("one", script, {"a": 1}), str(tmp_path)) is None


def test_a_script_ends_with_a_killed_starter(tmp_path):
    """What it held, such as the lock of its output, is free then: the same command can go on."""
    held, place = tmp_path / "held", str(tmp_path)
    os.mkfifo(held)
    (tmp_path / "hangs.py").write_text(
        "import os, signal\nfrom bert_tf.system import script\n"
        f"def main(_):\n    os.write(os.open({str(held)!r}, os.O_WRONLY), b'%d' % os.getpid())\n    signal.pause()\n"
        "script.run(main)\n"
    )
    program = f"""
import pathlib
from experiments import script_runs
script_runs.SCRIPTS = pathlib.Path({place!r})
script_runs.do_run(script_runs.Run("hanging", "hangs.py", {{}}), {place!r})
"""
    reader, events = os.open(held, os.O_RDONLY | os.O_NONBLOCK), select.poll()
    events.register(reader)
    starter = warm.Popen([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert events.poll(1000 * warm.HANG_SECONDS)
    child = int(os.read(reader, 20))
    try:
        starter.kill()
        assert starter.wait() == -signal.SIGKILL
        assert events.poll(1000 * warm.HANG_SECONDS) == [(reader, select.POLLHUP)]  # nobody holds it any more
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)

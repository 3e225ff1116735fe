"""Whose a place is: living, dead and lost owners."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest
from helpers.events import wait_until
from helpers.locks import leave_lock

from bert_tf.system import atomic, local_files, run_lock


def held(folder):
    return run_lock.held(str(folder / "run.lock"), f"--output_dir={folder}", [f"{folder}/"])


def change(folder, **values):
    """Changes the lock file in a folder."""
    path = folder / "run.lock"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_living_owner_keeps_the_place(tmp_path):
    with held(tmp_path) as lock:
        owner = json.loads((tmp_path / "run.lock").read_text())
        assert owner["pid"] == os.getpid() and owner["host"] and owner["started"] and owner["token"] == lock.owner.token
        message = rf"^--output_dir=\S+ is in use by process {os.getpid()} on \S+ \(started \d+.*choose another place\.$"
        with pytest.raises(run_lock.LockedError, match=message), held(tmp_path):
            pass
        with pytest.raises(run_lock.LockedError, match=message):
            run_lock.check_free(str(tmp_path / "run.lock"), f"--output_dir={tmp_path}")
        atomic.write_text_file(str(tmp_path / "mine"), "")
    assert os.listdir(tmp_path) == ["mine"]
    run_lock.check_free(str(tmp_path / "run.lock"), "--output_dir")
    with held(tmp_path) as lock:
        assert lock.predecessor is None


@pytest.mark.parametrize("case", ["no such process", "number used again", "zombie"])
def test_a_dead_owner_loses_it(case, tmp_path):
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    pid, start = {
        "no such process": (dead_process(), 1),
        "number used again": (os.getpid(), 1),
        "zombie": (process.pid, local_files.start_of(process.pid)),
    }[case]
    leave_lock(tmp_path / "run.lock", pid=pid, process_start=start)
    with held(tmp_path) as lock:
        assert lock.predecessor.pid == pid
        assert json.loads((tmp_path / "run.lock").read_text())["token"] == lock.owner.token
    process.wait()
    assert os.listdir(tmp_path) == []


def crafted(**values) -> str:
    """The content of a lock file of this machine with some values changed."""
    return json.dumps({**dataclasses.asdict(run_lock._this_process()), **values})


DAMAGED = {
    "empty": "",
    "list": "[1]",
    "not UTF-8": b"\xff\xfe",
    "nested": "[" * 50_000,
    "large": crafted(host="x" * 2**17),
    "further value": crafted(other=1),
    "token of text": crafted(token="../../victim"),
    "pid of text": crafted(pid="7"),
    "pid 0": crafted(pid=0),
    "start of text": crafted(process_start="7"),
    "machine list": crafted(machine=[]),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_lock_is_taken_over_in_time(case, tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "LEASE_SECONDS", 0.05)
    monkeypatch.setattr(run_lock, "_POLL_SECONDS", 0.01)
    content = DAMAGED[case]
    (tmp_path / "run.lock").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert run_lock.read_owner(str(tmp_path / "run.lock")) == run_lock.Owner(token="")
    run_lock.check_free(str(tmp_path / "run.lock"), "--output_dir")
    with held(tmp_path) as lock:
        assert json.loads((tmp_path / "run.lock").read_text())["token"] == lock.owner.token
        atomic.write_text_file(str(tmp_path / "mine"), "")
    assert os.listdir(tmp_path) == ["mine"]


def test_what_is_no_file_is_no_lock(tmp_path):
    for make in (os.mkdir, os.mkfifo, lambda path: os.symlink("/dev/zero", path)):
        folder = tmp_path / make.__name__
        folder.mkdir()
        make(folder / "run.lock")
        with pytest.raises(OSError, match=r"run.lock is not a file, so it can't be the lock of a run: move it away\."):
            run_lock.check_free(str(folder / "run.lock"), "--output_dir")


def test_a_lock_file_behind_a_link_is_only_read(tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "LEASE_SECONDS", 0.05)
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.lock").symlink_to(tmp_path / "victim")
    with held(tmp_path / "run"):
        pass
    assert (tmp_path / "victim").read_text() == "precious" and os.listdir(tmp_path / "run") == []


def test_a_lock_cannot_steer_a_terminal(tmp_path):
    (tmp_path / "run.lock").write_text(crafted(host="\x1b[2J" + "x" * 999, started="\n"))
    message = r"is in use by process \d+ on \\u001b\[2Jx{96} \(started \\u000a\), as"
    with pytest.raises(run_lock.LockedError, match=message):
        run_lock.check_free(str(tmp_path / "run.lock"), "--output_dir")


@pytest.mark.parametrize("renewed", [False, True])
def test_an_owner_on_another_machine_lives_while_it_renews(renewed, tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "LEASE_SECONDS", 0.2)
    leave_lock(tmp_path / "run.lock", machine="another", host="far.away", pid=7)
    run_lock.check_free(str(tmp_path / "run.lock"), "--output_dir")  # can't be known without waiting
    monkeypatch.setattr(run_lock.time, "sleep", lambda _: change(tmp_path, renewals=1) if renewed else None)
    if renewed:
        with pytest.raises(run_lock.LockedError, match="is in use by process 7 on far.away"), held(tmp_path):
            pass
        assert json.loads((tmp_path / "run.lock").read_text())["pid"] == 7
    else:
        with held(tmp_path) as lock:
            assert lock.predecessor.host == "far.away"


def test_the_owner_renews_its_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "_RENEW_SECONDS", 0.01)
    with held(tmp_path) as lock:
        wait_until(lambda: json.loads((tmp_path / "run.lock").read_text())["renewals"] >= 3)
        found = json.loads((tmp_path / "run.lock").read_text())
        assert found["token"] == lock.owner.token and found["pid"] == os.getpid()


@pytest.mark.parametrize("lost", ["taken over", "removed"])
def test_an_owner_that_lost_its_place_writes_nothing_more(lost, tmp_path):
    message = (
        r"^--output_dir=\S+: this run has lost \S+run.lock, (taken over by process 7 on \S+ \(.*\)|which is gone): it"
    )
    (tmp_path / "run").mkdir()
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(run_lock.LockedError, match=message), held(tmp_path / "run"):
        atomic.write_text_file(str(tmp_path / "run" / "before"), "")
        with atomic.written(str(tmp_path / "run" / "during")):
            if lost == "removed":
                (tmp_path / "run" / "run.lock").unlink()
            else:
                change(tmp_path / "run", token="0" * 32, pid=7)
            atomic.write_text_file(str(tmp_path / "elsewhere" / "file"), "")
            with pytest.raises(run_lock.LockedError, match=message):
                atomic.write_text_file(str(tmp_path / "run" / "file"), "")
    left = {"before"} if lost == "removed" else {"before", "run.lock"}  # the successor's
    assert set(os.listdir(tmp_path / "run")) == left
    atomic.write_text_file(str(tmp_path / "run" / "after"), "")  # the end of the context ends the check


def test_a_folder_that_a_run_leaves_empty_is_removed(tmp_path):
    with held(tmp_path / "new"):
        assert os.listdir(tmp_path / "new") == ["run.lock"]
    assert os.listdir(tmp_path) == []

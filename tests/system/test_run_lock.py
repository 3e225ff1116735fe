"""Whose a place is: living, dead and lost owners."""

import json
import os
import random
import sys

import pytest
from helpers import warm
from helpers.events import wait_until
from helpers.locks import leave_lock, living, lock_content
from helpers.remote import PLACE, add_file_system

from bert_tf.system import run_lock, storage


def held(folder):
    return run_lock.held(f"{folder}/run.lock", f"--output_dir={folder}", [f"{folder}/"])


def content_of(folder) -> dict:
    return json.loads((folder / "run.lock").read_text())


def test_a_living_owner_keeps_the_place(tmp_path):
    with held(tmp_path):
        owner = content_of(tmp_path)
        assert owner["pid"] == os.getpid() and owner["host"] and owner["started"] and len(owner["token"]) == 32
        message = rf"^--output_dir=\S+ is in use by process {os.getpid()} on \S+ \(started \d+.*choose another place\.$"
        with pytest.raises(run_lock.LockedError, match=message), held(tmp_path):
            pass
        with pytest.raises(run_lock.LockedError, match=message):
            run_lock.check_free(str(tmp_path / "run.lock"), f"--output_dir={tmp_path}")
        storage.write_text_file(str(tmp_path / "mine"), "")
    assert os.listdir(tmp_path) == ["mine"]
    run_lock.check_free(str(tmp_path / "run.lock"), "--output_dir")
    with held(tmp_path):
        pass


def test_a_killed_owner_loses_it_at_once(tmp_path):
    program = (
        "import os\n"
        "from bert_tf.system import run_lock\n"
        f"with run_lock.held({str(tmp_path / 'run.lock')!r}, '', []): os.kill(os.getpid(), 9)\n"
    )
    warm.run([sys.executable, "-c", program])
    killed = content_of(tmp_path)
    assert killed["pid"] != os.getpid()
    run_lock.check_free(str(tmp_path / "run.lock"), "--output_dir")
    with held(tmp_path):
        assert content_of(tmp_path)["pid"] == os.getpid()
    assert os.listdir(tmp_path) == []


def test_a_killed_run_of_another_user_loses_it(tmp_path, monkeypatch):
    leave_lock(tmp_path / "run.lock", pid=7)
    opened = os.open

    def as_another_user(path, flags, *mode):
        if flags & os.O_RDWR and os.path.exists(path):
            raise PermissionError(13, "Permission denied")
        return opened(path, flags, *mode)

    monkeypatch.setattr(run_lock.os, "open", as_another_user)
    with held(tmp_path):
        assert content_of(tmp_path)["pid"] == os.getpid()


DAMAGED = {
    "empty": b"",
    "list": b"[1]",
    "not UTF-8": b"\xff\xfe",
    "nested": b"[" * 50_000,
    "large": lock_content(host="x" * 2**17).encode(),
    "token list": lock_content(token=["../../victim"]).encode(),
    "pid of text": lock_content(pid="7").encode(),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_lock_is_replaced(case, tmp_path):
    (tmp_path / "run.lock").write_bytes(DAMAGED[case])
    with living(tmp_path / "run.lock"), pytest.raises(run_lock.LockedError, match="is in use by process") as error:
        run_lock.check_free(str(tmp_path / "run.lock"), "--output_dir")
    assert len(str(error.value)) < 500
    with held(tmp_path):
        assert content_of(tmp_path)["pid"] == os.getpid()
        storage.write_text_file(str(tmp_path / "mine"), "")
    assert os.listdir(tmp_path) == ["mine"]


HOSTILE = (
    "\x1b[2J", "../victim", "\u202e", "x" * 9999, "\ud800", "\0", -1, 1e308, None, [[]], {"a": {}}, True, 10**400,
)  # fmt: skip


def test_crafted_locks_are_replaced_and_steer_nothing(tmp_path):
    """Forty by chance: values of other kinds, bytes that changed, parts that are missing."""
    path, chance = tmp_path / "run.lock", random.Random(5)
    (tmp_path / "victim").write_text("precious")
    for number in range(40):
        content = json.loads(lock_content())
        content |= {name: chance.choice(HOSTILE) for name in chance.sample([*content, "path", "writes"], 3)}
        crafted = bytearray(json.dumps(content).encode())
        for _ in range(number % 4):
            place = chance.randrange(len(crafted))
            crafted[place : place + chance.choice((0, 1, 50))] = chance.randbytes(chance.choice((0, 1, 9)))
        path.write_bytes(crafted)
        with living(path), pytest.raises(run_lock.LockedError, match="is in use by process") as error:
            run_lock.check_free(str(path), "--output_dir")
        assert len(str(error.value)) < 600 + len(str(path)) and str(error.value).isprintable(), crafted
        with held(tmp_path):
            assert content_of(tmp_path)["pid"] == os.getpid()
        assert os.listdir(tmp_path) == ["victim"] and (tmp_path / "victim").read_text() == "precious"


def test_what_is_no_file_is_no_lock(tmp_path):
    (tmp_path / "victim").write_text("precious")

    def link(path):
        os.symlink(tmp_path / "victim", path)

    for number, make in enumerate((os.mkdir, os.mkfifo, lambda path: os.symlink("/dev/zero", path), link)):
        folder = tmp_path / str(number)
        folder.mkdir()
        make(folder / "run.lock")
        for refusing in (lambda: run_lock.check_free(f"{folder}/run.lock", ""), held(folder).__enter__):  # noqa: B023
            with pytest.raises(
                OSError, match=r"run.lock is not a file, so it can't be the lock of a run: move it away\."
            ):
                refusing()
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_lock_file_that_is_also_another_file_is_only_read(tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "run").mkdir()
    os.link(tmp_path / "victim", tmp_path / "run" / "run.lock")
    with held(tmp_path / "run"):
        pass
    assert (tmp_path / "victim").read_text() == "precious" and os.listdir(tmp_path / "run") == []


def test_a_lock_cannot_steer_a_terminal(tmp_path):
    (tmp_path / "run.lock").write_text(lock_content(host="\x1b[2J" + "x" * 999, started="\n"))
    message = r"is in use by process \d+ on \\u001b\[2Jx{96} \(started \\u000a\), as"
    with living(tmp_path / "run.lock"), pytest.raises(run_lock.LockedError, match=message):
        run_lock.check_free(str(tmp_path / "run.lock"), "--output_dir")


@pytest.mark.parametrize("renewed", [False, True])
def test_the_owner_of_a_remote_place_lives_while_it_renews(renewed, tmp_path, monkeypatch):
    add_file_system(tmp_path)
    folder = tmp_path / "bucket"
    monkeypatch.setattr(run_lock, "LEASE_SECONDS", 0.2)
    leave_lock(folder / "run.lock", host="far.away", pid=7)
    run_lock.check_free(f"{PLACE}/run.lock", "--output_dir")  # can't be known without waiting

    def renew(_):
        leave_lock(folder / "run.lock", host="far.away", pid=7, renewals=1)

    monkeypatch.setattr(run_lock.time, "sleep", renew if renewed else lambda _: None)
    if renewed:
        with pytest.raises(run_lock.LockedError, match="is in use by process 7 on far.away"), held(PLACE):
            pass
        assert content_of(folder)["pid"] == 7
    else:
        with held(PLACE):
            assert content_of(folder)["pid"] == os.getpid()


def test_the_owner_of_a_remote_place_renews_its_lock(tmp_path, monkeypatch):
    add_file_system(tmp_path)
    (tmp_path / "bucket").mkdir()
    monkeypatch.setattr(run_lock, "_RENEW_SECONDS", 0.01)
    with held(PLACE):
        first = content_of(tmp_path / "bucket")
        wait_until(lambda: content_of(tmp_path / "bucket")["renewals"] >= 3)
        found = content_of(tmp_path / "bucket")
        assert found["token"] == first["token"] and found["pid"] == os.getpid()


@pytest.mark.parametrize("lost", ["taken over", "removed"])
def test_an_owner_that_lost_its_place_writes_nothing_more(lost, tmp_path):
    message = (
        r"^--output_dir=\S+: this run has lost \S+run.lock, (taken over by process 7 on \S+ \(.*\)|which is gone): it"
    )
    (tmp_path / "run").mkdir()
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(run_lock.LockedError, match=message), held(tmp_path / "run"):
        storage.write_text_file(str(tmp_path / "run" / "before"), "")
        with storage.written(str(tmp_path / "run" / "during")):
            (tmp_path / "run" / "run.lock").unlink()
            if lost == "taken over":
                leave_lock(tmp_path / "run" / "run.lock", pid=7)
            storage.write_text_file(str(tmp_path / "elsewhere" / "file"), "")
            with pytest.raises(run_lock.LockedError, match=message):
                storage.write_text_file(str(tmp_path / "run" / "file"), "")
    left = {"before"} if lost == "removed" else {"before", "run.lock"}  # the successor's
    assert set(os.listdir(tmp_path / "run")) == left
    storage.write_text_file(str(tmp_path / "run" / "after"), "")  # the end of the context ends the check


def test_a_folder_that_a_run_leaves_empty_is_removed(tmp_path):
    with held(tmp_path / "new"):
        assert os.listdir(tmp_path / "new") == ["run.lock"]
    assert os.listdir(tmp_path) == []

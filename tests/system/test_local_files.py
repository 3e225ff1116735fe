"""Private folders of killed processes are removed, and nothing else; a path is never read as a pattern."""

import os
import subprocess
import sys
import tempfile

import numpy as np
import pytest
from helpers.script_cases import weights_of

from bert_tf.store.bundle import find_bundle
from bert_tf.system import storage
from bert_tf.training import checkpoints


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def left_behind(place) -> str:
    program = (
        f"import os, tempfile\nfrom bert_tf.system.storage import private_folder\ntempfile.tempdir = {str(place)!r}\n"
        "folder = private_folder()\nopen(os.path.join(folder.name, 'file'), 'w').close()\n"
        "print(folder.name, flush=True)\nos._exit(9)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    path = result.stdout.strip()
    os.utime(path, (0, 0))
    return path


def test_folders_of_killed_processes_are_removed(place):
    path = left_behind(place)
    assert os.listdir(path) == ["file"]
    with storage.private_folder() as own:
        os.utime(own, (0, 0))
        storage.remove_left_behind()
        assert os.listdir(place) == [os.path.basename(own)] and oct(os.stat(own).st_mode & 0o777) == "0o700"


def test_links_and_others_folders_stay(place, monkeypatch):
    path = left_behind(place)
    (place / "precious").mkdir()
    os.rename(path, place / "precious" / "kept")
    os.symlink(place / "precious", path)  # under the name of the killed process's folder
    os.utime(path, (0, 0), follow_symlinks=False)
    new, other = place / f"{os.path.basename(path)}new", place / "bert_tf_of_something_else"
    new.mkdir()  # its process is about to lock it
    other.mkdir()
    os.utime(other, (0, 0))
    monkeypatch.setattr(storage.time, "time", lambda: new.stat().st_mtime + 0.9)
    before = sorted(os.listdir(place))
    storage.remove_left_behind()
    assert sorted(os.listdir(place)) == before and (place / "precious" / "kept" / "file").exists()
    os.unlink(path)
    os.rename(place / "precious" / "kept", path)
    os.utime(path, (0, 0))
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(path).st_uid + 1)  # another user's
    storage.remove_left_behind()
    assert os.path.exists(path)


NAMES = [
    "lr=[1e-4]", "[!a]", "a*b", "a?b", "a\\b", "\\[a\\]", "{a,b}", " a ", "a\nb", "$HOME", "~", "a%20b", "日本",
    "model.ckpt-3.index",
]  # fmt: skip


def save(folder, step, **options) -> str:
    return checkpoints.save(str(folder), step, {"bert/x": np.full(3, step, np.float32)}, **options)


@pytest.mark.parametrize("name", NAMES)
def test_checkpoints_are_found_in_folders_of_any_name(name, tmp_path):
    folder = tmp_path / name
    folder.mkdir()
    (tmp_path / "lr=1").mkdir()  # what the first name matches as a pattern
    save(tmp_path / "lr=1", 9)
    for step in (1, 2, 10):
        save(folder, step, keep_max=2)
    newest = checkpoints.latest_checkpoint(str(folder))
    assert newest == str(folder / "model.ckpt-10") == find_bundle(str(folder), "bert_model.ckpt")
    np.testing.assert_array_equal(weights_of(newest)["bert/x"], [10, 10, 10])
    assert {path.name for path in folder.glob("*.index")} == {"model.ckpt-10.index", "model.ckpt-2.index"}
    (folder / "checkpoint").unlink()
    assert checkpoints.latest_checkpoint(str(folder)) == newest
    for path in folder.glob("model.ckpt-10.*"):
        path.rename(folder / path.name.replace("model.ckpt-10", "released [1]?.ckpt"))
    for path in folder.glob("model.ckpt-2.*"):
        path.unlink()
    assert find_bundle(str(folder), "bert_model.ckpt") == str(folder / "released [1]?.ckpt")
    np.testing.assert_array_equal(weights_of(folder)["bert/x"], [10, 10, 10])

"""Private folders of killed processes are removed, and nothing else."""

import os
import subprocess
import sys
import tempfile

import pytest

from bert_tf.system import local_files


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def left_behind(place) -> str:
    """What a killed process leaves: a folder with a file."""
    program = (
        "import os, tempfile\n"
        "from bert_tf.system.local_files import private_folder\n"
        f"tempfile.tempdir = {str(place)!r}\n"
        "folder = private_folder()\n"
        "open(os.path.join(folder.name, 'file'), 'w').close()\n"
        "print(folder.name, flush=True)\n"
        "os._exit(9)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    return result.stdout.strip()


def test_folders_of_killed_processes_are_removed(place):
    path = left_behind(place)
    assert os.listdir(path) == ["file"]
    with local_files.private_folder() as own:
        local_files.remove_left_behind()
        assert os.listdir(place) == [os.path.basename(own)]
        assert oct(os.stat(own).st_mode & 0o777) == "0o700"


def test_links_and_others_folders_stay(place, monkeypatch):
    path = left_behind(place)
    (place / "precious").mkdir()
    os.rename(path, place / "precious" / "kept")
    os.symlink(place / "precious", path)  # under the name of the killed process's folder
    other = os.path.basename(path).replace(local_files._machine(), "0" * 8)
    (place / other).mkdir()  # of a machine, or container, whose processes can't be seen
    (place / "bert_tf_of_something_else").mkdir()
    before = sorted(os.listdir(place))
    local_files.remove_left_behind()
    assert sorted(os.listdir(place)) == before and (place / "precious" / "kept" / "file").exists()
    os.unlink(path)
    os.rename(place / "precious" / "kept", path)
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(path).st_uid + 1)  # another user's
    local_files.remove_left_behind()
    assert os.path.exists(path)

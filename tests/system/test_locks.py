"""Whose a folder is: living and dead owners."""

import os
import sys

import pytest
from helpers import warm
from helpers.remote import BUCKET, add_file_system

from bert_tf.system import storage


def held(folder):
    return storage.locked(f"{folder}/run.lock", f"--output_dir={folder}")


def test_a_living_owner_keeps_the_folder(tmp_path):
    message = r"^--output_dir=\S+ is in use by another run, which holds \S+/run.lock: "
    with held(tmp_path / "out"):
        with pytest.raises(storage.LockedError, match=message), held(tmp_path / "out"):
            pass
        assert os.listdir(tmp_path / "out") == ["run.lock"]
    assert not (tmp_path / "out").exists()  # it was new, and is empty
    with held(tmp_path):
        pass
    assert tmp_path.exists()


def test_a_killed_owner_loses_it_at_once(tmp_path):
    program = (
        "import os\n"
        "from bert_tf.system import storage\n"
        f"with storage.locked({str(tmp_path / 'run.lock')!r}, ''): os.kill(os.getpid(), 9)\n"
    )
    warm.run([sys.executable, "-c", program])
    assert os.listdir(tmp_path) == ["run.lock"]
    with held(tmp_path):
        pass
    assert os.listdir(tmp_path) == []


def test_a_remote_folder_has_no_lock(tmp_path):
    add_file_system(tmp_path)
    with held(BUCKET), held(BUCKET):
        assert not list(tmp_path.iterdir())

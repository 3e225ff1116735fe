"""Scratch directories of data creation: private, of one run, and removed together with nothing else."""

import os
import pathlib
import stat

import pytest
from helpers.locks import leave_lock
from helpers.pretraining_records_read import LETTERS, contents

from bert_tf.pretraining import shard
from bert_tf.pretraining.create import create_pretraining_data
from bert_tf.system import run_lock

DEAD = 4194305  # more than the largest process number


@pytest.fixture
def make(tmp_path):
    (tmp_path / "text.txt").write_text("a b c d e\ndead bead\n\nbb cad\nabc de\n" * 9)
    (tmp_path / "vocab.txt").write_text("\n".join(LETTERS) + "\n")
    for name in ("out", "scratch", "victim"):
        (tmp_path / name).mkdir()
    (tmp_path / "victim" / "file").write_text("precious")

    def make(name="a", **flags):
        arguments = {"max_seq_length": 32, "max_predictions_per_seq": 5, "num_workers": 1, "show_progress": False}
        names = [str(tmp_path / name) for name in ("text.txt", f"out/{name}.tfrecord", "vocab.txt")]
        return create_pretraining_data(*names, scratch_dir=str(tmp_path / "scratch"), **arguments | flags)

    return make


def lock_of_killed_run(folder, scratch, name="a", **values) -> None:
    leave_lock(folder / "out" / f".{name}.tfrecord.lock", pid=DEAD, scratch=str(scratch), **values)


def test_scratch_is_private_and_removed_and_strangers_are_left_alone(make, tmp_path, monkeypatch):
    seen = []
    tokenize = shard._tokenize

    def look(job, tokenizer, text_range, scratch, *arguments):
        own = pathlib.Path(scratch).parent
        seen.append((own.parent, own.name, stat.S_IMODE(own.stat().st_mode), own.stat().st_uid))
        strangers(own.name)
        return tokenize(job, tokenizer, text_range, scratch, *arguments)

    def strangers(name):
        """Folders and links of another user that look like this job's."""
        (tmp_path / "scratch" / f"{name}x").mkdir()
        (tmp_path / "scratch" / f"{name[:24]}_0_link").symlink_to(tmp_path / "victim")

    monkeypatch.setattr(shard, "_tokenize", look)
    make()
    ((parent, name, mode, user),) = seen
    assert parent == tmp_path / "scratch" and mode == 0o700 and user == os.getuid()
    assert name.startswith("bert_tf_") and len(name) == len("bert_tf_") + 32
    assert set(contents(tmp_path / "out")) == {"a.tfrecord", "pretraining_data.a.index.npz", "pretraining_data.a.json"}
    (tmp_path / "out" / "a.tfrecord").unlink()
    make()
    assert len(list((tmp_path / "scratch").iterdir())) == 4  # the strangers of both runs
    assert (tmp_path / "victim" / "file").read_text() == "precious"


def test_the_scratch_of_a_killed_run_is_removed_and_no_link_is_followed(make, tmp_path):
    token = "f" * 32
    scratch = tmp_path / "scratch" / f"bert_tf_{token}"
    (scratch / "0").mkdir(parents=True)
    (scratch / "0" / "link").symlink_to(tmp_path / "victim")
    lock_of_killed_run(tmp_path, scratch, token=token)
    (tmp_path / "out" / ".a.tfrecord.0123456789ab.tmp").write_text("half")
    (tmp_path / "out" / ".b.tfrecord.0123456789ab.tmp").write_text("of another job")
    make()
    assert not list((tmp_path / "scratch").iterdir())
    assert (tmp_path / "victim" / "file").exists()
    assert set(contents(tmp_path / "out")) == {
        ".b.tfrecord.0123456789ab.tmp", "a.tfrecord", "pretraining_data.a.index.npz", "pretraining_data.a.json",
    }  # fmt: skip


@pytest.mark.parametrize("case", ["link", "file", "another name", "nothing", "no token", "no path", "no text"])
def test_what_is_not_a_scratch_directory_is_left_alone(case, make, tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "LEASE_SECONDS", 0.05)  # for a lock that no run has written
    token = "victim" if case == "no token" else "f" * 32
    scratch = tmp_path / "scratch" / f"bert_tf_{token}"
    if case == "link":
        scratch.symlink_to(tmp_path / "victim")
    elif case == "file":
        scratch.write_text("")
    elif case == "no token":
        scratch.mkdir()
        (scratch / "file").write_text("precious")
    named = {
        "another name": tmp_path / "victim",
        "no path": f"\0/bert_tf_{token}",
        "no text": f"\ud800/bert_tf_{token}",
    }
    lock_of_killed_run(tmp_path, named.get(case, scratch), token=token)
    make()
    assert (tmp_path / "victim" / "file").read_text() == "precious"
    assert os.path.lexists(scratch) == (case in ("link", "file", "no token"))


@pytest.mark.parametrize("way", ["plainly", "by dots", "by a link"])
def test_a_folder_that_only_has_the_name_is_left_alone(way, make, tmp_path, caplog):
    """A lock file may name any place, but scratch directories are only in --scratch_dir."""
    token = "f" * 32
    (tmp_path / "victim").rename(tmp_path / f"bert_tf_{token}")
    (tmp_path / "scratch" / "link").symlink_to(tmp_path)
    place = {"plainly": tmp_path, "by dots": f"{tmp_path}/scratch/..", "by a link": f"{tmp_path}/scratch/link"}[way]
    lock_of_killed_run(tmp_path, f"{place}/bert_tf_{token}", token=token)
    make()
    assert (tmp_path / f"bert_tf_{token}" / "file").read_text() == "precious"
    assert f"{place}/bert_tf_{token} seems to be left by a killed run with another --scratch_dir" in caplog.text


def test_two_runs_of_one_job_do_not_disturb_each_other(make, tmp_path, monkeypatch):
    tokenize, refused = shard._tokenize, []

    def second(job, tokenizer, text_range, scratch, *arguments):
        monkeypatch.setattr(shard, "_tokenize", tokenize)
        before = sorted(os.listdir(tmp_path / "scratch"))
        with pytest.raises(run_lock.LockedError, match=r"^--output_file=\S+ is in use by process \d+ on") as error:
            make()
        refused.append(error)
        assert sorted(os.listdir(tmp_path / "scratch")) == before and os.path.isdir(scratch)
        return tokenize(job, tokenizer, text_range, scratch, *arguments)

    monkeypatch.setattr(shard, "_tokenize", second)
    made = make()
    assert refused and made["instances"]
    assert set(contents(tmp_path / "out")) == {"a.tfrecord", "pretraining_data.a.index.npz", "pretraining_data.a.json"}


def test_a_lock_with_the_token_of_a_living_run_takes_nothing_from_it(make, tmp_path, monkeypatch, caplog):
    tokenize, seen = shard._tokenize, []

    def other(job, tokenizer, text_range, scratch, *arguments):
        monkeypatch.setattr(shard, "_tokenize", tokenize)
        own = pathlib.Path(scratch).parent
        lock_of_killed_run(tmp_path, own, "b", token=own.name.removeprefix("bert_tf_"))
        make("b")
        seen.append(own)
        assert os.listdir(own) == [os.path.basename(scratch)]
        return tokenize(job, tokenizer, text_range, scratch, *arguments)

    monkeypatch.setattr(shard, "_tokenize", other)
    make()
    assert f"{seen[0]} seems to be left by a killed run, but may be in use by another one" in caplog.text
    records = [(tmp_path / "out" / f"{name}.tfrecord").read_bytes() for name in "ab"]
    assert records[0] == records[1] and not list((tmp_path / "scratch").iterdir())


def test_a_run_that_lost_its_files_writes_nothing(make, tmp_path, monkeypatch):
    tokenize = shard._tokenize

    def lose(*arguments):
        lock_of_killed_run(tmp_path, "", token="0" * 32)
        return tokenize(*arguments)

    monkeypatch.setattr(shard, "_tokenize", lose)
    with pytest.raises(run_lock.LockedError, match="this run has lost"):
        make()
    assert set(contents(tmp_path / "out")) == {".a.tfrecord.lock"}

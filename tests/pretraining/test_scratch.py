"""Scratch directories of data creation: private, of one run, and removed together with nothing else."""

import os
import pathlib
import stat

import pytest
from helpers.pretraining_records_read import LETTERS, contents

from bert_tf.pretraining import shard
from bert_tf.pretraining.create import create_pretraining_data
from bert_tf.system import storage


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


def test_scratch_is_private_and_removed_also_after_a_kill(make, tmp_path, monkeypatch):
    """The next run of the same output removes what a killed one left, and follows no link."""
    seen, tokenize = [], shard._tokenize

    def look(job, *arguments):
        own = pathlib.Path(job.records.scratch_dir)
        seen.append((own, stat.S_IMODE(own.stat().st_mode), own.stat().st_uid))
        assert len(list((tmp_path / "scratch").iterdir())) == 1
        return tokenize(job, *arguments)

    monkeypatch.setattr(shard, "_tokenize", look)
    make()
    assert not list((tmp_path / "scratch").iterdir())
    own, *others = seen[0]
    assert own.parent == tmp_path / "scratch" and others == [0o700, os.getuid()]
    for left in ("folder", "link"):
        if left == "folder":
            (own / "0").mkdir(parents=True)
            (own / "0" / "link").symlink_to(tmp_path / "victim")
        else:
            own.symlink_to(tmp_path / "victim")
        (tmp_path / "out" / "pretraining_data.a.json").unlink()
        make()
        assert seen[-1][0] == own and not list((tmp_path / "scratch").iterdir())
    assert (tmp_path / "victim" / "file").read_text() == "precious"
    make("b")
    assert seen[-1][0] != own


def test_two_runs_of_one_job_do_not_disturb_each_other(make, tmp_path, monkeypatch):
    tokenize, refused = shard._tokenize, []

    def second(job, *arguments):
        monkeypatch.setattr(shard, "_tokenize", tokenize)
        before = sorted(os.listdir(tmp_path / "scratch"))
        with pytest.raises(storage.LockedError, match=r"^--output_file=\S+ is in use by another run") as error:
            make()
        refused.append(error)
        assert sorted(os.listdir(tmp_path / "scratch")) == before and os.path.isdir(job.records.scratch_dir)
        return tokenize(job, *arguments)

    monkeypatch.setattr(shard, "_tokenize", second)
    made = make()
    assert refused and made["instances"]
    assert set(contents(tmp_path / "out")) == {"a.tfrecord", "pretraining_data.a.index.npz", "pretraining_data.a.json"}

"""A run whose newest checkpoint is damaged goes on from the newest whole one, or stops, as it is told."""

import os
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
from helpers.pretraining_runs import assert_bit_identical, command, run, values, write_inputs
from helpers.slow import slow

from bert_tf.store.bundle import CheckpointReader, DamagedError, checkpoints_among, latest_checkpoint
from bert_tf.system import storage
from bert_tf.training import checkpoints, run_directory

NAMES = ("a/kernel", "global_step")


def flip(path: pathlib.Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


DAMAGE = {
    "flipped": lambda path: flip(path, 8 * (path.stat().st_size // 2)),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
}


def save_steps(folder, *steps) -> None:
    for step in steps:
        tensors = {"a/kernel": np.full((20, 10), step, np.float32), "global_step": np.int64(step)}
        checkpoints.save(str(folder), step, tensors)


def read_all(prefix: str) -> dict:
    reader = CheckpointReader(prefix)
    return {name: reader.get_tensor(name) for name in NAMES}


def test_a_finished_run_goes_on_from_before_its_damaged_end(tmp_path):
    out = str(tmp_path)
    run_directory.Manifest(run_directory.EarlierRun(out), {}, []).record(resumed=False)
    run_directory.mark_as_finished(out, 20)
    for step in (15, 20):
        checkpoints.save(out, step, {"w/adam_m": np.ones(1, np.float32), "global_step": np.int64(step)})
        earlier = run_directory.find_earlier_run(out, (), trains=True)
        assert run_directory.Manifest(earlier, {}, []).is_finished(20) == (step == 20)


@pytest.mark.parametrize("suffix", ["index", "data-00000-of-00001"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_the_newest_whole_one_is_used(damage, suffix, tmp_path, caplog):
    save_steps(tmp_path, 1, 2, 3)
    DAMAGE[damage](tmp_path / f"model.ckpt-3.{suffix}")
    assert checkpoints.use_newest(checkpoints_among(os.listdir(tmp_path), str(tmp_path)), read_all)["global_step"] == 2
    assert latest_checkpoint(str(tmp_path)) == f"{tmp_path}/model.ckpt-2"
    if damage == "missing":
        assert f"names no checkpoint that is there; {tmp_path}/model.ckpt-2 is the newest" in caplog.text
        return
    assert f"{tmp_path}/model.ckpt-3 is damaged; going on from {tmp_path}/model.ckpt-2 instead. " in caplog.text
    left = sorted(path.name for path in tmp_path.glob("*ckpt-3*"))
    assert left == [f"damaged.model.ckpt-3.{name}" for name in ("data-00000-of-00001", "index")]
    save_steps(tmp_path, 3)
    assert checkpoints.use_newest(checkpoints_among(os.listdir(tmp_path), str(tmp_path)), read_all)["global_step"] == 3


@pytest.mark.parametrize("whole", [(), (1, 2)])
def test_nothing_is_renamed_where_none_is_used(whole, tmp_path):
    save_steps(tmp_path, 1, 2, 3)
    for step in {1, 2, 3} - set(whole):
        DAMAGE["cut off"](tmp_path / f"model.ckpt-{step}.data-00000-of-00001")
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(DamagedError, match=r"model\.ckpt-3: its values can't be read"):
        checkpoints.use_newest(checkpoints_among(os.listdir(tmp_path), str(tmp_path)), read_all, may_be_older=not whole)
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize(("damage", "suffix"), [("zeroed", "index"), ("empty", "data-00000-of-00001")])
def test_what_is_checked_before_anything_else(damage, suffix, tmp_path):
    save_steps(tmp_path, 1, 2)
    DAMAGE[damage](tmp_path / f"model.ckpt-2.{suffix}")
    earlier = run_directory.find_earlier_run(str(tmp_path), (), trains=True)
    assert earlier.newest == f"{tmp_path}/model.ckpt-1"


@pytest.mark.parametrize("seed", [0, *slow(1)])
def test_no_flipped_bit_is_silent(seed, tmp_path):
    save_steps(tmp_path / "whole", 1)
    whole, draws = read_all(f"{tmp_path}/whole/model.ckpt-1"), np.random.default_rng(seed)
    for suffix in ("index", "data-00000-of-00001"):
        size = (tmp_path / "whole" / f"model.ckpt-1.{suffix}").stat().st_size
        for number, bit in enumerate(draws.integers(8 * size, size=15)):
            folder = tmp_path / f"{suffix}-{number}"
            shutil.copytree(tmp_path / "whole", folder)
            flip(folder / f"model.ckpt-1.{suffix}", int(bit))
            try:
                found = read_all(f"{folder}/model.ckpt-1")
            except DamagedError as error:
                assert f"{folder}/model.ckpt-1" in str(error)
            else:
                np.testing.assert_equal(found, whole)


def test_files_are_on_the_disk_before_they_are_named(tmp_path, monkeypatch):
    """Values and index, then the folder, then the state file: after a power cut, what is named is there."""
    done, rename, synced = [], tf.io.gfile.rename, os.fsync

    def noted_rename(source, target, **options):
        rename(source, target, **options)
        done.append(("named", os.path.basename(target)))

    def noted_sync(descriptor):
        synced(descriptor)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        done.append(("on the disk", "the folder" if path == str(tmp_path) else os.path.basename(path)))

    monkeypatch.setattr(tf.io.gfile, "rename", noted_rename)
    monkeypatch.setattr(os, "fsync", noted_sync)
    save_steps(tmp_path, 7)
    state = done.pop(5)
    assert state[0] == "on the disk" and storage.is_temporary_name(state[1])
    files, folder = ("data-00000-of-00001", "index"), ("on the disk", "the folder")
    written = [("on the disk", f"model.{name}") for name in files]
    named = [("named", f"model.ckpt-7.{name}") for name in files]
    assert done == [*written, *named, folder, ("named", "checkpoint"), folder]


def test_a_run_begins_among_no_files_that_it_would_replace(tmp_path):
    (tmp_path / "notes.md").write_text("mine")
    (tmp_path / "seed-1").mkdir()
    options = {"own_settings": (), "trains": True, "may_have_files": False}
    run_directory.find_earlier_run(str(tmp_path), **options)
    run_directory.find_earlier_run(str(tmp_path / "new"), **options)
    for name in ("eval_results.txt", "vocab.txt"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(ValueError, match=r"a run would replace, .* \(it has no run.json\): eval_results.txt, voc"):
        run_directory.find_earlier_run(str(tmp_path), **options)
    (tmp_path / "run.json").write_text("{}")
    run_directory.find_earlier_run(str(tmp_path), **options)


@pytest.mark.slow  # in small: above
def test_the_same_command_ends_with_the_same_bits(tmp_path):
    data, folder = write_inputs(tmp_path), tmp_path / "stopped"
    flags = {"num_train_steps": 4, "save_checkpoints_steps": 1, "log_every_steps": 1}
    for given in ({"output_dir": tmp_path / "whole"}, {"output_dir": folder, "stop_at_step": 3}):
        run(command(data, **flags, **given))
    DAMAGE["flipped"](folder / "model.ckpt-3.data-00000-of-00001")
    assert "/model.ckpt-3 is damaged; going on from " in run(command(data, folder, **flags))
    assert_bit_identical(values(tmp_path / "whole", 4), values(folder, 4))

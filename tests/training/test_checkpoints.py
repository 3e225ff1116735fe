"""Checkpoints under the original's names: what is read, written, rejected; a run whose newest one is damaged."""

import functools
import os
import pathlib
import shutil
import signal
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.basics import slow
from helpers.tiny import TINY_CONFIG
from helpers.training_steps import make_batches, prepared, train_loop
from helpers.warm import HANG_SECONDS, wait_until

from bert_tf import BertConfig, BertForPreTraining
from bert_tf.models import initialize
from bert_tf.store import bundle
from bert_tf.store.bundle import CheckpointReader, DamagedError, checkpoints_among, latest_checkpoint, steps_among
from bert_tf.store.open import open_weights
from bert_tf.store.tensor_files import Weights
from bert_tf.system import storage
from bert_tf.training import checkpoints, loop, run_directory


def test_written_files_are_the_originals_format(golden, tmp_path):
    """Reading the original's checkpoint of step 6 and writing it gives the same names, types and bits."""
    folder = golden / "optimizer"
    config = BertConfig.from_json_file(str(folder / "bert_config.json"))
    model, optimizer = prepared(BertForPreTraining(config), steps=20, warmup=5)
    variables = initialize.training_variables(model, optimizer)
    initialize.initialize(variables, open_weights(str(folder / "pretraining.ckpt-6")), must_have_all=True)
    assert int(optimizer.iterations.numpy()) == 6
    prefix = checkpoints.save(str(tmp_path), 6, variables)
    original = tf.train.load_checkpoint(str(folder / "pretraining.ckpt-6"))
    ours = tf.train.load_checkpoint(prefix)
    assert ours.get_variable_to_shape_map() == original.get_variable_to_shape_map()
    assert ours.get_variable_to_dtype_map() == original.get_variable_to_dtype_map()
    for name in original.get_variable_to_shape_map():
        np.testing.assert_array_equal(ours.get_tensor(name), original.get_tensor(name), err_msg=name)


def test_a_wrong_shape_assigns_nothing(tmp_path):
    model = BertForPreTraining(BertConfig.from_dict(TINY_CONFIG))
    model.build()
    before = {name: v.numpy() for name, v in initialize.model_variables(model).items()}
    tensors = {name: np.ones_like(value) for name, value in before.items()}
    tensors["cls/predictions/output_bias"] = np.ones(7, "float32")
    prefix = checkpoints.save(str(tmp_path), 1, tensors)
    with pytest.raises(ValueError, match=r"cls/predictions/output_bias: \[7\] in the checkpoint, \[100\] in the model"):
        initialize.initialize(initialize.model_variables(model), open_weights(prefix))
    for name, variable in initialize.model_variables(model).items():
        np.testing.assert_array_equal(variable.numpy(), before[name])
    prefix = checkpoints.save(str(tmp_path), 2, {"other": np.ones(2, "float32")})
    with pytest.raises(ValueError, match="none of the model's variables"):
        initialize.initialize(initialize.model_variables(model), open_weights(prefix))


def save_steps(folder, *steps, **options) -> None:
    for step in steps:
        tensors = {"a/kernel": np.full((20, 10), step, np.float32), "global_step": np.int64(step)}
        checkpoints.save(str(folder), step, tensors, **options)


def test_newest_are_kept_and_listed(tmp_path):
    save_steps(tmp_path, 1, 2, 3, 4, keep_max=2)
    checkpoints.save(str(tmp_path), 4, {"a/kernel": np.full(2, 9.0)}, keep_max=2)  # the same step again
    kept = {f"model.ckpt-{step}.{suffix}" for step in (3, 4) for suffix in ("index", "data-00000-of-00001")}
    assert {*os.listdir(tmp_path)} == {"checkpoint", *kept}
    assert tf.train.load_variable(latest_checkpoint(str(tmp_path)), "a/kernel").tolist() == [9, 9]


def test_weights_that_no_run_saved_are_never_removed(tmp_path):
    """Whatever the state file says; the released weights may lie beside a run's checkpoints."""
    folder = str(tmp_path)
    save_steps(folder, 1, 2)
    for suffix in (".index", ".data-00000-of-00001"):
        (tmp_path / f"model.ckpt-1{suffix}").rename(tmp_path / f"bert_model.ckpt{suffix}")
    listed = ["bert_model.ckpt", f"{tmp_path}/../{tmp_path.name}/bert_model.ckpt", "model.ckpt-2"]
    lines = [f'all_model_checkpoint_paths: "{name}"\n' for name in listed]
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-2"\n' + "".join(lines))
    checkpoints.remove_superseded(folder, 1, storage.names_in(folder))
    save_steps(folder, 3, keep_max=1)
    assert sorted(path.name for path in tmp_path.glob("*.index")) == ["bert_model.ckpt.index", "model.ckpt-3.index"]
    assert (tmp_path / "bert_model.ckpt.data-00000-of-00001").exists()


def test_a_lost_state_file_does_not_lose_the_run(tmp_path):
    """Nor one that was removed: system/test_storage.py."""
    save_steps(tmp_path, 9, 10)
    for damaged in (b"", b'all_model_checkpoint_paths: "model.ckpt-9"', b"\xff\xfe", b"model_checkpoint_path: {"):
        (tmp_path / "checkpoint").write_bytes(damaged)
        assert latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-10")


@pytest.mark.parametrize("named", [None, ["model.ckpt-0", "model.ckpt-1"]])
def test_a_checkpoint_that_a_kill_left_unlisted_is_removed_in_its_turn(named, tmp_path):
    """The first one, killed before the state file was written; or one whose state file names another that is gone."""
    folder = str(tmp_path)
    save_steps(folder, 3)
    state = tmp_path / "checkpoint"
    state.unlink()
    if named:
        lines = [f'model_checkpoint_path: "{named[-1]}"', *(f'all_model_checkpoint_paths: "{name}"' for name in named)]
        state.write_text("\n".join(lines) + "\n")
    checkpoints.remove_superseded(folder, 2, storage.names_in(folder))
    assert latest_checkpoint(folder).endswith("model.ckpt-3") and "ckpt-1" not in state.read_text()
    save_steps(folder, 6, 9, keep_max=2)
    assert sorted(path.name for path in tmp_path.glob("*.index")) == ["model.ckpt-6.index", "model.ckpt-9.index"]
    save_steps(tmp_path / "other", 3)
    for path in (tmp_path / "other").glob("model.ckpt-3.*"):
        path.rename(tmp_path / path.name)
    for keep_max, remains in ((3, True), (2, False)):  # an older one goes where as many as are kept are listed
        checkpoints.remove_superseded(folder, keep_max, storage.names_in(folder))
        assert (tmp_path / "model.ckpt-3.index").exists() == remains and (tmp_path / "model.ckpt-6.index").exists()


def test_shards_are_found_and_removed_together(tmp_path, monkeypatch):
    monkeypatch.setattr(bundle, "_SHARDED_FROM_BYTES", 1)
    values = {name: np.ones(size, np.float32) for name, size in (("a", 9), ("b", 8), ("c", 7))}
    shapes = {name: value.shape for name, value in values.items()}
    for step in (5, 6):
        weights = Weights("here", "tf1", shapes, dict.fromkeys(shapes, ""), values.get)
        bundle.write_bundle(str(tmp_path / f"model.ckpt-{step}"), weights)
    assert len(list(tmp_path.glob("model.ckpt-6.data-*-of-00003"))) == 3
    assert latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-6")
    checkpoints.save(str(tmp_path), 6, values, keep_max=1)
    files = [path.name.removeprefix("model.ckpt-6.") for path in tmp_path.glob("model.ckpt-6*")]
    assert sorted(files) == ["data-00000-of-00001", "index"]
    named = 'model_checkpoint_path: "model.ckpt-5"\nall_model_checkpoint_paths: "model.ckpt-5"\n'
    (tmp_path / "checkpoint").write_text(named)
    checkpoints.save(str(tmp_path), 7, values, keep_max=1)
    assert not list(tmp_path.glob("model.ckpt-5*"))


@pytest.fixture
def held(monkeypatch):
    event, save = threading.Event(), checkpoints.save

    def held_save(*arguments):
        assert event.wait(HANG_SECONDS), "training waits for the checkpoint"
        return save(*arguments)

    monkeypatch.setattr(checkpoints, "save", held_save)
    yield event
    event.set()


CHANGES = {
    "assign": lambda v: v.assign(tf.zeros_like(v)),
    "assign_add": lambda v: v.assign_add(tf.ones_like(v)),
    "rows": lambda v: v.scatter_add(tf.IndexedSlices(tf.ones([1, 3]), tf.constant([1]), tf.constant([4, 3]))),
    "descent": lambda v: tf.raw_ops.ResourceApplyGradientDescent(var=v.handle, alpha=1.0, delta=tf.ones_like(v)),
}


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("in_a_graph", [False, True])
def test_the_values_are_those_of_the_step(kind, in_a_graph, held, tmp_path):
    variable = keras.Variable(np.arange(12, dtype=np.float32).reshape(4, 3))
    change = functools.partial(CHANGES[kind], variable.value)
    with checkpoints.Writer(str(tmp_path), 5) as writer:
        writer.save(1, {"a": variable, "global_step": np.int64(1)})
        (tf.function(lambda: [change(), 0][1]) if in_a_graph else change)()
        assert not np.array_equal(variable.numpy(), np.arange(12).reshape(4, 3))
        held.set()
    saved = CheckpointReader(f"{tmp_path}/model.ckpt-1").get_tensor("a")
    np.testing.assert_array_equal(saved, np.arange(12).reshape(4, 3))


def test_one_after_the_other(held, tmp_path):
    with checkpoints.Writer(str(tmp_path), 2) as writer:
        writer.save(1, {"a": np.ones(2, np.float32)})
        assert latest_checkpoint(str(tmp_path)) is None
        held.set()
        for step in (2, 3):
            writer.save(step, {"a": np.ones(2, np.float32)})
            assert f"model.ckpt-{step - 1}" in steps_among(os.listdir(tmp_path)).values()
    assert list(steps_among(os.listdir(tmp_path))) == [2, 3]


def test_an_error_ends_the_run_at_the_next_save_or_at_the_end(monkeypatch, tmp_path, caplog):
    def failing(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(checkpoints, "save", failing)
    with checkpoints.Writer(str(tmp_path), 5) as writer:
        writer.save(1, {"a": np.ones(2, np.float32)})
        with pytest.raises(OSError, match="the disk is full"):
            writer.save(2, {"a": np.ones(2, np.float32)})
    with pytest.raises(OSError, match="the disk is full"), checkpoints.Writer(str(tmp_path), 5) as writer:
        writer.save(1, {"a": np.ones(2, np.float32)})
    assert "the disk is full" not in caplog.text
    with pytest.raises(KeyError), checkpoints.Writer(str(tmp_path), 5) as writer:
        writer.save(1, {"a": np.ones(2, np.float32)})
        raise KeyError
    assert "the disk is full" in caplog.text


PERIODS = {"log_every_steps": 1, "save_checkpoints_steps": 2, "eval_every_steps": 3}


def test_training_does_not_wait(held, tmp_path):
    log = tmp_path / "train_log.jsonl"

    def release_when_a_step_is_done():
        wait_until(lambda: log.exists() and log.read_text())
        held.set()

    threading.Thread(target=release_when_a_step_is_done, daemon=True).start()
    train_loop(tmp_path, make_batches(4, 4), lambda step: {}, **PERIODS)
    assert list(steps_among(os.listdir(tmp_path))) == [2, 4]


def test_after_sigterm_the_checkpoint_is_there_before_the_end(tmp_path):
    def terminate(step):
        os.kill(os.getpid(), signal.SIGTERM)
        return {}

    with pytest.raises(SystemExit) as raised:
        train_loop(tmp_path, make_batches(4, 8), terminate, **PERIODS)
    assert raised.value.code == loop.EXIT_CODE_TERMINATED and max(steps_among(os.listdir(tmp_path))) == 4


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


def read_all(prefix: str) -> dict:
    reader = CheckpointReader(prefix)
    return {name: reader.get_tensor(name) for name in ("a/kernel", "global_step")}


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
    find = functools.partial(run_directory.find_earlier_run, own_settings=(), trains=True, may_have_files=False)
    (tmp_path / "seed-1").mkdir()
    for name in ("notes.md", "eval_results.txt", "vocab.txt"):
        (tmp_path / name).write_text("mine")
    message = r"a run would replace, .* \(it has no run.json\): eval_results.txt, vocab.txt\. Choose"
    with pytest.raises(ValueError, match=message):
        find(str(tmp_path))
    (tmp_path / "run.json").write_text("{}")
    find(str(tmp_path))

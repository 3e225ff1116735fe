"""Files are written completely or not at all, kept arrays read whole or made again; whose a folder is; odd paths."""

import contextlib
import fcntl
import functools
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types

import numpy as np
import pytest
import tensorflow as tf
from helpers import warm
from helpers.basics import slow
from helpers.every_model import CONFIG, inputs
from helpers.remote import BUCKET, Killed, add_file_system, end_at
from helpers.script_cases import weights_of

from bert_tf import BertForSequenceClassification, FullTokenizer, read_tokenizer
from bert_tf.serving import export
from bert_tf.serving.text_index import TextIndex
from bert_tf.store import bundle
from bert_tf.store.bundle import checkpoints_among, latest_checkpoint
from bert_tf.store.open import find_export, find_weights
from bert_tf.store.save import files_below
from bert_tf.system import storage
from bert_tf.system.storage import arrays_as_bytes, load_arrays
from bert_tf.system.text_files import list_folder
from bert_tf.training import checkpoints


def test_files_appear_together_or_not_at_all(tmp_path):
    paths = [str(tmp_path / name) for name in ("a", "b")]
    (tmp_path / "a").write_text("old")

    def write(fail: bool) -> None:
        with storage.atomic_files(paths) as temporary:
            for number, name in enumerate(temporary):
                storage.write_text_file(name, f"new {number}")
            assert (tmp_path / "a").read_text() == "old" and not (tmp_path / "b").exists()
            if fail:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(fail=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    write(fail=False)
    assert sorted((path.name, path.read_text()) for path in tmp_path.iterdir()) == [("a", "new 0"), ("b", "new 1")]


def test_a_temporary_folder_begins_empty_and_goes(tmp_path):
    folder = tmp_path / "x.writing"
    folder.mkdir()
    (folder / "left by a killed process").touch()
    with pytest.raises(ValueError, match="stop"), storage.temporary_folder(str(folder)):
        assert list(folder.iterdir()) == []
        (folder / "half").touch()
        raise ValueError("stop")
    assert list(tmp_path.iterdir()) == []


def test_whole_or_none(tmp_path, caplog):
    path = str(tmp_path / "kept.npz")
    assert load_arrays(path) is None
    arrays = {"one": np.arange(3), "two": np.zeros((2, 0))}
    storage.write_file(path, arrays_as_bytes(arrays))
    np.testing.assert_equal(load_arrays(path), arrays)
    np.testing.assert_equal(load_arrays(path, ("one", "two")), arrays)
    assert load_arrays(path, ("one", "three", "four")) is None
    assert "kept.npz can't be read (no four, three): made again." in caplog.text


def save_two_files(folder: str, version: int) -> None:
    tf.io.gfile.makedirs(folder)
    storage.write_files({f"{folder}/{name}": str(version).encode() for name in ("first", "last")})


def read_two_files(folder: str) -> str:
    last, first = (tf.io.gfile.GFile(f"{folder}/{name}").read() for name in ("last", "first"))
    return first + last


@functools.cache
def made_model(version: int) -> BertForSequenceClassification:
    """Of the first version label "a" is the first output, of the second it is the last."""
    model = BertForSequenceClassification(CONFIG, labels=["a", "b"] if version == 1 else ["c", "b", "a"])
    model.build()
    for variable in model.variables:
        variable.assign(np.full(variable.shape, version))
    model.head.output_bias.assign([1.0, 2.0] if version == 1 else [3.0, 2.0, 1.0])
    return model


def save_model(folder: str, version: int, format: str) -> None:
    made_model(version).save_pretrained(folder, format=format, overwrite=True)


def read_model(folder: str) -> tuple:
    model = BertForSequenceClassification.from_pretrained(folder)
    model(inputs())
    bias = dict(zip(model.labels, np.array(model.head.output_bias), strict=True))
    return float(np.max(model.bert.embeddings.word_embeddings)), sorted(bias.items())


def save_tokenizer(folder: str, version: int) -> None:
    pieces = ["a", "b"] if version == 1 else ["B", "A"]
    vocab_file = f"{folder}.txt"
    storage.write_text_file(vocab_file, "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces]))
    FullTokenizer(vocab_file, do_lower_case=version == 1).save_pretrained(folder)


def read_ids(folder: str) -> list:
    return read_tokenizer(folder).encode("A b B a")


def save_index(folder: str, version: int) -> None:
    TextIndex([str(version)] * version, np.eye(version, 4)).save(folder)


def read_index(folder: str) -> tuple:
    index = TextIndex.load(folder, EMBEDDER)
    return index.texts, index.vectors.shape


def save_checkpoint(folder: str, version: int) -> None:
    tf.io.gfile.makedirs(folder)
    checkpoints.save(folder, version, {"global_step": np.int64(version), "x": np.full(3, version)})


def read_checkpoint(folder: str) -> list:
    checkpoints.remove_superseded(folder, 5, storage.names_in(folder))
    prefixes = checkpoints_among(storage.names_in(folder), folder)
    return checkpoints.use_newest(prefixes, lambda prefix: bundle.CheckpointReader(prefix).get_tensor("x")).tolist()


def save_export(folder: str, version: int, key: str) -> None:
    if (found := find_export(list_folder(folder))) and found.path == f"{folder}/{version}":
        return  # it ended after it was written
    with export.version_folder(folder) as new:
        for name in ("variables/variables.index", "assets/vocab.txt", "assets.extra/requests", "export.json", key):
            os.makedirs(os.path.dirname(f"{new}/{name}"), exist_ok=True)
            pathlib.Path(new, name).write_text(str(version))
        export.publish(new, folder, version)


def read_export(folder: str) -> set:
    """What is in all files of the newest version; a server may take it even if it has no model, or is a half of one."""
    found = find_export(list_folder(folder)).path
    return {tf.io.gfile.GFile(f"{found}/{name}").read() for name in files_below(found)}


EMBEDDER = types.SimpleNamespace(path="", encode=lambda texts, *_: np.eye(4)[[0] * len(texts)])
WRITERS = {
    "two files": (save_two_files, read_two_files, 3),
    "tokenizer": (save_tokenizer, read_ids, 3),
    "checkpoint": (save_checkpoint, read_checkpoint, 3),
    "index": (save_index, read_index, 3),
    **{key: (functools.partial(save_export, key=key), read_export, 1) for key in ("saved_model.pb", "model_int8.onnx")},
    **{
        format: (functools.partial(save_model, format=format), read_model, least)
        for format, least in (("bert_tf", 6), ("tf1", 6), ("huggingface", 4))
    },
}
REFUSED_ON_DISK = ("two files", "tokenizer")  # where the end of a save is interrupted
REFUSED_IN_A_STORE = (*REFUSED_ON_DISK, "bert_tf", "tf1", "huggingface")


CASES = [(name, *way) for name in WRITERS for way in (("disk", True), ("store", True), ("store", False))]
RARE = [case for case in CASES if case[0] in ("tf1", "huggingface") and case[1] == "store"]


@pytest.mark.parametrize(("name", "place", "kills"), [*(case for case in CASES if case not in RARE), *slow(*RARE)])
def test_a_writer_that_ends_early_leaves_the_old_the_new_or_an_error(name, place, kills, tmp_path, monkeypatch):
    """Never new files beside old ones that are read as if they belonged together; and it can be done again."""
    save, read, steps = WRITERS[name]
    (tmp_path / "bucket").mkdir()
    add_file_system(tmp_path)
    folder, seen = tmp_path / "bucket" / "it", []
    path = f"{BUCKET}/it" if place == "store" else str(folder)
    for number in ("1", "2"):
        save(str(tmp_path / number), 1)
    first = read(str(tmp_path / "1"))
    save(str(tmp_path / "2"), 2)
    whole = [first, read(str(tmp_path / "2"))]
    assert whole[0] != whole[1]
    for count in itertools.count():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / "1", folder)
        (folder / "of others").mkdir()
        (folder / "of others" / "file").touch()
        with monkeypatch.context() as patches:
            end_at(count, patches, kills)
            try:
                save(path, 2)
            except (Killed, OSError, tf.errors.OpError):
                pass
            else:
                break
        try:
            seen.append(read(path))
        except (OSError, ValueError, tf.errors.OpError):
            seen.append(None)
        save(path, 2)
        assert read(path) == whole[1] and (folder / "of others" / "file").exists()
    assert read(path) == whole[1]
    refused = name in (REFUSED_IN_A_STORE if place == "store" else REFUSED_ON_DISK)
    assert len(seen) >= steps and all(value in whole or (refused and value is None) for value in seen), seen
    left = {path.name for path in folder.rglob("*")} - {path.name for path in (tmp_path / "2").rglob("*")}
    assert not [name for name in left if name.startswith(".") or name.endswith(".writing")]


def test_a_new_model_in_a_store_is_saved_again_as_it_was(tmp_path, monkeypatch):
    add_file_system(tmp_path)
    for count in itertools.count():
        shutil.rmtree(tmp_path / "bucket", ignore_errors=True)
        (tmp_path / "bucket").mkdir()
        with monkeypatch.context() as patches, contextlib.suppress(Killed):
            end_at(count, patches)
            made_model(1).save_pretrained(f"{BUCKET}/it")
            break
        if (tmp_path / "bucket" / "it" / "bert_model.safetensors").exists():
            assert read_model(f"{BUCKET}/it")
            continue
        made_model(1).save_pretrained(f"{BUCKET}/it")
        with pytest.raises(FileExistsError, match="it already has files of a model"):
            made_model(2).save_pretrained(f"{BUCKET}/it")
    assert count > 6


def test_the_next_export_removes_what_killed_ones_left(tmp_path):
    add_file_system(tmp_path)
    for path in (tmp_path / "bucket" / "3" / name for name in ("saved_model.pb", ".saved_model.pb.0123456789ab.tmp")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    with export.version_folder(BUCKET):
        pass
    assert {path.name for path in (tmp_path / "bucket").rglob("*")} == {"3", "saved_model.pb"}


def test_a_model_of_others_moves_no_files_elsewhere(tmp_path):
    arriving = tmp_path / "model" / ".bert_tf_arriving"
    (tmp_path / "model" / "inner").mkdir(parents=True)
    arriving.mkdir()
    (tmp_path / "precious").touch()
    for folder in (tmp_path / "model" / "link", arriving / "inner"):
        folder.symlink_to(tmp_path)
    absolute = str(tmp_path / "precious")
    lists = [[["a"], [name]] for name in ("../precious", absolute, "link/precious")] + [[["inner/precious"], []]]
    for text in (*map(json.dumps, lists), ""):
        (arriving / "a").touch()
        (arriving / "moves.json").write_text(text)
        with pytest.raises(OSError, match=r"of an interrupted save, .*: (moves.json names files in other|Expecting)"):
            storage.finish_replacing(str(tmp_path / "model"))
    assert (tmp_path / "precious").exists()


def test_a_save_that_another_process_ends_meanwhile(tmp_path, monkeypatch):
    arriving, lock, locked = tmp_path / ".bert_tf_arriving", fcntl.flock, []

    def arrive(text: str) -> None:
        arriving.mkdir()
        (arriving / "a").write_text(text)
        (arriving / "moves.json").write_text('[["a"], []]')

    def lock_late(descriptor, kind) -> None:
        locked.append(os.fstat(descriptor).st_ino)
        if len(locked) == 1:  # it was removed, and there is one of the next save
            arriving.rename(tmp_path / "removed")
            arrive("2")
        lock(descriptor, kind)

    arrive("1")
    monkeypatch.setattr(fcntl, "flock", lock_late)
    storage.finish_replacing(str(tmp_path))
    assert len({*locked}) == 2 and (tmp_path / "a").read_text() == "2" and not arriving.exists()


def held(folder):
    return storage.locked(f"{folder}/run.lock", f"--output_dir={folder}")


def test_a_living_owner_keeps_a_local_folder(tmp_path):
    message = r"^--output_dir=\S+ is in use by another run, which holds \S+/run.lock: "
    with held(tmp_path / "out"):
        with pytest.raises(BlockingIOError, match=message), held(tmp_path / "out"):
            pass
        assert os.listdir(tmp_path / "out") == ["run.lock"]
    assert not (tmp_path / "out").exists()  # it was new, and is empty
    with held(tmp_path):
        pass
    assert tmp_path.exists()
    add_file_system(tmp_path)
    with held(BUCKET), held(BUCKET):
        assert not list(tmp_path.iterdir())


def test_a_killed_owner_loses_it_at_once(tmp_path):
    program = "import os\nfrom bert_tf.system import storage\n"
    program += f"with storage.locked({str(tmp_path / 'run.lock')!r}, ''): os.kill(os.getpid(), 9)\n"
    warm.run([sys.executable, "-c", program])
    assert os.listdir(tmp_path) == ["run.lock"]
    with held(tmp_path):
        pass
    assert os.listdir(tmp_path) == []


# --- private folders, and paths that are never read as patterns -------------------------------------------------------


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
    newest = latest_checkpoint(str(folder))
    assert newest == str(folder / "model.ckpt-10") == find_weights(list_folder(str(folder)), str(folder))[1]
    np.testing.assert_array_equal(weights_of(newest)["bert/x"], [10, 10, 10])
    assert {path.name for path in folder.glob("*.index")} == {"model.ckpt-10.index", "model.ckpt-2.index"}
    (folder / "checkpoint").unlink()
    assert latest_checkpoint(str(folder)) == newest
    for path in folder.glob("model.ckpt-10.*"):
        path.rename(folder / path.name.replace("model.ckpt-10", "released [1]?.ckpt"))
    for path in folder.glob("model.ckpt-2.*"):
        path.unlink()
    assert find_weights(list_folder(str(folder)), str(folder))[1] == str(folder / "released [1]?.ckpt")
    np.testing.assert_array_equal(weights_of(folder)["bert/x"], [10, 10, 10])

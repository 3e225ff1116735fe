"""Files are written completely or not at all, kept arrays read whole or made again; whose a folder is."""

import itertools
import os
import shutil
import sys

import numpy as np
import pytest
import tensorflow as tf
from helpers import warm
from helpers.every_model import CONFIG, inputs
from helpers.remote import BUCKET, add_file_system

from bert_tf import BertForSequenceClassification, FullTokenizer, read_tokenizer
from bert_tf.system import storage
from bert_tf.system.storage import load_arrays, save_arrays


def test_files_appear_together_or_not_at_all(tmp_path):
    paths = [str(tmp_path / name) for name in ("a", "b")]
    (tmp_path / "a").write_text("old")

    def write(fail: bool) -> None:
        with storage.written_together(paths) as temporary:
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
    save_arrays(path, arrays)
    np.testing.assert_equal(load_arrays(path), arrays)
    np.testing.assert_equal(load_arrays(path, ("one", "two")), arrays)
    assert load_arrays(path, ("one", "three", "four")) is None
    assert "kept.npz can't be read (no four, three): made again." in caplog.text


class Killed(BaseException):
    pass


def killed_after(count: int, monkeypatch) -> None:
    """Ends the program before the renaming or removing that would be the next after so many."""
    numbers = itertools.count()

    def counted(original):
        def call(*arguments, **named):
            if next(numbers) == count:
                raise Killed
            return original(*arguments, **named)

        return call

    for name in ("rename", "remove"):
        monkeypatch.setattr(tf.io.gfile, name, counted(getattr(tf.io.gfile, name)))


def save_two_files(folder: str, version: int) -> None:
    tf.io.gfile.makedirs(folder)
    storage.write_files({f"{folder}/{name}": str(version).encode() for name in ("first", "last")})


def read_two_files(folder: str) -> str:
    last, first = (tf.io.gfile.GFile(f"{folder}/{name}").read() for name in ("last", "first"))
    return first + last


def save_model(folder: str, version: int, format: str) -> None:
    """Of the first version label "a" is the first output, of the second it is the last."""
    model = BertForSequenceClassification(CONFIG, labels=["a", "b"] if version == 1 else ["c", "b", "a"])
    model.build()
    for variable in model.variables:
        variable.assign(np.full(variable.shape, version))
    model.head.output_bias.assign([1.0, 2.0] if version == 1 else [3.0, 2.0, 1.0])
    model.save_pretrained(folder, format=format, overwrite=True)


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


@pytest.mark.parametrize(("save", "read", "steps"), [
    (save_two_files, read_two_files, 3),
    *((lambda folder, version, format=format: save_model(folder, version, format), read_model, least)
      for format, least in (("bert_tf", 6), ("tf1", 6), ("huggingface", 4))),
    (save_tokenizer, read_ids, 3),
])  # fmt: skip
def test_a_killed_writer_leaves_the_old_the_new_or_what_is_refused(save, read, steps, tmp_path, monkeypatch):
    """Never new files beside old ones that are read as if they belonged together."""
    folder, seen = tmp_path / "it", []
    for version in (1, 2):
        save(str(tmp_path / str(version)), version)
    whole = [read(str(tmp_path / str(version))) for version in (1, 2)]
    assert whole[0] != whole[1]
    for count in itertools.count():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / "1", folder)
        with monkeypatch.context() as patches:
            killed_after(count, patches)
            try:
                save(str(folder), 2)
            except Killed:
                pass
            else:
                break
        try:
            seen.append(read(str(folder)))
        except (OSError, ValueError, tf.errors.OpError):
            seen.append(None)
    assert read(str(folder)) == whole[1]
    assert len(seen) >= steps and all(value in (*whole, None) for value in seen), seen


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
    program = "import os\nfrom bert_tf.system import storage\n"
    program += f"with storage.locked({str(tmp_path / 'run.lock')!r}, ''): os.kill(os.getpid(), 9)\n"
    warm.run([sys.executable, "-c", program])
    assert os.listdir(tmp_path) == ["run.lock"]
    with held(tmp_path):
        pass
    assert os.listdir(tmp_path) == []


def test_a_remote_folder_has_no_lock(tmp_path):
    add_file_system(tmp_path)
    with held(BUCKET), held(BUCKET):
        assert not list(tmp_path.iterdir())

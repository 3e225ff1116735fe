"""Files are written completely or not at all, and kept arrays read whole or made again."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.system import storage
from bert_tf.system.storage import load_arrays, save_arrays


def test_write_needs_its_directory(tmp_path):
    with pytest.raises(tf.errors.OpError):
        storage.write_text_file(str(tmp_path / "none" / "c.json"), "x")
    assert list(tmp_path.iterdir()) == []


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

"""Arrays kept for the next start: whole, or made again."""

import numpy as np

from bert_tf.system.kept_arrays import load_arrays, save_arrays


def test_whole_or_none(tmp_path, caplog):
    path = str(tmp_path / "kept.npz")
    assert load_arrays(path) is None
    arrays = {"one": np.arange(3), "two": np.zeros((2, 0))}
    save_arrays(path, arrays)
    np.testing.assert_equal(load_arrays(path), arrays)
    np.testing.assert_equal(load_arrays(path, ("one", "two")), arrays)
    assert load_arrays(path, ("one", "three", "four")) is None
    assert "kept.npz can't be read (no four, three): made again." in caplog.text

"""Which files a flag names; reading lines is tested with the tokenizer, whose input they are."""

import os

import pytest

from bert_tf import text_files


def test_list_files(tmp_path):
    for name in ("b.tfrecord", "a.tfrecord", "c.other", "d[1].x"):
        (tmp_path / name).touch()
    found = text_files.list_files(f"{tmp_path}/c.*,{tmp_path}/*.tfrecord,")
    assert [os.path.basename(name) for name in found] == ["c.other", "a.tfrecord", "b.tfrecord"]
    assert text_files.list_files(f"{tmp_path}/d[1].x") == [f"{tmp_path}/d[1].x"]
    with pytest.raises(ValueError, match=r"--eval_input_file.*nothing\.\*"):
        text_files.list_files(f"{tmp_path}/*.tfrecord,{tmp_path}/nothing.*", "--eval_input_file")
    for empty in ("", " , ", None):
        with pytest.raises(ValueError, match="--input_file"):
            text_files.list_files(empty)

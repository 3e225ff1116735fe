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


def test_missing_shards_are_warned_of(caplog):
    names = [f"a.tfrecord-{number:05d}-of-00004" for number in (0, 2, 3)] + ["b-00000-of-00001", "c.tfrecord"]
    text_files.warn_of_missing_shards(names, "--eval_input_file")
    assert [record.getMessage() for record in caplog.records] == [
        "--eval_input_file: of the 4 shards of a.tfrecord only 3 are there; the first that is missing is 00001"
    ]

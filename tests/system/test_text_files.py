"""The files that a flag names. (The tokenizer's tests cover reading lines.)"""

import os

import pytest

from bert_tf.system import text_files


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
        "--eval_input_file: of the 4 shards of a.tfrecord, only 3 are given; the first missing one is 00001"
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1,\n "b": }', r"x\.json, line 2, column 7: not JSON: Expecting value"),
        (b"", r"x\.json, line 1, column 1: not JSON"),
        (b'{"a": "caf\xe9"}', r"x\.json: not UTF-8 at byte offset 10"),
        (b"[" * 100_000, r"x\.json: not JSON: nested too deeply"),
    ],
)
def test_bad_json_is_named(tmp_path, content, message):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        text_files.read_json(str(path))


def test_json(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"a": [1, "é"]}', encoding="utf-8-sig")
    assert text_files.read_json(str(path)) == {"a": [1, "é"]}
    assert text_files.parse_json("[1]", "x.jsonl", 7) == [1]
    with pytest.raises(ValueError, match=r"x\.jsonl, line 7, column 3: not JSON"):
        text_files.parse_json("[1", "x.jsonl", 7)

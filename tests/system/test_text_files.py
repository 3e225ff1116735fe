"""The files that a flag names. (The tokenizer's tests cover reading lines.)"""

import gzip
import os
import tracemalloc

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
        (b"[" * 100_000, r"x\.json, line 1: not JSON: maximum recursion depth"),
        (b'{"a": "caf\xe9"}', r"x\.json, line 1: not UTF-8 at byte offset 10"),
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


def test_carriage_returns_alone_are_named(tmp_path):
    path = tmp_path / "x.csv"
    text = b"text,label\rgood,up\rbad,down\rso,up\r"
    of_utf_16 = text.decode().encode("utf-16"), {"encoding": "utf-16"}
    for content, options in ((text, {}), (text + b"\n", {}), of_utf_16, (gzip.compress(text), {"is_gzip": True})):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"x\.csv: its lines end with carriage returns alone: tr '\\r' '\\n' <"):
            list(text_files.read_text_lines(str(path), **options))
    for content, lines in (
        (b"one\rline\r", ["one\rline"]),
        (b"a\r\r\r\nb\r\r\r\nc\r\r\r\nd\r\r\r\n", ["a", "b", "c", "d"]),
        (b'"a\rb\rc\rd",e\r\n\r\r\nf\r', ['"a\rb\rc\rd",e', "", "f"]),
    ):
        path.write_bytes(content)
        assert list(text_files.read_text_lines(str(path))) == lines


def test_zero_bytes_are_read(tmp_path, caplog):
    """As in the original, whose tokenizer drops them."""
    path = tmp_path / "x.txt"
    path.write_bytes(b"one line\r\nand\0 another\n")
    assert list(text_files.read_text_lines(str(path))) == ["one line", "and\0 another"]
    assert f"{path} has zero bytes" in caplog.text


def test_what_is_no_text_is_named(tmp_path):
    (tmp_path / "x.txt").write_bytes(gzip.compress(b"one line\n", mtime=0))
    with pytest.raises(ValueError, match="x.txt is a gzip file; unpack it: gunzip < FILE > NEW_FILE"):
        list(text_files.read_text_lines(str(tmp_path / "x.txt"), encoding="cp949"))


@pytest.mark.parametrize(("compressed", "longest"), [(False, None), (True, 1 << 19)])
def test_a_line_without_an_end_is_named(tmp_path, monkeypatch, compressed, longest):
    """Whatever it would be decompressed to, memory stays bounded."""
    monkeypatch.setattr(text_files, "LONGEST_LINE", 4 << 20)
    path, content = tmp_path / "x.txt", b"a line\n" + bytes(100 << 20)
    path.write_bytes(gzip.compress(content, 1) if compressed else content)
    file = text_files.TextFile(str(path), compressed)
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"x\.txt, line 2: longer than 4,194,304 bytes; is it a text file"):
        for _ in text_files.whole_lines(file, file.chunks(), longest):
            pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 << 20

"""The files that a flag names, JSON, and texts that are not UTF-8: every reader names the encoding, or takes it."""

import gzip
import json
import os
import tracemalloc
from collections import Counter

import pytest

from bert_tf.pretraining.corpus import Corpus, TextSettings
from bert_tf.pretraining.documents import all_documents
from bert_tf.system import text_files
from bert_tf.system.text_files import read_json, read_text_lines
from bert_tf.tasks.features.extract import read_lines
from bert_tf.tasks.squad.data import read_squad_examples
from bert_tf.text.learn_vocabulary import count_words


def test_files_of_a_glob_are_sorted(tmp_path):
    for name in ("b.tfrecord", "a.tfrecord", "c.other"):
        (tmp_path / name).touch()
    found = text_files.list_files(f"{tmp_path}/c.*,{tmp_path}/*.tfrecord,")
    assert [os.path.basename(name) for name in found] == ["c.other", "a.tfrecord", "b.tfrecord"]


def test_missing_shards_are_warned_of(caplog):
    names = [f"a.tfrecord-{number:05d}-of-00004" for number in (0, 2, 3)] + ["b-00000-of-00001", "c.tfrecord"]
    text_files.warn_of_missing_shards(names, "--eval_input_file")
    assert [record.getMessage() for record in caplog.records] == [
        "--eval_input_file: of the 4 shards of a.tfrecord, only 3 are given; the first missing one is 00001"
    ]


def test_json(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"a": [1, "é"]}', encoding="utf-8-sig")
    assert text_files.read_json(str(path)) == {"a": [1, "é"]}
    assert text_files.parse_json("[1]", "x.jsonl", 7) == [1]
    with pytest.raises(ValueError, match=r"x\.jsonl, line 7, column 3: not JSON"):
        text_files.parse_json("[1", "x.jsonl", 7)
    for content, message in (
        (b'{"a": 1,\n "b": }', r"x\.json, line 2, column 7: not JSON: Expecting value"),
        (b"", r"x\.json, line 1, column 1: not JSON"),
        (b"[" * 100_000, r"x\.json, line 1: not JSON: maximum recursion depth"),
        (b'{"a": "caf\xe9"}', r"x\.json, line 1: not UTF-8 at byte offset 10"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            text_files.read_json(str(path))


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


def test_zero_bytes_are_read_and_a_gzip_file_is_named(tmp_path, caplog):
    """Zero bytes as in the original, whose tokenizer drops them."""
    path = tmp_path / "x.txt"
    path.write_bytes(b"one line\r\nand\0 another\n")
    assert list(text_files.read_text_lines(str(path))) == ["one line", "and\0 another"]
    assert f"{path} has zero bytes" in caplog.text
    path.write_bytes(gzip.compress(b"one line\n", mtime=0))
    with pytest.raises(ValueError, match="x.txt is a gzip file; unpack it: gunzip < FILE > NEW_FILE"):
        list(text_files.read_text_lines(str(path), encoding="cp949"))


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


# --- encodings --------------------------------------------------------------------------------------------------------

KOREAN = "영화가 정말 재미있었어요. 다시 보고 싶습니다!\n배송이 너무 느려요, 별로예요\n대한민국의 수도는 서울이다.\n"
JAPANESE = "この映画はとても面白かったです。\n東京は日本の首都です。配送が遅い\n"
CHINESE = "这部电影非常好看，我很喜欢。\n北京是中华人民共和国的首都，物流太慢\n"
TAIWANESE = "這部電影非常好看，我很喜歡。\n臺北的品質很差\n"
FRENCH = "Le prix était élevé.\nUn café crème à l'hôtel\n"
ENGLISH = "text,label\ngood film,positive\n"


@pytest.mark.parametrize(
    ("text", "written", "named"),
    [
        (KOREAN, "cp949", "CP949 (EUC-KR): --encoding=cp949"),
        ("좋아요\n", "cp949", "--encoding=cp949"),
        (JAPANESE, "shift_jis", "CP932 (Shift-JIS): --encoding=cp932"),
        ("カメラ,良い\n", "cp932", "--encoding=cp932"),
        ("最高,肯定\n最悪,否定\n", "cp932", "--encoding=cp932"),
        ("テキスト,label\ngood,1\n", "cp932", "--encoding=cp932"),
        (JAPANESE, "euc_jp", "--encoding=euc_jp"),
        (CHINESE, "gb18030", "GB18030 (GBK): --encoding=gb18030"),
        (TAIWANESE, "big5", "--encoding=cp950"),
        (FRENCH, "latin-1", "--encoding=cp1252"),
        (CHINESE, "utf-16", "UTF-16: --encoding=utf-16 reads"),
        *((text, "utf-16-le", "--encoding=utf-16-le") for text in (KOREAN, ENGLISH)),
        *((text, "utf-16-be", "--encoding=utf-16-be") for text in (JAPANESE, ENGLISH)),
    ],
)
def test_the_error_names_the_encoding_that_reads_the_file(tmp_path, text, written, named):
    path = tmp_path / "train.csv"
    path.write_bytes(("plain\n" * 3 + text).encode(written))
    with pytest.raises(ValueError, match=r"train\.csv, line \d+: not UTF-8 at byte offset \d+ of the file") as error:
        list(read_text_lines(str(path), encoding="utf-8"))
    assert named in str(error.value)
    encoding = named.partition("--encoding=")[2].split()[0]
    assert "".join(line + "\n" for line in read_text_lines(str(path), encoding=encoding)) == "plain\n" * 3 + text
    with pytest.raises(ValueError, match="convert it to UTF-8: iconv -f ") as error:  # such a file has no flag
        list(read_text_lines(str(path)))
    assert "--encoding" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "written", "read", "named"),
    [
        ("この映画は退屈です,悪い\n", "cp932", "cp949", "CP932 (Shift-JIS): --encoding=cp932"),
        (KOREAN, "cp949", "latin-1", "CP949 (EUC-KR): --encoding=cp949"),
        (CHINESE, "gbk", "cp949", "GB18030 (GBK): --encoding=gb18030"),
        *((KOREAN, name, name, "") for name in ("cp949", "euc_kr", "johab", "utf-16-le")),
        *((JAPANESE, name, name, "") for name in ("cp932", "shift_jis", "euc_jp", "iso2022_jp")),
        *((CHINESE, name, name, "") for name in ("gb18030", "gbk", "gb2312")),
        (TAIWANESE, "big5", "big5", ""), (FRENCH, "latin-1", "latin-1", ""), (ENGLISH, "cp949", "cp932", ""),
        ("Этот фильм очень хороший.\n", "cp1251", "cp1251", ""),
        ("Αυτή η ταινία είναι πολύ καλή.\n", "cp1253", "cp1253", ""),
        ("ภาพยนตร์เรื่องนี้ดีมาก\n", "cp874", "cp874", ""), ("很好,好\n", "gbk", "gbk", ""),
    ],
)  # fmt: skip
def test_an_encoding_that_another_fits_better_is_reported(tmp_path, caplog, text, written, read, named):
    (tmp_path / "a.csv").write_bytes((ENGLISH + text).encode(written))
    list(read_text_lines(str(tmp_path / "a.csv"), encoding=read))
    list(read_text_lines(str(tmp_path / "a.csv"), encoding=read))
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == bool(named) and named in "".join(warnings)


def test_place_and_byte_of_what_is_not_utf_8(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\r\n" + "둘".encode("cp949"))
    with pytest.raises(ValueError, match=r"line 2: not UTF-8 at byte offset 5 of the file \(byte 0xb5"):
        list(read_text_lines(str(path), encoding="utf-8"))
    path.write_bytes("가나다라\n".encode() + "마바사\n".encode("cp949"))
    with pytest.raises(ValueError, match="line 2: .* the file is damaged, or made of files of two encodings"):
        list(read_text_lines(str(path), encoding="utf-8"))


@pytest.mark.parametrize("size", [7, 1 << 20])
def test_conversion_at_any_cut(tmp_path, monkeypatch, size):
    monkeypatch.setattr("bert_tf.system.text_files._READ_BYTES", size)
    path = tmp_path / "a.txt"
    for encoding in ("cp949", "utf-16", "utf-16-be", "gb18030"):
        path.write_bytes(KOREAN.encode(encoding))
        assert list(read_text_lines(str(path), encoding=encoding)) == KOREAN.splitlines()
    path.write_bytes((KOREAN * 2).encode("cp949") + b"ab\xff\n")
    place = len((KOREAN * 2).encode("cp949")) + 2
    with pytest.raises(ValueError, match=rf"line 7: not cp949 at byte offset {place} of the file \(byte 0xff, .*cp949"):
        list(read_text_lines(str(path), encoding="cp949"))
    path.write_bytes(KOREAN.encode("utf-16-le")[:-1])
    with pytest.raises(ValueError, match="line 3: not utf-16-le at byte offset"):
        list(read_text_lines(str(path), encoding="utf-16-le"))


def test_a_file_that_is_utf_8_is_read_as_utf_8(tmp_path, caplog):
    path = tmp_path / "dev.csv"
    for encoding, text in (("cp949", KOREAN), ("utf-16", KOREAN), ("utf-16", ENGLISH), ("cp949", "\ufeffabc\n")):
        path.write_bytes(text.encode())
        with caplog.at_level("INFO", logger="absl"):
            lines = list(read_text_lines(str(path), encoding=encoding))
        assert [line.removeprefix("\ufeff") for line in lines] == text.removeprefix("\ufeff").splitlines()
        assert f"dev.csv is UTF-8 and is read so, not as --encoding={encoding}" in caplog.text


def test_names_of_encodings():
    for name in ("cp94", "rot13", "base64", "zlib", "", "utf\0"):
        with pytest.raises(ValueError, match=f"^--encoding={name}: "):
            text_files.check_encoding(name)
    for name in ("CP949", "euc-kr", "UTF-16", "utf8", "latin-1", "shift_jis", "gb18030"):
        text_files.check_encoding(name)


QUESTION = {"id": "1", "question": "수도는 어디인가?", "answers": [{"text": "서울", "answer_start": 10}]}
ARTICLES = {"data": [{"paragraphs": [{"context": "대한민국의 수도는 서울이다.", "qas": [QUESTION]}]}]}


@pytest.mark.parametrize(("content", "read"), [
    (json.dumps(ARTICLES, ensure_ascii=False), lambda path, encoding: read_json(path, encoding=encoding)),
    (json.dumps(ARTICLES, ensure_ascii=False),
     lambda path, encoding: read_squad_examples([path], True, encoding=encoding).examples),
    (KOREAN, lambda path, encoding: "".join(Corpus([path], TextSettings(encoding=encoding)).blocks()).rstrip()),
    (KOREAN, lambda path, encoding: list(read_lines(path, encoding))),
    (KOREAN, lambda path, encoding: list(all_documents([path], show_progress=False, encoding=encoding))),
    (KOREAN, lambda path, encoding: count_words([path], str.split, show_progress=False, encoding=encoding).counts),
])  # fmt: skip
def test_every_reader_takes_an_encoding(tmp_path, content, read):
    """CP949 and UTF-8 are read alike. Tables and tags: in scripts/."""
    for encoding in ("cp949", "utf-8"):
        (tmp_path / encoding).write_bytes(content.encode(encoding))
    assert read(str(tmp_path / "cp949"), "cp949") == read(str(tmp_path / "utf-8"), "utf-8")
    with pytest.raises(ValueError, match="cp949, line 1: not UTF-8 .*CP949 .*: --encoding=cp949 reads it"):
        read(str(tmp_path / "cp949"), "utf-8")


def test_a_corpus_in_another_encoding_compressed_damaged_and_in_ranges(tmp_path, caplog):
    text = "".join(f"문장 {number}\n\n" for number in range(200))
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text.encode("cp949")))
    (tmp_path / "b.txt").write_bytes(text.encode("cp949"))
    files, settings = [str(tmp_path / "a.txt.gz"), str(tmp_path / "b.txt")], TextSettings(encoding="cp949")
    corpus = Corpus(files, settings)
    whole = "".join(corpus.blocks())
    assert whole.split() == (text * 2).split()
    parts = ("".join(corpus.blocks(*corpus.shard_range(shard, 3))) for shard in range(3))
    assert "".join(parts) == whole
    (tmp_path / "b.txt").write_bytes("좋은\n".encode("cp949") + b"\xff\xff ab\n" + "문장\n".encode("cp949"))
    counts = Counter()
    found = "".join(Corpus(files[1:], TextSettings(encoding="cp949", errors="replace")).blocks(counts=counts))
    assert found.split() == ["좋은", "\ufffd\ufffd", "ab", "문장"]
    assert counts == {"replaced_characters": 2, "lines_with_bad_utf8": 1}
    assert "b.txt is not all cp949" in caplog.text

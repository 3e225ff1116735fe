"""A corpus as one text: ranges compared with a plain count of documents, formats, compression, bad input, memory."""

import gzip
import itertools
import json
import logging
import random
import tracemalloc
from collections import Counter

import pytest

from bert_tf.pretraining import corpus as pretraining_corpus
from bert_tf.pretraining.corpus import Corpus, TextSettings, sentence_splitter
from bert_tf.pretraining.documents import to_text
from bert_tf.system import text_files
from demo.sample_text import split_held_out, text_documents


def written(folder, contents, suffix=".txt"):
    """The paths of files; contents: of each, or name -> content."""
    if not isinstance(contents, dict):
        contents = {f"f{number}{suffix}": data for number, data in enumerate(contents)}
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    return [str(folder / name) for name in contents]


def documents(corpus, begin=0, end=None, **arguments):
    pieces = list(corpus.blocks(begin, end, **arguments))
    assert all(piece.endswith(("\n", " ")) for piece in pieces)
    *lines, rest = "".join(pieces).split("\n")
    assert rest == ""
    return [list(block) for is_text, block in itertools.groupby(lines, lambda line: bool(line.strip())) if is_text]


def check_every_cut(corpus, expected):
    """expected: (byte where a document begins, its lines)."""
    for cut in range(corpus.total_bytes + 1):
        assert documents(corpus, 0, cut) == [lines for begin, lines in expected if begin < cut], (expected, cut)
        assert documents(corpus, cut) == [lines for begin, lines in expected if begin >= cut], (expected, cut)


def error_of(*arguments, **settings):
    with pytest.raises(ValueError) as caught:
        list(Corpus(*arguments, TextSettings(**settings)).blocks())
    return str(caught.value)


def placed_text_documents(contents):
    """[(byte where the document begins, its lines)] of plain text files, line by line."""
    found, current, base = [], None, 0
    for data in contents:
        place = base
        *lines, last = data.split(b"\n")
        for line in [*lines, last] if last.strip(b"\r") else lines:
            text = line.rstrip(b"\r").decode()
            if not text.strip():
                current = None
            else:
                if current is None:
                    current = []
                    found.append((place, current))
                current.append(text)
            place += len(line) + 1
        base += len(data)
    return found


def placed_records(generator):
    """(bytes, [(byte where the document begins, its lines)]) of a random file of JSON lines."""
    data, found = b"", []
    for _ in range(generator.randrange(6)):
        lines = generator.choices(["x", "", " ", "y z\u2028", "\u535a\r", "x\ry", '"\\'], k=generator.randrange(4))
        text = json.dumps({"id": 1, "text": "\n".join(lines)}, ensure_ascii=generator.random() < 0.5)
        kept = [line.rstrip("\r") for line in lines if line.strip()]
        if kept:
            found.append((len(data), kept))
        data += text.encode() + generator.choice([b"\n", b"\r\n", b"\n\n", b"\n \n"])
    return (data.removesuffix(b"\n") if generator.random() < 0.5 else data), found


TOKENS = [*"aé博 \u3000\xa0\x85\u2028\x1c\ufeff", "b ", "\n", "\n", "\n\n", "\r", "\r\n"]
# Carriage returns alone at the end of a file are not a line.
ODD_ENDS = [[b"a\n\n\r", b"b"], [b"a\n\r", b"b"], [b"\r", b"b"], [b"a\n\n\r", b"\r", b"\r\n\rb\n \n\rc\r"]]


@pytest.mark.parametrize("chunk, look_back, longest", [(1, 50, 1), (3, 61, 6)])
def test_every_cut_gives_the_documents_of_each_side(tmp_path, monkeypatch, chunk, look_back, longest):
    generator = random.Random(chunk)
    monkeypatch.setattr(text_files, "_READ_BYTES", chunk)
    monkeypatch.setattr(pretraining_corpus, "_LOOK_BACK", look_back)
    monkeypatch.setattr(pretraining_corpus, "LONGEST_LINE", longest)
    counts = (generator.randint(1, 3) for _ in range(15))
    texts = [["".join(generator.choices(TOKENS, k=generator.randrange(14))) for _ in range(count)] for count in counts]
    for contents in ODD_ENDS + [[text.encode() for text in files] for files in texts]:
        expected, paths = placed_text_documents(contents), written(tmp_path, contents)
        corpus = Corpus(paths, TextSettings(input_format="text"))
        assert corpus.total_bytes == sum(map(len, contents))
        lines = [line for path in paths for line in text_files.read_text_lines(path)]
        assert "".join(corpus.blocks()) == "".join(line + "\n" for line in lines)
        check_every_cut(corpus, expected)
    for _ in range(3):
        (first, found), (second, more) = placed_records(generator), placed_records(generator)
        expected = found + [(len(first) + begin, lines) for begin, lines in more]
        # The name does not matter here: an empty file has no format.
        paths = written(tmp_path, [first, second], suffix="")
        check_every_cut(Corpus(paths, TextSettings(input_format="jsonl")), expected)


def test_a_range_is_sought_and_not_read_up_to(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "_READ_BYTES", 1 << 12)
    data = b"some words in a line\nand more\n\n" * 40_000
    corpus = Corpus(written(tmp_path, [data, b"last\n"]))
    read = []
    plain = text_files._plain

    def counted(*arguments):
        for chunk in plain(*arguments):
            read.append(len(chunk))
            yield chunk

    monkeypatch.setattr(text_files, "_plain", counted)
    assert documents(corpus, 1_000_000, 1_000_100) == [["some words in a line", "and more"]] * 3
    assert sum(read) < 40_000
    read.clear()
    assert documents(corpus, len(data)) == [["last"]]
    assert sum(read) < 20_000


def test_a_line_larger_than_memory(tmp_path):
    text = b"first\n\n" + b"word " * 4_000_000 + b"end\nnext\n\nlast"  # 20 MB
    corpus, expected = Corpus(written(tmp_path, [text])), text.decode() + "\n"
    assert "".join(corpus.blocks()) == expected
    tracemalloc.start()
    try:
        assert sum(map(len, corpus.blocks())) == len(expected)
        assert list(corpus.blocks(10_000_000)) == ["last\n"]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20_000_000


def test_the_form_of_each_file_is_seen_and_forms_mix(tmp_path):
    forms = {
        "a.txt": b"plain\n",
        "b.jsonl": b'\xef\xbb\xbf{"text": "one\\n\\ntwo"}\n{"text": "three"}',
        "wiki_01": b'{"id": "2", "text": "four"}\n{"id": "3", "text": " \\n"}\n',
        "c.txt": b"{no JSON\nmore",
        "d.ndjson.gz": gzip.compress(b'{"text": "five"}'),
        "e": b"rest",
    }
    corpus, counts = Corpus(paths := written(tmp_path, forms)), Counter()
    whole = [["plain"], ["one", "two"], ["three"], ["four"], ["{no JSON", "more"], ["five"], ["rest"]]
    assert documents(corpus, counts=counts) == whole
    assert counts == {"documents_without_text": 1}
    for num_shards in (2, 5, 11):
        shards = [documents(corpus, *corpus.shard_range(shard, num_shards)) for shard in range(num_shards)]
        assert list(itertools.chain.from_iterable(shards)) == whole
    assert documents(Corpus(paths[2:3], TextSettings(text_key="id"))) == [["2"], ["3"]]


@pytest.mark.parametrize("line, expected", [
    (b"{oops", "JSONDecodeError"),
    (b"[1]", "TypeError"),
    (b'{"title": 1, "body": 2}', "no text in 'text' (--text_key) of {\"title\": 1"),
    (b'{"text": null}', "no text in 'text'"),
    (b"[" * 100_000, "RecursionError"),
    (b'{"text": "\\ud83d"}', "half a character, see --errors"),
    (b'{"text": "\xff"}', "not UTF-8 at byte offset 48 of the file"),
])  # fmt: skip
def test_bad_records_are_named_by_file_and_line(tmp_path, monkeypatch, line, expected):
    monkeypatch.setattr(text_files, "_READ_BYTES", 8)
    data = b'{"text": "one"}\n\n{"text": "two"}\r\n   \n' + line
    corpus = Corpus(written(tmp_path, [data + b"\n"], suffix=".jsonl"))
    for begin in (0, 33):  # also without having counted lines up to there
        with pytest.raises(ValueError, match="f0.jsonl, line 5: ") as caught:
            list(corpus.blocks(begin))
        assert expected in str(caught.value) and len(str(caught.value)) < 500
    assert documents(corpus, 0, 33) == [["one"], ["two"]]


def test_compressed_files(tmp_path):
    lines = [f"line {number} \u535a" for number in range(5000)]
    text = "".join(f"{line}\n" + "\n" * (number % 7 == 3) for number, line in enumerate(lines)).encode()
    plain = documents(Corpus(written(tmp_path, [text])))
    parts = [text[:1001], text[1001:30_000], b"", text[30_000:]]  # members cut lines and characters
    (tmp_path / "f1.txt.GZ").write_bytes(b"".join(map(gzip.compress, parts)))
    paths = written(tmp_path, [b"before", b"", b"after"])
    corpus, read = Corpus([paths[0], f"{tmp_path}/f1.txt.GZ", paths[2]]), []
    assert documents(corpus, progress=read.append) == [["before"], *plain, ["after"]]
    assert sum(read) == corpus.total_bytes
    assert documents(corpus, 6, 7) == plain
    assert documents(corpus, 0, 6) == [["before"]]
    assert documents(corpus, 7) == [["after"]]


def test_damaged_compressed_files_are_named(tmp_path):
    text = "".join(f"{random.Random(number).random()}\n" for number in range(20_000)).encode()
    data = gzip.compress(text)
    for bad in (data[:-5], data[: len(data) // 2], data[:-9] + b"x" * 9, b"no such file", data[:3]):
        message = error_of(written(tmp_path, [bad], suffix=".txt.gz"), input_format="text")
        assert "f0.txt.gz: truncated or damaged gzip file" in message
    message = error_of(written(tmp_path, [gzip.compress(text + b"\xff\n")], suffix=".gz"))
    assert f"f0.gz, line 20001: not UTF-8 at byte offset {len(text)} of the uncompressed text" in message


def test_bad_utf8(tmp_path, caplog):
    contents = [b"one\n\ntwo \xe5\x8d\nthree\n", b"four\xff\xfe\n\n\xef\xbf\xbd five \xc3\n\nsix"]
    paths = written(tmp_path, contents)
    assert "f0.txt, line 3: not UTF-8 at byte offset 9 of the file (byte 0xe5" in error_of(paths)
    corpus = Corpus(paths)
    assert documents(corpus, 0, 5) == [["one"]]
    with pytest.raises(ValueError, match="f1.txt, line 3: not UTF-8 at byte offset 17 of the file"):
        list(corpus.blocks(20, 35))
    replacing, counts = Corpus(paths, TextSettings(errors="replace")), Counter()
    with caplog.at_level(logging.WARNING):
        found = documents(replacing, counts=counts)
    assert found == [["one"], ["two \ufffd", "three", "four\ufffd\ufffd"], ["\ufffd five \ufffd"], ["six"]]
    assert counts == {"replaced_characters": 4, "lines_with_bad_utf8": 3}
    assert caplog.text.count("f0.txt is not all UTF-8") == caplog.text.count("f1.txt is not all UTF-8") == 1
    in_two = Counter()
    halves = [documents(replacing, *part, counts=in_two) for part in ((0, 22), (22, None))]
    assert halves[0] + halves[1] == found and in_two == counts


def test_documents_end_with_their_files(tmp_path):
    contents = [b"one\n\n \ntwo", b"\nthree\n", b"four\n\n\xe3\x80\x80\nfive\n"]
    paths = written(tmp_path, contents)
    apart = Corpus(paths, TextSettings(input_format="text", joins_files=False))
    assert documents(apart) == [["one"], ["two"], ["three"], ["four"], ["five"]]
    whole = Corpus(paths, TextSettings(input_format="text", blanks_separate_docs=False))
    with pytest.raises(ValueError, match="--blanks_separate_docs=false is for plain text"):
        TextSettings(input_format="jsonl", blanks_separate_docs=False)
    expected = [["one", "two"], ["three"], ["four", "five"]]
    assert documents(whole) == expected
    for corpus in (apart, whole):
        for num_shards in (1, 2, 3, 7, 50):
            ranges = [corpus.shard_range(shard, num_shards) for shard in range(num_shards)]
            assert list(itertools.chain.from_iterable(documents(corpus, *r) for r in ranges)) == documents(corpus)


def test_empty_files_are_left_out(tmp_path, caplog):
    paths = written(tmp_path, [b"", b"x\n", b""])
    with caplog.at_level(logging.WARNING):
        assert documents(Corpus(paths)) == [["x"]]
    assert caplog.text.count("2 of 3 files are empty") == 1 and paths[0] in caplog.text
    assert list(Corpus(paths[:1]).blocks()) == []


def test_paragraphs_of_every_form_are_split(tmp_path):
    text, record = b"One. Two.\nThree.\n\n \nFour. Five.", b'{"text": "Six. Seven.\\n\\nEight."}\n'
    corpus = Corpus(written(tmp_path, {"a.txt": text, "b.jsonl": record}), TextSettings(split_sentences=True))
    expected = [["One.", "Two.", "Three."], ["Four.", "Five."], ["Six.", "Seven.", "Eight."]]
    assert documents(corpus) == expected
    assert sentence_splitter("en")("It is. " * 50_000) == ["It is."] * 50_000  # in parts, or it would take minutes


@pytest.mark.parametrize(("text", "sentences"), [
    ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
    ("Use it, e.g. Adam. Then J. R. Smith came.", ["Use it, e.g. Adam.", "Then J. R. Smith came."]),
    ("It took 3.5 m. and 2 seconds. He left.", ["It took 3.5 m. and 2 seconds.", "He left."]),
    ('He said "No." She left.', ['He said "No."', "She left."]),
    ("これは本です。あれは「犬です。」そう", ["これは本です。", "あれは「犬です。」", "そう"]),
    ("이것은 책입니다. 저것은 개입니다.", ["이것은 책입니다.", "저것은 개입니다."]),
    (" \t", []),
])  # fmt: skip
def test_sentences_of_any_language(text, sentences):
    assert sentence_splitter("en")(text) == sentences


def read(tmp_path, *contents, max_bytes=10**9):
    return text_documents(written(tmp_path, map(str.encode, contents)), max_bytes)


def test_broken_lines_are_joined_and_others_stay_apart(tmp_path):
    broken = (
        "It was the best of times, it was the\nworst of times, it was the age of wit,\n"
        "it was. And then came the winter of\ndespair.\n\nA new one begins here and it goes on\nto the end.\n"
    )
    first = "It was the best of times, it was the worst of times, it was the age of wit, it was."
    joined = [first, "And then came the winter of despair.", "A new one begins here and it goes on to the end."]
    lines = "A title without a full stop\nThe first paragraph. It has two sentences.\nroses are red\n"
    apart = ["A title without a full stop", "The first paragraph.", "It has two sentences.", "roses are red"]
    assert read(tmp_path, broken) == [joined] and read(tmp_path, lines) == [apart]


def test_documents_end_at_files_and_blank_lines_once_long_enough(tmp_path):
    short, long = "Five words are in here.\n" * 7 + "\n", "Five words are in here.\n" * 450
    assert [len(document) for document in read(tmp_path, short * 4, long, "\n\n")] == [21, 7, 200, 200, 50]

    # A short file leaves its share to the long ones; the beginning of each is kept.
    line = "Nine bytes.\n"
    documents = read(tmp_path, line * 2, line * 100, line * 100, max_bytes=len(line) * 42)
    assert sorted(map(len, documents)) == [2, 20, 20]


def test_split_held_out():
    documents = [[str(number)] for number in range(41)]
    training, heldout = split_held_out(documents)
    assert heldout == [["19"], ["39"]]
    assert len(training) == 39 and split_held_out(documents[:3]) == (documents[:2], documents[2:3])
    assert to_text([["a", "b"], ["c"]]) == "a\nb\n\nc\n\n"
    with pytest.raises(ValueError, match="1 documents can't be split"):
        split_held_out(documents[:1])

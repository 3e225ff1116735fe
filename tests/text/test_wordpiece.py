"""The tokenizer compared with the original's results, with and without cache; files and bad input."""

import gzip
import json
import logging as python_logging
import pickle
import unicodedata

import pytest
from helpers.paths import GOLDEN

from bert_tf.system import text_files
from bert_tf.text import casing, characters
from bert_tf.text import vocab as text_vocab
from bert_tf.text import wordpiece as text_wordpiece
from bert_tf.text.wordpiece import BasicTokenizer, FullTokenizer, WordpieceTokenizer

VOCAB_FILE = str(GOLDEN / "vocab.txt")
SMALL_VOCAB = ["[UNK]", "[CLS]", "[SEP]", "want", "##want", "##ed", "wa", "un", "runn", "##ing", ","]


@pytest.fixture(scope="module")
def records():
    with gzip.open(GOLDEN / "tokenization" / "tokenization.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.fixture(scope="module")
def tokenizers():
    return {case: FullTokenizer(VOCAB_FILE, do_lower_case=case) for case in (True, False)}


def write(path, lines) -> str:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return str(path)


def comparable(record) -> bool:
    """Whether the result must be equal: no character is unassigned in the golden data's Unicode version, or newer."""
    return not record["has_unassigned"]


def test_all_golden_strings_plain_path(records, tokenizers):
    compared = 0
    for record in filter(comparable, records):
        tokenizer = tokenizers[record["do_lower_case"]]
        tokens = []
        for token in tokenizer.basic_tokenizer.tokenize(record["text"]):
            tokens.extend(tokenizer.wordpiece_tokenizer.tokenize(token))
        assert tokens == record["tokens"], record["index"]
        assert tokenizer.convert_tokens_to_ids(tokens) == record["ids"], record["index"]
        compared += 1
    assert compared == 8000 - 2 * 454


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_all_golden_strings_remembering_path(records, tokenizers, do_lower_case):
    tokenizer = tokenizers[do_lower_case]
    chosen = [r for r in records if comparable(r) and r["do_lower_case"] == do_lower_case]
    assert len(chosen) == 4000 - 454
    for _ in range(2):  # the second time from the cache
        for record, ids in zip(chosen, tokenizer.encode_batch(r["text"] for r in chosen), strict=True):
            assert ids == record["ids"], record["index"]
            assert tokenizer.tokenize(record["text"]) == record["tokens"], record["index"]
            assert tokenizer.convert_ids_to_tokens(ids) == record["tokens"], record["index"]


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_every_code_point(do_lower_case):
    with gzip.open(GOLDEN / "tokenization" / "tokenization_codepoints.json.gz", "rt", encoding="utf-8") as file:
        golden = json.load(file)
    golden = golden[f"do_lower_case_{str(do_lower_case).lower()}"]
    other = {int(code, 16): tokens for code, tokens in golden["other"].items()}
    tokenizer = BasicTokenizer(do_lower_case)
    expected = {
        "join": lambda c: ["ab"],
        "space": lambda c: ["a", "b"],
        "own": lambda c: ["a", c, "b"],
        "keep": lambda c: ["a" + c + "b"],
        "other": lambda c: other[ord(c)].split(" "),
    }
    compared, different = 0, []
    for first, last, kind_of_run in golden["runs"]:
        if kind_of_run in ("unassigned", "surrogate"):
            continue
        for code in range(first, last + 1):
            compared += 1
            # "a b" is both "keep" and "space" in the joined form the table was made from.
            kind = "space" if code == 0x20 else kind_of_run
            if tokenizer.tokenize(f"a{chr(code)}b") != expected[kind](chr(code)):
                different.append(hex(code))
    assert compared > 130_000
    # A newer Unicode may have changed properties of a few characters; with the golden data's version none may differ.
    assert len(different) <= (0 if unicodedata.unidata_version == "14.0.0" else 8), different


def test_the_originals_own_examples(tmp_path):
    tokenizer = FullTokenizer(write(tmp_path / "vocab.txt", SMALL_VOCAB))
    assert tokenizer.tokenize("UNwant\u00e9d,running") == ["un", "##want", "##ed", ",", "runn", "##ing"]
    assert tokenizer.encode_batch(["UNwant\u00e9d,running"]) == [[7, 4, 5, 10, 8, 9]]
    assert BasicTokenizer().tokenize("ah\u535a\u63a8zz") == ["ah", "\u535a", "\u63a8", "zz"]
    greeting = " \tHeLLo!how  \n Are yoU?  "
    assert BasicTokenizer(True).tokenize(greeting) == ["hello", "!", "how", "are", "you", "?"]
    assert BasicTokenizer(False).tokenize(greeting) == ["HeLLo", "!", "how", "Are", "yoU", "?"]
    assert BasicTokenizer().tokenize("H\u00e9llo") == ["hello"]
    wordpiece = WordpieceTokenizer({token: i for i, token in enumerate(SMALL_VOCAB)})
    assert wordpiece.tokenize("") == []
    assert wordpiece.tokenize("unwanted running") == ["un", "##want", "##ed", "runn", "##ing"]
    assert wordpiece.tokenize("unwantedX running") == ["[UNK]", "runn", "##ing"]
    assert wordpiece.tokenize("##ed") == ["##ed"]


def test_word_length_limit():
    wordpiece = WordpieceTokenizer({"[UNK]": 0, "a": 1, "##a": 2})
    assert wordpiece.tokenize("a" * 200) == ["a"] + ["##a"] * 199
    assert wordpiece.tokenize("a" * 201) == ["[UNK]"]
    assert WordpieceTokenizer({}, unk_token="?", max_input_chars_per_word=3).tokenize("ab abcd") == ["?", "?"]


def test_predicates():
    assert all(map(characters.is_whitespace, " \t\r\n\u00a0"))
    assert not any(map(characters.is_whitespace, "A-\u2028"))
    assert characters.is_control("\u0005") and characters.is_control("\u200b")
    assert not any(map(characters.is_control, "A \t\r\n\U0001f4a9"))
    assert all(map(characters.is_punctuation, "-$`.\u3002"))
    assert not any(map(characters.is_punctuation, "A \u20ac"))


def test_word_level_labels_recipe(tokenizers):
    starts, pieces = [], ["[CLS]"]
    for word in ["John", "Johanson", "'s", "house"]:
        starts.append(len(pieces))
        pieces.extend(tokenizers[True].tokenize(word))
    assert pieces == ["[CLS]", "john", "johan", "##son", "'", "s", "house"]
    assert starts == [1, 2, 4, 6]


def test_sigma_depends_on_its_word(tokenizers):
    """A capital sigma has another lower-case form at the end of a word; the cache must distinguish the two."""
    basic = tokenizers[True].basic_tokenizer
    assert basic.tokenize("\u039f\u03a3 \u039f\u03a3\u039f") == ["\u03bf\u03c2", "\u03bf\u03c3\u03bf"]
    assert basic.tokenize("\u039f\u03a3.\u039f") == ["\u03bf\u03c3", ".", "\u03bf"]


def test_strip_accents_is_independent_of_case():
    kept = BasicTokenizer(True, strip_accents=False)
    assert kept.tokenize("\u00c9t\u00e9, \ud55c\uae00") == ["\u00e9t\u00e9", ",", "\ud55c\uae00"]
    assert BasicTokenizer(False, strip_accents=True).tokenize("\u00c9t\u00e9") == ["Ete"]
    assert BasicTokenizer(False).tokenize("\u00c9t\u00e9") == ["\u00c9t\u00e9"]
    assert BasicTokenizer(True).tokenize("\ud55c") == [unicodedata.normalize("NFD", "\ud55c")]


def test_odd_bytes_and_types(tokenizers):
    tokenizer = tokenizers[True]
    assert tokenizer.tokenize(b"caf\xc3\xa9 \xff\xfehouse\xc3") == ["cafe", "house"]
    assert tokenizer.encode(b"caf\xc3\xa9") == tokenizer.encode("caf\u00e9")
    assert tokenizer.tokenize("\ud800 house") == ["[UNK]", "house"]
    assert tokenizer.tokenize("") == tokenizer.tokenize(" \u200b\ufeff\0 ") == []
    assert tokenizer.encode_batch([]) == [] and tokenizer.encode_batch(["", "a"]) == [[], [1037]]
    for bad in (None, 3, ["a"]):
        with pytest.raises(ValueError, match="str or bytes"):
            tokenizer.tokenize(bad)
    assert characters.convert_to_unicode(b"\xe2\x82\xac\xff") == "\u20ac"
    assert text_wordpiece.whitespace_tokenize(" a\u3000b\n") == ["a", "b"]


def test_lookups_fail_on_unknown_items(tokenizers):
    with pytest.raises(KeyError):
        tokenizers[True].convert_tokens_to_ids(["no such token"])
    with pytest.raises(KeyError):
        tokenizers[True].convert_ids_to_tokens([30522])


def test_cache_stays_bounded(monkeypatch, tokenizers):
    monkeypatch.setattr(text_wordpiece, "_CACHED_WORDS", 10)
    tokenizer = FullTokenizer(VOCAB_FILE)
    text = " ".join(f"w{i}" for i in range(35)) + " " + "x" * 65
    assert tokenizer.encode(text) == tokenizers[True].encode(text)
    assert tokenizer.tokenize(text) == tokenizers[True].tokenize(text)
    assert len(tokenizer._ids_of_word) <= 10 and len(tokenizer._pieces_of_word) <= 10
    assert "x" * 65 not in tokenizer._ids_of_word


def test_tokenizer_travels_to_another_process(tokenizers):
    tokenizer = FullTokenizer(VOCAB_FILE)
    tokenizer.encode("once upon a time")
    copy = pickle.loads(pickle.dumps(tokenizer))
    text = "Once upon \u4e00 caf\u00e9!"
    assert copy.encode(text) == tokenizers[True].encode(text)
    assert copy.tokenize(text) == tokenizers[True].tokenize(text)


@pytest.mark.parametrize(
    ("do_lower_case", "checkpoint", "name"),
    [
        (False, "uncased_L-12_H-768_A-12/bert_model.ckpt", "uncased_L-12_H-768_A-12"),
        (False, "gs://b/x.y/chinese_L-12_H-768_A-12/bert_model.ckpt-1000", "chinese_L-12_H-768_A-12"),
        (True, "/models/multi_cased_L-12_H-768_A-12/bert_model.ckpt", "multi_cased_L-12_H-768_A-12"),
        (True, "~/cased_L-24_H-1024_A-16/bert_model.ckpt", "cased_L-24_H-1024_A-16"),
        # The first directory that holds bert_model.ckpt counts, and the dot stands for any character.
        (
            True,
            "cased_L-24_H-1024_A-16/bert_model_ckpt/uncased_L-12_H-768_A-12/bert_model.ckpt",
            "cased_L-24_H-1024_A-16",
        ),
    ],
)
def test_casing_that_contradicts_the_checkpoint(do_lower_case, checkpoint, name):
    with pytest.raises(ValueError, match=rf"--do_lower_case={do_lower_case} .*{name}"):
        casing.validate_case_matches_checkpoint(do_lower_case, checkpoint)
    casing.validate_case_matches_checkpoint(not do_lower_case, checkpoint)


@pytest.mark.parametrize(
    "checkpoint",
    [
        None,
        "",
        "cased_L-12_H-768_A-12",
        "cased_L-12_H-768_A-12/model.ckpt-7",
        "my_cased_L-12_H-768_A-12/bert_model.ckpt",
        "wwm_cased_L-24_H-1024_A-16/bert_model.ckpt",
    ],
)
def test_casing_of_an_unknown_checkpoint_is_the_users_matter(checkpoint):
    for do_lower_case in (True, False):
        casing.validate_case_matches_checkpoint(do_lower_case, checkpoint)


def test_files_of_a_tokenizer(tmp_path):
    lines = [*text_vocab.SPECIAL_TOKENS, "\u00e9", "a", "a"]  # a flaw of a published vocabulary
    tokenizer = FullTokenizer(write(tmp_path / "words.txt", lines), do_lower_case=True, strip_accents=False)
    for name, content in tokenizer.files().items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / casing.TOKENIZER_CONFIG).write_text(json.dumps(tokenizer.settings()))
    again = FullTokenizer.from_pretrained(str(tmp_path))
    assert sorted(tokenizer.files()) == ["vocab.txt"] and again.files() == tokenizer.files()
    assert again.vocab == tokenizer.vocab and again.settings() == tokenizer.settings()
    assert again.encode("\u00c9 A") == tokenizer.encode("\u00e9 a") == [5, 7]


# ---- vocabulary files ------------------------------------------------------------------------------------------------


def test_load_vocab_follows_the_original(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes("\ufeff[PAD]\r\n\u3000b \n\nc\rd\nb".encode())
    vocab = text_vocab.load_vocab(str(path))
    # Unicode spaces stripped, a blank line takes an id, carriage returns dropped, the last duplicate wins.
    assert list(vocab.items()) == [("[PAD]", 0), ("b", 4), ("", 2), ("cd", 3)]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a"], r"vocab\.txt lacks \[MASK\]"),
        ([*text_vocab.SPECIAL_TOKENS, "a", "", "b"], r"vocab\.txt: line 7 is empty, which shifts the ids"),
        ([*text_vocab.SPECIAL_TOKENS, "a", "\r", "b", ""], r"vocab\.txt: line 7, line 9 are empty"),
        ([], r"vocab\.txt is empty"),
    ],
)
def test_check_vocab_refuses(tmp_path, lines, message):
    path = write(tmp_path / "vocab.txt", lines)
    with pytest.raises(ValueError, match=message):
        text_vocab.check_vocab(text_vocab.load_vocab(path), path)


def test_check_vocab_accepts(tmp_path, tokenizers, caplog):
    text_vocab.check_vocab(tokenizers[True].vocab, VOCAB_FILE)
    assert not caplog.records
    path = write(tmp_path / "vocab.txt", ["a", *text_vocab.SPECIAL_TOKENS, "a"])
    with caplog.at_level(python_logging.WARNING):
        FullTokenizer(path).check_vocabulary()
    assert "line 7 repeats 'a' of line 1; such a token has the id of its last line" in caplog.text
    assert "[PAD] has id 1" in caplog.text
    path = write(tmp_path / "small.txt", SMALL_VOCAB)
    text_vocab.check_vocab(text_vocab.load_vocab(path), path, required=("[UNK]",))


BLANK = ["\u2028", "\u2029", "\u3000", "\xa0", "\x85", "\x1c"]


def test_tokens_that_look_blank_or_appear_twice(tmp_path, caplog):
    """As Google's Chinese vocabulary has U+2028 alone on a line, which str.splitlines would split: the ids below stay,
    the content is written again as it is, and each id has a token."""
    lines = [*text_vocab.SPECIAL_TOKENS, *BLANK, "a", "\u535a", "##b", "a"]
    for number, end in enumerate(("\n", "\r\n")):
        content = end.join(lines).encode()  # and none after the last
        path = tmp_path / f"{number}.txt"
        path.write_bytes(content)
        tokenizer = FullTokenizer(str(path))
        with caplog.at_level(python_logging.WARNING):
            tokenizer.check_vocabulary()
        assert caplog.text.count("repeats") == 1 and "line 15 repeats 'a' of line 12;" in caplog.text
        caplog.clear()
        assert tokenizer.encode("a \u535a ab\u2028a \u3000") == [14, 12, 14, 13, 14]
        assert tokenizer.vocab["a"] == 14 and tokenizer.vocab[""] == 10 and tokenizer.vocab_size == 15
        assert tokenizer.convert_ids_to_tokens(range(9, 15)) == ["", "", "a", "\u535a", "##b", "a"]
        assert tokenizer.files() == {"vocab.txt": content}
        assert tokenizer.to_graph().encode(["a \u535a ab\u2028a \u3000"]).to_list() == [[14, 12, 14, 13, 14]]


def test_vocab_with_hangul_warns_when_accents_are_stripped(tmp_path, caplog):
    path = write(tmp_path / "vocab.txt", [*text_vocab.SPECIAL_TOKENS, "\ud55c", "##\uae00"])
    with caplog.at_level(python_logging.WARNING):
        assert FullTokenizer(path, strip_accents=False).tokenize("\ud55c\uae00") == ["\ud55c", "##\uae00"]
        assert FullTokenizer(path, do_lower_case=False).tokenize("\ud55c\uae00") == ["\ud55c", "##\uae00"]
        assert not caplog.records
        assert FullTokenizer(path).tokenize("\ud55c\uae00") == ["[UNK]"]
    assert "use strip_accents=False" in caplog.text and path in caplog.text


# ---- text files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 1 << 20])
def test_read_text_lines(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(text_files, "_READ_BYTES", chunk)
    path = tmp_path / "text.txt"
    data = "one\r\n\n\u535a\u2028x\rtwo \n\n\nlast".encode()
    path.write_bytes(data)
    read = []
    lines = list(text_files.read_text_lines(str(path), read.append))
    assert lines == ["one", "", "\u535a\u2028xtwo ", "", "", "last"]
    assert sum(read) == len(data)
    path.write_bytes(data + b"\n")
    assert list(text_files.read_text_lines(str(path)))[-1] == "last"
    path.write_bytes(b"")
    assert list(text_files.read_text_lines(str(path))) == []
    path.write_bytes(b"\xc3\r\xa9\n")  # the carriage return is dropped before decoding, as in the original
    assert list(text_files.read_text_lines(str(path))) == ["\u00e9"]


@pytest.mark.parametrize("chunk", [1, 4, 1 << 20])
@pytest.mark.parametrize("bad", [b"\xff", b"\xc3", b"\xe5\x8d", b"\xed\xa0\x80"])
def test_invalid_utf8_names_line_and_byte(tmp_path, monkeypatch, chunk, bad):
    monkeypatch.setattr(text_files, "_READ_BYTES", chunk)
    path = tmp_path / "text.txt"
    head = "one\r\n\u535a\n\nr\rs".encode()
    path.write_bytes(head + bad + b"\nnext \xff\n")
    with pytest.raises(ValueError, match=rf"text\.txt, line 4: .*byte offset {len(head)} "):
        list(text_files.read_text_lines(str(path)))
    with pytest.raises(ValueError, match=rf"text\.txt, line 4: .*byte offset {len(head)} "):
        text_vocab.load_vocab(str(path))


def test_a_byte_order_mark_is_no_part_of_the_first_token(tmp_path):
    path = tmp_path / "vocab.txt"
    for content, expected in (
        ("\ufeff[PAD]\na \n", ["[PAD]", "a"]),
        ("\ufeff\na\n", ["\ufeff", "a"]),
        ("", []),
        ("\n", [""]),
    ):
        path.write_text(content, encoding="utf-8")
        assert list(text_vocab.load_vocab(str(path))) == expected

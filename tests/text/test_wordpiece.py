"""The tokenizer compared with the original's results, with and without cache; files and bad input."""

import logging as python_logging
import unicodedata

import pytest
from helpers.op_by_op import op_by_op
from helpers.paths import GOLDEN, lines_of

from bert_tf.text import characters, tokenizer_files
from bert_tf.text import wordpiece as text_wordpiece
from bert_tf.text.graph_wordpiece import graph_of
from bert_tf.text.wordpiece import BasicTokenizer, FullTokenizer

VOCAB_FILE = str(GOLDEN / "vocab.txt")


@pytest.fixture(scope="module")
def records():
    return lines_of(GOLDEN / "tokenization" / "tokenization.jsonl.gz")


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_all_golden_strings(records, do_lower_case):
    tokenizer = FullTokenizer(VOCAB_FILE, do_lower_case)
    # With characters that are unassigned in the golden data's Unicode version, the result may differ.
    chosen = [r for r in records if not r["has_unassigned"] and r["do_lower_case"] == do_lower_case]
    assert len(chosen) == 4000 - 454
    for _ in range(2):  # the second time from the cache
        for record, ids in zip(chosen, tokenizer.encode_batch(r["text"] for r in chosen), strict=True):
            assert ids == record["ids"], record["index"]
            assert tokenizer.tokenize(record["text"]) == record["tokens"], record["index"]
    for record in chosen:
        cut, basic = tokenizer.wordpiece_tokenizer.tokenize, tokenizer.basic_tokenizer.tokenize(record["text"])
        assert [piece for token in basic for piece in cut(token)] == record["tokens"], record["index"]


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_every_code_point(do_lower_case):
    (golden,) = lines_of(GOLDEN / "tokenization" / "tokenization_codepoints.json.gz")
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


def test_odd_bytes_and_types(english):
    assert english.tokenize(b"caf\xc3\xa9 \xff\xfehouse\xc3") == ["cafe", "house"]
    assert english.encode(b"caf\xc3\xa9") == english.encode("caf\u00e9")
    assert english.tokenize("\ud800 house") == ["[UNK]", "house"]
    assert english.tokenize("") == english.tokenize(" \u200b\ufeff\0 ") == []
    assert english.encode_batch([]) == [] and english.encode_batch(["", "a"]) == [[], [1037]]
    with pytest.raises(ValueError, match="str or bytes"):
        english.tokenize(["a"])
    with pytest.raises(TypeError, match="vocab must be that of a FullTokenizer"):
        text_wordpiece.WordpieceTokenizer(VOCAB_FILE)
    assert characters.convert_to_unicode(b"\xe2\x82\xac\xff") == "\u20ac"
    assert text_wordpiece.whitespace_tokenize(" a\u3000b\n") == ["a", "b"]
    assert BasicTokenizer(strip_accents=False).tokenize("CAF\u00c9") == ["caf\u00e9"]
    assert BasicTokenizer(False, strip_accents=True).tokenize("CAF\u00c9") == ["CAFE"]


def test_casing_that_contradicts_the_checkpoint():
    """The first directory that holds bert_model.ckpt counts, and the dot stands for any character."""
    for do_lower_case, checkpoint in (
        (False, "gs://b/x.y/chinese_L-12_H-768_A-12/bert_model.ckpt-1000"),
        (True, "/models/multi_cased_L-12_H-768_A-12/bert_model.ckpt"),
        (True, "cased_L-24_H-1024_A-16/bert_model_ckpt/uncased_L-12_H-768_A-12/bert_model.ckpt"),
    ):
        tokenizer_files.validate_case_matches_checkpoint(not do_lower_case, checkpoint)
        with pytest.raises(ValueError, match=rf"was trained with --do_lower_case={not do_lower_case}: give it so"):
            tokenizer_files.validate_case_matches_checkpoint(do_lower_case, checkpoint)
    for unknown in (None, "", "cased_L-12_H-768_A-12/model.ckpt-7", "my_cased_L-12_H-768_A-12/bert_model.ckpt"):
        tokenizer_files.validate_case_matches_checkpoint(True, unknown)


@pytest.mark.parametrize(("lines", "message"), [
    (tokenizer_files.SPECIAL_TOKENS[:4], r"vocab\.txt lacks \[MASK\]"),
    ([*tokenizer_files.SPECIAL_TOKENS, "a", "\r", "b", ""], r"vocab\.txt: empty lines, which shift .*: 7, 9$"),
])  # fmt: skip
def test_check_vocab_refuses(tmp_path, lines, message):
    path = str(tmp_path / "vocab.txt")
    (tmp_path / "vocab.txt").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        tokenizer_files.check_vocab(tokenizer_files.load_vocab(path), path)


def test_tokens_that_look_blank_or_appear_twice(tmp_path, caplog):
    """As Google's Chinese vocabulary has U+2028 alone on a line, which str.splitlines would split: the ids below stay,
    the content is written again as it is, and each id has a token."""
    odd = ["\u2028", "\u2029", "\u3000", "\xa0", "\x85", "\x1c"]
    lines = [*tokenizer_files.SPECIAL_TOKENS, *odd, "a", "\u535a", "##b", "a"]
    for number, end in enumerate(("\n", "\r\n")):
        content = end.join(lines).encode()  # and none after the last
        path = tmp_path / f"{number}.txt"
        path.write_bytes(content)
        tokenizer = FullTokenizer(str(path))
        with caplog.at_level(python_logging.WARNING):
            tokenizer.check_vocabulary()
        assert caplog.text.count("repeats") == 1 and "line 15 repeats 'a' of line 12;" in caplog.text
        caplog.clear()
        assert tokenizer.vocab["a"] == 14 and tokenizer.vocab[""] == 10 and tokenizer.vocab_size == 15
        assert tokenizer.convert_ids_to_tokens(range(9, 15)) == ["", "", "a", "\u535a", "##b", "a"]
        assert tokenizer.files() == {"vocab.txt": content}
        texts = ["a \u535a ab\u2028a \u3000", "[PAD] \u2028", ""]
        assert tokenizer.encode(texts[0]) == [14, 12, 14, 13, 14]
        with op_by_op():
            assert graph_of(tokenizer).encode(texts).to_list() == tokenizer.encode_batch(texts)


def test_vocabularies_are_read_as_the_original_does(tmp_path):
    path = tmp_path / "vocab.txt"
    for content, expected in (
        # Unicode spaces stripped, a blank line takes an id, carriage returns at ends dropped, the last duplicate wins.
        ("[PAD]\r\n\u3000b \n\nc\rd\nb", {"[PAD]": 0, "b": 4, "": 2, "c\rd": 3}),
        # A byte order mark is no part of the first token, unless there is nothing else.
        ("\ufeff[PAD]\na \n", {"[PAD]": 0, "a": 1}),
        ("\ufeff\na\n", {"\ufeff": 0, "a": 1}),
        ("", {}),
        ("\n", {"": 0}),
    ):
        path.write_bytes(content.encode())
        assert list(tokenizer_files.load_vocab(str(path)).items()) == list(expected.items())

"""Token ids with the characters they cover: the same ids as without offsets, and correct offsets in every script."""

import unicodedata

import pytest
from helpers.paths import lines_of

from bert_tf.text.wordpiece import FullTokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "beyonce", "ab", "##c", "東", "京", "##で", "##す", "は", "i"]
PIECES += [unicodedata.normalize("NFD", "한"), "##" + unicodedata.normalize("NFD", "국")]


def pieces_of(tokenizer, text, **options):
    """[(piece, the text it covers)]"""
    ids, offsets = tokenizer.encode_with_offsets(text, **options)
    tokens = tokenizer.convert_ids_to_tokens(ids)
    return [(token, text[first:last]) for token, (first, last) in zip(tokens, offsets, strict=True)]


def test_golden_strings_have_the_ids_of_encode_and_offsets_in_order(golden):
    tokenizers = {case: FullTokenizer(str(golden / "vocab.txt"), case) for case in (True, False)}
    count = exact = 0
    for record in lines_of(golden / "tokenization" / "tokenization.jsonl.gz"):
        text, tokenizer = record["text"], tokenizers[record["do_lower_case"]]
        ids, offsets = tokenizer.encode_with_offsets(text)
        assert ids == tokenizer.encode(text), record["index"]
        assert record["has_unassigned"] or ids == record["ids"], record["index"]
        assert len(offsets) == len(ids)
        starts = [first for first, _ in offsets]
        assert starts == sorted(starts) and all(0 <= first < last <= len(text) for first, last in offsets)
        if text.isascii() and text.isprintable():  # nothing is dropped: a piece equals its text
            for token, (first, last) in zip(tokenizer.convert_ids_to_tokens(ids), offsets, strict=True):
                written = text[first:last].lower() if record["do_lower_case"] else text[first:last]
                assert token == "[UNK]" or token in (written, "##" + written), (record["index"], token)
                exact += token != "[UNK]"
        count += 1
    assert count == 8000 and exact > 10_000


@pytest.mark.parametrize(("text", "expected"), [
    ("Beyoncé ab", [("beyonce", "Beyoncé"), ("ab", "ab")]),
    ("Beyonce\u0301\tab", [("beyonce", "Beyonce\u0301"), ("ab", "ab")]),  # the accent is a separate character
    ("aBc", [("ab", "aB"), ("##c", "c")]),
    ("a\u200bbc", [("ab", "a\u200bb"), ("##c", "c")]),  # a character dropped inside belongs to the piece
    ("東京は", [("東", "東"), ("京", "京"), ("は", "は")]),
    ("한국", [("한", "한"), ("##국", "국")]),  # in Jamo in the vocabulary
    ("\u0130", [("i", "\u0130")]),  # lower-cased to two characters, the second of which is stripped
    ("\u00a0 ab\u3000c", [("ab", "ab"), ("[UNK]", "c")]),
    ("\ufb00", [("[UNK]", "\ufb00")]),
    (".\u0903ab", [("[UNK]", "."), ("[UNK]", "\u0903ab")]),  # a mark that is kept belongs to its own piece
    ("", []),
    (" \u200b\u0301 ", []),
])  # fmt: skip
def test_offsets_by_hand(small, text, expected):
    found = pieces_of(small, text)  # a syllable in Jamo reads badly
    assert [(unicodedata.normalize("NFC", piece), part) for piece, part in found] == expected


def test_unknown_words_are_one_piece_or_cut_to_what_is_known(small):
    text = "ab 東京です はでxす abxc"
    whole = [("ab", "ab"), ("東", "東"), ("京", "京"), ("[UNK]", "です"), ("[UNK]", "はでxす"), ("[UNK]", "abxc")]
    # で is decomposed into て and a mark that is stripped, so that the vocabulary's ##で never matches.
    assert pieces_of(small, text) == whole
    cut = pieces_of(small, text, split_unknown=True)
    assert cut[:3] == whole[:3] and cut[3:] == [
        ("[UNK]", "で"), ("##す", "す"), ("は", "は"), ("[UNK]", "で"), ("[UNK]", "x"), ("##す", "す"),
        ("ab", "ab"), ("[UNK]", "x"), ("##c", "c"),
    ]  # fmt: skip

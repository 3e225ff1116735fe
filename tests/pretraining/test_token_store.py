"""Text to tokens on disk by compiled code, with the tokenizer's ids."""

import json

import numpy as np
import pytest
from helpers.paths import GOLDEN, lines_of

from bert_tf.pretraining import token_store
from bert_tf.text.wordpiece import FullTokenizer

VOCAB_FILE = str(GOLDEN / "vocab.txt")


def sentences_of(lines: list[str], tokenizer: FullTokenizer, directory, lines_at_once: int = 7) -> list[list[int]]:
    pieces = ("\n".join([*lines[k : k + lines_at_once], ""]) for k in range(0, len(lines), lines_at_once))
    store = token_store.tokenize(pieces, tokenizer, str(directory))
    return [part.tolist() for part in np.split(store.tokens, store.sentence_ends[:-1])]


@pytest.fixture(scope="module")
def texts():
    """The golden strings, one per line, with the original's ids by casing; None where Unicode has changed since."""
    found = {True: [], False: []}
    for record in lines_of(GOLDEN / "tokenization" / "tokenization.jsonl.gz"):
        if "\n" not in record["text"]:
            ids = None if record["has_unassigned"] else record["ids"]
            found[record["do_lower_case"]].append((record["text"], ids))
    return found


@pytest.mark.parametrize(
    ("do_lower_case", "strip_accents"), [(True, None), (False, None), (True, False), (False, True)]
)
def test_golden_strings(texts, tmp_path, do_lower_case, strip_accents):
    tokenizer = FullTokenizer(VOCAB_FILE, do_lower_case, strip_accents)
    lines = [text for text, _ in texts[do_lower_case]]
    expected = [ids for ids in tokenizer.encode_batch(lines) if ids]
    assert sentences_of(lines, tokenizer, tmp_path) == expected
    if strip_accents is None:
        golden = [ids for _, ids in texts[do_lower_case] if ids]
        assert len(golden) > 3000
        known = [text for text, ids in texts[do_lower_case] if ids]
        assert sentences_of(known, tokenizer, tmp_path) == golden


def test_every_ascii_character_in_every_place(tmp_path, english):
    characters = [chr(code) for code in range(128) if chr(code) not in "\n"]
    forms = ("@", "Ab@cD", "@word", "word@ 좋다@é", "@@ x@")
    lines = [form.replace("@", character) for character in characters for form in forms]
    lines += [character * count for character in "aéψ가" for count in (200, 201)]  # the longest word, and one too long
    expected = [ids for ids in english.encode_batch(lines) if ids]
    assert sentences_of(lines, english, tmp_path) == expected
    assert len(expected) < len(lines)  # nothing is left of control characters


def test_a_full_table_starts_afresh(tmp_path, english, monkeypatch):
    monkeypatch.setattr(token_store, "_HASH_SLOTS", 64)
    lines = [f"w{k} x{k % 3} ü{k % 50}" for k in range(400)]
    assert sentences_of(lines, english, tmp_path) == english.encode_batch(lines)


def test_a_vocabulary_without_unknown(tmp_path):
    (tmp_path / "vocab.txt").write_text("a\nb\n##b\n")
    tokenizer = FullTokenizer(str(tmp_path / "vocab.txt"))
    assert sentences_of(["a ab b"], tokenizer, tmp_path / "store") == [[0, 0, 2, 1]]
    # A line of an ideographic space is blank, and so ends a document.
    store = token_store.tokenize(["a\nb\n\u3000\na\n"], tokenizer, str(tmp_path / "store"))
    assert store.document_ends.tolist() == [2, 3]
    with pytest.raises(KeyError, match="UNK"):
        sentences_of(["a c"], tokenizer, tmp_path / "store")


def test_added_tokens(tmp_path):
    """Lines with them, in any case, and lines without have the ids of the tokenizer."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##b", "new", "york"]
    pieces += ["[", "]", "e", "##1", "한", "##국"]
    (tmp_path / "vocab.txt").write_text("".join(piece + "\n" for piece in pieces), encoding="utf-8")
    flags = {"special": False, "single_word": False, "lstrip": False, "rstrip": False}
    decoder = {
        len(pieces): {**flags, "content": "[E1]", "normalized": False},
        len(pieces) + 1: {**flags, "content": "New York", "normalized": True},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    tokenizer = FullTokenizer(str(tmp_path / "vocab.txt"), True, False)
    lines = ["a ab", "[E1]한국[E1]b", "[e1] a", "ab NEW YORKab", "new  york", "b", "[E1]"]
    found = sentences_of(lines, tokenizer, tmp_path / "store", lines_at_once=3)
    assert found == tokenizer.encode_batch(lines)
    assert found[1] == [16, 14, 15, 16, 6] and found[3] == [5, 7, 17, 5, 7]

"""Functions of every tokenizer: ids of special tokens, rows of texts and pairs, arrays for a model."""

import itertools

import numpy as np
import pytest

from bert_tf.text.tokenizer import lengths_that_fit
from bert_tf.text.wordpiece import FullTokenizer


def tokens_of(tokenizer, features) -> list[list[str]]:
    return [
        tokenizer.convert_ids_to_tokens(row[mask == 1])
        for row, mask in zip(features["input_ids"], features["input_mask"], strict=True)
    ]


def test_a_missing_special_token_is_named(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("[UNK]\n[CLS]\na\n")
    tokenizer = FullTokenizer(str(path))
    assert tokenizer.encode("a") == [2]  # only rows need it
    with pytest.raises(ValueError, match=r"vocab\.txt lacks \[SEP\]"):
        tokenizer("a")


def test_lengths_that_fit_are_those_of_the_loop_of_the_original():
    for first, second, room in itertools.product(range(9), range(9), range(12)):
        a, b = ["a"] * first, ["b"] * second
        while len(a) + len(b) > room:
            (a if len(a) > len(b) else b).pop()
        assert lengths_that_fit(first, second, room) == (len(a), len(b))


def test_decode(english):
    ids = english.encode("John Johanson's  house")
    assert "##son" in english.convert_ids_to_tokens(ids)
    assert english.decode(ids) == "john johanson ' s house"


def test_what_texts_may_be(english):
    expected = english(["the house", "the"])
    both = ("the house", "the")
    for texts in (both, np.array(both), [b"the house", b"the"], iter(both)):
        given = english(texts)
        assert all(np.array_equal(given[name], values) for name, values in expected.items())
    single = english("the house")
    assert single["input_ids"].tolist() == expected["input_ids"][:1].tolist()
    assert english("the", "house")["input_ids"].shape == (1, 5)
    assert english([])["input_ids"].shape == (0, 1)


def test_max_length_and_padding(english):
    long = english(["the " * 20, "the"], max_length=6)
    assert long["input_ids"].shape == (2, 6)
    assert tokens_of(english, long)[0] == ["[CLS]", *["the"] * 4, "[SEP]"]
    assert english(["the"], max_length=6)["input_ids"].shape == (1, 3), "the longest row is shorter"
    padded = english(["the"], max_length=6, padding="max_length")
    assert padded["input_mask"].tolist() == [[1, 1, 1, 0, 0, 0]]
    assert tokens_of(english, english("the the the", "house", max_length=6)) == [
        ["[CLS]", "the", "the", "[SEP]", "house", "[SEP]"]
    ]

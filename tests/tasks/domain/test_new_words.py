"""Which words are added to a vocabulary, and how many pieces that saves."""

import pytest

from bert_tf.tasks.domain.texts import NewWord, find_new_words, pieces_per_word
from bert_tf.text.wordpiece import FullTokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "a", "##b", "##c", "1", "##9", "##s"]


def test_the_words_that_save_most_come_first(small):
    counts = {
        "the": 500,  # is a piece already
        "abc": 30,  # three pieces: saves 60
        "ab": 50,  # saves 50
        "abs": 25,  # saves 50 as well: by name
        "µm": 45,  # unknown as a whole: counts as two pieces
        "19": 900,  # a number
        "ac": 4,  # too rare
    }
    found = find_new_words(counts, small, 10)
    assert found == [
        NewWord("abc", 30, ("a", "##b", "##c")),
        NewWord("ab", 50, ("a", "##b")),
        NewWord("abs", 25, ("a", "##b", "##s")),
        NewWord("µm", 45, ("[UNK]",)),
    ]
    assert find_new_words(counts, small, 2) == found[:2]
    assert find_new_words(counts, small, 0) == []


@pytest.mark.parametrize("word", ["Ab", "a-b", "a b", "é", "a" * 61])
def test_what_the_tokenizer_never_gives_is_not_added(small, word):
    assert find_new_words({word: 100}, small, 10) == []


def test_a_cased_vocabulary_keeps_capitals(tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(piece + "\n" for piece in [*PIECES, "A"]))
    tokenizer = FullTokenizer(str(tmp_path / "vocab.txt"), do_lower_case=False)
    assert [new.word for new in find_new_words({"Ab": 10, "ab": 9}, tokenizer, 10)] == ["Ab", "ab"]


def test_pieces_per_word(small):
    counts = {"the": 6, "abc": 2, "abcs": 2}
    assert pieces_per_word(counts, small, []) == (6 + 2 * 3 + 2 * 4) / 10
    # A new word also begins longer ones.
    assert pieces_per_word(counts, small, [NewWord("abc", 2, ("a", "##b", "##c"))]) == (6 + 2 + 2 * 2) / 10

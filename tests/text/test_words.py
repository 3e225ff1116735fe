"""Words of texts to tag: in Python, and the same in a graph."""

import pytest
import tensorflow as tf
from helpers.op_by_op import op_by_op
from helpers.slow import slow
from helpers.texts import odd_texts

from bert_tf.serving.graph_ner import GraphWords
from bert_tf.text.characters import SPLITS, as_text, split_words

CASES = {
    "Ada Lovelace  lived in London.": ["Ada", "Lovelace", "lived", "in", "London", "."],
    "서울에 (Élodie) 갔다 日本": ["서울에", "(", "Élodie", ")", "갔다", "日", "本"],
    "": [],
    " \t\n": [],
    "\u200b\u0007": [],
    "\u200ba\u200bb\u200b": ["a\u200bb"],
    "it's 9,000": ["it", "'", "s", "9", ",", "000"],
}


def test_words():
    for text, words in CASES.items():
        assert [text[start:end] for start, end in split_words(text)] == words


def test_characters():
    text = "서울 A1.\u200b\n日"
    of = {split: [text[start:end] for start, end in split_words(text, split)] for split in SPLITS}
    assert of["characters"] == ["서", "울", "A", "1", ".", "日"]
    assert of["characters_and_spaces"] == ["서", "울", " ", "A", "1", ".", "\n", "日"]
    assert split_words(text, "characters")[-1] == (8, 9)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("count", [200, *slow(20_000)])
def test_words_in_a_graph(count, split):
    texts = [*CASES, " a ", *map(as_text, odd_texts(count))]
    with op_by_op():  # traced in serving/test_tagger.py
        words = tf.function(GraphWords(split))(tf.constant([text.encode() for text in texts]))
    starts, ends, splits = (values.numpy().tolist() for values in (words.starts, words.ends, words.splits))
    found = [word.decode() for word in words.texts.numpy()]
    for row, text in enumerate(texts):
        own = slice(splits[row], splits[row + 1])
        places = list(zip(starts[own], ends[own], strict=True))
        assert places == split_words(text, split), repr(text)
        assert found[own] == [text[start:end] for start, end in places]
    nothing = GraphWords(split)(tf.zeros([0], tf.string))
    assert nothing.texts.shape == (0,) and nothing.splits.numpy().tolist() == [0]
    broken = GraphWords(split)(tf.constant([b"a\xff b\xe6"]))
    assert broken.texts.numpy().tolist() == [b"a", *([b" "] if split == "characters_and_spaces" else []), b"b"]

"""Every task builds rows by the tokenizer's rules, here RoBERTa's: `<s> a </s></s> b </s>` and padding 1."""

import pytest
from helpers.word_tokenizer import WordTokenizer

from bert_tf.data.token_rows import check_room
from bert_tf.tasks.choice import encode as choice_encode
from bert_tf.tasks.choice.data import ChoiceExample
from bert_tf.tasks.classification import encode as classification_encode
from bert_tf.tasks.classification.data import InputExample, Task
from bert_tf.tasks.features import extract
from bert_tf.tasks.ner import encode as ner_encode
from bert_tf.tasks.ner.data import Sentence

TOKENIZER = WordTokenizer()  # <s> 0, <pad> 1, </s> 2, <unk> 3, a 4, b 5, c 6, +d 7


def test_classification():
    examples = [InputExample("1", "a", "b c", "x"), InputExample("2", "a b", None, "x")]
    rows = classification_encode.encode_examples(examples, Task("t", ("x",), None), TOKENIZER, 8)
    batch = rows.batch([0, 1], 8)
    assert batch["input_ids"].tolist() == [[0, 4, 2, 2, 5, 6, 2, 1], [0, 4, 5, 2, 1, 1, 1, 1]]
    assert batch["input_mask"].sum(1).tolist() == [7, 4]
    assert not batch["segment_ids"].any()
    with pytest.raises(ValueError, match="the maximum sequence length is 3, but a pair's special tokens alone are 4"):
        check_room(TOKENIZER, 3)


def test_choices():
    rows = choice_encode.encode_examples([ChoiceExample("1", "a", "b", ("c", "a"), 0)], TOKENIZER, 8)
    assert rows.batch([0], 8)["input_ids"].tolist() == [[[0, 4, 2, 2, 5, 6, 2, 1], [0, 4, 2, 2, 5, 4, 2, 1]]]


def test_words():
    rows = ner_encode.encode_sentences([Sentence(["a", "zz"], None, [1, 2])], TOKENIZER, 5)
    assert rows.batch([0], 5)["input_ids"].tolist() == [[0, 4, 3, 2, 1]]
    assert rows.word_positions.tolist() == [1, 2]


def test_features():
    line = extract.encode_line("a b ||| c", TOKENIZER, 8, pooling="mean")
    assert (line.ids, line.words) == ([0, 4, 5, 2, 2, 6, 2], ["<s>", "a", "b", "</s>", "</s>", "c", "</s>"])
    assert sum(line.sizes) == len(line.ids)

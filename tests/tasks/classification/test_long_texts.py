"""Long texts to windows: token ids by hand, what is lost, records, and what is rejected."""

import logging as python_logging

import numpy as np
import pytest

from bert_tf.store.head_config import NO_HEAD, HeadConfig
from bert_tf.tasks.rows import InputExample, Task, TextWindows, encode_examples, windows_of, windows_of_model

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"]
A, B, C, D, E, F, G = range(5, 12)
TASK = Task("", ("no", "yes"), None)
TEXTS = ["a b c d e f g", "a b", "", "a b c d"]


def encode(small, texts, length, stride, most=8):
    examples = [InputExample(f"x-{k}", text, None, ("no", "yes")[k % 2]) for k, text in enumerate(texts)]
    return encode_examples(examples, TASK, small, length, windows=TextWindows(stride, most))


def rows_in(encoded):
    return [ids.tolist() for ids in np.split(encoded.ids, encoded.offsets[1:-1])]


def test_windows_by_hand(small, caplog):
    with caplog.at_level(python_logging.INFO, logger="absl"):
        encoded = encode(small, TEXTS, 6, 2)
    assert rows_in(encoded) == [
        [2, A, B, C, D, 3], [2, C, D, E, F, 3], [2, E, F, G, 3], [2, A, B, 3], [2, 3], [2, A, B, C, D, 3],
    ]  # fmt: skip
    assert encoded.windows.tolist() == [3, 1, 1, 1] and encoded.labels["label_ids"].tolist() == [0, 1, 0, 1]
    assert encoded.second_starts.tolist() == [6, 6, 5, 4, 2, 6]
    assert (
        "1 of 4 texts are longer than --max_seq_length=6; all texts together make 6 windows, at most 3 each."
        in caplog.text
    )
    assert "lost" not in caplog.text
    # Without overlap.
    assert rows_in(encode(small, TEXTS[:1], 6, 4)) == [[2, A, B, C, D, 3], [2, E, F, G, 3]]


def test_what_is_beyond_the_last_window_is_lost_and_counted(small, caplog):
    with caplog.at_level(python_logging.INFO, logger="absl"):
        encoded = encode(small, TEXTS, 6, 2, most=2)
    assert rows_in(encoded)[:2] == [[2, A, B, C, D, 3], [2, C, D, E, F, 3]]
    assert (
        "1 of 4 texts need more than max_windows=2 windows and lost their ends: 1 of 13 tokens (7.7 %)" in caplog.text
    )


def test_one_window_is_what_is_left_of_a_text_that_is_cut(small):
    examples = [InputExample(str(k), text) for k, text in enumerate(TEXTS)]
    cut = encode_examples(examples, TASK, small, 5)
    one = encode_examples(examples, TASK, small, 5, windows=TextWindows(1, 1))
    assert rows_in(cut) == rows_in(one) and not one.labels


def test_where_windows_lie_by_default(small):
    assert windows_of(None, None, small, 12) == TextWindows(5, 8) and windows_of(None, 3, small, 3) == TextWindows(1, 3)
    assert windows_of_model(NO_HEAD, small, 12) is None
    head = HeadConfig(window_pooling="max", window_stride=2, max_windows=3)
    assert windows_of_model(head, small, 12) == TextWindows(2, 3)


def test_windows_without_room_and_pairs_are_rejected(small):
    with pytest.raises(ValueError, match="window_stride=5: a window of max_seq_length=6 has 4 tokens of the text"):
        windows_of(5, 8, small, 6)
    with pytest.raises(ValueError, match="the maximum sequence length is 2, but a pair's special tokens alone are 3"):
        windows_of(None, 8, small, 2)
    pair = [InputExample("dev-3", "a", "b")]
    with pytest.raises(ValueError, match="Example dev-3 is a pair; a model that reads windows"):
        encode_examples(pair, TASK, small, 6, windows=TextWindows(2))

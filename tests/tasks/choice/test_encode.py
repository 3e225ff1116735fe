"""Token rows of multiple choice: by hand, in batches, and where they are cut."""

import itertools

import pytest

from bert_tf.tasks.choice.data import ChoiceExample
from bert_tf.tasks.choice.encode import encode_examples

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"]
A, B, C, D, E = range(5, 10)

EXAMPLES = [
    ChoiceExample("0", "a b", "c", ("d", "d e a a"), 1),
    ChoiceExample("1", "a b c d e", "", ("\u0001", "e"), 0),
]


def test_rows(small):
    rows = encode_examples(EXAMPLES, small, 16)
    expected = [
        [2, A, B, 3, C, D, 3],
        [2, A, B, 3, C, D, E, A, A, 3],
        [2, A, B, C, D, E, 3],  # a choice without any token
        [2, A, B, C, D, E, 3, E, 3],
    ]
    assert rows.ids.tolist() == list(itertools.chain(*expected)) and rows.second_starts.tolist() == [4, 4, 7, 7]
    assert (len(rows), rows.rows_per_example, rows.lengths.tolist(), rows.truncated) == (2, 2, [10, 9], 0)
    batch = rows.batch([1, 0, 1], 12)
    shapes = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), (3, 2, 12)) | {"label_ids": (3,)}
    assert {name: values.shape for name, values in batch.items()} == shapes
    assert batch["label_ids"].tolist() == [0, 1, 0]
    for place, example in enumerate([1, 0, 1]):
        for choice in range(2):
            row = expected[2 * example + choice]
            assert batch["input_ids"][place, choice].tolist() == row + [0] * (12 - len(row))
            assert batch["input_mask"][place, choice].tolist() == [1] * len(row) + [0] * (12 - len(row))
    assert batch["segment_ids"][1].tolist() == [[0] * 4 + [1] * 3 + [0] * 5, [0] * 4 + [1] * 6 + [0] * 2]
    assert not batch["segment_ids"][0, 0].any()


def test_long_rows_lose_the_end_of_what_is_longer(small, caplog):
    rows = encode_examples(EXAMPLES, small, 7)
    expected = [[2, A, B, 3, C, D, 3], [2, A, B, 3, C, D, 3], [2, A, B, C, D, E, 3], [2, A, B, C, 3, E, 3]]
    assert rows.ids.tolist() == list(itertools.chain(*expected)) and rows.truncated == 2
    assert "of which the last are lost: 2 of 4 choices" in caplog.text
    with pytest.raises(ValueError, match="^max_seq_length=4 has no room for two texts"):
        encode_examples(EXAMPLES, small, 4)

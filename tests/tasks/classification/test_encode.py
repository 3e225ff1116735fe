"""Token ids equal the original's; batches lose no examples; metrics and files."""

import logging as python_logging
import unicodedata

import numpy as np
import pytest
import tensorflow as tf
from helpers.outputs import enlarge
from helpers.paths import lines_of
from helpers.tiny import ONE_LAYER

from bert_tf import BertConfig, BertForSequenceClassification, FullTokenizer
from bert_tf.data import token_rows
from bert_tf.data.token_rows import Share, TokenRows
from bert_tf.store.head_config import NO_HEAD, HeadConfig
from bert_tf.tasks import task as fine_tuning_task
from bert_tf.tasks.choice import data as choice_data
from bert_tf.tasks.choice.data import ChoiceExample
from bert_tf.tasks.classification import data
from bert_tf.tasks.ner import encode as ner_encode
from bert_tf.tasks.ner.data import Sentence
from bert_tf.tasks.rows import (
    InputExample,
    Task,
    TextWindows,
    encode_examples,
    log_examples,
    log_groups,
    windows_of,
    windows_of_model,
)
from bert_tf.training import step as train_step


@pytest.mark.parametrize("length", [32, 128])
@pytest.mark.parametrize("kind", ["train", "dev", "test"])
@pytest.mark.parametrize("name", ["cola", "mnli", "mrpc", "xnli"])
def test_features_equal_the_originals(golden, english, name, kind, length):
    file = golden / "classifier" / name / f"features_{kind}_{length}.jsonl.gz"
    if not file.exists():
        assert (name, kind) == ("xnli", "test")  # the original never read it
        return
    expected = [record for record in lines_of(file) if record["is_real_example"]]  # the others pad a batch of a TPU
    task = data.find_task(name)
    split = task.train if kind == "train" else next(iter((task.dev if kind == "dev" else task.test).values()))
    examples = data.read_examples(task, split, str(golden / "classifier" / name))
    encoded = encode_examples(examples, task, english, length)
    assert len(examples) == len(expected) >= 6
    arrays = encoded.batch(range(len(encoded)), length)
    for row, (example, record) in enumerate(zip(examples, expected, strict=True)):
        assert (example.guid, example.text_a, example.text_b) == (record["guid"], record["text_a"], record["text_b"])
        for key in ("input_ids", "input_mask", "segment_ids"):
            assert arrays[key][row].tolist() == record[key], (example.guid, key)
        if kind != "test":
            assert example.label == record["label"]
            assert int(arrays["label_ids"][row]) == record["label_id"]


def make_encoded(count=50, seed=0) -> TokenRows:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(3, 31, count)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return TokenRows(
        generator.integers(5, 100, offsets[-1]).astype(np.int32),
        offsets,
        (lengths // 2).astype(np.int32),
        {"label_ids": generator.integers(0, 3, count).astype(np.int32)},
        pad_id=0,
    )


def test_logs_show_whole_syllables(tmp_path, caplog):
    """Of a vocabulary of decomposed Hangul, which a tokenizer that strips accents reads."""
    pieces = [unicodedata.normalize("NFD", piece) for piece in ("영화", "##를", "봤다")]
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces, ""]))
    tokenizer, task = FullTokenizer(str(tmp_path / "vocab.txt")), data.find_task("cola")
    examples = [InputExample("train-0", "영화를 봤다", label="1")]
    rows = encode_examples(examples, task, tokenizer, 8)
    choice = choice_data.encode_examples([ChoiceExample("0", "영화를", "", ("봤다", "영화"), 0)], tokenizer, 8)
    tagged = ner_encode.encode_sentences([Sentence(["영화를"], ["O"], [])], tokenizer, 8, label_ids={"O": 0})
    with caplog.at_level("INFO"):
        log_examples(examples, rows, tokenizer)
        log_groups(choice, tokenizer, 1)
        ner_encode.log_rows(tagged, ["O"], tokenizer)
    logged = [record.getMessage().partition(": [CLS] 영화")[2] for record in caplog.records]
    assert logged == [" ##를 봤다 [SEP]", " ##를 [SEP] 봤다 [SEP]", " ##를 [SEP] 영화 [SEP]", "/O ##를 [SEP]"]


def test_truncation_is_counted_and_said_once(english, caplog):
    task = data.find_task("mrpc")
    examples = [
        InputExample("a", "one " * 20, "two " * 9, "0"),
        InputExample("b", "one", "\u200b", "1"),  # no token in the second text
    ]
    encoded = encode_examples(examples, task, english, 16)
    assert encoded.lengths.tolist() == [16, 3]
    one, two = english.convert_tokens_to_ids(["one", "two"])
    assert encoded.ids[:16].tolist() == [101, *[one] * 7, 102, *[two] * 6, 102]
    assert [record.message for record in caplog.records if "the last are lost" in record.message] == [
        "Longer than the maximum sequence length, 16 tokens, of which the last are lost: 1 of 2 examples."
    ]


@pytest.mark.parametrize("window", [1, 4])
def test_training_rows_are_a_function_of_seed_and_step(window):
    lengths = make_encoded(50).lengths

    def rows(seed, start, count):
        stream = token_rows.training_rows(lengths, 8, seed, start, window)
        return [next(stream).tolist() for _ in range(count)]

    whole = rows(1, 0, 60)
    for start in (1, 7, 13):
        assert rows(1, start, 20) == whole[start : start + 20]
    assert rows(2, 0, 5) != whole[:5]


@pytest.mark.parametrize("count", [5, 50, 403])
def test_every_epoch_has_every_row_once(count):
    """Even if an epoch is not a whole number of batches, or less than one."""
    lengths = make_encoded(count).lengths
    plain = token_rows.training_rows(lengths, 8, 1, 0, window_batches=1)
    stream = np.concatenate([next(plain) for _ in range(3 * count + 28)])
    epochs = stream[: len(stream) // count * count].reshape(-1, count)
    assert (np.sort(epochs, axis=1) == np.arange(count)).all()
    assert (epochs[0] != epochs[1]).any()
    # Rows are sorted by length only inside a window: after any number of windows the same rows have occurred.
    sorted_by_length = token_rows.training_rows(lengths, 8, 1, 0, window_batches=7)
    for window in range(4):
        rows = np.concatenate([next(sorted_by_length) for _ in range(7)])
        assert np.sort(rows).tolist() == np.sort(stream[window * 56 : (window + 1) * 56]).tolist()


def test_batches_have_rows_of_similar_length():
    lengths = np.random.default_rng(0).integers(3, 129, 3000).astype(np.int32)

    def spread(window):
        stream = token_rows.training_rows(lengths, 32, 1, 0, window)
        batches = [next(stream) for _ in range(150)]
        assert len(np.unique(batches[:50])) == 50 * 32  # all of the first epoch
        return np.mean([np.ptp(lengths[batch]) for batch in batches]), [lengths[batch].mean() for batch in batches]

    (sorted_spread, means), (plain_spread, _) = spread(50), spread(1)
    assert plain_spread > 110 and sorted_spread < 6
    assert abs(np.corrcoef(means[:50], np.arange(50))[0, 1]) < 0.4  # the batches themselves are not sorted by length


def test_a_share_of_a_batch_is_as_long_as_the_batch():
    encoded = make_encoded(40)
    settings = {"batch_size": 4, "seed": 1, "start_step": 3, "max_seq_length": 32}
    whole = list(token_rows.training_batches(encoded, **settings).take(20))
    second = token_rows.training_batches(encoded, share=Share(2, 1, 1), **settings)
    both = token_rows.training_batches(encoded, share=Share(4, 2, 2), **settings)
    assert second.element_spec["input_ids"].shape.as_list() == [2, None]
    for batch, half, quarters in zip(whole, second.take(20), both.batch(2).take(20), strict=True):
        for name, value in batch.items():
            np.testing.assert_array_equal(half[name], value[2:], err_msg=name)
            np.testing.assert_array_equal(np.concatenate(quarters[name]), value[2:], err_msg=name)
    assert {batch["input_ids"].shape[1] for batch in whole} == {*range(8, 33, 4)}
    static = next(iter(token_rows.training_batches(encoded, static_padding=True, **settings)))  # rows of any length
    rows = encoded.batch(next(token_rows.training_rows(encoded.lengths, 4, 1, 3, 1)), 32)
    np.testing.assert_array_equal(static["input_ids"], rows["input_ids"])


def test_predictions_lose_no_example_and_keep_their_order():
    encoded = make_encoded(21)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())
    with strategy.scope():
        model = enlarge(BertForSequenceClassification(BertConfig.from_dict(ONE_LAYER), num_labels=3))
    expected = np.stack([np.asarray(model(encoded.batch([row], int(encoded.lengths[row]))))[0] for row in range(21)])
    predict = train_step.make_predict_function(model, strategy)
    for static_padding in (False, True):
        logits = fine_tuning_task.predict_logits(
            predict, encoded, batch_size=8, max_seq_length=32, static_padding=static_padding
        )
        np.testing.assert_allclose(logits, expected, atol=1e-5)


def test_padded_lengths():
    assert token_rows.padded_lengths(15) == [8, 12, 15]
    lengths = token_rows.padded_lengths(300)
    assert lengths == [*range(8, 64, 4), *range(64, 128, 8), *range(128, 256, 16), 256, 288, 300]
    assert token_rows.padded_lengths(5) == [5] and token_rows.padded_lengths(288)[-2:] == [256, 288]
    assert token_rows.padded_lengths(600, whole_step=True) == [*range(32, 512, 32), 512, 576, 600]

    assert [token_rows.padded_length(longest, lengths) for longest in (1, 8, 9, 129, 289)] == [8, 8, 12, 144, 300]


def test_few_lengths_for_few_programs():
    """The longest row that there is needs a length, and the other one is that with the least padding."""
    lengths = [20] * 50 + [60] * 30 + [70] * 10 + [150]
    offsets = np.cumsum([0, *lengths])
    rows = token_rows.TokenRows(np.ones(offsets[-1], np.int32), offsets, np.zeros(len(lengths), np.int32), {}, pad_id=0)
    assert rows.padded_lengths(600, programs=1) == [160]
    assert rows.padded_lengths(600, programs=2) == [64, 160]
    assert rows.padded_lengths(150, programs=2) == [64, 150]
    assert rows.padded_lengths(600, static_padding=True, programs=2) == [600]
    batch = next(
        iter(token_rows.training_batches(rows, batch_size=2, seed=1, start_step=0, max_seq_length=600, programs=1))
    )
    assert batch["input_ids"].shape == (2, 160)


@pytest.mark.parametrize("windows", [None, TextWindows(2, 4)])
def test_texts_without_tokens_are_counted(english, caplog, windows):
    texts = ["a good film", "", "\u200b\x00", "more"]
    examples = [InputExample(f"train-{number}", text, line=number + 2) for number, text in enumerate(texts)]
    if not windows:
        examples.append(InputExample("train-4", "text", ""))
    task = Task("custom", ("a", "b"), None)
    encode_examples(examples, task, english, 8, windows=windows)
    counts = f"{2 if windows else 3} of {len(examples)}"
    assert f"A text without any token (empty, or of dropped characters) is in {counts} examples" in caplog.text
    assert "the first is train-1, line 3 of its file." in caplog.text


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
    with pytest.raises(ValueError, match="Example dev-3 is a pair; a model of windows"):
        encode_examples(pair, TASK, small, 6, windows=TextWindows(2))

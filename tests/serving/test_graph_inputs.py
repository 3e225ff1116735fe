"""Batches in which two texts share a row; windows of long texts, as the scripts cut them."""

import copy

import numpy as np
import pytest
import tensorflow as tf
from helpers.exports import save_kind
from helpers.tiny import ONE_LAYER

from bert_tf import BertConfig, BertForSequenceClassification, Predictor
from bert_tf.serving import export
from bert_tf.serving.graph_inputs import TextEncoder, fold, unfolded
from bert_tf.serving.graph_models import ServedWindowClassifier
from bert_tf.store.head_config import NO_HEAD
from bert_tf.tasks.rows import InputExample, Task, TextWindows, encode_examples
from bert_tf.text.graph_wordpiece import graph_of


def dense(lengths: list[int]) -> dict[str, tf.Tensor]:
    """Rows of these lengths, padded to the longest; all ids differ, and segments change half-way."""
    width = max(lengths, default=1)
    inside = np.arange(width) < np.array(lengths, int).reshape(-1, 1)
    ids = np.arange(1, len(lengths) * width + 1).reshape(-1, width) * inside
    segments = (np.arange(width) >= np.array(lengths, int).reshape(-1, 1) // 2) & inside
    features = {"input_ids": ids, "input_mask": inside, "segment_ids": segments}
    return {name: tf.constant(value, tf.int32) for name, value in features.items()}


def check_each_text_is_there(features, folded, lengths) -> None:
    found = {name: value.numpy() for name, value in folded.features.items()}
    for text, (place, length) in enumerate(zip(folded.places.numpy(), lengths, strict=True)):
        row, slot = divmod(place, 2)
        start = found["pooled_positions"][row, slot]
        tokens = slice(start, start + length)
        np.testing.assert_array_equal(found["input_ids"][row, tokens], features["input_ids"][text, :length])
        np.testing.assert_array_equal(found["segment_ids"][row, tokens], features["segment_ids"][text, :length])
        np.testing.assert_array_equal(found["position_ids"][row, tokens], np.arange(length))
        seen = found["input_mask"][row, tokens]  # [length, W]: its own tokens only
        own = np.isin(np.arange(seen.shape[1]), range(start, start + length))
        np.testing.assert_array_equal(seen, np.tile(own, (length, 1)))


def test_texts_share_rows_where_that_saves_padding():
    for lengths, shape in (
        ([50, 3, 20, 8, 30, 5, 12, 9], (4, 53)),
        ([3, 50, 8], (2, 53)),  # the one of medium length has a separate row
        ([50, 50, 2, 2], (2, 52)),
        ([20, 15, 18, 19], (4, 20)),  # almost nothing to save
        ([7], (1, 7)),
        ([], (0, 1)),
    ):
        features = dense(lengths)
        folded = fold(features)
        assert folded.features["input_ids"].shape == shape
        assert len(set(folded.places.numpy())) == len(lengths)
        check_each_text_is_there(features, folded, lengths)


def test_sentences_of_real_lengths_leave_half_of_the_tokens():
    lengths = np.minimum(2 + np.random.default_rng(3).gamma(3.0, 8.0, 32).astype(int), 128).tolist()
    features = dense(lengths)
    folded = fold(features)
    before, after = tf.size(features["input_ids"]), tf.size(folded.features["input_ids"])
    assert sum(lengths) <= after <= 0.65 * before.numpy()
    check_each_text_is_there(features, folded, lengths)


def test_any_mask_is_kept_where_nothing_is_folded():
    features = dense([4, 2])
    features["input_mask"] = tf.constant([[1, 0, 1, 1], [0, 0, 0, 0]])
    found = unfolded(features)
    np.testing.assert_array_equal(found.features["input_mask"][0], [[1, 0, 1, 1]] * 4)
    np.testing.assert_array_equal(found.features["input_mask"][1], [[0, 0, 0, 0]] * 4)
    np.testing.assert_array_equal(found.features["position_ids"], [[0, 1, 2, 3]] * 2)
    np.testing.assert_array_equal(found.places, [0, 2])


def test_the_side_that_a_folder_names(small, caplog):
    """What its `truncation_side` says; see test_transformers_call.py."""
    tokenizer, texts, pairs = copy.copy(small), random_texts(20, 30), random_texts(20, 30, 1)
    tokenizer.truncation_side = "left"
    for second in (None, pairs):
        encoder = TextEncoder(tokenizer, 9, graph_of(tokenizer))
        found = encoder.features(tf.constant(texts), second and tf.constant(second))
        for name, value in tokenizer(texts, second, max_length=9).items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)
    encoded = encode_examples([InputExample("0", "a b c d e")], Task("", (), None), tokenizer, 5)
    assert encoded.ids.tolist() == small.encode("c d e", add_special_tokens=True)
    assert "5 tokens, of which the first are lost: 1 of 1 examples." in caplog.text


PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"]
CONFIG = BertConfig.from_dict({**ONE_LAYER, "vocab_size": len(PIECES), "max_position_embeddings": 8})


def random_texts(count, longest, seed=0):
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(list("abcdefghij"), size)) for size in generator.integers(0, longest, count)]


@pytest.mark.parametrize(("stride", "most"), [(3, 4), (1, 2)])
def test_the_windows_are_those_of_the_scripts(small, stride, most):
    model = BertForSequenceClassification(CONFIG, 2, window_pooling="mean", window_stride=stride, max_windows=most)
    served = ServedWindowClassifier(model, TextEncoder(small, 8, graph_of(small)), NO_HEAD)
    for texts in (random_texts(30, 40), ["", "a b"], ["a b c d e f g"], ["a b c d e f"]):
        examples = [InputExample(str(k), text) for k, text in enumerate(texts)]
        encoded = encode_examples(examples, Task("", (), None), small, 8, windows=TextWindows(stride, most))
        features = served.features_of_texts(tf.constant(texts))
        expected = encoded.batch(range(len(texts)), int(encoded.lengths.max()))
        assert features.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(features[name], value, err_msg=name)
    assert served.features_of_texts(tf.constant([], tf.string))["input_ids"].shape[0] == 0


@pytest.mark.slow
def test_an_export_of_windows_reads_single_texts(tmp_path):
    """Its answers: test_every_task.py."""
    folder = save_kind(tmp_path / "model", "bert", "mean")
    exported = Predictor(export.export_saved_model(folder, str(tmp_path / "exported")))
    assert set(exported.export.signatures) == {"serving_default", "serve_ids"}
    with pytest.raises(KeyError, match="serve_pairs"):
        exported("a", "b")
    with pytest.raises(ValueError, match="--text_pairs: .* reads windows of single texts"):
        export.export_saved_model(folder, str(tmp_path / "pairs"), text_pairs=True)
    assert not (tmp_path / "pairs").exists()

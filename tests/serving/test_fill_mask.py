"""fill_mask is the model's answer; batches in which two texts share a row, and windows of long texts in exports."""

import copy

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.outputs import enlarge
from helpers.tiny import ONE_LAYER, TINY_CONFIG

from bert_tf import BertConfig, BertForPreTraining, BertForSequenceClassification, Predictor, fill_mask
from bert_tf.serving import export, onnx_export
from bert_tf.serving.graph_inputs import TextEncoder, fold, unfolded
from bert_tf.serving.graph_models import ServedWindowClassifier
from bert_tf.store.head_config import NO_HEAD
from bert_tf.tasks.rows import InputExample, Task, TextWindows, encode_examples

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "##a", "##b", "."]


def make_model(vocab_size=16):  # as many as PIECES has
    keras.utils.set_random_seed(3)
    # Weights so large that the guesses differ between positions.
    config = BertConfig.from_dict(
        {**TINY_CONFIG, "vocab_size": vocab_size, "max_position_embeddings": 12, "initializer_range": 0.5}
    )
    model = BertForPreTraining(config)
    model.build()
    return model


def expected(model, tokens, positions):
    ids = np.array([[PIECES.index(token) for token in tokens]])
    features = {"input_ids": ids, "masked_lm_positions": np.array([positions])}
    return np.asarray(keras.ops.softmax(model(features)["masked_lm_logits"]))[0]


def test_equals_the_model_for_any_number_of_masks_and_lengths(small):
    model = make_model()
    texts = ["A [MASK] c d e f.", "[MASK]", "[MASK] b[MASK] [MASK] a"]
    pieces = [
        (["[CLS]", "a", "[MASK]", "c", "d", "e", "f", ".", "[SEP]"], [2]),
        (["[CLS]", "[MASK]", "[SEP]"], [1]),
        (["[CLS]", "[MASK]", "b", "[MASK]", "[MASK]", "a", "[SEP]"], [1, 3, 4]),
    ]
    guesses = fill_mask(model, small, texts, top_k=len(PIECES))
    assert [len(masks) for masks in guesses] == [1, 1, 3]
    for masks, (tokens, positions) in zip(guesses, pieces, strict=True):
        for ranked, probabilities in zip(masks, expected(model, tokens, positions), strict=True):
            assert [token for token, _ in ranked] == [PIECES[index] for index in np.argsort(-probabilities)]
            for token, probability in ranked:
                assert isinstance(probability, float)
                assert probability == pytest.approx(probabilities[PIECES.index(token)], abs=1e-5)


def test_many_texts_keep_their_order(small):
    """More texts than one batch takes."""
    model = make_model()
    texts = [f"{'abcdefgh'[number % 8]} [MASK]{' c' * (number % 5)}" for number in range(70)]
    together = fill_mask(model, small, texts, top_k=2)
    assert len(together) == 70
    for number in (0, 31, 32, 69):
        alone = fill_mask(model, small, [texts[number]], top_k=2)[0]
        assert [token for token, _ in together[number][0]] == [token for token, _ in alone[0]]
        np.testing.assert_allclose([p for _, p in together[number][0]], [p for _, p in alone[0]], atol=1e-5)
    assert fill_mask(model, small, []) == []


def test_rows_beyond_the_vocabulary_are_never_guessed(small):
    """The probability of rows beyond the vocabulary, in a table that was rounded up, goes to the others."""
    guesses = fill_mask(make_model(vocab_size=64), small, ["a [MASK]"], top_k=len(PIECES))[0][0]
    assert sorted(token for token, _ in guesses) == sorted(PIECES)
    assert sum(probability for _, probability in guesses) == pytest.approx(1)


def test_fill_mask_rejects_texts_without_a_mask(small):
    model = make_model()
    fill_mask(model, small, ["[MASK]" + " a" * 9])  # as long as it can be
    for texts, other, message in (
        (["a [MASK]", "a b c"], model, r"no \[MASK\] in 'a b c'"),
        (["[MASK]" + " a" * 10], model, "is 13, but must be at most 12, as max_position"),
        ("a [MASK]", model, r"not a str; for one write fill_mask\(model, tokenizer, \[text\]\)"),
        (["a [MASK]"], make_model(vocab_size=7), f"has {len(PIECES)} tokens, but the model has only 7"),
        (["a [MASK]"], BertForSequenceClassification(model.config, num_labels=2), "needs a masked-LM head: BertForSeq"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            fill_mask(other, small, texts)


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
        found = TextEncoder(tokenizer, 9).features(tf.constant(texts), second and tf.constant(second))
        for name, value in tokenizer(texts, second, max_length=9).items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)
    encoded = encode_examples([InputExample("0", "a b c d e")], Task("", (), None), tokenizer, 5)
    assert encoded.ids.tolist() == small.encode("c d e", add_special_tokens=True)
    assert "5 tokens, of which the first are lost: 1 of 1 examples." in caplog.text


LETTER_PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"]
CONFIG = BertConfig.from_dict({**ONE_LAYER, "vocab_size": len(LETTER_PIECES), "max_position_embeddings": 8})


def random_texts(count, longest, seed=0):
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(list("abcdefghij"), size)) for size in generator.integers(0, longest, count)]


def model_of(pooling, stride, most):
    model = BertForSequenceClassification(
        CONFIG, labels=["no", "yes"], window_pooling=pooling, window_stride=stride, max_windows=most, seed=1
    )
    return enlarge(model, 3)


@pytest.mark.parametrize(("stride", "most"), [(3, 4), (1, 2)])
def test_the_windows_are_those_of_the_scripts(small, stride, most):
    served = ServedWindowClassifier(model_of("mean", stride, most), TextEncoder(small, 8), NO_HEAD)
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
@pytest.mark.parametrize("pooling", ["mean", "max", "attention"])
def test_an_export_answers_as_predictor_does(small, tmp_path, pooling):
    model, texts = model_of(pooling, 3, 4), random_texts(20, 40)
    if pooling == "attention":
        model.windows.scores.assign(np.linspace(-3, 3, CONFIG.hidden_size))
    folder, vocab = str(tmp_path / "model"), tmp_path / "vocab.txt"
    vocab.write_text("".join(piece + "\n" for piece in LETTER_PIECES))
    model.save_pretrained(folder, vocab_file=str(vocab), do_lower_case=True)
    expected = Predictor(folder).logits(texts)
    assert {*expected.argmax(-1)} == {0, 1}
    for freeze in (True, False):
        path = export.export_saved_model(folder, str(tmp_path / "exported"), freeze=freeze)
        exported = Predictor(path)
        found = [list(one["probabilities"].values()) for one in exported.predict(texts)]
        np.testing.assert_allclose(found, tf.nn.softmax(expected), atol=1e-5)
        loaded = tf.saved_model.load(path).signatures
        assert set(loaded) == {"serving_default", "serve_ids"}
    with pytest.raises(KeyError, match="serve_pairs"):  # it reads windows of single texts
        exported("a", "b")
    with pytest.raises(ValueError, match="--text_pairs: .* reads windows of single texts"):
        export.export_saved_model(folder, str(tmp_path / "pairs"), text_pairs=True)
    with pytest.raises(ValueError, match="--format=onnx: .* reads long texts in windows"):
        onnx_export.export_onnx(folder, str(tmp_path / "phone"))
    assert not (tmp_path / "pairs").exists() and not (tmp_path / "phone").exists()

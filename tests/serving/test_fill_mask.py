"""fill_mask: the same numbers as the model's own outputs, whatever shares the batch; and bad input."""

import keras
import numpy as np
import pytest
from helpers.tiny import TINY_CONFIG

from bert_tf import BertConfig, BertForPreTraining, BertForSequenceClassification, fill_mask

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

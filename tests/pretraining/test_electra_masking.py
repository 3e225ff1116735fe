"""The masks of ELECTRA and of DistilBERT, which prefers rare tokens: the originals', draw by draw.

Oracles: tests/golden/electra/masking.npz and distilbert/masking.json, by the originals from given draws. Of the
first, rows 1, 2 and 6 draw positions more than once, rows 0 and 1 have 1.5 and 4.5 predictions to round, row 4 has
[MASK] in its text, row 5 the id of padding.
"""

import json
import math

import numpy as np
import pytest
import tensorflow as tf
from helpers.masking import CLS, MASK, SEP, masking, packed_rows, rows_of, tokenizer_of

from bert_tf.families.families import ElectraConfig
from bert_tf.models.electra import replace_tokens
from bert_tf.pretraining import mask_rules
from bert_tf.pretraining.masking import Masking
from bert_tf.training.pretraining_settings import PretrainingSettings
from bert_tf.training.pretraining_two_models import ElectraTask

pytestmark = pytest.mark.numbers


@pytest.fixture
def arrays(golden):
    return dict(np.load(golden / "electra" / "masking.npz"))


def draw(rows, seed=1, step=0, **settings) -> dict[str, np.ndarray]:
    features = mask_rules.electra(rows, seed, step, masking(**settings))
    return {name: value.numpy() for name, value in features.items()}


def test_masks_are_the_originals(arrays):
    features = {name: tf.constant(arrays[name]) for name in ("input_ids", "input_mask")}
    draws = (tf.constant(arrays[name]) for name in ("draw_positions", "draw_mask_uniform"))
    masked = mask_rules.mask_electra(features, *draws, masking(masked_lm_prob=float(arrays["mask_prob"])))
    np.testing.assert_array_equal(masked["input_ids"], arrays["masked_input_ids"])
    for name in ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"):
        np.testing.assert_array_equal(masked[name], arrays[name], err_msg=name)
    np.testing.assert_array_equal(masked["original_ids"], arrays["unmasked_input_ids"])
    allowed = mask_rules.electra_candidates(features, masking())
    np.testing.assert_array_equal(allowed, np.isfinite(arrays["sample_logits"]))
    new, replaced = replace_tokens(
        arrays["input_ids"], arrays["masked_lm_positions"], arrays["masked_lm_weights"], arrays["samples"]
    )
    np.testing.assert_array_equal(new, arrays["updated_input_ids"])
    np.testing.assert_array_equal(replaced, arrays["is_fake"])


def test_draws():
    """Positions are drawn evenly among the tokens, 85 % of them are masked, and no other token changes."""
    rows = rows_of(packed_rows(600, 4), 64, 4)
    found = draw(rows)
    ids, length = rows["input_ids"].numpy(), rows["segment_lengths"].numpy().sum(1)
    expected = np.clip(np.round(length.astype("float32") * np.float32(0.15)), 1, 20)
    np.testing.assert_array_equal(found["masked_lm_weights"].sum(1), expected)
    real = found["masked_lm_weights"] > 0
    labels = np.take_along_axis(ids, found["masked_lm_positions"], 1)
    np.testing.assert_array_equal(found["masked_lm_ids"], np.where(real, labels, 0))
    assert not np.isin(labels[real], [CLS, SEP, MASK]).any()
    changed = found["input_ids"] != ids
    assert (found["input_ids"][changed] == MASK).all() and not changed[:, 0].any()
    share = (np.take_along_axis(found["input_ids"], found["masked_lm_positions"], 1)[real] == MASK).mean()
    assert abs(share - 0.85) < 4 * np.sqrt(0.85 * 0.15 / real.sum()) + 0.02  # one of a pair may mask both
    number = np.cumsum(~np.isin(ids, [CLS, SEP, MASK, 0]), axis=1)
    place = (np.take_along_axis(number, found["masked_lm_positions"], 1) - 0.5) / number[:, -1:]
    assert abs(place[real].mean() - 0.5) < 4 * np.sqrt(1 / 12 / real.sum())
    assert len(np.unique(found["sampling_seeds"], axis=0)) == 600
    assert "sequence_ids" in found and "next_sentence_labels" not in found
    settings = (PretrainingSettings("records", "", max_seq_length=length) for length in (128, 512))
    assert [ElectraTask.default_predictions(one, ElectraConfig(30)) for one in settings] == [19, 79]
    rows = {name: tf.zeros_like(value) for name, value in rows_of(packed_rows(3), 64, 4).items()}
    found = draw(rows)
    assert not found["masked_lm_weights"].any() and not found["masked_lm_positions"].any()


@pytest.fixture
def oracle(golden):
    return json.loads((golden / "distilbert" / "masking.json").read_text())


def smoothing(predictions=24, **settings):
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(5, 300))]
    tokenizer = tokenizer_of({token: index for index, token in enumerate(tokens)})
    return Masking(tokenizer, max_predictions_per_seq=predictions, **settings)


@pytest.fixture
def weights(oracle):
    return mask_rules.token_weights(np.array(oracle["counts"]), oracle["special_ids"].values(), 0.7)


def test_weights_and_masks_of_given_draws(oracle, weights):
    np.testing.assert_allclose(weights, oracle["token_probs"], rtol=1e-6)
    for batch in oracle["batches"]:
        ids = np.array(batch["token_ids"], np.int32)
        chosen = np.zeros(ids.size, bool)
        chosen[batch["drawn_flat_positions"]] = True
        chosen = chosen.reshape(ids.shape)
        kinds, replacements = np.zeros((2, *ids.shape), np.int32)
        kinds[chosen], replacements[chosen] = batch["drawn_kind_0mask_1keep_2random"], batch["drawn_random_ids"]
        tokens = np.choose(kinds, [np.int32(4), ids, replacements])
        features = mask_rules.mask_chosen(ids, chosen, tokens, smoothing())
        features = {name: np.asarray(value) for name, value in features.items()}
        np.testing.assert_array_equal(features["input_ids"], batch["masked_token_ids"])
        labels = np.full_like(ids, -100)
        for row, column in np.argwhere(features["masked_lm_weights"] > 0):
            labels[row, features["masked_lm_positions"][row, column]] = features["masked_lm_ids"][row, column]
        np.testing.assert_array_equal(labels, batch["mlm_labels"])


def rows_of_batch(batch):
    ids = np.array(batch["token_ids"], np.int32)
    lengths = np.array(batch["attention_mask"]).sum(1)
    return {
        "input_ids": ids, "segment_lengths": np.stack([lengths, np.zeros_like(lengths)], 1).astype(np.int32),
        "next_sentence_labels": np.zeros((len(ids), 1), np.int32),
    }  # fmt: skip


def test_the_number_is_that_of_the_whole_batch(oracle, weights):
    for step, batch in enumerate(oracle["batches"]):
        features = mask_rules.smoothed(rows_of_batch(batch), 7, step, smoothing(), weights)
        assert np.sum(features["masked_lm_weights"]) == batch["number_to_mask"]
        np.testing.assert_array_equal(features["input_mask"], batch["attention_mask"])
        again = mask_rules.smoothed(rows_of_batch(batch), 7, step, smoothing(), weights)
        other = mask_rules.smoothed(rows_of_batch(batch), 7, step + 1, smoothing(), weights)
        for name, value in features.items():
            np.testing.assert_array_equal(value, again[name], err_msg=name)
        assert np.any(features["masked_lm_positions"] != other["masked_lm_positions"])


def test_a_row_has_at_most_its_predictions(oracle, weights):
    batch = oracle["batches"][0]
    for limit in (1, 2, 40):
        features = mask_rules.smoothed(rows_of_batch(batch), 7, 0, smoothing(limit, masked_lm_prob=0.9), weights)
        counts = np.sum(features["masked_lm_weights"], axis=1)
        assert features["masked_lm_positions"].shape == (len(counts), limit)
        # There are fewer than 90 %: [CLS], [SEP] and [UNK] are not chosen.
        special = np.isin(batch["token_ids"], list(oracle["special_ids"].values()))
        np.testing.assert_array_equal(counts, np.minimum((~special).sum(1), limit))


def test_rare_tokens_are_chosen_more_often(weights):
    """The first of two draws has the odds of the weights; what becomes of a token has the rates."""
    generator = np.random.default_rng(0)
    tokens = np.array([5, 8, 9, 19])  # weights 1, 0.06, 0.025, 0.003
    share = generator.uniform(size=(20000, 4)).astype(np.float32)
    one = np.tile(weights[tokens], (len(share), 1))
    first = (-np.log(share) / one).argmin(1)
    np.testing.assert_allclose(np.bincount(first) / len(share), weights[tokens] / weights[tokens].sum(), atol=0.01)
    for row in range(100):
        chosen = mask_rules.draw_weighted(one[row : row + 1], 1, share[row : row + 1], smoothing())
        assert np.argmax(chosen) == first[row]
    batch = {"token_ids": generator.integers(5, 300, (32, 64)), "attention_mask": np.ones((32, 64), int)}
    kinds = []
    for step in range(15):
        rates = {"mask_rate": 0.6, "random_rate": 0.3, "keep_rate": 0.1}
        features = mask_rules.smoothed(rows_of_batch(batch), 3, step, smoothing(64, **rates), np.ones(300, np.float32))
        ids, places, old, real = (
            np.asarray(features[name])
            for name in ("input_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
        )
        assert real.sum() == math.ceil(0.15 * 32 * 64)
        new, old = np.take_along_axis(ids, places, 1)[real > 0], old[real > 0]
        kinds.append([(new == 4).mean(), ((new == old) & (new != 4)).mean()])
    np.testing.assert_allclose(np.mean(kinds, axis=0), [0.6, 0.1], atol=0.015)

"""ELECTRA's masks: the original's, draw by draw; and what their own draws look like.

Oracle: tests/golden/electra/masking.npz, computed by the original from given draws. Rows 1, 2 and 6 draw positions more
than once, rows 0 and 1 have 1.5 and 4.5 predictions to round, row 4 has [MASK] in its text, row 5 the id of padding.
"""

import numpy as np
import pytest
import tensorflow as tf
from helpers.masking import CLS, MASK, SEP, masking, packed_rows, rows_of

from bert_tf.models.electra import replace_tokens
from bert_tf.pretraining import mask_rules

pytestmark = pytest.mark.numbers


@pytest.fixture
def arrays(golden):
    return dict(np.load(golden / "electra" / "masking.npz"))


def draw(rows, seed=1, step=0, **settings) -> dict[str, np.ndarray]:
    features = mask_rules.electra(rows, seed, step, masking(**settings))
    return {name: value.numpy() for name, value in features.items()}


def test_masks_are_the_originals(arrays):
    features = {name: tf.constant(arrays[name]) for name in ("input_ids", "input_mask")}
    masked = mask_rules.mask_electra(
        features,
        tf.constant(arrays["draw_positions"]),
        tf.constant(arrays["draw_mask_uniform"]),
        masking(masked_lm_prob=float(arrays["mask_prob"])),
    )
    np.testing.assert_array_equal(masked["input_ids"], arrays["masked_input_ids"])
    for name in ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"):
        np.testing.assert_array_equal(masked[name], arrays[name], err_msg=name)
    np.testing.assert_array_equal(masked["original_ids"], arrays["unmasked_input_ids"])
    allowed = mask_rules.electra_candidates(features, masking())
    np.testing.assert_array_equal(allowed, np.isfinite(arrays["sample_logits"]))


def test_tokens_are_replaced_as_in_the_original(arrays):
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
    assert [mask_rules.electra_predictions(0.15, length) for length in (128, 512)] == [19, 79]


def test_rows_of_padding_have_no_predictions():
    rows = {name: tf.zeros_like(value) for name, value in rows_of(packed_rows(3), 64, 4).items()}
    found = draw(rows)
    assert not found["masked_lm_weights"].any() and not found["masked_lm_positions"].any()

"""Several pairs in one row: everything computed for a pair is the same as in a separate row."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.masking import CLS, SEP, VOCAB, mask, rows_of
from helpers.outputs import in_training
from helpers.training_steps import build as build_for_training
from helpers.training_steps import mirrored, one_device

from bert_tf import BertConfig, BertForPreTraining, PretrainingObjective
from bert_tf.models import kernels
from bert_tf.training import step as train_step

PAIRS, LENGTH, PREDICTIONS = 4, 32, 8
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
CONFIG = BertConfig(len(VOCAB), 32, 2, 2, 64, max_position_embeddings=32, type_vocab_size=2, **NO_DROPOUT)
# Tokens of `[CLS] A [SEP]` and of `B [SEP]`.
ROWS = [[(3, 4), (5, 2), (9, 9)], [(20, 12)], [(3, 2), (4, 3), (3, 3), (6, 8)], [(8, 7), (2, 2)]]


def packed_batch() -> dict[str, np.ndarray]:
    ids = iter(np.random.default_rng(0).integers(5, len(VOCAB), 100).tolist())

    def some(count) -> list[int]:
        return [next(ids) for _ in range(count)]

    pairs = [[([CLS, *some(first - 2), SEP], [*some(second - 1), SEP]) for first, second in row] for row in ROWS]
    return mask(rows_of(pairs, LENGTH, PAIRS), max_predictions_per_seq=PREDICTIONS)


def unpacked(batch) -> dict[str, np.ndarray]:
    """The same pairs and masks, one pair per row."""
    found = []
    for number, pairs in enumerate(ROWS):
        begin, positions = 0, batch["masked_lm_positions"][number]
        for place, (first, second) in enumerate(pairs):
            end = begin + first + second
            here = (batch["masked_lm_weights"][number] > 0) & (positions >= begin) & (positions < end)
            row = {
                "input_ids": batch["input_ids"][number, begin:end],
                "input_mask": np.ones(end - begin, "int32"),
                "segment_ids": np.repeat([0, 1], [first, second]).astype("int32"),
                "masked_lm_positions": positions[here] - begin,
                "masked_lm_ids": batch["masked_lm_ids"][number][here],
                "masked_lm_weights": np.ones(here.sum(), "float32"),
            }
            sizes = {name: PREDICTIONS if "masked" in name else LENGTH for name in row}
            row = {name: np.pad(value, (0, sizes[name] - len(value))) for name, value in row.items()}
            found.append(row | {"next_sentence_labels": batch["next_sentence_labels"][number, place : place + 1]})
            begin = end
    return {name: np.stack([row[name] for row in found]) for name in found[0]}


def enlarge(model):
    for variable in model.trainable_variables:
        if "gamma" not in variable.path:
            variable.assign(variable + np.random.default_rng(len(variable.path)).normal(0, 0.2, variable.shape))
    return model


def build():
    keras.utils.set_random_seed(3)
    model = BertForPreTraining(CONFIG)
    model.build()
    return enlarge(model)


def loss_and_gradients(model, inputs):
    with tf.GradientTape() as tape:
        sums = PretrainingObjective.sums(in_training(model, inputs), inputs)
        loss = PretrainingObjective.loss(sums, PretrainingObjective.totals(inputs))
    gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
    return loss, sums, [tf.convert_to_tensor(gradient).numpy() for gradient in gradients]


@pytest.mark.parametrize("fused", [True, False])
def test_loss_and_gradients_are_those_of_the_unpacked_pairs(fused, request):
    model, batch = build(), packed_batch()
    kernels.set_fused(fused)
    request.addfinalizer(lambda: kernels.set_fused(True))
    loss, sums, gradients = loss_and_gradients(model, batch)
    alone = loss_and_gradients(model, unpacked(batch))
    assert float(sums["examples"]) == 10
    np.testing.assert_allclose(loss, alone[0], rtol=1e-6)
    for name in PretrainingObjective.sum_names:
        np.testing.assert_allclose(sums[name], alone[1][name], rtol=1e-5, err_msg=name)
    for variable, one, other in zip(model.trainable_variables, gradients, alone[2], strict=True):
        scale = max(1e-2, np.abs(other).max())
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * scale, err_msg=variable.path)


def test_absent_pairs_count_nothing():
    model, batch = build(), packed_batch()
    sums = PretrainingObjective.sums(model(batch), batch)
    changed = {
        **batch,
        "next_sentence_labels": np.where(batch["next_sentence_weights"] > 0, batch["next_sentence_labels"], 1),
    }
    assert (changed["next_sentence_labels"] != batch["next_sentence_labels"]).sum() == 6
    for name, value in PretrainingObjective.sums(model(changed), changed).items():
        assert float(value) == float(sums[name]), name


def test_evaluation_leaves_filling_rows_out():
    batch = packed_batch()
    results = []
    for strategy, rows in ((one_device(), 3), (mirrored(2), 4)):
        model = enlarge(build_for_training(strategy)[0])
        part = {name: value[:rows].copy() for name, value in batch.items()}
        # The weights of pairs are kept, to check that those of rows are enough.
        part["example_weights"] = (np.arange(rows) < 3).astype("float32")
        part["masked_lm_weights"][3:] = 0.0
        evaluate = train_step.make_evaluate_function(model, PretrainingObjective, strategy)
        results.append(evaluate([{name: tf.constant(value) for name, value in part.items()}]))
        with pytest.raises(ValueError, match="Nothing to evaluate"):
            evaluate([])
    for key, value in results[0].items():
        np.testing.assert_allclose(results[1][key], value, rtol=1e-5, err_msg=key)

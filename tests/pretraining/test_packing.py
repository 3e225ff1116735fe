"""Several pairs in a row: all is as in separate rows. Left-to-right models: what a token attends to and predicts."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf
from helpers.masking import CLS, SEP, VOCAB, mask, masking, rows_of
from helpers.outputs import enlarge, loss_and_gradients
from helpers.tiny import TINY_CONFIG
from helpers.training_steps import build, mirrored, one_device

from bert_tf import BertConfig, BertForPreTraining, BertModel, PretrainingObjective
from bert_tf.models import kernels
from bert_tf.models.dropout import dropout_scope
from bert_tf.pretraining import mask_rules
from bert_tf.pretraining.mask_rules import left_to_right as predict_next_tokens
from bert_tf.store.open import open_for_script
from bert_tf.training import step as train_step
from bert_tf.training.pretraining_settings import PretrainingSettings
from bert_tf.training.pretraining_tasks import LeftToRightTask, PretrainingTask
from bert_tf.training.settings import ModelSettings

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
            row = {"input_ids": batch["input_ids"][number, begin:end], "input_mask": np.ones(end - begin, "int32")}
            row |= {"segment_ids": np.repeat([0, 1], [first, second]).astype("int32")}
            row |= {"masked_lm_positions": positions[here] - begin}
            row |= {"masked_lm_ids": batch["masked_lm_ids"][number][here]}
            row |= {"masked_lm_weights": np.ones(here.sum(), "float32")}
            sizes = {name: PREDICTIONS if "masked" in name else LENGTH for name in row}
            row = {name: np.pad(value, (0, sizes[name] - len(value))) for name, value in row.items()}
            found.append(row | {"next_sentence_labels": batch["next_sentence_labels"][number, place : place + 1]})
            begin = end
    return {name: np.stack([row[name] for row in found]) for name in found[0]}


@pytest.fixture(params=[True, False], ids=["fused", "plain"])
def training(request, monkeypatch):
    """Whether the model trains; plain kernels where it does not."""
    monkeypatch.setitem(kernels._switches, "fused", request.param)
    return request.param


@pytest.mark.usefixtures("training")
def test_loss_and_gradients_are_those_of_the_unpacked_pairs():
    model, batch = enlarge(BertForPreTraining(CONFIG)), packed_batch()
    alone = unpacked(batch)
    loss, gradients = loss_and_gradients(model, batch)
    expected, others = loss_and_gradients(model, alone)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    sums, of_alone = (PretrainingObjective.sums(model(rows), rows) for rows in (batch, alone))
    assert float(sums["examples"]) == 10
    for name in PretrainingObjective.sum_names:
        np.testing.assert_allclose(sums[name], of_alone[name], rtol=1e-5, err_msg=name)
    for variable, one, other in zip(model.trainable_variables, gradients, others, strict=True):
        scale = max(1e-2, np.abs(other).max())
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * scale, err_msg=variable.path)


def test_evaluation_leaves_filling_rows_out():
    batch = packed_batch()
    results = []
    for strategy, rows in ((one_device(), 3), (mirrored(2), 4)):
        model = enlarge(build(strategy)[0])
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


CAUSAL_LENGTH = 12
CAUSAL_CONFIG = {**TINY_CONFIG, **NO_DROPOUT, "attention": "causal"}


def causal_model():
    return enlarge(BertModel(BertConfig.from_dict(CAUSAL_CONFIG)))


def random_ids(rows) -> np.ndarray:
    return np.random.default_rng(1).integers(5, 100, (rows, CAUSAL_LENGTH)).astype("int32")


def sequence_output(model, inputs, training):
    with dropout_scope([1, 2]):
        return model(inputs, training=training)["sequence_output"].numpy()


def test_no_token_sees_what_follows(training):
    model, ids = causal_model(), random_ids(2)
    before = sequence_output(model, ids, training)
    for place in (0, 4, CAUSAL_LENGTH - 1):
        changed = ids.copy()
        changed[:, place] = 5 + (changed[:, place] + 1) % 90
        after = sequence_output(model, changed, training)
        np.testing.assert_array_equal(after[:, :place], before[:, :place])
        assert (np.abs(after[:, place:] - before[:, place:]).max(-1) > 1e-4).all()


def test_padding_and_packed_rows():
    model, ids = causal_model(), random_ids(1)
    alone = [model(part) for part in (ids[:, :5], ids[:, 5:])]
    mask = (np.arange(CAUSAL_LENGTH) < 5).astype("int32")[None]
    padded = model({"input_ids": ids, "input_mask": mask})
    np.testing.assert_allclose(padded["pooled_output"], alone[0]["pooled_output"], atol=1e-5)
    np.testing.assert_allclose(padded["sequence_output"][:, :5], alone[0]["sequence_output"], atol=1e-5)
    # The last token is pooled, since [CLS] attends only to itself.
    last = alone[0]["sequence_output"][:, -1]
    expected = np.tanh(last @ model.pooler.kernel + model.pooler.bias)
    np.testing.assert_allclose(padded["pooled_output"], expected, atol=1e-5)
    packed = {"input_ids": ids, "sequence_ids": np.array([[1] * 5 + [2] * 7])}
    packed |= {"position_ids": np.array([[*range(5), *range(7)]])}
    outputs = model({**packed, "pooled_positions": np.array([[4, 11]])})
    for number, part in enumerate((slice(0, 5), slice(5, 12))):
        np.testing.assert_allclose(outputs["sequence_output"][:, part], alone[number]["sequence_output"], atol=1e-5)
        np.testing.assert_allclose(outputs["pooled_output"][:, number], alone[number]["pooled_output"], atol=1e-5)


def test_labels_are_the_next_tokens_of_the_same_sequence():
    rows = rows_of([[([CLS, 7, 8, SEP], [9, SEP]), ([CLS, 10, SEP], [])], [([CLS, 11, SEP], [12, 13, SEP])]], 16, 2)
    features = {name: np.asarray(value) for name, value in predict_next_tokens(rows).items()}
    assert features["masked_lm_positions"].tolist() == [list(range(15))] * 2
    assert features["masked_lm_ids"].tolist() == [
        [7, 8, SEP, 9, SEP, 0, 10, SEP] + [0] * 7,
        [11, SEP, 12, 13, SEP] + [0] * 10,
    ]
    assert features["masked_lm_weights"].tolist() == [[1, 1, 1, 1, 1, 0, 1, 1] + [0] * 7, [1] * 5 + [0] * 10]
    assert features["input_ids"].tolist() == rows["input_ids"].numpy().tolist()
    assert features["segment_ids"][0].tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 0] + [0] * 7
    assert features["sequence_ids"][0].tolist() == [1] * 6 + [2] * 3 + [0] * 7
    assert features["pooled_positions"].tolist() == [[5, 8], [5, 0]]
    assert features["next_sentence_weights"].tolist() == [[1, 1], [1, 0]]


def test_masked_records_get_their_tokens_back():
    rows = rows_of([[([CLS, 7, 8, SEP], [9, 20, 21, SEP])], [([CLS, 11, SEP], [12, 13, SEP])]], 16, 1)
    masked = mask_rules.bert(rows, 1, tf.constant(0, tf.int64), masking(max_predictions_per_seq=6, masked_lm_prob=0.5))
    assert (masked["input_ids"].numpy() != rows["input_ids"].numpy()).any()
    restored, plain = predict_next_tokens(masked), predict_next_tokens(rows)
    for name in plain:
        np.testing.assert_array_equal(restored[name], plain[name], err_msg=name)


def test_names_of_metrics():
    task = object.__new__(LeftToRightTask)
    for nsp, of_pairs in ((False, set()), (True, {"next_sentence_loss", "next_sentence_accuracy"})):
        task.settings, task.config = PretrainingSettings("", "", nsp=nsp), BertConfig.from_dict(CAUSAL_CONFIG)
        task.prepare()
        assert {name for name, *_ in task.objective.ratios} == {"next_token_loss", "next_token_accuracy"} | of_pairs


def test_attention_is_that_of_weights_and_objective(tmp_path):
    causal_model().save_pretrained(str(tmp_path / "model"))
    (tmp_path / "both.json").write_text(json.dumps({**CAUSAL_CONFIG, "attention": "bidirectional"}))
    given = ModelSettings(bert_config_file=str(tmp_path / "both.json"), vocab_file="vocab.txt", do_lower_case=True)
    with pytest.raises(ValueError, match=r"both.json says attention=bidirectional, .* causal"):
        open_for_script(str(tmp_path / "model"), given)
    settings = PretrainingSettings(input_file="a", output_dir=str(tmp_path), do_train=True)
    with pytest.raises(ValueError, match="--objective=mlm needs attention to both sides"):
        PretrainingTask.configure(settings, BertConfig.from_dict(CAUSAL_CONFIG), "c")
    rates = {"objective": "ltr", "bert_size": "tiny", "mask_rate": 1.0, "random_rate": 0.0, "keep_rate": 0.0}
    with pytest.raises(ValueError, match="--mask_rate is not for --objective=ltr"):
        dataclasses.replace(settings, **rates).check()

"""Dropout masks follow seed, step, place and row; the last layer is computed only for the tokens that are read."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.basics import slow
from helpers.every_model import CASES as TRAINED
from helpers.every_model import CAUSAL, LENGTH, PACKED, POSITIONS, inputs, without_dropout
from helpers.every_model import ROWS as COUNT
from helpers.outputs import assert_close, enlarge, in_training, loss_and_gradients
from helpers.tiny import ONE_LAYER, TINY_CONFIG, tiny_config

from bert_tf import BertConfig, BertForSequenceClassification, BertModel
from bert_tf.families.albert import AlbertConfig
from bert_tf.families.distilbert import DistilBertConfig
from bert_tf.families.electra import ElectraConfig
from bert_tf.families.roberta import RobertaConfig
from bert_tf.models import dropout as masks
from bert_tf.models import encoder, kernels, task_models
from bert_tf.models.distillation import LanguageDistillation, TaughtLanguageModel
from bert_tf.models.dropout import Drop, dropout, dropout_at, dropout_scope, keep_mask, name_scope, several_rows
from bert_tf.models.electra import ElectraPretrainer
from bert_tf.models.layers import gather_positions

ONES = np.ones((4, 6, 50), "float32")


def mixed(value, shift, multiplier):
    return (value := value * np.uint32(multiplier)) ^ (value >> np.uint32(shift))


def test_the_hash_of_numpy():
    first, second = (np.array([seed], "int32").view("uint32") for seed in (-12345, 7))
    first = mixed(mixed(first, 16, 0x7FEB352D), 15, 0x846CA68B)
    second = mixed(mixed(second ^ first, 16, 0x21F0AAAD), 15, 0xD35A2D97)
    bits = mixed(np.arange(96, dtype="uint32").reshape(2, 6, 8) + first, 16, 0x85EBCA6B)
    bits = mixed(mixed(bits ^ second, 13, 0xC2B2AE35), 16, 0x9E3779B1)
    key = tf.constant([-12345, 7, 0])
    found = keras.ops.convert_to_numpy(masks.random_bits(key, tf.range(12) * 8, 8))
    np.testing.assert_array_equal(found.reshape(2, 6, 8), bits)
    for rate in (0.1, 0.5, 1 - 2**-33):
        threshold = min(round(rate * 2**32), 2**32 - 1)
        np.testing.assert_array_equal(keep_mask((2, 6, 8), Drop(rate, key)), bits >= threshold)


def test_masks_have_the_right_rate_and_are_independent():
    shape, masks = (64, 128, 32), []
    for seed, name in (([1, 2], "a"), ([1, 3], "a"), ([2, 2], "a"), ([1, 2], "b"), ([1, 2], "a")):
        with dropout_scope(seed):
            masks.append(np.asarray(keep_mask(shape, dropout_at(name, 0.1, True))))
    count = np.prod(shape)
    for mask in masks:
        assert abs(mask.mean() - 0.9) < 4 * np.sqrt(0.09 / count)
        flat = 1.0 - mask.reshape(-1)
        for shift in (1, 2, 32, 128, 4096):  # neighbours along every axis
            both = (flat[:-shift] * flat[shift:]).mean()
            assert abs(both - 0.01) < 5 * np.sqrt(0.01 / count)
    for i, j in ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)):
        assert abs((~masks[i] & ~masks[j]).mean() - 0.01) < 5 * np.sqrt(0.01 / count)
    np.testing.assert_array_equal(masks[0], masks[4])


def test_places_have_masks_of_their_own():
    def mask(*names):
        if len(names) == 1:
            return np.asarray(dropout(ONES, 0.5, names[0], True))
        with name_scope(names[0]):
            return mask(*names[1:])

    with dropout_scope([1, 2]):
        masks = [mask("a"), mask("b"), mask("a", "b"), mask("b", "a"), mask("a", "a", "b"), mask("ab")]
        assert len({one.tobytes() for one in masks}) == len(masks) and set(np.unique(masks[0])) == {0.0, 2.0}
        np.testing.assert_array_equal(mask("a", "b"), masks[2])
        inside = name_scope("a")
        for _ in range(2):  # as a layer does that the backward pass computes again
            with inside:
                np.testing.assert_array_equal(mask("b"), masks[2])
        np.testing.assert_array_equal(mask("a"), masks[0])


def test_only_in_training_and_in_a_scope():
    with dropout_scope([1, 2]):
        assert dropout(ONES, 0.5, "head", False) is ONES and dropout(ONES, 0.0, "head", True) is ONES
    with name_scope("model"), several_rows(2):
        assert dropout(ONES, 0.5, "head", False) is ONES
        with pytest.raises(RuntimeError, match="head outside of a model: open a bert_tf.models.dropout.dropout_scope"):
            dropout(ONES, 0.5, "head", True)


def test_layers_that_share_their_weights_have_masks_of_their_own():
    config = AlbertConfig(**{**TINY_CONFIG, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.5})
    model = BertModel(config)
    weights = in_training(model, np.full((2, 8), 7, "int32"), return_attention=True)["attention_probabilities"]
    zeros = [np.asarray(layer) == 0 for layer in weights]
    assert len(model.blocks) == 1 and len(zeros) == 2 and (zeros[0] != zeros[1]).any()


def test_models_of_one_step_have_masks_of_their_own():
    """As ELECTRA's generator and discriminator, which share their embeddings."""
    config = ElectraConfig(**{**TINY_CONFIG, "hidden_dropout_prob": 0.5, "embedding_size": 32})
    model = ElectraPretrainer(config, config)
    model.build()
    rows, encoders = {"input_ids": np.full((2, 8), 7, "int32")}, (model.bert, model.bert, model.generator)
    first, again, second = (
        np.asarray(in_training(one, rows, return_all_layers=True)["embedding_output"]) for one in encoders
    )
    np.testing.assert_array_equal(first, again)
    assert ((first == 0) != (second == 0)).any()


def test_without_a_scope_a_model_draws_a_seed_for_each_call():
    """As in Keras `fit`: one seed for encoder and head, of the model's own generator."""
    config = BertConfig.from_dict(ONE_LAYER)
    ids = np.full((2, 8), 7, "int32")
    calls = []
    for traced in (True, False):
        keras.utils.set_random_seed(3)
        model = BertForSequenceClassification(config, 2, seed=5)
        model.build()
        graph = tf.function(lambda ids, model=model: model(ids, training=True)) if traced else model
        arguments = {} if traced else {"training": True}
        outputs = graph(ids, **arguments), graph(ids, **arguments), model(ids, training=True)
        calls.append([np.asarray(call) for call in outputs])
        assert (np.asarray(model(ids)) == np.asarray(model(ids))).all()
    np.testing.assert_allclose(calls[0], calls[1], atol=1e-6)
    assert len({one.tobytes() for one in calls[0]}) == 3


HIDDEN, ATTENTION, HEAD = 0.25, 0.5, 0.1
BATCH = {"input_ids": np.full((2, 8), 7, np.int32)}
# (rate, shape of what it is applied to)
EMBEDDINGS = [(HIDDEN, (2, 8, 32))]
LAYER = [(ATTENTION, (2, 2, 8, 8)), *[(HIDDEN, (2, 8, 32))] * 2]
ENCODER = EMBEDDINGS + 2 * LAYER


def read_at(count):
    """The encoder's list if so many positions of a row are read: the last layer is computed for these."""
    return EMBEDDINGS + LAYER + [(rate, (*shape[:-2], count, shape[-1])) for rate, shape in LAYER]


def without_attention_output(places):
    """As in DistilBERT, which has no dropout behind its attention."""
    return [place for number, place in enumerate(places) if number not in (2, 5)]


@pytest.mark.parametrize(("make", "batch", "expected"), [
    (task_models.BertModel, BATCH, ENCODER),
    (lambda c: task_models.BertModel(DistilBertConfig.of_teacher(c)), BATCH, without_attention_output(ENCODER)),
    # The layer norm of the masked positions has none, and next sentence prediction neither.
    (task_models.BertForPreTraining, {**BATCH, "masked_lm_positions": np.ones((2, 3), np.int32)}, read_at(4)),
    (task_models.BertForQuestionAnswering, BATCH, ENCODER),
    # The heads have the original's 0.1, whatever the configuration says.
    (lambda c: task_models.BertForSequenceClassification(c, 3), BATCH, [*read_at(1), (HEAD, (2, 32))]),
    (lambda c: task_models.BertForTokenClassification(c, 3), BATCH, [*ENCODER, (HEAD, (2, 8, 32))]),
    (lambda c: task_models.BertForSequenceClassification(DistilBertConfig.of_teacher(c), 3), BATCH,
     [*without_attention_output(read_at(1)), (0.2, (2, 32))]),
    # Before the hidden layer, too.
    (lambda c: task_models.BertForSequenceClassification(RobertaConfig.from_dict(c.to_dict()), 3), BATCH,
     [*read_at(1), *[(HEAD, (2, 32))] * 2]),
    (task_models.BertForMultipleChoice, {"input_ids": np.full((2, 3, 8), 7, np.int32)},
     [*((rate, (6, *shape[1:])) for rate, shape in read_at(1)), (HEAD, (6, 32))]),
], ids=["encoder", "distilbert", "pretraining", "squad", "bert's classes", "tags", "distilbert's", "roberta's",
        "choice"])  # fmt: skip
def test_places_and_rates(monkeypatch, request, make, batch, expected):
    """In the plain form; that the fused one computes the same: test_task_models.py."""
    kernels.set_fused(False)
    request.addfinalizer(lambda: kernels.set_fused(True))
    config = {**TINY_CONFIG, "hidden_dropout_prob": HIDDEN, "attention_probs_dropout_prob": ATTENTION}
    model = make(BertConfig.from_dict(config))
    model.build()
    found = []

    def record(shape, drop, keep=keep_mask):
        found.append((drop.rate, tuple(shape)))
        return keep(shape, drop)

    monkeypatch.setattr(masks, "keep_mask", record)
    in_training(model, batch)
    assert found == expected
    model(batch, training=False)
    assert found == expected


SEED = np.array([5, 7], "int32")
CASES = {**TRAINED, "packed": (TRAINED["pretraining"][0], PACKED)}
CASES["causal, packed"] = lambda: task_models.BertForPreTraining(CAUSAL), PACKED
READ_ALL = ("tagger", "questions", "similarity", "discriminator")  # tokens, in these


def created(case):
    make, features = CASES[case]
    model = make()
    enlarge(getattr(model, "student", model))
    if case == "taught":
        model.objective = LanguageDistillation(alpha_cos=0.0, restrict_ce_to_mask=True)
    return model, {name: tf.constant(value) for name, value in features.items()}


def losses_and_gradients(model, features):
    """Loss and gradients of a training step, and the sums of an evaluation."""

    def computed():
        loss, gradients = loss_and_gradients(model, features, SEED)
        return loss, model.objective.sums(model(features), features), gradients

    is_taught = isinstance(model, TaughtLanguageModel)  # whose divergence has a gradient in graphs only
    return tf.function(computed, autograph=False)() if is_taught else computed()


@pytest.mark.parametrize(("fused", "case"), [
    (True, "packed"), (False, "packed"), *slow((False, "causal, packed")),
    *slow(*((True, case) for case in sorted(CASES.keys() - {"packed", *READ_ALL}))),
])  # fmt: skip
def test_losses_and_gradients_are_those_of_the_whole_computation(monkeypatch, request, fused, case):
    """Without dropout, whose masks are of the tokens that are read."""
    kernels.set_fused(fused)
    request.addfinalizer(lambda: kernels.set_fused(True))
    without_dropout(monkeypatch)
    model, features = created(case)
    computed = []
    monkeypatch.setattr(encoder, "reads_few", lambda *sizes: computed.append(sizes) or True)
    loss, evaluated, gradients = losses_and_gradients(model, features)
    assert computed and all(count < length for count, length in computed)
    monkeypatch.setattr(encoder, "reads_few", lambda *sizes: False)
    whole_loss, whole_evaluated, whole_gradients = losses_and_gradients(model, features)
    assert float(loss) == pytest.approx(float(whole_loss), rel=2e-6)
    for name, value in evaluated.items():
        assert float(value) == pytest.approx(float(whole_evaluated[name]), rel=1e-5), name
    for variable, one, other in zip(model.trainable_variables, gradients, whole_gradients, strict=True):
        scale = max(1.0, float(tf.reduce_max(tf.abs(other))))
        np.testing.assert_allclose(one, other, atol=2e-6 * scale, err_msg=variable.path)


def test_what_asks_for_all_layers_computes_them():
    model, rows, positions = enlarge(BertModel(tiny_config("bert"))), inputs(), POSITIONS
    expected = model(rows, return_all_layers=True, return_attention=True)
    few = model(rows, read_positions=positions)
    everything = model(rows, read_positions=positions, return_all_layers=True, return_attention=True)
    assert_close(few["pooled_output"], expected["pooled_output"])
    read = gather_positions(expected["sequence_output"], positions)
    assert_close(few["sequence_output"], read)
    np.testing.assert_array_equal(everything["sequence_output"], read)
    np.testing.assert_array_equal(everything["encoder_layers"][-1], expected["sequence_output"])
    attention = model(rows, read_positions=positions, return_attention=True)
    for outputs in (everything, attention):
        assert outputs["attention_probabilities"][-1].shape == (COUNT, 2, LENGTH, LENGTH)
    most = np.tile(np.arange(LENGTH - 1), (COUNT, 1))  # not clearly fewer: the same bits
    whole = model(rows, read_positions=most)["sequence_output"]
    np.testing.assert_array_equal(whole, expected["sequence_output"][:, : LENGTH - 1])


def test_lengths_known_only_at_run_time():
    model, features = created("packed")

    def call(features):
        return model.objective.loss(*[model.objective.sums(model(features), features)] * 2)

    specs = {name: tf.TensorSpec([None] * len(value.shape), value.dtype) for name, value in features.items()}
    assert float(tf.function(call, [specs])(features)) == pytest.approx(float(call(features)), rel=1e-6)


@pytest.mark.parametrize(("case", "few"), [
    ("packed", True), ("windows", True), *slow(("packed", False), ("choice", False)),
    # An ALBERT has none.
    *slow(*((case, True) for case in sorted(CASES.keys() - {"packed", "windows", "albert"}))),
])  # fmt: skip
def test_the_rows_of_a_part_have_their_masks_of_the_whole_batch(monkeypatch, case, few):
    monkeypatch.setattr(encoder, "reads_few", lambda *sizes: few)
    model, features = created(case)

    @tf.function(autograph=False)
    def sums(features, first_row):
        return model.objective.sums(in_training(model, features, SEED, first_row), features)

    def added(first_row_of):
        rows = [{name: value[row : row + 1] for name, value in features.items()} for row in range(COUNT)]
        parts = [sums(part, tf.constant(first_row_of(row))) for row, part in enumerate(rows)]
        return tf.nest.map_structure(lambda *values: sum(map(float, values)), *parts)

    whole = tf.nest.map_structure(float, sums(features, tf.constant(0)))
    assert added(lambda row: row) == pytest.approx(whole, rel=1e-4, abs=1e-5)
    assert added(lambda row: 0) != pytest.approx(whole, rel=1e-4, abs=1e-5)

"""The last layer is computed only for the tokens that are read, with the numbers of the whole computation."""

import numpy as np
import pytest
import tensorflow as tf
from helpers.descendants import tiny_config
from helpers.outputs import assert_close, enlarge, in_training, loss_and_gradients
from helpers.slow import slow

from bert_tf.models import encoder, kernels, task_models
from bert_tf.models.distillation import LanguageDistillation, TaughtLanguageModel
from bert_tf.models.electra import ElectraPretrainer
from bert_tf.models.layers import gather_positions
from bert_tf.models.similarity import BertForSimilarity

BATCH, LENGTH = 3, 12
RANDOM = np.random.default_rng(0)
IDS = RANDOM.integers(5, 100, (BATCH, LENGTH)).astype("int32")
# The last prediction of the last row is padding, as records have it: position 0, weight 0.
POSITIONS = np.array([[2, 7, 5], [11, 3, 4], [6, 1, 0]], "int32")
WEIGHTS = np.array([[1, 1, 1], [1, 1, 1], [1, 1, 0]], "float32")
ROWS = {"input_ids": IDS, "input_mask": (np.arange(LENGTH) < [[12], [12], [8]]).astype("int32")}
PREDICTIONS = {**ROWS, "masked_lm_positions": POSITIONS, "masked_lm_ids": np.take_along_axis(IDS, POSITIONS, 1)}
PREDICTIONS |= {"masked_lm_weights": WEIGHTS}
PAIRS = {**PREDICTIONS, "next_sentence_labels": np.array([0, 1, 1], "int32")}
PACKED = {
    **{name: value for name, value in PREDICTIONS.items() if name != "input_mask"},
    "sequence_ids": np.array([[1] * 5 + [2] * 7, [1] * 4 + [2] * 8, [1] * 8 + [0] * 4], "int32"),
    "position_ids": np.array([[*range(5), *range(7)], [*range(4), *range(8)], [*range(8), *[0] * 4]], "int32"),
    "pooled_positions": np.array([[0, 5], [0, 4], [0, 0]], "int32"),
    "next_sentence_labels": np.array([[0, 1], [1, 1], [0, 0]], "int32"),
    "next_sentence_weights": np.array([[1, 1], [1, 1], [1, 0]], "float32"),
}
LABELLED = {**ROWS, "label_ids": np.array([0, 1, 1], "int32")}
CHOICES = {name: np.stack([value, value[:, ::-1]], 1) for name, value in ROWS.items()}
SEED = np.array([5, 7], "int32")
RATE = 0.1


def config_of(family, **more):
    return tiny_config(family, dropout=RATE, **more)


def pretraining(**more):
    return task_models.BertForPreTraining(config_of("bert", **more))


def electra():
    config = config_of("electra")
    return ElectraPretrainer(config, config.generator(0.5), seed=1)


def taught():
    student, teacher = (enlarge(task_models.BertForMaskedLM(config_of("bert"), seed=seed), seed) for seed in (1, 2))
    return TaughtLanguageModel(student, teacher, LanguageDistillation(alpha_cos=0.0, restrict_ce_to_mask=True))


CASES = {
    "pretraining": (pretraining, PAIRS),
    "packed": (pretraining, PACKED),
    "causal": (lambda: pretraining(attention="causal"), PAIRS),
    "causal, packed": (lambda: pretraining(attention="causal"), PACKED),
    "electra": (electra, {**PREDICTIONS, "original_ids": IDS, "sampling_seeds": np.ones((BATCH, 2), "int32")}),
    "taught": (taught, PREDICTIONS),
    "next sentence": (lambda: task_models.BertForNextSentencePrediction(config_of("bert")), PAIRS),
    "classifier": (lambda: task_models.BertForSequenceClassification(config_of("distilbert"), 2), LABELLED),
    "choice": (lambda: task_models.BertForMultipleChoice(config_of("roberta")), LABELLED | CHOICES),
}


def created(case):
    model, features = CASES[case][0](), CASES[case][1]
    enlarge(model.student if isinstance(model, TaughtLanguageModel) else model)
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
    *slow(*((True, case) for case in CASES if case != "packed")),
])  # fmt: skip
def test_losses_and_gradients_are_those_of_the_whole_computation(monkeypatch, request, fused, case):
    """Without dropout, whose masks are of the tokens that are read."""
    kernels.set_fused(fused)
    request.addfinalizer(lambda: kernels.set_fused(True))
    monkeypatch.setitem(globals(), "RATE", 0.0)
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
    model = enlarge(task_models.BertModel(config_of("bert")))
    expected = model(ROWS, return_all_layers=True, return_attention=True)
    few = model(ROWS, read_positions=POSITIONS)
    everything = model(ROWS, read_positions=POSITIONS, return_all_layers=True, return_attention=True)
    assert_close(few["pooled_output"], expected["pooled_output"])
    read = gather_positions(expected["sequence_output"], POSITIONS)
    assert_close(few["sequence_output"], read)
    np.testing.assert_array_equal(everything["sequence_output"], read)
    np.testing.assert_array_equal(everything["encoder_layers"][-1], expected["sequence_output"])
    attention = model(ROWS, read_positions=POSITIONS, return_attention=True)
    for outputs in (everything, attention):
        assert outputs["attention_probabilities"][-1].shape == (BATCH, 2, LENGTH, LENGTH)
    most = np.tile(np.arange(LENGTH - 2), (BATCH, 1))  # not clearly fewer: the same bits
    whole = model(ROWS, read_positions=most)["sequence_output"]
    np.testing.assert_array_equal(whole, expected["sequence_output"][:, : LENGTH - 2])


def test_lengths_known_only_at_run_time():
    model, features = created("packed")

    def call(features):
        return model.objective.loss(*[model.objective.sums(model(features), features)] * 2)

    specs = {name: tf.TensorSpec([None] * len(value.shape), value.dtype) for name, value in features.items()}
    assert float(tf.function(call, [specs])(features)) == pytest.approx(float(call(features)), rel=1e-6)


SPANS = {**ROWS, "start_positions": np.array([1, 2, 3], "int32"), "end_positions": np.array([4, 2, 5], "int32")}
WHOLE_SEQUENCES = {
    "questions": (lambda: task_models.BertForQuestionAnswering(config_of("bert")), SPANS),
    "windows": (
        lambda: task_models.BertForSequenceClassification(config_of("bert"), 2, window_pooling="mean"),
        LABELLED | CHOICES,
    ),
    "similarity": (
        lambda: BertForSimilarity(config_of("bert"), "cosine"),
        {**CHOICES, "scores": np.array([0.5, -0.2, 0.9], "float32")},
    ),
    "tags": (
        lambda: task_models.BertForTokenClassification(config_of("distilbert"), 3),
        {**ROWS, "label_ids": (IDS % 3).astype("int32")},
    ),
}


@pytest.mark.parametrize(("case", "few"), [
    ("packed", True), ("windows", True), *slow(("packed", False), ("choice", False)),
    *slow(*((case, True) for case in (*CASES, "tags", "questions", "similarity") if case != "packed")),
])  # fmt: skip
def test_the_rows_of_a_part_have_their_masks_of_the_whole_batch(monkeypatch, case, few):
    monkeypatch.setitem(globals(), "CASES", {**CASES, **WHOLE_SEQUENCES})
    monkeypatch.setattr(encoder, "reads_few", lambda *sizes: few)
    model, features = created(case)

    @tf.function(autograph=False)
    def sums(features, first_row):
        return model.objective.sums(in_training(model, features, SEED, first_row), features)

    def added(first_row_of):
        rows = [{name: value[row : row + 1] for name, value in features.items()} for row in range(BATCH)]
        parts = [sums(part, tf.constant(first_row_of(row))) for row, part in enumerate(rows)]
        return tf.nest.map_structure(lambda *values: sum(map(float, values)), *parts)

    whole = tf.nest.map_structure(float, sums(features, tf.constant(0)))
    assert added(lambda row: row) == pytest.approx(whole, rel=1e-4, abs=1e-5)
    assert added(lambda row: 0) != pytest.approx(whole, rel=1e-4, abs=1e-5)

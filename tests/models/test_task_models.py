"""Heads in Keras: fit, kernels and precision of every family, random weights; numbers are in bert/test_encoder.py."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.basics import slow
from helpers.every_model import CONFIG, MODELS
from helpers.outputs import loss_and_gradients
from helpers.tiny import NAMES, TINY_CONFIG, tiny_config
from helpers.training_steps import mirrored

from bert_tf import AdamWeightDecay, BertConfig, BertForSequenceClassification, BertModel
from bert_tf.models import initialize, kernels, layers, objectives
from bert_tf.models.dropout import dropout_scope

pytestmark = pytest.mark.numbers


@pytest.mark.parametrize("replicas", [1, *slow(2)])
def test_fit_traces_a_step_once_per_replica(replicas, monkeypatch):
    """Variables created in the first trace would cause a second trace, which takes as long as everything else."""
    traced = []
    compute_loss = BertForSequenceClassification.compute_loss

    def counted(self, *args, **kwargs):
        traced.append(self)
        return compute_loss(self, *args, **kwargs)

    monkeypatch.setattr(BertForSequenceClassification, "compute_loss", counted)
    create, features = MODELS["classifier"]
    with mirrored(2).scope() if replicas > 1 else contextlib.nullcontext():
        model = create()
        model.build()
        model.bert.trainable = False  # the head's variables suffice
        model.compile(optimizer=AdamWeightDecay(2e-3), jit_compile=False)
    model.fit(tf.data.Dataset.from_tensor_slices(features).batch(2, drop_remainder=True), verbose=0)
    assert len(traced) == replicas and keras.ops.convert_to_numpy(model.optimizer.iterations) == 2


def test_the_kind_of_problem():
    for arguments, message in (
        ({"num_labels": 3, "labels": ["a", "b"]}, "num_labels=3, but labels has 2 names"),
        ({"labels": ["a", "a"]}, "must be different names"),
        ({"num_labels": 3, "problem_type": "regression"}, "num_labels=3 does not fit problem_type='regression'"),
    ):
        with pytest.raises(ValueError, match=message):
            BertForSequenceClassification(CONFIG, **arguments)
    several = BertForSequenceClassification(CONFIG, 4, "multi_label_classification")
    assert several.objective is objectives.MultiLabelObjective
    assert BertForSequenceClassification(CONFIG, 4).objective is objectives.ClassificationObjective
    assert BertForSequenceClassification(CONFIG, 1).objective is objectives.RegressionObjective


RANDOM = np.random.default_rng(0)
BATCH = {"input_ids": RANDOM.integers(5, 100, (8, 12))}
BATCH["input_mask"] = (np.arange(12) < RANDOM.integers(4, 13, (8, 1))) * 1
LABELS = BATCH["input_ids"][:, 0] % 2
SEED = np.array([5, 7], np.int32)


def classifier(family: str, **arguments):
    keras.utils.set_random_seed(1)
    config = tiny_config(family, dropout=0.1, **{"num_hidden_groups": 2} if family == "albert" else {})
    model, generator = BertForSequenceClassification(config, 2, seed=3, **arguments), np.random.default_rng(1)
    model.build()
    for variable in model.trainable_variables:  # initial values are so small that all outputs would be alike
        if len(variable.shape) > 1:
            variable.assign(generator.normal(0.0, 0.15, variable.shape))
    return model


@pytest.mark.parametrize(("family", "hidden_act"), [
    ("bert", "gelu"), ("bert", "relu"), ("roberta", "gelu_erf"), *slow(*((family, "gelu") for family in NAMES[1:]))
])  # fmt: skip
def test_fused_and_plain_kernels_give_the_same_numbers(family, hidden_act, request):
    model = classifier(family)
    model.config.hidden_act = hidden_act
    assert kernels.fused_enabled()
    features = {**BATCH, "label_ids": LABELS}
    loss, fused = loss_and_gradients(model, features, SEED)
    kernels.set_fused(False)
    request.addfinalizer(lambda: kernels.set_fused(True))
    plain_loss, plain = loss_and_gradients(model, features, SEED)
    np.testing.assert_allclose(loss, plain_loss, atol=1e-5)
    for variable, one, other in zip(model.trainable_variables, fused, plain, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5 * max(1.0, np.abs(other).max()), err_msg=variable.path)


@pytest.mark.parametrize("family", ["albert", *slow(*(name for name in NAMES if name != "albert"))])
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", *slow("mixed_float16")])
def test_mixed_precision(family, dtype):
    plain, model = classifier(family), classifier(family, dtype=dtype)
    assert {variable.dtype for variable in model.trainable_variables} == {"float32"}
    for training in (False, True):
        with dropout_scope(SEED):
            outputs = [np.asarray(each(BATCH, training=training)) for each in (model, plain)]
        np.testing.assert_allclose(*outputs, atol=0.1)
    assert model.bert(BATCH)["sequence_output"].dtype.name == dtype.removeprefix("mixed_")


def new_model(kind=BertForSequenceClassification, **config):
    keras.utils.set_random_seed(3)
    model = kind(BertConfig.from_dict({**TINY_CONFIG, **config}))
    model.build()
    return model


def bits(model) -> dict[str, bytes]:
    return {name: variable.numpy().tobytes() for name, variable in initialize.model_variables(model).items()}


@pytest.fixture
def drawn(monkeypatch):
    shapes = []
    for kind in (keras.initializers.TruncatedNormal, keras.initializers.GlorotUniform):

        def draw(self, shape, dtype=None, call=kind.__call__):
            shapes.append(tuple(shape))
            return call(self, shape, dtype)

        monkeypatch.setattr(kind, "__call__", draw)
    return shapes


def test_the_same_numbers_when_drawn_late():
    expected = bits(new_model())
    with layers.deferred_initialization():
        model = new_model()
        assert not model.bert.embeddings.word_embeddings.numpy().any()
        new_model()  # another model in the same context
    assert bits(model) == expected


def test_weights_of_a_checkpoint_are_not_drawn(drawn, tmp_path):
    new_model(BertModel).save_pretrained(str(tmp_path))
    drawn.clear()
    model = BertForSequenceClassification.from_pretrained(str(tmp_path), num_labels=5)
    assert drawn == [(5, TINY_CONFIG["hidden_size"])] and model.head.output_weights.numpy().all()


def test_normal_weights_are_not_drawn_twice(drawn):
    config = {"initializer_range": 0.5}
    at_once = new_model(**config)
    initialize.draw_normal_weights(at_once)
    drawn.clear()
    with layers.deferred_initialization():
        late = new_model(**config)
        initialize.draw_normal_weights(late)
    assert bits(late) == bits(at_once) and not drawn

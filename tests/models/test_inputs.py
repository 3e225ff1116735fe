"""Names of a model's inputs: Hugging Face's are accepted everywhere, and unknown ones are errors."""

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.models import baselines
from bert_tf.models.config import BertConfig
from bert_tf.models.feature_tagger import BertFeatureTagger
from bert_tf.models.inputs import named_inputs, select
from bert_tf.models.task_models import (
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
)

CONFIG = BertConfig(
    vocab_size=30,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=8,
    type_vocab_size=2,
)
MODELS = {
    "encoder": lambda: BertModel(CONFIG),
    "masked_lm": lambda: BertForMaskedLM(CONFIG),
    "next_sentence": lambda: BertForNextSentencePrediction(CONFIG),
    "pretraining": lambda: BertForPreTraining(CONFIG),
    "classification": lambda: BertForSequenceClassification(CONFIG, num_labels=3),
    "tokens": lambda: BertForTokenClassification(CONFIG, num_labels=3),
    "choices": lambda: BertForMultipleChoice(CONFIG),
    "spans": lambda: BertForQuestionAnswering(CONFIG),
    "features": lambda: BertFeatureTagger(CONFIG, num_labels=3, features="last", lstm_size=4, lstm_layers=1),
    "bilstm": lambda: baselines.BaselineClassifier(
        baselines.create_config("bilstm", 30, embedding_size=8, hidden_size=8), num_labels=3, kind="bilstm"
    ),
}
HUGGING_FACE = {"input_mask": "attention_mask", "segment_ids": "token_type_ids"}


def batch_for(name):
    shape = (2, 3, 6) if name == "choices" else (2, 6)
    ids = np.random.default_rng(1).integers(1, 30, shape).astype("int32")
    mask = np.ones(shape, "int32")
    mask[..., 4:] = 0
    segments = np.zeros(shape, "int32")
    segments[..., 2:] = 1
    batch = {"input_ids": ids, "input_mask": mask, "segment_ids": segments}
    if name == "pretraining":
        batch["masked_lm_positions"] = np.array([[1, 2], [2, 3]], "int32")
    return batch


def renamed(batch):
    return {HUGGING_FACE.get(name, name): value for name, value in batch.items()}


def arrays_of(outputs):
    outputs = outputs if isinstance(outputs, dict) else {"": outputs}
    return {name: np.asarray(value) for name, value in outputs.items()}


def assert_same(outputs, expected):
    outputs, expected = arrays_of(outputs), arrays_of(expected)
    assert set(outputs) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(outputs[name], value, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", MODELS)
def test_other_names_give_the_same(name):
    model, batch = MODELS[name](), batch_for(name)
    expected = model(batch)
    assert_same(model(renamed(batch)), expected)
    without_mask = model({key: value for key, value in batch.items() if key != "input_mask"})
    assert not np.allclose(next(iter(arrays_of(without_mask).values())), next(iter(arrays_of(expected).values())))
    assert_same(model({**batch, "input_mask": None, "attention_mask": batch["input_mask"]}), expected)
    assert_same(model(collections.UserDict(renamed(batch))), expected)
    model.run_eagerly = name != "pretraining"  # tracing all models takes long; this one has inputs of all kinds
    assert_same(model.predict(renamed(batch), verbose=0), expected)


@pytest.mark.parametrize("name", MODELS)
def test_unknown_and_double_names(name):
    model, batch = MODELS[name](), batch_for(name)
    kind = type(model).__name__
    with pytest.raises(ValueError, match=f"{kind} does not know the input atention_mask. Known: input_ids, "):
        model({**batch, "atention_mask": batch["input_mask"]})
    with pytest.raises(ValueError, match=f"{kind} got segment_ids and token_type_ids, which are two names of the same"):
        model({**batch, "token_type_ids": batch["segment_ids"]})
    with pytest.raises(ValueError, match=f"{kind} needs input_ids; given: input_mask"):
        model({"attention_mask": batch["input_mask"]})
    with pytest.raises(ValueError, match="does not know the input labels"):
        model.predict({**batch, "labels": np.zeros(2)}, verbose=0)


def test_labels_are_known_to_the_model_that_learns_from_them():
    batch = batch_for("classification")
    labels = {"label_ids": np.array([0, 1]), "example_weights": np.ones(2, "float32"), "is_real_example": np.ones(2)}
    MODELS["classification"]()({**batch, **labels})
    with pytest.raises(ValueError, match="does not know the input label_ids"):
        MODELS["spans"]()({**batch, "label_ids": labels["label_ids"]})
    with pytest.raises(ValueError, match="does not know the input label_ids"):
        MODELS["encoder"]()({**batch, "label_ids": labels["label_ids"]})


@pytest.mark.parametrize("name", ["masked_lm", "next_sentence", "pretraining"])
def test_pretraining_models_take_whole_records(name):
    record = batch_for("pretraining") | {
        "masked_lm_ids": np.array([[3, 4], [5, 6]], "int32"),
        "masked_lm_weights": np.ones((2, 2), "float32"),
        "next_sentence_labels": np.array([[0], [1]], "int32"),
        "example_weights": np.ones(2, "float32"),
    }
    model = MODELS[name]()
    model.compile(optimizer="sgd", run_eagerly=True)
    model(record)
    assert np.isfinite(model.fit(renamed(record), epochs=1, verbose=0).history["loss"][0])
    packed = record | {
        "sequence_ids": np.array([[1, 1, 1, 2, 2, 0]] * 2, "int32"),
        "position_ids": np.array([[0, 1, 2, 0, 1, 0]] * 2, "int32"),
        "pooled_positions": np.array([[0, 3]] * 2, "int32"),
        "next_sentence_labels": np.array([[0, 1]] * 2, "int32"),
        "next_sentence_weights": np.ones((2, 2), "float32"),
    }
    model(packed)
    with pytest.raises(ValueError, match="does not know the input unique_ids"):
        model({**record, "unique_ids": np.zeros(2)})


def test_pretraining_needs_to_know_what_to_predict():
    with pytest.raises(ValueError, match="BertForPreTraining needs masked_lm_positions"):
        MODELS["pretraining"]()(batch_for("classification"))


def test_fit_reads_the_mask_under_either_name():
    batch, labels = batch_for("classification"), np.array([0, 1])

    def losses(features):
        keras.utils.set_random_seed(1)
        model = BertForSequenceClassification(CONFIG, num_labels=3, dropout_rate=0.0, seed=1)
        model.bert.trainable = False  # the mask matters in the forward pass, and gradients take longest
        model.compile(optimizer="sgd", run_eagerly=True)
        return model.fit(features, labels, epochs=2, verbose=0).history["loss"]

    assert losses(batch) == losses(renamed(batch))
    assert losses(batch) != losses({"input_ids": batch["input_ids"]})
    with pytest.raises(ValueError, match="does not know the input maks"):
        losses({**batch, "maks": batch["input_mask"]})


def test_as_a_part_of_a_functional_model():
    encoder, batch = MODELS["encoder"](), batch_for("encoder")
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in names}
    model = keras.Model(inputs, keras.layers.Dense(2, kernel_initializer="ones")(encoder(inputs)["pooled_output"]))
    expected = keras.ops.sum(encoder(batch)["pooled_output"], axis=-1)
    np.testing.assert_allclose(model(renamed(batch))[:, 0], expected, atol=1e-5)


def test_inside_a_graph():
    model, batch = MODELS["tokens"](), batch_for("tokens")
    graph = tf.function(lambda features: model(features))
    np.testing.assert_allclose(graph(renamed(batch)), model(batch), atol=1e-6)


def test_functions():
    ids = np.ones((1, 2))
    assert named_inputs(ids, ("input_ids",)) == {"input_ids": ids}
    assert list(named_inputs({"input_ids": ids, "attention_mask": None}, ("input_ids",))) == ["input_ids"]
    with pytest.raises(ValueError, match="the model does not know the input input_mask"):
        named_inputs({"input_ids": ids, "attention_mask": ids}, ("input_ids",))
    assert select({"a": 1, "b": 2}, ("b", "c")) == {"b": 2}

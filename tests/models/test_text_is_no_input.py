"""Strings given to a Keras model: an answer in one line with the line to write instead."""

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from helpers.tiny import TINY_CONFIG

from bert_tf.models.config import BertConfig
from bert_tf.models.task_models import BertForSequenceClassification

FEATURES = {
    "input_ids": np.array([[5, 6, 0]]),
    "input_mask": np.array([[1, 1, 0]]),
    "segment_ids": np.zeros((1, 3), int),
}
TEXTS = [["a text"], ("a text", "another"), "a text", b"a text", np.array(["a text"]), pd.Series(["a text"]),
         np.array(["a text"], object), tf.constant(["a text"]), [["a", "b"]], {"input_ids": ["a text"]}]  # fmt: skip


@pytest.fixture(scope="module")
def model():
    return BertForSequenceClassification(BertConfig.from_dict(TINY_CONFIG), num_labels=2)


def test_inputs_by_keyword(model):
    np.testing.assert_array_equal(model(**FEATURES, training=False), model(FEATURES, training=False))
    other = {"input_ids": FEATURES["input_ids"], "attention_mask": FEATURES["input_mask"]}
    np.testing.assert_array_equal(model(**other), model(FEATURES))
    with pytest.raises(ValueError, match="needs input_ids; given: nothing"):
        model()


@pytest.mark.parametrize("texts", TEXTS, ids=lambda texts: type(texts).__name__)
def test_strings(model, texts):
    model.compile()
    labels = np.zeros(1, int)
    for call, line in [
        (lambda: model(texts), r"model\(tokenizer\(texts\)\)"),
        (lambda: model.predict(texts), r"model\.predict\(tokenizer\(texts\)\)"),
        (lambda: model.fit(texts, labels), r"model\.fit\(bert_tf\.as_dataset\(texts, labels, tokenizer=tokenizer"),
        (lambda: model.evaluate(texts, labels), r"model\.evaluate\(bert_tf\.as_dataset\(texts, labels"),
    ]:
        with pytest.raises(TypeError, match=line) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_arrays_of_ids_are_none(model):
    for ids in (np.array([[5, 6]]), tf.constant([[5, 6]])):
        assert model(ids).shape == (1, 2)

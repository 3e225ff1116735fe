"""Names that bert_tf does not have: a line says which was meant, and what takes the place of those of transformers."""

import pytest
from helpers.every_model import CONFIG, inputs

import bert_tf


@pytest.mark.parametrize(("function", "args", "wrong"), [
    (bert_tf.BertConfig, (9,), "hiden_size"),
    (bert_tf.BertForSequenceClassification, (CONFIG,), "num_lables"),
    (bert_tf.BertForSequenceClassification.from_pretrained, (CONFIG,), "num_lables"),
    (bert_tf.Predictor, ("none",), "max_length"),
    (bert_tf.AdamWeightDecay, (), "lr"),
    (bert_tf.as_dataset, (["x"],), "max_seq_length"),
    (lambda **names: bert_tf.BertForSequenceClassification(CONFIG).fit(inputs(), **names), (), "epoch"),
])  # fmt: skip
def test_no_argument_is_ignored(function, args, wrong):
    with pytest.raises((TypeError, ValueError), match=f"{wrong}|takes the path of a model"):
        function(*args, **{wrong: 3})


def test_the_public_name_that_is_meant_is_said():
    with pytest.raises(AttributeError, match="no attribute 'Predicter'; did you mean Predictor?"):
        bert_tf.Predicter  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute '__path_of__'$"):
        bert_tf.__path_of__  # noqa: B018


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("TFBertForSequenceClassification", "BertForSequenceClassification"),
        ("TFAutoModelForMaskedLM", "BertForMaskedLM"),
        ("TFRobertaModel", "BertModel"),
        ("TFElectraForPreTraining", "ElectraDiscriminator"),
        ("BertTokenizerFast", "read_tokenizer"),
        ("pipeline", "Predictor, QuestionAnswerer, Tagger, fill_mask or Embedder"),
    ],
)
def test_imports_of_transformers_are_answered(name, here):
    with pytest.raises(ImportError, match=f"^bert_tf has no {name}: use {here}, see docs/from-transformers.md$"):
        exec(f"from bert_tf import {name}")
    with pytest.raises(AttributeError, match=f"^bert_tf has no {name}: use {here}, see "):
        getattr(bert_tf, name)
    assert not hasattr(bert_tf, name)


def test_nothing_takes_the_place_of_classes_that_are_not_here():
    assert not hasattr(bert_tf, "TFAutoModelForSeq2SeqLM") and not hasattr(bert_tf, "TFT5Model")

"""Names of arguments that are misspelt, or another library's: one line says which was meant."""

import functools
import re

import pytest
from helpers.every_model import CONFIG, MODELS, inputs
from helpers.paths import GOLDEN

import bert_tf
from bert_tf.models.families import AlbertConfig

VOCAB = str(next(GOLDEN.rglob("vocab*.txt")))
CLASSIFIER = bert_tf.BertForSequenceClassification


def tokenizer(*args, **kwargs):
    return bert_tf.FullTokenizer(VOCAB)(*args, **kwargs)


def call(name: str, method: str, *args, **kwargs):
    return getattr(MODELS[name][0](), method)(*args, **kwargs)


# A function and its arguments, what the message calls it, and the name that is wrong with the one that is meant. Names
# are looked at before anything else is: there is no such model.
CASES = [
    (tokenizer, ("x",), "FullTokenizer", "max_seq_length", "max_length"),
    (bert_tf.FullTokenizer, (VOCAB,), "BasicTokenizer", "do_lowercase", "do_lower_case"),
    (bert_tf.FullTokenizer.from_pretrained, ("none",), "Tokenizer.from_pretrained", "lowercase", "do_lower_case"),
    (bert_tf.as_dataset, (["x"],), "as_dataset", "max_seq_length", "max_length"),
    (bert_tf.BertConfig, (9,), "BertConfig", "hiden_size", "hidden_size"),
    (AlbertConfig, (9,), "AlbertConfig", "hiden_size", "hidden_size"),
    (CLASSIFIER, (CONFIG,), "BertForSequenceClassification", "num_lables", "num_labels"),
    (bert_tf.BertModel, (CONFIG,), "BertModel", "sed", "seed"),
    (CLASSIFIER.from_pretrained, ("none",), "BertForSequenceClassification.from_pretrained", "num_lables",
     "num_labels"),
    (bert_tf.BertModel.from_pretrained, ("none",), "BertModel.from_pretrained", "torch_dtype", "dtype"),
    (functools.partial(call, "classifier", "save_pretrained"), ("none",), "save_pretrained", "overwrit", "overwrite"),
    (functools.partial(call, "classifier", "fit"), (inputs(),), "model.fit", "epoch", "epochs"),
    (functools.partial(call, "classifier", "compile"), (), "model.compile", "optimiser", "optimizer"),
    (bert_tf.Predictor, ("none",), "Predictor", "max_length", "max_seq_length"),
    (bert_tf.Tagger, ("none",), "Tagger", "batchsize", "batch_size"),
    (bert_tf.Predictor.predict, (None,), "Predictor.predict", "text", "texts"),
    (bert_tf.Predictor.__call__, (None, "x"), "Predictor", "text_pair", "pair"),
    (bert_tf.Embedder.encode, (None, []), "Embedder.encode", "normalize_embeddings", "normalize"),
    (bert_tf.fill_mask, (None,), "fill_mask", "topk", "top_k"),
    (bert_tf.AdamWeightDecay, (), "AdamWeightDecay", "lr", "learning_rate"),
    (bert_tf.create_optimizer, ("adamw",), "create_optimizer", "num_warmup", "num_warmup_steps"),
    (bert_tf.WarmupLinearDecay, (1e-4,), "WarmupLinearDecay", "num_steps", "num_train_steps"),
    (bert_tf.download, (), "download", "nam", "name"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "args", "who", "wrong", "meant"), CASES)
def test_the_argument_that_is_meant_is_said(function, args, who, wrong, meant):
    with pytest.raises(TypeError) as caught:
        function(*args, **{wrong: 3})
    assert str(caught.value) == f"{who} has no argument {wrong} (did you mean {meant}?)."


@pytest.mark.parametrize(
    ("function", "args", "wrong", "instead"),
    [
        (bert_tf.BertModel.from_pretrained, ("none",), "from_pt", "leave it out"),
        (bert_tf.read_tokenizer, ("none",), "revision", "write OWNER/NAME@REVISION"),
        (bert_tf.Embedder.encode, (None, []), "batch_size", "it is one of Embedder(...)"),
    ],
)
def test_what_to_do_instead_is_said(function, args, wrong, instead):
    with pytest.raises(TypeError, match=re.escape(f"has no argument {wrong} ({instead}).") + "$"):
        function(*args, **{wrong: True})


def test_names_like_none_are_answered_by_all():
    message = (
        r"^FullTokenizer has no argument a, max_len \(did you mean max_length\?\); it has texts, pairs, max_length, pad"
    )
    with pytest.raises(TypeError, match=message):
        tokenizer("x", a=1, max_len=2)


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

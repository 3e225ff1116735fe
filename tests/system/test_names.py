"""Names that bert_tf does not have: a line says which was meant, and what takes the place of those of transformers."""

import pytest

import bert_tf


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
        ("BertTokenizer", r"read_tokenizer\(path\), or of a vocabulary alone FullTokenizer\(vocab_file\)"),
        ("pipeline", "Predictor, QuestionAnswerer, Tagger, fill_mask or Embedder"),
    ],
)
def test_imports_of_transformers_are_answered(name, here):
    for module in ("bert_tf", "bert_tf.transformers"):
        with pytest.raises(ImportError, match=f"^bert_tf has no {name}: use {here}, see docs/from-transformers.md$"):
            exec(f"from {module} import {name}")
    with pytest.raises(AttributeError, match=f"^bert_tf has no {name}: use {here}, see "):
        getattr(bert_tf, name)
    assert not hasattr(bert_tf, name)

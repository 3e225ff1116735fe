"""Configurations that no released model has, with Hugging Face's own models as the oracle."""

import numpy as np
import pytest
import tensorflow as tf
from helpers.dropped import in_training
from helpers.every_model import CONFIG, ELECTRA, inputs
from helpers.outputs import enlarge

from bert_tf.models.config import BertConfig
from bert_tf.models.distillation import LanguageDistillation, TaughtLanguageModel
from bert_tf.models.families import RobertaConfig
from bert_tf.models.huggingface import read_config
from bert_tf.models.task_models import BertForMaskedLM, BertForSequenceClassification, BertModel

SIZES = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "initializer_range": 0.5,
}  # fmt: skip


@pytest.mark.parametrize("kind, own", [
    ("Roberta", {"max_position_embeddings": 14, "type_vocab_size": 1, "pad_token_id": 0}),
    ("Roberta", {"max_position_embeddings": 14, "type_vocab_size": 1, "pad_token_id": 5, "hidden_act": "relu"}),
    ("Electra", {"max_position_embeddings": 14, "embedding_size": 8, "hidden_act": "gelu_new"}),
])  # fmt: skip
def test_masked_lm_equals_theirs(tmp_path, kind, own):
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    torch.manual_seed(0)
    theirs = getattr(transformers, f"{kind}ForMaskedLM")(getattr(transformers, f"{kind}Config")(**SIZES, **own)).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    model = BertForMaskedLM.from_pretrained(str(tmp_path / "theirs"))
    pad = own.get("pad_token_id", 0)
    ids = np.random.default_rng(0).integers(6, 40, (3, 7))
    ids[1, 4:] = pad
    mask = np.ones_like(ids)
    mask[1, 4:] = 0
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask)).logits.numpy()
    found = np.asarray(model({"input_ids": ids, "input_mask": mask}))
    np.testing.assert_allclose(found[mask > 0], expected[mask > 0], atol=2e-4)
    # Saved in our own format, and back in theirs.
    model.save_pretrained(str(tmp_path / "ours"))
    again = BertForMaskedLM.from_pretrained(str(tmp_path / "ours"))
    again.save_pretrained(str(tmp_path / "back"), format="huggingface")
    back = getattr(transformers, f"{kind}ForMaskedLM").from_pretrained(tmp_path / "back").eval()
    with torch.no_grad():
        found = back(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask)).logits.numpy()
    np.testing.assert_allclose(found, expected, atol=2e-4)


def test_positions_of_roberta_begin_behind_the_padding():
    config = RobertaConfig(**SIZES, max_position_embeddings=14, pad_token_id=5)
    assert (config.first_position, config.max_length) == (6, 8)
    with pytest.raises(ValueError, match="7 tokens is longer than the 6 "):
        BertModel(RobertaConfig(**SIZES, max_position_embeddings=12, pad_token_id=5))(np.ones((1, 7), int))


@pytest.mark.parametrize(("config", "first"), [(CONFIG, 0), (RobertaConfig(**SIZES, max_position_embeddings=14), 2)])
def test_positions_are_rows_of_the_table_as_in_transformers(config, first):
    model, ids = enlarge(BertModel(config)), np.full((1, 6), 9)
    expected = model(ids)["sequence_output"]
    for start in (first, first + 1):
        positions = np.arange(start, start + 6)[None]
        outputs = model({"input_ids": ids, "position_ids": positions})["sequence_output"]
        assert np.allclose(outputs, expected, atol=1e-5) == (start == first)
    last = config.max_position_embeddings - 1
    model({"input_ids": ids, "position_ids": 0 * positions + last})
    with pytest.raises(ValueError, match="position_ids"):
        model({"input_ids": ids, "position_ids": 0 * positions + last + 1})


def test_a_classifier_of_one_layer_is_written_as_two(tmp_path):
    model = enlarge(BertForSequenceClassification(ELECTRA, 3))
    model.head.output_bias.assign([0.5, -1.0, 2.0])
    model.save_pretrained(str(tmp_path), format="huggingface")
    again = BertForSequenceClassification.from_pretrained(str(tmp_path))
    assert again.hidden and not model.hidden
    np.testing.assert_allclose(again(inputs()), model(inputs()), atol=1e-5)


def test_an_epsilon_that_a_format_does_not_hold_is_told(tmp_path, caplog):
    for epsilon, told in ((1e-5, True), (1e-12, False)):
        model = BertModel(BertConfig.from_dict({**CONFIG.to_dict(), "layer_norm_eps": epsilon}))
        model.build()
        caplog.clear()
        with caplog.at_level("WARNING", logger="absl"):
            model.save_pretrained(str(tmp_path / f"{told}"), format="tf1")
        assert ("format=tf1: layer_norm_eps is 1e-05" in caplog.text) == told


def test_dropout_of_electras_summary_is_told(caplog):
    values = {**SIZES, "model_type": "electra", "embedding_size": 8, "summary_last_dropout": 0.3}
    with caplog.at_level("WARNING", logger="absl"):
        read_config(values, "config.json")
    assert "config.json: summary_last_dropout=0.3 is not taken over" in caplog.text
    with pytest.raises(ValueError, match="summary_type='mean' is a variant of ELECTRA"):
        read_config({**values, "summary_type": "mean"}, "config.json")


def test_a_taught_language_model_works_outside_of_graphs():
    places = {name: np.array([[1, 2]] * 4) for name in ("masked_lm_positions", "masked_lm_ids")}
    features = inputs(**places, masked_lm_weights=np.ones((4, 2), "float32"))
    model = TaughtLanguageModel(BertForMaskedLM(CONFIG), BertForMaskedLM(CONFIG), LanguageDistillation())
    objective = model.objective

    def loss_and_gradients():
        with tf.GradientTape() as tape:
            outputs = in_training(model, features)
            loss = objective.loss(objective.sums(outputs, features), objective.totals(features))
        found = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
        return loss, [None if one is None else tf.convert_to_tensor(one) for one in found]

    loss, gradients = loss_and_gradients()
    expected, others = tf.function(loss_and_gradients, autograph=False)()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert [one is None for one in gradients] == [one is None for one in others]
    for one, other in zip(gradients, others, strict=True):
        if one is not None:
            np.testing.assert_allclose(one, other, atol=1e-4)
    assert any(one is not None and np.abs(one).max() > 0 for one in gradients)

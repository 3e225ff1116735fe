"""ALBERT: the original's outputs, and its checkpoints in and out.

Oracle: tests/golden/albert, computed by the original with random weights: config1 shares one block among three layers,
config2 has two groups of two blocks for five layers, config3 has embeddings as wide as the encoder. Outputs of Hugging
Face's classes are in test_descendants.py.
"""

import shutil

import numpy as np
import pytest
import safetensors.numpy
from helpers import descendants
from helpers.converted import example_inputs, there_and_back
from helpers.outputs import TOLERANCE, assert_close
from helpers.slow import slow
from scipy.special import log_softmax

from bert_tf.conversion import convert
from bert_tf.families.families import ALBERT, AlbertConfig, family_of
from bert_tf.models import task_models
from bert_tf.store import open_weights
from bert_tf.store.open import open_model

pytestmark = pytest.mark.numbers

CONFIGS = ["config1", "config2", "config3"]
ENCODER_INPUTS = ("input_ids", "input_mask", "segment_ids")


@pytest.mark.parametrize("name", CONFIGS)
def test_outputs_are_the_originals(golden, name):
    folder = golden / "albert" / name
    inputs, expected = (dict(np.load(folder / f"{name}.npz")) for name in ("inputs", "outputs"))
    model = task_models.BertForPreTraining.from_pretrained(str(folder / "model.ckpt"))
    assert family_of(model.config) is ALBERT
    encoded = model.encode({key: inputs[key] for key in ENCODER_INPUTS}, return_all_layers=True, return_attention=True)
    layers = [key for key in expected if key.startswith("encoder_layer_")]
    assert len(layers) == len(encoded["encoder_layers"]) == len(encoded["attention_probabilities"])
    for number, layer in enumerate(encoded["encoder_layers"]):
        assert_close(layer, expected[f"encoder_layer_{number}"])
    assert_close(encoded["pooled_output"], expected["pooled_output"])
    assert_close(model.encode({"input_ids": inputs["input_ids"]})["pooled_output"], expected["defaults_pooled_output"])
    outputs = model(inputs)
    masked_lm = log_softmax(np.asarray(outputs["masked_lm_logits"]), axis=-1)
    assert_close(masked_lm.reshape(expected["masked_lm_log_probs"].shape), expected["masked_lm_log_probs"])
    assert_close(
        log_softmax(np.asarray(outputs["next_sentence_logits"]), axis=-1), expected["sentence_order_log_probs"]
    )
    sums = model.objective.sums(outputs, inputs)
    np.testing.assert_allclose(model.objective.loss(sums, sums), expected["total_loss"], atol=TOLERANCE)


def test_heads_are_the_originals(golden):
    folder = golden / "albert" / "config1"
    inputs, expected = (dict(np.load(folder / f"head_{name}.npz")) for name in ("inputs", "outputs"))
    batch = {key: inputs[key] for key in ENCODER_INPUTS}
    for kind, labels in (("classifier", "label_ids"), ("stsb", "float_labels")):
        model = task_models.BertForSequenceClassification.from_pretrained(str(folder / f"{kind}.ckpt"))
        logits = np.asarray(model(batch))
        assert_close(logits.reshape(expected[f"{kind}_logits"].shape), expected[f"{kind}_logits"])
        sums = model.objective.sums(logits, {"label_ids": inputs[labels]})
        np.testing.assert_allclose(model.objective.loss(sums, sums), expected[f"{kind}_loss"], atol=TOLERANCE)
        assert model.dropout_rate == 0.1 and model.config.hidden_dropout_prob == 0
    spans = task_models.BertForQuestionAnswering.from_pretrained(str(folder / "squad_v1.ckpt"))(batch)
    for name in ("start_logits", "end_logits"):
        assert_close(spans[name], expected[f"squad_v1_{name}"])


@pytest.fixture(params=["config2", *slow("config1", "config3")])
def released(golden, tmp_path, request):
    """A directory like one of Google's, without its SentencePiece model."""
    source, folder = golden / "albert" / request.param, tmp_path / "released"
    folder.mkdir()
    for file in source.glob("model.ckpt*"):
        shutil.copy(file, folder / file.name.replace("model.ckpt", "model.ckpt-best"))
    shutil.copy(source / "albert_config.json", folder)
    return folder


def test_tf1_and_hugging_face_both_ways(released, tmp_path):
    there_and_back(released / "model.ckpt-best", tmp_path, 4, ())
    configs = [AlbertConfig.from_json_file(f"{folder}/albert_config.json") for folder in (released, tmp_path / "1")]
    assert configs[0] == configs[1]


def test_a_sentence_piece_model_that_transformers_reads_by_other_rules(tmp_path, caplog):
    folder = descendants.save_model(tmp_path / "model", "albert", task_models.BertModel)
    assert "transformers" not in caplog.text
    task_models.BertModel.from_pretrained(folder).save_pretrained(str(tmp_path / "theirs"), format="huggingface")
    assert "spiece.model: transformers reads spiece.model by other rules" in caplog.text


def test_a_projection_to_the_same_width_must_be_the_identity(golden, tmp_path):
    """Hugging Face's has a layer between embeddings and encoder even where the original has none."""
    convert.convert(str(golden / "albert" / "config3"), str(tmp_path / "new"), "huggingface", do_lower_case=True)
    file = str(tmp_path / "new" / "model.safetensors")
    tensors = safetensors.numpy.load_file(file)
    name = "albert.encoder.embedding_hidden_mapping_in.weight"
    np.testing.assert_array_equal(tensors[name], np.eye(32))
    assert "the identity" in open_weights.open_weights(file).unused[name]
    safetensors.numpy.save_file({**tensors, name: tensors[name] * 2}, file, {"format": "pt"})
    with pytest.raises(ValueError, match=f"{name} is a layer between embeddings and encoder of one width"):
        open_weights.open_weights(file)


@pytest.mark.parametrize("embedding_width", [24, *slow(32)])
def test_model_garden(tmp_path, embedding_width):
    """An AlbertEncoder's checkpoint is read; outputs are those of the library."""
    networks = pytest.importorskip("official.nlp.modeling.networks", reason="tf-models-official is not installed")
    import tensorflow as tf
    import tf_keras

    sizes = {"vocab_size": 50, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48}
    encoder = networks.AlbertEncoder(
        embedding_width=embedding_width, num_layers=3, max_sequence_length=20, type_vocab_size=2, dict_outputs=True,
        activation=lambda x: tf_keras.activations.gelu(x, approximate=True), **sizes,
    )  # fmt: skip
    generator = np.random.default_rng(2)
    for variable in encoder.trainable_variables:
        variable.assign(generator.normal(0, 0.2, variable.shape))
    prefix = tf.train.Checkpoint(model=encoder).write(str(tmp_path / "garden" / "ckpt-1"))
    with pytest.raises(ValueError, match="has no .*config.json"):  # the number of layers can't be seen
        task_models.BertModel.from_pretrained(prefix)
    config = AlbertConfig(embedding_size=embedding_width, num_hidden_layers=3, max_position_embeddings=20, **sizes)
    config.save(str(tmp_path / "garden" / "albert_config.json"))
    convert.convert(prefix, str(tmp_path / "ours"), "bert_tf", do_lower_case=True)
    model = task_models.BertModel.from_pretrained(str(tmp_path / "ours"))
    assert task_models.BertModel.from_pretrained(prefix).config == model.config == config
    inputs = example_inputs(config)
    theirs = {"input_word_ids": "input_ids", "input_mask": "input_mask", "input_type_ids": "segment_ids"}
    expected = encoder({name: tf.constant(inputs[ours]) for name, ours in theirs.items()}, training=False)
    outputs = model({name: inputs[name] for name in theirs.values()})
    for name in ("sequence_output", "pooled_output"):
        np.testing.assert_allclose(outputs[name], expected[name], atol=1e-5, rtol=0)


@pytest.mark.parametrize(("config_folder", "folder", "dropout", "is_warned"), [
    ("albert_base_v1", "albert_base_v2", 0.0, True),
    ("", "models--albert--albert-base-v2/snapshots/0e09", 0.1, True),
    ("", "albert_base_v1", 0.1, False),
    ("albert_base_v1", "albert_base_v2/mrpc", 0.1, False),
])  # fmt: skip
def test_a_configuration_of_another_version(released, tmp_path, caplog, config_folder, folder, dropout, is_warned):
    weights = shutil.copytree(released, tmp_path / folder)
    config = AlbertConfig.from_json_file(f"{weights}/albert_config.json")
    config.hidden_dropout_prob = dropout
    other = tmp_path / (config_folder or folder)
    other.mkdir(parents=True, exist_ok=True)
    config.save(str(other / "albert_config.json"))
    open_model(str(weights), config_file=f"{other}/albert_config.json" if config_folder else None)
    assert (f"is not of version 2 of ALBERT, of which {weights}" in caplog.text) == is_warned

"""ALBERT and ELECTRA: the originals' outputs, and their checkpoints in and out.

Oracles: tests/golden/albert and tests/golden/electra, computed by the originals with random weights. Of ALBERT, config1
shares one block among three layers, config2 has two groups of two blocks for five layers, config3 has embeddings as
wide as the encoder. Of ELECTRA, both models are in one checkpoint, with E 24, H 32 and 16. Outputs of Hugging Face's
classes are in test_descendants.py.
"""

import json
import shutil

import numpy as np
import pytest
import safetensors.numpy
from helpers import tiny
from helpers.basics import slow
from helpers.outputs import TOLERANCE, assert_close, there_and_back
from scipy.special import log_softmax

from bert_tf import BertForMaskedLM, ElectraDiscriminator, fill_mask
from bert_tf.conversion import convert
from bert_tf.families import family_of
from bert_tf.families.albert import FAMILY, AlbertConfig
from bert_tf.families.electra import ElectraConfig
from bert_tf.models import task_models
from bert_tf.store import bundle
from bert_tf.store.open import open_for_script, open_model, open_weights, read_tokenizer
from bert_tf.text.wordpiece import ElectraTokenizer
from bert_tf.training.settings import ModelSettings

pytestmark = pytest.mark.numbers

CONFIGS = ["config1", "config2", "config3"]
ENCODER_INPUTS = ("input_ids", "input_mask", "segment_ids")


@pytest.mark.parametrize("name", CONFIGS)
def test_outputs_are_the_originals(golden, name):
    folder = golden / "albert" / name
    inputs, expected = (dict(np.load(folder / f"{name}.npz")) for name in ("inputs", "outputs"))
    model = task_models.BertForPreTraining.from_pretrained(str(folder / "model.ckpt"))
    assert family_of(model.config) is FAMILY
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
    order = log_softmax(np.asarray(outputs["next_sentence_logits"]), axis=-1)
    assert_close(order, expected["sentence_order_log_probs"])
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
    there_and_back(released / "model.ckpt-best", tmp_path, ())
    configs = [AlbertConfig.from_json_file(f"{folder}/albert_config.json") for folder in (released, tmp_path / "1")]
    assert configs[0] == configs[1]


def test_a_sentence_piece_model_that_transformers_reads_by_other_rules(tmp_path, caplog):
    folder = tiny.save_model(tmp_path / "model", "albert", task_models.BertModel)
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
    assert "the identity" in open_weights(file).unused[name]
    safetensors.numpy.save_file({**tensors, name: tensors[name] * 2}, file, {"format": "pt"})
    with pytest.raises(ValueError, match=f"{name} is a layer between embeddings and encoder of one width"):
        open_weights(file)


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


PARTS = ["discriminator", "generator"]
OPTIONS = ["untied_generator_embeddings", "tied_generator", "mlm_only", "uniform_generator"]


def config_of(folder, part: str) -> ElectraConfig:
    """The configuration in a golden folder; its models have other numbers of heads than weights without one show."""
    options = json.loads((folder / "hparams.json").read_text())
    own = part == "generator" and options["untied_generator"] and options["electra_objective"]
    values = options["generator_config" if own else "discriminator_config"]
    tables_of_its_own = own and options["untied_generator_embeddings"]
    size = values["hidden_size"] if tables_of_its_own else options["embedding_size"] or values["hidden_size"]
    return ElectraConfig(**{**values, "hidden_act": "gelu_erf", "embedding_size": size})


def arrays_of(folder) -> tuple[dict, dict, np.ndarray]:
    inputs, outputs = (dict(np.load(folder / f"{name}.npz")) for name in ("inputs", "outputs"))
    return {name: inputs[name] for name in ("input_mask", "segment_ids")}, outputs, inputs["input_mask"].astype(bool)


def check_discriminator(folder):
    model = ElectraDiscriminator.from_pretrained(str(folder), config=config_of(folder, "discriminator"))
    inputs, expected, mask = arrays_of(folder)
    inputs["input_ids"] = expected["fake_input_ids"]
    logits = model(inputs)
    assert_close(logits, expected["disc_logits"], mask)
    sums = model.objective.sums(logits, {**inputs, "is_replaced": expected["is_fake"]})
    np.testing.assert_allclose(model.objective.loss(sums, sums), expected["disc_loss"], atol=TOLERANCE)
    right = (expected["disc_preds"] == expected["is_fake"])[mask].mean()
    np.testing.assert_allclose(model.objective.metrics(sums)["replaced_token_accuracy"], right, atol=TOLERANCE)
    return model.encode(inputs, return_all_layers=True), expected, mask


def check_generator(folder):
    model = BertForMaskedLM.from_pretrained(str(folder), config=config_of(folder, "generator"))
    inputs, expected, mask = arrays_of(folder)
    inputs["input_ids"] = expected["masked_input_ids"]
    logits = model({**inputs, "masked_lm_positions": expected["masked_lm_positions"]})
    np.testing.assert_allclose(logits, expected["mlm_logits"], atol=TOLERANCE, rtol=0)
    return model.encode(inputs, return_all_layers=True), expected, mask


def test_outputs_are_electras(golden):
    for part, check in zip(PARTS, (check_discriminator, check_generator), strict=True):
        outputs, expected, mask = check(golden / "electra" / "uneven")
        assert_close(outputs["embedding_output"], expected[f"{part}_embedding_output"], mask)
        for layer, value in enumerate(outputs["encoder_layers"]):
            assert_close(value, expected[f"{part}_layers"][layer], mask)


@pytest.mark.parametrize("option", OPTIONS)
def test_outputs_with_other_options_of_pretraining(shared, option):
    folder = shared / "golden" / "electra" / "options" / option
    if option != "mlm_only":
        check_discriminator(folder)
    if option != "uniform_generator":
        check_generator(folder)


@pytest.fixture
def released_electra(golden, tmp_path):
    """A directory like Google's: checkpoint and vocabulary, no configuration. One head per 64 units of width."""
    folder = tmp_path / "released" / "electra_tiny"
    shutil.copytree(golden / "electra" / "uneven", folder)
    shutil.copy(golden / "electra" / "vocab.txt", folder)
    return folder


def test_sizes_without_a_configuration(released_electra, caplog):
    for part, width, inner in (("discriminator", 32, 128), ("generator", 16, 64)):
        config = open_model(str(released_electra), part=part).config
        assert config == ElectraConfig(260, width, 2, 1, inner, embedding_size=24, max_position_embeddings=40)
    assert "sizes are those of the weights, with 1 attention heads" in caplog.text
    assert open_for_script(str(released_electra), ModelSettings()).config.hidden_size == 32
    # A configuration beside the checkpoint is the discriminator's.
    beside = ElectraConfig(260, 32, 2, 2, 128, embedding_size=24, hidden_dropout_prob=0.0, max_position_embeddings=40)
    beside.save(str(released_electra / "electra_config.json"))
    config = open_model(str(released_electra), part="generator").config
    assert (config.hidden_size, config.num_attention_heads, config.hidden_dropout_prob) == (16, 1, 0.0)
    assert open_model(str(released_electra)).config.num_attention_heads == 2


@pytest.mark.parametrize("part", PARTS)
def test_parts_of_an_electra_both_ways(released_electra, tmp_path, caplog, part):
    own = {"discriminator": ("electra/", "discriminator_"), "generator": ("electra/embeddings/", "generator")}[part]
    there_and_back(released_electra / "model.ckpt", tmp_path, ("vocab.txt",), part, own)
    open_for_script(str(tmp_path / "0"), ModelSettings())
    assert ("0/model.safetensors is the generator of an ELECTRA" in caplog.text) == (part == "generator")
    weights = open_model(str(released_electra), part=part).weights
    assert set(weights.unused.values()) == {f"of the {PARTS[1 - PARTS.index(part)]}"}


def test_masks_are_filled_by_the_generator(released_electra, recwarn):
    tokenizer = read_tokenizer(str(released_electra))
    assert type(tokenizer) is ElectraTokenizer
    models = [kind.from_pretrained(str(released_electra)) for kind in (BertForMaskedLM, task_models.BertForPreTraining)]
    assert not [one for one in recwarn if "are not used by the model" in str(one.message)]  # nor is the discriminator
    guesses, others = (fill_mask(model, tokenizer, ["the [MASK] of [MASK]"], top_k=3) for model in models)
    assert [len(guess) for guess in guesses[0]] == [3, 3] and guesses == others


def test_an_output_layer_of_the_original(released_electra):
    """A classifier's is read; layers of several tasks, or of a question's answer, are left over."""
    reader = bundle.CheckpointReader(str(released_electra / "model.ckpt"))
    layer = {"kernel": np.arange(96, dtype=np.float32).reshape(32, 3), "bias": np.ones(3, np.float32)}
    names = (name for name in reader.get_variable_to_shape_map() if name.startswith("electra/"))
    tensors = {name: reader.get_tensor(name) for name in names}
    tensors |= {f"task_specific/mnli/dense/{name}": value for name, value in layer.items()}
    one, two = (str(released_electra.parent / name / "model.ckpt") for name in ("one", "two"))
    bundle.write_bundle(one, tensors)
    bundle.write_bundle(two, {**tensors, "task_specific/rte/dense/bias": layer["bias"]})
    weights = open_weights(two)
    assert "output_weights" not in weights and len(weights.unused) == 3
    assert not open_weights(one).unused
    model = task_models.BertForSequenceClassification.from_pretrained(one)
    np.testing.assert_array_equal(model.head.output_weights, layer["kernel"].T)
    assert model.hidden is None and model.num_labels == 3

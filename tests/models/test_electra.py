"""ELECTRA: Google's checkpoints of discriminator and generator.

Oracle: tests/golden/electra, computed by the original: both models in one checkpoint, with E 24, H 32 and 16, random
weights. Outputs of Hugging Face's classes are in test_descendants.py.
"""

import json
import shutil

import numpy as np
import pytest
from helpers.converted import there_and_back
from helpers.outputs import TOLERANCE, assert_close

from bert_tf import BertForMaskedLM, ElectraDiscriminator, fill_mask
from bert_tf.families.families import ElectraConfig
from bert_tf.models import task_models
from bert_tf.store import bundle, open_weights
from bert_tf.store import directory as model_directory
from bert_tf.store.open import open_model
from bert_tf.text.wordpiece import ElectraTokenizer

pytestmark = pytest.mark.numbers

PARTS = ["discriminator", "generator"]
NO_FLAGS = dict.fromkeys(("bert_config_file", "vocab_file", "do_lower_case", "strip_accents"))
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


def test_outputs_are_the_originals(golden):
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
def released(golden, tmp_path):
    """A directory like Google's: checkpoint and vocabulary, no configuration. One head per 64 units of width."""
    folder = tmp_path / "released" / "electra_tiny"
    shutil.copytree(golden / "electra" / "uneven", folder)
    shutil.copy(golden / "electra" / "vocab.txt", folder)
    return folder


def test_sizes_without_a_configuration(released, caplog):
    for part, width, inner in (("discriminator", 32, 128), ("generator", 16, 64)):
        config = open_model(str(released), part=part).config
        assert config == ElectraConfig(260, width, 2, 1, inner, embedding_size=24, max_position_embeddings=40)
    assert "sizes are those of the weights, with 1 attention heads" in caplog.text
    assert model_directory.describe(open_weights.open_weights(str(released)), **NO_FLAGS).config.hidden_size == 32
    # A configuration beside the checkpoint is the discriminator's.
    beside = ElectraConfig(260, 32, 2, 2, 128, embedding_size=24, hidden_dropout_prob=0.0, max_position_embeddings=40)
    beside.save(str(released / "electra_config.json"))
    config = open_model(str(released), part="generator").config
    assert (config.hidden_size, config.num_attention_heads, config.hidden_dropout_prob) == (16, 1, 0.0)
    assert open_model(str(released)).config.num_attention_heads == 2


@pytest.mark.parametrize("part", PARTS)
def test_tf1_and_hugging_face_both_ways(released, tmp_path, caplog, part):
    own = {"discriminator": ("electra/", "discriminator_"), "generator": ("electra/embeddings/", "generator")}[part]
    there_and_back(released / "model.ckpt", tmp_path, 2, ("vocab.txt",), part, own)
    model_directory.describe(open_weights.open_weights(str(tmp_path / "0")), **NO_FLAGS)
    assert ("0/model.safetensors is the generator of an ELECTRA" in caplog.text) == (part == "generator")
    weights = open_weights.open_weights(str(released), part)
    assert set(weights.unused.values()) == {f"of the {PARTS[1 - PARTS.index(part)]}"}


def test_masks_are_filled_by_the_generator(released, recwarn):
    tokenizer = ElectraTokenizer(str(released / "vocab.txt"))
    models = [kind.from_pretrained(str(released)) for kind in (BertForMaskedLM, task_models.BertForPreTraining)]
    assert not [one for one in recwarn if "are not used by the model" in str(one.message)]  # nor is the discriminator
    guesses, others = (fill_mask(model, tokenizer, ["the [MASK] of [MASK]"], top_k=3) for model in models)
    assert [len(guess) for guess in guesses[0]] == [3, 3] and guesses == others


def test_an_output_layer_of_the_original(released):
    """A classifier's is read; layers of several tasks, or of a question's answer, are left over."""
    reader = bundle.CheckpointReader(str(released / "model.ckpt"))
    layer = {"kernel": np.arange(96, dtype=np.float32).reshape(32, 3), "bias": np.ones(3, np.float32)}
    names = (name for name in reader.get_variable_to_shape_map() if name.startswith("electra/"))
    tensors = {name: reader.get_tensor(name) for name in names}
    tensors |= {f"task_specific/mnli/dense/{name}": value for name, value in layer.items()}
    one, two = (str(released.parent / name / "model.ckpt") for name in ("one", "two"))
    bundle.write_bundle(one, tensors)
    bundle.write_bundle(two, {**tensors, "task_specific/rte/dense/bias": layer["bias"]})
    weights = open_weights.open_weights(two)
    assert "output_weights" not in weights and len(weights.unused) == 3
    assert not open_weights.open_weights(one).unused
    model = task_models.BertForSequenceClassification.from_pretrained(one)
    np.testing.assert_array_equal(model.head.output_weights, layer["kernel"].T)
    assert model.hidden is None and model.num_labels == 3

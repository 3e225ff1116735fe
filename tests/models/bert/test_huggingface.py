"""Hugging Face's names, configurations and files, also those that no released model has, with theirs as the oracle."""

import json
import re
import shutil

import numpy as np
import pytest
import safetensors.numpy
from helpers import every_model
from helpers.every_model import CONFIG, ELECTRA, inputs
from helpers.outputs import assert_same_bits, enlarge
from helpers.tiny import TINY_CONFIG

from bert_tf import BertConfig, BertForMaskedLM, BertForSequenceClassification, BertModel
from bert_tf.families.family import expected_shapes
from bert_tf.families.roberta import RobertaConfig
from bert_tf.models import initialize, task_models
from bert_tf.store import huggingface
from bert_tf.store.description import config_files, read_model_files
from bert_tf.store.head_config import HeadConfig
from bert_tf.store.open import TF1, find_weights, open_weights
from bert_tf.system.text_files import list_folder

HUGGINGFACE_CONFIG = {**TINY_CONFIG, "hidden_act": "gelu", "architectures": ["BertForPreTraining"]}
HUGGINGFACE_CONFIG |= {"model_type": "bert", "layer_norm_eps": 1e-12, "pad_token_id": 0}
HUGGINGFACE_CONFIG |= {"position_embedding_type": "absolute"}


def write_directory(folder, kind=task_models.BertForPreTraining, change=None) -> dict:
    """A directory that transformers reads, see test_descendants.py, perhaps changed; returns its tensors."""
    enlarge(kind(BertConfig.from_dict(TINY_CONFIG))).save_pretrained(str(folder), format="huggingface")
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    if change:
        change(tensors)
        safetensors.numpy.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return tensors


@pytest.mark.parametrize("prefix", ["bert.", "", "module.bert."])
def test_encoder_with_and_without_prefix(tmp_path, prefix):
    def rename(tensors):
        for name in [*tensors]:
            tensors[prefix + name] = tensors.pop(name)

    tensors = write_directory(tmp_path / "model", BertModel, rename)
    weights = open_weights(str(tmp_path / "model"))
    assert weights.format == "huggingface"
    assert len(weights) == 5 + 16 * 2 + 2 == len(tensors)
    kernel = "bert/encoder/layer_1/intermediate/dense/kernel"
    theirs = tensors[prefix + "encoder.layer.1.intermediate.dense.weight"]
    assert weights.shapes[kernel] == (32, 64) and theirs.shape == (64, 32)
    np.testing.assert_array_equal(weights[kernel], theirs.T)


def test_old_files_with_gamma_a_tied_decoder_and_position_ids(tmp_path):
    def age(tensors):
        for name in [name for name in tensors if "LayerNorm" in name]:
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            tensors[old] = tensors.pop(name)
        tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].copy()
        tensors["bert.embeddings.position_ids"] = np.arange(32)[None]
        tensors["something.else"] = np.zeros(3, np.float32)

    write_directory(tmp_path / "model", change=age)
    weights = open_weights(str(tmp_path / "model"))
    assert set(expected_shapes(BertConfig.from_dict(TINY_CONFIG))) == set(weights)
    assert weights.unused == {
        "bert.embeddings.position_ids": "a constant, 0 to max_position_embeddings",
        "cls.predictions.decoder.weight": "the same as bert.embeddings.word_embeddings.weight",
        "something.else": "not in BERT as the original has it",
    }


@pytest.mark.parametrize(("name", "original"), [
    ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
    ("cls.predictions.decoder.bias", "cls.predictions.bias"),
])  # fmt: skip
def test_an_untied_decoder_raises_where_it_is_read(tmp_path, name, original):
    write_directory(tmp_path / "model", change=lambda tensors: tensors.update({name: tensors[original] + 1}))
    weights = open_weights(str(tmp_path / "model"))
    assert weights.unused[name] == f"trained apart from {original}"
    with pytest.raises(ValueError, match=rf"model\.safetensors: {re.escape(name)} is trained apart"):
        task_models.BertForMaskedLM.from_pretrained(str(tmp_path / "model"))
    encoder = BertModel.from_pretrained(str(tmp_path / "model"))
    np.testing.assert_array_equal(encoder.get_embedding_table(), weights["bert/embeddings/word_embeddings"])


@pytest.mark.parametrize(("name", "end"), [("model", "safetensors"), ("pytorch_model", "bin")])
def test_shards(tmp_path, name, end):
    tensors, folder = write_directory(tmp_path / "whole"), tmp_path / "shards"
    folder.mkdir()
    files = {f"{name}-0000{number}-of-00002.{end}": [*tensors][number - 1 :: 2] for number in (1, 2)}
    for file, names in files.items():
        part = {name: tensors[name] for name in names}
        if end == "bin":
            torch = pytest.importorskip("torch", reason="torch is not installed (requirements-dev.txt)")
            torch.save({name: torch.tensor(value) for name, value in part.items()}, folder / file)
        else:
            safetensors.numpy.save_file(part, str(folder / file))
    index, places = folder / f"{name}.{end}.index.json", {name: file for file in files for name in files[file]}
    index.write_text(json.dumps({"weight_map": places}))
    (folder / "config.json").write_text(json.dumps(HUGGINGFACE_CONFIG))
    assert_same_bits(open_weights(str(folder)), open_weights(str(tmp_path / "whole")))
    (folder / file).unlink()
    with pytest.raises(FileNotFoundError, match=f"{name}-00002-of-00002"):
        open_weights(str(folder))
    index.write_text(json.dumps({"weight_map": {"a": index.name}}))
    with pytest.raises(ValueError, match=f"names '{index.name}', not a file of tensors"):
        open_weights(str(folder))


def test_activations_and_another_dropout_of_the_classifier(caplog):
    caplog.set_level("INFO")
    for value, act, ours in ((None, "gelu", "gelu_erf"), (0.1, "gelu_pytorch_tanh", "gelu"), (0.3, "relu", "relu")):
        changes = {"classifier_dropout": value, "hidden_act": act}
        config = huggingface.read_config({**HUGGINGFACE_CONFIG, **changes}, "config.json")
        assert config.hidden_act == ours
    electra = {**HUGGINGFACE_CONFIG, "model_type": "electra", "summary_last_dropout": 0.3}
    huggingface.read_config(electra, "config.json")
    told = [record.getMessage() for record in caplog.records if "dropout" in record.getMessage()]
    keys = ("classifier_dropout", "summary_last_dropout")
    assert told == [f"config.json: {key}=0.3 is not taken over; --classifier_dropout=0.3 has it." for key in keys]


@pytest.mark.parametrize(("kind", "problem"), [
    (task_models.BertForTokenClassification, {}),
    (BertForSequenceClassification, {"problem_type": "multi_label_classification"}),
])  # fmt: skip
def test_config_both_ways(tmp_path, kind, problem):
    kept = {**HUGGINGFACE_CONFIG, "layer_norm_eps": 1e-6, "pad_token_id": 3, "type_vocab_size": 4, **problem}
    kept |= {"architectures": [kind.__name__], "id2label": {"0": "O", "1": "B-PER"}}
    kept |= {"label2id": {"O": 0, "B-PER": 1}}
    values = {**kept, "transformers_version": "4.8.2", "use_cache": True}
    config, head = (read(values, "config.json") for read in (huggingface.read_config, huggingface.read_head))
    assert (config.layer_norm_eps, config.pad_token_id, config.type_vocab_size) == (1e-6, 3, 4)
    assert head == HeadConfig(kind.__name__, ("O", "B-PER"), **problem)
    # By way of the files of such a model as tf1 or bert_tf.
    for name, text in config_files(config, head).items():
        (tmp_path / name).write_text(text)
    files = read_model_files(str(tmp_path))
    assert (files.config, files.head) == (config, head)
    model = kind(config, 2, **problem)
    model.build()
    assert kept.items() <= huggingface.config_values(config, initialize.model_weights(model), head).items()


@pytest.mark.parametrize(("change", "message"), [
    ({"model_type": "camembert"}, "model_type is 'camembert'"),
    ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
    ({"hidden_act": "silu"}, "hidden_act='silu'"),
    ({"is_decoder": True}, "is_decoder=True"),
    ({"model_type": "electra", "summary_type": "mean"}, "summary_type='mean' is a variant of ELECTRA"),
])  # fmt: skip
def test_configs_that_are_no_bert(change, message):
    with pytest.raises(ValueError, match=f"^config.json: .*{message}"):
        huggingface.read_config({**HUGGINGFACE_CONFIG, **change}, "config.json")


def test_the_other_name_of_tied_weights(tmp_path):
    """A file that drops copies may keep the decoder's, as `save_model` of safetensors does for RoBERTa."""
    model = enlarge(BertForMaskedLM(RobertaConfig(**SIZES, max_position_embeddings=14)))
    model.save_pretrained(str(tmp_path), format="huggingface")
    tensors = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    tensors["lm_head.decoder.weight"] = tensors.pop("roberta.embeddings.word_embeddings.weight")
    tensors["lm_head.decoder.bias"] = tensors.pop("lm_head.bias")
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    ids, again = np.arange(6)[None], BertForMaskedLM.from_pretrained(str(tmp_path))
    np.testing.assert_array_equal(again(ids), model(ids))
    del tensors["lm_head.decoder.weight"]
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors has no table of words; it holds"):
        open_weights(str(tmp_path))


@pytest.mark.parametrize("name", ["tensorflow", "keras", "flax"])
def test_what_transformers_4_wrote_of_other_frameworks(golden, name):
    """model.safetensors of TFBertForMaskedLM and FlaxRobertaForMaskedLM, tf_model.h5 of TFAlbertForMaskedLM."""
    folder = golden / "transformers_4" / name
    outputs = BertForMaskedLM.from_pretrained(str(folder), trained=True)(np.array([[5, 6, 7, 8, 9]]))
    np.testing.assert_allclose(outputs, np.load(folder / "logits.npy"), atol=1e-5)


def test_an_old_file_of_keras_is_not_in_the_way(golden, tmp_path):
    folder = shutil.copytree(golden / "transformers_4" / "keras", tmp_path / "model")
    model = BertForMaskedLM.from_pretrained(str(folder))
    model.save_pretrained(str(folder), format="tf1", overwrite=True)
    assert not (folder / "tf_model.h5").exists()
    shutil.copy(golden / "transformers_4" / "keras" / "tf_model.h5", folder)
    assert find_weights(list_folder(str(folder)), str(folder)) == (TF1, str(folder / "bert_model.ckpt"))


SIZES = {**every_model.SIZES, "vocab_size": 40, "num_hidden_layers": 2, "initializer_range": 0.5}


@pytest.mark.parametrize(("kind", "own"), [
    ("Roberta", {"type_vocab_size": 1, "pad_token_id": 5, "hidden_act": "relu"}),
    ("Electra", {"embedding_size": 8, "hidden_act": "gelu_new", "pad_token_id": 0}),
])  # fmt: skip
def test_masked_lm_equals_theirs(tmp_path, kind, own):
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES, **own, max_position_embeddings=14)
    theirs, ids = getattr(transformers, f"{kind}ForMaskedLM")(config).eval(), np.arange(6, 27).reshape(3, 7)
    ids[1, 4:] = own["pad_token_id"]
    mask = (ids >= 6).astype(int)
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask)).logits.numpy()
    theirs.save_pretrained(tmp_path / "theirs")
    model = BertForMaskedLM.from_pretrained(str(tmp_path / "theirs"))
    found = np.asarray(model({"input_ids": ids, "input_mask": mask}))
    np.testing.assert_allclose(found[mask > 0], expected[mask > 0], atol=2e-4)
    # Written in their format they are the same again.
    model.save_pretrained(str(tmp_path / "back"), format="huggingface")
    back = getattr(transformers, f"{kind}ForMaskedLM").from_pretrained(tmp_path / "back").state_dict()
    assert all(torch.equal(value, back[name]) for name, value in theirs.state_dict().items())


def test_a_classifier_of_one_layer_is_written_as_two(tmp_path):
    model = enlarge(BertForSequenceClassification(ELECTRA, 3))
    model.head.output_bias.assign([0.5, -1.0, 2.0])
    model.save_pretrained(str(tmp_path), format="huggingface")
    again = BertForSequenceClassification.from_pretrained(str(tmp_path))
    assert again.hidden and not model.hidden
    np.testing.assert_allclose(again(inputs()), model(inputs()), atol=1e-5)


def test_an_epsilon_that_a_format_does_not_hold_is_reported(tmp_path, caplog):
    for epsilon in (1e-12, 1e-5):
        assert "layer_norm_eps" not in caplog.text
        model = BertModel(BertConfig.from_dict({**CONFIG.to_dict(), "layer_norm_eps": epsilon}))
        model.save_pretrained(str(tmp_path / str(epsilon)), format="tf1")
    assert "format=tf1: layer_norm_eps is 1e-05" in caplog.text

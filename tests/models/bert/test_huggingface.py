"""Hugging Face's names, configurations and files, with their own model as the oracle if it is installed."""

import json
import re

import numpy as np
import pytest
import safetensors.numpy
from helpers.tiny import TINY_CONFIG

from bert_tf.models import huggingface, initialize, open_weights, pretrained, task_models
from bert_tf.models.config import BertConfig
from bert_tf.models.directory import config_files, read_config, read_model_files
from bert_tf.models.head_config import HeadConfig
from bert_tf.models.huggingface_layouts import LAYOUTS
from bert_tf.models.task_models import BertModel
from bert_tf.models.variable_names import expected_shapes
from bert_tf.text.wordpiece import FullTokenizer

LAYOUT = LAYOUTS["bert"]
HUGGINGFACE_CONFIG = {
    **TINY_CONFIG,
    "hidden_act": "gelu",
    "architectures": ["BertForPreTraining"],
    "model_type": "bert",
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
}


def write_directory(folder, *, prefix="bert.", heads=True, change=None, config=None):
    """One of their directories with random weights, which transformers reads: see the last tests."""
    generator = np.random.default_rng(0)
    tensors = {}
    for name, shape in expected_shapes(BertConfig.from_dict(TINY_CONFIG)).items():
        if not heads and name.startswith("cls/"):
            continue
        theirs = LAYOUT.name_of(name)
        theirs = prefix + theirs[5:] if theirs.startswith("bert.") else theirs
        shape = shape[::-1] if name.endswith("kernel") else shape
        tensors[theirs] = generator.normal(0, 0.1, shape).astype(np.float32)
    if change:
        change(tensors)
    folder.mkdir(exist_ok=True)
    safetensors.numpy.save_file(tensors, str(folder / "model.safetensors"), {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config or HUGGINGFACE_CONFIG))
    return tensors


@pytest.mark.parametrize("prefix", ["bert.", "", "module.bert."])
def test_encoder_with_and_without_prefix(tmp_path, prefix):
    tensors = write_directory(tmp_path / "model", prefix=prefix, heads=False)
    weights = open_weights.open_weights(str(tmp_path / "model"))
    assert weights.format == "huggingface"
    assert len(weights) == 5 + 16 * 2 + 2 == len(tensors)
    kernel = "bert/encoder/layer_1/intermediate/dense/kernel"
    theirs = tensors[prefix + "encoder.layer.1.intermediate.dense.weight"]
    assert weights.shapes[kernel] == (32, 64) and theirs.shape == (64, 32)
    np.testing.assert_array_equal(weights[kernel], theirs.T)
    np.testing.assert_array_equal(
        weights["bert/embeddings/word_embeddings"], tensors[prefix + "embeddings.word_embeddings.weight"]
    )


def test_old_files_with_gamma_a_tied_decoder_and_position_ids(tmp_path):
    def age(tensors):
        for name in [name for name in tensors if "LayerNorm" in name]:
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            tensors[old] = tensors.pop(name)
        tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].copy()
        tensors["bert.embeddings.position_ids"] = np.arange(32)[None]
        tensors["something.else"] = np.zeros(3, np.float32)

    write_directory(tmp_path / "model", change=age)
    weights = open_weights.open_weights(str(tmp_path / "model"))
    assert set(expected_shapes(BertConfig.from_dict(TINY_CONFIG))) == set(weights)
    assert weights.unused == {
        "bert.embeddings.position_ids": "a constant, 0 to max_position_embeddings",
        "cls.predictions.decoder.weight": "the same as bert.embeddings.word_embeddings.weight",
        "something.else": "not in BERT as the original has it",
    }


@pytest.mark.parametrize(
    ("name", "original"),
    [
        ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ],
)
def test_an_untied_decoder_is_refused_where_it_is_read(tmp_path, name, original):
    def untie(tensors):
        tensors[name] = tensors[original] + 1

    write_directory(tmp_path / "model", change=untie)
    weights = open_weights.open_weights(str(tmp_path / "model"))
    assert weights.unused[name] == f"trained apart from {original}"
    with pytest.raises(ValueError, match=rf"model\.safetensors: {re.escape(name)} is trained apart"):
        weights["cls/predictions/output_bias"]
    with pytest.raises(ValueError, match="is trained apart"):
        task_models.BertForMaskedLM.from_pretrained(str(tmp_path / "model"))
    encoder = BertModel.from_pretrained(str(tmp_path / "model"))
    np.testing.assert_array_equal(encoder.get_embedding_table(), weights["bert/embeddings/word_embeddings"])


def test_shards(tmp_path):
    tensors = write_directory(tmp_path / "whole")
    names = sorted(tensors)
    folder = tmp_path / "shards"
    folder.mkdir()
    files = {"model-00001-of-00002.safetensors": names[:20], "model-00002-of-00002.safetensors": names[20:]}
    for file, part in files.items():
        safetensors.numpy.save_file({name: tensors[name] for name in part}, str(folder / file))
    index = {"weight_map": {name: file for file, part in files.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(HUGGINGFACE_CONFIG))
    whole, shards = (open_weights.open_weights(str(tmp_path / name)) for name in ("whole", "shards"))
    assert list(whole) == list(shards)
    for name in whole:
        np.testing.assert_array_equal(whole[name], shards[name])
    outside = str(tmp_path / "whole" / "model.safetensors")
    for odd in ("../whole/model.safetensors", outside, "..", "", ["a"], None):
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {**index["weight_map"], "a": odd}})
        )
        with pytest.raises(
            ValueError, match=r"index\.json: weight_map names .*, which is no file of tensors in its folder"
        ):
            open_weights.open_weights(str(folder))
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model-00002-of-00002\.safetensors does not exist"):
        open_weights.open_weights(str(folder))


def test_activations_and_another_dropout_of_the_classifier(caplog):
    caplog.set_level("INFO")
    for value, act, ours in ((None, "gelu", "gelu_erf"), (0.1, "gelu_pytorch_tanh", "gelu"), (0.3, "relu", "relu")):
        changes = {"classifier_dropout": value, "hidden_act": act}
        config = huggingface.read_config({**HUGGINGFACE_CONFIG, **changes}, "config.json")
        assert config.hidden_act == ours
    told = [record.getMessage() for record in caplog.records if "dropout" in record.getMessage()]
    assert told == ["config.json: classifier_dropout=0.3 is not taken over; --classifier_dropout=0.3 has it."]


def test_config_both_ways(tmp_path):
    values = {
        **HUGGINGFACE_CONFIG,
        "layer_norm_eps": 1e-6,
        "pad_token_id": 3,
        "type_vocab_size": 4,
        "architectures": ["BertForTokenClassification"],
        "id2label": {"0": "O", "1": "B-PER"},
        "label2id": {"O": 0, "B-PER": 1},
        "transformers_version": "4.8.2",
        "use_cache": True,
    }
    config = huggingface.read_config(values, "config.json")
    assert (config.layer_norm_eps, config.pad_token_id, config.type_vocab_size) == (1e-6, 3, 4)
    head = huggingface.read_head(values, "config.json")
    assert head == HeadConfig("BertForTokenClassification", ("O", "B-PER"))
    # By way of the files of such a model as tf1 or bert_tf.
    for name, text in config_files(config, head).items():
        (tmp_path / name).write_text(text)
    files = read_model_files(str(tmp_path))
    assert (files.config, files.head) == (config, head)
    model = task_models.BertForTokenClassification(config, num_labels=2)
    model.build()
    back = huggingface.config_values(files.config, initialize.model_weights(model), files.head)
    assert {key: back[key] for key in values if key in back} == {key: values[key] for key in values if key in back}
    assert set(values) - set(back) == {"transformers_version", "use_cache"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "xlm-roberta"}, "model_type is 'xlm-roberta'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
        ({"hidden_act": "silu"}, "hidden_act='silu'"),
        ({"is_decoder": True}, "is_decoder=True"),
        ({"num_attention_heads": 5}, "num_attention_heads"),
    ],
)
def test_configs_that_are_no_bert(tmp_path, change, message):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**HUGGINGFACE_CONFIG, **change}))
    with pytest.raises(ValueError, match=message) as error:
        read_config(str(path))
    assert str(error.value).startswith(str(path))


# --- their own library as the oracle ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def transformers():
    pytest.importorskip("torch", reason="torch is not installed (requirements-dev.txt)")
    library = pytest.importorskip("transformers", reason="transformers is not installed (requirements-dev.txt)")
    library.logging.set_verbosity_error()
    return library


INPUTS = {
    "input_ids": np.random.default_rng(1).integers(1, 100, (3, 2, 11)),
    "input_mask": (np.arange(11) < np.array([11, 7, 4])[:, None])[:, None].repeat(2, 1).astype(np.int64),
    "segment_ids": (np.arange(11) > 5)[None, None].repeat(3, 0).repeat(2, 1).astype(np.int64),
}


@pytest.mark.parametrize("architecture", ["BertModel", *(f"BertFor{head}" for head in (
    "PreTraining", "MaskedLM", "NextSentencePrediction", "SequenceClassification", "QuestionAnswering",
    "TokenClassification", "MultipleChoice",
))])  # fmt: skip
def test_outputs_equal_transformers_and_round_trip(transformers, tmp_path, architecture):
    """Their model -> our model: the same outputs. -> their format: the same bytes, read by them."""
    import torch

    torch.manual_seed(0)
    sizes = {key: TINY_CONFIG[key] for key in TINY_CONFIG if "dropout" not in key}
    labels = 2 if architecture == "BertForQuestionAnswering" else 3
    config = transformers.BertConfig(**{**sizes, "num_labels": labels, "layer_norm_eps": 1e-7})
    their_class = getattr(transformers, architecture)
    theirs = their_class(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(0, 0.2)
    theirs.save_pretrained(tmp_path / "theirs")

    ours = pretrained.from_pretrained(getattr(task_models, architecture), str(tmp_path / "theirs"))
    choices = architecture == "BertForMultipleChoice"
    inputs = {name: value if choices else value[:, 0] for name, value in INPUTS.items()}
    names = ("input_ids", "attention_mask", "token_type_ids")
    arguments = {name: torch.tensor(value) for name, value in zip(names, inputs.values(), strict=True)}
    with torch.no_grad():
        expected = theirs(**arguments)
    if architecture == "BertForPreTraining":
        inputs["masked_lm_positions"] = np.arange(11)[None].repeat(3, 0)
    actual = ours(inputs)
    for name, reference in expected.items():
        np.testing.assert_allclose(getattr(actual, name), reference.numpy(), atol=2e-5, rtol=2e-5, err_msg=name)

    pretrained.save_pretrained(ours, str(tmp_path / "back"), format="huggingface")
    before = safetensors.numpy.load_file(tmp_path / "theirs" / "model.safetensors")
    after = safetensors.numpy.load_file(tmp_path / "back" / "model.safetensors")
    assert set(after) == set(before)
    for name in before:
        assert after[name].tobytes() == before[name].tobytes(), name
    again = their_class.from_pretrained(tmp_path / "back").eval()
    with torch.no_grad():
        outputs = again(**arguments)
    for name, reference in expected.items():
        np.testing.assert_allclose(outputs[name].numpy(), reference.numpy(), atol=1e-6)
    assert type(again.config) is transformers.BertConfig and again.config.hidden_act == "gelu"
    assert again.config.layer_norm_eps == 1e-7


def test_real_weights_on_real_sentences(transformers, shared, tmp_path):
    """Six pre-trained layers, 64 sentences of different lengths: sequence and pooled output within 2e-5."""
    import torch

    folder = shared / "weights" / "minilm-l6-h384"
    lines = (shared / "data" / "glue" / "CoLA" / "dev.tsv").read_text(encoding="utf-8").splitlines()[:64]
    sentences = [line.split("\t")[-1] for line in lines]
    tokenizer = FullTokenizer(str(folder / "vocab.txt"))
    rows = [[101, *ids, 102] for ids in tokenizer.encode_batch(sentences)]
    length = max(map(len, rows))
    ids = np.array([row + [0] * (length - len(row)) for row in rows])
    mask = (ids > 0).astype(np.int64)
    assert len(rows) == 64 and len(set(map(len, rows))) > 5

    theirs = transformers.BertModel.from_pretrained(folder).eval()
    with torch.no_grad():
        expected = theirs(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask))
    ours = BertModel.from_pretrained(str(folder))({"input_ids": ids, "input_mask": mask})
    difference = np.abs(np.asarray(ours["sequence_output"]) - expected[0].numpy())
    assert difference[mask == 1].max() < 2e-5, difference[mask == 1].max()
    # Positions of padding, which nothing reads, are badly conditioned in these weights: float64 is 5e-5 away from ours
    # and 7e-5 from theirs.
    assert difference.max() < 5e-4, difference.max()
    assert np.abs(np.asarray(ours["pooled_output"]) - expected[1].numpy()).max() < 2e-5

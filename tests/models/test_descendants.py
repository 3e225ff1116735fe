"""BERT's descendants: outputs of encoder and heads are those of transformers, and their files come back as they were.

Oracles: tests/golden/descendants, made with transformers 5.23 (random weights, 2 layers). All classes of a family have
one encoder there.
"""

import json
import shutil

import numpy as np
import pytest
import safetensors.numpy
from helpers.outputs import TOLERANCE, assert_close, in_training

from bert_tf.conversion import convert
from bert_tf.families import FAMILIES
from bert_tf.models import task_models
from bert_tf.models.electra import ElectraDiscriminator

CLASSES = {
    "masked_lm": task_models.BertForMaskedLM, "classifier": task_models.BertForSequenceClassification,
    "question_answering": task_models.BertForQuestionAnswering,
    "token_classifier": task_models.BertForTokenClassification, "multiple_choice": task_models.BertForMultipleChoice,
}  # fmt: skip
HAVE_PRETRAINING = ("electra", "albert")
NAMES = [family.model_type for family in FAMILIES if family.model_type != "bert"]


@pytest.fixture(params=NAMES)
def family(request):
    return request.param


@pytest.fixture
def directory(golden, tmp_path, family):
    """directory(kind): a directory of Hugging Face with the encoder and this head."""

    def make(kind: str) -> str:
        source, target = golden / "descendants" / family, tmp_path / "theirs" / kind
        target.mkdir(parents=True)
        tensors = safetensors.numpy.load_file(source / "encoder.safetensors")
        tensors |= safetensors.numpy.load_file(source / kind / "head.safetensors")
        safetensors.numpy.save_file(tensors, str(target / "model.safetensors"), {"format": "pt"})
        for file in [source / kind / "config.json", *source.glob("vocab.json"), *source.glob("merges.txt")]:
            shutil.copy(file, target)
        return str(target)

    return make


@pytest.fixture
def expected(golden, family):
    return dict(np.load(golden / "descendants" / family / "arrays.npz"))


def inputs_of(expected, kind="") -> dict:
    shape = (2, 3, -1) if kind == "multiple_choice" else expected["input_ids"].shape
    names = ("input_ids", "input_mask", "segment_ids")
    return {name: expected[name].reshape(shape) for name in names if name in expected}


def test_encoder_and_masked_lm(directory, expected):
    model = task_models.BertForMaskedLM.from_pretrained(directory("masked_lm"))
    mask = expected["input_mask"].astype(bool)
    outputs = model.encode(inputs_of(expected), return_all_layers=True)
    assert_close(outputs["embedding_output"], expected["embedding_output"], mask)
    assert_close(outputs["sequence_output"], expected["sequence_output"], mask)
    if model.config.has_pooler:
        assert_close(outputs["pooled_output"], expected["pooled_output"])
    else:
        np.testing.assert_array_equal(outputs["pooled_output"], outputs["sequence_output"][:, 0])
    assert_close(model(inputs_of(expected))[:3], expected["masked_lm_logits"], mask[:3])


def test_heads(directory, expected):
    mask = expected["input_mask"].astype(bool)
    names = {"classifier": "classifier_logits", "token_classifier": "token_logits", "multiple_choice": "choice_logits"}
    for kind, name in names.items():
        logits = CLASSES[kind].from_pretrained(directory(kind))(inputs_of(expected, kind))
        assert_close(logits, expected[name], mask if kind == "token_classifier" else slice(None))
    spans = task_models.BertForQuestionAnswering.from_pretrained(directory("question_answering"))(inputs_of(expected))
    for name in ("start_logits", "end_logits"):
        assert_close(spans[name], expected[name], mask)


def test_second_objective_of_pretraining(directory, expected, family):
    if family == "electra":
        model = ElectraDiscriminator.from_pretrained(directory("pretraining"))
        assert_close(model(inputs_of(expected)), expected["replaced_token_logits"], expected["input_mask"].astype(bool))
    elif family == "albert":
        model = task_models.BertForNextSentencePrediction.from_pretrained(directory("pretraining"))
        assert_close(model(inputs_of(expected)), expected["next_sentence_logits"])


@pytest.mark.parametrize("family", ["distilbert", "roberta"])
def test_positions_restart_in_packed_rows(directory, expected, family):
    """Two sequences in one row give what each gives alone; of a RoBERTa, padding is not counted."""
    encoder = task_models.BertModel.from_pretrained(directory("masked_lm"))
    first, second = np.array([[0, 9, 12, 2]]), np.array([[0, 30, 7, 8, 2]])
    packed = {"input_ids": np.concatenate([first, second], 1), "sequence_ids": np.array([[1] * 4 + [2] * 5])}
    packed |= {"position_ids": np.array([[*range(4), *range(5)]]), "pooled_positions": np.array([[0, 4]])}
    together = encoder(packed)
    alone = [encoder({"input_ids": ids}) for ids in (first, second)]
    for name, place in (("sequence_output", 0), ("pooled_output", slice(None))):
        expected = np.concatenate([np.asarray(outputs[name])[place] for outputs in alone])
        assert_close(together[name][0], expected)


def test_files_come_back_as_they_were(directory, tmp_path, family):
    for kind in [*CLASSES, *(["pretraining"] if family in HAVE_PRETRAINING else [])]:
        source = directory(kind)
        for number, format in enumerate(("bert_tf", "huggingface")):
            target = tmp_path / f"{kind}-{number}"
            convert.convert(source, str(target), format)
            source = str(target)
        old = safetensors.numpy.load_file(tmp_path / "theirs" / kind / "model.safetensors")
        new = safetensors.numpy.load_file(target / "model.safetensors")
        # transformers' classes for these have no pooler, which the oracles' encoder has.
        without = kind in ("masked_lm", "question_answering", "token_classifier") and family == "albert"
        assert old.keys() - new.keys() == ({"albert.pooler.weight", "albert.pooler.bias"} if without else set())
        for name, value in new.items():
            np.testing.assert_array_equal(value, old[name], err_msg=name)
        config = json.loads((target / "config.json").read_text())
        expected = json.loads((tmp_path / "theirs" / kind / "config.json").read_text())
        assert len(expected) - 14 < len(config.keys() & expected.keys())
        assert all(config[key] == value for key, value in expected.items() if key in config)


@pytest.mark.parametrize("family", ["distilbert", "roberta"])
def test_dropout_of_the_classifier(directory, expected, family, tmp_path):
    """Its places and rates: before the output layer, and in a RoBERTa before the hidden layer, too."""
    path = directory("classifier")
    file = tmp_path / "theirs" / "classifier" / "config.json"
    encoder = ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout")
    values = json.loads(file.read_text())
    file.write_text(json.dumps({key: 0.0 if key in encoder else value for key, value in values.items()}))
    model, inputs = CLASSES["classifier"].from_pretrained(path), inputs_of(expected)
    assert model.dropout_rate == {"distilbert": 0.2}.get(family, 0.1)
    assert model.config.hidden_layer_dropout == (family in ("roberta", "electra"))
    seeds = [np.array([1, seed], np.int32) for seed in range(2)]
    first, second = (np.asarray(in_training(model, inputs, seed)) for seed in seeds)
    assert np.abs(first - second).max() > 1e-3
    model.dropout_rate = 0.0
    without = np.asarray(in_training(model, inputs, seeds[0]))
    np.testing.assert_allclose(without, expected["classifier_logits"], atol=TOLERANCE)

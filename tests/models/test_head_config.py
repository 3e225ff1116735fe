"""head_config.json beside a model's configuration, and directories from before it existed."""

import json

import numpy as np
import pytest
from helpers.old_directories import make_old, numbered
from helpers.tiny import TINY_CONFIG

from bert_tf.conversion import convert
from bert_tf.models import directory as model_directory
from bert_tf.models import pretrained
from bert_tf.models.config import BertConfig
from bert_tf.models.directory import read_model_files
from bert_tf.models.head_config import NO_HEAD, HeadConfig
from bert_tf.models.task_models import BertForMultipleChoice, BertForSequenceClassification, BertForTokenClassification

CONFIG = BertConfig.from_dict({**TINY_CONFIG, "num_hidden_layers": 1})
IDS = {"input_ids": np.arange(1, 13).reshape(2, 6)}


# ---- the file --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "values"),
    [
        (HeadConfig("BertModel", ["no", "예"]), {"architecture": "BertModel", "labels": ["no", "예"]}),
        (HeadConfig(problem_type="regression"), {"problem_type": "regression"}),
        (NO_HEAD, {}),
    ],
)
def test_the_file_says_only_what_there_is_to_say(tmp_path, head, values):
    path = tmp_path / "head_config.json"
    path.write_text(head.to_json())
    assert json.loads(path.read_text()) == values
    assert HeadConfig.read(str(path)) == head


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"architecture": "AlbertForQuestionAnswering", "starts": 5}', "json: the joint head for questions is gone"),
        ('{"label": ["a"]}', "head_config.json: unknown key label. Known: architecture, labels, problem_type, hidden_"),
        ('{"lstm_on_top": true}', "head_config.json: a BiLSTM on top is gone: train BERT's own output layer"),
        ('{"features": "last", "size_on_top": 6}', "head_config.json: a model of frozen features on top is gone"),
        ('{"max_windows": 1000000000, "window_pooling": "max"}', "max_windows=1000000000 must be from 1 to 65,536"),
    ],
)
def test_damaged_files_are_named(tmp_path, text, problem):
    BertForSequenceClassification(CONFIG, labels=["a", "b"]).save_pretrained(str(tmp_path / "model"))
    (tmp_path / "model" / "head_config.json").write_text(text)
    for read in (BertForSequenceClassification.from_pretrained, pretrained.read_model):
        with pytest.raises(ValueError) as error:
            read(str(tmp_path / "model"))
        assert problem in str(error.value) and "\n" not in str(error.value)


def test_what_a_configuration_says():
    assert HeadConfig.from_config(TINY_CONFIG) == HeadConfig.from_config({"architectures": None}) == NO_HEAD
    assert HeadConfig.from_config({"id2label": {"10": "k", "0": "a"}}).labels == ("a", *"123456789", "k")
    assert HeadConfig.from_config({"problem_type": "regression"}).architecture == "BertForSequenceClassification"


def test_a_given_configuration_speaks_first(tmp_path):
    for name, labels in (("one", ["a", "b"]), ("other", ["x", "y"])):
        BertForSequenceClassification(CONFIG, labels=labels).save_pretrained(str(tmp_path / name))
    plain = tmp_path / "plain.json"
    CONFIG.save(str(plain))
    one, other = str(tmp_path / "one"), str(tmp_path / "other" / "bert_config.json")
    assert read_model_files(one).head.labels == ("a", "b")
    assert read_model_files(one, config_file=other).head.labels == ("x", "y")
    assert read_model_files(one, config_file=str(plain)).head.labels == ("a", "b")
    flags = {"vocab_file": __file__, "do_lower_case": True, "strip_accents": None}
    described = model_directory.describe(None, bert_config_file=other, **flags)
    assert described.head.labels == ("x", "y") and described.config == CONFIG


# ---- models ----------------------------------------------------------------------------------------------------------

OF_HEAD = {"num_labels": 2, "labels": ["a", "b"]}
MODELS = {
    "classifier": lambda: BertForSequenceClassification(CONFIG, labels=["a", "b"]),
    "regression": lambda: BertForSequenceClassification(CONFIG, 1),
    "several": lambda: BertForSequenceClassification(CONFIG, 2, "multi_label_classification"),
    "tagger": lambda: BertForTokenClassification(CONFIG, **OF_HEAD),
    "choice": lambda: BertForMultipleChoice(CONFIG),
}
# The keys that earlier versions kept in the configuration for each of them.
OLD_KEYS = {
    "classifier": {**numbered("a", "b"), "problem_type": "single_label_classification"},
    "regression": {"problem_type": "regression"},
    "several": {"problem_type": "multi_label_classification"},
    "tagger": {"architectures": ["BertForTokenClassification"], **numbered("a", "b")},
    "choice": {"architectures": ["BertForMultipleChoice"]},
}  # fmt: skip


def outputs_of(model):
    ids = {"input_ids": IDS["input_ids"][None]} if isinstance(model, BertForMultipleChoice) else IDS
    return np.asarray(model(ids, training=False))


def same_head(one: HeadConfig, other: HeadConfig) -> bool:
    """Compares heads; single_label_classification is the default problem type."""
    kinds = {head.problem_type or "single_label_classification" for head in (one, other)}
    return len(kinds) == 1 and {**one.to_dict(), "problem_type": 0} == {**other.to_dict(), "problem_type": 0}


@pytest.mark.parametrize("name", MODELS)
def test_directories_of_now_and_before(name, tmp_path):
    model, folder = MODELS[name](), tmp_path / "model"
    model.build()
    pretrained.save_pretrained(model, str(folder))
    assert json.loads((folder / "bert_config.json").read_text()) == model.config.to_dict()
    assert (folder / "bert_config.json").read_text() == model.config.to_json_string()
    assert not model.config.to_dict().keys() - TINY_CONFIG.keys()
    assert read_model_files(str(folder)).head == HeadConfig.read(str(folder / "head_config.json")) == model.head_config
    make_old(folder, **OLD_KEYS[name])
    files = read_model_files(str(folder))
    assert files.config == model.config
    expected = model.head_config
    assert same_head(files.head, expected)
    again = pretrained.from_pretrained(type(model), str(folder))
    assert same_head(again.head_config, expected) and again.config == model.config
    np.testing.assert_array_equal(outputs_of(again), outputs_of(model))
    pretrained.save_pretrained(again, str(folder), overwrite=True)
    assert same_head(HeadConfig.read(str(folder / "head_config.json")), expected)
    assert json.loads((folder / "bert_config.json").read_text()) == model.config.to_dict()


@pytest.mark.parametrize("name", MODELS)
def test_keras_configurations_of_before(name):
    model = MODELS[name]()
    expected = outputs_of(model)
    # Earlier, the configuration had everything, and there were fewer arguments.
    old = model.get_config()
    old["config"] |= OLD_KEYS[name]
    old = {key: value for key, value in old.items() if key not in ("labels",)}
    if name != "several":
        old.pop("problem_type", None)
    again = type(model).from_config(json.loads(json.dumps(old)))
    assert same_head(again.head_config, model.head_config) and again.config == model.config
    again.build()
    again.set_weights(model.get_weights())
    np.testing.assert_array_equal(outputs_of(again), expected)


def test_names_of_another_number_of_outputs_are_left_out(tmp_path, caplog):
    BertForSequenceClassification(CONFIG, 3).save_pretrained(str(tmp_path / "model"))
    make_old(tmp_path / "model", **numbered("a", "b"))
    model = BertForSequenceClassification.from_pretrained(str(tmp_path / "model"))
    assert model.labels is None and model.num_labels == 3
    assert "names 2 labels, but the model has 3 outputs" in caplog.text


# ---- conversions -----------------------------------------------------------------------------------------------------


def test_to_hugging_face_and_back(tmp_path):
    model = BertForSequenceClassification(CONFIG, problem_type="multi_label_classification", labels=["a", "b"])
    model.save_pretrained(str(tmp_path / "ours"))
    convert.convert(str(tmp_path / "ours"), str(tmp_path / "theirs"), "huggingface")
    theirs = json.loads((tmp_path / "theirs" / "config.json").read_text())
    expected = {**numbered("a", "b"), "problem_type": "multi_label_classification"}
    expected["architectures"] = ["BertForSequenceClassification"]
    assert expected.items() <= theirs.items() and "labels" not in theirs
    assert not (tmp_path / "theirs" / "head_config.json").exists()
    for format in ("bert_tf", "tf1"):
        convert.convert(str(tmp_path / "theirs"), str(tmp_path / format), format)
        assert HeadConfig.read(str(tmp_path / format / "head_config.json")) == model.head_config
        assert json.loads((tmp_path / format / "bert_config.json").read_text()) == CONFIG.to_dict()
        again = BertForSequenceClassification.from_pretrained(str(tmp_path / format))
        assert again.head_config == model.head_config
        np.testing.assert_array_equal(outputs_of(again), outputs_of(model))


def test_labels_are_named_as_they_look():
    assert HeadConfig(labels=("neg ", "\ufeffpos\u00a0", "\u1102\u1161")).labels == ("neg", "pos", "나")
    assert HeadConfig(labels=("neg", "neg ")).labels == ("neg", "neg ")  # of an earlier version, which told them apart

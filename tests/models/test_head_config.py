"""head_config.json beside a model's configuration, directories from before it existed, and output layers by names."""

import json
import pathlib
import unicodedata

import keras
import numpy as np
import pytest
from helpers.tiny import TINY_CONFIG

from bert_tf import BertConfig, BertForMultipleChoice, BertForSequenceClassification, BertForTokenClassification
from bert_tf.conversion import convert
from bert_tf.models import initialize, lora_file, task_models
from bert_tf.serving import export
from bert_tf.store.description import files_in, read_model_files
from bert_tf.store.head_config import HEAD_CONFIG, NO_HEAD, HeadConfig, difference, order_of, spelled_as
from bert_tf.store.open import open_for_script, open_model
from bert_tf.system.text_files import list_folder
from bert_tf.tasks.table import task_in
from bert_tf.training import run_directory
from bert_tf.training.settings import ModelSettings

CONFIG = BertConfig.from_dict({**TINY_CONFIG, "num_hidden_layers": 1})
IDS = {"input_ids": np.arange(1, 13).reshape(2, 6)}


def make_old(folder, **keys) -> None:
    """As before head_config.json: bert_config.json described the head, too, under Hugging Face's names."""
    path = pathlib.Path(folder) / "bert_config.json"
    (path.parent / "head_config.json").unlink(missing_ok=True)
    values = {**json.loads(path.read_text()), **keys}
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")


def numbered(*labels) -> dict:
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def test_names_can_be_read_in_all_files(tmp_path):
    """Not as \\uae0d; half a character, which UTF-8 can't hold, stays as JSON writes it."""
    model = BertForSequenceClassification(CONFIG, 2, labels=["긍정", "부정"])
    model.save_pretrained(str(tmp_path))
    convert.convert(str(tmp_path), str(tmp_path / "theirs"), "huggingface")
    export.write_description(str(tmp_path), {"labels": ["긍정", "\ud800"]})
    run_directory.Manifest(run_directory.EarlierRun(str(tmp_path)), {"labels": ["긍정"]}, []).record(resumed=False)
    for name in ("head_config.json", "theirs/config.json", "export.json", "run.json"):
        assert "긍정" in (text := (tmp_path / name).read_text(encoding="utf-8")), name
        assert name != "export.json" or json.loads(text) == {"labels": ["긍정", "\ud800"]}


@pytest.mark.parametrize(("text", "problem"), [
    ('{"architecture": "AlbertForQuestionAnswering", "starts": 5}', "json: the joint head for questions was removed"),
    ('{"label": ["a"]}', "head_config.json: unknown key label. Known: architecture, labels, problem_type, hidden_"),
    ('{"lstm_on_top": true}', "head_config.json: a BiLSTM on top was removed: train BERT's own output layer"),
    ('{"max_windows": 1000000000, "window_pooling": "max"}', "max_windows=1000000000 must be from 1 to 65,536"),
    ('{"labels": 5}', "head_config.json: a value in it"),
])  # fmt: skip
def test_damaged_files_are_named(tmp_path, text, problem):
    (tmp_path / "head_config.json").write_text(text)
    with pytest.raises(ValueError, match=problem):
        read_model_files(str(tmp_path))


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
    assert files_in(list_folder(one), config_file=other).head.labels == ("x", "y")
    assert files_in(list_folder(one), config_file=str(plain)).head.labels == ("a", "b")
    described = open_for_script(None, ModelSettings(bert_config_file=other, vocab_file=__file__, do_lower_case=True))
    assert described.head.labels == ("x", "y") and described.config == CONFIG


# A head, and the keys that earlier versions kept in the configuration for it.
MODELS = {
    "classifier": (lambda: BertForSequenceClassification(CONFIG, labels=["a", "b"]),
                   {**numbered("a", "b"), "problem_type": "single_label_classification"}),
    "regression": (lambda: BertForSequenceClassification(CONFIG, 1), {"problem_type": "regression"}),
    "several": (lambda: BertForSequenceClassification(CONFIG, 2, "multi_label_classification"),
                {"problem_type": "multi_label_classification"}),
    "tagger": (lambda: BertForTokenClassification(CONFIG, 2, labels=["a", "b"]),
               {"architectures": ["BertForTokenClassification"], **numbered("a", "b")}),
    "choice": (lambda: BertForMultipleChoice(CONFIG), {"architectures": ["BertForMultipleChoice"]}),
}  # fmt: skip


def outputs_of(model):
    ids = {"input_ids": IDS["input_ids"][None]} if isinstance(model, BertForMultipleChoice) else IDS
    return np.asarray(model(ids, training=False))


@pytest.mark.parametrize("name", MODELS)
def test_directories_and_keras_configurations_of_now_and_before(name, tmp_path):
    (create, old_keys), folder = MODELS[name], tmp_path / "model"
    model = create()
    expected = outputs_of(model)
    model.save_pretrained(str(folder))
    assert (folder / "bert_config.json").read_text() == model.config.to_json_string()
    assert read_model_files(str(folder)).head == HeadConfig.read(str(folder / "head_config.json")) == model.head_config
    make_old(folder, **old_keys)
    if name == "tagger":  # recognised by this file in all versions
        (folder / "token_classification.json").write_text("{}")
    tasks = {"regression": "regression", "tagger": "ner", "choice": "multiple_choice"}
    assert task_in(open_model(str(folder))) == tasks.get(name, "classification")
    # Earlier, the configuration had everything, and there were fewer arguments.
    old = {key: value for key, value in model.get_config().items() if key != "labels"}
    old["config"] = old["config"] | old_keys
    if name != "several":
        old.pop("problem_type", None)
    of_keras = type(model).from_config(json.loads(json.dumps(old)))
    of_keras.build()
    of_keras.set_weights(model.get_weights())
    for again in (type(model).from_pretrained(str(folder)), of_keras):
        assert (again.labels, again.objective, again.config) == (model.labels, model.objective, model.config)
        np.testing.assert_array_equal(outputs_of(again), expected)


def test_names_of_another_number_of_outputs_are_left_out(tmp_path, caplog):
    BertForSequenceClassification(CONFIG, 3).save_pretrained(str(tmp_path / "model"))
    make_old(tmp_path / "model", **numbered("a", "b"))
    model = BertForSequenceClassification.from_pretrained(str(tmp_path / "model"))
    assert model.labels is None and model.num_labels == 3
    assert "names 2 labels, but the model has 3 outputs" in caplog.text


def test_labels_are_named_as_they_look():
    assert HeadConfig(labels=("neg ", "\ufeffpos\u00a0", "\u1102\u1161")).labels == ("neg", "pos", "나")
    assert HeadConfig(labels=("neg", "neg ")).labels == ("neg", "neg ")  # of an earlier version, which told them apart


ROW = {"input_ids": np.array([[2, 7, 9, 3]]), "input_mask": np.ones((1, 4), np.int32)}


def probabilities(model, labels) -> np.ndarray:
    logits = np.asarray(model(ROW, training=False)).reshape(-1, model.num_labels).mean(0)
    return logits if labels is None else np.array([logits[model.labels.index(label)] for label in labels])


@pytest.fixture(params=[BertForSequenceClassification, BertForTokenClassification])
def saved(request, tmp_path):
    keras.utils.set_random_seed(1)
    model = request.param(CONFIG, num_labels=3, labels=["a", "b", "c"])
    model.build()
    model.head.trainable_variables[0].assign(np.random.default_rng(0).normal(size=(3, 32)))
    for format in ("bert_tf", "huggingface"):
        model.save_pretrained(str(tmp_path / format), format=format)
    return request.param, tmp_path, model


@pytest.mark.parametrize(("known", "wanted", "others", "order"), [
    (("a", "b"), ("a", "b"), (), None),
    (("a", "b", "c"), ("c", "a", "b"), (), [2, 0, 1]),
    (("ENTAILMENT", "neutral "), ("neutral", "entailment"), (), [1, 0]),
    (("Not\u00a0  entailment", "Entailment"), ("entailment", "not entailment"), (), [1, 0]),
    ((unicodedata.normalize("NFD", "긍정"), "부정"), ("부정", "긍정"), (), [1, 0]),
    (("A", "a"), ("a", "A"), (), [1, 0]),
    (("POSITIVE", "NEGATIVE"), ("0", "1"), ("negative", "positive"), [1, 0]),
    (("1", "0"), ("0", "1"), ("negative", "positive"), [1, 0]),
    (("LABEL_1", "LABEL_0"), ("LABEL_0", "LABEL_1"), (), None),
    (("LABEL_0", "LABEL_1"), ("b", "a"), (), None),
    (("b", "a"), ("LABEL_0", "LABEL_1"), (), None),
    (None, ("b", "a"), (), None),
])  # fmt: skip
def test_the_order(known, wanted, others, order):
    assert order_of(known, wanted, "model", "", others) == order


def test_spellings():
    assert spelled_as(["B-per", "x"], ["B-PER", "B-LOC"]) == ("B-PER", "x")
    assert spelled_as(["per"], ["PER", "Per"]) == ("per",)  # it could be either
    assert spelled_as(["per", "Per"], ["PER"]) == ("per", "Per")


def test_from_pretrained_puts_outputs_into_the_order_of_the_labels(saved):
    kind, folder, model = saved
    expected = probabilities(model, "abc")
    for format in ("bert_tf", "huggingface"):
        for labels in (["a", "b", "c"], ["c", "a", "b"], ["B", "c", "A"]):
            loaded = kind.from_pretrained(str(folder / format), labels=labels)
            assert loaded.labels == labels
            found = probabilities(loaded, ["aA"["A" in labels], "bB"["B" in labels], "c"])
            np.testing.assert_allclose(found, expected, atol=1e-6)
    loaded.save_pretrained(str(folder / "again"))
    assert json.loads((folder / "again" / HEAD_CONFIG).read_text())["labels"] == ["B", "c", "A"]
    again = kind.from_pretrained(str(folder / "again"))
    np.testing.assert_allclose(probabilities(again, ["A", "B", "c"]), expected, atol=1e-6)


def test_other_labels_need_a_new_head(saved):
    kind, folder, _ = saved
    path = str(folder / "bert_tf")
    spelled = difference(["False", "True"], ["false", "true"])
    assert spelled == "there they are spelled False, True, as --labels=False,True would"
    for labels, other in ((["a", "b", "d"], "only there c; only here d"), (["a", "b"], "c is missing here")):
        with pytest.raises(ValueError, match=f"bert_tf has other labels: {other}. new_head=True begins a new"):
            kind.from_pretrained(path, labels=labels)
    with pytest.raises(ValueError, match=r"bert_tf has 3 outputs, not 5\. new_head=True begins a new output layer"):
        kind.from_pretrained(path, num_labels=5)
    for arguments in ({"labels": ["d", "e"]}, {"num_labels": 3}):
        with pytest.warns(UserWarning, match="2 variables of Bert.* and are random: output_weights, output_bias"):
            new = kind.from_pretrained(path, new_head=True, **arguments)
        assert new.labels == arguments.get("labels")
        weights = new.head.trainable_variables[0].numpy()
        assert len(weights) == arguments.get("num_labels", 2) and np.abs(weights).max() < 0.1  # not the trained ones


def test_layers_of_other_tasks(saved):
    kind, folder, _ = saved
    other = {BertForSequenceClassification: BertForTokenClassification,
             BertForTokenClassification: BertForSequenceClassification}[kind]  # fmt: skip
    path = str(folder / "huggingface")
    with pytest.raises(ValueError, match=rf"huggingface is a {kind.__name__}, whose output layer is for another"):
        other.from_pretrained(path, num_labels=3)
    assert task_models.BertModel.from_pretrained(path).built  # whose head is of no interest
    with pytest.warns(UserWarning, match="output_weights"):
        assert task_models.BertForMultipleChoice.from_pretrained(path, new_head=True).num_labels == 1


def test_what_lora_has_trained_goes_to_the_labels_of_its_names(tmp_path):
    keras.utils.set_random_seed(2)
    encoder, generator = task_models.BertModel(CONFIG), np.random.default_rng(4)
    encoder.save_pretrained(str(tmp_path / "encoder"))
    trained = BertForSequenceClassification(CONFIG, labels=["a", "b", "c"])
    trained.bert.add_lora(2, 4.0, trained.reads_pooler)
    with pytest.warns(initialize.PartialLoadWarning):
        initialize.load_weights(trained, str(tmp_path / "encoder"))
    for variable in trained.trainable_variables:
        variable.assign(generator.normal(size=variable.shape))
    file = str(tmp_path / lora_file.FILE)
    lora_file.write_lora(file, trained)
    expected = probabilities(trained, "abc")

    def loaded(**arguments):
        with pytest.warns(initialize.PartialLoadWarning, match="output_weights"):
            model = BertForSequenceClassification.from_pretrained(str(tmp_path / "encoder"), **arguments)
        lora_file.load_lora(model, file)
        return model

    for arguments in ({"labels": ["a", "b", "c"]}, {"labels": ["c", "a", "b"]}, {"num_labels": 3}):
        model = loaded(**arguments)
        assert model.labels == arguments.get("labels", ["a", "b", "c"])
        np.testing.assert_allclose(probabilities(model, "abc"), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"lora\.safetensors has other labels: only there b; only here x"):
        loaded(labels=["a", "x", "c"])

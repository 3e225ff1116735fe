"""What weights lack is warned of; a model answers nothing until it is trained."""

import dataclasses
import json
import logging
import warnings

import keras
import numpy as np
import pytest
from helpers.every_model import ALBERT, CONFIG, ELECTRA
from helpers.slow import slow
from helpers.small_data import PIECES
from helpers.tiny import ONE_LAYER, TINY_CONFIG

import bert_tf
from bert_tf import BertConfig, FullTokenizer, PartialLoadWarning
from bert_tf.conversion.convert import convert
from bert_tf.models import initialize, task_models
from bert_tf.serving.export import create_served_model
from bert_tf.store import bundle
from bert_tf.store.open import open_model, open_weights
from bert_tf.store.tensor_files import open_safetensors, write_safetensors
from bert_tf.tasks.table import task_in
from bert_tf.training import checkpoints
from bert_tf.training.settings import FineTuningSettings
from bert_tf.training.starting_model import describe_model

POOLER = ("bert/pooler/dense/kernel", "bert/pooler/dense/bias")


def save(folder, kind=task_models.BertModel, without=(), config=ONE_LAYER, **arguments) -> str:
    """A random model's directory, whose weights lack some of the variables."""
    (folder.parent / "vocab.txt").write_text("".join(piece + "\n" for piece in PIECES))
    keras.utils.set_random_seed(0)
    model = kind(BertConfig.from_dict(config), **arguments)
    model.save_pretrained(str(folder), vocab_file=str(folder.parent / "vocab.txt"), do_lower_case=True)
    if without:
        variables = initialize.model_variables(model)
        assert set(without) <= set(variables)
        kept = {name: variable for name, variable in variables.items() if name not in without}
        file = str(folder / "bert_model.safetensors")
        write_safetensors(file, initialize.variables_as_weights("", kept), open_safetensors(file)[1])
    return str(folder)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> str:
    return save(tmp_path_factory.mktemp("partial") / "encoder")


def said(action) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    found = [one for one in caught if issubclass(one.category, PartialLoadWarning)]
    assert all(one.filename == __file__ for one in found)  # the user's line
    return [str(one.message) for one in found]


@pytest.mark.parametrize(("kind", "arguments", "new"), [
    (task_models.BertForSequenceClassification, {"labels": ["a", "b"]}, "output_weights, output_bias"),
    (task_models.BertForQuestionAnswering, {}, "cls/squad/output_weights, cls/squad/output_bias"),
    (task_models.BertForMaskedLM, {}, "cls/predictions/output_bias, cls/predictions/transform/dense/kernel, cls/pred"),
])  # fmt: skip
def test_a_new_head_is_warned_of(tmp_path, encoder, kind, arguments, new):
    [message] = said(lambda: kind.from_pretrained(encoder, **arguments))
    assert f"variables of {kind.__name__} are not in {encoder}/bert_model.safetensors and are random: {new}" in message
    assert "bert/pooler" not in message and message.endswith("Train it before you use it.")
    [of_load] = said(lambda: bert_tf.load_weights(kind(BertConfig.from_dict(ONE_LAYER), **arguments), encoder))
    assert of_load == message
    saved = save(tmp_path / "whole", kind, **arguments)
    assert not said(lambda: kind.from_pretrained(saved))


def test_a_pooler_counts_where_it_is_read(tmp_path):
    path = save(tmp_path / "encoder", without=POOLER)
    [message] = said(lambda: task_models.BertModel.from_pretrained(path))
    assert message.startswith("2 variables of BertModel are not in") and "bert/pooler/dense/kernel" in message
    [message] = said(lambda: task_models.BertForSequenceClassification.from_pretrained(path))
    assert message.startswith("4 variables") and "bert/pooler/dense/kernel" in message
    [message] = said(lambda: task_models.BertForTokenClassification.from_pretrained(path, num_labels=2))
    assert message.startswith("2 variables") and "bert/pooler" not in message
    whole = save(tmp_path / "tagger", task_models.BertForTokenClassification, without=POOLER, num_labels=2)
    assert not said(lambda: task_models.BertForTokenClassification.from_pretrained(whole))
    assert not said(lambda: bert_tf.Embedder(path)) and bert_tf.Embedder(path)("good").shape == (32,)


def test_a_part_of_the_encoder_that_is_not_used_is_warned_of(tmp_path):
    one, two = (save(tmp_path / name, config=config) for name, config in (("one", ONE_LAYER), ("two", TINY_CONFIG)))
    [message] = said(lambda: task_models.BertModel.from_pretrained(two, config=BertConfig.from_dict(ONE_LAYER)))
    assert message.startswith(f"16 variables of the encoder in {two}/bert_model.safetensors are not used by the model")
    assert "bert/encoder/layer_1/attention" in message
    [message] = said(lambda: task_models.BertModel.from_pretrained(one, config=BertConfig.from_dict(TINY_CONFIG)))
    assert message.startswith("16 variables of BertModel are not in") and "bert/encoder/layer_1/" in message


def test_fill_mask_wants_a_trained_head(tmp_path, encoder):
    tokenizer = FullTokenizer.from_pretrained(encoder)
    for kind in (task_models.BertForMaskedLM, task_models.BertForPreTraining):
        with pytest.warns(PartialLoadWarning, match="cls/predictions/transform/dense/kernel"):
            model = kind.from_pretrained(encoder)
        message = r"variables of BertFor\w+ are still random, .*: cls/predictions/output_bias, cls/predictions/trans"
        with pytest.raises(ValueError, match=message):
            bert_tf.fill_mask(model, tokenizer, ["good [MASK]"])
        with pytest.raises(ValueError, match="are still random"):
            model.export(str(tmp_path / "exported"))
    for variable in model.trainable_variables:  # as training does
        variable.assign(variable + 1e-3)
    assert len(bert_tf.fill_mask(model, tokenizer, ["good [MASK]"])[0][0]) == 5
    # A model without next-sentence head guesses as well.
    masked = save(tmp_path / "masked", task_models.BertForMaskedLM)
    with pytest.warns(PartialLoadWarning, match="2 variables of BertForPreTraining .*cls/seq_relationship/output_bias"):
        model = task_models.BertForPreTraining.from_pretrained(masked)
    assert bert_tf.fill_mask(model, tokenizer, ["good [MASK]"])


@pytest.mark.parametrize(("answerer", "kind", "missing", "arguments"), [
    (bert_tf.Predictor, task_models.BertForSequenceClassification, POOLER, {"labels": ["a", "b"]}),
    (bert_tf.QuestionAnswerer, task_models.BertForQuestionAnswering, ["cls/squad/output_bias"], {}),
    (bert_tf.Tagger, task_models.BertForTokenClassification, ["output_bias"], {"num_labels": 1, "labels": ["O"]}),
    (bert_tf.ChoicePredictor, task_models.BertForMultipleChoice, POOLER, {}),
])  # fmt: skip
def test_random_weights_answer_nothing(tmp_path, answerer, kind, missing, arguments):
    path = save(tmp_path / "model", kind, without=missing, **arguments)
    message = rf"lacks {len(missing)} of the model's variables, so that its answers would be random: {missing[0]}"
    for action in (answerer, lambda path: create_served_model(path, task_in(open_model(path)))):
        with pytest.raises(ValueError, match=message):
            assert not said(lambda action=action: action(path))
    assert not said(lambda: answerer(save(tmp_path / "whole", kind, **arguments)))


@pytest.mark.parametrize("format", ["bert_tf", *slow("huggingface")])
def test_a_head_that_was_saved_untrained_stays_untrained(tmp_path, encoder, format):
    with pytest.warns(PartialLoadWarning):
        model = task_models.BertForSequenceClassification.from_pretrained(encoder, labels=["a", "b"])
    path = str(tmp_path / "saved")
    model.save_pretrained(path, format=format)
    with pytest.raises(ValueError, match="holds, but untrained, 2 of the model's variables, .*: output_weights"):
        bert_tf.Predictor(path)
    with pytest.warns(PartialLoadWarning, match="2 variables of BertForSequenceClassification are untrained in .*"):
        model = task_models.BertForSequenceClassification.from_pretrained(path)
    for variable in model.head.weights:
        variable.assign(variable + 1)
    model.save_pretrained(path, format=format, overwrite=True)
    assert not said(lambda: bert_tf.Predictor(path))


def test_a_run_takes_no_layers_that_are_not_there_and_no_head_that_was_saved_untrained(tmp_path, encoder, caplog):
    with pytest.warns(PartialLoadWarning):
        model = task_models.BertForSequenceClassification.from_pretrained(encoder, labels=["a", "b"])
    model.save_pretrained(str(tmp_path / "saved"))
    run = FineTuningSettings(output_dir="out", do_eval=True, init_checkpoint=str(tmp_path / "saved"), max_seq_length=16)
    with pytest.raises(ValueError, match=r"--init_checkpoint: the output layer \(output_weights\) was saved untrained"):
        describe_model(run, None, "output_weights")
    run = dataclasses.replace(run, do_train=True)
    assert describe_model(run, None, "output_weights")[0].head.untrained == ()
    file = tmp_path / "saved" / "bert_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "num_hidden_layers": 2}))
    with pytest.raises(ValueError, match="--init_checkpoint: .*num_hidden_layers is 2, but they have 1 layers"):
        describe_model(run, None, "output_weights")
    deep = save(tmp_path / "deep", config={**ONE_LAYER, "num_hidden_layers": 3})
    BertConfig.from_dict(ONE_LAYER).save(f"{deep}/bert_config.json")
    describe_model(dataclasses.replace(run, init_checkpoint=deep), None, "output_weights")
    assert f"num_hidden_layers is 1, but the weights of {deep}/bert_model.safetensors have 3 layers" in caplog.text


def test_a_run_that_only_evaluates_needs_trained_weights(tmp_path, encoder, caplog):
    """`checkpoints.restore`, which all training scripts call; with an optimizer they train what is new, and log it."""
    caplog.set_level(logging.INFO, logger="absl")
    model = task_models.BertForPreTraining(BertConfig.from_dict(ONE_LAYER))
    model.build()
    with pytest.raises(ValueError, match=r"lacks 7 of the model's variables.*cls/predictions"):
        checkpoints.restore(model, None, str(tmp_path / "out"), encoder)
    masked = save(tmp_path / "masked", task_models.BertForMaskedLM)
    with pytest.raises(ValueError, match=r"lacks 2 of the model's variables.*cls/seq_relationship"):
        checkpoints.restore(model, None, str(tmp_path / "out"), masked)
    assert checkpoints.restore(model, None, str(tmp_path / "out"), masked, unread=("cls/seq_relationship/",)) == 0
    optimizer = bert_tf.AdamWeightDecay(1e-3)
    optimizer.build(model.trainable_variables)
    caplog.clear()
    assert not said(lambda: checkpoints.restore(model, optimizer, str(tmp_path / "out"), encoder))
    [line] = [one for one in caplog.records if "keep their random initial values" in one.getMessage()]
    assert line.levelno == logging.INFO


@pytest.mark.parametrize("config", [CONFIG, ALBERT, ELECTRA], ids=lambda config: config.title)
def test_what_other_optimizers_keep_is_left_out(tmp_path, config):
    """Of a TF1 checkpoint with Adam's, Momentum's and LAMB's values, and an average of each variable."""
    folder, slots = tmp_path / "model", ("Adam", "Adam_1", "Momentum", "lamb_m", "ExponentialMovingAverage")
    task_models.BertModel(config).save_pretrained(str(folder), format="tf1")
    prefix, before = str(folder / "bert_model.ckpt"), open_weights(str(folder))
    values = {name: before.read(name) for name in before}
    stored = {before.origins[name]: values[name] for name in values}
    others = {f"{name}/{slot}": 0 * value for name, value in stored.items() for slot in slots}
    bundle.write_bundle(prefix, {**stored, **others, "beta1_power": np.float32(0.9)})
    weights = open_weights(prefix)
    assert set(weights) == {*values, "beta1_power"} and weights.unused == dict.fromkeys(others, "of an optimizer")
    assert all((weights[name] == values[name]).all() for name in values)
    assert said(lambda: task_models.BertModel.from_pretrained(str(folder))) == []
    convert(str(folder), str(tmp_path / "there"), "huggingface")  # checks names and shapes, too

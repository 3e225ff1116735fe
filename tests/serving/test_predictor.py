"""How predictors compute: in one graph, for batches of any size and length, by several threads."""

import concurrent.futures
import json
import pathlib
import shutil

import keras
import numpy as np
import pytest
from helpers.small_data import PIECES
from helpers.tiny import write_encoder

from bert_tf import (
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    ChoicePredictor,
    FullTokenizer,
    Predictor,
    QuestionAnswerer,
    Tagger,
)


@pytest.fixture(scope="module")
def predictor(tmp_path_factory):
    folder = tmp_path_factory.mktemp("predictor")
    write_encoder(folder, PIECES)
    keras.utils.set_random_seed(1)
    model = BertForSequenceClassification.from_pretrained(str(folder / "encoder"), labels=["down", "up"])
    for variable in model.head.weights:  # as if it were trained
        variable.assign(variable + 1)
    model.save_pretrained(str(folder / "model"))
    return Predictor(str(folder / "model"), batch_size=4)


def test_paths_are_paths(predictor, tmp_path):
    path = pathlib.Path(predictor.path)
    np.testing.assert_allclose(Predictor(path).logits(TEXTS), predictor.logits(TEXTS), atol=1e-5)
    model, tokenizer = BertForSequenceClassification.from_pretrained(path), FullTokenizer(path / "vocab.txt")
    assert tokenizer.vocab == FullTokenizer.from_pretrained(path).vocab
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    assert (tmp_path / "model" / "bert_config.json").exists() and (tmp_path / "tokenizer" / "vocab.txt").exists()


TEXTS = [" ".join(["good", "w1", "bad", "w2"][: 1 + number % 4] * (1 + number % 3)) for number in range(11)]


def test_one_graph_answers_texts_of_all_lengths(predictor):
    found = predictor.logits([*TEXTS, ("good", "bad w1")])
    np.testing.assert_allclose(predictor.logits(TEXTS[:1]), found[:1], atol=1e-6)
    assert predictor._graph.experimental_get_tracing_count() == 1
    for text, logits in zip(TEXTS, found, strict=False):  # operation by operation
        expected = predictor.model(predictor.tokenizer([text]), training=False)
        np.testing.assert_allclose(logits, np.asarray(expected)[0], atol=1e-5)


def test_weights_that_change_count(predictor):
    before, more = predictor.logits(TEXTS[:2]), np.array([1.0, 3.0], np.float32)
    bias = predictor.model.trainable_variables[-1]
    old = bias.numpy()
    bias.assign(old + more)
    np.testing.assert_allclose(predictor.logits(TEXTS[:2]), before + more, atol=1e-5)
    bias.assign(old)


def test_threads_get_what_is_theirs(predictor):
    expected = [predictor.logits([text]) for text in TEXTS]
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda text: predictor.logits([text]), TEXTS * 3))
    for number, logits in enumerate(found):
        np.testing.assert_allclose(logits, expected[number % len(TEXTS)], atol=1e-6)


def test_what_is_lost_of_texts_is_told_once(predictor, caplog):
    for length in (6, 7):
        Predictor(predictor.path, max_seq_length=length).predict(["good " * 20, "bad", ""])
    assert [record.message.split(" (")[0] for record in caplog.records] == [
        "Longer than the maximum sequence length, 6 tokens, of which the last are lost: 1 of 3 examples.",
        "A text without any token",
    ]


# --- mistakes --------------------------------------------------------------------------------------------------------


def test_a_pair_for_a_model_of_single_texts_is_told_once(predictor, tmp_path, caplog):
    folder = shutil.copytree(predictor.path, tmp_path / "model")
    for run, told in (({"text_b": None}, 1), ({"text_b": "other"}, 0), (None, 0)):
        caplog.clear()
        (folder / "run.json").write_text(json.dumps({"task_name": "custom", **run}) if run else "{")
        opened = Predictor(str(folder))
        assert opened("good") and opened("good", "bad") and opened("good", "bad")
        assert caplog.text.count("model was trained on one text an example, and is given two") == told


@pytest.mark.parametrize(("arguments", "message"), [
    ({"max_seq_length": "128"}, "max_seq_length must be a whole number, not '128'"),
    ({"batch_size": "8"}, "batch_size must be a whole number, not '8'"),
    ({"batch_size": 0}, "batch_size=0 must be at least 1"),
    ({"trust": "no"}, "trust must be True or False, not 'no'"),
])  # fmt: skip
def test_arguments_of_another_kind(predictor, arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Predictor(predictor.path, **arguments)


def test_a_model_of_another_task_names_who_answers_with_it(predictor, tmp_path):
    models = {"Predictor": predictor.path}
    no_layer = r"has no output layer for \w+ \(\S*output_weights\): fine-tune it first \(run_"
    for model_class, answerer, arguments in [
        (BertForQuestionAnswering, "QuestionAnswerer", {}),
        (BertForTokenClassification, "Tagger", {"num_labels": 2, "labels": ["O", "B-PER"]}),
        (BertForMultipleChoice, "ChoicePredictor", {}),
        (BertForMaskedLM, None, {}),
    ]:
        model = model_class(predictor.model.config, **arguments)
        models[answerer] = str(tmp_path / model_class.__name__)
        model.save_pretrained(models[answerer], vocab_file=f"{predictor.path}/vocab.txt", do_lower_case=True)
    for kind in (Predictor, QuestionAnswerer, Tagger, ChoicePredictor):
        for answerer, path in models.items():
            if answerer != kind.__name__:
                with pytest.raises(ValueError, match=f": use {answerer}.$" if answerer else no_layer):
                    kind(path)

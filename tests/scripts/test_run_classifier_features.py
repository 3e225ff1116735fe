"""run_classifier.py --features: a BiLSTM or a CNN on a frozen BERT."""

import json

import numpy as np
import pytest
import tensorflow as tf
from helpers.script_cases import kill_at_checkpoint, results_of, run_cases, selected_cases, weights_of
from helpers.tiny import write_encoder

from bert_tf import Predictor
from bert_tf.serving import export

pytestmark = pytest.mark.slow  # in small: models/test_feature_based.py

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", *(f"w{number}" for number in range(93))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("features")
    write_encoder(folder, PIECES)
    for seed, (name, count) in enumerate((("train", 64), ("dev", 20), ("test", 7))):
        generator, lines = np.random.default_rng(seed), ["text,verdict,stars"]
        for number in range(count):
            words = [f"w{word}" for word in generator.integers(0, 93, generator.integers(2, 9))]
            words.insert(int(generator.integers(len(words) + 1)), ("good", "bad")[number % 2])
            lines.append(f"{' '.join(words)},{('up', 'down')[number % 2]},{number % 2 + 0.5}")
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return folder


def cases_of(folder) -> dict:
    """Case -> flags, in the order in which they run; later cases build on earlier ones."""
    out = folder / "out"
    columns = {"task_name": "custom", "text_a": "text", "label": "verdict", "max_seq_length": 16}
    short = {
        "train_file": folder / "train.csv", "dev_file": folder / "dev.csv", "do_train": True, "do_eval": True,
        "train_batch_size": 8, "num_train_epochs": 4, "seed": 3, "deterministic": True, "write_tf_records": False,
    }  # fmt: skip
    train = {**columns, **short, "init_checkpoint": folder / "encoder", "features": "last", "hidden_size": 30}
    fast = {**train, "learning_rate": 1e-2}
    long = {"keep_checkpoint_max": 2, "num_train_epochs": 20}
    predict = {**columns, "do_predict": True, "test_file": folder / "test.csv", "write_tf_records": False}
    used = {**predict, "init_checkpoint": out / "cnn" / "best_model"}
    return {
        "cnn": {**fast, "num_train_epochs": 6, "model_on_top": "cnn", "do_predict": True, "use_best_model": True,
                "test_file": folder / "test.csv"},
        "cnn used": {**used, "predict_batch_size": 3},
        "numbers": {
            **fast, "label": "stars", "regression": True, "model_on_top": "bilstm", "num_train_epochs": 10,
        },
        "default rate": {**train, "num_train_epochs": 1},
        "kept": {**train, **long},
        "killed": {**train, **long, "save_checkpoints_steps": 5, "iterations_per_loop": 1},
        "all of it": {**columns, **short, "init_checkpoint": out / "cnn" / "best_model", "num_train_epochs": 1},
        # --- refused
        "other layers": {**used, "features": "sum_all"},
        "other model": {**used, "model_on_top": "bilstm"},
        "other size": {**used, "hidden_size": 33},
        "not resumed as that": {**train, "model_on_top": "bilstm", "output_dir": out / "cnn"},
        "random": {**predict, "init_checkpoint": folder / "encoder", "features": "last"},
        "no features": {**predict, "init_checkpoint": folder / "encoder", "model_on_top": "cnn"},
        "too few layers": {**train, "features": "concat_last_four"},
        "odd": {**train, "hidden_size": 31},
        "recomputed": {**train, "recompute": True},
        "without BERT": {
            key: value for key, value in {**train, "model": "cnn", "model_on_top": "cnn"}.items() if key != "features"
        },
    }  # fmt: skip


SLOW = {"default rate", "kept", "killed", "all of it"}


@pytest.fixture(scope="module")
def ran(request, folder):
    """Output folder, outcomes by case, and what each wrote to stderr."""
    cases = selected_cases(request, cases_of(folder), SLOW)
    cases = {name: {"output_dir": folder / "out" / name, **values} for name, values in cases.items()}
    if "killed" in cases:
        left = kill_at_checkpoint("run_classifier", cases["killed"], step=10)
        assert left and "model.ckpt-160.index" not in left, "too late to test anything"
    return folder / "out", *run_cases("run_classifier", cases)


def assert_frozen(folder, path):
    weights, start = weights_of(path), weights_of(folder / "encoder")
    for name, value in start.items():
        np.testing.assert_array_equal(weights[name], value, err_msg=name)
    return weights


def test_they_learn_on_a_frozen_bert(ran, folder):
    out, outcomes, _ = ran
    assert outcomes["cnn"] == "done" and results_of(out / "cnn")["eval_accuracy"] >= 0.9
    for path in (out / "cnn", out / "cnn" / "best_model"):
        weights = assert_frozen(folder, path)
        assert weights["feature_classifier/output_weights"].shape == (2, 30)
    head = json.loads((out / "cnn" / "best_model" / "head_config.json").read_text())
    assert head == {
        "architecture": "BertForSequenceClassification", "labels": ["down", "up"], "features": "last",
        "problem_type": "single_label_classification", "model_on_top": "cnn", "size_on_top": 30,
    }  # fmt: skip


def test_a_regression_learns(ran, folder):
    out, outcomes, _ = ran
    assert outcomes["numbers"] == "done" and results_of(out / "numbers")["eval_pearson"] > 0.5
    assert_frozen(folder, out / "numbers")
    predictor = Predictor(str(out / "numbers" / "best_model"))
    good, bad = (predictor(text)["score"] for text in ("w1 good w2", "w1 bad w2"))
    assert good < bad


def test_the_saved_model_answers_everywhere_alike(ran, folder, tmp_path):
    out, outcomes, _ = ran
    assert outcomes["cnn used"] == "done"
    files = [(out / case / "test_results.tsv").read_text() for case in ("cnn", "cnn used")]
    probabilities = [np.array([line.split("\t") for line in text.splitlines()], float) for text in files]
    np.testing.assert_allclose(*probabilities, atol=1e-6)
    texts = [line.split(",")[0] for line in (folder / "test.csv").read_text().splitlines()[1:]]
    best = str(out / "cnn" / "best_model")
    predictions = Predictor(best).predict(texts)
    found = [list(prediction["probabilities"].values()) for prediction in predictions]
    np.testing.assert_allclose(found, probabilities[0], atol=1e-5)
    path = export.export_saved_model(best, str(tmp_path / "exported"))
    loaded = tf.saved_model.load(path).signatures["serving_default"]
    np.testing.assert_allclose(loaded(text=tf.constant(texts))["probabilities"], found, atol=1e-5)


@pytest.mark.slow
def test_a_killed_run_resumes_bit_for_bit(ran, folder):
    out, outcomes, logs = ran
    assert outcomes["kept"] == outcomes["killed"] == "done" and "Resuming at step " in logs["killed"]
    one, other = (weights_of(out / case / "model.ckpt-160") for case in ("kept", "killed"))
    assert one.keys() == other.keys() and any("adam_m" in name for name in one)
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)
    assert_frozen(folder, out / "kept")


@pytest.mark.slow
def test_the_learning_rate_and_what_further_training_does(ran, folder):
    out, outcomes, logs = ran
    assert outcomes["default rate"] == outcomes["all of it"] == "done"
    assert "--learning_rate=0.001, the default where BERT is not trained" in logs["default rate"]
    weights, start = weights_of(out / "all of it"), weights_of(folder / "encoder")
    assert "output_weights" in weights and not any(name.startswith("feature_") for name in weights)
    name = "bert/encoder/layer_0/attention/self/value/kernel"
    assert np.abs(weights[name] - start[name]).max() > 1e-6


REFUSED = {
    "other layers": ["--features=sum_all contradicts ", "/cnn/best_model, which was trained with last."],
    "other model": ["--model_on_top=bilstm contradicts ", "which was trained with cnn."],
    "other size": ["--hidden_size=33 contradicts ", "which was trained with 30."],
    "not resumed as that": ["--model_on_top=bilstm contradicts ", "which was trained with cnn."],
    "random": ["--features=last contradicts ", "/encoder, which was trained without it."],
    "no features": ["--model_on_top=cnn is for --features, and this is another model."],
    "too few layers": ["features=concat_last_four needs 4 layers, but the model has 1."],
    "odd": ["--hidden_size=31 must be a multiple of 2 for --model_on_top=bilstm."],
    "recomputed": ["--recompute is for models whose BERT is trained; here it is frozen"],
    "without BERT": ["--model_on_top is for the feature-based way"],
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_line(ran, case):
    out, outcomes, _ = ran
    assert outcomes[case].startswith("ValueError: ") and "\n" not in outcomes[case], outcomes[case]
    for part in REFUSED[case]:
        assert part in outcomes[case], outcomes[case]
    assert not (out / case).exists()

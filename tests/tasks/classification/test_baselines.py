"""Classifiers without BERT: their numbers, and run_classifier.py --model=bilstm|cnn."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.dropped import in_training
from helpers.script_cases import assert_in_order, results_of, run_cases
from helpers.slow import slow
from helpers.tiny import ONE_LAYER

from bert_tf.models import initialize, open_weights
from bert_tf.models.baselines import BaselineClassifier, create_config
from bert_tf.models.config import BertConfig
from bert_tf.models.head_config import HeadConfig
from bert_tf.models.task_models import BertForSequenceClassification

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", *(f"w{number}" for number in range(93))]
IDS = np.array([[2, 7, 9, 8, 3, 11, 3], [2, 5, 3, 0, 0, 0, 0]])
MASK = (IDS > 0).astype(np.int32)
SEGMENTS = np.array([[0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0, 0]])
BATCH = {"input_ids": IDS, "input_mask": MASK, "segment_ids": SEGMENTS}


def make(kind, num_labels=3, seed=0, **arguments):
    keras.utils.set_random_seed(seed)
    model = BaselineClassifier(create_config(kind, 20, embedding_size=5, hidden_size=12), num_labels, kind, **arguments)
    model.build()
    for variable in model.trainable_variables:  # biases start at zero, which would hide a missing one
        variable.assign(np.random.default_rng(len(variable.path)).normal(0, 0.5, variable.shape))
    return model, {name: variable.numpy() for name, variable in initialize.model_variables(model).items()}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(x, weights, name):
    """[S, E] -> [S, U / 2]; gates in the order input, forget, cell, output."""
    kernel, recurrent, bias = (
        weights[f"bilstm/{name}/lstm_cell/{part}"] for part in ("kernel", "recurrent_kernel", "bias")
    )
    hidden = cell = np.zeros(recurrent.shape[0])
    outputs = []
    for row in x:
        into, forget, new, out = np.split(row @ kernel + hidden @ recurrent + bias, 4)
        cell = sigmoid(forget) * cell + sigmoid(into) * np.tanh(new)
        hidden = sigmoid(out) * np.tanh(cell)
        outputs.append(hidden)
    return np.array(outputs)


def convolve(x, weights, width):
    """[S, E] -> [S, filters], with zeros around the row."""
    kernel, bias = weights[f"convolution_{width}/kernel"], weights[f"convolution_{width}/bias"]
    before = (width - 1) // 2
    padded = np.pad(x, ((before, width - 1 - before), (0, 0)))
    rows = [np.tensordot(padded[k : k + width], kernel, 2) for k in range(len(x))]
    return np.maximum(np.array(rows) + bias, 0)


@pytest.mark.parametrize("kind", ["bilstm", "cnn"])
def test_logits_are_those_of_plain_loops(kind):
    """Each row alone, without its padding."""
    model, weights = make(kind)
    logits = model(BATCH).numpy()
    for row, (ids, segments) in enumerate(((IDS[0], SEGMENTS[0]), (IDS[1, :3], SEGMENTS[1, :3]))):
        x = weights["word_embeddings"][ids] + weights["token_type_embeddings"][segments]
        if kind == "bilstm":
            outputs = [lstm(x, weights, "forward_lstm"), lstm(x[::-1], weights, "backward_lstm")[::-1]]
        else:
            outputs = [convolve(x, weights, width) for width in (3, 4, 5)]
        pooled = np.concatenate(outputs, -1).max(0)
        expected = weights["baseline/output_weights"] @ pooled + weights["baseline/output_bias"]
        np.testing.assert_allclose(logits[row], expected, atol=1e-5)
    np.testing.assert_allclose(model({"input_ids": IDS[:1], "segment_ids": SEGMENTS[:1]}), logits[:1], atol=1e-5)


@pytest.mark.parametrize("kind", ["bilstm", "cnn"])
def test_training(kind):
    model, _ = make(kind)
    features = {name: tf.constant(value) for name, value in BATCH.items()} | {"label_ids": tf.constant([2, 0])}
    seed = tf.constant([1, 2])
    first, again = (in_training(model, features, seed) for _ in range(2))
    other = in_training(model, features, [1, 3])
    assert np.array_equal(first, again) and not np.allclose(first, other) and not np.allclose(first, model(features))
    with tf.GradientTape() as tape:
        sums = model.objective.sums(in_training(model, features, seed), features)
        loss = model.objective.loss(sums, model.objective.totals(features))
    gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
    for gradient, variable in zip(gradients, model.trainable_variables, strict=True):
        assert np.abs(tf.convert_to_tensor(gradient)).max() > 0, variable.path
    # In bfloat16 the numbers are similar, and logits stay in float32.
    low, _ = make(kind, dtype="mixed_bfloat16")
    assert low(BATCH).dtype == "float32"
    np.testing.assert_allclose(low(BATCH), model(BATCH), atol=0.1)


def test_flops():
    length, size, units = 7, 5, 12
    gates = 4 * units // 2
    assert make("bilstm")[0].flops_per_example(length) == 2 * length * 2 * (size * gates + units // 2 * gates)
    assert make("cnn")[0].flops_per_example(length) == 2 * length * size * 4 * (3 + 4 + 5)


def test_saved_and_loaded(tmp_path):
    model, _ = make("cnn")
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(BATCH), model(BATCH), atol=1e-6)


@pytest.mark.parametrize(
    ("model", "size", "message"),
    [
        ("gru", 12, "--model=gru is not one of bilstm, cnn"),
        ("bilstm", 7, "--hidden_size=7 must be a multiple of 2"),
        ("cnn", 8, "--hidden_size=8 must be a multiple of 3 for --model=cnn"),
    ],
)
def test_refused_sizes(model, size, message):
    with pytest.raises(ValueError, match=message):
        create_config(model, 20, hidden_size=size)
    for arguments, problem in (
        ({}, "kind=None is not one of bilstm, cnn"),
        ({"kind": "bert"}, "kind='bert' is not one of bilstm, cnn"),
        ({"kind": "cnn", "problem_type": "ranking"}, "problem_type must be one of .*, not 'ranking'"),
        ({"kind": "cnn", "labels": ["a"]}, "num_labels=2, but labels has 1 names"),
    ):
        with pytest.raises(ValueError, match=problem):
            BaselineClassifier(create_config("cnn", 20, hidden_size=9), 2, **arguments)


# --- run_classifier.py -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("baseline")
    (folder / "vocab.txt").write_text("".join(piece + "\n" for piece in PIECES))
    bert = BertForSequenceClassification(BertConfig.from_dict(ONE_LAYER), 2)
    bert.build()
    bert.save_pretrained(str(folder / "bert"), vocab_file=str(folder / "vocab.txt"), do_lower_case=True)
    generator = np.random.default_rng(0)
    for name, count in (("train", 64), ("dev", 20), ("test", 9)):
        lines = ["text\tverdict"]
        for number in range(count):
            words = [f"w{word}" for word in generator.integers(0, 93, generator.integers(1, 10))]
            words.insert(int(generator.integers(len(words) + 1)), ("Good", "bad")[number % 2])
            lines.append(f"{' '.join(words)}\t{('up', 'down')[number % 2]}")
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def cases_of(folder) -> dict:
    """Case -> flags, in the order in which they run; later cases build on earlier ones."""
    data = {"task_name": "custom", "text_a": "text", "label": "verdict", "max_seq_length": 16, "seed": 3}
    data |= {"write_tf_records": False, "embedding_size": 16, "hidden_size": 12}
    files = {f"{name}_file": folder / f"{name}.tsv" for name in ("train", "dev", "test")}
    train = {**data, **files, "vocab_file": folder / "vocab.txt", "do_train": True, "do_eval": True,
             "train_batch_size": 8, "num_train_epochs": 12, "eval_every_steps": 48}  # fmt: skip
    sizeless = {key: value for key, value in data.items() if key not in ("embedding_size", "hidden_size")}
    predict = {**sizeless, "do_predict": True, "test_file": files["test_file"],
               "init_checkpoint": folder / "out" / "bilstm" / "best_model"}  # fmt: skip
    trained = {"output_dir": folder / "out" / "bilstm"}
    return {
        "bilstm": {**train, "model": "bilstm", "learning_rate": 2e-2, "do_predict": True},
        "cnn": {**train, "seed": 5, "model": "cnn", "gradient_accumulation_steps": 2, "do_lower_case": True},
        "predicted": predict,
        "again": {**train, **trained, "learning_rate": 2e-2},
        # --- refused
        "size": {**predict, "hidden_size": 24},
        "cnn from a bilstm": {**predict, "model": "cnn"},
        "bert from a bilstm": {**predict, "model": "bert"},
        "cnn in a bilstm's directory": {**train, **trained, "model": "cnn"},
    }  # fmt: skip


@pytest.fixture(scope="module")
def ran(folder):
    """Output folder, outcomes by case, and what each wrote to stderr."""
    cases = {name: {"output_dir": folder / "out" / name, **values} for name, values in cases_of(folder).items()}
    return folder / "out", *run_cases("run_classifier", cases)


@pytest.mark.parametrize(("case", "name"), slow(("bilstm", "BilstmClassifier"), ("cnn", "CnnClassifier")))
def test_they_learn(ran, case, name):
    out, outcomes, logs = ran
    assert outcomes[case] == "done"
    results = results_of(out / case)
    assert results["eval_accuracy"] >= 0.8 and results["global_step"] == 96
    assert ("--learning_rate=0.001, the default where BERT is not trained" in logs[case]) == (case == "cnn")
    best = out / case / "best_model"
    head = HeadConfig.read(str(best / "head_config.json"))
    assert head == HeadConfig(name, ("down", "up"), "single_label_classification")
    assert json.loads((best / "tokenizer_config.json").read_text())["do_lower_case"] is True
    assert "classification_report.txt" in {path.name for path in (out / case).iterdir()}
    shapes = open_weights.open_weights(str(best)).shapes
    assert shapes["word_embeddings"] == (100, 16) and not any("bert/" in name for name in shapes)


@pytest.mark.slow  # in small: tasks/test_labels.py, scripts/test_run_classifier.py
def test_a_trained_one_is_known_by_its_directory(ran):
    out, outcomes, _ = ran
    assert outcomes["predicted"] == outcomes["again"] == "done"
    expected, found = (np.loadtxt(out / name / "test_results.tsv") for name in ("bilstm", "predicted"))
    assert json.loads((out / "bilstm" / "best_model" / "eval_results.json").read_text())["step"] in (48, 96)
    assert np.mean(expected.argmax(1) == found.argmax(1)) >= 0.8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("size", "--hidden_size=24 contradicts *best_model, which was trained with 12"),
        ("cnn from a bilstm", "--model=cnn contradicts *which is a bilstm"),
        ("bert from a bilstm", "--model=bert contradicts *which is a model without BERT"),
        ("cnn in a bilstm's directory", "--model=cnn contradicts *model.ckpt-96, which is a bilstm"),
    ],
)
def test_refused(ran, case, message):
    out, outcomes, _ = ran
    assert_in_order(message, outcomes[case])
    assert outcomes[case].startswith(("ValueError", "FileNotFoundError"))
    assert case.startswith("cnn in") or not (out / case).exists() or not list((out / case).iterdir())

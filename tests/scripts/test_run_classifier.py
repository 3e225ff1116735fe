"""run_classifier.py: the original's results, kinds of labels, patience, weights of classes, and refusals."""

import json

import numpy as np
import pytest
from helpers.paths import TESTS, lines_of
from helpers.script_cases import results_of, run_and_refuse, weights_of
from helpers.tiny import write_encoder

from bert_tf.families.config import BertConfig
from bert_tf.store.head_config import HeadConfig

NLI = ("neutral", "contradiction", "entailment")
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(95))]


def write_table(path, count, seed, label=lambda number: "ab"[number % 2]):
    generator, lines = np.random.default_rng(seed), ["first\tsecond\tlabel"]
    for number in range(count):
        words = [generator.integers(0, 95, generator.integers(1, 7)) for _ in range(2)]
        lines.append("\t".join([*(" ".join(f"w{word}" for word in text) for text in words), f"{label(number)}"]))
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cases")
    write_encoder(folder, PIECES)
    for seed, (name, count) in enumerate((("train", 40), ("dev", 11), ("test", 5))):
        write_table(folder / f"{name}.tsv", count, seed)
        write_table(folder / f"{name}-several.tsv", count, seed, lambda number: ("a", "", "c,b")[number % 3])
        numbers = folder / f"{name}-numbers.tsv"
        write_table(numbers, count, seed, lambda number: number % 5 + 0.25)
        numbers.write_bytes(numbers.read_text().encode("utf-16"))
    (folder / "rte").mkdir()
    rows = "".join(f"{number}\tw1 w2\tw3\t{('not_', '')[number % 2]}entailment\n" for number in range(16))
    (folder / "rte" / "train.tsv").write_text("index\tsentence1\tsentence2\tlabel\n" + rows)
    (folder / "xnli").mkdir()
    rows = [f"{'zk'[k % 2]}{'ho'[k % 2]}\t{NLI[k % 3]}\ta\tb\tc\td\tthe {k}\tso" for k in range(20)]
    header = "language\tgold_label\ta\tb\tc\td\tsentence1\tsentence2"
    (folder / "xnli" / "xnli.test.tsv").write_text("\n".join([header, *rows]) + "\n")
    return folder


@pytest.fixture(scope="module")
def ran(folder):
    """Output folder, and what each case wrote to stderr; later cases are built on earlier ones."""
    golden, out, encoder = TESTS / "golden", folder / "out", {"init_checkpoint": folder / "encoder"}
    columns = {"task_name": "custom", "text_a": "first", "text_b": "second", "label": "label"}
    files, several, numbers = (
        {f"{name}_file": folder / f"{name}{kind}.tsv" for name in ("train", "dev", "test")}
        for kind in ("", "-several", "-numbers")
    )
    short = {
        "max_seq_length": 16, "train_batch_size": 8, "num_train_epochs": 2, "learning_rate": 1e-3, "seed": 3,
        "deterministic": True, "write_tf_records": False, "num_virtual_cpus": 2, "static_padding": True,
    }  # fmt: skip
    train = {**encoder, **columns, **files, **short, "do_train": True}
    patient = {
        **train, "learning_rate": 1e-9, "eval_every_steps": 2, "early_stopping_patience": 2, "do_eval": True,
        "output_dir": out / "patience",
    }  # fmt: skip
    predict = {**columns, **short, "do_predict": True, "test_file": files["test_file"]}
    rte = {**encoder, **short, "task_name": "RTE", "data_dir": folder / "rte", "do_train": True}
    config1 = golden / "model" / "config1"
    entailment = {
        "task_name": "MNLI", "do_predict": True, "max_seq_length": 32, "num_virtual_cpus": 2, "predict_batch_size": 4,
        "vocab_file": golden / "classifier" / "end_to_end" / "vocab.txt",
        "bert_config_file": config1 / "bert_config.json", "init_checkpoint": config1 / "classifier.ckpt",
    }  # fmt: skip
    done = {
        "original": {**entailment, "do_eval": True, "data_dir": golden / "classifier" / "mnli", "eval_batch_size": 4},
        "labelled": {**entailment, "task_name": "XNLI", "language": "ko", "data_dir": folder / "xnli"},
        "patience": {**patient, "use_best_model": True},
        "patience again": patient,
        "several": {**train, **several, "multi_label": True, "do_eval": True, "do_predict": True},
        "numbers": {**train, **numbers, "regression": True, "do_eval": True, "do_predict": True, "encoding": "utf-16"},
        "from the best model": {**predict, "init_checkpoint": out / "patience" / "best_model"},
        "no dev file": {**rte, "num_train_epochs": 1},
        "weighted": {**rte, "num_train_epochs": 1, "class_weights": "entailment=9"},
    }  # fmt: skip
    refused = {
        "no text": ({**encoder, **short, "task_name": "custom", "do_train": True}, "--text_a"),
        "classes of numbers": ({**train, "regression": True, "labels": "a,b"}, "--regression*--labels"),
        "no dev": ({**rte, "do_eval": True}, "rte/dev.tsv"),
        "no dev for patience": ({**rte, "early_stopping_patience": 1}, "--early_stopping_patience*dev set"),
        "no training set": ({**rte, "task_name": "ax", "data_dir": folder}, "--do_train*ax has no train set"),
        "eval batch": (
            {**train, "eval_batch_size": 3, "distribution_strategy": "mirrored"},
            "--eval_batch_size=3*divided by 2",
        ),
        "columns of one's own": ({**rte, "regression": True}, "--regression is for --task_name=custom*RTE has its own"),
    }
    return folder / "out", run_and_refuse("run_classifier", folder / "out", done, refused)


def numbers_of(path) -> np.ndarray:
    return np.array([line.split("\t") for line in path.read_text().splitlines()], float)


def test_evaluation_and_prediction_equal_the_original(ran, golden):
    out, logs = ran
    expected = results_of(golden / "classifier" / "end_to_end")
    assert results_of(out / "original") == pytest.approx(expected, abs=1e-4)
    probabilities = numbers_of(golden / "classifier" / "end_to_end" / "test_results.tsv")
    np.testing.assert_allclose(numbers_of(out / "original" / "test_results.tsv"), probabilities, rtol=0, atol=1e-4)
    assert "dev_mismatched.tsv does not exist and is left out" in logs["original"]  # the original never read it
    names = {path.name for path in (out / "original").iterdir()} - {"classification_report.txt", "confusion_matrix.png"}
    assert names == {"eval_results.txt", "eval.tf_record", "test_results.tsv", "predictions.jsonl", "predict.tf_record"}
    first = json.loads((out / "original" / "predictions.jsonl").read_text().splitlines()[0])
    assert first["guid"] == "test-0" and first["label"] == "contradiction"
    assert list(first["probabilities"].values()) == pytest.approx(probabilities[0], abs=1e-4)


def test_a_test_set_with_labels_is_scored(ran):
    out, *_ = ran
    folder = out / "labelled"
    lines = dict(line.split(" = ") for line in (folder / "test_results.txt").read_text().splitlines())
    assert sorted(lines) == ["global_step", "loss", "test_accuracy", "test_loss"]
    probabilities = numbers_of(folder / "test_results.tsv")
    labels = np.array([NLI[k % 3] for k in range(1, 20, 2)])
    predicted = np.array(["contradiction", "entailment", "neutral"])[probabilities.argmax(1)]
    assert float(lines["test_accuracy"]) == pytest.approx(np.mean(predicted == labels), abs=1e-6)
    assert not (out / "original" / "test_results.txt").exists()  # MNLI's test labels are secret


def test_patience_ends_a_run_for_good(ran):
    out, logs = ran
    # With this learning rate nothing improves: steps 4 and 6 are no better than step 2.
    steps = [json.loads(line)["step"] for line in (out / "patience" / "evaluations.jsonl").read_text().splitlines()]
    assert steps == [2, 4, 6] and "Stopping early at step 6 of 10" in logs["patience"]
    assert "patience finished at step 6" in logs["patience again"]
    assert "Evaluation of step 2 on dev" in logs["patience"]  # --use_best_model
    assert "Evaluation of step 6 on dev" in logs["patience again"]
    assert results_of(out / "patience")["global_step"] == 6  # as the second start wrote it
    assert int(weights_of(out / "patience")["global_step"]) == 6


def test_several_labels_from_training_to_prediction(ran):
    out, *_ = ran
    assert {"eval_micro_f1", "eval_macro_f1"} < set(results_of(out / "several"))
    expected = HeadConfig("BertForSequenceClassification", ("a", "b", "c"), "multi_label_classification", pairs=True)
    assert HeadConfig.read(str(out / "several" / "head_config.json")) == expected
    config = json.loads((out / "several" / "bert_config.json").read_text())
    assert config == BertConfig.from_dict(config).to_dict()  # the model only
    records = lines_of(out / "several" / "predictions.jsonl")
    table = numbers_of(out / "several" / "test_results.tsv")
    assert table.shape == (5, 3)
    for record, row in zip(records, table, strict=True):
        assert list(record["probabilities"]) == ["a", "b", "c"]
        assert list(record["probabilities"].values()) == pytest.approx(row, rel=1e-5)
        assert record["labels"] == [label for label, value in record["probabilities"].items() if value > 0.5]


def test_a_regression_predicts_numbers(ran):
    out, *_ = ran
    results = results_of(out / "numbers")
    assert set(results) == {"eval_pearson", "eval_spearman", "eval_loss", "loss", "global_step"}
    records = lines_of(out / "numbers" / "predictions.jsonl")
    table = numbers_of(out / "numbers" / "test_results.tsv")
    assert table.shape == (5, 1) and [set(record) for record in records] == [{"guid", "score"}] * 5
    assert [record["score"] for record in records] == pytest.approx(table[:, 0], rel=1e-5)
    expected = HeadConfig("BertForSequenceClassification", None, "regression", pairs=True)
    assert HeadConfig.read(str(out / "numbers" / "head_config.json")) == expected
    assert not list((out / "numbers").glob("confusion_matrix*"))


def test_labels_come_with_the_model(ran):
    """Neither labels nor a training file are given, only the model's directory."""
    out, *_ = ran
    records = lines_of(out / "from the best model" / "predictions.jsonl")
    assert len(records) == 5 and all(list(record["probabilities"]) == ["a", "b"] for record in records)
    assert not list((out / "from the best model").glob("model.ckpt*"))


def test_training_alone_needs_no_dev_file(ran):
    out, logs = ran
    assert "No evaluation while training" in logs["no dev file"] and "rte/dev.tsv" in logs["no dev file"]
    assert not (out / "no dev file" / "best_model").exists()
    assert int(weights_of(out / "no dev file")["global_step"]) == 2


def test_weights_of_classes_reach_the_loss_and_are_recorded(ran):
    out, logs = ran
    assert "are not named and have weight 1: not_entailment" in logs["weighted"]
    plain, weighted = (weights_of(out / case)["output_weights"] for case in ("no dev file", "weighted"))
    assert np.abs(plain - weighted).max() > 1e-4
    assert json.loads((out / "weighted" / "run.json").read_text())["class_weights"] == "entailment=9"
    assert "class_weights" in (out / "weighted" / "README.md").read_text()

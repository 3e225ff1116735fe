"""run_classifier.py with many settings."""

import json
import shutil
import sys

import numpy as np
import pytest
from helpers import warm
from helpers.paths import TESTS
from helpers.progress import show_progress_at_once
from helpers.script_cases import arguments_of, results_of, run_cases, selected_cases
from helpers.slow import slow
from helpers.tiny import ONE_LAYER, write_encoder

from bert_tf import Predictor
from bert_tf.models import open_weights
from bert_tf.models.config import BertConfig
from bert_tf.models.head_config import HeadConfig
from bert_tf.serving import base_predictor
from bert_tf.serving.export import export_saved_model

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(95))]


def write_table(path, count, seed, label=lambda number: "ab"[number % 2]):
    generator = np.random.default_rng(seed)
    lines = ["\t".join(("first", "second", "label"))]
    for number in range(count):
        first, second = (
            " ".join(f"w{word}" for word in generator.integers(0, 95, generator.integers(1, 7))) for _ in range(2)
        )
        lines.append(f"{first}\t{second}\t{label(number)}")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cases")
    write_encoder(folder, PIECES)
    for seed, (name, count) in enumerate((("train", 40), ("dev", 11), ("test", 5))):
        write_table(folder / f"{name}.tsv", count, seed)
        write_table(folder / f"{name}-several.tsv", count, seed, lambda number: ("a", "", "c,b")[number % 3])
        write_table(folder / f"{name}-numbers.tsv", count, seed, lambda number: number % 5 + 0.25)
    (folder / "train.parquet").write_bytes(b"PAR1")
    (folder / "rte").mkdir()
    rows = "".join(f"{number}\tw1 w2\tw3\t{('not_', '')[number % 2]}entailment\n" for number in range(16))
    (folder / "rte" / "train.tsv").write_text("index\tsentence1\tsentence2\tlabel\n" + rows)
    (folder / "qnli").mkdir()
    (folder / "qnli" / "train.tsv").write_text(f"index\tquestion\tsentence\tlabel\n{rows}")
    write_marked(folder / "marked")
    write_table(folder / "unknown.tsv", 3, 0, lambda number: "abx"[number])
    write_entailment(folder)
    return folder


def write_marked(folder):
    """An encoder with two added tokens and a padded table, and texts with them: the marked word has the label."""
    folder.mkdir()
    (folder / "added_tokens.json").write_text(json.dumps({"[E1]": 100, "[/E1]": 101}))
    write_encoder(folder, PIECES, {**ONE_LAYER, "vocab_size": 104})
    generator = np.random.default_rng(5)
    for name, count in (("train", 40), ("test", 6)):
        lines = ["text\tlabel"]
        for number in range(count):
            words = ["w1", "w2", *(f"w{word}" for word in generator.integers(3, 95, 3))]
            words[number % 2] = f"[E1]{words[number % 2]}[/E1]"
            lines.append(" ".join(words) + "\t" + "ab"[number % 2])
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")


def write_entailment(folder):
    """The test sets of MNLI and AX, of their real sizes, and of XNLI, with labels."""
    (folder / "glue" / "MNLI").mkdir(parents=True)
    (folder / "glue" / "diagnostic").mkdir()
    columns = ["index", *"bcdefgh", "sentence1", "sentence2"]
    for name, count in (("matched", 9796), ("mismatched", 9847)):
        rows = ["\t".join([str(number), *"bcdefgh", f"the {number}", "so"]) for number in range(count)]
        text = "\n".join(["\t".join(columns), *rows]) + "\n"
        (folder / "glue" / "MNLI" / f"test_{name}.tsv").write_text(text)
    rows = [f"{number}\tthe {number}\tso" for number in range(1104)]
    text = "\n".join(["index\tsentence1\tsentence2", *rows]) + "\n"
    (folder / "glue" / "diagnostic" / "diagnostic.tsv").write_text(text)
    (folder / "xnli").mkdir()
    labels = ("neutral", "contradiction", "entailment")
    rows = [f"{'zk'[k % 2]}{'ho'[k % 2]}\t{labels[k % 3]}\ta\tb\tc\td\tthe {k}\tso" for k in range(20)]
    header = "language\tgold_label\ta\tb\tc\td\tsentence1\tsentence2"
    (folder / "xnli" / "xnli.test.tsv").write_text("\n".join([header, *rows]) + "\n")


def cases_of(folder, golden) -> dict:
    """Case -> flags, in the order in which they run; later cases build on earlier ones."""
    encoder = {"init_checkpoint": folder / "encoder"}
    columns = {"task_name": "custom", "text_a": "first", "text_b": "second", "label": "label"}
    files = {f"{name}_file": folder / f"{name}.tsv" for name in ("train", "dev", "test")}
    several, numbers = (
        {f"{name}_file": folder / f"{name}-{kind}.tsv" for name in ("train", "dev", "test")}
        for kind in ("several", "numbers")
    )
    short = {
        "max_seq_length": 16, "train_batch_size": 8, "num_train_epochs": 2, "learning_rate": 1e-3, "seed": 3,
        "deterministic": True, "write_tf_records": False, "num_virtual_cpus": 2,
    }  # fmt: skip
    train = {**encoder, **columns, **files, **short, "do_train": True}
    one_device = {key: value for key, value in train.items() if key not in ("dev_file", "test_file")}
    predict = {**columns, **short, "do_predict": True, "test_file": files["test_file"]}
    rte = {**encoder, **short, "task_name": "RTE", "data_dir": folder / "rte", "do_train": True}
    config1 = golden / "model" / "config1"
    entailment = {
        "task_name": "MNLI", "do_predict": True, "max_seq_length": 32, "num_virtual_cpus": 2,
        "vocab_file": golden / "classifier" / "end_to_end" / "vocab.txt",
        "bert_config_file": config1 / "bert_config.json", "init_checkpoint": config1 / "classifier.ckpt",
    }  # fmt: skip
    submission = {
        **entailment, "data_dir": folder / "glue" / "MNLI", "predict_batch_size": 1000, "write_tf_records": False,
        "glue_submission": folder / "submission",
    }  # fmt: skip
    return {
        "original": {
            **entailment, "do_eval": True, "data_dir": golden / "classifier" / "mnli", "eval_batch_size": 4,
            "predict_batch_size": 4,
        },
        "test set with labels": {
            **entailment, "task_name": "XNLI", "language": "ko", "data_dir": folder / "xnli", "predict_batch_size": 4,
        },
        "submission": submission,
        "one device": one_device,
        "two devices": {**one_device, "distribution_strategy": "mirrored"},
        "accumulated": {**one_device, "gradient_accumulation_steps": 2, "iterations_per_loop": 3},
        "seeds": {**train, "num_seeds": 2, "do_eval": True, "num_train_epochs": 2},
        "patience": {
            **train, "learning_rate": 1e-9, "eval_every_steps": 2, "early_stopping_patience": 2, "do_eval": True,
            "use_best_model": True,
        },
        "patience again": {
            **train, "learning_rate": 1e-9, "eval_every_steps": 2, "early_stopping_patience": 2, "do_eval": True,
            "output_dir": folder / "out" / "patience",
        },
        "several": {**train, **several, "multi_label": True, "do_eval": True, "do_predict": True},
        "several predicted": {
            **predict, "multi_label": True, "test_file": several["test_file"],
            "output_dir": folder / "out" / "several",
        },
        "numbers": {**train, **numbers, "regression": True, "do_eval": True, "do_predict": True},
        "markers": {
            **short, "task_name": "custom", "text_a": "text", "label": "label", "do_train": True, "do_predict": True,
            "init_checkpoint": folder / "marked" / "encoder", "train_file": folder / "marked" / "train.tsv",
            "test_file": folder / "marked" / "test.tsv", "num_train_epochs": 8, "learning_rate": 1e-2,
        },
        "from the best model": {**predict, "init_checkpoint": folder / "out" / "patience" / "best_model"},
        "no dev file": {**rte, "num_train_epochs": 1},
        # --- refused
        "nothing to do": {**train, "do_train": False},
        "nothing to predict with": {**predict, "vocab_file": folder / "vocab.txt"},
        "random output layer": {**predict, **encoder},
        "no task": {key: value for key, value in train.items() if key != "task_name"},
        "unknown task": {**train, "task_name": "mprc"},
        "no data_dir": {**encoder, **short, "task_name": "rte", "do_train": True},
        "no text": {**encoder, **short, "task_name": "custom", "do_train": True},
        "no label": {**encoder, **files, **short, "task_name": "custom", "text_a": "first", "do_train": True},
        "classes of numbers": {**train, "regression": True, "labels": "a,b"},
        "no train file": {**train, "train_file": folder / "none.tsv"},
        "no dev": {**rte, "do_eval": True},
        "no dev for patience": {**rte, "early_stopping_patience": 1},
        "dev file misspelt": {**train, "dev_file": folder / "none.tsv"},
        "no training set": {**encoder, **short, "task_name": "ax", "data_dir": folder, "do_train": True},
        "seeds without training": {**predict, "num_seeds": 2, "output_dir": folder / "out" / "patience"},
        "language": {**rte, "language": "de"},
        "unknown label": {**train, "dev_file": folder / "unknown.tsv", "do_eval": True},
        "other labels": {**train, "labels": "b,a", "output_dir": folder / "out" / "patience"},
        "no best model": {**predict, "use_best_model": True, "output_dir": folder / "out" / "one device"},
        "batch": {**train, "train_batch_size": 9, "gradient_accumulation_steps": 2},
        "eval batch": {**train, "eval_batch_size": 3, "distribution_strategy": "mirrored"},
        "no step": {**train, "train_batch_size": 100, "num_train_epochs": 1},
        "another task's directory": {
            **rte, "task_name": "QNLI", "data_dir": folder / "qnli", "output_dir": folder / "out" / "no dev file",
        },
        "columns of one's own": {**rte, "regression": True},
        "no dev file named": {**one_device, "do_eval": True},
        "no text table": {**train, "train_file": folder / "train.parquet"},
        "submission of part of a test set": {**submission, "data_dir": golden / "classifier" / "mnli"},
        "submission of another task": {**submission, "task_name": "XNLI", "data_dir": folder / "xnli"},
        "submission of one's own data": {**predict, **encoder, "glue_submission": folder / "submission"},
        "submission without prediction": {**rte, "glue_submission": folder / "submission"},
        "submission of several seeds": {**rte, "do_predict": True, "num_seeds": 2, "glue_submission": folder / "s"},
        "submission into a file": {**submission, "glue_submission": folder / "train.tsv"},
    }  # fmt: skip


@pytest.fixture(scope="module")
def ran(request, folder):
    """The folder of the cases' output directories, outcomes by case, and what each wrote to stderr."""
    # Small forms: seeds in test_fine_tuning_runs.py, the same step however it is cut in test_optimization.py, files of
    # submissions in test_glue_submission.py.
    later = {"one device", "no best model", "seeds", "two devices", "accumulated", "submission"}
    cases = selected_cases(request, cases_of(folder, TESTS / "golden"), later)
    cases = {name: {"output_dir": folder / "out" / name, **values} for name, values in cases.items()}
    return folder / "out", *run_cases("run_classifier", cases)


def numbers_of(path) -> np.ndarray:
    return np.array([line.split("\t") for line in path.read_text().splitlines()], float)


def weights_of(path) -> dict:
    weights = open_weights.open_weights(str(path))
    return {name: weights[name] for name in weights if "adam" not in name}


def test_evaluation_and_prediction_equal_the_original(ran, golden):
    """The whole program on the original's data, weights and vocabulary."""
    out, outcomes, logs = ran
    assert outcomes["original"] == "done"
    expected = results_of(golden / "classifier" / "end_to_end")
    assert results_of(out / "original") == pytest.approx(expected, abs=1e-4)
    probabilities = numbers_of(golden / "classifier" / "end_to_end" / "test_results.tsv")
    np.testing.assert_allclose(numbers_of(out / "original" / "test_results.tsv"), probabilities, rtol=0, atol=1e-4)
    assert "dev_mismatched.tsv does not exist and is left out" in logs["original"]  # the original never read it
    names = {path.name for path in (out / "original").iterdir()}
    assert names == {
        "eval_results.txt", "eval.tf_record", "classification_report.txt", "confusion_matrix.png",
        "test_results.tsv", "predictions.jsonl", "predict.tf_record",
    }  # fmt: skip
    first = json.loads((out / "original" / "predictions.jsonl").read_text().splitlines()[0])
    assert first["guid"] == "test-0" and first["label"] == "contradiction"
    assert list(first["probabilities"].values()) == pytest.approx(probabilities[0], abs=1e-4)


def test_a_test_set_with_labels_is_scored(ran):
    out, outcomes, _ = ran
    assert outcomes["test set with labels"] == "done"
    folder = out / "test set with labels"
    lines = dict(line.split(" = ") for line in (folder / "test_results.txt").read_text().splitlines())
    assert sorted(lines) == ["global_step", "loss", "test_accuracy", "test_loss"]
    probabilities = numbers_of(folder / "test_results.tsv")
    labels = np.array([("neutral", "contradiction", "entailment")[k % 3] for k in range(1, 20, 2)])
    predicted = np.array(["contradiction", "entailment", "neutral"])[probabilities.argmax(1)]
    assert float(lines["test_accuracy"]) == pytest.approx(np.mean(predicted == labels), abs=1e-6)
    assert not (out / "original" / "test_results.txt").exists()  # MNLI's test labels are secret


@pytest.mark.slow
def test_a_submission_of_mnli_has_its_files_and_that_of_the_diagnostics(ran):
    out, outcomes, logs = ran
    assert outcomes["submission"] == "done"
    folder = out.parent / "submission"
    assert sorted(path.name for path in folder.iterdir()) == ["AX.tsv", "MNLI-m.tsv", "MNLI-mm.tsv"]
    results = {"MNLI-m": "", "MNLI-mm": "_test_mismatched", "AX": "_diagnostic"}
    for name, suffix in results.items():
        header, *lines = (folder / f"{name}.tsv").read_text().splitlines()
        best = numbers_of(out / "submission" / f"test_results{suffix}.tsv").argmax(1)
        labels = ("contradiction", "entailment", "neutral")
        assert lines == [f"{number}\t{labels[label]}" for number, label in enumerate(best)]
        assert header == "index\tprediction" and len(lines) > 1000
    assert "has 3 of the 11 files of a submission; missing: CoLA.tsv, MRPC.tsv, QNLI.tsv, QQP.tsv" in logs["submission"]


@pytest.mark.slow
def test_two_devices_and_two_parts_of_one_make_the_same_steps(ran):
    """With dropout, whose masks depend on the micro-batch (so an undivided batch has others)."""
    out, outcomes, logs = ran
    assert outcomes["one device"] == outcomes["two devices"] == outcomes["accumulated"] == "done"
    assert "2 replicas" in logs["two devices"] and "1 replica," in logs["accumulated"]
    plain, one, other = (weights_of(out / case) for case in ("one device", "accumulated", "two devices"))
    start = weights_of(out.parent / "encoder")
    assert one.keys() == other.keys() and int(one["global_step"]) == int(other["global_step"]) == 10
    for name, value in one.items():
        # The gradient of key biases is only rounding errors, which Adam turns into steps.
        allowed = 1e-2 if "key/bias" in name else 1e-4
        np.testing.assert_allclose(other[name], value, rtol=0, atol=allowed, err_msg=name)
    name = "bert/pooler/dense/kernel"
    steps = plain[name] - start[name], one[name] - start[name]
    assert min(np.abs(step).max() for step in steps) > 1e-3
    assert np.corrcoef(*map(np.ravel, steps))[0, 1] > 0.7  # other masks, but the same batches


@pytest.mark.slow
def test_seeds_are_runs_of_their_own(ran):
    out, outcomes, _ = ran
    assert outcomes["seeds"] == "done"
    content = json.loads((out / "seeds" / "seeds.json").read_text())
    assert list(content["seeds"]) == ["3", "4"]
    for seed, results in content["seeds"].items():
        written = results_of(out / "seeds" / f"seed-{seed}")
        assert written == pytest.approx(results, rel=1e-6)
    # The first of two seeds is the run with that seed alone, bit for bit; dev and test sets change nothing.
    alone, one, two = (weights_of(out / path) for path in ("one device", "seeds/seed-3", "seeds/seed-4"))
    for name, value in alone.items():
        np.testing.assert_array_equal(one[name], value, err_msg=name)
    assert (one["output_weights"] != two["output_weights"]).all()
    best = content["best_seed"]
    assert results_of(out / "seeds") == results_of(out / "seeds" / f"seed-{best}")
    copied, kept = (weights_of(out / "seeds" / path) for path in ("best_model", f"seed-{best}/best_model"))
    for name, value in kept.items():
        np.testing.assert_array_equal(copied[name], value, err_msg=name)


def test_patience_ends_a_run_for_good(ran):
    out, outcomes, logs = ran
    assert outcomes["patience"] == outcomes["patience again"] == "done"
    # With this learning rate nothing improves: steps 4 and 6 are no better than step 2.
    steps = [json.loads(line)["step"] for line in (out / "patience" / "evaluations.jsonl").read_text().splitlines()]
    assert steps == [2, 4, 6]
    assert "Stopping early at step 6 of 10" in logs["patience"]
    assert "patience finished at step 6" in logs["patience again"]
    assert "Evaluation of step 2 on dev" in logs["patience"]  # --use_best_model
    assert "Evaluation of step 6 on dev" in logs["patience again"]
    assert results_of(out / "patience")["global_step"] == 6  # as the second start wrote it
    assert int(weights_of(out / "patience")["global_step"]) == 6


def test_several_labels_from_training_to_prediction(ran):
    out, outcomes, _ = ran
    assert outcomes["several"] == outcomes["several predicted"] == "done"
    assert {"eval_micro_f1", "eval_macro_f1"} < set(results_of(out / "several"))
    expected = HeadConfig("BertForSequenceClassification", ("a", "b", "c"), "multi_label_classification")
    assert HeadConfig.read(str(out / "several" / "head_config.json")) == expected
    config = json.loads((out / "several" / "bert_config.json").read_text())
    assert config == BertConfig.from_dict(config).to_dict()  # the model only
    records = [json.loads(line) for line in (out / "several" / "predictions.jsonl").read_text().splitlines()]
    table = numbers_of(out / "several" / "test_results.tsv")
    assert table.shape == (5, 3)
    for record, row in zip(records, table, strict=True):
        assert list(record["probabilities"]) == ["a", "b", "c"]
        assert list(record["probabilities"].values()) == pytest.approx(row, rel=1e-5)
        assert record["labels"] == [label for label, value in record["probabilities"].items() if value > 0.5]


def test_a_regression_predicts_numbers(ran):
    out, outcomes, _ = ran
    assert outcomes["numbers"] == "done"
    results = results_of(out / "numbers")
    assert set(results) == {"eval_pearson", "eval_spearman", "eval_loss", "loss", "global_step"}
    records = [json.loads(line) for line in (out / "numbers" / "predictions.jsonl").read_text().splitlines()]
    table = numbers_of(out / "numbers" / "test_results.tsv")
    assert table.shape == (5, 1) and [set(record) for record in records] == [{"guid", "score"}] * 5
    assert [record["score"] for record in records] == pytest.approx(table[:, 0], rel=1e-5)
    expected = HeadConfig("BertForSequenceClassification", None, "regression")
    assert HeadConfig.read(str(out / "numbers" / "head_config.json")) == expected
    assert not list((out / "numbers").glob("confusion_matrix*"))


def test_entity_markers_from_training_to_an_export(ran, folder, tmp_path):
    """The script, `Predictor` and an export give the same probabilities of strings, in which markers are whole; the
    table has more rows than the vocabulary, a multiple of 8."""
    out, outcomes, logs = ran
    assert outcomes["markers"] == "done" and "[CLS] [E1] w1 [/E1] w2 " in logs["markers"]
    assert "assuming a padded embedding table" in logs["markers"]
    texts = [line.split("\t")[0] for line in (folder / "marked" / "test.tsv").read_text().splitlines()[1:]]
    written, path = numbers_of(out / "markers" / "test_results.tsv"), str(out / "markers")
    export_saved_model(path, str(tmp_path / "export"), warm_up=False)
    model = Predictor(path)
    for predictor in (model, Predictor(str(tmp_path / "export"))):
        found = [list(row["probabilities"].values()) for row in predictor.predict(texts)]
        np.testing.assert_allclose(found, written, atol=1e-5)
    without = model.predict([text.replace("[E1]", "").replace("[/E1]", "") for text in texts])
    assert np.abs([list(row["probabilities"].values()) for row in without] - written).max() > 1e-3
    assert model.tokenizer.encode(texts[0])[:3] == [100, 6, 101] and model.model.config.vocab_size == 104


def test_a_predictor_shows_progress_only_where_it_takes_long(ran, monkeypatch, capfd):
    model = Predictor(str(ran[0] / "patience" / "best_model"), batch_size=2)
    texts = [("w1 w2", "w3")] * 5
    predictions = model.predict(texts)
    assert capfd.readouterr().err == "" and len(predictions) == 5
    given = show_progress_at_once(monkeypatch, base_predictor)
    assert model.predict(texts) == predictions
    assert [options["delay"] >= 2 for options in given] == [True]
    assert "predict" in (shown := capfd.readouterr().err) and "/3 " in shown  # batches


def test_labels_come_with_the_model(ran):
    """Neither labels nor a training file are given, only the model's directory."""
    out, outcomes, _ = ran
    assert outcomes["from the best model"] == "done"
    records = [
        json.loads(line) for line in (out / "from the best model" / "predictions.jsonl").read_text().splitlines()
    ]
    assert len(records) == 5 and all(list(record["probabilities"]) == ["a", "b"] for record in records)
    assert not list((out / "from the best model").glob("model.ckpt*"))


def test_training_alone_needs_no_dev_file(ran):
    out, outcomes, logs = ran
    assert outcomes["no dev file"] == "done"
    assert "No evaluation while training" in logs["no dev file"] and "rte/dev.tsv" in logs["no dev file"]
    assert not (out / "no dev file" / "best_model").exists()
    assert int(weights_of(out / "no dev file")["global_step"]) == 2


REFUSED = {
    "nothing to do": ["--do_train", "--do_eval", "--do_predict"],
    "nothing to predict with": ["--output_dir", "no checkpoint", "--init_checkpoint"],
    "random output layer": ["/encoder", "no output layer"],
    "no task": ["--task_name", "--tfds_name"],
    "unknown task": ["--task_name=mprc", "mrpc", "custom"],
    "no data_dir": ["--task_name=rte", "--data_dir"],
    "no text": ["--text_a"],
    "no label": ["--label"],
    "classes of numbers": ["--regression", "--labels"],
    "no train file": ["FileNotFoundError", "none.tsv"],
    "no dev": ["FileNotFoundError", "rte/dev.tsv"],
    "no dev for patience": ["--early_stopping_patience", "dev set"],
    "dev file misspelt": ["FileNotFoundError", "none.tsv"],
    "no training set": ["--do_train", "ax has no train set"],
    "seeds without training": ["--num_seeds=2", "--do_train"],
    "language": ["--language=de", "--task_name=RTE"],
    "unknown label": ["unknown.tsv, line 4", "'x'", "'a', 'b'"],
    "other labels": ["--output_dir", "labels"],
    "no best model": ["--use_best_model", "one device/best_model"],
    "batch": ["--train_batch_size=9", "--gradient_accumulation_steps=2"],
    "eval batch": ["--eval_batch_size=3", "2 replicas"],
    "another task's directory": ["--output_dir", "--task_name=RTE", "QNLI", "--init_checkpoint="],
    "columns of one's own": ["--regression is for --task_name=custom", "RTE has its own files"],
    "no dev file named": ["--do_eval", "--dev_file"],
    "no text table": ["train.parquet", ".tsv, .csv or .jsonl"],
    "submission of part of a test set": ["mnli/test_matched.tsv has 10 examples", "MNLI-m.tsv needs 9796"],
    "submission of another task": ["--glue_submission is for --task_name=ax, cola, mnli,", "not for XNLI"],
    "submission of one's own data": ["--glue_submission is for --task_name=", "not for custom"],
    "submission without prediction": ["--glue_submission needs --do_predict"],
    "submission of several seeds": ["--glue_submission", "--num_seeds"],
    "submission into a file": ["--glue_submission=", "train.tsv is a file"],
    "no step": ["40 training examples", "--train_batch_size=100", "less than one step"],
}


@pytest.mark.parametrize("case", [slow(case)[0] if case == "no best model" else case for case in REFUSED])
def test_what_cannot_be_done_is_refused_before_the_work(ran, case):
    out, outcomes, _ = ran
    assert outcomes[case] != "done"
    for part in REFUSED[case]:
        assert part in outcomes[case], outcomes[case]
    assert outcomes[case].startswith(("ValueError: ", "FileNotFoundError: ", "NotADirectoryError: "))
    assert not (out / case).exists() or not list((out / case).iterdir())


def test_every_case_is_looked_at(folder, golden):
    done = {"original", "one device", "two devices", "accumulated", "seeds", "patience", "patience again"}
    done |= {"test set with labels", "submission", "several", "several predicted", "numbers", "from the best model",
             "no dev file", "markers"}  # fmt: skip
    assert set(cases_of(folder, golden)) == done | set(REFUSED)


@pytest.mark.slow
def test_an_evaluation_that_a_kill_prevented_is_made_up_for(ran, folder, golden):
    """The kill came after the last checkpoint, before the evaluation after it and the end of the script."""
    out, _, _ = ran
    lost = folder / "lost"
    shutil.copytree(out / "seeds" / "seed-3", lost)
    lines = (lost / "evaluations.jsonl").read_text().splitlines(keepends=True)
    assert len(lines) == 2
    (lost / "evaluations.jsonl").write_text(lines[0])
    values = {**cases_of(folder, golden)["seeds"], "num_seeds": 1, "do_eval": False, "output_dir": lost}
    script = str(TESTS.parent / "run_classifier.py")
    result = warm.run([sys.executable, script, *arguments_of(values)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    assert "Step 10 was saved, but the earlier run ended before its evaluation" in result.stderr
    assert (lost / "evaluations.jsonl").read_text() == "".join(lines)

"""run_classifier.py: the original's results, kinds of labels, teachers, windows of long texts, modules, refusals."""

import functools
import http.server
import json
import tarfile

import numpy as np
import pytest
from helpers.basics import GOLDEN, directory_of, lines_of
from helpers.hub_server import serving
from helpers.scenarios import TWO_REPLICAS, fine_tuning_flags
from helpers.script_cases import results_of, run_and_refuse, weights_of
from helpers.tiny import PIECES, save_model, texts_of, write_classification, write_encoder

from bert_tf import Predictor
from bert_tf.families.config import BertConfig
from bert_tf.models import task_models
from bert_tf.store.head_config import HeadConfig

numbers_of = functools.partial(np.loadtxt, ndmin=2)
NLI = ("neutral", "contradiction", "entailment")


def write_table(path, count, seed, label=lambda number: "ab"[number % 2]):
    texts = enumerate(texts_of(count, seed))
    rows = (f"{first}\t{' '.join(second)}\t{label(number)}\n" for number, ((first, *second), *_) in texts)
    path.write_text("first\tsecond\tlabel\n" + "".join(rows))


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cases")
    write_encoder(folder, PIECES)
    for seed, (name, count) in enumerate((("train", 40), ("dev", 11), ("test", 5))):
        write_table(folder / f"{name}.tsv", count, seed)
        write_table(folder / f"{name}-several.tsv", count, seed, lambda number: ("a", "", "c,b")[number % 3])
        numbers = folder / f"{name}-numbers.tsv"
        write_table(numbers, count, seed, lambda number: number % 5 + 0.25)
        numbers.write_bytes(numbers.read_text().encode("utf-16"))
    rows = "".join(f"{number}\tw1 w2\tw3\t{('not_', '')[number % 2]}entailment\n" for number in range(16))
    directory_of(folder / "rte", train__tsv="index\tsentence1\tsentence2\tlabel\n" + rows)
    rows = "".join(f"{'zk'[k % 2]}{'ho'[k % 2]}\t{NLI[k % 3]}\ta\tb\tc\td\tthe {k}\tso\n" for k in range(20))
    header = "language\tgold_label\ta\tb\tc\td\tsentence1\tsentence2\n"
    directory_of(folder / "xnli", xnli__test__tsv=header + rows)
    golden, out, encoder = GOLDEN, folder / "out", {"init_checkpoint": folder / "encoder"}
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
        "no dev": ({**rte, "do_eval": True}, "rte/dev.tsv"),
        "no dev for patience": ({**rte, "early_stopping_patience": 1}, "--early_stopping_patience*dev set"),
        "no training set": ({**rte, "task_name": "ax", "data_dir": folder}, "--do_train*ax has no train set"),
        "eval batch": ({**train, "eval_batch_size": 3, **TWO_REPLICAS}, "--eval_batch_size=3*divided by 2"),
        "columns of one's own": ({**rte, "regression": True}, "--regression is for --task_name=custom*RTE has its own"),
    }
    return folder / "out", run_and_refuse("run_classifier", folder / "out", done, refused)


def test_evaluation_and_prediction_equal_the_original(out, logs, golden):
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


def test_a_test_set_with_labels_is_scored(out):
    folder = out / "labelled"
    lines = dict(line.split(" = ") for line in (folder / "test_results.txt").read_text().splitlines())
    assert sorted(lines) == ["global_step", "loss", "test_accuracy", "test_loss"]
    probabilities = numbers_of(folder / "test_results.tsv")
    labels = np.array([NLI[k % 3] for k in range(1, 20, 2)])
    predicted = np.array(["contradiction", "entailment", "neutral"])[probabilities.argmax(1)]
    assert float(lines["test_accuracy"]) == pytest.approx(np.mean(predicted == labels), abs=1e-6)
    assert not (out / "original" / "test_results.txt").exists()  # MNLI's test labels are secret


def test_patience_ends_a_run_for_good(out, logs):
    # With this learning rate nothing improves: steps 4 and 6 are no better than step 2.
    steps = [json.loads(line)["step"] for line in (out / "patience" / "evaluations.jsonl").read_text().splitlines()]
    assert steps == [2, 4, 6] and "Stopping early at step 6 of 10" in logs["patience"]
    assert "patience finished at step 6" in logs["patience again"]
    assert "Evaluation of step 2 on dev" in logs["patience"]  # --use_best_model
    assert "Evaluation of step 6 on dev" in logs["patience again"]
    assert results_of(out / "patience")["global_step"] == 6  # as the second start wrote it
    assert int(weights_of(out / "patience")["global_step"]) == 6


def test_several_labels_from_training_to_prediction(out):
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


def test_a_regression_predicts_numbers(out):
    results = results_of(out / "numbers")
    assert set(results) == {"eval_pearson", "eval_spearman", "eval_loss", "loss", "global_step"}
    records = lines_of(out / "numbers" / "predictions.jsonl")
    table = numbers_of(out / "numbers" / "test_results.tsv")
    assert table.shape == (5, 1) and [set(record) for record in records] == [{"guid", "score"}] * 5
    assert [record["score"] for record in records] == pytest.approx(table[:, 0], rel=1e-5)
    expected = HeadConfig("BertForSequenceClassification", None, "regression", pairs=True)
    assert HeadConfig.read(str(out / "numbers" / "head_config.json")) == expected
    assert not list((out / "numbers").glob("confusion_matrix*"))


def test_labels_come_with_the_model(out):
    records = lines_of(out / "from the best model" / "predictions.jsonl")
    assert len(records) == 5 and all(list(record["probabilities"]) == ["a", "b"] for record in records)
    assert not list((out / "from the best model").glob("model.ckpt*"))


def test_training_alone_needs_no_dev_file(out, logs):
    assert "No evaluation while training" in logs["no dev file"] and "rte/dev.tsv" in logs["no dev file"]
    assert not (out / "no dev file" / "best_model").exists()
    assert int(weights_of(out / "no dev file")["global_step"]) == 2


def test_weights_of_classes_reach_the_loss_and_are_recorded(out, logs):
    assert "are not named and have weight 1: not_entailment" in logs["weighted"]
    plain, weighted = (weights_of(out / case)["output_weights"] for case in ("no dev file", "weighted"))
    assert np.abs(plain - weighted).max() > 1e-4
    assert json.loads((out / "weighted" / "run.json").read_text())["class_weights"] == "entailment=9"
    assert "class_weights" in (out / "weighted" / "README.md").read_text()


MODELS = {
    "run_classifier": (task_models.BertForSequenceClassification, {"labels": ["down", "up"]}),
    "run_squad": (task_models.BertForQuestionAnswering, {}),
}


@pytest.fixture(scope="module", params=["run_classifier", "run_squad"])
def taught(request, tmp_path_factory):
    script, folder = request.param, tmp_path_factory.mktemp(request.param)
    out, (kind, own) = folder / "out", MODELS[script]
    start = save_model(folder / "start", "bert", task_models.BertModel, seed=8)
    flags = {"init_checkpoint": start, "keep_checkpoint_max": 2, "output_dir": None}
    training = fine_tuning_flags(script, folder, **flags)
    taught = {**training, "teacher": save_model(folder / "teacher", "bert", kind, **own)}
    layers = {**taught, "init_checkpoint": None, "student_layers": "1,0", "learning_rate": 1e-30}
    done = {"whole": {**taught, "num_train_epochs": 3}, "without": training, "layers": layers}
    done |= {"layers again": {**layers, "num_train_epochs": 2, "output_dir": out / "layers"}}
    done |= {"seeds": {**taught, "num_seeds": 2, "dtype": "bfloat16", "distillation_weight": 1}}
    electra, few, short = (
        {**taught, "teacher": save_model(folder / name, family, kind, **own, max_length=most)}
        for name, family, most in (("electra", "electra", 64), ("few", "albert", 64), ("short", "bert", 23))
    )
    student = save_model(folder / "student", "distilbert", task_models.BertModel)
    done["other family"] = {**electra, "init_checkpoint": student}
    refused = {
        "size": (few, "few does not read the student's rows: its tokenizer has another vocab."),
        "length": (short, "--teacher: *short takes rows of at most 23 tokens, not 24."),
    }
    if script == "run_classifier":
        numbers = folder / "numbers.csv"
        numbers.write_text("text,verdict\n" + "".join(f"good w{k} w{k + 1},{k % 7}.5\n" for k in range(32)))
        files = {"train_file": numbers, "dev_file": numbers, "regression": True}
        own = {"num_labels": 1, "problem_type": "regression"}
        done["regression"] = taught | files | {"teacher": save_model(folder / "regression", "bert", kind, **own)}
    return out, run_and_refuse(script, out, done, refused)


@pytest.mark.slow  # in small: models/test_objectives.py
def test_only_the_student_is_saved(taught):
    out, logs = taught
    assert "Teacher: the ELECTRA of 2 layers" in logs["other family"]
    assert (out / "other family" / "distilbert_config.json").exists()
    encoder = weights_of(out.parent / "start")
    for folder in (out / "whole", out / "whole" / "best_model"):
        weights = weights_of(folder)
        trained = {name for name in weights if "/adam_" not in name} - {"global_step"}
        assert trained >= encoder.keys() and len(trained - encoder.keys()) == 2  # the output layer
        assert any((weights[name] != encoder[name]).any() for name in encoder if "layer_0" in name)
    recorded = json.loads((out / "whole" / "run.json").read_text())
    assert recorded["teacher"] == str(out.parent / "teacher") and len(recorded["teacher_checksum"]) == 8


@pytest.mark.slow  # in small: models/test_objectives.py
def test_the_student_starts_from_layers_of_the_teacher(taught):
    out, logs = taught
    teacher, student = weights_of(out.parent / "teacher"), weights_of(out / "layers" / "model.ckpt-4")
    assert json.loads((out / "layers" / "bert_config.json").read_text())["num_hidden_layers"] == 2
    student = {name: value for name, value in student.items() if name.startswith("bert/") and "adam" not in name}
    assert "bert/pooler/dense/kernel" in student and len(student) == 5 + 2 * 16 + 2
    for name, value in student.items():
        name = name.replace("layer_1", "layer_x").replace("layer_0", "layer_1").replace("layer_x", "layer_0")
        np.testing.assert_allclose(value, teacher[name], rtol=0, atol=1e-20, err_msg=name)  # the rate moves zeros
    said = " variables begin anew (not what a student takes over): "
    assert said in logs["layers"] and "keep their random" not in logs["layers"]
    assert "Resuming at step 4" in logs["layers again"]


LENGTH, STRIDE, MOST = 12, 5, 4  # the windows see 10 + 3 * 5 tokens of a text
long_texts = functools.partial(texts_of, words=10, longest=24)


@pytest.fixture(scope="module")
def of_windows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    out = folder / "out"
    short = fine_tuning_flags(
        "run_classifier", folder, max_seq_length=LENGTH, train_batch_size=16, num_train_epochs=12, output_dir=None,
        eval_every_steps=72, learning_rate=5e-3, static_padding=True,
    )  # fmt: skip
    for seed, (name, count) in enumerate((("train", 96), ("dev", 40), ("test", 9))):
        write_classification(folder / f"{name}.csv", long_texts(count, seed))
    windows = {**short, "long_texts": "windows", "max_windows": MOST}
    predict = {**short, "do_train": False, "do_eval": False, "do_predict": True}
    used = {**predict, "init_checkpoint": out / "windows" / "best_model"}
    done = {
        "windows": {**windows, "do_predict": True, "use_best_model": True, "write_tf_records": True},
        "used": {**used, "predict_batch_size": 3},
        "other length": {**used, "max_seq_length": 40, "predict_batch_size": 3},
    }  # fmt: skip
    refused = {
        "other pooling": ({**used, "window_pooling": "max"},
                          "--window_pooling=max contradicts *windows/best_model, which was trained on windows, pooled"),
        "stride of none": ({**short, "window_stride": 3}, "--window_stride=3 is for --long_texts=windows."),
    }  # fmt: skip
    return folder / "out", run_and_refuse("run_classifier", folder / "out", done, refused)


@pytest.mark.slow  # in small: models/test_similarity.py
def test_a_model_learns_from_all_of_a_text(of_windows):
    out, logs = of_windows
    assert results_of(out / "windows")["eval_accuracy"] > 0.9
    expected = {"window_pooling": "mean", "window_stride": STRIDE, "max_windows": MOST}
    head = json.loads((out / "windows" / "best_model" / "head_config.json").read_text())
    assert expected.items() <= head.items()
    longer = sum(len(words) > 10 for words, *_ in long_texts(96, 0))
    assert f"{longer} of 96 texts are longer than --max_seq_length=12; all texts together make " in logs["windows"]
    assert "need more than" not in logs["windows"] and (out / "windows" / "train.tf_record").exists()


@pytest.mark.slow  # in small: models/test_similarity.py
def test_a_model_of_windows_answers_everywhere_alike(of_windows):
    out, logs = of_windows
    assert "Windows of 12 tokens, as in training; --max_seq_length is not used." in logs["other length"]
    other, used, windows = (numbers_of(out / name / "test_results.tsv") for name in ("other length", "used", "windows"))
    np.testing.assert_array_equal(other, used)
    np.testing.assert_allclose(windows, used, atol=1e-6)
    predictor = Predictor(str(out / "windows" / "best_model"))
    assert (predictor.max_seq_length, predictor.windows.stride, predictor.windows.most) == (LENGTH, STRIDE, MOST)
    found = predictor.predict([" ".join(words) for words, *_ in long_texts(9, 2)])
    found = [list(prediction["probabilities"].values()) for prediction in found]
    np.testing.assert_allclose(found, windows, atol=1e-5)
    filling = "w1 " * 12
    assert (predictor(filling + "good")["label"], predictor(filling + "bad")["label"]) == ("up", "down")


def test_a_module_is_fine_tuned_from_its_address(tmp_path):
    folder, golden = tmp_path, GOLDEN
    module = folder / "module"  # as the original exported it for TF1: no configuration
    (module / "variables").mkdir(parents=True)
    (module / "assets").mkdir()
    for path in (golden / "model" / "config1").glob("bert_model.ckpt.*"):
        (module / "variables" / path.name.replace("bert_model.ckpt", "variables")).write_bytes(path.read_bytes())
    vocab = (golden / "classifier" / "end_to_end" / "vocab.txt").read_bytes()
    (module / "assets" / "vocab.txt").write_bytes(vocab)
    (module / "saved_model.pb").write_bytes(b"")
    with tarfile.open(folder / "bert.tar.gz", "w:gz") as archive:
        archive.add(module, arcname=".")
    rows = "".join(f"some words {number}\t{'ab'[number % 2]}\n" for number in range(8))
    (folder / "train.tsv").write_text("text\tlabel\n" + rows)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    flags = {
        "task_name": "custom", "text_a": "text", "label": "label", "train_file": folder / "train.tsv", "seed": 3,
        "bert_config_file": golden / "model" / "config1" / "bert_config.json", "do_train": True, "max_seq_length": 16,
        "train_batch_size": 4, "num_train_epochs": 1, "write_tf_records": False, "deterministic": True,
    }  # fmt: skip
    with serving(handler) as server, pytest.MonkeyPatch.context() as environment:
        environment.setenv("BERT_TF_CACHE", str(folder / "cache"))
        name, address = "bert_hub_module_handle", f"http://127.0.0.1:{server.server_port}/bert.tar.gz"
        done = {"address": {**flags, name: address}}
        both = {**flags, name: module, "init_checkpoint": module}
        refused = {
            "weights, too": (both, "--init_checkpoint: here the weights are those of --bert"),
            "no such directory": ({**flags, name: folder / "none"}, "--bert_hub_module_handle="),
        }
        logs = run_and_refuse("run_classifier_with_tfhub", folder / "out", done, refused)
    assert f"from {folder}/cache/" in logs["address"] and len(list((folder / "cache" / "tfhub").iterdir())) == 1
    start, end = weights_of(folder / "module" / "variables" / "variables"), weights_of(folder / "out" / "address")
    name = "bert/embeddings/position_embeddings"  # the later ones learn nothing
    np.testing.assert_allclose(end[name], start[name], atol=1e-3)
    assert int(end["global_step"]) == 2 and (end[name] != start[name]).any()
    vocab = (folder / "module" / "assets" / "vocab.txt").read_bytes()
    assert (folder / "out" / "address" / "vocab.txt").read_bytes() == vocab

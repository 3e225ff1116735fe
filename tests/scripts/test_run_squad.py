"""run_squad.py on a tiny model: the original's results, learning, records, windows, and what it refuses."""

import gzip
import json
import random
import re

import numpy as np
import pytest
import tensorflow as tf
from helpers.basics import GOLDEN, directory_of
from helpers.script_cases import results_of, run_and_refuse
from helpers.tiny import ONE_LAYER, PIECES, texts_of, write_encoder, write_questions

from bert_tf import FullTokenizer, QuestionAnswerer
from bert_tf.tasks.squad.data import read_squad_examples
from bert_tf.tasks.squad.windows import WindowSettings, build_windows

WINDOWS = WindowSettings(32, 12, 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("squad")
    write_encoder(folder, PIECES)
    directory_of(folder / "spaced", added_tokens__json={"New York": len(PIECES)})
    write_encoder(folder / "spaced", PIECES, {**ONE_LAYER, "vocab_size": len(PIECES) + 1})
    for seed, (name, count) in enumerate({"train": 64, "dev": 23, "train1": 24, "further1": 8, "dev1": 11}.items()):
        texts, broken = texts_of(count, seed, longest=45), (3, 4) if name == "train1" else ()
        write_questions(folder / f"{name}.json", texts, version_2=not name.endswith("1"), broken=broken)
    return folder


SHORT = {
    "max_seq_length": 32, "doc_stride": 12, "max_query_length": 4, "train_batch_size": 8, "learning_rate": 4e-3,
    "seed": 3, "deterministic": True, "num_virtual_cpus": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def ran(folder):
    golden, out = GOLDEN, folder / "out"
    original = {
        "vocab_file": golden / "classifier" / "end_to_end" / "vocab.txt", "max_seq_length": 48, "doc_stride": 16,
        "bert_config_file": golden / "model" / "config1" / "bert_config.json", "max_query_length": 12,
        "init_checkpoint": golden / "model" / "config1" / "squad.ckpt", "do_predict": True, "static_padding": True,
        "num_virtual_cpus": 2,
    }  # fmt: skip
    files = {version: golden / "squad" / "end_to_end" / version / "predict.json" for version in ("v1.1", "v2.0")}
    training = {
        **SHORT, "init_checkpoint": folder / "encoder", "do_train": True, "do_eval": True, "num_train_epochs": 8,
        "train_file": folder / "train.json", "dev_file": folder / "dev.json", "version_2_with_negative": True,
        "eval_every_steps": 32, "static_padding": True,
    }  # fmt: skip
    predict = {
        **SHORT, "do_predict": True, "predict_file": folder / "dev.json", "version_2_with_negative": True,
        "init_checkpoint": out / "trained" / "best_model", "write_tf_records": False,
    }  # fmt: skip
    first = {
        **SHORT, "init_checkpoint": folder / "encoder", "do_train": True, "num_train_epochs": 1,
        "train_file": f"{folder}/train1.json,{folder}/further1.json", "write_tf_records": False, "static_padding": True,
    }  # fmt: skip
    two_devices = {"distribution_strategy": "mirrored"}
    done = {
        "original 1": {**original, "predict_file": files["v1.1"]},
        "original 2": {**original, "predict_file": files["v2.0"], "version_2_with_negative": True},
        "trained": {**training, "do_predict": True, "predict_file": folder / "dev.json"},
        "again": {**training, "output_dir": out / "trained"},
        "predicted": predict,
        "threshold": {**predict, "null_score_diff_threshold": -1000, "metric": "klue"},
        "other batches": {**predict, **two_devices, "static_padding": True, "predict_batch_size": 6},
        "version 1": {**first, "do_predict": True, "predict_file": folder / "dev1.json", "steps_from_windows": True,
                      "answer_from": "offsets"},
    }  # fmt: skip
    spaced = {**first, "init_checkpoint": folder / "spaced" / "encoder", "answer_from": "words"}
    message = "added tokens of this model have spaces in them: give --answer_from=offsets."
    refused = {"words with spaces": (spaced, message)}
    return folder / "out", run_and_refuse("run_squad", folder / "out", done, refused)


def json_of(path):
    return json.loads(path.read_text())


@pytest.mark.parametrize(("case", "version"), [("original 1", "v1.1"), ("original 2", "v2.0")])
def test_predictions_equal_the_original(out, golden, case, version):
    expected = golden / "squad" / "end_to_end" / version
    assert json_of(out / case / "predictions.json") == json_of(expected / "predictions.json")
    nbest = json.loads(gzip.decompress((expected / "nbest_predictions.json.gz").read_bytes()))
    found = json_of(out / case / "nbest_predictions.json")
    assert list(found) == list(nbest) and len(nbest) == 6
    for key, entries in nbest.items():
        assert len(found[key]) == len(entries) and found[key][0]["text"] == entries[0]["text"]
        for name in ("start_logit", "end_logit", "probability"):
            assert found[key][0][name] == pytest.approx(entries[0][name], abs=1e-4)
        totals = [[entry["start_logit"] + entry["end_logit"] for entry in answers[key]] for answers in (found, nbest)]
        assert totals[0] == pytest.approx(totals[1], abs=3e-4)
    assert (out / case / "eval.tf_record").exists() and (out / case / "eval_results.txt").exists()
    assert (out / case / "null_odds.json").exists() == (version == "v2.0")
    if version == "v2.0":
        odds = [json_of(path / "null_odds.json") for path in (out / case, expected)]
        assert odds[0] == pytest.approx(odds[1], abs=2e-4)


def test_questions_are_learned(out, logs, folder):
    assert len(list((out / "trained" / "windows").iterdir())) == 2
    assert logs["again"].count("windows from ") == 2 and "windows from " not in logs["trained"]
    results = results_of(out / "trained")
    assert results["global_step"] == 64 and results["eval_f1"] >= 90.0 and results["eval_exact_match"] >= 90.0
    assert {"eval_HasAns_f1", "eval_NoAns_f1", "eval_best_f1", "eval_best_f1_threshold"} < set(results)
    assert results["eval_f1"] == pytest.approx(results["eval_best_f1"])  # by the threshold it chose
    evaluations = [json.loads(line) for line in (out / "trained" / "evaluations.jsonl").read_text().splitlines()]
    assert [values["step"] for values in evaluations] == [32, 64]
    assert all(values["eval_f1"] == pytest.approx(values["eval_best_f1"]) for values in evaluations)
    best = json_of(out / "trained" / "best_model" / "eval_results.json")
    assert best["eval_best_f1"] == max(values["eval_best_f1"] for values in evaluations)
    predictions = json_of(out / "trained" / "predictions.json")
    gold = [question for question, _ in questions_of(folder / "dev.json")]
    right = [predictions[q["id"]] == (q["answers"][0]["text"] if q["answers"] else "") for q in gold]
    assert len(right) == len(predictions) == 23 and 100 * sum(right) / 23 == pytest.approx(results["eval_exact_match"])


def questions_of(path):
    for paragraph in json_of(path)["data"][0]["paragraphs"]:
        yield paragraph["qas"][0], paragraph["context"]


def test_the_threshold_stays_with_the_model(out, logs):
    best = json_of(out / "trained" / "best_model" / "eval_results.json")
    stored = json_of(out / "trained" / "best_model" / "question_answering.json")
    threshold = stored["null_score_diff_threshold"]
    official = best["eval_best_f1_threshold"]
    assert official != 0.0 and threshold > official
    assert (stored["max_seq_length"], stored["doc_stride"], stored["version_2_with_negative"]) == (32, 12, True)
    assert f"null_score_diff_threshold {threshold:.4f}, from the file next to" in logs["predicted"]
    results = results_of(out / "predicted")
    assert results["eval_f1"] == pytest.approx(best["eval_best_f1"], abs=1e-4)
    predictions, odds = (json_of(out / "predicted" / f"{name}.json") for name in ("predictions", "null_odds"))
    assert all((predictions[key] == "") == (odds[key] > threshold) for key in odds)
    # Half-way between the odds of two questions, the lower of which is the official one.
    following = min((value for value in odds.values() if value > official + 1e-3), default=official + 1.0)
    assert threshold == pytest.approx((official + following) / 2, abs=1e-3)
    # The command line takes precedence.
    assert set(json_of(out / "threshold" / "predictions.json").values()) == {""}
    assert json_of(out / "threshold" / "null_odds.json") == odds
    scores = results_of(out / "threshold")  # by another metric
    assert {"eval_rouge_w", "eval_HasAns_rouge_w"} < set(scores) and not [name for name in scores if "f1" in name]


def test_the_model_answers_in_a_notebook_as_the_script(out, folder):
    answerer = QuestionAnswerer(str(out / "trained" / "best_model"))
    asked = list(questions_of(folder / "dev.json"))
    answers = answerer.predict([(question["question"], context) for question, context in asked])
    predictions = json_of(out / "predicted" / "predictions.json")
    odds = json_of(out / "predicted" / "null_odds.json")
    # The threshold keeps its distance from every question's odds, so that rounding decides no question.
    assert min(abs(value - answerer.predictions.null_score_diff_threshold) for value in odds.values()) > 1e-4
    for answer, (question, context) in zip(answers, asked, strict=True):
        assert answer["answer"] == predictions[question["id"]]
        if answer["answer"]:
            assert context[answer["start"] : answer["end"]] == answer["answer"]


def test_predictions_depend_neither_on_devices_nor_on_padding(out, logs, folder):
    """The last batch is partial in each case, and every window counts."""
    windows = build_windows(
        read_squad_examples([str(folder / "dev.json")], False, True).examples,
        FullTokenizer(str(folder / "vocab.txt")), WINDOWS, False,
    )  # fmt: skip
    assert len(windows) % 6 and len(windows) % 8, len(windows)
    assert f"23 questions, {len(windows)} windows" in logs["other batches"] and "replicas: 2" in logs["other batches"]
    folders = out / "other batches", out / "predicted"
    assert len({(path / "predictions.json").read_text() for path in folders}) == 1
    odds, nbest = ([json_of(path / f"{name}.json") for path in folders] for name in ("null_odds", "nbest_predictions"))
    assert odds[0] == pytest.approx(odds[1], abs=1e-4)
    for found, expected in zip(*(answers.values() for answers in nbest), strict=True):
        scores = [[entry["probability"] for entry in entries] for entries in (found, expected)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-4)


def test_records_are_in_the_order_of_the_original(out, folder):
    examples = read_squad_examples([str(folder / "train.json")], True, True).examples
    random.Random(12345).shuffle(examples)
    windows = build_windows(examples, FullTokenizer(str(folder / "vocab.txt")), WINDOWS, True)
    batch = windows.batch(np.arange(len(windows)), 32)
    batch |= {"unique_ids": windows.unique_ids, "is_impossible": windows.is_impossible}
    count = 0
    for raw in tf.data.TFRecordDataset(str(out / "trained" / "train.tf_record")).as_numpy_iterator():
        features = tf.train.Example.FromString(raw).features.feature
        assert set(features) == set(batch)
        for name, values in batch.items():
            assert list(features[name].int64_list.value) == np.ravel(values[count]).tolist(), (count, name)
        count += 1
    assert count == len(windows) > 64 and batch["is_impossible"].any() and not batch["is_impossible"].all()
    assert not list((out / "predicted").glob("*.tf_record"))


def test_two_files_of_version_1_and_steps_by_windows(out, logs, folder):
    data = read_squad_examples([str(folder / "train1.json"), str(folder / "further1.json")], True, False, "offsets")
    assert len(data.examples) == 30 and len(data.skipped) == 2
    results = results_of(out / "version 1")
    assert set(results) == {"eval_exact_match", "eval_f1", "global_step"}
    windows = int(re.search(r"30 questions, (\d+) windows", logs["version 1"])[1])
    assert results["global_step"] == windows // 8 > 30 // 8
    lines = (out / "version 1" / "skipped_questions.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["q3", "q4"]
    assert "2 of 32 questions are left out" in logs["version 1"]
    assert not (out / "version 1" / "null_odds.json").exists() and not (out / "version 1" / "best_model").exists()
    assert len(json_of(out / "version 1" / "predictions.json")) == 11
    assert len(list((out / "version 1" / "windows").iterdir())) == 2
    stored = json_of(out / "version 1" / "question_answering.json")
    assert stored["answer_from"] == "offsets" and stored["version_2_with_negative"] is False

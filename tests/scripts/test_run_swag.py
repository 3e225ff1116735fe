"""run_swag.py on a tiny model: learning, files in and out."""

import json

import numpy as np
import pytest
from helpers.paths import lines_of
from helpers.script_cases import results_of, run_and_refuse
from helpers.tiny import ONE_LAYER, write_encoder

from bert_tf import BertForMultipleChoice, FullTokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "right", *(f"w{number}" for number in range(94))]


def examples_of(count, num_choices, seed):
    """(context, question, choices, label): the correct choice has the word `right`."""
    generator = np.random.default_rng(seed)

    def words(most):
        return [f"w{number}" for number in generator.integers(0, 94, generator.integers(1, most))]

    for _ in range(count):
        choices, label = [words(8) for _ in range(num_choices)], int(generator.integers(num_choices))
        choices[label].insert(int(generator.integers(len(choices[label]) + 1)), "right")
        yield " ".join(words(10)), " ".join(words(4)), [" ".join(choice) for choice in choices], label


def write_csv(path, count, seed, labels=True):
    lines = ["number,sent1,sent2,ending0,ending1,ending2,ending3" + ",label" * labels]
    for number, (context, question, choices, label) in enumerate(examples_of(count, 4, seed)):
        lines.append(",".join([str(number), context, question, *choices, *[str(label)] * labels]))
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("choice")
    write_encoder(folder, PIECES, ONE_LAYER)
    write_csv(folder / "train.csv", 64, 0)
    write_csv(folder / "dev.csv", 30, 1)
    write_csv(folder / "test.csv", 9, 2, labels=False)
    six = (
        {"premise": context, "answers": choices, "gold": "ABCDEF"[label]}
        for context, _, choices, label in examples_of(20, 6, 3)
    )
    (folder / "six.jsonl").write_text("".join(json.dumps(row) + "\n" for row in six))
    two = (["가", context, *choices, f"{label + 1}\n"] for context, _, choices, label in examples_of(24, 2, 4))
    (folder / "numbered.tsv").write_text("".join(map("\t".join, two)), encoding="cp949")
    return folder


@pytest.fixture(scope="module")
def ran(folder):
    """Output folder, and what each case wrote to stderr; later cases are built on earlier ones."""
    short = {"max_seq_length": 24, "predict_batch_size": 4, "num_virtual_cpus": 2, "do_predict": True}
    predict = {**short, "init_checkpoint": folder / "out" / "trained" / "best_model"}
    six = {"test_file": folder / "six.jsonl", "context": "premise", "choices": "answers", "label": "gold"}
    two = {"test_file": folder / "numbered.tsv", "context": 1, "choices": "2,3", "label": 4, "encoding": "cp949"}
    two |= {**predict, "first_label": 1}
    files = {f"{name}_file": folder / f"{name}.csv" for name in ("train", "dev", "test")}
    training = {"do_train": True, "do_eval": True, "num_train_epochs": 6, "train_batch_size": 8, "learning_rate": 2e-3}
    training |= {"init_checkpoint": folder / "encoder", "seed": 3, "deterministic": True, "eval_every_steps": 24}
    training["static_padding"] = True
    done = {"trained": {**short, **files, **training}, "six": {**predict, **six, "first_label": "A"}, "two": two}
    done |= {"two otherwise": {**two, "distribution_strategy": "mirrored", "static_padding": True}}
    return folder / "out", run_and_refuse("run_swag", folder / "out", done, {})


def test_choices_are_learned(ran):
    out, logs = ran
    results = results_of(out / "trained")
    assert set(results) == {"eval_accuracy", "eval_loss", "loss", "global_step"}
    assert results["eval_accuracy"] >= 0.9 and results["global_step"] == 48
    head = json.loads((out / "trained" / "best_model" / "head_config.json").read_text())
    assert head == {"architecture": "BertForMultipleChoice"} and (out / "trained" / "train.tf_record").exists()
    assert "Example 0, choice " in logs["trained"] and "(right): [CLS]" in logs["trained"]


def test_probabilities_are_those_of_each_choice_alone(ran, folder):
    """Rows written by hand, one at a time without padding, through the model as a notebook would load it."""
    trained = ran[0] / "trained"
    assert not (trained / "test_results.txt").exists()
    model = BertForMultipleChoice.from_pretrained(str(trained))
    tokenizer = FullTokenizer(str(folder / "vocab.txt"))
    found, table = lines_of(trained / "predictions.jsonl"), np.loadtxt(trained / "test_results.tsv")
    for record, values, (context, question, choices, _) in zip(found, table, examples_of(9, 4, 2), strict=True):
        scores = []
        for choice in choices:
            first, second = tokenizer.encode(context), tokenizer.encode(f"{question} {choice}")
            ids = np.array([[[2, *first, 3, *second, 3]]])
            segments = np.array([[[0] * (len(first) + 2) + [1] * (len(second) + 1)]])
            scores.append(float(model({"input_ids": ids, "segment_ids": segments})[0, 0]))
        expected = np.exp(scores) / np.exp(scores).sum()
        np.testing.assert_allclose(record["probabilities"], expected, atol=1e-5)
        np.testing.assert_allclose(values, expected, atol=1e-5)
        assert (record["choice"], record["text"]) == (expected.argmax(), choices[expected.argmax()])
        assert "label" not in record


def test_any_number_of_choices_in_any_batches(ran):
    """A model trained on four choices predicts one of six and of two; padding and devices change nothing."""
    out, logs = ran
    records = lines_of(out / "six" / "predictions.jsonl")
    assert {len(record["probabilities"]) for record in records} == {6}
    assert [record["label"] for record in records] == [label for *_, label in examples_of(20, 6, 3)]
    accuracy = np.mean([record["choice"] == record["label"] for record in records])
    results = results_of(out / "six", "test_results.txt")
    assert set(results) == {"test_accuracy", "test_loss", "loss", "global_step"}
    assert results["test_accuracy"] == pytest.approx(accuracy) and accuracy >= 0.8
    found, other = (np.loadtxt(out / name / "test_results.tsv") for name in ("two", "two otherwise"))
    assert found.shape == (24, 2) and "replicas: 2" in logs["two otherwise"]
    np.testing.assert_allclose(found, other, atol=1e-5)

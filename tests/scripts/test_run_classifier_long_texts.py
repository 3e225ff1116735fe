"""run_classifier.py --long_texts=windows on a tiny model: learning, saved models, replicas, and what it refuses."""

import json

import numpy as np
import pytest
from helpers.script_cases import (
    assert_in_order,
    kill_at_checkpoint,
    results_of,
    run_cases,
    selected_cases,
    weights_of,
)
from helpers.tiny import write_encoder

from bert_tf import BertForSequenceClassification, Predictor

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", *(f"w{number}" for number in range(93))]
LENGTH, STRIDE, MOST = 12, 5, 4  # the windows see 10 + 3 * 5 tokens of a text
STEPS, KILLED_AT = 128, 10


def texts_of(count, seed):
    """(words, whether "good" is among them); the others have "bad". The word may be anywhere in a long text."""
    generator = np.random.default_rng(seed)
    for number in range(count):
        words = [f"w{word}" for word in generator.integers(0, 10, generator.integers(2, 24))]
        words.insert(int(generator.integers(len(words) + 1)), ("good", "bad")[number % 2])
        yield words, number % 2 == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("long")
    write_encoder(folder, PIECES)
    BertForSequenceClassification.from_pretrained(
        str(folder / "encoder"), num_labels=2, lstm_on_top=True
    ).save_pretrained(str(folder / "lstm"))
    for seed, (name, count) in enumerate((("train", 128), ("dev", 40), ("test", 9))):
        lines = [f"{' '.join(words)},{('down', 'up')[up]}" for words, up in texts_of(count, seed)]
        (folder / f"{name}.csv").write_text("\n".join(["text,verdict", *lines]) + "\n")
    (folder / "rte").mkdir()
    rows = "".join(f"{number}\tw1 w2\tw3\t{('not_', '')[number % 2]}entailment\n" for number in range(16))
    (folder / "rte" / "train.tsv").write_text("index\tsentence1\tsentence2\tlabel\n" + rows)
    return folder


def cases_of(folder) -> dict:
    """Case -> flags, in the order in which they run; later cases build on earlier ones."""
    out = folder / "out"
    columns = {
        "task_name": "custom", "text_a": "text", "label": "verdict", "max_seq_length": LENGTH, "num_virtual_cpus": 2,
        "write_tf_records": False,
    }  # fmt: skip
    short = {
        **columns, "train_file": folder / "train.csv", "dev_file": folder / "dev.csv", "do_train": True,
        "do_eval": True, "train_batch_size": 16, "num_train_epochs": 16, "seed": 3, "deterministic": True,
        "learning_rate": 3e-3, "init_checkpoint": folder / "encoder", "eval_every_steps": 32,
    }  # fmt: skip
    windows = {**short, "long_texts": "windows", "max_windows": MOST}
    once = {**windows, "num_train_epochs": 1, "keep_checkpoint_max": 1, "window_pooling": "attention"}
    predict = {**columns, "do_predict": True, "test_file": folder / "test.csv"}
    used = {**predict, "init_checkpoint": out / "mean" / "best_model"}
    further = {**short, "init_checkpoint": out / "max" / "best_model", "num_train_epochs": 1}
    long = {**windows, "keep_checkpoint_max": 2, "window_pooling": "attention"}
    return {
        "mean": {**windows, "do_predict": True, "use_best_model": True, "test_file": folder / "test.csv",
                 "write_tf_records": True},
        "used": {**used, "predict_batch_size": 3},
        "other length": {**used, "max_seq_length": 40, "predict_batch_size": 3},
        "again": {**short, "output_dir": out / "mean"},
        "cut": short,
        "max": {**windows, "window_pooling": "max", "window_stride": 10, "static_padding": True},
        "further": further,
        "cut again": {**further, "long_texts": "cut"},
        "kept": long,
        "killed": {**long, "save_checkpoints_steps": 5, "iterations_per_loop": 1},
        "two devices": {**once, "distribution_strategy": "mirrored"},
        "two parts": {**once, "gradient_accumulation_steps": 2},
        # --- refused
        "other pooling": {**used, "window_pooling": "max"},
        "cut after all": {**used, "long_texts": "cut"},
        "not trained so": {**predict, "init_checkpoint": folder / "lstm", "long_texts": "windows"},
        "lstm": {**windows, "init_checkpoint": folder / "lstm"},
        "stride of none": {**short, "window_stride": 3},
        "gaps": {**windows, "window_stride": 11},
        "too long": {**windows, "max_seq_length": 64},
        "pairs": {
            **windows, "task_name": "RTE", "data_dir": folder / "rte", "text_a": "", "label": "", "train_file": "",
            "dev_file": "", "do_eval": False,
        },
    }  # fmt: skip


SLOW = {"cut", "max", "further", "cut again", "kept", "killed", "two devices", "two parts"}


@pytest.fixture(scope="module")
def ran(request, folder):
    """Output folder, outcomes by case, and what each wrote to stderr."""
    cases = selected_cases(request, cases_of(folder), SLOW)
    cases = {name: {"output_dir": folder / "out" / name, **values} for name, values in cases.items()}
    if "killed" in cases:
        left = kill_at_checkpoint("run_classifier", cases["killed"], step=KILLED_AT)
        assert left and f"model.ckpt-{STEPS}.index" not in left, "too late to test anything"
    return folder / "out", *run_cases("run_classifier", cases)


def test_a_model_learns_from_all_of_a_text(ran):
    out, outcomes, logs = ran
    assert outcomes["mean"] == "done", logs["mean"]
    assert results_of(out / "mean")["eval_accuracy"] > 0.9
    head = json.loads((out / "mean" / "best_model" / "head_config.json").read_text())
    assert {"window_pooling": "mean", "window_stride": STRIDE, "max_windows": MOST}.items() <= head.items()
    lengths = np.array([len(words) for words, _ in texts_of(128, 0)])
    assert (
        f"{(lengths > 10).sum()} of 128 texts are longer than --max_seq_length=12; all texts together make "
        in logs["mean"]
    )
    assert "need more than" not in logs["mean"]
    assert (out / "mean" / "train.tf_record").exists()


def test_the_saved_model_answers_everywhere_alike(ran, folder):
    out, outcomes, logs = ran
    assert outcomes["used"] == outcomes["other length"] == outcomes["again"] == "done"
    assert "Windows of 12 tokens, as in training; --max_seq_length=40 is not used." in logs["other length"]
    files = [(out / case / "test_results.tsv").read_text() for case in ("mean", "used")]
    assert (out / "other length" / "test_results.tsv").read_text() == files[1]
    probabilities = [np.array([line.split("\t") for line in text.splitlines()], float) for text in files]
    np.testing.assert_allclose(*probabilities, atol=1e-6)
    predictor = Predictor(str(out / "mean" / "best_model"))
    assert (predictor.max_seq_length, predictor.windows.stride, predictor.windows.most) == (LENGTH, STRIDE, MOST)
    texts = [" ".join(words) for words, _ in texts_of(9, 2)]
    found = [list(prediction["probabilities"].values()) for prediction in predictor.predict(texts)]
    np.testing.assert_allclose(found, probabilities[0], atol=1e-5)
    filling = "w1 " * 12
    assert (predictor(filling + "good")["label"], predictor(filling + "bad")["label"]) == ("up", "down")
    with pytest.raises(
        ValueError, match="Example 0 is a pair; a model that reads windows .--long_texts. takes single texts"
    ):
        predictor("w1", "w2")
    with pytest.raises(ValueError, match="the model's window_stride=5: a window of max_seq_length=6 has 4 tokens"):
        Predictor(str(out / "mean" / "best_model"), max_seq_length=6)


@pytest.mark.slow
def test_other_ways(ran):
    out, outcomes, logs = ran
    assert all(outcomes[name] == "done" for name in ("cut", "max", "further", "cut again")), outcomes
    cut, by_max = (results_of(out / name)["eval_accuracy"] for name in ("cut", "max"))
    assert cut < 0.9 < by_max
    heads = {
        name: json.loads((out / name / "best_model" / "head_config.json").read_text())
        for name in ("further", "cut again")
    }
    assert heads["further"]["window_pooling"] == "max" and heads["further"]["window_stride"] == 10
    assert not any("window" in name for name in heads["cut again"])
    assert "and lost their ends: " not in logs["max"]


@pytest.mark.slow
def test_a_killed_run_resumes_bit_for_bit(ran):
    out, outcomes, logs = ran
    assert outcomes["kept"] == outcomes["killed"] == "done" and "Resuming at step " in logs["killed"]
    one, other = (weights_of(out / case / f"model.ckpt-{STEPS}") for case in ("kept", "killed"))
    assert one.keys() == other.keys() and "window_pooling/scores/adam_m" in one
    assert np.abs(one["window_pooling/scores"]).max() > 1e-3
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


@pytest.mark.slow
def test_two_devices_and_two_parts_make_the_same_steps(ran):
    out, outcomes, logs = ran
    assert outcomes["two devices"] == outcomes["two parts"] == "done" and "2 replicas" in logs["two devices"]
    one, two = (weights_of(out / name / "model.ckpt-8") for name in ("two parts", "two devices"))
    for name, value in two.items():
        if "adam" not in name and "key/bias" not in name:  # the gradient of key biases is only rounding errors
            np.testing.assert_allclose(one[name], value, atol=1e-3, err_msg=name)


REFUSED = {
    "other pooling": "ValueError: --window_pooling=max contradicts *mean/best_model, which was trained with mean.",
    "cut after all": "ValueError: --long_texts=cut contradicts *mean/best_model, which was trained on windows, pooled",
    "not trained so": "ValueError: --long_texts=windows contradicts *lstm, which was trained on texts that are cut.",
    "lstm": "ValueError: --long_texts=windows combines pooled outputs; *lstm has a BiLSTM on top instead.",
    "stride of none": "ValueError: --window_stride=3 is for --long_texts=windows.",
    "gaps": "ValueError: --window_stride=11: a window of max_seq_length=12 has 10 tokens of the text, so that those",
    "too long": "ValueError: --max_seq_length=64 is more than max_position_embeddings=32",
    "pairs": "ValueError: Example train-1 is a pair; a model that reads windows (--long_texts) takes single texts.",
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_line(ran, case):
    out, outcomes, _ = ran
    assert_in_order(REFUSED[case], outcomes[case])
    assert "\n" not in outcomes[case] and not (out / case).exists()

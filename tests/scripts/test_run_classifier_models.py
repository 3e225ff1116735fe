"""run_classifier.py on windows of long texts: trained, used alike, refused."""

import json

import numpy as np
import pytest
from helpers.scenarios import fine_tuning_flags
from helpers.script_cases import results_of, run_and_refuse

from bert_tf import Predictor

LENGTH, STRIDE, MOST = 12, 5, 4  # the windows see 10 + 3 * 5 tokens of a text
pytestmark = pytest.mark.slow  # in small: models/test_similarity.py


def texts_of(count, seed):
    """(words, whether "good" is among them); the others have "bad". The word may be anywhere in a long text."""
    generator = np.random.default_rng(seed)
    for number in range(count):
        words = [f"w{word}" for word in generator.integers(0, 10, generator.integers(2, 24))]
        words.insert(int(generator.integers(len(words) + 1)), ("good", "bad")[number % 2])
        yield " ".join(words), number % 2 == 0


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Output folder, and what each case wrote to stderr; later cases are built on earlier ones."""
    folder = tmp_path_factory.mktemp("models")
    out = folder / "out"
    short = fine_tuning_flags(
        "run_classifier", folder, max_seq_length=LENGTH, train_batch_size=16, num_train_epochs=12, output_dir=None,
        eval_every_steps=72, learning_rate=5e-3, static_padding=True,
    )  # fmt: skip
    for seed, (name, count) in enumerate((("train", 96), ("dev", 40), ("test", 9))):
        lines = [f"{text},{('down', 'up')[up]}" for text, up in texts_of(count, seed)]
        (folder / f"{name}.csv").write_text("\n".join(["text,verdict", *lines]) + "\n")
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
                          "--window_pooling=max contradicts *windows/best_model, trained with mean."),
        "cut after all": ({**used, "long_texts": "cut"},
                          "--long_texts=cut contradicts *windows/best_model, which was trained on windows, pooled"),
        "stride of none": ({**short, "window_stride": 3}, "--window_stride=3 is for --long_texts=windows."),
    }  # fmt: skip
    return folder / "out", run_and_refuse("run_classifier", folder / "out", done, refused)


def probabilities_of(folder) -> np.ndarray:
    return np.loadtxt(folder / "test_results.tsv")


def test_a_model_learns_from_all_of_a_text(ran):
    out, logs = ran
    assert results_of(out / "windows")["eval_accuracy"] > 0.9
    expected = {"window_pooling": "mean", "window_stride": STRIDE, "max_windows": MOST}
    head = json.loads((out / "windows" / "best_model" / "head_config.json").read_text())
    assert expected.items() <= head.items()
    longer = sum(text.count(" ") >= 10 for text, _ in texts_of(96, 0))
    assert f"{longer} of 96 texts are longer than --max_seq_length=12; all texts together make " in logs["windows"]
    assert "need more than" not in logs["windows"] and (out / "windows" / "train.tf_record").exists()


def test_a_model_of_windows_answers_everywhere_alike(ran):
    out, logs = ran
    assert "Windows of 12 tokens, as in training; --max_seq_length is not used." in logs["other length"]
    np.testing.assert_array_equal(*map(probabilities_of, (out / "other length", out / "used")))
    np.testing.assert_allclose(*map(probabilities_of, (out / "windows", out / "used")), atol=1e-6)
    predictor = Predictor(str(out / "windows" / "best_model"))
    assert (predictor.max_seq_length, predictor.windows.stride, predictor.windows.most) == (LENGTH, STRIDE, MOST)
    found = predictor.predict([text for text, _ in texts_of(9, 2)])
    found = [list(prediction["probabilities"].values()) for prediction in found]
    np.testing.assert_allclose(found, probabilities_of(out / "windows"), atol=1e-5)
    filling = "w1 " * 12
    assert (predictor(filling + "good")["label"], predictor(filling + "bad")["label"]) == ("up", "down")
    with pytest.raises(ValueError, match="Example 0 is a pair; a model of windows .--long_texts. takes single"):
        predictor("w1", "w2")
    with pytest.raises(ValueError, match="window_stride=5: a window of max_seq_length=6 has 4 tokens"):
        Predictor(str(out / "windows" / "best_model"), max_seq_length=6)

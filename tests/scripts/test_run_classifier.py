"""run_classifier.py as users start it, on a tiny model and tiny data."""

import json
import sys

import keras
import numpy as np
import pytest
from helpers import warm
from helpers.paths import TESTS
from helpers.tiny import ONE_LAYER

from bert_tf import Predictor
from bert_tf.models.config import BertConfig
from bert_tf.models.task_models import BertModel

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "play", "the"]
PIECES += [f"word{number}" for number in range(100 - len(PIECES))]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A tiny model with its vocabulary, and films that are good or bad."""
    folder = tmp_path_factory.mktemp("world")
    vocab = folder / "vocab.txt"
    vocab.write_text("".join(piece + "\n" for piece in PIECES))
    keras.utils.set_random_seed(0)
    model = BertModel(BertConfig.from_dict(ONE_LAYER))
    model.build()
    model.save_pretrained(str(folder / "model"), vocab_file=str(vocab), do_lower_case=True)
    generator = np.random.default_rng(0)
    for name, count in (("train", 64), ("dev", 21), ("test", 11)):
        rows = []
        for number in range(count):
            words = [f"word{word}" for word in generator.integers(0, 90, generator.integers(1, 12))]
            words.insert(int(generator.integers(0, len(words))), ("good", "bad")[number % 2])
            rows.append(f"{' '.join(words)}\t{('up', 'down')[number % 2]}\t{number % 2 + 0.5}\n")
        (folder / f"{name}.tsv").write_text("text\tverdict\tstars\n" + "".join(rows))
    return folder


def command(world, output, *flags, custom=True):
    data = [f"--{name}_file={world}/{name}.tsv" for name in ("train", "dev", "test")]
    data += ["--task_name=custom", "--text_a=text", "--label=verdict"]
    return [
        sys.executable, str(TESTS.parent / "run_classifier.py"), f"--output_dir={output}", "--max_seq_length=16",
        "--train_batch_size=8", "--num_train_epochs=12", "--learning_rate=2e-3", "--eval_every_steps=24", "--seed=3",
        *(data if custom else []), *flags,
    ]  # fmt: skip


def run(*arguments, fails=False, **options):
    result = warm.run(command(*arguments, **options), capture_output=True, text=True, cwd=TESTS.parent, check=False)
    assert (result.returncode != 0) == fails, result.stderr[-3000:]
    return result


def results_of(path) -> dict:
    lines = (path / "eval_results.txt").read_text().splitlines()
    return {name: float(value) for name, value in (line.split(" = ") for line in lines)}


@pytest.fixture(scope="module")
def trained(world, tmp_path_factory):
    output = tmp_path_factory.mktemp("trained") / "run"
    result = run(
        world, output, f"--init_checkpoint={world}/model", "--do_train", "--do_eval", "--do_predict", "--deterministic"
    )
    assert "Casing from" in result.stderr and "2 classes in" in result.stderr
    return output


@pytest.mark.slow  # in small: test_fine_tuning_runs.py and test_run_classifier_cases.py
def test_a_run_learns_and_writes_its_files(trained):
    results = results_of(trained)
    assert list(results) == ["eval_accuracy", "eval_loss", "eval_macro_f1", "global_step", "loss"]
    assert results["global_step"] == 96 and results["eval_accuracy"] > 0.9
    evaluations = [json.loads(line) for line in (trained / "evaluations.jsonl").read_text().splitlines()]
    assert [values["step"] for values in evaluations] == [24, 48, 72, 96]
    best = json.loads((trained / "best_model" / "eval_results.json").read_text())
    assert best["eval_accuracy"] == max(values["eval_accuracy"] for values in evaluations)
    assert len((trained / "test_results.tsv").read_text().splitlines()) == 11
    predictions = [json.loads(line) for line in (trained / "predictions.jsonl").read_text().splitlines()]
    right = [record["label"] == ("up", "down")[number % 2] for number, record in enumerate(predictions)]
    assert sum(right) >= 8 and predictions[0]["guid"] == "test-1"
    for name in ("confusion_matrix.png", "classification_report.txt", "train.tf_record", "eval.tf_record", "run.json"):
        assert (trained / name).stat().st_size > 100
    assert (trained / "confusion_matrix.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_prediction_alone_takes_model_labels_and_casing_from_the_run(world, trained):
    before = (trained / "test_results.tsv").read_text()
    flags = ["--task_name=custom", "--text_a=text", f"--test_file={world}/test.tsv", "--do_predict", "--static_padding"]
    run(world, trained, *flags, custom=False)
    after = (trained / "test_results.tsv").read_text()
    one, other = (np.array([line.split("\t") for line in text.splitlines()], float) for text in (before, after))
    np.testing.assert_allclose(one, other, atol=1e-5)
    predictor = Predictor(str(trained))
    assert predictor.labels == ["down", "up"] and predictor.max_seq_length == 16
    for wrong in ("one text", [("a", "b", "c")], [None], [b"a"]):
        with pytest.raises(TypeError, match="text"):
            predictor.predict(wrong)
    with pytest.raises(TypeError, match="predict"):
        predictor(["a", "b"])
    texts = [line.split("\t")[0] for line in (world / "test.tsv").read_text().splitlines()[1:]]
    given = [list(record["probabilities"].values()) for record in predictor.predict(texts)]
    np.testing.assert_allclose(given, other, atol=1e-5)


@pytest.mark.slow  # in small: test_run_classifier_cases.py
def test_two_devices_accumulation_and_seeds(world, trained, tmp_path):
    flags = [f"--init_checkpoint={world}/model", "--do_train", "--do_eval", "--num_train_epochs=2", "--num_seeds=2"]
    flags += ["--distribution_strategy=mirrored", "--num_virtual_cpus=2", "--gradient_accumulation_steps=2"]
    flags += ["--early_stopping_patience=1", "--use_best_model", "--nowrite_tf_records"]
    result = run(world, tmp_path / "run", *flags)
    summary = json.loads((tmp_path / "run" / "seeds.json").read_text())
    assert set(summary["seeds"]) == {"3", "4"} and "2 seeds, the best by eval_accuracy is" in result.stdout
    accuracies = [values["eval_accuracy"] for values in summary["seeds"].values()]
    assert summary["summary"]["eval_accuracy"]["max"] == max(accuracies)
    best = json.loads((tmp_path / "run" / "best_model" / "eval_results.json").read_text())
    assert best["eval_accuracy"] == max(accuracies)
    assert not list((tmp_path / "run").rglob("*.tf_record"))


@pytest.mark.slow  # in small: test_run_classifier_cases.py
def test_regression_and_mistakes(world, tmp_path):
    flags = [f"--init_checkpoint={world}/model", "--do_train", "--do_eval", "--do_predict"]
    run(world, tmp_path / "run", *flags, "--label=stars", "--regression")
    assert {"eval_pearson", "eval_spearman"} < set(results_of(tmp_path / "run"))
    first = json.loads((tmp_path / "run" / "predictions.jsonl").read_text().splitlines()[0])
    assert set(first) == {"guid", "score"}
    for extra, message in (
        (["--label=nope"], r"train.tsv, line 1: no column 'nope'"),
        (["--do_lower_case=false"], "do_lower_case=False contradicts"),
        (["--max_seq_length=64"], "--max_seq_length=64 is more than max_position_embeddings=32"),
        (["--train_batch_size=500", "--num_train_epochs=1"], "give less than one step"),
    ):
        result = run(world, tmp_path / "bad", *flags, *extra, fails=True)
        assert message in result.stderr.splitlines()[-1], result.stderr[-500:]
        assert not list(tmp_path.glob("bad/model.ckpt*"))

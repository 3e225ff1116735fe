"""Token ids are the original's; batches lose no examples; metrics, reports and summaries over seeds."""

import logging as python_logging
import types
import unicodedata

import numpy as np
import pytest
import tensorflow as tf
from helpers.basics import lines_of

from bert_tf import FullTokenizer
from bert_tf.data import token_rows
from bert_tf.models import objectives
from bert_tf.store.head_config import NO_HEAD, HeadConfig
from bert_tf.tasks import rows as task_rows
from bert_tf.tasks.choice import data as choice_data
from bert_tf.tasks.choice.data import ChoiceExample
from bert_tf.tasks.classification import data, settings
from bert_tf.tasks.classification import metrics as classification_encode
from bert_tf.tasks.classification.metrics import METRICS, evaluate
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.ner import encode as ner_encode
from bert_tf.tasks.ner.data import Sentence
from bert_tf.tasks.rows import InputExample, Task, TextWindows, encode_examples, windows_of, windows_of_model
from bert_tf.tasks.task import ExampleSet

SEVERAL = Task("custom", ("a", "b", "c"), None, metrics=("micro_f1", "macro_f1"), multi_label=True)


def logits_for(predictions, classes=2) -> np.ndarray:
    return np.eye(classes, dtype=np.float32)[np.asarray(predictions)]


def test_hand_numbers():
    labels = np.array([1, 1, 1, 0, 0, 0, 0, 1])
    logits = logits_for([1, 1, 0, 0, 0, 0, 1, 1])  # 3 of 4 positives found, 1 of 4 negatives taken for one
    assert evaluate(data.find_task("mrpc"), logits, labels, 4)["eval_f1"] == pytest.approx(0.75)
    assert evaluate(data.find_task("cola"), logits, labels, 4)["eval_matthews"] == pytest.approx(0.5)
    assert evaluate(data.find_task("sst-2"), logits, labels, 4)["eval_accuracy"] == pytest.approx(0.75)
    three = Task("custom", ("x", "y", "z"), None, metrics=("accuracy", "macro_f1"))
    # F1 of the classes: 0.5, 0.8, 0.
    results = evaluate(three, logits_for([0, 0, 1, 1, 1], 3), np.array([0, 2, 0, 1, 1]), 5)
    assert results["eval_macro_f1"] == pytest.approx((0.5 + 0.8 + 0) / 3)
    # A class that neither occurs nor is predicted counts as 0, as in the report's "macro avg", and of several labels.
    for task in (Task("custom", tuple("wxyz"), None, metrics=("macro_f1",)), SEVERAL):
        chosen, truth = logits_for([0, 0, 1], len(task.labels)), np.array([0, 1, 1])
        truth = np.eye(3, dtype=int)[truth] if task.multi_label else truth
        results, table = evaluate(task, chosen, truth, 3), classification_encode.report(task, chosen, truth)
        assert results["eval_macro_f1"] == pytest.approx(2 * (2 / 3) / len(task.labels))
        assert f"{results['eval_macro_f1']:.4f}" == table.split("macro avg")[1].split()[2]
    # The chosen class has probability e / (1 + e): the loss is its -log if right, 1 more if wrong.
    right = np.log(1 + np.exp(-1))
    results = evaluate(data.find_task("rte"), logits, labels, 3)
    assert results["eval_loss"] == pytest.approx(right + 2 / 8)
    # Batches of 3, 3 and 2, the wrong ones in the first and the last.
    assert results["loss"] == pytest.approx(right + (1 / 3 + 0 + 1 / 2) / 3)


def test_the_metric_that_chooses_the_best_model():
    three = Task("custom", ("x", "y", "z"), None, metrics=("accuracy", "macro_f1"))
    numbers = Task("custom", None, None, metrics=("pearson", "spearman"))
    for task, best, weighted, metrics in (
        (three, None, False, ("accuracy", "macro_f1")),
        (three, None, True, ("macro_f1", "accuracy")),
        (three, "accuracy", True, ("accuracy", "macro_f1")),
        (data.find_task("rte"), "macro_f1", False, ("macro_f1", "accuracy")),
        (data.find_task("cola"), None, True, ("matthews", "accuracy")),
        (data.find_task("mrpc"), "f1", False, ("f1", "accuracy")),
        *((data.find_task(name), None, False, ("accuracy", "f1")) for name in ("mrpc", "qqp")),
        (data.find_task("sts-b"), None, False, ("pearson", "spearman")),
        (SEVERAL, "eval_macro_f1", False, ("macro_f1", "micro_f1")),  # as the log and eval_results.txt have it
        (numbers, "f1_at_3", False, ("f1_at_3", "pearson", "spearman")),
    ):
        assert settings.with_best_metric(task, best, weighted).metrics == metrics
    for task, best in ((three, "f1"), (numbers, "accuracy"), (SEVERAL, "accuracy")):
        with pytest.raises(ValueError, match=f"--best_metric={best}: this task has "):
            settings.with_best_metric(task, best, False)
    # KLUE-STS: of three pairs from 3 on two are found, and one that is below.
    task = settings.with_best_metric(numbers, "f1_at_3", False)
    logits = np.array([[3.0], [4.5], [2.9], [3.1], [0.2]])
    assert evaluate(task, logits, np.array([3.0, 5.0, 4.0, 2.9, 0.0]), 5)["eval_f1_at_3"] == pytest.approx(2 / 3)


def test_keys_are_the_originals_and_the_tasks():
    labels, logits = np.array([0, 1]), logits_for([0, 1])
    keys = {name: set(evaluate(data.find_task(name), logits, labels, 2)) for name in ("mnli", "cola", "qqp", "wnli")}
    common = {"eval_accuracy", "eval_loss", "loss"}
    assert keys == {
        "mnli": common, "wnli": common, "cola": common | {"eval_matthews"}, "qqp": common | {"eval_f1"},
    }  # fmt: skip
    scores = evaluate(data.find_task("sts-b"), np.array([[1.0], [2.0]]), np.array([1.0, 3.0], np.float32), 2)
    assert set(scores) == {"eval_pearson", "eval_spearman", "eval_loss", "loss"}
    assert all(set(task.metrics) <= set(METRICS) for task in data.TASKS.values())
    kinds = [task.problem_type for task in (data.find_task("rte"), data.find_task("sts-b"), SEVERAL)]
    assert kinds == ["single_label_classification", "regression", "multi_label_classification"]


def test_what_is_not_defined_is_0(caplog):
    labels = np.array([1, 1, 0])
    assert evaluate(data.find_task("cola"), logits_for([1, 1, 1]), labels, 8)["eval_matthews"] == 0.0
    assert evaluate(data.find_task("mrpc"), logits_for([0, 0, 0]), labels, 8)["eval_f1"] == 0.0
    for scores, given in (([[1.0], [1.0]], [1.0, 2.0]), ([[1.0], [2.0]], [3.0, 3.0]), ([[1.0]], [1.0])):
        results = evaluate(data.find_task("sts-b"), np.array(scores), np.array(given, np.float32), 8)
        assert results["eval_pearson"] == results["eval_spearman"] == 0.0
    assert caplog.text.count("spearmanr is not defined, as all scores or all predictions are equal: 0.") == 1


@pytest.mark.parametrize("kind", ["classes", "numbers", "several"])
def test_losses_are_those_of_training(kind):
    generator = np.random.default_rng(2)
    logits = (5 * generator.normal(size=(13, 1 if kind == "numbers" else 3))).astype(np.float32)
    task, objective, labels = {
        "classes": (data.find_task("mnli"), objectives.ClassificationObjective, generator.integers(0, 3, 13)),
        "numbers": (data.find_task("sts-b"), objectives.RegressionObjective, generator.normal(size=13)),
        "several": (SEVERAL, objectives.MultiLabelObjective, generator.integers(0, 2, (13, 3))),
    }[kind]
    labels = labels.astype(np.int32 if kind == "classes" else np.float32)
    losses, _ = objective.values(tf.constant(logits), {"label_ids": tf.constant(labels)})
    np.testing.assert_allclose(classification_encode.example_losses(task, logits, labels), losses, rtol=1e-5)


def test_report_and_confusion_matrix(tmp_path, caplog):
    def analyse(suffix, task, logits, labels):
        run, rows = ClassificationTask(None), types.SimpleNamespace(labels={"label_ids": labels})
        run.task, run.main_metric = task, "eval_accuracy"
        results = {"eval_accuracy": 0.5, "global_step": 1}
        run.write_analysis(str(tmp_path), ExampleSet("dev", rows, suffix=suffix), logits, results)

    task = data.find_task("mnli")
    labels, logits = np.array([0, 1, 1, 0]), logits_for([0, 1, 0, 0], 3)  # a class that never occurs
    analyse("_dev", task, logits, labels)
    table = (tmp_path / "classification_report_dev.txt").read_text()
    rows = {line.split()[0]: line.split()[1:] for line in table.splitlines() if line.strip()}
    assert rows["contradiction"] == ["0.6667", "1.0000", "0.8000", "2"]
    assert rows["entailment"] == ["1.0000", "0.5000", "0.6667", "2"]
    assert rows["neutral"] == ["0.0000", "0.0000", "0.0000", "0"]
    assert (tmp_path / "confusion_matrix_dev.png").read_bytes()[:4] == b"\x89PNG"
    assert "All" not in caplog.text
    analyse("_dev", task, logits_for([1] * 4, 3), labels)
    assert "All 4 predictions are 'entailment': the model tells no classes apart" in caplog.text
    analyse("_several", SEVERAL, logits[:1].repeat(4, 0), logits)
    assert "All 4 predictions are ['a']: the model" in caplog.text
    assert "micro avg" in (tmp_path / "classification_report_several.txt").read_text()
    analyse("_numbers", data.find_task("sts-b"), logits[:, :1], labels)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("length", [32, 128])
@pytest.mark.parametrize("kind", ["train", "dev", "test"])
@pytest.mark.parametrize("name", ["cola", "mnli", "mrpc", "xnli"])
def test_features_equal_the_originals(golden, english, name, kind, length):
    file = golden / "classifier" / name / f"features_{kind}_{length}.jsonl.gz"
    if not file.exists():
        assert (name, kind) == ("xnli", "test")  # the original never read it
        return
    expected = [record for record in lines_of(file) if record["is_real_example"]]  # the others pad a batch of a TPU
    task = data.find_task(name)
    split = task.train if kind == "train" else next(iter((task.dev if kind == "dev" else task.test).values()))
    examples = data.read_examples(task, split, str(golden / "classifier" / name))
    encoded = encode_examples(examples, task, english, length)
    assert len(examples) == len(expected) >= 6
    arrays = encoded.batch(range(len(encoded)), length)
    for row, (example, record) in enumerate(zip(examples, expected, strict=True)):
        assert (example.guid, example.text_a, example.text_b) == (record["guid"], record["text_a"], record["text_b"])
        for key in ("input_ids", "input_mask", "segment_ids"):
            assert arrays[key][row].tolist() == record[key], (example.guid, key)
        if kind != "test":
            assert example.label == record["label"]
            assert int(arrays["label_ids"][row]) == record["label_id"]


def test_logs_show_whole_syllables(tmp_path, caplog):
    """Of a vocabulary of decomposed Hangul, which a tokenizer that strips accents reads."""
    pieces = [unicodedata.normalize("NFD", piece) for piece in ("영화", "##를", "봤다")]
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces, ""]))
    tokenizer, task = FullTokenizer(str(tmp_path / "vocab.txt")), data.find_task("cola")
    examples = [InputExample("train-0", "영화를 봤다", label="1")]
    rows = encode_examples(examples, task, tokenizer, 8)
    choice = choice_data.encode_examples([ChoiceExample("0", "영화를", "", ("봤다", "영화"), 0)], tokenizer, 8)
    tagged = ner_encode.encode_sentences([Sentence(["영화를"], ["O"], [])], tokenizer, 8, label_ids={"O": 0})
    with caplog.at_level("INFO"):
        task_rows.log_examples(examples, rows, tokenizer)
        task_rows.log_groups(choice, tokenizer, 1)
        ner_encode.log_rows(tagged, ["O"], tokenizer)
    logged = [record.getMessage().partition(": [CLS] 영화")[2] for record in caplog.records]
    assert logged == [" ##를 봤다 [SEP]", " ##를 [SEP] 봤다 [SEP]", " ##를 [SEP] 영화 [SEP]", "/O ##를 [SEP]"]


@pytest.mark.parametrize("count", [5, 50, 403])
def test_every_epoch_has_every_row_once(count):
    lengths = np.random.default_rng(0).integers(3, 31, count)
    plain = token_rows.training_rows(lengths, 8, 1, 0, window_batches=1)
    stream = np.concatenate([next(plain) for _ in range(3 * count + 28)])
    epochs = stream[: len(stream) // count * count].reshape(-1, count)
    assert (np.sort(epochs, axis=1) == np.arange(count)).all()
    assert (epochs[0] != epochs[1]).any()
    # Rows are sorted by length only inside a window: after any number of windows the same rows have occurred.
    sorted_by_length = token_rows.training_rows(lengths, 8, 1, 0, window_batches=7)
    for window in range(4):
        rows = np.concatenate([next(sorted_by_length) for _ in range(7)])
        assert np.sort(rows).tolist() == np.sort(stream[window * 56 : (window + 1) * 56]).tolist()


def test_batches_have_rows_of_similar_length():
    lengths = np.random.default_rng(0).integers(3, 129, 3000).astype(np.int32)

    def spread(window):
        stream = token_rows.training_rows(lengths, 32, 1, 0, window)
        batches = [next(stream) for _ in range(150)]
        assert len(np.unique(batches[:50])) == 50 * 32  # all of the first epoch
        return np.mean([np.ptp(lengths[batch]) for batch in batches]), [lengths[batch].mean() for batch in batches]

    (sorted_spread, means), (plain_spread, _) = spread(50), spread(1)
    assert plain_spread > 110 and sorted_spread < 6
    assert abs(np.corrcoef(means[:50], np.arange(50))[0, 1]) < 0.4  # the batches themselves are not sorted by length


def test_padded_lengths():
    assert token_rows.padded_lengths(15) == [8, 12, 15] and token_rows.padded_lengths(3) == [3]
    lengths = token_rows.padded_lengths(300)
    assert lengths == [*range(8, 64, 4), *range(64, 128, 8), *range(128, 256, 16), 256, 288, 300]
    assert token_rows.padded_lengths(5) == [5] and token_rows.padded_lengths(288)[-2:] == [256, 288]
    assert token_rows.padded_lengths(600, whole_step=True) == [*range(32, 512, 32), 512, 576, 600]
    assert [token_rows.padded_length(longest, lengths) for longest in (1, 8, 9, 129, 289)] == [8, 8, 12, 144, 300]
    # For few programs: the longest row that there is needs a length, and the other one is that with the least padding.
    lengths = [20] * 50 + [60] * 30 + [70] * 10 + [150]
    offsets = np.cumsum([0, *lengths])
    rows = token_rows.TokenRows(np.ones(offsets[-1], np.int32), offsets, np.zeros(len(lengths), np.int32), {}, pad_id=0)
    assert rows.padded_lengths(600, programs=1) == [160]
    assert rows.padded_lengths(600, programs=2) == [64, 160]
    assert rows.padded_lengths(150, programs=2) == [64, 150]
    assert rows.padded_lengths(600, static_padding=True, programs=2) == [600]
    batches = token_rows.training_batches(rows, batch_size=2, seed=1, start_step=0, max_seq_length=600, programs=1)
    batch = next(iter(batches))
    assert batch["input_ids"].shape == (2, 160)


@pytest.mark.parametrize("windows", [None, TextWindows(2, 4)])
def test_texts_without_tokens_are_counted(english, caplog, windows):
    texts = ["a good film", "", "\u200b\x00", "more"]
    examples = [InputExample(f"train-{number}", text, line=number + 2) for number, text in enumerate(texts)]
    if not windows:
        examples.append(InputExample("train-4", "text", ""))
    task = Task("custom", ("a", "b"), None)
    encoded = encode_examples(examples, task, english, 8, windows=windows)
    assert windows or encoded.lengths[-1] == 3  # no second text
    counts = f"{2 if windows else 3} of {len(examples)}"
    assert f"A text without any token (empty, or of dropped characters) is in {counts} examples" in caplog.text
    assert "the first is train-1, line 3 of its file." in caplog.text


PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"]
A, B, C, D, E, F, G = range(5, 12)
TASK = Task("", ("no", "yes"), None)
TEXTS = ["a b c d e f g", "a b", "", "a b c d"]


def encode(small, texts, length, stride, most=8):
    examples = [InputExample(f"x-{k}", text, None, ("no", "yes")[k % 2]) for k, text in enumerate(texts)]
    return encode_examples(examples, TASK, small, length, windows=TextWindows(stride, most))


def rows_in(encoded):
    return [ids.tolist() for ids in np.split(encoded.ids, encoded.offsets[1:-1])]


def test_windows_by_hand(small, caplog):
    with caplog.at_level(python_logging.INFO, logger="absl"):
        encoded = encode(small, TEXTS, 6, 2)
    assert rows_in(encoded) == [
        [2, A, B, C, D, 3], [2, C, D, E, F, 3], [2, E, F, G, 3], [2, A, B, 3], [2, 3], [2, A, B, C, D, 3],
    ]  # fmt: skip
    assert encoded.windows.tolist() == [3, 1, 1, 1] and encoded.labels["label_ids"].tolist() == [0, 1, 0, 1]
    assert encoded.second_starts.tolist() == [6, 6, 5, 4, 2, 6]
    said = "1 of 4 texts are longer than --max_seq_length=6; all texts together make 6 windows, at most 3 each."
    assert said in caplog.text and "lost" not in caplog.text
    # Without overlap.
    assert rows_in(encode(small, TEXTS[:1], 6, 4)) == [[2, A, B, C, D, 3], [2, E, F, G, 3]]
    # What is beyond the last window is lost; one window is what is left of a text that is cut.
    assert rows_in(encode(small, TEXTS, 6, 2, most=2))[:2] == [[2, A, B, C, D, 3], [2, C, D, E, F, 3]]
    said = "1 of 4 texts need more than max_windows=2 windows and lost their ends: 1 of 13 tokens (7.7 %)"
    assert said in caplog.text
    examples = [InputExample(str(k), text) for k, text in enumerate(TEXTS)]
    one = encode_examples(examples, TASK, small, 5, windows=TextWindows(1, 1))
    assert rows_in(encode_examples(examples, TASK, small, 5)) == rows_in(one) and not one.labels


def test_where_windows_lie(small):
    assert windows_of(None, None, small, 12) == TextWindows(5, 8) and windows_of(None, 3, small, 3) == TextWindows(1, 3)
    assert windows_of_model(NO_HEAD, small, 12) is None
    head = HeadConfig(window_pooling="max", window_stride=2, max_windows=3)
    assert windows_of_model(head, small, 12) == TextWindows(2, 3)
    with pytest.raises(ValueError, match="window_stride=5: a window of max_seq_length=6 has 4 tokens of the text"):
        windows_of(5, 8, small, 6)
    with pytest.raises(ValueError, match="the maximum sequence length is 2, but a pair's special tokens alone are 3"):
        windows_of(None, 8, small, 2)
    pair = [InputExample("dev-3", "a", "b")]
    with pytest.raises(ValueError, match="Example dev-3 is a pair; a model of windows"):
        encode_examples(pair, TASK, small, 6, windows=TextWindows(2))

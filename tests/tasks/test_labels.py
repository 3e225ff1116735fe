"""Whatever order a model has its labels in, outputs mean what they are called.

A model's row for a label depends on the label's name alone, so that models with the same labels in other orders are the
same function from texts to probabilities by name.
"""

import json
import logging
import zlib

import keras
import numpy as np
import pytest
from helpers.basics import lines_of
from helpers.tiny import ONE_LAYER, PIECES, write_encoder

from bert_tf import BertConfig, FullTokenizer, Predictor, Tagger
from bert_tf.models import initialize, task_models
from bert_tf.store.description import read_head
from bert_tf.store.head_config import HEAD_CONFIG
from bert_tf.store.tensor_files import open_safetensors
from bert_tf.tasks.choice.data import ChoiceSettings
from bert_tf.tasks.choice.task import ChoiceTask
from bert_tf.tasks.classification.settings import ClassificationSettings
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.ner.data import NerSettings
from bert_tf.tasks.ner.task import NerTask
from bert_tf.tasks.script import fine_tune
from bert_tf.training.run_directory import EarlierRun
from bert_tf.training.settings import FineTuningSettings
from bert_tf.training.starting_model import with_labels_of
from bert_tf.training.teacher import open_teacher

TEXTS = [f"good w{number} bad w{number * 7 % 90} w{number * 11 % 90}" for number in range(24)]
NLI = ("entailment", "neutral", "contradiction")
CLASSIFIER = task_models.BertForSequenceClassification


def save_classifier(folder, labels, kind=CLASSIFIER, spelled=None, seed=0, **arguments) -> str:
    """A model whose outputs depend on the names of its labels, which it may write in another way."""
    keras.utils.set_random_seed(seed)
    names = {"labels": list(spelled or labels)} if kind is not task_models.BertForMultipleChoice else {}
    if kind is task_models.BertForTokenClassification:
        names["num_labels"] = len(labels)
    model = kind(BertConfig.from_dict({**ONE_LAYER, "initializer_range": 0.5}), **names, **arguments)
    vocab = str(folder.parent / "vocab.txt")
    # A row for each label, and a bias with which no label is likelier than the others.
    model.build()
    weights, bias = model.head.trainable_variables
    rows = (np.random.default_rng(zlib.crc32(label.encode())).normal(size=ONE_LAYER["hidden_size"]) for label in labels)
    weights.assign(np.stack([np.resize(row, weights.shape[1]) for row in rows]))
    features = FullTokenizer(vocab)(TEXTS)
    if isinstance(model, task_models.BertForMultipleChoice):
        features = {name: value[:, None] for name, value in features.items()}
    logits = np.asarray(model(features, training=False))
    bias.assign(-logits.reshape(-1, len(labels)).mean(0))
    model.save_pretrained(str(folder), vocab_file=vocab, do_lower_case=True)
    return str(folder)


@pytest.fixture
def folder(tmp_path):
    write_encoder(tmp_path, PIECES)
    return tmp_path


def run_of(folder, model, name="out", **arguments) -> FineTuningSettings:
    settings = {"max_seq_length": 16, "train_batch_size": 8, "num_train_epochs": 1, "write_tf_records": False}
    return FineTuningSettings(output_dir=str(folder / name), init_checkpoint=str(model), **{**settings, **arguments})


def custom(folder, gold, **arguments) -> ClassificationTask:
    """A task on train.csv, dev.csv and test.csv; the label of TEXTS[k] is gold[k] or, of fewer, the next of them."""
    gold = [gold[number % len(gold)] for number in range(len(TEXTS))]
    rows = "".join(f'"{text}","{label}"\n' for text, label in zip(TEXTS, gold, strict=True))
    for name in ("train", "dev", "test"):
        (folder / f"{name}.csv").write_text(f"text,label\n{rows}")
    files = {f"{name}_file": str(folder / f"{name}.csv") for name in ("train", "dev", "test")}
    return ClassificationTask(
        ClassificationSettings(**{"task_name": "custom", "text_a": "text", "label": "label", **files, **arguments})
    )


def assert_same_answers(found, expected):
    assert [one["label"] for one in found] == [one["label"] for one in expected]
    probabilities = [pytest.approx(one["probabilities"], abs=1e-5) for one in expected]
    assert [one["probabilities"] for one in found] == probabilities


def test_a_model_with_its_own_order_of_the_labels_of_mnli(folder, caplog):
    caplog.set_level(logging.INFO, logger="absl")
    spelled = ("ENTAILMENT", "Neutral", "contradiction")
    model = save_classifier(folder / "model", NLI, spelled=spelled)
    answers = Predictor(model).predict([(text, "w1") for text in TEXTS])
    expected = [
        {"label": NLI[spelled.index(one["label"])],
         "probabilities": {NLI[spelled.index(name)]: value for name, value in one["probabilities"].items()}}
        for one in answers
    ]  # fmt: skip
    gold = [one["label"] for one in expected]
    assert len(set(gold)) == 3
    (folder / "MNLI").mkdir()
    for name, ending in (("test_matched", []), ("dev_matched", ["gold_label"])):
        rows = [["index", *"bcdefgh", "sentence1", "sentence2", *ending]]
        rows += [[str(k), *"bcdefgh", text, "w1", gold[k]][: len(rows[0])] for k, text in enumerate(TEXTS)]
        (folder / "MNLI" / f"{name}.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    task = ClassificationTask(ClassificationSettings(task_name="MNLI", data_dir=f"{folder}/MNLI"))
    results = fine_tune(task, run_of(folder, model, do_eval=True, do_predict=True))
    assert results["eval_accuracy"] == 1.0
    assert_same_answers(lines_of(folder / "out" / "predictions.jsonl"), expected)
    # The columns of the original's file are in the original's order.
    table = np.loadtxt(folder / "out" / "test_results.tsv", delimiter="\t")
    columns = [[one["probabilities"][name] for name in ("contradiction", "entailment", "neutral")] for one in expected]
    np.testing.assert_allclose(table, columns, atol=1e-5)
    assert "has its labels in another order" in caplog.text
    assert "spells labels otherwise: ENTAILMENT is entailment" in caplog.text


def test_names_of_the_classes_0_and_1(folder):
    """SST-2's files have numbers, models trained elsewhere have names."""
    model = save_classifier(folder / "model", ("POSITIVE", "NEGATIVE"))
    gold = [{"NEGATIVE": "0", "POSITIVE": "1"}[one["label"]] for one in Predictor(model).predict(TEXTS)]
    assert len(set(gold)) == 2
    (folder / "dev.tsv").write_text("sentence\tlabel\n" + "".join(
        f"{text}\t{label}\n" for text, label in zip(TEXTS, gold, strict=True)
    ))  # fmt: skip
    task = ClassificationTask(ClassificationSettings(task_name="SST-2", data_dir=str(folder)))
    assert fine_tune(task, run_of(folder, model, do_eval=True))["eval_accuracy"] == 1.0


def test_several_labels_an_example(folder):
    labels = ("spam", "ad", "abuse")
    model = save_classifier(folder / "model", labels, problem_type="multi_label_classification")
    answers = Predictor(model).predict(TEXTS)
    gold = [",".join(one["labels"]) for one in answers]
    task = custom(folder, gold, labels=["ad", "abuse", "spam"], multi_label=True)
    results = fine_tune(task, run_of(folder, model, do_eval=True, do_predict=True))
    assert results["eval_micro_f1"] == 1.0
    for found, expected in zip(lines_of(folder / "out" / "predictions.jsonl"), answers, strict=True):
        assert sorted(found["labels"]) == sorted(expected["labels"])


def test_labels_of_a_run_in_its_own_directory(folder):
    """--labels in another order than the run's, with its newest checkpoint and with its best model."""
    model = save_classifier(folder / "model", ("b", "a"))
    expected = Predictor(model).predict(TEXTS)
    gold = [one["label"] for one in expected]
    training = {"do_train": True, "do_eval": True, "learning_rate": 1e-30}
    fine_tune(custom(folder, gold), run_of(folder, model, **training))
    assert json.loads((folder / "out" / HEAD_CONFIG).read_text())["labels"] == ["a", "b"]
    for path in ("out", "out/best_model"):
        assert_same_answers(Predictor(str(folder / path)).predict(TEXTS), expected)
    run = run_of(folder, model, do_eval=True, do_predict=True, use_best_model=True)
    assert fine_tune(custom(folder, gold, labels=["b", "a"]), run)["eval_accuracy"] == 1.0
    assert_same_answers(lines_of(folder / "out" / "predictions.jsonl"), expected)


def test_a_new_head(folder, caplog):
    caplog.set_level(logging.INFO, logger="absl")
    labels = ("clean", "toxic")
    model = save_classifier(folder / "model", ("긍정", "부정"))
    run = run_of(folder, model, do_train=True, learning_rate=1e-30, new_head=True)
    fine_tune(custom(folder, labels, dev_file=None), run)
    assert "2 variables begin anew (--new_head): output_weights, output_bias" in caplog.text
    assert read_head(run.output_dir).labels == labels
    trained = task_models.BertForSequenceClassification.from_pretrained(run.output_dir)
    assert trained.labels == list(labels) and trained.head.trainable_variables[0].shape[0] == len(labels)
    shapes, _, read = open_safetensors(f"{model}/bert_model.safetensors")
    saved = initialize.model_weights(trained)
    alike = [name for name in shapes if shapes[name] == saved.shapes[name]]
    same = {name: np.allclose(saved[name], read(name), 0, 1e-20) for name in alike}
    assert all(value for name, value in same.items() if name.startswith("bert/"))
    assert not same.get("output_weights")


def test_weights_without_names_are_taken_by_position(folder, caplog):
    """As the original does, of a fine-tuned checkpoint of its own."""
    model = save_classifier(folder / "model", ("b", "a"))
    expected = [{"a": "b", "b": "a"}[one["label"]] for one in Predictor(model).predict(TEXTS)]
    (folder / "model" / HEAD_CONFIG).unlink()
    fine_tune(custom(folder, ["a", "b"]), run_of(folder, model, do_predict=True))
    assert [one["label"] for one in lines_of(folder / "out" / "predictions.jsonl")] == expected
    said = "model does not name its labels: the outputs of the model are taken by position: 0 is a, 1 is"
    assert said in caplog.text
    with pytest.raises(ValueError, match=r"model has 2 outputs, and this run 3\. --new_head trains"):
        fine_tune(custom(folder, "abc"), run_of(folder, model, "never", do_train=True))
    assert not (folder / "never").exists()


TRAIN, EVALUATE = {"do_train": True}, {"do_eval": True}


@pytest.mark.parametrize(("labels", "data", "settings", "actions", "message"), [
    (("긍정", "부정"), ["clean", "toxic"], {}, TRAIN,
     r"has other labels: only there 긍정, 부정; only here clean, toxic\. --new_head trains"),
    (("긍정", "부정"), ["clean", "toxic"], {"labels": ["clean", "toxic"]}, EVALUATE,
     r"only here clean, toxic\. --do_train with --new_head trains a new output layer"),
    (("a", "b", "c"), ["a", "b"], {}, TRAIN, r"other labels: c is missing here\. .*--labels=a,b,c"),
    (("a", "b"), ["1", "2"], {"regression": True}, TRAIN,
     r"is for single_label_class.* for regression\. Give the flag of its kind \(--multi_label, --regression or none"),
])  # fmt: skip
def test_other_labels_are_named_in_one_line(folder, labels, data, settings, actions, message):
    model = save_classifier(folder / "model", labels, problem_type="single_label_classification")
    with pytest.raises(ValueError, match=message) as raised:
        fine_tune(custom(folder, data, **settings), run_of(folder, model, **actions))
    assert str(raised.value).startswith(f"--init_checkpoint: {model} ") and "\n" not in str(raised.value)
    assert not (folder / "out").exists()


def test_the_output_layer_of_another_task_is_not_taken(folder):
    """Three tasks have layers of the same name, and often of the same shape."""
    (folder / "choice.csv").write_text("text,question,choice0,choice1,label\n" + "w1,w2,good,bad,0\n" * 8)
    chooser = {"train_file": str(folder / "choice.csv"), "context": "text", "choices": ["choice"]}
    tagger = write_tags(folder / "train.conll", [[("good", "B-X"), ("w1", "O")], [("bad", "B-X")]])
    for task, kind, labels in (
        (NerTask(tagger), CLASSIFIER, ("O", "B-X", "I-X")),
        (ChoiceTask(ChoiceSettings(**chooser)), CLASSIFIER, ("a", "b")),
        (custom(folder, ["1", "2"]), task_models.BertForTokenClassification, ("a", "b")),
        (custom(folder, ["1", "2"], regression=True), task_models.BertForMultipleChoice, ["score"]),
    ):  # fmt: skip
        path = save_classifier(folder / f"{task.name}-{kind.__name__}", labels, kind=kind)
        with pytest.raises(ValueError, match=f"is a {kind.__name__}, and this run a Bert.*--new_head trains a new"):
            fine_tune(task, run_of(folder, path, do_train=True))


def test_a_teacher_with_another_order(folder):
    task = custom(folder, ["down", "up"])
    run = run_of(folder, folder / "encoder", do_train=True)
    features = {name: np.array([[2, 5, 9, 3]]) * (name == "input_ids") + (name == "input_mask") for name in (
        "input_ids", "input_mask", "segment_ids")}  # fmt: skip
    logits = []
    for labels, spelled in ((("down", "up"), None), (("up", "down"), None), (("up", "down"), ("UP", "Down"))):
        path = save_classifier(folder / f"teacher-{len(logits)}", labels, spelled=spelled)
        run, files, tokenizer = task.describe(run, EarlierRun(run.output_dir))
        task.load(run, files, tokenizer)
        teacher = open_teacher(path, tokenizer, 16, "output_weights")
        teacher = with_labels_of(teacher, task.files.head, task.other_labels)
        logits.append(np.asarray(task.create_teacher(teacher, "float32")(features)))
    assert abs(logits[0][0, 0] - logits[0][0, 1]) > 1e-2
    for other in logits[1:]:
        np.testing.assert_allclose(other, logits[0], atol=1e-6)
    teacher = open_teacher(save_classifier(folder / "other", ("no", "yes")), tokenizer, 16, "output_weights")
    with pytest.raises(ValueError, match=r"^--teacher: .*other has other labels: only there no, yes; only here down"):
        with_labels_of(teacher, task.files.head, ())


TAGS = ("I-PER", "O", "B-LOC", "B-PER", "I-LOC")


def write_tags(path, tagged) -> NerSettings:
    path.write_text("\n".join("".join(f"{word}\t{tag}\n" for word, tag in sentence) for sentence in tagged))
    return NerSettings(**{f"{name}_file": str(path) for name in ("train", "dev", "test")})


def tagged_by(model, name=str) -> list[list[tuple[str, str]]]:
    found = Tagger(model).predict([text.split() for text in TEXTS])
    return [[(word, name(tag)) for word, tag in zip(one["words"], one["tags"], strict=True)] for one in found]


def test_tags_in_another_order_and_spelled_otherwise(folder):
    """PER-B for B-PER, as some datasets have it."""
    theirs = [tag if tag == "O" else "-".join(reversed(tag.split("-"))) for tag in TAGS]
    model = save_classifier(folder / "model", TAGS, kind=task_models.BertForTokenClassification, spelled=theirs)
    gold = tagged_by(model)
    assert {tag for sentence in gold for _, tag in sentence} >= {"B-LOC", "B-PER"}
    task = NerTask(write_tags(folder / "data.conll", gold))
    results = fine_tune(task, run_of(folder, model, do_train=True, do_eval=True, learning_rate=1e-30))
    assert results["eval_f1"] == 1.0  # an answer's first tag is made B-, which scores of words take as it was
    assert read_head(str(folder / "out")).labels == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    assert tagged_by(str(folder / "out")) == gold == tagged_by(str(folder / "out" / "best_model"))


def test_tags_of_the_data_are_compared_with_those_of_the_model(folder):
    model = save_classifier(folder / "model", TAGS, kind=task_models.BertForTokenClassification)
    gold = tagged_by(model)
    names = {"PER": "ANIMAL", "LOC": "COLOUR"}

    def renamed(tag: str) -> str:
        letter, _, kind = tag.partition("-")
        return f"{letter}-{names.get(kind, kind)}" if kind else tag

    other = [[(word, renamed(tag)) for word, tag in sentence] for sentence in gold]
    task = NerTask(write_tags(folder / "data.conll", other))
    expected = {"do_train": "--init_checkpoint: .* has other labels", "do_eval": "--dev_file has other tags"}
    for action, named in expected.items():
        with pytest.raises(ValueError, match=rf"^{named}.*only there .*B-LOC.*; only here .*B-ANIMAL"):
            fine_tune(task, run_of(folder, model, **{action: True}))


@pytest.mark.slow
def test_a_tagger_keeps_what_it_knows(folder, caplog):
    caplog.set_level(logging.INFO, logger="absl")
    model = save_classifier(folder / "model", TAGS, kind=task_models.BertForTokenClassification)
    gold = tagged_by(model)
    fewer = [[(word, "O" if tag.endswith("LOC") else tag) for word, tag in sentence] for sentence in gold]
    task = NerTask(write_tags(folder / "fewer.conll", fewer))
    fine_tune(task, run_of(folder, model, do_train=True, learning_rate=1e-30))
    assert set(read_head(str(folder / "out")).labels) == set(TAGS)
    assert tagged_by(str(folder / "out")) == gold
    assert "knows further tags, which it keeps: B-LOC, I-LOC" in caplog.text

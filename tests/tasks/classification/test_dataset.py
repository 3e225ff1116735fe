"""as_dataset: a table's texts and labels for Keras `fit`, `evaluate` and `predict`; labels by name."""

import inspect
import re

import keras
import numpy as np
import pandas
import pytest
from helpers.tiny import tiny_config

import bert_tf
from bert_tf import BertConfig, BertModel, as_dataset
from bert_tf.models import task_models

TEXTS = ["One text.", "A much longer text, of many more words than the others have.", "three", "four four", "five"]


def rows_of(dataset) -> list[list[int]]:
    features = [element[0] if isinstance(element, tuple) else element for element in dataset]
    pairs = (zip(batch["input_ids"].numpy(), batch["input_mask"].numpy(), strict=True) for batch in features)
    return [row[mask == 1].tolist() for pair in pairs for row, mask in pair]


def labels_of(dataset) -> np.ndarray:
    return np.concatenate([labels.numpy() for _, labels in dataset])


def test_rows_are_the_tokenizers(english):
    expected = english(TEXTS, max_length=8)
    dataset = as_dataset(TEXTS, tokenizer=english, max_length=8, batch_size=2)
    assert len(dataset) == 3
    for name in expected:
        assert np.concatenate([batch[name].numpy() for batch in dataset]).tolist() == expected[name].tolist()
    pairs = ["a pair", "", "b", "c " * 30, ""]
    expected = english(TEXTS, pairs, max_length=8)
    [batch] = as_dataset(TEXTS, pairs=pairs, tokenizer=english, max_length=8).as_numpy_iterator()
    np.testing.assert_equal(batch, dict(expected))


def test_a_table_is_texts_and_perhaps_labels(english):
    table = pandas.DataFrame({"a": TEXTS, "label": [0, 1, 0, 1, 0], "b": TEXTS[::-1]})
    expected = as_dataset(TEXTS, table.label, pairs=TEXTS[::-1], tokenizer=english, batch_size=5)
    for dataset in (
        as_dataset(table, "label", tokenizer=english, batch_size=5),
        as_dataset(table[["a", "b"]], table.label, tokenizer=english, batch_size=5),
    ):
        np.testing.assert_equal(list(dataset.as_numpy_iterator()), list(expected.as_numpy_iterator()))


def test_a_batch_is_as_wide_as_its_longest_text_needs(english):
    data = as_dataset(["word " * count for count in (3, 40, 90)], tokenizer=english, batch_size=1, max_length=80)
    assert [batch["input_ids"].shape[1] for batch in data] == [8, 44, 80]


def test_shuffling_is_of_seed_and_epoch(english):
    texts = [f"{number} " * (number % 5 + 1) for number in range(100)]
    plain = rows_of(as_dataset(texts, tokenizer=english, batch_size=8))
    dataset = as_dataset(texts, list(range(100)), tokenizer=english, batch_size=8, seed=3)
    first, second = rows_of(dataset), rows_of(dataset)
    assert first != plain and first != second
    assert sorted(first) == sorted(second) == sorted(plain)
    again = as_dataset(texts, list(range(100)), tokenizer=english, batch_size=8, seed=3)
    assert rows_of(again) == first
    numbers = labels_of(again)  # the second epoch: each text still has its label
    assert [plain[number] for number in numbers] == second


def test_labels(english):
    names = ["bad", "good"]

    def labels(values, **arguments):
        return labels_of(as_dataset(TEXTS, values, tokenizer=english, **arguments))

    found = labels(["good", "bad", "bad", "good", "bad"], label_names=names)
    assert (found.tolist(), found.dtype) == ([1, 0, 0, 1, 0], np.int32)
    found = labels(pandas.Series(["good", "bad", "bad", "good", "bad"], index=[9, 8, 7, 6, 5]), label_names=names)
    assert found.tolist() == [1, 0, 0, 1, 0]
    found = labels([2, 0, 1, 1, 0])
    assert (found.tolist(), found.dtype) == ([2, 0, 1, 1, 0], np.int32)
    assert labels(np.array([True, False, True, True, False])).tolist() == [1, 0, 1, 1, 0]
    found = labels([0.5, -1.0, 2, 0, 0])
    assert (found.tolist(), found.dtype) == ([0.5, -1.0, 2.0, 0.0, 0.0], np.float32)
    found = labels([["good"], [], ["bad", "good"], ("bad",), {"good"}], label_names=names)
    marks = [[0, 1], [0, 0], [1, 1], [1, 0], [0, 1]]
    assert (found.tolist(), found.dtype) == (marks, np.float32)
    of_names = [dict(zip(names, row, strict=True)) for row in marks]
    for values in (marks, np.array(marks, np.float32), np.array(marks, bool), of_names):
        assert labels(values, label_names=names).tolist() == labels(values).tolist() == marks
    assert labels([True, "True", 0.0, "0", 1], label_names=["true", "0", "1"]).tolist() == [0, 0, 1, 1, 2]


@pytest.mark.parametrize(("arguments", "error", "message"), [
    ({"labels": ["good", "bad", "ugly", "bad", "bad"], "label_names": ["bad", "good"]}, ValueError,
     r"labels\[2\]: the label 'ugly' is not one of 'bad', 'good'"),
    ({"labels": [0, 1, 0, 1, 0], "label_names": ["a", "b"]}, ValueError, r"labels\[0\]: the label '0' is not one of"),
    ({"labels": [[1, 1], [0], [], [], []]}, ValueError, r"labels\[1\]: 0 or 1 .* of 2 labels, .*\[0\]"),
    *(({"labels": [*labels, 1.0, 1.0, 1.0]}, ValueError, r"labels\[1\]: there is no label")
      for labels in ([0.0, float("nan")], [0, None])),
    *(({"labels": labels}, ValueError, "give class numbers from 0, floats for a regression, or names") for labels in (
        np.array([1, 0, 2**40, 1, 0]), ["good"] * 5, [["good"], [], [], [], []], [0, 1, 0, -1, 0])),
    ({"labels": [0, 1]}, ValueError, "5 texts and 2 labels"),
    ({"texts": []}, ValueError, "texts is empty"),
    ({"pairs": ["a"]}, ValueError, "shorter than"),
    ({"pairs": ["a", "b", None, "", ""]}, TypeError, r"pairs\[2\] is None \(NoneType\), not a string"),
    ({"texts": pandas.DataFrame({"a": TEXTS, "b": TEXTS, "c": TEXTS})}, ValueError, r"\['a', 'b', 'c'\] besides"),
    ({"texts": pandas.DataFrame({"text": TEXTS, "kind": TEXTS}), "labels": "kin"}, KeyError, "kin"),
    ({"labels": ["good"] * 5, "label_names": "bad,good"}, TypeError, "label_names must be a list of names, not a str"),
    ({"tokenizer": "folder"}, TypeError, r"must be that of the model, bert_tf.read_tokenizer\(path\), not 'folder'"),
    ({"max_length": 2}, ValueError, "the maximum sequence length is 2"),
])  # fmt: skip
def test_as_dataset_rejects_texts_and_labels_that_do_not_fit(english, arguments, error, message):
    with pytest.raises(error, match=message):
        as_dataset(**{"texts": TEXTS, "tokenizer": english, **arguments})


def test_a_dataset_of_other_labels_is_not_a_models(english, caplog):
    """Numbers of classes mean names in an order, which are to be the model's."""
    encoder = tiny_config("bert", 30522, 64)
    model = task_models.BertForSequenceClassification(encoder, labels=["bad", "good"])
    model.compile("sgd", run_eagerly=True)
    unnamed = task_models.BertForSequenceClassification(encoder, num_labels=3)
    unnamed.compile("sgd", run_eagerly=True)

    def data(*names):
        return as_dataset(TEXTS, [names[0]] * 5, tokenizer=english, label_names=names)

    for call in (model.fit, model.evaluate, lambda held_out: model.fit(data("bad", "good"), validation_data=held_out)):
        with pytest.raises(ValueError, match=r"\('bad', 'good'\): give as_dataset label_names="):
            call(data("good", "bad"))
    with pytest.raises(ValueError, match="as_dataset has label_names=.*, the model num_labels=3"):
        unnamed.fit(data("bad", "good"))
    wrong, right = data("good", "bad"), data("bad", "good")
    for part in (wrong.take(2), wrong.shuffle(9, seed=1).cache(), right.concatenate(wrong)):
        with pytest.raises(ValueError, match="as_dataset has label_names="):
            model.fit(part)
    # What is mapped may be the labels.
    assert len(model.evaluate(right.map(lambda x, y: (x, y)), verbose=0)) == 3 and "mapped" not in caplog.text
    assert len(model.evaluate(wrong.take(2).map(lambda x, y: (x, 1 - y)), verbose=0)) == 3
    assert re.search("label_names=.* They are right only if what is mapped over it changes them", caplog.text)
    assert len(model.evaluate(data("bad ", "good"), verbose=0)) == len(unnamed.evaluate(data(*"abc"), verbose=0)) == 3


def test_a_csv_in_ten_lines(tmp_path, monkeypatch):
    """The lines of the docstring, word for word, with a small model instead of the downloaded one."""
    shown = inspect.getdoc(as_dataset).split("ten lines:")[1].split("After it")[0]
    lines = [line.strip() for line in shown.splitlines() if line.strip()]
    assert len(lines) == 10
    keras.utils.set_random_seed(1)
    # A step takes ten times as long with a vocabulary of normal size.
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "the", "film", "was", ",", "seen", "times", "."]
    pieces += ["lovely", "great", "awful", "dull", *map(str, range(100))]
    (tmp_path / "pieces.txt").write_text("\n".join(pieces))
    encoder = BertModel(BertConfig(len(pieces), 64, 1, 2, 64, "gelu", 0.0, 0.0, 64, 2))
    encoder.build()
    encoder.save_pretrained(str(tmp_path / "small"), vocab_file=str(tmp_path / "pieces.txt"), do_lower_case=True)
    draw = np.random.default_rng(0)
    words = {"positive": ["lovely", "great"], "negative": ["awful", "dull"]}
    kinds = ["positive"] * 160 + ["negative"] * 160  # sorted, so that they need shuffling
    table = {"text": [f"The film was {draw.choice(words[kind])}, seen {draw.integers(100)} times." for kind in kinds]}
    pandas.DataFrame(table | {"label": kinds}).to_csv(tmp_path / "reviews.csv", index=False)
    monkeypatch.chdir(tmp_path)
    asked = []
    monkeypatch.setattr(bert_tf, "download", lambda name: asked.append(name) or str(tmp_path / "small"))
    program = "\n".join(lines).replace("2e-5", "1e-3")  # such a small model needs it to learn
    values = {}
    exec(program, values)
    assert asked == ["uncased_L-4_H-256_A-4"]
    assert values["model"].labels == ["negative", "positive"]
    call, *_ = re.findall(r"`(bert_tf\.Predictor.*?)` gives", inspect.getdoc(as_dataset))
    assert eval(call, values)["label"] == "positive"
    predictor = bert_tf.Predictor("reviews_model")
    assert predictor.labels == ["negative", "positive"]
    found = predictor.predict(["The film was awful, seen 3 times.", "The film was lovely, seen 5 times."])
    assert [prediction["label"] for prediction in found] == ["negative", "positive"]

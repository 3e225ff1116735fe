"""Predictors: one graph for batches of any size and length, threads, and models of the first release. Of fill_mask: the
same numbers as the model's own outputs, whatever shares the batch."""

import itertools
import json
import pathlib
import shutil
import tarfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.basics import GOLDEN, slow
from helpers.exports import signature_of
from helpers.outputs import enlarge
from helpers.tiny import ONE_LAYER, save_model, tiny_config
from scipy.special import softmax

from bert_tf import BertConfig, BertForPreTraining, ChoicePredictor, Predictor, QuestionAnswerer, Tagger, fill_mask
from bert_tf.models.task_models import (
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from bert_tf.serving import export


@pytest.fixture(scope="module")
def predictor(tmp_path_factory):
    folder = tmp_path_factory.mktemp("predictor") / "model"
    return Predictor(save_model(folder, "bert", BertForSequenceClassification, labels=["down", "up"]), batch_size=4)


TEXTS = [" ".join(["good", "w1", "bad", "w2"][: 1 + number % 4] * (1 + number % 3)) for number in range(11)]


@pytest.fixture(scope="module")
def with_tensorflow(predictor):
    return Predictor(predictor.path, batch_size=4, runtime="tensorflow")


def test_one_graph_answers_texts_of_all_lengths(predictor, with_tensorflow):
    rows = [*TEXTS, ("good", "bad w1")]
    np.testing.assert_allclose(predictor.logits(rows), with_tensorflow.logits(rows), atol=1e-5)
    predictor = with_tensorflow
    found = predictor.logits(rows)
    np.testing.assert_allclose(predictor.logits(TEXTS[:1]), found[:1], atol=1e-6)
    assert [graph.experimental_get_tracing_count() for graph in predictor.runtime.graphs.values()] == [1]
    for text, logits in zip(TEXTS, found, strict=False):  # operation by operation
        expected = predictor.model(predictor.tokenizer([text]), training=False)
        np.testing.assert_allclose(logits, np.asarray(expected)[0], atol=1e-5)


def test_forms_of_transformers_pipeline(predictor, tmp_path):
    """Dicts, a list in a call, and top_k; transformers itself drops the second text of a tuple."""
    text, pair = "good w1", "bad w2"
    rows = [text, {"text": text}, (text, pair), {"text_pair": pair, "text": text}]
    calls = [predictor(text), predictor(rows[1]), predictor(text, pair), predictor(rows[3])]
    ups = [[row["probabilities"]["up"] for row in every] for every in (calls, predictor(rows), predictor.predict(rows))]
    np.testing.assert_allclose(ups, [[ups[0][0], ups[0][0], ups[0][2], ups[0][2]]] * 3, atol=1e-6)
    assert abs(ups[0][0] - ups[0][2]) > 1e-5 and predictor([]) == []
    transformers = pytest.importorskip("transformers", reason="needs transformers (requirements-dev.txt)")
    for problem_type in ("single_label_classification", "multi_label_classification"):
        folder = str(tmp_path / problem_type)
        model = BertForSequenceClassification.from_pretrained(predictor.path, problem_type=problem_type)
        model.save_pretrained(folder, format="huggingface")
        theirs, ours = transformers.pipeline("text-classification", folder), Predictor(folder)
        for top_k in (1, 2, 9):
            expected = [*theirs([text, rows[1]], top_k=top_k), theirs(rows[3], top_k=None)[:top_k]]
            answers = [*ours([text, rows[1]], top_k=top_k), ours(rows[3], top_k=top_k)]
            for one, other in zip(itertools.chain(*answers), itertools.chain(*expected), strict=True):
                assert one == {"label": other["label"], "score": pytest.approx(other["score"], abs=1e-5)}


def test_what_predictor_takes_for_texts(predictor):
    import pandas as pd

    wanted = predictor.predict(["good", "bad"])
    for texts in (pd.Series(["good", "bad"]), np.array(["good", "bad"]), (text for text in ["good", "bad"])):
        assert predictor.predict(texts) == wanted
    assert len(predictor.predict(("good", "bad", "good"))) == 3
    with pytest.raises(TypeError, match=r"one pair: write predictor\(\*pair\)"):
        predictor.predict(("a", "b"))


def test_weights_that_change_count(with_tensorflow):
    predictor = with_tensorflow
    before, more = Predictor(pathlib.Path(predictor.path)).logits(TEXTS[:2]), np.array([1.0, 3.0], np.float32)
    bias = predictor.model.trainable_variables[-1]
    old = bias.numpy()
    bias.assign(old + more)
    np.testing.assert_allclose(predictor.logits(TEXTS[:2]), before + more, atol=1e-5)
    bias.assign(old)


def test_what_is_lost_of_texts_is_reported_once(predictor, caplog):
    for length in (6, 7):
        Predictor(predictor.path, max_seq_length=length).predict(["good " * 20, "bad", ""])
    assert [record.message.split(" (")[0] for record in caplog.records] == [
        "A text without any token",
        "Longer than the maximum sequence length, 6 tokens, of which the last are lost: 1 of 3 examples.",
    ]


WRONG = [None, float("nan"), 3, b"a", {}, {"sentence": "a", "label": 1}, {"text_pair": "b"}, [["a"], []], ("a", None)]


@pytest.mark.parametrize(("kind", "right", "wrong", "message"), [
    (Predictor, "a", ["b"] * 3, r" \(list\); texts are strings or \(text, text_pair\), as tuples or dicts with"),
    (QuestionAnswerer, {"context": "b", "question": "a"}, "a", r" is 'a' \(str\); questions are \(question, con"),
    (ChoicePredictor, ("a", ["b", "c"]), ("a", ["b", 3]), r": choices\[1\] is 3 \(int\), not a string"),
    (Tagger, ["a", "b"], ["a", 3], r"\[1\] is 3 \(int\), not a string"),
])  # fmt: skip
def test_a_wrong_item_is_named_by_its_place(kind, right, wrong, message):
    """Before anything is computed, so that no model is needed."""
    answerer, name = kind.__new__(kind), "questions" if kind in (QuestionAnswerer, ChoicePredictor) else "texts"
    answerer.task = None
    for item, why in [*((item, "") for item in WRONG), (wrong, f".*{message}")]:
        with pytest.raises(TypeError, match=rf"^{name}\[1\]{why}"):
            answerer.predict([right, item])
    with pytest.raises(TypeError, match=f"^{name} must be a list of .*, not a NoneType"):
        answerer.predict(None)


@pytest.mark.parametrize(("pairs", "told"), [
    (True, "two texts an example, and is given one."), (False, "one text an example, and is given two."),
])  # fmt: skip
def test_another_number_of_texts_than_in_training_is_reported_once(predictor, tmp_path, caplog, pairs, told):
    """By head_config.json, which copies keep."""
    folder = shutil.copytree(predictor.path, tmp_path / "model")
    head = json.loads((folder / "head_config.json").read_text())
    (folder / "head_config.json").write_text(json.dumps({**head, "pairs": pairs}))
    for format in ("huggingface", "bert_tf"):
        BertForSequenceClassification.from_pretrained(folder).save_pretrained(tmp_path / format, format=format)
        folder = tmp_path / format
    assert export.create_served_model(*export.open_for(str(folder), "classification")).facts == {"pairs": pairs}
    opened = Predictor(str(folder))
    assert opened("good") and opened("good", "bad") and opened("good", "bad") and opened("bad")
    messages = [message.partition(" was trained on ")[2] for message in caplog.messages]
    assert [message.partition(" (")[0] for message in messages if message] == [told]


SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"


@pytest.mark.parametrize(("config", "beside", "key"), [
    ({"sentence_transformers": {"activation_fn": SIGMOID}}, {}, "probability"),
    *slow(
        ({"sbert_ce_default_activation_function": SIGMOID}, {}, "probability"),
        ({"sbert_ce_default_activation_function": IDENTITY}, {"activation_fn": None}, "score"),
        ({}, {"activation_fn": SIGMOID}, "probability"),
    ),
    ({}, {}, "score"),
    ({"sentence_transformers": {"activation_fn": SIGMOID}}, {"activation_fn": IDENTITY}, "score"),
    ({}, {"activation_fn": "torch.nn.modules.activation.Tanh"}, None),
])  # fmt: skip
def test_what_a_cross_encoder_makes_of_its_output(tmp_path, config, beside, key):
    """The answer's key says it; in copies and in what an export is made of, too. `beside` is what sentence-transformers
    6 writes into its own file."""
    path = save_model(tmp_path / "theirs", "bert", BertForSequenceClassification, format="huggingface", num_labels=1)
    written = json.loads(pathlib.Path(path, "config.json").read_text())
    del written["problem_type"]
    pathlib.Path(path, "config.json").write_text(json.dumps({**written, **config}))
    pathlib.Path(path, "config_sentence_transformers.json").write_text(json.dumps(beside))
    if not key:
        BertForSequenceClassification.from_pretrained(path).save_pretrained(path, overwrite=True, format="huggingface")
        with pytest.raises(ValueError, match="theirs: its output is meant through 'torch.*Tanh'; known are sigmoid"):
            Predictor(path)
        return
    logits = Predictor(path).logits([("good", "bad"), ("w1", "w2")])[:, 0]
    expected = 1 / (1 + np.exp(-logits)) if key == "probability" else logits
    copies = {format: str(tmp_path / format) for format in ("huggingface", "bert_tf")}
    for format, copy in copies.items():
        BertForSequenceClassification.from_pretrained(path).save_pretrained(copy, format=format)
    copied = json.loads(pathlib.Path(copies["huggingface"], "config.json").read_text()).get("sentence_transformers")
    named = {"probability": SIGMOID, "score": IDENTITY}[key]
    assert copied == ({"activation_fn": named} if config or beside else None)
    for directory in (path, *copies.values()):
        found = Predictor(directory).predict([("good", "bad"), ("w1", "w2")])
        assert [row.keys() for row in found] == [{key}] * 2
        np.testing.assert_allclose([row[key] for row in found], expected, atol=1e-6)
    outputs = signature_of(path, "regression", "serve_pairs", text=["good", "w1"], text_pair=["bad", "w2"])
    assert outputs.keys() == {key}
    np.testing.assert_allclose(outputs[key], expected, atol=1e-5)


def test_several_labels_hold_by_themselves(predictor, tmp_path):
    """Probabilities of an export that do not sum to one, as the model's."""
    model = BertForSequenceClassification.from_pretrained(
        predictor.path, labels=["up", "down"], problem_type="multi_label_classification"
    )
    model.save_pretrained(str(tmp_path / "model"))
    opened = Predictor(str(tmp_path / "model"))
    logits, outputs = opened.logits(TEXTS), signature_of(opened.path, "classification", text=TEXTS)
    expected = 1 / (1 + np.exp(-logits))
    np.testing.assert_allclose(outputs["probabilities"], expected, atol=1e-5)
    np.testing.assert_array_equal(outputs["holds"], expected > 0.5)
    np.testing.assert_allclose([[*row["probabilities"].values()] for row in opened.predict(TEXTS)], expected, atol=1e-5)
    assert np.abs(expected.sum(1) - 1).min() > 0.01


def test_a_model_of_another_task_names_who_answers_with_it(predictor, tmp_path):
    no_layer = r"has no output layer for \w+ \(\S*output_weights\): fine-tune it \(run_"
    with pytest.raises(ValueError, match=": use Predictor.$"):
        QuestionAnswerer(predictor.path)
    for model_class, message, arguments in (
        (BertForQuestionAnswering, ": use QuestionAnswerer.$", {}),
        (BertForTokenClassification, ": use Tagger.$", {"num_labels": 2, "labels": ["O", "B-PER"]}),
        (BertForMaskedLM, no_layer, {}),
    ):
        path = save_model(tmp_path / model_class.__name__, "bert", model_class, **arguments)
        for kind in (Predictor, ChoicePredictor):
            with pytest.raises(ValueError, match=message):
                kind(path)


def test_an_export_of_added_tokens_takes_ids(tmp_path, caplog):
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("".join(f"{piece}\n" for piece in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a")))
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    decoder = {6: {**flags, "content": "[E1]"}, 7: {**flags, "content": "[/E1]", "normalized": True}}
    casing, path = {"do_lower_case": True, "strip_accents": False}, str(tmp_path / "model")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder, **casing}))
    config = BertConfig.from_dict({**ONE_LAYER, "vocab_size": 8})
    model = BertForSequenceClassification(config, num_labels=2, labels=["yes", "no"])
    enlarge(model).save_pretrained(path, vocab_file=str(vocab), **casing)
    with pytest.raises(ValueError, match=r"^--text_pairs: .*vocab.txt: added tokens .* take ids\.$"):
        export.export_saved_model(path, str(tmp_path / "out"), text_pairs=True)
    exported = export.export_saved_model(path, str(tmp_path / "out"))
    assert [line for line in caplog.messages if "take ids" in line] == [
        f"{path}/vocab.txt: added tokens ([E1], [/E1]) can't be cut out inside a graph. Exports of this model take "
        f"ids. serve_client.py --tokenizer={path} makes them of texts."
    ]
    assert set(json.loads(pathlib.Path(exported, "export.json").read_text())["ops"]) <= set(dir(tf.raw_ops))
    with pytest.raises(ValueError, match="takes token ids alone: open its model directory"):
        Predictor(exported)


# ---- fill_mask ------------------------------------------------------------------------------------------------------

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "##a", "##b", "."]


def make_model(vocab_size=16):  # as many as PIECES has
    return enlarge(BertForPreTraining(tiny_config("bert", vocab_size, 12)))


def test_equals_the_model_for_any_number_of_masks_and_lengths(small):
    model = make_model()
    texts = ["A [MASK] c d e f.", "[MASK]", "[MASK] b[MASK] [MASK] a"]
    pieces = [
        (["[CLS]", "a", "[MASK]", "c", "d", "e", "f", ".", "[SEP]"], [2]),
        (["[CLS]", "[MASK]", "[SEP]"], [1]),
        (["[CLS]", "[MASK]", "b", "[MASK]", "[MASK]", "a", "[SEP]"], [1, 3, 4]),
    ]
    guesses = fill_mask(model, small, texts, top_k=len(PIECES))
    assert [len(masks) for masks in guesses] == [1, 1, 3]
    for masks, (tokens, positions) in zip(guesses, pieces, strict=True):
        ids = np.array([[PIECES.index(token) for token in tokens]])
        logits = model({"input_ids": ids, "masked_lm_positions": np.array([positions])})["masked_lm_logits"]
        for ranked, probabilities in zip(masks, np.asarray(keras.ops.softmax(logits))[0], strict=True):
            assert [token for token, _ in ranked] == [PIECES[index] for index in np.argsort(-probabilities)]
            for token, probability in ranked:
                assert isinstance(probability, float)
                assert probability == pytest.approx(probabilities[PIECES.index(token)], abs=1e-5)


def test_many_texts_keep_their_order(small):
    """More texts than one batch takes."""
    model = make_model()
    texts = [f"{'abcdefgh'[number % 8]} [MASK]{' c' * (number % 5)}" for number in range(70)]
    together = fill_mask(model, small, texts, top_k=2)
    assert len(together) == 70
    for number in (0, 31, 32, 69):
        alone = fill_mask(model, small, [texts[number]], top_k=2)[0]
        assert [token for token, _ in together[number][0]] == [token for token, _ in alone[0]]
        np.testing.assert_allclose([p for _, p in together[number][0]], [p for _, p in alone[0]], atol=1e-5)
    assert fill_mask(model, small, []) == []


def test_rows_beyond_the_vocabulary_are_never_guessed(small):
    """The probability of rows beyond the vocabulary, in a table that was rounded up, goes to the others."""
    guesses = fill_mask(make_model(vocab_size=64), small, ["a [MASK]"], top_k=len(PIECES))[0][0]
    assert sorted(token for token, _ in guesses) == sorted(PIECES)
    assert sum(probability for _, probability in guesses) == pytest.approx(1)


def test_fill_mask_rejects_texts_without_a_mask(small):
    model = make_model()
    fill_mask(model, small, ["[MASK]" + " a" * 9])  # as long as it can be
    for texts, other, message in (
        (["a [MASK]", "a b c"], model, r"no \[MASK\] in 'a b c'"),
        (["[MASK]" + " a" * 10], model, "is 13, but must be at most 12, as max_position"),
        ("a [MASK]", model, r"not a str; for one write fill_mask\(model, tokenizer, \[text\]\)"),
        (["a [MASK]"], make_model(vocab_size=7), f"has {len(PIECES)} tokens, but the model has only 7"),
        (["a [MASK]"], BertForSequenceClassification(model.config, num_labels=2), "needs a masked-LM head: BertForSeq"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            fill_mask(other, small, texts)


# ---- earlier versions ----------------------------------------------------------------------------------------------

FOLDER = GOLDEN / "first_release"
RELEASED_TEXTS = ["good film", "very bad , the films"]


def test_a_model_and_an_export_of_an_earlier_version(tmp_path):
    with tarfile.open(FOLDER / "export.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    expected = softmax(json.loads((FOLDER / "logits.json").read_text()), axis=1)
    for path in (FOLDER / "classifier", tmp_path / "export", tmp_path / "export" / "1"):
        predictor = Predictor(str(path))
        assert predictor.labels == ["negative", "positive"]
        answers = [
            [answer["probabilities"][label] for label in predictor.labels] for answer in predictor(RELEASED_TEXTS)
        ]
        np.testing.assert_allclose(answers, expected, atol=1e-6)

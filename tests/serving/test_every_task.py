"""Exports of every task and family answer like the model that they were made of: SavedModels, also in a process with
only TensorFlow, and ONNX files."""

import numpy as np
import pytest
import tensorflow as tf
from helpers.descendants import save_model
from helpers.slow import slow

from bert_tf import ChoicePredictor, Embedder, Predictor, QuestionAnswerer, Tagger, fill_mask, read_tokenizer
from bert_tf.models import task_models
from bert_tf.serving import export
from bert_tf.serving.onnx_export import export_onnx
from bert_tf.serving.onnx_runtime import open_file
from bert_tf.store.open import open_model
from bert_tf.tasks import table
from bert_tf.tasks.ner import metrics as ner_tags
from bert_tf.tasks.squad.answers import PredictionSettings
from bert_tf.tasks.squad.metrics import SETTINGS_FILE, QuestionAnsweringSettings
from bert_tf.tasks.squad.windows import WindowSettings

TEXTS = ["A short text.", " Two  spaces,\na line\tand a tab ", "", "many words " * 60]
TEXTS.insert(3, "naïve café 日本 김철수 (2019, it's 9,000)…")
PAIRS = list(zip(TEXTS, reversed(TEXTS), strict=True))
CONTEXTS = [*TEXTS, "Her teacher met Ada Brown (1801-1852)  in London,\nwhere she was born. " * 4]
WORDS = [["Ada", "Lovelace", "lived", "in", "London", "."], ["It", "'s", "9,000", "km", "\u200b\u0007"]]
CHOICES = [(a, ["walks in.", "it rains", "日本"], b) for a, b in PAIRS] + [("She opens.", ["walks in.", "9,"], "")]
LABELS = ["no", "perhaps", "yes"]
TAGS = ner_tags.tag_set("iob2", ["LOC", "PER"])
SETTINGS = QuestionAnsweringSettings(
    WindowSettings(max_seq_length=48, doc_stride=16, max_query_length=10),
    PredictionSettings(n_best_size=5, max_answer_length=8, version_2_with_negative=True),
)

CLASSIFIER, CHOICE = task_models.BertForSequenceClassification, task_models.BertForMultipleChoice
QUESTIONS = [("Who met Ada?", context) for context in CONTEXTS]
COLUMNS = {"question": ["Who met Ada?"] * len(CONTEXTS), "context": CONTEXTS}
# name -> (task, class of the model, its arguments, class that answers, what it is asked, inputs of the export)
KINDS = {
    "classes": ("classification", CLASSIFIER, {"labels": LABELS}, Predictor, [*TEXTS, *PAIRS], {"text": TEXTS}),
    "several labels": (
        "classification", CLASSIFIER, {"labels": LABELS, "problem_type": "multi_label_classification"}, Predictor,
        TEXTS, {"text": TEXTS}),
    "a number": ("regression", CLASSIFIER, {"num_labels": 1}, Predictor, TEXTS, {"text": TEXTS}),
    "answers": ("squad", task_models.BertForQuestionAnswering, {}, QuestionAnswerer, QUESTIONS, COLUMNS),
    "tags": (
        "ner", task_models.BertForTokenClassification, {"num_labels": len(TAGS), "labels": TAGS}, Tagger,
        [*TEXTS, *WORDS], {"text": TEXTS}),
    "choices": (
        "multiple_choice", CHOICE, {}, ChoicePredictor, CHOICES,
        {"context": TEXTS, "question": TEXTS, "choices": [["a", "b"]] * len(TEXTS)}),
}  # fmt: skip


def check_near(found, expected) -> None:
    for name, value in expected.items():
        if value.dtype.is_floating:
            np.testing.assert_allclose(found[name], value, atol=1e-5)
        else:
            np.testing.assert_array_equal(found[name], value)


def check_same(found, expected) -> None:
    """The same answers, with probabilities that differ by rounding. Near ties may change places in n-best lists."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        found, expected = ([row[name] for name in sorted(expected.keys() - {"nbest"})] for row in (found, expected))
    if isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            check_same(*pair)
    else:
        assert found == (pytest.approx(expected, abs=1e-4) if isinstance(expected, float) else expected)


@pytest.mark.parametrize(
    ("family", "kind"),
    slow(  # in small: the classes of test_export.py and test_export_onnx.py, the tags of test_tagger.py
        ("roberta", "classes"), ("electra", "classes"), ("distilbert", "classes"), ("albert", "classes"),
        ("bert", "several labels"), ("bert", "a number"),
        ("bert", "answers"), ("roberta", "answers"),
        ("albert", "tags"), ("roberta", "tags"), ("albert", "choices"), ("roberta", "choices"),
    ),
)  # fmt: skip
def test_answers_are_the_models(tmp_path, clean_process, family, kind):
    task, model_class, arguments, answerer, asked, columns = KINDS[kind]
    path = save_model(tmp_path / "model", family, model_class, **arguments)
    if task == "squad":
        (tmp_path / "model" / SETTINGS_FILE).write_text(SETTINGS.to_json())
    if task == "ner":
        (tmp_path / "model" / ner_tags.SETTINGS_FILE).write_text(ner_tags.TaggingSettings().to_json())
    assert table.task_in(open_model(path)) == task
    expected = answerer(path).predict(asked)
    assert len({str(row) for row in expected}) > 2
    saved_model = export.export_saved_model(path, str(tmp_path / "out"), freeze=False, warm_up=False)
    if family in ("roberta", "albert"):
        check_ids(path, saved_model, task)
    else:
        opened = answerer(saved_model)
        check_same(opened.predict(asked), expected)
        mine = opened.export.signatures["serving_default"](**{name: tf.constant(of) for name, of in columns.items()})
        assert opened.description["lowest_serving_version"] == "2.7"
        check_near(mine, clean_process(saved_model, **columns))
    files = read_tokenizer(path).files()
    assets = tmp_path / "out" / "1" / "assets"
    assert {name: (assets / name).read_bytes() for name in files} == files
    check_same(answerer(export_onnx(path, str(tmp_path / "onnx"))).predict(asked), expected)


def check_ids(path, saved_model, task) -> None:
    signatures = tf.saved_model.load(saved_model).signatures
    served = export.create_served_model(*export.open_for(path, task), ids_only=True)
    features = {name: tf.constant(value) for name, value in read_tokenizer(path)(TEXTS, max_length=48).items()}
    if task == "multiple_choice":
        features = {name: value[:, None] for name, value in features.items()}
    assert signatures.keys() == {"serving_default", "serve_ids", "serve_examples"}
    check_near(signatures["serving_default"](**features), served.outputs(features))


@pytest.mark.parametrize("family", slow("bert", "roberta", "albert"))
def test_masks_and_vectors(tmp_path, clean_process, family):
    path = save_model(tmp_path / "model", family, task_models.BertForMaskedLM)
    model, tokenizer = task_models.BertForPreTraining.from_pretrained(path), read_tokenizer(path)
    mask = tokenizer.mask_token
    texts = [f"The capital \u3000{mask} is {mask}.", f"{mask} {mask}", f" a{mask}b "]
    arguments = {"freeze": False, "warm_up": False}
    exported = export.export_saved_model(path, str(tmp_path / "out"), top_k=3, **arguments)
    takes_texts, found = family == "bert", []
    if takes_texts:
        found.append({name: value.numpy() for name, value in clean_process(exported, text=texts).items()})
    rows = [tokenizer.build_inputs(tokenizer.encode_masked(text))[0] for text in texts]
    width = max(map(len, rows))
    ids = np.array([[*row, *[tokenizer.pad_id] * (width - len(row))] for row in rows], np.int32)
    mask_of_rows = (np.arange(width) < np.array([[len(row)] for row in rows])).astype(np.int32)
    features = {"input_ids": ids, "input_mask": mask_of_rows, "segment_ids": np.zeros_like(ids)}
    onnx = open_file(f"{export_onnx(path, str(tmp_path / 'onnx'), top_k=3)}/model.onnx")
    found.append(onnx.run(features))
    nothing = onnx.run({**features, "input_ids": np.where(ids == tokenizer.mask_id, 5, 6)})
    assert (nothing["positions"] == -1).all() and nothing["tokens"].tolist() == [[[""] * 3]] * 3
    for outputs in found:
        for row, masks in enumerate(fill_mask(model, tokenizer, texts, top_k=3)):
            for place, guesses in enumerate(masks):
                tokens = [one.decode() if isinstance(one, bytes) else one for one in outputs["tokens"][row, place]]
                assert tokens == [token for token, _ in guesses]
                np.testing.assert_allclose(outputs["scores"][row, place], [p for _, p in guesses], atol=1e-5)
        places = np.where(ids == tokenizer.mask_id)
        assert outputs["positions"].tolist() == [[*places[1][:2]], [*places[1][2:4]], [places[1][4], -1]]
    vectors = export.export_saved_model(path, str(tmp_path / "vectors"), task="encoder", **arguments)
    features = tokenizer(TEXTS, max_length=64)
    if takes_texts:
        outputs = clean_process(vectors, text=TEXTS)
        np.testing.assert_array_equal(outputs["input_ids"], features["input_ids"])
    else:
        outputs = tf.saved_model.load(vectors).signatures["serve_ids"](**features)
    own = task_models.BertModel.from_pretrained(path)(features)
    real = features["input_mask"].astype(bool)
    sequences = (np.asarray(part["sequence_output"])[real] for part in (outputs, own))
    np.testing.assert_allclose(*sequences, atol=1e-5)
    np.testing.assert_allclose(outputs["pooled_output"], own["pooled_output"], atol=1e-4)
    vectors = export_onnx(path, str(tmp_path / "onnx vectors"), task="encoder")
    for pooling in ("mean", "cls"):
        expected = Embedder(path, pooling=pooling).encode(TEXTS)
        np.testing.assert_allclose(Embedder(vectors, pooling=pooling).encode(TEXTS), expected, atol=1e-5)

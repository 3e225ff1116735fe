"""Models of every family answer texts alike from a directory and from an export in a process with only TensorFlow."""

import numpy as np
import pytest
from helpers.descendants import NAMES, save_model
from helpers.slow import slow

from bert_tf.models import task_models
from bert_tf.models.albert.question_answering import AlbertForQuestionAnswering
from bert_tf.models.pretrained import read_tokenizer
from bert_tf.models.task_models import BertForQuestionAnswering
from bert_tf.serving import export
from bert_tf.serving.choice_predictor import ChoicePredictor
from bert_tf.serving.fill_mask import fill_mask
from bert_tf.serving.predictor import Predictor
from bert_tf.serving.question_answerer import QuestionAnswerer
from bert_tf.serving.tagger import Tagger
from bert_tf.tasks.ner import data as ner_data
from bert_tf.tasks.ner import outputs as ner_outputs
from bert_tf.tasks.squad.answers import PredictionSettings
from bert_tf.tasks.squad.outputs import SETTINGS_FILE, QuestionAnsweringSettings
from bert_tf.tasks.squad.windows import WindowSettings

TEXTS = [
    "A short text.",
    " Two  spaces,\na line\tand a tab ",
    "",
    "naïve café 日本 김철수 (2019, it's 9,000)…",
    "many words " * 60,
]


# Those whose tokenizers differ from BERT's; ELECTRA's and DistilBERT's encoders show in the classes.
TOKENIZERS = slow("roberta", "albert")


def export_of(path: str, folder, **settings) -> str:
    return export.export_saved_model(path, str(folder), freeze=False, warm_up=False, **settings)


def pairs_of(texts) -> list[tuple[str, str]]:
    return list(zip(texts, reversed(texts), strict=True))


def decoded(values) -> list[str]:
    return [value.decode() for value in values.numpy().tolist()]


@pytest.mark.parametrize("family", slow(*(name for name in NAMES if name != "bert")))
def test_classes_of_texts_and_pairs(tmp_path, clean_process, family):
    labels = ["no", "perhaps", "yes"]
    path = save_model(
        tmp_path / "model", family, task_models.BertForSequenceClassification, num_labels=3, labels=labels
    )
    exported = export_of(path, tmp_path / "out")
    expected = [row["probabilities"] for row in Predictor(path).predict(TEXTS)]
    found = clean_process(exported, text=TEXTS)
    np.testing.assert_allclose(
        found["probabilities"], [[row[label] for label in labels] for row in expected], atol=1e-5
    )
    pairs = pairs_of(TEXTS)
    expected = [row["probabilities"] for row in Predictor(path).predict(pairs)]
    found = clean_process(exported, "serve_pairs", text=[a for a, _ in pairs], text_pair=[b for _, b in pairs])
    np.testing.assert_allclose(
        found["probabilities"], [[row[label] for label in labels] for row in expected], atol=1e-5
    )
    files = read_tokenizer(path).files()
    assets = tmp_path / "out" / "1" / "assets"
    assert {name: (assets / name).read_bytes() for name in files} == files
    assert sorted(one.name for one in assets.iterdir()) == sorted([*files, "labels.txt"])


@pytest.mark.parametrize(
    ("family", "kind"),
    slow(
        ("roberta", BertForQuestionAnswering),
        ("albert", BertForQuestionAnswering),
        ("albert", AlbertForQuestionAnswering),
    ),
)
def test_answers(tmp_path, clean_process, family, kind):
    path = save_model(tmp_path / "model", family, kind)
    settings = QuestionAnsweringSettings(
        WindowSettings(max_seq_length=48, doc_stride=16, max_query_length=10),
        PredictionSettings(n_best_size=5, max_answer_length=8, version_2_with_negative=True),
    )
    (tmp_path / "model" / SETTINGS_FILE).write_text(settings.to_json())
    exported = export_of(path, tmp_path / "out")
    questions = [("Who met Ada?", text) for text in TEXTS]
    questions += [
        ("누가?", "Her teacher met Ada Brown (1801-1852)  in London,\nwhere she was born. " * 4),
        ("Who?", ""),
    ]
    expected = QuestionAnswerer(path).predict(questions)
    asked, contexts = zip(*questions, strict=True)
    found = clean_process(exported, question=asked, context=contexts)
    for row, answer in enumerate(expected):
        assert found["answer"][row].numpy().decode() == answer["answer"], questions[row]
        place = tuple(-1 if answer[name] is None else answer[name] for name in ("start", "end"))
        assert (int(found["start"][row]), int(found["end"][row])) == place
        if answer["start"] is not None:
            # A piece can be a space alone, so that an answer may end with one.
            assert contexts[row][slice(*place)] == answer["answer"] and answer["answer"].strip()
    assert len({answer["answer"] for answer in expected}) > 2


@pytest.mark.parametrize("family", [*slow("roberta"), "albert"])
def test_tags(tmp_path, clean_process, family):
    labels = ner_data.tag_set("iob2", ["LOC", "PER"])
    path = save_model(
        tmp_path / "model", family, task_models.BertForTokenClassification, num_labels=len(labels), labels=labels
    )
    (tmp_path / "model" / ner_outputs.SETTINGS_FILE).write_text(ner_outputs.TaggingSettings().to_json())
    exported = export_of(path, tmp_path / "out")
    tagger = Tagger(path)
    found = clean_process(exported, text=TEXTS)
    for row, (text, expected) in enumerate(zip(TEXTS, tagger.predict(TEXTS), strict=True)):
        count = len(expected["words"])
        for name in ("words", "tags"):
            assert decoded(found[name][row, :count]) == expected[name], text
        for name in ("starts", "ends"):
            assert found[name][row, :count].numpy().tolist() == expected[name], text
        assert expected["words"] == [text[a:b] for a, b in zip(expected["starts"], expected["ends"], strict=True)]
        assert set(decoded(found["words"][row, count:])) <= {""}
    words = [["Ada", "Lovelace", "lived", "in", "London", "."], ["It", "'s", "9,000", "km", "\u200b\u0007"]]
    given = clean_process(exported, "serve_words", words=[words[0], [*words[1], ""]])
    for row, expected in enumerate(tagger.predict(words)):
        assert decoded(given["tags"][row, : len(words[row])]) == expected["tags"]
        np.testing.assert_allclose(given["scores"][row, : len(words[row])], expected["scores"], atol=1e-5)
    # A text is tagged as its words.
    assert decoded(given["tags"][0]) == tagger("Ada Lovelace lived in London.")["tags"]


@pytest.mark.parametrize("family", TOKENIZERS)
def test_choices(tmp_path, clean_process, family):
    path = save_model(tmp_path / "model", family, task_models.BertForMultipleChoice)
    exported = export_of(path, tmp_path / "out")
    questions = [(context, ["walks in.", "it rains", "日本"], question) for context, question in pairs_of(TEXTS)]
    questions += [("She opens the door.", ["walks in.", "rains", "9,"], "")]
    expected = [row["probabilities"] for row in ChoicePredictor(path).predict(questions)]
    context, choices, question = zip(*questions, strict=True)
    found = clean_process(exported, context=context, choices=choices, question=question)
    np.testing.assert_allclose(found["probabilities"], expected, atol=1e-5)


@pytest.mark.parametrize("family", TOKENIZERS)
def test_masks_and_vectors(tmp_path, clean_process, family):
    path = save_model(tmp_path / "model", family, task_models.BertForMaskedLM)
    model, tokenizer = task_models.BertForPreTraining.from_pretrained(path), read_tokenizer(path)
    exported = export_of(path, tmp_path / "out", top_k=3)
    mask = tokenizer.mask_token
    texts = [f"The capital \u3000{mask} is {mask}.", f"{mask} {mask}", f" a{mask}b "]
    found = clean_process(exported, text=texts)
    for row, masks in enumerate(fill_mask(model, tokenizer, texts, top_k=3)):
        assert [decoded(guesses) for guesses in found["tokens"][row, : len(masks)]] == [
            [token for token, _ in guesses] for guesses in masks
        ]
    vectors = export_of(path, tmp_path / "vectors", task="encoder")
    outputs = clean_process(vectors, text=TEXTS)
    features = tokenizer(TEXTS, max_length=64)
    np.testing.assert_array_equal(outputs["input_ids"], features["input_ids"])
    own = task_models.BertModel.from_pretrained(path)(features)["sequence_output"]
    real = features["input_mask"].astype(bool)
    np.testing.assert_allclose(outputs["sequence_output"].numpy()[real], np.asarray(own)[real], atol=1e-5)

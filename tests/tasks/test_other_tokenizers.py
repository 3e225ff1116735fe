"""Tasks from end to end with Japanese words by MeCab and with KoBERT's pieces: training, answers, vectors, exports."""

import keras
import numpy as np
import pytest
from absl import logging
from helpers.mains import run_main
from helpers.other_tokenizers import texts_of, write_encoder, write_questions
from helpers.outputs import enlarge
from helpers.script_cases import arguments_of
from helpers.slow import slow

from bert_tf import BertForTokenClassification, PartialLoadWarning, Predictor, Tagger, read_tokenizer
from bert_tf.tasks.squad.answers import AnswerTexts
from bert_tf.tasks.squad.data import read_squad_examples
from bert_tf.tasks.squad.windows import WindowSettings, build_windows
from bert_tf.text.japanese import JapaneseTokenizer
from bert_tf.text.sentence_piece import KoBertTokenizer

KINDS = {"japanese": JapaneseTokenizer, "kobert": KoBertTokenizer}


@pytest.fixture(scope="module", params=KINDS)
def world(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, folder, write_encoder(request.param, folder)


def saved(model_class, encoder, path, **arguments) -> str:
    keras.utils.set_random_seed(0)
    with pytest.warns(PartialLoadWarning):
        model = model_class.from_pretrained(encoder, **arguments)
    enlarge(model).save_pretrained(str(path), vocab_file=f"{encoder}/vocab.txt")
    return str(path)


@pytest.mark.parametrize("world", slow("japanese", "kobert"), indirect=True)
def test_classifier_learns_and_answers(world, caplog):
    kind, folder, encoder = world
    texts = texts_of(kind)
    lines = ["text,label", *(f"{text},{('bad', 'good')[is_good]}" for text, _, is_good in texts)]
    (folder / "train.csv").write_text("\n".join(lines) + "\n")
    out = folder / "classifier"
    flags = {
        "task_name": "custom", "text_a": "text", "label": "label", "train_file": folder / "train.csv",
        "test_file": folder / "train.csv", "do_train": True, "do_predict": True, "init_checkpoint": encoder,
        "output_dir": out, "max_seq_length": 40, "train_batch_size": 8, "num_train_epochs": 40, "learning_rate": 3e-3,
    }  # fmt: skip
    with caplog.at_level(logging.WARNING):
        run_main("run_classifier", arguments_of(flags))
    assert "of the texts are [UNK]" not in caplog.text
    predictor = Predictor(str(out))
    assert type(predictor.tokenizer) is KINDS[kind]
    found = predictor.predict([text for text, *_ in texts])
    right = [one["label"] == ("bad", "good")[is_good] for one, (*_, is_good) in zip(found, texts, strict=True)]
    assert np.mean(right) > 0.9
    rows = [list(map(float, line.split("\t"))) for line in (out / "test_results.tsv").read_text().splitlines()]
    np.testing.assert_allclose([list(one["probabilities"].values()) for one in found], rows, atol=1e-5)


def test_words_and_strings_are_tagged(world):
    kind, folder, encoder = world
    texts = [text for text, *_ in texts_of(kind)]
    path = saved(BertForTokenClassification, encoder, folder / "tagger", num_labels=3, labels=["O", "B-X", "I-X"])
    tagger = Tagger(path)
    for text in texts[::3]:
        found = tagger(text)
        places = list(zip(found["starts"], found["ends"], strict=True))
        assert [text[begin:end] for begin, end in places] == found["words"]
        assert "".join(found["words"]) == text.replace(" ", "")
        of_words = tagger(found["words"])
        assert of_words["tags"] == found["tags"]
        np.testing.assert_allclose(of_words["scores"], found["scores"], atol=1e-5)


@pytest.mark.parametrize("answer_from", ["words", "offsets"])
def test_answers_are_found_by_their_characters(world, answer_from):
    kind, folder, encoder = world
    tokenizer = read_tokenizer(encoder)
    write_questions(kind, folder / "questions.json")
    examples = read_squad_examples([str(folder / "questions.json")], True, answer_from=answer_from).examples
    windows = build_windows(examples, tokenizer, WindowSettings(24, 8, 8, answer_from), True)
    assert len(windows) > len(examples)
    texts, answered = AnswerTexts(examples, windows, tokenizer, answer_from), set()
    for row, (first, last) in enumerate(zip(*windows.labels.values(), strict=True)):
        if first:
            example = examples[windows.example_index[row]]
            text, start, end = texts.of(row, first, last)
            assert example.orig_answer_text in text
            if answer_from == "offsets":
                assert text == example.paragraph.context[start:end] == example.orig_answer_text
                assert start == example.answer_start
            answered.add(example.qas_id)
    assert answered == {example.qas_id for example in examples}

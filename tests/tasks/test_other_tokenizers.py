"""Tags and answers with words by MeCab and KoBERT's pieces, and rows of byte BPE as transformers makes them."""

import keras
import numpy as np
import pytest
from helpers.basics import GOLDEN, directory_of
from helpers.other_tokenizers import texts_of, write_encoder, write_questions
from helpers.outputs import enlarge

from bert_tf import BertForTokenClassification, PartialLoadWarning, Tagger, read_tokenizer
from bert_tf.data.token_rows import TokenRows
from bert_tf.tasks.choice.data import ChoiceExample
from bert_tf.tasks.choice.data import encode_examples as encode_choices
from bert_tf.tasks.features.extract import encode_line
from bert_tf.tasks.ner.data import Sentence
from bert_tf.tasks.ner.encode import encode_sentences
from bert_tf.tasks.rows import InputExample, Task, encode_examples
from bert_tf.tasks.squad.answers import AnswerTexts
from bert_tf.tasks.squad.data import Paragraph, SquadExample, read_squad_examples
from bert_tf.tasks.squad.windows import WindowSettings, build_windows
from bert_tf.text.library_tokenizer import ByteBpeTokenizer


@pytest.fixture(scope="module", params=["japanese", "kobert"])
def world(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, folder, write_encoder(request.param, folder)


def test_words_and_strings_are_tagged(world):
    kind, folder, encoder = world
    texts = [text for text, _ in texts_of(kind)]
    keras.utils.set_random_seed(0)
    with pytest.warns(PartialLoadWarning):
        model = BertForTokenClassification.from_pretrained(encoder, num_labels=3, labels=["O", "B-X", "I-X"])
    enlarge(model).save_pretrained(str(folder / "tagger"), vocab_file=f"{encoder}/vocab.txt")
    tagger = Tagger(str(folder / "tagger"))
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


ORACLE = GOLDEN / "tokenization" / "roberta"
CONTEXT = 'Her  teacher met "Ada Brown" (1801-1852)\nin Łódź, where she was\u00a0born.\t It\'s 9,000 km away… 日本'
SENTENCES = [["Ada", "'s", "dog", "met", "Élodie", "(", "2019", ")", "."], ["日本", "a"], ["one"]]


@pytest.fixture(scope="module")
def tokenizer():
    return ByteBpeTokenizer.from_pretrained(str(ORACLE))


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (requirements-dev.txt)")
    names = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt")
    folder = directory_of(tmp_path_factory.mktemp("reference"), *(ORACLE / name for name in names))
    return lambda **options: transformers.RobertaTokenizerFast.from_pretrained(folder, **options)


def ids_of(rows: TokenRows) -> list[list[int]]:
    return [rows.ids[a:b].tolist() for a, b in zip(rows.offsets, rows.offsets[1:], strict=False)]


def question(answer: str) -> SquadExample:
    paragraph, start = Paragraph.from_context(CONTEXT), CONTEXT.index(answer)
    first, last = paragraph.word_at(start), paragraph.word_at(start + len(answer) - 1)
    return SquadExample("1", "Who met Ada?", paragraph, answer, first, last, False, start)


@pytest.mark.parametrize(("length", "stride"), [(128, 128), (40, 8), (31, 3)])
def test_windows_by_characters(tokenizer, reference, length, stride):
    settings = WindowSettings(length, stride, 20, "offsets")
    windows = build_windows([question("Ada Brown")], tokenizer, settings, True)
    asked = tokenizer.encode("Who met Ada?")
    expected = reference()(
        "Who met Ada?", CONTEXT, truncation="only_second", max_length=length, return_overflowing_tokens=True,
        stride=length - len(asked) - 4 - min(stride, length - len(asked) - 4), return_offsets_mapping=True,
    )  # fmt: skip
    assert ids_of(windows) == expected["input_ids"]
    assert not windows.batch(range(len(windows)), length)["segment_ids"].any()
    places = [place for row in expected["offset_mapping"] for place in row]
    inside = [part == 1 for row in range(len(windows)) for part in expected.sequence_ids(row)]
    found = zip(places, inside, windows.starts, windows.ends, windows.words, strict=True)
    for place, is_context, start, end, word in found:
        assert (word >= 0) == is_context and (not is_context or (start, end) == place)
    texts = AnswerTexts([question("Ada Brown")], windows, tokenizer, "offsets")
    spans = enumerate(zip(*windows.labels.values(), strict=True))
    assert {texts.of(row, first, last)[0] for row, (first, last) in spans if first} == {"Ada Brown"}


@pytest.mark.parametrize("answer", ["Her", "Ada Brown", "1801", "Łódź", "9,000 km", "日本"])
def test_windows_by_words(tokenizer, reference, answer):
    """The pieces of the words with single spaces; an answer is narrowed down to its own pieces."""
    windows = build_windows([question(answer)], tokenizer, WindowSettings(128, 128, 20), True)
    words = question(answer).doc_tokens
    assert ids_of(windows) == [reference()("Who met Ada?", " ".join(words))["input_ids"]]
    ((first,), (last,)) = windows.labels.values()
    assert tokenizer.decode(windows.ids[first : last + 1]).strip() == answer
    assert AnswerTexts([question(answer)], windows, tokenizer, "words").of(0, first, last)[0] == answer


def tagged_rows(sentences, tokenizer):
    tagged = [Sentence(words, ["O"] * len(words), []) for words in sentences]
    return encode_sentences(tagged, tokenizer, 64, label_ids={"O": 0})


def test_tagged_words(tokenizer, reference):
    rows = tagged_rows(SENTENCES, tokenizer)
    assert ids_of(rows) == reference()([" ".join(words) for words in SENTENCES])["input_ids"]
    for row, words in enumerate(SENTENCES):
        firsts = np.cumsum([1, *map(len, tokenizer.encode_words(words))])[:-1]
        assert rows.word_positions[rows.word_rows == row].tolist() == firsts.tolist()


def test_pairs_and_choices(tokenizer, reference):
    pairs = [("A text.", "Its pair, too."), ("Alone", None), (" one ", " two  ")]
    examples = [InputExample(str(number), *pair) for number, pair in enumerate(pairs)]
    rows = encode_examples(examples, Task("", (), None), tokenizer, 64)
    assert ids_of(rows) == [reference()(*filter(None, pair))["input_ids"] for pair in pairs]
    batch = rows.batch([1], 64)
    assert batch["input_ids"][0, -1] == tokenizer.pad_id == 1 and not batch["segment_ids"].any()
    choices = ("walks in.", "it rains", "日本")
    for beginning, separator in (("Then she", " "), ("", "")):
        rows = encode_choices([ChoiceExample("1", "She opens the door.", beginning, choices)], tokenizer, 64)
        expected = [reference()("She opens the door.", beginning + separator + choice) for choice in choices]
        assert ids_of(rows.rows) == [row["input_ids"] for row in expected]


def test_lines_of_words(tokenizer, reference):
    line = encode_line("Ada met  the dog ||| who ran", tokenizer, 64, "mean")
    assert line.ids == reference()("Ada met the dog", "who ran")["input_ids"]
    assert line.words == ["<s>", "Ada", "met", "the", "dog", "</s>", "</s>", "who", "ran", "</s>"]
    assert sum(line.sizes) == len(line.ids)
    assert encode_line("Ada met  the dog", tokenizer, 64).ids == reference()("Ada met  the dog")["input_ids"]


def test_tagged_words_that_all_have_a_space(reference, tmp_path):
    """transformers takes words only with a space before the first one, too. Nothing stands for that before an added
    token: the token is the word's first piece, which is tagged."""
    library = reference(add_prefix_space=True)
    library.add_tokens(["[E1]", "[/E1]"])
    library.save_pretrained(tmp_path)
    sentences = [*SENTENCES, ["[E1]", "Ada", "[/E1]", "met"], ["a", "[E1]", "dog"]]
    tokenizer = ByteBpeTokenizer.from_pretrained(str(tmp_path))
    rows = tagged_rows(sentences, tokenizer)
    expected = library(sentences, is_split_into_words=True)
    assert ids_of(rows) == expected["input_ids"]
    firsts = [expected.word_ids(row).index(word) for row, words in enumerate(sentences) for word in range(len(words))]
    assert rows.word_positions.tolist() == firsts
    for words in (["w", "", " w", "  w", "\tw", " "], ["", "w"]):  # no second space, and none for no word
        expected = library(words, is_split_into_words=True)["input_ids"]
        assert tokenizer([words], is_split_into_words=True, padding=True)["input_ids"].tolist() == [expected]

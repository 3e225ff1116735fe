"""Texts that a vocabulary does not fit are warned of, once, wherever they are encoded, with the flag that may help."""

import numpy as np
import pytest
from absl import logging

from bert_tf.data.token_rows import rows_of_texts
from bert_tf.tasks.choice.data import ChoiceExample
from bert_tf.tasks.choice.data import encode_examples as encode_choices
from bert_tf.tasks.features.extract import EncodedText, encode_line
from bert_tf.tasks.ner.data import Sentence
from bert_tf.tasks.ner.encode import encode_sentences
from bert_tf.tasks.rows import InputExample, Task, encode_examples
from bert_tf.tasks.squad.data import Paragraph, SquadExample
from bert_tf.tasks.squad.windows import WindowSettings, build_windows
from bert_tf.text import watch_unknown
from bert_tf.text.wordpiece import FullTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def tokenizer_of(folder, pieces):
    path = folder / "vocab.txt"
    path.write_text("".join(token + "\n" for token in [*SPECIAL, *pieces]))
    return FullTokenizer(str(path))


def warnings_of(caplog):
    found = [message for message in caplog.messages if "tokens of the texts are [UNK]" in message]
    caplog.clear()
    return found


def answer_windows(text, tokenizer):
    example = SquadExample("1", text, Paragraph.from_context(text))
    return build_windows([example], tokenizer, WindowSettings(32, 8, 8), False, 1)


PLACES = {
    "classification": lambda text, tokenizer: encode_examples(
        [InputExample("1", text, None, None)], Task("t", ("x",), None), tokenizer, 32
    ),
    "choice": lambda text, tokenizer: encode_choices([ChoiceExample("1", text, text, (text, text), 0)], tokenizer, 32),
    "tagging": lambda text, tokenizer: encode_sentences([Sentence(text.split(), None, [1] * 6)], tokenizer, 32),
    "vectors": lambda text, tokenizer: rows_of_texts([text], tokenizer, 32),
    "features": lambda text, tokenizer: EncodedText.of_lines([encode_line(text, tokenizer, 32)], tokenizer),
    "questions": answer_windows,
}


@pytest.mark.parametrize("place", PLACES)
def test_wherever_texts_are_encoded(tmp_path, caplog, place):
    tokenizer = tokenizer_of(tmp_path, ["known", "words", "here"])
    with caplog.at_level(logging.WARNING):
        PLACES[place]("known words here known words here", tokenizer)
        assert not warnings_of(caplog)
        for _ in range(3):
            PLACES[place]("좋은 영화 정말 추천", tokenizer)
    (message,) = warnings_of(caplog)
    assert f"do {tmp_path}/vocab.txt, do_lower_case and strip_accents fit them?" in message
    assert "klue/bert-base knows Korean, multi_cased_L-12_H-768_A-12 104" in message and "\n" not in message


def test_shares(tmp_path, caplog):
    words = ["good", "tea"]
    with caplog.at_level(logging.WARNING):
        # A single unknown token among others says nothing; alone it is all there is. Special tokens are not counted.
        watch_unknown(tokenizer_of(tmp_path, words), np.array([2, 5, 1, 6, 3]))
        assert not warnings_of(caplog)
        watch_unknown(tokenizer_of(tmp_path, words), np.array([2, 1, 3, 0, 0]))
        assert warnings_of(caplog)[0].startswith("100 % of the tokens of the texts are [UNK]: ")
        tokenizer = tokenizer_of(tmp_path, words)
        watch_unknown(tokenizer, np.array([5] * 60 + [1] * 3))
        assert not warnings_of(caplog)
        watch_unknown(tokenizer, np.array([1]))
        watch_unknown(tokenizer, np.array([1] * 50))
        assert [message[:4] for message in warnings_of(caplog)] == ["6 % "]


def test_spaces_that_are_tagged_alone_are_no_unknown_tokens(tmp_path, caplog):
    """Data of a character a line: a space is a row's [UNK] and no text, also where windows show it twice."""
    tokenizer = tokenizer_of(tmp_path, "abc")
    sentence = Sentence(list("a b c a b c a b c"), None, [])
    with caplog.at_level(logging.WARNING):
        rows = encode_sentences([sentence] * 5, tokenizer, 8)
        assert (rows.ids == tokenizer.unk_id).sum() > 5 * sentence.words.count(" ")
        encode_sentences([Sentence([" ", " "], None, [])], tokenizer, 8)
        assert not warnings_of(caplog)
        encode_sentences([Sentence(list("a x b y c z"), None, [])], tokenizer, 8)
        # Of 45 + 6 letters 3 are unknown.
        assert [message[:4] for message in warnings_of(caplog)] == ["6 % "]

"""Texts whose records teach little: what is said of them when they are made."""

import pytest

from bert_tf.pretraining.corpus_formats import TextSettings, likely_language
from bert_tf.pretraining.create import create_pretraining_data

WORDS = {
    "ko": "나는 오늘 학교에 갔다", "en": "we saw the old harbour", "ja": "きょう は 学校 に いった",
    "zh": "今天 我 们 去 学校",
}  # fmt: skip
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(set(" ".join(WORDS.values())) - {" "})]


@pytest.fixture
def make(tmp_path):
    def run(content, **arguments):
        (tmp_path / "vocab.txt").write_text(
            "\n".join([*VOCABULARY, *("##" + token for token in VOCABULARY[5:])]) + "\n"
        )
        (tmp_path / "a.txt").write_text(content, encoding="utf-8")
        arguments = {"max_seq_length": 64, "max_predictions_per_seq": 5, "dupe_factor": 2} | arguments
        return create_pretraining_data(
            str(tmp_path / "a.txt"), str(tmp_path / "a.tfrecord"), str(tmp_path / "vocab.txt"), strip_accents=False,
            show_progress=False, **arguments,
        )  # fmt: skip

    return run


def sentences(count: int, language: str = "ko") -> list[str]:
    return [f"{WORDS[language]}." for _ in range(count)]


CASES = {
    "a paragraph a line, a blank line between": "\n\n".join(" ".join(sentences(30)) for _ in range(20)),
    "a paragraph a line": "\n\n".join("\n".join(" ".join(sentences(30)) for _ in range(5)) for _ in range(5)),
    "a sentence a document": "\n\n".join(sentences(60)),
}


@pytest.mark.parametrize("case", CASES)
def test_constant_labels_are_warned_of(make, caplog, case):
    summary = make(CASES[case])
    assert summary["random_next"] > 0.8 * summary["instances"]
    share = 100 * summary["random_next"] / summary["instances"]
    assert (
        f"a.txt: {share:.0f}% of the pairs have a random next sentence, so that their labels are nearly" in caplog.text
    )
    assert "--split_sentences --language=ko makes sentences of them" in caplog.text
    assert ("A larger --max_seq_length has room" in caplog.text) == (case == "a paragraph a line")
    assert "--nsp=false" in caplog.text


def test_one_document_has_contradictory_labels(make, caplog):
    make("\n".join(sentences(60)))
    assert "there is only one document" in caplog.text and "their labels contradict each other" in caplog.text
    assert "--split_sentences --language=ko" in caplog.text


def test_what_is_as_it_should_be_is_not_warned_of(make, caplog):
    text = "\n\n".join("\n".join(sentences(8)) for _ in range(20))
    summary = make(text)
    assert 0.3 < summary["random_next"] / summary["instances"] < 0.7
    make(CASES["a paragraph a line"], text=TextSettings(split_sentences=True, language="ko"))
    make(CASES["a sentence a document"], nsp=False)  # has no such labels
    messages = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert not [message for message in messages if "are replaced" not in message and "lower-cased" not in message]


def test_the_language_of_the_advice():
    assert {language: likely_language(text) for language, text in WORDS.items()} == {name: name for name in WORDS}
    assert likely_language("К сожалению") == "ru" and likely_language("") == "en"

"""Texts whose records teach little: what is said of them when they are made."""

import pytest

from bert_tf.pretraining.corpus_formats import TextSettings
from bert_tf.pretraining.create import create_pretraining_data

SENTENCE = "나는 오늘 학교에 갔다."
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted({*SENTENCE} - {" "})]
PARAGRAPH = " ".join([SENTENCE] * 30)
PARAGRAPHS = "\n\n".join("\n".join([PARAGRAPH] * 5) for _ in range(5))
SPLIT = "--split_sentences (with --language) makes sentences of paragraphs"
CONSTANT = "of the pairs have a random next sentence, so that labels are nearly constant"
# text, flags, what is said of it
CASES = {
    "a paragraph a document": ("\n\n".join([PARAGRAPH] * 20), {}, (CONSTANT, SPLIT, "--nsp=false")),
    "a paragraph a line": (PARAGRAPHS, {}, (CONSTANT, "here one has 5.0 lines of ", "is cut off", SPLIT)),
    "a sentence a document": ("\n\n".join([SENTENCE] * 60), {}, (CONSTANT, "here one has 1.0 lines")),
    "one document": ("\n".join([SENTENCE] * 60), {}, ("there is only one document", SPLIT)),
    "sentences": ("\n\n".join("\n".join([SENTENCE] * 8) for _ in range(20)), {}, ()),
    "split": (PARAGRAPHS, {"text": TextSettings(split_sentences=True, language="ko")}, ()),
    "no labels": ("\n\n".join([SENTENCE] * 60), {"nsp": False}, ()),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_said(tmp_path, caplog, case):
    content, flags, messages = CASES[case]
    (tmp_path / "vocab.txt").write_text("\n".join([*VOCABULARY, *("##" + token for token in VOCABULARY[5:])]))
    (tmp_path / "a.txt").write_text(content, encoding="utf-8")
    names = [str(tmp_path / name) for name in ("a.txt", "a.tfrecord", "vocab.txt")]
    sizes = {"max_seq_length": 64, "max_predictions_per_seq": 5, "dupe_factor": 2}
    create_pretraining_data(*names, do_lower_case=True, strip_accents=False, show_progress=False, **sizes, **flags)
    assert all(message in caplog.text for message in messages)
    assert bool(messages) == any("a.txt: " in record.message for record in caplog.records if record.levelno > 20)

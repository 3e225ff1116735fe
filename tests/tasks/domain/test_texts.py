"""A domain's texts in training and held-out parts, and the words that are found in them."""

import gzip
import json

import pytest
from helpers.small_data import PIECES  # noqa: F401  of the fixture `small`

from bert_tf.pretraining.documents import all_documents, marked_held_out
from bert_tf.tasks.domain.settings import DomainSettings
from bert_tf.tasks.domain.texts import make_texts, make_words


def settings_of(folder, **changes) -> DomainSettings:
    values = {"init_checkpoint": "model", "input_file": f"{folder}/in*", "output_dir": str(folder / "out"), **changes}
    return DomainSettings(**values)


def write_documents(path, count, first=0):
    """JSON lines, a document of two sentences in each."""
    texts = (f"Number {number} is here. It is the zyx of {number}." for number in range(first, first + count))
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def test_documents_of_every_format(tmp_path):
    (tmp_path / "a.txt").write_text("One here. Two here.\n\nThree here.\n")
    (tmp_path / "b.jsonl").write_text('{"text": "Four here. Five here."}\n{"text": "Six."}\n')
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"Seven here.\nEight."))
    (tmp_path / "d.txt").write_text("")
    files = [str(tmp_path / name) for name in ("a.txt", "b.jsonl", "c.txt.gz", "d.txt")]
    assert list(all_documents(files, show_progress=False)) == [
        ["One here.", "Two here.", "Three here."], ["Four here.", "Five here."], ["Six."], ["Seven here.", "Eight."],
    ]  # fmt: skip


@pytest.mark.parametrize(("count", "held_out"), [(2, [1]), (19, [18]), (20, [19]), (41, [19, 39])])
def test_what_is_held_out(count, held_out):
    marked = list(marked_held_out([str(number)] for number in range(count)))
    assert [int(document[0]) for document, _ in marked] == list(range(count))
    assert [int(document[0]) for document, is_held_out in marked if is_held_out] == held_out


def test_texts_are_split_and_kept(tmp_path):
    write_documents(tmp_path / "in.jsonl", 45)
    write_documents(tmp_path / "news.jsonl", 3, first=100)
    settings = settings_of(tmp_path, other_text=f"{tmp_path}/news.jsonl")
    counts = make_texts(settings)
    assert {name: found["documents"] for name, found in counts.items()} == {"train": 43, "heldout": 2, "other": 3}
    text = tmp_path / "out" / "text"
    assert (text / "heldout.txt").read_text() == (
        "Number 19 is here.\nIt is the zyx of 19.\n\nNumber 39 is here.\nIt is the zyx of 39.\n\n"
    )
    assert sum((text / f"{name}.txt").stat().st_size for name in counts) == sum(one["bytes"] for one in counts.values())
    assert counts["train"]["sentences"] == 86
    (text / "train.txt").write_text("as it was left")
    assert make_texts(settings) == counts and (text / "train.txt").read_text() == "as it was left"


def test_held_out_files_of_ones_own(tmp_path):
    write_documents(tmp_path / "in.jsonl", 1)
    with pytest.raises(ValueError, match="--input_file=.*: 1 documents can't be split .*Give --heldout_file"):
        make_texts(settings_of(tmp_path))
    write_documents(tmp_path / "held.jsonl", 2)
    counts = make_texts(settings_of(tmp_path, heldout_file=f"{tmp_path}/held.jsonl"))
    assert {name: found["documents"] for name, found in counts.items()} == {"train": 1, "heldout": 2}


def test_texts_that_are_none(tmp_path):
    write_documents(tmp_path / "in.jsonl", 5)
    (tmp_path / "blank.txt").write_text("\n\n \n")
    (tmp_path / "bad.txt").write_bytes(b"fine\n\xff\xfe\n")
    cases = {"blank.txt": "--other_text=.*: there is no text in it", "bad.txt": "bad.txt, line 2: not UTF-8"}
    for name, message in cases.items():
        with pytest.raises(ValueError, match=message):
            make_texts(settings_of(tmp_path, other_text=f"{tmp_path}/{name}"))
        # Nothing half-written, and no texts.json that would be taken over.
        assert not list((tmp_path / "out" / "text").iterdir())


def test_words_are_found_and_kept(tmp_path, small):
    (tmp_path / "in.txt").write_text("Good w1 zyxw good.\n" * 60 + "Bad qrs w2.\n" * 9 + "Rare xyz.\n")
    settings = settings_of(tmp_path, new_words=10, heldout_file=f"{tmp_path}/in.txt")
    make_texts(settings)
    # Nothing in this vocabulary begins a piece: both words are unknown.
    found = make_words(settings, small, "BERT")
    assert [(new.word, new.count) for new in found.words] == [("zyxw", 60), ("qrs", 9)]
    assert (tmp_path / "out" / "words.txt").read_text() == "zyxw\nqrs\n"
    (tmp_path / "out" / "text" / "train.txt").unlink()
    assert make_words(settings, small, "BERT") == found
    assert make_words(settings_of(tmp_path, new_words=0), small, "BERT").words == ()


def test_no_words_for_other_tokenizers(tmp_path, caplog):
    with caplog.at_level("INFO"):
        found = make_words(settings_of(tmp_path), object(), "RoBERTa")
    assert found.words == () and found.pieces_before is None
    assert "No new words: RoBERTa has no word pieces" in caplog.text
    assert not (tmp_path / "out").exists()

"""Records of every family's tokenizer: rows, casing, processes, and the vocabulary that a run finds by them."""

import json
import shutil

import numpy as np
import pytest
from helpers.basics import GOLDEN, lines_of
from helpers.record_files import UNMASKED_FEATURES, create, read_records
from helpers.tiny import save_model

from bert_tf import BertConfig, BertForPreTraining, FullTokenizer
from bert_tf.families import family_named
from bert_tf.pretraining import model_vocabulary, shard, token_store
from bert_tf.pretraining.model_vocabulary import data_tokenizer, vocabulary_sha256
from bert_tf.store import save
from bert_tf.store.open import open_model
from bert_tf.text.sentence_piece import SentencePieceTokenizer

TOKENIZERS = GOLDEN / "tokenization"
TEXT = "The house of the rising sun.\nIt's  Café 2019, they said.\n\u0301\n \nAnother, \u200b longer one!\n\u200b\nEnd"
# family -> its vocabulary, and whether the combining accent alone on its line ends a document
VOCABULARIES = {"bert": (GOLDEN / "vocab.txt", False), "electra": (GOLDEN / "vocab.txt", False)}
VOCABULARIES |= {"roberta": (TOKENIZERS / "roberta" / "vocab.json", False)}
VOCABULARIES |= {"albert": (TOKENIZERS / "albert" / "tiny.model", True)}
VOCABULARIES |= {"xlm-roberta": (TOKENIZERS / "xlm-roberta" / "sentencepiece.bpe.model", False)}


def make(folder, vocab_file, name="out", content=TEXT, **flags):
    flags = {"masking": "dynamic", "nsp": False, "max_seq_length": 128, "short_seq_prob": 0.0} | flags
    return create(folder, content, name=name, vocab_file=vocab_file, **flags)


@pytest.mark.parametrize("family", VOCABULARIES)
def test_rows_are_those_of_the_tokenizer(family, tmp_path):
    vocab_file, ends = VOCABULARIES[family]
    summary = make(tmp_path, vocab_file)
    tokenizer = family_named(family).tokenizer_class.from_file(str(vocab_file), model_vocabulary.Casing(True))
    lines = TEXT.split("\n")
    documents = [lines[:2], [], lines[4:]] if ends else [lines[:3], lines[4:]]
    texts = [[index for line in document for index in tokenizer.encode(line.strip())] for document in documents]
    rows = [[tokenizer.cls_id, *ids, tokenizer.sep_id] for ids in texts if ids]
    records = read_records(tmp_path / "out", UNMASKED_FEATURES)
    assert sorted(record["input_ids"] for record in records) == sorted(rows)
    assert all(record["segment_lengths"] == [len(record["input_ids"]), 0] for record in records)
    assert summary["vocab_size"] == len(tokenizer.vocab) and summary["documents"] == 2
    assert summary["flags"]["do_lower_case"] is not tokenizer.cased


def test_records_of_a_vocabulary_with_blank_and_repeated_tokens(tmp_path):
    """As Google's Chinese one, of which a line is U+2028. (What is written beside a model: test_wordpiece.py.)"""
    lines = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "\u2028", *"abehst", "\u3000", "house", "##s", *"aU"]
    (tmp_path / "vocab.txt").write_bytes("\r\n".join(lines).encode())
    text = "The house\u2028a\u3000b.\nIts A\n"
    assert make(tmp_path, tmp_path / "vocab.txt", content=text, do_lower_case=True)["vocab_size"] == 17
    (record,) = read_records(tmp_path / "out", UNMASKED_FEATURES)
    assert record["input_ids"] == [2, 1, 13, 15, 7, 1, 1, 15, 3]


@pytest.mark.parametrize("family", ["roberta", "albert", "xlm-roberta"])
def test_a_run_finds_the_vocabulary_with_all_its_files(family, tmp_path):
    source = VOCABULARIES[family][0]
    shutil.copytree(source.parent, tmp_path / "vocabulary", ignore=shutil.ignore_patterns("token*"))
    vocab_file = tmp_path / "vocabulary" / source.name
    summary = make(tmp_path, vocab_file)
    config = family_named(family).config_class(summary["vocab_size"])
    records = {"--input_file": model_vocabulary.summaries_of([str(tmp_path / "out")])}
    found = model_vocabulary.choose_vocabulary(None, None, records, config)
    assert found.vocab_file == str(vocab_file)
    save.write_beside(str(tmp_path / "model"), save.description_files(found))
    tokenizer = family_named(family).tokenizer_class.from_pretrained(str(tmp_path / "model"))
    assert tokenizer.encode("It's  Café 2019,") == data_tokenizer(str(vocab_file), None).encode("It's  Café 2019,")
    odd = {"--input_file": {path: one | {"flags": {}} for path, one in records["--input_file"].items()}}
    for given, kind, size, message in (
        (records, family, 9, f"has token id {summary['vocab_size'] - 1}, but vocab_size=9"),
        (records, "bert", 10_000, "is a vocabulary of .*, but this model is BERT, which needs word pieces"),
        (odd, family, 9, r"pretraining_data.out.json: a value .*KeyError"),
    ):
        with pytest.raises(ValueError, match=message):
            model_vocabulary.choose_vocabulary(None, None, given, family_named(kind).config_class(size))
    if family == "roberta":  # other merges are another vocabulary
        merges = tmp_path / "vocabulary" / "merges.txt"
        merges.write_text("\n".join(merges.read_text().splitlines()[:-1]) + "\n")
        assert vocabulary_sha256(str(vocab_file)) != summary["vocab_sha256"]
        assert model_vocabulary.choose_vocabulary(None, None, records, config) is None


def test_the_vocabulary_of_a_kobert_is_that_with_its_model(tmp_path):
    model = VOCABULARIES["albert"][0].read_bytes()
    (tmp_path / "spiece.model").write_bytes(model)
    pieces = SentencePieceTokenizer(str(tmp_path / "spiece.model")).pieces
    tokens = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", *pieces]
    (tmp_path / "vocab.txt").write_text("\n".join(dict.fromkeys(tokens)))
    summary = make(tmp_path, tmp_path / "vocab.txt")
    assert vocabulary_sha256(str(tmp_path / "vocab.txt")) == summary["vocab_sha256"]
    # The pieces that a model finds depend on their scores, which only it has.
    (tmp_path / "spiece.model").write_bytes(model + b"\x0a\x04\x0a\x02zq")
    assert data_tokenizer(str(tmp_path / "vocab.txt"), None).vocab_size == summary["vocab_size"]
    with pytest.raises(ValueError, match=r"vocab.txt is not the vocabulary that the records were made with"):
        find_vocabulary(f"{tmp_path}/vocab.txt", None, {"--input_file": [f"{tmp_path}/out"]}, summary["vocab_size"])


@pytest.mark.slow
def test_processes_shards_and_blocks_change_nothing(tmp_path, golden, monkeypatch):
    given = {"vocab_file": VOCABULARIES["albert"][0], "content": (golden / "pretraining/corpus_0.txt").read_text()}
    make(tmp_path, **given)
    monkeypatch.setattr(shard, "_BYTES_A_TASK", 3000)
    monkeypatch.setattr("bert_tf.pretraining.corpus.PIECE_CHARACTERS", 50)
    make(tmp_path, name="tasks", num_workers=2, **given)
    assert (tmp_path / "tasks").read_bytes() == (tmp_path / "out").read_bytes()
    sharded = make(tmp_path, name="shards", num_shards=3, **given)
    whole = json.loads((tmp_path / "pretraining_data.out.json").read_text())
    assert sharded["tokens"] == whole["tokens"] and sharded["documents"] == whole["documents"]


@pytest.mark.parametrize("prefix", [False, True])
def test_words_of_byte_bpe_are_looked_up(prefix, tmp_path, monkeypatch):
    """Odd whitespace and odd texts get the ids that the tokenizer gives to the whole line."""
    source = VOCABULARIES["roberta"][0]
    shutil.copytree(source.parent, tmp_path / "vocabulary")
    if prefix:
        (tmp_path / "vocabulary" / "tokenizer_config.json").write_text('{"add_prefix_space": true}')
    tokenizer = data_tokenizer(str(tmp_path / "vocabulary" / source.name), None)
    texts = [line["text"] for line in lines_of(source.parent / "tokenization.jsonl.gz")]
    texts = [text.replace("\n", " \t ").encode("utf-8", "replace").decode() for text in texts]
    texts += ["a  b", "a \t b", "a\u00a0 b c", "a\u3000b", " It's  5 o'clock,   isn't it? ", "x x x "]
    texts += ["a \ufdd0b \ufdd1 c"]
    texts += [" ".join(text.split()) for text in texts]
    expected = [tokenizer.encode(text.strip()) for text in texts]
    monkeypatch.setattr(token_store, "_HASH_SLOTS", 64)
    for size in (7, 10**6):
        content = "\n".join(texts) + "\n"
        parts = [content[begin : begin + size] for begin in range(0, len(content), size)]
        store = token_store.tokenize(parts, tokenizer, str(tmp_path / str(size)))
        found = np.split(store.tokens, store.sentence_ends[:-1])
        assert [row.tolist() for row in found] == [row for row in expected if row]
    assert isinstance(token_store.words_of(tokenizer, None, False).__self__, token_store.ByteBpeWords)


PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] the house stands on a hill .".split()  # noqa: SIM905


def find_vocabulary(vocab_file, path, record_files, vocab_size=100, **arguments):
    start, config = path and open_model(path), BertConfig(vocab_size)
    summaries = {flag: model_vocabulary.summaries_of(files) for flag, files in record_files.items()}
    return model_vocabulary.choose_vocabulary(vocab_file, start, summaries, config, **arguments)


def make_records(folder, name="train", pieces=PIECES, **flags):
    """Creates records of a small text, with their vocabulary next to them; returns the path of the records."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}_vocab.txt").write_text("\n".join(pieces) + "\n")
    text, vocab_file = "The house stands.\nOn a hill.\n\nA hill.\nThe house.\n", folder / f"{name}_vocab.txt"
    flags |= {"vocab_file": vocab_file, "max_seq_length": 16, "max_predictions_per_seq": 3}
    create(folder, text, name=f"{name}.tfrecord", **flags)
    return str(folder / f"{name}.tfrecord")


def test_moved_together_and_lost(tmp_path, caplog):
    records = make_records(tmp_path / "data")
    shutil.move(tmp_path / "data", tmp_path / "moved")
    moved = records.replace("/data/", "/moved/")
    assert find_vocabulary(None, None, {"--input_file": [moved]}).vocab_file == str(tmp_path / "moved/train_vocab.txt")
    # A file of that name with other content is another vocabulary.
    (tmp_path / "moved" / "train_vocab.txt").write_text("\n".join(PIECES[::-1]))
    assert find_vocabulary(None, None, {"--input_file": [moved]}) is None
    assert "train_vocab.txt (" in caplog.text and "is no longer there: give --vocab_file" in caplog.text
    (tmp_path / "moved" / "pretraining_data.train.json").unlink()
    assert find_vocabulary(None, None, {"--input_file": [moved]}) is None
    assert "as nothing names that: give --vocab_file" in caplog.text


def test_vocabularies_that_are_not_that_of_the_records(tmp_path):
    train, other = make_records(tmp_path / "train", do_lower_case=False), tmp_path / "other.txt"
    other.write_text("\n".join(PIECES) + "\n")
    for vocab_file in (str(other), None):  # the same content; casing is that of the records
        found = find_vocabulary(vocab_file, None, {"--input_file": [train]})
        assert found.vocab_file == (vocab_file or str(tmp_path / "train" / "train_vocab.txt"))
        assert (found.casing.do_lower_case, found.casing.strip_accents) == (False, False)
    other.write_text("\n".join([*PIECES, "more"]) + "\n")
    with pytest.raises(ValueError, match=r"--vocab_file=.*other\.txt is not the vocabulary .*train_vocab\.txt \("):
        find_vocabulary(str(other), None, {"--input_file": [train]})
    heldout = make_records(tmp_path / "heldout", "heldout", [*PIECES, "more"])
    with pytest.raises(ValueError, match=r"^--input_file and --eval_input_file: .*heldout_vocab\.txt is not the"):
        find_vocabulary(None, None, {"--input_file": [train], "--eval_input_file": [heldout]})
    # Records of others in the folder are not asked.
    make_records(tmp_path / "train", "other", [*PIECES, "more"])
    (tmp_path / "train" / "pretraining_data.odd.json").write_text(json.dumps({"output_files": {"x": 1}}))
    assert find_vocabulary(None, None, {"--input_file": [train, train]}).vocab_file.endswith("train_vocab.txt")


def test_weights_to_start_from_bring_theirs(tmp_path, caplog):
    model = save_model(tmp_path / "model", "bert", BertForPreTraining)
    records = make_records(tmp_path / "data", pieces=(tmp_path / "model" / "vocab.txt").read_text().split("\n")[:-1])
    found = find_vocabulary(None, model, {"--input_file": [records]}, 30522)
    assert found.vocab_file == f"{model}/vocab.txt" and found.casing.do_lower_case
    assert "--init_checkpoint: " not in caplog.text
    other = {"--input_file": [make_records(tmp_path / "other")]}
    find_vocabulary(None, model, other, 30522)
    assert "model/vocab.txt is not the vocabulary that the records were made with" in caplog.text
    with pytest.raises(ValueError, match="--teacher: .*model/vocab.txt is not the vocabulary that the records were"):
        find_vocabulary(None, model, other, from_teacher=True)


def sentences_of(lines: list[str], tokenizer: FullTokenizer, directory, lines_at_once: int = 7) -> list[list[int]]:
    pieces = ("\n".join([*lines[k : k + lines_at_once], ""]) for k in range(0, len(lines), lines_at_once))
    store = token_store.tokenize(pieces, tokenizer, str(directory))
    return [part.tolist() for part in np.split(store.tokens, store.sentence_ends[:-1])]


@pytest.mark.parametrize(("is_lower", "strips"), [(True, None), (False, None), (True, False), (False, True)])
def test_golden_strings(tmp_path, is_lower, strips):
    """One per line; that the tokenizer gives the original's ids: tests/text/test_wordpiece.py."""
    tokenizer = FullTokenizer(str(GOLDEN / "vocab.txt"), is_lower, strips)
    records = lines_of(GOLDEN / "tokenization" / "tokenization.jsonl.gz")
    lines = [one["text"] for one in records if one["do_lower_case"] == is_lower and "\n" not in one["text"]]
    expected = [ids for ids in tokenizer.encode_batch(lines) if ids]
    assert sentences_of(lines, tokenizer, tmp_path) == expected and len(expected) > 3000


def test_every_ascii_character_in_every_place(tmp_path, english, monkeypatch):
    monkeypatch.setattr(token_store, "_HASH_SLOTS", 64)  # a full table starts afresh
    characters = [chr(code) for code in range(128) if chr(code) not in "\n"]
    forms = ("@", "Ab@cD", "@word", "word@ 좋다@é", "@@ x@")
    lines = [form.replace("@", character) for character in characters for form in forms]
    lines += [character * count for character in "aéψ가" for count in (200, 201)]  # the longest word, and one too long
    expected = [ids for ids in english.encode_batch(lines) if ids]
    assert sentences_of(lines, english, tmp_path) == expected
    assert len(expected) < len(lines)  # nothing is left of control characters


def test_an_ideographic_space_ends_a_document(tmp_path, english):
    store = token_store.tokenize(["a\nb\n\u3000\na\n"], english, str(tmp_path))
    assert store.document_ends.tolist() == [2, 3]


def test_added_tokens(tmp_path):
    """Lines with them, in any case, and lines without have the ids of the tokenizer."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##b", "new", "york"]
    pieces += ["[", "]", "e", "##1", "한", "##국"]
    (tmp_path / "vocab.txt").write_text("".join(piece + "\n" for piece in pieces), encoding="utf-8")
    flags = {"special": False, "single_word": False, "lstrip": False, "rstrip": False}
    decoder = {
        len(pieces): {**flags, "content": "[E1]", "normalized": False},
        len(pieces) + 1: {**flags, "content": "New York", "normalized": True},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    tokenizer = FullTokenizer(str(tmp_path / "vocab.txt"), True, False)
    lines = ["a ab", "[E1]한국[E1]b", "[e1] a", "ab NEW YORKab", "new  york", "b", "[E1]"]
    found = sentences_of(lines, tokenizer, tmp_path / "store", lines_at_once=3)
    assert found == tokenizer.encode_batch(lines)
    assert found[1] == [16, 14, 15, 16, 6] and found[3] == [5, 7, 17, 5, 7]

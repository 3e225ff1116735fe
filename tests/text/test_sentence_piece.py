"""ALBERT's tokenizer compared with the original's results and, for Hugging Face's files, with those of transformers."""

import base64
import json
import shutil
import unicodedata

import pytest
from helpers.descendants import save_albert_tokenizer
from helpers.paths import GOLDEN, directory_of, lines_of
from helpers.slow import slow
from helpers.texts import odd_texts

from bert_tf.text.graph_wordpiece import NoGraphError, graph_of
from bert_tf.text.sentence_piece import HuggingFaceSentencePiece, SentencePieceTokenizer, is_start_piece

ORACLE = GOLDEN / "tokenization" / "albert"
MODEL = str(ORACLE / "tiny.model")
SPECIAL = ("[CLS]", "[SEP]", "[MASK]", "<pad>", "<unk>")


@pytest.fixture(scope="module")
def golden_texts():
    return lines_of(ORACLE / "tokenization.jsonl.gz")


@pytest.fixture(scope="module")
def tokenizer():
    return SentencePieceTokenizer(MODEL)


@pytest.mark.parametrize("mode", ["lower", "cased"])
def test_golden_strings(golden_texts, mode):
    tokenizer = SentencePieceTokenizer(MODEL, do_lower_case=mode == "lower")
    assert tokenizer.cased == (mode == "cased")
    forged = 0
    for record in golden_texts:
        text, expected = record["text"], record[mode]
        assert tokenizer.preprocess(text) == expected["preprocessed"], text
        assert tokenizer.tokenize(text) == expected["pieces"], text
        # In the original, characters that the model doesn't know become a special token if they happen to spell it.
        ids = [
            1 if piece in SPECIAL else index for piece, index in zip(expected["pieces"], expected["ids"], strict=True)
        ]
        forged += ids != expected["ids"]
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.encode_with_offsets(text)[0] == ids, text
    assert forged == (5 if mode == "cased" else 0)
    assert len(golden_texts) == 305


def test_digits_and_commas(golden_texts, tokenizer):
    """The golden strings tell the original on Python 3 from that on Python 2, and from no rule at all."""
    assert sum(record["lower"]["pieces"] != record["lower"]["pieces_python2"] for record in golden_texts) > 30
    assert tokenizer.tokenize("9,x 2019,") == ["\u2581", "\u25819", ",", "x", "\u2581201", "9", ","]
    for text, places in {
        "a9,": [(0, 1), (1, 2), (2, 3)],
        " 2019,": [(1, 4), (4, 5), (5, 6)],
        "a \ufffd\u200b2019,\ufffd": [(0, 1), (4, 7), (7, 8), (8, 9)],
    }.items():
        assert tokenizer.encode_with_offsets(text)[1] == places


def test_start_pieces(tokenizer):
    expected = json.loads((ORACLE / "start_pieces.json").read_text(encoding="utf-8"))
    assert {piece: is_start_piece(piece) for piece in expected} == expected
    special = [tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id]
    assert not tokenizer.continuations[special].any()
    ids = tokenizer.encode("harbour wakes, don't")
    tokens = tokenizer.convert_ids_to_tokens(ids)
    assert tokenizer.continues_word(ids).tolist() == [not is_start_piece(token) for token in tokens]


def plain_ids(tokenizer, text: str) -> list[int]:
    """The original's steps one after another."""
    text = unicodedata.normalize("NFKD", " ".join(text.strip().split()))
    text = "".join(char for char in text if not unicodedata.combining(char)).lower()
    processor, pieces = tokenizer._processor, []
    for piece in processor.encode(text, out_type=str):
        if len(piece) > 1 and piece.endswith(",") and piece[-2].isdigit():
            pieces += processor.encode(piece[:-1].replace("\u2581", ""), out_type=str)
            piece = ","
        pieces.append(piece)
    return [processor.piece_to_id(piece) for piece in pieces]


@pytest.mark.parametrize("count", [2000, *slow(100_000)])
def test_odd_strings(tokenizer, count):
    texts = list(odd_texts(count))
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert ids == plain_ids(tokenizer, text), repr(text)
        found, offsets = tokenizer.encode_with_offsets(text)
        assert found == ids
        starts = [start for start, _ in offsets]
        assert starts == sorted(starts) and all(0 <= start <= end <= len(text) for start, end in offsets)
        covered = {place for start, end in offsets for place in range(start, end)}
        for place, char in enumerate(text):  # what is seen is covered
            if char.isalnum() and unicodedata.category(char) in ("Ll", "Lu", "Nd"):
                assert place in covered, (text, place)


@pytest.mark.parametrize(("text", "covered"), [
    ("  Hello  WORLD ", ["H", "ell", "o", "W", "OR", "L", "D"]),
    ("Cafe\u0301\u0308 e\u0301", ["Ca", "fe\u0301\u0308", "", "e\u0301"]),
    ("\u00bdx", ["\u00bd", "\u00bd", "\u00bd", "x"]),
    ("\ufb01\u1ea0\u0308", ["\ufb01", "\u1ea0\u0308"]),
    (" \u0301\n", []),
])  # fmt: skip
def test_offsets(tokenizer, text, covered):
    assert [text[start:end] for start, end in tokenizer.encode_with_offsets(text)[1]] == covered


@pytest.fixture(scope="module")
def huggingface(tmp_path_factory):
    directory = tmp_path_factory.mktemp("albert")
    return save_albert_tokenizer(ORACLE / "tiny.model", directory), directory


@pytest.mark.parametrize("count", [1500, *slow(100_000)])
def test_files_of_huggingface(tmp_path, huggingface, tokenizer, count):
    theirs, directory = huggingface
    directory = shutil.copytree(directory, tmp_path / "model")
    shutil.copy(MODEL, directory / "spiece.model")  # tokenizer.json comes first
    ours = SentencePieceTokenizer.from_pretrained(str(directory))
    assert type(ours) is HuggingFaceSentencePiece and not ours.cased
    texts = [text for text in odd_texts(count) if not any(token in text for token in SPECIAL)]
    expected = theirs(texts, add_special_tokens=False, return_offsets_mapping=True)
    assert ours.encode_batch(texts) == expected["input_ids"]
    for text, ids, offsets in zip(texts, expected["input_ids"], expected["offset_mapping"], strict=True):
        assert ours.encode_with_offsets(text) == (ids, offsets), repr(text)
    # The two differ, so the choice matters.
    assert any(ids != tokenizer.encode(text) for text, ids in zip(texts, expected["input_ids"], strict=True))
    assert ours.encode("the harbour") == tokenizer.encode("the harbour")
    assert theirs("the", "sea")["input_ids"] == ours.build_inputs(ours.encode("the"), ours.encode("sea"))[0]
    assert ours.cls_id not in ours.encode("[CLS]") and ours.mask_id in ours.encode_masked("the [MASK]")
    assert ours.decode(ours.encode("The harbour")) == "the harbour"
    assert sorted(ours.files()) == ["spiece.model", "tokenizer.json"]
    with pytest.raises(ValueError, match=r"do_lower_case=False contradicts .*tokenizer"):
        SentencePieceTokenizer.from_pretrained(str(directory), do_lower_case=False)
    for one, name in ((ours, "tokenizer.json"), (tokenizer, MODEL)):
        with pytest.raises(NoGraphError, match=rf"{name}: .* can't be found inside a graph\. .* take ids\.$"):
            graph_of(one)
    assert not ours.continuations[[ours.cls_id, ours.mask_id]].any()


def older_form(values: dict) -> dict:
    """A tokenizer.json as earlier versions of transformers wrote it."""
    spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "add_prefix_space": True}
    normalizer = {"type": "Sequence", "normalizers": [*values["normalizer"]["normalizers"], spaces]}
    words = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]}
    return {**values, "normalizer": normalizer, "pre_tokenizer": words}


@pytest.mark.parametrize("count", [1500, *slow(100_000)])
@pytest.mark.parametrize("form", [dict, older_form])
def test_a_model_made_of_tokenizer_json(tmp_path, huggingface, tokenizer, form, count):
    """It gives what the model gives that the file was made of."""
    directory = shutil.copytree(huggingface[1], tmp_path / "model")
    values = form(json.loads((directory / "tokenizer.json").read_text()))
    (directory / "tokenizer.json").write_text(json.dumps(values))
    theirs = SentencePieceTokenizer.from_pretrained(str(directory))
    assert type(theirs) is HuggingFaceSentencePiece
    made = tmp_path / "made"
    made.mkdir()
    (made / "tokenizer_config.json").write_text(json.dumps(theirs.settings()))
    (made / "spiece.model").write_bytes(theirs.files()["spiece.model"])
    found = SentencePieceTokenizer.from_pretrained(str(made))
    assert type(found) is SentencePieceTokenizer and found.vocab == tokenizer.vocab and not found.cased
    assert [found._processor.get_score(index) for index in found.vocab.values()] == [
        tokenizer._processor.get_score(index) for index in found.vocab.values()
    ]
    texts = list(odd_texts(count))
    assert found.encode_batch(texts) == tokenizer.encode_batch(texts)
    for text in texts[:1500]:
        assert found.encode_with_offsets(text) == tokenizer.encode_with_offsets(text), repr(text)
    assert found.build_inputs([9], [8]) == tokenizer.build_inputs([9], [8])


def replaced(pattern: dict, content: str) -> dict:
    return {"type": "Replace", "pattern": pattern, "content": content}


def charsmap(content: bytes) -> dict:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(content).decode()}


@pytest.mark.parametrize(("normalizer", "message"), [
    (replaced({"Regex": "(a+)+$"}, "b"), "the regular expression .* is not supported"),
    (replaced({"Regex": "x*"}, "b"), "the regular expression"),
    (replaced({"Regex": " {2,}"}, " " * 100), "more than 64 times as long"),
    (replaced({"String": ""}, "b"), "more than 64 times as long"),
    ({"type": "Sequence", "normalizers": [replaced({"String": "o"}, "oo")] * 40}, "more than 64 times as long"),
    (charsmap(bytes(4) + b"x" * 1000), "more than 64 times as long"),
    (charsmap(b"\x08\0\0\0" + b"\xff" * 20), "tokenizer.json: "),  # a panic of Rust
])  # fmt: skip
def test_rules_of_tokenizer_json_that_would_end_the_program(tmp_path, huggingface, normalizer, message):
    values = json.loads((huggingface[1] / "tokenizer.json").read_text())
    directory = directory_of(tmp_path / "model", tokenizer__json={**values, "normalizer": normalizer})
    with pytest.raises(ValueError, match=f"model/tokenizer.json: .*{message}" if "tok" not in message else message):
        SentencePieceTokenizer.from_pretrained(directory).encode("The harbour")
    rules = [replaced({"Regex": r"\s+"}, " "), replaced({"String": "\u2026"}, "...")]
    allowed = {"type": "Sequence", "normalizers": rules}
    directory = directory_of(tmp_path / "other", tokenizer__json={**values, "normalizer": allowed})
    assert SentencePieceTokenizer.from_pretrained(directory).tokenize("the\u2026")


def test_models_that_no_sentencepiece_model_expresses(tmp_path, huggingface):
    values = json.loads((huggingface[1] / "tokenizer.json").read_text())
    rules = values["normalizer"]["normalizers"]
    added = {**values["added_tokens"][0], "id": 560, "content": "[NEW]"}
    cases = (
        {"model": {**values["model"], "byte_fallback": True}},
        {"model": {**values["model"], "unk_id": None}},
        {"added_tokens": [*values["added_tokens"], added]},
        {"normalizer": {"type": "Sequence", "normalizers": [rule for rule in rules if rule["type"] != "NFKD"]}},
        {"pre_tokenizer": {"type": "WhitespaceSplit"}},
    )
    for number, changes in enumerate(cases):
        directory = directory_of(tmp_path / str(number), tokenizer__json={**values, **changes})
        tokenizer = SentencePieceTokenizer.from_pretrained(directory)
        assert sorted(tokenizer.files()) == ["tokenizer.json"] and tokenizer.encode("the harbour")
    cased = [rule for rule in rules if rule["type"] != "Lowercase"]
    values["normalizer"]["normalizers"] = cased
    tokenizer = SentencePieceTokenizer.from_pretrained(directory_of(tmp_path / "cased", tokenizer__json=values))
    assert tokenizer.settings()["do_lower_case"] is False and "spiece.model" in tokenizer.files()


def test_bad_files(tmp_path, huggingface):
    model = (ORACLE / "tiny.model").read_bytes()
    values = json.loads((huggingface[1] / "tokenizer.json").read_text())
    renamed = [["#" if piece == "<pad>" else piece, score] for piece, score in values["model"]["vocab"]]
    foreign = {**values, "model": {**values["model"], "vocab": renamed}, "added_tokens": [], "post_processor": None}
    cases = [
        ({}, None, r"has no spiece.model \(or 30k-clean.model\) and no tokenizer.json"),
        ({}, b"", r"spiece.model is not a SentencePiece model, or is damaged"),
        ({}, model.replace(b"\n\x05<pad>", b"\n\x05>pad<"), r"spiece.model lacks <pad>"),
        ({"tokenizer__json": foreign}, None, r"tokenizer.json lacks <pad>"),
        ({"tokenizer_config__json": {"keep_accents": True}}, model, r"keep_accents needs the tokenizer.json"),
    ]
    for number, (files, content, message) in enumerate(cases):
        directory = directory_of(tmp_path / str(number), **files)
        if content is not None:
            (tmp_path / str(number) / "spiece.model").write_bytes(content)
        with pytest.raises(ValueError, match=message) as caught:
            SentencePieceTokenizer.from_pretrained(directory)
        assert "\n" not in str(caught.value) and directory in str(caught.value)
    several = directory_of(tmp_path / "several", ORACLE / "tiny.model")
    shutil.copy(MODEL, tmp_path / "several" / "b.model")
    with pytest.raises(ValueError, match=r"several SentencePiece models, b.model, tiny.model"):
        SentencePieceTokenizer.from_pretrained(several)

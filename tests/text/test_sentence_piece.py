"""ALBERT's tokenizer compared with the original's results, and KoBERT's with those of transformers."""

import base64
import json
import shutil
import unicodedata

import pytest
import sentencepiece
from helpers.basics import GOLDEN, directory_of, lines_of, slow
from helpers.other_tokenizers import KOBERT_MODEL, KOBERT_SPECIAL, write_kobert
from helpers.texts import SENTENCES, assert_kept, mixed_texts, odd_texts, shared_texts
from helpers.tiny import save_albert_tokenizer
from transformers.models.bert_japanese.tokenization_bert_japanese import SentencepieceTokenizer

from bert_tf.families.config import BertConfig
from bert_tf.store.open import read_tokenizer
from bert_tf.text import sentence_piece
from bert_tf.text.graph_wordpiece import NoGraphError, graph_of
from bert_tf.text.sentence_piece import HuggingFaceSentencePiece, KoBertTokenizer, SentencePieceTokenizer

ORACLE = GOLDEN / "tokenization" / "albert"
MODEL = str(ORACLE / "tiny.model")
GOLDEN_TEXTS = lines_of(ORACLE / "tokenization.jsonl.gz")
SPECIAL = ("[CLS]", "[SEP]", "[MASK]", "<pad>", "<unk>")


@pytest.fixture(scope="module")
def tokenizer():
    return SentencePieceTokenizer(MODEL)


@pytest.mark.parametrize("mode", ["lower", "cased"])
def test_golden_strings(mode):
    tokenizer = SentencePieceTokenizer(MODEL, do_lower_case=mode == "lower")
    assert tokenizer.cased == (mode == "cased")
    forged = 0
    for record in GOLDEN_TEXTS:
        text, expected = record["text"], record[mode]
        assert tokenizer.preprocess(text) == expected["preprocessed"], text
        assert tokenizer.tokenize(text) == expected["pieces"], text
        # In the original, characters that the model doesn't know become a special token if they happen to spell it.
        pairs = zip(expected["pieces"], expected["ids"], strict=True)
        ids = [1 if piece in SPECIAL else index for piece, index in pairs]
        forged += ids != expected["ids"]
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.encode_with_offsets(text)[0] == ids, text
    assert forged == (5 if mode == "cased" else 0)
    assert len(GOLDEN_TEXTS) == 305


def test_digits_and_commas(tokenizer):
    """The golden strings tell the original on Python 3 from that on Python 2, and from no rule at all."""
    assert sum(record["lower"]["pieces"] != record["lower"]["pieces_python2"] for record in GOLDEN_TEXTS) > 30
    assert tokenizer.tokenize("9,x 2019,") == ["\u2581", "\u25819", ",", "x", "\u2581201", "9", ","]
    for text, places in {
        "a9,": [(0, 1), (1, 2), (2, 3)],
        " 2019,": [(1, 4), (4, 5), (5, 6)],
        "a \ufffd\u200b2019,\ufffd": [(0, 1), (4, 7), (7, 8), (8, 9)],
    }.items():
        assert tokenizer.encode_with_offsets(text)[1] == places


def test_start_pieces(tokenizer):
    expected = json.loads((ORACLE / "start_pieces.json").read_text(encoding="utf-8"))
    assert {piece: sentence_piece.is_start_piece(piece) for piece in expected} == expected
    special = [tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id]
    assert not tokenizer.continuations[special].any()
    ids = tokenizer.encode("harbour wakes, don't")
    tokens = tokenizer.convert_ids_to_tokens(ids)
    assert tokenizer.continues_word(ids).tolist() == [not sentence_piece.is_start_piece(token) for token in tokens]


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
    assert ours.cls_id not in ours.encode("[CLS]") and ours.mask_id in ours.encode_masked("the [MASK]")
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
    scores = [[one._processor.get_score(index) for index in found.vocab.values()] for one in (found, tokenizer)]
    assert scores[0] == scores[1]
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


ODD = (
    "1,000,000원", "``따옴표'' '''셋'''", "서울 2019, 부산", "½ ㍿ e\u0301 \u1112\u1161\u11ab", "9,", ",", "",
    "\t \u3000",
)  # fmt: skip
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.fixture(scope="module")
def kobert(tmp_path_factory):
    """A directory like KoBERT's with a few hundred pieces, some of which end in a digit and a comma."""
    folder = tmp_path_factory.mktemp("kobert")
    lines = [" ".join(text.split()) for text in [*SENTENCES, *ODD, *mixed_texts(500)] * 3]
    pieces = write_kobert(folder, [*lines, *["12, 19, 2019, 3,", "x9,0 ab9,"] * 300], 500)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": len(pieces), **SIZES}))
    return folder


@pytest.fixture
def folder(tmp_path, kobert):
    return shutil.copytree(kobert, tmp_path / "kobert")


@pytest.fixture
def plain_ids_of_kobert(folder):
    """The ids by the older class of transformers that has these rules."""
    vocab, rules = (folder / "vocab.txt").read_text().split("\n"), {"remove_space": True, "keep_accents": False}
    oracle = SentencepieceTokenizer(str(folder / KOBERT_MODEL), "[UNK]", do_lower_case=False, **rules)
    ids = {token: index for index, token in enumerate(vocab)}
    return lambda text: [ids.get(piece, 0) for piece in oracle.tokenize(text)]


def test_ids_offsets_and_files(tmp_path, folder, plain_ids_of_kobert):
    tokenizer = read_tokenizer(str(folder))
    assert type(tokenizer) is KoBertTokenizer and tokenizer.pad_id == 1 and tokenizer.cased
    assert sum(len(parts) > 1 for parts in tokenizer.split.values()) >= 3
    texts = [*SENTENCES, *ODD, *mixed_texts(300, seed=3)]
    for text in texts:
        ids, offsets = tokenizer.encode_with_offsets(text)
        assert ids == tokenizer.encode(text) == plain_ids_of_kobert(text), text
        assert offsets == sorted(offsets) and all(0 <= begin <= end <= len(text) for begin, end in offsets)
    ids, offsets = tokenizer.encode_with_offsets("``서울'' 2019, 부산")
    covered = ["``서울'' 2019, 부산"[begin:end] for begin, end in offsets]
    assert "".join(covered) == "``서울''2019,부산" and "``" in covered and "''" in covered
    assert_kept(tokenizer, tmp_path / "saved", texts, str(folder))
    pieces = tokenizer.tokenize("한국어 모델입니다")
    starts = [not tokenizer.is_continuation(piece) for piece in pieces]
    assert sum(starts) == 2 and starts[0] and pieces[starts.index(True, 1)].startswith("\u2581")
    row = tokenizer(["서울"], ["부산"])
    second = [*tokenizer.encode("부산"), 3]
    assert row["input_ids"][0].tolist() == [2, *tokenizer.encode("서울"), 3, *second]
    assert row["segment_ids"][0].tolist()[-len(second) - 1 :] == [0, *[1] * len(second)]


def test_the_model_alone(tmp_path, kobert):
    """As skt/kobert-base-v1 has it: the model's own numbers are the ids."""
    model = shutil.copy(kobert / KOBERT_MODEL, tmp_path / "spiece.model")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    (tmp_path / "bert_config.json").write_text(BertConfig(processor.get_piece_size(), **SIZES).to_json_string())
    config = {"tokenizer_class": "XLNetTokenizer", **{f"{role.lower()[1:-1]}_token": role for role in KOBERT_SPECIAL}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = read_tokenizer(str(tmp_path))
    assert type(tokenizer) is KoBertTokenizer and tokenizer.cased
    text = "자연어 처리는 인간의 언어"
    assert tokenizer.encode(text) == processor.encode(text)


def test_kobert_rejects_other_files(folder):
    tokenizer = read_tokenizer(str(folder))
    with pytest.raises(NoGraphError, match=r"vocab.txt: the pieces of a KoBertTokenizer .* inside a graph\. .* ids\.$"):
        graph_of(tokenizer)
    (folder / "tokenizer_config.json").write_text(json.dumps({"keep_accents": True}))
    with pytest.raises(ValueError, match=r"tokenizer_config.json: keep_accents is True; it must be False"):
        read_tokenizer(str(folder))
    (folder / "tokenizer_config.json").unlink()
    (folder / KOBERT_MODEL).unlink()
    with pytest.raises(ValueError, match=r"vocab.txt has pieces of SentencePiece \(▁\), but no .model next to it"):
        read_tokenizer(str(folder))


@pytest.mark.slow
def test_ten_thousand_strings(folder, shared, plain_ids_of_kobert):
    tokenizer = read_tokenizer(str(folder))
    for text in shared_texts(shared):
        assert tokenizer.encode(text) == plain_ids_of_kobert(text), text

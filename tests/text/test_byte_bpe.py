"""Byte-level BPE compared with the results of transformers and fairseq; files in each form, and bad files."""

import json

import pytest
from helpers.paths import GOLDEN, directory_of, lines_of
from helpers.slow import slow
from helpers.texts import odd_texts

from bert_tf.text.library_tokenizer import ByteBpeTokenizer

ORACLE = GOLDEN / "tokenization" / "roberta"
SPECIAL = ("<s>", "</s>", "<pad>", "<unk>")


@pytest.fixture(scope="module")
def golden_texts():
    return lines_of(ORACLE / "tokenization.jsonl.gz")


@pytest.fixture(scope="module")
def tokenizer():
    return ByteBpeTokenizer.from_pretrained(str(ORACLE))


ALL = [ORACLE / name for name in ("vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json")]
FORMS = {"tokenizer.json": ALL[2:3], "vocab and merges": ALL[:2]}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("add_prefix_space", [False, True])
def test_golden_strings(tmp_path, golden_texts, form, add_prefix_space):
    settings = {"tokenizer_config__json": {"add_prefix_space": True}} if add_prefix_space else {}
    tokenizer = ByteBpeTokenizer.from_pretrained(directory_of(tmp_path / "model", *FORMS[form], **settings))
    compared = 0
    for record in golden_texts:
        text, expected = record["text"], record["add_prefix_space" if add_prefix_space else "hf"]
        ids, offsets = tokenizer.encode_with_offsets(text)
        # Special tokens written in the text are text, as in fairseq.
        assert add_prefix_space or tokenizer.encode(text) == ids == record["fairseq_ids"], text
        if any(token in text for token in SPECIAL):
            continue
        assert tokenizer.encode_masked(text) == expected["ids"][1:-1], text
        if "<mask>" not in text:
            assert ids == expected["ids"][1:-1], text
            assert offsets == [tuple(offset) for offset in expected["offsets"][1:-1]], text
            if not add_prefix_space:
                assert tokenizer.tokenize(text) == expected["tokens"][1:-1], text
                assert tokenizer.decode(ids) == record["decoded_skip_special"], text
            compared += 1
    assert compared == 277
    texts = [record["text"] for record in golden_texts]
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]


def test_rows_of_pairs(tokenizer):
    for record in lines_of(ORACLE / "pairs.jsonl.gz"):
        if any(token in record[key] for key in "ab" for token in (*SPECIAL, "<mask>")):
            continue
        first, second = tokenizer.encode_batch([record["a"], record["b"]])
        if record["max_length"] is None and second:
            ids, segments = tokenizer.build_inputs(first, second)
            assert ids == record["ids"] and not any(segments)
    assert tokenizer.pad_id == 1 and tokenizer.num_special_tokens(pair=True) == 4
    features = tokenizer(["a b", "c"], ["d", "e f"])
    ids, mask = features["input_ids"], features["input_mask"]
    assert ids[0, 0] == 0 and (ids == 1).sum() == (mask == 0).sum()


@pytest.mark.parametrize("count", [1500, *slow(100_000)])
def test_odd_strings_against_transformers(tmp_path, tokenizer, count):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(directory_of(tmp_path / "model", *ALL, config__json={
        "model_type": "roberta"}))  # fmt: skip
    texts = list(odd_texts(count))
    expected = theirs(texts, return_offsets_mapping=True, add_special_tokens=False)
    assert tokenizer.encode_batch(texts) == expected["input_ids"]
    for text, ids, offsets in zip(texts, expected["input_ids"], expected["offset_mapping"], strict=True):
        assert tokenizer.encode_with_offsets(text) == (ids, offsets), repr(text)


def test_masks_swallow_whitespace(tmp_path, tokenizer):
    """As `lstrip` does in the library, whose whitespace isn't Python's."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(directory_of(tmp_path / "model", *ALL, config__json={
        "model_type": "roberta"}))  # fmt: skip
    for space in map(
        chr, (*range(1, 0x300), *range(0x1680, 0x1690), *range(0x180E, 0x1810), *range(0x2000, 0x2070), 0x3000)
    ):
        text = f"a {space}<mask>{space} b<mask>"
        assert tokenizer.encode_masked(text) == theirs(text, add_special_tokens=False)["input_ids"], repr(text)
    values = json.loads((ORACLE / "tokenizer.json").read_text())
    for token in values["added_tokens"]:
        token["lstrip"] = False
    plain = ByteBpeTokenizer.from_pretrained(directory_of(tmp_path / "plain", tokenizer__json=values))
    assert len(plain.encode_masked("a <mask>")) == 3 and len(tokenizer.encode_masked("a <mask>")) == 2


def test_added_and_renamed_tokens(tmp_path):
    vocab = json.loads((ORACLE / "vocab.json").read_text(encoding="utf-8"))
    renamed = {{"<s>": "[CLS]", "</s>": "[SEP]"}.get(token, token): index for token, index in vocab.items()}
    directory = directory_of(
        tmp_path / "model", ORACLE / "merges.txt", vocab__json=renamed, added_tokens__json={"<new>": len(vocab)},
        special_tokens_map__json={"cls_token": "[CLS]", "sep_token": {"content": "[SEP]", "lstrip": False}},
    )  # fmt: skip
    tokenizer = ByteBpeTokenizer.from_pretrained(directory)
    assert tokenizer.cls_token == "[CLS]"
    assert (tokenizer.begin_tokens, tokenizer.between_tokens) == (("[CLS]",), ("[SEP]", "[SEP]"))
    assert tokenizer.build_inputs([9], [8])[0] == [0, 9, 2, 2, 8, 2]
    assert len(vocab) in tokenizer.encode("Hello <new>") and tokenizer.cls_id not in tokenizer.encode("[CLS]")
    assert not tokenizer.continuations[len(vocab)]


def test_bad_files(tmp_path):
    vocab = json.loads((ORACLE / "vocab.json").read_text(encoding="utf-8"))
    values = json.loads((ORACLE / "tokenizer.json").read_text(encoding="utf-8"))
    without = {token: index for token, index in vocab.items() if token != "<pad>"}
    cases = [
        ({}, r"has no vocab.json \(with merges.txt\) and no tokenizer.json"),
        ({"tokenizer__json": {"model": {"vocab": [["a", 0.0]]}}}, r"its model is Unigram, here BPE is needed"),
        ({"tokenizer__json": {**values, "pre_tokenizer": {"type": "Whitespace"}}}, r"does not split text as RoBERTa's"),
        ({"tokenizer__json": {**values, "added_tokens": [{"id": 0}]}}, r"tokenizer.json: .*not of the expected kind"),
        ({"vocab__json": {"a": 0}, "merges__txt": "#version"}, r"vocab.json lacks 255 of the 256 bytes"),
        ({"vocab__json": vocab, "merges__txt": "zz qq\n"}, r"vocab.json: "),
        ({"vocab__json": without, "merges__txt": "a b\n"}, r"vocab.json"),
    ]  # fmt: skip
    for number, (files, message) in enumerate(cases):
        with pytest.raises(ValueError, match=message) as caught:
            ByteBpeTokenizer.from_pretrained(directory_of(tmp_path / str(number), **files))
        assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)

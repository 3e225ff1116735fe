"""Tokenizers are called as those of transformers, with the same results; byte-level BPE as transformers and fairseq."""

import itertools
import json

import numpy as np
import pytest
import tensorflow as tf
from helpers.basics import GOLDEN, directory_of, lines_of, slow
from helpers.texts import SENTENCES, mixed_texts, odd_texts
from helpers.tiny import NAMES, save_model

from bert_tf import BertModel, read_tokenizer
from bert_tf.text.library_tokenizer import ByteBpeTokenizer
from bert_tf.text.transformers_call import lengths_that_fit
from bert_tf.text.wordpiece import FullTokenizer

TEXTS = [*SENTENCES, *mixed_texts(40), ""]
PAIRS = [*mixed_texts(47, seed=1), "", "b"]
ALL = {"return_offsets_mapping": True, "return_token_type_ids": True, "padding": True}


@pytest.fixture(scope="module", params=NAMES)
def both(request, tmp_path_factory):
    """The tokenizer of a family, here and in transformers; folders that name a length and, some, a side of cutting."""
    transformers = pytest.importorskip("transformers", reason="needs transformers (requirements-dev.txt)")
    folder = tmp_path_factory.mktemp(request.param)
    save_model(folder, request.param, BertModel, format="huggingface", max_length=40)
    name, says = "tokenizer_config.json", {"model_max_length": 30}
    if request.param in ("bert", "roberta"):
        says["truncation_side"] = "left"
    (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | says))
    if request.param == "albert":
        values = json.loads((folder / "tokenizer.json").read_text())
        values["truncation"] = {"direction": "Left", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
        (folder / "tokenizer.json").write_text(json.dumps(values))
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    ours = read_tokenizer(str(folder))
    assert ours.settings().get("truncation_side", "right") == ours.truncation_side == theirs.truncation_side
    return ours, theirs


def assert_same(both, *texts, **arguments):
    ours, theirs = (tokenizer(*texts, **arguments) for tokenizer in both)
    assert list(ours) == sorted(theirs, key=["input_ids", "token_type_ids", "attention_mask", "offset_mapping"].index)
    for name, values in ours.items():
        if arguments.get("return_tensors"):
            np.testing.assert_array_equal(values, theirs[name], err_msg=name)
        else:
            assert [*map(list, values)] == theirs[name], name


@pytest.mark.parametrize("texts", [(TEXTS,), (TEXTS, PAIRS)], ids=["single", "pairs"])
def test_rows_are_those_of_transformers(both, texts):
    for length, strategy, special in ((9, True, True), (22, "longest_first", False), (9, False, False)):
        cut = {"max_length": length, "truncation": strategy, "add_special_tokens": special}
        assert_same(both, *texts, **ALL, **cut, return_tensors="np")
    assert_same(both, *texts, **ALL, truncation=True, return_tensors="np")  # to what the model can read
    assert_same(both, *texts, **{**ALL, "padding": False}, max_length=12)
    assert_same(both, *texts, **{**ALL, "padding": "max_length"}, max_length=40, truncation=True, return_tensors="np")
    without = {"return_offsets_mapping": False, "return_attention_mask": False}
    assert_same(both, *texts, **{**ALL, **without}, truncation=True, max_length=20, return_tensors="np")


def test_one_text_of_a_pair_is_cut(both):
    short = ["a b"] * len(TEXTS)
    assert_same(both, short, TEXTS, **ALL, truncation="only_second", max_length=20, return_tensors="np")
    assert_same(both, TEXTS, text_pair=short, **ALL, truncation="only_first", max_length=20, return_tensors="np")
    long = " ".join("abcdefghij")
    for tokenizer, first in itertools.product(both, (True, False)):
        texts, strategy = (("a", long), "only_first") if first else ((long, "a"), "only_second")
        with pytest.raises(Exception, match="short|can't make a row fit"):  # transformers' is of no class of its own
            tokenizer(*texts, truncation=strategy, max_length=8)


def test_masks_and_words(both):
    """Of a word the pieces are those that it has in a text: in transformers byte-level BPE needs add_prefix_space."""
    ours, theirs = both
    mask = ours.mask_token
    arrays = {"return_tensors": "np", "padding": True, "return_token_type_ids": True}
    assert_same(both, [f"The {mask} of caf\u00e9{mask}.", mask], **arrays)
    words = [sentence.split() for sentence in SENTENCES]
    asked = {"return_offsets_mapping": True, "return_word_ids": True, "padding": False}
    found = ours(words, is_split_into_words=True, **asked)
    if not ours.word_separator:
        expected = theirs(words, is_split_into_words=True, return_offsets_mapping=True)
        assert found["input_ids"] == expected["input_ids"] and found["offset_mapping"] == expected["offset_mapping"]
        for row, numbers in enumerate(found["word_ids"]):
            assert numbers == [-1 if number is None else number for number in expected.word_ids(row)]
        return
    assert found["input_ids"] == theirs([" ".join(row) for row in words])["input_ids"]
    columns = map(found.get, ("input_ids", "word_ids", "offset_mapping"))
    for row, ids, numbers, offsets in zip(words, *columns, strict=True):
        for number, word in enumerate(row):
            own = [place for place, each in enumerate(numbers) if each == number]
            assert (offsets[own[0]][0], offsets[own[-1]][1]) == (0, len(word))
            assert ours.decode([ids[place] for place in own]).strip() == word


def test_other_calls_of_transformers(both):
    ours, theirs = both
    text, other = SENTENCES[:2]
    for texts in ((text,), (text, ""), (text, other)):
        assert_same(both, *texts, padding=True, return_tensors="np", return_token_type_ids=True)
        rows = ours.encode_plus(*texts, return_token_type_ids=True)
        assert dict(rows) == dict(theirs(*texts, return_token_type_ids=True)) and rows.input_ids == rows["input_ids"]
    ids = theirs(text)["input_ids"]
    assert ours.encode(text, add_special_tokens=True) == ids and ours(text).input_ids.tolist() == [ids]
    without = ours.decode([index for index in ids if index not in theirs.all_special_ids])
    assert ours.decode(ids, skip_special_tokens=True) == without != ours.decode(ids)
    assert not hasattr(ours(text), "odd")
    assert ours.batch_decode([ids, ids[:1]], skip_special_tokens=True) == [without, ""]
    for role in ("cls", "sep", "mask", "pad", "unk"):
        assert getattr(ours, f"{role}_token_id") == getattr(theirs, f"{role}_token_id")
    assert (len(ours), ours.model_max_length) == (len(theirs), theirs.model_max_length)
    for texts, pairs in (([text, other], None), ([text, text], [other, text])):
        given = texts if pairs is None else [*zip(texts, pairs, strict=True)]
        expected = theirs(texts, pairs, return_token_type_ids=True)
        assert dict(ours.batch_encode_plus(given, return_token_type_ids=True)) == dict(expected)


def test_names_and_kinds_of_arrays(english):
    plain = english(["how are you", "fine"], ["a", "b"])
    assert list(plain) == ["input_ids", "input_mask", "segment_ids"]
    found = english(["how are you", "fine"], text_pair=["a", "b"], return_tensors="tf")
    assert english.decode(found["input_ids"][0]) == english.decode(found["input_ids"][0].numpy())
    assert list(found) == ["input_ids", "token_type_ids", "attention_mask"]
    assert all(isinstance(value, tf.Tensor) and value.dtype == tf.int32 for value in found.values())
    for one, other in zip(("input_ids", "segment_ids", "input_mask"), found.values(), strict=True):
        np.testing.assert_array_equal(plain[one], other)
    assert english("fine", padding=True)["input_ids"].shape == (1, 3)
    assert english(["Fine", "words"], is_split_into_words=True, padding=True)["input_ids"].shape == (1, 4)
    numbered = english([["Fine", "words"], ["a"]], is_split_into_words=True, padding=True, return_word_ids=True)
    assert numbered["word_ids"].tolist() == [[-1, 0, 1, -1], [-1, 0, -1, -1]]
    assert english([], padding=True)["input_ids"].shape == (0, 1)
    assert english.model_max_length == int(1e30)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"return_tensors": "pt"}, r"^return_tensors='pt' is not one of None, 'np', 'tf'$"),
    ({"truncation": "first"}, "^truncation='first' is not one of 'longest_first', "),
    ({"truncation": True}, "^truncation=True needs a max_length; read_tokenizer knows that of a model$"),
    ({"padding": False, "return_tensors": "np"}, "^padding=False: rows of several lengths are not an array: "),
    ({"return_word_ids": True}, "^return_word_ids=True needs texts that are lists of words"),
    ({"pairs": ["a", "b"], "text_pair": ["a", "b"]}, "^pairs and text_pair are two names of one argument"),
    ({"return_offsets_mapping": True}, r"^\[MASK\] in a text can't be told with offsets or words: 'a \[MASK\]'"),
    ({"stride": 3, "labels": 1}, "^a tokenizer's call has no stride, labels: .*, labels go into a model's call; docs/"),
])  # fmt: skip
def test_tokenizers_reject_other_arguments(english, arguments, message):
    with pytest.raises(TypeError if "call has no" in message else ValueError, match=message):
        english(["how are you", "a [MASK]"], **arguments)


# --- the call by its own arguments ------------------------------------------------------------------------------------


def test_a_missing_special_token_is_named(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("[UNK]\n[CLS]\na\n")
    tokenizer = FullTokenizer(str(path))
    assert tokenizer.encode("a") == [2]  # only rows need it
    with pytest.raises(ValueError, match=r"vocab\.txt lacks \[SEP\]"):
        tokenizer("a")


def test_lengths_that_fit_are_those_of_the_loop_of_the_original():
    for first, second, room in itertools.product(range(9), range(9), range(12)):
        a, b = ["a"] * first, ["b"] * second
        while len(a) + len(b) > room:
            (a if len(a) > len(b) else b).pop()
        assert lengths_that_fit(first, second, room) == (len(a), len(b))


def test_decode(english):
    ids = english.encode("John Johanson's  house")
    assert "##son" in english.convert_ids_to_tokens(ids)
    assert english.decode(ids) == "john johanson ' s house"


def test_what_texts_may_be(english):
    expected = english(["the house", "the"])
    both = ("the house", "the")
    for texts in (both, np.array(both), [b"the house", b"the"], iter(both)):
        given = english(texts)
        assert all(np.array_equal(given[name], values) for name, values in expected.items())
    single = english("the house")
    assert single["input_ids"].tolist() == expected["input_ids"][:1].tolist()
    assert english("the", "house")["input_ids"].shape == (1, 5)
    assert english([])["input_ids"].shape == (0, 1)
    assert english(["the"], max_length=6)["input_ids"].shape == (1, 3), "the longest row is shorter"
    assert english(["the"], max_length=4, padding="max_length")["input_mask"].tolist() == [[1, 1, 1, 0]]
    cut = [[101, 1996, 1996, 1996, 1996, 102], [101, 1996, 102, 0, 0, 0]]
    assert english(["the " * 20, "the"], max_length=6)["input_ids"].tolist() == cut
    pair = english("the the the", "house", max_length=6)["input_ids"]
    assert pair.tolist() == [[101, 1996, 1996, 102, 2160, 102]]


ORACLE = GOLDEN / "tokenization" / "roberta"
SPECIAL = ("<s>", "</s>", "<pad>", "<unk>")


@pytest.fixture(scope="module")
def tokenizer():
    return ByteBpeTokenizer.from_pretrained(str(ORACLE))


ALL_PIECES = [ORACLE / name for name in ("vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json")]
FORMS = {"tokenizer.json": ALL_PIECES[2:3], "vocab and merges": ALL_PIECES[:2]}


@pytest.fixture
def theirs(tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = directory_of(tmp_path / "model", *ALL_PIECES, config__json={"model_type": "roberta"})
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("add_prefix_space", [False, True])
def test_golden_strings(tmp_path, form, add_prefix_space):
    settings = {"tokenizer_config__json": {"add_prefix_space": True}} if add_prefix_space else {}
    tokenizer = ByteBpeTokenizer.from_pretrained(directory_of(tmp_path / "model", *FORMS[form], **settings))
    golden_texts, compared = lines_of(ORACLE / "tokenization.jsonl.gz"), 0
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


@pytest.mark.parametrize("count", [1500, *slow(100_000)])
def test_odd_strings_against_transformers(tokenizer, theirs, count):
    texts = list(odd_texts(count))
    expected = theirs(texts, return_offsets_mapping=True, add_special_tokens=False)
    assert tokenizer.encode_batch(texts) == expected["input_ids"]
    for text, ids, offsets in zip(texts, expected["input_ids"], expected["offset_mapping"], strict=True):
        assert tokenizer.encode_with_offsets(text) == (ids, offsets), repr(text)


def test_masks_swallow_whitespace(tmp_path, tokenizer, theirs):
    """As `lstrip` does in the library, whose whitespace isn't Python's."""
    codes = (*range(1, 0x300), *range(0x1680, 0x1690), *range(0x180E, 0x1810), *range(0x2000, 0x2070), 0x3000)
    for space in map(chr, codes):
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

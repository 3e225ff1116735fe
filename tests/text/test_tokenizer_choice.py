"""The tokenizer that a directory's files ask for, against that of transformers: ids, rows, offsets, graphs, copies."""

import json
import unicodedata

import pytest
import tensorflow as tf
import tokenizers
from helpers import basics
from helpers.outputs import assert_graph_equal, op_by_op
from helpers.texts import SENTENCES, assert_kept, mixed_texts, shared_texts, word_pieces
from helpers.tiny import pieces_of
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

from bert_tf.store.open import read_tokenizer
from bert_tf.text import tokenizer_of_file
from bert_tf.text.graph_wordpiece import NoGraphError, graph_of
from bert_tf.text.japanese import JapaneseTokenizer
from bert_tf.text.tokenizer_files import Casing
from bert_tf.text.wordpiece import ElectraTokenizer, FullTokenizer, RobertaWordPieceTokenizer

ALBERT_MODEL = basics.GOLDEN / "tokenization" / "albert" / "tiny.model"
BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
KLUE = ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
JAPANESE = {"tokenizer_class": "BertJapaneseTokenizer", "do_lower_case": False}
MECAB = {**JAPANESE, "word_tokenizer_type": "mecab", "mecab_kwargs": {"mecab_dic": "unidic_lite"}}

# name -> class, special tokens, config.json, tokenizer_config.json, whether the oracle is transformers' older class
CASES = {
    "cased": (FullTokenizer, BERT, {}, {"do_lower_case": False}, False),
    "Chinese characters in words": (
        FullTokenizer, BERT, {}, {"do_lower_case": False, "tokenize_chinese_chars": False}, False),
    "accents kept": (FullTokenizer, BERT, {}, {"do_lower_case": True, "strip_accents": False}, False),
    "accents of cased text stripped": (FullTokenizer, BERT, {}, {"do_lower_case": False, "strip_accents": True}, False),
    "accents as usual": (FullTokenizer, BERT, {}, {"do_lower_case": True, "strip_accents": None}, False),
    "only whitespace": (FullTokenizer, BERT, {}, {"do_lower_case": False, "do_basic_tokenize": False}, True),
    "words that are never split": (
        FullTokenizer, BERT, {}, {"do_lower_case": True, "never_split": ["[E1]", "a-b_c", "\u5317", "[CLS]"]}, True),
    "RoBERTa": (RobertaWordPieceTokenizer, KLUE, {"model_type": "roberta"}, {"do_lower_case": False}, False),
    "ELECTRA": (ElectraTokenizer, BERT, {"model_type": "electra"},
                {"tokenizer_class": "ElectraTokenizer", "do_lower_case": True}, False),
    "MeCab": (JapaneseTokenizer, BERT, {}, MECAB, False),
    "MeCab, named by config.json": (
        JapaneseTokenizer, BERT, {"tokenizer_class": "BertJapaneseTokenizer"},
        {"word_tokenizer_type": "mecab", "tokenizer_class": None}, False),
    "MeCab, lower case": (JapaneseTokenizer, BERT, {}, {**MECAB, "do_lower_case": True, "never_split": ["Fox"]}, False),
    "MeCab, characters": (JapaneseTokenizer, BERT, {}, {**MECAB, "subword_tokenizer_type": "character"}, False),
    "MeCab, not normalized": (
        JapaneseTokenizer, BERT, {}, {**MECAB, "mecab_kwargs": {"normalize_text": False}}, False),
    "MeCab, words": (JapaneseTokenizer, BERT, {}, {**MECAB, "do_subword_tokenize": False}, False),
    "Japanese by punctuation": (JapaneseTokenizer, BERT, {}, {**JAPANESE, "do_lower_case": True}, False),
    "Japanese as one word": (JapaneseTokenizer, BERT, {}, {**JAPANESE, "do_word_tokenize": False}, False),
}  # fmt: skip


def directory_of(folder, special, config, tokenizer_config, texts=SENTENCES):
    vocab = word_pieces(texts, [*special, "[E1]", "a-b_c", "\u5317"])
    roberta = {"pad_token_id": 1, "type_vocab_size": 1} if config.get("model_type") == "roberta" else {}
    config = {"model_type": "bert", "vocab_size": len(vocab), **SIZES, **roberta, **config}
    described = {"tokenizer_class": "BertTokenizer", **tokenizer_config}
    files = {"vocab__txt": "\n".join([*vocab, ""]), "config__json": config, "tokenizer_config__json": described}
    return basics.directory_of(folder, **files)


def oracle_of(directory, tokenizer_config, is_older):
    if is_older:
        return BertTokenizerLegacy(f"{directory}/vocab.txt", **tokenizer_config)
    return AutoTokenizer.from_pretrained(directory)


def texts_of(texts, is_older):
    """The older class composes characters (NFC), which neither the original nor the newer one does."""
    return [unicodedata.normalize("NFC", text) for text in texts] if is_older else texts


def assert_same_ids(tokenizer, oracle, texts):
    known = 0
    for text in texts:
        ids = tokenizer.encode(text)
        assert ids == oracle.encode(text, add_special_tokens=False), text
        known += sum(index != tokenizer.unk_id for index in ids)
    assert known > len(texts)


@pytest.mark.parametrize("name", CASES)
def test_all_is_that_of_transformers(tmp_path, name):
    """Ids, those of copies, here and in transformers, with an added token, too; offsets; the graph."""
    kind, special, config, tokenizer_config, is_older = CASES[name]
    directory = directory_of(tmp_path / "model", special, config, tokenizer_config)
    tokenizer = read_tokenizer(directory)
    assert type(tokenizer) is kind
    texts = texts_of([*SENTENCES, *mixed_texts(120)], is_older)
    assert_same_ids(tokenizer, oracle_of(directory, tokenizer_config, is_older), texts)
    assert_offsets_cover_the_pieces(tokenizer, [*SENTENCES, *mixed_texts(80, seed=1)])
    if "never_split" in tokenizer_config and kind is FullTokenizer:
        with pytest.raises(ValueError, match=r"never_split \(\[E1\], a-b_c, \u5317\) .* take ids\.$") as caught:
            graph_of(tokenizer)
        assert "\n" not in str(caught.value)
    elif kind is not JapaneseTokenizer:
        graph = graph_of(tokenizer)  # a method of it holds it only weakly
        with op_by_op():  # traced in test_graph_wordpiece.py
            assert_graph_equal(tokenizer, texts, graph)
    assert_kept(tokenizer, tmp_path / "kept", texts, directory)
    size = tokenizer.vocab_size  # that of a token that is added
    (tmp_path / "model" / "added_tokens.json").write_text(json.dumps({"[E2]": size}))
    described = {"model_type": "bert", "vocab_size": size + 1, **SIZES, **config}
    (tmp_path / "model" / "config.json").write_text(json.dumps(described))
    tokenizer, texts = read_tokenizer(directory), [*texts[:60], "東京[E2]大学 [E2]"]
    assert_kept(tokenizer, tmp_path / "added", texts)
    assert size in tokenizer.encode(texts[-1])
    if not is_older:
        assert_same_ids(tokenizer, AutoTokenizer.from_pretrained(tmp_path / "added"), texts)


def assert_offsets_cover_the_pieces(tokenizer, texts):
    """Each piece covers the characters that it comes from: encoded alone, in the same order, without gaps in words."""
    spelled = 0
    for text in texts:
        ids, offsets = tokenizer.encode_with_offsets(text)
        assert ids == tokenizer.encode(text), text
        assert all(0 <= begin < end <= len(text) for begin, end in offsets)
        assert offsets == sorted(offsets), text
        for index, (begin, end) in zip(ids, offsets, strict=True):
            piece = tokenizer.inv_vocab[index].removeprefix("##")
            form = unicodedata.normalize("NFKC", text[begin:end])
            spelled += piece in (form, form.lower())
        known, _ = tokenizer.encode_with_offsets(text, split_unknown=True)
        assert sum(index != tokenizer.unk_id for index in known) >= sum(index != tokenizer.unk_id for index in ids)
    assert spelled > 250


def test_mecab(tmp_path):
    """Two characters that become one, and one that becomes four, which are parts of three words; rows of a RoBERTa."""
    directory = directory_of(tmp_path / "model", KLUE, {"model_type": "roberta"}, MECAB)
    tokenizer = read_tokenizer(directory)
    text = "\uff76\uff9e\uff97\uff7d\u306f\u337f\u30ab\u3099"  # half-width, a letter with a mark of its own
    words = tokenizer._words_with_spans(text)
    assert "".join(word for word, _ in words) == "\u30ac\u30e9\u30b9\u306f\u682a\u5f0f\u4f1a\u793e\u30ac"
    spans = [span for _, own in words for span in own]
    assert spans == [(0, 2), (2, 3), (3, 4), (4, 5), *[(5, 6)] * 4, (6, 8)]
    rows = tokenizer(["東京大学で研究", "東京"], ["自然言語", "学"])
    assert type(tokenizer) is JapaneseTokenizer and not rows["segment_ids"].any() and rows["input_ids"][1, -1] == 1
    with pytest.raises(ValueError, match=r"vocab.txt: the pieces of .* inside a graph\. .* take ids\.$"):
        graph_of(tokenizer)


def test_a_vocabulary_named_without_its_folder(tmp_path, monkeypatch):
    """Also one of word pieces next to models that have nothing to do with it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join([*BERT, "▁a", "a", "##a", ""]))
    assert tokenizer_of_file("vocab.txt", Casing(True)).tokenize("aa") == ["a", "##a"]
    for name in ("one.model", "another.model"):
        (tmp_path / name).write_bytes(b"")
    assert tokenizer_of_file("vocab.txt", Casing(True)).tokenize("aa") == ["a", "##a"]


def test_what_a_tokenizer_json_alone_says(tmp_path):
    """No vocab.txt: rules, vocabulary and the longest word are those of the file."""
    both = {"tokenize_chinese_chars": False, "do_lower_case": False}, {"strip_accents": False}
    for number, rules in enumerate(both):
        directory = directory_of(tmp_path / str(number), BERT, {}, rules)
        oracle = AutoTokenizer.from_pretrained(directory)
        (tmp_path / str(number) / "vocab.txt").unlink()
        (tmp_path / str(number) / "tokenizer_config.json").unlink()
        (tmp_path / str(number) / "tokenizer.json").write_text(oracle.backend_tokenizer.to_str())
        tokenizer = read_tokenizer(directory)
        texts = [*SENTENCES, *mixed_texts(200), "a" * 100, "a" * 101]
        assert_same_ids(tokenizer, oracle, texts)
        graph = graph_of(tokenizer)
        with op_by_op():
            assert graph.encode(tf.constant(texts)).to_list() == tokenizer.encode_batch(texts)
        assert tokenizer.encode("a" * 101) == [tokenizer.unk_id] != tokenizer.encode("a" * 100)


def library_tokenizer(kind):
    """Byte-level BPE or Unigram with BERT's special tokens and rows, learned from a few sentences."""
    if kind == "BPE":
        library = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="[UNK]"))
        library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
        trainer = tokenizers.trainers.BpeTrainer(vocab_size=500, special_tokens=[*BERT], initial_alphabet=alphabet)
    else:
        library, first = tokenizers.Tokenizer(tokenizers.models.Unigram()), tokenizers.normalizers.NFKC()
        if kind == "Precompiled":  # as XLM-R's tokenizer.json has it
            first = tokenizers.normalizers.Precompiled(pieces_of(ALBERT_MODEL.read_bytes())[1])
        library.normalizer = tokenizers.normalizers.Sequence([first, tokenizers.normalizers.Lowercase()])
        library.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
        options = {"special_tokens": [*BERT], "unk_token": "[UNK]", "show_progress": False}
        trainer = tokenizers.trainers.UnigramTrainer(vocab_size=400, **options)
    library.train_from_iterator([*SENTENCES, *mixed_texts(300)], trainer)
    cls, sep = (("[CLS]", library.token_to_id("[CLS]")), ("[SEP]", library.token_to_id("[SEP]")))
    library.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[cls, sep]
    )
    return library


def without_space(text, begin, end):
    """A place without the whitespace at its beginning, which the library counts as part of a word."""
    return min(end, begin + len(text[begin:end]) - len(text[begin:end].lstrip())), end


@pytest.mark.parametrize("kind", ["BPE", "Unigram", "Precompiled"])
def test_a_bert_with_another_tokenizer_json(tmp_path, kind):
    directory = tmp_path / "model"
    directory.mkdir()
    library = library_tokenizer(kind)
    named = {f"{token[1:-1].lower()}_token": token for token in BERT}
    oracle = PreTrainedTokenizerFast(tokenizer_object=library, **named)
    oracle.save_pretrained(str(directory))
    (directory / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": len(oracle), **SIZES}))
    tokenizer = read_tokenizer(str(directory))
    assert_same_ids(tokenizer, oracle, texts := [*SENTENCES, *mixed_texts(300)])
    for text in texts:
        places = oracle(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        found = tokenizer.encode_with_offsets(text)[1]
        assert [without_space(text, *place) for place in found] == [without_space(text, *place) for place in places]
    with pytest.raises(NoGraphError, match=r"tokenizer.json: .* inside a graph\. .* take ids\.$"):
        graph_of(tokenizer)
    pair = ["서울에서"], ["학습 모델"]
    rows, expected = tokenizer(*pair), oracle(*pair, return_token_type_ids=True)
    assert rows["input_ids"].tolist() == expected["input_ids"]
    assert rows["segment_ids"].tolist() == expected["token_type_ids"]
    assert_kept(tokenizer, tmp_path / "saved", texts, str(directory))
    path = directory / "tokenizer.json"
    values = json.loads(path.read_text())
    values["post_processor"]["single"] = values["post_processor"]["single"][1:]
    path.write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"tokenizer.json: its post_processor makes other rows"):
        read_tokenizer(str(directory))


REJECTED = {
    "Juman++": ({**JAPANESE, "word_tokenizer_type": "jumanpp"}, "word_tokenizer_type is 'jumanpp': only mecab and"),
    "dictionary": ({**MECAB, "mecab_kwargs": {"mecab_dic": None}}, "mecab_dic is None: only unidic_lite, ipadic"),
    "options": ({**MECAB, "mecab_kwargs": {"mecab_option": "-d /x"}}, "mecab_option is '-d /x': options of MeCab are"),
    "arguments": ({**MECAB, "mecab_kwargs": {"threads": 1}}, "unexpected keyword argument 'threads'"),
    "class": ({"tokenizer_class": "CamembertTokenizerFast"}, "tokenizer_class is CamembertTokenizer, which is not"),
    "kind": ({"do_basic_tokenize": "no"}, "do_basic_tokenize is 'no', but must be of type bool"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_tokenizer_configs_are_rejected_in_one_line(tmp_path, name):
    tokenizer_config, message = REJECTED[name]
    directory = directory_of(tmp_path / "model", BERT, {}, tokenizer_config)
    with pytest.raises(ValueError, match=message) as caught:
        read_tokenizer(directory)
    assert "\n" not in str(caught.value) and f"{directory}/tokenizer_config.json: " in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_ten_thousand_strings(tmp_path, shared, name):
    _, special, config, tokenizer_config, is_older = CASES[name]
    texts = shared_texts(shared)
    directory = directory_of(tmp_path / "model", special, config, tokenizer_config, texts)
    oracle = oracle_of(directory, tokenizer_config, is_older)
    assert_same_ids(read_tokenizer(directory), oracle, texts_of(texts, is_older))

"""BERT's and ELECTRA's tokenizers give the originals' results; words to tag, and vocabularies that do not fit."""

import unicodedata

import numpy as np
import pytest
import tensorflow as tf
import tokenizers
from helpers.basics import GOLDEN, lines_of, slow
from helpers.outputs import assert_graph_equal, op_by_op
from helpers.texts import odd_texts

from bert_tf.serving.graph_ner import GraphWords
from bert_tf.tasks.features.extract import EncodedText, encode_line
from bert_tf.tasks.ner.data import Sentence
from bert_tf.tasks.ner.encode import encode_sentences
from bert_tf.tasks.rows import InputExample, Task, encode_examples
from bert_tf.tasks.squad.data import Paragraph, SquadExample
from bert_tf.tasks.squad.windows import WindowSettings, build_windows
from bert_tf.text import characters, tokenizer_files, watch_unknown, wordpiece
from bert_tf.text.characters import SPLITS, as_text, split_words
from bert_tf.text.graph_wordpiece import graph_of
from bert_tf.text.wordpiece import BasicTokenizer, ElectraTokenizer, FullTokenizer

VOCAB_FILE = str(GOLDEN / "vocab.txt")
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_all_golden_strings(do_lower_case):
    """Pieces, ids, also from the cache, and offsets in order."""
    tokenizer, exact = FullTokenizer(VOCAB_FILE, do_lower_case), 0
    records = lines_of(GOLDEN / "tokenization" / "tokenization.jsonl.gz")
    records = [r for r in records if r["do_lower_case"] == do_lower_case]
    # With characters that are unassigned in the golden data's Unicode version, the result may differ.
    chosen = [r for r in records if not r["has_unassigned"]]
    assert (len(records), len(chosen)) == (4000, 4000 - 454)
    for _ in range(2):  # the second time from the cache
        for record, ids in zip(chosen, tokenizer.encode_batch(r["text"] for r in chosen), strict=True):
            assert (ids, tokenizer.tokenize(record["text"])) == (record["ids"], record["tokens"]), record["index"]
    for record in chosen:
        cut, basic = tokenizer.wordpiece_tokenizer.tokenize, tokenizer.basic_tokenizer.tokenize(record["text"])
        assert [piece for token in basic for piece in cut(token)] == record["tokens"], record["index"]
    for record in records:
        text = record["text"]
        ids, offsets = tokenizer.encode_with_offsets(text)
        assert ids == tokenizer.encode(text) and len(ids) == len(offsets), record["index"]
        starts = [first for first, _ in offsets]
        assert starts == sorted(starts) and all(0 <= first < last <= len(text) for first, last in offsets)
        if text.isascii() and text.isprintable():  # nothing is dropped: a piece equals its text
            for token, (first, last) in zip(tokenizer.convert_ids_to_tokens(ids), offsets, strict=True):
                written = text[first:last].lower() if do_lower_case else text[first:last]
                assert token == "[UNK]" or token in (written, "##" + written), (record["index"], token)
                exact += token != "[UNK]"
    assert exact > 4000


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_every_code_point(do_lower_case):
    (golden,) = lines_of(GOLDEN / "tokenization" / "tokenization_codepoints.json.gz")
    golden = golden[f"do_lower_case_{str(do_lower_case).lower()}"]
    other = {int(code, 16): tokens for code, tokens in golden["other"].items()}
    tokenizer = BasicTokenizer(do_lower_case)
    expected = {
        "join": lambda c: ["ab"],
        "space": lambda c: ["a", "b"],
        "own": lambda c: ["a", c, "b"],
        "keep": lambda c: ["a" + c + "b"],
        "other": lambda c: other[ord(c)].split(" "),
    }
    compared, different = 0, []
    for first, last, kind_of_run in golden["runs"]:
        if kind_of_run in ("unassigned", "surrogate"):
            continue
        for code in range(first, last + 1):
            compared += 1
            # "a b" is both "keep" and "space" in the joined form the table was made from.
            kind = "space" if code == 0x20 else kind_of_run
            if tokenizer.tokenize(f"a{chr(code)}b") != expected[kind](chr(code)):
                different.append(hex(code))
    assert compared > 130_000
    # A newer Unicode may have changed properties of a few characters; with the golden data's version none may differ.
    assert len(different) <= (0 if unicodedata.unidata_version == "14.0.0" else 8), different


def test_odd_bytes_and_types(english):
    assert english.tokenize(b"caf\xc3\xa9 \xff\xfehouse\xc3") == ["cafe", "house"]
    assert english.encode(b"caf\xc3\xa9") == english.encode("caf\u00e9")
    assert english.tokenize("\ud800 house") == ["[UNK]", "house"]
    assert english.tokenize("") == english.tokenize(" \u200b\ufeff\0 ") == []
    assert english.encode_batch([]) == [] and english.encode_batch(["", "a"]) == [[], [1037]]
    with pytest.raises(ValueError, match="str or bytes"):
        english.tokenize(["a"])
    with pytest.raises(TypeError, match="vocab must be that of a FullTokenizer"):
        wordpiece.WordpieceTokenizer(VOCAB_FILE)
    assert characters.convert_to_unicode(b"\xe2\x82\xac\xff") == "\u20ac"
    assert wordpiece.whitespace_tokenize(" a\u3000b\n") == ["a", "b"]
    assert BasicTokenizer(strip_accents=False).tokenize("CAF\u00c9") == ["caf\u00e9"]
    assert BasicTokenizer(False, strip_accents=True).tokenize("CAF\u00c9") == ["CAFE"]


def test_casing_that_contradicts_the_checkpoint():
    """The first directory that holds bert_model.ckpt counts, and the dot stands for any character."""
    for do_lower_case, checkpoint in (
        (False, "gs://b/x.y/chinese_L-12_H-768_A-12/bert_model.ckpt-1000"),
        (True, "/models/multi_cased_L-12_H-768_A-12/bert_model.ckpt"),
        (True, "cased_L-24_H-1024_A-16/bert_model_ckpt/uncased_L-12_H-768_A-12/bert_model.ckpt"),
    ):
        tokenizer_files.validate_case_matches_checkpoint(not do_lower_case, checkpoint)
        with pytest.raises(ValueError, match=rf"was trained with --do_lower_case={not do_lower_case}: give it so"):
            tokenizer_files.validate_case_matches_checkpoint(do_lower_case, checkpoint)
    for unknown in (None, "", "cased_L-12_H-768_A-12/model.ckpt-7", "my_cased_L-12_H-768_A-12/bert_model.ckpt"):
        tokenizer_files.validate_case_matches_checkpoint(True, unknown)


@pytest.mark.parametrize(("lines", "message"), [
    (SPECIAL[:4], r"vocab\.txt lacks \[MASK\]"),
    ([*SPECIAL, "a", "\r", "b", ""], r"vocab\.txt: empty lines shift .*: 7, 9$"),
])  # fmt: skip
def test_check_vocab_rejects(tmp_path, lines, message):
    path = str(tmp_path / "vocab.txt")
    (tmp_path / "vocab.txt").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        FullTokenizer(path).check_vocabulary()


def test_tokens_that_look_blank_or_appear_twice(tmp_path, caplog):
    """As Google's Chinese vocabulary has U+2028 alone on a line, which str.splitlines would split: the ids below stay,
    the content is written again as it is, and each id has a token."""
    odd = ["\u2028", "\u2029", "\u3000", "\xa0", "\x85", "\x1c"]
    lines = [*SPECIAL, *odd, "a", "\u535a", "##b", "a"]
    for number, end in enumerate(("\n", "\r\n")):
        content = end.join(lines).encode()  # and none after the last
        path = tmp_path / f"{number}.txt"
        path.write_bytes(content)
        tokenizer = FullTokenizer(str(path))
        tokenizer.check_vocabulary()
        assert caplog.text.count("repeats") == 1 and "line 15 repeats 'a' of line 12;" in caplog.text
        caplog.clear()
        assert tokenizer.vocab["a"] == 14 and tokenizer.vocab[""] == 10 and tokenizer.vocab_size == 15
        assert tokenizer.convert_ids_to_tokens(range(9, 15)) == ["", "", "a", "\u535a", "##b", "a"]
        assert tokenizer.files() == {"vocab.txt": content}
        texts = ["a \u535a ab\u2028a \u3000", "[PAD] \u2028", ""]
        assert tokenizer.encode(texts[0]) == [14, 12, 14, 13, 14]
        with op_by_op():
            assert graph_of(tokenizer).encode(texts).to_list() == tokenizer.encode_batch(texts)


def test_vocabularies_are_read_as_the_original_does(tmp_path):
    path = tmp_path / "vocab.txt"
    for content, expected in (
        # Unicode spaces stripped, a blank line takes an id, carriage returns at ends dropped, the last duplicate wins.
        ("[PAD]\r\n\u3000b \n\nc\rd\nb", {"[PAD]": 0, "b": 4, "": 2, "c\rd": 3}),
        # A byte order mark is no part of the first token, unless there is nothing else.
        ("\ufeff[PAD]\na \n", {"[PAD]": 0, "a": 1}),
        ("\ufeff\na\n", {"\ufeff": 0, "a": 1}),
        ("", {}),
        ("\n", {"": 0}),
    ):
        path.write_bytes(content.encode())
        assert list(tokenizer_files.load_vocab(str(path)).items()) == list(expected.items())


# --- ELECTRA ----------------------------------------------------------------------------------------------------------

ELECTRA = GOLDEN / "tokenization" / "electra"
CASINGS = [(True, True), (False, False), (True, False), (False, True)]


def electra_records(do_lower_case, strip_accents):
    records = lines_of(ELECTRA / "tokenization.jsonl.gz")
    return [r for r in records if (r["do_lower_case"], r["strip_accents"]) == (do_lower_case, strip_accents)]


@pytest.mark.parametrize("casing", CASINGS)
def test_golden_strings_of_electra(casing):
    tokenizer, bert = ElectraTokenizer(str(ELECTRA / "vocab.txt"), *casing), FullTokenizer(str(ELECTRA / "vocab.txt"))
    records = electra_records(*casing)
    for record in records:
        text, wanted = record["text"], (record["basic"], record["tokens"], record["ids"], record["ids"])
        found = tokenizer.basic_tokenizer.tokenize(text), tokenizer.tokenize(text), tokenizer.encode(text)
        assert (*found, tokenizer.encode_with_offsets(text)[0]) == wanted, record["index"]
    assert len(records) == 300 and any(bert.encode(record["text"]) != record["ids"] for record in records)


def test_electra_drops_what_is_unassigned(tmp_path):
    """And a cased one keeps accents, whatever a file says."""
    electra = ElectraTokenizer(str(ELECTRA / "vocab.txt"))
    assert electra.tokenize("a\ue000\U000f0000\U00050000\ud800b") == electra.tokenize("ab")
    (tmp_path / "vocab.txt").write_bytes((ELECTRA / "vocab.txt").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false, "strip_accents": true}')
    tokenizer = ElectraTokenizer.from_pretrained(str(tmp_path))
    assert type(tokenizer) is ElectraTokenizer and tokenizer.cased
    assert tokenizer.basic_tokenizer.tokenize("\u00e9") == ["\u00e9"]


@pytest.mark.parametrize("casing", [(True, None), (False, True)])
def test_electra_in_a_graph(casing):
    tokenizer = ElectraTokenizer(str(ELECTRA / "vocab.txt"), *casing)
    texts = [record["text"] for record in electra_records(True, True)]
    texts += ["\u03a3\ue000\u0391\u03a3\U000f0000", "a\U00050000b\u0378c"]
    texts += [" ".join(map(chr, range(c, c + 64))) for c in range(0, 0xD800, 64 if casing[0] else 448)]
    with op_by_op():  # a tensor holds no surrogates
        assert_graph_equal(tokenizer, [text.encode("utf-8", "ignore").decode() for text in texts], graph_of(tokenizer))


# --- offsets: the same ids as without them, and correct in every script -----------------------------------------------

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "beyonce", "ab", "##c", "東", "京", "##で", "##す", "は", "i"]
PIECES += [unicodedata.normalize("NFD", "한"), "##" + unicodedata.normalize("NFD", "국")]


def pieces_of(tokenizer, text, **options):
    """[(piece, the text it covers)]"""
    ids, offsets = tokenizer.encode_with_offsets(text, **options)
    tokens = tokenizer.convert_ids_to_tokens(ids)
    return [(token, text[first:last]) for token, (first, last) in zip(tokens, offsets, strict=True)]


@pytest.mark.parametrize(("text", "expected"), [
    ("Beyoncé ab", [("beyonce", "Beyoncé"), ("ab", "ab")]),
    ("Beyonce\u0301\tab", [("beyonce", "Beyonce\u0301"), ("ab", "ab")]),  # the accent is a separate character
    ("aBc", [("ab", "aB"), ("##c", "c")]),
    ("a\u200bbc", [("ab", "a\u200bb"), ("##c", "c")]),  # a character dropped inside belongs to the piece
    ("東京は", [("東", "東"), ("京", "京"), ("は", "は")]),
    ("한국", [("한", "한"), ("##국", "국")]),  # in Jamo in the vocabulary
    ("\u0130", [("i", "\u0130")]),  # lower-cased to two characters, the second of which is stripped
    ("\u00a0 ab\u3000c", [("ab", "ab"), ("[UNK]", "c")]),
    ("\ufb00", [("[UNK]", "\ufb00")]),
    (".\u0903ab", [("[UNK]", "."), ("[UNK]", "\u0903ab")]),  # a mark that is kept belongs to its own piece
    ("", []),
    (" \u200b\u0301 ", []),
])  # fmt: skip
def test_offsets_by_hand(small, text, expected):
    found = pieces_of(small, text)  # a syllable in Jamo reads badly
    assert [(unicodedata.normalize("NFC", piece), part) for piece, part in found] == expected


def test_unknown_words_are_one_piece_or_cut_to_what_is_known(small):
    text = "ab 東京です はでxす abxc"
    whole = [("ab", "ab"), ("東", "東"), ("京", "京"), ("[UNK]", "です"), ("[UNK]", "はでxす"), ("[UNK]", "abxc")]
    # で is decomposed into て and a mark that is stripped, so that the vocabulary's ##で never matches.
    assert pieces_of(small, text) == whole
    cut = pieces_of(small, text, split_unknown=True)
    assert cut[:3] == whole[:3] and cut[3:] == [
        ("[UNK]", "で"), ("##す", "す"), ("は", "は"), ("[UNK]", "で"), ("[UNK]", "x"), ("##す", "す"),
        ("ab", "ab"), ("[UNK]", "x"), ("##c", "c"),
    ]  # fmt: skip


CASES = {
    "Ada Lovelace  lived in London.": ["Ada", "Lovelace", "lived", "in", "London", "."],
    "서울에 (Élodie) 갔다 日本": ["서울에", "(", "Élodie", ")", "갔다", "日", "本"],
    "": [],
    " \t\n": [],
    "\u200b\u0007": [],
    "\u200ba\u200bb\u200b": ["a\u200bb"],
    "it's 9,000": ["it", "'", "s", "9", ",", "000"],
}


def test_words_and_characters():
    for text, words in CASES.items():
        assert [text[start:end] for start, end in split_words(text)] == words
    text = "서울 A1.\u200b\n日"
    of = {split: [text[start:end] for start, end in split_words(text, split)] for split in SPLITS}
    assert of["characters"] == ["서", "울", "A", "1", ".", "日"]
    assert of["characters_and_spaces"] == ["서", "울", " ", "A", "1", ".", "\n", "日"]
    assert split_words(text, "characters")[-1] == (8, 9)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("count", [200, *slow(20_000)])
def test_words_in_a_graph(count, split):
    texts = [*CASES, " a ", *map(as_text, odd_texts(count))]
    with op_by_op():  # traced in serving/test_tagger.py
        words = tf.function(GraphWords(split))(tf.constant([text.encode() for text in texts]))
    starts, ends, splits = (values.numpy().tolist() for values in (words.starts, words.ends, words.splits))
    found = [word.decode() for word in words.texts.numpy()]
    for row, text in enumerate(texts):
        own = slice(splits[row], splits[row + 1])
        places = list(zip(starts[own], ends[own], strict=True))
        assert places == split_words(text, split), repr(text)
        assert found[own] == [text[start:end] for start, end in places]
    nothing = GraphWords(split)(tf.zeros([0], tf.string))
    assert nothing.texts.shape == (0,) and nothing.splits.numpy().tolist() == [0]
    broken = GraphWords(split)(tf.constant([b"a\xff b\xe6"]))
    assert broken.texts.numpy().tolist() == [b"a", *([b" "] if split == "characters_and_spaces" else []), b"b"]


@pytest.mark.parametrize("count", [2000, *slow(100_000)])
def test_why_the_library_does_not_cut_words(count):
    """`tokenizers` knows the marks of an older Unicode, and of a last sigma the wrong small letter: our rules stay."""
    texts = list(odd_texts(count))
    for lower, least in ((True, 0.1), (False, 0.001)):
        library = tokenizers.BertWordPieceTokenizer(VOCAB_FILE, lowercase=lower, strip_accents=lower)
        library._tokenizer.encode_special_tokens = True  # in a text they are text, as in the original
        theirs = [found.ids for found in library.encode_batch(texts, add_special_tokens=False)]
        ours = FullTokenizer(VOCAB_FILE, lower).encode_batch(texts)
        assert sum(a != b for a, b in zip(ours, theirs, strict=True)) > least * count
    assert FullTokenizer(VOCAB_FILE).basic_tokenizer.tokenize("\u039f\u03a3") == ["\u03bf\u03c2"]
    library = tokenizers.BertWordPieceTokenizer(VOCAB_FILE)
    assert library._tokenizer.normalizer.normalize_str("\u039f\u03a3") == "\u03bf\u03c3"


def tokenizer_of(folder, pieces):
    path = folder / "vocab.txt"
    path.write_text("".join(token + "\n" for token in [*SPECIAL, *pieces]))
    return FullTokenizer(str(path))


def warnings_of(caplog):
    found = [message for message in caplog.messages if "tokens of the texts are [UNK]" in message]
    caplog.clear()
    return found


PLACES = {
    "classification": lambda text, tokenizer: encode_examples(
        [InputExample("1", text, None, None)], Task("t", ("x",), None), tokenizer, 32
    ),
    "tagging": lambda text, tokenizer: encode_sentences([Sentence(text.split(), None, [1] * 6)], tokenizer, 32),
    "features": lambda text, tokenizer: EncodedText.of_lines([encode_line(text, tokenizer, 32)], tokenizer),
    "questions": lambda text, tokenizer: build_windows(
        [SquadExample("1", text, Paragraph.from_context(text))], tokenizer, WindowSettings(32, 8, 8), False, 1
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_wherever_texts_are_encoded(tmp_path, caplog, place):
    tokenizer = tokenizer_of(tmp_path, ["known", "words", "here"])
    PLACES[place]("known words here known words here", tokenizer)
    assert not warnings_of(caplog)
    for _ in range(3):
        PLACES[place]("좋은 영화 정말 추천", tokenizer)
    (message,) = warnings_of(caplog)
    assert f"do {tmp_path}/vocab.txt, do_lower_case and strip_accents fit them?" in message
    assert "klue/bert-base knows Korean, multi_cased_L-12_H-768_A-12 104" in message and "\n" not in message


def test_shares(tmp_path, caplog):
    words = ["good", "tea"]
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

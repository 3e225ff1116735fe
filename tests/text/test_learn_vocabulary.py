"""Vocabularies learned from text: coverage, order, several scripts, bounded memory, the ids of other libraries."""

import json
import re
import unicodedata

import pytest
import sentencepiece
from helpers.basics import GOLDEN

from bert_tf.system import storage
from bert_tf.text.learn_vocabulary import WordCounts, learn_byte_bpe, learn_sentence_piece, learn_vocabulary
from bert_tf.text.library_tokenizer import ByteBpeTokenizer
from bert_tf.text.sentence_piece import SentencePieceTokenizer
from bert_tf.text.wordpiece import FullTokenizer

TEXTS = {
    "english": "The lighthouse keeper lit the lamps. The lamps were lit at dusk;  the keeper's lamps kept burning!\n"
    "Café owners in Zürich can't complain; naïve keepers, though, lighted 42 lamps (and more).\n",
    "korean": "등대지기는 등불을 켰다. 등불은 해질녘에 켜졌고 등대지기의 등불은 계속 타올랐다.\n"
    "모든 사람은 등불을 좋아한다. 사람들은 등대를 보았다.\n",
    "chinese": "灯塔看守人点亮了灯。黄昏时灯亮了,看守人的灯一直亮着。\n",
    "japanese": "灯台守はランプをともした。ランプは夕暮れにともされ、ずっと燃えていた。がぎぐげご\n",
    "thai": "คนเฝ้าประภาคารจุดตะเกียง ตะเกียงถูกจุดตอนพลบค่ำ\n",
    "russian": "Смотритель маяка зажёг лампы. Ещё лампы горели.\n",
}


def write_text(folder, text, name="text.txt") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def learn(path, vocab_size=2000, **kwargs):
    return learn_vocabulary([path], vocab_size=vocab_size, show_progress=False, **kwargs)


def tokenizer_for(folder, tokens, **kwargs) -> FullTokenizer:
    path = str(folder / "vocab.txt")
    storage.write_text_file(path, "".join(token + "\n" for token in tokens))
    tokenizer = FullTokenizer(path, **kwargs)
    tokenizer.check_vocabulary()
    assert list(tokenizer.vocab) == tokens
    return tokenizer


@pytest.mark.parametrize(("language", "do_lower_case", "strip_accents"), [
    ("english", True, None), ("english", False, False), ("korean", False, None), ("chinese", True, False),
    ("japanese", True, None), ("thai", False, False), ("russian", True, False),
])  # fmt: skip
def test_every_word_of_the_text_is_covered(tmp_path, language, do_lower_case, strip_accents):
    casing = {"do_lower_case": do_lower_case, "strip_accents": strip_accents}
    path = write_text(tmp_path, TEXTS[language])
    tokens = learn(path, **casing)
    assert len(tokens) == len(set(tokens)) < 2000
    tokenizer = tokenizer_for(tmp_path, tokens, **casing)
    for word in tokenizer.basic_tokenizer.tokenize(TEXTS[language]):
        pieces = tokenizer.wordpiece_tokenizer.cut(word)
        assert "[UNK]" not in pieces, word
        assert "".join(piece.removeprefix("##") if i else piece for i, piece in enumerate(pieces)) == word


def test_order_is_that_of_the_released_vocabularies(tmp_path):
    path = write_text(tmp_path, TEXTS["english"])
    tokens = learn(path)
    assert tokens[0] == "[PAD]" and tokens[1] == "[unused0]" and tokens[99] == "[unused98]"
    assert tokens[100:104] == ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    single = [token for token in tokens[104:] if len(token.removeprefix("##")) == 1]
    assert tokens[104 : 104 + len(single)] == single
    alone = [token for token in single if not token.startswith("##")]
    assert single == sorted(alone) + ["##" + char for char in sorted(alone) if char.isalnum()]
    assert "lamps" in tokens and "##," not in tokens and "é" not in tokens
    few = learn(path, num_unused=2)
    assert few[:7] == ["[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert few[7:] == tokens[104:]
    assert learn(path, num_unused=0)[:2] == ["[PAD]", "[UNK]"]


def test_most_frequent_pieces_come_first_and_size_is_kept(tmp_path, caplog):
    # Words of more than 200 characters teach nothing, and ideographs take one row each.
    path = write_text(tmp_path, "aba aba aba aba xyx xyx q " + "ab" * 101 + " \u706f\n")
    # a b q x y, alone and with ##, fill 5 + 10 places.
    single = ["a", "b", "q", "x", "y", "\u706f", "##a", "##b", "##q", "##x", "##y"]
    assert learn(path, 16, num_unused=0)[5:] == single
    # Twice "aba" is made of "##ba" (4 times) and of "a" and "##ba"; "xyx" of pieces that came twice.
    assert learn(path, 18, num_unused=0)[16:] == ["##ba", "aba"]
    assert learn(path, 100, num_unused=0)[16:] == ["##ba", "aba", "##yx", "xyx"]
    assert "only 20 of 100 tokens" in caplog.text
    assert learn(path, 100, num_unused=0, min_frequency=3)[16:] == ["##ba", "aba"]
    # Words that occur very often are counted in full.
    path = write_text(tmp_path, "xyx " * 5000 + "\n" + "aba " * 4500 + "\n")
    assert learn(path, 15, num_unused=0)[13:] == ["##yx", "xyx"]


def test_korean_is_shredded_only_when_accents_are_stripped(tmp_path, caplog):
    path = write_text(tmp_path, unicodedata.normalize("NFC", TEXTS["korean"]))
    kept = learn(path, strip_accents=False)
    assert "accents" not in caplog.text
    stripped = learn(path)
    assert "등불" in kept and not any("\u1100" <= char <= "\u11ff" for token in kept for char in token)
    assert any("\u1100" <= char <= "\u11ff" for token in stripped for char in token)
    assert "Hangul" in caplog.text and "--strip_accents=false" in caplog.text
    caplog.clear()
    learn(write_text(tmp_path, TEXTS["thai"]))
    assert "Thai" in caplog.text and "Hangul" not in caplog.text


def test_bounded_table_drops_rare_words_but_no_character():
    words = WordCounts(max_words=100)
    for i in range(1000):
        words.add(["often", "often", "seldom", f"{i:x}", chr(0x400 + i % 60)])
        assert len(words.counts) <= 100
    assert words.counts["often"] == 2000 and words.counts["seldom"] == 1000
    assert words.counts.total() + words.dropped == 5000
    characters = words.characters()
    assert set("oftensldm0123456789abcdef") <= set(characters)
    assert all(chr(0x400 + i) in characters for i in range(60))
    expected = sum(f"{i:x}".count("7") for i in range(1000))
    assert characters["7"] == expected


def test_max_characters_keeps_the_frequent_ones(tmp_path):
    path = write_text(tmp_path, "aa aa aa bb bb bb cc dd\n")
    tokens = learn(path, max_characters=3, num_unused=0)
    assert tokens[5:11] == ["a", "b", "c", "##a", "##b", "##c"]  # of the equally frequent c and d the first
    tokenizer = tokenizer_for(tmp_path, tokens)
    assert tokenizer.tokenize("aa dd") == ["aa", "[UNK]"]


# --- byte-level BPE and SentencePiece ---------------------------------------------------------------------------------

LANGUAGES = ("english", "korean", "chinese", "japanese")
TEXT = "".join(TEXTS[language] for language in LANGUAGES)


def test_layout_is_robertas(tmp_path):
    """Where special tokens, bytes and pieces are: as in the vocabulary that transformers' oracle was made with."""
    oracle = json.loads((GOLDEN / "tokenization" / "roberta" / "vocab.json").read_text(encoding="utf-8"))
    path = write_text(tmp_path, TEXT)
    contents = learn_byte_bpe([path], vocab_size=300, show_progress=False)
    vocab = json.loads(contents["vocab.json"])
    assert list(vocab)[:260] == sorted(oracle, key=oracle.get)[:260]
    assert list(vocab.values()) == list(range(300)) and list(vocab)[-1] == "<mask>"
    merges = contents["merges.txt"].decode().splitlines()[1:]
    assert [line.replace(" ", "") for line in merges] == list(vocab)[260:-1]
    storage.write_files({str(tmp_path / name): content for name, content in contents.items()})
    tokenizer = ByteBpeTokenizer.from_pretrained(str(tmp_path))
    ids = tokenizer.encode_batch(TEXT.splitlines())
    assert [tokenizer.decode(row) for row in ids] == TEXT.splitlines() and tokenizer.mask_id == 299
    assert sum(map(len, ids)) < 0.9 * len(TEXT.encode())  # pieces of several bytes are used


def learn_model(folder, path, **settings) -> SentencePieceTokenizer:
    model = learn_sentence_piece([path], show_progress=False, **settings)
    storage.write_file(str(folder / "spiece.model"), model)
    return SentencePieceTokenizer(str(folder / "spiece.model"), settings.get("do_lower_case", True))


def test_settings_are_alberts(tmp_path):
    tokenizer = learn_model(tmp_path, write_text(tmp_path, TEXT), vocab_size=200)
    special = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "(", ")", '"', "-", ".", "–", "£", "€"]
    assert list(tokenizer.vocab)[:13] == special
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    assert [index for index in range(len(processor)) if processor.is_control(index)] == [0, 2, 3, 4]
    assert (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()) == (0, 1, -1, -1)
    # User symbols are pieces of their own wherever they are.
    assert [piece for piece in tokenizer.tokenize("dusk).-£1") if piece in special] == [")", ".", "-", "£"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_sentence_piece_covers_the_text(tmp_path, language, caplog):
    path = write_text(tmp_path, 20 * TEXTS[language])
    tokenizer, lines = learn_model(tmp_path, path, vocab_size=1500, character_coverage=1.0), TEXTS[language].split("\n")
    ids = tokenizer.encode_batch(lines)
    assert not any(tokenizer.unk_id in row for row in ids)
    assert [tokenizer.decode(row) for row in ids] == [tokenizer.normalize(line) for line in lines]
    if language == "korean":  # transformers takes decomposed syllables as they are, SentencePiece composes them again
        assert any(re.fullmatch("▁?[\uac00-\ud7a3]{2,}", piece) for piece in tokenizer.vocab)
        assert "transformers' tokenizer of an ALBERT reads Hangul as <unk>" in caplog.text


def test_each_sentence_is_learned_from_however_long(tmp_path, caplog):
    """The trainer leaves out sentences of more than its limit."""
    words = " ".join(f"lamp{a}{b}" for a in "bcdfghjklm" for b in "aeiou")
    one_line = learn_model(tmp_path, write_text(tmp_path, 40 * (words + " ") + "\n"), vocab_size=120)
    assert max(one_line.encode(words)) >= 13 and one_line.unk_id not in one_line.encode(words)
    without_spaces = write_text(tmp_path, "灯塔看守人点亮了" * 3000 + "\n")
    assert "灯塔看守人点亮了" in "".join(learn_model(tmp_path, without_spaces, vocab_size=60).vocab)


def test_a_sample_of_the_sentences(tmp_path):
    lines = "".join(f"often {chr(0x4E00 + number)}\n" for number in range(3000))
    path = write_text(tmp_path, lines)
    sample = learn_model(tmp_path, path, vocab_size=4000, character_coverage=1.0, max_sentences=200)
    known = [piece for piece in sample.vocab if re.fullmatch("[\u4e00-\u9fff]", piece)]
    assert len(known) == 200 and max(known) > chr(0x4E00 + 2500)  # from all of the text

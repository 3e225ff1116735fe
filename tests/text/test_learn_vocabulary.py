"""Vocabulary learning: coverage, order, several scripts, bounded memory."""

import logging as python_logging
import unicodedata

import pytest

from bert_tf.system import storage
from bert_tf.text import tokenizer_files
from bert_tf.text.learn_vocabulary import WordCounts, learn_vocabulary
from bert_tf.text.wordpiece import FullTokenizer

TEXTS = {
    "english": "The lighthouse keeper lit the lamps. The lamps were lit at dusk, and the keeper's lamps kept burning!\n"
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
    tokenizer_files.check_vocab(tokenizer.vocab, path)
    assert list(tokenizer.vocab) == tokens
    return tokenizer


def assert_covered(tokenizer, text) -> int:
    """Every word of `text` tokenizes without [UNK] and spells the word; returns the number of words."""
    words = tokenizer.basic_tokenizer.tokenize(text)
    for word in words:
        pieces = tokenizer.wordpiece_tokenizer.cut(word)
        assert "[UNK]" not in pieces, word
        assert "".join(piece.removeprefix("##") if i else piece for i, piece in enumerate(pieces)) == word
    return len(words)


@pytest.mark.parametrize(("language", "do_lower_case", "strip_accents"), [
    ("english", True, None), ("english", False, False), ("korean", False, None), ("chinese", True, False),
    ("japanese", True, None), ("thai", False, False), ("russian", True, False),
])  # fmt: skip
def test_every_word_of_the_text_is_covered(tmp_path, language, do_lower_case, strip_accents):
    casing = {"do_lower_case": do_lower_case, "strip_accents": strip_accents}
    path = write_text(tmp_path, TEXTS[language])
    tokens = learn(path, **casing)
    assert len(tokens) == len(set(tokens)) < 2000
    assert_covered(tokenizer_for(tmp_path, tokens, **casing), TEXTS[language])


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
    with caplog.at_level(python_logging.WARNING, logger="absl"):
        assert learn(path, 100, num_unused=0)[16:] == ["##ba", "aba", "##yx", "xyx"]
    assert "only 20 of 100 tokens" in caplog.text
    assert learn(path, 100, num_unused=0, min_frequency=3)[16:] == ["##ba", "aba"]
    # Words that occur very often are counted in full.
    path = write_text(tmp_path, "xyx " * 5000 + "\n" + "aba " * 4500 + "\n")
    assert learn(path, 15, num_unused=0)[13:] == ["##yx", "xyx"]


def test_korean_is_shredded_only_when_accents_are_stripped(tmp_path, caplog):
    path = write_text(tmp_path, unicodedata.normalize("NFC", TEXTS["korean"]))
    with caplog.at_level(python_logging.WARNING, logger="absl"):
        kept = learn(path, strip_accents=False)
        assert "accents" not in caplog.text
        stripped = learn(path)
    assert "등불" in kept and not any("\u1100" <= char <= "\u11ff" for token in kept for char in token)
    assert any("\u1100" <= char <= "\u11ff" for token in stripped for char in token)
    assert "Hangul" in caplog.text and "--strip_accents=false" in caplog.text
    caplog.clear()
    with caplog.at_level(python_logging.WARNING, logger="absl"):
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

"""Byte-level BPE and SentencePiece learned from text: layout, rules, several scripts, the ids of other libraries."""

import json
import re

import pytest
import sentencepiece
from helpers.descendants import save_albert_tokenizer
from helpers.paths import GOLDEN, ROOT

from bert_tf.system import storage
from bert_tf.text.learn_vocabulary import learn_byte_bpe, learn_sentence_piece
from bert_tf.text.library_tokenizer import ByteBpeTokenizer
from bert_tf.text.sentence_piece import SentencePieceTokenizer

TEXTS = {
    "english": "The lighthouse keeper lit the lamps (at dusk).\nThe keeper's lamps  kept burning: 42 lamps!\n",
    "korean": "등대지기는 등불을 켰다. 등불은 해질녘에 켜졌고 등대지기의 등불은 계속 타올랐다.\n등대를 보았다.\n",
    "chinese": "灯塔看守人点亮了灯。黄昏时灯亮了,看守人的灯一直亮着。\n看守人很高兴。\n",
    "japanese": "灯台守はランプをともした。ランプは夕暮れにともされ、ずっと燃えていた。\n灯台守はうれしい。\n",
}
TEXT = "".join(TEXTS.values())
UDHR = {"korean": "kor", "chinese": "cmn_hans", "japanese": "jpn"}


def write_text(folder, text=TEXT, name="text.txt") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def text_files(folder) -> dict[str, str]:
    """Language -> a file: the Universal Declaration of Human Rights where it is there."""
    files = {}
    for language, text in TEXTS.items():
        path = ROOT.parent / "shared" / "data" / "multilingual_text" / "udhr2" / f"{UDHR.get(language)}.txt"
        files[language] = str(path) if path.exists() else write_text(folder, 20 * text, f"{language}.txt")
    return files


def test_layout_is_robertas(tmp_path):
    """Where special tokens, bytes and pieces are: as in the vocabulary that transformers' oracle was made with."""
    oracle = json.loads((GOLDEN / "tokenization" / "roberta" / "vocab.json").read_text(encoding="utf-8"))
    contents = learn_byte_bpe([write_text(tmp_path)], vocab_size=300, show_progress=False)
    vocab = json.loads(contents["vocab.json"])
    assert list(vocab)[:260] == sorted(oracle, key=oracle.get)[:260]
    assert list(vocab.values()) == list(range(300)) and list(vocab)[-1] == "<mask>"
    assert ["".join(line.split(" ")) for line in contents["merges.txt"].decode().splitlines()[1:]] == list(vocab)[
        260:-1
    ]


@pytest.mark.parametrize("language", TEXTS)
def test_byte_bpe_gives_the_ids_of_transformers(tmp_path, language):
    transformers = pytest.importorskip("transformers")
    path = text_files(tmp_path)[language]
    (tmp_path / "bpe").mkdir()
    contents = learn_byte_bpe([path], show_progress=False, vocab_size=1500)
    storage.write_files({str(tmp_path / "bpe" / name): content for name, content in contents.items()})
    tokenizer = ByteBpeTokenizer.from_pretrained(str(tmp_path / "bpe"))
    other = transformers.RobertaTokenizer.from_pretrained(str(tmp_path / "bpe"))
    with open(path, encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file][:300] + list(TEXTS.values())
    assert [tokenizer.encode(line) for line in lines] == [
        other.encode(line, add_special_tokens=False) for line in lines
    ]
    assert [tokenizer.decode(tokenizer.encode(line)) for line in lines] == lines
    assert tokenizer.mask_id == other.mask_token_id == len(tokenizer.vocab) - 1
    learned = sum(len(tokenizer.encode(line)) for line in lines)
    assert learned < 0.6 * sum(len(line.encode()) for line in lines)  # pieces of several bytes are used


def learn_model(folder, path, **settings) -> SentencePieceTokenizer:
    model = learn_sentence_piece([path], show_progress=False, **settings)
    storage.write_file(str(folder / "spiece.model"), model)
    return SentencePieceTokenizer(str(folder / "spiece.model"), settings.get("do_lower_case", True))


def test_settings_are_alberts(tmp_path):
    tokenizer = learn_model(tmp_path, write_text(tmp_path), vocab_size=200)
    special = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "(", ")", '"', "-", ".", "–", "£", "€"]
    assert list(tokenizer.vocab)[:13] == special
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    assert [index for index in range(len(processor)) if processor.is_control(index)] == [0, 2, 3, 4]
    assert (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()) == (0, 1, -1, -1)
    # User symbols are pieces of their own wherever they are.
    assert [piece for piece in tokenizer.tokenize("dusk).-£1") if piece in special] == [")", ".", "-", "£"]


@pytest.mark.parametrize("language", TEXTS)
def test_sentence_piece_gives_the_ids_of_transformers(tmp_path, language, caplog):
    path = text_files(tmp_path)[language]
    tokenizer = learn_model(tmp_path, path, vocab_size=1500, character_coverage=1.0)
    with open(path, encoding="utf-8") as file:
        lines = [line.strip() for line in file]
    # Words that begin or end in digits, and quotation marks, have other rules there.
    lines = [line for line in lines if not re.search(r"\d|``|''", line)][:300]
    assert len(lines) > 10
    ids = [tokenizer.encode(line) for line in lines]
    if language == "korean":  # transformers takes decomposed syllables as they are, SentencePiece composes them again
        processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
        assert ids == [processor.encode(line.lower()) for line in lines]
        assert any(re.fullmatch("▁?[\uac00-\ud7a3]{2,}", piece) for piece in tokenizer.vocab)
        assert "transformers' tokenizer of an ALBERT reads Hangul as <unk>" in caplog.text
        tokenizer.save_pretrained(str(tmp_path / "saved"))
        assert "saved: transformers reads spiece.model by other rules" in caplog.text
    else:
        other = save_albert_tokenizer(tmp_path / "spiece.model", str(tmp_path))
        assert ids == [other.encode(line, add_special_tokens=False) for line in lines]
    assert not any(tokenizer.unk_id in row for row in ids)
    assert [tokenizer.decode(row) for row in ids] == [tokenizer.normalize(line) for line in lines]


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

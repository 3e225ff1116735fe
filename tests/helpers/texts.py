"""Sentences of several languages, vocabularies of word pieces made of them, and strings that tokenizers get wrong."""

import collections
import io
import itertools
import json
import pathlib
import pickle
import random
import re
import unicodedata
from collections.abc import Iterable, Iterator

import sentencepiece

from bert_tf.store import save
from bert_tf.store.description import read_model_files
from bert_tf.store.open import read_tokenizer

SENTENCES = (
    "자연어 처리는 인간의 언어를 컴퓨터로 다루는 분야이다. 서울에서 2019년, 3,000명이 참석했다!",
    "KLUE-RoBERTa는 한국어(韓國語) 사전학습 모델입니다… '좋아요'라고 \u1112\u1161\u11ab\u1100\u1173\u11af",
    "自然言語処理を学ぶ学生が東京大学で研究している。データは３０％、ｶﾞｲﾄﾞは①番だ。",
    "彼女はカ\u3099ラスのコップで㍿サンプルのコーヒーを飲んだ　そして帰った",
    "我来到北京清华大学，他毕业于中国。２０１９年的價格是¥100",
    "The quick brown Fox's naïve café résumé — it cost $9.99, e-mail me@example.com (or #tag)!",
    "Οδυσσέας Straße İstanbul Ünïcode cafe\u0301 Việt Nam हिन्दी สวัสดีครับ",
    "unaffable [E1] entity [E2] a-b_c 12:30 100%\u00a0x\u2003y\tz",
)


def mixed_texts(count: int, seed: int = 0, sentences: Iterable[str] = SENTENCES) -> list[str]:
    rng, sentences = random.Random(seed), list(sentences)
    texts = []
    for _ in range(count):
        parts = []
        for _ in range(rng.randrange(1, 4)):
            sentence = rng.choice(sentences)
            begin = rng.randrange(len(sentence))
            parts.append(sentence[begin : begin + rng.randrange(1, 30)])
        texts.append(rng.choice(["", " "]).join(parts))
    return texts


def shared_texts(shared, count: int = 10_000) -> list[str]:
    """Korean, Japanese and English texts and those of 388 languages from the shared data, each once."""
    data = shared / "data"
    texts = []
    for row in json.loads((data / "korean" / "klue" / "klue-nli-v1.1_dev.json").read_text()):
        texts += [row["premise"], row["hypothesis"]]
    japanese = (data / "choice" / "jcommonsenseqa" / "train.jsonl").read_text().split("\n")
    texts += [json.loads(line)["question"] for line in japanese if line]
    for path in sorted((data / "multilingual_text" / "udhr2").glob("*.txt")):
        texts += path.read_text().split("\n")[:20]
    texts += (data / "novels" / "heldout.txt").read_text().split("\n")[:2000]
    texts = [text for text in dict.fromkeys(texts) if text.strip()]
    random.Random(0).shuffle(texts)
    assert len(texts) >= count
    return texts[:count]


def word_pieces(texts: Iterable[str], special: Iterable[str], size: int = 3000) -> list[str]:
    """A vocabulary: special tokens, and the most frequent characters and short parts of words, some with "##"."""
    counts = collections.Counter()
    for word in itertools.chain.from_iterable(re.findall(r"\w+|[^\w\s]", text) for text in texts):
        for form in {word, word.lower()}:
            counts.update(form)
            counts.update("##" + char for char in form[1:])
            counts.update(form[:length] for length in range(2, 5))
            counts.update("##" + form[begin : begin + 2] for begin in range(1, len(form) - 1, 2))
    ranked = sorted(counts, key=lambda piece: (-counts[piece], piece))
    return list(dict.fromkeys([*special, *ranked[:size]]))


def learned_pieces(lines: Iterable[str], vocab_size: int, **options) -> bytes:
    """A SentencePiece model of some lines. options: of the trainer."""
    content, usual = io.BytesIO(), {"bos_id": -1, "eos_id": -1, "hard_vocab_limit": False, "minloglevel": 2}
    options = {**usual, **options, "vocab_size": vocab_size}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=content, **options)
    return content.getvalue()


def write_xlm_roberta_pieces(folder: pathlib.Path, lines: Iterable[str], vocab_size: int, **options) -> str:
    """Writes a sentencepiece.bpe.model with the released one's first pieces and rules for characters."""
    first = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1, "num_threads": 1}
    file, options = folder / "sentencepiece.bpe.model", {"normalization_rule_name": "nmt_nfkc", **first, **options}
    file.write_bytes(learned_pieces(lines, vocab_size, **options))
    return str(file)


_FRAGMENTS = [
    "Hello", " world", "don't", "we'll", "I'VE", "'s", "''", "``quoted''", "2019,", "1,000,", "9,", "3.14", "x2",
    "\u00b2,", "\u0663,", "[CLS]", "[SEP]", "[MASK]", "</", "<", ">", "...", "--", "\u2014", "http://a.b/c?d=e",
    "@user", "#tag", "  ", "   ", "\t", "\n", "\r\n", " \n ", "\u00a0", "\u3000", "\u2028", "\u0085", "\x1c",
    "\u200b", "\u200d", "\ufeff", "caf\u00e9", "cafe\u0301", "\u1ea0\u0308", "\u0130", "\u0131", "\u03a3",
    "\u039f\u0394\u039f\u03a3", "\u00df", "\u1e9e", "\ufb01", "\ufdfa", "\uff21\uff42", "\u00bd", "\u2460", "\u2167",
    "\u4e1c\u4eac", "\u306f\u304c", "\ud55c\uae00", "\u1112\u1161", "\u0e01\u0e33",
    "\u0928\u092e\u0938\u094d\u0924\u0947", "\u0645\u0631\u062d\u0628\u0627", "\U0001f600",
    "\U0001f469\u200d\U0001f4bb", "\U0001f1e9\U0001f1ea", "\U00020000", "\u2581", "\u2581\u2581", "\u0120", "\ufffd",
    "\0",
]  # fmt: skip


def odd_texts(count: int, seed: int = 0) -> Iterator[str]:
    """Yields `count` strings of up to 60 characters or so, the same for each seed."""
    rng = random.Random(seed)
    assigned = [chr(code) for code in range(0x20, 0x20000) if unicodedata.category(chr(code)) not in ("Cn", "Co", "Cs")]
    marks = [char for char in assigned if unicodedata.category(char)[0] == "M"]
    spaces = [char for char in assigned if unicodedata.category(char)[0] == "Z"]
    letters = [chr(code) for code in range(0x21, 0x7F)]
    for _ in range(count):
        parts = []
        for _ in range(rng.randrange(12)):
            kind = rng.random()
            if kind < 0.5:
                parts.append(rng.choice(_FRAGMENTS))
            elif kind < 0.75:
                parts.append("".join(rng.choices(letters, k=rng.randrange(1, 8))))
            else:
                parts.append("".join(rng.choices(rng.choice([assigned, marks, spaces]), k=rng.randrange(1, 4))))
            if rng.random() < 0.4:
                parts.append(" ")
        yield "".join(parts)


def assert_kept(tokenizer, folder: pathlib.Path, texts: list[str], directory: str | None = None) -> None:
    """Copied to another process, saved alone and, that of a model's directory, with its files, it is the same."""
    tokenizer.save_pretrained(str(folder))
    copies = [pickle.loads(pickle.dumps(tokenizer)), type(tokenizer).from_pretrained(str(folder))]
    if directory:
        files, target = read_model_files(directory), folder / "model"
        target.mkdir()
        save.write_beside(str(target), save.description_files(files))
        (target / files.config.file_name).write_text(files.config.to_json_string())
        copies.append(read_tokenizer(str(target)))
    # What is saved alone names the tokens with a role among the added ones.
    settings = {name: value for name, value in tokenizer.settings().items() if name != "added_tokens_decoder"}
    for copy in copies:
        assert type(copy) is type(tokenizer) and copy.settings().items() >= settings.items()
        assert copy.files() == tokenizer.files() and copy.encode_batch(texts) == tokenizer.encode_batch(texts)
    assert copies[-1].build_inputs([9], [8]) == tokenizer.build_inputs([9], [8])

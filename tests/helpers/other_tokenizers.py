"""Small encoders with the tokenizers of Japanese BERTs (MeCab) and of KoBERT (SentencePiece), and data for tasks."""

import itertools
import json
import pathlib

import sentencepiece

from helpers import tiny
from helpers.every_model import SIZES
from helpers.texts import SENTENCES, learned_pieces, word_pieces

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
KOBERT_SPECIAL, KOBERT_MODEL = ("[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"), "tokenizer_78b3253a26.model"
# A word of each kind for `TEMPLATES`.
WORDS = {
    "japanese": (("良い", "悪い"), ("東京", "ｶﾞｲﾄﾞ", "映画", "学生"), ("彼女", "先生", "友人")),
    "kobert": (("좋은", "나쁜"), ("서울", "영화", "１２월", "학생"), ("그녀", "선생님", "친구")),
}
TEMPLATES = {
    "japanese": "{who}は{what}を見て{how}と言った。",
    "kobert": "{who}는 {what}를 보고 {how} 것이라고 ``말했다''.",
}


def texts_of(kind: str) -> list[tuple[str, str]]:
    """Texts, and a word of each."""
    hows, whats, whos = WORDS[kind]
    combined = itertools.product(whats, whos, hows)
    return [(TEMPLATES[kind].format(who=who, what=what, how=how), what) for what, who, how in combined]


def write_kobert(folder: pathlib.Path, lines: list[str], vocab_size: int) -> list[str]:
    """Writes a model, and a vocab.txt that has its pieces in another order, in which they are returned."""
    options = {"pad_id": 1, "unk_id": 0, "pad_piece": "[PAD]", "unk_piece": "[UNK]", "character_coverage": 0.995}
    options |= {"control_symbols": "[CLS],[SEP],[MASK]", "split_by_unicode_script": False, "split_by_number": False}
    model = learned_pieces(lines, vocab_size, **options)
    (folder / KOBERT_MODEL).write_bytes(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    learned = [processor.id_to_piece(number) for number in range(5, processor.get_piece_size())]
    pieces = [*KOBERT_SPECIAL, *learned[::-1]]
    (folder / "vocab.txt").write_text("".join(piece + "\n" for piece in pieces))
    return pieces


def write_encoder(kind: str, folder: pathlib.Path) -> str:
    """Writes the files of this kind of tokenizer, and with them a random encoder; returns the encoder's directory."""
    texts = [text for text, _ in texts_of(kind)]
    if kind == "japanese":
        normalized = [text.replace("ｶﾞｲﾄﾞ", "ガイド") for text in texts]
        pieces = word_pieces(normalized, [*SPECIAL, *itertools.chain(*WORDS[kind]), "ガイド"])
        config = {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab", "do_lower_case": False}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        (folder / "vocab.txt").write_text("".join(piece + "\n" for piece in pieces))
    else:
        # KoBERT reads two quotation marks in a row as one of another kind.
        lines = [text.replace("``", '"').replace("''", '"') for text in texts] * 20
        pieces = write_kobert(folder, [*lines, *SENTENCES], 200)
    sizes = {**SIZES, "vocab_size": len(pieces), "max_position_embeddings": 64, "type_vocab_size": 2}
    tiny.write_encoder(folder, pieces, sizes, do_lower_case=None)
    return str(folder / "encoder")


def write_questions(kind: str, path: pathlib.Path) -> None:
    paragraphs, first = [], texts_of(kind)[0][0]
    for number, (text, noun) in enumerate(texts_of(kind)):
        context = f"{first} {text}"
        answer = {"text": noun, "answer_start": context.index(noun, len(first))}
        paragraphs.append({"context": context, "qas": [{"id": f"q{number}", "question": noun, "answers": [answer]}]})
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}))

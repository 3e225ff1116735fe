"""KoBERT's tokenizer: pieces of a SentencePiece model whose ids are lines of a vocab.txt, against transformers."""

import io
import json
import pickle

import pytest
import sentencepiece
from helpers.texts import SENTENCES, mixed_texts, shared_texts
from transformers.models.bert_japanese.tokenization_bert_japanese import SentencepieceTokenizer

from bert_tf.families.config import BertConfig
from bert_tf.models import pretrained
from bert_tf.store import saving
from bert_tf.store.directory import read_model_files
from bert_tf.text.graph_wordpiece import NoGraphError, graph_of
from bert_tf.text.sentence_piece import KoBertTokenizer

SPECIAL = ("[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]")
ODD = (
    "1,000,000원", "``따옴표'' '''셋'''", "서울 2019, 부산", "½ ㍿ e\u0301 \u1112\u1161\u11ab", "9,", ",", "",
    "\t \u3000",
)  # fmt: skip
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.fixture(scope="module")
def model():
    """A SentencePiece model of a few hundred pieces, some of which end in a digit and a comma."""
    lines = [" ".join(text.split()) for text in [*SENTENCES, *ODD, *mixed_texts(500)] * 3]
    lines += ["12, 19, 2019, 3,", "x9,0 ab9,"] * 300
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=content, vocab_size=500, character_coverage=0.995, pad_id=1,
        unk_id=0, bos_id=-1, eos_id=-1, pad_piece="[PAD]", unk_piece="[UNK]", control_symbols="[CLS],[SEP],[MASK]",
        hard_vocab_limit=False, minloglevel=2, split_by_unicode_script=False, split_by_number=False,
    )  # fmt: skip
    return content.getvalue()


@pytest.fixture
def folder(tmp_path, model):
    """A directory like KoBERT's; the vocab.txt has the pieces in another order than the model."""
    folder = tmp_path / "kobert"
    folder.mkdir()
    (folder / "tokenizer_78b3253a26.model").write_bytes(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = [processor.id_to_piece(number) for number in range(len(SPECIAL), processor.get_piece_size())]
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in [*SPECIAL, *pieces[::-1]]))
    config = {"model_type": "bert", "vocab_size": len(pieces) + len(SPECIAL), **SIZES}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def plain_ids(folder, text):
    """The ids by the older class of transformers that has these rules."""
    vocab = {token: index for index, token in enumerate((folder / "vocab.txt").read_text().split("\n"))}
    path = str(folder / "tokenizer_78b3253a26.model")
    oracle = SentencepieceTokenizer(path, "[UNK]", do_lower_case=False, remove_space=True, keep_accents=False)
    return [vocab.get(piece, 0) for piece in oracle.tokenize(text)]


def test_ids_offsets_and_files(tmp_path, folder):
    tokenizer = pretrained.read_tokenizer(str(folder))
    assert type(tokenizer) is KoBertTokenizer and tokenizer.pad_id == 1 and tokenizer.cased
    assert sum(len(parts) > 1 for parts in tokenizer.split.values()) >= 3
    texts = [*SENTENCES, *ODD, *mixed_texts(300, seed=3)]
    for text in texts:
        ids, offsets = tokenizer.encode_with_offsets(text)
        assert ids == tokenizer.encode(text) == plain_ids(folder, text), text
        assert offsets == sorted(offsets) and all(0 <= begin <= end <= len(text) for begin, end in offsets)
    ids, offsets = tokenizer.encode_with_offsets("``서울'' 2019, 부산")
    covered = ["``서울'' 2019, 부산"[begin:end] for begin, end in offsets]
    assert "".join(covered) == "``서울''2019,부산" and "``" in covered and "''" in covered
    (tmp_path / "saved").mkdir()
    files = read_model_files(str(folder))
    saving.write_description(str(tmp_path / "saved"), files)
    (tmp_path / "saved" / "bert_config.json").write_text(files.config.to_json_string())
    again = pretrained.read_tokenizer(str(tmp_path / "saved"))
    assert type(again) is KoBertTokenizer and again.files() == tokenizer.files()
    expected = tokenizer.encode_batch(texts)
    assert again.encode_batch(texts) == pickle.loads(pickle.dumps(tokenizer)).encode_batch(texts) == expected
    pieces = tokenizer.tokenize("한국어 모델입니다")
    starts = [not tokenizer.is_continuation(piece) for piece in pieces]
    assert sum(starts) == 2 and starts[0] and pieces[starts.index(True, 1)].startswith("\u2581")
    row = tokenizer(["서울"], ["부산"])
    second = [*tokenizer.encode("부산"), 3]
    assert row["input_ids"][0].tolist() == [2, *tokenizer.encode("서울"), 3, *second]
    assert row["segment_ids"][0].tolist()[-len(second) - 1 :] == [0, *[1] * len(second)]


def test_the_model_alone(tmp_path, model):
    """As skt/kobert-base-v1 has it: the model's own numbers are the ids."""
    (tmp_path / "spiece.model").write_bytes(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    (tmp_path / "bert_config.json").write_text(BertConfig(processor.get_piece_size(), **SIZES).to_json_string())
    config = {"tokenizer_class": "XLNetTokenizer", **{f"{role.lower()[1:-1]}_token": role for role in SPECIAL}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = pretrained.read_tokenizer(str(tmp_path))
    assert type(tokenizer) is KoBertTokenizer and tokenizer.cased
    text = "자연어 처리는 인간의 언어"
    assert tokenizer.encode(text) == processor.encode(text)


def test_kobert_rejects_other_files(folder):
    tokenizer = pretrained.read_tokenizer(str(folder))
    with pytest.raises(NoGraphError, match=r"vocab.txt: the pieces of a KoBertTokenizer .* inside a graph\. .* ids\.$"):
        graph_of(tokenizer)
    (folder / "tokenizer_config.json").write_text(json.dumps({"keep_accents": True}))
    with pytest.raises(ValueError, match=r"tokenizer_config.json: keep_accents is True; it must be False"):
        pretrained.read_tokenizer(str(folder))
    (folder / "tokenizer_config.json").unlink()
    (folder / "tokenizer_78b3253a26.model").unlink()
    with pytest.raises(ValueError, match=r"vocab.txt has pieces of SentencePiece \(▁\), but no .model next to it"):
        pretrained.read_tokenizer(str(folder))


@pytest.mark.slow
def test_ten_thousand_strings(folder, shared):
    tokenizer = pretrained.read_tokenizer(str(folder))
    path = str(folder / "tokenizer_78b3253a26.model")
    oracle = SentencepieceTokenizer(path, "[UNK]", do_lower_case=False, remove_space=True, keep_accents=False)
    for text in shared_texts(shared):
        assert tokenizer.encode(text) == [tokenizer.vocab.get(piece, 0) for piece in oracle.tokenize(text)], text

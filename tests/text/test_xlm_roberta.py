"""XLM-R's tokenizer, compared with sentencepiece and, for a tokenizer.json, with transformers; and that a family is a
folder."""

import json
import pathlib
import random
import re
import shutil
import unicodedata

import numpy as np
import pytest
import sentencepiece
from helpers.basics import GOLDEN, ROOT, directory_of, slow
from helpers.texts import SENTENCES, assert_kept, mixed_texts, odd_texts, write_xlm_roberta_pieces
from helpers.tiny import save_model, save_xlm_roberta_tokenizer

from bert_tf import BertForMaskedLM, BertForSimilarity, BertModel, Embedder, FullTokenizer, read_tokenizer
from bert_tf.families.xlm_roberta import FairseqSentencePiece, XLMRobertaTokenizer
from bert_tf.store.open import open_model
from bert_tf.system import hub
from bert_tf.text import tokenizer_class_of

NAMES = ("<s>", "</s>", "<unk>", "<mask>", "<pad>")


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("xlm-roberta")
    return pathlib.Path(write_xlm_roberta_pieces(folder, [*SENTENCES * 20, *mixed_texts(500)], 700))


@pytest.fixture(scope="module")
def theirs(model_file, tmp_path_factory):
    directory = tmp_path_factory.mktemp("theirs")
    return save_xlm_roberta_tokenizer(model_file, directory), directory


def strange_text(rng: random.Random) -> str:
    """Characters that are decomposed, half as wide, joined, controlling or without spaces between them."""
    sentence = rng.choice(SENTENCES)
    alphabets = ["ｱｲｳｶﾞﾊﾟｰｯ｡｢｣､･ﾞﾟ가나ab ", "\0\x01\x1f\x7f\x85\xad\u200b\u2028\ufeffa ", "▁ a가▁"]
    alphabets += ["  \t\n\u3000\xa0\u200ba한，。", [*map(chr, range(0xE01, 0xE5B))]]
    alphabets += [[*map(chr, range(0x621, 0x660)), " ", "\u0640"]]
    alphabets += [[chr(rng.randrange(*codes)) for _ in range(20)] for codes in ((0x20, 0xD800), (0xE000, 0x20000))]
    alphabets += [sentence.replace(" ", ""), unicodedata.normalize("NFD", sentence)]
    return "".join(rng.choices(rng.choice(alphabets), k=rng.choice([3, 12, 30, 300])))


def strange_texts(count: int) -> list[str]:
    rng, third = random.Random(3), count // 3
    texts = [*odd_texts(third), *mixed_texts(third, 9), *(strange_text(rng) for _ in range(third))]
    return [text for text in texts if not any(name in text for name in NAMES)]


@pytest.mark.parametrize("count", [3000, *slow(100_000)])
def test_ids_of_a_model_are_sentencepieces_as_fairseq_counts_them(model_file, count):
    tokenizer, texts = FairseqSentencePiece(str(model_file)), strange_texts(count)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model_file))
    first = {0: 3, 1: 0, 2: 2}
    expected = [[first.get(number, number + 1) for number in numbers] for numbers in processor.encode(texts)]
    assert tokenizer.encode_batch(texts) == expected
    for text, ids in zip(texts[::5], expected[::5], strict=True):
        found, offsets = tokenizer.encode_with_offsets(text)
        assert found == ids == tokenizer.encode(text), repr(text)
        starts = [start for start, _ in offsets]
        assert starts == sorted(starts) and all(0 <= start <= end <= len(text) for start, end in offsets)
    size = processor.get_piece_size()
    assert [tokenizer.vocab[name] for name in NAMES] == [0, 2, 3, size + 1, 1]
    assert tokenizer.vocab_size == size + 2 == len(tokenizer.vocab)
    assert tokenizer.inv_vocab[4] == processor.id_to_piece(3)


@pytest.mark.parametrize("count", [3000, *slow(100_000)])
def test_ids_of_a_tokenizer_json_are_those_of_transformers(theirs, count):
    library, directory = theirs
    tokenizer, texts = read_tokenizer_of(directory), strange_texts(count)
    expected = library(texts, add_special_tokens=False, return_offsets_mapping=True)
    assert tokenizer.encode_batch(texts) == expected["input_ids"]
    for number in range(0, len(texts), 5):
        pair = expected["input_ids"][number], expected["offset_mapping"][number]
        assert tokenizer.encode_with_offsets(texts[number]) == pair
    assert tokenizer.vocab == library.get_vocab()


def read_tokenizer_of(directory):
    tokenizer = FairseqSentencePiece.from_pretrained(str(directory))
    assert type(tokenizer) is XLMRobertaTokenizer
    return tokenizer


def test_rows_masks_and_words(model_file, theirs):
    """Those of a tokenizer.json: test_transformers_call.py."""
    library, tokenizer = theirs[0], FairseqSentencePiece(str(model_file))
    for texts in (("자연어 처리", "the fox"), ("the fox",)):
        ids, segments = tokenizer.build_inputs(*map(tokenizer.encode, texts))
        assert ids == library(*texts)["input_ids"] and not any(segments)
    masked = "the <mask> fox<mask>"
    assert tokenizer.encode_masked(masked) == library(masked, add_special_tokens=False)["input_ids"]
    for ids in (tokenizer.encode(masked), *tokenizer.encode_batch([masked, "a</s>"])):
        assert tokenizer.mask_takes_spaces and not {tokenizer.mask_id, tokenizer.sep_id} & set(ids)
    continues = tokenizer.continuations
    assert not continues[[tokenizer.vocab[name] for name in NAMES]].any()
    ids = tokenizer.encode("The quick 자연어 brown")
    begins = [token.startswith("\u2581") for token in tokenizer.convert_ids_to_tokens(ids)]
    assert (~tokenizer.continues_word(ids)).tolist() == begins and sum(begins) == 4
    assert tokenizer.decode(tokenizer.encode("The quick 자연어")) == "The quick 자연어"
    assert [len(tokenizer.encode("2019,")), tokenizer.cased] == [len(library.tokenize("2019,")), True]


def test_where_a_word_is_in_its_text(model_file):
    tokenizer = FairseqSentencePiece(str(model_file))
    text = "  ｶﾞ \u1112\u1161\u11ab①  x\u3000"
    covered = [text[start:end] for start, end in tokenizer.encode_with_offsets(text)[1]]
    assert "".join(covered).replace(" ", "") == text.replace(" ", "").replace("\u3000", "")


def test_a_folder_keeps_its_tokenizer(tmp_path, theirs, model_file):
    directory = shutil.copytree(theirs[1], tmp_path / "both")
    shutil.copy(model_file, directory)
    tokenizer = read_tokenizer_of(directory)
    assert_kept(tokenizer, tmp_path / "again", [*SENTENCES])
    names = ("sentencepiece.bpe.model", "tokenizer.json")
    assert tokenizer.files() == {name: (directory / name).read_bytes() for name in names}
    config = json.loads((tmp_path / "again" / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "XLMRobertaTokenizer" and "do_lower_case" not in config
    (tmp_path / "again" / "tokenizer.json").unlink()
    kind = type(FullTokenizer.from_pretrained(str(tmp_path / "again")))  # by its name
    assert kind is tokenizer_class_of(str(model_file)) is FairseqSentencePiece
    # As the released folder, where nothing but the model's family says it.
    directory_of(
        directory, config__json={"model_type": "xlm-roberta"}, tokenizer_config__json={"model_max_length": 512}
    )
    assert tokenizer_class_of(str(directory / "tokenizer.json")) is XLMRobertaTokenizer
    with pytest.raises(ValueError, match=r"tiny\.model: its first pieces are not <unk>, <s>, </s>, as XLM-R's are\.$"):
        FairseqSentencePiece(str(GOLDEN / "tokenization" / "albert" / "tiny.model"))


def test_a_bert_may_have_it(tmp_path):
    """As multilingual-e5-small, whose layers are BERT's."""
    save_model(tmp_path / "model", "xlm-roberta", BertForMaskedLM, format="huggingface")
    for name, value in {"model_type": "bert", "max_position_embeddings": 64, "vocab_size": 502}.items():
        file = tmp_path / "model" / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), name: value}))
    library = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(tmp_path / "model")
    tokenizer = read_tokenizer(str(tmp_path / "model"))
    row, _ = tokenizer.build_inputs(*map(tokenizer.encode, ("the", "fox")))
    assert row == library("the", "fox")["input_ids"]


def test_models_and_names(tmp_path):
    config = open_model(save_model(tmp_path / "model", "xlm-roberta", BertModel, format="huggingface")).config
    assert (config.title, config.file_name, config.max_length) == ("XLM-RoBERTa", "xlm-roberta_config.json", 64)
    assert hub.full_name("xlm-roberta-base") == "FacebookAI/xlm-roberta-base"


def test_parts_of_bge_that_are_not_read_are_named_once(tmp_path, caplog):
    path = save_model(tmp_path / "model", "xlm-roberta", BertForSimilarity, format="huggingface", pooling="cls")
    for name in ("sparse_linear.pt", "colbert_linear.pt"):
        (tmp_path / "model" / name).write_bytes(b"")
    for _ in range(2):
        vectors = Embedder(path).encode(["자연어", "the fox"])
    assert np.isfinite(vectors).all()
    assert len(re.findall(r"sparse_linear\.pt", caplog.text)) == 1 and "colbert_linear.pt" in caplog.text


def test_a_family_is_a_folder():
    """Nothing else names it: neither the layers nor tokenizers, tasks and exports."""
    paths = [*(ROOT / "bert_tf").rglob("*.py"), *(ROOT / "bert_tf").rglob("*.pyi")]
    naming = {path.relative_to(ROOT).as_posix() for path in paths if "xlm" in path.read_text().lower()}
    assert naming == {f"bert_tf/families/{name}__init__.py" for name in ("", "xlm_roberta/")}
    text = (ROOT / "bert_tf/families/__init__.py").read_text()
    lines = [line for line in text.split("\n") if "xlm" in line]
    assert len(lines) == 2 and lines[1].startswith("FAMILIES = ")

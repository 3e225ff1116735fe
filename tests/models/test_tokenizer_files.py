"""A tokenizer's files in each form in the wild: found, read, written beside a model and read again; unfit files."""

import dataclasses
import json
import pathlib
import shutil

import pytest
import tokenizers
from helpers.odd_texts import odd_texts
from helpers.paths import GOLDEN

from bert_tf.models import directory as model_directory
from bert_tf.models import pretrained, saving
from bert_tf.models.directory import read_model_files, tokenizer_of
from bert_tf.models.families import family_named
from bert_tf.text.sentence_piece import HuggingFaceSentencePiece, SentencePieceTokenizer
from bert_tf.text.tokenizer_files import Casing
from bert_tf.text.wordpiece import ElectraTokenizer, FullTokenizer

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
ROBERTA, ALBERT = GOLDEN / "tokenization" / "roberta", GOLDEN / "tokenization" / "albert" / "tiny.model"
BPE_FILES = {name: ROBERTA / name for name in ("vocab.json", "merges.txt", "tokenizer.json")}
VOCAB = GOLDEN / "vocab.txt"

# form -> family, vocab_size, name -> source of each file
FORMS = {
    "word pieces": ("distilbert", 30522, {"vocab.txt": VOCAB}),
    "electra": ("electra", 30522, {"vocab.txt": VOCAB}),
    "vocab.json and merges.txt": ("roberta", 601, {name: BPE_FILES[name] for name in ("vocab.json", "merges.txt")}),
    "byte BPE in tokenizer.json": ("roberta", 601, {"tokenizer.json": BPE_FILES["tokenizer.json"]}),
    "byte BPE, all files": ("roberta", 601, BPE_FILES),
    "spiece.model": ("albert", 560, {"spiece.model": ALBERT}),
    "30k-clean.model": ("albert", 560, {"30k-clean.model": ALBERT}),
    "any SentencePiece model": ("albert", 560, {"tiny.model": ALBERT}),
    "Chinese ALBERT": ("albert", 30522, {"vocab.txt": VOCAB}),
    "Hugging Face's ALBERT": ("albert", 560, {"spiece.model": ALBERT, "tokenizer.json": None}),
}
CLASSES = {"electra": ElectraTokenizer, "Chinese ALBERT": FullTokenizer,
           "Hugging Face's ALBERT": HuggingFaceSentencePiece, "spiece.model": SentencePieceTokenizer}  # fmt: skip


def tokenizer_json() -> str:
    """ALBERT's tokenizer in the form of Hugging Face."""
    original = SentencePieceTokenizer(str(ALBERT))
    pieces = [(piece, original.score(index)) for piece, index in original.vocab.items()]
    library = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=original.unk_id))
    library.normalizer = tokenizers.normalizers.Lowercase()
    library.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    return library.to_str()


def directory_of(folder: pathlib.Path, form: str) -> str:
    """A directory with a configuration and the files of a form."""
    family, vocab_size, files = FORMS[form]
    folder.mkdir()
    config_class = family_named(family).config_class
    (folder / config_class.file_name).write_text(config_class(vocab_size=vocab_size, **SIZES).to_json_string())
    for name, source in files.items():
        shutil.copy(source, folder / name) if source else (folder / name).write_text(tokenizer_json())
    return str(folder)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read_and_written(tmp_path, form):
    source = directory_of(tmp_path / "source", form)
    tokenizer = pretrained.read_tokenizer(source)
    assert isinstance(tokenizer, CLASSES.get(form, object))
    nothing = dict.fromkeys(("vocab_file", "do_lower_case", "strip_accents"))
    config_file = read_model_files(source).config_file
    by_flag = model_directory.describe(
        None, **nothing | {"bert_config_file": config_file, "vocab_file": read_model_files(source).vocab_file}
    )
    described = read_model_files(source)
    described.casing = by_flag.casing
    texts = list(odd_texts(200, seed=2))
    expected = tokenizer.encode_batch(texts)
    for number, files in enumerate((by_flag, described)):
        assert tokenizer_of(files).encode_batch(texts) == expected
        target = tmp_path / str(number)
        target.mkdir()
        saving.write_description(str(target), files)
        shutil.copy(config_file, target)
        again = pretrained.read_tokenizer(str(target))
        assert type(again) is type(tokenizer) and again.encode_batch(texts) == expected
        assert again.files() == tokenizer.files() and again.settings() == tokenizer.settings()
        written = json.loads((target / "tokenizer_config.json").read_text())
        family = family_named("bert" if form == "Chinese ALBERT" else FORMS[form][0])
        assert written["tokenizer_class"] == family.tokenizer_name


def test_a_sentencepiece_model_without_casing_is_lower_cased(tmp_path):
    files = read_model_files(directory_of(tmp_path / "source", "spiece.model"))
    assert files.casing == Casing() and not tokenizer_of(files).cased
    cased = dataclasses.replace(files, casing=Casing(False, None, "a file"))
    assert tokenizer_of(cased).cased


def test_the_tokenizer_of_an_electra_without_configuration(tmp_path, golden):
    for path in (golden / "electra" / "uneven").glob("model.ckpt*"):
        shutil.copy(path, tmp_path)
    shutil.copy(golden / "electra" / "vocab.txt", tmp_path)
    assert type(pretrained.read_tokenizer(str(tmp_path))) is ElectraTokenizer

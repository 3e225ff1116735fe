"""What is opened: weights of each format, configuration, vocabulary and casing."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest
import tokenizers
from helpers.basics import GOLDEN, ROOT
from helpers.texts import assert_kept, odd_texts
from helpers.tiny import TINY_CONFIG, save_albert_tokenizer

from bert_tf import BertConfig, BertForPreTraining
from bert_tf.families import family_named, tokenizer_of_model
from bert_tf.pretraining import model_vocabulary
from bert_tf.pretraining.record_settings import settings_of_records
from bert_tf.store import save
from bert_tf.store.description import ModelFiles, read_model_files, vocabulary_mismatch
from bert_tf.store.open import FORMATS, find_weights, open_for_script, open_model, open_weights, read_tokenizer
from bert_tf.system.text_files import list_folder
from bert_tf.text import tokenizer_files
from bert_tf.text.sentence_piece import HuggingFaceSentencePiece, SentencePieceTokenizer
from bert_tf.text.tokenizer_files import Casing
from bert_tf.text.wordpiece import ElectraTokenizer, FullTokenizer
from bert_tf.training.settings import ModelSettings


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    from helpers.model_garden_models import older_names, write_variables  # which needs tf-models-official

    model, folders = BertForPreTraining(BertConfig.from_dict(TINY_CONFIG)), {}
    for name, kind in FORMATS.items():
        folders[name] = str(tmp_path_factory.mktemp("formats") / name)
        if kind.file_name:
            model.save_pretrained(folders[name], format=name)
    write_variables(f"{folders['model_garden']}/bert_model.ckpt", older_names()[0])
    return folders


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_finds_its_own_weights_only(folders, name, tmp_path):
    format, file = find_weights(list_folder(folders[name]), folders[name])
    assert format is FORMATS[name] and open_weights(folders[name]).format == name
    assert find_weights(list_folder(file), file) == (format, file)
    if file.endswith(".safetensors"):  # which say whose they are, whatever they are called
        renamed = str(shutil.copy(file, tmp_path / "other.safetensors"))
        assert find_weights(list_folder(renamed), renamed) == (format, renamed)


def test_a_model_is_opened_once_and_without_tensorflow(folders, monkeypatch):
    folder = folders["huggingface"]
    code = f"import sys; from bert_tf.store.open import open_model; opened = open_model({folder!r})\n"
    code += "assert opened.family.model_type == 'bert' and opened.weights['bert/pooler/dense/bias'].shape == (32,)\n"
    code += "assert opened.path == opened.directory and not opened.export\n"
    code += "assert not {'tensorflow', 'keras'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    opened = []
    monkeypatch.setattr(
        "bert_tf.store.open.find_weights", lambda *place: opened.append(place[1]) or find_weights(*place)
    )
    BertForPreTraining.from_pretrained(folder)
    assert opened == [folder]
    BertForPreTraining.from_pretrained(open_model(folder))
    assert opened == [folder, folder]
    assert open_model(folder, with_weights=False).weights is None and len(opened) == 2


def test_a_vocabulary_instead_of_the_one_beside_the_weights(tmp_path, caplog):
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused1]", "a", "b"]
    (tmp_path / "own.txt").write_text("\n".join(tokens))
    files = ModelFiles("", vocab_file=str(tmp_path / "own.txt"))

    def problem(*others: str) -> str:
        (tmp_path / "v.txt").write_text("\n".join(others))
        return vocabulary_mismatch(str(tmp_path / "v.txt"), files)

    assert problem(*tokens) == problem(*tokens, "c") == vocabulary_mismatch(None, files) == caplog.text == ""
    assert "2 of its tokens have other ids there, such as 'b', 7 there and 6 here" in problem(*tokens[:6], "b", "a")
    assert problem(*tokens[:5], "word", "a", "b") == caplog.text == ""
    assert problem(*tokens[:6], "a", "word") == ""
    assert "own.txt, next to the weights: 1, such as 'word' for 'b'; the model does not know them yet" in caplog.text


def write_json(path, values):
    path.write_text(json.dumps(values))
    return path


def test_casing_is_read_from_tokenizer_config_then_tokenizer_then_the_name(tmp_path):
    folder = tmp_path / "cased_L-12_H-768_A-12"
    folder.mkdir()
    assert tokenizer_files.read_casing(str(folder)).do_lower_case is False  # other names: test_released_models.py
    assert tokenizer_files.read_casing(str(tmp_path)).do_lower_case is None
    normalizer = {"type": "BertNormalizer", "lowercase": True, "strip_accents": False}
    for name, values, expected in (
        ("tokenizer.json", {"normalizer": normalizer}, (True, False)),
        ("tokenizer_config.json", {"do_lower_case": False, "strip_accents": None}, (False, None)),
    ):
        path = write_json(folder / name, values)
        assert tokenizer_files.read_casing(str(folder)) == Casing(*expected, str(path))


def test_a_flag_may_repeat_the_directory_but_not_contradict_it():
    known = Casing(False, None, "model/tokenizer_config.json")
    assert tokenizer_files.resolve_casing(None, None, Casing(), known).do_lower_case is False
    assert tokenizer_files.resolve_casing(False, False, known).do_lower_case is False
    for name, given in (("do_lower_case", (True, None)), ("strip_accents", (None, True))):
        with pytest.raises(ValueError, match=rf"^{name}=True contradicts model/tokenizer_config\.json"):
            tokenizer_files.resolve_casing(*given, known)
    assert tokenizer_files.resolve_casing(None, None, Casing(True, False, "korean")).strip_accents is False
    # Nothing is known: the vocabulary says it, or the flag.
    assert tokenizer_files.resolve_casing(None, None, Casing()).do_lower_case is None
    assert tokenizer_files.resolve_casing(False, True, Casing()) == Casing(False, True, "the flag")


@pytest.mark.parametrize(("pieces", "cased"), [("The the bo ##s", True), ("the 안 ##é bo", False)])
def test_every_reader_takes_the_casing_of_the_pieces_where_no_file_says_it(
    tmp_path, caplog, monkeypatch, pieces, cased
):
    """As BioBERT and ClinicalBERT are published: config.json, vocab.txt and weights."""
    monkeypatch.setattr("bert_tf.system.messages._logged_topics", set())
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = BertConfig(vocab_size=9, **sizes)
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces.split()]))
    write_json(tmp_path / "config.json", {"model_type": "bert", **config.to_dict()})
    directory, vocab_file = str(tmp_path), str(tmp_path / "vocab.txt")
    files = read_model_files(directory)
    flags = {"input_file": "a", "output_file": "b", "vocab_file": vocab_file}
    readers = [
        read_tokenizer(directory),
        FullTokenizer.from_pretrained(directory),
        read_model_files(directory).make_tokenizer(is_checked=True),
        model_vocabulary.tokenizer_of(*settings_of_records(**flags)),
        tokenizer_of_model(vocab_file, config),
    ]
    (tmp_path / "written").mkdir()
    save.write_beside(str(tmp_path / "written"), save.description_files(files))
    readers.append(read_tokenizer(str(tmp_path / "written")))
    for tokenizer in readers:
        assert (tokenizer.cased, tokenizer.tokenize("The")) == (cased, ["The" if cased else "the"])
    assert caplog.text.count(f"{vocab_file}: no file says whether text is lower-cased") == 1
    assert FullTokenizer.from_pretrained(directory, do_lower_case=cased).cased is not cased


@pytest.mark.parametrize(("lowercase", "strips", "kept"), [(True, None, 0), (False, None, 1), (False, True, 0)])
def test_lower_casing_before_the_normalizer(tmp_path, lowercase, strips, kept):
    """As sentence-transformers 6.2 saves a model with do_lower_case, whatever tokenizer_config.json says."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cafe", "café", "Cafe"]
    rules = {"clean_text": True, "handle_chinese_chars": True, "lowercase": lowercase, "strip_accents": strips}
    bert = {"type": "BertNormalizer", **rules}
    write_json(tmp_path / "tokenizer.json", {
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, bert]},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": {piece: index for index, piece in enumerate(pieces)}},
    })  # fmt: skip
    write_json(tmp_path / "tokenizer_config.json", {"do_lower_case": lowercase, "tokenizer_class": "BertTokenizer"})
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    found = FullTokenizer.from_pretrained(str(tmp_path)).tokenize("Cafe CAFÉ")
    assert found == library.encode("Cafe CAFÉ").tokens == ["cafe", "café" if kept else "cafe"]


def test_vocabulary_of_a_tokenizer_json(tmp_path):
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"}

    def lines(vocab, new_id, **changes):
        values = {"model": {**model, "max_input_chars_per_word": 100, "vocab": vocab, **changes}}
        values["added_tokens"] = [{"id": new_id, "content": "new"}]
        return tokenizer_files.vocabulary_lines(str(write_json(tmp_path / "tokenizer.json", values)))

    less = {"[PAD]": 0, "[UNK]": 1, "b": 3}
    assert lines({**less, "a": 2}, 4) == ["[PAD]", "[UNK]", "a", "b"], "the new one is an added token"
    assert lines(less, 2) == ["[PAD]", "[UNK]", "new", "b"]
    with pytest.raises(ValueError, match="the ids of its 3 tokens are not 0 to 2"):
        lines(less, 7)
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer\.json with a WordPiece vocabulary"):
        lines(less, 2, type="BPE")


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


def directory_of(folder: pathlib.Path, form: str) -> str:
    family, vocab_size, files = FORMS[form]
    folder.mkdir()
    config_class = family_named(family).config_class
    (folder / config_class.file_name).write_text(config_class(vocab_size=vocab_size, **SIZES).to_json_string())
    for name, source in files.items():
        shutil.copy(source, folder / name) if source else save_albert_tokenizer(ALBERT, folder)
    return str(folder)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read_and_written(tmp_path, form):
    source = directory_of(tmp_path / "source", form)
    tokenizer = read_tokenizer(source)
    assert isinstance(tokenizer, CLASSES.get(form, object))
    known, texts = read_model_files(source), list(odd_texts(200, seed=2))
    assert_kept(tokenizer, tmp_path / "kept", texts, source)
    opened = open_for_script(None, ModelSettings(bert_config_file=known.config_file, vocab_file=known.vocab_file))
    again = opened.make_tokenizer(is_checked=True)
    assert type(again) is type(tokenizer) and again.files() == tokenizer.files()
    assert again.encode_batch(texts) == tokenizer.encode_batch(texts)
    written = json.loads(save.description_files(opened)["tokenizer_config.json"])
    family = family_named("bert" if form == "Chinese ALBERT" else FORMS[form][0])
    assert written["tokenizer_class"] == family.tokenizer_name

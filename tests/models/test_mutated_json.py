"""JSON files of models in which a value is of another kind: read, or refused in words that name the file."""

import copy
import itertools
import json
import shutil

import pytest
from helpers.paths import GOLDEN
from helpers.slow import slow

from bert_tf.models import directory, pretrained
from bert_tf.models.config import BertConfig
from bert_tf.models.sentence_settings import SentenceSettings, read_settings, settings_files

OTHERS = (None, -1, 0, 10**30, 1.5, True, "x", "/etc", "", [], [1], {}, {"a": 1})
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(chr, range(ord("a"), ord("z")))]
SIZES = {
    "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 30,
    "max_position_embeddings": 16, "type_vocab_size": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1, "initializer_range": 0.02,
}  # fmt: skip
LABELS = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "a", "1": "b"}}
PIECES = {"type": "BertNormalizer", "lowercase": True, "strip_accents": None, "clean_text": True}


def files_of(kind: str) -> dict:
    """Name -> content of a model's JSON files, and of its vocabulary."""
    vocab = {word: number for number, word in enumerate(WORDS)}
    if kind == "bert_tf":
        head = {"labels": ["a", "b"], "problem_type": "classification"}
        casing = {"do_lower_case": True, "strip_accents": None, "model_max_length": 16}
        return {
            "bert_config.json": SIZES,
            "head_config.json": head,
            "tokenizer_config.json": casing,
            "vocab.txt": WORDS,
        }
    if kind == "sentences":
        settings = SentenceSettings("", "mean", True, 16, True, True, {"query": "q: ", "doc": ""}, "query", False)
        files = {name: json.loads(content) for name, content in settings_files(settings, 8).items()}
        return {**files, "vocab.txt": WORDS}
    if kind == "huggingface":
        added = [{"id": 0, "content": "[PAD]", "special": True}]
        model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "vocab": vocab}
        tokenizer = {"added_tokens": added, "normalizer": PIECES, "pre_tokenizer": {"type": "BertPreTokenizer"}}
        config = {**SIZES, **LABELS, "model_type": "bert", "layer_norm_eps": 1e-12, "pad_token_id": 0}
        return {"config.json": config, "tokenizer.json": {**tokenizer, "model": model}}
    place = GOLDEN / "descendants" / "roberta"
    vocab = json.loads((place / "vocab.json").read_text(encoding="utf-8"))
    content = {name: json.loads((place / "classifier" / name).read_text()) for name in ("config.json",)}
    roles = {"cls_token": "<s>", "mask_token": {"content": "<mask>", "lstrip": True}}
    content |= {"added_tokens.json": {"<new>": len(vocab)}, "special_tokens_map.json": roles}
    content["config.json"]["vocab_size"] = len(vocab) + 1
    merges = (place / "merges.txt").read_text(encoding="utf-8").splitlines()
    return {**content, "vocab.json": vocab, "tokenizer_config.json": {"add_prefix_space": False}, "merges.txt": merges}


def places_in(value, depth=0):
    """The paths to all values; of a large object or list to the first ones."""
    yield ()
    if isinstance(value, dict | list) and depth < 4:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in itertools.islice(items, 20 if depth < 2 else 3):
            for place in places_in(inner, depth + 1):
                yield key, *place


def changed(value, place, new):
    if not place:
        return new
    value = copy.deepcopy(value)
    inner = value
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = new
    return value


def write(folder, content) -> None:
    for name, value in content.items():
        is_json = name.endswith(".json")
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(value) if is_json else "\n".join(value) + "\n", encoding="utf-8")


def read(folder) -> None:
    directory.read_model_files(str(folder))
    pretrained.read_tokenizer(str(folder)).encode("abc")
    settings = read_settings(str(folder))
    assert settings.directory.startswith(str(folder)) and settings.length_for(BertConfig(9)) in (None, 1, 16, 512)
    assert isinstance(settings.prompt(), str)


@pytest.mark.parametrize("kind", ["bert_tf", "huggingface", "roberta", "sentences"])
@pytest.mark.parametrize("part", [0, *slow(*range(1, 8))])
def test_a_value_of_another_kind(kind, part, tmp_path):
    """All combinations in eight parts."""
    content = files_of(kind)
    write(tmp_path, content)
    read(tmp_path)
    files = [name for name in content if name.endswith(".json")]
    cases = [(name, place, new) for name in files for place in places_in(content[name]) for new in OTHERS]
    refused = 0
    for name, place, new in cases[part::8]:
        (tmp_path / name).write_text(json.dumps(changed(content[name], place, new)))
        try:
            read(tmp_path)
        except (ValueError, FileNotFoundError) as error:
            refused += 1
            assert str(tmp_path) in str(error), (name, place, new)
        except Exception as error:
            raise AssertionError(f"{name}: {place} = {new!r}") from error
        finally:
            write(tmp_path, {name: content[name]})
    assert refused > len(cases) / 8 / 10
    shutil.rmtree(tmp_path)

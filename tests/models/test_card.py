"""The card of a model: what it says, what it leaves out, and whose README.md is replaced."""

import dataclasses
import json
import re

import pytest
import yaml
from helpers.basics import ROOT
from helpers.tiny import TINY_CONFIG

from bert_tf import BertConfig, BertForMaskedLM, BertForSequenceClassification, BertModel
from bert_tf.conversion import convert
from bert_tf.models import initialize
from bert_tf.store import card
from bert_tf.store.description import CardFacts, ModelFiles
from bert_tf.store.head_config import NO_HEAD, HeadConfig
from bert_tf.store.open import open_weights
from bert_tf.store.save import write_model
from bert_tf.store.tensor_files import Weights
from bert_tf.text.tokenizer_files import Casing

TINY = BertConfig.from_dict(TINY_CONFIG)
HEAD = HeadConfig("BertForSequenceClassification", ("up", "d|own `x`"), "single_label_classification")
SHAPES = {"bert/pooler/dense/kernel": (32, 32), "output_weights": (2, 32), "output_weights/adam_m": (2, 32)}
START = {
    "path": "models/my base: 1", "step": 1000, "checksum": "ab12", "license": {"license": "apache-2.0"},
    "license_file": "LICENSE", "base_model": "owner/base",
}  # fmt: skip
FACTS = CardFacts(
    START,
    data="16 examples, checksum 01ff",
    settings={"learning_rate": 2e-5, "labels": "up, dówn", "optimizer": "adamw"},
    results={"step": 24, "eval_accuracy": 0.8125, "eval_loss": 0.30000001},
    notes=("It is one of 5 seeds that were tried.",),
    usage='from bert_tf import Predictor\n\nPredictor("path/to/this/folder")("A text.")',
)


def card_text(head: HeadConfig, shapes: dict, facts: CardFacts, **files) -> str:
    weights = Weights("", "", shapes, {}, None)
    return card.card_of(weights, ModelFiles("", TINY, head=head, card=facts, **files))


def front_of(text: str) -> dict:
    return yaml.safe_load(text.split("---\n")[1])


def test_a_card_says_what_is_known():
    text = card_text(HEAD, SHAPES, FACTS, casing=Casing(True))
    front = {"license": "apache-2.0", "base_model": "owner/base", "pipeline_tag": "text-classification"}
    assert front_of(text) == front | {"library_name": "bert_tf", "tags": ["bert_tf", "bert"]}
    for line in (
        "# BERT: classification of texts", "layers: 2", "width: 32", "longest input: 32 tokens", "case: uncased",
        "parameters: 1,088", "0: up", "1: d|own `x`", "weights at the start: 'models/my base: 1'", "step: 1000",
        "checksum: ab12", "licence: apache-2.0", "licence file beside them: LICENSE",
        "training data: 16 examples, checksum 01ff", "It is one of 5 seeds that were tried.",
        "learning_rate: 2.0e-05", "labels: up, dówn", "optimizer: adamw", "after step: 24",
        "eval_accuracy: 0.8125", "eval_loss: 0.3", 'Predictor("path/to/this/folder")("A text.")',
        "python export_saved_model.py --model_dir=path/to/this/folder --export_dir=serving/model",
    ):  # fmt: skip
        assert f"\n{line}\n" in text, line


@pytest.mark.parametrize(("path", "shown"), [
    ("/home/ada/uncased_L-2/bert_model.ckpt", "uncased_L-2/bert_model.ckpt"),
    ("/home/ada/mrpc/best_model/", "mrpc/best_model"),
    ("gs://secret/runs/mrpc/best_model", "mrpc/best_model"),
    ("~/glue/MRPC", "MRPC"),
])  # fmt: skip
def test_a_card_does_not_say_where_its_owner_keeps_files(path, shown):
    settings = card.public({"data_dir": path, "train_file": f"{path},one.csv,{path}"})
    text = card_text(HEAD, SHAPES, CardFacts({"path": path}, settings=settings))
    assert f"weights at the start: {shown}\n" in text and f"data_dir: {shown}\n" in text
    assert f"train_file: {shown},one.csv,{shown}\n" in text


def test_what_is_not_known_is_left_out():
    text = card_text(NO_HEAD, {"bert/pooler/dense/kernel": (32, 32)}, CardFacts())
    front = {"library_name": "bert_tf", "pipeline_tag": "feature-extraction", "tags": ["bert_tf", "bert"]}
    assert front_of(text) == front
    assert "weights at the start: not recorded\nlicence: not known\ntraining data: not recorded\n" in text
    assert not any(part in text for part in ("## Labels", "## Training", "## Results", "case:", "None", "null"))
    assert 'model = BertModel.from_pretrained("path/to/this/folder")' in text
    assert "weights at the start: random\nlicence: not known\n" in card_text(NO_HEAD, {}, CardFacts({"path": None}))


@pytest.mark.parametrize(("head", "names", "is_served", "parts"), [
    (dataclasses.replace(HEAD, problem_type="regression", labels=None), ["output_weights"], True,
     ["pipeline_tag: text-classification", "a number for a text"]),
    (NO_HEAD, ["cls/squad/output_weights"], True, ["pipeline_tag: question-answering"]),
    (NO_HEAD, ["discriminator_predictions/dense/kernel"], False, ["ElectraDiscriminator.from_pretrained"]),
    (HeadConfig("BertForMultipleChoice"), ["output_weights"], False, ["pipeline_tag: multiple-choice"]),
])  # fmt: skip
def test_tasks(head, names, is_served, parts):
    text = card_text(head, dict.fromkeys(names, (2, 2)), CardFacts(is_served=is_served))
    assert all(part in text for part in parts) and ("export_saved_model.py" in text) == is_served


def test_a_text_of_unknown_content_stays_in_its_place():
    labels = ("a\n## Heading", "---", "x\n```\n", "<!-- x -->", "a: b")
    head = HeadConfig("BertForSequenceClassification", labels)
    start = {"path": "x\n---\ny: `z`", "license": {"license": "a: b\nc"}, "license_file": "README.md"}
    text = card_text(head, {"output_weights": (5, 2)}, CardFacts(start))
    assert front_of(text)["license"] == "a: b\nc"
    found = re.findall(r"^```yaml\n(.*?)^ {0,3}```$", text, re.DOTALL | re.MULTILINE)
    blocks = list(map(yaml.safe_load, found))
    assert blocks[1] == dict(enumerate(" ".join(label.split()) for label in labels)) and len(blocks) == 3
    assert blocks[2]["weights at the start"] == "x --- y: `z`" and "\n## Heading" not in text


MIT = "MIT\n\nPermission is hereby granted, free of charge, to any person obtaining\na copy of this software"


@pytest.mark.parametrize(("files", "expected"), [
    ({}, ({}, None)),
    ({"README.md": "---\nlicense: cc-by-4.0\n---\n# A"}, ({"license": "cc-by-4.0"}, "README.md")),
    ({"README.md": "---\r\nlicense: mit\r\n---\r\n"}, ({"license": "mit"}, "README.md")),
    ({"README.md": "---\nlicense: other\nlicense_name: mine\n---\n", "LICENSE": MIT},
     ({"license": "other", "license_name": "mine"}, "README.md")),
    ({"README.md": "# license: mit\n", "LICENSE.txt": MIT}, ({"license": "mit"}, "LICENSE.txt")),
    ({"README.md": "---\nlicense: [a\n---\n", "LICENSE": MIT}, ({"license": "mit"}, "LICENSE")),
    ({"README.md": "---\nlicense: 5\n---\n"}, ({}, None)),
    ({"README.md": b"\xff---\nlicense: mit\n---\n"}, ({}, None)),
    ({"LICENSE": (ROOT / "LICENSE").read_text()}, ({"license": "apache-2.0"}, "LICENSE")),
    ({"LICENSE": "Ask me."}, ({}, "LICENSE")),
])  # fmt: skip
def test_licences_beside_the_weights(tmp_path, files, expected):
    save(tmp_path / "model")
    (tmp_path / "model" / "README.md").unlink()
    for name, content in files.items():
        (tmp_path / "model" / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    found = beginning(tmp_path / "model")
    assert (found["license"], found["license_file"]) == expected
    text = card_text(NO_HEAD, {}, CardFacts(found))
    if files.get("LICENSE") == "Ask me.":
        assert "licence: not known\nlicence file beside them: LICENSE\n" in text
    assert {name: value for name, value in front_of(text).items() if "license" in name} == expected[0]
    assert json.loads(json.dumps(found)) == found  # run.json keeps it


def save(folder, model_class=BertModel, **arguments):
    model = model_class(TINY)
    model.build()
    model.save_pretrained(str(folder), **arguments)
    return model


def beginning(folder, **arguments):
    return card.beginning_of(str(folder), open_weights(str(folder)), **arguments)


def test_the_name_on_the_hub_is_that_of_its_cache_or_of_an_earlier_card(tmp_path):
    folder = tmp_path / "models--owner--base.1" / "snapshots" / ("0a" * 20)
    save(folder)
    (folder / "README.md").write_text("---\nbase_model: owner/its-own\nlicense: mit\n---\n")
    found = beginning(folder)
    assert (found["base_model"], found["license"], len(found["checksum"])) == ("owner/base.1", {"license": "mit"}, 8)
    BertForMaskedLM.from_pretrained(str(folder)).save_pretrained(str(tmp_path / "tuned"))
    text = (tmp_path / "tuned" / "README.md").read_text()
    assert front_of(text)["base_model"] == "owner/base.1" and front_of(text)["license"] == "mit"
    assert f"weights at the start: owner/base.1@{'0a' * 20}\n" in text
    assert beginning(tmp_path / "tuned")["base_model"] == "owner/base.1"
    (tmp_path / "tuned" / "README.md").write_text("---\nbase_model: owner/x\n---\n")  # of which model, is not known
    assert beginning(tmp_path / "tuned", with_checksum=False)["base_model"] is None


def test_a_users_readme_stays_and_ours_is_replaced(tmp_path):
    readme = tmp_path / "model" / "README.md"
    readme.parent.mkdir()
    readme.write_text("mine")
    model = save(readme.parent)
    assert readme.read_text() == "mine"
    readme.unlink()
    model.save_pretrained(str(readme.parent), overwrite=True)
    ours = readme.read_text()
    assert "# BERT: vectors of tokens and texts" in ours
    save(readme.parent, BertForSequenceClassification, overwrite=True)
    assert "# BERT: classification of texts" in readme.read_text()
    edited = "".join(line for line in ours.splitlines(True) if "bert_tf wrote this file" not in line)
    readme.write_text(edited)
    save(readme.parent, overwrite=True)
    assert readme.read_text() == edited


def test_a_conversion_carries_our_card_over(tmp_path):
    weights = initialize.model_weights(save(tmp_path / "base"))
    write_model(str(tmp_path / "ours"), weights, ModelFiles("", TINY, card=FACTS), format="bert_tf")

    def converted(source: str, target: str, format: str, **options) -> str:
        convert.convert(str(tmp_path / source), str(tmp_path / target), format, **options)
        return (tmp_path / target / "README.md").read_text()

    before = (tmp_path / "ours" / "README.md").read_text()
    opened = f'from transformers import pipeline\n\npipeline("feature-extraction", "{card.PLACE}")'
    use = f"\n## How transformers opens it\n```python\n{opened}\n```\n"
    theirs = before.replace("library_name: bert_tf", "library_name: transformers") + use
    assert converted("ours", "hf", "huggingface") == theirs and converted("hf", "back", "bert_tf") == before
    changed = converted("back", "long", "bert_tf", hidden_act="relu")
    assert changed.startswith(before) and "The configuration was changed: hidden_act = relu." in changed
    # Without a card of ours there is a new one, which names the source.
    (tmp_path / "ours" / "README.md").write_text("---\nlicense: mit\n---\n")
    new = converted("ours", "new", "tf1")
    assert f"weights at the start: ours\nchecksum: {weights.checksum}\n" in new.replace("'", "")
    assert front_of(new)["license"] == "mit"

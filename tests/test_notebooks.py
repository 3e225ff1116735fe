"""Runs the notebooks from top to bottom with small settings, each in a separate process without network access.

Downloads are replaced by local files through the parameters in the cell tagged "parameters"; a cell with other values
is inserted after it, as papermill does. Lines that begin with % or ! are left out, since there is no Jupyter.
"""

import ast
import io
import itertools
import json
import os
import pathlib
import random
import subprocess
import sys
import tarfile
import zipfile

import numpy as np
import pytest
from helpers.basics import PAGES, ROOT
from helpers.tiny import save_model

import bert_tf

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

# Reads cells and expressions; runs the cells in one namespace; writes the values of the expressions.
_PROGRAM = """
import faulthandler, json, socket, sys

faulthandler.dump_traceback_later(1200, exit=True)  # shows where, if one hangs

def refuse(self, address, *rest):
    raise OSError(f"a notebook under test reached for {address}")

socket.socket.connect = socket.socket.connect_ex = refuse
cells, expressions = json.load(sys.stdin)
namespace = {"__name__": "__main__"}
for number, source in cells:
    exec(compile(source, f"cell {number}", "exec"), namespace)
values = {name: eval(expression, namespace) for name, expression in expressions.items()}
print("RESULTS" + json.dumps(values, default=float))
"""


def run_notebook(name: str, folder: pathlib.Path, parameters: dict, expressions: dict[str, str]) -> tuple[dict, str]:
    """Runs a notebook's code in `folder`; returns the expressions' values at the end, and what was printed."""
    program, text = [], (ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8")
    for number, cell in enumerate(json.loads(text)["cells"]):
        if cell["cell_type"] != "code":
            continue
        source = "".join(line for line in cell["source"] if not line.startswith(("%", "!")))
        program.append((number, source))
        if "parameters" in cell["metadata"].get("tags", ()):
            unknown = [key for key in parameters if key not in source]
            assert not unknown, f"{name} has no parameter {unknown}"
            program.append((number, "".join(f"{key} = {value!r}\n" for key, value in parameters.items())))
    own = {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg", "TF_CPP_MIN_LOG_LEVEL": "2"}
    own["KERAS_HOME"] = str(folder / "keras")  # the download cache of get_file
    given = {"input": json.dumps((program, expressions)), "capture_output": True, "text": True, "cwd": folder}
    result = subprocess.run([sys.executable, "-c", _PROGRAM], **given, env={**os.environ, **own})
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-3000:]
    printed, values = result.stdout.rsplit("RESULTS", 1)
    return json.loads(values), printed


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_form(path):
    nbformat = pytest.importorskip("nbformat", reason="nbformat comes with tf-models-official")
    text = path.read_text(encoding="utf-8")
    nbformat.validate(nbformat.reads(text, as_version=4))
    first, *cells = json.loads(text)["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    for cell in code:
        assert cell["outputs"] == [] and cell["execution_count"] is None, f"{path.name}: clear all outputs"
    assert first["cell_type"] == "markdown" and first["source"][0].startswith("# ")
    assert code[0]["source"][-1] == "%pip install -q {SOURCE}[plots,pretraining]"
    assert [cell["metadata"].get("tags") for cell in code].count(["parameters"]) == 1
    assert len(text) < 20_000 and f"`{path.name}`" in PAGES["notebooks"]
    lines = [line.rstrip() for cell in code for line in cell["source"] if not line.startswith(("%", "!"))]
    imports = [node for node in ast.walk(ast.parse("\n".join(lines))) if isinstance(node, ast.ImportFrom)]
    assert any(node.module.startswith("bert_tf") for node in imports)
    assert ("from demo import" in text) == ("sys.path += [SOURCE" in text)  # pip installs bert_tf alone
    for node in imports:
        exec(ast.unparse(node), {})


_PLACES = {"lighthouse": "sea", "farm": "cows", "school": "children", "mill": "flour", "forest": "trees"}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """pretrain_on_your_text.ipynb on small text: its folder, values and prints."""
    folder = tmp_path_factory.mktemp("pretraining")
    draw, documents = random.Random(0), []
    for _ in range(300):
        place, years = draw.choice(list(_PLACES)), draw.sample(range(1800, 1900), 3)
        sentences = [f"In {year} the {place} of the town was known for its {_PLACES[place]}." for year in years]
        documents.append("\n".join([*sentences, f"Nobody who saw the {place} forgot the {_PLACES[place]}."]))
    (folder / "tales.txt").write_text("\n\n".join(documents) + "\n")
    sizes = {"VOCAB_SIZE": 300, "HIDDEN_SIZE": 64, "NUM_LAYERS": 2, "NUM_STEPS": 300, "MEGABYTES": 1}
    expressions = {name: name for name in ("history", "questions", "all_guesses")} | {
        "vocab_size": "len(vocabulary)",
        "known": 'fill_mask(model, tokenizer, ["In 1850 the mill of the [MASK] was known for its flour."])',
    }
    given = {"TEXT": "tales.txt", "FOLDER": "out", **sizes}
    return folder / "out", *run_notebook("pretrain_on_your_text", folder, given, expressions)


@pytest.mark.slow
def test_pretrain_on_your_text(pretrained):
    folder, values, printed = pretrained
    losses = values["history"]["val_masked_lm_loss"]
    assert len(losses) == 20 and values["history"]["masked_lm_loss"][0] > 0.75 * np.log(values["vocab_size"])
    assert losses[-1] < 0.6 * losses[0]
    assert values["known"][0][0][0][0] == "town" and len(values["questions"]) == 10
    for (text, word), ((best, *_),) in zip(values["questions"], values["all_guesses"], strict=True):
        assert text.count("[MASK]") == 1 and f"was {word}; guesses: {best[0]}" in printed
    assert {"vocab.txt", "train.tfrecord", "heldout.tfrecord", "model"} <= set(os.listdir(folder))


@pytest.mark.slow
def test_look_inside(pretrained, tmp_path):
    text = "In 1850 the {} of the {} was known {} its {}."
    masked = [text.format("farm", "[MASK]", "for", "cows"), text.format("school", "town", "[MASK]", "children")]
    given = {"MODEL_DIR": str(pretrained[0] / "model"), "TEXT": text.format("farm", "town", "for", "cows"), "LAYER": 1}
    expressions = {"shape": "attention.shape", "tokens": "tokens", "probabilities": "probabilities.tolist()"}
    expressions["guesses"] = "[mask[0][0] for text in guesses for mask in text]"
    expressions["bars"] = "[bar.get_height() for bar in axes.patches]"
    values, _ = run_notebook("look_inside", tmp_path, {**given, "MASKED": masked}, expressions)
    assert values["shape"] == [2, 2, *[len(values["tokens"])] * 2] and values["guesses"] == ["town", "for"]
    # Words that are in every such sentence surprise less than the last digit of the year.
    pieces, sureness = values["tokens"][1:-1], values["probabilities"]
    assert sureness[pieces.index("known")] > 0.5 > 0.4 > sureness[pieces.index("the") - 1]
    assert values["bars"] == values["probabilities"]


@pytest.mark.slow
def test_find_similar_sentences(tmp_path):
    save_model(tmp_path / "model", "bert", bert_tf.BertForPreTraining)
    places = [f"In {1800 + number} the {place} of the town was known." for number, place in enumerate(_PLACES)]
    text = [*places, "Nobody who saw it forgot it again.", "nobody who saw it FORGOT it again.", "Too short."]
    (tmp_path / "tales.txt").write_text("\n".join(text) + "\n")
    given = {"TEXT": "tales.txt", "MODEL_DIR": "model", "QUESTIONS": places[:2], "NUM_NEIGHBORS": 2}
    expressions = {"sentences": "sentences", "lengths": "(vectors**2).sum(-1).tolist()"}
    values, printed = run_notebook("find_similar_sentences", tmp_path, given, expressions)
    assert sorted(values["sentences"]) == sorted(text[:-1]) and np.allclose(values["lengths"], 1, atol=1e-5)
    for place in places[:2]:
        assert f"{place}\n    1.00  {place}\n" in printed
    assert "1.000  Nobody who saw it forgot it again." in printed or "1.000  nobody who saw it FORGOT" in printed


@pytest.mark.slow
def test_train_on_your_domain(tmp_path):
    save_model(tmp_path / "model", "bert", bert_tf.BertForPreTraining)
    tales = (f"The {place} stood in zorbland. In {year} it fell." for year in range(80) for place in _PLACES)
    (tmp_path / "tales.jsonl").write_text("".join(json.dumps({"text": tale}) + "\n" for tale in tales))
    given = {"TEXT": "tales.jsonl", "MODEL_DIR": "model", "MASKED": ["The farm stood in [MASK]."]}
    sizes = {"NEW_WORDS": 1, "NUM_STEPS": 30, "MAX_SEQ_LENGTH": 32}
    expressions = {"words": "[new['word'] for new in found['new_words']]", "losses": "found['losses']['heldout']"}
    values, printed = run_notebook("train_on_your_domain", tmp_path, given | sizes, expressions)
    assert values["words"] == ["zorbland"]
    assert values["losses"]["after"]["masked_lm_loss"] < values["losses"]["before"]["masked_lm_loss"]
    assert "## New words" in printed and "    after: " in printed
    assert (tmp_path / "domain" / "domain.md").exists()


@pytest.mark.slow
def test_ask_questions(tmp_path):
    save_model(tmp_path / "model", "bert", bert_tf.BertForQuestionAnswering, format="huggingface")
    context = "It is known that the house was sold by Ada in 1840. The house was new. Ben had seen it."
    given = {"MODEL_URL": (tmp_path / "model").as_uri(), "CONTEXT": context, "QUESTIONS": ["Who?", "When?"]}
    expressions = {"first": "answer", "answers": "answers", "long": "found", "text": "long_text"}
    values, printed = run_notebook("ask_questions", tmp_path, given, expressions)
    for text, answer in ((context, values["first"]), (values["text"], values["long"])):
        assert text[answer["start"] : answer["end"]] == answer["answer"] != ""
    assert len(values["answers"]) == 2 and values["answers"][0]["answer"] == values["first"]["answer"]
    assert f">>{values['first']['answer']}<<" in printed and len(values["text"]) > 2000


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    """classify_reviews.ipynb on small reviews and a model packed like the released ones: folder, values and prints."""
    folder = tmp_path_factory.mktemp("reviews")
    archive, model = folder / "reviews.tar.gz", folder / "small_model.zip"
    # In the layout of aclImdb_v1.tar.gz, with words that determine the label.
    draw = random.Random(0)
    words = {"pos": ["great", "lovely", "moving", "brilliant"], "neg": ["dull", "awful", "boring", "terrible"]}
    with tarfile.open(archive, "w:gz") as packed:
        for part, kind, number in itertools.product(("train", "test"), ("neg", "pos", "unsup"), range(200)):
            word, thing = draw.choice(words.get(kind, ["odd"])), draw.choice(["film", "plot", "cast"])
            content = f"The {thing} was {word}.<br /><br />Seen {number} times.".encode()
            entry = tarfile.TarInfo(f"aclImdb/{part}/{kind}/{number}_7.txt")
            entry.size = len(content)
            packed.addfile(entry, io.BytesIO(content))
    save_model(folder / "unpacked", "bert", bert_tf.BertForPreTraining, format="tf1")
    with zipfile.ZipFile(model, "w") as packed:
        for file in (folder / "unpacked").iterdir():
            packed.write(file, file.name)
    given = {"REVIEWS_URL": archive.as_uri(), "MODEL_URL": model.as_uri(), "NUM_TRAIN": 300, "NUM_TEST": 100}
    sizes = {"MAX_SEQ_LENGTH": 24, "NUM_EPOCHS": 4, "LEARNING_RATE": 2e-3}
    expressions = {"accuracy": "accuracy", "history": "history", "text": "train_examples[0].text_a"}
    expressions["kind"] = "predictor('The cast was great. Seen 5 times.')"
    return folder, *run_notebook("classify_reviews", folder, given | sizes, expressions)


@pytest.mark.slow
def test_classify_reviews(reviews):
    folder, values, printed = reviews
    assert values["accuracy"] > 0.9 and values["history"]["loss"][-1] < 0.5 * values["history"]["loss"][0]
    assert values["kind"]["label"] == "positive" and values["kind"]["probabilities"]["positive"] > 0.8
    assert "<br" not in values["text"] and "Seen" in values["text"]
    assert "Classes: ('negative', 'positive')" in printed
    header, *rows = (folder / "train.csv").read_text().splitlines()
    assert header == "text,label" and len(rows) == 300
    assert not any("odd" in row for row in rows)  # unlabelled ones are left out


@pytest.mark.slow
def test_export_and_serve(reviews, tmp_path):
    folder, _, _ = reviews
    texts = ["The cast was great.", "The plot was awful.", ""]
    given = {"MODEL_DIR": str(folder / "reviews_model"), "EXPORT_DIR": "serving", "TEXTS": texts, "MAX_SEQ_LENGTH": 24}
    expressions = {"labels": "labels", "difference": "difference", "signatures": "sorted(loaded.signatures)"}
    expressions |= {
        "answers": "[label.decode() for label in answers['label'].numpy()]",
        "request": "json.loads(request)",
    }
    values, printed = run_notebook("export_and_serve", tmp_path, given, expressions)
    assert {"serving_default", "serve_ids", "serve_examples"} <= set(values["signatures"])
    assert values["answers"][:2] == ["positive", "negative"]
    assert values["labels"] == values["answers"]  # from a process without this project
    assert values["difference"] < 1e-4
    assert values["request"] == {"signature_name": "serving_default", "inputs": {"text": texts}}
    assert (tmp_path / "serving" / "1" / "saved_model.pb").exists() and "tensorflow/serving" in printed

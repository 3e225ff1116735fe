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
from helpers.paths import GOLDEN, ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NAMES = {
    "ask_questions", "classify_reviews", "export_and_serve", "find_similar_sentences", "look_inside",
    "pretrain_on_your_text", "train_on_your_domain",
}  # fmt: skip

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


def cells_of(name: str) -> list[dict]:
    return json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]


def run_notebook(name: str, folder: pathlib.Path, parameters: dict, expressions: dict[str, str]) -> tuple[dict, str]:
    """Runs a notebook's code in `folder`.

    Args:
      parameters: values that replace the notebook's. expressions: by name, evaluated at the end.

    Returns:
      The values of the expressions, and what was printed.
    """
    program = []
    for number, cell in enumerate(cells_of(name)):
        if cell["cell_type"] != "code":
            continue
        source = "".join(line for line in cell["source"] if not line.startswith(("%", "!")))
        program.append((number, source))
        if "parameters" in cell["metadata"].get("tags", ()):
            unknown = [key for key in parameters if key not in source]
            assert not unknown, f"{name} has no parameter {unknown}"
            program.append((number, "".join(f"{key} = {value!r}\n" for key, value in parameters.items())))
    result = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input=json.dumps((program, expressions)),
        capture_output=True,
        text=True,
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "MPLBACKEND": "Agg",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "KERAS_HOME": str(folder / "keras"),  # the download cache of get_file
        },
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-3000:]
    printed, values = result.stdout.rsplit("RESULTS", 1)
    return json.loads(values), printed


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_form(path):
    """Notebooks have no outputs, are valid, install the project first, and have parameters that can be set."""
    nbformat = pytest.importorskip("nbformat", reason="nbformat comes with tf-models-official")
    text = path.read_text(encoding="utf-8")
    nbformat.validate(nbformat.reads(text, as_version=4))
    cells = json.loads(text)["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    for cell in code:
        assert cell["outputs"] == [] and cell["execution_count"] is None, f"{path.name}: clear all outputs"
    assert cells[0]["cell_type"] == "markdown" and cells[0]["source"][0].startswith("# ")
    assert code[0]["source"][-1] == "%pip install -q {SOURCE}[plots,pretraining]"
    assert [cell["metadata"].get("tags") for cell in code].count(["parameters"]) == 1
    assert len(text) < 20_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_imports(path):
    """A quick form of running a notebook: all names that it imports still exist."""
    code = [cell["source"] for cell in cells_of(path.stem) if cell["cell_type"] == "code"]
    lines = [line.rstrip() for source in code for line in source if not line.startswith(("%", "!"))]
    imports = [node for node in ast.walk(ast.parse("\n".join(lines))) if isinstance(node, ast.ImportFrom)]
    assert any(node.module.startswith("bert_tf") for node in imports)
    for node in imports:
        exec(ast.unparse(node), {})


def test_all_notebooks_are_known():
    assert {path.stem for path in NOTEBOOKS} == NAMES


def test_a_notebook_can_not_reach_the_network(tmp_path):
    program = [(1, "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:9/')")]
    result = subprocess.run(
        [sys.executable, "-c", _PROGRAM], input=json.dumps((program, {})), capture_output=True, text=True
    )
    assert result.returncode == 1
    assert "a notebook under test reached for ('127.0.0.1', 9)" in result.stderr
    assert 'File "cell 1", line 2' in result.stderr


# ---- pre-training, and what the model does inside --------------------------------------------------------------------

_PLACES = {"lighthouse": "sea", "farm": "cows", "school": "children", "mill": "flour", "forest": "trees"}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """pretrain_on_your_text.ipynb on small text: its folder, values and prints."""
    folder = tmp_path_factory.mktemp("pretraining")
    draw = random.Random(0)
    documents = []
    for _ in range(300):
        place = draw.choice(list(_PLACES))
        years = draw.sample(range(1800, 1900), 3)
        sentences = [f"In {year} the {place} of the town was known for its {_PLACES[place]}." for year in years]
        documents.append("\n".join([*sentences, f"Nobody who saw the {place} forgot the {_PLACES[place]}."]))
    (folder / "tales.txt").write_text("\n\n".join(documents) + "\n")
    sizes = {"VOCAB_SIZE": 300, "HIDDEN_SIZE": 64, "NUM_LAYERS": 2, "NUM_STEPS": 300, "MEGABYTES": 1}
    values, printed = run_notebook(
        "pretrain_on_your_text",
        folder,
        {"TEXT": "tales.txt", "FOLDER": "out", **sizes},
        {
            "history": "history",
            "vocab_size": "len(vocabulary)",
            "lines": "[len(axes.lines) for axes in panels]",
            "questions": "questions",
            "guesses": "all_guesses",
            "known": 'fill_mask(model, tokenizer, ["In 1850 the mill of the [MASK] was known for its flour."])',
        },
    )
    return folder / "out", values, printed


@pytest.mark.slow
def test_pretrain_on_your_text(pretrained):
    folder, values, printed = pretrained
    losses = values["history"]["val_masked_lm_loss"]
    assert len(losses) == 20
    assert values["history"]["masked_lm_loss"][0] > 0.75 * np.log(values["vocab_size"])
    assert losses[-1] < 0.6 * losses[0]
    assert values["lines"] == [2, 2]
    assert values["known"][0][0][0][0] == "town"
    assert len(values["questions"]) == 10
    for (text, word), ((best, *_),) in zip(values["questions"], values["guesses"], strict=True):
        assert text.count("[MASK]") == 1 and f"was {word}; guesses: {best[0]}" in printed
    assert {"vocab.txt", "train.tfrecord", "heldout.tfrecord", "model"} <= set(os.listdir(folder))


@pytest.mark.slow
def test_look_inside(pretrained, tmp_path):
    folder, _, _ = pretrained
    values, _ = run_notebook(
        "look_inside",
        tmp_path,
        {
            "MODEL_DIR": str(folder / "model"),
            "TEXT": "In 1850 the farm of the town was known for its cows.",
            "MASKED": [
                "In 1850 the farm of the [MASK] was known for its cows.",
                "In 1850 the school of the town was known [MASK] its children.",
            ],
            "LAYER": 1,
        },
        {
            "shape": "attention.shape",
            "sums": "[float(attention.sum(-1).min()), float(attention.sum(-1).max())]",
            "habits": "{name: share.tolist() for name, share in habits.items()}",
            "guesses": "[mask[0][0] for text in guesses for mask in text]",
            "tokens": "tokens",
            "probabilities": "probabilities.tolist()",
            "bars": "[bar.get_height() for bar in axes.patches]",
        },
    )
    length = len(values["tokens"])
    assert values["shape"] == [2, 2, length, length]
    assert np.allclose(values["sums"], 1, atol=1e-5)
    habits = np.array(list(values["habits"].values()))
    assert habits.shape == (5, 2, 2) and (habits >= 0).all()
    assert values["guesses"] == ["town", "for"]
    # Words that are in every such sentence surprise less than the last digit of the year.
    pieces, sureness = values["tokens"][1:-1], values["probabilities"]
    assert sureness[pieces.index("known")] > 0.5 > 0.4 > sureness[pieces.index("the") - 1]
    assert values["bars"] == values["probabilities"]


# ---- a small random model: vectors of sentences, a domain, classification --------------------------------------------

SIZES = {"vocab_size": 30522, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128}


def write_small_model(folder: pathlib.Path, **form) -> None:
    """A BERT of one layer with the heads of pre-training."""
    import keras

    from bert_tf import BertConfig, BertForPreTraining

    keras.utils.set_random_seed(1)
    model = BertForPreTraining(BertConfig(**SIZES, num_hidden_layers=1), seed=1)
    model.build()
    model.save_pretrained(str(folder), vocab_file=str(GOLDEN / "vocab.txt"), do_lower_case=True, **form)


@pytest.mark.slow
def test_find_similar_sentences(tmp_path):
    write_small_model(tmp_path / "model")
    places = [f"In {1800 + number} the {place} of the town was known." for number, place in enumerate(_PLACES)]
    text = [*places, "Nobody who saw it forgot it again.", "nobody who saw it FORGOT it again.", "Too short."]
    (tmp_path / "tales.txt").write_text("\n".join(text) + "\n")
    values, printed = run_notebook(
        "find_similar_sentences",
        tmp_path,
        {"TEXT": "tales.txt", "MODEL_DIR": "model", "QUESTIONS": places[:2], "NUM_NEIGHBORS": 2},
        {"sentences": "sentences", "lengths": "(vectors**2).sum(-1).tolist()", "printed": "len(pairs)"},
    )
    assert sorted(values["sentences"]) == sorted(text[:-1]) and np.allclose(values["lengths"], 1, atol=1e-5)
    for place in places[:2]:
        assert f"{place}\n    1.00  {place}\n" in printed
    assert "1.000  Nobody who saw it forgot it again." in printed or "1.000  nobody who saw it FORGOT" in printed


@pytest.mark.slow
def test_train_on_your_domain(tmp_path):
    write_small_model(tmp_path / "model")
    tales = (f"The {place} stood in zorbland. In {year} it fell." for year in range(80) for place in _PLACES)
    (tmp_path / "tales.jsonl").write_text("".join(json.dumps({"text": tale}) + "\n" for tale in tales))
    values, printed = run_notebook(
        "train_on_your_domain",
        tmp_path,
        {
            "TEXT": "tales.jsonl",
            "MODEL_DIR": "model",
            "NEW_WORDS": 1,
            "NUM_STEPS": 30,
            "MAX_SEQ_LENGTH": 32,
            "MASKED": ["The farm stood in [MASK]."],
        },
        {"words": "[new['word'] for new in found['new_words']]", "losses": "found['losses']['heldout']"},
    )
    assert values["words"] == ["zorbland"]
    assert values["losses"]["after"]["masked_lm_loss"] < values["losses"]["before"]["masked_lm_loss"]
    assert "## What lies where" in printed and "    after: " in printed
    assert (tmp_path / "domain" / "domain.png").exists()


def write_archive(path: pathlib.Path) -> None:
    """Reviews in the layout of aclImdb_v1.tar.gz, with words that determine the label."""
    draw = random.Random(0)
    words = {"pos": ["great", "lovely", "moving", "brilliant"], "neg": ["dull", "awful", "boring", "terrible"]}
    with tarfile.open(path, "w:gz") as archive:
        for part, kind, number in itertools.product(("train", "test"), ("neg", "pos", "unsup"), range(200)):
            word = draw.choice(words.get(kind, ["odd"]))
            content = (
                f"The {draw.choice(['film', 'plot', 'cast'])} was {word}.<br /><br />Seen {number} times.".encode()
            )
            entry = tarfile.TarInfo(f"aclImdb/{part}/{kind}/{number}_7.txt")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def write_model_zip(path: pathlib.Path) -> None:
    """Packed like the released models."""
    folder = path.parent / "unpacked"
    write_small_model(folder, format="tf1")
    with zipfile.ZipFile(path, "w") as archive:
        for file in folder.iterdir():
            archive.write(file, file.name)


_CLASSIFIER_VALUES = {
    "accuracy": "accuracy",
    "history": "history",
    "kind": "predictor('The cast was great. Seen 5 times.')",
    "text": "train_examples[0].text_a",
    "matrix": "[int(text.get_text()) for text in plot_confusion_matrix("
    "test_labels, numbers, list(task.labels)).axes[0].texts]",
}


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    """classify_reviews.ipynb on small reviews: its folder, values and prints."""
    folder = tmp_path_factory.mktemp("reviews")
    archive, model = folder / "reviews.tar.gz", folder / "small_model.zip"
    write_archive(archive)
    write_model_zip(model)
    values, printed = run_notebook(
        "classify_reviews",
        folder,
        {
            "REVIEWS_URL": archive.as_uri(),
            "MODEL_URL": model.as_uri(),
            "NUM_TRAIN": 300,
            "NUM_TEST": 100,
            "MAX_SEQ_LENGTH": 24,
            "NUM_EPOCHS": 4,
            "LEARNING_RATE": 2e-3,
        },
        _CLASSIFIER_VALUES,
    )
    return folder, values, printed


@pytest.mark.slow
def test_classify_reviews(reviews):
    folder, values, printed = reviews
    assert values["accuracy"] > 0.9
    assert values["history"]["loss"][-1] < 0.5 * values["history"]["loss"][0]
    assert values["kind"]["label"] == "positive" and values["kind"]["probabilities"]["positive"] > 0.8
    assert "<br" not in values["text"] and "Seen" in values["text"]
    matrix = np.array(values["matrix"]).reshape(2, 2)
    assert matrix.sum() == 100 and matrix.trace() == round(100 * values["accuracy"])
    assert "Classes: ('negative', 'positive')" in printed
    header, *rows = (folder / "train.csv").read_text().splitlines()
    assert header == "text,label" and len(rows) == 300
    assert not any("odd" in row for row in rows)  # unlabelled ones are left out


@pytest.mark.slow
def test_export_and_serve(reviews, tmp_path):
    folder, _, _ = reviews
    texts = ["The cast was great.", "The plot was awful.", ""]
    values, printed = run_notebook(
        "export_and_serve",
        tmp_path,
        {"MODEL_DIR": str(folder / "reviews_model"), "EXPORT_DIR": "serving", "TEXTS": texts, "MAX_SEQ_LENGTH": 24},
        {
            "signatures": "sorted(loaded.signatures)",
            "answers": "[label.decode() for label in answers['label'].numpy()]",
            "labels": "labels",
            "difference": "difference",
            "request": "json.loads(request)",
        },
    )
    assert {"serving_default", "serve_ids", "serve_examples"} <= set(values["signatures"])
    assert values["answers"][:2] == ["positive", "negative"]
    assert values["labels"] == values["answers"]  # from a process without this project
    assert values["difference"] < 1e-4
    assert values["request"] == {"signature_name": "serving_default", "inputs": {"text": texts}}
    assert (tmp_path / "serving" / "1" / "saved_model.pb").exists()
    assert "tensorflow/serving" in printed


@pytest.mark.slow
def test_classify_sentences_of_a_csv_of_ones_own(shared, tmp_path):
    """Real sentences (SST-2) and real weights."""
    import csv

    for name, part, count in (("train", "train", 800), ("test", "dev", 300)):
        lines = (shared / "data" / "glue" / "SST-2" / f"{part}.tsv").read_text().splitlines()[1 : count + 1]
        with open(tmp_path / f"own_{name}.csv", "w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *(line.split("\t") for line in lines)])
    values, _ = run_notebook(
        "classify_reviews",
        tmp_path,
        {
            "TRAIN_CSV": "own_train.csv",
            "TEST_CSV": "own_test.csv",
            "MODEL_DIR": str(shared / "weights" / "minilm-l6-h384"),
            "MAX_SEQ_LENGTH": 32,
            "NUM_EPOCHS": 2,
        },
        {"accuracy": "accuracy", "labels": "task.labels"},
    )
    assert values["labels"] == ["0", "1"]
    assert values["accuracy"] > 0.7


# ---- questions and answers -------------------------------------------------------------------------------------------

_PEOPLE = ["Ada", "Ben", "Carl", "Dora", "Emma", "Fred", "George", "Henry", "Irene", "James", "Kate", "Laura", "Mary"]
_THINGS = ["house", "boat", "horse", "garden", "school", "farm", "bridge", "ship", "clock", "book", "piano", "tower"]


def sale(draw) -> tuple[str, list[tuple[str, str]]]:
    """A text, and questions with their answers."""
    thing, (seller, place), year = draw.choice(_THINGS), draw.sample(_PEOPLE, 2), draw.randrange(1700, 2000)
    text = f"It is known that the {thing} was sold by {seller} in {year}. The {thing} was new. {place} had seen it."
    return text, [(f"Who sold the {thing}?", seller), (f"When was the {thing} sold?", str(year))]


@pytest.fixture(scope="module")
def question_model(tmp_path_factory):
    """A tiny model trained on sales, in Hugging Face's form."""
    import keras

    from bert_tf import BertConfig, BertForQuestionAnswering, FullTokenizer, create_optimizer
    from bert_tf.tasks.squad import data as squad_data
    from bert_tf.tasks.squad import windows as squad_windows

    folder = tmp_path_factory.mktemp("questions")
    draw = random.Random(0)
    paragraphs, count = [], itertools.count()
    for _ in range(400):
        context, questions = sale(draw)
        qas = [
            {"id": str(next(count)), "question": q, "answers": [{"text": a, "answer_start": context.index(a)}]}
            for q, a in questions
        ]
        paragraphs.append({"context": context, "qas": qas})
    (folder / "train.json").write_text(json.dumps({"data": [{"title": "Sales", "paragraphs": paragraphs}]}))
    vocab_file = GOLDEN / "vocab.txt"
    tokenizer = FullTokenizer(str(vocab_file))
    data = squad_data.read_squad_examples([str(folder / "train.json")], True)
    settings = squad_windows.WindowSettings(max_seq_length=48, doc_stride=16, max_query_length=12)
    windows = squad_windows.build_windows(data.examples, tokenizer, settings, True, num_processes=1)
    keras.utils.set_random_seed(1)
    plain = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(**SIZES, num_hidden_layers=2, max_position_embeddings=48, type_vocab_size=2, **plain)
    model = BertForQuestionAnswering(config, seed=1)
    model.compile(optimizer=create_optimizer("adamw", 2e-3, 200, 20))
    model.fit(windows.batch(range(len(windows)), 48), batch_size=32, epochs=8, verbose=0)
    target = folder / "model"
    model.save_pretrained(str(target), format="huggingface", vocab_file=str(vocab_file), do_lower_case=True)
    return target


@pytest.mark.slow
def test_ask_questions(question_model, tmp_path):
    draw = random.Random(1)
    context, questions = sale(draw)
    more = [(question, text, answer) for text, pairs in (sale(draw) for _ in range(20)) for question, answer in pairs]
    values, printed = run_notebook(
        "ask_questions",
        tmp_path,
        {
            "MODEL_URL": question_model.as_uri(),
            "CONTEXT": context,
            "QUESTIONS": [question for question, _ in questions],
        },
        {
            "first": "answer",
            "answers": "[one['answer'] for one in answers]",
            "bars": "len(axes.patches)",
            "candidates": "len(candidates)",
            "long": "found",
            "length": "len(long_text)",
            "more": f"[one['answer'] for one in answerer.predict({[pair[:2] for pair in more]!r})]",
        },
    )
    assert values["answers"] == [answer for _, answer in questions]
    first = values["first"]
    assert context[first["start"] : first["end"]] == first["answer"] == questions[0][1]
    assert values["bars"] == values["candidates"] > 1
    assert f">>{first['answer']}<<" in printed
    correct = [found == answer for found, (_, _, answer) in zip(values["more"], more, strict=True)]
    assert np.mean(correct) > 0.8
    long = values["long"]
    assert values["length"] > 2000 and 0 <= long["start"] < long["end"] <= values["length"]

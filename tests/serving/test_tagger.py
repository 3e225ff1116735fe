"""Tagger on directories and exports gives the same tags; the client with servers as TensorFlow Serving."""

import contextlib
import functools
import http.server
import json
import select
import sys
import urllib.parse

import numpy as np
import pytest
import tensorflow as tf
from helpers import warm
from helpers.basics import ROOT, slow
from helpers.early_mistakes import refusals
from helpers.exports import check_answers, signature_of
from helpers.hub_server import serving
from helpers.tiny import save_model

from bert_tf import Tagger
from bert_tf.models import task_models
from bert_tf.serving import client, export
from bert_tf.tasks.ner import metrics as ner_tags

TEXTS = ["Ada Lovelace  lived in London.", "", "  ", "서울에 (Élodie) 갔다 日本 Ångström", "a word " * 100]
TEXTS += ["\u200b\u0007"]


SENTENCES = [
    ["Ada", "Lovelace", "lived", "in", "London", "."],
    ["U.S.", "soldiers", "(1990)", "met", "Élodie", "and", "김철수"],
    ["\u200b\u0007", "one"],
    [f"word{number}" for number in range(150)],  # longer than the model
    ["x" * 300],
]


def tagger(folder, scheme) -> tuple[str, list[str]]:
    labels = ner_tags.tag_set(scheme, ["LOC", "PER"]) if scheme != "plain" else ["NOUN", "VERB", "X"]
    save_model(folder, "bert", task_models.BertForTokenClassification, num_labels=len(labels), labels=labels)
    (folder / ner_tags.SETTINGS_FILE).write_text(ner_tags.TaggingSettings(learned_scheme=scheme).to_json())
    return str(folder), labels


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """For a scheme: a tagger's directory, its labels, and its export, opened; made once."""

    @functools.cache
    def make(scheme: str) -> tuple[str, list[str], Tagger]:
        folder = tmp_path_factory.mktemp(scheme)
        path, labels = tagger(folder / "model", scheme)
        export.export_saved_model(path, str(folder / "out"), warm_up=False)
        return path, labels, Tagger(str(folder / "out"), batch_size=3)

    return make


def check_places(text: str, found: dict) -> None:
    for word, start, end in zip(found["words"], found["starts"], found["ends"], strict=True):
        assert text[start:end] == word != ""
    for entity in found["entities"]:
        assert text[entity["start"] : entity["end"]] == entity["text"] != ""
        inside = [entity["start"] <= start < entity["end"] for start in found["starts"]]
        assert entity["score"] == pytest.approx(np.mean(np.array(found["scores"])[inside]), abs=1e-6)


@pytest.mark.parametrize("scheme", ["iob2", *slow("bioes", "plain")])
def test_words_get_tags_and_entities(exported, scheme):
    """The tags are those of the script: see test_run_ner.py."""
    path, labels, theirs = exported(scheme)
    found = Tagger(path, batch_size=3).predict(SENTENCES)
    assert (theirs.labels, theirs.scheme, theirs.max_seq_length) == (labels, scheme, 64)
    check_answers(theirs.predict(SENTENCES), found)
    for words, row in zip(SENTENCES, found, strict=True):
        assert row["words"] == words
        check_places(" ".join(words), row)
        expected = [] if scheme == "plain" else ner_tags.entities_of(row["tags"], scheme)
        assert [(entity["type"], entity["text"]) for entity in row["entities"]] == [
            (entity.type, " ".join(words[entity.start : entity.end])) for entity in expected
        ]
    entities = [entity["text"] for row in found for entity in row["entities"]]
    assert scheme != "iob2" or any(" " in text for text in entities)  # of several words, whose scores differ


def test_texts_are_cut_into_words_as_the_export_cuts_them(exported):
    mine, theirs = Tagger(exported("iob2")[0], batch_size=2), exported("iob2")[2]
    mixed = [*TEXTS, SENTENCES[0]]  # words and strings in one call
    found, by_export = mine.predict(mixed), theirs.predict(mixed)
    check_answers(by_export, found, 1e-4)
    for text, one in zip(TEXTS, found, strict=False):
        check_places(text, one)
    assert found[0]["words"] == ["Ada", "Lovelace", "lived", "in", "London", "."]
    assert found[3]["words"] == ["서울에", "(", "Élodie", ")", "갔다", "日", "本", "Ångström"]
    assert found[1] == {"words": [], "tags": [], "scores": [], "starts": [], "ends": [], "entities": []}
    assert len(found[4]["tags"]) == 200
    assert found[6]["tags"] == found[0]["tags"] and found[6]["starts"] == [0, 4, 13, 19, 22, 29]
    # One by one they have the same tags.
    assert [mine(text)["tags"] for text in mixed] == [row["tags"] for row in found]
    assert mine(TEXTS) == found[: len(TEXTS)]
    assert mine.predict([]) == theirs.predict([]) == []


@pytest.mark.parametrize("split", ["characters", *slow("characters_and_spaces")])
def test_texts_are_split_as_the_training_data_was(tmp_path, split):
    path, _ = tagger(tmp_path / "model", "iob2")
    settings = ner_tags.TaggingSettings(split=split).to_json()
    (tmp_path / "model" / ner_tags.SETTINGS_FILE).write_text(settings)
    found, by_export = Tagger(path).predict(TEXTS), signature_of(path, "ner", text=TEXTS)
    for row, (text, one) in enumerate(zip(TEXTS, found, strict=True)):
        check_places(text, one)
        count = len(one["words"])
        assert np.count_nonzero(by_export["tags"][row] != b"") == count
        assert [word.decode() for word in by_export["words"][row, :count]] == one["words"]
        assert [tag.decode() for tag in by_export["tags"][row, :count]] == one["tags"]
        for name, tolerance in (("starts", 0), ("ends", 0), ("scores", 1e-4)):
            np.testing.assert_allclose(by_export[name][row, :count], one[name], atol=tolerance)
    with_spaces = split == "characters_and_spaces"
    assert found[3]["words"][:5] == (["서", "울", "에", " ", "("] if with_spaces else ["서", "울", "에", "(", "É"])
    assert [len(row["words"]) for row in found[1:3]] == ([0, 2] if with_spaces else [0, 0])


@pytest.mark.parametrize(("labels", "standard", "scheme"), [
    (["o", "e-loc", "s-loc", "b-loc", "i-loc"], ["O", "E-loc", "S-loc", "B-loc", "I-loc"], "bioes"),
    *slow(
        (["PER_B", "-", "PER_I"], ["B-PER", "O", "I-PER"], "iob2"),
        (["NOUN", "VERB", "X"], ["NOUN", "VERB", "X"], "plain"),
    ),
])  # fmt: skip
def test_a_model_that_spells_its_tags_otherwise(tmp_path, labels, standard, scheme):
    """Models of others have no settings beside them: their labels say what they learned."""
    given = {"num_labels": len(labels), "labels": labels}
    path = save_model(tmp_path / "model", "bert", task_models.BertForTokenClassification, **given)
    mine, served = Tagger(path), export.create_served_model(*export.open_for(path, "ner"))  # what an export is made of
    assert (mine.labels, mine.scheme) == (list(served.labels), served._scheme) == (standard, scheme)
    found = mine.predict(TEXTS)
    tags = {tag for row in found for tag in row["tags"]}
    assert tags <= set(standard) and tags != {"O"}
    assert any(row["entities"] for row in found) == (scheme != "plain")


def test_tagger_rejects_other_texts_and_models(exported, tmp_path):
    opened = exported("iob2")[2]
    with pytest.raises(TypeError, match="texts must be a list of strings or lists of words"):
        opened.predict("Ada")
    with pytest.raises(ValueError, match=r"texts\[0\]: word 1 is empty"):
        opened(["Ada", ""])
    unnamed = save_model(tmp_path / "unnamed", "bert", task_models.BertForTokenClassification, num_labels=3)
    with pytest.raises(ValueError, match="unnamed does not list the tags that it has learned"):
        Tagger(unnamed)


SERVED_TEXTS = ["One text.", "Ein anderer, längerer Text", ""]


def run_client(*flags, **options):
    command = [sys.executable, str(ROOT / "serve_client.py"), *flags]
    return warm.run(command, capture_output=True, text=True, **options)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "model"
    return save_model(folder, "bert", task_models.BertForSequenceClassification, labels=["bad", "좋다"])


@pytest.fixture(scope="module")
def signatures(model):
    return export.create_served_model(*export.open_for(model, "classification")).signatures()


# What servers answer that are no TensorFlow Serving: a status and a body, None for one that never ends; and what the
# client says.
ODD_ANSWERS = {
    "no JSON": (200, b"outputs", "Expecting value"),
    "nested": (200, b"[" * 100_000, "maximum recursion depth"),
    "no object": (200, b"5", "no outputs, but status 200: 5"),
    "no bytes": (200, b"\xff\xfe\xfd", "decode"),
    "large": (200, b'{"outputs": ["' + b"x" * (2 << 20) + b'"]}', "the answer has more than 1,048,576 bytes"),
    "text": (200, b'{"outputs": "a"}', ":predict: outputs: no list of one entry for each example"),
    "object": (200, b'{"outputs": {"a": ["x"], "b": {"0": 1}, "c": null}}', ":predict: b, c: no list of one entry"),
    "nothing": (200, b'{"outputs": {}}', "no outputs, but status 200"),
    "dripping": (200, None, "no answer within 0.5 seconds"),
    "dripping headers": (0, None, "no answer within 0.5 seconds"),
    "refusing": (400, b"\x1b[2Jcleared\n\xc2\x9b", "status 400: \\u001b[2Jcleared\\u000a\\u009b"),
}
ODD = "a b/../c?d#e"  # a model that answers with the path of the request


@pytest.fixture(scope="module")
def server(signatures):
    """host:port of a server with the model `reviews`, version 1, and some that answer something else."""

    def answer(path: str, name: str, body: dict) -> tuple[int, bytes | None]:
        if name in ODD_ANSWERS:
            return ODD_ANSWERS[name][:2]
        outputs = [path + " \x9b2J\u202e"] if name == ODD else {"all": ["a"], "short": []}
        if name == "reviews":
            inputs = {name: tf.constant(value) for name, value in body["inputs"].items()}
            outputs = {name: value.numpy() for name, value in signatures[body["signature_name"]](**inputs).items()}
            outputs = {
                name: (np.char.decode(value.astype(bytes)) if value.dtype == object else value).tolist()
                for name, value in outputs.items()
            }
        is_known = name in ("reviews", "fewer rows", ODD) and "/versions/0" not in path
        content = {"outputs": outputs} if is_known else {"error": "Servable not found for request"}
        return 200 if is_known else 404, json.dumps(content).encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            # A connection closed over unread input is reset, and the client may then lose the answer.
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            name = urllib.parse.unquote(self.path.split("/")[3].removesuffix(":predict"))
            status, body = answer(self.path, name, request)
            if status:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body or b"") or 10**6))
                self.end_headers()
            else:
                self.wfile.write(b"HTTP/1.0 200 OK\r\n")
            self.wfile.write(body or b"")
            with contextlib.suppress(OSError):  # until the client hangs up
                while body is None and not select.select([self.connection], [], [], 0.05)[0]:
                    self.wfile.write(b" " if status else b"X-A: b\r\n")

    with serving(Handler) as started:
        yield started.address.removeprefix("http://")


def test_answers_are_those_of_the_signature(signatures, server):
    expected = signatures["serving_default"](text=tf.constant(SERVED_TEXTS))
    found = client.ask(server, "reviews", {"text": SERVED_TEXTS}, version=1)
    assert found.keys() == expected.keys()
    assert found["label"] == [label.decode() for label in expected["label"].numpy()]
    assert found["labels"] == [["bad", "좋다"]] * 3
    np.testing.assert_allclose(found["probabilities"], expected["probabilities"], atol=1e-6)
    with pytest.raises(client.ServingError, match="/v1/models/poems:predict: .*404: .*Servable not found for request"):
        client.ask(server, "poems", {"text": ["a"]})
    for inputs in ({}, {"text": "a"}, {"text": ["a"], "text_pair": ["b", "c"]}):
        with pytest.raises(ValueError, match="inputs are lists of one length"):
            client.ask(server, "reviews", inputs)
    with pytest.raises(client.ServingError, match="//localhost:1/v1/models/m:predict: .*refused"):
        client.ask("localhost:1", "m", {"text": ["a"]})


def test_the_script(server, model, tmp_path):
    """Of lines and of one example; with strings, and with the ids that the tokenizer of the model makes of them."""
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in SERVED_TEXTS))
    (tmp_path / "names.jsonl").write_text('{"name": "a"}')
    usual = [f"--server={server}", "--model=reviews"]

    def run(*flags):
        result = run_client(*usual, *flags, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        return [json.loads(line) for line in result.stdout.splitlines()]

    answers = run("--input_file=texts.jsonl", "--batch_size=2")
    assert len(answers) == 3 and {answer["label"] for answer in answers} <= {"bad", "좋다"}
    assert abs(answers[0]["score"] - answers[1]["score"]) > 1e-4
    ids = ["--input_file=texts.jsonl", "--signature=serve_ids", f"--tokenizer={model}"]
    for flags in (["--input=text=One text."], [*ids, "--max_seq_length=32"]):
        for answer, found in zip(answers, run(*flags), strict=False):
            assert found["label"] == answer["label"]
            np.testing.assert_allclose(found["probabilities"], answer["probabilities"], atol=1e-6)
    refused = {
        "--input names an input twice": ["--input=text=a", "--input=text=b"],
        "Give --input (once for each input of the signature) or --input_file": [],
        "--input=text is not NAME=VALUE": ["--input=text"],
        "no outputs, but status 404": ["--input=text=a", "--version=0"],
        "ids of text and text_pair, not of name": [f"--input_file={tmp_path}/names.jsonl", f"--tokenizer={model}"],
    }
    commands = [[*usual, *flags] for flags in refused.values()]
    for message, line in zip(refused, refusals("serve_client", commands), strict=True):
        assert message in line


def test_odd_answers_end_in_one_line(server):
    for model, (_, _, message) in ODD_ANSWERS.items():
        # Only the servers that drip are to be cut off by the clock, however busy the machine is.
        timeout = 0.5 if "dripping" in model else 600
        with pytest.raises(client.ServingError) as caught:
            client.ask(server, model, {"text": ["a"]}, timeout=timeout, max_bytes=1 << 20)
        assert message in (line := str(caught.value)) and line.isprintable()
    (line,) = refusals("serve_client", [[f"--server={server}", "--model=fewer rows", "--input=text=a"]])
    assert "fewer%20rows:predict: short: no list of one entry for each example" in line


def test_names_are_quoted_and_control_characters_are_not_printed(server):
    result = run_client(f"--server={server}", f"--model={ODD}", "--input=text=a")
    assert result.returncode == 0, result.stderr
    assert result.stdout == '{"outputs": "/v1/models/a%20b%2F..%2Fc%3Fd%23e:predict \\u009b2J\\u202e"}\n'

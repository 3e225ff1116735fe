"""The client with servers that use TensorFlow Serving's own REST format and run an export's functions."""

import contextlib
import http.server
import json
import sys
import time
import urllib.parse

import numpy as np
import pytest
import tensorflow as tf
from helpers import warm
from helpers.early_mistakes import refusals
from helpers.exports import save
from helpers.local_server import serving
from helpers.paths import ROOT

from bert_tf.models import task_models
from bert_tf.models.pretrained import read_tokenizer
from bert_tf.serving import client, export

TEXTS = ["One text.", "Ein anderer, längerer Text", ""]


def run_client(*flags, **options):
    command = [sys.executable, str(ROOT / "serve_client.py"), *flags]
    return warm.run(command, capture_output=True, text=True, **options)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "model"
    return save(folder, task_models.BertForSequenceClassification, {"num_hidden_layers": 1}, labels=["bad", "좋다"])


@pytest.fixture(scope="module")
def signatures(model):
    return export.create_served_model(model, "classification").signatures()


@pytest.fixture(scope="module")
def rest_server(signatures):
    """host:port of a server with /v1/models/reviews[/versions/1]:predict."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path in ("/v1/models/reviews:predict", "/v1/models/reviews/versions/1:predict"):
                inputs = {name: tf.constant(value) for name, value in body["inputs"].items()}
                outputs = signatures[body["signature_name"]](**inputs)
                columns = {
                    name: (np.char.decode(value.numpy().astype(bytes)) if value.dtype == tf.string else value.numpy())
                    for name, value in outputs.items()
                }
                content = {"outputs": {name: value.tolist() for name, value in columns.items()}}
            else:
                content = {"error": "Servable not found for request"}
            data = json.dumps(content).encode()
            self.send_response(404 if "error" in content else 200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    with serving(Handler) as server:
        yield f"127.0.0.1:{server.server_port}"


def test_answers_are_those_of_the_signature(signatures, rest_server):
    expected = signatures["serving_default"](text=tf.constant(TEXTS))
    found = client.ask(rest_server, "reviews", {"text": TEXTS}, version=1)
    assert found.keys() == expected.keys()
    assert found["label"] == [label.decode() for label in expected["label"].numpy()]
    assert found["labels"] == [["bad", "좋다"]] * 3
    np.testing.assert_allclose(found["probabilities"], expected["probabilities"], atol=1e-6)
    with pytest.raises(client.ServingError, match="/v1/models/poems:predict: Servable not found for request"):
        client.ask(rest_server, "poems", {"text": ["a"]})
    with pytest.raises(client.ServingError, match="//localhost:1/v1/models/m:predict: nothing answers there: is the"):
        client.ask("localhost:1", "m", {"text": ["a"]})


def test_the_script(rest_server, model, tmp_path):
    """Of lines and of one example; with strings, and with the ids that the tokenizer of the model makes of them."""
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    (tmp_path / "names.jsonl").write_text('{"name": "a"}')
    usual = [f"--server={rest_server}", "--model=reviews"]

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
        "--input=text: expected name=value": ["--input=text"],
        "Give --input (once for each input of the signature) or --input_file": [],
        "versions/2:predict: Servable not found": ["--input=text=a", "--version=2"],
        "--tokenizer makes ids of text and text_pair, not of name": [
            f"--input_file={tmp_path}/names.jsonl",
            f"--tokenizer={model}",
        ],
    }
    for name, (lines, message) in {
        "0": ('{"text": "a"}\n{"text": }', "line 2, column 10: not JSON"),
        "1": ('{"text": [1]}\n{"text": [1, 2]}', "input text: setting an array element"),
    }.items():
        (tmp_path / f"{name}.jsonl").write_text(lines)
        refused[message] = [f"--input_file={tmp_path}/{name}.jsonl"]
    commands = [[*usual, *flags] for flags in refused.values()]
    for message, line in zip(refused, refusals("serve_client", commands), strict=True):
        assert message in line


def test_rows_of_requests_that_a_server_batches(signatures, model):
    """TensorFlow Serving joins requests of equal width only: those of one --max_seq_length, padded here with a mask."""
    tokenizer = read_tokenizer(model)
    rows = [tokenizer([text], max_length=32, padding="max_length") for text in TEXTS]
    together = {name: tf.concat([row[name] for row in rows], 0) for name in rows[0]}
    found = signatures["serve_ids"](**together)["probabilities"]
    np.testing.assert_allclose(
        found, signatures["serving_default"](text=tf.constant(TEXTS))["probabilities"], atol=1e-6
    )
    # Its own padding repeats the first element of each tensor, so that the mask counts what is not there.
    padded = {name: tf.where(together["input_mask"] > 0, value, value[:, :1]) for name, value in together.items()}
    assert np.abs(signatures["serve_ids"](**padded)["probabilities"] - found).max() > 1e-4
    assert "pad_variable_length_inputs: true" not in (ROOT / "docs" / "serving.md").read_text()


# --- servers that answer anything -------------------------------------------------------------------------------------

ODD_ANSWERS = {
    "no JSON": (b"outputs", "Expecting value"),
    "web page": (
        b"\n<!DOCTYPE html><title>A</title>",
        "the answer is a web page: does TensorFlow Serving listen",
    ),
    "no object": (b"5", "the answer has no outputs: 5"),
    "no outputs": (b'{"predictions": []}', "the answer has no outputs: {'predictions': []}"),
    "no list": (b'{"outputs": {"a\\u001b": 1}}', "output a\\u001b is no list, one entry per example"),
    "no bytes": (b"\xff\xfe\xfd", "decode"),
    "nested": (b'{"outputs": ' + b"[" * 200_000, "nested too deeply"),
    "large": (b'{"outputs": ["' + b"x" * (2 << 20) + b'"]}', "the answer has more than 1,048,576 bytes"),
    "incomplete": (None, "Expecting property name"),
    "dripping": (None, "no answer within 0.5 seconds"),
    "dripping headers": (None, "no answer within 0.5 seconds"),
    "refusing": (None, "\\u001b[2Jcleared\\u000a\\u009b"),
}


@pytest.fixture(scope="module")
def odd_server():
    """host:port of a server that answers the model of a name as ODD_ANSWERS says, and any other with its own path."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            # A connection closed over unread input is reset, and the client may then lose the answer.
            self.rfile.read(int(self.headers["Content-Length"]))
            name = urllib.parse.unquote(self.path.split("/")[3].removesuffix(":predict"))
            rows = [] if name == "fewer rows" else [self.path + " \x9b2J\u202e"]
            body, _ = ODD_ANSWERS.get(name, (json.dumps({"outputs": rows}).encode(), ""))
            if name == "dripping headers":
                self.wfile.write(b"HTTP/1.0 200 OK\r\n")
                return self._drip(b"X-A: b\r\n")
            if name == "refusing":
                body = json.dumps({"error": "\x1b[2Jcleared\n\x9b"}).encode()
            self.send_response(400 if name == "refusing" else 200)
            self.send_header("Content-Length", str(len(body) if body else 10**6))
            self.end_headers()
            if name == "dripping":
                return self._drip(b" ")
            return self.wfile.write(body or b"{")

        def _drip(self, part):
            with contextlib.suppress(OSError):  # until the client hangs up
                while True:
                    self.wfile.write(part)
                    time.sleep(0.05)

        def log_message(self, *_):
            pass

    with serving(Handler) as server:
        yield f"127.0.0.1:{server.server_port}"


def test_odd_answers_end_in_one_line(odd_server):
    for model, (_, message) in ODD_ANSWERS.items():
        # Only the servers that drip are to be cut off by the clock, however busy the machine is.
        timeout = 0.5 if "dripping" in model else 600
        with pytest.raises(client.ServingError) as caught:
            client.ask(odd_server, model, {"text": ["a"]}, timeout=timeout, max_bytes=1 << 20)
        assert message in (line := str(caught.value)) and line.isprintable()
    flags = [f"--server={odd_server}", "--model=fewer rows", "--input=text=a"]
    assert "output outputs does not have 1 rows" in refusals("serve_client", [flags])[0]


def test_addresses_that_are_refused_at_once():
    messages = {
        "http://h:8501/v1/models/x": " has a path: give h:8501, and the model by --model",
        "ftp://h:1": " must be host:port, or begin with http:// or https://",
        "h:99999": ": 99999 is no port; the last one is 65535",
        "h": " has no port: h:8501, say, the server's --rest_api_port",
    }
    found = refusals("serve_client", [[f"--server={server}", "--model=m", "--input=text=a"] for server in messages])
    assert found == [f"--server={server}{message}" for server, message in messages.items()]


def test_names_are_quoted_and_control_characters_are_not_printed(odd_server):
    result = run_client(f"--server={odd_server}", "--model=a b/../c?d#e", "--input=text=a")
    assert result.returncode == 0, result.stderr
    assert result.stdout == '{"outputs": "/v1/models/a%20b%2F..%2Fc%3Fd%23e:predict \\u009b2J\\u202e"}\n'

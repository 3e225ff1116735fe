"""The client with servers that use TensorFlow Serving's own REST format and run an export's functions."""

import contextlib
import http.server
import json
import select
import sys
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
    "null": (200, b'{"outputs": null}', ":predict: outputs: no list of one entry"),
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
        is_known = name in ("reviews", "fewer rows", ODD) and "/versions/2" not in path
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

        def log_message(self, *_):
            pass

    with serving(Handler) as started:
        yield f"127.0.0.1:{started.server_port}"


def test_answers_are_those_of_the_signature(signatures, server):
    expected = signatures["serving_default"](text=tf.constant(TEXTS))
    found = client.ask(server, "reviews", {"text": TEXTS}, version=1)
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
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
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
        "no outputs, but status 404": ["--input=text=a", "--version=2"],
        "--tokenizer makes ids of text and text_pair, not of name": [
            f"--input_file={tmp_path}/names.jsonl",
            f"--tokenizer={model}",
        ],
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

"""The client with servers that use TensorFlow Serving's own gRPC and REST formats and run an export's functions."""

import concurrent.futures
import contextlib
import http.server
import json
import subprocess
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
from bert_tf.serving import client, export

TEXTS = ["One text.", "Ein anderer, längerer Text", ""]


@pytest.fixture(scope="module")
def signatures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "model"
    save(folder, task_models.BertForSequenceClassification, {"num_hidden_layers": 1}, labels=["bad", "좋다"])
    return export.create_served_model(str(folder), "classification").signatures()


@pytest.fixture(scope="module")
def grpc_server(signatures):
    """host:port of a PredictionService with the model "reviews"."""
    import grpc
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    class Service(prediction_service_pb2_grpc.PredictionServiceServicer):
        def Predict(self, request, context):
            if request.model_spec.name != "reviews":
                context.abort(grpc.StatusCode.NOT_FOUND, "Servable not found for request")
            inputs = {name: tf.constant(tf.make_ndarray(value)) for name, value in request.inputs.items()}
            outputs = signatures[request.model_spec.signature_name](**inputs)
            response = predict_pb2.PredictResponse()
            for name, value in outputs.items():
                response.outputs[name].CopyFrom(tf.make_tensor_proto(value.numpy()))
            return response

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("localhost:0")
    server.start()
    yield f"localhost:{port}"
    server.stop(None)


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


def test_both_ways_give_what_the_signature_gives(signatures, grpc_server, rest_server):
    expected = signatures["serving_default"](text=tf.constant(TEXTS))
    by_grpc = client.ask_grpc(grpc_server, "reviews", {"text": TEXTS})
    by_rest = client.ask_rest(rest_server, "reviews", {"text": TEXTS}, version=1)
    assert set(by_grpc) == set(by_rest) == set(expected)
    labels = [label.decode() for label in expected["label"].numpy()]
    assert by_grpc["label"].tolist() == by_rest["label"] == labels
    assert by_grpc["labels"].tolist() == by_rest["labels"] == [["bad", "좋다"]] * 3
    np.testing.assert_allclose(by_grpc["probabilities"], expected["probabilities"], atol=1e-6)
    np.testing.assert_allclose(by_rest["probabilities"], expected["probabilities"], atol=1e-6)
    inputs = {"input_ids": [[101, 2028, 102]], "input_mask": [[1, 1, 1]], "segment_ids": [[0, 0, 0]]}
    found = client.ask_grpc(grpc_server, "reviews", inputs, signature="serve_ids")
    expected = signatures["serve_ids"](**{name: tf.constant(value) for name, value in inputs.items()})
    np.testing.assert_allclose(found["probabilities"], expected["probabilities"], atol=1e-6)
    assert client.ask_grpc(grpc_server, "reviews", {"text": []})["probabilities"].shape == (0, 2)


def test_errors_are_the_servers_words(grpc_server, rest_server):
    with pytest.raises(client.ServingError, match="model poems: NOT_FOUND: Servable not found for request"):
        client.ask_grpc(grpc_server, "poems", {"text": ["a"]})
    with pytest.raises(client.ServingError, match="/v1/models/poems:predict: Servable not found for request"):
        client.ask_rest(rest_server, "poems", {"text": ["a"]})
    with pytest.raises(client.ServingError, match="localhost:1, model m: UNAVAILABLE: "):
        client.ask_grpc("localhost:1", "m", {"text": ["a"]}, timeout=600)
    with pytest.raises(client.ServingError, match="//localhost:1/v1/models/m:predict: nothing answers there: is the"):
        client.ask_rest("localhost:1", "m", {"text": ["a"]})


def test_the_script(rest_server, tmp_path):
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    usual = [f"--server={rest_server}", "--rest", "--model=reviews"]

    def run(*flags):
        command = [sys.executable, str(ROOT / "serve_client.py"), *usual, *flags]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)

    result = run("--input_file=texts.jsonl", "--batch_size=2")
    assert result.returncode == 0, result.stderr
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(answers) == 3
    assert {answer["label"] for answer in answers} <= {"bad", "좋다"}
    assert all(abs(sum(answer["probabilities"]) - 1) < 1e-5 for answer in answers)
    one = run("--input=text=One text.")
    assert json.loads(one.stdout)["label"] == answers[0]["label"]
    np.testing.assert_allclose(json.loads(one.stdout)["probabilities"], answers[0]["probabilities"], atol=1e-6)
    refused = {
        "--input=text: expected name=value": ["--input=text"],
        "Give --input (once for each input of the signature) or --input_file": [],
        "versions/2:predict: Servable not found": ["--input=text=a", "--version=2"],
    }
    for message, line in zip(
        refused, refusals("serve_client", [[*usual, *own] for own in refused.values()]), strict=True
    ):
        assert message in line


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
    "fewer rows": (b'{"outputs": []}', "output outputs does not have 1 rows"),
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
            body, _ = ODD_ANSWERS.get(name, (json.dumps({"outputs": [self.path + " \x9b2J\u202e"]}).encode(), ""))
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


def run_client(*flags):
    """Exit code, output, and the lines on stderr without TensorFlow's note that the warm server makes."""
    result = warm.run([sys.executable, str(ROOT / "serve_client.py"), *flags], capture_output=True, text=True)
    lines = [line for line in result.stderr.split("\n") if line and "cuInit" not in line]
    return result.returncode, result.stdout, lines


def test_odd_answers_end_in_one_line(odd_server):
    commands = []
    for model in ODD_ANSWERS:
        # Only the servers that drip are to be cut off by the clock, however busy the machine is.
        timeout = 0.5 if "dripping" in model else 600
        flags = ["--rest", "--input=text=a", f"--timeout={timeout}", "--max_answer_mb=1"]
        commands.append([f"--server={odd_server}", f"--model={model}", *flags])
    for line, (_, message) in zip(refusals("serve_client", commands), ODD_ANSWERS.values(), strict=True):
        assert message in line and line.isprintable()


def test_what_is_no_server_is_refused_at_once():
    messages = {
        "http://h:8501": " is an address of REST: give --rest, or host:8500 for gRPC",
        "http://h:8501/v1/models/x": " has a path: give h:8501, and the model by --model",
        "h:8501/x": " has a path: give h:8501, and the model by --model",
        "ftp://h:1": " must be host:port, or with --rest begin with http:// or https://",
        "h:99999": ": 99999 is no port; the last one is 65535",
        "h": " has no port: h:8500 for gRPC, :8501 for REST",
    }
    found = refusals("serve_client", [[f"--server={server}", "--model=m", "--input=text=a"] for server in messages])
    assert found == [f"--server={server}{message}" for server, message in messages.items()]


def test_a_port_of_rest_that_is_asked_by_grpc(odd_server):
    code, output, (line,) = run_client(f"--server={odd_server}", "--model=m", "--input=text=a")
    assert code == 1 and not output
    assert "UNAVAILABLE" in line and line.endswith("; this port does not speak gRPC: is it that of REST (--rest)?")


def test_names_are_quoted_and_control_characters_are_not_printed(odd_server):
    code, output, lines = run_client(f"--server={odd_server}", "--model=a b/../c?d#e", "--rest", "--input=text=a")
    assert code == 0, lines
    assert output == '{"outputs": "/v1/models/a%20b%2F..%2Fc%3Fd%23e:predict \\u009b2J\\u202e"}\n'
    assert json.loads(output)["outputs"].endswith(" \x9b2J\u202e")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('{"text": "a"}\n{"text": }', "line 2, column 10: not JSON"),
        ('{"text": null}', "input text is neither strings nor numbers"),
        ('{"text": [1]}\n{"text": [1, 2]}', "input text: setting an array element"),
    ],
)
def test_odd_examples_end_in_one_line(grpc_server, tmp_path, lines, message):
    (tmp_path / "texts.jsonl").write_text(lines)
    code, _, (line,) = run_client(f"--server={grpc_server}", "--model=m", f"--input_file={tmp_path}/texts.jsonl")
    assert code == 1 and message in line


def test_tensors_that_claim_to_be_large():
    from tensorflow_serving.apis import predict_pb2

    response = predict_pb2.PredictResponse()
    response.outputs["a"].CopyFrom(tf.make_tensor_proto([1.0]))
    response.outputs["a"].tensor_shape.dim[0].size = 10**12
    with pytest.raises(ValueError, match=r"output a has shape \[1000000000000\], more than the answer holds"):
        client.outputs_of(response)

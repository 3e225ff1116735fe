"""A client of TensorFlow Serving by REST, which needs no TensorFlow."""

import concurrent.futures
import contextlib
import http.client
import json
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bert_tf.system.messages import naming_flag, visible

Inputs = Mapping[str, Sequence]

MAX_BYTES = 1 << 28  # of an answer

_OK = 200
_NOTHING_ANSWERS = "nothing answers there: is the server started, and is this its port?"
_MOST_OF_AN_ERROR = 1 << 16  # bytes


class ServingError(OSError):
    """The server refused a request or could not be reached; the message is the server's."""


def request_of(inputs: Inputs, signature: str = "serving_default") -> bytes:
    """The body of a predict request in column format: {"signature_name": ..., "inputs": {...}}."""
    columns = {}
    for name, value in inputs.items():
        with naming_flag(f"input {name}"):
            columns[name] = np.asarray(value).tolist()
    return json.dumps({"signature_name": signature, "inputs": columns}, ensure_ascii=False).encode()


def ask(
    server: str,
    model: str,
    inputs: Inputs,
    *,
    signature: str = "serving_default",
    version: int | None = None,
    timeout: float = 60.0,
    max_bytes: int = MAX_BYTES,
) -> dict[str, list]:
    """The outputs of a model by REST, as lists.

    Args:
      server: host:port of the REST interface (8501 unless configured), or an http(s):// address.
      inputs: lists of strings or numbers by the signature's input names, one entry per example.
      timeout: seconds for the whole call. max_bytes: of the answer.
    """
    address = server if server.startswith(("http://", "https://")) else f"http://{server}"
    versions = f"/versions/{version}" if version else ""
    url = f"{address.rstrip('/')}/v1/models/{urllib.parse.quote(model, safe='')}{versions}:predict"
    try:
        status, body = _within(timeout, lambda: _post(url, request_of(inputs, signature), timeout, max_bytes))
        if body.lstrip()[:5].lower() in (b"<!doc", b"<html"):
            raise ValueError("the answer is a web page: does TensorFlow Serving listen at this port?")
        answer = json.loads(body) if status == _OK else None
    except RecursionError:
        raise ServingError(f"{url}: the answer is not JSON: nested too deeply") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        is_refused = isinstance(getattr(error, "reason", None), ConnectionRefusedError)
        words = _NOTHING_ANSWERS if is_refused else visible(str(error)) or type(error).__name__
        raise ServingError(f"{url}: {words}") from error
    if status != _OK:
        message = body.decode("utf-8", "replace")[:500]
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            message = str(json.loads(body)["error"])
        raise ServingError(f"{url}: {visible(message)}")
    if not isinstance(answer, dict) or "outputs" not in answer:
        raise ServingError(f"{url}: the answer has no outputs: {visible(str(answer)[:500])}")
    outputs = answer["outputs"]
    # A signature with a single output returns it without its name.
    outputs = outputs if isinstance(outputs, dict) else {"outputs": outputs}
    for name, values in outputs.items():
        if not isinstance(values, list):
            raise ServingError(f"{url}: output {visible(name)} is no list, one entry per example")
    return outputs


def _post(url: str, body: bytes, timeout: float, max_bytes: int) -> tuple[int, bytes]:
    """Status and body of the answer to a request; of an error only the beginning."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            content = response.read(max_bytes + 1)
    except urllib.error.HTTPError as error:
        return error.code, error.read(_MOST_OF_AN_ERROR)
    if len(content) > max_bytes:
        raise ValueError(f"the answer has more than {max_bytes:,} bytes")
    return response.status, content


def _within(timeout: float, call: Callable):
    """The result of a call, which a thread makes: timeouts of sockets start anew with each byte."""
    result = concurrent.futures.Future()

    def run() -> None:
        try:
            result.set_result(call())
        except Exception as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return result.result(timeout)
    except TimeoutError:
        raise TimeoutError(f"no answer within {timeout:g} seconds") from None

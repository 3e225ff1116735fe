"""A client for the REST API of TensorFlow Serving; needs no TensorFlow."""

import concurrent.futures
import http.client
import json
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bert_tf.system.messages import escape_control_characters

MAX_BYTES = 1 << 28  # of an answer

_MAX_ERROR_BYTES = 1 << 16


class ServingError(OSError):
    """The server refused a request or could not be reached; the message is the server's."""


def ask(
    server: str,
    model: str,
    inputs: Mapping[str, Sequence],
    *,
    signature: str = "serving_default",
    version: int | None = None,
    timeout: float = 60.0,
    max_bytes: int = MAX_BYTES,
) -> dict[str, list]:
    """The outputs of a served model, as lists. REST sends a single one without its name: it is called `outputs`.

    Args:
      server: host:port of the REST interface (8501 unless configured), or an http(s):// address.
      inputs: lists of strings or numbers by the signature's input names, one entry per example, as in the outputs.
      timeout: seconds for the whole call. max_bytes: of the answer.
    """
    address = server if server.startswith(("http://", "https://")) else f"http://{server}"
    versions = "" if version is None else f"/versions/{version}"
    url = f"{address.rstrip('/')}/v1/models/{urllib.parse.quote(model, safe='')}{versions}:predict"
    columns = {name: np.asarray(value).tolist() for name, value in inputs.items()}
    counts = {len(column) if isinstance(column, list) else None for column in columns.values()}
    if len(counts) != 1 or None in counts:
        raise ValueError("inputs are lists of one length, an entry for each example.")
    request = json.dumps({"signature_name": signature, "inputs": columns}, ensure_ascii=False).encode()
    try:
        status, body = _within(timeout, lambda: _post(url, request, timeout, max_bytes))
        answer = json.loads(body) if status == http.client.OK else body.decode("utf-8", "replace")
    except (OSError, RecursionError, ValueError, http.client.HTTPException) as error:
        raise ServingError(f"{url}: {escape_control_characters(str(error)) or type(error).__name__}") from error
    if not isinstance(answer, dict) or answer.get("outputs", {}) == {}:
        raise ServingError(f"{url}: no outputs, but status {status}: {escape_control_characters(str(answer)[:500])}")
    outputs = answer["outputs"]
    outputs = outputs if isinstance(outputs, dict) else {"outputs": outputs}
    if odd := [name for name, value in outputs.items() if not isinstance(value, list) or {len(value)} != counts]:
        raise ServingError(f"{url}: {escape_control_characters(', '.join(odd))}: no list of one entry for each example")
    return outputs


def _post(url: str, body: bytes, timeout: float, max_bytes: int) -> tuple[int, bytes]:
    """Status and body of the answer to a request; only the beginning of an error's."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            content = response.read(max_bytes + 1)
    except urllib.error.HTTPError as error:
        return error.code, error.read(_MAX_ERROR_BYTES)
    if len(content) > max_bytes:
        raise ValueError(f"the answer has more than {max_bytes:,} bytes")
    return response.status, content


def _within(timeout: float, call: Callable):
    """The result of a call made in a thread: the timeout of a socket starts over with each byte."""
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

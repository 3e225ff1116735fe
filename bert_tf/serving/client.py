"""A client of TensorFlow Serving, by gRPC or REST, in the server's own formats.

gRPC needs tensorflow-serving-api, and TensorFlow to make tensors; REST needs neither.
"""

import concurrent.futures
import http.client
import json
import math
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bert_tf.system.checks import check_extra
from bert_tf.system.messages import visible

Inputs = Mapping[str, Sequence]

MAX_BYTES = 1 << 28  # of an answer

_OK = 200
_NOTHING_ANSWERS = "nothing answers there: is the server started, and is this its port?"
_MOST_OF_AN_ERROR = 1 << 16  # bytes


class ServingError(OSError):
    """The server refused a request or could not be reached; the message is the server's."""


# ---- REST ------------------------------------------------------------------------------------------------------------


def rest_request(inputs: Inputs, signature: str = "serving_default") -> bytes:
    """The body of a predict request in column format: {"signature_name": ..., "inputs": {...}}."""
    columns = {name: _array(name, value).tolist() for name, value in inputs.items()}
    return json.dumps({"signature_name": signature, "inputs": columns}, ensure_ascii=False).encode()


def _array(name: str, value: Sequence) -> np.ndarray:
    """The values of an input.

    Raises:
      ValueError: examples have lists of different lengths; names the input.
    """
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(f"input {name}: {error}") from None


def ask_rest(
    server: str, model: str, inputs: Inputs, *, signature: str = "serving_default", version: int | None = None,
    timeout: float = 60.0, max_bytes: int = MAX_BYTES,
) -> dict[str, list]:  # fmt: skip
    """The outputs of a model by REST, as lists.

    Args:
      server: host:port of the REST interface (8501 unless configured), or an http(s):// address.
      inputs: lists of strings or numbers by the signature's input names, one entry per example.
      timeout: seconds for the whole call. max_bytes: of the answer.

    Raises:
      ServingError: the server returned an error, anything but outputs, or too much, or it could not be reached in time.
    """
    address = server if server.startswith(("http://", "https://")) else f"http://{server}"
    versions = f"/versions/{version}" if version else ""
    url = f"{address.rstrip('/')}/v1/models/{urllib.parse.quote(model, safe='')}{versions}:predict"
    try:
        status, body = _within(timeout, lambda: _post(url, rest_request(inputs, signature), timeout, max_bytes))
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
        raise ServingError(f"{url}: {visible(_server_message(body))}")
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
    """The result of a call, which a thread makes: timeouts of sockets start anew with each byte.

    Raises:
      TimeoutError: it takes longer. Exception: of the call.
    """
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


def _server_message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return body.decode("utf-8", "replace")[:500]


# ---- gRPC ------------------------------------------------------------------------------------------------------------


def grpc_request(model: str, inputs: Inputs, signature: str = "serving_default", version: int | None = None):
    """A `PredictRequest`; integers are sent as int32, as this project's signatures expect."""
    check_extra("serving", "gRPC")
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2

    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    if version:
        request.model_spec.version.value = version
    for name, value in inputs.items():
        array = _array(name, value)
        try:
            if array.dtype.kind in "US" or array.dtype == object or not array.size:
                tensor = tf.make_tensor_proto(value, tf.string)
            else:
                tensor = tf.make_tensor_proto(array.astype(np.int32) if array.dtype.kind == "i" else array)
        except (TypeError, ValueError) as error:
            raise ValueError(f"input {name} is neither strings nor numbers ({error})") from None
        request.inputs[name].CopyFrom(tensor)
    return request


def outputs_of(response) -> dict[str, np.ndarray]:
    """The tensors of a `PredictResponse`; strings as str objects.

    Raises:
      ValueError: one is not what its description says.
    """
    import tensorflow as tf

    outputs = {}
    for name, tensor in response.outputs.items():
        shape = [dimension.size for dimension in tensor.tensor_shape.dim]
        if math.prod(shape) > response.ByteSize():  # a tensor of equal values may have one instead of all
            raise ValueError(f"output {name} has shape {shape}, more than the answer holds")
        try:
            array = tf.make_ndarray(tensor)
        except (TypeError, ValueError) as error:
            raise ValueError(f"output {name} is damaged ({error})") from None
        if array.dtype == object:
            flat = [value.decode("utf-8", "replace") for value in array.ravel()]
            array = np.array(flat, object).reshape(array.shape)
        outputs[name] = array
    return outputs


def ask_grpc(
    server: str, model: str, inputs: Inputs, *, signature: str = "serving_default", version: int | None = None,
    timeout: float = 60.0, max_bytes: int = MAX_BYTES,
) -> dict[str, np.ndarray]:  # fmt: skip
    """The outputs of a model by gRPC.

    Args:
      server: host:port of the gRPC interface (8500 unless configured).
      timeout: seconds for the whole call. max_bytes: of the answer, less than 2 ** 31.

    Raises:
      ServingError: see `ask_rest`.
    """
    check_extra("serving", "gRPC")
    import grpc
    from tensorflow_serving.apis import prediction_service_pb2_grpc

    request = grpc_request(model, inputs, signature, version)
    try:
        with grpc.insecure_channel(server, options=[("grpc.max_receive_message_length", max_bytes)]) as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            return outputs_of(stub.Predict(request, timeout=timeout))
    except grpc.RpcError as error:
        # What gRPC says of an answer in HTTP/1, by its version and by how the answer begins.
        is_other = any(words in f"{error.details()}" for words in ("http1", "Failed parsing HTTP/2"))
        hint = "; this port does not speak gRPC: is it that of REST (--rest)?" if is_other else ""
        message = f"{error.code().name}: {error.details()}{hint}"
    except ValueError as error:
        message = str(error)
    raise ServingError(f"{server}, model {model}: {visible(message)}")

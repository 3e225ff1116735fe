"""A client of TensorFlow Serving, by gRPC or REST, in the server's own formats.

gRPC needs tensorflow-serving-api, and TensorFlow to make tensors; REST needs neither.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence

import numpy as np

Inputs = Mapping[str, Sequence]


class ServingError(OSError):
    """The server refused a request or could not be reached; the message is the server's."""


# ---- REST ------------------------------------------------------------------------------------------------------------


def rest_request(inputs: Inputs, signature: str = "serving_default") -> bytes:
    """The body of a predict request in column format: {"signature_name": ..., "inputs": {...}}."""
    columns = {name: np.asarray(value).tolist() for name, value in inputs.items()}
    return json.dumps({"signature_name": signature, "inputs": columns}, ensure_ascii=False).encode()


def ask_rest(
    server: str, model: str, inputs: Inputs, *, signature: str = "serving_default", version: int | None = None,
    timeout: float = 60.0,
) -> dict[str, list]:  # fmt: skip
    """The outputs of a model by REST, as lists.

    Args:
      server: host:port of the REST interface (8501 unless configured), or an http(s):// address.
      inputs: lists of strings or numbers by the signature's input names, one entry per example.
      timeout: seconds.

    Raises:
      ServingError: the server returned an error or could not be reached.
    """
    address = server if "://" in server else f"http://{server}"
    versions = f"/versions/{version}" if version else ""
    url = f"{address.rstrip('/')}/v1/models/{model}{versions}:predict"
    request = urllib.request.Request(
        url, rest_request(inputs, signature), {"Content-Type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            outputs = json.loads(response.read())["outputs"]
    except urllib.error.HTTPError as error:
        raise ServingError(f"{url}: {_server_message(error.read())}") from None
    except (OSError, ValueError, KeyError) as error:
        raise ServingError(f"{url}: {error}") from error
    # A signature with a single output returns it without its name.
    return outputs if isinstance(outputs, dict) else {"outputs": outputs}


def _server_message(body: bytes) -> str:
    try:
        return json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return body.decode("utf-8", "replace")[:500]


# ---- gRPC ------------------------------------------------------------------------------------------------------------


def grpc_request(model: str, inputs: Inputs, signature: str = "serving_default", version: int | None = None):
    """A `PredictRequest`; integers are sent as int32, as this project's signatures expect."""
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2

    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    if version:
        request.model_spec.version.value = version
    for name, value in inputs.items():
        array = np.asarray(value)
        if array.dtype.kind in "US" or array.dtype == object or not array.size:
            tensor = tf.make_tensor_proto(value, tf.string)
        else:
            tensor = tf.make_tensor_proto(array.astype(np.int32) if array.dtype.kind == "i" else array)
        request.inputs[name].CopyFrom(tensor)
    return request


def outputs_of(response) -> dict[str, np.ndarray]:
    """The tensors of a `PredictResponse`; strings as str objects."""
    import tensorflow as tf

    outputs = {}
    for name, tensor in response.outputs.items():
        array = tf.make_ndarray(tensor)
        if array.dtype == object:
            flat = [value.decode("utf-8", "replace") for value in array.ravel()]
            array = np.array(flat, object).reshape(array.shape)
        outputs[name] = array
    return outputs


def ask_grpc(
    server: str, model: str, inputs: Inputs, *, signature: str = "serving_default", version: int | None = None,
    timeout: float = 60.0, channel=None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """The outputs of a model by gRPC.

    Args:
      server: host:port of the gRPC interface (8500 unless configured).
      channel: a grpc.Channel to use instead of an insecure one to `server`; reusing one saves connecting.

    Raises:
      ServingError: the server returned an error or could not be reached.
    """
    import grpc
    from tensorflow_serving.apis import prediction_service_pb2_grpc

    own = channel is None
    channel = channel or grpc.insecure_channel(server, options=[("grpc.max_receive_message_length", -1)])
    try:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        return outputs_of(stub.Predict(grpc_request(model, inputs, signature, version), timeout=timeout))
    except grpc.RpcError as error:
        raise ServingError(f"{server}, model {model}: {error.code().name}: {error.details()}") from None
    finally:
        if own:
            channel.close()

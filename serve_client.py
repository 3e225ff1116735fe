"""Queries a model on TensorFlow Serving, and prints the answers, one JSON object per line.

    python serve_client.py --server=localhost:8501 --rest --model=mrpc --input="text=One text." --input="text_pair=Two."
    python serve_client.py --server=localhost:8500 --model=squad --input="question=Who?" --input="context=Ada was here."
    python serve_client.py --server=localhost:8500 --model=reviews --input_file=texts.jsonl

The same request with curl:
    curl -d '{"inputs": {"text": ["One text."], "text_pair": ["Two."]}}' http://localhost:8501/v1/models/mrpc:predict
"""

import dataclasses
import json
import sys

from absl import flags, logging

from bert_tf.system import checks, script
from bert_tf.system.declare import REQUIRED, define_flags, setting, settings_of
from bert_tf.system.text_files import encoding_setting

FLAGS = flags.FLAGS


def _check_server(server: str, flag: str) -> None:
    scheme, separator, address = server.rpartition("://")
    host, _, port = address.partition("/")[0].rpartition(":")
    if separator and scheme not in ("http", "https"):
        raise ValueError(f"{flag}={server} must be host:port, or with --rest begin with http:// or https://")
    if "/v1/" in f"{server}/" or (not separator and "/" in server):
        raise ValueError(f"{flag}={server} has a path: give {host}:{port}, and the model by --model")
    if not separator and port.isdecimal() and int(port) >= 1 << 16:
        raise ValueError(f"{flag}={server}: {port} is no port; the last one is {(1 << 16) - 1}")
    if not separator and not port.isdecimal():
        raise ValueError(f"{flag}={server} has no port: {host or port}:8500 for gRPC, :8501 for REST")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """Which server is asked what."""

    model: str = setting(
        REQUIRED, "Name of the model on the server (--model_name, or in model.config).", heading="Request"
    )
    server: str = setting(
        "localhost:8500",
        "host:port; TensorFlow Serving uses 8500 for gRPC and 8501 for REST.",
        check=_check_server,
    )
    rest: bool = setting(False, "Use REST (HTTP) instead of gRPC.")
    signature: str = setting("serving_default", "Signature; the export's export.json lists them.")
    version: int | None = setting(None, "Version of the model. If unset, the newest one served.", least=0)
    input: tuple[str, ...] = setting((), "name=value of one example, once for each input of the signature.")
    input_file: str | None = setting(
        None,
        'Examples: JSON objects, one per line: {"text": "..."}; instead of --input.',
        check=checks.check_file,
    )
    encoding: str = encoding_setting("--input_file")
    batch_size: int = setting(32, "Examples of --input_file sent together.", least=1)
    timeout: float = setting(60.0, "Seconds for a request and its answer.", least=0.001)
    max_answer_mb: int = setting(256, "Refuse larger answers, in megabytes.", least=1, most=2047)


define_flags(ClientSettings)


def _read_examples(settings: ClientSettings) -> list[dict]:
    from bert_tf.system.text_files import parse_json, read_text_lines

    if bool(settings.input) == bool(settings.input_file):
        raise ValueError("Give --input (once for each input of the signature) or --input_file.")
    if settings.input:
        pairs = [text.partition("=") for text in settings.input]
        wrong = next((name for name, equals, _ in pairs if not equals), None)
        if wrong is not None:
            raise ValueError(f"--input={wrong}: expected name=value")
        names = [name for name, _, _ in pairs]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"--input={twice}=... is given twice; for several examples use --input_file")
        return [{name: value for name, _, value in pairs}]
    examples = []
    for number, line in enumerate(read_text_lines(settings.input_file, encoding=settings.encoding), 1):
        example = parse_json(line.lstrip("\ufeff"), settings.input_file, number)
        if not isinstance(example, dict) or (examples and set(example) != set(examples[0])):
            raise ValueError(f"{settings.input_file}, line {number}: expected an object with the same keys as line 1")
        examples.append(example)
    if not examples:
        raise ValueError(f"--input_file={settings.input_file} has no lines")
    return examples


def main(_):
    from bert_tf.serving import client
    from bert_tf.system.messages import visible

    logging.set_verbosity(logging.WARNING)
    settings = settings_of(ClientSettings, FLAGS)
    if "://" in settings.server and not settings.rest:
        raise ValueError(f"--server={settings.server} is an address of REST: give --rest, or host:8500 for gRPC")
    examples = _read_examples(settings)
    ask = client.ask_rest if settings.rest else client.ask_grpc
    for begin in range(0, len(examples), settings.batch_size):
        part = examples[begin : begin + settings.batch_size]
        inputs = {name: [example[name] for example in part] for name in part[0]}
        outputs = ask(
            settings.server, settings.model, inputs, signature=settings.signature, version=settings.version,
            timeout=settings.timeout, max_bytes=settings.max_answer_mb << 20,
        )  # fmt: skip
        outputs = {name: values if isinstance(values, list) else values.tolist() for name, values in outputs.items()}
        for name, values in outputs.items():
            if not isinstance(values, list) or len(values) != len(part):
                raise ValueError(
                    f"{settings.server}: output {visible(name)} does not have {len(part)} rows, as was asked."
                )
        for row in range(len(part)):
            answer = {name: values[row] for name, values in sorted(outputs.items())}
            sys.stdout.write(visible(json.dumps(answer, ensure_ascii=False)) + "\n")


if __name__ == "__main__":
    script.run(main)

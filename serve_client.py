"""Queries a model on TensorFlow Serving, and prints the answers, one JSON object per line.

    python serve_client.py --model=mrpc --input="text=One text." --input="text_pair=Two."
    python serve_client.py --server=localhost:8501 --model=squad --input="question=Who?" --input="context=Ada was here."
    python serve_client.py --model=reviews --input_file=texts.jsonl --tokenizer=runs/reviews/best_model

An export that takes token ids alone needs --tokenizer, the directory of its model, which makes them of texts.

The same request with curl:
    curl -d '{"inputs": {"text": ["One text."], "text_pair": ["Two."]}}' http://localhost:8501/v1/models/mrpc:predict
"""

import dataclasses
import json
import sys
from collections.abc import Callable

from absl import flags, logging

from bert_tf.models.directory import check_model, read_head
from bert_tf.system import checks, script
from bert_tf.system.declare import REQUIRED, define_flags, setting, settings_of
from bert_tf.system.text_files import encoding_setting

FLAGS = flags.FLAGS


def _check_server(server: str, flag: str) -> None:
    scheme, separator, address = server.rpartition("://")
    host, _, port = address.partition("/")[0].rpartition(":")
    if separator and scheme not in ("http", "https"):
        raise ValueError(f"{flag}={server} must be host:port, or begin with http:// or https://")
    if "/v1/" in f"{server}/" or (not separator and "/" in server):
        raise ValueError(f"{flag}={server} has a path: give {host}:{port}, and the model by --model")
    if not separator and port.isdecimal() and int(port) >= 1 << 16:
        raise ValueError(f"{flag}={server}: {port} is no port; the last one is {(1 << 16) - 1}")
    if not separator and not port.isdecimal():
        raise ValueError(f"{flag}={server} has no port: {host or port}:8501, say, the server's --rest_api_port")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """Which server is asked what."""

    model: str = setting(
        REQUIRED, "Name of the model on the server (--model_name, or in model.config).", heading="Request"
    )
    server: str = setting(
        "localhost:8501", "host:port of REST (the server's --rest_api_port), or an address.", check=_check_server
    )
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
    tokenizer: str | None = setting(
        None,
        "Model directory whose tokenizer makes token ids of `text` and `text_pair`, for exports that take ids alone.",
        check=check_model,
        model_check=read_head,
    )
    max_seq_length: int | None = setting(
        None,
        "With --tokenizer: the length of every row, as a server with batching needs it. If unset, longer texts are cut "
        "as in training, and rows padded to the longest of a request.",
    )
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


def _to_ids(settings: ClientSettings, examples: list[dict]) -> Callable[[dict], dict]:
    """Makes `input_ids`, `input_mask` and `segment_ids` of the columns `text` and, of pairs, `text_pair`."""
    from bert_tf.models.directory import read_model_files
    from bert_tf.models.pretrained import read_tokenizer
    from bert_tf.tasks.table import choose_max_seq_length

    if not {"text"} <= examples[0].keys() <= {"text", "text_pair"}:
        raise ValueError(f"--tokenizer makes ids of text and text_pair, not of {', '.join(examples[0])}")
    tokenizer = read_tokenizer(settings.tokenizer)
    length = choose_max_seq_length(read_model_files(settings.tokenizer), settings.max_seq_length)
    padding = "max_length" if settings.max_seq_length else "longest"
    return lambda columns: tokenizer(columns["text"], columns.get("text_pair"), max_length=length, padding=padding)


def main(_):
    from bert_tf.serving import client
    from bert_tf.system.messages import visible

    logging.set_verbosity(logging.WARNING)
    settings = settings_of(ClientSettings, FLAGS)
    examples = _read_examples(settings)
    prepared = _to_ids(settings, examples) if settings.tokenizer else dict
    for begin in range(0, len(examples), settings.batch_size):
        part = examples[begin : begin + settings.batch_size]
        outputs = client.ask(
            settings.server,
            settings.model,
            prepared({name: [example[name] for example in part] for name in part[0]}),
            signature=settings.signature,
            version=settings.version,
            timeout=settings.timeout,
            max_bytes=settings.max_answer_mb << 20,
        )
        for name, values in outputs.items():
            if len(values) != len(part):
                raise ValueError(
                    f"{settings.server}: output {visible(name)} does not have {len(part)} rows, as was asked."
                )
        for row in range(len(part)):
            answer = {name: values[row] for name, values in sorted(outputs.items())}
            sys.stdout.write(visible(json.dumps(answer, ensure_ascii=False)) + "\n")


if __name__ == "__main__":
    script.run(main)

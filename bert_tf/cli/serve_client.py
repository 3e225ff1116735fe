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

from absl import logging

from bert_tf.serving import client
from bert_tf.store.description import check_weights
from bert_tf.store.open import open_model
from bert_tf.system import checks
from bert_tf.system.declare import REQUIRED, define_flags, setting, settings_of
from bert_tf.system.messages import escape_control_characters
from bert_tf.system.text_files import encoding_setting, parse_json, read_text_lines
from bert_tf.tasks.table import choose_max_seq_length


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """The server and the request."""

    model: str = setting(REQUIRED, "Its name on the server (--model_name, or in model.config).", heading="Request")
    server: str = setting("localhost:8501", "host:port of REST (the server's --rest_api_port), or an address.")
    signature: str = setting("serving_default", "Signature; the export's export.json lists them.")
    version: int | None = setting(None, "Version of the model. If unset, the newest one served.", least=0)
    input: tuple[str, ...] = setting((), "name=value of one example, once for each input of the signature.")
    input_file: str | None = setting(
        None, 'Examples: JSON objects, one per line: {"text": "..."}; instead of --input.', check=checks.check_file
    )
    encoding: str = encoding_setting("--input_file")
    batch_size: int = setting(32, "Examples of --input_file sent together.", least=1)
    tokenizer: str | None = setting(
        None,
        "Model directory whose tokenizer makes token ids of `text` and `text_pair`, for exports that take ids alone.",
        check=check_weights,
        is_model=True,
    )
    max_seq_length: int | None = setting(
        None,
        "With --tokenizer: the length of every row, as a server with batching needs it. If unset, longer texts are cut "
        "as in training, and rows padded to the longest of a request.",
    )
    timeout: float = setting(60.0, "Seconds for a request and its answer.", least=0.001)
    max_answer_mb: int = setting(256, "Refuse larger answers, in megabytes.", least=1, most=2047)


FLAGS = define_flags(ClientSettings)


def _read_examples(settings: ClientSettings) -> list[dict]:
    if bool(settings.input) == bool(settings.input_file):
        raise ValueError("Give --input (once for each input of the signature) or --input_file.")
    if loose := [text for text in settings.input if "=" not in text]:
        raise ValueError(f"--input={loose[0]} is not NAME=VALUE.")
    if settings.input:
        example = dict(text.split("=", 1) for text in settings.input)
        if len(example) < len(settings.input):
            raise ValueError("--input names an input twice; for several examples use --input_file")
        return [example]
    examples = []
    for number, line in enumerate(read_text_lines(settings.input_file, encoding=settings.encoding), 1):
        example = parse_json(line.lstrip("\ufeff"), settings.input_file, number)
        if not isinstance(example, dict) or (examples and set(example) != set(examples[0])):
            raise ValueError(f"{settings.input_file}, line {number}: expected an object with the same keys as line 1")
        examples.append(example)
    return examples


def _to_ids(settings: ClientSettings, examples: list[dict]) -> Callable[[dict], dict]:
    """Makes `input_ids`, `input_mask` and `segment_ids` of the columns `text` and, of pairs, `text_pair`."""
    if not {"text"} <= examples[0].keys() <= {"text", "text_pair"}:
        raise ValueError(f"--tokenizer makes ids of text and text_pair, not of {', '.join(examples[0])}")
    opened = open_model(settings.tokenizer, with_weights=False)
    tokenizer, length = opened.make_tokenizer(), choose_max_seq_length(opened, settings.max_seq_length)
    padding = "max_length" if settings.max_seq_length else "longest"
    return lambda columns: tokenizer(columns["text"], columns.get("text_pair"), max_length=length, padding=padding)


def main(_):
    logging.set_verbosity(logging.WARNING)
    settings = settings_of(ClientSettings, FLAGS)
    if settings.max_seq_length is not None and not settings.tokenizer:
        raise ValueError("--max_seq_length is for --tokenizer; an export that takes texts has a length of its own.")
    examples = _read_examples(settings)
    prepared = _to_ids(settings, examples) if settings.tokenizer else dict
    options = {name: getattr(settings, name) for name in ("signature", "version", "timeout")}
    options["max_bytes"] = settings.max_answer_mb << 20
    for begin in range(0, len(examples), settings.batch_size):
        part = examples[begin : begin + settings.batch_size]
        inputs = prepared({name: [example[name] for example in part] for name in part[0]})
        outputs = client.ask(settings.server, settings.model, inputs, **options)
        for values in zip(*map(outputs.get, sorted(outputs)), strict=True):
            answer = dict(zip(sorted(outputs), values, strict=True))
            sys.stdout.write(escape_control_characters(json.dumps(answer, ensure_ascii=False)) + "\n")

"""Queries a model on TensorFlow Serving, and prints the answers, one JSON object per line.

    python serve_client.py --server=localhost:8501 --rest --model=mrpc --input="text=One text." --input="text_pair=Two."
    python serve_client.py --server=localhost:8500 --model=squad --input="question=Who?" --input="context=Ada was here."
    python serve_client.py --server=localhost:8500 --model=reviews --input_file=texts.jsonl

The same request with curl:
    curl -d '{"inputs": {"text": ["One text."], "text_pair": ["Two."]}}' http://localhost:8501/v1/models/mrpc:predict
"""

import json
import sys

from absl import flags, logging

from bert_tf.system import checks, script, text_encodings

FLAGS = flags.FLAGS

flags.DEFINE_string("server", "localhost:8500", "host:port; TensorFlow Serving uses 8500 for gRPC and 8501 for REST.")
flags.DEFINE_string("model", None, "Name of the model on the server (--model_name, or in model.config).")
flags.DEFINE_bool("rest", False, "Use REST (HTTP) instead of gRPC.")
flags.DEFINE_string("signature", "serving_default", "Signature; the export's export.json lists them.")
flags.DEFINE_integer("version", None, "Version of the model; if unset, the newest one served.", lower_bound=0)
flags.DEFINE_multi_string("input", [], "name=value of one example, once for each input of the signature.")
flags.DEFINE_string("input_file", None, 'Examples: JSON objects, one per line: {"text": "..."}; instead of --input.')
text_encodings.define_encoding_flag("--input_file")
flags.DEFINE_integer("batch_size", 32, "Examples of --input_file sent together.", lower_bound=1)
flags.DEFINE_float("timeout", 60.0, "Seconds for a request and its answer.", lower_bound=0.001)
flags.DEFINE_integer("max_answer_mb", 256, "Refuse larger answers, in megabytes.", lower_bound=1, upper_bound=2047)


def _read_examples() -> list[dict]:
    from bert_tf.system.text_files import parse_json, read_text_lines

    if bool(FLAGS.input) == bool(FLAGS.input_file):
        raise ValueError("Give --input (once for each input of the signature) or --input_file.")
    if FLAGS.input:
        pairs = [text.partition("=") for text in FLAGS.input]
        wrong = next((name for name, equals, _ in pairs if not equals), None)
        if wrong is not None:
            raise ValueError(f"--input={wrong}: expected name=value")
        names = [name for name, _, _ in pairs]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"--input={twice}=... is given twice; for several examples use --input_file")
        return [{name: value for name, _, value in pairs}]
    checks.check_file(FLAGS.input_file, "--input_file")
    examples = []
    for number, line in enumerate(read_text_lines(FLAGS.input_file, encoding=FLAGS.encoding), 1):
        example = parse_json(line.lstrip("\ufeff"), FLAGS.input_file, number)
        if not isinstance(example, dict) or (examples and set(example) != set(examples[0])):
            raise ValueError(f"{FLAGS.input_file}, line {number}: expected an object with the same keys as line 1")
        examples.append(example)
    if not examples:
        raise ValueError(f"--input_file={FLAGS.input_file} has no lines")
    return examples


def main(_):
    from bert_tf.serving import client
    from bert_tf.system.messages import visible

    logging.set_verbosity(logging.WARNING)
    if "://" not in FLAGS.server and not FLAGS.server.rpartition(":")[2].isdecimal():
        raise ValueError(f"--server={FLAGS.server} has no port: {FLAGS.server}:8500 for gRPC, :8501 for REST")
    examples = _read_examples()
    ask = client.ask_rest if FLAGS.rest else client.ask_grpc
    for begin in range(0, len(examples), FLAGS.batch_size):
        part = examples[begin : begin + FLAGS.batch_size]
        inputs = {name: [example[name] for example in part] for name in part[0]}
        outputs = ask(
            FLAGS.server, FLAGS.model, inputs, signature=FLAGS.signature, version=FLAGS.version, timeout=FLAGS.timeout,
            max_bytes=FLAGS.max_answer_mb << 20,
        )  # fmt: skip
        outputs = {name: values if isinstance(values, list) else values.tolist() for name, values in outputs.items()}
        for name, values in outputs.items():
            if not isinstance(values, list) or len(values) != len(part):
                raise ValueError(
                    f"{FLAGS.server}: output {visible(name)} does not have {len(part)} rows, as was asked."
                )
        for row in range(len(part)):
            answer = {name: values[row] for name, values in sorted(outputs.items())}
            sys.stdout.write(visible(json.dumps(answer, ensure_ascii=False)) + "\n")


if __name__ == "__main__":
    flags.mark_flags_as_required(["model"])
    script.run(main)

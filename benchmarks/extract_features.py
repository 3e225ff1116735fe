"""Lines per second of extract_features.py, compared with the original's way on the same model and machine, in one run.

    python benchmarks/extract_features.py --text=heldout.txt --model=minilm-l6-h384

The original's way: lines in order, each padded to max_seq_length; then Python rounds and prints every number, batch
after batch, in one thread. It uses this project's model here, so that only the work around the model differs; "padded"
is the first half of it alone. Everything after loading the model counts, including tracing and compiling. Run nothing
else at the same time.
"""

import itertools
import json
import os
import pathlib
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from absl import app, flags, logging  # noqa: E402
from measured import add  # noqa: E402

FLAGS = flags.FLAGS
flags.DEFINE_string("text", None, "Lines of text.")
flags.DEFINE_string("model", None, "Directory of a model with its vocabulary, of any format.")
flags.DEFINE_integer("lines", 1000, "Number of lines of the text to use.")
flags.DEFINE_integer("batch_size", 32, "Lines per batch.")
flags.DEFINE_integer("max_seq_length", 128, "Maximum tokens per line, to which the original pads.")
flags.DEFINE_string("layers", "-1,-2,-3,-4", "Layers to write.")
flags.DEFINE_string("dtype", "float32", "Keras dtype policy: float32 or mixed_bfloat16.")
flags.DEFINE_multi_string("format", ["json", "npz", "tfrecord"], "Formats to measure.")


def settings_of(path: str, output: str | None, **further):
    from bert_tf.tasks.features.settings import FeatureSettings

    given = {"input_file": path, "output_file": output or "", "init_checkpoint": FLAGS.model, **further}
    return FeatureSettings(max_seq_length=FLAGS.max_seq_length, batch_size=FLAGS.batch_size, **given)


def run_padded(model, tokenizer, path: str, layers, output: str | None) -> list:
    """The values [tokens, L, H] of each line; output: also write JSON there, as the original does."""
    from bert_tf.tasks.features import extract

    settings = settings_of(path, output, static_padding=True)
    text = extract.read_input(settings, tokenizer, None)
    results = []
    with open(output or os.devnull, "w") as file:
        for lines, values in extract.layer_values(model, text.rows, layers, settings):
            offsets = text.rows.offsets[lines.start : lines.stop + 1].tolist()
            for number, (begin, end) in zip(lines, itertools.pairwise(offsets), strict=True):
                results.append(values[begin - offsets[0] : end - offsets[0]])
                if output:
                    features = []
                    for token, rows in zip(
                        tokenizer.convert_ids_to_tokens(text.rows.ids[begin:end].tolist()), results[-1], strict=True
                    ):
                        numbers = [[round(float(number), 6) for number in row.flat] for row in rows]
                        of_layers = [
                            {"index": layer, "values": vector} for layer, vector in zip(layers, numbers, strict=True)
                        ]
                        features.append({"token": token, "layers": of_layers})
                    file.write(json.dumps({"linex_index": number, "features": features}) + "\n")
    return results


def run_ours(model, tokenizer, path: str, layers, output: str, output_format: str, static_padding: bool) -> None:
    from bert_tf.tasks.features import extract

    settings = settings_of(path, output, output_format=output_format, static_padding=static_padding)
    extract.extract_features(model, tokenizer, extract.read_input(settings, tokenizer, None), layers, settings)


def main(_):
    import numpy as np

    from bert_tf import BertModel, FullTokenizer
    from bert_tf.tasks.features import extract
    from bert_tf.tasks.features.settings import parse_layers

    logging.set_verbosity(logging.ERROR)
    model = BertModel.from_pretrained(FLAGS.model, dtype=FLAGS.dtype)
    tokenizer = FullTokenizer.from_pretrained(FLAGS.model)
    layers = parse_layers(FLAGS.layers, model.config.num_hidden_layers)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "text.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in itertools.islice(extract.read_lines(FLAGS.text), FLAGS.lines))
        rows = extract.read_input(settings_of(path, None), tokenizer, None).rows
        print(f"{len(rows)} lines, {rows.lengths.mean():.1f} tokens per line, batches of {FLAGS.batch_size}")
        print(f"{'':>34} {'seconds':>8} {'CPU s':>8} {'lines/s':>8} {'times the original':>19} {'MB':>8}")
        seconds, used = {}, {}

        def measure(name: str, function, *arguments):
            """Runs function(*arguments), whose fifth is the output file or None, and prints a row of the table."""
            start, cpu = time.perf_counter(), time.process_time()
            result = function(*arguments)
            seconds[name], used[name] = time.perf_counter() - start, time.process_time() - cpu
            output = arguments[4]
            size = os.path.getsize(output) / 1e6 if output else 0
            ratio, less = (taken["original's way, JSON"] / taken[name] for taken in (seconds, used))
            rate = len(rows) / seconds[name]
            print(
                f"{name:>34} {seconds[name]:8.1f} {used[name]:8.1f} {rate:8.1f} {ratio:19.2f} {size:8.1f}", flush=True
            )
            figures = {"seconds": seconds[name], "CPU s": used[name], "times as fast by CPU time": round(less, 2)}
            add("features of words", name, figures, ratios=[ratio])
            return result

        def output_of(name: str) -> str:
            return os.path.join(folder, name)

        given = (model, tokenizer, path, layers)
        expected = measure("original's way, JSON", run_padded, *given, output_of("original"))
        measure("padded, nothing written", run_padded, *given, None)
        measure("--static_padding, JSON", run_ours, *given, output_of("padded"), "json", True)
        for name in FLAGS.format:
            measure(f"extract_features, {name}", run_ours, *given, output_of(name), name, False)
        if "npz" in FLAGS.format:
            with np.load(output_of("npz")) as file:
                values, largest = file["values"], 0.0
                for line, (begin, end) in enumerate(itertools.pairwise(file["offsets"].tolist())):
                    largest = max(largest, float(np.abs(values[begin:end] - expected[line]).max()))
            print(f"largest difference of a value from the padded ones: {largest:.1e}")
        with open(output_of("original"), "rb") as first, open(output_of("padded"), "rb") as second:
            print("JSON of the padded ones is the same, byte by byte:", first.read() == second.read())


if __name__ == "__main__":
    flags.mark_flags_as_required(["text", "model"])
    app.run(main)

"""Answers of a `Predictor` for one text, in batches, and from the start of Python, beside the same model elsewhere.

    python benchmarks/answers.py --model=reviews_hf --texts=dev.txt --other=../checkout_of_before

`--model` is a Hugging Face directory of a classifier (convert_checkpoint.py makes one), `--texts` has a text on each
line. All sides take strings and give labels: the Predictor as it opens a folder, in float32 and int8; with --other that
of another checkout; transformers with PyTorch; and ONNX Runtime with the file of torch.onnx.export (needs onnxscript)
between transformers' fast tokenizer and the same code for answers. They take turns, in processes of their own, for
--rounds rounds; the table has medians. Memory is the peak of a process after --requests texts one by one and --examples
in batches of 32. The first answer is the time of a whole process that imports, opens and answers one text.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time

import serving
from absl import app, flags
from measured import add
from serving import ROOT, in_process, measure

FLAGS = flags.FLAGS
flags.DEFINE_string("other", None, "Checkout whose Predictor is measured too, for instance that of a tag.")
FLAGS.set_default("requests", 360)

FIRST_ANSWER = {
    "Predictor": "from bert_tf import Predictor as open_it",
    "transformers": "from functools import partial; from transformers import pipeline\n"
    "open_it = partial(pipeline, 'text-classification', device='cpu')",
}
# Shown name -> key of `measure`, and what a figure is multiplied with.
COLUMNS = {
    "one text, p50 ms": ("p50", 1e3),
    "texts/s": ("throughput", 1),
    "MiB": ("memory", 1),
    "first, s": ("first", 1),
}


def measure_predictor(checkout: str, model: str, dtype: str | None, rows, requests: int, examples: int) -> dict:
    """Measures the Predictor of a checkout; dtype: None for what it takes by itself."""
    sys.path.insert(0, checkout)
    from bert_tf import Predictor

    predictor = Predictor(model, **({"dtype": dtype} if dtype else {}))
    return measure(lambda part: predictor.predict([row[0] for row in part]), rows, requests, examples)


def seconds_to_first_answer(side: str, model: str, text: str, checkout: str = str(ROOT), **options) -> float:
    """Wall-clock seconds of a process that imports, opens and answers."""
    program = f"{FIRST_ANSWER[side]}\nopen_it(model={model!r})({text!r})"
    if side == "Predictor":
        program = f"{FIRST_ANSWER[side]}\nopen_it({model!r}, **{options!r})({text!r})"
    start = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": checkout}
    subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    return time.perf_counter() - start


def contenders(torch_file: str, rows: list[tuple]) -> dict[str, tuple]:
    """Name -> (arguments of `in_process`, the function for the first answer)."""
    size, text, model = (rows, FLAGS.requests, FLAGS.examples), rows[0][0], FLAGS.model
    sides = {}
    for dtype in (None, "int8"):
        options = {"dtype": dtype} if dtype else {}
        first = lambda options=options: seconds_to_first_answer("Predictor", model, text, **options)  # noqa: E731
        sides[f"Predictor, {dtype or 'float32'}"] = ((measure_predictor, str(ROOT), model, dtype, *size), first)
    if FLAGS.other:
        other = os.path.abspath(FLAGS.other)
        first = lambda: seconds_to_first_answer("Predictor", model, text, other)  # noqa: E731
        sides["Predictor, other checkout"] = ((measure_predictor, other, model, None, *size), first)
    first = lambda: seconds_to_first_answer("transformers", model, text)  # noqa: E731
    sides["transformers"] = ((serving.measure_transformers, model, False, "float32", *size), first)
    sides["ONNX Runtime, torch's file"] = ((serving.measure_onnx, torch_file, model, False, *size), None)
    return sides


def main(_):
    with open(FLAGS.texts, encoding="utf-8") as file:
        rows = [(line,) for line in file.read().split("\n") if line]
    rows = rows[:: max(1, len(rows) // FLAGS.examples)][: FLAGS.examples]
    figures: dict[str, list[dict]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "torch.onnx")
        sides = contenders(in_process(serving.export_of_transformers, FLAGS.model, path, False), rows)
        for number in range(FLAGS.rounds):
            for name, (arguments, first) in sides.items():
                found = in_process(*arguments) | ({"first": first()} if first else {})
                figures.setdefault(name, []).append(found)
                print(f"round {number + 1}: {name}: {found}", file=sys.stderr, flush=True)
    medians = {}
    for name, rounds in figures.items():
        medians[name] = {
            column: round(scale * statistics.median(found[key] for found in rounds), 2)
            for column, (key, scale) in COLUMNS.items()
            if key in rounds[0]
        }
        print(f"{name:28}", *(f"{column}: {value:<9}" for column, value in medians[name].items()))
    model = os.path.basename(os.path.normpath(FLAGS.model))
    ours = figures["Predictor, float32"]
    for name, rounds in figures.items():
        ratios = [other["p50"] / our["p50"] for our, other in zip(ours, rounds, strict=True)]
        peers = ["transformers", "torch", "onnxruntime"]
        add("answers", f"{model}: {name}", medians[name], peers, [] if rounds is ours else ratios)
        print(f"one text: Predictor, float32, is {statistics.median(ratios):.2f} times as fast as {name}")


if __name__ == "__main__":
    flags.mark_flags_as_required(["model", "texts"])
    app.run(main)

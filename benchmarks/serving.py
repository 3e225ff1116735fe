"""Latency and throughput of exports, compared with transformers with PyTorch: raw text in, answer out on both sides.

    python benchmarks/serving.py --model=reviews_hf --texts=dev.txt
    python benchmarks/serving.py --model=squad_hf --squad_file=dev-v1.1.json

`--model` is a Hugging Face directory of a fine-tuned model (convert_checkpoint.py makes one), so that both sides have
the same weights. Each side is measured in a separate process, in turn: the export as any program calls it
(tf.saved_model.load, TensorFlow and tensorflow_text only), transformers with its fast tokenizer and dynamic padding.
An ONNX file of either side is computed by ONNX Runtime, between the same tokenizer and the same code for answers.
Batch 1: p50 and p99 of single requests. Batch 32: texts in the file's order, whatever their lengths.
All take turns for --rounds rounds, since the speed of a machine varies; the table shows the medians, and the lowest and
highest p50. For a classifier the last lines have the least time of the matrix products of the text of median length, at
this machine's rate for so few rows. Run nothing else at the same time.
"""

import concurrent.futures
import itertools
import json
import multiprocessing
import os
import pathlib
import resource
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from absl import app, flags, logging  # noqa: E402
from measured import add  # noqa: E402

FLAGS = flags.FLAGS
flags.DEFINE_string("model", None, "Hugging Face directory of a classifier, or of a question answering model.")
flags.DEFINE_string("texts", None, "For a classifier: real texts, one per line.")
flags.DEFINE_string("squad_file", None, "For question answering: SQuAD JSON.")
flags.DEFINE_integer("requests", 200, "Requests of one example.")
flags.DEFINE_integer("examples", 640, "Examples in batches of 32 (a quarter of this for questions).")
flags.DEFINE_integer("rounds", 3, "Rounds; each measures every variant.")
flags.DEFINE_multi_string(
    "variant",
    ["float32", "float32 freeze", "bfloat16", "bfloat16 freeze"],
    "Exports to measure; onnx and onnx_int8 are ONNX files, measured beside the one of torch.onnx.export, which needs "
    "onnxscript.",
)

BATCH = 32


def measure(answer, rows: list[tuple], requests: int, examples: int) -> dict:
    """Seconds: p50 and p99 of one row; examples per second in batches; the peak of this process's memory, MiB."""
    several = list(itertools.islice(itertools.cycle(rows), examples))
    for row in several[:3]:
        answer([row])
    times = []
    for row in itertools.islice(itertools.cycle(rows), requests):
        start = time.perf_counter()
        answer([row])
        times.append(time.perf_counter() - start)
    times.sort()
    answer(several[:BATCH])
    start = time.perf_counter()
    for begin in range(0, len(several), BATCH):
        answer(several[begin : begin + BATCH])
    seconds = time.perf_counter() - start
    return {
        "p50": times[len(times) // 2],
        "p99": times[min(len(times) - 1, int(len(times) * 0.99))],
        "throughput": len(several) / seconds,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def measure_export(path: str, names: tuple, rows, requests: int, examples: int) -> dict:
    """Measures an export in a process that loads only TensorFlow."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401

    signature = tf.saved_model.load(path).signatures["serving_default"]

    def answer(part):
        columns = zip(*part, strict=True)
        outputs = signature(**{name: tf.constant(list(column)) for name, column in zip(names, columns, strict=True)})
        return {name: value.numpy() for name, value in outputs.items()}

    return measure(answer, rows, requests, examples)


def transformers_answers(model_dir: str, is_squad: bool, compute):
    """The function from rows of texts to answers, with transformers' fast tokenizer and dynamic padding.

    Args:
      compute: the tokenizer's arrays by name -> logits [B, C], or for questions the logits of starts and ends, [B, S].
    """
    import numpy as np
    import transformers
    from scipy.special import softmax

    transformers.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
    names = transformers.AutoConfig.from_pretrained(model_dir).id2label

    def classify(part):
        (logits,) = compute(tokenizer([row[0] for row in part], padding=True, truncation=True, return_tensors="np"))
        return [names[k] for k in softmax(logits, -1).argmax(-1).tolist()]

    def find(part):
        encoded = tokenizer(
            [row[0] for row in part],
            [row[1] for row in part],
            truncation="only_second",
            max_length=384,
            stride=128,
            padding=True,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_tensors="np",
        )
        owners, offsets = encoded.pop("overflow_to_sample_mapping").tolist(), encoded.pop("offset_mapping")
        starts, ends = compute(encoded)
        best = [(-1e9, 0, 0)] * len(part)
        for window, owner in enumerate(owners):
            inside = np.array([kind == 1 for kind in encoded.sequence_ids(window)])
            first = np.argsort(-np.where(inside, starts[window], -1e9))[:20]
            last = np.argsort(-np.where(inside, ends[window], -1e9))[:20]
            scores = starts[window][first][:, None] + ends[window][last][None]
            lengths = last[None] - first[:, None]
            scores = np.where((lengths >= 0) & (lengths < 30), scores, -1e9)
            a, b = np.unravel_index(scores.argmax(), scores.shape)
            if scores[a, b] > best[owner][0]:
                best[owner] = (float(scores[a, b]), offsets[window][first[a]][0], offsets[window][last[b]][1])
        return [row[1][a:b] for row, (_, a, b) in zip(part, best, strict=True)]

    return find if is_squad else classify


def torch_model(model_dir: str, is_squad: bool):
    """The model of transformers, and the names of its outputs."""
    import transformers

    kind = transformers.BertForQuestionAnswering if is_squad else transformers.BertForSequenceClassification
    return kind.from_pretrained(model_dir).eval(), ("start_logits", "end_logits") if is_squad else ("logits",)


def measure_transformers(model_dir: str, is_squad: bool, dtype: str, rows, requests: int, examples: int) -> dict:
    """Measures transformers with PyTorch."""
    import torch

    model, names = torch_model(model_dir, is_squad)
    autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bfloat16")

    def compute(encoded):
        with torch.inference_mode(), autocast:
            outputs = model(**{name: torch.from_numpy(value) for name, value in encoded.items()})
            return [outputs[name].float().numpy() for name in names]

    return measure(transformers_answers(model_dir, is_squad, compute), rows, requests, examples)


def measure_onnx(path: str, model_dir: str, is_squad: bool, rows, requests: int, examples: int) -> dict:
    """Measures an ONNX file in ONNX Runtime, with transformers' tokenizer: only the files differ."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    names = ["start_logits", "end_logits"] if is_squad else ["logits"]
    ours = {"attention_mask": "input_mask", "token_type_ids": "segment_ids"}
    inputs = {entry.name: "int32" if entry.type == "tensor(int32)" else "int64" for entry in session.get_inputs()}

    def compute(encoded):
        features = {name if name in inputs else ours[name]: value for name, value in encoded.items()}
        return session.run(names, {name: value.astype(inputs[name]) for name, value in features.items()})

    return measure(transformers_answers(model_dir, is_squad, compute), rows, requests, examples)


def export_of_transformers(model_dir: str, path: str, is_squad: bool) -> str:
    """The ONNX file that torch.onnx.export makes of the model of transformers, for rows of any number and length."""
    import torch

    model, outputs = torch_model(model_dir, is_squad)
    names = ("input_ids", "attention_mask", "token_type_ids")
    example = {name: torch.ones((2, 16), dtype=torch.int64) for name in names}
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=512)}
    torch.onnx.export(
        model, kwargs=example, f=path, dynamo=True, input_names=list(names), output_names=list(outputs),
        dynamic_shapes=dict.fromkeys(names, axes), external_data=False,
    )  # fmt: skip
    return path


def in_process(function, *arguments):
    """The result of a function in a new process."""
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def export(model_dir: str, folder: str, variant: str) -> str:
    """An export of a variant such as "bfloat16 freeze", or an ONNX file."""
    from bert_tf.serving import export as serving_export
    from bert_tf.serving import onnx_export
    from bert_tf.store.open import onnx_file

    logging.set_verbosity(logging.ERROR)
    if variant.startswith("onnx"):
        return onnx_file(onnx_export.export_onnx(model_dir, folder, int8=variant == "onnx_int8"))
    dtype, *rest = variant.split()
    return serving_export.export_saved_model(model_dir, folder, dtype=dtype, freeze=rest == ["freeze"], warm_up=False)


def record(figures_of: dict[str, list[dict]], table: str) -> None:
    """Records each variant beside transformers in the same type (an ONNX file beside transformers')."""
    for name in FLAGS.variant:
        ours, peers = figures_of[f"bert_tf {name}"], figures_of[f"transformers {name.replace('_', ' ').split()[0]}"]
        figures = {}
        for side, runs in (("bert_tf", ours), ("transformers", peers)):
            p50 = [1e3 * run["p50"] for run in runs]
            figures[f"{side}, p50 ms"] = f"{statistics.median(p50):.1f} ({min(p50):.1f} to {max(p50):.1f})"
            figures[f"{side}, texts/s in batches of 32"] = statistics.median(run["throughput"] for run in runs)
        pairs = list(zip(ours, peers, strict=True))
        figures["p50, times as fast"] = round(statistics.median(peer["p50"] / our["p50"] for our, peer in pairs), 2)
        ratios = [our["throughput"] / peer["throughput"] for our, peer in pairs]
        add(table, name, figures, ["transformers", "torch"], ratios)


def print_limits(model_dir: str, rows: list[tuple]) -> None:
    """Prints the least time for a text of median length, in both types, in a process of its own."""
    from machine import Limit, encoder_flops

    from bert_tf.store.open import open_model

    opened = open_model(model_dir, with_weights=False)
    config, tokenizer = opened.config, opened.make_tokenizer()
    length = round(statistics.median(int(tokenizer([text])["input_mask"].sum()) for (text,) in rows))
    for dtype in ("float32", "bfloat16"):
        limit = Limit(config, encoder_flops(config, [length], read=1), rows=length, dtype=dtype)
        limit.measure()
        print(f"{dtype}, {length} tokens: {limit}")


def main(_):
    is_squad = FLAGS.squad_file is not None
    if is_squad:
        with open(FLAGS.squad_file, encoding="utf-8") as file:
            data = json.load(file)["data"]
        rows = [
            (question["question"], paragraph["context"])
            for article in data
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]
    else:
        rows = [(line,) for line in pathlib.Path(FLAGS.texts).read_text(encoding="utf-8").split("\n") if line]
    examples = FLAGS.examples // 4 if is_squad else FLAGS.examples
    rows = rows[:: max(1, len(rows) // examples)][:examples]  # from all over the file
    names = ("question", "context") if is_squad else ("text",)
    size = (FLAGS.requests, examples)
    with tempfile.TemporaryDirectory() as folder:
        contenders = {
            f"transformers {dtype}": (measure_transformers, FLAGS.model, is_squad, dtype, rows, *size)
            for dtype in ("float32", "bfloat16")
        }
        if any(variant.startswith("onnx") for variant in FLAGS.variant):
            path = in_process(export_of_transformers, FLAGS.model, os.path.join(folder, "transformers.onnx"), is_squad)
            contenders["transformers onnx"] = (measure_onnx, path, FLAGS.model, is_squad, rows, *size)
        for number, variant in enumerate(FLAGS.variant):
            path = in_process(export, FLAGS.model, os.path.join(folder, str(number)), variant)
            if variant.startswith("onnx"):
                contenders[f"bert_tf {variant}"] = (measure_onnx, path, FLAGS.model, is_squad, rows, *size)
            else:
                contenders[f"bert_tf {variant}"] = (measure_export, path, names, rows, *size)
        figures_of = {name: [] for name in contenders}
        for number in range(FLAGS.rounds):
            for name, (function, *arguments) in contenders.items():
                figures_of[name].append(in_process(function, *arguments))
                print(f"round {number + 1}: {name}: {figures_of[name][-1]}", file=sys.stderr, flush=True)
    print(f"{'':32} {'p50 ms':>8} {'from':>7} {'to':>7} {'p99 ms':>8} {'batch 32, examples/s':>20} {'MiB':>6}")
    for name, figures in figures_of.items():
        p50, p99, throughput, memory = (
            statistics.median(figure[key] for figure in figures) for key in ("p50", "p99", "throughput", "memory")
        )
        lowest, highest = (choose(figure["p50"] for figure in figures) for choose in (min, max))
        print(
            f"{name:32} {p50 * 1e3:8.2f} {lowest * 1e3:7.2f} {highest * 1e3:7.2f} {p99 * 1e3:8.2f} {throughput:20.1f} "
            f"{memory:6.0f}"
        )
    record(figures_of, "serving questions" if is_squad else "serving sentences")
    for dtype in ("float32", "bfloat16"):
        ours = [values for name, values in figures_of.items() if name.startswith(f"bert_tf {dtype}")]
        if ours:
            peers = statistics.median(figure["p50"] for figure in figures_of[f"transformers {dtype}"])
            best = min(statistics.median(figure["p50"] for figure in figures) for figures in ours)
            print(f"p50, {dtype}: the best of bert_tf is {best / peers:.2f} of transformers")
    if not is_squad:
        in_process(print_limits, FLAGS.model, rows)


if __name__ == "__main__":
    flags.mark_flags_as_required(["model"])
    app.run(main)

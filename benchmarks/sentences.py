"""Vectors of sentences: how far they are from those of sentence-transformers, and sentences per second beside it.

    python benchmarks/sentences.py --model=all-MiniLM-L6-v2 --texts=sts_dev.tsv --columns=7,8
    python benchmarks/sentences.py --random=12x768 --texts=glue/STS-B/dev.tsv,klue/klue-sts-v1.1_dev.json \
      --columns=sentence1,sentence2

--model is a directory of sentence-transformers, or one of Hugging Face: then the mean is taken; --random makes one of
multilingual E5's shape. --texts has a sentence on each line, or in some columns of a TSV file or JSON array; those of
several files take turns. All sides take turns, in batches of 32 with texts of similar length in a batch, as both
libraries do it themselves. The last lines also have the least time of the matrix products, without any padding, at
this machine's rate. Before all this, the seconds of a process that imports, opens the model and makes one vector, with
the peak of its memory. Run nothing else at the same time.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["HF_HUB_OFFLINE"] = "1"

import json
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import random_xlm_roberta
from absl import app, flags
from measured import add

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

FLAGS = flags.FLAGS
flags.DEFINE_string("model", None, "Directory of the model.")
flags.DEFINE_list("texts", None, "Files of sentences, one a line; or TSV with a header, or a JSON array of rows.")
flags.DEFINE_list("columns", [], "Columns of a TSV file, from 0 or by name, or of JSON.")
flags.DEFINE_list("dtypes", ["float32", "bfloat16"], "Both sides' models.")
flags.DEFINE_integer("count", 1000, "Sentences.", lower_bound=1)
flags.DEFINE_integer("rounds", 5, "Rounds, after a first one.", lower_bound=1)

BATCH_SIZE = 32
FIRST_VECTOR = {
    "bert_tf": "from bert_tf import Embedder as Model; options = {}",
    "sentence-transformers": "from sentence_transformers import SentenceTransformer as Model; "
    "options = {'device': 'cpu'}",
}
PROGRAM = """
Model({model!r}, **options).encode([{text!r}])
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))  # a child's own peak
"""


def sentences_in(path: str) -> list[str]:
    with open(path, encoding="utf-8") as file:
        if path.endswith(".json"):
            rows = json.load(file)
            return [row[column] for column in FLAGS.columns for row in rows]
        lines = [line.rstrip("\n") for line in file]
    if not FLAGS.columns:
        return lines
    header, *rows = (line.split("\t") for line in lines)
    numbers = [int(column) if column.isdigit() else header.index(column) for column in FLAGS.columns]
    return [row[number] for number in numbers for row in rows]


def read_texts() -> list[str]:
    share = FLAGS.count // len(FLAGS.texts)
    files = (sentences_in(path)[:share] for path in FLAGS.texts)
    return [text for texts in zip(*files, strict=True) for text in texts]


def first_vector(side: str, model: str, text: str) -> tuple[float, float]:
    """Wall-clock seconds of a process that imports, opens and makes one vector, and the peak of its memory in MiB."""
    program = FIRST_VECTOR[side] + PROGRAM.format(model=model, text=text)
    start = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": ROOT}
    result = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    return time.perf_counter() - start, int(result.stdout.split()[-1]) / 1024


def compare_first_vectors(model: str, name: str, text: str) -> None:
    found = {side: [] for side in FIRST_VECTOR}
    for _ in range(FLAGS.rounds):
        for side, pairs in found.items():
            pairs.append(first_vector(side, model, text))
    figures, columns = {}, {side: list(zip(*pairs, strict=True)) for side, pairs in found.items()}
    for side, (seconds, memory) in columns.items():
        figures[f"{side}, s"], figures[f"{side}, MiB"] = statistics.median(seconds), statistics.median(memory)
        print(f"a first vector, {side}: {figures[f'{side}, s']:.2f} s, {figures[f'{side}, MiB']:.0f} MiB")
    ours, theirs = (columns[side][0] for side in FIRST_VECTOR)
    ratios = [other / own for own, other in zip(ours, theirs, strict=True)]
    share = figures["bert_tf, MiB"] / figures["sentence-transformers, MiB"]
    print(f"a first vector: bert_tf is {statistics.median(ratios):.2f} times as fast, with {share:.2f} of the memory")
    add("vectors of sentences", f"{name}: a first vector", figures, ["sentence-transformers", "torch"], ratios)


def main(_):
    texts = read_texts()
    with tempfile.TemporaryDirectory() as folder:
        model, name = FLAGS.model, os.path.basename(os.path.normpath(FLAGS.model or ""))
        if FLAGS.random:
            model = random_xlm_roberta.write_model(f"{folder}/model", texts, "BertForSimilarity")
            name = f"random XLM-RoBERTa, {FLAGS.random}"
        compare_first_vectors(model, name, texts[0])
        compare(model, name, texts)


def compare(model: str, shown_name: str, texts: list[str]) -> None:
    import torch
    from machine import Limit, encoder_flops
    from sentence_transformers import SentenceTransformer

    from bert_tf import Embedder
    from bert_tf.data.token_rows import rows_of_texts
    from bert_tf.store.open import open_model

    sides = {}
    for dtype in FLAGS.dtypes:
        theirs = SentenceTransformer(model, device="cpu", model_kwargs={"dtype": getattr(torch, dtype)})
        ours = Embedder(model, dtype=dtype)
        sides[f"sentence-transformers, {dtype}"] = lambda theirs=theirs: (
            theirs.encode(texts, batch_size=BATCH_SIZE, show_progress_bar=False, convert_to_tensor=True).float().numpy()
        )
        sides[f"bert_tf, {dtype}"] = lambda ours=ours: ours.encode(texts)
    lengths = rows_of_texts(texts, ours.tokenizer, ours.max_seq_length)[0].lengths
    config = open_model(model, with_weights=False).config
    work = (config, encoder_flops(config, lengths), BATCH_SIZE * round(float(lengths.mean())))
    limits = {dtype: Limit(*work, dtype) for dtype in FLAGS.dtypes}
    vectors = {name: side() for name, side in sides.items()}
    expected = vectors[f"sentence-transformers, {FLAGS.dtypes[0]}"]
    seconds = {name: [] for name in sides}
    for _ in range(FLAGS.rounds):
        for limit in limits.values():
            limit.measure()
        for name, side in sides.items():
            begin = time.perf_counter()
            side()
            seconds[name].append(time.perf_counter() - begin)
    title = f"{len(texts):,} sentences, {np.mean([len(text.split()) for text in texts]):.1f} words each"
    title = f"{shown_name}, {title}" if FLAGS.random else title
    print(title)
    print(f"{'':34} {'sentences/s':>12} {'largest difference':>19}")
    speeds = {name: len(texts) / statistics.median(taken) for name, taken in seconds.items()}
    for name, vectors_of_side in vectors.items():
        speed = speeds[name]
        print(f"{name:34} {speed:12.1f} {np.abs(vectors_of_side - expected).max():19.1e}")
    for dtype, limit in limits.items():
        pairs = zip(seconds[f"sentence-transformers, {dtype}"], seconds[f"bert_tf, {dtype}"], strict=True)
        ratios = [rate / other for rate, other in pairs]
        low, high = min(ratios), max(ratios)
        print(f"{dtype}: bert_tf is {statistics.median(ratios):.2f} times as fast ({low:.2f} to {high:.2f}); {limit}")
        figures = {f"{side}, a second": speeds[f"{side}, {dtype}"] for side in ("bert_tf", "sentence-transformers")}
        figures["the limit, a second"] = len(texts) / limit.seconds()
        add("vectors of sentences", f"{title}, {dtype}", figures, ["sentence-transformers", "torch"], ratios)


if __name__ == "__main__":
    flags.mark_flags_as_required(["texts"])
    flags.mark_flags_as_mutual_exclusive(["model", "random"], required=True)
    app.run(main)

"""Vectors of sentences: how far they are from those of sentence-transformers, and sentences per second beside it.

    python benchmarks/sentences.py --model=all-MiniLM-L6-v2 --texts=sts_dev.tsv --columns=7,8

--model is a directory of sentence-transformers, or one of Hugging Face: then the mean is taken. --texts has a sentence
on each line, or in some columns of a TSV file. All sides take turns, in batches of 32 or, with ONNX
Runtime, 8, with texts of similar length in a batch, as both libraries do it themselves. The last lines also have the
least time of the matrix products, without any padding, at this machine's rate. Run nothing else at the same time.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["HF_HUB_OFFLINE"] = "1"

import statistics
import sys
import time

import numpy as np
from absl import app, flags

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

FLAGS = flags.FLAGS
flags.DEFINE_string("model", None, "Directory of the model.")
flags.DEFINE_string("texts", None, "Sentences, one a line; or TSV with a header.")
flags.DEFINE_list("columns", [], "Columns of a TSV file, from 0.")
flags.DEFINE_integer("count", 1000, "Sentences.", lower_bound=1)
flags.DEFINE_integer("rounds", 5, "Rounds, after a first one.", lower_bound=1)

BATCH_SIZE = 32


def read_texts() -> list[str]:
    with open(FLAGS.texts, encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file]
    if not FLAGS.columns:
        return lines[: FLAGS.count]
    rows = [line.split("\t") for line in lines[1:]]
    return [row[int(column)] for column in FLAGS.columns for row in rows][: FLAGS.count]


def main(_):
    import torch
    from machine import Limit, encoder_flops
    from measured import add
    from sentence_transformers import SentenceTransformer

    from bert_tf import Embedder
    from bert_tf.data.token_rows import rows_of_texts
    from bert_tf.store.open import open_model

    texts = read_texts()
    theirs = SentenceTransformer(FLAGS.model, device="cpu")
    half = SentenceTransformer(FLAGS.model, device="cpu", model_kwargs={"dtype": torch.bfloat16})
    ours, ours_half = (Embedder(FLAGS.model, dtype=dtype) for dtype in ("float32", "bfloat16"))
    sides = {
        "sentence-transformers, float32": lambda: theirs.encode(texts, batch_size=BATCH_SIZE),
        "bert_tf, float32": lambda: ours.encode(texts),
        "sentence-transformers, bfloat16": lambda: (
            half.encode(texts, batch_size=BATCH_SIZE, convert_to_tensor=True).float().numpy()
        ),
        "bert_tf, bfloat16": lambda: ours_half.encode(texts),
    }
    lengths = rows_of_texts(texts, ours.tokenizer, ours.max_seq_length)[0].lengths
    config = open_model(FLAGS.model, with_weights=False).config
    work = (config, encoder_flops(config, lengths), BATCH_SIZE * round(float(lengths.mean())))
    limits = {dtype: Limit(*work, dtype) for dtype in ("float32", "bfloat16")}
    vectors = {name: side() for name, side in sides.items()}
    expected = vectors["sentence-transformers, float32"]
    seconds = {name: [] for name in sides}
    for _ in range(FLAGS.rounds):
        for limit in limits.values():
            limit.measure()
        for name, side in sides.items():
            begin = time.perf_counter()
            side()
            seconds[name].append(time.perf_counter() - begin)
    title = f"{len(texts):,} sentences, {np.mean([len(text.split()) for text in texts]):.1f} words each"
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
    flags.mark_flags_as_required(["model", "texts"])
    app.run(main)

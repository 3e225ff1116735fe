"""Wall time of answering a SQuAD file, compared with transformers with PyTorch, one after the other on one machine.

    python benchmarks/squad_predict.py --predict_file=dev-v1.1.json --model=squad_hf

Each side is a separate process and does what its users do: start, read the JSON, cut windows (384 tokens, stride
128), compute in bfloat16 (--peer=float32: in that, for a processor without it) with batches padded to their own
longest, choose answers, write predictions.json. `--model` is a Hugging Face directory of a fine-tuned model
(convert_checkpoint.py makes one). Run nothing else at the same time.
--questions=500 is a short form. The last line has the least time for the matrix products of all windows without any
padding, at this machine's rate.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from absl import app, flags
from measured import add

FLAGS = flags.FLAGS
flags.DEFINE_string("predict_file", None, "SQuAD 1.1 JSON.")
flags.DEFINE_string("model", None, "Hugging Face directory of a question answering model.")
flags.DEFINE_integer("questions", None, "Only about this many questions, whole paragraphs from the file's beginning.")
flags.DEFINE_integer("repeats", 1, "Rounds; each runs both sides.")
flags.DEFINE_integer("batch_size", 32, "Windows per batch on both sides.")
PEERS = ["autocast", "weights", "float32"]
flags.DEFINE_enum("peer", PEERS[0], PEERS, "bfloat16 in transformers: autocast, or all weights; float32: both sides.")
flags.DEFINE_string("output", None, "For internal use: where the transformers side writes.")

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MAX_LENGTH, STRIDE, N_BEST, MAX_ANSWER = 384, 128, 20, 30


def predict_with_transformers() -> None:
    """A typical prediction loop with transformers."""
    import numpy as np
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(FLAGS.model)
    dtype = torch.bfloat16 if FLAGS.peer == "weights" else torch.float32
    model = transformers.BertForQuestionAnswering.from_pretrained(FLAGS.model, dtype=dtype).eval()
    with open(FLAGS.predict_file, encoding="utf-8") as file:
        data = json.load(file)["data"]
    questions = [
        (question["id"], question["question"].lstrip(), paragraph["context"])
        for article in data
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    # transformers' stride is the overlap, the original's the distance between window starts.
    encoded = tokenizer(
        [question for _, question, _ in questions],
        [context for _, _, context in questions],
        truncation="only_second",
        max_length=MAX_LENGTH,
        stride=STRIDE,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    best = {}
    count = len(encoded["input_ids"])
    for begin in range(0, count, FLAGS.batch_size):
        rows = range(begin, min(begin + FLAGS.batch_size, count))
        names = ("input_ids", "token_type_ids", "attention_mask")
        batch = tokenizer.pad({name: [encoded[name][row] for row in rows] for name in names}, return_tensors="pt")
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=FLAGS.peer == "autocast"):
            output = model(**batch)
        starts, ends = output.start_logits.float().numpy(), output.end_logits.float().numpy()
        for row_number, row in enumerate(rows):
            types, offsets = encoded.sequence_ids(row), encoded["offset_mapping"][row]
            owner = encoded["overflow_to_sample_mapping"][row]
            first = np.argsort(-starts[row_number])[:N_BEST].tolist()
            last = np.argsort(-ends[row_number])[:N_BEST].tolist()
            for a in first:
                if a >= len(types) or types[a] != 1:
                    continue
                for b in last:
                    if b < a or b - a >= MAX_ANSWER or b >= len(types) or types[b] != 1:
                        continue
                    score = float(starts[row_number, a]) + float(ends[row_number, b])
                    if owner not in best or score > best[owner][0]:
                        best[owner] = (score, offsets[a][0], offsets[b][1])
    answers = {}
    for number, (key, _, context) in enumerate(questions):
        answers[key] = context[best[number][1] : best[number][2]] if number in best else ""
    with open(FLAGS.output, "w", encoding="utf-8") as file:
        json.dump(answers, file)


def run_transformers(folder: str) -> str:
    path = os.path.join(folder, "transformers.json")
    command = [sys.executable, os.path.abspath(__file__), f"--output={path}", *sys.argv[1:],
               f"--predict_file={FLAGS.predict_file}"]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return path


def run_ours(folder: str) -> str:
    command = [
        sys.executable, os.path.join(ROOT, "run_squad.py"), "--do_predict", f"--predict_file={FLAGS.predict_file}",
        f"--init_checkpoint={FLAGS.model}", f"--max_seq_length={MAX_LENGTH}", f"--doc_stride={STRIDE}",
        f"--predict_batch_size={FLAGS.batch_size}", f"--n_best_size={N_BEST}",
        f"--dtype={'float32' if FLAGS.peer == 'float32' else 'bfloat16'}", f"--output_dir={folder}",
    ]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return os.path.join(folder, "predictions.json")


def shortened(path: str, questions: int, folder: str) -> str:
    """A SQuAD file of the first paragraphs of another, with at least so many questions."""
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    articles, left = [], questions
    for article in content["data"]:
        paragraphs = []
        for paragraph in article["paragraphs"]:
            if left > 0:
                paragraphs.append(paragraph)
                left -= len(paragraph["qas"])
        articles += [{**article, "paragraphs": paragraphs}] if paragraphs else []
    output = os.path.join(folder, "questions.json")
    with open(output, "w", encoding="utf-8") as file:
        json.dump({**content, "data": articles}, file)
    return output


def limit_of_windows():
    """What the windows of the flags need at least; imports what transformers must not wait for."""
    from machine import Limit, encoder_flops

    from bert_tf.store.open import open_model
    from bert_tf.tasks.squad import data, windows

    opened, settings = open_model(FLAGS.model, with_weights=False), windows.WindowSettings()
    examples = data.read_squad_examples([FLAGS.predict_file], False).examples
    lengths = windows.build_windows(examples, opened.make_tokenizer(), settings, False).lengths
    return Limit(
        opened.config, encoder_flops(opened.config, lengths), rows=FLAGS.batch_size * round(float(lengths.mean()))
    )


def main(_):
    if FLAGS.output:
        predict_with_transformers()
        return
    with tempfile.TemporaryDirectory() as folder:
        if FLAGS.questions:
            FLAGS.predict_file = shortened(FLAGS.predict_file, FLAGS.questions, folder)
        compare()


def compare() -> None:
    """Runs both sides and prints their times."""
    sys.path.insert(0, ROOT)
    from bert_tf.tasks.squad import data as squad_data
    from bert_tf.tasks.squad import metrics as squad_metrics

    articles = squad_data.read_articles(FLAGS.predict_file)
    limit = limit_of_windows()
    limit.measure()
    print(f"{'side':>14} {'seconds':>8} {'exact':>7} {'f1':>7}")
    ratios, sides = [], {}
    for _ in range(FLAGS.repeats):
        seconds = {}
        for side, run in (("transformers", run_transformers), ("bert_tf", run_ours)):
            with tempfile.TemporaryDirectory() as folder:
                start = time.perf_counter()
                path = run(folder)
                seconds[side] = time.perf_counter() - start
                with open(path, encoding="utf-8") as file:
                    scores = squad_metrics.evaluate(articles, json.load(file))
            print(f"{side:>14} {seconds[side]:8.1f} {scores['exact_match']:7.2f} {scores['f1']:7.2f}", flush=True)
            for name, value in (("s", seconds[side]), ("exact match", scores["exact_match"]), ("F1", scores["f1"])):
                sides.setdefault(f"{side}, {name}", []).append(value)
        limit.measure()
        print(f"bert_tf takes {seconds['bert_tf'] / seconds['transformers']:.2f} of the time of transformers; {limit}")
        ratios.append(seconds["transformers"] / seconds["bert_tf"])
    figures = {name: statistics.median(values) for name, values in sides.items()}
    title = f"{FLAGS.questions} questions" if FLAGS.questions else "all of the file"
    peers = ["transformers", "torch"]
    add("predicting SQuAD", title, {**figures, "matrix products alone, s": limit.seconds()}, peers, ratios)


if __name__ == "__main__":
    flags.mark_flags_as_required(["predict_file", "model"])
    app.run(main)

"""How much padding fine-tuning computes, by the lengths that batches may have, from the lengths of a task's examples.

    python benchmarks/padding.py --glue_dir=glue --vocab_file=vocab.txt --tasks=MRPC,SST-2,CoLA

For each task, the tokens computed per token of the training set, and how many lengths occur (each is compiled once):
padded to --max_seq_length; in shuffled batches, padded to their longest row; in our batches of similar length, with the
longest row rounded up to a multiple of 32, of 8, and to one of `token_rows.padded_lengths`; and packed, with as many
examples in rows of --max_seq_length as fit. It runs no model.
"""

import itertools
import os
import random
import sys

import numpy as np
from absl import app, flags

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

from bert_tf.data import token_rows  # noqa: E402
from bert_tf.pretraining import packing  # noqa: E402
from bert_tf.tasks.classification import data, glue  # noqa: E402
from bert_tf.tasks.classification.encode import encode_examples  # noqa: E402
from bert_tf.text.wordpiece import FullTokenizer  # noqa: E402

FLAGS = flags.FLAGS
flags.DEFINE_string("glue_dir", None, "Directory with the tasks in GLUE's layout.")
flags.DEFINE_string("vocab_file", None, "Vocabulary, uncased.")
flags.DEFINE_list("tasks", ["MRPC", "SST-2", "CoLA"], "Tasks of GLUE.")
flags.DEFINE_integer("max_seq_length", 128, "Tokens of a row at most.", lower_bound=8)
flags.DEFINE_integer("batch_size", 32, "Rows of a batch.", lower_bound=1)


def computed(lengths: np.ndarray, batches: list[np.ndarray], allowed: list[int]) -> str:
    """Tokens computed for each token of some batches, and the number of lengths that occur."""
    widths = [token_rows.padded_length(int(lengths[rows].max()), allowed) for rows in batches]
    total = sum(width * len(rows) for width, rows in zip(widths, batches, strict=True))
    return f"{total / sum(int(lengths[rows].sum()) for rows in batches):.2f} ({len(set(widths))})"


def main(_):
    tokenizer = FullTokenizer(FLAGS.vocab_file)
    limit, size = FLAGS.max_seq_length, FLAGS.batch_size
    ways = ["unpadded mean", f"padded to {limit}", "shuffled", "32", "8", "ours", "packed"]
    print("| task | examples | " + " | ".join(ways) + " |\n" + "|---" * (len(ways) + 2) + "|")
    for name in FLAGS.tasks:
        task = glue.find_task(name)
        examples = data.read_examples(task, task.train, os.path.join(FLAGS.glue_dir, name))
        lengths = encode_examples(examples, task, tokenizer, limit).lengths
        steps = len(lengths) // size
        ours = list(itertools.islice(token_rows.training_rows(lengths, size, 1, 0), steps))
        shuffled = list(itertools.islice(token_rows.training_rows(lengths, size, 1, 0, window_batches=1), steps))
        cells = [
            f"{lengths.mean():.1f}",
            computed(lengths, shuffled, [limit]),
            computed(lengths, shuffled, list(range(1, limit + 1))),
            *(computed(lengths, ours, [*range(step, limit, step), limit]) for step in (32, 8)),
            computed(lengths, ours, token_rows.padded_lengths(limit)),
            f"{len(packing.pack(lengths, limit, limit, random.Random(0))[1]) * limit / int(lengths.sum()):.2f} (1)",
        ]
        print(f"| {name} | {len(lengths):,} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    flags.mark_flags_as_required(["glue_dir", "vocab_file"])
    app.run(main)

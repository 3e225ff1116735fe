"""How much padding fine-tuning computes, by the lengths that batches may have, from the lengths of a task's examples.

    python benchmarks/padding.py --glue_dir=glue --vocab_file=vocab.txt --tasks=MRPC,SST-2,CoLA

For each task, the tokens computed per token of the training set, and how many lengths occur (each is compiled once):
padded to --max_seq_length; in shuffled batches, padded to their longest row; in our batches of similar length, with the
longest row rounded up to a multiple of 32, of 8, and to one of `token_rows.padded_lengths`; and packed, with as many
examples in rows of --max_seq_length as fit. It runs no model.

With --ner_file=train.conll instead of --glue_dir: how much of the operations of the encoders of a MiniLM (6 layers) and
of BERT-Base would be left if the last layer were computed for the words' first pieces alone, which tagging reads.
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
from bert_tf.families.config import BertConfig  # noqa: E402
from bert_tf.models.encoder import layer_flops  # noqa: E402
from bert_tf.pretraining import row_kinds  # noqa: E402
from bert_tf.tasks.classification import data  # noqa: E402
from bert_tf.tasks.ner.data import Layout, read_conll  # noqa: E402
from bert_tf.tasks.ner.encode import encode_sentences  # noqa: E402
from bert_tf.tasks.rows import encode_examples  # noqa: E402
from bert_tf.text.wordpiece import FullTokenizer  # noqa: E402

FLAGS = flags.FLAGS
flags.DEFINE_string("glue_dir", None, "Directory with the tasks in GLUE's layout.")
flags.DEFINE_string("ner_file", None, "Words and tags, one a line.")
flags.DEFINE_string("vocab_file", None, "Vocabulary, uncased.")
flags.DEFINE_list("tasks", ["MRPC", "SST-2", "CoLA"], "Tasks of GLUE.")
flags.DEFINE_integer("max_seq_length", 128, "Tokens of a row at most.", lower_bound=8)
flags.DEFINE_integer("batch_size", 32, "Rows of a batch.", lower_bound=1)


def computed(lengths: np.ndarray, batches: list[np.ndarray], allowed: list[int]) -> str:
    """Tokens computed for each token of some batches, and the number of lengths that occur."""
    widths = [token_rows.padded_length(int(lengths[rows].max()), allowed) for rows in batches]
    total = sum(width * len(rows) for width, rows in zip(widths, batches, strict=True))
    return f"{total / sum(int(lengths[rows].sum()) for rows in batches):.2f} ({len(set(widths))})"


def left_in_tagging(tokenizer: FullTokenizer, limit: int, size: int) -> None:
    """Prints the share of the encoder's operations that are left if the last layer is computed for words alone.

    The places read of a batch are as many as its row with most words has, rounded up to a multiple of 8.
    """
    rows = encode_sentences(read_conll(FLAGS.ner_file, Layout()).sentences, tokenizer, limit)
    words, lengths, allowed = np.bincount(rows.word_rows), rows.lengths, token_rows.padded_lengths(limit)
    configs = {
        "MiniLM, 6 layers": BertConfig(10, 384, 6, 12, 1536), "BERT-Base": BertConfig(10, 768, 12, 12, 3072),
    }  # fmt: skip
    now, left = dict.fromkeys(configs, 0.0), dict.fromkeys(configs, 0.0)
    for chosen in itertools.islice(token_rows.training_rows(lengths, size, 1, 0), len(lengths) // size):
        length = token_rows.padded_length(int(lengths[chosen].max()), allowed)
        positions = -(-int(words[chosen].max()) // 8) * 8
        for name, config in configs.items():
            now[name] += sum(layer_flops(config, length))
            left[name] += sum(layer_flops(config, length, positions))
    print(f"{words.sum() / lengths.sum():.2f} words for each token")
    for name in configs:
        print(f"{name}: {left[name] / now[name]:.1%} of the operations")


def main(_):
    tokenizer = FullTokenizer(FLAGS.vocab_file)
    limit, size = FLAGS.max_seq_length, FLAGS.batch_size
    if FLAGS.ner_file:
        left_in_tagging(tokenizer, limit, size)
    if not FLAGS.glue_dir:
        if not FLAGS.ner_file:
            raise app.UsageError("Give --glue_dir or --ner_file.")
        return
    ways = ["unpadded mean", f"padded to {limit}", "shuffled", "multiples of 32", "multiples of 8", "ours", "packed"]
    print("| task | examples | " + " | ".join(ways) + " |\n" + "|---" * (len(ways) + 2) + "|")
    for name in FLAGS.tasks:
        task = data.find_task(name)
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
            f"{len(row_kinds.pack(lengths, limit, limit, random.Random(0))[1]) * limit / int(lengths.sum()):.2f} (1)",
        ]
        print(f"| {name} | {len(lengths):,} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    flags.mark_flag_as_required("vocab_file")
    app.run(main)

"""How long saving a checkpoint stops training, written in a thread and written at once, in one run.

    python benchmarks/save.py --output_dir=DIRECTORY

BERT-Base with Adam's moments by default. Each save waits until the one before it is written; the disk is that of
output_dir, whose checkpoints are removed at the end.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import statistics
import tempfile
import time

from absl import app, flags
from measured import add

from bert_tf.families import config_of_size
from bert_tf.models import initialize
from bert_tf.models.task_models import BertForPreTraining
from bert_tf.training import checkpoints
from bert_tf.training.optimization import create_optimizer

FLAGS = flags.FLAGS
flags.DEFINE_string("bert_size", "base", "Size of the model.")
flags.DEFINE_string("output_dir", None, "Where the checkpoints are written; if unset, a temporary folder.")
flags.DEFINE_integer("rounds", 5, "Saves of each kind, in turn.")


def main(_):
    model = BertForPreTraining(config_of_size(FLAGS.bert_size))
    model.build()
    optimizer = create_optimizer("adamw", 1e-4, 1000, 10)
    optimizer.build(model.trainable_variables)
    tensors = initialize.training_variables(model, optimizer)
    times = {"written at once": [], "in a thread": [], "until it is written": []}
    with tempfile.TemporaryDirectory(dir=FLAGS.output_dir) as folder:
        for number in range(FLAGS.rounds + 1):  # the first is not counted
            started = time.perf_counter()
            checkpoints.save(folder, 2 * number, tensors, keep_max=1)
            times["written at once"].append(time.perf_counter() - started)
            with checkpoints.Writer(folder, 1) as writer:
                started = time.perf_counter()
                writer.save(2 * number + 1, tensors)
                times["in a thread"].append(time.perf_counter() - started)
            times["until it is written"].append(time.perf_counter() - started)
    title = f"{FLAGS.bert_size}, {3 * 4 * model.count_params() / 1e9:.2f} GB"
    print(title)
    medians = {f"{name}, s": statistics.median(values[1:]) for name, values in times.items()}
    for name, median in medians.items():
        print(f"{name}: {median:.3f}")
    ratio = medians["written at once, s"] / medians["in a thread, s"]
    add("saves", title, medians, ratios=[ratio])


if __name__ == "__main__":
    app.run(main)

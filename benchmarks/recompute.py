"""Memory and speed of a pre-training step with layers that the backward pass computes again (--recompute), and without.

    python benchmarks/recompute.py
    python benchmarks/recompute.py --num_hidden_layers=12 --hidden_size=768 --batch_size=16

By default BERT-Large with 512 tokens. Each way runs in a process of its own. Memory: the most that the process had at
any time, with its weights, Adam's moments and TensorFlow, in 10^9 bytes. Quote the ratio of the speeds.
"""

import pathlib
import statistics
import subprocess
import sys
import time

from absl import app, flags
from pretraining_batches import random_batch, repeated
from train_step import FLAGS, our_step

from bert_tf.families.config import BertConfig
from bert_tf.models.task_models import BertForPreTraining

_DEFAULTS = {
    "num_hidden_layers": 24, "hidden_size": 1024, "batch_size": 4, "max_seq_length": 512,
    "max_predictions_per_seq": 76, "rounds": 3,
}  # fmt: skip

flags.DEFINE_enum("way", None, ["kept", "recomputed"], "Measure only this way, in this process.")


def measure(recompute: bool) -> str:
    """Gigabytes and seconds per step of this process."""
    size = FLAGS.hidden_size
    config = BertConfig(30522, size, FLAGS.num_hidden_layers, size // 64, 4 * size, type_vocab_size=2)
    batch = random_batch(config, FLAGS.batch_size, FLAGS.max_seq_length, FLAGS.max_predictions_per_seq)
    batches = repeated(batch)
    step = our_step(lambda dtype: BertForPreTraining(config, dtype=dtype), batches, FLAGS.dtype, recompute=recompute)
    step()  # traces and compiles
    seconds = []
    for _ in range(FLAGS.rounds):
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    peak = pathlib.Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
    return f"{int(peak) * 1024 / 1e9:.2f} {statistics.median(seconds):.3f}"


def main(argv):
    if FLAGS.way:
        print(measure(FLAGS.way == "recomputed"))
        return
    results = {}
    for way in ("kept", "recomputed"):
        command = [sys.executable, *argv[:1], *FLAGS.flags_into_string().splitlines(), f"--way={way}"]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        results[way] = tuple(map(float, output.split()))
        print("{}: {:.2f} GB, {:.2f} s a step".format(way, *results[way]))
    (memory, seconds), (less, longer) = results.values()
    print(f"recomputed / kept: memory {less / memory:.2f}, time {longer / seconds:.2f}")


if __name__ == "__main__":
    for name, value in _DEFAULTS.items():
        FLAGS.set_default(name, value)
    app.run(main)

"""What each worker of a pre-training run reads and parses in a step: 1, 2 and 4 processes that take steps together.

    python benchmarks/worker_reading.py

The processes are connected through this machine's loopback device. Their step is a sum over the batch instead of a
model. Records parsed are counted where they are masked; bytes are those of the process's calls of read (`rchar` of
/proc/self/io), in which network connections have no part. Both are of one epoch, divided by its steps. Then the CPU
time of reading alone, for shares that become smaller.
"""

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from absl import app, flags, logging

from bert_tf.data import record_files, records
from bert_tf.data.token_rows import Share
from bert_tf.pretraining import mask_rules
from bert_tf.pretraining.masking import Masking
from bert_tf.system.example_bytes import example, int64_feature, pack
from bert_tf.text.wordpiece import FullTokenizer
from bert_tf.training.distribution import distribute, set_up_devices
from bert_tf.training.settings import DeviceSettings

FLAGS = flags.FLAGS
flags.DEFINE_integer("max_seq_length", 512, "Tokens per record.", lower_bound=8)
flags.DEFINE_integer("batch_size", 256, "Records per step, over all workers.", lower_bound=1)
flags.DEFINE_integer("num_records", 102_400, "Records; an epoch is what is measured.", lower_bound=1)
flags.DEFINE_multi_integer("workers", [1, 2, 4], "Numbers of workers.", lower_bound=1)
flags.DEFINE_multi_integer("parts", [1, 2, 4, 64], "Numbers of workers, for the CPU time of one.", lower_bound=1)
flags.DEFINE_string("records_of_worker", None, "For the processes that this script starts: its file.")

VOCABULARY = pathlib.Path(__file__).resolve().parents[1] / "tests" / "golden" / "vocab.txt"
VOCAB_SIZE = 30522
WINDOW = 2048  # of the shuffle; far smaller than usual, since whole windows are read ahead
MASKING = Masking(FullTokenizer(str(VOCABULARY)), max_predictions_per_seq=77)


def write_records(path: str) -> None:
    """Unmasked rows of two sequences."""
    length = FLAGS.max_seq_length
    generator = np.random.default_rng(0)
    lengths = pack([length // 2, length - length // 2])
    payloads = []
    for _ in range(1000):  # written repeatedly, since making them takes longer than reading them
        ids = generator.integers(5, VOCAB_SIZE, length)
        ids[[0, length // 2 - 1, -1]] = MASKING.cls_id, MASKING.sep_id, MASKING.sep_id
        columns = {b"input_ids": pack(ids.tolist()), b"segment_lengths": lengths, b"next_sentence_labels": pack([0])}
        payloads.append(example(int64_feature(name, packed) for name, packed in columns.items()))
    with tf.io.TFRecordWriter(path) as writer:
        for number in range(FLAGS.num_records):
            writer.write(payloads[number % len(payloads)])


def batches_of(path: str, parsed: list[int]):
    """A function of a share that makes its batches; the number of records is added to `parsed` when they are masked."""
    index = records.index_records([path], None)
    features, _ = record_files.features_of(
        index.first_payloads(), FLAGS.max_seq_length, MASKING.max_predictions_per_seq
    )

    def prepare(rows, step, first_row):
        counted = tf.py_function(lambda: parsed.append(rows["input_ids"].shape[0]), [], [])
        with tf.control_dependencies([counted]):
            return mask_rules.bert(rows, 0, step, MASKING, first_row)

    return lambda share: records.training_batches(
        index, features, batch_size=FLAGS.batch_size, seed=0, shuffle_window=WINDOW, prepare=prepare, share=share
    )


def bytes_read() -> int:
    """Bytes that this process has read so far, from files of any kind."""
    with open("/proc/self/io") as file:
        return int(file.readline().split()[1])


def be_a_worker(path: str) -> None:
    """Takes the steps of two epochs together with the other workers; prints what the second took."""
    tf.get_logger().setLevel("WARNING")
    strategy, parsed = set_up_devices(DeviceSettings(distribution_strategy="multi_worker_mirrored")), []

    def step(batch):
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(batch["masked_lm_weights"]))

    @tf.function(autograph=False)
    def epoch(iterator):
        def body(number, total):
            value = strategy.run(step, args=(iterator.get_next(),))
            return number + 1, total + strategy.experimental_local_results(value)[0]

        return tf.while_loop(lambda number, _: number < steps, body, (0, 0.0), parallel_iterations=1)[1]

    steps = FLAGS.num_records // FLAGS.batch_size
    iterator = iter(distribute(strategy, batches_of(path, parsed)))
    epoch(iterator)
    before = sum(parsed), bytes_read()
    predictions = float(epoch(iterator))
    print(json.dumps([(sum(parsed) - before[0]) / steps, (bytes_read() - before[1]) / steps, predictions / steps]))


def workers_together(count: int, path: str) -> list[list[float]]:
    """For each of so many processes: records parsed, bytes read and predictions of the whole batch, for a step."""
    servers = [socket.create_server(("localhost", 0)) for _ in range(count)]
    addresses = [f"localhost:{server.getsockname()[1]}" for server in servers]
    for server in servers:
        server.close()
    processes = []
    for number in range(count):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": number}}
        command = [sys.executable, *sys.argv, f"--records_of_worker={path}"]
        environment = {**os.environ, "TF_CONFIG": json.dumps(task), "CUDA_VISIBLE_DEVICES": "-1"}
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    return [json.loads(process.communicate()[0]) for process in processes]


def main(_) -> None:
    logging.set_verbosity(logging.WARNING)
    if FLAGS.records_of_worker:
        be_a_worker(FLAGS.records_of_worker)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "records")
        write_records(path)
        size = os.path.getsize(path) / FLAGS.num_records
        print(f"{FLAGS.num_records:,} records of {size:,.0f} bytes; batch {FLAGS.batch_size}; {os.cpu_count()} cores")
        for count in FLAGS.workers:
            for number, (parsed, read, predictions) in enumerate(workers_together(count, path)):
                print(
                    f"worker {number} of {count}: {parsed:6.1f} records parsed and {read / 1e3:6.1f} kB read a step; "
                    f"{predictions:,.1f} predictions in the batch",
                    flush=True,
                )
        for parts in FLAGS.parts:
            iterator = iter(batches_of(path, [])(Share(parts, 0, 1)))
            next(iterator)
            steps, started = FLAGS.num_records // FLAGS.batch_size, time.process_time()
            for _ in range(steps):
                next(iterator)
            seconds = (time.process_time() - started) / steps
            print(f"reading alone, 1 of {parts} workers: {1e3 * seconds:6.2f} ms of CPU time a step", flush=True)


if __name__ == "__main__":
    app.run(main)
